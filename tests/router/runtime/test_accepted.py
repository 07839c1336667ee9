"""Accepted connections that the poller serves without a task."""

import sys
from itertools import pairwise

import pytest
import trio

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import Close
from amqpmesh.router.runtime import poller
from amqpmesh.router.runtime.accepted import AcceptedTransport
from amqpmesh.router.runtime.driver import TURNS
from amqpmesh.router.runtime.router import Router
from tests.support.peers.scripted_stream import connect

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
    monkeypatch.setattr(poller, "LINGER", 0.05)
    async with Router(listeners=[LOOPBACK]) as router:
        peer = await connect(router)
        await peer.open()
        await peer.write(Close())
        await peer.expect(Close)
        await peer.expect_end()
        assert router.listeners[0].connections == 1
        with trio.fail_after(60):
            while router.listeners[0].connections:
                await trio.lowlevel.checkpoint()
    assert router.statistics().is_empty
