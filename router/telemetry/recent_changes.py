"""The changes of a router and of its mesh in the last hour: edits of the configuration, drains, links up and down.

Operators and routers cause changes, and routers can cause them without end. So the ones of the mesh have a half of the
room, and those of operators another: a link that comes and goes never pushes out the edit that has broken it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from amqpmesh.topology.graph import Graph

HOUR: Final = 3600.0
"""Seconds for which a change is kept."""

LONGEST: Final = 128
"""Characters of a text of a change at most: names of routers, and values of the configuration."""

FIELDS: Final = 8
"""Fields of a change at most."""

AT_ONCE: Final = 200
"""Links of which one change of the graph is noted at most; it has the number of the others."""


class RecentChange(NamedTuple):
    """One change."""

    number: int
    """1 for the first of the router's run; each later one has a greater one."""
    at: float
    """Seconds since 1970."""
    event: str
    """The event, as the log has it."""
    fields: Mapping[str, str | int | float | bool]
    of_mesh: bool
    """No operator has made it: a link or a router of the mesh has changed."""


class RecentChanges:
    """The latest changes, at most as many as there is room for."""

    def __init__(self, most: int) -> None:
        """Args: most: changes that are kept; half of them are of the mesh."""
        self._of_operators: deque[RecentChange] = deque(maxlen=max(1, most - most // 2))
        self._of_mesh: deque[RecentChange] = deque(maxlen=max(1, most // 2))
        self._number = 0
        #: Grows with each change of the graph, or of the paths through it.
        self.graph_version = 0

    def resize(self, most: int) -> None:
        """Have room for another number of changes. Args: most: as of the constructor."""
        self._of_operators = deque(self._of_operators, max(1, most - most // 2))
        self._of_mesh = deque(self._of_mesh, max(1, most // 2))

    @property
    def last(self) -> int:
        """The number of the last change; 0: there was none."""
        return self._number

    def note(self, at: float, event: str, fields: Mapping[str, object], *, of_mesh: bool = False) -> None:
        """Add a change. Args: at: seconds since 1970. fields: None is left out. of_mesh: no operator has made it."""
        self._number += 1
        kept = {name: _plain(value) for name, value in list(fields.items())[:FIELDS] if value is not None}
        changes = self._of_mesh if of_mesh else self._of_operators
        changes.append(RecentChange(self._number, at, event, kept, of_mesh))

    def since(self, now: float, after: int = 0) -> list[RecentChange]:
        """Return the changes of the last hour, the latest first. Args: now: seconds since 1970. after: a number."""
        for changes in (self._of_operators, self._of_mesh):
            while changes and changes[0].at < now - HOUR:
                changes.popleft()
        found = (each for each in (*self._of_operators, *self._of_mesh) if each.number > after)
        return sorted(found, key=lambda each: -each.number)


class GraphWatch:
    """The links of the mesh as they were last, compared with the graph when it has changed."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._generation = -1
        #: By sender and receiver; the surcharge of routers that drain left out.
        self._costs: dict[tuple[str, str], int] = {}
        self._overloaded: set[str] = set()

    def look(self, changes: RecentChanges, at: float) -> None:
        """Note the links that have come, have gone or cost something else, and the routers that drain or no longer do.

        Args: at: seconds since 1970.
        """
        graph, noted, others = self._graph, 0, 0
        changes.graph_version += 1
        for event, fields in [*self._drains(), *self._links()]:
            if noted < AT_ONCE:
                changes.note(at, event, fields, of_mesh=True)
                noted += 1
            else:
                others += 1
        if others:
            changes.note(at, "links changed", {"others": others}, of_mesh=True)
        self._generation = graph.generation

    def _drains(self) -> Iterator[tuple[str, dict[str, object]]]:
        before, self._overloaded = self._overloaded, set(self._graph.overloaded)
        for router in sorted(self._overloaded - before):
            yield "router drains", {"router": router}
        for router in sorted(before - self._overloaded):
            if router in self._graph:
                yield "router drains no longer", {"router": router}

    def _links(self) -> Iterator[tuple[str, dict[str, object]]]:
        graph, costs = self._graph, self._costs
        edges = graph.changes_since(self._generation)
        if edges is None or self._generation < 0:
            edges = {(sender, receiver) for sender, heads in graph.successors.items() for receiver in heads}
            edges |= costs.keys()
        for sender, receiver in sorted(edges):
            before, cost = costs.get((sender, receiver)), self._cost(sender, receiver)
            if cost == before:
                continue
            if cost is None:
                del costs[sender, receiver]
            else:
                costs[sender, receiver] = cost
            if before is not None and cost is not None:
                yield "link cost changed", {"router": sender, "to": receiver, "from_cost": before, "cost": cost}
            elif sender < receiver:  # both directions come and go together
                yield "link up" if before is None else "link down", {"router": sender, "to": receiver}

    def _cost(self, sender: str, receiver: str) -> int | None:
        from amqpmesh.topology.records import SURCHARGE  # a router of no mesh does not load the topology

        cost = self._graph.cost(sender, receiver)
        if cost is not None and sender in self._graph.overloaded:
            return max(1, cost - SURCHARGE)
        return cost


def _plain(value: object) -> str | int | float | bool:
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, tuple | list):
        value = ", ".join(map(str, value))
    text = str(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."
