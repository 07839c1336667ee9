"""Credit sources: links by which deliveries leave, and how many deliveries they can take together."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqpmesh.router.kernel.credit_pool import Pool
    from amqpmesh.router.kernel.link_endpoint import KernelLink


class SourceGroup:
    """Sums over sources with the same cost."""

    __slots__ = ("cost", "open", "size", "usable")

    def __init__(self, cost: int) -> None:
        self.cost = cost
        self.size = 0
        self.usable = 0
        self.open = 0


#: How many outdated numbers may stay before they are removed.
_OUTDATED: Final = 16


class LeastNumber:
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
            if len(self._heap) > 2 * len(self._counts) + _OUTDATED:
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
        return self._number()

    def _number(self) -> int:
        heap = self._heap
        while heap and heap[0] not in self._counts:
            self._heaped.discard(heappop(heap))
        return heap[0] if heap else 0


#: The group of no source.
_NO_GROUP: Final = SourceGroup(0)


class CreditSource:
    """A link by which deliveries leave, or a share of another node."""

    __slots__ = ("_group", "_open", "cost", "counts", "link", "owner", "pool", "usable")

    def __init__(self, usable: int, cost: int, counts: bool, owner: object, pool: Pool | None = None) -> None:
        self.owner = owner
        self.pool = pool
        """The pool that has it; None: it was removed."""
        self.link: KernelLink | None = None
        """The outgoing link; None: it is a share of another node."""
        self.usable = usable
        """Deliveries that it can take now."""
        self.cost = cost
        self.counts = counts
        """False: it receives copies only, and is no consumer."""
        self._open = False  # it gave credit and has not withdrawn it since
        self._group: SourceGroup | None = None  # None: it does not count, or was removed


class Demand:
    """The number of deliveries that the counting sources of a pool can take now.

    `balanced`: the sum over all sources. `closest`: the sum over the cheapest. `multicast`: the least of all, since
    each delivery goes to all. A change adds its difference: it does not look at the other sources.
    """

    __slots__ = ("_by_cost", "_groups", "_least", "_near", "_none")

    def __init__(self, distribution: str) -> None:
        """Args: distribution: a value of `Distribution`."""
        self._none = distribution == "unavailable"
        self._by_cost = distribution == "closest"
        self._groups: tuple[SourceGroup, ...] = ()  # for `closest`: by cost, the cheapest first
        #: The group that is used; of no source at first.
        self._near = _NO_GROUP
        #: For `multicast`: what each counting source can take.
        self._least = LeastNumber() if distribution == "multicast" else None

    @property
    def credit(self) -> int:
        """Return how many deliveries can leave now."""
        return self._credit_now()

    @property
    def open(self) -> bool:
        """Return True if there is a consumer, even if its credit is used up; for a multicast, if all are consumers."""
        return self._is_open()

    def _credit_now(self) -> int:
        return self._near.usable if self._least is None else self._least._number()

    def _is_open(self) -> bool:
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
            self._set_groups([each for each in self._groups if each is not group])

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

    def _group(self, cost: int) -> SourceGroup:
        if not self._by_cost:
            if self._near is _NO_GROUP:
                self._near = SourceGroup(0)
            return self._near
        for group in self._groups:
            if group.cost == cost:
                return group
        group = SourceGroup(cost)
        self._set_groups([*self._groups, group])
        return group

    def _set_groups(self, groups: list[SourceGroup]) -> None:
        groups.sort(key=_cost_of)
        self._groups = tuple(groups)
        self._near = groups[0] if groups else _NO_GROUP


def _cost_of(group: SourceGroup) -> int:
    return group.cost
