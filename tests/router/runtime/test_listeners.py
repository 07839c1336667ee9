"""Listeners: their limits, and systems that accept no more connections."""

import errno
import logging
import os
import socket
import struct
from pathlib import Path

import pytest
import trio

from amqpmesh.router.config.file import ListenerConfig
from amqpmesh.router.io.streams import TcpStream
from amqpmesh.router.logs.event_log import event_of
from amqpmesh.router.runtime import listeners, poller
from amqpmesh.router.runtime.listeners import Listener, reserved
from amqpmesh.router.runtime.router import Router
from tests.support.peers.scripted_stream import connect
from tests.support.worlds.sockets import EITHER_WAY

pytestmark = EITHER_WAY

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
        # When a connection ends, another one is accepted.
        await first.close()
        while listener.connections == 2:
            await trio.lowlevel.checkpoint()
        await (await connect(router)).open()
        assert listener.refused == 1
    assert (listener.connections, router.listeners[1].connections) == (0, 0)
    assert (listener.most, router.listeners[1].most) == (2, 1)
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
    assert [record.levelno for record in caplog.records if event_of(record) == "accept failed"] == [logging.WARNING] * 3


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
        # In struct tcp_info of a listening socket, tcpi_sacked is the limit of connections that wait in the system.
        (backlog,) = struct.unpack_from("I", listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 28)
        assert backlog == min(int(Path("/proc/sys/net/core/somaxconn").read_text()), 0xFFFF)


async def test_of_many_connections_at_once_none_waits_and_one_alone_takes_one_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts = 0
    accept = socket.socket.accept

    def counted(listening: socket.socket) -> tuple[socket.socket, object]:
        nonlocal attempts
        attempts += 1
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", counted)
    async with Router(listeners=[LOOPBACK]) as router:
        await (await connect(router)).open()
        assert attempts == (2 if poller.EPOLL is None else 1)
        together = [await connect(router) for _ in range(40)]
        for each in together:
            await each.open()


def by_path(path: Path) -> ListenerConfig:
    return ListenerConfig(url=f"amqp+unix://{path}", role="mesh")


async def accepted_by(listener: Listener, count: int) -> list[str]:
    """Return the hosts of the first connections to a listener."""
    hosts: list[str] = []

    def admit(_: Listener, stream: TcpStream, host: str) -> None:
        hosts.append(host)
        stream.close()
        if len(hosts) == count:
            scope.cancel()

    with trio.fail_after(60), trio.CancelScope() as scope:
        await listener.accept(admit)
    return hosts


async def test_a_unix_socket_takes_the_place_of_one_that_was_left_behind(tmp_path: Path) -> None:
    left = await Listener.bind(by_path(tmp_path / "1"))
    listener = await Listener.bind(by_path(tmp_path / "1"))
    assert listener.url == f"amqp+unix://{tmp_path / '1'}"
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "1"))
        assert await accepted_by(listener, 1) == ["worker"]
    for each in (left, listener):
        each.close()


async def test_by_a_unix_socket_nobody_comes_in_but_the_same_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = await Listener.bind(by_path(tmp_path / "1"))
    me = os.geteuid()
    with socket.socket(socket.AF_UNIX) as other, trio.move_on_after(10) as limit:
        other.connect(str(tmp_path / "1"))
        monkeypatch.setattr(os, "geteuid", lambda: me + 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.accept, None)  # an admitted connection would make it fail
            await trio.to_thread.run_sync(other.recv, 1)
            nursery.cancel_scope.cancel()
    assert not limit.cancelled_caught
    listener.close()


async def test_where_no_unix_socket_can_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=f"No such file or directory: '{tmp_path}/none/1'"):
        await Listener.bind(by_path(tmp_path / "none" / "1"))


async def test_a_port_that_is_reserved_takes_only_those_that_share_it() -> None:
    sockets = reserved(ListenerConfig(url="amqp://localhost:0"))
    config = ListenerConfig(url=f"amqp://localhost:{sockets[0].getsockname()[1]}")
    assert {each.getsockname()[1] for each in sockets} == {config.endpoint.port}
    with pytest.raises(OSError, match="in use"):  # refused although no other worker shares the port yet
        await Listener.bind(config)
    first, second = [await Listener.bind(config, shared=True) for _ in range(2)]
    assert first.url == second.url == config.url
    with pytest.raises(OSError, match="in use"):
        await Listener.bind(config)
    with pytest.raises(OSError, match="in use"):
        reserved(config)
    for each in (first, second):
        each.close()
    with pytest.raises(ConnectionRefusedError):  # a reserved port accepts no connection
        socket.create_connection(sockets[0].getsockname()[:2])
    for one in sockets:
        one.close()
