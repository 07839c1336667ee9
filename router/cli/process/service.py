"""Duties of a daemon towards its system: notifications, its name, files, and memory."""

import gc
import os
import resource
import socket
from contextlib import suppress
from typing import Final

GARBAGE: Final = (10_000, 2, 10)
"""Objects that come to stay before the youngest are looked at, and how often those are before the older ones: of the
youngest less often than Python does, and of the others no more at a time than take some 20 ms (`heap.aging`)."""


def notify(state: str) -> None:
    """Tell the service manager, if there is one: `READY=1`, `STOPPING=1` (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # a name in Linux's abstract space
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.sendto(state.encode(), address)
        except OSError as error:
            raise OSError(error.errno, f"NOTIFY_SOCKET: {error.strerror}", os.environ["NOTIFY_SOCKET"]) from None


def take_name() -> None:
    """Be `amqpmesh` in lists of processes, however it was begun, where the system has names for that (proc(5))."""
    with suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as name:
        name.write("amqpmesh")


def raise_file_limit() -> None:
    """Take as many files as the system grants: every connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def look_for_garbage_less() -> None:
    """Take all that there is now for what stays: only of what comes from now on some may be garbage. Nothing is relayed
    while it is looked for, and a daemon has more to look at when it begins than hundreds of connections will have.
    """
    gc.freeze()
    gc.set_threshold(*GARBAGE)
