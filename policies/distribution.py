"""Which receiver: how the deliveries of an address are shared among those who can take them."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Protocol, TypeVar


class Distribution(StrEnum):
    """How an address distributes its deliveries; the values are the words of the configuration."""

    CLOSEST = "closest"
    """To one receiver, the cheapest to reach; those that cost the same take turns."""
    BALANCED = "balanced"
    """To one receiver, the one with the least outstanding; those that have the same take turns."""
    MULTICAST = "multicast"
    """To every receiver."""
    UNAVAILABLE = "unavailable"
    """To nobody: the address cannot be used."""


class Candidate(Protocol):
    """A place that a delivery may leave to, as far as the choice looks at it."""

    turn: int
    """The number of the choice that took it last, 0 before the first; `choose` alone writes it."""

    @property
    def outstanding(self) -> int:
        """Deliveries given to it that it has not settled, unsent ones included."""

    @property
    def cost(self) -> int:
        """What reaching it costs; only ever compared."""

    @property
    def busy(self) -> bool:
        """Whether it is in the middle of a large delivery, so that the next one would have to wait (§2.6.14)."""


C = TypeVar("C", bound=Candidate)


def eligible(distribution: Distribution, candidates: Iterable[C]) -> list[C]:
    """Those that may take deliveries at all, whether or not they have credit now: a matter of the route alone.

    With `closest` a receiver that is farther away never takes over from a nearer one that has run out of credit.
    """
    if distribution is Distribution.UNAVAILABLE:
        return []
    everyone = list(candidates)
    if distribution is Distribution.CLOSEST and everyone:
        least = min(candidate.cost for candidate in everyone)
        return [candidate for candidate in everyone if candidate.cost == least]
    return everyone


def choose(distribution: Distribution, candidates: Sequence[C]) -> Sequence[C]:
    """Who gets the next delivery, of those that can take one now.

    `balanced` compares (busy, outstanding), `closest` (cost, busy); of equals the one that has waited longest is
    taken, so that equals get equal shares, whoever else comes and goes.

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


# The two below are a loop each, rather than `min` with a key, since the latest turn is needed too; it also takes half
# the time where there are many candidates.


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
