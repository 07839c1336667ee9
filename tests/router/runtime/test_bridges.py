"""Connections with TLS that another worker serves: the first worker decrypts, and passes octets on."""

from __future__ import annotations

import select
import socket
import ssl
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
import trio
import trustme

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Close, Disposition, Open, Transfer
from amqpmesh.router.config.file import ListenerConfig, TlsConfig
from amqpmesh.router.config.users import add_user
from amqpmesh.router.config.workers import worker_config
from amqpmesh.router.io.streams import UNACKNOWLEDGED
from amqpmesh.router.io.tls import client_context
from amqpmesh.router.runtime import bridge, hand_overs, poller
from amqpmesh.router.runtime.router import Router
from tests.support.peers.sasl import init
from tests.support.peers.scripted import SASL
from tests.support.peers.scripted_stream import AMQP, Peer, attached, begun, connect, credit, frame
from tests.support.peers.websockets import over_websocket
from tests.support.worlds.scripted_worker import Sibling
from tests.support.worlds.sibling_workers import address_at, clients, router_config, until, workers

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")

NAME = "router.example"
HERE, THERE = address_at(1), address_at(2)
MIB = 2**20


@dataclass(frozen=True)
class Front:
    """A listener with TLS, and a context for its clients."""

    listener: ListenerConfig
    context: ssl.SSLContext

    def over(self, peer: Peer) -> Peer:
        return Peer(trio.SSLStream(peer.stream, self.context, server_hostname=NAME, https_compatible=True))


@pytest.fixture
def front(tmp_path: Path) -> Front:
    authority = trustme.CA()
    trust = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(trust)
    for name, issued in (
        ("router", authority.issue_cert(NAME)),
        ("ada", authority.issue_cert("ada@example.org", common_name="ada")),
    ):
        issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / name)
    router, ada = tmp_path / "router", tmp_path / "ada"
    tls = TlsConfig(certificate=router, key=router, trust=trust, client="optional")
    listener = ListenerConfig(url="amqps://127.0.0.1:0", sasl=("EXTERNAL", "ANONYMOUS"), tls=tls)
    return Front(listener, client_context(trust, ada, ada))


async def linked(peer: Peer, attach: Attach) -> Attach:
    await peer.write(AMQP, Open(container_id="peer"), begun(), attach)
    assert await peer.expect_header() == AMQP
    await peer.expect(Open)
    await peer.expect(Begin)
    return await peer.expect(Attach)


async def receives(peer: Peer) -> tuple[int, int]:
    """Take a delivery of one or more frames. Returns: its id and its octets."""
    octets, number = 0, None
    while True:
        transfer = await peer.expect(Transfer)
        number = transfer.delivery_id if number is None else number
        octets += len(peer.payload)
        if not transfer.more:
            assert number is not None
            return number, octets


async def sends(peer: Peer, size: int) -> None:
    """Send one delivery in frames of 16 KiB."""
    payload = b"\x00\x53\x75\xb0" + size.to_bytes(4, "big") + bytes(size)
    parts = [payload[at : at + 16 * 1024] for at in range(0, len(payload), 16 * 1024)]
    while not peer.limit:
        await peer.next_frame()
    for at, part in enumerate(parts):
        transfer = Transfer(
            handle=0,
            delivery_id=0 if not at else None,
            delivery_tag=b"0" if not at else None,
            message_format=0 if not at else None,
            more=at < len(parts) - 1,
        )
        await peer.write(frame(transfer, part))


