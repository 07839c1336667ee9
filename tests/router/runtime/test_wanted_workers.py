"""Connections of other routers, which come to the worker that their `open` names, whichever has accepted them."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Disposition, Open, Transfer
from amqpmesh.router.cli.main import main
from amqpmesh.router.config.file import (
    AddressConfig,
    ConnectorConfig,
    ListenerConfig,
    MeshConfig,
    PolicyConfig,
    RouterConfig,
)
from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.config.workers import worker_config
from amqpmesh.router.delivery.link_loss import close_connection
from amqpmesh.router.endpoint_setup import WANTED
from amqpmesh.router.runtime import hand_overs, poller
from amqpmesh.router.runtime.connectors import open_tcp
from amqpmesh.router.runtime.router import Router
from tests.support.peers.scripted_stream import AMQP, Peer, attached, begun, connect, credit, frame
from tests.support.worlds.scripted_worker import Sibling
from tests.support.worlds.sibling_workers import LOOPBACK, clients, router_config, until, workers

if TYPE_CHECKING:
    from pathlib import Path

    from amqpmesh.router.model.connections import ConnectionRecord

pytestmark = pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")

MESH = ListenerConfig(url="amqp://127.0.0.1:0", name="mesh", role="mesh")
PATIENT = MeshConfig(insecure=True, resume=600)


def of_workers(**settings: object) -> RouterConfig:
    """Return the configuration of a router that other routers connect to."""
    return router_config(**{"listeners": (MESH,), "mesh": PATIENT, **settings})


def asking(*wanted: object) -> Open:
    return Open(container_id="N", properties={WANTED: list(wanted)})


async def at_once(peer: Peer, opened: Open) -> str:
    """Open a connection. Returns: the container-id of the router that has answered."""
    await peer.write(AMQP, opened)
    assert await peer.expect_header() == AMQP
    return (await peer.expect(Open)).container_id


async def after_the_header(peer: Peer, opened: Open) -> str:
    await peer.write(AMQP)
    assert await peer.expect_header() == AMQP
    await peer.write(opened)
    return (await peer.expect(Open)).container_id


async def octet_by_octet(peer: Peer, opened: Open) -> str:
    for octet in AMQP + frame(opened):
        await peer.stream.send_all(bytes((octet,)))
    assert await peer.expect_header() == AMQP
    return (await peer.expect(Open)).container_id


@pytest.mark.parametrize("style", [at_once, after_the_header, octet_by_octet])
async def test_the_worker_that_an_open_names_answers_it(tmp_path: Path, style: object) -> None:
    assert callable(style)
    async with workers(of_workers(), tmp_path) as (first, second):
        peer = await connect(first)
        assert await style(peer, asking("A.2")) == "A.2"
        await until(lambda: (clients(first), clients(second)) == (0, 1))
        await peer.expect(Begin)
        told = [each.container_id for each in second.statistics().connections if each.listener == "mesh"]
        assert told == ["N"]
        assert (first.statistics().router.handed_over, second.statistics().router.taken_up) == (1, 1)
        await peer.stream.aclose()
        await until(lambda: not clients(second))


@pytest.mark.parametrize(
    ("opened", "answers"),
    [
        (asking("A.1", "A.2"), "A.1"),
        (asking("A.2", "A.1"), "A.2"),
        (asking("B.2", "A", "A.3", "A.2"), "A.2"),
        (asking(7, None, "A.2"), "A.2"),
        (asking("B.2", "A.0", "A.02", "A.2.old"), "A.1"),
        (asking(), "A.1"),
        (Open(container_id="N"), "A.1"),
        (Open(container_id="N", properties={WANTED: "A.2"}), "A.1"),
        (Open(container_id="N", properties={Symbol("other"): ["A.2"]}), "A.1"),
    ],
)
async def test_the_first_worker_that_is_named_answers_else_the_one_that_has_accepted(
    tmp_path: Path, opened: Open, answers: str
) -> None:
    async with workers(of_workers(), tmp_path) as (first, second):
        peer = await connect(first)
        assert await at_once(peer, opened) == answers
        await until(lambda: (clients(first), clients(second)) == ((0, 1) if answers == "A.2" else (1, 0)))
        await peer.stream.aclose()
        await until(lambda: not clients(first) and not clients(second))


async def test_a_client_does_not_choose_its_worker(tmp_path: Path) -> None:
    async with workers(router_config(), tmp_path) as (first, second):
        peer = await connect(first)
        assert await at_once(peer, asking("A.2")) == "A.1"
        assert (clients(first), clients(second)) == (1, 0)
        await peer.stream.aclose()


async def test_of_the_workers_that_are_named_the_first_one_that_runs_answers(tmp_path: Path) -> None:
    config = of_workers()
    async with Router(worker_config(config, 1, 3, tmp_path)) as first, Router(worker_config(config, 3, 3, tmp_path)):
        peers = [await connect(first) for _ in range(2)]
        assert await at_once(peers[0], asking(*["A.2"] * 20, "A.3")) == "A.3"
        assert await at_once(peers[1], asking("A.2")) == "A.1"
        for each in peers:
            await each.stream.aclose()


@pytest.mark.parametrize("ends", [False, True])
async def test_the_first_worker_answers_if_the_other_one_refuses_or_ends(tmp_path: Path, ends: bool) -> None:
    sibling = Sibling(tmp_path)
    async with Router(worker_config(of_workers(), 1, 2, tmp_path)) as first:
        peer = await connect(first)
        await peer.write(AMQP, asking("A.2"))
        number, arrival, descriptor = await sibling.passed()
        assert arrival.received == AMQP + frame(asking("A.2"))
        os.close(descriptor)
        if not ends:
            sibling.answer(hand_overs.REFUSED, number)
        sibling.end()
        assert await peer.expect_header() == AMQP
        assert (await peer.expect(Open)).container_id == "A.1"
        await peer.stream.aclose()


class Ports:
    """Opens streams to the workers that a test has chosen, as if all of them had the same ports."""

    def __init__(self, *accepting: Router) -> None:
        self._ports = [int(each.listeners[0].url.rpartition(":")[2]) for each in accepting]
        #: By the port that a connector names: the position of the worker that accepts.
        self.accepts = {5001: 0, 5002: 1}

    async def open(self, endpoint: Endpoint) -> trio.abc.Stream:
        return await open_tcp(Endpoint("amqp", "127.0.0.1", self._ports[self.accepts[endpoint.port]], ""))


def for_clients(router: Router) -> int:
    """Return the position of the listener for clients."""
    return [each.config.role for each in router.listeners].index("normal")


class Flow:
    """A message from a router to a receiver at a worker of another one, which has decided nothing yet."""

    def __init__(self, address: str, sends: Router, receives: Router) -> None:
        self._address = address
        self._ends = sends, receives

    async def begin(self) -> None:
        """Send the message, and wait until it has come."""
        self._sender, self._receiver = [await connect(each, for_clients(each)) for each in self._ends]
        for peer, role in ((self._receiver, Role.RECEIVER), (self._sender, Role.SENDER)):
            attach = replace(attached(role, self._address), rcv_settle_mode=ReceiverSettleMode.SECOND)
            await peer.write(AMQP, Open(container_id="peer"), begun(), attach)
            assert await peer.expect_header() == AMQP
            for kind in (Open, Begin, Attach):
                await peer.expect(kind)
        await self._receiver.write(credit(10))
        await self._sender.send(0, b"hi")
        self._came = (await self._receiver.expect(Transfer)).delivery_id or 0

    async def end(self) -> None:
        """Accept it, and wait until its sender hears that."""
        await self._receiver.write(Disposition(role=Role.RECEIVER, first=self._came, state=Accepted()))
        assert (await self._sender.expect(Disposition)).state == Accepted()
        for each in (self._sender, self._receiver):
            await each.stream.aclose()


def neighbour(router: Router, other: str) -> ConnectionRecord | None:
    """Return the connection of a router to a neighbour; None: there is none."""
    mesh = router._started().mesh
    assert mesh is not None
    return next((each.record for each in mesh.neighbours.values() if each.router == other), None)


def lose(router: Router, *others: str) -> None:
    """Close the connections to neighbours, for no reason that tells that a process ends."""
    core, error = router._started(), Error(condition=AmqpCondition.INTERNAL_ERROR)
    for record in [neighbour(router, each) for each in others]:
        assert record is not None
        core.change(partial(close_connection, core.context, record, error), core.context.now)
    router._driver.settle()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the certificates of the two routers."""
    folder = tmp_path_factory.mktemp("authority")
    for arguments in (["init", "--mesh", "trial"], ["issue", "A"], ["issue", "N"]):
        assert main(["ca", *arguments, "--directory", str(folder)]) == 0
    return folder


