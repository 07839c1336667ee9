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
    """Let this run take its chances from a seed, and its work take no time.

    Trio wakes tasks that are ready together in an order that is chance, on purpose, and has no public way to choose
    that; this is what Hypothesis and pytest-trio do. Its own state is put back at the end.

    Yields: the source of chance for other callers.
    """
    names = vars(_run)
    was_sorted, state = names[_SORTED], _run._r.getstate()
    names[_SORTED] = True
    _run._r.seed(f"scheduling {seed}")
    tokens = Random(f"tokens {seed}")  # noqa: S311 - nobody is there who could guess
    token = OF_THIS_RUN.set(
        Environment(
            chance=Random(f"chance {seed}"),  # noqa: S311 - as above
            token=lambda octets: tokens.randbytes(octets).hex(),
            # How long work takes is the machine's to say, and would decide when tasks give way to others.
            stopwatch=lambda: 0.0,
        )
    )
    try:
        yield Random(f"network {seed}")  # noqa: S311 - as above
    finally:
        OF_THIS_RUN.reset(token)
        _run._r.setstate(state)
        names[_SORTED] = was_sorted
