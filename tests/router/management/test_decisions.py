"""Decisions in statistics: which deliveries of an address the router decided about, and why."""

from collections.abc import Callable

import pytest

from amqpmesh.policies.annotations import DeliveryAnnotationsRule
from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.delivery_states import Modified, Received
from amqpmesh.router.amqp.standard.messaging import AmqpValue
from amqpmesh.router.config.file import AddressConfig, ListenerConfig
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.message.content import Message, encode_message
from amqpmesh.router.statistics.common import Decision
from amqpmesh.router.statistics.router_statistics import AddressStatistics
from tests.router.containers.test_remote_nodes import THERE, Far
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Client, Network, message

LINE = [("A", "B"), ("B", "C")]


def at(network: Network, name: str = "q") -> AddressStatistics:
    (found,) = (each for each in snapshot(network.core).addresses if each.name == name)
    return found


def pair(*addresses: AddressConfig, credit: int = 100) -> tuple[Network, Client, Client]:
    """Connect a consumer with a receiver at `q`, and a producer."""
    network = Network(*addresses)
    consumer, producer = network.client("consumer"), network.client("producer")
    consumer.receiver("q", name="in", credit=credit)
    return network, consumer, producer


def test_the_first_delivery_of_a_link_is_decided_and_the_rest_are_relayed() -> None:
    network, _, producer = pair()
    link = producer.sender("q")
    for settled in (True, False) * 5:
        producer.send(link, settled=settled)
    told = at(network)
    assert (told.deliveries_in, told.relayed, told.decided) == (10, 9, 1)
    assert told.decisions == {Decision.CHANGED: 1}


def test_those_of_anonymous_senders_count_at_the_address_that_they_name() -> None:
    network, consumer, producer = pair()
    consumer.receiver("other", credit=100)
    link = producer.sender(None)
    for _ in range(4):
        producer.send(link, message(to="q"))
        producer.send(link, message(to="other"))
    told = at(network, "q")
    assert (told.deliveries_in, told.relayed, told.decided) == (0, 3, 1)
    assert told.decisions == {Decision.CHANGED: 1}
    told = at(network, "other")  # only the link's first delivery is decided
    assert (told.deliveries_in, told.relayed, told.decided) == (0, 4, 0)
    assert told.decisions == {}


def test_those_of_a_multicast_count_once_for_all_receivers() -> None:
    network, consumer, producer = pair(AddressConfig(pattern="q", distribution=Distribution.MULTICAST))
    consumer.receiver("q", credit=100)
    link = producer.sender("q")
    for _ in range(5):
        producer.send(link)
    told = at(network)
    assert (told.deliveries_out, told.relayed, told.decided) == (10, 4, 1)


def test_a_router_in_between_counts_none_and_the_last_one_those_of_its_lane() -> None:
    mesh = World("ABC", LINE)
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    consumer.receiver("q", credit=100)
    link = producer.sender("q")
    for _ in range(10):
        producer.send(link)
    consumer.take(10)
    for router in "AC":
        told = at(mesh[router])
        assert (told.relayed + told.decided, told.decisions) == (10, {Decision.CHANGED: told.decided})
        assert told.decided < 5
    mesh.leave()


def test_counts_outlive_the_links_that_they_came_by() -> None:
    network, consumer, producer = pair()
    link = producer.sender("q")
    for _ in range(5):
        producer.send(link, settled=True)
    consumer.take(5)
    producer.close()
    told = at(network)
    assert (told.deliveries_in, told.relayed, told.decided) == (5, 4, 1)


# Reasons. Each function returns a router with an address `q`, and deliveries that were decided for it.


def redelivered() -> Network:
    network, _, producer = pair(AddressConfig(pattern="q", redeliver=True))
    return sent(network, producer)


def sent(network: Network, producer: Client, *payloads: bytes, to: str | None = "q", **how: object) -> Network:
    """Send these messages, or a few."""
    link = producer.sender(to)
    for payload in payloads or [message(to="q")] * 4:
        producer.send(link, payload, **how)  # type: ignore[arg-type]  # as `Client.send` takes them
    return network


def expiring() -> Network:
    network, _, producer = pair(AddressConfig(pattern="q", absolute_expiry=True))
    return sent(network, producer)


def strict() -> Network:
    network = Network()
    network.listener = ListenerConfig(url="amqp://127.0.0.1:0", idle_time_out=0.0, strict_annotations=True)
    network.client().receiver("q", credit=100)
    return sent(network, network.client())


def copied() -> Network:
    network, consumer, producer = pair()
    consumer.receiver("q", credit=100, copy=True)
    return sent(network, producer)


def without_credit() -> Network:
    network, consumer, producer = pair(credit=0)
    link = consumer.receiver("q", credit=1)
    anonymous = producer.sender(None)
    for _ in range(3):
        producer.send(anonymous, message(to="q"))
        link.flow(1)
        network.run()
        producer.send(anonymous, message(to="q"))
        link.flow(1)
        network.run()
        link.flow(0)
        network.run()
        producer.send(anonymous, message(to="q"))
        link.flow(1)
        network.run()
    return network


def behind_others() -> Network:
    network, _, producer = pair(credit=0)
    return sent(network, producer, to=None)


def without_window() -> Network:
    network = Network()
    consumer = network.client(window=0)
    consumer.receiver("q", credit=100)
    for _ in range(3):
        producer = network.client()
        sent(network, producer, message(to="q"), to=None)
    return network


