"""What comes to a program from outside, besides bytes and Trio's time: chance, and how long its own work takes.

Programs have the real ones. A simulation gives a whole run others, so that the same seed gives the same run.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

import trio


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where the edge takes from what neither a peer nor the clock tells it."""

    chance: Random
    """For what only has to differ, or to be spread; nothing of it is secret."""
    token: Callable[[int], str]
    """So many octets, in hexadecimal digits, that nobody else has and nobody can guess."""
    stopwatch: Callable[[], float]
    """Seconds, to be compared with each other: how long the work took that a task has done without a pause."""


REAL: Final = Surroundings(
    # One of our own: programs that set a seed get the numbers that they expect.
    chance=Random(),  # noqa: S311 - nothing is guessed
    token=secrets.token_hex,
    stopwatch=time.perf_counter,
)

OF_RUN: Final[trio.lowlevel.RunVar[Surroundings]] = trio.lowlevel.RunVar("amqpmesh surroundings", REAL)
"""Those of a run of Trio; a simulation sets them."""


def surroundings() -> Surroundings:
    """Those of this run; outside of any the real ones."""
    return OF_RUN.get() if trio.lowlevel.in_trio_run() else REAL


def seconds_worked() -> float:
    """What the stopwatch of this run shows."""
    return OF_RUN.get().stopwatch()