@pytest.mark.parametrize("size", [10, 5 * MIB])
async def test_messages_pass_a_bridge_in_both_directions(tmp_path: Path, front: Front, size: int) -> None:
    config = router_config(listeners=(replace(front.listener, session_window=1000),))
    async with workers(config, tmp_path) as (first, second), trio.open_nursery() as nursery:
        sender, receiver = [front.over(await connect(first)) for _ in range(2)]
        await linked(receiver, attached(Role.RECEIVER, THERE))
        await linked(sender, attached(Role.SENDER, THERE))
        told = [each for each in second.statistics().connections if each.container_id == "peer"]
        assert [each.tls for each in told] == ["TLSv1.3"] * 2
        assert all((each.certificate_subject or "").startswith("CN=ada,") for each in told)
        assert not first.statistics().addresses
        await receiver.write(credit(1))
        nursery.start_soon(sends, sender, size)
        number, octets = await receives(receiver)
        assert octets == size + 8
        await receiver.write(Disposition(role=Role.RECEIVER, first=number, settled=True, state=Accepted()))
        assert (await sender.expect(Disposition)).state == Accepted()
        for each in (sender, receiver):
            await each.close()
        await until(lambda: not clients(first) and not clients(second))
    assert first.statistics().is_empty
    assert second.statistics().is_empty


@pytest.mark.parametrize("secure", [False, True])
async def test_a_websocket_passes_a_bridge(tmp_path: Path, front: Front, secure: bool) -> None:
    listener = replace(front.listener, url="wss://127.0.0.1:0")
    if not secure:
        listener = ListenerConfig(url="ws://127.0.0.1:0")
    async with workers(router_config(listeners=(listener,)), tmp_path) as (first, second):
        peers = [front.over(await connect(first)) if secure else await connect(first) for _ in range(2)]
        sender, receiver = [await over_websocket(each) for each in peers]
        await linked(receiver, attached(Role.RECEIVER, THERE))
        await linked(sender, attached(Role.SENDER, THERE))
        told = [each for each in second.statistics().connections if each.container_id == "peer"]
        assert [each.tls for each in told] == ["TLSv1.3" if secure else None] * 2
        await receiver.write(credit(1))
        await sender.send(0, b"x" * 10_000)
        number, octets = await receives(receiver)
        assert octets == 10_008
        await receiver.write(Disposition(role=Role.RECEIVER, first=number, settled=True, state=Accepted()))
        assert (await sender.expect(Disposition)).state == Accepted()
        for each in (sender, receiver):
            await each.close()
        await until(lambda: not clients(first) and not clients(second))
    assert first.statistics().is_empty
    assert second.statistics().is_empty


async def test_the_user_of_the_certificate_holds_at_the_other_worker(tmp_path: Path, front: Front) -> None:
    async with workers(router_config(listeners=(front.listener,)), tmp_path) as (first, second):
        peer = front.over(await connect(first))
        await peer.write(SASL, frame(init("EXTERNAL", b""), type=1))
        assert await peer.expect_header() == SASL
        for _ in ("mechanisms", "outcome"):
            while peer._frames.next_frame() is None:
                assert await peer._more()
        await linked(peer, attached(Role.SENDER, THERE))
        (told,) = (each for each in second.statistics().connections if each.container_id == "peer")
        assert (told.user, told.mechanism) == ("ada@example.org", Symbol("EXTERNAL"))
        await peer.close()


async def test_octets_behind_a_login_in_one_write_pass_the_bridge(tmp_path: Path, front: Front) -> None:
    add_user(tmp_path / "users.toml", "ada", "lovelace", iterations=100_000)  # checked in a thread
    listener = replace(front.listener, sasl=("PLAIN",), users=tmp_path / "users.toml")
    async with workers(router_config(listeners=(listener,)), tmp_path) as (first, second):
        peer = front.over(await connect(first))
        attaches = [attached(Role.SENDER, THERE), attached(Role.RECEIVER, HERE, handle=1)]
        login = frame(init("PLAIN", b"\0ada\0lovelace"), type=1)
        await peer.write(SASL, login, AMQP, Open(container_id="peer"), begun(), *attaches)
        assert await peer.expect_header() == SASL
        for _ in ("mechanisms", "outcome"):
            while peer._frames.next_frame() is None:
                assert await peer._more()
        assert await peer.expect_header() == AMQP
        for kind in (Open, Begin, Attach, Attach):
            await peer.expect(kind)
        (told,) = (each for each in second.statistics().connections if each.container_id == "peer")
        assert told.user == "ada"
        assert not first.statistics().router.links
        await peer.close()


