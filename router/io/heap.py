"""Memory that connections had, for the system again."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import TYPE_CHECKING, Final, Never

import trio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpmesh.router.io.listeners import Listener

LOOK: Final = 1.0  # seconds
FEW: Final = 100  # connections that may leave before anything is done about it


async def give_back(listeners: Sequence[Listener]) -> Never:
    """Look for garbage and give what is free to the system, once fewer connections are there than have left since most
    were.

    What was a connection refers to itself in parts, and is found as garbage at some time; the C library keeps what is
    free. Looking takes as long as there is much to look at, so it must be worth that, and waits while many leave.
    """
    before = 0
    while True:
        await trio.sleep(LOOK)
        there = sum(each.connections for each in listeners)
        gone = sum(each.most for each in listeners) - there
        if gone > max(there, FEW) and before - there <= FEW:
            gc.collect()
            trim()
            for each in listeners:
                each.most = each.connections
        before = there


def trim() -> bool:
    """Have the C library give its free pages back (malloc_trim(3)). Returns: whether there is a way to say so to it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        say = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # linked into the interpreter, or musl, which has none
        return False
    say(ctypes.c_size_t(0))
    return True
