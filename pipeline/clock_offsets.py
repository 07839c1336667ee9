"""How far the clocks of routers are apart, from when the same deliveries and their outcomes passed them.

What has left one router comes to the next one later. So, if clock b is ahead of clock a by x, what b shows as it comes
is at least x more than what a showed as it left: each delivery bounds x from above. The outcome goes the other way, and
bounds it from below. The least of each are the tightest; x lies between them. Bounds over several routers add up, so
the shortest paths in the graph of all bounds are the tightest that all together give.

In the middle between them is where a clock is taken to be, and half their distance is the error: with it, nothing that
has bounded the clocks comes before it has left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

Numbers = np.ndarray[Any, np.dtype[np.int64]]

INCONSISTENT: Final = "inconsistent"
"""Bounds exclude each other: a clock was set within the window, or drifts faster than it may, or records are wrong."""

ONE_WAY: Final = "one way"
"""There are bounds in one direction only: nothing came back."""

_FAR: Final = np.iinfo(np.int64).max // 4


@dataclass(frozen=True, slots=True)
class Bound:
    """Clock `ahead` is ahead of clock `behind` by `most` at most (negative: it is behind by that at least)."""

    behind: str
    ahead: str
    most: int


@dataclass(frozen=True, slots=True)
class Clock:
    """How far a router's clock is ahead of another's, in nanoseconds.

    Args: offset: None: unknown. error: it is wrong by so much at most. is_reference: `against` is what all routers that
        this one has bounds with, over whatever others, are compared with; otherwise it is a neighbour.
        problem: why it is unknown.
    """

    router: str
    against: str
    is_reference: bool
    offset: int | None
    error: int | None
    problem: str | None = None


def clocks(bounds: Iterable[Bound]) -> Iterator[Clock]:
    """Where the clocks are: of each router against a reference, then of each two that have bounds.

    The reference is the first by name of those that are bound to each other in both directions. A bound that the
    opposite one excludes counts no more, nor that one; what still excludes each other leaves all routers that are
    concerned unknown.
    """
    least: dict[tuple[str, str], int] = {}
    for each in bounds:
        place = each.behind, each.ahead
        least[place] = min(each.most, least.get(place, _FAR))
    pairs = sorted({(min(place), max(place)) for place in least if place[0] != place[1]})
    excluded = {
        (one, other) for one, other in pairs if least.get((one, other), _FAR) + least.get((other, one), _FAR) < 0
    }
    good = {
        place: most
        for place, most in least.items()
        if place[0] != place[1] and (min(place), max(place)) not in excluded
    }
    found: dict[str, Clock] = {}
    for group in _bound_together(good):
        found.update(_located(group, good))
    yield from found.values()
    for one, other in pairs:
        yield _pair(found, least, one, other, (one, other) in excluded)


def _bound_together(bounds: dict[tuple[str, str], int]) -> Iterator[list[str]]:
    """Routers that have bounds with each other in both directions, over whatever others; by name."""
    names = sorted({name for place in bounds for name in place})
    if not names:
        return
    number = {name: at for at, name in enumerate(names)}
    rows = [number[behind] for behind, _ in bounds]
    columns = [number[ahead] for _, ahead in bounds]
    graph = csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(names), len(names)))
    count, labels = connected_components(graph, directed=True, connection="strong")
    groups: list[list[str]] = [[] for _ in range(count)]
    for name, label in zip(names, labels, strict=True):
        groups[label].append(name)
    yield from (group for group in groups if len(group) > 1)


def _located(group: list[str], bounds: dict[tuple[str, str], int]) -> dict[str, Clock]:
    number = {name: at for at, name in enumerate(group)}
    within = [(number[a], number[b], most) for (a, b), most in bounds.items() if a in number and b in number]
    behind, ahead, most = np.array(within, np.int64).T
    above = _shortest(len(group), behind, ahead, most)
    below = _shortest(len(group), ahead, behind, most)
    reference = group[0]
    if above is None or below is None:
        return {name: Clock(name, reference, True, None, None, INCONSISTENT) for name in group}
    # Halved downwards and upwards: the offset may be half a nanosecond less than the middle, and the error covers that.
    offset, error = (above - below) // 2, (above + below + 1) // 2
    return {name: Clock(name, reference, True, int(offset[at]), int(error[at])) for at, name in enumerate(group)}


def _shortest(size: int, begin: Numbers, end: Numbers, length: Numbers) -> Numbers | None:
    """Distances from the first (Bellman and Ford); None: some way round is shorter than none."""
    distance = np.full(size, _FAR)
    distance[0] = 0
    for _ in range(size + 1):
        nearer = distance.copy()
        reached = distance[begin] < _FAR
        np.minimum.at(nearer, end[reached], (distance[begin] + length)[reached])
        if (nearer == distance).all():
            return distance
        distance = nearer
    return None


def _pair(found: dict[str, Clock], least: dict[tuple[str, str], int], one: str, other: str, excluded: bool) -> Clock:
    """How far `other` is ahead of `one`, so that it agrees with what was found of both."""
    above, below = least.get((one, other)), least.get((other, one))
    first, second = found.get(one), found.get(other)
    if excluded:
        return Clock(other, one, False, None, None, INCONSISTENT)
    if first is None or second is None or first.against != second.against:
        return Clock(other, one, False, None, None, ONE_WAY)
    if first.offset is None or second.offset is None or first.error is None or second.error is None:
        return Clock(other, one, False, None, None, INCONSISTENT)
    offset = second.offset - first.offset
    error = first.error + second.error
    if above is not None and below is not None:
        error = min(error, max(above - offset, below + offset))
    return Clock(other, one, False, offset, error)