TENANTS = ("one", "two", "three")
POLICY = "".join(f'[[tenant]]\nname = "{each}"\nmatch = [{{ listener = "{each}" }}]\n' for each in TENANTS)


class Trusting:
    """Two routers: `A` has workers, and `N` connects to it."""

    def __init__(self, authority: Path | None = None) -> None:
        """Args: authority: the folder with their certificates; None: there is no TLS."""
        self._authority = authority
        self._scheme = "amqp" if authority is None else "amqps"
        listeners = replace(MESH, url=f"{self._scheme}://127.0.0.1:0"), replace(LOOPBACK, name="clients")
        addresses = AddressConfig(pattern="one", worker=1), AddressConfig(pattern="two", worker=2)
        self.config = of_workers(listeners=listeners, addresses=addresses, mesh=self._mesh("A"))

    def _mesh(self, router: str) -> MeshConfig:
        if self._authority is None:
            return PATIENT
        own = self._authority / router
        return MeshConfig(
            certificate=own.with_suffix(".pem"),
            key=own.with_suffix(".key"),
            trust=self._authority / "mesh-ca.pem",
            resume=PATIENT.resume,
        )

    def connecting(self, ports: Ports, *numbers: int, policy: PolicyConfig | None = None) -> Router:
        """Return `N`, with a connector to each of these ports."""
        return Router(
            id="N",
            mesh=self._mesh("N"),
            policy=policy,
            listeners=[LOOPBACK],
            connectors=[
                ConnectorConfig(url=f"{self._scheme}://127.0.0.1:{each}", name=f"{each}", role="mesh")
                for each in numbers
            ],
            open_stream=ports.open,
            drain=0.1,
        )


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("secure", [False, True])
async def test_lanes_come_back_to_their_worker_whichever_accepts_the_connection(
    tmp_path: Path, authority: Path, secure: bool, times: int
) -> None:
    both = Trusting(authority if secure else None)
    async with workers(both.config, tmp_path) as (first, second):
        ports = Ports(first, second)
        async with both.connecting(ports, 5001) as near:
            await until(lambda: neighbour(near, "A.1"))
            flow = Flow("one", near, first)
            await flow.begin()
            ports.accepts[5001] = 1
            for count in range(1, times + 1):
                lose(near, "A.1")
                await until(lambda count=count: neighbour(near, "A.1") and first.statistics().router.taken_up == count)
            await flow.end()
        await until(lambda: not clients(first) and not clients(second))


