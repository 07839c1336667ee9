"""A few threads for work that takes too long for the event loop: password hashes, and large files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from amqpmesh.router.io.environment import REAL, environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.amqp.sasl.mechanisms import Computation

T = TypeVar("T")
R = TypeVar("R")

LIGHT: Final = 5_000
"""Iterations of hashing that take as long as the way to a thread and back: some 2 ms."""

_THREADS: Final[trio.lowlevel.RunVar[trio.CapacityLimiter]] = trio.lowlevel.RunVar("amqpmesh password threads")
_FILE_THREAD: Final[trio.lowlevel.RunVar[trio.CapacityLimiter]] = trio.lowlevel.RunVar("amqpmesh file thread")


async def do(work: Computation) -> None:
    """Do the work of a SASL exchange; long work runs in a thread. Raises: nothing."""
    # A simulation must repeat exactly, and its virtual clock waits for no thread.
    if work.iterations <= LIGHT or environment() is not REAL:
        work.do()
    else:
        await trio.to_thread.run_sync(
            work.do, abandon_on_cancel=True, limiter=_limiter(_THREADS, max(1, (os.cpu_count() or 1) - 1))
        )


async def apart(work: Callable[[T], R], given: T, limiter: trio.CapacityLimiter) -> R:
    """Do work of the program in a thread of its own, and return its result. Raises: its error.

    If it is cancelled, the thread goes on, and its result is dropped. Args: limiter: of the threads, also of those that
        were left alone: the program and the router need the other ones.
    """
    if environment() is not REAL:  # as above
        await trio.lowlevel.checkpoint()
        return work(given)
    return await trio.to_thread.run_sync(work, given, abandon_on_cancel=True, limiter=limiter)


async def aside(work: Callable[[T], R], given: T) -> R:
    """Do work in a thread, and return its result. Raises: its error.

    One such thread works at a time, beside those of logins: a policy with thousands of tenants takes seconds.
    """
    if environment() is not REAL:  # as above
        await trio.lowlevel.checkpoint()
        return work(given)
    return await trio.to_thread.run_sync(work, given, limiter=_limiter(_FILE_THREAD, 1))


def _limiter(variable: trio.lowlevel.RunVar[trio.CapacityLimiter], threads: int) -> trio.CapacityLimiter:
    """Return a limiter of this Trio run. Args: threads: at most."""
    try:
        return variable.get()
    except LookupError:
        limiter = trio.CapacityLimiter(threads)
        variable.set(limiter)
        return limiter
