"""Settings of a daemon's process: its name, file limit, allocator, garbage collection and death signal; notifications
of the service manager.
"""

import ctypes
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

GARBAGE: Final = (10_000, 2, 10)
"""Thresholds of Python's garbage collector: new objects before the young generation is collected, and collections of
each generation before the next older one. Young objects are collected less often than by default, and one collection of
older ones takes some 20 ms at most (`heap.freezing_old_objects`).
"""

ALLOCATOR: Final = "PYTHONMALLOC"
"""The environment variable that names the allocator; Python reads it only when it starts."""

ITSELF: Final = "/proc/self/exe"

_PR_SET_PDEATHSIG: Final = 1  # prctl(2)


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


def set_process_name() -> None:
    """Name this process `amqpmesh` in lists of processes, where the system has proc(5)."""
    with suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as name:
        name.write("amqpmesh")


def raise_file_limit() -> None:
    """Raise the limit of open files to what the system grants: every connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def collect_garbage_less_often() -> None:
    """Exclude all objects that exist now from garbage collection, and collect new ones less often.

    Nothing is relayed during a collection, and a starting daemon has more objects than hundreds of connections add.
    """
    gc.freeze()
    gc.set_threshold(*GARBAGE)


def use_c_allocator() -> None:
    """Restart this process with the C library's allocator (execve, same pid), if that helps and is possible.

    Unlike Python's own, the C library's allocator returns free memory to the system from between used blocks. Python's
    returns whole free MiB only, and after a peak most of them hold something that stays.

    A `PYTHONMALLOC` that is set already is kept: `PYTHONMALLOC=pymalloc` keeps Python's allocator. The restart runs
    `/proc/self/exe`: the name in `sys.executable` may mean another program by now.
    """
    if os.environ.get(ALLOCATOR) or sys.flags.ignore_environment or sys.flags.dev_mode or not _trims():
        return
    if sys.argv[0] in ("", "-"):  # the program came from standard input, and cannot be read twice
        return
    with suppress(OSError):  # keep the allocator that there is
        os.execve(ITSELF, sys.orig_argv, os.environ | {ALLOCATOR: "malloc"})  # noqa: S606 - no other program


def _trims() -> bool:
    """Return True if the C library can free memory between used blocks (malloc_trim(3)): glibc can."""
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (ValueError, OSError):
        return False


def signal_at_parent_death(by: signal.Signals) -> Callable[[], None] | None:
    """Return a function that a new child process calls (`preexec_fn`): the child gets a signal when this process dies.

    Not for threads: the child gets the signal when the thread that started it ends.
    Returns: None: the system has no such signals.
    """
    prctl, us = getattr(ctypes.CDLL(None), "prctl", None), os.getpid()
    if prctl is None:
        return None

    def set_death_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, by)
        if os.getppid() != us:  # the parent died before prctl, so the system sends no signal
            os.kill(os.getpid(), by)

    return set_death_signal
