"""Connecting and reconnecting: attempts, pauses, several URLs, and final refusals."""

from __future__ import annotations

import itertools
import ssl
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import CommandError, ConnectionClosedError, SaslError
from amqpmesh.router.amqp.frames import SASL_FRAME
from amqpmesh.router.amqp.sasl.exchange import SaslCode, SaslMechanisms, SaslOutcome
from amqpmesh.router.amqp.standard.definitions import ConnectionCondition, Error
from amqpmesh.router.amqp.standard.performatives import Close
from amqpmesh.router.client.connect import connect
from amqpmesh.router.client.connections.dialer import LET_IN_AGAIN
from amqpmesh.router.client.connections.identity import OPEN_TIME
from amqpmesh.router.io.dialing import Backoff
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import URL, Host, Roads, Serve, enter
from tests.support.peers.scripted import SASL, frame

A, B, C = (f"amqp://{name}.example:5672" for name in "abc")


def gaps(roads: Roads) -> list[float]:
    """Return the seconds between one attempt and the next."""
    return [later - earlier for (earlier, _), (later, _) in itertools.pairwise(roads.tries)]


def tried(roads: Roads) -> list[str]:
    return [url for _, url in roads.tries]


async def close_at_once(stream: trio.abc.Stream) -> None:
    await stream.aclose()


async def say_nothing(stream: trio.abc.Stream) -> None:
    while await stream.receive_some():
        pass


