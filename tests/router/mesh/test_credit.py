"""Credit from a consumer back to its producers, over several routers."""

from __future__ import annotations

from itertools import pairwise

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.link import Receiver, Sender
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Released
from amqpmesh.router.config.file import AddressConfig, Overflow
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.statistics.common import Direction
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Client, message

LINE = [("A", "B"), ("B", "C"), ("C", "D")]
NEWS = AddressConfig(pattern="news/#", distribution=Distribution.MULTICAST)
DROPS = AddressConfig(pattern="news/#", distribution=Distribution.MULTICAST, overflow=Overflow.DROP)


def waiting(mesh: World, router: str) -> int:
    """Return the number of deliveries in a router that no receiver has been given."""
    node = mesh[router]
    places = [*node.core.context.nodes.values(), *node.mesh.routes.nodes()]
    places += [each.ingress for each in node.core.context.nodes.values() if each.ingress is not None]
    return sum(each.waiting.size for each in places)


def exhaust(producer: Client, link: Sender, most: int = 100, **how: int) -> int:
    """Send while there is credit, and the session allows it. Returns: the number of messages."""
    sent = 0
    while sent < most and link.credit and producer.session.flow_state.remote_incoming_window > 1:
        producer.send(link, message(sent, **how))
        sent += 1
    return sent


def bodies(consumer: Client) -> list[bytes]:
    """Return the values of the received bodies."""
    return [bytes(arrival.payload)[-1:] for arrival in consumer.take()]


# ------------------------------------------------------------------------------------------------------ back-pressure


def test_a_consumer_that_stops_reading_stops_its_producer_three_routers_away_and_no_router_on_the_way_grows() -> None:
    mesh = World("ABCD", LINE)
    consumer, producer = mesh["D"].client(window=4), mesh["A"].client()
    consumer.receiver("q", credit=1000)
    link = producer.sender("q")
    mesh.advance(0.2)
    consumer.stopped = True
    sent = 0
    for _ in range(1000):
        if not link.credit:
            mesh.advance(0.3)
        if not link.credit:
            break
        producer.send(link, message("x" * 3000))
        sent += 1
    assert link.credit == 0
    assert sent * 3000 < 3 * 2**20, "what a session's window holds and what may wait to be written, of each router"
    held = {router: snapshot(mesh[router].core).router.buffered for router in "ABCD"}
    mesh.advance(5.0)
    assert {router: snapshot(mesh[router].core).router.buffered for router in "ABCD"} == held
    assert max(held.values()) < 2 * AddressConfig(pattern="x").max_credit * 4096, (
        "what one router may have under way to another"
    )
    consumer.stopped = False
    mesh.advance(1.0)
    consumer.take(sent)
    mesh.leave()


def test_idle_producers_that_hold_credit_starve_nobody_anywhere_in_the_mesh() -> None:
    mesh = World("ABCD", LINE)
    consumer = mesh["D"].client()
    receiver = consumer.receiver("q", credit=1)
    idle = [(client := mesh[router].client(), client.sender("q")) for router in "ABCD" for _ in range(3)]
    mesh.advance(1.0)
    busy = [(client := mesh[router].client(), client.sender("q")) for router in "AD"]
    for turn in range(30):
        producer, link = busy[turn % 2]
        assert mesh.advance_until(lambda link=link: link.credit > 0, 3.0) < 2.5  # type: ignore[misc]  # of this turn
        sent = producer.send(link)
        receiver.flow(1)
        mesh.advance(0.05)
        for arrival in consumer.take():
            arrival.accept()
        mesh.run()
        assert sent.said == [(Accepted(), True)]
    assert all(link.is_attached for _, link in idle)
    mesh.leave()


