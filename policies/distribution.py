"""The distribution of an address' deliveries among its receivers."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, Protocol, TypeVar


class Distribution(StrEnum):
    """Ways to distribute the deliveries of an address; the values are words of the configuration."""

    CLOSEST = "closest"
    """To one receiver, the cheapest to reach; receivers of equal cost take turns."""
    BALANCED = "balanced"
    """To one receiver, the one with the fewest outstanding deliveries; receivers with equally many take turns."""
    MULTICAST = "multicast"
    """To every receiver."""
    UNAVAILABLE = "unavailable"
    """To no receiver: the address cannot be used."""


# Members that each new link needs. To read one from its class costs as much as a call (Python 3.11).
MULTICAST: Final = Distribution.MULTICAST
UNAVAILABLE: Final = Distribution.UNAVAILABLE


class Candidate(Protocol):
    """The attributes of a receiver that a choice compares."""

    turn: int
    """The number of the last choice that took this receiver, 0 before the first; only `choose` writes it."""

    @property
    def outstanding(self) -> int:
        """The count of deliveries given to the receiver that it has not settled, unsent ones included."""

    @property
    def cost(self) -> int:
        """The cost of the path to the receiver, only for comparison."""

    @property
    def busy(self) -> bool:
        """True in the middle of a large delivery: the next delivery would wait (§2.6.14)."""


C = TypeVar("C", bound=Candidate)


def eligible(distribution: Distribution, candidates: Iterable[C]) -> list[C]:
    """Return the receivers that the distribution allows, with or without credit: only the route counts.

    With `closest` a receiver farther away never takes over from a nearer one that has no credit left.
    """
    if distribution is Distribution.UNAVAILABLE:
        return []
    everyone = list(candidates)
    if distribution is Distribution.CLOSEST and everyone:
        least = min(candidate.cost for candidate in everyone)
        return [candidate for candidate in everyone if candidate.cost == least]
    return everyone


def choose(distribution: Distribution, candidates: Sequence[C]) -> Sequence[C]:
    """Choose the receivers of the next delivery among those that can take one now.

    `balanced` compares (busy, outstanding), `closest` compares (cost, busy). Of equals, the one that has waited longest
    is taken, so equals get equal shares, even while others come and go.

    Args: candidates: the eligible ones that have credit.
    Returns: one of them, all of them for `multicast`, or none.
    """
    if distribution is Distribution.MULTICAST:
        return candidates
    if not candidates or distribution is Distribution.UNAVAILABLE:
        return ()
    chosen = candidates[0]
    if len(candidates) > 1:  # this runs per delivery, and one receiver is the common case
        chosen = _least_outstanding(candidates) if distribution is Distribution.BALANCED else _cheapest(candidates)
    return (chosen,)


# Both loops below replace `min` with a key: they also need the latest turn, and take half the time for many candidates.


def _least_outstanding(candidates: Sequence[C]) -> C:
    best = candidates[0]
    busy, least, turn = best.busy, best.outstanding, best.turn
    latest = turn
    for candidate in candidates:
        its_turn = candidate.turn
        if its_turn > latest:
            latest = its_turn
        outstanding = candidate.outstanding
        if busy == candidate.busy:
            if outstanding > least or (outstanding == least and its_turn >= turn):
                continue
        elif not busy:
            continue
        best, busy, least, turn = candidate, candidate.busy, outstanding, its_turn
    best.turn = latest + 1
    return best


def _cheapest(candidates: Sequence[C]) -> C:
    best = candidates[0]
    cost, busy, turn = best.cost, best.busy, best.turn
    latest = turn
    for candidate in candidates:
        its_turn = candidate.turn
        if its_turn > latest:
            latest = its_turn
        if candidate.cost > cost:
            continue
        if candidate.cost == cost:
            if candidate.busy and not busy:
                continue
            if candidate.busy == busy and its_turn >= turn:
                continue
        best, cost, busy, turn = candidate, candidate.cost, candidate.busy, its_turn
    best.turn = latest + 1
    return best
