"""Connections of HTTP in virtual time: slow clients, idle ones, and many."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator

import pytest
import trio
from trio.testing import MemoryReceiveStream, MemorySendStream, MockClock, memory_stream_pair

from amqpmesh import HttpConfig
from amqpmesh.router.http.requests import FORBIDDEN, OK, Answer, HttpError, Request
from amqpmesh.router.runtime.http_calls import BURST, Share
from amqpmesh.router.runtime.http_connections import Client, OpenConnections, serve

LIMITS = HttpConfig(request_time=10.0, answer_time=60.0, idle_time=30.0, head=2048, body=100)
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
Pair = trio.StapledStream[MemorySendStream, MemoryReceiveStream]


async def respond(client: Client, request: Request) -> Answer:
    if request.path == "/forbidden":
        raise HttpError(FORBIDDEN, "no")
    if request.path == "/fault":
        raise ValueError("a secret")
    if request.path == "/parts":
        return Answer(OK, parts=parts(3))
    if request.path == "/cut":
        return Answer(OK, parts=parts(3, fails=True))
    return Answer(OK, request.body or client.host.encode())


async def parts(count: int, *, fails: bool = False) -> AsyncGenerator[bytes, None]:
    for number in range(count):
        if fails and number == 2:
            raise HttpError(503, "the router is about to end")
        yield b"%d" % number * 1000


def begin(nursery: trio.Nursery, limits: HttpConfig = LIMITS) -> tuple[Pair, list[float]]:
    """Return the client's end of a connection, and a list that gets the time of its end."""
    ours, theirs = memory_stream_pair()
    ended: list[float] = []

    async def run() -> None:
        await serve(theirs, Client("192.0.2.1"), limits, respond)
        ended.append(trio.current_time())
        await theirs.aclose()

    nursery.start_soon(run)
    return ours, ended


async def answered(client: Pair, data: bytes = GET) -> bytes:
    """Return the next answer, or all up to the end."""
    await client.send_all(data)
    return await client.receive_some(100_000)


async def rest(client: Pair) -> bytes:
    data = b""
    with trio.fail_after(1000):
        while more := await client.receive_some(100_000):
            data += more
    return data


async def test_requests_are_answered_one_after_the_other(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    client, ended = begin(nursery)
    for _ in range(3):
        assert (await answered(client)).endswith(b"\r\n\r\n192.0.2.1")
    assert b" 403 " in await answered(client, GET.replace(b"/ ", b"/forbidden "))
    assert b" 200 " in await answered(client)  # a refusal ends nothing
    await client.send_eof()
    assert await rest(client) == b""
    await trio.testing.wait_all_tasks_blocked()
    assert ended


async def test_a_client_that_sends_nothing_is_closed(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    client, ended = begin(nursery)
    assert await rest(client) == b""
    assert ended == [30.0]


@pytest.mark.parametrize(
    "piece", [b"G", b"GET / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 90\r\n\r\n1"]
)
async def test_a_request_that_comes_octet_by_octet_has_its_time(
    autojump_clock: MockClock, nursery: trio.Nursery, piece: bytes
) -> None:
    client, _ = begin(nursery)
    await trio.sleep(20.0)
    await client.send_all(piece)
    for _ in range(9):  # no octet prolongs it
        await trio.sleep(1.0)
        await client.send_all(b"x")
    assert b" 408 " in await rest(client)
    assert trio.current_time() == 30.0
    await client.aclose()


async def test_a_client_that_does_not_read_is_closed(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    class Stuck(trio.abc.Stream):
        sent = False

        async def send_all(self, data: bytes | bytearray | memoryview) -> None:
            await trio.sleep_forever()

        async def wait_send_all_might_not_block(self) -> None:
            await trio.sleep_forever()

        async def receive_some(self, max_bytes: int | None = None) -> bytes:
            self.sent = True
            return GET

        async def aclose(self) -> None:
            pass

    await serve(Stuck(), Client("192.0.2.1"), LIMITS, respond)
    assert trio.current_time() == 60.0


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 3000 + b"\r\n\r\n", b" 431 "),
        (b"PATCH / HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n", b" 413 "),
        (b"nonsense\r\n\r\n", b" 400 "),
    ],
)
async def test_beyond_a_limit_there_is_an_answer_and_an_end(
    autojump_clock: MockClock, nursery: trio.Nursery, data: bytes, status: bytes
) -> None:
    client, ended = begin(nursery)
    answer = await answered(client, data)
    assert status in answer
    assert b"connection: close" in answer.lower()
    await client.send_eof()
    assert await rest(client) == b""
    await trio.testing.wait_all_tasks_blocked()
    assert ended


