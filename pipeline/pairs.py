"""The worst of all pairs of failures, without routing the traffic for each of them.

What a pair cuts off is computed exactly for every pair, by the graph: one search for each element finds the links and
routers that would split the rest. What a pair loads is bounded: if `y` fails after `x`, the traffic that `y` carried
then is all that moves, so no link gets more than that beside its own. Pairs are routed in the order of their bounds,
until no other can be among the worst.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappush, heappushpop
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from amqpmesh.pipeline.contingency import Failure

if TYPE_CHECKING:
    from amqpmesh.pipeline.contingency import Case
    from amqpmesh.pipeline.routing import Amounts, Numbers

ELEMENTS: Final = 800
"""Links and routers whose pairs are judged at most, those that carry most."""

WORST: Final = 100
"""Pairs that are kept of each kind: those that cut off most, those that cut off most beyond their parts, and those that
load a link most.
"""

ROUTED: Final = 1_500
"""Pairs that are routed to find those that load a link most, at most."""

Element = tuple[str, ...]


@dataclass(frozen=True)
class Pairs:
    """The worst pairs.

    Args: failures: of all kinds, each once. judged: how many pairs there are of these elements. elements: how many
        links and routers they are made of. routed: how many were routed. bound: no pair that was judged, and is not in
        `failures`, uses a link more.
    """

    failures: Sequence[Failure]
    judged: int
    elements: int
    routed: int
    bound: float


def worst(case: Case, *, elements: int = ELEMENTS, kept: int = WORST, routed: int = ROUTED) -> Pairs:
    """Return the worst pairs of failures. Args: elements, kept, routed: as `ELEMENTS`, `WORST`, `ROUTED`."""
    singles = [each.elements[0] for each in case.failures()]
    carried = [float(case.traffic.load[case.edges((each,))].sum()) for each in singles]
    chosen = sorted(range(len(singles)), key=lambda at: (-carried[at], singles[at]))[:elements]
    judge = _Judge(case, [singles[at] for at in sorted(chosen)])
    one, other = judge.pairs
    if not len(one):
        return Pairs((), 0, len(chosen), 0, 0.0)
    cut, lost, more_cut, more_lost = judge.losses()
    bounds = judge.bounds()
    overall = np.lexsort((-bounds, -lost, -cut))[:kept]
    beyond = np.flatnonzero((more_cut > 0) | (more_lost > 0))
    beyond = beyond[np.lexsort((-more_lost[beyond], -more_cut[beyond]))][:kept]
    loading, tried, bound = judge.loading(bounds, kept, routed)
    found = np.unique(np.concatenate([overall, beyond, loading]))
    failures = [Failure("pair", (judge.elements[one[at]], judge.elements[other[at]])) for at in found]
    return Pairs(failures, len(one), len(chosen), tried, bound)


class _Judge:
    """All pairs of some elements. Args: elements: links and routers, as in `Failure`."""

    def __init__(self, case: Case, elements: Sequence[Element]) -> None:
        self.case, self.elements = case, elements
        network = case.network
        self._edges = [case.edges((each,)) for each in elements]
        #: The place of a router; -1: it is a link.
        self._router = np.array([network.place[each[0]] if len(each) == 1 else -1 for each in elements], np.int64)
        self._links = {frozenset(network.place[end] for end in each): at for at, each in enumerate(elements)}
        self._end_at = np.where(
            case.ends < 0, case.begins, case.traffic.targets[case.ends] if len(case.traffic.targets) else 0
        )
        #: For each flow: the number of its sender, a router and an address; and the number of flows of each.
        width = len(network)
        _, self._sender = np.unique(case.address * width + case.begins, return_inverse=True)
        self._flows_of_sender = np.bincount(self._sender)
        order = np.argsort(self._end_at, kind="stable")
        self._by_end = order, np.searchsorted(self._end_at[order], np.arange(width + 1))

    @cached_property
    def pairs(self) -> tuple[Numbers, Numbers]:
        """The places of both elements of each pair. A router and one of its links are no pair."""
        one, other = np.triu_indices(len(self.elements), 1)
        owns = np.zeros((len(self.elements), len(self.elements)), bool)
        for place, each in enumerate(self.elements):
            if len(each) == 2:
                for end in each:
                    at = self._links.get(frozenset([self.case.network.place[end]]))
                    if at is not None:
                        owns[place, at] = owns[at, place] = True
        kept = ~owns[one, other]
        return one[kept], other[kept]

    # ------------------------------------------------------------------------------------------------------ losses

    def losses(self) -> tuple[Amounts, Amounts, Amounts, Amounts]:
        """Return for each pair: addresses cut off, messages lost, and of both how many more than by its parts."""
        alone = [self._lost_alone(at) for at in range(len(self.elements))]
        singles = np.array([self._told(each, self._failed(at)) for at, each in enumerate(alone)]).reshape(-1, 2)
        splits = [self._splits(at) for at in range(len(self.elements))]
        first = self._splits(None)
        found = np.zeros((len(self.pairs[0]), 2))
        for at, (one, other) in enumerate(zip(*self.pairs, strict=True)):
            # A link first, if there is one.
            x, y = (other, one) if self._router[other] < 0 <= self._router[one] else (one, other)
            if self._router[x] < 0 and x not in splits[y]:
                found[at] = singles[y]  # the link is not missed, also without the other element
                continue
            failed = self._failed(x, y)
            if self._router[x] < 0 and x in first:
                lost = np.union1d(alone[x], alone[y])  # no path crosses a bridge twice
            elif self._router[x] >= 0 and y not in splits[x]:
                lost = np.union1d(alone[x], self._to(self._router[y]))
            else:
                lost = self._lost(np.concatenate([self._edges[x], self._edges[y]]), failed)
            found[at] = self._told(lost, failed)
        more = found - singles[self.pairs[0]] - singles[self.pairs[1]]
        return found[:, 0], found[:, 1], more[:, 0], more[:, 1]

    def _failed(self, *elements: int) -> Numbers:
        """Return the places of the routers among some elements."""
        found = self._router[list(elements)]
        return found[found >= 0]

    def _to(self, router: int) -> Numbers:
        order, first = self._by_end
        return order[first[router] : first[router + 1]]

    def _lost_alone(self, element: int) -> Numbers:
        return self._lost(self._edges[element], self._failed(element))

    def _lost(self, edges: Numbers, routers: Numbers) -> Numbers:
        """Return the flows that have no path any more, and those to failed routers; also those from failed ones."""
        network = self.case.network
        there = np.ones(len(network.costs), bool)
        there[edges] = False
        shape = (len(network),) * 2
        graph = csr_matrix((there[there], (network.tails[there], network.heads[there])), shape=shape)
        _, label = connected_components(graph, directed=False)
        gone = np.isin(self._end_at, routers) if len(routers) else False
        return np.flatnonzero((label[self.case.begins] != label[self._end_at]) | gone)

    def _told(self, lost: Numbers, routers: Numbers) -> tuple[float, float]:
        """Return the addresses cut off, and the messages lost. Args: lost: flows; those from `routers` do not count."""
        for router in routers:
            lost = lost[self.case.begins[lost] != router]
        if not len(lost):
            return 0.0, 0.0
        senders, count = np.unique(self._sender[lost], return_counts=True)
        none = senders[count == self._flows_of_sender[senders]]
        cut = self.case.address[lost[np.isin(self._sender[lost], none)]]
        return float(len(np.unique(cut))), float(self.case.messages[lost].sum())

    def _splits(self, gone: int | None) -> set[int]:
        """Return the elements each of which would split a part of the graph if an element is gone already.

        One search in depth finds the bridges and the articulation points (Hopcroft and Tarjan, 1973).
        """
        network = self.case.network
        there = np.ones(len(network.costs), bool)
        if gone is not None:
            there[self._edges[gone]] = False
        tails, heads = network.tails[there], network.heads[there]
        first = np.searchsorted(tails, np.arange(len(network) + 1)).tolist()
        ahead: list[int] = heads.tolist()
        found: set[int] = set()
        seen, low = [0] * len(network), [0] * len(network)
        clock = 0
        for root in range(len(network)):
            if seen[root]:
                continue
            clock += 1
            seen[root] = low[root] = clock
            branches = 0
            path = [(root, -1, iter(range(first[root], first[root + 1])))]
            while path:
                here, before, edges = path[-1]
                for edge in edges:
                    there_to = ahead[edge]
                    if there_to == before:
                        continue
                    if seen[there_to]:
                        low[here] = min(low[here], seen[there_to])
                        continue
                    clock += 1
                    seen[there_to] = low[there_to] = clock
                    path.append((there_to, here, iter(range(first[there_to], first[there_to + 1]))))
                    break
                else:
                    path.pop()
                    if before < 0:
                        continue
                    low[before] = min(low[before], low[here])
                    if low[here] > seen[before]:
                        self._note(found, here, before)
                    if before == root:
                        branches += 1
                    elif low[here] >= seen[before]:
                        self._note(found, before)
            if branches > 1:
                self._note(found, root)
        return found

    def _note(self, found: set[int], *ends: int) -> None:
        element = self._links.get(frozenset(ends))
        if element is not None:
            found.add(element)

    # ------------------------------------------------------------------------------------------------------- loads

    def bounds(self) -> Amounts:
        """Return for each pair a use that no link exceeds."""
        case = self.case
        count, network = len(self.elements), case.network
        loads = np.array([self._load(at)[0] for at in range(count)]).reshape(count, -1)
        least = np.zeros((count, count))
        for y, edges in enumerate(self._edges):
            if self._router[y] < 0:
                moved = loads[:, edges].sum(axis=1)
            else:
                # What a router sends on, not what it receives itself.
                out = edges[network.tails[edges] == self._router[y]]
                moved = loads[:, out].sum(axis=1)
            left = (loads + moved[:, None]) / self._capacity
            left[:, edges] = 0.0
            least[:, y] = left.max(axis=1, initial=0.0)
        both: Amounts = np.minimum(least, least.T)
        return both[self.pairs]

    @cached_property
    def _capacity(self) -> Amounts:
        if self.case.capacity is not None:
            return self.case.capacity
        most = float(self.case.traffic.load.max(initial=0.0))
        return np.full(len(self.case.network.costs), most or 1.0)

    def _load(self, *elements: int) -> tuple[Amounts, float]:
        edges = np.unique(np.concatenate([self._edges[each] for each in elements]))
        _, _, load = self.case.traffic.without(edges, self._failed(*elements))
        return load, float((load / self._capacity).max(initial=0.0))

    def loading(self, bounds: Amounts, kept: int, most: int) -> tuple[Numbers, int, float]:
        """Return the pairs that use a link most; how many were routed; and what no other pair exceeds."""
        best: list[tuple[float, int]] = []
        order = np.argsort(-bounds, kind="stable")
        for tried, at in enumerate(order):
            if len(best) == kept and (tried == most or bounds[at] <= best[0][0]):
                return np.array([place for _, place in best]), tried, max(best[0][0], float(bounds[at]))
            use = self._load(self.pairs[0][at], self.pairs[1][at])[1]
            if len(best) < kept:
                heappush(best, (use, int(at)))
            else:
                heappushpop(best, (use, int(at)))
        everything = np.array([place for _, place in best], dtype=np.int64)
        return everything, len(order), best[0][0] if len(best) < len(order) else 0.0
