"""Outcomes over three routers, and receivers' views of deliveries that fail."""

from __future__ import annotations

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.composite import decode_composite, encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import LinkCondition, ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import (
    Accepted,
    DeliveryState,
    Modified,
    Received,
    Rejected,
    Released,
)
from amqpmesh.router.amqp.standard.messaging import (
    AmqpValue,
    DeliveryAnnotations,
    Header,
    MessageAnnotations,
    Properties,
)
from amqpmesh.router.config.file import AddressConfig, ListenerConfig
from tests.support.worlds.meshes import World
from tests.support.worlds.network import OUTCOMES, Client, message

LINE = [("A", "B"), ("B", "C"), ("C", "D")]
AGAIN = AddressConfig(pattern="again", redeliver=True, attempts=3)
NEWS = AddressConfig(pattern="news/#", distribution=Distribution.MULTICAST)
SECOND = ReceiverSettleMode.SECOND
FAILED = Modified(delivery_failed=True)
ADDRESSES = ["q", "news/x", None]


def pair(mesh: World, address: str = "q", **of_receiver: int) -> tuple[Client, Client]:
    """Return a consumer at D, and a producer at A."""
    consumer, producer = mesh["D"].client(), mesh["A"].client()
    consumer.receiver(address, credit=100, **of_receiver)  # type: ignore[arg-type]  # a limit
    mesh.advance(0.2)
    return consumer, producer


def too_large(state: DeliveryState | None) -> bool:
    """Tell whether an outcome has this error."""
    error = state.error if isinstance(state, Rejected) else None
    return error is not None and error.condition == LinkCondition.MESSAGE_SIZE_EXCEEDED


# ---------------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize("size", [2000, 100_000])
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_message_too_large_for_the_far_consumer_is_rejected_and_its_senders_link_stays(
    address: str | None, size: int
) -> None:
    mesh = World("ABCD", LINE, NEWS)
    to = address or "q"
    consumer, producer = pair(mesh, to, max_message_size=1000)
    link = producer.sender(address)
    mesh.advance(0.2)
    sent = producer.send(link, message("x" * size, to=to))
    assert too_large(sent.outcome)
    small = producer.send(link, message(to=to))
    (arrival,) = consumer.take(1)
    arrival.accept()
    mesh.run()
    assert small.said == [(Accepted(), True)]
    assert link.is_attached
    mesh.leave()


def test_a_message_too_large_for_the_first_router_ends_its_senders_link_and_is_aborted_elsewhere() -> None:
    mesh = World("ABCD", LINE)
    mesh["A"].listener = ListenerConfig(url="amqp://127.0.0.1:0", max_message_size=50_000, idle_time_out=0.0)
    consumer, producer = pair(mesh)
    link = producer.sender("q")
    mesh.advance(0.2)
    assert link.remote_max_message_size == 50_000
    payload = message("x" * 60_000)
    sent = producer.send(link, payload[:40_000], more=True)
    (arrival,) = consumer.arrivals
    assert len(arrival.payload) == 40_000, "what has come is sent on"
    producer.resume(sent, payload[40_000:])
    error = producer.detached[link]
    assert error is not None
    assert error.condition == LinkCondition.MESSAGE_SIZE_EXCEEDED
    assert arrival.delivery.aborted
    mesh.leave()


def test_between_routers_no_limit_holds_but_those_of_the_ends() -> None:
    mesh = World("ABCD", LINE, max_message_size=1000)
    for node in mesh.nodes.values():
        node.listener = ListenerConfig(url="amqp://127.0.0.1:0", idle_time_out=0.0)
    consumer, producer = pair(mesh)
    link = producer.sender("q")
    mesh.advance(0.2)
    assert link.remote_max_message_size == 0
    sent = producer.send(link, message("x" * 100_000))
    (arrival,) = consumer.take(1)
    arrival.accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


# ----------------------------------------------------------------------------------------------------------- redelivery


@pytest.mark.parametrize("outcome", [*OUTCOMES, "gone"])
def test_a_message_is_tried_again_from_where_it_came_in_and_says_how_often_it_was(outcome: str) -> None:
    mesh = World("ABCD", LINE, AGAIN)
    one, producer = mesh["D"].client(), mesh["A"].client()
    one.receiver("again", credit=100)
    link = producer.sender("again")
    mesh.advance(0.2)
    sent = producer.send(link)
    (arrival,) = one.take(1)
    assert decode_composite(Header, bytes(arrival.payload))[0].delivery_count == 0
    if outcome in ("accepted", "rejected"):
        arrival.dispose(OUTCOMES[outcome], settled=True)
        mesh.run()
        assert sent.said == [(OUTCOMES[outcome], True)]
        mesh.leave()
        return
    two = mesh["C"].client()
    two.receiver("again", credit=100)
    mesh.advance(0.2)
    if outcome == "gone":
        one.lose()
    else:
        arrival.dispose(OUTCOMES[outcome], settled=True)
    mesh.advance(0.2)
    assert sent.said == []
    (again,) = [*one.take(), *two.take()]
    header = decode_composite(Header, bytes(again.payload))[0]
    assert not header.first_acquirer
    assert header.delivery_count == (outcome != "released")
    again.accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


@pytest.mark.parametrize(("first", "last"), [("released", Released()), ("modified", FAILED)])
def test_what_failed_once_is_not_said_to_be_released_though_nobody_is_left(first: str, last: DeliveryState) -> None:
    mesh = World("ABCD", LINE, AGAIN)
    consumer, producer = mesh["D"].client(), mesh["A"].client()
    consumer.receiver("again", credit=1)
    link = producer.sender("again")
    mesh.advance(0.2)
    sent = producer.send(link)
    consumer.take(1)[0].dispose(OUTCOMES[first], settled=True)
    mesh.advance(0.5)
    assert sent.said == [], "it waits for credit"
    consumer.close()
    mesh.advance(0.5)
    assert sent.said == [(last, True)]
    mesh.leave()


