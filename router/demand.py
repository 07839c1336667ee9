"""What the places that deliveries leave to can take, together."""

from collections.abc import Iterable
from typing import Final

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.few import Few, excluding, including


class _Group:
    """Sums over branches that are used alike."""

    __slots__ = ("cost", "open", "size", "usable")

    def __init__(self, cost: int) -> None:
        self.cost = cost
        self.size = 0
        self.usable = 0
        self.open = 0


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
    can take least, since every delivery goes to all. Kept up to date by difference, O(1) per change; only the least of
    a multicast is looked for again when it rises, once per time it is asked for.
    """

    __slots__ = ("_branches", "_by_cost", "_groups", "_least", "_multicast", "_near", "_none")

    def __init__(self, distribution: Distribution) -> None:
        self._none = distribution is Distribution.UNAVAILABLE
        self._multicast = distribution is Distribution.MULTICAST
        self._by_cost = distribution is Distribution.CLOSEST
        self._branches: Few[Branch] = ()  # of a multicast: those that count
        self._groups: tuple[_Group, ...] = ()  # where that matters: by cost, the cheapest first
        self._near = _NONE  # the group that is used
        self._least: int | None = None

    @property
    def credit(self) -> int:
        """How many deliveries can leave now."""
        if not self._multicast:
            return self._near.usable
        if self._least is None:
            self._least = min((branch.usable for branch in self._branches), default=0)
        return self._least

    @property
    def open(self) -> bool:
        """Whether there is a consumer, though its credit may be spent; for a multicast, whether all are consumers."""
        near = self._near
        return near.open == near.size > 0 if self._multicast else near.open > 0

    def add(self, branch: Branch) -> None:
        """A branch, with what it can take now."""
        if not branch.counts or self._none:
            return
        if self._multicast:
            self._branches = including(self._branches, branch)
        group = branch._group = self._group(branch.cost)
        group.size += 1
        usable, branch.usable = branch.usable, 0
        self.set_usable(branch, usable, False)

    def remove(self, branch: Branch) -> None:
        """A branch that is gone."""
        group = branch._group
        if group is None:
            return
        self.set_usable(branch, 0, True)
        self._branches = excluding(self._branches, branch)
        branch._group = None
        self._least = None
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
        if self._multicast and self._least is not None:
            if usable < self._least:
                self._least = usable
            elif before == self._least < usable:
                self._least = None
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
