"""Connections of the client through WebSockets: to this router, and to servers that refuse or break the rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from amqpmesh import CommandError, ConnectionClosedError, ListenerConfig, Message, Router, connect
from amqpmesh.router.http.upgrade import Upgrade
from amqpmesh.router.io.dialing import Backoff
from tests.support.peers.library_client import Roads, enter
from tests.support.peers.websockets import BINARY, CLOSE, PING, PONG, read_all, ws_frame

URL = "ws://a.example:80/amqp"
LISTENER = ListenerConfig(url="ws://127.0.0.1:0", hosts=("a.example",))

Serve = Callable[[trio.abc.Stream], Awaitable[None]]


def answering(octets: bytes) -> Serve:
    """Return a server that reads a request, sends these octets, and reads on to the end."""

    async def serve(stream: trio.abc.Stream) -> None:
        with_request = b""
        while not with_request.endswith(b"\r\n\r\n"):
            with_request += await stream.receive_some(1)
        await stream.send_all(octets)
        with trio.move_on_after(1):
            await read_all(stream)
        await stream.aclose()

    return serve


@pytest.mark.parametrize("size", [0, 1, 300_000])
async def test_messages_pass_in_both_directions(nursery: trio.Nursery, autojump_clock: MockClock, size: int) -> None:
    async with Router() as router:
        roads = Roads(nursery)
        roads.lead_to(router, URL, LISTENER)
        async with (
            roads.connect(URL) as connection,
            connection.receiver("q", credit=10) as receiver,
            connection.sender("q") as sender,
            trio.open_nursery() as sending,
        ):
            sending.start_soon(sender.send, Message(body=bytes(size)))
            async for delivery in receiver:
                assert delivery.message.body == bytes(size)
                delivery.accept()
                break
            assert str(connection).endswith(f"to {URL} connected>")
    assert router.statistics().is_empty


async def test_the_path_the_host_and_the_subprotocols_are_in_the_request(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    heads: list[bytes] = []

    async def serve(stream: trio.abc.Stream) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += await stream.receive_some(1)
        heads.append(head)
        await stream.aclose()

    roads = Roads(nursery)
    for url in ("ws://a.example:80/$servicebus/websocket", "ws://a.example:8080", "ws://[::1]:80"):
        roads.lead_to(serve, url)
        with pytest.raises(ConnectionClosedError, match="no WebSocket for AMQP here: the server has closed"):
            await enter(roads.connect(url))
    assert [head.split(b"\r\n")[0] for head in heads] == [
        b"GET /$servicebus/websocket HTTP/1.1",
        b"GET / HTTP/1.1",
        b"GET / HTTP/1.1",
    ]
    hosts = [line for head in heads for line in head.decode().split("\r\n") if line.lower().startswith("host:")]
    assert hosts == ["Host: a.example", "Host: a.example:8080", "Host: [::1]"]
    assert all(b"Sec-WebSocket-Protocol: amqp, AMQPWSB10\r\n" in head for head in heads)
    assert all(b"xtensions" not in head for head in heads)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 421, 426])
async def test_a_refusal_that_would_not_change_ends_all_attempts(
    nursery: trio.Nursery, autojump_clock: MockClock, status: int
) -> None:
    roads = Roads(nursery)
    roads.lead_to(answering(b"HTTP/1.1 %d X\r\nContent-Length: 9\r\n\r\nnot here\n" % status), URL)
    with pytest.raises(ConnectionClosedError, match=f"{URL}: refused with HTTP {status}: 'not here'"):
        await enter(roads.connect(URL, reconnect=True))
    assert len(roads.tries) == 1


@pytest.mark.parametrize("status", [200, 302, 408, 429, 500, 503])
async def test_other_answers_may_change(nursery: trio.Nursery, autojump_clock: MockClock, status: int) -> None:
    roads = Roads(nursery)
    roads.lead_to(answering(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status), URL)
    with pytest.raises(ConnectionClosedError, match=f"{URL}: refused with HTTP {status}"):
        await enter(roads.connect(URL))
    with trio.move_on_after(20):
        await enter(roads.connect(URL, reconnect=Backoff(first=1.0, longest=1.0)))
    assert len(roads.tries) > 5


@pytest.mark.parametrize(
    "octets",
    [
        b"AMQP\x00\x01\x00\x00\r\n\r\n",
        b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: wrong\r\n\r\n",
        b"HTTP/1.1 101 X\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 20_000,
    ],
)
async def test_an_answer_that_breaks_the_rules_makes_no_connection(
    nursery: trio.Nursery, autojump_clock: MockClock, octets: bytes
) -> None:
    roads = Roads(nursery)
    roads.lead_to(answering(octets), URL)
    with pytest.raises(ConnectionClosedError, match=f"{URL}: no WebSocket for AMQP here"):
        await enter(roads.connect(URL))


async def test_a_server_that_never_answers_is_left_in_time(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    roads = Roads(nursery)
    roads.lead_to(partial(_keep, seconds=100.0), URL)
    with pytest.raises(ConnectionClosedError, match="timed out"):
        await enter(roads.connect(URL))
    assert trio.current_time() < 30


async def _keep(stream: trio.abc.Stream, *, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await read_all(stream)


def frames_in(octets: bytes) -> list[tuple[int, bool]]:
    """Return the kinds of small frames, and whether each is masked."""
    found = []
    while len(octets) >= 2:
        size, is_masked = octets[1] & 0x7F, bool(octets[1] & 0x80)
        assert size < 126
        found.append((octets[0] & 15, is_masked))
        octets = octets[2 + 4 * is_masked + size :]
    return found


async def test_our_end_is_masked_answers_pings_and_closes_in_good_order(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """A server of hand-written frames sees what the client sends."""
    seen: list[tuple[int, bool]] = []

    async def serve(stream: trio.abc.Stream) -> None:
        upgrade = Upgrade(LISTENER)
        while not upgrade.answer:
            upgrade.receive(bytes(await stream.receive_some(1)))
        await stream.send_all(upgrade.answer + ws_frame(PING, b"?", masked=False))
        told = b""
        while PONG not in dict(frames_in(told)):
            told += await stream.receive_some(2**16)
        await stream.send_all(ws_frame(CLOSE, (1001).to_bytes(2), masked=False))
        seen.extend(frames_in(told + await read_all(stream)))
        await stream.aclose()

    roads = Roads(nursery)
    roads.lead_to(serve, URL)
    with pytest.raises(ConnectionClosedError):
        await enter(roads.connect(URL))
    assert {kind for kind, _ in seen} <= {BINARY, PONG, CLOSE}
    assert seen[-1][0] == CLOSE
    assert all(is_masked for _, is_masked in seen)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqpmesh.router.client.connect.find_spec", lambda name: None)
    with pytest.raises(CommandError, match=r"pip install 'amqpmesh\[websocket\]'"):
        connect("wss://a.example")