def test_of_what_waits_at_a_bottleneck_the_highest_priority_leaves_first() -> None:
    mesh = World("ABCD", LINE)
    consumer, producer = mesh["D"].client(), mesh["A"].client()
    urgent = mesh["C"].client()
    receiver = consumer.receiver("q", credit=1)
    link, urgent_link = producer.sender("q"), urgent.sender("q")
    mesh.advance(0.2)
    low = exhaust(producer, link, priority=0)
    mesh.advance_until(lambda: urgent_link.credit > 0, 1.0)
    urgent.send(urgent_link, message(101, priority=9))
    assert waiting(mesh, "C") == 2, "one of low priority waits there, and the one of high"
    order = []
    for _ in range(low + 1):
        order += bodies(consumer)
        receiver.flow(1)
        mesh.advance(0.1)
    order += bodies(consumer)
    assert len(order) == low + 1
    assert low - order.index(bytes([101])) >= 2, "it came before what had come to that router before it"
    mesh.leave()


# ------------------------------------------------------------------------------------------------------------- draining


def test_a_consumer_that_drains_gets_what_producers_three_routers_away_have() -> None:
    mesh = World("ABCD", LINE)
    consumer, producer = mesh["D"].client(), mesh["A"].client()
    producer.drains = False
    link = producer.sender("q")
    receiver = consumer.receiver("q", credit=0)
    mesh.advance(0.2)
    assert link.credit == 0
    receiver.flow(1, drain=True)
    mesh.run()
    took = mesh.advance_until(lambda: link.credit > 0, 0.2)
    assert took < 0.1
    assert [event for event in producer.events if isinstance(event, events.DrainRequested)], "told in the same flow"
    sent = producer.send(link)
    link.drained()
    mesh.run()
    (arrival,) = consumer.take(1)
    arrival.accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    assert receiver.credit == 0
    mesh.leave()


def test_a_drain_is_answered_at_once_when_producers_everywhere_have_nothing() -> None:
    mesh = World("ABCD", LINE)
    consumer = mesh["D"].client()
    receiver = consumer.receiver("q", credit=20)
    producers = [(client := mesh[router].client(), client.sender("q")) for router in "ABCD"]
    mesh.advance(0.5)
    assert any(link.credit for _, link in producers)
    receiver.flow(20, drain=True)
    mesh.run()
    assert mesh.advance_until(lambda: receiver.credit == 0, 1.0) < 0.05
    assert max(link.credit for _, link in producers) == 1, "one each, as long as there is a consumer"
    receiver.flow(5)
    mesh.advance(0.2)
    producer, link = producers[0]
    producer.send(link)
    consumer.take(1)
    mesh.leave()


def test_a_drain_is_answered_in_its_time_when_a_producer_far_away_says_nothing() -> None:
    mesh = World("ABCD", LINE, latency=lambda: 0.005)
    consumer, producer = mesh["D"].client(), mesh["A"].client()
    producer.drains = False
    receiver = consumer.receiver("q", credit=20)
    link = producer.sender("q")
    mesh.advance(0.5)
    assert link.credit
    receiver.flow(20, drain=True)
    mesh.run()
    assert mesh.advance_until(lambda: receiver.credit == 0, 2.0) <= 0.3
    late = producer.send(link)
    mesh.advance(0.5)
    assert late.said == []
    receiver.flow(1)
    mesh.advance(0.5)
    consumer.take(1)[0].accept()
    mesh.advance(0.1)
    assert late.said == [(Accepted(), True)], "it waited, nothing is lost"
    mesh.leave()


# --------------------------------------------------------------------------------------------------------------- copies


@pytest.mark.parametrize("idle", ["A", "C"], ids=["here", "elsewhere"])
def test_an_anonymous_sender_s_messages_go_to_receivers_that_can_take_them(idle: str) -> None:
    mesh = World("ABC", [("A", "B"), ("A", "C")])
    mesh["B"].client().receiver("q", credit=0)
    consumer, producer = mesh[idle].client(), mesh["A"].client()
    consumer.receiver("q", credit=100)
    link = producer.sender(None)
    mesh.advance(0.2)
    sents = []
    for number in range(20):
        sents.append(producer.send(link, message(number, to="q")))
        mesh.advance(0.01)
        for arrival in consumer.take():
            arrival.accept()
    mesh.advance(2.0)
    assert [sent.outcome for sent in sents] == [Accepted()] * 20
    mesh.leave()


