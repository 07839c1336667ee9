"""Redelivery and dead letters of an address: attempts, order, ttl, and memory."""

from __future__ import annotations

import pytest

from amqpmesh.router.amqp.codec.composite import decode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import Error
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import Header, MessageAnnotations
from amqpmesh.router.config.file import AddressConfig
from tests.support.worlds.network import Network, message


def test_an_expired_message_goes_to_the_dead_letter_address_without_ttl() -> None:
    network = Network(AddressConfig(pattern="q", dead_letter="dead"))
    consumer, undertaker, producer = (network.client() for _ in range(3))
    undertaker.receiver("dead")
    receiver = consumer.receiver("q", credit=1)
    link = producer.sender("q")
    receiver.flow(0)
    sent = producer.send(link, message("late", ttl=500))
    network.advance(1.0)
    assert sent.outcome == Modified(delivery_failed=True, undeliverable_here=True)
    (arrival,) = undertaker.take(1)
    assert decode_composite(Header, bytes(arrival.payload))[0].ttl is None
    assert bytes(arrival.payload).endswith(message("late", header=False))
    arrival.accept()
    network.leave()


@pytest.mark.parametrize(
    ("outcome", "count"),
    [
        (Released(), 0),
        (Modified(), 0),
        (Modified(delivery_failed=False, message_annotations={Symbol("x-opt-k"): 1}), 0),
        (Modified(delivery_failed=True), 1),
    ],
)
def test_a_redelivery_counts_the_try_only_if_it_failed(outcome: Released | Modified, count: int) -> None:
    network = Network(AddressConfig(pattern="q", redeliver=True))
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    producer.send(producer.sender("q"))
    consumer.take(1)[0].dispose(outcome, settled=True)
    network.run()
    (again,) = consumer.take(1)
    header, _ = decode_composite(Header, bytes(again.payload))
    assert (header.delivery_count, header.first_acquirer) == (count, False)
    again.accept()
    network.leave()


@pytest.mark.parametrize("dead_letter", [None, "dead"])
def test_a_rejected_message_is_offered_to_no_other_receiver_and_its_sender_gets_the_error(
    dead_letter: str | None,
) -> None:
    network = Network(AddressConfig(pattern="q", redeliver=True, dead_letter=dead_letter))
    one, two, keeper, producer = (network.client() for _ in range(4))
    one.receiver("q")
    two.receiver("q")
    keeper.receiver("dead")
    sent = producer.send(producer.sender("q"))
    (arrival,) = [*one.take(), *two.take()]
    rejected = Rejected(error=Error(condition=Symbol("app:invalid"), description="no order number"))
    arrival.dispose(rejected, settled=True)
    network.run()
    assert sent.said == [(rejected, True)]
    assert one.take() == two.take() == []
    letters = keeper.take(0 if dead_letter is None else 1)
    for letter in letters:
        assert decode_composite(Header, bytes(letter.payload))[0].delivery_count == 1, "§3.4.3"
        letter.accept()
    network.leave()


def test_an_accepted_or_copied_message_is_not_sent_again() -> None:
    network = Network(AddressConfig(pattern="q", redeliver=True))
    consumer, browser, producer = (network.client() for _ in range(3))
    consumer.receiver("q")
    browser.receiver("q", copy=True)
    producer.send(producer.sender("q"))
    consumer.take(1)[0].dispose(Released(), settled=True)
    browser.take(1)[0].accept()
    network.run()
    consumer.take(1)[0].accept()
    network.run()
    network.client().receiver("q")
    network.advance(10)
    assert network.arrived[3:] == [], "one copy, and one try beside that which was released"
    network.leave()


def test_a_released_delivery_is_offered_again_where_the_address_redelivers() -> None:
    network = Network(AddressConfig(pattern="q", redeliver=True, attempts=3))
    one, two, producer = (network.client() for _ in range(3))
    one.receiver("q", credit=10)
    two.receiver("q", credit=10)
    sent = producer.send(producer.sender("q"))
    taker, other = (one, two) if one.arrivals else (two, one)
    taker.take(1)[0].dispose(
        Modified(delivery_failed=True, undeliverable_here=True, message_annotations={Symbol("x-opt-why"): "ill"}),
        settled=True,
    )
    network.run()
    taker.take(0)
    (again,) = other.take(1)
    data = bytes(again.payload)
    header, at = decode_composite(Header, data)
    annotations, at = decode_composite(MessageAnnotations, data, at)
    assert (header.delivery_count, header.first_acquirer) == (1, False)
    assert annotations.value == {"x-opt-why": "ill"}
    assert sent.said == []
    again.accept()
    network.run()
    assert sent.said == [(Accepted(), True)]
    network.leave()