def slow_receiver() -> Network:
    network, consumer, producer = pair(AddressConfig(pattern="q", distribution=Distribution.MULTICAST))
    slow = consumer.receiver("q", credit=1)
    link = producer.sender(None)
    for _ in range(3):
        producer.send(link, message(to="q"))
        producer.send(link, message(to="q"))
        slow.flow(1)
        network.run()
    return network


def large() -> Network:
    network, consumer, producer = pair(AddressConfig(pattern="q", distribution=Distribution.MULTICAST))
    consumer.receiver("q", credit=100)
    return sent(network, producer, *[message() + bytes(10_000)] * 3)


def annotated() -> Network:
    network, _, producer = pair(AddressConfig(pattern="q", delivery_annotations=DeliveryAnnotationsRule.DROP))
    content = encode_message(Message("x", delivery_annotations={Symbol("x-opt-a"): 1}))
    return sent(network, producer, *[content] * 3)


def malformed() -> Network:
    network, _, producer = pair()
    return sent(network, producer, *[b"\0\x53\x70\x40" + encode_composite(AmqpValue(value="x"))] * 3)


def with_state() -> Network:
    network, _, producer = pair()
    state = encode_composite(Received(section_number=0, section_offset=0))
    return sent(network, producer, *[message()] * 3, state=state)


def aborted() -> Network:
    network, _, producer = pair()
    link = producer.sender("q")
    for _ in range(2):
        producer.resume(producer.send(link, b"\0", more=True), aborted=True)
    return network


def nobody() -> Network:
    network, consumer, producer = pair()
    link = producer.sender(None)
    keeper = producer.sender("q")
    consumer.lose()
    for _ in range(2):
        producer.send(link, message(to="q"))
    assert keeper.is_attached
    return network


def tree() -> Network:
    own = {
        "A": AddressConfig(pattern="q", distribution=Distribution.MULTICAST),
        "B": AddressConfig(pattern="q", distribution=Distribution.BALANCED),
    }
    mesh = World("AB", LINE[:1], own=own)
    for router in "AB":
        mesh[router].client().receiver("q", credit=100)
    mesh.advance(0.5)
    sent(mesh["A"], mesh["A"].client())
    return mesh["B"]


def over_routers() -> World:
    mesh = World("AB", LINE[:1])
    mesh["B"].client().receiver("q", credit=100)
    mesh.advance(0.5)
    keeper = mesh["A"].client()
    keeper.receiver("q", credit=100)
    mesh.advance(0.5)
    sent(mesh["A"], mesh["A"].client(), *[message(to="q")] * 20, to=None)
    return mesh


def anonymous() -> Network:
    return over_routers()["A"]


def transit() -> Network:
    mesh = World("AB", LINE[:1])
    mesh["B"].client().receiver("q", credit=100)
    mesh.advance(0.5)
    sent(mesh["A"], mesh["A"].client(), *[message(to="q")] * 10, to=None)
    return mesh["B"]


def by_lane() -> Network:
    mesh = World("AB", LINE[:1])
    mesh["B"].client().receiver("q@A", credit=100)
    mesh["A"].client().receiver("q", credit=100)
    mesh.advance(0.5)
    return sent(mesh["A"], mesh["A"].client())


def detached() -> Network:
    network, consumer, producer = pair()
    other = consumer.receiver("q", credit=100)
    link = producer.sender("q")
    for _ in range(4):
        producer.send(link)
    other.detach(closed=False)
    network.run()
    for _ in range(2):
        producer.send(link)
    return network


def elsewhere() -> Network:
    network = Far(AddressConfig(pattern="q", redirect=THERE))
    producer = network.client()
    link = producer.sender("q")
    network.broker(credit=3)
    for _ in range(3):
        producer.send(link, settled=True)
    return network


def excluded() -> Network:
    mesh = World("AB", LINE[:1], AddressConfig(pattern="q", redeliver=True, attempts=9))
    consumers = [mesh["B"].client() for _ in range(2)]
    for consumer in consumers:
        consumer.receiver("q", credit=100)
    mesh.advance(0.5)
    sent(mesh["A"], mesh["A"].client(), message())
    (arrival,) = (arrival for consumer in consumers for arrival in consumer.take())
    arrival.dispose(Modified(undeliverable_here=True), settled=True)
    mesh.advance(0.1)
    return mesh["B"]


@pytest.mark.parametrize(
    ("happened", "reason"),
    [
        (redelivered, Decision.REDELIVER),
        (expiring, Decision.EXPIRY),
        (strict, Decision.STRICT),
        (copied, Decision.COPIES),
        (behind_others, Decision.QUEUED),
        (slow_receiver, Decision.SLOWEST),
        (without_credit, Decision.NO_CREDIT),
        (without_window, Decision.BUSY),
        (large, Decision.LARGE),
        (annotated, Decision.HEAD),
        (malformed, Decision.HEAD),
        (with_state, Decision.UNUSUAL),
        (transit, Decision.TRANSIT),
        (tree, Decision.TREE),
        (anonymous, Decision.ANONYMOUS),
        (nobody, Decision.NO_RECEIVER),
        (aborted, Decision.REFUSED),
        (elsewhere, Decision.ELSEWHERE),
        (by_lane, Decision.BY_LANE),
        (detached, Decision.DETACHED),
        (excluded, Decision.EXCLUDED),
    ],
)
def test_each_reason_is_told(happened: Callable[[], Network], reason: Decision) -> None:
    told = at(happened())
    assert reason in told.decisions, told.decisions
    assert sum(told.decisions.values()) == told.decided
    assert list(told.decisions.values()) == sorted(told.decisions.values(), reverse=True)
