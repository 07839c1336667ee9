"""The time of the polling task, divided among tenants by their weights: parts of input are counted, not seconds."""

from __future__ import annotations

import os
import select
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import pytest
import trio

from amqpmesh.policies.tenants import Tenant
from amqpmesh.router.amqp.frames import EMPTY_FRAME
from amqpmesh.router.amqp.standard.performatives import Open
from amqpmesh.router.config.file import ListenerConfig, PolicyConfig
from amqpmesh.router.core import Core
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.router.runtime import poller
from amqpmesh.router.runtime.driver import Driver
from amqpmesh.router.runtime.poller import READABLE
from amqpmesh.router.runtime.router import Router
from amqpmesh.router.runtime.shares import SLICE, Shares
from tests.support.peers.scripted_stream import AMQP, Peer
from tests.support.tasks.stopwatches import measure

pytestmark = pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")

TAKES = SLICE / 10
"""Seconds that the stopwatch shows for each time that a socket is served."""


BETWEEN = " between routers"


class Settled:
    """A driver that has no output."""

    def settle(self, within: float) -> bool:
        assert within > 0
        return False


class World:
    """A poller, sockets of tenants that always have input, and the order in which they were served."""

    def __init__(self, nursery: trio.Nursery, sockets: ExitStack) -> None:
        self._sockets = sockets
        self.poller = poller.Poller(cast(Driver, Settled()), nursery.start_soon)
        self.served: list[str] = []
        self.seconds = 0.0
        self.enough = 0
        self.are_enough = trio.Event()
        #: After so many parts, input comes from this peer.
        self.comes: tuple[int, socket.socket] | None = None
        measure(lambda: self.seconds)

    def add(
        self,
        tenant: Tenant | None,
        *,
        is_heavy: bool = False,
        floods: bool = True,
        more: bool = False,
        between: bool = False,
    ) -> Source:
        ours, theirs = map(self._sockets.enter_context, socket.socketpair())
        name = "" if tenant is None else tenant.name + between * BETWEEN
        source = Source(self, name, ours, theirs, is_heavy, floods, more)
        self.poller.add(ours.fileno(), source, READABLE, tenant, between=between)
        if floods:
            theirs.send(b"x")
        return source

    async def parts_before(self, polite: Source, at: int, parts: int) -> int:
        """Have input of a polite tenant come after `at` parts of others. Returns: the parts that are served before it.

        Args: parts: after which it must have been served.
        """
        self.comes = at, polite.theirs
        await self.run(at + parts)
        return self.served.index(polite.name) - at

    async def run(self, parts: int) -> Counter[str]:
        """Have so many parts of input served. Returns: how many of each tenant."""
        self.served.clear()
        self.enough, self.are_enough = parts, trio.Event()
        await self.are_enough.wait()
        return Counter(self.served[:parts])


class Source:
    """An object with a socket that the poller serves."""

    def __init__(
        self,
        world: World,
        tenant: str,
        ours: socket.socket,
        theirs: socket.socket,
        is_heavy: bool,
        floods: bool,
        more: bool,
    ) -> None:
        self._world = world
        self.name = tenant
        self._ours = ours
        self._floods = floods
        self._more = more
        self.theirs = theirs
        self.is_heavy = is_heavy

    @property
    def descriptor(self) -> int:
        return self._ours.fileno()

    def serve(self, until: float) -> bool:
        world = self._world
        world.seconds += TAKES
        world.served.append(self.name)
        if world.comes is not None and len(world.served) == world.comes[0]:
            world.comes[1].send(b"x")
        if not self._floods:
            self._ours.recv(1)
        if len(world.served) >= world.enough:
            world.are_enough.set()
        return self._more


@pytest.fixture
def world(nursery: trio.Nursery) -> Iterator[World]:
    with ExitStack() as sockets:
        world = World(nursery, sockets)
        yield world
        world.poller.end()


