"""The paths of this router: distances, equal-cost next hops, and its place in the trees of other routers."""

from __future__ import annotations

from hashlib import blake2b
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.topology.trees import ShortestPathTree

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, KeysView

    from amqpmesh.topology.graph import Graph

#: Trees of other ingress routers that are kept. In a mesh of a thousand routers, one takes about 200 KiB.
TREES: Final = 128


class Route(NamedTuple):
    """The cheapest paths to a router."""

    distance: int
    """Their cost."""
    next_hops: tuple[str, ...]
    """Their first neighbours, sorted; empty for this router itself."""
    length: int
    """The most edges of one of these paths, for a hop limit that suits them all."""


class Paths:
    """The routes and trees of one router.

    Routes are as of the last `refresh`: while changes gather, the router forwards on the old graph. Trees of other
    ingress routers are computed, or brought up to date, when they are used.

    No message visits a router twice while all routers have the same graph: each next hop is nearer to the destination
    than the router before it, since costs are at least 1.
    """

    def __init__(self, graph: Graph, router: str, *, trees: int = TREES) -> None:
        self.router = router
        self._graph = graph
        self._own = ShortestPathTree(graph, router)
        self._routes: dict[str, Route] = {}
        self._trees: dict[str, ShortestPathTree] = {}  # least recently used first
        self._most_trees = trees
        self.refresh()

    def refresh(self) -> frozenset[str]:
        """Bring the routes up to date with the graph; only those that can have changed are computed.

        Returns: the routers with a changed, new or lost route. Even if there are none, this router's place in the tree
            of another one may have changed: the directions towards this router have costs of their own.
        """
        touched = self._own.update()
        return self._find_all_routes() if touched is None else self._update_routes(touched)

    # Routes

    def route(self, destination: str) -> Route | None:
        """Return the route to a router; None: it cannot be reached."""
        return self._routes.get(destination)

    def distance(self, destination: str) -> int | None:
        """Return the cost of the cheapest path to a router, 0 for this one; None: it cannot be reached."""
        route = self._routes.get(destination)
        return None if route is None else route.distance

    def next_hops(self, destination: str) -> tuple[str, ...]:
        """Return the first neighbours on the cheapest paths, sorted; empty for this router and unreachable ones."""
        route = self._routes.get(destination)
        return () if route is None else route.next_hops

    def length(self, destination: str) -> int | None:
        """Return the most edges on a cheapest path to a router, 0 for this one; None: it cannot be reached."""
        route = self._routes.get(destination)
        return None if route is None else route.length

    def reachable(self) -> KeysView[str]:
        """Return all reachable routers, this one included; a view."""
        return self._routes.keys()

    def path(self, destination: str, ingress: str | None = None) -> list[str]:
        """Return the cheapest path in the tree of this router, or of an ingress router; empty if there is none."""
        return self._tree(ingress or self.router).path(destination)

    # Trees

    def parent(self, ingress: str) -> str | None:
        """Return the neighbour before this router in the tree of an ingress router; None: it is the root, or not in the
        tree."""
        return self._tree(ingress).parent(self.router)

    def children(self, ingress: str) -> tuple[str, ...]:
        """Return the neighbours after this router in the tree of an ingress router, sorted."""
        return tuple(self._tree(ingress).children(self.router))

    def subtree(self, ingress: str, child: str) -> set[str]:
        """Return a child of this router in the tree of an ingress router, and the routers below the child.

        The result is empty if `child` is no child of this router there.
        """
        tree = self._tree(ingress)
        return tree.subtree(child) if tree.parent(child) == self.router else set()

    def branches(self, ingress: str, destinations: Iterable[str]) -> dict[str, set[str]]:
        """Select the given routers that are below this one in the tree of an ingress router, by child.

        It takes a step for each router on the way up, where `subtree` visits all routers below.
        """
        tree = self._tree(ingress)
        found: dict[str, set[str]] = {}
        for destination in destinations:
            step: str | None = destination
            while step is not None and (parent := tree.parent(step)) != self.router:
                step = parent
            if step is not None:
                found.setdefault(step, set()).add(destination)
        return found

    def _tree(self, ingress: str) -> ShortestPathTree:
        if ingress == self.router:
            return self._own
        tree = self._trees.pop(ingress, None)
        if tree is None:
            tree = ShortestPathTree(self._graph, ingress)
            if len(self._trees) >= self._most_trees:
                del self._trees[next(iter(self._trees))]
        self._trees[ingress] = tree
        tree.update()
        return tree

    def _find_all_routes(self) -> frozenset[str]:
        former, self._routes = self._routes, {}
        changed = set(former.keys() - self._own.distances.keys())
        for router, distance in sorted(self._own.distances.items(), key=itemgetter(1)):
            route = self._route(router, distance)
            known = former.get(router)
            if route != known:
                changed.add(router)
            self._routes[router] = route
        return frozenset(changed)

    def _update_routes(self, touched: set[str]) -> frozenset[str]:
        distances = self._own.distances
        changed = {router for router in touched if router in self._routes and router not in distances}
        for router in changed:
            del self._routes[router]
        # Nearer routers first: the routes to the others depend on theirs.
        heap = [(distances[router], router) for router in touched if router in distances]
        heapify(heap)
        queued = set(touched)
        while heap:
            distance, router = heappop(heap)
            route = self._route(router, distance)
            if route == self._routes.get(router):
                continue
            self._routes[router] = route
            changed.add(router)
            for head, cost in self._graph.successors.get(router, {}).items():
                if head not in queued and distances.get(head) == distance + cost:
                    queued.add(head)
                    heappush(heap, (distances[head], head))
        return frozenset(changed)

    def _route(self, router: str, distance: int) -> Route:
        before = self._own.predecessors.get(router, ())
        if len(before) == 1 and before[0] != self.router:  # as nearly all routers are reached
            _, hops, length = self._routes[before[0]]
            return Route(distance, hops, length + 1)
        found = {hop for each in before for hop in self._routes[each].next_hops}
        if self.router in before:  # a neighbour, reached over its own edge
            found.add(router)
        return Route(distance, tuple(sorted(found)), max((self._routes[each].length + 1 for each in before), default=0))


def preferred(flow: str, destination: str, next_hops: Collection[str], *, seed: str = "") -> str | None:
    """Return the next hop with the highest weight for a flow (rendezvous hashing); None if there is none.

    Flows spread evenly. When a next hop appears or disappears, only its own flows move. The result is the same in every
    process and on every machine, and independent of the order of the next hops.

    Args: seed: routers with different seeds choose independently. With one seed for all, a router that gets a part of
        the flows from another one would send all of that part to one next hop.
    """
    if len(next_hops) == 1:
        return next(iter(next_hops))
    return max(next_hops, key=lambda hop: (_weight(seed, flow, destination, hop), hop), default=None)


def _weight(*words: str) -> bytes:
    digest = blake2b(digest_size=8)
    for word in words:
        octets = word.encode("utf-8", "surrogatepass")
        digest.update(len(octets).to_bytes(4) + octets)  # the length before each word makes the octets unambiguous
    return digest.digest()