@pytest.mark.parametrize("router", ["A", "B", "D"])
def test_a_receiver_of_copies_is_no_consumer_for_any_router(router: str) -> None:
    mesh = World("ABCD", LINE)
    browser, producer = mesh[router].client(), mesh["A"].client()
    browser.receiver("q", credit=100, copy=True)
    link = producer.sender("q")
    mesh.advance(1.0)
    assert link.credit == 0
    for other in "ABCD":
        assert not mesh[other].mesh.topology.lookup("", "q")
    mesh.leave()


def test_copies_are_seen_where_a_message_is_delivered_and_nowhere_else() -> None:
    mesh = World("ABCD", LINE)
    browsers = {router: mesh[router].client() for router in "ABCD"}
    for browser in browsers.values():
        browser.receiver("q", credit=100, copy=True)
    consumer, producer = mesh["D"].client(), mesh["A"].client()
    consumer.receiver("q", credit=10)
    link = producer.sender("q")
    mesh.advance(0.2)
    sent = producer.send(link)
    consumer.take(1)[0].accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    assert {router: len(browser.take()) for router, browser in browsers.items()} == {"A": 0, "B": 0, "C": 0, "D": 1}
    mesh.leave()


# ------------------------------------------------------------------------------------------------------------ anonymous


def test_a_message_that_waits_for_one_address_holds_up_no_other_of_a_distant_anonymous_sender() -> None:
    mesh = World("ABCD", LINE, AddressConfig(pattern="slow", window=64))
    slow, fast, producer = mesh["D"].client(), mesh["D"].client(), mesh["A"].client()
    slow.receiver("slow", credit=1)
    fast.receiver("fast", credit=1000)
    link = producer.sender(None)
    mesh.advance(0.2)
    to_slow, to_fast = [], []
    for _ in range(100):
        to_slow.append(producer.send(link, message(to="slow")))
        to_fast.append(producer.send(link, message(to="fast")))
        assert link.credit, "its window is renewed as what it sends has left, or waits for its address"
    for arrival in fast.take(100):
        arrival.accept()
    slow.take(1)[0].accept()
    mesh.run()
    assert all(sent.said == [(Accepted(), True)] for sent in to_fast)
    assert sum(sent.said == [(Released(), True)] for sent in to_slow) == 100 - 1 - 64, "no more than a window waits"
    mesh.advance(1.1)
    assert sum(sent.said == [(Released(), True)] for sent in to_slow) == 99, "and no longer than it may"
    mesh.leave()


# ------------------------------------------------------------------------------------------------------------ multicast


def multicast(mesh: World) -> tuple[Client, Sender, Client, Client, Client, Receiver]:
    """Return a producer at A, and three consumers. The last one, at D beside the second, takes two deliveries and no
    more."""
    producer, near, far, slow = mesh["A"].client(), mesh["B"].client(), mesh["D"].client(), mesh["D"].client()
    near.receiver("news/x", credit=100_000)
    far.receiver("news/x", credit=100_000)
    receiver = slow.receiver("news/x", credit=2)
    link = producer.sender("news/x")
    mesh.advance(3.0)
    return producer, link, near, far, slow, receiver


def test_a_multicast_holds_for_a_receiver_that_stalls_three_routers_away() -> None:
    mesh = World("ABCD", LINE, NEWS, latency=lambda: 0.002)
    producer, link, near, far, slow, receiver = multicast(mesh)
    given = link.credit  # before A knew which consumer takes little
    sent = 0
    for _ in range(50):
        sent += exhaust(producer, link)
        mesh.advance(0.1)
    assert sent <= given + 6, "what it was given, and one for each pool on the way"
    slow.take(2)
    receiver.flow(1000)
    mesh.advance(0.2)
    assert link.credit
    assert len(near.take()) == len(far.take()) == sent
    slow.take(sent - 2)
    mesh.leave()