def test_a_message_that_failed_as_often_as_it_may_is_a_dead_letter_at_another_router() -> None:
    config = AddressConfig(pattern="q", redeliver=True, attempts=2, dead_letter="dead")
    mesh = World("ABCD", LINE, config)
    consumer, keeper, producer = mesh["D"].client(), mesh["C"].client(), mesh["A"].client()
    consumer.receiver("q", credit=100)
    keeper.receiver("dead", credit=100)
    link = producer.sender("q")
    mesh.advance(0.2)
    sent = producer.send(link)
    for _ in range(2):
        consumer.take(1)[0].dispose(OUTCOMES["modified"], settled=True)
        mesh.advance(0.1)
    assert sent.said == [(Modified(delivery_failed=True, undeliverable_here=True), True)]
    (letter,) = keeper.take(1)
    assert decode_composite(Header, bytes(letter.payload))[0].delivery_count == 2
    letter.accept()
    mesh.leave()


# ------------------------------------------------------------------------------------------- in the middle of a message


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_first_frames_of_a_message_arrive_before_its_last_is_sent_and_an_abort_does_too(
    address: str | None,
) -> None:
    mesh = World("ABCD", LINE, NEWS)
    to = address or "q"
    consumer, producer = pair(mesh, to)
    link = producer.sender(address)
    mesh.advance(0.2)
    payload = message("x" * 60_000, to=to)
    for aborted in (True, False):
        sent = producer.send(link, payload[:40_000], more=True)
        (arrival,) = consumer.arrivals
        assert bytes(arrival.payload) == payload[:40_000]
        if aborted:
            producer.resume(sent, aborted=True)
            assert arrival.delivery.aborted
            assert sent.said == []
            consumer.arrivals.clear()
        else:
            producer.resume(sent, payload[40_000:])
            (whole,) = consumer.take(1)
            assert bytes(whole.payload) == payload
            whole.accept()
            mesh.run()
            assert sent.said == [(Accepted(), True)]
    assert mesh["A"].core.context.in_flight == 0
    mesh.leave()


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_outcome_in_the_middle_of_a_message_is_heard_at_once_and_the_link_goes_on(address: str | None) -> None:
    mesh = World("ABCD", LINE, NEWS)
    to = address or "q"
    consumer, producer = pair(mesh, to)
    link = producer.sender(address)
    mesh.advance(0.2)
    payload = message("x" * 60_000, to=to)
    sent = producer.send(link, payload[:40_000], more=True)
    (arrival,) = consumer.arrivals
    arrival.dispose(OUTCOMES["rejected"], settled=True)
    mesh.run()
    assert sent.said == [(OUTCOMES["rejected"], True)]
    producer.resume(sent, payload[40_000:])
    consumer.arrivals.clear()
    after = producer.send(link, payload)
    consumer.take(1)[0].accept()
    mesh.run()
    assert after.said == [(Accepted(), True)]
    mesh.leave()


def test_a_router_on_the_way_that_dies_in_the_middle_of_a_message_aborts_it_below_and_fails_it_above() -> None:
    mesh = World("ABCD", LINE)
    consumer, producer = pair(mesh)
    link = producer.sender("q")
    mesh.advance(0.2)
    payload = message("x" * 60_000)
    sent = producer.send(link, payload[:40_000], more=True)
    (arrival,) = consumer.arrivals
    mesh.kill("B")
    assert sent.said == [(FAILED, True)]
    assert arrival.delivery.aborted
    producer.resume(sent, payload[40_000:])
    assert link.is_attached
    mesh.leave()


# ------------------------------------------------------------------------------------------------ the state `received`


@pytest.mark.parametrize("address", ["q", None])
@pytest.mark.parametrize("annotations", ["none", "own", "forged"])
def test_how_far_a_receiver_has_come_counts_the_sections_that_its_sender_has_sent(
    address: str | None, annotations: str
) -> None:
    mesh = World("ABCD", LINE)
    consumer, producer = pair(mesh)
    link = producer.sender(address)
    mesh.advance(0.2)
    key = {"own": "x-opt-mine", "forged": "x-opt-mesh-to"}.get(annotations)
    parts: list[object] = [Header()]
    if key is not None:
        parts.append(DeliveryAnnotations(value={Symbol(key): "other"}))
    parts += [
        MessageAnnotations(value={Symbol("x-opt-kept"): "yes"}),
        Properties(to="q"),
        AmqpValue(value="x" * 30_000),
    ]
    payload = b"".join(encode_composite(part) for part in parts)
    sent = producer.send(link, payload[:20_000], more=True)
    (arrival,) = consumer.arrivals
    #: The section number of the body, as the receiver counts: up to three or four sections precede it.
    body = 3 + (annotations == "own")
    arrival.dispose(Received(section_number=body, section_offset=123), settled=False)
    mesh.run()
    assert sent.said == [(Received(section_number=len(parts) - 1, section_offset=123), False)]
    arrival.dispose(Received(section_number=0, section_offset=5), settled=False)
    mesh.run()
    # If a router has rewritten or removed a section of the head, an offset within the head means nothing.
    is_rewritten = annotations == "forged" or (annotations == "none" and address is None)
    assert sent.outcome == Received(section_number=0, section_offset=0 if is_rewritten else 5)
    producer.resume(sent, payload[20_000:])
    consumer.take(1)[0].accept()
    mesh.run()
    assert sent.said[-1] == (Accepted(), True)
    mesh.leave()
