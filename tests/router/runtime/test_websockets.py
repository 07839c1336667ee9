"""AMQP through WebSockets at a listener: the handshake, hostile peers, and all that other listeners do."""

from __future__ import annotations

import importlib.util
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trustme
from trio.testing import MockClock, memory_stream_pair

from amqpmesh import ConfigError, ListenerConfig, Router, TlsConfig, WebSocketConfig
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import Close, Disposition, Open, Transfer
from amqpmesh.router.config.users import add_user
from amqpmesh.router.io.websocket_framing import FRAMES
from amqpmesh.router.logs.event_log import event_of, fields_of
from amqpmesh.router.runtime import credentials, poller
from tests.support.peers.sasl import init
from tests.support.peers.scripted import SASL
from tests.support.peers.scripted_stream import AMQP, Peer, attached, begun, connect, connected, credit, frame
from tests.support.peers.websockets import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    answer_of,
    over_websocket,
    read_all,
    request,
    ws_frame,
)
from tests.support.worlds.sockets import EITHER_WAY

pytestmark = EITHER_WAY

WS = ListenerConfig(url="ws://127.0.0.1:0")
NAME = "router.example"
HEADER = ws_frame(BINARY, AMQP, masked=False)


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.001)


async def raw(router: Router) -> trio.abc.Stream:
    """Return a stream with an open WebSocket, of which the test writes the frames."""
    stream = (await connect(router)).stream
    await stream.send_all(request())
    status, _ = await answer_of(stream)
    assert status == 101
    return stream


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(fields_of(each)["reason"]) for each in caplog.records if event_of(each) == "WebSocket refused"]


async def test_messages_pass_between_a_websocket_and_tcp() -> None:
    async with Router(listeners=[WS, "amqp://127.0.0.1:0"]) as router:
        receiver = await over_websocket(await connect(router))
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(10))
        sender = await connect(router, 1)
        await sender.attach(Role.SENDER, "q")
        for number, size in enumerate((0, 10, 16_000)):
            await sender.send(number, bytes(size))
            transfer = await receiver.expect(Transfer)
            assert len(receiver.payload) == size + 8
            await receiver.accept(transfer)
            await sender.expect(Disposition)
        listened, _ = router.listeners
        assert listened.url.startswith("ws://127.0.0.1:")
        assert listened.connections == 1
        assert router.statistics().connections[0].listener == "ws"
        await receiver.close()
        await sender.close()
        await until(lambda: listened.connections == 0)
    assert router.statistics().is_empty


async def test_a_connection_has_no_task(request: pytest.FixtureRequest) -> None:
    if poller.EPOLL is None:
        pytest.skip("streamed connections have tasks")
    async with Router(listeners=[WS]) as router:
        first = await over_websocket(await connect(router))
        await first.open()
        tasks = trio.lowlevel.current_statistics().tasks_living
        others = [await over_websocket(await connect(router)) for _ in range(3)]
        for each in others:
            await each.attach(Role.RECEIVER, "q")
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        for each in (first, *others):
            await each.close()
        await until(lambda: router.listeners[0].connections == 0)
    assert router.statistics().is_empty


