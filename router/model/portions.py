"""Portions of a limit that the workers of a router share: what one worker has taken of it, and gives back.

A worker takes what its clients use, and a little more while there is plenty: so it rarely asks, and nobody waits for
what another worker keeps and does not use. What is used beyond the limit (it has shrunk, or was under way) is counted
as well. So all workers together take no more than the limit, but for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.credit.places import Places

PARTS: Final = 256
"""A worker takes octets in parts of the limit: one of so many, or of `LEAST` octets."""

LEAST: Final = 4096

AHEAD: Final = 4
"""Parts that a worker may keep beyond what it uses, while half of all are free."""


class Portion:
    """The part of a limit that one worker has."""

    __slots__ = ("_beyond", "_most", "_places", "_within", "limit", "unit")

    def __init__(self, places: Places, limit: int, *, of_octets: bool) -> None:
        """Args: limit: of all workers together, deliveries or octets."""
        self._places = places
        self._within = 0
        self._beyond = 0
        self._set(limit, of_octets=of_octets)

    def _set(self, limit: int, *, of_octets: bool) -> None:
        self.limit = limit
        self.unit = max(LEAST, -(-limit // PARTS)) if of_octets else 1
        self._most = max(1, limit // self.unit)

    def allow(self, limit: int, used: int) -> None:
        """Set the limit. Args: used: deliveries or octets that this worker has, also if it is more than that."""
        if limit != self.limit:
            self._places.release_all()
            self._within = self._beyond = 0
            self._set(limit, of_octets=self.unit != 1)
            if used:
                self._take_forced(-(-used // self.unit))

    @property
    def size(self) -> int:
        """The deliveries or octets that this worker may use."""
        return self.limit if self._within == self._most else self._within * self.unit

    @property
    def taken(self) -> int:
        """The deliveries or octets that it has taken, those beyond the limit included."""
        return (self._within + self._beyond) * self.unit

    def others(self) -> int:
        """Return what other workers have taken, deliveries or octets."""
        return self._places.others() * self.unit

    def free(self) -> int:
        """Return what nobody has taken, deliveries or octets."""
        return max(0, self._most - self._within - self._beyond - self._places.others()) * self.unit

    def take(self, number: int, freed: int = 0) -> int:
        """Take deliveries. Args: freed: of them, what this worker has and gives back soon. Returns: how many."""
        taken = self._take(number)
        more = min(number - taken, freed)
        if more > 0:
            self._take_beyond(more)
        return taken + max(0, more)

    def give_back(self, number: int) -> None:
        """Give back deliveries; those beyond the limit first."""
        self._give_back(number)

    def fit(self, octets: int) -> bool:
        """Take what the octets in use need, and give back what they do not. Returns: whether there is more to use."""
        before = self._within
        need = -(-octets // self.unit)
        if self._beyond:
            self._give_back(self._beyond)
        have = self._within
        if need < have:
            free = self._most - have - self._places.others()
            ahead = AHEAD if need and 2 * free > self._most else 0
            self._give_back(max(0, have - need - ahead))
        elif need > have:
            free = self._most - have - self._places.others()
            ahead = AHEAD if 2 * (free - (need - have)) > self._most else 0
            self._take_forced(need - have, ahead)
        return self._within > before

    def release(self) -> None:
        """Give back everything."""
        self._places.release_all()
        self._within = self._beyond = 0

    def _take_forced(self, number: int, ahead: int = 0) -> None:
        rest = number - self._take(number + ahead)
        if rest > 0:
            self._take_beyond(rest)

    def _take(self, number: int) -> int:
        free = self._most - self._within - self._beyond - self._places.others()
        taken = self._places.take_some(min(number, free), self._most) if free > 0 else 0
        self._within += taken
        return taken

    def _take_beyond(self, number: int) -> None:
        self._places.take_many(number, self._most)
        self._beyond += number

    def _give_back(self, number: int) -> None:
        number = min(number, self._within + self._beyond)
        if number:
            self._places.give_back(number)
            beyond = min(number, self._beyond)
            self._beyond -= beyond
            self._within -= number - beyond


def portion_of(
    portion: Portion | None,
    places: Callable[[], Places | None],
    limit: int | None,
    used: int,
    *,
    of_octets: bool = False,
) -> Portion | None:
    """Return a portion of a limit as it is now; None: there is no limit, or workers do not share it.

    Args: portion: the one until now. places: returns shared places. used: what this worker has, deliveries or octets.
    """
    if limit is None:
        if portion is not None:
            portion.release()
        return None
    if portion is None:
        shared = places()
        if shared is None:
            return None
        portion = Portion(shared, 0, of_octets=of_octets)
    portion.allow(limit, used)
    return portion
