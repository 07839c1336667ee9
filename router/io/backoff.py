"""How long to wait before what failed is tried again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from amqpmesh.router.io.environment import surroundings

LASTING: Final = 5.0
"""Seconds after which a connection, or a link, counts as one that worked: a failure is the first in a row again."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a connection is tried again: twice as long each time, a random part less.

    Args: first, longest: seconds.
    """

    first: float = 0.1
    longest: float = 10.0

    def pause(self, row: int) -> float:
        """Seconds to wait after the `row`-th failure in a row, counted from 1."""
        longest = min(self.longest, self.first * 2.0 ** min(row - 1, 30))
        # Many clients of one router that comes back must not come at once.
        return longest * surroundings().chance.uniform(0.5, 1.0)
