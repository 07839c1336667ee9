"""Connections that one worker hands over to another."""

from __future__ import annotations

import os
import resource
import socket
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import trio

from amqpmesh.router.amqp.frames import EMPTY_FRAME
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.amqp.standard.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Transfer,
)
from amqpmesh.router.config.file import AddressConfig, ListenerConfig, MeshConfig
from amqpmesh.router.config.users import add_user
from amqpmesh.router.config.workers import hand_over_path, worker_config
from amqpmesh.router.runtime import hand_overs, poller, worker_channels
from amqpmesh.router.runtime.router import Router
from tests.support.peers.sasl import init
from tests.support.peers.scripted import SASL, flow
from tests.support.peers.scripted_stream import AMQP, Peer, attached, begun, connect, credit, frame
from tests.support.worlds.scripted_worker import Sibling
from tests.support.worlds.sibling_workers import LOOPBACK, address_at, clients, router_config, until, workers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from amqpmesh.router.amqp.standard.performatives import Performative

pytestmark = pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")

HERE, THERE = address_at(1), address_at(2)
"""Addresses at the worker that accepts all connections, and at the other one."""


async def at_once(peer: Peer, attach: Attach) -> str:
    await peer.write(AMQP, Open(container_id="peer"), begun(), attach)
    assert await peer.expect_header() == AMQP
    return (await peer.expect(Open)).container_id


async def after_the_header(peer: Peer, attach: Attach) -> str:
    await peer.write(AMQP)
    assert await peer.expect_header() == AMQP
    await peer.write(Open(container_id="peer"), begun(), attach)
    return (await peer.expect(Open)).container_id


async def step_by_step(peer: Peer, attach: Attach) -> str:
    router = (await peer.open()).container_id
    await peer.write(begun())
    await peer.expect(Begin)
    await peer.write(attach)
    peer_begun(peer)
    return router


async def octet_by_octet(peer: Peer, attach: Attach) -> str:
    frames: list[Performative] = [Open(container_id="peer"), begun(), attach]
    for octet in AMQP + b"".join(map(frame, frames)):
        await peer.stream.send_all(bytes((octet,)))
    assert await peer.expect_header() == AMQP
    return (await peer.expect(Open)).container_id


def peer_begun(peer: Peer) -> None:
    peer.begun = True  # type: ignore[attr-defined]  # the answer to `begin` was read


STYLES = [(at_once, "A.2"), (after_the_header, "A.2"), (step_by_step, "A.1")]
Style = "Callable[[Peer, Attach], Awaitable[str]]"


async def linked(peer: Peer, attach: Attach, style: Callable[[Peer, Attach], Awaitable[str]] = at_once) -> str:
    """Attach a link, and wait for the answer. Returns: the container-id of the router."""
    router = await style(peer, attach)
    if not hasattr(peer, "begun"):
        await peer.expect(Begin)
    await peer.expect(Attach)
    return router


async def served(first: Router, second: Router, counts: tuple[int, int]) -> None:
    """Wait until the workers serve so many clients; a worker may hear of an answer after the client."""
    await until(lambda: (clients(first), clients(second)) == counts)


async def delivers(sender: Peer, receiver: Peer, number: int = 0) -> None:
    await receiver.write(credit(1 + number))
    await sender.send(number, b"hi")
    await receiver.accept(await receiver.expect(Transfer))
    assert (await sender.expect(Disposition)).state == Accepted()


@pytest.mark.parametrize("style", [at_once, after_the_header, step_by_step, octet_by_octet])
@pytest.mark.parametrize("role", [Role.SENDER, Role.RECEIVER])
async def test_a_connection_is_served_where_its_first_address_lives(
    tmp_path: Path, style: Callable[[Peer, Attach], Awaitable[str]], role: Role
) -> None:
    other = Role.RECEIVER if role is Role.SENDER else Role.SENDER
    async with workers(router_config(), tmp_path) as (first, second):
        peer, near = await connect(first), await connect(second)
        await linked(peer, attached(role, THERE), style)
        await linked(near, attached(other, THERE))
        await served(first, second, (0, 2))
        assert not first.statistics().addresses
        sender, receiver = (peer, near) if role is Role.SENDER else (near, peer)
        await delivers(sender, receiver)
        for each in (peer, near):
            await each.close()
        await until(lambda: clients(second) == 0)
    assert first.statistics().is_empty
    assert second.statistics().is_empty


