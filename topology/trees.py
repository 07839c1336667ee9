"""Shortest-path trees, updated as the graph changes."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from amqpmesh.topology.graph import Edge, Graph

#: An update of more than one in `PART` routers, plus `SMALL`, costs as much as a new computation.
PART: Final = 8
SMALL: Final = 16

_NO_EDGES: Final[Mapping[str, int]] = MappingProxyType({})


class ShortestPathTree:
    """The distances and predecessors of all routers that can be reached from a root.

    The tree depends on the graph alone, not on its history: of the predecessors on cheapest paths, the parent is the
    one whose id sorts first. So all routers with the same graph have the same tree.

    It is updated in the way of Narváez, Siu and Tzeng ("New dynamic algorithms for shortest path tree computation",
    2000): the routers below an edge that got more expensive are cut off, and found again from the rest; a cheaper edge
    moves the routers that it brings nearer. All others are left alone. If much of the tree is cut off, it is computed
    anew, which costs less for each router.
    """

    def __init__(self, graph: Graph, root: str) -> None:
        self.root = root
        #: By router: the cost of its cheapest path from the root. Unreachable routers are not in it.
        self.distances: dict[str, int] = {root: 0}
        #: By router: its predecessors on cheapest paths, sorted; the parent comes first. The root has none.
        self.predecessors: dict[str, tuple[str, ...]] = {}
        self._graph = graph
        self._generation = -1  # nothing computed yet
        self._children: dict[str, list[str]] | None = None

    def update(self) -> set[str] | None:
        """Bring the tree up to date with the graph.

        Returns: the routers whose distance or predecessors may have changed. None: all of them may have, since the tree
            was computed anew.
        """
        graph = self._graph
        if self._generation == graph.generation:
            return set()
        edges = None if self._generation < 0 else graph.changes_since(self._generation)
        self._generation = graph.generation
        self._children = None
        most = len(self.distances) // PART + SMALL
        touched = self._update_incrementally(edges, most) if edges is not None and len(edges) <= most else None
        if touched is None:
            self._compute()
        return touched

    def children(self, router: str) -> list[str]:
        """Return the routers with this parent, sorted."""
        return self._children_by_parent().get(router, [])

    def subtree(self, router: str) -> set[str]:
        """Return a router and all below it; empty if the router cannot be reached."""
        if router not in self.distances:
            return set()
        children = self._children_by_parent()
        found = [router]
        for each in found:  # the list grows meanwhile
            found += children.get(each, ())
        return set(found)

    def path(self, router: str) -> list[str]:
        """Return the routers from the root to one, both included; empty if it cannot be reached."""
        if router not in self.distances:
            return []
        path = [router]
        while path[-1] != self.root:
            path.append(self.predecessors[path[-1]][0])
        return path[::-1]

    def parent(self, router: str) -> str | None:
        """Return the router before one on its path; None: it is the root, or cannot be reached."""
        before = self.predecessors.get(router)
        return before[0] if before else None

    def _children_by_parent(self) -> dict[str, list[str]]:
        if self._children is None:
            self._children = {}
            for child in sorted(self.predecessors):
                self._children.setdefault(self.predecessors[child][0], []).append(child)
        return self._children

    def _compute(self) -> None:
        """Compute the tree with Dijkstra's algorithm."""
        successors, blocked, root = self._graph.successors, self._graph.no_transit, self.root
        distances = {root: 0}
        before: dict[str, tuple[str, ...]] = {}
        tied = set()
        heap = [(0, root)]
        while heap:
            distance, router = heappop(heap)
            if distance > distances[router] or (router in blocked and router != root):
                continue
            alone = (router,)
            for head, cost in successors.get(router, _NO_EDGES).items():
                offered = distance + cost
                known = distances.get(head)
                if known is None or offered < known:
                    distances[head] = offered
                    before[head] = alone
                    heappush(heap, (offered, head))
                elif offered == known:
                    before[head] += alone
                    tied.add(head)
        for router in tied:
            before[router] = tuple(sorted(before[router]))
        self.distances, self.predecessors = distances, before

    def _update_incrementally(self, edges: set[Edge], most: int) -> set[str] | None:
        """Find new paths for the routers that are cut off, or that a changed edge brings nearer.

        Returns: as `update`. None: they are more than `most`; the tree is then invalid.
        """
        former = self._cut_off(edges, most)
        nearer = None if former is None else self._relax(self._offered_distances(edges, former), most)
        if former is None or nearer is None:
            return None
        for router, distance in nearer.items():
            former.setdefault(router, distance)
        touched = {head for _, head in edges} | former.keys()
        for router, distance in former.items():
            if self.distances.get(router) != distance:
                touched.update(self._graph.successors.get(router, ()))
        self._find_predecessors(touched)
        return touched

    def _cut_off(self, edges: Iterable[Edge], most: int) -> dict[str, int | None] | None:
        """Remove the routers below edges that are gone or got more expensive.

        Returns: their former distances. None: they are more than `most`; the tree is then invalid.
        """
        successors, before, distances = self._graph.successors, self.predecessors, self.distances
        lost = []
        for tail, head in edges:
            if self.parent(head) == tail:
                over = self._distance_over(tail, head)
                if over is None or over > distances[head]:
                    lost.append(head)
        cut: dict[str, int | None] = {}
        for router in lost:  # the list grows meanwhile
            if router not in cut:
                if len(cut) == most:
                    return None
                cut[router] = distances.pop(router)
                lost += [
                    head for head in successors.get(router, _NO_EDGES) if head in before and before[head][0] == router
                ]
        for router in cut:
            del before[router]
        return cut

    def _offered_distances(self, edges: Iterable[Edge], cut: Iterable[str]) -> list[tuple[int, str]]:
        """Return a heap of possible distances: over the edges into the part that was cut off, and over the changed
        ones."""
        offers = []
        for tail, head in edges:
            over = self._distance_over(tail, head)
            if over is not None:
                offers.append((over, head))
        successors, distances, blocked = self._graph.successors, self.distances, self._graph.no_transit
        for router in cut:
            offers += [
                (distances[tail] + successors[tail][router], router)
                for tail in successors.get(router, _NO_EDGES)  # edges stand in both directions
                if tail in distances and (tail not in blocked or tail == self.root)
            ]
        heapify(offers)
        return offers

    def _distance_over(self, tail: str, head: str) -> int | None:
        """Return the distance of the head of an edge by that edge; None: its tail is unreachable, or not
        for transit."""
        distance = self.distances.get(tail)
        cost = self._graph.cost(tail, head)
        if distance is None or cost is None or (tail in self._graph.no_transit and tail != self.root):
            return None
        return distance + cost

    def _relax(self, heap: list[tuple[int, str]], most: int) -> dict[str, int | None] | None:
        """Apply a heap of possible distances.

        Returns: the former distances of the changed routers. None: as `_cut_off`.
        """
        successors, blocked = self._graph.successors, self._graph.no_transit
        distances, root = self.distances, self.root
        former: dict[str, int | None] = {}
        while heap:
            distance, router = heappop(heap)
            known = distances.get(router)
            if known is not None and known <= distance:
                continue
            if len(former) == most:
                return None
            former[router] = known
            distances[router] = distance
            if router in blocked and router != root:
                continue
            for head, cost in successors.get(router, _NO_EDGES).items():
                offered = distance + cost
                known = distances.get(head)
                if known is None or offered < known:
                    heappush(heap, (offered, head))
        return former

    def _find_predecessors(self, routers: Iterable[str]) -> None:
        """Find the predecessors of some routers."""
        successors, blocked = self._graph.successors, self._graph.no_transit
        distances, root = self.distances, self.root
        for router in routers:
            distance = distances.get(router)
            before = [
                tail
                for tail in successors.get(router, _NO_EDGES)
                if tail in distances
                and distances[tail] + successors[tail][router] == distance
                and (tail not in blocked or tail == root)
            ]
            if before:  # never the root, since costs are at least 1
                self.predecessors[router] = tuple(sorted(before))
            else:
                self.predecessors.pop(router, None)
