"""The one task for all sockets: its turns, and their limits."""

import errno
import os
import socket
from itertools import pairwise
from typing import cast

import pytest
import trio
import trio.testing

from amqpmesh.router.amqp.frames import EMPTY_FRAME
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import Attach, Open, Transfer
from amqpmesh.router.core import Core
from amqpmesh.router.io.streams import READ_SIZE, TcpStream
from amqpmesh.router.logs.event_log import event_of
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.router.runtime import polled, poller
from amqpmesh.router.runtime.accepted import AcceptedTransport
from amqpmesh.router.runtime.driver import LEAST_SLICE, Driver
from amqpmesh.router.runtime.polled import SMALL_READS, PolledTransport
from amqpmesh.router.runtime.router import Router
from tests.support.peers.scripted_stream import AMQP, Peer, attached, begun, connect, credit, frame
from tests.support.tasks.stopwatches import measure

pytestmark = pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")

LOOPBACK = "amqp://127.0.0.1:0"
SENDERS = 12


class Work:
    """A stopwatch. Each part of the input that reaches the core takes as long on it as a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        self.takes = 0.0
        self.done = 0
        receive = Core.receive

        def working(core: Core, record: ConnectionRecord, data: bytes, now: float) -> bool:
            self.seconds += self.takes
            self.done += 1
            return receive(core, record, data, now)

        monkeypatch.setattr(Core, "receive", working)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


def run_to_end(peer: Peer, data: bytes) -> None:
    """Write without giving the router a turn."""
    assert isinstance(peer.stream, trio.SocketStream)
    with socket.socket(fileno=socket.dup(peer.stream.socket.fileno())) as raw:
        assert raw.send(data) == len(data)


@pytest.mark.parametrize(
    ("takes", "least", "most"), [(0.0, 1, 2), (0.001, SENDERS // 2, SENDERS)], ids=["fast", "slow"]
)
async def test_quick_batches_share_a_write_and_slow_ones_wait_for_no_other(
    takes: float, least: int, most: int, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0
    data_to_send = Core.data_to_send

    def noted(core: Core, record: ConnectionRecord, now: float) -> bytes:
        nonlocal written
        data = data_to_send(core, record, now)
        written += bool(data) and record.peer.container_id == "peer-RECEIVER"
        return data

    monkeypatch.setattr(Core, "data_to_send", noted)
    measure(lambda: work.seconds)
    async with Router(listeners=[LOOPBACK]) as router:
        receiver = await connect(router)
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(1000))
        senders = [await connect(router) for _ in range(SENDERS)]
        for number, each in enumerate(senders):
            await each.write(AMQP, Open(container_id=f"sender {number}"), begun(), attached(Role.SENDER, "q"))
            assert await each.expect_header() == AMQP
            while not each.limit:
                await each.next_frame()
        work.takes = takes
        written = 0
        transfer = frame(
            Transfer(handle=0, delivery_id=0, delivery_tag=b"0", message_format=0, settled=True), b"\x00\x53\x77\x40"
        )
        for each in senders:
            run_to_end(each, transfer)
        for _ in senders:
            await receiver.expect(Transfer)
        assert least <= written <= most
        work.takes = 0.0
        for peer in (receiver, *senders):
            await peer.close()
    assert router.statistics().is_empty


class Settled:
    """A driver that has no output."""

    def settle(self, within: float) -> bool:
        assert within > 0
        return False


class Served:
    """An object with a socket that never becomes ready."""

    is_heavy = False

    def __init__(self) -> None:
        self.times = 0
        self.was = trio.Event()

    def serve(self, until: float) -> bool:
        assert until > 0
        self.times += 1
        self.was.set()
        return False


async def test_a_connection_with_work_to_do_is_served_without_an_event_of_the_system(nursery: trio.Nursery) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        several = poller.Poller(cast(Driver, Settled()), nursery.start_soon)
        served = Served()
        several.add(ours.fileno(), served, 0)
        for times in range(1, 4):
            await trio.testing.wait_all_tasks_blocked()  # it waits for the system
            assert served.times == times - 1
            served.was = trio.Event()
            several.serve_soon(ours.fileno())
            with trio.fail_after(60):
                await served.was.wait()
            assert served.times == times
        several.serve_soon(ours.fileno())
        several.remove(ours.fileno())
        await trio.testing.wait_all_tasks_blocked()
        assert served.times == 3
        several.end()


async def test_it_reads_less_at_once_only_after_several_small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    was_read = trio.Event()
    receive_nowait = TcpStream.receive_nowait

    def noted(stream: TcpStream, size: int) -> bytes | None:
        data = receive_nowait(stream, size)
        if data == EMPTY_FRAME:
            sizes.append(size)
            was_read.set()
        return data

    async with Router(listeners=[LOOPBACK]) as router:
        peer = await connect(router)
        await peer.open()
        # At some time so much of 3 MiB is there at once that a read takes more than the smallest part.
        await peer.write(EMPTY_FRAME * (3 * 2**20 // len(EMPTY_FRAME)))
        while router.statistics().router.octets_in < 3 * 2**20:
            await trio.lowlevel.checkpoint()
        monkeypatch.setattr(TcpStream, "receive_nowait", noted)
        for _ in range(10 * SMALL_READS):
            was_read = trio.Event()
            await peer.write(EMPTY_FRAME)
            await was_read.wait()
        await peer.close()
    assert sizes[0] > READ_SIZE
    assert sizes[-1] == READ_SIZE
    assert sizes == sorted(sizes, reverse=True)
    assert all(sizes.count(size) == SMALL_READS for size in set(sizes[SMALL_READS:]) - {READ_SIZE})
    assert router.statistics().is_empty


async def test_the_more_is_not_told_yet_the_less_is_read_at_once(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    unread = list[int]()
    receive = Core.receive

    def noted(core: Core, record: ConnectionRecord, data: bytes, now: float) -> bool:
        assert router._driver is not None
        unread.append(router._driver.unread)
        return receive(core, record, data, now)

    measure(lambda: work.seconds)
    monkeypatch.setattr(polled, "UNREAD", 2**17)
    much = EMPTY_FRAME * (2**18 // len(EMPTY_FRAME))
    async with Router(listeners=[LOOPBACK]) as router:
        senders = [await connect(router) for _ in range(SENDERS)]
        for each in senders:
            await each.open()
        monkeypatch.setattr(Core, "receive", noted)
        work.takes = 0.01
        async with trio.open_nursery() as nursery:
            for each in senders:
                nursery.start_soon(each.write, much)
        while router.statistics().router.octets_in < SENDERS * len(much):
            await trio.lowlevel.checkpoint()
        work.takes = 0.0
        for each in senders:
            await each.close()
    assert 2**16 < max(unread) <= 2**17 + SENDERS * LEAST_SLICE
    assert router.statistics().is_empty


async def test_the_thread_is_given_back_however_many_connections_are_ready(work: Work) -> None:
    turns: list[int] = []

    async def take_turns() -> None:
        while True:
            turns.append(work.done)
            await trio.lowlevel.checkpoint()

    measure(lambda: work.seconds)
    async with Router(listeners=[LOOPBACK]) as router, trio.open_nursery() as nursery:
        peers = [await connect(router) for _ in range(20)]
        for peer in peers:
            await peer.open()
        work.takes, work.done = 0.002, 0
        for peer in peers:
            run_to_end(peer, EMPTY_FRAME)
        nursery.start_soon(take_turns)
        while work.done < len(peers):
            await trio.lowlevel.checkpoint()
        work.takes = 0.0
        nursery.cancel_scope.cancel()
    # 5 ms are three parts. Trio runs ready tasks in any order, so two such turns may come between two of the others.
    assert max(later - earlier for earlier, later in pairwise(turns)) <= 6
    for peer in peers:
        await peer.stream.aclose()


async def test_who_has_little_waits_for_one_at_most_of_those_who_have_much(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    receive = Core.receive

    def noted(core: Core, record: ConnectionRecord, data: bytes, now: float) -> bool:
        name = record.peer.container_id or ""
        if not told or told[-1] != name:
            told.append(name)
            if len(told) == 4:  # the first one was light; two heavy ones have had their turns
                run_to_end(light, EMPTY_FRAME)
        return receive(core, record, data, now)

    def is_heavy(transport: PolledTransport) -> bool:
        # The real rule depends on the octets that a peer sent. The system may show these in parts, the last one small.
        return transport._record.peer.container_id != "light"

    measure(lambda: work.seconds)
    much = EMPTY_FRAME * (READ_SIZE // len(EMPTY_FRAME))
    async with Router(listeners=[LOOPBACK]) as router:
        light = await connect(router)
        heavy = {f"heavy {number}": await connect(router) for number in range(SENDERS)}
        for name, each in {"light": light, **heavy}.items():
            await each.write(AMQP, Open(container_id=name))
            assert await each.expect_header() == AMQP
            await each.expect(Open)
        work.takes = 0.001
        monkeypatch.setattr(PolledTransport, "is_heavy", property(is_heavy))
        monkeypatch.setattr(Core, "receive", noted)
        for each in (light, *heavy.values()):
            run_to_end(each, EMPTY_FRAME if each is light else much)
        with trio.fail_after(60):
            while not {"light", *heavy} <= set(told):
                await trio.lowlevel.checkpoint()
        assert told[0] == "light"
        assert "light" in told[4:6]
        assert set(told[: SENDERS + 2]) == {"light", *heavy}, "all have had a turn before any had a second"
        work.takes = 0.0
        for peer in (light, *heavy.values()):
            await peer.stream.aclose()
    assert router.statistics().is_empty


async def test_where_the_system_has_nothing_left_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    make = os.eventfd
    made = list[int]()

    def scarce(*of: int) -> int:
        if len(made) < 2:  # the listener's attempt, and that of the first connection
            made.append(-1)
            raise OSError(errno.EMFILE, "too many open files")
        made.append(make(*of))
        return made[-1]

    monkeypatch.setattr(os, "eventfd", scarce)
    async with Router(listeners=[LOOPBACK]) as router:
        first = await connect(router)
        await first.expect_end()
        second = await connect(router)
        await second.attach(Role.SENDER, "a")
        await second.close()
    assert len(made) == 3


@pytest.mark.parametrize("step", ["serve", "conclude"])
async def test_a_fault_in_one_connection_leaves_the_others_served(
    step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Router(listeners=[LOOPBACK], drain=0.1) as router:
        faulty, other = await connect(router), await connect(router)
        for each in (faulty, other):
            await each.attach(Role.RECEIVER, "q")
        with monkeypatch.context() as broken:
            broken.setattr(AcceptedTransport, step, fail)
            await faulty.stream.aclose()
            with trio.fail_after(60):
                while not any(event_of(each) == "internal error" for each in caplog.records):
                    await trio.sleep(0.001)
        await other.write(attached(Role.SENDER, "q", handle=1))
        assert (await other.expect(Attach)).handle == 1
        await other.close()


def fail(*_: object) -> bool:
    raise RuntimeError("a fault")