@pytest.mark.parametrize(
    ("asked", "status", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 426, "the listener speaks WebSocket only"),
        (AMQP + b"\r\n\r\n", 400, "the request is malformed"),
        (request(host="evil.example"), 421, "the listener has another host; the key hosts adds further ones"),
        (
            request(origin="http://evil.example"),
            403,
            "pages of that origin may open no WebSocket; the key origins adds further ones",
        ),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 2000, 431, "the head of the request is too large"),
    ],
)
async def test_other_requests_are_answered_and_logged(
    asked: bytes, status: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    listener = replace(WS, websocket=WebSocketConfig(head=1024))
    async with Router(listeners=[listener]) as router:
        stream = (await connect(router)).stream
        await stream.send_all(asked)
        assert (await answer_of(stream))[0] == status
        assert reason.encode() in await read_all(stream)
        await stream.aclose()
        await until(lambda: router.listeners[0].connections == 0)
    assert refusals(caplog) == [reason]
    assert router.statistics().is_empty


async def test_clients_that_leave_amid_their_requests_are_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    async with Router(listeners=[WS]) as router:
        for said in (b"", b"GET", request()[:-2]):
            stream = (await connect(router)).stream
            await until(lambda: router.listeners[0].connections == 1)
            if said:
                await stream.send_all(said)
            await stream.aclose()
            await until(lambda: router.listeners[0].connections == 0)
    assert len(refusals(caplog)) == 3
    assert router.statistics().is_empty


async def test_a_silent_client_is_cut_off_in_time(caplog: pytest.LogCaptureFixture) -> None:
    listener = replace(WS, websocket=WebSocketConfig(request_time=0.05))
    async with Router(listeners=[listener]) as router:
        stream = (await connect(router)).stream
        await stream.send_all(request()[:20])
        assert await read_all(stream) == b""
        await stream.aclose()
        await until(lambda: router.listeners[0].connections == 0)
    assert refusals(caplog) == ["took longer than 0.05 s"]


async def test_a_request_in_single_octets_opens_a_websocket() -> None:
    async with Router(listeners=[WS]) as router:
        stream = (await connect(router)).stream
        for octet in request() + ws_frame(BINARY, AMQP):
            await stream.send_all(bytes([octet]))
            await trio.lowlevel.checkpoint()
        assert (await answer_of(stream))[0] == 101
        assert await stream.receive_some(len(HEADER)) == HEADER
        await stream.aclose()
        await until(lambda: router.listeners[0].connections == 0)
    assert router.statistics().is_empty


async def test_each_octet_may_come_in_a_message_of_its_own() -> None:
    said = AMQP + frame(Open(container_id="peer")) + frame(begun()) + frame(attached(Role.RECEIVER, "q"))
    async with Router(listeners=[WS]) as router:
        stream = await raw(router)
        await stream.send_all(b"".join(ws_frame(BINARY, bytes([octet])) for octet in said))
        await until(lambda: len(router.statistics().links) == 1)
        await stream.aclose()
        await until(lambda: router.listeners[0].connections == 0)
    assert len(said) > 3 * FRAMES
    assert router.statistics().is_empty


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (ws_frame(TEXT, b"hello"), 1003),
        (ws_frame(BINARY, b"x", masked=False), 1002),
        (ws_frame(BINARY, b"x", reserved=4), 1002),
        (ws_frame(PING, b"x" * 126), 1002),
    ],
)
async def test_a_peer_that_breaks_the_rules_hears_the_code_and_no_other_notices(broken: bytes, code: int) -> None:
    async with Router(listeners=[WS]) as router:
        other = await over_websocket(await connect(router))
        await other.attach(Role.RECEIVER, "q")
        stream = await raw(router)
        await stream.send_all(ws_frame(BINARY, AMQP) + broken)
        told = await read_all(stream)
        await stream.aclose()
        assert told[0] == 0x80 | CLOSE
        assert told[2:4] == code.to_bytes(2)
        await until(lambda: router.listeners[0].connections == 1)
        await other.close()
    assert router.statistics().is_empty


async def test_the_peers_end_of_the_websocket_is_answered() -> None:
    async with Router(listeners=[WS]) as router:
        stream = await raw(router)
        await stream.send_all(ws_frame(BINARY, AMQP) + ws_frame(CLOSE, (1001).to_bytes(2)))
        assert (await read_all(stream)).endswith(ws_frame(CLOSE, (1001).to_bytes(2), masked=False))
        await stream.aclose()
        await until(lambda: router.listeners[0].connections == 0)
    assert router.statistics().is_empty


async def test_a_ping_is_answered_amid_a_message() -> None:
    async with Router(listeners=[WS]) as router:
        stream = await raw(router)
        await stream.send_all(ws_frame(BINARY, AMQP[:3], last=False) + ws_frame(PING, b"?"))
        pong = ws_frame(PONG, b"?", masked=False)
        assert await stream.receive_some(len(pong)) == pong
        await stream.send_all(ws_frame(0, AMQP[3:]))
        assert await stream.receive_some(len(HEADER)) == HEADER
        await stream.aclose()
        await until(lambda: router.listeners[0].connections == 0)