@pytest.mark.parametrize("latency", [0.0, 0.002, 0.1])
def test_a_multicast_that_drops_leaves_out_the_receiver_that_stalls_and_not_those_beside_it(latency: float) -> None:
    mesh = World("ABCD", LINE, DROPS, latency=lambda: latency)
    producer, link, near, far, slow, receiver = multicast(mesh)
    sent = 0
    for _ in range(80):
        sent += exhaust(producer, link) if sent < 300 else 0
        mesh.advance(0.1)
    assert sent >= 300
    mesh.advance(10.0)
    near.take(sent)
    far.take(sent)
    assert 2 <= len(slow.take()) < 10
    receiver.flow(1000)
    mesh.advance(1.0)
    assert link.credit
    producer.send(link)
    mesh.advance(1.0)
    assert near.take(1)
    assert far.take(1)
    assert slow.take(1), "it has credit again"
    mesh.leave()


@pytest.mark.parametrize("broken", [("B", "C"), ("B", "D"), ("D", "E")])
def test_a_multicast_over_links_that_are_lost_has_gaps_and_nothing_twice(broken: tuple[str, str]) -> None:
    edges = [("A", "B"), ("B", "C"), ("B", "D"), ("C", "D"), ("D", "E"), ("C", "E", 3)]
    mesh = World("ABCDE", edges, NEWS, latency=lambda: 0.003)
    producer = mesh["A"].client()
    consumers = {router: mesh[router].client() for router in "CDE"}
    for consumer in consumers.values():
        consumer.receiver("news/x", credit=10_000)
    link = producer.sender("news/x")
    mesh.advance(0.5)
    came: dict[str, list[int]] = {router: [] for router in consumers}
    number = 0
    for turn in range(300):
        if turn == 100:
            mesh.cut(*mesh.between(*broken))
        if turn == 200:
            mesh.join(*broken)
        if link.credit:
            number += 1
            producer.send(link, message(f"{number:5}"), settled=True)
        mesh.advance(0.007)
        for router, consumer in consumers.items():
            came[router] += [int(bytes(arrival.payload)[-5:]) for arrival in consumer.take()]
    for router, numbers in came.items():
        assert all(one < other for one, other in pairwise(numbers)), f"twice or out of order at {router}"
        assert number - len(numbers) < 30, f"the gap at {router} is no longer than the tree needed to change"
        assert numbers[-1] >= number - 3
    mesh.leave()


def test_an_anonymous_sender_s_message_does_not_wait_longer_for_a_receiver_that_it_was_given_to() -> None:
    mesh = World("AB", [("A", "B")])
    clients = [mesh[router].client() for router in "AB"]
    for client in clients:
        client.receiver("q", credit=1)
    producer = mesh["A"].client()
    link = producer.sender(None)
    mesh.advance(0.3)
    sents = [producer.send(link, message(number, to="q")) for number in range(6)]
    mesh.advance(1.2)
    # Each has one, and one more has gone to B: by a lane, which waits for B's receiver as any producer there.
    assert [len(client.take()) for client in clients] == [1, 1]
    assert [sent.outcome for sent in sents].count(Released()) == 3
    mesh.leave()