async def test_pauses_double_up_to_the_longest_and_no_two_clients_keep_the_same_time(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    both = Roads(nursery), Roads(nursery)
    for roads in both:
        with trio.move_on_after(60):
            async with roads.connect(reconnect=Backoff(first=1.0, longest=8.0)):
                raise AssertionError("nobody is there")
    for roads in both:
        longest = [1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]
        assert len(gaps(roads)) >= len(longest)
        assert all(most / 2 <= gap <= most for gap, most in zip(gaps(roads), longest, strict=False))
    assert gaps(both[0]) != gaps(both[1])


async def test_a_connection_that_lasted_begins_the_pauses_anew_and_one_that_did_not_does_not(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)

    async def open_for(seconds: float, stream: trio.abc.Stream) -> None:
        await Host(stream).open()
        await trio.sleep(seconds)
        await stream.aclose()

    times = iter([0.0, 0.0, 0.0, 0.0, 60.0, 0.0, 0.0])

    async def serve(stream: trio.abc.Stream) -> None:
        await open_for(next(times, 3600.0), stream)

    roads.lead_to(serve)
    backoff = Backoff(first=1.0, longest=100.0)
    async with roads.connect(mechanisms=(), idle_time_out=None, reconnect=backoff) as connection:
        await trio.sleep(300)
        assert connection.is_connected
        assert connection.reconnections == 7
    pauses = [gap - 60 if gap > 60 else gap for gap in gaps(roads)]
    for pause, most in zip(pauses, (1.0, 2.0, 4.0, 8.0, 1.0, 2.0, 4.0), strict=True):
        assert most / 2 <= pause <= most


async def test_a_peer_that_accepts_and_closes_at_once_is_not_hammered(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    roads.lead_to(close_at_once)
    with trio.move_on_after(100):
        async with roads.connect(reconnect=True):
            raise AssertionError("nobody is there")
    # 0.1 s at first, 10 s at most: ten attempts in the first hundred seconds are many, a hundred would be a flood.
    assert 10 <= len(roads.tries) <= 30


async def test_the_first_connection_may_come_late(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    roads = Roads(nursery)
    async with Router() as router:

        async def start_late() -> None:
            await trio.sleep(30)
            roads.lead_to(router)

        nursery.start_soon(start_late)
        async with roads.connect(reconnect=True) as connection, connection.sender("q"):
            assert 30 <= trio.current_time() <= 40
            assert connection.reconnections == 0
    assert router.statistics().is_empty


async def test_every_url_is_tried_in_turn_and_only_a_whole_round_is_followed_by_a_pause(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    async with Router() as router:

        async def start_late() -> None:
            await trio.sleep(2.5)
            roads.lead_to(router, B)

        nursery.start_soon(start_late)
        async with roads.connect([A, B, C], reconnect=Backoff(first=1.0, longest=100.0)) as connection:
            assert connection.peer.container_id == router.id
    rounds = len(tried(roads)) // 3
    assert rounds >= 2
    assert tried(roads) == [A, B, C] * rounds + [A, B]
    whole = gaps(roads)[2::3]
    assert all(gap == 0 for number, gap in enumerate(gaps(roads)) if number % 3 != 2)
    assert all(0.5 * 2**row <= gap <= 2**row for row, gap in enumerate(whole))


async def test_a_lost_connection_moves_on_to_the_next_url_and_a_lasting_one_back_to_the_first(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    async with Router() as router:
        for url in (A, B, C):
            roads.lead_to(router, url)
        async with roads.connect([A, B, C], reconnect=True) as connection:
            await trio.sleep(1)
            await roads.cut()
            await trio.sleep(60)
            assert connection.is_connected
            assert tried(roads) == [A, B]
            await roads.cut()
            await trio.sleep(1)
            assert tried(roads) == [A, B, A]
    assert router.statistics().is_empty


async def test_without_reconnect_every_url_gets_one_chance(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    roads = Roads(nursery)
    async with Router() as router:
        roads.lead_to(router, C)
        async with roads.connect([A, B, C]) as connection:
            assert connection.peer.container_id == router.id
        assert tried(roads) == [A, B, C]
        roads.close(C)
        with pytest.raises(ConnectionClosedError, match="c.example:5672.*refused"):
            await enter(roads.connect([A, B, C]))
        assert tried(roads) == [A, B, C] * 2


async def test_without_reconnect_a_lost_connection_stays_lost(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    roads = Roads(nursery)
    async with Router() as router:
        roads.lead_to(router)
        async with roads.connect() as connection, connection.sender("q") as sender:
            await roads.cut()
            await trio.testing.wait_all_tasks_blocked()
            assert not connection.is_connected
            for _ in range(2):  # each call raises it
                with pytest.raises(ConnectionClosedError, match="lost"):
                    await sender.send(b"")
                with pytest.raises(ConnectionClosedError, match="lost"):
                    await enter(connection.receiver("q"))
            with pytest.raises(ConnectionClosedError, match="lost"):
                connection.peer  # noqa: B018 - it raises
        assert len(roads.tries) == 1
    assert router.statistics().is_empty


async def test_the_peers_reason_for_closing_is_told(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    roads = Roads(nursery)
    reason = Error(condition=ConnectionCondition.CONNECTION_FORCED, description="for the night")

    async def serve(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        await host.open()
        await host.begin()
        await host.attach()
        await trio.testing.wait_all_tasks_blocked()
        await host.write(Close(error=reason))
        await host.expect(Close)

    roads.lead_to(serve)
    async with roads.connect(mechanisms=()) as connection, connection.sender("q") as sender:
        with pytest.raises(ConnectionClosedError, match="for the night") as raised:
            await sender.send(b"")
        assert raised.value.error == reason


@pytest.mark.parametrize("again", [False, True], ids=["no-reconnect", "reconnect"])
async def test_a_silent_peer_counts_as_lost(again: bool, nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    roads = Roads(nursery)

    async def serve(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        await host.open()
        await host.begin()
        await host.attach()
        await say_nothing(stream)

    roads.lead_to(serve)
    async with (
        roads.connect(mechanisms=(), idle_time_out=8.0, reconnect=again) as connection,
        connection.sender("q") as sender,
    ):
        began = trio.current_time()
        if again:
            with trio.move_on_after(10):
                await sender.send(b"")
            assert sender.is_attached
            assert connection.reconnections == 1
        else:
            with pytest.raises(ConnectionClosedError, match="idle time-out"):
                await sender.send(b"")
            assert 8 <= trio.current_time() - began <= 9.5


@pytest.mark.parametrize(
    "stalls", ["open_stream", "protocol header", "open"], ids=["before-the-stream", "before-the-header", "before-open"]
)
async def test_a_peer_that_does_not_come_as_far_as_open_is_given_up(
    stalls: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)

    async def serve(stream: trio.abc.Stream) -> None:
        if stalls == "open":
            await stream.send_all(SASL)
        await say_nothing(stream)

    roads.lead_to(serve)
    connection = roads.connect()
    if stalls == "open_stream":
        connection = connect(URL, open_stream=lambda endpoint: trio.sleep_forever())
    with pytest.raises(ConnectionClosedError, match="in time|timed out") as raised:
        await enter(connection)
    # The peer is slow and refuses nothing: with `reconnect` the client would try again.
    assert not isinstance(raised.value, SaslError)
    assert trio.current_time() <= OPEN_TIME + 1


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.example"], ids=["empty", "too long"])
async def test_a_name_that_no_host_can_have_is_told_as_such(host: str) -> None:
    with pytest.raises(ConnectionClosedError) as raised:
        await enter(connect(f"amqp://{host}"))
    assert str(raised.value) == f"amqp://{host}:5672: that is no name of a host"


async def test_a_peer_that_hangs_in_its_handshake_is_tried_again(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    async with Router() as router:

        async def serve(stream: trio.abc.Stream) -> None:
            if len(roads.tries) < 3:
                await stream.send_all(SASL)
                await say_nothing(stream)
            else:
                await router.serve_stream(stream)

        roads.lead_to(serve)
        async with roads.connect(reconnect=True) as connection:
            assert connection.is_connected
        assert len(roads.tries) == 3


async def refuse(stream: trio.abc.Stream, code: SaslCode) -> None:
    host = Host(stream)
    assert await host.expect_header() == SASL
    offer = SaslMechanisms(sasl_server_mechanisms=(Symbol("ANONYMOUS"),))
    await host.write(SASL, frame(encode_composite(offer), type=SASL_FRAME))
    await host.write(frame(encode_composite(SaslOutcome(code=code)), type=SASL_FRAME))
    await host.stream.aclose()


@pytest.mark.parametrize("code", [SaslCode.AUTH, SaslCode.SYS, SaslCode.SYS_PERM])
async def test_a_client_that_a_peer_does_not_let_in_does_not_ask_again(
    code: SaslCode, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    roads.lead_to(lambda stream: refuse(stream, code))
    with pytest.raises(SaslError):
        await enter(roads.connect(reconnect=True))
    assert len(roads.tries) == 1


async def test_a_peer_that_cannot_tell_now_is_asked_again(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    roads = Roads(nursery)
    async with Router() as router:

        async def serve(stream: trio.abc.Stream) -> None:
            if len(roads.tries) < 4:
                await refuse(stream, SaslCode.SYS_TEMP)
            else:
                await router.serve_stream(stream)

        roads.lead_to(serve)
        async with roads.connect(reconnect=True) as connection:
            assert connection.is_connected
        assert len(roads.tries) == 4
        roads = Roads(nursery)
        roads.lead_to(lambda stream: refuse(stream, SaslCode.SYS_TEMP))
        with pytest.raises(SaslError):
            await enter(roads.connect())


def letting_in_again(roads: Roads, router: Router, refused: list[float], is_up: Callable[[], bool]) -> Serve:
    """Return a broker that lets in the first client, and the others once it `is_up`. Args: refused: gets the times."""

    async def serve(stream: trio.abc.Stream) -> None:
        if len(roads.tries) == 1 or (refused and is_up()):
            await router.serve_stream(stream)
        else:
            refused.append(trio.current_time())
            await refuse(stream, SaslCode.AUTH)

    return serve


@pytest.mark.parametrize("refusals", [4, 1000])
async def test_a_login_that_was_accepted_before_is_tried_again_for_a_while(
    refusals: int, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """A broker that starts again may refuse everybody until it knows its users."""
    roads = Roads(nursery)
    refused: list[float] = []
    async with Router() as router:
        roads.lead_to(letting_in_again(roads, router, refused, lambda: len(refused) == refusals))
        async with roads.connect(reconnect=Backoff(longest=2.0)) as connection:
            await roads.cut()
            if refusals == 4:
                async with connection.receiver("q"):
                    assert len(refused) == 4
            else:
                with pytest.raises(SaslError):
                    await connection.receiver("q").__aenter__()
                assert abs(refused[-1] - refused[0] - LET_IN_AGAIN) < 4.0  # pauses are random


async def test_a_broker_that_was_down_between_two_refusals_has_all_the_time_again(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    refused: list[float] = []
    async with Router() as router:
        serve = letting_in_again(
            roads, router, refused, lambda: trio.current_time() - refused[0] > 2 * LET_IN_AGAIN + 10.0
        )
        roads.lead_to(serve)
        async with roads.connect(reconnect=Backoff(longest=2.0)) as connection:
            await roads.cut()
            while not refused:
                await trio.sleep(0.01)
            roads.close()
            await trio.sleep(2 * LET_IN_AGAIN)
            assert refused[-1] - refused[0] < LET_IN_AGAIN
            roads.lead_to(serve)
            async with connection.receiver("q"):
                assert refused[-1] - refused[0] > 2 * LET_IN_AGAIN - 1.0


async def test_a_certificate_that_is_not_believed_is_final(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    trustme = pytest.importorskip("trustme")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("router.example").configure_cert(server)

    async def serve(stream: trio.abc.Stream) -> None:
        with pytest.raises(trio.BrokenResourceError):
            await trio.SSLStream(stream, server, server_side=True).do_handshake()

    roads = Roads(nursery)
    url = URL.replace("amqp", "amqps")
    roads.lead_to(serve, url)
    with pytest.raises(ConnectionClosedError, match="TLS"):
        await enter(roads.connect(url, reconnect=True))
    assert len(roads.tries) == 1


async def test_leaving_while_it_reconnects_ends_at_once(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    roads = Roads(nursery)
    async with Router() as router:
        roads.lead_to(router)
        async with roads.connect(reconnect=Backoff(100.0, 100.0)) as connection:
            async with connection.sender("q"), connection.receiver("p"):
                roads.close()
                await roads.cut()
                await trio.sleep(10)
                assert not connection.is_connected
                left_at = trio.current_time()
            assert trio.current_time() == left_at
        assert trio.current_time() == left_at
    assert router.statistics().is_empty


async def test_a_connection_is_entered_once_and_makes_nothing_outside(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    async with Router() as router:
        roads.lead_to(router)
        connection = roads.connect()
        with pytest.raises(CommandError, match="not opened"):
            await enter(connection.sender("q"))
        with pytest.raises(ConnectionClosedError):
            _ = connection.peer
        async with connection:
            with pytest.raises(CommandError, match="once"):
                await enter(connection)
        with pytest.raises(CommandError, match="left"):
            await enter(connection.sender("q"))
        with pytest.raises(ConnectionClosedError):
            _ = connection.peer
    assert router.statistics().is_empty
