"""Inputs that wait until their output can be written: the ends of such a wait, and its limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Transfer
from amqpmesh.router.config.file import ListenerConfig, RouterConfig
from amqpmesh.router.core import Core
from amqpmesh.router.kernel import IMPATIENCE, LONGEST, ONE_WAY, PATIENCE, FastRoute, KernelConnection
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.router.runtime import poller
from amqpmesh.router.runtime.driver import Driver, PausedReader
from amqpmesh.router.runtime.router import Router
from tests.support.peers.scripted import begun, flow
from tests.support.peers.scripted_stream import Peer, attached, connect, credit, frame


class Waiting:
    """Counts how often it is told to go on."""

    def __init__(self) -> None:
        self.times = 0

    def resume_reading(self) -> None:
        self.times += 1


class Output:
    """Takes nothing."""

    def flush(self, now: float) -> None:
        pass


def connected(core: Core, driver: Driver) -> ConnectionRecord:
    record = core.accept(ListenerConfig(url="amqp://127.0.0.1:0"), "127.0.0.1", trio.current_time(), secured=False)
    driver.connect(record, Output())
    return record


async def test_it_ends_when_the_output_is_written_or_its_peer_says_something_or_is_gone() -> None:
    core = Core(RouterConfig(), trio.current_time())
    driver = Driver(core)
    sink, other = connected(core, driver), connected(core, driver)
    waiting = Waiting()
    for times, end in enumerate((driver.writable, driver.heard, driver.lost), 1):
        driver.wait(waiting, sink.engine.flow_state)
        driver.heard(other)
        assert driver.paused
        assert waiting.times == times - 1
        end(sink)
        assert waiting.times == times
        assert not driver.paused
    assert sink.engine.flow_state.slow_until == 0.0


async def test_it_ends_soon_in_any_case_and_then_nobody_waits_for_a_while(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    core = Core(RouterConfig(), trio.current_time())
    driver = Driver(core)
    nursery.start_soon(driver.run_timers)
    sink, later = connected(core, driver), connected(core, driver)
    first, second = Waiting(), Waiting()
    driver.wait(first, sink.engine.flow_state)
    await trio.sleep(PATIENCE / 2)
    driver.wait(second, later.engine.flow_state)
    await trio.sleep(PATIENCE * 0.6)
    assert (first.times, second.times) == (1, 0)
    assert sink.engine.flow_state.slow_until > trio.current_time() + IMPATIENCE - PATIENCE
    await trio.sleep(PATIENCE)
    assert (first.times, second.times) == (1, 1)
    assert not driver.paused
    nursery.cancel_scope.cancel()


async def test_readers_that_wait_for_a_route_wait_longer_than_others(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    core = Core(RouterConfig(), trio.current_time())
    driver = Driver(core)
    nursery.start_soon(driver.run_timers)
    sink, other = connected(core, driver), connected(core, driver)
    patient, waiting, route = Waiting(), Waiting(), FastRoute()
    route.queue = sink.engine.flow_state
    driver.wait(patient, sink.engine.flow_state, route)
    driver.wait(waiting, other.engine.flow_state)
    await trio.sleep(1.1 * PATIENCE)
    assert (patient.times, waiting.times) == (0, 1)
    await trio.sleep(LONGEST - 0.2 * PATIENCE - PATIENCE)
    assert patient.times == 0
    await trio.sleep(0.2 * PATIENCE)
    assert patient.times == 1
    assert sink.engine.flow_state.slow_until > trio.current_time()
    nursery.cancel_scope.cancel()


async def test_a_reader_that_waits_for_a_route_stays_until_the_route_is_ready(autojump_clock: MockClock) -> None:
    core = Core(RouterConfig(), trio.current_time())
    driver = Driver(core)
    sink = connected(core, driver)
    flow_state, waiting, route = sink.engine.flow_state, Waiting(), FastRoute()
    route.queue = flow_state
    for end in (driver.writable, driver.heard):
        driver.wait(waiting, flow_state, route)
        driver.wait(waiting, flow_state)
        end(sink)
        assert waiting.times == 1, "the one without a route"
        assert driver.paused
        route.queue = None
        end(sink)
        assert waiting.times == 2
        assert not driver.paused
        route.queue, waiting.times = flow_state, 0
    driver.wait(waiting, flow_state, route)
    driver.lost(sink)
    assert waiting.times == 1


@pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")
async def test_an_anonymous_sender_that_goes_one_way_needs_few_decisions_with_little_credit() -> None:
    number, credited = 20 * ONE_WAY, 10

    async with Router(listeners=["amqp://127.0.0.1:0"], max_frame_size=65_536) as router:
        receiver, sender = await connect(router), await connect(router)
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(credited))
        await sender.attach(Role.SENDER, None)

        async def flood() -> None:
            for each in range(number):
                await sender.send(each, b"%04d" % each, settled=True, to="q")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            for each in range(1, number + 1):
                assert (await receiver.expect(Transfer)).delivery_id == each - 1
                assert receiver.payload.endswith(b"%04d" % (each - 1))
                if each % credited == 0:
                    await receiver.write(flow(handle=0, delivery_count=each, link_credit=credited))
        (address,) = (each for each in router.statistics().addresses if each.name == "q")
        decided = sum(address.decisions.values())
        assert address.relayed + decided == number
        assert decided <= 4 * ONE_WAY, "each has waited in the router, and not before it"
        await sender.close()
        await receiver.close()


@pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")
@pytest.mark.parametrize("ends", ["read", "late", "gone"])
async def test_unread_octets_come_whole_and_in_order(
    ends: str, nursery: trio.Nursery, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b"x" * 60_000
    number = 400  # far more than sockets and router take
    awaited = trio.Event()
    wait = Driver.wait

    def noted(driver: Driver, reader: PausedReader, sink: KernelConnection, route: FastRoute | None) -> None:
        wait(driver, reader, sink, route)
        awaited.set()

    monkeypatch.setattr(Driver, "wait", noted)

    async def flood(sender: Peer) -> None:
        for each in range(2, number):
            await sender.send(each, each.to_bytes(4, "big") + body, settled=True)

    async def read(receiver: Peer, first: int) -> int:
        """Until the last of them. Returns: how many came."""
        for count in range(number):
            assert (await receiver.expect(Transfer)).delivery_id == count
            place = int.from_bytes(receiver.payload[8:12], "big")
            assert receiver.payload[12:] == body
            assert place == first + count
            if place == number - 1:
                return count + 1
        raise AssertionError("the last one did not come")

    async with Router(listeners=["amqp://127.0.0.1:0"], max_frame_size=65_536) as router:
        receiver, sender = await connect(router), await connect(router)
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(1000))
        await sender.attach(Role.SENDER, "q")
        for each in range(2):  # the first is decided, those that follow are not
            await sender.send(each, each.to_bytes(4, "big") + body, settled=True)
            while router.statistics().links[0].deliveries <= each:
                await trio.lowlevel.checkpoint()
        mock_clock.jump(1.0)  # that all that is large goes there has been so for long enough
        nursery.start_soon(flood, sender)
        await awaited.wait()
        more = True
        if ends == "late":
            came = sum(each.deliveries for each in router.statistics().links)
            mock_clock.jump(1.5 * LONGEST)
            for _ in range(1000):
                await trio.lowlevel.checkpoint()
            more = sum(each.deliveries for each in router.statistics().links) > came
        if ends == "gone":
            await receiver.stream.aclose()
            receiver = await connect(router)
            await receiver.attach(Role.RECEIVER, "q")
            await receiver.write(credit(1000))
            transfer = await receiver.expect(Transfer)
            first = int.from_bytes(receiver.payload[8:12], "big")
            assert transfer.delivery_id == 0
            while first < number - 1:
                await receiver.expect(Transfer)
                first += 1
                assert receiver.payload[8:] == first.to_bytes(4, "big") + body
        else:
            assert await read(receiver, 0) == number
        assert more, "it is told of though nobody reads"
        await sender.close()
        await receiver.close()
    assert router.statistics().is_empty


@pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")
async def test_a_connection_that_waits_for_its_own_output_waits_once(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b"\x00\x53\x75\xb0" + (60_000).to_bytes(4, "big") + b"x" * 60_000
    awaited = trio.Event()
    times = 0
    wait = Driver.wait

    def noted(driver: Driver, reader: PausedReader, sink: KernelConnection, route: FastRoute | None) -> None:
        nonlocal times
        wait(driver, reader, sink, route)
        times += 1
        awaited.set()

    monkeypatch.setattr(Driver, "wait", noted)

    async with Router(listeners=["amqp://127.0.0.1:0"], max_frame_size=65_536, drain=0.0) as router:
        peer = await connect(router)
        await peer.attach(Role.SENDER, "q")
        await peer.write(begun(), replace(attached(Role.RECEIVER, "q"), name="in"), credit(1000), channel=1)
        await peer.expect(Begin)
        await peer.expect(Attach)
        while not peer.limit:
            await peer.next_frame()
        limit = peer.limit

        async def send(first: int, last: int) -> None:
            for each in range(first, last):
                tag = each.to_bytes(4, "big")
                transfer = Transfer(handle=0, delivery_id=each, delivery_tag=tag, message_format=0, settled=True)
                await peer.write(frame(transfer, body))

        await send(0, 2)
        for _ in range(2):
            await peer.expect(Transfer)
        mock_clock.jump(1.0)  # that all that is large goes there has been so for long enough
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, 2, limit)
            await awaited.wait()
            for _ in range(500):
                await trio.lowlevel.checkpoint()
            waited = times
            nursery.cancel_scope.cancel()
        await peer.stream.aclose()
        mock_clock.jump(1.5 * PATIENCE)
    assert waited == 1