async def test_a_client_may_wait_with_the_content(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    client, _ = begin(nursery)
    head = b"PATCH / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    assert b" 100 " in await answered(client, head)
    assert (await answered(client, b"hi")).endswith(b"hi")
    await client.aclose()


async def test_a_long_answer_is_sent_in_parts_and_cut_off_visibly(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    client, _ = begin(nursery)
    await client.send_all(GET.replace(b"/ ", b"/parts "))
    data = b""
    while not data.endswith(b"\r\n0\r\n\r\n"):
        data += await client.receive_some(100_000)
    assert b"2" * 1000 in data
    await client.send_all(GET.replace(b"/ ", b"/cut "))
    assert not (await rest(client)).endswith(b"\r\n0\r\n\r\n")


async def test_an_internal_error_is_logged_and_not_told(
    autojump_clock: MockClock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    client, _ = begin(nursery)
    answer = await answered(client, GET.replace(b"/ ", b"/fault "))
    assert b" 500 " in answer
    assert b"secret" not in answer
    assert any(each.levelno == logging.ERROR for each in caplog.records)
    assert b" 200 " in await answered(client)
    await client.aclose()


async def test_a_new_connection_takes_the_place_of_the_one_that_waits_longest() -> None:
    scopes = [trio.CancelScope() for _ in range(5)]
    connections = OpenConnections(3)
    for each in scopes[:3]:
        assert connections.enter(each, "192.0.2.1")
        connections.rest(each)
    connections.work(scopes[0])
    assert connections.enter(scopes[3], "192.0.2.1")
    assert [each.cancel_called for each in scopes[:3]] == [False, True, False]
    connections.rest(scopes[1])  # it is over, and takes nothing
    connections.work(scopes[2])
    connections.work(scopes[3])
    assert not connections.enter(scopes[4], "192.0.2.1")
    connections.leave(scopes[2])
    assert connections.enter(scopes[4], "192.0.2.1")
    assert len(connections) == 3


async def test_busy_connections_of_one_network_keep_no_other_out() -> None:
    flood = [trio.CancelScope() for _ in range(5)]
    connections = OpenConnections(4)
    for number, each in enumerate(flood[:4]):  # they log in, send a request slowly, or read no answer
        assert connections.enter(each, f"2001:db8::{number}")
        connections.work(each)
    assert not connections.enter(flood[4], "2001:db8::9")
    others = [trio.CancelScope() for _ in range(3)]
    for each in others[:2]:
        assert connections.enter(each, "192.0.2.1")
        connections.work(each)
    assert not connections.enter(others[2], "192.0.2.1")  # now both have as many
    assert not connections.enter(flood[4], "2001:db8::9")
    assert [each.cancel_called for each in flood] == [True, True, False, False, False]
    connections.leave(flood[0])  # it is over already
    assert len(connections) == 4
    for each in (*others, *flood):
        connections.leave(each)
    assert len(connections) == 0


async def test_handshakes_of_one_network_end_those_of_no_other() -> None:
    connections = OpenConnections(3)
    polite = trio.CancelScope()
    assert connections.enter(polite, "192.0.2.1")
    flood = [trio.CancelScope() for _ in range(10)]
    for each in flood:
        assert connections.enter(each, "198.51.100.1")
    assert not polite.cancel_called
    assert [each.cancel_called for each in flood] == [*[True] * 8, False, False]


async def test_octets_are_read_as_the_share_allows(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    ours, theirs = memory_stream_pair()
    turns = 0

    async def turn() -> None:
        nonlocal turns
        turns += 1
        await trio.sleep(1.0)

    async def run() -> None:
        await serve(theirs, Client("192.0.2.1"), LIMITS, respond, turn=turn)

    nursery.start_soon(run)
    for piece in (GET[:1], GET[1:2], GET[2:]):
        await ours.send_all(piece)
        await trio.testing.wait_all_tasks_blocked()
    assert b" 200 " in await ours.receive_some(1000)
    assert turns == trio.current_time() >= 2
    await ours.aclose()


async def test_the_thread_takes_no_more_than_its_part(autojump_clock: MockClock) -> None:
    used = 0.0
    share = Share(0.1, lambda: used)
    began = trio.current_time()
    for _ in range(100):
        await share.turn()
        used += 0.05
    assert trio.current_time() - began >= (used - BURST) / 0.1 - 1.0
    await trio.sleep(1000.0)  # a rest saves nothing beyond the burst
    began = trio.current_time()
    for _ in range(20):
        await share.turn()
        used += 0.05
    assert trio.current_time() - began >= 8.0


async def test_a_flood_from_one_network_delays_another_by_one_step(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    used, step = 0.0, 0.05
    share = Share(0.1, lambda: used)

    async def flood() -> None:
        nonlocal used
        while True:
            await share.turn("flood")
            used += step

    for _ in range(50):
        nursery.start_soon(flood)
    await trio.sleep(60.0)
    for _ in range(5):
        began = trio.current_time()
        await share.turn("other")
        used += step
        assert trio.current_time() - began <= 2 * step / 0.1 + 0.1
    impatient = 0
    for _ in range(5):  # those that give up leave no gap, and no trace
        with trio.move_on_after(0.01):
            await share.turn("impatient")
            impatient += 1
    began = trio.current_time()
    await share.turn("other")
    assert trio.current_time() - began <= 2 * step / 0.1 + 0.1
    assert impatient < 5
    nursery.cancel_scope.cancel()
