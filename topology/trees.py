"""The shortest paths from one router to all others, kept up with the graph."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.topology.graph import Edge, Graph

#: Above this part of the tree, following changed edges one by one costs as much as starting again.
PART: Final = 8


class ShortestPathTree:
    """Distance and parent of every router that can be reached from a root.

    The tree depends on the graph alone, not on its history: of the routers over which another one is reached at the
    least cost, its parent is the one whose id sorts first. So all routers with the same graph hold the same tree.

    It follows changes in the way of Narváez, Siu and Tzeng ("New dynamic algorithms for shortest path tree
    computation", 2000): what hangs on an edge that got dearer is cut off and found again from what still stands, and
    what an edge that got cheaper brings nearer moves. The rest is not looked at.
    """

    def __init__(self, graph: Graph, root: str) -> None:
        self.root = root
        #: Router -> the cost of its cheapest path from the root; who cannot be reached is not in it.
        self.distances: dict[str, int] = {root: 0}
        #: Router -> the one before it on its path; the root has none.
        self.parents: dict[str, str] = {}
        self._graph = graph
        self._generation = -1  # nothing computed yet
        self._children: dict[str, list[str]] | None = None

    def follow(self) -> set[str] | None:
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
        if edges is None or PART * len(edges) > len(self.distances) + 16 * PART:
            self._compute()
            return None
        return self._absorb(edges)

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
            path.append(self.parents[path[-1]])
        return path[::-1]

    def tight(self, router: str) -> list[str]:
        """Those over which a router is reached at the least cost, in no order; the root is reached over nobody."""
        distances, blocked, root = self.distances, self._graph.no_transit, self.root
        distance = distances.get(router)
        if distance is None or router == root:
            return []
        return [
            before
            for before, edge in self._graph.predecessors[router].items()
            if before in distances
            and distances[before] + edge["cost"] == distance
            and (before not in blocked or before == root)
        ]

    def _by_parent(self) -> dict[str, list[str]]:
        if self._children is None:
            self._children = {}
            for child in sorted(self.parents):
                self._children.setdefault(self.parents[child], []).append(child)
        return self._children

    def _compute(self) -> None:
        self.distances = {}
        self.parents = {}
        self._settle([(0, self.root)])
        self._adopt(self.distances)

    def _absorb(self, edges: set[Edge]) -> set[str]:
        before = self._cut(edges)
        for router, distance in self._settle(self._offers(edges, before)).items():
            before.setdefault(router, distance)
        touched = {head for _, head in edges} | before.keys()
        for router, distance in before.items():
            if self.distances.get(router) != distance:
                touched.update(self._graph.successors.get(router, ()))
        self._adopt(touched)
        return touched

    def _cut(self, edges: Iterable[Edge]) -> dict[str, int | None]:
        """Take out who is reached over an edge that went or got dearer; the distances that they had."""
        successors, parents, distances = self._graph.successors, self.parents, self.distances
        lost = []
        for tail, head in edges:
            if parents.get(head) == tail:
                over = self._over(tail, head)
                if over is None or over > distances[head]:
                    lost.append(head)
        cut: dict[str, int | None] = {}
        for router in lost:  # it grows as it goes
            if router not in cut:
                cut[router] = distances.pop(router)
                lost += [head for head in successors.get(router, ()) if parents.get(head) == router]
        for router in cut:
            del parents[router]
        return cut

    def _offers(self, edges: Iterable[Edge], cut: Iterable[str]) -> list[tuple[int, str]]:
        """The distances to go on from, a heap: over the edges into what was cut off, and over those that changed."""
        offers = []
        for tail, head in edges:
            over = self._over(tail, head)
            if over is not None:
                offers.append((over, head))
        for router in cut:
            ways = [self._over(tail, router) for tail in self._graph.predecessors.get(router, ())]
            best = min((over for over in ways if over is not None), default=None)
            if best is not None:
                offers.append((best, router))
        heapify(offers)
        return offers

    def _over(self, tail: str, head: str) -> int | None:
        """The distance of the head of an edge over that edge; None: it does not lead there."""
        distance = self.distances.get(tail)
        cost = self._graph.cost(tail, head)
        if distance is None or cost is None or (tail in self._graph.no_transit and tail != self.root):
            return None
        return distance + cost

    def _settle(self, heap: list[tuple[int, str]]) -> dict[str, int | None]:
        """Dijkstra's algorithm, from a heap of distances offered; the former distances of those that it changed."""
        successors, blocked = self._graph.successors, self._graph.no_transit
        distances, root = self.distances, self.root
        before: dict[str, int | None] = {}
        while heap:
            distance, router = heappop(heap)
            known = distances.get(router)
            if known is not None and known <= distance:
                continue
            before[router] = known
            distances[router] = distance
            if router in blocked and router != root:
                continue
            for head, edge in successors.get(router, {}).items():
                offered = distance + edge["cost"]
                known = distances.get(head)
                if known is None or offered < known:
                    heappush(heap, (offered, head))
        return before

    def _adopt(self, routers: Iterable[str]) -> None:
        """Find the parents of some."""
        for router in routers:
            parent = min(self.tight(router), default=None)
            if parent is None:
                self.parents.pop(router, None)
            else:
                self.parents[router] = parent
