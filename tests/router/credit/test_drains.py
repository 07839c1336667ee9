"""Receivers that drain at one router (§2.6.10): the answers, and the credit."""

from __future__ import annotations

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.config.file import AddressConfig, ListenerConfig
from tests.support.worlds.network import Network, message


def test_a_drain_of_an_empty_address_is_answered_and_gives_no_message() -> None:
    network = Network()
    consumer = network.client()
    receiver = consumer.receiver("q", credit=0)
    receiver.flow(5, drain=True)
    network.run()
    assert receiver.credit == 0
    assert receiver.delivery_count == 5
    network.leave()


def test_a_drain_waits_for_producers_that_hold_credit() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    link = producer.sender("q")
    receiver = consumer.receiver("q", credit=1)
    assert link.credit
    # The producer does not look at its socket yet; the consumer drains.
    producer.stopped = True
    receiver.flow(1, drain=True)
    network.run()
    assert receiver.credit == 1, "nothing is known of the producer yet"
    delivery = link.delivery(b"1")
    link.transfer(delivery, message())
    network.run()
    consumer.take(1)
    assert receiver.credit == 0
    producer.stopped = False
    network.leave()


def test_a_drain_is_answered_after_a_while_when_producers_are_silent() -> None:
    network = Network(AddressConfig(pattern="q", drain_time=0.25))
    consumer, producer = network.client(), network.client()
    producer.sender("q")
    receiver = consumer.receiver("q", credit=1)
    producer.stopped = True
    receiver.flow(1, drain=True)
    network.run()
    assert receiver.credit == 1
    network.advance(0.3)
    assert receiver.credit == 0
    producer.stopped = False
    network.leave()


def test_a_drain_is_answered_though_a_multicast_waits_for_another_receiver() -> None:
    network = Network(AddressConfig(pattern="m", distribution=Distribution.MULTICAST))
    one, stalled, producer = network.client(), network.client(), network.client()
    receiver = one.receiver("m", credit=5)
    stalled.receiver("m", credit=1)
    link = producer.sender("m")
    producer.send(link, settled=True)
    producer.send(link, settled=True)
    one.take(1)
    receiver.flow(5, drain=True)
    network.run()
    network.advance(0.3)
    assert receiver.credit == 0
    network.leave()


def test_after_an_answered_drain_its_credit_is_not_promised() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    link = producer.sender("q")
    receiver = consumer.receiver("q", credit=0)
    receiver.flow(10, drain=True)
    network.run()
    network.advance(1)
    assert receiver.credit == 0
    pool = link and next(iter(producer.record.incoming)).pool
    assert pool.demand == 0, f"demand {pool.demand} for a consumer without credit"
    assert link.credit <= 1, f"producer holds {link.credit}"


def test_an_answer_to_a_drain_does_not_wait_for_a_large_message() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", credit=0)
    link = producer.sender("q")
    receiver.flow(2)
    network.run()
    producer.send(link, message("x" * 100), more=True)
    receiver.flow(1, drain=True)
    network.run()
    network.advance(5)
    assert receiver.credit == 0, "drain_time is 0.25 s"


def test_a_router_that_drains_takes_anonymous_credit_back() -> None:
    network = Network()
    producer = network.client()
    link = producer.sender(None)
    assert link.credit
    network.core.start_drain(network.now)
    network.run()
    assert link.credit == 0, f"start_drain: 'unused credit is taken back', the anonymous sender holds {link.credit}"


def test_a_copy_receivers_drain_is_answered_when_its_copies_are_sent() -> None:
    network = Network()
    consumer, b, producer = network.client(), network.client(), network.client()
    consumer.receiver("q")
    receiver = b.receiver("q", credit=1, copy=True)
    link = producer.sender("q")
    big = producer.send(link, message("x" * 100), more=True)  # its copy is in the middle of its frames
    out = next(iter(b.record.outgoing))
    s2 = producer.sender("q", session=producer.engine.begin())
    network.run()
    consumer.receiver("q")
    producer.send(s2)  # a second copy waits in the backlog
    assert out.backlog
    receiver.flow(5, drain=True)
    network.run()
    producer.resume(big, b"end")
    network.advance(5)
    assert receiver.credit == 0, f"holds {receiver.credit}, drain never answered"


def test_a_drain_leaves_the_credit_that_a_delivery_on_its_way_needs() -> None:
    network = Network(AddressConfig(pattern="q", distribution=Distribution.MULTICAST))
    network.listener = ListenerConfig(url="amqp://127.0.0.1:0", idle_time_out=0.0, output_backlog=1)
    consumer, producer = network.client(), network.client()
    receivers = [consumer.receiver("q", credit=1) for _ in range(2)]
    link = producer.sender("q")
    consumer.stopped = True
    producer.send(link, settled=True)
    for receiver in receivers:
        receiver.flow(1, drain=True)
    network.run()
    network.advance(1.0)
    consumer.stopped = False
    network.run()
    consumer.take(2)
    assert [receiver.credit for receiver in receivers] == [0, 0]
    network.leave()