def test_redelivery_is_bounded_and_ends_with_the_last_outcome() -> None:
    network = Network(AddressConfig(pattern="q", redeliver=True, attempts=3))
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=10)
    sent = producer.send(producer.sender("q"))
    for attempt in range(3):
        assert sent.said == []
        (arrival,) = consumer.take(1)
        header = decode_composite(Header, bytes(arrival.payload))[0]
        assert header.delivery_count == attempt
        arrival.dispose(Modified(delivery_failed=True), settled=True)
        network.run()
    consumer.take(0)
    assert sent.outcome == Modified(delivery_failed=True)
    network.leave()


def test_a_message_that_is_sent_again_has_what_is_left_of_its_ttl_since_it_came() -> None:
    network = Network(AddressConfig(pattern="q", redeliver=True, attempts=9))
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    sent = producer.send(producer.sender("q"), message(ttl=1000))
    ttls = []
    for _ in range(3):
        (arrival,) = consumer.take(1)
        ttls.append(decode_composite(Header, bytes(arrival.payload))[0].ttl)
        network.advance(0.4)
        arrival.dispose(Released(), settled=True)
        network.run()
    assert ttls == [1000, 600, 200]
    consumer.take(0)
    assert sent.said == [(Modified(delivery_failed=True, undeliverable_here=True), True)]
    network.leave()


def test_a_consumer_that_dies_does_not_cost_the_message_where_the_address_redelivers() -> None:
    network = Network(AddressConfig(pattern="q", redeliver=True))
    one, producer = network.client(), network.client()
    one.receiver("q", credit=10)
    sent = producer.send(producer.sender("q"))
    one.take(1)
    two = network.client()
    two.receiver("q", credit=10)
    one.lose()
    (arrival,) = two.take(1)
    assert decode_composite(Header, bytes(arrival.payload))[0].delivery_count == 1
    arrival.accept()
    network.run()
    assert sent.outcome == Accepted()
    network.leave()


def test_a_message_kept_for_a_redelivery_counts_against_the_budget_and_is_dropped_at_its_end() -> None:
    network = Network(AddressConfig(pattern="q", redeliver=True), memory=2**20)
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=100)
    link = producer.sender("q")
    sents = [producer.send(link, message("x" * 60_000)) for _ in range(20)]
    assert 900_000 < network.core.context.budget.used <= 2**20
    arrivals = consumer.take(20)
    for arrival in arrivals:
        arrival.dispose(Modified(delivery_failed=True), settled=True)
    network.run()
    again = consumer.take()
    assert 0 < len(again) < 20, "those that could not be kept are told to the sender"
    assert sum(sent.outcome is not None for sent in sents) == 20 - len(again)
    for arrival in again:
        arrival.accept()
    network.run()
    assert network.core.context.budget.used == 0
    network.leave()


def test_a_dead_letter_after_the_last_try_is_told_undeliverable() -> None:
    network = Network(AddressConfig(pattern="q", redeliver=True, attempts=1, dead_letter="dead"))
    consumer, large, producer = network.client(), network.client(), network.client()
    consumer.receiver("q")
    large.receiver("dead")
    link = producer.sender("q")
    sent = producer.send(link)
    consumer.take(1)[0].dispose(Released(), settled=True)
    network.run()
    large.take(1)
    assert sent.outcome == Modified(delivery_failed=True, undeliverable_here=True), sent.outcome


def test_dead_letters_for_a_stopped_consumer_do_not_stop_the_router() -> None:
    network = Network(AddressConfig(pattern="q", redeliver=True, attempts=1, dead_letter="dead"), memory=2**20)
    consumer, large, producer, c2, p2 = (network.client() for _ in range(5))
    receiver = consumer.receiver("q", credit=100)
    large.receiver("dead", credit=0)
    link = producer.sender("q")
    c2.receiver("other")
    s2 = p2.sender("other")
    for _i in range(40):
        if not link.credit:
            break
        producer.send(link, message("x" * 50_000))
        for arrival in consumer.take():
            arrival.dispose(Released(), settled=True)
        network.run()
        receiver.flow(100)
        network.run()
    network.advance(10)
    assert s2.credit > 0, f"{network.core.context.budget.used} octets of dead letters: nobody gets credit any more"


def test_a_redelivery_expires_while_it_waits() -> None:
    network = Network(AddressConfig(pattern="q", redeliver=True))
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=1)
    link = producer.sender("q")
    sent = producer.send(link, message(ttl=500))
    consumer.take(1)[0].dispose(Released(), settled=True)
    network.run()
    network.advance(10)
    assert sent.outcome is not None, "its ttl is over since 9.5 link, and nobody was told"