async def test_of_two_connectors_each_comes_back_to_its_own_worker(tmp_path: Path) -> None:
    both = Trusting()
    async with workers(both.config, tmp_path) as (first, second):
        ports = Ports(first, second)
        async with both.connecting(ports, 5001, 5002) as near:
            await until(lambda: [each.next_hops for each in near.statistics().routes] == [("A.1",), ("A.2",)])
            flows = [Flow("one", near, first), Flow("two", near, second)]
            for each in flows:
                await each.begin()
            ports.accepts = {5001: 1, 5002: 0}
            lose(near, "A.1", "A.2")
            await until(lambda: neighbour(near, "A.1") and neighbour(near, "A.2"))
            for each in flows:
                await each.end()


async def test_lanes_between_two_workers_go_on_over_their_next_connection(tmp_path: Path) -> None:
    addresses = (AddressConfig(pattern="any/*", worker=0),)  # its clients stay where they are accepted
    async with workers(of_workers(listeners=(LOOPBACK,), addresses=addresses), tmp_path) as both:
        flows = [Flow("any/1", *both), Flow("any/2", *both[::-1])]
        for each in flows:
            await each.begin()
        before = neighbour(both[0], "A.2")
        lose(both[0], "A.2")
        await until(lambda: neighbour(both[0], "A.2") not in (None, before))
        for each in flows:
            await each.end()


class InTurn(Ports):
    """Leads each further stream to the next worker."""

    async def open(self, endpoint: Endpoint) -> trio.abc.Stream:
        here = self.accepts[endpoint.port]
        self.accepts[endpoint.port] = (here + 1) % len(self._ports)
        return await open_tcp(Endpoint("amqp", "127.0.0.1", self._ports[here], ""))


def leads_to(router: Router) -> Counter[tuple[str, bool]]:
    """Return what the open connections of a router to others lead to, and whether each is for one tenant."""
    records = router._started().context.connections
    open_ones = [each for each in records if each.role == "mesh" and not each.lost and each.engine.remote is not None]
    return Counter((each.peer.container_id, each.lanes_of is not None) for each in open_ones)


@pytest.mark.parametrize("accepts", [0, 1, 2])
async def test_connections_for_tenants_come_to_the_worker_of_the_one_for_all(tmp_path: Path, accepts: int) -> None:
    policy = PolicyConfig(file=tmp_path / "policy.toml")
    policy.file.write_text(POLICY)
    both = Trusting()
    async with workers(replace(both.config, policy=policy), tmp_path, 3) as several:
        ports = InTurn(*several)
        ports.accepts[5001] = accepts
        async with both.connecting(ports, 5001, policy=policy) as near:
            count = len(TENANTS)
            wanted = [{(f"A.{number}", True): count, (f"A.{number}", False): 1} for number in (1, 2, 3)]
            await until(lambda: leads_to(near) in wanted)
            (main,) = [each.router for each in near._started().mesh.neighbours.values()]
            lose(near, main)
            await until(lambda: neighbour(near, main) is None)
            await until(lambda: leads_to(near) in wanted)