async def test_a_client_that_disappears_ends_both_ends(tmp_path: Path, front: Front) -> None:
    async with workers(router_config(listeners=(front.listener,)), tmp_path) as (first, second):
        peer = front.over(await connect(first))
        await linked(peer, attached(Role.RECEIVER, THERE))
        await trio.aclose_forcefully(peer.stream)
        await until(lambda: not clients(first) and not clients(second))
    assert second.statistics().is_empty


async def test_the_close_of_the_other_worker_comes_with_the_end_of_tls(tmp_path: Path, front: Front) -> None:
    async with workers(router_config(listeners=(front.listener,)), tmp_path) as (first, second):
        peer = front.over(await connect(first))
        await linked(peer, attached(Role.RECEIVER, THERE))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(second.drain)
            assert (await peer.expect(Close)).error is not None
            await peer.write(Close())
            await peer.expect_end()
            await peer.stream.aclose()
        await until(lambda: not clients(first))


async def test_when_both_workers_drain_the_bridge_waits_for_what_is_unsettled(tmp_path: Path, front: Front) -> None:
    config = router_config(listeners=(front.listener,), drain=10.0)
    async with workers(config, tmp_path) as (first, second):
        sender, receiver = [front.over(await connect(first)) for _ in range(2)]
        await linked(receiver, attached(Role.RECEIVER, THERE))
        await linked(sender, attached(Role.SENDER, THERE))
        await receiver.write(credit(1))
        await sender.send(0, b"hi")
        transfer = await receiver.expect(Transfer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.drain)
            nursery.start_soon(second.drain)
            await trio.sleep(0.5)  # longer than the first one needs for what it has itself
            await receiver.accept(transfer)
            assert (await sender.expect(Disposition)).state == Accepted()
            for each in (sender, receiver):
                await each.answer_close()


async def test_a_full_worker_leaves_a_connection_with_tls_to_the_first_one(tmp_path: Path, front: Front) -> None:
    listener = replace(front.listener, connections=1)
    async with workers(router_config(listeners=(listener,)), tmp_path) as (first, second):
        there, here = front.over(await connect(second)), front.over(await connect(first))
        await linked(there, attached(Role.RECEIVER, THERE))
        await linked(here, attached(Role.SENDER, THERE))
        assert (clients(first), clients(second)) == (1, 1)
        assert any(each.producers for each in first.statistics().addresses)
        await there.write(credit(1))
        await here.send(0, b"hi")
        await there.accept(await there.expect(Transfer))
        assert (await here.expect(Disposition)).state == Accepted()
        for each in (there, here):
            await each.close()
    assert first.statistics().is_empty


async def test_a_client_that_reads_nothing_ends_soon_after_its_connection_at_the_other_worker(
    tmp_path: Path, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "WRITE_TIME_OUT", 0.1)
    turns = 0
    serve = bridge._Side.serve

    def counted(side: bridge._Side, until: float) -> bool:
        nonlocal turns
        turns += 1
        return serve(side, until)

    monkeypatch.setattr(bridge._Side, "serve", counted)
    sibling = Sibling(tmp_path)
    config = router_config(listeners=(front.listener,))
    async with Router(worker_config(config, 1, 2, tmp_path)) as first:
        plain = await connect(first)
        peer = front.over(plain)
        await peer.write(AMQP, Open(container_id="peer"), begun(), attached(Role.RECEIVER, THERE))
        number, _, descriptor = await sibling.passed()
        sibling.answer(hand_overs.TAKEN, number)
        with socket.socket(fileno=descriptor) as taken:
            await fill(taken)
        turns = 0
        await until(lambda: not clients(first))
        assert turns < 10
        await trio.aclose_forcefully(peer.stream)
    sibling.end()


