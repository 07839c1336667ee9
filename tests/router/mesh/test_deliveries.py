"""Deliveries across a mesh: from any router to any other, by every kind of lane."""

from collections.abc import Sequence

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.link import Receiver
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified
from amqpmesh.router.amqp.standard.messaging import Source
from amqpmesh.router.amqp.standard.performatives import Attach, Open
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.mesh.neighbour import Neighbour
from amqpmesh.router.mesh.routes import Routes
from amqpmesh.router.model.lane import Lane
from tests.support.peers.scripted import AMQP, frame
from tests.support.worlds.meshes import LISTENER, World
from tests.support.worlds.network import message

LINE = [("A", "B"), ("B", "C")]
NEWS = AddressConfig(pattern="news/#", distribution=Distribution.MULTICAST)


def test_a_delivery_crosses_a_router_and_its_outcome_comes_back() -> None:
    mesh = World("ABC", LINE)
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    consumer.receiver("q", credit=10)
    link = producer.sender("q")
    sent = producer.send(link)
    (arrival,) = consumer.take(1)
    assert bytes(arrival.payload) == message()
    assert sent.said == []
    arrival.accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


def test_a_consumer_that_stops_stops_its_producer_two_routers_away_and_nobody_between_gathers() -> None:
    mesh = World("ABC", LINE)
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    receiver = consumer.receiver("q", credit=10)
    link = producer.sender("q")
    sent = 0
    while link.credit:
        producer.send(link)
        sent += 1
    assert 10 <= sent <= 14, "the consumer's credit, and one for each pool of credit on the way"
    assert len(consumer.take()) == 10
    receiver.flow(10)
    mesh.run()
    while link.credit:
        producer.send(link)
        sent += 1
    assert 20 <= sent <= 24
    mesh.leave()


def test_without_a_consumer_anywhere_there_is_no_credit_and_one_that_comes_gives_some_at_once() -> None:
    mesh = World("ABC", LINE)
    producer = mesh["A"].client()
    link = producer.sender("q")
    assert link.credit == 0
    consumer = mesh["C"].client()
    consumer.receiver("q", credit=5)
    assert mesh.advance_until(lambda: link.credit > 0, 1.0) < 0.1
    consumer.close()
    mesh.advance_until(lambda: link.credit == 0, 2.0)
    assert link.credit == 0
    mesh.leave()


def test_consumers_on_both_ends_share_what_producers_on_both_ends_send() -> None:
    mesh = World("ABC", LINE)
    clients = {router: mesh[router].client() for router in "AC"}
    for client in clients.values():
        client.receiver("q", credit=100)
    links = {router: client.sender("q") for router, client in clients.items()}
    mesh.advance(0.2)
    for _ in range(40):
        for router, client in clients.items():
            mesh.advance_until(lambda link=links[router]: link.credit > 0, 1.0)  # type: ignore[misc]  # of this turn
            client.send(links[router])
    took = {router: len(client.take()) for router, client in clients.items()}
    assert sum(took.values()) == 80
    assert min(took.values()) >= 20, took
    mesh.leave()


def test_the_closest_consumer_gets_all() -> None:
    mesh = World("ABC", LINE, AddressConfig(pattern="q", distribution=Distribution.CLOSEST))
    clients = {router: mesh[router].client() for router in "ABC"}
    far = clients["C"].receiver("q", credit=100)
    near = clients["B"].receiver("q", credit=100)
    producer = clients["A"]
    link = producer.sender("q")
    mesh.advance(0.2)
    for _ in range(10):
        producer.send(link)
    clients["B"].take(10)
    clients["C"].take(0)
    assert near.is_attached
    assert far.is_attached
    mesh.leave()


def test_a_multicast_from_any_sender_reaches_every_consumer_once() -> None:
    mesh = World("ABCD", [("A", "B"), ("B", "C"), ("B", "D"), ("C", "D")], NEWS)
    clients = {router: mesh[router].client() for router in "ABCD"}
    for client in clients.values():
        client.receiver("news/x", credit=10)
    for router in "ABCD":
        producer = clients[router]
        link = producer.sender("news/x")
        mesh.advance(0.2)
        sent = producer.send(link)
        for client in clients.values():
            (arrival,) = client.take(1)
            assert not sent.said
            arrival.accept()
            mesh.run()
        assert sent.said == [(Accepted(), True)]
    mesh.leave()


def test_a_multicast_waits_for_its_slowest_consumer_wherever_that_is() -> None:
    mesh = World("ABC", LINE, NEWS)
    slow, fast, producer = mesh["C"].client(), mesh["B"].client(), mesh["A"].client()
    receiver = slow.receiver("news/x", credit=2)
    fast.receiver("news/x", credit=100)
    link = producer.sender("news/x")
    mesh.advance(0.2)
    sent = 0
    while link.credit:
        producer.send(link, settled=True)
        sent += 1
    assert 2 <= sent <= 6
    slow.take(2)
    assert len(fast.take()) <= sent
    receiver.flow(10)
    mesh.run()
    assert len(slow.take()) == sent - 2
    mesh.leave()


