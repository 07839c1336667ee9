"""Changes of a message on its way over several routers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.composite import decode_composite, encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.link import Sender
from amqpmesh.router.amqp.standard.definitions import AmqpCondition
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Rejected
from amqpmesh.router.amqp.standard.messaging import (
    AmqpValue,
    DeliveryAnnotations,
    Header,
    MessageAnnotations,
    Properties,
)
from amqpmesh.router.config.file import AddressConfig
from tests.support.data.messages import Message, messages
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Client, message

LINE = [("A", "B"), ("B", "C"), ("C", "D")]
LONG_LINE = [("A", "B"), ("B", "C"), ("C", "D"), ("D", "E"), ("E", "F")]
NEWS = AddressConfig(pattern="news/#", distribution=Distribution.MULTICAST)
EXPIRED = Modified(delivery_failed=True, undeliverable_here=True)
ADDRESSES = ["q", "news/x", None, "r@D"]
"""Addresses of senders whose messages go by an anycast lane, a tree, transit for each `to`, and transit for a name."""


def annotated(*, delivery: dict[str, str] | None = None, to: str = "q", ttl: int | None = None) -> bytes:
    """Return a message with annotations of both kinds."""
    parts: list[object] = [Header(ttl=ttl)]
    if delivery is not None:
        parts.append(DeliveryAnnotations(value={Symbol(key): value for key, value in delivery.items()}))
    parts += [
        MessageAnnotations(value={Symbol("x-opt-kept"): "yes"}),
        Properties(to=to),
        AmqpValue(value="hello"),
    ]
    return b"".join(encode_composite(part) for part in parts)


def across(mesh: World, address: str | None, far: str = "D") -> tuple[Client, Client, str]:
    """Return a consumer at the far end, a producer at A, and the `to` of its messages."""
    to = address or "q"
    consumer, producer = mesh[far].client(), mesh["A"].client()
    consumer.receiver(to.partition("@")[0], credit=100)
    mesh.advance(0.2)
    return consumer, producer, to


def header(payload: bytes) -> Header:
    return decode_composite(Header, payload)[0]


# ------------------------------------------------------------------------------------------------------------------ ttl


def test_a_ttl_leaves_reduced_by_the_time_that_a_message_waited_at_a_router_on_its_way() -> None:
    mesh = World("ABCD", LINE)
    consumer, producer = mesh["D"].client(), mesh["A"].client()
    receiver = consumer.receiver("q", credit=1)
    link = producer.sender("q")
    mesh.advance(0.2)
    sents = []
    while link.credit:
        sents.append(producer.send(link, message(ttl=60_000)))
    assert header(bytes(consumer.take(1)[0].payload)).ttl == 60_000, "it went through without waiting"
    mesh.advance(2.0)
    receiver.flow(1)
    mesh.run()
    assert header(bytes(consumer.take(1)[0].payload)).ttl == 58_000, "that waited at the last router"
    mesh.advance(1.0)
    receiver.flow(1)
    mesh.run()
    assert header(bytes(consumer.take(1)[0].payload)).ttl == 57_000, "and that at two of them"
    mesh.leave()


@pytest.mark.parametrize("settled", [False, True])
def test_a_message_that_expires_at_a_router_is_not_sent_on_and_its_sender_gets_the_outcome(settled: bool) -> None:
    mesh = World("ABCD", LINE)
    consumer, producer = mesh["D"].client(), mesh["A"].client()
    receiver = consumer.receiver("q", credit=1)
    link = producer.sender("q")
    mesh.advance(0.2)
    first = producer.send(link)
    waiting = producer.send(link, message(ttl=1000), settled=settled)
    mesh.advance(0.9)
    assert waiting.said == []
    mesh.advance(0.2)
    assert waiting.said == ([] if settled else [(EXPIRED, True)])
    receiver.flow(10)
    mesh.run()
    (arrival,) = consumer.take(1)
    arrival.accept()
    mesh.run()
    assert first.said == [(Accepted(), True)]
    assert sum(mesh[router].core.context.expired for router in "ABCD") == 1
    mesh.leave()


def test_a_dead_letter_goes_to_a_receiver_at_another_router_than_it_expired_at() -> None:
    mesh = World("ABCD", LINE, AddressConfig(pattern="q", dead_letter="dead"))
    consumer, keeper, producer = mesh["D"].client(), mesh["B"].client(), mesh["A"].client()
    consumer.receiver("q", credit=1)
    keeper.receiver("dead", credit=10)
    link = producer.sender("q")
    mesh.advance(0.2)
    producer.send(link)
    waiting = producer.send(link, message("late", ttl=1000))
    mesh.advance(2.0)
    assert waiting.said == [(EXPIRED, True)]
    (letter,) = keeper.take(1)
    assert bytes(letter.payload) == message("late"), "without ttl"
    letter.dispose(Rejected(), settled=True)
    mesh.run()
    assert waiting.said == [(EXPIRED, True)]
    mesh.leave()


# ---------------------------------------------------------------------------------------------------------- annotations


@pytest.mark.parametrize("address", ADDRESSES)
def test_annotations_of_both_kinds_cross_the_mesh(address: str | None) -> None:
    mesh = World("ABCD", LINE, NEWS)
    consumer, producer, to = across(mesh, address)
    payload = annotated(delivery={"x-opt-mine": "1", "other": "2"}, to=to)
    producer.send(producer.sender(address), payload)
    assert bytes(consumer.take(1)[0].payload) == payload
    mesh.leave()


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_clients_annotations_of_the_mesh_move_no_message_and_reach_no_receiver(address: str | None) -> None:
    mesh = World("ABCD", LINE, NEWS)
    consumer, producer, to = across(mesh, address)
    other = mesh["D"].client()
    other.receiver("other", credit=10)
    link = producer.sender(address)
    mesh.advance(0.2)
    forged = {"x-opt-mesh-to": "other", "x-opt-mesh-key": "1"}
    producer.send(link, annotated(delivery={**forged, "x-opt-mine": "1"}, to=to))
    producer.send(link, annotated(delivery=forged, to=to))
    whole, none = consumer.take(2)
    assert bytes(whole.payload) == annotated(delivery={"x-opt-mine": "1"}, to=to)
    assert bytes(none.payload) == annotated(to=to)
    other.take(0)
    mesh.leave()


# ---------------------------------------------------------------------------------------------- formats and sections


@pytest.mark.parametrize("address", ["q", "news/x", "r@D"])
def test_a_message_of_an_unknown_format_crosses_the_mesh_untouched(address: str) -> None:
    mesh = World("ABCD", LINE, NEWS)
    consumer, producer, _ = across(mesh, address)
    link = producer.sender(address)
    mesh.advance(0.2)
    for payload in (b"\x00\x53\x70 is no header here", b"\xff", b"x" * 100_000):
        sent = producer.send(link, payload, message_format=0x1234_5601)
        (arrival,) = consumer.take(1)
        assert bytes(arrival.payload) == payload
        assert arrival.delivery.message_format == 0x1234_5601
        arrival.accept()
        mesh.run()
        assert sent.said == [(Accepted(), True)]
    mesh.leave()


def test_an_anonymous_sender_s_message_of_an_unknown_format_says_nowhere_where_it_goes_and_is_rejected() -> None:
    mesh = World("ABCD", LINE)
    consumer, producer, _ = across(mesh, None)
    sent = producer.send(producer.sender(None), b"whatever", message_format=7)
    assert isinstance(sent.outcome, Rejected)
    assert sent.outcome.error is not None
    assert sent.outcome.error.condition == AmqpCondition.NOT_IMPLEMENTED
    consumer.take(0)
    mesh.leave()


@pytest.mark.parametrize("address", ["q", "news/x", "r@D"])
def test_sections_out_of_order_are_not_repaired_on_any_hop_and_counted_on_each(address: str | None) -> None:
    mesh = World("ABCD", LINE, NEWS)
    consumer, producer, to = across(mesh, address)
    payload = b"".join(
        encode_composite(part)
        for part in (
            MessageAnnotations(value={Symbol("x-opt-kept"): "yes"}),
            Header(priority=9, ttl=5),
            Properties(to=to),
            AmqpValue(value="hello"),
        )
    )
    sent = producer.send(producer.sender(address), payload)
    (arrival,) = consumer.take(1)
    assert bytes(arrival.payload) == payload
    assert [mesh[router].core.context.irregular_heads for router in "ABCD"] == [1, 1, 1, 1]
    arrival.accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


def test_a_full_frame_of_a_client_crosses_each_hop_as_one_frame() -> None:
    mesh = World("ABCD", LINE)
    consumer, producer, _ = across(mesh, "q")
    link = producer.sender("q")
    mesh.run()

    def frames() -> int:
        """Return the frames of all sessions that have arrived at D."""
        return sum(
            session.next_incoming_id
            for record in mesh["D"].core.context.connections
            for session in record.engine.flow_state.sessions.values()
        )

    payload = message(b"x" * 100_000)
    counts = []
    for _ in range(2):  # the first one also opens a lane
        before = frames()
        told = producer.send(link, payload)
        (arrival,) = consumer.take(1)
        arrival.accept()
        mesh.advance(0.01)
        assert told.said == [(Accepted(), True)]
        counts.append(frames() - before)
    room = mesh["D"].core.context.config.max_frame_size
    assert counts[-1] == -(-len(payload) // room)
    mesh.leave()


@pytest.fixture(scope="module")
def long_line() -> tuple[Client, list[tuple[Client, Sender]]]:
    """Return a consumer at the end of six routers in a line, and at the start a producer for each kind of lane."""
    mesh = World("ABCDEF", LONG_LINE, NEWS)
    consumer = mesh["F"].client(max_frame_size=512)
    for address in ("q", "news/x", "r"):
        consumer.receiver(address, credit=1000)
    producers = []
    for address in ("q", "news/x", "r@F"):
        producer = mesh["A"].client()
        producers.append((producer, producer.sender(address)))
    mesh.advance(0.5)
    return consumer, producers


@settings(max_examples=50)
@given(sent=messages())
def test_the_bare_message_is_the_same_octets_after_five_hops(
    long_line: tuple[Client, list[tuple[Client, Sender]]], sent: Message
) -> None:
    consumer, producers = long_line
    for producer, link in producers:
        told = producer.send(link, sent.data)
        (arrival,) = consumer.take(1)
        assert bytes(arrival.payload) == sent.data, (
            "nothing waited, and there is nothing of the mesh's to be taken away"
        )
        arrival.accept()
        consumer.network.run()
        assert told.said == [(Accepted(), True)]
