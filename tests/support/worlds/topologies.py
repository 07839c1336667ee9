"""Meshes of `Topology` machines in virtual time, over lines that delay messages, break, freeze and split."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import networkx

from amqpmesh.topology.linkstate import Advert, Change, Settings, Step, Topology
from amqpmesh.topology.records import SURCHARGE, Name, OpenedRecord, SignedRecord, open_record
from amqpmesh.topology.signing import Signer, Unsigned, Verifier

EPOCH = 1_700_000_000_000


@dataclass(eq=False)
class Line:
    """A connection between two routers. Each router knows its end by the line itself."""

    ends: tuple[str, str]
    costs: dict[str, int]
    delay: float
    is_open: bool = True
    is_silent: bool = False
    """Nothing arrives, and no router notices: the peer is frozen, or the path loses everything."""

    def other(self, router: str) -> str:
        """Return the router at the other end."""
        return self.ends[1] if router == self.ends[0] else self.ends[0]


@dataclass
class Mesh:
    """Routers, lines, and the time."""

    settings: Settings = field(default_factory=Settings)
    identity: Callable[[str], tuple[Signer, Verifier]] = lambda _: (Unsigned(), Unsigned())
    now: float = 0.0
    routers: dict[str, Topology] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    adverts: dict[str, dict[Name, Advert]] = field(default_factory=dict)
    changes: dict[str, list[Change]] = field(default_factory=dict)
    messages: Counter[str] = field(default_factory=Counter)
    octets: Counter[str] = field(default_factory=Counter)
    intercept: Callable[[Line, str, bytes], bytes | None] = lambda line, sender, data: data
    _coming: list[tuple[float, int, Line, str, bytes]] = field(default_factory=list)
    _turn: int = 0

    # Actions of a test

    def start(
        self, *names: str, epoch: int = EPOCH, reader: Callable[[SignedRecord], OpenedRecord] = open_record
    ) -> None:
        """Start routers, or restart them without any memory. Args: reader: as of `Topology`."""
        for name in names:
            signer, verifier = self.identity(name)
            self.routers[name] = Topology(name, self.settings, signer, verifier, epoch, self.now, reader=reader)
            self.adverts[name] = {}
            self.changes[name] = []

    def connect(self, a: str, b: str, cost: int | None = 1, back: int | None = None, delay: float = 0.001) -> Line:
        """Connect two routers. Args: cost, back: as configured at `a` and at `b`; None: it has none."""
        configured = {a: cost, b: back}
        line = Line((a, b), {a: cost or back or 1, b: back or cost or 1}, delay)
        self.lines.append(line)
        for name in line.ends:
            self._do(name, self.routers[name].connected(line, configured[name], self.now))
        return line

    def cut(self, line: Line, *, seen_by: tuple[str, ...] | None = None) -> None:
        """Break a connection. A router that does not notice that finds it silent."""
        line.is_open = False
        for name in line.ends if seen_by is None else seen_by:
            if name in self.routers:
                self._do(name, self.routers[name].disconnected(line, self.now))

    def crash(self, name: str) -> None:
        """Stop a router. Its neighbours see their connections end."""
        del self.routers[name]
        for line in self.lines_of(name):
            self.cut(line)

    def lines_of(self, name: str) -> list[Line]:
        """Return its open connections."""
        return [line for line in self.lines if line.is_open and name in line.ends]

    def advertise(self, router: str, name: str, consumers: int, tenant: str = "") -> None:
        """Set the number of a router's consumers of an address; 0: withdraw it."""
        advert = Advert("balanced", consumers, 0) if consumers else None
        key = Name(tenant, name)
        if advert is None:
            self.adverts[router].pop(key, None)
        else:
            self.adverts[router][key] = advert
        self._do(router, self.routers[router].advertise(tenant, name, advert, self.now))

    def set_cost(self, line: Line, router: str, cost: int) -> None:
        """Set the cost of sending on a connection."""
        line.costs[router] = cost
        self._do(router, self.routers[router].set_cost(line, cost, self.now))

    def call(self, router: str, call: Callable[[Topology, float], Step]) -> None:
        """Do anything else to a router."""
        self._do(router, call(self.routers[router], self.now))

    def inject(self, router: str, line: Line, data: bytes) -> None:
        """Give a router a message, from any sender."""
        self._do(router, self.routers[router].received(line, data, self.now))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.run_while(lambda: True, seconds)

    def run_while(self, goes_on: Callable[[], bool], seconds: float) -> None:
        """Let time pass while a condition holds, `limit` seconds at most."""
        end = self.now + seconds
        while goes_on():
            at = min((at for at in self._times() if at is not None), default=end)
            if at > end:
                break
            self.now = max(self.now, at)
            while self._coming and self._coming[0][0] <= self.now:
                _, _, line, name, data = heappop(self._coming)
                if line.is_open and not line.is_silent and name in self.routers:
                    self._do(name, self.routers[name].received(line, data, self.now))
            for name, router in list(self.routers.items()):
                due = router.next_timer()
                if due is not None and due <= self.now:
                    self._do(name, router.handle_timer(self.now))
                    after = router.next_timer()
                    assert after is None or after > self.now, "a timer that is due again at once never ends"
        else:
            return
        self.now = end

    def _times(self) -> list[float | None]:
        coming = self._coming[0][0] if self._coming else None
        return [coming, *(router.next_timer() for router in self.routers.values())]

    def _do(self, name: str, step: Step) -> None:
        self.changes[name] += step.changes
        for line, data in step.messages:
            assert isinstance(line, Line)
            assert len(data) <= 64 * 1024
            self.messages[name] += 1
            self.octets[name] += len(data)
            taken = self.intercept(line, name, data)
            if taken is not None:
                self._turn += 1
                heappush(self._coming, (self.now + line.delay, self._turn, line, line.other(name), taken))

    # Observations of a test

    def told(self, router: str, kind: type[Any]) -> list[Any]:
        """Return the changes of a kind that a router has reported."""
        return [change for change in self.changes[router] if isinstance(change, kind)]

    def forget_changes(self) -> None:
        """Forget these changes."""
        for changes in self.changes.values():
            changes.clear()
        self.messages.clear()
        self.octets.clear()

    def truth(self) -> Any:
        """Return the graph as it is: an edge in both directions for each pair of living routers with an open line."""
        graph = networkx.DiGraph()
        graph.add_nodes_from(self.routers)
        for line in self.lines:
            a, b = line.ends
            if line.is_open and not line.is_silent and a in self.routers and b in self.routers and a != b:
                for sender, receiver in ((a, b), (b, a)):
                    cost = line.costs[sender]
                    known = graph.get_edge_data(sender, receiver, {"cost": cost})["cost"]
                    graph.add_edge(sender, receiver, cost=min(cost, known))
        return graph

    def disagreement(self) -> str:
        """Return the errors of a router's view of the part of the mesh that it can reach; empty: it has none."""
        truth = self.truth()
        for part in networkx.strongly_connected_components(truth):
            databases = {frozenset(self._database(name, part)) for name in part}
            if len(databases) != 1:
                return f"{sorted(part)} have {len(databases)} databases"
            for name in part:
                router = self.routers[name]
                distances = networkx.single_source_dijkstra_path_length(truth, name, weight=self._with_surcharge(name))
                known = {each: router.distance(each) for each in router.paths.reachable()}
                if known != distances:
                    return f"{name} has distances {known}, and they are {distances}"
                names = {key for other in part for key in self.adverts[other]}
                if set(router.book.addresses()) != names:
                    return f"{name} knows the addresses {router.book.addresses()}, and they are {sorted(names)}"
                for key in names:
                    adverts = {each: self.adverts[each][key] for each in part if key in self.adverts[each]}
                    if dict(router.lookup(*key)) != adverts:
                        return f"{name} knows of {key} {dict(router.lookup(*key))}, and it is {adverts}"
        return ""

    def _with_surcharge(self, root: str) -> Callable[[str, str, dict[str, int]], int]:
        """Return the cost of an edge as a router sees it that is `root`: its own surcharge does not count for it."""
        overloaded = self.routers[root].graph.overloaded - {root}
        return lambda tail, _, edge: edge["cost"] + (SURCHARGE if tail in overloaded else 0)

    def _database(self, name: str, part: set[str]) -> list[tuple[str, object, int]]:
        origins = self.routers[name].database.origins
        return [
            (each, origins[each].link.signed.body, origins[each].log.sequence)
            for each in sorted(part)
            if each in origins
        ]
