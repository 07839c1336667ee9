"""What a daemon owes to the system that runs it."""

import os
import resource
import socket


def notify(state: str) -> None:
    """Tell the service manager, if there is one: `READY=1`, `STOPPING=1` (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # a name in Linux's abstract space
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.sendto(state.encode(), address)


def raise_file_limit() -> None:
    """Take as many files as the system grants: every connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
