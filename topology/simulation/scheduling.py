"""Repeatable runs of Trio."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

from trio._core import _run

from amqpmesh.router.io.environment import OF_THIS_RUN, Environment

_SORTED: Final = "_ALLOW_DETERMINISTIC_SCHEDULING"


@contextmanager
def seeded(seed: int) -> Iterator[Random]:
    """Make this run of Trio repeatable: its random choices come from a seed, and work takes no time.

    Trio wakes tasks that are ready together in a random order, on purpose, and has no public way to choose the order.
    This function sorts them, as Hypothesis and pytest-trio do, and restores Trio's state at the end.

    Yields: the source of random numbers for the caller.
    """
    names = vars(_run)
    was_sorted, state = names[_SORTED], _run._r.getstate()
    names[_SORTED] = True
    _run._r.seed(f"scheduling {seed}")
    tokens = Random(f"tokens {seed}")  # noqa: S311 - no adversary is there
    token = OF_THIS_RUN.set(
        Environment(
            chance=Random(f"chance {seed}"),  # noqa: S311 - as above
            token=lambda octets: tokens.randbytes(octets).hex(),
            # The duration of work depends on the machine, and would decide when tasks yield to others.
            stopwatch=lambda: 0.0,
        )
    )
    try:
        yield Random(f"network {seed}")  # noqa: S311 - as above
    finally:
        OF_THIS_RUN.reset(token)
        _run._r.setstate(state)
        names[_SORTED] = was_sorted
