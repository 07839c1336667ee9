"""Locks of octets of a file by an open file description, for workers that share something (fcntl(2), F_OFD_SETLK).

The system frees the locks of a process that ends, however it ends. Another open file description of the same process is
another owner.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from typing import Final

_LOCK: Final = struct.Struct("hhqqi")  # struct flock: type, whence, start, octets, process

PATIENCE: Final = 0.002
"""Seconds for others to unlock a file that they lock for some 20 us. One of them may have been stopped meanwhile."""

IS_HELD: Final = (BlockingIOError, PermissionError)
"""Errors for octets that another owner has locked."""


def set_lock(file: int, kind: int, start: int, octets: int) -> None:
    """Lock or unlock octets of a file, without waiting.

    Args: file: its descriptor. kind: F_WRLCK or F_UNLCK.
    Raises: IS_HELD: another owner has locked some of them. OSError: the system has no more locks.
    """
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, start, octets, 0))


def holder(file: int, start: int, octets: int) -> tuple[int, int] | None:
    """Return the first octet and the number of octets of a lock that another owner has there; None: there is none."""
    asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, octets, 0)
    kind, _, first, number, _ = _LOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else (first, number)


def lock_soon(file: int) -> bool:
    """Lock the first octet of a file, for a moment. Returns: False: others keep it. Raises: OSError: as `set_lock`."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            set_lock(file, fcntl.F_WRLCK, 0, 1)
        except IS_HELD:
            if time.monotonic() > until:
                return False
            os.sched_yield()
        else:
            return True
