"""Routers that are unreachable for a while: routes to them are kept for a limited time."""

import logging
from string import ascii_uppercase

import pytest

from amqpmesh.router.amqp.standard.delivery_states import Accepted, Released
from amqpmesh.router.mesh.outages import MAX_LINES, WAIT_TIME
from tests.support.worlds.meshes import World
from tests.support.worlds.network import message

LINE = [("A", "B"), ("B", "C")]


@pytest.mark.parametrize("ends", [("A", "B"), ("B", "C")], ids=["here", "on the way"])
def test_a_sender_keeps_its_credit_while_a_connection_is_lost_and_what_it_sends_meanwhile_arrives(
    ends: tuple[str, str],
) -> None:
    mesh = World("ABC", LINE)
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    consumer.receiver("q", credit=10)
    link = producer.sender("q")
    mesh.advance(0.2)
    held = link.credit
    mesh.cut(*mesh.between(*ends))
    mesh.advance(WAIT_TIME / 2)
    assert (link.credit, link.flow_state.drain) == (held, False)
    sents = [producer.send(link, message(number)) for number in range(held)]
    mesh.advance(WAIT_TIME / 4)
    assert [sent.outcome for sent in sents] == [None] * held
    assert link.credit <= 1  # one more than can leave, as always
    mesh.join(*ends)
    mesh.advance(0.2)
    for arrival in consumer.take(held):
        arrival.accept()
    mesh.advance(0.2)
    assert [sent.outcome for sent in sents] == [Accepted()] * held
    assert link.credit > 0
    mesh.leave()


def test_what_is_on_its_way_to_the_router_that_has_lost_the_next_one_waits_there_and_is_no_loop() -> None:
    mesh = World("ABC", LINE, latency=lambda: 0.01)
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    consumer.receiver("q", credit=10)
    link = producer.sender("q")
    mesh.advance(0.5)
    sent = producer.send(link)
    mesh.cut(*mesh.between("B", "C"))
    mesh.advance(WAIT_TIME / 4)
    assert sent.outcome is None
    mesh.join("B", "C")
    mesh.advance(0.5)
    (arrival,) = consumer.take(1)
    arrival.accept()
    mesh.advance(0.5)
    assert sent.outcome == Accepted()
    assert [mesh[router].core.context.no_hops for router in "ABC"] == [0, 0, 0]
    mesh.leave()


def test_a_router_that_does_not_come_back_is_waited_for_so_long_only() -> None:
    mesh = World("ABC", LINE)
    mesh["C"].client().receiver("q", credit=10)
    producer = mesh["A"].client()
    link = producer.sender("q")
    mesh.advance(0.2)
    mesh.cut(*mesh.between("B", "C"))
    sent = producer.send(link, message("x"))
    mesh.advance(WAIT_TIME * 0.9)
    assert (sent.outcome, link.flow_state.drain) == (None, False)
    mesh.advance(WAIT_TIME * 0.2)
    assert (sent.outcome, link.flow_state.drain) == (Released(), True)
    mesh.join("B", "C")
    mesh.leave()


def test_a_message_that_waits_for_a_lost_router_goes_to_another_as_soon_as_one_has_consumers() -> None:
    mesh = World("ABC", [("A", "B"), ("A", "C")])
    mesh["B"].client().receiver("q", credit=10)
    producer = mesh["A"].client()
    link = producer.sender("q")
    mesh.advance(0.2)
    mesh.cut(*mesh.between("A", "B"))
    sent = producer.send(link, message("x"))
    mesh.advance(WAIT_TIME / 4)
    assert sent.outcome is None
    consumer = mesh["C"].client()
    consumer.receiver("q", credit=10)
    mesh.advance(WAIT_TIME / 4)
    (arrival,) = consumer.take(1)
    arrival.accept()
    mesh.advance(0.1)
    assert sent.outcome == Accepted()
    mesh.leave()


