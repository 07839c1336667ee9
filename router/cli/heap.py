"""Memory that connections had, for the system again."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Final, Never

import trio

LOOK: Final = 1.0  # seconds
FEW: Final = 100  # connections that may leave before anything is done about it


async def give_back(connections: Callable[[], tuple[int, int]]) -> Never:
    """Look for garbage and give what is free to the system, once more connections have left than are there.

    What was a connection refers to itself in parts, and is found as garbage at some time; the C library keeps what is
    free. Looking takes as long as there is much to look at, so it must be worth that, and waits until no more leave.

    Args: connections: how many there are now, and how many have left since the beginning.
    """
    _, done = connections()
    before = done
    while True:
        await trio.sleep(LOOK)
        there, left = connections()
        if left == before and left - done > max(there, FEW):
            gc.collect()
            trim()
            done = left
        before = left


def trim() -> bool:
    """Have the C library give its free pages back (malloc_trim(3)). Returns: whether there is a way to say so to it."""
    if not sys.platform.startswith("linux"):
        return False
    say = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if say is None:  # musl has none
        return False
    say(ctypes.c_size_t(0))
    return True
