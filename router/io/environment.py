"""Input of the edge besides bytes and Trio's clock: random numbers, tokens, and a stopwatch.

Programs use `REAL`. A simulation sets another `Environment` for a whole Trio run, so the same seed gives the same run.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

import trio


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The sources of randomness and of measured time."""

    chance: Random
    """Random numbers that need not be secret: for values that only have to differ, or to be spread."""
    token: Callable[[int], str]
    """A function from a number of octets to a random token of that size, in hexadecimal digits: unique, and not
    guessable.
    """
    stopwatch: Callable[[], float]
    """A clock in seconds without a defined start. It measures how long a task has worked without a pause."""


REAL: Final = Environment(
    # A generator of our own: programs that set a seed of `random` get the numbers that they expect.
    chance=Random(),  # noqa: S311 - not for secrets
    token=secrets.token_hex,
    stopwatch=time.perf_counter,
)

OF_THIS_RUN: Final[trio.lowlevel.RunVar[Environment]] = trio.lowlevel.RunVar("amqpmesh environment", REAL)
"""The environment of a Trio run; a simulation sets it."""


IS_ALONE: Final[trio.lowlevel.RunVar[bool]] = trio.lowlevel.RunVar("amqpmesh is alone", False)
"""True if a Trio run has no other purpose than its router: no tasks of a program wait while the router waits."""


def environment() -> Environment:
    """Return the environment of this Trio run, or `REAL` outside of any run."""
    return OF_THIS_RUN.get() if trio.lowlevel.in_trio_run() else REAL


def stopwatch_seconds() -> float:
    """Return the time of this run's stopwatch, in seconds."""
    return OF_THIS_RUN.get().stopwatch()


def work_seconds() -> float:
    """Return the processor time of this thread, in seconds; in a simulation, the time of its stopwatch.

    Work beside other programs that take the processor is not worth more.
    """
    found = OF_THIS_RUN.get()
    return time.thread_time() if found is REAL else found.stopwatch()