def test_nobody_waits_for_a_lost_router_where_others_have_consumers() -> None:
    mesh = World("ABC", [("A", "B"), ("A", "C")])
    mesh["B"].client().receiver("q", credit=100)
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    consumer.receiver("q", credit=100)
    link = producer.sender("q")
    mesh.advance(0.2)
    mesh.cut(*mesh.between("A", "B"))
    sents = [producer.send(link, message(number)) for number in range(20)]
    mesh.advance(0.01)
    for arrival in consumer.take(20):
        arrival.accept()
    mesh.advance(0.01)
    assert [sent.outcome for sent in sents] == [Accepted()] * 20
    mesh.leave()


def test_a_consumer_that_leaves_is_not_waited_for() -> None:
    mesh = World("ABC", LINE)
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    consumer.receiver("q", credit=10)
    link = producer.sender("q")
    mesh.advance(0.2)
    consumer.close()
    mesh.advance(0.1)
    assert link.flow_state.drain
    mesh.leave()


def test_a_router_that_comes_back_without_consumers_is_not_waited_for() -> None:
    mesh = World("AB", [("A", "B")])
    consumer, producer = mesh["B"].client(), mesh["A"].client()
    consumer.receiver("q", credit=10)
    link = producer.sender("q")
    mesh.advance(0.2)
    mesh.cut(*mesh.between("A", "B"))
    sent = producer.send(link, message("x"))
    consumer.close()
    mesh.advance(WAIT_TIME / 4)
    assert sent.outcome is None
    mesh.join("A", "B")
    mesh.advance(WAIT_TIME / 4)
    assert (sent.outcome, link.flow_state.drain) == (Released(), True)
    mesh.leave()


def test_a_way_that_another_link_has_led_already_is_not_the_only_one_for_those_who_come_within_reach_with_it() -> None:
    mesh = World("ABXY", [("A", "B"), ("B", "X"), ("B", "Y")])
    mesh["X"].client().receiver("q", credit=10)
    producer = mesh["A"].client()
    producer.sender("q@X")
    link = producer.sender("q")
    mesh.advance(0.2)
    mesh.cut(*mesh.between("A", "B"))
    mesh.advance(WAIT_TIME / 4)
    # A learns of it before there is a path.
    consumer = mesh["Y"].client()
    consumer.receiver("q", credit=10)
    mesh.join("A", "B")
    mesh.advance(1.0)
    for number in range(4):
        producer.send(link, message(number))
        mesh.advance(0.1)
    assert len(consumer.take()) == 2
    mesh.leave()


def routes(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines of routes, sorted."""
    told = sorted(message for message in caplog.messages if message.startswith("route "))
    caplog.clear()
    return told


def test_every_router_logs_a_router_out_of_reach_for_long_and_its_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    mesh = World("ABC", LINE)
    mesh.cut(*mesh.between("B", "C"))
    mesh.advance(WAIT_TIME / 2)
    mesh.join("B", "C")
    mesh.advance(2 * WAIT_TIME)
    assert routes(caplog) == []  # it was away for a moment
    mesh.cut(*mesh.between("B", "C"))
    mesh.advance(WAIT_TIME + 0.1)
    # A and B report C, and C reports both of them.
    lost = ["route lost router=A", "route lost router=B", "route lost router=C", "route lost router=C"]
    assert routes(caplog) == [f"{each} seconds={WAIT_TIME}" for each in lost]
    mesh.join("B", "C")
    mesh.advance(0.5)
    assert routes(caplog) == [each.replace("lost", "found") for each in lost]
    mesh.leave()


def test_of_many_routers_that_are_lost_at_once_some_have_a_line_and_the_others_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    names = ascii_uppercase[: MAX_LINES + 4]  # A, and all others beyond B
    mesh = World(names, [("A", "B"), *(("B", each) for each in names[2:])])
    mesh.cut(*mesh.between("A", "B"))
    mesh.advance(WAIT_TIME + 0.1)
    told = routes(caplog)
    assert told.count(f"route lost router=A seconds={WAIT_TIME}") == MAX_LINES + 3  # by each of the others
    assert [line for line in told if "router=A" not in line] == [
        f"route lost count=3 seconds={WAIT_TIME}",
        *(f"route lost router={each} seconds={WAIT_TIME}" for each in names[1 : MAX_LINES + 1]),
    ]
    mesh.join("A", "B")
    mesh.advance(0.5)
    assert "route found count=3" in routes(caplog)
    mesh.leave()