@pytest.mark.skipif(UNACKNOWLEDGED is None, reason="this system does not tell what is acknowledged")
@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("web", [True, False])
async def test_a_client_that_keeps_its_stream_open_is_reset_unless_it_has_answered_the_close_of_the_other_worker(
    tmp_path: Path, front: Front, monkeypatch: pytest.MonkeyPatch, web: bool, answers: bool
) -> None:
    monkeypatch.setattr(bridge, "LINGER", 0.3)
    monkeypatch.setattr(bridge, "SILENCE", 0.0)
    listener = ListenerConfig(url="ws://127.0.0.1:0") if web else front.listener
    sibling = Sibling(tmp_path)
    async with Router(worker_config(router_config(listeners=(listener,)), 1, 2, tmp_path)) as first:
        plain = await connect(first)
        peer = await over_websocket(plain) if web else front.over(plain)
        await peer.write(AMQP, Open(container_id="peer"), begun(), attached(Role.RECEIVER, THERE))
        number, _, descriptor = await sibling.passed()
        sibling.answer(hand_overs.TAKEN, number)
        with socket.socket(fileno=descriptor) as taken:
            taken.send(AMQP + frame(Open(container_id="A")) + frame(Close()))
            assert await peer.expect_header() == AMQP
            await peer.expect(Open)
            await peer.expect(Close)
            if answers:  # then a worker ends its own direction, and waits for the client's
                taken.shutdown(socket.SHUT_WR)
                await until(lambda: not clients(first))
        await until(lambda: not clients(first))
        assert isinstance(plain.stream, trio.SocketStream)
        asking = select.poll()
        asking.register(plain.stream.socket, 0)
        assert bool(asking.poll(0 if answers else 60_000)) is not answers
        await trio.aclose_forcefully(peer.stream)
    sibling.end()


@pytest.mark.skipif(UNACKNOWLEDGED is None, reason="this system does not tell what is acknowledged")
async def test_a_client_that_does_not_answer_the_close_of_a_worker_that_ends_is_reset_and_loses_nothing(
    tmp_path: Path, front: Front
) -> None:
    async with workers(router_config(listeners=(front.listener,)), tmp_path) as (first, second):
        plain = await connect(first)
        deaf = front.over(plain)
        await linked(deaf, attached(Role.RECEIVER, THERE))
        assert clients(second) == 1
        await second.drain()
        await until(lambda: not clients(first))
    assert isinstance(plain.stream, trio.SocketStream)
    asking = select.poll()
    asking.register(plain.stream.socket, 0)
    assert asking.poll(60_000), "the end of the router's direction alone would not be reported"
    assert (await deaf.expect(Close)).error is not None
    await trio.aclose_forcefully(deaf.stream)


async def fill(taken: socket.socket) -> None:
    """Write to a client that reads nothing, until no system takes more."""
    taken.setblocking(False)
    refusals = 0
    while refusals < 20:
        try:
            taken.send(bytes(MIB))
            refusals = 0
        except BlockingIOError:
            refusals += 1
            await trio.sleep(0.001)


async def test_a_certificate_that_is_too_long_to_be_passed_stays(tmp_path: Path) -> None:
    authority = trustme.CA()
    trust = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(trust)
    names = [f"{number}.example.org" for number in range(2000)]
    for name, issued in (("router", authority.issue_cert(NAME)), ("ada", authority.issue_cert(*names))):
        issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / name)
    router, ada = tmp_path / "router", tmp_path / "ada"
    tls = TlsConfig(certificate=router, key=router, trust=trust, client="required")
    listener = ListenerConfig(url="amqps://127.0.0.1:0", sasl=("EXTERNAL", "ANONYMOUS"), tls=tls)
    long = Front(listener, client_context(trust, ada, ada))
    async with workers(router_config(listeners=(listener,)), tmp_path) as (first, second):
        peer = long.over(await connect(first))
        await linked(peer, attached(Role.RECEIVER, THERE))
        assert (clients(first), clients(second)) == (1, 0)
        await peer.close()
