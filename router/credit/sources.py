"""Credit sources: links by which deliveries leave, and how many deliveries they can take together."""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final

from amqpmesh.policies.distribution import Distribution


class _Group:
    """Sums over sources with the same cost."""

    __slots__ = ("cost", "open", "size", "usable")

    def __init__(self, cost: int) -> None:
        self.cost = cost
        self.size = 0
        self.usable = 0
        self.open = 0


#: How many outdated numbers may stay before they are removed.
_FEW: Final = 16


class _Least:
    """A multiset of numbers with its least one; each change costs O(log n)."""

    __slots__ = ("_counts", "_heap", "_heaped")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        #: Each number of the set once, and at most about as many outdated ones.
        self._heap: list[int] = []
        self._heaped: set[int] = set()

    def add(self, number: int) -> None:
        """Add a number."""
        self._counts[number] = self._counts.get(number, 0) + 1
        if number not in self._heaped:
            self._heaped.add(number)
            heappush(self._heap, number)
            if len(self._heap) > 2 * len(self._counts) + _FEW:
                self._heap = sorted(self._counts)
                self._heaped = set(self._heap)

    def remove(self, number: int) -> None:
        """Remove a number that is in the set."""
        left = self._counts[number] - 1
        if left:
            self._counts[number] = left
        else:
            del self._counts[number]

    @property
    def number(self) -> int:
        """Return the least number; 0: the set is empty."""
        heap = self._heap
        while heap and heap[0] not in self._counts:
            self._heaped.discard(heappop(heap))
        return heap[0] if heap else 0


#: The group of no source.
_NONE: Final = _Group(0)


class CreditSource:
    """A link by which deliveries leave, or a share of another node."""

    __slots__ = ("_group", "_open", "cost", "counts", "owner", "usable")

    def __init__(self, usable: int, cost: int, counts: bool, owner: object) -> None:
        self.owner = owner
        self.usable = usable
        """Deliveries that it can take now."""
        self.cost = cost
        self.counts = counts
        """False: it receives copies only, and is no consumer."""
        self._open = False  # it gave credit and has not withdrawn it since
        self._group: _Group | None = None  # None: it does not count, or was removed


class Demand:
    """The number of deliveries that the counting sources of a pool can take now.

    `balanced`: the sum over all sources. `closest`: the sum over the cheapest. `multicast`: the least of all, since
    each delivery goes to all. A change adds its difference: it does not look at the other sources.
    """

    __slots__ = ("_by_cost", "_groups", "_least", "_near", "_none")

    def __init__(self, distribution: Distribution) -> None:
        self._none = distribution is Distribution.UNAVAILABLE
        self._by_cost = distribution is Distribution.CLOSEST
        self._groups: tuple[_Group, ...] = ()  # for `closest`: by cost, the cheapest first
        self._near = _NONE  # the group that is used
        #: For `multicast`: what each counting source can take.
        self._least = _Least() if distribution is Distribution.MULTICAST else None

    @property
    def credit(self) -> int:
        """Return how many deliveries can leave now."""
        return self._near.usable if self._least is None else self._least.number

    @property
    def open(self) -> bool:
        """Return True if there is a consumer, even if its credit is used up; for a multicast, if all are consumers."""
        near = self._near
        return near.open > 0 if self._least is None else near.open == near.size > 0

    def add(self, source: CreditSource) -> None:
        """Add a source with what it can take now."""
        if not source.counts or self._none:
            return
        group = source._group = self._group(source.cost)
        group.size += 1
        usable, source.usable = source.usable, 0
        if self._least is not None:
            self._least.add(0)
        self.set_usable(source, usable, False)

    def remove(self, source: CreditSource) -> None:
        """Remove a source."""
        group = source._group
        if group is None:
            return
        self.set_usable(source, 0, True)
        source._group = None
        if self._least is not None:
            self._least.remove(0)
        group.size -= 1
        if not group.size and self._by_cost:
            self._set_groups(each for each in self._groups if each is not group)

    def set_usable(self, source: CreditSource, usable: int, withdrawn: bool) -> None:
        """Set what a source can take now. Args: withdrawn: it is no consumer until it can take something again."""
        before, source.usable = source.usable, usable
        group = source._group
        if group is None:
            return
        group.usable += usable - before
        if self._least is not None and usable != before:
            self._least.add(usable)
            self._least.remove(before)
        if source._open:
            if withdrawn and not usable:
                source._open = False
                group.open -= 1
        elif usable:
            source._open = True
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
