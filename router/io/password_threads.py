"""A few threads for password hashes, which take too long for the event loop."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router.io.environment import REAL, environment

if TYPE_CHECKING:
    from amqpmesh.router.amqp.sasl.mechanisms import Work

LIGHT: Final = 5_000
"""Iterations of hashing that take as long as the way to a thread and back: some 2 ms."""

_THREADS: Final[trio.lowlevel.RunVar[trio.CapacityLimiter]] = trio.lowlevel.RunVar("amqpmesh password threads")


async def do(work: Work) -> None:
    """Do the work of a SASL exchange; long work runs in a thread. Raises: nothing."""
    # A simulation must repeat exactly, and its virtual clock waits for no thread.
    if work.iterations <= LIGHT or environment() is not REAL:
        work.do()
    else:
        await trio.to_thread.run_sync(work.do, abandon_on_cancel=True, limiter=_threads())


def _threads() -> trio.CapacityLimiter:
    """Return the limiter of this Trio run; it leaves one processor free for relaying."""
    try:
        return _THREADS.get()
    except LookupError:
        limiter = trio.CapacityLimiter(max(1, (os.cpu_count() or 1) - 1))
        _THREADS.set(limiter)
        return limiter
