"""The routing graph: routers, and the edges that both of their ends advertise."""

from __future__ import annotations

from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A direction of a link between two routers: (from, to).
Edge = tuple[str, str]

#: Changed edges in the journal: `JOURNAL`, and one more for each `JOURNAL_SHARE` routers. A reader that missed more
#: computes everything, which costs no more by then.
JOURNAL: Final = 64
JOURNAL_SHARE: Final = 4

_NO_LINKS: Final[Mapping[str, int]] = MappingProxyType({})


class Graph:
    """The graph of the link states of all origins.

    An edge stands only while both ends advertise it, so no router can claim an edge to another one. The cost of a
    direction is the one that its sender advertises. No path leads through a router that is not for transit.

    The links of an origin are kept as given, and copied only if some of its edges do not stand. So each other router
    takes some 100 octets here, and routers in one process share the rest.
    """

    def __init__(self) -> None:
        #: Grows with each change that can concern a path.
        self.generation = 0
        #: By router: its neighbours, and the cost of sending to each. Both directions of an edge are there, or none.
        #: Read only.
        self.successors: dict[str, Mapping[str, int]] = {}
        #: The routers that no path may lead through.
        self.no_transit: set[str] = set()
        #: The routers that move their clients away. Their costs have a surcharge, which is all that concerns a path.
        self.overloaded: set[str] = set()
        self._links: dict[str, Mapping[str, int]] = {}
        self._journal: deque[tuple[int, Edge]] = deque()
        self._forgotten = 0  # the generation of the last entry that was dropped from the journal

    def __contains__(self, router: str) -> bool:
        return router in self._links

    def __len__(self) -> int:
        return len(self._links)

    @property
    def network(self) -> Any:
        """A new copy of the graph, for networkx's algorithms.

        Each edge has a `cost`, and each node a flag `transit`. The router's own paths do not use it: networkx keeps a
        dictionary for each edge, 3 MB for a thousand routers, and takes several times as long to read it.
        """
        import networkx  # here: no router needs it, and the import takes a quarter of a second

        network = networkx.DiGraph()
        network.add_nodes_from((router, {"transit": self.is_transit(router)}) for router in self._links)
        for sender, heads in self.successors.items():
            network.add_weighted_edges_from(
                ((sender, receiver, cost) for receiver, cost in heads.items()), weight="cost"
            )
        return network

    def routers(self) -> list[str]:
        """Return all routers that have advertised themselves, sorted."""
        return sorted(self._links)

    def neighbours(self, router: str) -> dict[str, int]:
        """Return the neighbours of a router, and the cost of sending to each."""
        return dict(self.successors.get(router, _NO_LINKS))

    def cost(self, sender: str, receiver: str) -> int | None:
        """Return the cost of sending from a router to its neighbour; None: there is no edge."""
        return self.successors.get(sender, _NO_LINKS).get(receiver)

    def is_transit(self, router: str) -> bool:
        """Tell whether paths may lead through a router."""
        return router not in self.no_transit

    def update(self, origin: str, links: Mapping[str, int], *, transit: bool = True) -> bool:
        """Replace the link state of an origin.

        Args: links: by neighbour, the least cost of sending there, 1 or more; none to the origin itself. The mapping is
            kept and can be shared, so it must not change any more. transit: paths may lead through the origin.
        Returns: whether the change can concern a path.
        Raises: ValueError: a cost below 1, which could make circular paths. Nothing has changed.
        """
        if links and min(links.values()) < 1:
            raise ValueError(f"{origin} advertises a cost of {min(links.values())}: costs are at least 1")
        advertised = self._links
        before = advertised.get(origin, _NO_LINKS)
        advertised[origin] = links
        changed = []
        for neighbour in links.keys() & advertised.keys():  # an origin can list thousands of unknown routers
            known = before.get(neighbour)
            if known != links[neighbour] and origin in advertised[neighbour]:
                changed.append((origin, neighbour))
                if known is None:
                    changed.append((neighbour, origin))
                    self.successors[neighbour] = self._two_way_links(neighbour)
        if not before.keys() <= links.keys():
            for neighbour in before.keys() & advertised.keys() - links.keys():
                if origin in advertised[neighbour]:
                    changed += [(origin, neighbour), (neighbour, origin)]
                    self.successors[neighbour] = self._two_way_links(neighbour)
        self.successors[origin] = self._two_way_links(origin)
        if transit == (origin in self.no_transit):
            changed += self._set_transit(origin, transit=transit)
        return self._record(changed)

    def set_overload(self, origin: str, *, overload: bool) -> None:
        """Note whether a router moves its clients away."""
        if overload:
            self.overloaded.add(origin)
        else:
            self.overloaded.discard(origin)

    def remove(self, origin: str) -> bool:
        """Forget an origin. Returns: whether that can concern a path."""
        if origin not in self._links:
            return False
        matters = self.update(origin, _NO_LINKS)
        del self._links[origin], self.successors[origin]
        self.overloaded.discard(origin)
        return matters

    def changes_since(self, generation: int) -> set[Edge] | None:
        """Return the edges that may have changed since a generation; None: the journal does not reach back that far."""
        if generation < self._forgotten:
            return None
        changed = set()
        for at, edge in reversed(self._journal):
            if at <= generation:
                break
            changed.add(edge)
        return changed

    def _two_way_links(self, router: str) -> Mapping[str, int]:
        """Return the links of a router that their other ends advertise, too: the same mapping if these are all."""
        advertised = self._links
        links = advertised[router]
        for neighbour in links:
            if router not in advertised.get(neighbour, _NO_LINKS):
                return {
                    each: links[each] for each in sorted(links.keys() & advertised.keys()) if router in advertised[each]
                }
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
