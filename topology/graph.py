"""The routing graph: routers, and the edges that both of their ends advertise."""

from __future__ import annotations

from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A direction of a link between two routers: (from, to).
Edge = tuple[str, str]

#: Changed edges that are remembered for those who look seldom: so many, and one more for each of some routers. Who
#: missed more computes from nothing, which is not dearer by then.
JOURNAL: Final = 64
JOURNAL_SHARE: Final = 4

_NO_LINKS: Final[Mapping[str, int]] = MappingProxyType({})


class Graph:
    """What the link states of all origins say together.

    An edge stands only while both ends advertise it, so nobody can speak for another. Each direction costs what the
    router that sends on it says.

    A router that is not for transit is a destination and a source, and no way through.

    What an origin says is kept as it was given, and nothing is copied of an origin whose edges all stand. So a router
    needs some 100 octets here for each other one, and routers in one process share the rest.
    """

    def __init__(self) -> None:
        #: Grows with every change that can matter to a path.
        self.generation = 0
        #: Router -> whom it sends to -> the cost. Both directions of an edge are there, or none. Read only.
        self.successors: dict[str, Mapping[str, int]] = {}
        #: The routers that no path may lead through.
        self.no_transit: set[str] = set()
        self._links: dict[str, Mapping[str, int]] = {}
        self._journal: deque[tuple[int, Edge]] = deque()
        self._forgotten = 0  # the generation of the latest entry that has left the journal

    def __contains__(self, router: str) -> bool:
        return router in self._links

    def __len__(self) -> int:
        return len(self._links)

    @property
    def network(self) -> Any:
        """The graph as it is now, made anew for networkx's algorithms.

        Each edge has a `cost`, and each node says if it is for `transit`. Paths are found without it: networkx keeps a
        dictionary for each edge, 3 MB for a thousand routers, and takes several times as long to read them.
        """
        import networkx  # here: no router asks for this, and it is a quarter of a second until it is read

        network = networkx.DiGraph()
        network.add_nodes_from((router, {"transit": self.is_transit(router)}) for router in self._links)
        for sender, heads in self.successors.items():
            network.add_weighted_edges_from(
                ((sender, receiver, cost) for receiver, cost in heads.items()), weight="cost"
            )
        return network

    def routers(self) -> list[str]:
        """Every router that has advertised itself, in order."""
        return sorted(self._links)

    def neighbours(self, router: str) -> dict[str, int]:
        """Whom it has an edge to, and what sending there costs."""
        return dict(self.successors.get(router, _NO_LINKS))

    def cost(self, sender: str, receiver: str) -> int | None:
        """What sending from a router to its neighbour costs; None: there is no edge."""
        return self.successors.get(sender, _NO_LINKS).get(receiver)

    def is_transit(self, router: str) -> bool:
        """Whether paths may lead through it."""
        return router not in self.no_transit

    def update(self, origin: str, links: Mapping[str, int], *, transit: bool = True) -> bool:
        """Take an origin's newest link state in place of what it said before.

        Args: links: neighbour -> the least cost of sending there, 1 or more; none to the origin itself. It is kept,
            and may be shared: it must not change any more. transit: whether paths may lead through the origin.
        Returns: whether that can matter to any path.
        Raises: ValueError: a cost below 1, which could make paths that circle. Nothing has changed.
        """
        if links and min(links.values()) < 1:
            raise ValueError(f"{origin} advertises a cost of {min(links.values())}: costs are at least 1")
        told = self._links
        before = told.get(origin, _NO_LINKS)
        told[origin] = links
        changed = []
        for neighbour in (
            links.keys() & told.keys()
        ):  # of whom nobody has heard cannot have an edge: thousands may be told
            known = before.get(neighbour)
            if known != links[neighbour] and origin in told[neighbour]:
                changed.append((origin, neighbour))
                if known is None:
                    changed.append((neighbour, origin))
                    self.successors[neighbour] = self._two_way_links(neighbour)
        if not before.keys() <= links.keys():
            for neighbour in before.keys() & told.keys() - links.keys():
                if origin in told[neighbour]:
                    changed += [(origin, neighbour), (neighbour, origin)]
                    self.successors[neighbour] = self._two_way_links(neighbour)
        self.successors[origin] = self._two_way_links(origin)
        if transit == (origin in self.no_transit):
            changed += self._set_transit(origin, transit=transit)
        return self._record(changed)

    def remove(self, origin: str) -> bool:
        """Forget an origin; whether that can matter to any path."""
        if origin not in self._links:
            return False
        matters = self.update(origin, _NO_LINKS)
        del self._links[origin], self.successors[origin]
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

    def _two_way_links(self, router: str) -> Mapping[str, int]:
        """Of what a router advertises, what the others advertise as well: the very same mapping if that is all."""
        told = self._links
        links = told[router]
        for neighbour in links:
            if router not in told.get(neighbour, _NO_LINKS):
                return {each: links[each] for each in sorted(links.keys() & told.keys()) if router in told[each]}
        return links

    def _set_transit(self, origin: str, *, transit: bool) -> list[Edge]:
        if transit:
            self.no_transit.discard(origin)
        else:
            self.no_transit.add(origin)
        return [(origin, neighbour) for neighbour in self.successors[origin]]

    def _record(self, changed: list[Edge]) -> bool:
        if not changed:
            return False
        self.generation += 1
        self._journal += [(self.generation, edge) for edge in changed]
        for _ in range(len(self._journal) - JOURNAL - len(self._links) // JOURNAL_SHARE):
            self._forgotten, _ = self._journal.popleft()
        return True