def test_an_anonymous_sender_reaches_an_address_at_another_router() -> None:
    mesh = World("ABC", LINE)
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    consumer.receiver("q", credit=10)
    mesh.advance(0.2)
    link = producer.sender(None)
    sent = producer.send(link, message(to="q"))
    (arrival,) = consumer.take(1)
    assert bytes(arrival.payload) == message(to="q"), "nothing of the mesh's is left in it"
    arrival.accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


@pytest.mark.parametrize("routers", ["ABC", ("A", "B", "A.old"), ("A.old", "B", "A")])
def test_a_reply_finds_the_dynamic_node_of_the_requester_by_a_link_and_by_its_to(routers: Sequence[str]) -> None:
    first, _, last = routers
    mesh = World(routers, [(first, "B", 1), ("B", last, 1)])
    asking, answering = mesh[first].client(), mesh[last].client()
    replies = asking.receiver(None, source=Source(dynamic=True))
    assert replies.remote is not None
    assert isinstance(replies.remote.source, Source)
    name = replies.remote.source.address
    assert name is not None
    assert name.endswith(f"@{first}")
    anonymous, direct = answering.sender(None), answering.sender(name)
    for link, payload in ((anonymous, message(to=name)), (direct, message())):
        sent = answering.send(link, payload)
        (arrival,) = asking.take(1)
        arrival.accept()
        mesh.run()
        assert sent.said == [(Accepted(), True)]
    mesh.leave()


def test_a_large_message_goes_through_and_small_ones_of_others_pass_it() -> None:
    mesh = World("ABC", LINE)
    consumer, other = mesh["C"].client(window=4096), mesh["C"].client()
    producer, small = mesh["A"].client(), mesh["A"].client()
    consumer.receiver("q", credit=10)
    other.receiver("r", credit=10)
    link, other_link = producer.sender("q"), small.sender("r")
    mesh.advance(0.2)
    payload = message("x" * 500_000)
    sent = producer.send(link, payload[:200_000], more=True)
    passing = small.send(other_link)
    other.take(1)[0].accept()
    mesh.run()
    assert passing.said
    producer.resume(sent, payload[200_000:])
    (arrival,) = consumer.take(1)
    assert bytes(arrival.payload) == payload
    arrival.accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


@pytest.mark.parametrize("large", [False, True])
def test_deliveries_of_one_link_to_another_keep_their_order(large: bool) -> None:
    mesh = World("ABC", LINE)
    consumer, producer = mesh["C"].client(window=4096), mesh["A"].client()
    consumer.receiver("q", credit=100)
    link = producer.sender("q")
    mesh.advance(0.2)
    payloads = [message(f"{number}" + "x" * (100_000 if large and number % 3 == 0 else 0)) for number in range(12)]
    for payload in payloads:
        producer.send(link, payload)
    mesh.advance(1.0)
    assert [bytes(arrival.payload) for arrival in consumer.take(12)] == payloads
    mesh.leave()


def test_when_a_router_on_the_path_dies_traffic_takes_the_other_way_and_what_was_sent_is_in_doubt() -> None:
    mesh = World("ABCD", [("A", "B"), ("B", "D"), ("A", "C", 3), ("C", "D", 3)])
    consumer, producer = mesh["D"].client(), mesh["A"].client()
    consumer.receiver("q", credit=100)
    link = producer.sender("q")
    mesh.advance(0.2)
    before = producer.send(link)
    mesh.kill("B")
    assert before.said == [(Modified(delivery_failed=True), True)]
    took = mesh.advance_until(lambda: link.credit > 0, 5.0)
    assert took < 0.15
    after = producer.send(link)
    mesh.advance(0.2)
    for arrival in consumer.take(2):
        arrival.accept()
    mesh.run()
    assert after.said == [(Accepted(), True)]
    mesh.leave()


def test_a_lane_that_was_refused_once_is_attached_later_and_its_producer_gets_credit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mesh = World("AB", [("A", "B")])
    take, refusals = Routes.attach_lane, iter("two")

    def refusing(routes: Routes, neighbour: Neighbour, link: Receiver, attach: Attach, lane: Lane) -> None:
        if next(refusals, None) is None:
            take(routes, neighbour, link, attach, lane)
        else:
            link.refuse(Error(condition=AmqpCondition.RESOURCE_LIMIT_EXCEEDED, description="not now"))

    monkeypatch.setattr(Routes, "attach_lane", refusing)
    consumer, producer = mesh["B"].client(), mesh["A"].client()
    consumer.receiver("q", credit=5)
    mesh.advance(0.2)
    link = producer.sender("q")
    assert link.credit == 0
    mesh.advance_until(lambda: link.credit > 0, 2.0)
    assert link.credit > 0
    mesh.leave()


def test_a_peer_that_takes_one_session_only_is_refused_as_a_neighbour(caplog: pytest.LogCaptureFixture) -> None:
    mesh = World("A", [])
    core = mesh["A"].core
    record = core.accept(LISTENER, "127.0.0.1", mesh.now, secured=False)
    core.receive(record, AMQP + frame(Open(container_id="B", channel_max=0)), mesh.now)
    assert not mesh["A"].mesh.neighbours
    assert b"amqp:resource-limit-exceeded" in core.data_to_send(record, mesh.now)
    assert ["neighbour refused" in each.getMessage() for each in caplog.records] == [True]
    mesh.advance(60.0)
    assert record.engine.finished, "it never answered"
