"""Receivers with little credit: what the kernel relays for them, and the credit that it gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from amqpmesh.router import core
from amqpmesh.router.amqp.events import CreditChanged, Event, TransferReceived
from amqpmesh.router.amqp.link import Receiver, Sender
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.batch import finish_batch
from amqpmesh.router.context import Context
from amqpmesh.router.kernel import HELD_AT_ONCE
from amqpmesh.router.management.snapshot import snapshot
from tests.support.data.recordings import Records
from tests.support.worlds.network import Client, Network, message
from tests.support.worlds.side_by_side import relaying

Events = Counter[type[Event]]


@pytest.fixture
def events() -> Iterator[Events]:
    """Count the events that routers handle."""
    with relaying(alone=True) as counts:
        yield counts


def test_credit_that_comes_and_goes_leaves_the_route_of_a_few_receivers_valid(events: Events) -> None:
    network = Network()
    consumers, producer = [network.client() for _ in range(3)], network.client()
    receivers = [each.receiver("q", credit=1) for each in consumers]
    link = producer.sender("q")
    for _ in range(3):
        producer.send(link, message())
    before = events.copy()
    for number in range(30):
        receivers[number % 3].flow(1)
        network.run()
        producer.send(link, message())
    assert events[CreditChanged] == before[CreditChanged]
    assert events[TransferReceived] == before[TransferReceived]
    assert sum(len(each.arrivals) for each in consumers) == 33


def test_a_receiver_that_comes_later_gets_deliveries_of_the_same_route(events: Events) -> None:
    network = Network()
    early, late, producer = network.client(), network.client(), network.client()
    first = early.receiver("q", credit=1)
    link = producer.sender("q")
    producer.send(link, message())
    first.flow(1)
    network.run()
    producer.send(link, message())
    late.receiver("q", credit=1)
    producer.send(link, message())
    assert [len(early.arrivals), len(late.arrivals)] == [2, 1]


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("credit", [1, 2, 5, 50])
def test_one_sender_and_few_receivers_need_no_turn_of_the_pool_for_each_round(
    events: Events, credit: int, count: int
) -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receivers = [consumer.receiver("q", credit=credit) for _ in range(count)]
    link = producer.sender("q")
    producer.send(link, message())
    sent, turns = 1, 0

    def counted(context: Context) -> None:
        nonlocal turns
        turns += 1
        finish_batch(context)

    with patch.object(core, "finish_batch", counted):
        for _ in range(20):
            for receiver in receivers:
                receiver.flow(credit)
            network.run()
            for _ in range(credit * count):
                producer.send(link, message())
                sent += 1
        assert turns <= 5
    assert len(consumer.arrivals) == sent


@pytest.mark.parametrize("rcv", [ReceiverSettleMode.FIRST, ReceiverSettleMode.SECOND])
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("recorded", [False, True])
def test_a_receiver_that_takes_one_at_a_time_needs_no_decision(
    events: Events, settled: bool, rcv: ReceiverSettleMode, recorded: bool
) -> None:
    network = Network()
    records = Records(network.core) if recorded else None
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", credit=1, rcv=rcv)
    link = producer.sender("q", rcv=rcv)
    producer.send(link, message())
    for arrival in consumer.take(1):
        arrival.accept()
    receiver.flow(1)
    network.run()
    producer.send(link, message())
    before = events.copy()
    for number in range(50):
        sent = producer.send(link, message(str(number)), settled=settled)
        assert network.core.context.budget.used > 0
        assert network.relays > 0
        for arrival in consumer.take(1):
            arrival.accept()
        receiver.flow(1)
        network.run()
        for each in list(producer.sent.values()):
            if rcv is ReceiverSettleMode.SECOND and each.outcome is not None and not each.delivery.settled:
                each.dispose(each.outcome, settled=True)
        network.run()
        assert sent.outcome is None
    assert events[TransferReceived] == before[TransferReceived]
    assert events[CreditChanged] == before[CreditChanged]
    for arrival in consumer.take(1):
        arrival.accept()
    network.run()
    assert network.core.context.budget.used == 0
    assert records is None or len(records.hops) >= 51
    network.leave()


def _held_back() -> tuple[Network, Client, Client, Sender, Receiver]:
    """Return a producer and a consumer of "q", each with its link: the last of three deliveries is held back."""
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", credit=1)
    link = producer.sender("q")
    producer.send(link, message())
    receiver.flow(1)
    network.run()
    producer.send(link, message())
    producer.send(link, message())
    assert network.core.context.kernel.held_back
    return network, producer, consumer, link, receiver


def test_statistics_show_a_delivery_that_is_held_back_as_one_that_waits() -> None:
    network, _, consumer, _, receiver = _held_back()
    statistics = snapshot(network.core)
    assert not statistics.is_empty
    assert [each.waiting for each in statistics.addresses if each.name == "q"] == [1]
    assert not network.core.context.kernel.held_back
    receiver.flow(1)
    network.run()
    consumer.take(3)


@pytest.mark.parametrize("end", ["detach", "end", "lose", "close"])
def test_an_unsettled_delivery_that_is_held_back_ends_with_its_sender(end: str) -> None:
    network, producer, consumer, link, receiver = _held_back()
    if end == "detach":
        link.detach()
    elif end == "end":
        producer.session.end()
    elif end == "lose":
        producer.lose()
    else:
        producer.close()
    network.run()
    receiver.flow(1)
    network.run()
    for arrival in consumer.take(2):
        arrival.accept()
    network.run()
    assert network.relays == 0
    assert network.core.context.budget.used == 0


def test_a_router_holds_few_deliveries_back_and_decides_about_the_others() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receivers, links = [], []
    for number in range(HELD_AT_ONCE + 10):
        receivers.append(consumer.receiver(f"q{number}", credit=1))
        links.append(producer.sender(f"q{number}"))
    for link in links:
        producer.send(link, message())
    for receiver in receivers:
        receiver.flow(1)
    network.run()
    for link in links:
        producer.send(link, message())
    kernel = network.core.context.kernel
    most = 0
    for link in links:
        producer.send(link, message())
        most = max(most, kernel.held_count)
    assert most == HELD_AT_ONCE
    assert kernel.held_count < HELD_AT_ONCE
    for receiver in receivers:
        receiver.flow(1)
    network.run()
    for arrival in consumer.take(3 * len(links)):
        arrival.accept()
    network.run()
    assert network.relays == 0
