"""The shortest paths from one router to all others, kept up with the graph."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from amqpmesh.topology.graph import Edge, Graph

#: Where more than one of so many edges changed or routers are cut off, following that one by one costs as much as
#: starting again.
PART: Final = 8
SMALL: Final = 16

_NO_EDGES: Final[Mapping[str, int]] = MappingProxyType({})


class ShortestPathTree:
    """Distance and parent of every router that can be reached from a root.

    The tree depends on the graph alone, not on its history: of the routers over which another one is reached at the
    least cost, its parent is the one whose id sorts first. So all routers with the same graph hold the same tree.

    It follows changes in the way of Narváez, Siu and Tzeng ("New dynamic algorithms for shortest path tree
    computation", 2000): what hangs on an edge that got dearer is cut off and found again from what still stands, and
    what an edge that got cheaper brings nearer moves. The rest is not looked at. Where much of the tree is cut off,
    all of it is computed from nothing, which takes less for each router.
    """

    def __init__(self, graph: Graph, root: str) -> None:
        self.root = root
        #: Router -> the cost of its cheapest path from the root; who cannot be reached is not in it.
        self.distances: dict[str, int] = {root: 0}
        #: Router -> those over which it is reached at that cost, in order; its parent first. The root has none.
        self.predecessors: dict[str, tuple[str, ...]] = {}
        self._graph = graph
        self._generation = -1  # nothing computed yet
        self._children: dict[str, list[str]] | None = None

    def update(self) -> set[str] | None:
        """Catch up with the graph.

        Returns: the routers whose distance may have changed, or the set of those over which they are reached at that
            distance. None: computed from nothing, so any may have.
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
        """Whom a router is the parent of, in order."""
        return self._by_parent().get(router, [])

    def subtree(self, router: str) -> set[str]:
        """A router and all that are reached over it; nobody if it cannot be reached itself."""
        if router not in self.distances:
            return set()
        children = self._by_parent()
        found = [router]
        for each in found:  # it grows as it goes
            found += children.get(each, ())
        return set(found)

    def path(self, router: str) -> list[str]:
        """The routers from the root to one, both included; empty if it cannot be reached."""
        if router not in self.distances:
            return []
        path = [router]
        while path[-1] != self.root:
            path.append(self.predecessors[path[-1]][0])
        return path[::-1]

    def parent(self, router: str) -> str | None:
        """The one before a router on its path; None: it is the root, or cannot be reached."""
        before = self.predecessors.get(router)
        return before[0] if before else None

    def _by_parent(self) -> dict[str, list[str]]:
        if self._children is None:
            self._children = {}
            for child in sorted(self.predecessors):
                self._children.setdefault(self.predecessors[child][0], []).append(child)
        return self._children

    def _compute(self) -> None:
        """Dijkstra's algorithm."""
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
        """Find again who was cut off, and who got nearer over the changed edges.

        Returns: as `follow`. None: they are more than `most`; what is left is of no use.
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
        """Take out who is reached over an edge that went or got dearer.

        Returns: the distances that they had. None: they are more than `most`; what is left is of no use.
        """
        successors, before, distances = self._graph.successors, self.predecessors, self.distances
        lost = []
        for tail, head in edges:
            if self.parent(head) == tail:
                over = self._distance_over(tail, head)
                if over is None or over > distances[head]:
                    lost.append(head)
        cut: dict[str, int | None] = {}
        for router in lost:  # it grows as it goes
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
        """The distances to go on from, a heap: over the edges into what was cut off, and over those that changed."""
        offers = []
        for tail, head in edges:
            over = self._distance_over(tail, head)
            if over is not None:
                offers.append((over, head))
        successors, distances, blocked = self._graph.successors, self.distances, self._graph.no_transit
        for router in cut:
            offers += [
                (distances[tail] + successors[tail][router], router)
                for tail in successors.get(router, _NO_EDGES)  # who is sent to sends back: edges stand both ways
                if tail in distances and (tail not in blocked or tail == self.root)
            ]
        heapify(offers)
        return offers

    def _distance_over(self, tail: str, head: str) -> int | None:
        """The distance of the head of an edge over that edge; None: it does not lead there."""
        distance = self.distances.get(tail)
        cost = self._graph.cost(tail, head)
        if distance is None or cost is None or (tail in self._graph.no_transit and tail != self.root):
            return None
        return distance + cost

    def _relax(self, heap: list[tuple[int, str]], most: int) -> dict[str, int | None] | None:
        """Go on from a heap of distances offered; the former distances of those that got nearer, None as `_cut_off`."""
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
        """Find out over whom some are reached."""
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
