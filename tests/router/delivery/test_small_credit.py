"""Receivers with little credit: what the kernel relays for them, and the credit that it gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from amqpmesh.router.amqp.events import CreditChanged, Event, TransferReceived
from amqpmesh.router.credit.pool import Pool
from tests.support.worlds.network import Network, message
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


@pytest.mark.parametrize("credit", [2, 5, 10, 50])
def test_one_sender_and_one_receiver_need_no_turn_of_the_pool_for_each_round(events: Events, credit: int) -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", credit=credit)
    link = producer.sender("q")
    producer.send(link, message())
    sent, turns = 1, 0
    grants = Pool.grants

    def counted(pool: Pool, now: float) -> object:
        nonlocal turns
        turns += 1
        return grants(pool, now)

    with patch.object(Pool, "grants", counted):
        for _ in range(50):
            receiver.flow(credit)
            network.run()
            for _ in range(credit):
                producer.send(link, message())
                sent += 1
        assert turns <= 5
    assert len(consumer.arrivals) == sent
