"""What the places that deliveries leave to can take, together."""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final

from amqpmesh.policies.distribution import Distribution


class _Group:
    """Sums over branches that are used alike."""

    __slots__ = ("cost", "open", "size", "usable")

    def __init__(self, cost: int) -> None:
        self.cost = cost
        self.size = 0
        self.usable = 0
        self.open = 0


#: Numbers that may be too many before they are looked through.
_FEW: Final = 16


class _Least:
    """Numbers that come and go, and the least of them, for O(log n) each."""

    __slots__ = ("_counts", "_heap", "_heaped")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        #: Each number once that is there, and about as many, at most, that are not there any more.
        self._heap: list[int] = []
        self._heaped: set[int] = set()

    def add(self, number: int) -> None:
        """One more."""
        self._counts[number] = self._counts.get(number, 0) + 1
        if number not in self._heaped:
            self._heaped.add(number)
            heappush(self._heap, number)
            if len(self._heap) > 2 * len(self._counts) + _FEW:
                self._heap = sorted(self._counts)
                self._heaped = set(self._heap)

    def remove(self, number: int) -> None:
        """One less, which is there."""
        left = self._counts[number] - 1
        if left:
            self._counts[number] = left
        else:
            del self._counts[number]

    @property
    def number(self) -> int:
        """The least; 0: there is none."""
        heap = self._heap
        while heap and heap[0] not in self._counts:
            self._heaped.discard(heappop(heap))
        return heap[0] if heap else 0


#: No branch is there.
_NONE: Final = _Group(0)


class Branch:
    """A place that deliveries leave to."""

    __slots__ = ("_group", "_open", "cost", "counts", "owner", "usable")

    def __init__(self, usable: int, cost: int, counts: bool, owner: object) -> None:
        self.owner = owner
        self.usable = usable
        """Deliveries that it can take now."""
        self.cost = cost
        self.counts = counts
        """False: it sees copies only, and is no consumer."""
        self._open = False  # it gave credit, and did not take it back since
        self._group: _Group | None = None  # None: it does not count, or is gone


class Demand:
    """How many deliveries the branches that count can take now.

    `balanced`: all of them together. `closest`: the cheapest together. `multicast`: as many as the one that
    can take least, since every delivery goes to all. Kept up to date by difference: no change looks at all branches.
    """

    __slots__ = ("_by_cost", "_groups", "_least", "_near", "_none")

    def __init__(self, distribution: Distribution) -> None:
        self._none = distribution is Distribution.UNAVAILABLE
        self._by_cost = distribution is Distribution.CLOSEST
        self._groups: tuple[_Group, ...] = ()  # where that matters: by cost, the cheapest first
        self._near = _NONE  # the group that is used
        #: Of a multicast: what those that count can take.
        self._least = _Least() if distribution is Distribution.MULTICAST else None

    @property
    def credit(self) -> int:
        """How many deliveries can leave now."""
        return self._near.usable if self._least is None else self._least.number

    @property
    def open(self) -> bool:
        """Whether there is a consumer, though its credit may be spent; for a multicast, whether all are consumers."""
        near = self._near
        return near.open > 0 if self._least is None else near.open == near.size > 0

    def add(self, branch: Branch) -> None:
        """A branch, with what it can take now."""
        if not branch.counts or self._none:
            return
        group = branch._group = self._group(branch.cost)
        group.size += 1
        usable, branch.usable = branch.usable, 0
        if self._least is not None:
            self._least.add(0)
        self.set_usable(branch, usable, False)

    def remove(self, branch: Branch) -> None:
        """A branch that is gone."""
        group = branch._group
        if group is None:
            return
        self.set_usable(branch, 0, True)
        branch._group = None
        if self._least is not None:
            self._least.remove(0)
        group.size -= 1
        if not group.size and self._by_cost:
            self._set_groups(each for each in self._groups if each is not group)

    def set_usable(self, branch: Branch, usable: int, withdrawn: bool) -> None:
        """What a branch can take now; withdrawn: it is no consumer until it can take something again."""
        before, branch.usable = branch.usable, usable
        group = branch._group
        if group is None:
            return
        group.usable += usable - before
        if self._least is not None and usable != before:
            self._least.add(usable)
            self._least.remove(before)
        if branch._open:
            if withdrawn and not usable:
                branch._open = False
                group.open -= 1
        elif usable:
            branch._open = True
            group.open += 1

    def _group(self, cost: int) -> _Group:
        if not self._by_cost:
            if self._near is _NONE:
                self._near = _Group(0)
            return self._near
        for group in self._groups:
            if group.cost == cost:
                return group
        group = _Group(cost)
        self._set_groups((*self._groups, group))
        return group

    def _set_groups(self, groups: Iterable[_Group]) -> None:
        self._groups = tuple(sorted(groups, key=lambda group: group.cost))
        self._near = self._groups[0] if self._groups else _NONE
