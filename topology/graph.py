"""The routing graph: routers, and the edges that both of their ends advertise."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import networkx

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A direction of a link between two routers: (from, to).
Edge = tuple[str, str]

#: Changed edges that are remembered for those who look seldom. Who missed more computes from nothing, which is not
#: dearer by then.
JOURNAL: Final = 4096


class Graph:
    """What the link states of all origins say together.

    An edge stands only while both ends advertise it, so nobody can speak for another. Each direction costs what the
    router that sends on it says. Of parallel adjacencies the cheapest counts.

    A router that is not for transit is a destination and a source, and no way through.
    """

    def __init__(self) -> None:
        #: To be read with networkx's algorithms: each edge has a `cost`, and each node says if it is for `transit`.
        self.network: Any = networkx.DiGraph()
        #: Grows with every change that can matter to a path.
        self.generation = 0
        #: Router -> whom it sends to -> the cost. The same edges for trees, which read them by the thousand: networkx
        #: would take several times as long.
        self.successors: dict[str, dict[str, int]] = {}
        #: Router -> who sends to it -> the cost.
        self.predecessors: dict[str, dict[str, int]] = {}
        #: The routers that no path may lead through.
        self.no_transit: set[str] = set()
        self._links: dict[str, dict[str, int]] = {}
        self._journal: deque[tuple[int, Edge]] = deque(maxlen=JOURNAL)
        self._forgotten = 0  # the generation of the latest entry that has left the journal

    def __contains__(self, router: str) -> bool:
        return router in self._links

    def __len__(self) -> int:
        return len(self._links)

    def routers(self) -> list[str]:
        """Every router that has advertised itself, in order."""
        return sorted(self._links)

    def neighbours(self, router: str) -> dict[str, int]:
        """Whom it has an edge to, and what sending there costs."""
        return dict(self.successors.get(router, ()))

    def cost(self, sender: str, receiver: str) -> int | None:
        """What sending from a router to its neighbour costs; None: there is no edge."""
        return self.successors.get(sender, {}).get(receiver)

    def is_transit(self, router: str) -> bool:
        """Whether paths may lead through it."""
        return router not in self.no_transit

    def update(self, origin: str, links: Iterable[tuple[str, int]], *, transit: bool = True) -> bool:
        """Take an origin's newest link state in place of what it said before.

        Args: links: (neighbour, cost) of each adjacency; costs are at least 1. A neighbour may come several times.
            transit: whether paths may lead through the origin.
        Returns: whether that can matter to any path.
        Raises: ValueError: a cost below 1, which could make paths that circle. Nothing has changed.
        """
        told = _cheapest(origin, links)
        before = self._links.get(origin, {})
        if origin not in self._links:
            self.network.add_node(origin, transit=True)
            self.successors[origin] = {}
            self.predecessors[origin] = {}
        self._links[origin] = told
        changed = [edge for neighbour in before.keys() - told.keys() for edge in self._part(origin, neighbour)]
        for neighbour, cost in told.items():
            if before.get(neighbour) != cost:
                changed += self._join(origin, neighbour, cost, is_new=neighbour not in before)
        if transit == (origin in self.no_transit):
            changed += self._set_transit(origin, transit=transit)
        return self._note(changed)

    def remove(self, origin: str) -> bool:
        """Forget an origin; whether that can matter to any path."""
        if origin not in self._links:
            return False
        matters = self.update(origin, ())
        self.network.remove_node(origin)
        del self._links[origin], self.successors[origin], self.predecessors[origin]
        return matters

    def changes_since(self, generation: int) -> set[Edge] | None:
        """The edges that may have come, gone or changed since a generation; None: that is too long ago to know."""
        if generation < self._forgotten:
            return None
        changed = set()
        for at, edge in reversed(self._journal):
            if at <= generation:
                break
            changed.add(edge)
        return changed

    def _join(self, origin: str, neighbour: str, cost: int, *, is_new: bool) -> list[Edge]:
        back = self._links.get(neighbour, {}).get(origin)
        if back is None:
            return []
        self._set_edge(origin, neighbour, cost)
        if not is_new:
            return [(origin, neighbour)]
        self._set_edge(neighbour, origin, back)
        return [(origin, neighbour), (neighbour, origin)]

    def _part(self, origin: str, neighbour: str) -> list[Edge]:
        if origin not in self._links.get(neighbour, {}):
            return []
        edges = [(origin, neighbour), (neighbour, origin)]
        self.network.remove_edges_from(edges)
        for sender, receiver in edges:
            del self.successors[sender][receiver], self.predecessors[receiver][sender]
        return edges

    def _set_edge(self, sender: str, receiver: str, cost: int) -> None:
        self.network.add_edge(sender, receiver, cost=cost)
        self.successors[sender][receiver] = self.predecessors[receiver][sender] = cost

    def _set_transit(self, origin: str, *, transit: bool) -> list[Edge]:
        self.network.nodes[origin]["transit"] = transit
        if transit:
            self.no_transit.discard(origin)
        else:
            self.no_transit.add(origin)
        return [(origin, neighbour) for neighbour in self.successors[origin]]

    def _note(self, changed: list[Edge]) -> bool:
        if not changed:
            return False
        self.generation += 1
        for edge in changed:
            if len(self._journal) == JOURNAL:
                self._forgotten = self._journal[0][0]
            self._journal.append((self.generation, edge))
        return True


def _cheapest(origin: str, links: Iterable[tuple[str, int]]) -> dict[str, int]:
    told: dict[str, int] = {}
    for neighbour, cost in links:
        if cost < 1:
            raise ValueError(f"{origin} advertises the cost {cost} to {neighbour}: costs are at least 1")
        if neighbour != origin:  # a way to itself is on no path
            told[neighbour] = min(cost, told.get(neighbour, cost))
    return told
