"""Routers of a mesh without sockets, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.config.file import AddressConfig, ConnectorConfig, ListenerConfig, MeshConfig, WorkerConfig
from amqpmesh.router.core import Core
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.mesh.member import MeshMember
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.topology.linkstate import Topology
from amqpmesh.topology.settings import Settings
from amqpmesh.topology.signing import Unsigned
from amqpmesh.topology.workers import name_of, stand_in_of
from tests.support.worlds.network import Client, Network, Sent

LISTENER = ListenerConfig(url="amqp://127.0.0.1:0", name="mesh", role="mesh", idle_time_out=0.0)
INSECURE = MeshConfig(insecure=True)

_connector = lru_cache(maxsize=256)(ConnectorConfig)


class Node(Network):
    """A router and its clients; `run` and `advance` concern the whole mesh."""

    def __init__(self, world: World, router: str, addresses: Iterable[AddressConfig], epoch: int, **settings: object):
        self.world = world
        settings = {"mesh": INSECURE, **settings}
        name = name_of(router)
        if name is not None and router != stand_in_of(name):
            settings["worker"] = WorkerConfig(name=name, number=int(router.rpartition(".")[2]), folder=Path("/"))
        super().__init__(*addresses, router=router, **settings)
        self.now = world.now
        topology = Topology(router, Settings(), Unsigned(), Unsigned(), epoch, world.now)
        self.core.mesh = MeshMember(self.core.context, self.core.remote_nodes, topology, None)

    @property
    def mesh(self) -> MeshMember:
        """The mesh member of its core."""
        assert self.core.mesh is not None
        return self.core.mesh

    def run(self) -> None:
        """Carry octets until no router has any left to send."""
        self.world.run()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.world.advance(seconds)

    def run_clients(self) -> None:
        """Carry the octets of its own clients."""
        self.now = self.world.now
        super().run()


@dataclass
class OnWay:
    """The octets on their way to one end of a wire."""

    data: bytes
    arrives: float


class Wire:
    """A connection between two routers."""

    def __init__(
        self,
        world: World,
        one: Core,
        two: Core,
        cost: int,
        latency: float = 0.0,
        lanes_of: str | None = None,
        idle_time_out: float = 0.0,
        max_frame_size: int = LISTENER.max_frame_size,
    ) -> None:
        """Args: latency: seconds, each way. With any, a router has one batch on the way at a time. lanes_of: the tenant
        whose lanes alone it is for. idle_time_out, max_frame_size: of both ends.
        """
        connector = _connector(
            url="amqp://127.0.0.1:5672",
            name=f"{one.context.id}-{two.context.id}",
            role="mesh",
            cost=cost,
            idle_time_out=idle_time_out,
            max_frame_size=max_frame_size,
        )
        listener = replace(LISTENER, idle_time_out=idle_time_out, max_frame_size=max_frame_size)
        now = world.now
        self.connect(
            world,
            (one, one.connect(connector, "127.0.0.1", now, secured=False, lanes_of=lanes_of)),
            (two, two.accept(listener, "127.0.0.1", now, secured=False)),
            latency,
        )
        self.ends[1][1].cost = cost

    def connect(
        self, world: World, one: tuple[Core, ConnectionRecord], two: tuple[Core, ConnectionRecord], latency: float = 0.0
    ) -> None:
        """Connect the cores of both ends."""
        self.ends = (one, two)
        #: True while nothing is carried: one of the two routers, or the network, is frozen.
        self.frozen = False
        self.latency = latency
        self._tap = world.tap
        self._on_way: dict[ConnectionRecord, OnWay] = {}

    @property
    def routers(self) -> set[str]:
        """The ids of its two ends."""
        return {core.context.id for core, _ in self.ends}

    @property
    def is_empty(self) -> bool:
        """True if nothing is on the way."""
        return not self._on_way

    @property
    def next_arrival(self) -> float | None:
        """The time of the next arrival."""
        return None if self.frozen else min((each.arrives for each in self._on_way.values()), default=None)

    def carry(self, now: float) -> bool:
        """Carry all octets, once in each direction. Returns: whether any have left or arrived."""
        moved = False
        if self.frozen:
            return moved
        for (sender, out), (receiver, into) in (self.ends, self.ends[::-1]):
            if into not in self._on_way:
                data = sender.data_to_send(out, now)
                if not data:
                    continue
                moved = True
                if self._tap is not None:
                    self._tap(sender.context.id, receiver.context.id, data)
                self._on_way[into] = OnWay(data, now + self.latency)
            if self._on_way[into].arrives <= now:
                moved = True
                data = self._on_way.pop(into).data
                sender.sent(out, now)
                while not receiver.receive(into, data, now):
                    data = b""
        return moved

    def closed(self) -> bool:
        """Return True if both ends are closed, or one end is closed and the other has noticed it."""
        finished = [record.engine.finished for _, record in self.ends]
        return all(finished) or (any(finished) and not (self.frozen or self._on_way))


class World:
    """Routers in virtual time, and the connections between them."""

    def __init__(
        self,
        routers: str | Iterable[str],
        edges: Iterable[tuple[str, str] | tuple[str, str, int]],
        *addresses: AddressConfig,
        own: Mapping[str, AddressConfig] | None = None,
        members: Mapping[str, MeshConfig] | None = None,
        settle: float = 1.0,
        latency: Callable[[], float] = lambda: 0.0,
        tap: Callable[[str, str, bytes], None] | None = None,
        idle_time_out: float = 0.0,
        max_frame_size: int = LISTENER.max_frame_size,
        **settings: object,
    ) -> None:
        """Args: edges: two routers, and the cost of a hop between them. own: a pattern that one router has alone.
        members: `[mesh]` of single routers, where it differs. settle: seconds to
        find each other. latency: of the next wire, seconds. tap: gets the octets from one router to another, frames
        unchanged. idle_time_out, max_frame_size: of connections between routers, seconds and octets.
        """
        self.now = 100.0
        self.latency = latency
        self.tap = tap
        self.idle_time_out = idle_time_out
        self.max_frame_size = max_frame_size
        self.wires: list[Wire] = []
        #: Wires that may have octets to carry.
        self._awake: dict[Wire, None] = {}
        self._wires_of: dict[ConnectionRecord, Wire] = {}
        self.epoch = 1000
        self._addresses = addresses
        self._settings = settings
        self._members = members or {}
        self.nodes: dict[str, Node] = {}
        for router in routers:
            self.start(router, *([own[router]] if own is not None and router in own else []))
        for edge in edges:
            self.join(*edge)
        self.advance(settle)

    def __getitem__(self, router: str) -> Node:
        return self.nodes[router]

    def start(self, router: str, *addresses: AddressConfig) -> Node:
        """Start a router. Args: addresses: patterns of this router alone."""
        self.epoch += 1
        settings = {**self._settings, "mesh": self._members[router]} if router in self._members else self._settings
        node = self.nodes[router] = Node(self, router, (*self._addresses, *addresses), self.epoch, **settings)
        node.core.context.on_output = self._wake
        return node

    def join(self, one: str, two: str, cost: int = 1, lanes_of: str | None = None) -> Wire:
        """Connect two routers. Args: lanes_of: the tenant whose lanes alone the connection is for."""
        cores = self[one].core, self[two].core
        wire = Wire(self, *cores, cost, self.latency(), lanes_of, self.idle_time_out, self.max_frame_size)
        self.add(wire)
        return wire

    def add(self, wire: Wire) -> None:
        """Watch a connection from now on for octets to carry."""
        self.wires.append(wire)
        self._awake[wire] = None
        for _, record in wire.ends:
            self._wires_of[record] = wire
        self.run()

    def between(self, one: str, two: str) -> list[Wire]:
        """Return the connections of two routers."""
        return [wire for wire in self.wires if wire.routers == {one, two}]

    def cut(self, *wires: Wire) -> None:
        """Lose connections."""
        for wire in wires:
            self.wires.remove(wire)
            for core, record in wire.ends:
                core.receive_eof(record, self.now)
        self.run()

    def kill(self, router: str) -> list[Client]:
        """Kill a router. Its clients see their connections cut."""
        node = self.nodes.pop(router)
        for wire in [wire for wire in self.wires if router in wire.routers]:
            self.wires.remove(wire)
            for core, record in wire.ends:
                if core is not node.core:
                    core.receive_eof(record, self.now)
        self.run()
        return node.clients

    def run(self) -> None:
        """Carry octets to and fro until no router has any."""
        for _ in range(10_000):
            moved = False
            for node in self.nodes.values():
                node.run_clients()
            for wire in [wire for wire in self.wires if wire in self._awake]:
                if wire.carry(self.now):
                    moved = True
                elif wire.is_empty and not wire.frozen:
                    self._awake.pop(wire, None)
                if wire.closed() and wire in self.wires:
                    self.cut(wire)
            if not moved:
                return
        raise AssertionError("the mesh does not come to rest")

    def _wake(self, record: ConnectionRecord) -> None:
        """Note that a router has something to send."""
        wire = self._wires_of.get(record)
        if wire is not None:
            self._awake[wire] = None

    def advance(self, seconds: float) -> None:
        """Let time pass, timer by timer."""
        self.advance_until(lambda: False, seconds)

    def advance_until(self, met: Callable[[], bool], limit: float) -> float:
        """Let time pass until a condition is met, `limit` seconds at most. Returns: the time that passed."""
        began, end = self.now, self.now + limit
        while not met():
            timers = [node.core.next_timer() for node in self.nodes.values()]
            arrivals = [wire.next_arrival for wire in self.wires]
            due = min((at for at in (*timers, *arrivals) if at is not None), default=end)
            if due > end:
                self.now = end
                break
            self.now = max(self.now, due)
            for node in self.nodes.values():
                node.core.handle_timer(self.now)
            self.run()
        self.run()
        return self.now - began

    def close_clients(self) -> None:
        """Close every client."""
        for node in self.nodes.values():
            for client in node.clients:
                client.stopped = False
                if not client.is_lost:
                    client.close()

    def check_ledgers(self) -> None:
        """Assert that no router has a delivery left, nor octets or frames of one."""
        for router, node in self.nodes.items():
            core = node.core
            whole = snapshot(core).router
            frames = sum(record.held_frames for record in core.context.connections)
            unsettled = [
                link
                for record in core.context.connections
                for link in (*record.incoming, *record.outgoing)
                if link.endpoint.terminus.unsettled
            ]
            left = (whole.relays, whole.buffered, frames, unsettled)
            assert left == (0, 0, 0, []), (router, left)

    def leave(self) -> None:
        """Close every client; then assert that no router has anything of a delivery left."""
        self.close_clients()
        for _ in range(60):
            self.advance(1.0)
            if not any(self._left(router) for router in self.nodes):
                break
        self.check_ledgers()
        for router in self.nodes:
            assert self._left(router) == {}, router

    def _left(self, router: str) -> dict[str, object]:
        """Return what a router still has of clients."""
        node = self[router]
        left = {
            "relays": node.core.context.in_flight,
            "addresses": [each.name for each in node.core.context.nodes.values()],
            "ways": node.mesh.routes.nodes(),
            "links": [
                each
                for record in records(self, router)
                for each in (
                    *record.incoming,
                    *record.outgoing,
                    *record.detached_unsettled,
                    *record.unsettled_after_detach,
                )
            ],
        }
        return {key: value for key, value in left.items() if value}


def records(world: World, router: str) -> list[ConnectionRecord]:
    """Return the connections of a router to its neighbours."""
    return [record for wire in world.wires for core, record in wire.ends if core.context.id == router]


def with_receivers(
    routers: Iterable[str], edges: Iterable[tuple[str, str]], *addresses: AddressConfig
) -> tuple[World, dict[str, Client]]:
    """Return a mesh with a client at each router that receives from q, and these clients."""
    routers = list(routers)
    mesh = World(routers, edges, *addresses)
    receivers = {router: mesh[router].client() for router in routers}
    for client in receivers.values():
        client.receiver("q", credit=10)
    mesh.advance(0.2)
    return mesh, receivers


def deliver(mesh: World, receivers: dict[str, Client], sends: list[Sent]) -> set[str]:
    """Accept what arrived, and assert that the senders hear it. Returns: the routers whose receivers got some."""
    mesh.advance(0.1)
    took = {router: client.take() for router, client in receivers.items()}
    for arrivals in took.values():
        for arrival in arrivals:
            arrival.accept()
    mesh.run()
    assert [sent.said for sent in sends] == [[(Accepted(), True)]] * len(sends)
    return {router for router, arrivals in took.items() if arrivals}
