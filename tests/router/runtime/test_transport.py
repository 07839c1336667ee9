"""The transport of one connection among others: reads, writes, and faults."""

import logging
import socket
import struct
from contextlib import suppress
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from amqpmesh.router.amqp.frames import EMPTY_FRAME
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Close, Detach, Open, Transfer
from amqpmesh.router.config.file import ListenerConfig
from amqpmesh.router.core import Core
from amqpmesh.router.io import streams
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.router.runtime import transport
from amqpmesh.router.runtime.router import Router
from tests.support.peers.scripted_stream import AMQP, Peer, attached, begun, connect, connected, credit, frame
from tests.support.tasks.stopwatches import measure
from tests.support.worlds.sockets import EITHER_WAY

pytestmark = EITHER_WAY

LOOPBACK = "amqp://127.0.0.1:0"


class Recorded(trio.abc.Stream):
    """A stream that notes the octets of each write."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.written: list[bytes] = []

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self.stream.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self.stream.aclose()


class Failing(Recorded):
    """A stream with an internal error, which is no fault of the peer or the network."""

    def __init__(self, stream: trio.abc.Stream, when: str) -> None:
        super().__init__(stream)
        self.when = when

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self.when == "reading":
            raise ZeroDivisionError
        return await super().receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self.when == "writing":
            raise ZeroDivisionError
        await super().send_all(data)


async def test_the_output_of_a_batch_leaves_in_one_write(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router() as router:
        ours, theirs = memory_stream_pair()
        recorded = Recorded(theirs)
        nursery.start_soon(router.serve_stream, recorded)
        peer = Peer(ours)
        await peer.attach(Role.RECEIVER, "q")
        assert len(recorded.written) == 1
        await peer.close()


async def test_a_stream_that_comes_byte_by_byte_is_read_as_any_other(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        peer = connected(nursery, router)
        everything = AMQP + frame(Open(container_id="slow")) + frame(begun()) + frame(attached(Role.RECEIVER, "q"))
        for position in range(len(everything)):
            await peer.write(everything[position : position + 1])
        assert await peer.expect_header() == AMQP
        for kind in (Open, Begin, Attach):
            await peer.expect(kind)
        await peer.close()
    assert router.statistics().is_empty


async def test_a_long_batch_gives_the_thread_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    received: list[int] = []
    turns = 0
    receive = Core.receive

    def slow(core: Core, record: ConnectionRecord, data: bytes, at: float) -> bool:
        nonlocal now
        now += 0.006  # seconds of work, which each part of the batch takes
        received.append(turns)
        return receive(core, record, data, at)

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    measure(lambda: now)
    async with Router(listeners=[LOOPBACK]) as router, trio.open_nursery() as nursery:
        peer = await connect(router)
        await peer.open()
        received.clear()
        nursery.start_soon(take_turns)
        monkeypatch.setattr(Core, "receive", slow)
        await peer.write(EMPTY_FRAME * 8192, Close())
        await peer.expect(Close)
        nursery.cancel_scope.cancel()
    assert len(received) >= 8
    # Trio runs ready tasks in any order. So two parts may come between two turns, but not three.
    assert all(later > earlier for earlier, later in zip(received, received[2:], strict=False))


async def test_a_peer_that_does_not_read_stops_nobody_and_misses_nothing() -> None:
    body = b"x" * 50_000
    number = 400  # 20 MB: far more than sockets and router take

    async def flood(sender: Peer) -> None:
        for each in range(number):
            await sender.send(each, body, settled=True)

    async with Router(listeners=[LOOPBACK], max_frame_size=65_536) as router, trio.open_nursery() as nursery:
        stalled, flooding, receiver, sender = [await connect(router) for _ in range(4)]
        await stalled.attach(Role.RECEIVER, "slow")
        await stalled.write(credit(1000))
        await flooding.attach(Role.SENDER, "slow")
        await receiver.attach(Role.RECEIVER, "fast")
        await receiver.write(credit(1000))
        await sender.attach(Role.SENDER, "fast")
        nursery.start_soon(flood, flooding)
        while router.statistics().router.buffered == 0:  # until the sockets are full
            await trio.lowlevel.checkpoint()
        for each in range(1000):
            await sender.send(each, b"hello", settled=True)
            await receiver.expect(Transfer)
        for each in range(number):
            assert (await stalled.expect(Transfer)).delivery_id == each
            assert stalled.payload.endswith(body)
        for peer in (stalled, flooding, receiver, sender):
            await peer.close()
    assert router.statistics().is_empty


@pytest.mark.parametrize("sends", [True, False])
async def test_less_output_waits_in_the_system_if_its_peer_does_not_read_and_sends(
    sends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    monkeypatch.setattr(streams.TcpStream, "limit_unsent", lambda _, octets: limits.append(octets))
    async with Router(listeners=[LOOPBACK], max_frame_size=65_536) as router, trio.open_nursery() as nursery:
        stalled, flooding = await connect(router), await connect(router)
        await stalled.attach(Role.RECEIVER, "slow")
        other = replace(attached(Role.SENDER if sends else Role.RECEIVER, "other"), name="other", handle=1)
        await stalled.write(credit(1000), other)
        await stalled.expect(Attach)
        await flooding.attach(Role.SENDER, "slow")

        async def flood() -> None:
            for each in range(1000):
                await flooding.send(each, b"x" * 50_000, settled=True)

        nursery.start_soon(flood)
        with trio.fail_after(10):
            while router.statistics().router.buffered == 0:  # until the sockets are full
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert limits == ([streams.UNSENT_TO_SENDER] if sends else [])


async def test_a_peer_that_asks_on_and_reads_no_answer_is_read_no_further(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "BACKLOG_LIMIT", 100_000)
    asked = 0

    async def ask(peer: Peer) -> None:
        nonlocal asked
        question = frame(replace(attached(Role.RECEIVER, "q"), handle=1)) + frame(Detach(handle=1, closed=True))
        for _ in range(100):
            await peer.write(question * 20)
            asked += 20

    async with Router() as router, trio.open_nursery() as asking:
        ours, theirs = lockstep_stream_pair()  # a write waits until the octets are read
        nursery.start_soon(router.serve_stream, theirs)
        peer = Peer(ours)
        await peer.open()
        await peer.write(begun())
        asking.start_soon(ask, peer)
        await trio.testing.wait_all_tasks_blocked()
        assert 100 <= asked <= 1500
        for _ in range(2000):
            while not isinstance((await peer.next_frame() or ("the end",))[0], Detach):
                pass
        await wait_all_tasks_blocked()  # the writing task may run later than this one
        assert asked == 2000
        await peer.close()
    assert router.statistics().is_empty


async def test_a_message_that_came_before_its_peer_vanished_is_delivered() -> None:
    async with Router(listeners=[LOOPBACK]) as router:
        receiver, sender = await connect(router), await connect(router)
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(100))
        await sender.attach(Role.SENDER, "q")
        for number in range(100):
            await sender.send(number, settled=True)
        # The sender closes its socket before it has read all octets: the router's writes fail.
        await sender.stream.aclose()
        for number in range(100):
            assert (await receiver.expect(Transfer)).delivery_id == number
        await receiver.close()
    assert router.statistics().is_empty


async def test_a_connection_that_is_reset_is_over() -> None:
    async with Router(listeners=[LOOPBACK]) as router:
        receiver, sender = await connect(router), await connect(router)
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(1))
        await sender.attach(Role.SENDER, "q")
        await sender.send(0)
        transfer = await receiver.expect(Transfer)
        assert isinstance(sender.stream, trio.SocketStream)
        sender.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await sender.stream.aclose()
        with trio.fail_after(60):
            while router.statistics().router.connections > 1:
                await trio.lowlevel.checkpoint()
        await receiver.accept(transfer)
        await receiver.close()
    assert router.statistics().is_empty


async def test_the_answer_reaches_a_peer_that_is_still_sending() -> None:
    async def send_on(peer: Peer) -> None:
        with suppress(trio.BrokenResourceError):
            while True:
                await peer.write(b"GET / HTTP/1.1\r\n" * 1000)

    async with Router(listeners=[LOOPBACK]) as router, trio.open_nursery() as nursery:
        peer = await connect(router)
        nursery.start_soon(send_on, peer)
        # Closing a socket with unread octets resets it, and the peer loses octets that it has not read yet.
        assert await peer.expect_header() == AMQP
        await peer.expect_end()
        nursery.cancel_scope.cancel()
    assert router.statistics().is_empty


async def test_a_stream_that_is_refused_is_read_on_until_the_peer_ends_it_or_a_second_has_passed(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        patient, rude = connected(nursery, router), connected(nursery, router)
        for peer in (patient, rude):
            await peer.write(b"GET / HTTP/1.1\r\n")
            assert await peer.expect_header() == AMQP
            await peer.expect_end()
        await wait_all_tasks_blocked()
        for peer in (patient, rude):
            await peer.write(b"Host: a\r\n")
        await patient.stream.aclose()
        await trio.sleep(1.1)
        with pytest.raises(trio.BrokenResourceError):
            await rude.write(b"\r\n")
    assert router.statistics().is_empty


@pytest.mark.parametrize("when", ["reading", "writing"])
async def test_a_fault_of_ours_costs_one_connection_and_is_logged_once(
    when: str, nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with Router() as router:
        other = connected(nursery, router)
        await other.attach(Role.RECEIVER, "q")
        ours, theirs = memory_stream_pair()
        async with trio.open_nursery() as own:
            own.start_soon(router.serve_stream, Failing(theirs, when))
            peer = Peer(ours)
            with suppress(trio.BrokenResourceError):  # the fault may come first
                await peer.write(AMQP)
            assert await peer.next_frame() is None
        faults = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert [record.exc_info is not None and record.exc_info[0] for record in faults] == [ZeroDivisionError]
        await other.write(credit(1))
        await other.close()
    assert router.statistics().is_empty


@pytest.mark.parametrize("call", ["receive", "data_to_send"])
async def test_a_fault_in_the_core_costs_the_connection_that_it_happened_on(
    call: str,
    nursery: trio.Nursery,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = getattr(Core, call)

    def faulty(core: Core, record: ConnectionRecord, *arguments: object) -> object:
        if record.peer.container_id == "peer-SENDER":
            raise ZeroDivisionError
        return whole(core, record, *arguments)

    monkeypatch.setattr(Core, call, faulty)
    async with Router() as router:
        receiver, sender = connected(nursery, router), connected(nursery, router)
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(1))
        await sender.write(AMQP, Open(container_id="peer-SENDER"))
        await sender.write(begun(), attached(Role.SENDER, "q"))
        while await sender.stream.receive_some():
            pass
        faults = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert len(faults) == 1
        await receiver.close()
    assert router.statistics().is_empty


async def test_a_fault_in_a_timer_ends_nothing(
    nursery: trio.Nursery,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def faulty(core: Core, now: float) -> None:
        raise ZeroDivisionError

    async with Router() as router:
        peer = connected(nursery, router)
        await peer.open()
        with monkeypatch.context() as patch:
            patch.setattr(Core, "handle_timer", faulty)
            await trio.sleep(12.5)
        faults = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert 1 <= len(faults) <= 13, "it is tried again, but not all the time"
        await peer.expect(Close)  # the timers run on: the peer has sent nothing
    assert router.statistics().is_empty


async def test_a_deadline_that_is_not_needed_is_not_set_when_a_peer_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trio keeps each deadline until it has passed, and so the page of memory that it is in."""
    asked = []
    move_on_after = trio.move_on_after

    def noted(seconds: float, **others: bool) -> trio.CancelScope:
        asked.append(seconds)
        return move_on_after(seconds, **others)

    monkeypatch.setattr(trio, "move_on_after", noted)
    async with Router(id="A", listeners=[LOOPBACK]) as router:
        peer = await connect(router)
        await peer.open()
        await peer.close()
        while router.statistics().router.connections:
            await trio.lowlevel.checkpoint()
        assert transport.WRITE_TIME_OUT not in asked


def narrow(router: Router) -> list[int]:
    """Return the narrow windows of the router's connections."""
    assert router._core is not None
    return [each.engine.flow_state.narrow for each in router._core.context.connections]


async def test_what_is_large_may_have_on_its_way_what_a_round_trip_takes_and_no_more() -> None:
    listener = ListenerConfig(url=LOOPBACK, narrow_window=7, max_frame_size=1_000_000)
    async with Router(id="A", listeners=[listener]) as router:
        peer = await connect(router)
        await peer.open()
        (found,) = (each for each in narrow(router) if each < 2**30)
        assert 7 <= found <= 7 + 50  # each frame takes a millisecond on the way


async def test_where_nobody_knows_how_far_it_is_nothing_is_narrowed(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "TCP_INFO", None)
    async with Router(id="A", listeners=[LOOPBACK]) as router:
        peer, other = await connect(router), connected(nursery, router)
        await peer.open()
        await other.open()
        assert min(narrow(router)) > 2**30