A, B, C = (Tenant(name=name, weight=weight) for name, weight in (("A", 1.0), ("B", 2.0), ("C", 3.0)))


@pytest.mark.parametrize("is_heavy", [False, True], ids=["light", "heavy"])
@pytest.mark.parametrize("more", [False, True], ids=["reported", "left"])
async def test_tenants_with_more_than_their_share_get_time_by_their_weights(
    is_heavy: bool, more: bool, world: World
) -> None:
    for tenant, sockets in ((A, 40), (B, 1), (C, 7)):
        for _ in range(sockets):
            world.add(tenant, is_heavy=is_heavy, more=more)
    await world.run(60)
    got = await world.run(600)
    for tenant in (A, B, C):
        assert got[tenant.name] == pytest.approx(100 * tenant.weight, abs=24)  # two turns


async def test_connections_of_a_tenant_between_routers_have_every_other_of_its_turns(world: World) -> None:
    for _ in range(40):
        world.add(A)
    between = world.add(A, between=True)
    world.add(B)
    world.add(None)
    await world.run(60)
    got = await world.run(1200)
    turns = 200 / (1 + SLICE / TAKES)  # one serves a single socket, the next as many as there is time for
    assert got[f"A{BETWEEN}"] == pytest.approx(turns, abs=6)
    assert got["A"] + got[f"A{BETWEEN}"] == pytest.approx(200, abs=24)
    assert got["B"] == pytest.approx(400, abs=24)
    assert got[""] == pytest.approx(600, abs=24), "as much as both tenants, each counted once"
    world.poller.remove(between.descriptor)
    got = await world.run(600)
    assert got["A"] == pytest.approx(100, abs=24)


async def test_heavy_sockets_of_a_tenant_have_turns_beside_many_that_are_not(world: World) -> None:
    for _ in range(100):
        world.add(A)
    world.add(A, is_heavy=True, more=True).name = "heavy"
    world.add(B)
    got = await world.run(600)
    assert got["heavy"] >= 10
    assert got["A"] >= 150


async def test_neighbours_have_as_much_as_all_tenants_together(world: World) -> None:
    for tenant in (None, A, C, C):
        world.add(tenant)
    await world.run(60)
    got = await world.run(800)
    assert got == {"": pytest.approx(400, abs=24), "A": pytest.approx(100, abs=24), "C": pytest.approx(300, abs=24)}


@pytest.mark.parametrize("is_heavy", [False, True], ids=["light", "heavy"])
@pytest.mark.parametrize("kinds", [(False,), (True,), (False, True)], ids=["clients", "neighbours", "both"])
async def test_input_of_a_tenant_within_its_share_waits_for_the_turn_that_another_has(
    kinds: tuple[bool, ...], is_heavy: bool, world: World
) -> None:
    for between in kinds:
        for _ in range(100):
            world.add(A, is_heavy=is_heavy, between=between)
    polite = world.add(B, floods=False)
    await world.run(200)
    turn = round(SLICE / TAKES) + 1  # it ends with the part in which its time is up
    for at in range(1, 4 * turn):
        assert await world.parts_before(polite, at, 4 * turn) <= turn


async def test_input_of_a_tenant_within_its_share_waits_for_one_turn_of_each_that_had_less(world: World) -> None:
    floods = [Tenant(name=f"flood {number}") for number in range(8)]
    for tenant in floods:
        for _ in range(20):
            world.add(tenant)
    polite = world.add(B, floods=False)
    await world.run(200)
    turn = round(SLICE / TAKES) + 1
    for at in range(1, 20):
        assert await world.parts_before(polite, at, 2 * len(floods) * turn) <= turn * len(floods)


async def test_a_tenant_that_had_nothing_to_do_gets_no_more_for_that(world: World) -> None:
    world.add(A)
    await world.run(500)
    late = world.add(Tenant(name="late"))
    got = await world.run(200)
    assert got["late"] == pytest.approx(100, abs=24)
    world.poller.remove(late.descriptor)
    assert await world.run(50) == {"A": 50}