async def test_a_peer_that_pings_without_end_and_reads_nothing_holds_up_nobody() -> None:
    async with Router(listeners=[WS, "amqp://127.0.0.1:0"]) as router:
        flood = await raw(router)
        receiver, sender = await connect(router, 1), await connect(router, 1)
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(10))
        await sender.attach(Role.SENDER, "q")
        pings = ws_frame(PING, b"x" * 125) * 500

        async def ping(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            task_status.started()
            with pytest.raises(trio.BrokenResourceError):  # it is cut off
                while True:
                    await flood.send_all(pings)

        async with trio.open_nursery() as nursery:
            await nursery.start(ping)
            for number in range(10):
                await sender.send(number, b"x")
                await receiver.accept(await receiver.expect(Transfer))
                await sender.expect(Disposition)
        await flood.aclose()
        await receiver.close()
        await sender.close()
        await until(lambda: all(each.connections == 0 for each in router.listeners))
    assert router.statistics().is_empty


async def test_a_router_that_ends_closes_its_websockets_in_good_order() -> None:
    async with Router(listeners=[WS], drain=0.0) as router, trio.open_nursery() as nursery:
        stream = await raw(router)
        await stream.send_all(ws_frame(BINARY, AMQP + frame(Open(container_id="peer"))))
        assert await stream.receive_some(100)
        nursery.start_soon(router.drain)
        await until(lambda: not router.listeners[0].sockets[0].fileno() >= 0)
        await stream.send_all(ws_frame(BINARY, frame(Close())))
        assert (await read_all(stream)).endswith(ws_frame(CLOSE, (1000).to_bytes(2), masked=False))
        await stream.aclose()
    assert router.statistics().is_empty


# ------------------------------------------------------------------------------------------------- logins, limits, TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def wss(authority: trustme.CA, tmp_path: Path) -> ListenerConfig:
    trust, own = tmp_path / "trust.pem", tmp_path / "own.pem"
    authority.cert_pem.write_to_path(trust)
    authority.issue_cert(NAME).private_key_and_cert_chain_pem.write_to_path(own)
    tls = TlsConfig(certificate=own, key=own, trust=trust, client="optional")
    return ListenerConfig(url="wss://127.0.0.1:0", sasl=("EXTERNAL",), tls=tls)


@pytest.fixture
def ada(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    authority.issue_cert("ada@example.org").configure_cert(context)
    return context


async def logged_in(peer: Peer, first: bytes) -> None:
    """Log in, and open the connection. Args: first: the frame that begins the login."""
    await peer.write(SASL, frame(first, type=1))
    assert await peer.expect_header() == SASL
    for _ in ("mechanisms", "outcome"):
        while peer._frames.next_frame() is None:
            assert await peer._more()
    await peer.open()


def in_tls(peer: Peer, context: ssl.SSLContext) -> Peer:
    return Peer(trio.SSLStream(peer.stream, context, server_hostname=NAME, https_compatible=True))


async def test_wss_knows_its_peer_by_the_certificate(wss: ListenerConfig, ada: ssl.SSLContext) -> None:
    async with Router(listeners=[wss]) as router:
        peer = await over_websocket(in_tls(await connect(router), ada))
        await logged_in(peer, init("EXTERNAL", b""))
        [seen] = router.statistics().connections
        assert (seen.user, seen.tls, seen.mechanism) == ("ada@example.org", "TLSv1.3", "EXTERNAL")
        await peer.close()
        await until(lambda: router.listeners[0].connections == 0)
    assert router.statistics().is_empty


async def test_at_wss_a_request_without_tls_fails_in_tls(wss: ListenerConfig, caplog: pytest.LogCaptureFixture) -> None:
    async with Router(listeners=[wss]) as router:
        stream = (await connect(router)).stream
        await stream.send_all(request())
        assert b"HTTP/1.1" not in await read_all(stream)
        await stream.aclose()
        await until(lambda: router.listeners[0].connections == 0)
    assert [event_of(each) for each in caplog.records].count("TLS handshake failed") == 1
    assert not refusals(caplog)


async def test_a_websocket_that_is_asked_for_without_tls_does_not_open_once_the_listener_demands_it(
    wss: ListenerConfig,
) -> None:
    async with Router(listeners=[replace(WS, name="web")]) as router:
        stream = (await connect(router)).stream
        await stream.send_all(request()[:20])
        await until(lambda: router.listeners[0].connections == 1)
        await router.apply(replace(router.config, listeners=(replace(wss, name="web"),)))
        await stream.send_all(request()[20:] + ws_frame(BINARY, SASL))
        assert (await answer_of(stream))[0] == 101
        assert await read_all(stream) == b""  # no login without TLS
        await stream.aclose()
        await until(lambda: router.listeners[0].connections == 0)


async def test_a_refused_client_of_wss_reads_the_answer(wss: ListenerConfig, ada: ssl.SSLContext) -> None:
    async with Router(listeners=[wss]) as router:
        peer = in_tls(await connect(router), ada)
        await peer.stream.send_all(request(host="evil.example"))
        assert (await answer_of(peer.stream))[0] == 421
        await read_all(peer.stream)
        await peer.stream.aclose()
        await until(lambda: router.listeners[0].connections == 0)


async def test_passwords_are_checked_as_at_other_listeners(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    add_user(users, "ada", "correct horse", iterations=4096)
    listener = replace(WS, sasl=("PLAIN",), users=users, insecure=True)
    async with Router(listeners=[listener]) as router:
        peer = await over_websocket(await connect(router))
        await logged_in(peer, init("PLAIN", b"\0ada\0correct horse"))
        assert router.statistics().connections[0].user == "ada"
        await peer.close()
        await until(lambda: router.listeners[0].connections == 0)


async def test_connections_beyond_the_limit_are_refused_before_their_handshake() -> None:
    async with Router(listeners=[replace(WS, connections=1)]) as router:
        first = await over_websocket(await connect(router))
        await first.open()
        second = await connect(router)
        with pytest.raises(trio.BrokenResourceError):
            await over_websocket(second)
        assert router.listeners[0].refused == 1
        await first.close()
        await until(lambda: router.listeners[0].connections == 0)


async def test_a_stream_of_a_program_may_carry_a_websocket(autojump_clock: MockClock) -> None:
    async with Router() as router, trio.open_nursery() as nursery:
        peer = await over_websocket(connected(nursery, router, WS))
        await peer.attach(Role.RECEIVER, "q")
        await peer.close()
        ours, theirs = memory_stream_pair()
        nursery.start_soon(router.serve_stream, theirs, WS)
        await ours.send_all(request(upgrade=None))
        assert (await answer_of(ours))[0] == 426
        await ours.aclose()
    assert router.statistics().is_empty


async def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(credentials, "find_spec", lambda name: None if name == "wsproto" else find_spec(name))
    with pytest.raises(ConfigError, match=r"ws.url: WebSocket needs the package wsproto: pip install 'amqpmesh\[web"):
        async with Router(listeners=[WS]):
            raise AssertionError("it must not start")
