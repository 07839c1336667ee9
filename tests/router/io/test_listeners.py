"""Connections as they come in: how many are taken, and what a listener does when the system gives no more."""

import errno
import logging
import socket
import struct
from pathlib import Path

import pytest
import trio

from amqpmesh.router.config import ListenerConfig
from amqpmesh.router.io import listeners
from amqpmesh.router.io.node import Router
from amqpmesh.router.logs import event_of
from tests.support.peer import connect

LOOPBACK = "amqp://127.0.0.1:0"


def refusals(caplog: pytest.LogCaptureFixture) -> int:
    return [event_of(record) for record in caplog.records].count("connection refused")


async def test_a_listener_takes_as_many_connections_as_it_may_and_others_take_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    narrow = ListenerConfig(url=LOOPBACK, name="narrow", connections=2)
    async with Router(listeners=[narrow, LOOPBACK]) as router:
        first, second = await connect(router), await connect(router)
        await first.open()
        await second.open()
        third = await connect(router)
        await third.expect_end()
        listener = router.listeners[0]
        assert (listener.connections, listener.refused, refusals(caplog)) == (2, 1, 1)
        other = await connect(router, 1)
        await other.open()
        # A place that is free again is taken again.
        await first.close()
        while listener.connections == 2:
            await trio.lowlevel.checkpoint()
        await (await connect(router)).open()
        assert listener.refused == 1
    assert (listener.connections, router.listeners[1].connections) == (0, 0)
    assert router.statistics().is_empty


async def test_the_limit_of_the_router_holds_for_all_listeners_together() -> None:
    whole = [ListenerConfig(url=LOOPBACK, name=name) for name in ("one", "other")]
    async with Router(listeners=whole, connections=1) as router:
        first = await connect(router, 0)
        await first.open()
        await (await connect(router, 1)).expect_end()
        assert [listener.refused for listener in router.listeners] == [0, 1]
    assert router.statistics().is_empty


@pytest.mark.parametrize("reason", [errno.EMFILE, errno.ENOBUFS])
async def test_a_system_that_gives_no_more_connections_ends_no_listener(
    reason: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listeners, "PAUSE", 0.001)
    accept = socket.socket.accept
    failures = 3

    def exhausted(listening: socket.socket) -> tuple[socket.socket, object]:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(reason, "exhausted")
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", exhausted)
    async with Router(listeners=[LOOPBACK]) as router:
        await (await connect(router)).open()
    assert failures == 0
    assert [record.levelno for record in caplog.records if event_of(record) == "cannot accept"] == [logging.WARNING] * 3


async def test_a_connection_that_is_gone_before_it_is_accepted_is_nobodys_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept = socket.socket.accept
    failed = False

    def aborted(listening: socket.socket) -> tuple[socket.socket, object]:
        nonlocal failed
        if not failed:
            failed = True
            raise ConnectionAbortedError(errno.ECONNABORTED, "aborted")
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", aborted)
    async with Router(listeners=[LOOPBACK]) as router:
        await (await connect(router)).open()
    assert failed
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_storm_of_connections_is_taken_in() -> None:
    number = 300
    async with Router(listeners=[LOOPBACK]) as router, trio.open_nursery() as nursery:

        async def come_and_go() -> None:
            peer = await connect(router)
            await peer.open()
            await peer.close()

        for _ in range(number):
            nursery.start_soon(come_and_go)
    assert router.listeners[0].refused == 0
    assert router.statistics().is_empty


async def test_a_connection_has_no_delay_and_is_kept_alive_and_many_may_wait_for_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[socket.socket] = []
    accept = socket.socket.accept

    def remembered(listening: socket.socket) -> tuple[socket.socket, object]:
        connected, address = accept(listening)
        seen.extend((listening, connected))
        return connected, address

    monkeypatch.setattr(socket.socket, "accept", remembered)
    async with Router(listeners=[LOOPBACK]) as router:
        peer = await connect(router)
        await peer.open()
        listening, connected = seen
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        # Of a listening socket, tcpi_sacked in struct tcp_info is how many may wait: what the system allows at most.
        (backlog,) = struct.unpack_from("I", listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 28)
        assert backlog == min(int(Path("/proc/sys/net/core/somaxconn").read_text()), 0xFFFF)
