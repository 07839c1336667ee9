"""Messages with an absolute-expiry-time, at addresses that honour it (§3.2.4)."""

from __future__ import annotations

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Timestamp
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified
from amqpmesh.router.amqp.standard.messaging import AmqpValue, Header, Properties
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.management.snapshot import snapshot
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Client, Network

NOW = 1_800_000_000.0
"""The time of the wall clocks at the start of a test, seconds since 1970."""
EXPIRED = Modified(delivery_failed=True, undeliverable_here=True)
HONOURS = AddressConfig(pattern="q/#", absolute_expiry=True, dead_letter="dead")


def expiring(seconds: float | None, *, ttl: int | None = None, subject: str | None = None) -> bytes:
    """Encode a message. Args: seconds: its absolute expiry, after the start of the test; None: it has none."""
    at = None if seconds is None else Timestamp(round((NOW + seconds) * 1000))
    return b"".join(
        encode_composite(part)
        for part in (
            Header(ttl=ttl),
            Properties(to="q/a", subject=subject, absolute_expiry_time=at),
            AmqpValue(value="hello"),
        )
    )


def on_time(network: Network) -> Network:
    """Return the network, after its wall clock was tied to the test's clock."""
    core, began = network.core, network.now
    core.context.wall_clock = lambda: NOW + core.context.now - began
    return network


def clients(network: Network, credit: int = 10) -> tuple[Client, Client, Client]:
    """Return a receiver, a receiver of dead letters, and a client for senders."""
    consumer, keeper, producer = network.client(), network.client(), network.client()
    consumer.receiver("q/a", credit=credit)
    keeper.receiver("dead", credit=10)
    return consumer, keeper, producer


@pytest.mark.parametrize("address", ["q/a", None])
def test_a_message_that_has_expired_is_not_handed_on_and_is_a_dead_letter(address: str | None) -> None:
    network = on_time(Network(HONOURS))
    consumer, keeper, producer = clients(network)
    sent = producer.send(producer.sender(address), expiring(-0.001))
    assert sent.said == [(EXPIRED, True)]
    assert consumer.take() == []
    (letter,) = keeper.take(1)
    assert bytes(letter.payload).endswith(expiring(-0.001)[len(encode_composite(Header())) :]), "its properties stay"
    letter.accept()
    assert snapshot(network.core).router.expired == 1
    network.leave()


@pytest.mark.parametrize("seconds", [None, 0.001, 1e9])
def test_a_message_that_lives_passes_octet_by_octet(seconds: float | None) -> None:
    network = on_time(Network(HONOURS))
    consumer, _, producer = clients(network)
    sent = producer.send(producer.sender("q/a"), expiring(seconds))
    (arrival,) = consumer.take(1)
    assert bytes(arrival.payload) == expiring(seconds)
    arrival.accept()
    network.run()
    assert sent.said == [(Accepted(), True)]
    network.leave()


@pytest.mark.parametrize(("ttl", "lives"), [(None, 2.0), (5000, 2.0), (1000, 1.0)])
def test_a_message_that_waits_expires_by_its_ttl_or_by_the_wall_clock_whichever_is_first(
    ttl: int | None, lives: float
) -> None:
    network = on_time(Network(HONOURS))
    consumer, _, producer = clients(network, credit=1)
    link = producer.sender("q/a")
    producer.send(link, expiring(None))
    sent = producer.send(link, expiring(2.0, ttl=ttl))
    network.advance(lives - 0.1)
    assert sent.said == []
    network.advance(0.2)
    assert sent.said == [(EXPIRED, True)]
    consumer.take(1)[0].accept()
    network.leave()


def test_the_wall_clock_counts_when_the_message_comes_and_not_when_it_is_set_anew() -> None:
    network = on_time(Network(HONOURS))
    consumer, _, producer = clients(network, credit=1)
    link = producer.sender("q/a")
    producer.send(link, expiring(None))
    sent = producer.send(link, expiring(2.0))
    network.core.context.wall_clock = lambda: NOW + 1e6
    network.advance(1.0)
    assert sent.said == []
    network.leave()
    consumer.take()


def test_where_the_address_does_not_honour_it_the_clock_is_not_looked_at() -> None:
    def broken() -> float:
        raise AssertionError("looked at the wall clock")

    network = Network(HONOURS, AddressConfig(pattern="q/a"))
    network.core.context.wall_clock = broken
    consumer, _, producer = clients(network)
    sent = producer.send(producer.sender("q/a"), expiring(-1e6))
    consumer.take(1)[0].accept()
    network.run()
    assert sent.said == [(Accepted(), True)]
    network.leave()


def test_an_expiry_that_comes_with_a_later_frame_is_waited_for() -> None:
    network = on_time(Network(HONOURS))
    consumer, _, producer = clients(network)
    link = producer.sender("q/a")
    for seconds in (-1.0, 1.0):
        payload = expiring(seconds, subject="s" * 200)
        sent = producer.send(link, payload[:100], more=True)
        assert consumer.arrivals == []
        producer.resume(sent, payload[100:])
        if seconds < 0:
            assert sent.said == [(EXPIRED, True)]
        else:
            (arrival,) = consumer.take(1)
            assert bytes(arrival.payload) == payload
            arrival.accept()
    network.leave()


def test_properties_that_are_longer_than_a_head_may_be_are_not_waited_for() -> None:
    network = on_time(Network(HONOURS))
    consumer, _, producer = clients(network)
    payload = expiring(-1.0, subject="s" * 100_000)
    producer.send(producer.sender("q/a"), payload[:90_000], more=True)
    assert len(consumer.arrivals) == 1
    producer.lose()
    network.leave()


@pytest.mark.parametrize("distribution", [Distribution.BALANCED, Distribution.MULTICAST])
@pytest.mark.parametrize("where", ["A", "B", "C"])
def test_each_router_looks_whose_pattern_says_so(where: str, distribution: Distribution) -> None:
    plain = AddressConfig(pattern="q/#", distribution=distribution)
    looks = AddressConfig(pattern="q/#", distribution=distribution, absolute_expiry=True)
    mesh = World("ABC", [("A", "B"), ("B", "C")], own={**dict.fromkeys("ABC", plain), where: looks})
    for router in "ABC":
        on_time(mesh[router])
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    consumer.receiver("q/a", credit=10)
    link = producer.sender("q/a")
    anonymous = producer.sender(None)
    mesh.advance(0.5)
    for each in (link, anonymous):
        sent = producer.send(each, expiring(0.4))
        mesh.run()
        assert sent.said == [(EXPIRED, True)]
    assert consumer.take() == []
    assert [mesh[router].core.context.expired for router in "ABC"] == [2 * (router == where) for router in "ABC"]
    mesh.leave()
