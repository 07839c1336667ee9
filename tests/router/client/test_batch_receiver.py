"""Batches of received messages: taken, settled, released, and limited."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh import Accepted, Connection, Message, Released, Router
from amqpmesh.router.amqp.errors import CommandError, LinkDetachedError
from amqpmesh.router.amqp.standard.messaging import DistributionMode, Source
from amqpmesh.router.amqp.standard.performatives import Disposition
from amqpmesh.router.client.batch_receiver import BatchReceiver, batch_receiver
from amqpmesh.router.client.links.attach_options import ReceiverOptions
from amqpmesh.router.client.links.batch_link import LEAST_WINDOW, STEP, WINDOW
from tests.support.peers.library_client import Roads
from tests.support.peers.scripted_server import Counterpart, Far

PLENTY = 2**20


def batches(connection: Connection, credit: int = 100, memory: int = PLENTY, most: int | None = None) -> BatchReceiver:
    return batch_receiver(connection, "q", credit=credit, memory=memory, most=most)


def data(*sizes: int) -> list[bytes]:
    return [Message(bytes(size)).encode() for size in sizes]


async def send(link: Far, payloads: list[bytes], **fields: Any) -> None:
    for payload in payloads:
        await link.send(payload, **fields)


async def test_deliveries_are_taken_in_order_and_accepted_in_one_range(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, batches(connection) as incoming:
        await wait_all_tasks_blocked()
        payloads = data(*range(10))
        await send(far.links[0], payloads)
        await wait_all_tasks_blocked()
        assert (incoming.waiting, incoming.received, incoming.undecided) == (10, 10, 10)
        first, rest = incoming.take(4, PLENTY), incoming.take(100, PLENTY)
        assert first.payloads.items() + rest.payloads.items() == payloads
        assert incoming.accept(first)
        said = await far.expect(Disposition)
        assert (said.first, said.last, said.settled, said.state) == (0, 3, True, Accepted())
        assert incoming.undecided == 6
        assert incoming.release(rest)
        said = await far.expect(Disposition)
        assert (said.first, said.last, said.state) == (4, 9, Released())


async def test_large_deliveries_come_in_frames_among_small_ones(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        roads = Roads(nursery)
        roads.lead_to(router)
        async with roads.connect() as connection, batches(connection) as incoming, router.sender("q") as sender:
            payloads = data(1, 300_000, 2, 100_000, 0)
            for payload in payloads:
                await sender.transfer_payload(payload)
            while incoming.waiting < 5:
                await trio.sleep(0.01)
            taken = incoming.take(100, PLENTY)
            assert taken.payloads.items() == payloads
            incoming.accept(taken)
    assert router.statistics().is_empty


async def test_octets_bound_what_is_taken_but_one_is_always(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, batches(connection) as incoming:
        await wait_all_tasks_blocked()
        await send(far.links[0], data(100, 100, 500, 10))
        await wait_all_tasks_blocked()
        assert [len(incoming.take(100, 250)) for _ in range(3)] == [2, 1, 1]


async def test_credit_is_given_in_steps_and_not_beyond_what_is_not_decided(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, batches(connection, credit=STEP + 10) as incoming:
        await wait_all_tasks_blocked()
        link = far.links[0]
        assert link.limit == STEP
        await send(link, data(*[0] * STEP))
        await wait_all_tasks_blocked()
        assert link.limit == STEP + 10
        await send(link, data(*[0] * 10))
        await wait_all_tasks_blocked()
        assert incoming.is_full
        assert link.limit == STEP + 10
        incoming.accept(incoming.take(STEP, PLENTY))
        await wait_all_tasks_blocked()
        assert link.limit == 2 * STEP + 10


async def test_beyond_its_memory_no_credit_is_given(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, batches(connection, credit=4, memory=1000) as incoming:
        await wait_all_tasks_blocked()
        link = far.links[0]
        await send(link, data(600, 600, 10, 10))
        await wait_all_tasks_blocked()
        assert incoming.is_full
        assert link.limit == 4
        incoming.accept(incoming.take(1, PLENTY))
        await wait_all_tasks_blocked()
        assert link.limit == 5


@pytest.mark.parametrize(("memory", "frames"), [(1, LEAST_WINDOW), (512 * 100, 100), (2**30, WINDOW)])
async def test_the_frames_that_may_arrive_beyond_its_memory_fill_it_once_more(
    memory: int, frames: int, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect(max_frame_size=512) as connection, batches(connection, memory=memory):
        await wait_all_tasks_blocked()
        assert far.links[0].window == frames


async def test_no_more_come_than_are_wanted(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, batches(connection, most=3) as incoming:
        await wait_all_tasks_blocked()
        await send(far.links[0], data(1, 2, 3))
        await wait_all_tasks_blocked()
        incoming.accept(incoming.take(3, PLENTY))
        await wait_all_tasks_blocked()
        assert far.links[0].limit == 3


async def test_leaving_releases_all_that_is_not_decided(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router() as router:
        roads = Roads(nursery)
        roads.lead_to(router)
        async with roads.connect() as connection, router.sender("q") as sender:
            async with batches(connection) as incoming:
                sent = [await sender.transfer(b"x") for _ in range(5)]
                while incoming.waiting < 5:
                    await trio.sleep(0.01)
                incoming.accept(incoming.take(2, PLENTY))
                incoming.take(1, PLENTY)
            outcomes = [await each.outcome() for each in sent]
            assert outcomes == [Accepted()] * 2 + [Released()] * 3
    assert router.statistics().is_empty


async def test_what_came_over_a_lost_connection_cannot_be_decided_and_comes_again(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        roads = Roads(nursery)
        roads.lead_to(router)
        async with (
            roads.connect(reconnect=True) as connection,
            batches(connection) as incoming,
            router.sender("q") as sender,
        ):
            for body in (b"a", b"b"):
                await sender.transfer(body)
            while incoming.waiting < 2:
                await trio.sleep(0.01)
            taken = incoming.take(1, PLENTY)
            await trio.aclose_forcefully(roads.streams[-1])
            while not connection.reconnections or not incoming.is_attached:
                await trio.sleep(0.01)
            assert incoming.waiting == 0  # a delivery that was not taken is not here twice
            assert not incoming.accept(taken)
            assert incoming.undecided == 0
            await sender.transfer(b"c")
            while incoming.waiting < 1:
                await trio.sleep(0.01)
            assert incoming.accept(incoming.take(10, PLENTY))
    assert router.statistics().is_empty


async def test_a_settled_delivery_stays_received(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, batches(connection) as incoming:
        await wait_all_tasks_blocked()
        await send(far.links[0], data(1, 2), settled=True)
        await wait_all_tasks_blocked()
        taken = incoming.take(10, PLENTY)
        assert len(taken) == 2
        incoming.accept(taken)
        await wait_all_tasks_blocked()
        assert incoming.undecided == 0
        assert not [each for each in await far.rest() if isinstance(each, Disposition)]


async def test_a_peer_that_does_not_let_browse_is_refused(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    far = Counterpart(nursery, source=Source(address="q", distribution_mode=DistributionMode.MOVE))
    options = ReceiverOptions(source=Source(address="q", distribution_mode=DistributionMode.COPY))
    async with far.connect() as connection:
        with pytest.raises(LinkDetachedError, match="the peer does not let messages be browsed"):
            async with batch_receiver(connection, "q", credit=1, memory=1, options=options):
                pass


async def test_without_credit_there_is_none(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection:
        with pytest.raises(CommandError, match="without credit nothing can come"):
            batches(connection, credit=0)
        async with batches(connection) as incoming:
            assert incoming.is_attached
        with pytest.raises(CommandError, match="was left"):
            incoming.check()
