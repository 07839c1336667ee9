"""The messages of `amqpmesh demo`, passed on by a relay that breaks the rules of routers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from amqpmesh.router.cli.traffic import Traffic
from amqpmesh.router.client.delivery import Delivery
from amqpmesh.router.client.sender import Sender
from amqpmesh.router.runtime.router import Router

COUNT = 20
PAUSE = 1.0  # seconds of the test's clock before more is allowed

Relay = Callable[[int, Delivery, Sender], Awaitable[None]]
"""A function that handles a delivery. Args: the message's number; how often it has come, this time included."""


async def carried(relay: Relay, count: int = COUNT, limits: tuple[int, ...] = ()) -> Traffic:
    """Send the traffic through a relay. Args: limits: the number of messages that may pass at first, and so on."""
    traffic = Traffic(count)
    came: Counter[object] = Counter()

    async def run(ingress: Router, task_status: trio.TaskStatus[None]) -> None:
        async with ingress.receiver("in") as incoming, ingress.sender("out") as outgoing:
            task_status.started()
            async for delivery in incoming:
                came[delivery.message.body] += 1
                await relay(came[delivery.message.body], delivery, outgoing)

    with trio.fail_after(60):
        async with (
            Router(id="A") as router,
            router.receiver("out") as receiver,
            router.sender("in") as sender,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(traffic.receive, receiver)
            await nursery.start(lambda task_status: run(router, task_status))
            traffic.allow(0)
            nursery.start_soon(traffic.send, sender)
            for limit in (*limits, count):
                await trio.sleep(PAUSE)
                traffic.allow(limit)
                while traffic.accepted + traffic.rejected < limit:
                    await trio.sleep(0.01)
                assert traffic.sent == limit
            nursery.cancel_scope.cancel()
    assert traffic.is_over
    assert traffic.on_their_way == 0
    return traffic


async def pass_on(_: int, delivery: Delivery, out: Sender) -> None:
    await out.send(delivery.message)
    delivery.accept()


async def test_a_message_that_arrives_once_and_is_accepted_is_sound(autojump_clock: MockClock) -> None:
    traffic = await carried(pass_on)
    assert (traffic.sent, traffic.accepted, traffic.arrived) == (COUNT, COUNT, COUNT)
    assert (traffic.lost, traffic.twice, traffic.irregular) == (0, 0, 0)
    assert not traffic.again
    assert traffic.is_sound


async def test_a_message_in_doubt_is_sent_again_and_dropped_if_it_arrives_twice(autojump_clock: MockClock) -> None:
    async def relay(times: int, delivery: Delivery, out: Sender) -> None:
        if times == 1:
            await out.send(delivery.message)
            delivery.modify(delivery_failed=True)
        else:
            await pass_on(times, delivery, out)

    traffic = await carried(relay)
    assert traffic.again == {"in doubt": COUNT}
    assert (traffic.accepted, traffic.lost, traffic.dropped, traffic.irregular) == (COUNT, 0, COUNT, 0)
    assert traffic.twice == 0
    assert traffic.is_sound


async def test_a_message_that_arrives_twice_without_its_message_id_counts_twice(autojump_clock: MockClock) -> None:
    async def relay(times: int, delivery: Delivery, out: Sender) -> None:
        await out.send(delivery.message.body)
        if times == 1:
            delivery.modify(delivery_failed=True)
        else:
            delivery.accept()

    traffic = await carried(relay)
    assert (traffic.lost, traffic.twice, traffic.dropped) == (0, COUNT, 0)
    assert not traffic.is_sound


async def test_a_released_message_is_sent_again_and_counts_as_not_accepted(autojump_clock: MockClock) -> None:
    async def relay(times: int, delivery: Delivery, out: Sender) -> None:
        if times == 1:
            delivery.release()
        else:
            await pass_on(times, delivery, out)

    traffic = await carried(relay)
    assert traffic.again == {"not accepted": COUNT}
    assert (traffic.accepted, traffic.lost, traffic.twice) == (COUNT, 0, 0)
    assert traffic.is_sound


async def test_a_released_message_that_arrives_twice_is_irregular(autojump_clock: MockClock) -> None:
    async def relay(times: int, delivery: Delivery, out: Sender) -> None:
        await out.send(delivery.message)
        if times == 1:
            delivery.release()
        else:
            delivery.accept()

    traffic = await carried(relay)
    assert (traffic.lost, traffic.twice, traffic.irregular) == (0, 0, COUNT)
    assert not traffic.is_sound


async def test_an_accepted_message_that_never_arrived_is_lost(autojump_clock: MockClock) -> None:
    async def relay(times: int, delivery: Delivery, out: Sender) -> None:
        if delivery.message.body in ("3", "7"):
            delivery.accept()
        else:
            await pass_on(times, delivery, out)

    traffic = await carried(relay)
    assert (traffic.accepted, traffic.lost) == (COUNT, 2)
    assert not traffic.is_sound


async def test_a_rejected_message_is_lost_and_not_sent_again(autojump_clock: MockClock) -> None:
    async def relay(times: int, delivery: Delivery, out: Sender) -> None:
        if delivery.message.body == "3":
            delivery.reject()
        else:
            await pass_on(times, delivery, out)

    traffic = await carried(relay)
    assert (traffic.sent, traffic.accepted, traffic.rejected, traffic.lost) == (COUNT, COUNT - 1, 1, 1)
    assert not traffic.again
    assert not traffic.is_sound


async def test_the_longest_pause_is_what_the_receiver_had_to_wait_for(autojump_clock: MockClock) -> None:
    async def relay(times: int, delivery: Delivery, out: Sender) -> None:
        await trio.sleep({"0": 5.0, "7": 0.5}.get(str(delivery.message.body), 0.125))
        await pass_on(times, delivery, out)

    traffic = await carried(relay)
    assert traffic.longest_pause == pytest.approx(0.5, abs=0.01)  # the wait of the first message does not count


async def test_no_more_is_sent_than_is_allowed_and_waiting_for_that_is_no_pause(autojump_clock: MockClock) -> None:
    traffic = await carried(pass_on, limits=(5, 12))
    assert traffic.accepted == COUNT
    assert traffic.longest_pause < 0.1  # a second passes before each limit is raised
