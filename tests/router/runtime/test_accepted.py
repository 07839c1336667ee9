"""Accepted connections that the poller serves without a task."""

import select
import sys
from itertools import pairwise

import pytest
import trio

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.performatives import Close, Disposition, Transfer
from amqpmesh.router.config.file import ListenerConfig
from amqpmesh.router.io.streams import UNACKNOWLEDGED
from amqpmesh.router.runtime import accepted, polled, poller
from amqpmesh.router.runtime.accepted import AcceptedTransport
from amqpmesh.router.runtime.driver import TURNS
from amqpmesh.router.runtime.router import Router
from tests.support.peers.scripted import begun
from tests.support.peers.scripted_stream import connect, credit

pytestmark = pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")

LOOPBACK = "amqp://127.0.0.1:0"


async def test_a_connection_that_waits_for_its_peer_only_has_no_task() -> None:
    async with Router(listeners=[LOOPBACK]) as router:
        first = await connect(router)
        await first.open()
        tasks = trio.lowlevel.current_statistics().tasks_living
        others = [await connect(router) for _ in range(5)]
        for each in others:
            await each.attach(Role.RECEIVER, "q")
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        for each in (first, *others):
            await each.close()
    assert router.statistics().is_empty


async def test_transports_of_connections_share_the_keys_of_their_attributes() -> None:
    # With 30 attributes or more, each object would have a dictionary with keys of its own, of 1.6 KB.
    async with Router(listeners=[LOOPBACK]) as router:
        peers = [await connect(router) for _ in range(3)]
        for peer in peers:
            await peer.attach(Role.RECEIVER, "q")
        transports = [each for each in router._driver._outputs.values() if isinstance(each, AcceptedTransport)]
        assert [sys.getsizeof(vars(each)) < 1000 for each in transports] == [True] * 3
        for peer in peers:
            await peer.close()


async def test_a_crowd_whose_sockets_end_at_once_leaves_the_others_their_turns() -> None:
    crowd = 200
    async with Router(listeners=[LOOPBACK]) as router:
        peers = [await connect(router) for _ in range(crowd)]
        for peer in peers:
            await peer.open()
        for peer in peers:
            assert isinstance(peer.stream, trio.SocketStream)
            peer.stream.socket.close()  # all of them before any other task runs
        left = [crowd]
        while left[-1]:
            await trio.lowlevel.checkpoint()
            left.append(router.statistics().router.connections)
        # Trio runs the tasks of a pass in any order: the poller may have two turns between two turns of this task.
        assert max(earlier - later for earlier, later in pairwise(left)) <= 2 * poller.ROUNDS * TURNS
    assert router.listeners[0].connections == 0
    assert router.statistics().is_empty


async def test_a_peer_that_never_ends_its_stream_is_cut_off_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "LINGER", 0.5)
    async with Router(listeners=[LOOPBACK]) as router:
        peer = await connect(router)
        await peer.open()
        await peer.write(begun(9))  # it answers a `begin` that nobody has sent: the router closes first
        await peer.expect(Close)
        await peer.write(Close())
        await peer.expect_end()
        assert router.listeners[0].connections == 1
        with trio.fail_after(60):
            while router.listeners[0].connections:
                await trio.lowlevel.checkpoint()
    assert router.statistics().is_empty


async def test_a_peer_that_has_closed_the_connection_itself_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "LINGER", 3600.0)
    async with Router(listeners=[LOOPBACK]) as router:
        peer = await connect(router)
        await peer.open()
        await peer.write(Close())
        await peer.expect(Close)
        await peer.expect_end()
        with trio.fail_after(60):
            while router.listeners[0].connections:
                await trio.lowlevel.checkpoint()
        await peer.stream.aclose()
    assert router.statistics().is_empty


async def test_a_peer_that_sends_behind_its_close_is_waited_for_and_gets_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poller, "LINGER", 3600.0)
    monkeypatch.setattr(polled, "READ_SIZE", 64)  # so that what is behind the `close` is not read with it
    async with Router(listeners=[LOOPBACK]) as router:
        peer = await connect(router)
        await peer.open()
        await peer.write(Close(), bytes(20_000))
        await peer.expect(Close)
        await peer.expect_end()
        assert router.listeners[0].connections == 1
        await peer.stream.aclose()
        with trio.fail_after(60):
            while router.listeners[0].connections:
                await trio.lowlevel.checkpoint()
    assert router.statistics().is_empty


@pytest.mark.skipif(UNACKNOWLEDGED is None, reason="this system does not tell what is acknowledged")
async def test_a_peer_that_does_not_answer_the_close_of_a_router_that_ends_is_reset_and_loses_nothing() -> None:
    async with Router(listeners=[LOOPBACK]) as router:
        receiver, sender, deaf = [await connect(router) for _ in range(3)]
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(1))
        await deaf.attach(Role.SENDER, "q")
        await deaf.send(0, b"hi")
        await receiver.accept(await receiver.expect(Transfer))
        await sender.open()
        for peer in (receiver, sender):
            await peer.write(Close())
            await peer.expect(Close)
        for peer in (receiver, sender):
            await peer.stream.aclose()
    assert isinstance(deaf.stream, trio.SocketStream)
    asking = select.poll()
    asking.register(deaf.stream.socket, 0)
    assert asking.poll(60_000), "the end of the router's direction alone would not be reported"
    assert (await deaf.expect(Disposition)).state == Accepted()
    assert (await deaf.expect(Close)).error is not None


@pytest.mark.skipif(UNACKNOWLEDGED is None, reason="this system does not tell what is acknowledged")
@pytest.mark.parametrize("answers", [True, False])
async def test_a_peer_that_keeps_its_stream_open_is_reset_unless_it_has_answered(
    answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "LINGER", 0.05)
    monkeypatch.setattr(accepted, "SILENCE", 0.0)
    async with Router(listeners=[ListenerConfig(url=LOOPBACK, close_time_out=0.05)]) as router:
        peer = await connect(router)
        await peer.open()
        await peer.write(Close() if answers else begun(9))  # it answers a `begin` that nobody has sent
        await peer.expect(Close)
        await peer.expect_end()
        with trio.fail_after(60):
            while router.listeners[0].connections:
                await trio.lowlevel.checkpoint()
        assert isinstance(peer.stream, trio.SocketStream)
        asking = select.poll()
        asking.register(peer.stream.socket, 0)
        assert bool(asking.poll(0 if answers else 60_000)) is not answers
        await peer.stream.aclose()


async def test_a_peer_that_had_no_time_for_an_answer_is_not_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted, "SILENCE", 3600.0)
    async with trio.open_nursery() as nursery, Router(listeners=[LOOPBACK]) as router:
        deaf = await connect(router)
        await deaf.open()
        nursery.cancel_scope.cancel()  # the router does not wait for its peers then
    assert (await deaf.expect(Close)).error is not None
    await deaf.expect_end()