async def test_a_changed_weight_holds_at_once(world: World) -> None:
    sources = [world.add(tenant) for tenant in (A, B)]
    await world.run(60)
    world.poller.share(sources[0].descriptor, Tenant(name="A", weight=6.0), READABLE)
    got = await world.run(400)
    assert got == {"A": pytest.approx(300, abs=24), "B": pytest.approx(100, abs=24)}


async def test_a_socket_is_in_the_share_of_its_tenant_once_that_is_known(world: World) -> None:
    for _ in range(20):
        world.add(A)
    source = world.add(None, more=True)
    await world.run(60)
    world.poller.share(source.descriptor, B, READABLE)
    got = await world.run(300)
    assert got[""] == pytest.approx(200, abs=24), "it has the weight of its tenant, and is served all the same"


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_what_polls_a_share_is_freed_with_its_last_socket(world: World) -> None:
    world.add(A)
    before = descriptors()
    sources = [world.add(tenant) for tenant in (B, C) for _ in range(3)]
    assert descriptors() == before + 2 + 2 * len(sources)
    await world.run(60)
    for each in sources:
        world.poller.remove(each.descriptor)
    assert descriptors() == before + 2 * len(sources)
    assert await world.run(60) == {"A": 60}


# ------------------------------------------------------------------------------------------------ clients of a router

FLOODING = 20
POLICY = "".join(
    f"""
[[tenant]]
name = "{each}"
match = [{{ listener = "{each}" }}]
[[group]]
name = "all"
tenant = "{each}"
send = ["#"]
receive = ["#"]
"""
    for each in ("flood", "polite")
)


async def opened(router: Router, tenant: str) -> Peer:
    (port,) = (urlsplit(each.url).port for each in router.listeners if each.name == tenant)
    assert port is not None
    peer = Peer(await trio.open_tcp_stream("127.0.0.1", port))
    await peer.write(AMQP, Open(container_id=tenant))
    assert await peer.expect_header() == AMQP
    await peer.expect(Open)
    return peer


async def test_input_of_a_polite_client_waits_for_a_turn_of_those_who_flood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    seconds = 0.0
    receive = Core.receive

    def noted(core: Core, record: ConnectionRecord, data: bytes, now: float) -> bool:
        nonlocal seconds
        seconds += TAKES
        order.append(record.peer.container_id)
        return receive(core, record, data, now)

    monkeypatch.setattr(Core, "receive", noted)
    measure(lambda: seconds)
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)
    listeners = [ListenerConfig(url="amqp://127.0.0.1:0", name=each) for each in ("flood", "polite")]
    async with Router(id="A", listeners=listeners, policy=PolicyConfig(file=file)) as router:
        floods = [await opened(router, "flood") for _ in range(FLOODING)]
        polite = await opened(router, "polite")
        order.clear()
        # All at once, without a turn of the router in between: each has one part of input, the polite one's is last.
        for each in (*floods, polite):
            assert isinstance(each.stream, trio.SocketStream)
            with socket.socket(fileno=socket.dup(each.stream.socket.fileno())) as raw:
                raw.send(EMPTY_FRAME)
        while len(order) <= FLOODING:
            await trio.lowlevel.checkpoint()
        assert order.index("polite") <= round(SLICE / TAKES) + 1 < FLOODING
        for each in (*floods, polite):
            await each.close()
    assert router.statistics().is_empty


async def test_a_share_whose_first_socket_the_system_refuses_is_not_left_behind(world: World) -> None:
    world.add(A)
    await world.run(60)
    before = descriptors()
    shares = Shares({})
    with select.epoll() as of_all:
        ours, theirs = socket.socketpair()
        with theirs:
            refused = ours.fileno()
            ours.close()
            assert not shares.enter(refused, B, READABLE, of_all)
    assert (len(shares), shares.own.weight) == (0, 0.0)
    assert descriptors() == before