@pytest.mark.parametrize(("style", "named"), STYLES)
async def test_open_names_the_worker_that_writes_it(
    tmp_path: Path, style: Callable[[Peer, Attach], Awaitable[str]], named: str
) -> None:
    async with workers(router_config(), tmp_path) as (first, second):
        peer = await connect(first)
        assert await linked(peer, attached(Role.SENDER, THERE), style) == named
        assert clients(second) == 1


async def test_most_clients_are_served_where_their_address_lives_whoever_accepts_them(tmp_path: Path) -> None:
    count = 4
    async with workers(router_config(), tmp_path, count) as all_workers, trio.open_nursery() as nursery:
        peers: list[Peer] = []
        for number in range(40):
            address = address_at(1 + number % count, count)
            for role in (Role.SENDER, Role.RECEIVER):
                peers.append(await connect(all_workers[len(peers) // 5 % count]))
                nursery.start_soon(linked, peers[-1], attached(role, address, name=f"{number} {role.name}"))
        await until(lambda: sum(each.statistics().router.links for each in all_workers) >= len(peers))
        homes = {address_at(number, count): worker for number, worker in enumerate(all_workers, 1)}
        served_at_home = sum(
            each.producers + each.consumers
            for address, worker in homes.items()
            for each in worker.statistics().addresses
            if each.name == address
        )
        assert served_at_home == len(peers)
        await until(lambda: [clients(each) for each in all_workers] == [len(peers) // count] * count)
        whole = [each.statistics().router for each in all_workers]
        moved = sum(each.handed_over for each in whole)
        assert moved == sum(each.taken_up for each in whole)
        assert moved == 3 * len(peers) // count  # the others were accepted at home


@pytest.mark.parametrize(
    ("address", "configured"),
    [
        (HERE, ()),
        (THERE, (AddressConfig(pattern=THERE, worker=0),)),
        (THERE, (AddressConfig(pattern=THERE, worker=1),)),
        (THERE, (AddressConfig(pattern=THERE, worker=3),)),  # counted round
        ("other", (AddressConfig(pattern="other", alias=HERE),)),
        (f"{THERE}@A.1", ()),
        ("$management", ()),
        (None, ()),
    ],
)
async def test_other_connections_stay(
    tmp_path: Path, address: str | None, configured: tuple[AddressConfig, ...]
) -> None:
    async with workers(router_config(addresses=configured), tmp_path) as (first, second):
        peer = await connect(first)
        await linked(peer, attached(Role.SENDER, "", target=Target(address=address)))
        await served(first, second, (1, 0))
        await peer.close()


async def test_the_receiver_of_a_dynamic_node_stays(tmp_path: Path) -> None:
    async with workers(router_config(), tmp_path) as (first, second):
        peer = await connect(first)
        await linked(peer, attached(Role.RECEIVER, "", source=Source(dynamic=True)))
        await served(first, second, (1, 0))
        await peer.close()


@pytest.mark.parametrize("address", [f"{HERE}@A.2", f"{THERE}@A"])
async def test_an_address_may_name_the_worker_or_the_router(tmp_path: Path, address: str) -> None:
    async with workers(router_config(), tmp_path) as (first, second):
        peer = await connect(first)
        await linked(peer, attached(Role.SENDER, address))
        await served(first, second, (0, 1))


async def test_only_the_first_attach_moves_a_connection(tmp_path: Path) -> None:
    async with workers(router_config(), tmp_path) as (first, second):
        peer, receiver = await connect(first), await connect(second)
        await linked(peer, attached(Role.SENDER, HERE))
        await peer.write(attached(Role.SENDER, THERE, handle=1))
        await peer.expect(Attach)
        await served(first, second, (1, 1))
        await linked(receiver, attached(Role.RECEIVER, THERE))
        await served(first, second, (1, 1))


async def test_further_attaches_in_the_same_octets_are_answered_by_the_other_worker(tmp_path: Path) -> None:
    async with workers(router_config(), tmp_path) as (_, second):
        peer = await connect(_)
        frames = [attached(Role.SENDER, THERE), attached(Role.RECEIVER, HERE, handle=1)]
        await peer.write(AMQP, Open(container_id="peer"), begun(), *frames)
        assert await peer.expect_header() == AMQP
        for kind in (Open, Begin, Attach, Attach):
            await peer.expect(kind)
        assert clients(second) == 1
        assert second.statistics().router.links >= 2


async def test_an_address_lives_where_it_has_receivers(tmp_path: Path) -> None:
    async with workers(router_config(), tmp_path) as (first, second):
        receiver = await connect(first)
        await linked(receiver, attached(Role.RECEIVER, HERE))
        await receiver.write(attached(Role.RECEIVER, THERE, handle=1))
        await receiver.expect(Attach)
        waiting = await connect(second)
        await linked(waiting, attached(Role.SENDER, f"{THERE}@A.2"))  # so that the worker tells about the address
        await until(lambda: any(each.consumers_at == ("A.1",) for each in second.statistics().addresses))
        sender = await connect(second)
        await linked(sender, attached(Role.SENDER, THERE))
        await served(first, second, (2, 1))


async def test_a_worker_that_is_full_refuses_and_the_first_one_goes_on(tmp_path: Path) -> None:
    config = router_config(listeners=(replace(LOOPBACK, connections=1),))
    async with workers(config, tmp_path) as (first, second):
        there, here = await connect(second), await connect(first)
        await linked(there, attached(Role.RECEIVER, THERE))
        assert await linked(here, attached(Role.SENDER, THERE)) == "A.1"
        await served(first, second, (1, 1))
        await delivers(here, there)


async def test_the_next_worker_serves_the_addresses_of_one_that_is_gone(tmp_path: Path) -> None:
    config = router_config()
    async with Router(worker_config(config, 1, 2, tmp_path)) as first:
        peer = await connect(first)
        await linked(peer, attached(Role.SENDER, THERE))
        assert clients(first) == 1
        async with Router(worker_config(config, 2, 2, tmp_path)):
            other = await connect(first)
            await linked(other, attached(Role.SENDER, THERE))
            await until(lambda: clients(first) == 1)
        again = await connect(first)
        await linked(again, attached(Role.SENDER, THERE))
        await until(lambda: clients(first) == 2)


async def test_input_that_is_too_long_to_be_kept_stays(tmp_path: Path) -> None:
    async with workers(router_config(), tmp_path) as (first, second):
        peer = await connect(first)
        await linked(peer, attached(Role.SENDER, THERE, name="x" * 5000))
        await served(first, second, (1, 0))
        await peer.close()


async def test_of_too_many_connections_without_a_link_the_oldest_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_overs, "FRESH", 2)
    async with workers(router_config(), tmp_path) as (first, second):
        peers = [await connect(first) for _ in range(3)]
        for each in peers:
            await each.open()
        for each in peers:
            await each.write(begun(), attached(Role.SENDER, THERE))
            await each.expect(Begin)
            await each.expect(Attach)
        await served(first, second, (1, 2))
        for each in peers:
            await each.close()


async def test_a_fresh_connection_that_ends_leaves_nothing(tmp_path: Path) -> None:
    async with workers(router_config(), tmp_path) as (first, _):
        peer = await connect(first)
        await peer.open()
        await peer.close()
        await until(lambda: not clients(first))
    assert first.statistics().is_empty


OPENED = Open(container_id="peer", idle_time_out=60_000)
HISTORIES: dict[str, list[Performative | bytes]] = {
    "an empty frame": [OPENED, EMPTY_FRAME, begun(), EMPTY_FRAME, attached(Role.SENDER, THERE)],
    "two sessions": [OPENED, begun(), frame(begun(), channel=5), frame(attached(Role.RECEIVER, THERE), channel=5)],
    "a session that has ended": [OPENED, begun(), End(), begun(), attached(Role.SENDER, THERE)],
    "a flow of the session": [OPENED, begun(), flow(echo=True), attached(Role.RECEIVER, THERE)],
    "small frames": [replace(OPENED, max_frame_size=512), begun(), attached(Role.SENDER, THERE)],
    "a detach at once": [OPENED, begun(), attached(Role.SENDER, THERE), Detach(handle=0, closed=True)],
    "an error behind it": [OPENED, begun(), attached(Role.SENDER, THERE), Detach(handle=7)],
    "a refused attach first": [OPENED, begun(), attached(Role.SENDER, "$x"), attached(Role.SENDER, THERE, handle=1)],
    "an attach without a session": [OPENED, attached(Role.SENDER, THERE)],
}


async def answers(peer: Peer, history: list[Performative | bytes], *, in_pieces: bool) -> list[object]:
    """Send a history and `close`. Returns: all frames that come back but flows, which come at any time."""
    octets = [AMQP, *(part if isinstance(part, bytes) else frame(part) for part in history), frame(Close())]
    for part in octets if in_pieces else [b"".join(octets)]:
        await peer.stream.send_all(part)
        for _ in range(20 * in_pieces):  # the router may read each piece by itself
            await trio.sleep(0)
    assert await peer.expect_header() == AMQP
    found: list[object] = []
    while (came := await peer.next_frame()) is not None:
        told = replace(came[0], container_id="") if isinstance(came[0], Open) else came[0]
        if not isinstance(told, Flow):
            found.append((peer.channel, told))
    await peer.stream.aclose()
    return found


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
@pytest.mark.parametrize("in_pieces", [False, True])
async def test_the_answers_are_those_of_a_router_of_one_process(
    tmp_path: Path, history: list[Performative | bytes], in_pieces: bool
) -> None:
    config = router_config()
    # A mesh, so that senders without receivers get as little credit as at workers.
    async with Router(replace(config, mesh=MeshConfig(insecure=True))) as single:
        expected = await answers(await connect(single), history, in_pieces=in_pieces)
    async with workers(config, tmp_path) as (first, second):
        assert await answers(await connect(first), history, in_pieces=in_pieces) == expected
        await until(lambda: not clients(first) and not clients(second))
    assert first.statistics().is_empty
    assert second.statistics().is_empty


# ----------------------------------------------------------------------------------------------------------- identities


def protected(folder: Path, iterations: int = 4096) -> ListenerConfig:
    users = folder / "users.toml"
    add_user(users, "ada", "lovelace", iterations=iterations)
    return replace(LOOPBACK, sasl=("PLAIN",), users=users, insecure=True)


async def sasl_body(peer: Peer) -> bytes:
    """Return the body of the next SASL frame."""
    while (found := peer._frames.next_frame()) is None:
        assert await peer._more()
    return found.body


async def logged_in(peer: Peer, password: str) -> None:
    """Authenticate, all in one write with what follows."""
    await peer.write(SASL, frame(init("PLAIN", f"\0ada\0{password}".encode()), type=1))


async def test_the_identity_is_proved_once_and_holds_at_the_other_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with workers(router_config(listeners=(protected(tmp_path),)), tmp_path) as (first, second):
        peer = await connect(first)
        await logged_in(peer, "lovelace")
        await peer.write(AMQP, Open(container_id="peer"), begun(), attached(Role.SENDER, THERE))
        await logged_out(peer)
        assert await peer.expect_header() == AMQP
        await peer.expect(Open)
        await peer.expect(Begin)
        await peer.expect(Attach)
        (told,) = (each for each in second.statistics().connections if each.container_id == "peer")
        assert told.user == "ada"
        await served(first, second, (0, 1))
    logins = [each for each in caplog.records if each.getMessage().startswith("logged in")]
    assert len(logins) == 1


async def logged_out(peer: Peer) -> None:
    """Read the answers of the SASL layer."""
    assert await peer.expect_header() == SASL
    for code in (0x40, 0x44):  # mechanisms, outcome
        assert (await sasl_body(peer))[2] == code


@pytest.mark.parametrize("iterations", [4096, 100_000], ids=["short", "in a thread"])
async def test_octets_behind_a_login_in_one_write_are_the_other_workers(tmp_path: Path, iterations: int) -> None:
    async with workers(router_config(listeners=(protected(tmp_path, iterations),)), tmp_path) as (first, second):
        peers = [await connect(first) for _ in range(4)]
        for each in peers:
            links = [attached(Role.RECEIVER, f"{THERE}/{handle}", handle=handle) for handle in range(1, 20)]
            await each.write(
                SASL,
                frame(init("PLAIN", b"\0ada\0lovelace"), type=1),
                AMQP,
                Open(container_id="peer"),
                begun(),
                attached(Role.SENDER, THERE),
                *links,
            )
        for each in peers:
            await each.write(attached(Role.RECEIVER, HERE, handle=20))
        for each in peers:
            await logged_out(each)
            assert await each.expect_header() == AMQP
            await each.expect(Open)
            await each.expect(Begin)
            assert [(await each.expect(Attach)).handle for _ in range(21)] == list(range(21))
        await served(first, second, (0, 4))
        assert not first.statistics().router.links
        for each in peers:
            await each.close()
    assert first.statistics().is_empty
    assert second.statistics().is_empty


async def test_a_refused_identity_never_leaves_its_worker(tmp_path: Path) -> None:
    async with workers(router_config(listeners=(protected(tmp_path),)), tmp_path) as (first, second):
        peer = await connect(first)
        await logged_in(peer, "wrong")
        await peer.write(AMQP, Open(container_id="peer"), begun(), attached(Role.SENDER, THERE))
        with trio.fail_after(60):
            while await peer.stream.receive_some():
                pass
        assert clients(second) == 0


# ----------------------------------------------------------------------------------------- the other worker as a script


@pytest.fixture
def sibling(tmp_path: Path) -> Sibling:
    return Sibling(tmp_path)


async def alone(folder: Path, **settings: object) -> Router:
    return Router(worker_config(router_config(**settings), 1, 2, folder))


async def test_the_packet_holds_what_was_agreed_and_read_and_no_password(tmp_path: Path, sibling: Sibling) -> None:
    async with await alone(tmp_path, listeners=(protected(tmp_path),)) as first:
        peer = await connect(first)
        await logged_in(peer, "lovelace")
        opened = [Open(container_id="peer"), begun(), attached(Role.SENDER, THERE)]
        await peer.write(AMQP, *opened, b"\0\0")  # the begin of another frame
        _, arrival, descriptor = await sibling.passed()
        assert arrival.received == AMQP + b"".join(map(frame, opened)) + b"\0\0"
        terms = arrival.terms
        assert (terms.host, terms.mechanism, terms.user, terms.listener) == ("127.0.0.1", "PLAIN", "ada", "amqp")
        assert b"lovelace" not in arrival.received + arrival.output
        os.close(descriptor)
        sibling.end()


@pytest.mark.parametrize("ends", [False, True])
async def test_a_worker_that_refuses_or_ends_leaves_the_connection_to_the_first_one(
    tmp_path: Path, sibling: Sibling, ends: bool
) -> None:
    async with await alone(tmp_path) as first:
        peers = [await connect(first) for _ in range(3)]
        for each in peers:
            await each.write(AMQP, Open(container_id="peer"), begun(), attached(Role.SENDER, THERE))
        passed = [await sibling.passed() for _ in peers]
        for number, _, descriptor in passed:
            os.close(descriptor)
            if not ends:
                sibling.answer(hand_overs.REFUSED, number)
        if ends:
            sibling.end()
        for each in peers:
            assert await each.expect_header() == AMQP
            assert (await each.expect(Open)).container_id == "A.1"
            await each.expect(Begin)
            await each.expect(Attach)
            await each.close()
    assert first.statistics().is_empty


async def test_a_worker_that_has_taken_a_connection_is_alone_with_it(tmp_path: Path, sibling: Sibling) -> None:
    async with await alone(tmp_path) as first:
        peer = await connect(first)
        await peer.write(AMQP, Open(container_id="peer"), begun(), attached(Role.SENDER, THERE))
        number, _, descriptor = await sibling.passed()
        assert clients(first) == 1
        sibling.answer(hand_overs.TAKEN, number)
        await until(lambda: not clients(first))
        with socket.socket(fileno=descriptor) as taken:
            taken.send(b"hello")
            await peer.stream.send_all(b"world")
            assert await peer.stream.receive_some() == b"hello"
            await until(lambda: taken.recv(5) == b"world")
        assert await peer.stream.receive_some() == b""
    sibling.end()
    assert first.statistics().is_empty


async def test_a_worker_without_an_answer_keeps_no_client_waiting(
    tmp_path: Path, sibling: Sibling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_overs, "ANSWER_TIME", 0.05)
    async with await alone(tmp_path) as first:
        peer = await connect(first)
        await peer.write(AMQP, Open(container_id="peer"), begun(), attached(Role.SENDER, THERE))
        number, _, descriptor = await sibling.passed()
        with trio.fail_after(60):
            assert await peer.stream.receive_some() == b""
        await until(lambda: not clients(first))
        os.close(descriptor)
        other = await connect(first)
        await linked(other, attached(Role.SENDER, THERE))  # served here, until the other worker answers again
        sibling.answer(hand_overs.TAKEN, number)  # too late
        await other.close()  # the answer was there before
        again = await connect(first)
        await again.write(AMQP, Open(container_id="peer"), begun(), attached(Role.SENDER, THERE))
        _, _, descriptor = await sibling.passed()
        os.close(descriptor)
    sibling.end()
    assert first.statistics().is_empty


@pytest.mark.parametrize("answers", [True, False])
async def test_of_many_connections_some_wait_for_the_answers_to_others(
    tmp_path: Path, sibling: Sibling, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    monkeypatch.setattr(hand_overs, "UNDER_WAY", 2)
    monkeypatch.setattr(hand_overs, "ANSWER_TIME", 100.0 if answers else 0.05)
    async with await alone(tmp_path) as first:
        peers = [await connect(first) for _ in range(4)]
        for each in peers:
            await each.write(AMQP, Open(container_id="peer"), begun(), attached(Role.SENDER, THERE))
        passed = [await sibling.passed() for _ in range(2)]
        for number, _, descriptor in passed if answers else ():
            sibling.answer(hand_overs.TAKEN, number)
            _, _, other = await sibling.passed()
            os.close(other)
            os.close(descriptor)
        if not answers:  # two are cut, and the others are served here
            await until(lambda: clients(first) == 2)
            await until(lambda: sum(each.producers for each in first.statistics().addresses) == 2)
    sibling.end()


async def test_a_full_channel_costs_one_attempt_for_each_answer(
    tmp_path: Path, sibling: Sibling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_overs, "UNDER_WAY", 1000)
    attempts = 0
    send = worker_channels.Channel.send

    def counted(channel: worker_channels.Channel, packet: bytes, descriptor: int | None = None) -> None:
        nonlocal attempts
        attempts += 1
        send(channel, packet, descriptor)

    monkeypatch.setattr(worker_channels.Channel, "send", counted)
    async with await alone(tmp_path) as first:
        peers = [await connect(first) for _ in range(80)]
        for each in peers:
            await each.write(AMQP, Open(container_id="peer"), begun(), attached(Role.SENDER, THERE, name="x" * 3000))
        await until(lambda: clients(first) == len(peers) and attempts >= len(peers))
        taken = [await sibling.passed() for _ in range(10)]
        attempts = 0
        for number, _, descriptor in taken:
            sibling.answer(hand_overs.TAKEN, number)
            os.close(descriptor)
        await until(lambda: clients(first) == len(peers) - len(taken))
        assert attempts <= 2 * len(taken)
    sibling.end()


@contextmanager
def no_file_descriptors() -> Iterator[None]:
    """Let the system open no more files for this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_worker_without_file_descriptors_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_channels, "PAUSE", 0.01)
    async with workers(router_config(), tmp_path) as (first, second):
        served, peer = await connect(first), await connect(second)
        await linked(served, attached(Role.SENDER, HERE))
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.setblocking(False)
        with channel:
            with no_file_descriptors():
                channel.connect(str(hand_over_path(tmp_path, 1)))
                await served.write(attached(Role.SENDER, HERE, name="second", handle=1))
                await served.expect(Attach)
            await linked(peer, attached(Role.SENDER, HERE))
            await until(lambda: (clients(first), clients(second)) == (2, 0))


async def test_a_worker_that_drains_closes_what_is_not_taken(tmp_path: Path, sibling: Sibling) -> None:
    async with await alone(tmp_path) as first:
        peer = await connect(first)
        await peer.write(AMQP, Open(container_id="peer"), begun(), attached(Role.SENDER, THERE))
        _, _, descriptor = await sibling.passed()
        await first.drain()
        os.close(descriptor)
        assert await peer.stream.receive_some() == b""
    sibling.end()
    assert first.statistics().is_empty


async def test_a_client_that_leaves_meanwhile_is_the_other_workers(tmp_path: Path) -> None:
    async with workers(router_config(), tmp_path) as (first, second):
        for _ in range(5):
            peer = await connect(first)
            await peer.write(AMQP, Open(container_id="peer"), begun(), attached(Role.SENDER, THERE), Close())
            await peer.stream.aclose()
        await until(lambda: not clients(first) and not clients(second))
    assert first.statistics().is_empty
    assert second.statistics().is_empty