def test_links_for_what_is_large_take_little_of_the_credit_from_what_is_small_beside_it() -> None:
    mesh = World("ABC", pairwise("ABC"))
    consumer, producer = mesh["C"].client(window=4096), mesh["A"].client()
    receiver = consumer.receiver("q", credit=500)
    link = producer.sender("q")
    mesh.advance(0.2)
    payloads = [message(f"{number}" + "x" * (100_000 if number % 50 == 0 else 0)) for number in range(1000)]
    came: list[bytes] = []
    for payload in payloads:
        assert mesh.advance_until(lambda: link.credit > 0, 3.0) < 0.1
        producer.send(link, payload)
        if len(consumer.arrivals) > 50:
            arrivals = consumer.take()
            came += [bytes(arrival.payload) for arrival in arrivals]
            for arrival in arrivals:
                arrival.accept()
            receiver.flow(500)
            mesh.run()
    came += [bytes(arrival.payload) for arrival in consumer.take()]
    assert came == payloads
    for router in "BC":
        lanes = [each for each in snapshot(mesh[router].core).lanes if each.direction is Direction.INCOMING]
        (small,) = (each for each in lanes if not each.bulk)
        large = [each for each in lanes if each.bulk]
        assert (small.deliveries, sum(each.deliveries for each in large)) == (980, 20)
        assert small.credit > 200
        assert all(each.credit <= 32 for each in large)
    mesh.leave()


def test_a_large_message_waits_for_no_drain_of_the_link_for_small_ones() -> None:
    mesh = World("ABC", pairwise("ABC"), latency=lambda: 0.005)
    consumer, producer = mesh["C"].client(window=4096), mesh["A"].client(window=4096)
    consumer.receiver("q", credit=1000)
    link = producer.sender("q")
    mesh.advance(1.0)
    producer.send(link, settled=True)
    mesh.advance(1.0)
    assert len(consumer.take()) == 1
    began = mesh.now
    for _ in range(50):
        assert mesh.advance_until(lambda: link.session.flow_state.remote_incoming_window > 1, 1.0) < 0.1
        producer.send(link, message("x" * 40_000), settled=True)
    mesh.advance_until(lambda: len(consumer.arrivals) == 50 and consumer.arrivals[-1].delivery.complete, 1.0)
    assert len(consumer.take()) == 50
    assert mesh.now - began < 0.15
    mesh.leave()


@pytest.mark.parametrize("latency", [0.0, 0.005])
@pytest.mark.parametrize("beside", [False, True])
def test_a_large_message_goes_on_at_the_pace_of_its_window_though_others_hold_credit(
    latency: float, beside: bool
) -> None:
    mesh = World("ABC", pairwise("ABC"), latency=lambda: latency)
    consumer, producer, other = mesh["C"].client(window=4096), mesh["A"].client(window=4096), mesh["A"].client()
    receiver = consumer.receiver("q", credit=1000)
    link, small = producer.sender("q"), other.sender("q")
    mesh.advance(1.0)
    payload = message("x" * 40_000)
    sent = came = 0
    for turn in range(200):  # one second
        if came > 800:
            break
        while sent - came < 200 and link.credit and link.session.flow_state.remote_incoming_window > 1:
            producer.send(link, payload, settled=True)
            sent += 1
        if beside and turn % 10 == 0 and small.credit:
            other.send(small, settled=True)
        mesh.advance(0.005)
        came += sum(len(each.payload) > 40_000 for each in consumer.take())
        if receiver.credit < 900:
            receiver.flow(1000)
            mesh.run()
    assert came > 800
    mesh.leave()


def test_producers_of_a_multicast_at_two_routers_take_turns_where_its_receivers_take_one_message_each() -> None:
    mesh = World("AB", LINE[:1], NEWS)
    consumers = [mesh["B"].client() for _ in range(2)]
    receivers = [consumer.receiver("news/x", credit=1) for consumer in consumers]
    mesh.advance(0.5)
    producers = [mesh[router].client() for router in "AB"]
    links = [producer.sender("news/x") for producer in producers]
    mesh.advance(0.5)
    for _ in range(20):
        for producer, link in zip(producers, links, strict=True):
            exhaust(producer, link)
        for consumer, receiver in zip(consumers, receivers, strict=True):
            consumer.take(1)[0].accept()
            receiver.flow(1)
            mesh.run()
        mesh.advance(0.01)
    heard = [sum(bool(sent.said) for sent in producer.sent.values()) for producer in producers]
    assert heard == [10, 10]
    for consumer in consumers:
        consumer.take(1)[0].accept()
    mesh.leave()
