"""The places of a count, and the tokens of a rate, that the workers of a router share."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpmesh.router.credit.rate_line import Rate

TOKEN: Final = 1 - 1e-6
"""The least that counts as one token: sums of fractions are a little wrong."""


class Shared(Enum):
    """The limits of which workers take portions, beside those of `Kind`."""

    UNSETTLED = "unsettled"
    OCTETS = "octets"
    RATE = "rate"

    @property
    def limit(self) -> str:
        """The name of its count."""
        return self.value


class Places(Protocol):
    """The places of one count, which the workers of a router share."""

    def take(self, most: int, *, forced: bool) -> bool:
        """Take a place. Args: most: places that there are. forced: take one beyond them, if there is none.

        Returns: False: none is free.
        """

    def take_many(self, number: int, most: int) -> None:
        """Take places, also beyond the limit, for what is there already. Args: most: see `take`."""

    def release(self) -> None:
        """Give back one of the places that this worker has taken."""

    def release_all(self) -> None:
        """Give back all places that this worker has taken."""

    def others(self) -> int:
        """Return the number of places that other workers have taken."""

    def take_some(self, number: int, most: int) -> int:
        """Take some places, as many as are free. Args: most: see `take`. Returns: how many."""

    def give_back(self, number: int) -> None:
        """Give back some of the places that this worker has taken, those beyond the limit first."""


class Tokens(Protocol):
    """The tokens of rates that the workers of a router share, and that nothing waits for."""

    def take(self, rates: Sequence[Rate]) -> list[float] | None:
        """Take one token of each of some rates, or none at all.

        Returns: what each had before: if it was a `TOKEN` of each, one of each is taken now. None: the workers cannot
            share them now.
        """
