"""Offsets between the clocks of routers, from the times when the same deliveries and outcomes passed them.

A delivery reaches the next router after it has left the one before. If clock b is ahead of clock a by x, then b's time
of arrival is at least x more than a's time of departure: each delivery bounds x from above. Outcomes go the other way,
and bound x from below. The lowest upper bound and the highest lower bound are the tightest; x lies between them. Bounds
over several routers add up, so the shortest paths in the graph of all bounds are the tightest bounds together.

The estimate of a clock is the middle of its bounds, and half their distance is its error. With these estimates no
delivery that gave a bound arrives before it has left.
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
"""The bounds exclude each other: a clock was set within the window, or drifts too fast, or records are wrong."""

ONE_WAY: Final = "one way"
"""There are bounds in one direction only: no outcome came back."""

_FAR: Final = np.iinfo(np.int64).max // 4


@dataclass(frozen=True, slots=True)
class Bound:
    """An upper bound: clock `ahead` is ahead of clock `behind` by at most `most` (negative: it is behind by at least
    that).
    """

    behind: str
    ahead: str
    most: int


@dataclass(frozen=True, slots=True)
class Clock:
    """The offset of a router's clock from another's, in nanoseconds.

    Args: offset: how far it is ahead; None: unknown. error: the greatest error of the offset. is_reference: `against`
        is the reference of all routers that are connected to this one by bounds; otherwise it is a neighbour. problem:
        the reason of an unknown offset.
    """

    router: str
    against: str
    is_reference: bool
    offset: int | None
    error: int | None
    problem: str | None = None


def clocks(bounds: Iterable[Bound]) -> Iterator[Clock]:
    """Yield the offset of each router from a reference, then that of each two routers with bounds.

    The reference is the first, by name, of a group of routers connected by bounds in both directions. If two opposite
    bounds exclude each other, neither counts; if the rest of the bounds exclude each other, all routers of the group
    are unknown.
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
    for group in _connected_groups(good):
        found.update(_clocks_of_group(group, good))
    yield from found.values()
    for one, other in pairs:
        yield _pair(found, least, one, other, (one, other) in excluded)


def _connected_groups(bounds: dict[tuple[str, str], int]) -> Iterator[list[str]]:
    """Yield groups of routers that are connected by bounds in both directions, sorted by name."""
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


def _clocks_of_group(group: list[str], bounds: dict[tuple[str, str], int]) -> dict[str, Clock]:
    number = {name: at for at, name in enumerate(group)}
    within = [(number[a], number[b], most) for (a, b), most in bounds.items() if a in number and b in number]
    behind, ahead, most = np.array(within, np.int64).T
    above = _shortest(len(group), behind, ahead, most)
    below = _shortest(len(group), ahead, behind, most)
    reference = group[0]
    if above is None or below is None:
        return {name: Clock(name, reference, True, None, None, INCONSISTENT) for name in group}
    # Rounded down and up: the offset may be half a nanosecond below the middle, and the error covers that.
    offset, error = (above - below) // 2, (above + below + 1) // 2
    return {name: Clock(name, reference, True, int(offset[at]), int(error[at])) for at, name in enumerate(group)}


def _shortest(size: int, begin: Numbers, end: Numbers, length: Numbers) -> Numbers | None:
    """Return the distances from the first router (Bellman and Ford); None: there is a negative cycle."""
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
    """Return how far `other` is ahead of `one`, consistent with the offsets of both."""
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
