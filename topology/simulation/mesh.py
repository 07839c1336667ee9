"""`Mesh`: real routers in virtual time, on a network under the control of a test."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import trio
from trio.testing import MockClock

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.client.connect import Connection, connect
from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig, MeshConfig, RouterConfig
from amqpmesh.router.io.dialing import Backoff
from amqpmesh.topology.simulation.certificates import CertificateFiles
from amqpmesh.topology.simulation.convergence import LONG_STEP, STEP, disagreement, leftovers, none_left
from amqpmesh.topology.simulation.links import Conditions
from amqpmesh.topology.simulation.log import Log
from amqpmesh.topology.simulation.network import Host, Network, NetworkPath
from amqpmesh.topology.simulation.nodes import Node, true_time
from amqpmesh.topology.simulation.routers import HostedRouter
from amqpmesh.topology.simulation.scheduling import seeded

if TYPE_CHECKING:
    from amqpmesh.router.config.urls import Endpoint
    from amqpmesh.router.statistics.router_statistics import Statistics

CLIENTS: Final = 5672
"""The port of each router for clients. Links have the ports from `LINKS` on, one each."""

LINKS: Final = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """A link between two routers: the first of them connects, and both can send."""

    near: Node
    far: Node
    cost: int
    path: NetworkPath
    connector: ConnectorConfig
    listener: ListenerConfig
    port: int

    def joins(self, one: Node, other: Node) -> bool:
        """Return True if it is between these two."""
        return {self.near, self.far} == {one, other}


class Mesh:
    """A mesh of routers; use it as `async with`.

    It runs in virtual time (`trio.run(..., clock=MockClock(autojump_threshold=0))`, or the fixture `mesh`), and takes
    all chance from `seed`: the same program with the same seed does the same, and `log` is the same. Times are seconds
    of Trio's clock.

    At the end all running routers drain. Then faults of this library are raised: those that a router has logged, and
    tables that are not empty.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        latency: float = 0.001,
        jitter: float = 0.0,
        bandwidth: float | None = None,
        membership: MeshConfig | None = None,
        certificates: float | None = None,
        backoff: Backoff = Backoff(),  # noqa: B008 - it cannot be changed
        **settings: Any,
    ) -> None:
        """Args:
        latency, jitter, bandwidth: the defaults of links and of clients' connections, in each direction: seconds,
            most additional seconds, and octets a second (None: no limit).
        membership: the `[mesh]` of routers, such as `hello` and `hold`; None: the defaults.
        certificates: the lifetime in days of the certificates that the mesh's authority issues; None: there are none.
        backoff: the pauses of connectors between two attempts.
        settings: keys of `RouterConfig` for all routers, such as `addresses`.
        """
        self.seed = seed
        #: The events of the mesh.
        self.log = Log()
        self._conditions = Conditions(latency=latency, jitter=jitter, bandwidth=bandwidth)
        self._membership = membership or MeshConfig(insecure=True)
        self._days = certificates
        self._certificate_files: CertificateFiles | None = None
        self._backoff = backoff
        self._settings = settings
        self._nodes: dict[str, Node] = {}
        self._links: list[Link] = []
        self._clients = 0
        self._ports = LINKS
        self._stack = ExitStack()

    def __getitem__(self, id: str) -> Node:
        """Return a router. Raises: KeyError: there is none with that id."""
        return self._nodes[id]

    def __iter__(self) -> Iterator[Node]:
        """Iterate over all routers, also those that do not run now."""
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    async def __aenter__(self) -> Self:
        """Begin. Raises: CommandError: time is not virtual."""
        if not isinstance(trio.lowlevel.current_clock(), MockClock):
            raise CommandError(
                "a simulated mesh needs virtual time: trio.run(..., clock=MockClock(autojump_threshold=0))"
            )
        with ExitStack() as stack:
            chance = stack.enter_context(seeded(self.seed))
            stack.enter_context(self.log.listening())
            self._network = Network(chance, self.log)
            if self._days is not None:
                folder = stack.enter_context(TemporaryDirectory(prefix="amqpmesh-"))
                self._certificate_files = CertificateFiles(Path(folder), self._days, true_time())
            self._manager = trio.open_nursery()
            self._nursery = await self._manager.__aenter__()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Heal the network, and let all routers drain; after an error of the body end them at once."""
        with self._stack:
            try:
                if error is None:
                    self.heal()
                    for node in self._nodes.values():
                        self.thaw(node.id)
                    async with trio.open_nursery() as nursery:
                        for node in self._nodes.values():
                            nursery.start_soon(node.leave)
            finally:
                # Without the body's error, the nursery does not wrap it.
                self._nursery.cancel_scope.cancel()
                await self._manager.__aexit__(None, None, None)
        if error is None and self.log.faults:
            raise BaseExceptionGroup("faults of routers", self.log.faults)
        if error is None:
            for node in self._nodes.values():
                if node.lives and not node.was_killed and not node.statistics().is_empty:
                    raise AssertionError(f"router {node.id} has left something behind: {node.statistics().router}")

    # --------------------------------------------------------------------------------------------- routers and links

    async def router(self, id: str, **settings: Any) -> Node:
        """Start a router.

        Args: settings: keys of `RouterConfig`; they override those of the mesh.
        Raises: ConfigError: a setting is not valid. CommandError: there is a router with that id.
        """
        if id in self._nodes:
            raise CommandError(f"there is a router {id} already")
        if self._certificate_files is not None and id not in self._certificate_files:
            self._certificate_files.issue(id, true_time())
        node = Node(Host(id), partial(self._make, settings), self.connect, self._nursery.start_soon)
        self._nodes[id] = node
        await self._begin(node, "started")
        return node

    def link(self, near: str, far: str, *, cost: int = 1, back: int | None = None, **conditions: Any) -> Link:
        """Link two routers, both ways; there may be several links between the same two.

        Args: near: the one that connects. cost: of sending to the other. back: of sending back; None: the same.
            conditions: `latency`, `jitter`, `bandwidth`.
        """
        self._ports += 1
        name = f"{far}-{self._ports - LINKS}"
        link = Link(
            self[near],
            self[far],
            cost,
            self._network.path(self._conditions_of(conditions)),
            ConnectorConfig(url=f"{self._scheme}://{self._address(far)}:{self._ports}", name=name, cost=cost),
            ListenerConfig(
                url=f"{self._scheme}://{self._address(far)}:{self._ports}",
                name=f"{near}-{self._ports - LINKS}",
                role="mesh",
                cost=cost if back is None else back,
            ),
            self._ports,
        )
        self._links.append(link)
        self.log.note("-", "linked", near=near, far=far, cost=cost)
        if link.far.is_running:
            link.far.serve(link.port, link.listener)
        if link.near.is_running:
            link.near.router.add_connector(link.connector)
        return link

    def unlink(self, one: str, other: str) -> None:
        """Take away all links of two routers. Raises: CommandError: there is none."""
        for link in self._links_between(one, other):
            self._links.remove(link)
            link.path.cut = True
            if link.near.is_running:
                link.near.router.remove_connector(link.connector.name)
            link.far.host.servers.pop(link.port, None)
            self.log.note("-", "unlinked", near=link.near.id, far=link.far.id)
            self._network.break_all(link.path)

    def set_cost(self, one: str, other: str, cost: int) -> None:
        """Set the cost of all links of two routers, both ways. Raises: CommandError: there is none."""
        for link in self._links_between(one, other):
            self.log.note("-", "cost set", near=link.near.id, far=link.far.id, cost=cost)
            if link.near.is_running:
                link.near.router.set_cost(link.connector, cost)
            if link.far.is_running:
                link.far.router.set_cost(link.listener, cost)

    async def line(self, *ids: str, **conditions: Any) -> list[Node]:
        """Start routers, each linked to the next. Args: conditions: as `link`."""
        return await self._build(ids, pairwise(ids), conditions)

    async def ring(self, *ids: str, **conditions: Any) -> list[Node]:
        """Start routers, each linked to the next, and the last to the first."""
        return await self._build(ids, zip(ids, (*ids[1:], ids[0]), strict=True), conditions)

    async def star(self, centre: str, *ids: str, **conditions: Any) -> list[Node]:
        """Start routers, all of them linked to the first."""
        return await self._build((centre, *ids), ((each, centre) for each in ids), conditions)

    async def full(self, *ids: str, **conditions: Any) -> list[Node]:
        """Start routers, each linked to all others."""
        return await self._build(ids, combinations(ids, 2), conditions)

    async def graph(self, graph: Any, **conditions: Any) -> list[Node]:
        """Start a router for each node of a networkx graph, and link them as its edges say.

        Args: graph: its nodes' names become ids. An edge may have `cost`, `latency`, `jitter` and `bandwidth`, which
            override `conditions`.
        """
        edges = ((str(one), str(other), data) for one, other, data in graph.edges(data=True))
        nodes = [await self.router(str(each)) for each in graph.nodes]
        for one, other, data in edges:
            self.link(one, other, **{**conditions, **data})
        return nodes

    # -------------------------------------------------------------------------------------------------------- clients

    def url(self, id: str) -> str:
        """Return a router's URL for clients, for a connector of another router."""
        return f"amqp://{self._address(id)}:{CLIENTS}"

    def connect(self, *ids: str, id: str | None = None, **options: Any) -> Connection:
        """Return a client's connection, from a host of its own; the caller enters it by `async with`.

        Args: ids: routers, to be tried in turn. id: the client's container-id, and the name of its host; None: a
            generated one. options: those of `amqpmesh.connect`, such as `reconnect`, and `latency`, `jitter`,
            `bandwidth`.
        """
        self._clients += 1
        host = Host(id or f"client-{self._clients}")
        conditions: dict[str, Any] = {
            key: options.pop(key) for key in ("latency", "jitter", "bandwidth") if key in options
        }
        path = self._network.path(self._conditions_of(conditions))

        async def open_stream(endpoint: Endpoint) -> trio.abc.Stream:
            return await self._network.connect(host, self._host_at(endpoint), CLIENTS, path, self._nursery.start_soon)

        return connect([self.url(each) for each in ids], id=host.name, open_stream=open_stream, **options)

    # --------------------------------------------------------------------------------------------------------- faults

    def cut(self, one: str, other: str) -> None:
        """Cut all links of two routers: connections break, both ends learn of it, and no new one opens until `heal`."""
        for link in self._links_between(one, other):
            link.path.cut = True
            self.log.note("-", "cut", near=one, far=other)
            self._network.break_all(link.path)

    def reset(self, one: str, other: str) -> None:
        """Break the connections of two routers; new ones can open at once."""
        for link in self._links_between(one, other):
            self.log.note("-", "reset", near=one, far=other)
            self._network.break_all(link.path)

    def partition(self, *groups: Collection[str]) -> None:
        """Let nothing pass between groups of routers. Routers in no group, and clients, reach all.

        No router learns of it. It replaces the present partition; without groups it ends the partition.
        """
        if groups:
            self.log.note("-", "partition", groups=" | ".join(",".join(sorted(group)) for group in groups))
        elif self._network.is_partitioned:
            self.log.note("-", "partition over")
        self._network.partition([[self[each].host for each in group] for group in groups])

    def heal(self, one: str | None = None, other: str | None = None) -> None:
        """Mend the links of two routers; or, without arguments, all links and the partition."""
        if one is not None and other is not None:
            links = self._links_between(one, other)
        else:
            links = self._links
            self.partition()
        for link in links:
            if link.path.cut:
                self.log.note("-", "healed", near=link.near.id, far=link.far.id)
                link.path.cut = False

    def freeze(self, id: str) -> None:
        """Stop a router until `thaw`, as SIGSTOP stops a process: its connections stay, and are silent.

        Its links within the process are not frozen, but the router sends on nothing of what they send.
        """
        node = self._running(id)
        self.log.note(id, "frozen")
        node.host.frozen = True
        node.router.host_changed()

    def thaw(self, id: str) -> None:
        """Let a frozen router continue, later than it knows; do nothing to one that is not frozen."""
        node = self[id]
        if node.is_frozen:
            self.log.note(id, "thawed")
            node.host.thaw()
            if node.is_running:
                node.router.host_changed()

    async def crash(self, id: str) -> None:
        """Kill a router: it sends nothing more, loses its state, and its connections are reset."""
        node = self._running(id)
        self.log.note(id, "killed")
        node.host.servers.clear()
        self._network.kill(node.host)
        with self.log.muted(id):
            node.host.thaw()
            await node.kill()

    async def stop(self, id: str) -> None:
        """Have a router drain and end."""
        node = self._running(id)
        await node.leave()
        self.log.note(id, "ended")

    async def restart(self, id: str) -> None:
        """Start a router that has ended: the same id and links, and by its wall clock a higher epoch.

        Raises: CommandError: it still runs.
        """
        node = self[id]
        if node.is_running:
            raise CommandError(f"router {id} still runs")
        await self._begin(node, "started again")

    def step_clock(self, id: str, seconds: float) -> None:
        """Let the wall clock of a router's host jump. Args: seconds: forward, or back if negative."""
        self.log.note(id, "clock stepped", seconds=seconds)
        self[id].clock_error += seconds

    # --------------------------------------------------------------------------------------------------- certificates

    def renew(self, id: str, days: float | None = None) -> None:
        """Issue another certificate for a router, with another key. A running router reloads its files.

        Args: days: its lifetime; None: that of the first one.
        Raises: CommandError: the mesh has no certificates. ConfigError: the router, by its clock, does not accept it.
        """
        self._certificates().issue(id, true_time(), days)
        self.log.note(id, "certificate renewed")
        self._reload(id)

    def revoke(self, *ids: str, told: str) -> None:
        """Revoke all certificates of these routers. Args: told: the router that is given the list.

        Raises: CommandError: the mesh has no certificates.
        """
        certificate_files = self._certificates()
        certificate_files.revoke(ids, true_time())
        certificate_files.tell(told)
        self.log.note(told, "certificates revoked", routers=",".join(ids))
        self._reload(told)

    # ------------------------------------------------------------------------------------------------------- the state

    async def settled(self, timeout: float = 60.0) -> float:
        """Wait until routes have converged.

        Then all routers that can reach each other know the real graph, all working links are used and no others, and
        all routers know the consumers of each address.

        Returns: the seconds that it took. Raises: trio.TooSlowError: it took more than `timeout`; with what is missing.
        """
        return await none_left(self.unsettled, "not settled", timeout, STEP)

    def unsettled(self) -> str | None:
        """Return the reason for which `settled` would wait; None: there is none."""
        nodes = [node for node in self._nodes.values() if node.is_running and not node.is_frozen]
        links = [
            (link.near.id, link.far.id)
            for link in self._links
            if not link.path.cut
            and link.near in nodes
            and link.far in nodes
            and not self._network.is_severed(link.near.host, link.far.host)
        ]
        return disagreement(nodes, links)

    async def emptied(self, timeout: float = 60.0) -> float:
        """Wait, without clients, until nothing is left of them: no address, no delivery, no lane, in no router.

        Returns: the seconds that it took. Raises: trio.TooSlowError: it took more than `timeout`; with what is left.
        """
        return await none_left(
            lambda: leftovers(node for node in self._nodes.values() if node.is_running), "not empty", timeout, LONG_STEP
        )

    def statistics(self) -> dict[str, Statistics]:
        """Return the statistics of each router, by id; also after the mesh has ended (see `Router.statistics`)."""
        return {node.id: node.statistics() for node in self._nodes.values()}

    # ----------------------------------------------------------------------------------------------------- internals

    @property
    def _scheme(self) -> str:
        return "amqp" if self._certificate_files is None and self._membership.insecure else "amqps"

    def _address(self, id: str) -> str:
        """Return the address of a router's host: a loopback address, as routers without certificates demand."""
        number = list(self._nodes).index(self[id].id) + 1
        return f"127.0.{number // 250}.{number % 250 + 1}"

    def _host_at(self, endpoint: Endpoint) -> Host:
        _, _, high, low = map(int, endpoint.host.split("."))
        return list(self._nodes.values())[high * 250 + low - 2].host

    def _conditions_of(self, given: dict[str, Any]) -> Conditions:
        return replace(self._conditions, **given)

    def _running(self, id: str) -> Node:
        node = self[id]
        if not node.is_running:
            raise CommandError(f"router {id} does not run")
        return node

    def _certificates(self) -> CertificateFiles:
        if self._certificate_files is None:
            raise CommandError("the routers of this mesh have no certificates: Mesh(certificates=30)")
        return self._certificate_files

    def _reload(self, id: str) -> None:
        if self[id].is_running:
            self[id].router.reload()

    def _links_between(self, one: str, other: str) -> list[Link]:
        found = [link for link in self._links if link.joins(self[one], self[other])]
        if not found:
            raise CommandError(f"there is no link of {one} and {other}")
        return found

    async def _build(self, ids: Collection[str], pairs: Iterable[tuple[str, str]], given: dict[str, Any]) -> list[Node]:
        nodes = [await self.router(each) for each in ids]
        for one, other in pairs:
            self.link(one, other, **given)
        return nodes

    async def _begin(self, node: Node, event: str) -> None:
        await self._nursery.start(node.live)
        self.log.note(node.id, event, epoch=node.router.mesh.topology.epoch)
        node.serve(CLIENTS, None)
        for link in self._links:
            if link.far is node:
                node.serve(link.port, link.listener)

    def _make(self, settings: dict[str, Any], node: Node) -> HostedRouter:
        membership = self._membership
        if self._certificate_files is not None:
            membership = self._certificate_files.membership(node.id, membership)
        config = RouterConfig(id=node.id, mesh=membership, **{**self._settings, **settings})
        connectors = tuple(link.connector for link in self._links if link.near is node)
        return HostedRouter(
            node.host,
            replace(config, connectors=(*config.connectors, *connectors)),
            node.wall_clock,
            open_stream=partial(self._open, node.host),
            backoff=self._backoff,
            epoch=node.epoch,
        )

    async def _open(self, near: Host, endpoint: Endpoint) -> trio.abc.Stream:
        """Open a connection for a connector of a host."""
        far = self._host_at(endpoint)
        path = next((link.path for link in self._links if link.port == endpoint.port), None)
        if path is None:
            path = self._network.path(self._conditions)
        return await self._network.connect(near, far, endpoint.port, path, self._nursery.start_soon)
