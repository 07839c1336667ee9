"""Receivers of `name@router` at another router, which take from that router's own node.

The settlement matrix over such a route is in `test_settlement.py`, as one of its stretches.
"""

from __future__ import annotations

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.link import Receiver, Sender
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Released
from amqpmesh.router.amqp.standard.performatives import Attach
from amqpmesh.router.config.file import AddressConfig, MeshConfig, RedirectConfig
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.mesh import mesh_routes
from amqpmesh.router.mesh.neighbour import Neighbour
from amqpmesh.router.mesh.routes import Routes
from amqpmesh.router.model.lane import Lane
from tests.support.worlds.meshes import World, records
from tests.support.worlds.network import Client, message

LINE = [("A", "B"), ("B", "C")]
#: Return a mesh with two paths from A to D: by B, and a longer one by C.
SQUARE = [("A", "B"), ("B", "D"), ("A", "C", 3), ("C", "D", 3)]


def send(mesh: World, client: Client, link: Sender, count: int) -> int:
    """Send settled messages while there is credit, up to a number. Returns: how many were sent."""
    sent = 0
    while sent < count and link.credit:
        client.send(link, settled=True)
        sent += 1
    mesh.advance(0.05)
    return sent


def has_no_lanes(mesh: World) -> bool:
    """Tell whether no router has a route or a lane left."""
    return all(node.mesh.routes.is_empty and not snapshot(node.core).lanes for node in mesh.nodes.values())


@pytest.mark.parametrize("at", ["A", "B", "C"])
@pytest.mark.parametrize("to", ["q", "q@C"])
@pytest.mark.parametrize("by", ["link", "to"])
def test_each_message_for_a_routers_name_reaches_its_remote_receiver(at: str, to: str, by: str) -> None:
    mesh = World("ABC", LINE)
    consumer, producer = mesh["A"].client(), mesh[at].client()
    consumer.receiver("q@C", credit=10)
    mesh.advance(0.2)
    link = producer.sender(to if by == "link" else None)
    mesh.advance(0.2)
    sent = producer.send(link, message(to=to))
    mesh.run()
    (arrival,) = consumer.take(1)
    assert bytes(arrival.payload) == message(to=to)
    arrival.accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    passed = next(each for each in snapshot(mesh["C"].core).addresses if each.name == "q")
    assert passed.deliveries_out == 1, "it is C's name: it goes by C"
    mesh.leave()


def test_a_producer_waits_until_somebody_receives_from_the_routers_name_elsewhere_and_again_when_they_go() -> None:
    mesh = World("ABC", LINE)
    producer, consumer = mesh["C"].client(), mesh["A"].client()
    link = producer.sender("q")
    assert link.credit == 0
    receiver = consumer.receiver("q@C", credit=5)
    assert mesh.advance_until(lambda: link.credit > 0, 1.0) < 0.1
    receiver.detach()
    mesh.run()
    assert mesh.advance_until(lambda: link.credit == 0, 1.0) < 0.5
    mesh.leave()


def test_a_receiver_that_stops_stops_the_producers_of_the_name_and_no_router_between_gathers() -> None:
    mesh = World("ABC", LINE)
    consumer, producer = mesh["A"].client(), mesh["C"].client()
    receiver = consumer.receiver("q@C", credit=10)
    link = producer.sender("q")
    mesh.advance(0.2)
    sent = send(mesh, producer, link, 100)
    assert 10 <= sent <= 15, "its credit, and one for each pool of credit on the way"
    assert len(consumer.take()) == 10
    mesh.advance(5.0)
    sent += send(mesh, producer, link, 100)
    assert sent <= 20, "a few more, since the receiver was fast until then"
    mesh.advance(5.0)
    assert send(mesh, producer, link, 100) == 0
    receiver.flow(10)
    mesh.run()
    sent += send(mesh, producer, link, 100)
    assert 20 <= sent <= 30
    assert len(consumer.take()) == 10
    receiver.flow(100)
    mesh.advance(0.2)
    consumer.take(sent - 20)
    mesh.leave()


def test_receivers_here_and_elsewhere_share_what_comes_for_a_name() -> None:
    mesh = World("ABC", LINE)
    here, far, producer = mesh["C"].client(), mesh["A"].client(), mesh["C"].client()
    here.receiver("q", credit=100)
    far.receiver("q@C", credit=100)
    far.receiver("q@C", credit=100)
    link = producer.sender("q@C")
    mesh.advance(0.2)
    for _ in range(40):
        mesh.advance_until(lambda: link.credit > 0, 1.0)
        producer.send(link)
    took = [len(client.take()) for client in (here, far)]
    assert sum(took) == 40
    assert min(took) >= 10, took
    mesh.leave()


def test_with_closest_a_remote_receiver_gets_messages_if_no_receiver_is_nearer() -> None:
    mesh = World("ABC", LINE, AddressConfig(pattern="q", distribution=Distribution.CLOSEST))
    near, far = mesh["B"].client(), mesh["A"].client()
    here, producer = mesh["C"].client(), mesh["C"].client()
    far.receiver("q@C", credit=100)
    link = producer.sender("q@C")
    mesh.advance(0.2)
    send(mesh, producer, link, 3)
    far.take(3)
    near.receiver("q@C", credit=100)
    mesh.advance(0.2)
    send(mesh, producer, link, 3)
    near.take(3)
    here.receiver("q", credit=100)
    mesh.advance(0.2)
    send(mesh, producer, link, 3)
    here.take(3)
    far.take(0)
    mesh.leave()


def test_a_multicast_of_a_name_reaches_each_of_its_receivers_wherever_they_are_once() -> None:
    mesh = World("ABCD", [*LINE, ("C", "D")], AddressConfig(pattern="news", distribution=Distribution.MULTICAST))
    here, plain = mesh["C"].client(), mesh["D"].client()
    one, two, other = (mesh[router].client() for router in "AAB")
    for client, address in ((here, "news"), (plain, "news"), (one, "news@C"), (two, "news@C"), (other, "news@C")):
        client.receiver(address, credit=10)
    for router in "ACD":
        producer = mesh[router].client()
        link = producer.sender("news")
        mesh.advance(0.3)
        for payload in (message(), message("x" * 200_000)):
            mesh.advance_until(lambda it=link: it.credit > 0, 1.0)  # type: ignore[misc]  # of this turn
            sent = producer.send(link, payload)
            mesh.advance(0.3)
            for client in (here, plain, one, two, other):
                (arrival,) = client.take(1)
                assert bytes(arrival.payload) == payload
                arrival.accept()
            mesh.run()
            assert sent.said == [(Accepted(), True)]
    mesh.leave()


def test_a_large_message_reaches_a_remote_receiver_and_small_ones_pass_it() -> None:
    mesh = World("ABC", LINE)
    consumer, other = mesh["A"].client(window=4096), mesh["A"].client()
    producer, small = mesh["C"].client(), mesh["C"].client()
    consumer.receiver("q@C", credit=10)
    other.receiver("r", credit=10)
    link, passing = producer.sender("q"), small.sender("r")
    mesh.advance(0.2)
    payload = message("x" * 500_000)
    sent = producer.send(link, payload[:200_000], more=True)
    hello = small.send(passing)
    other.take(1)[0].accept()
    mesh.run()
    assert hello.outcome == Accepted()
    producer.resume(sent, payload[200_000:])
    (arrival,) = consumer.take(1)
    assert bytes(arrival.payload) == payload
    arrival.accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


def test_messages_keep_their_order_on_the_way_to_a_remote_receiver() -> None:
    mesh = World("ABC", LINE)
    consumer, producer = mesh["A"].client(window=4096), mesh["B"].client()
    consumer.receiver("q@C", credit=100)
    link = producer.sender("q@C")
    mesh.advance(0.2)
    payloads = [message(f"{number}" + "x" * (100_000 if number % 3 == 0 else 0)) for number in range(12)]
    for payload in payloads:
        mesh.advance_until(lambda: link.credit > 0, 1.0)
        producer.send(link, payload)
    mesh.advance(1.0)
    assert [bytes(arrival.payload) for arrival in consumer.take(12)] == payloads
    mesh.leave()


def test_a_drain_is_answered_after_what_there_is_has_come() -> None:
    mesh = World("ABC", LINE)
    consumer, producer = mesh["A"].client(), mesh["C"].client()
    receiver = consumer.receiver("q@C", credit=0)
    link = producer.sender("q")
    mesh.advance(0.2)
    assert link.credit <= 1
    receiver.flow(5)
    mesh.advance(0.2)
    assert send(mesh, producer, link, 2) == 2
    receiver.flow(5, drain=True)
    mesh.advance(1.0)
    consumer.take(2)
    assert receiver.credit == 0
    mesh.leave()


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
def test_when_the_path_is_lost_what_was_sent_is_in_doubt_and_what_was_not_waits(second: bool) -> None:
    mesh = World("ABC", LINE)
    consumer, producer = mesh["A"].client(), mesh["C"].client()
    mode = ReceiverSettleMode.SECOND if second else ReceiverSettleMode.FIRST
    consumer.receiver("q@C", credit=2, rcv=mode)
    link = producer.sender("q", rcv=mode)
    mesh.advance(0.2)
    sends = [producer.send(link) for _ in range(2)]
    consumer.take(2)
    mesh.cut(*mesh.between("B", "C"))
    mesh.advance(0.5)
    assert [sent.outcome for sent in sends] == [Modified(delivery_failed=True)] * 2
    for sent in sends if second else ():
        sent.dispose(None, settled=True)
    assert link.credit == 0
    mesh.join("B", "C")
    mesh.advance_until(lambda: mesh["C"].mesh.topology.distance("A") is not None, 5.0)
    receiver = consumer.receiver("q@C", credit=5)
    mesh.advance_until(lambda: link.credit > 0, 2.0)
    assert link.credit > 0, "the way is there again"
    producer.send(link, settled=True)
    mesh.advance(0.2)
    consumer.take(1)
    assert receiver.is_attached
    mesh.leave()


@pytest.mark.parametrize("router", ["B", "C"])
def test_a_remote_receiver_is_found_again_when_a_router_dies(router: str) -> None:
    mesh = World("ABC", LINE)
    consumer = mesh["A"].client()
    receiver = consumer.receiver("q@C", credit=10)
    mesh.advance(0.2)
    mesh.kill(router)
    mesh.advance(5.0)
    assert receiver.is_attached, "C may come back"
    mesh.start(router)
    for edge in LINE:
        if router in edge:
            mesh.join(*edge)
    mesh.advance(2.0)
    producer = mesh["C"].client()
    link = producer.sender("q")
    mesh.advance_until(lambda: link.credit > 0, 2.0)
    sent = producer.send(link)
    mesh.advance(0.2)
    consumer.take(1)[0].accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


def test_when_another_path_is_cheaper_nothing_on_its_way_is_lost_or_in_doubt() -> None:
    mesh = World("ABCD", SQUARE)
    consumer, producer = mesh["A"].client(), mesh["D"].client()
    consumer.receiver("q@D", credit=100)
    link = producer.sender("q")
    mesh.advance(0.2)
    (wire,) = mesh.between("B", "D")
    sends = []
    for turn in range(6):
        sends.append(producer.send(link))
        for core, record in wire.ends:
            assert core.mesh is not None
            core.mesh.set_cost(core.mesh.neighbours[record], 1 if turn % 2 else 20)
        mesh.advance(0.5)
        assert link.credit
    for arrival in consumer.take(6):
        arrival.accept()
    mesh.run()
    assert [sent.said for sent in sends] == [[(Accepted(), True)]] * 6
    mesh.advance(0.5)
    lanes = [lane for lane in snapshot(mesh["D"].core).lanes if lane.address == "q@D"]
    assert len(lanes) == 1, "the others are gone, now that nothing on them is unsettled"
    mesh.leave()


def test_a_receiver_that_goes_while_it_has_some_unsettled_leaves_an_outcome_for_each() -> None:
    mesh = World("ABC", LINE)
    consumer, producer = mesh["A"].client(), mesh["C"].client()
    consumer.receiver("q@C", credit=3)
    link = producer.sender("q")
    mesh.advance(0.2)
    sends = []
    while link.credit:
        sends.append(producer.send(link))
    first, _, _ = consumer.take(3)
    first.accept()
    mesh.run()
    consumer.close()
    mesh.advance(1.0)
    assert sends[0].said == [(Accepted(), True)]
    assert [sent.said for sent in sends[1:3]] == [[(Modified(delivery_failed=True), True)]] * 2
    assert [sent.said for sent in sends[3:]] == [[(Released(), True)]] * len(sends[3:])
    mesh.leave()


def test_an_undeliverable_message_is_tried_with_another_receiver_of_the_name() -> None:
    mesh = World("ABC", LINE, AddressConfig(pattern="q", redeliver=True))
    far, here, producer = mesh["A"].client(), mesh["C"].client(), mesh["C"].client()
    far.receiver("q@C", credit=10)
    mesh.advance(0.2)
    link = producer.sender("q")
    mesh.advance_until(lambda: link.credit > 0, 1.0)
    sent = producer.send(link)
    mesh.run()
    here.receiver("q", credit=10)
    far.take(1)[0].dispose(Modified(delivery_failed=True, undeliverable_here=True), settled=True)
    mesh.advance(0.2)
    here.take(1)[0].accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


@pytest.mark.parametrize("second", [True, False])
def test_a_message_that_is_tried_again_elsewhere_goes_there_as_another_delivery(second: bool) -> None:
    mesh = World("AB", LINE[:1], AddressConfig(pattern="q", redeliver=True))
    consumer, producer = mesh["A"].client(), mesh["B"].client()
    consumer.receiver("q@B", credit=10)
    link = producer.sender(None, rcv=ReceiverSettleMode.SECOND if second else ReceiverSettleMode.FIRST)
    mesh.advance(0.2)
    sent = producer.send(link, message(to="q"))
    mesh.advance(0.1)
    (record,) = records(mesh, "A")
    (lane,) = record.incoming
    (first,) = lane.endpoint.terminus.unsettled
    consumer.take(1)[0].dispose(Modified(delivery_failed=True), settled=True)
    mesh.advance(0.1)
    assert list(record.incoming) == [lane], "nothing was wrong with it"
    (again,) = lane.endpoint.terminus.unsettled
    assert again != first
    consumer.take(1)[0].accept()
    mesh.run()
    assert sent.said == [(Accepted(), not second)]
    sent.dispose(None, settled=True)
    mesh.run()
    mesh.leave()


@pytest.mark.parametrize(
    "config",
    [
        AddressConfig(pattern="q", distribution=Distribution.UNAVAILABLE),
        AddressConfig(pattern="q", redirect=RedirectConfig(hostname="b.example")),
        AddressConfig(pattern="q", alias="r"),
    ],
    ids=["unavailable", "redirected", "alias"],
)
def test_nobody_elsewhere_receives_from_a_name_that_nobody_may_receive_from_here(config: AddressConfig) -> None:
    mesh = World("A", [])
    mesh.start("B", config)
    mesh.join("A", "B")
    mesh.advance(1.0)
    consumer = mesh["A"].client()
    receiver = consumer.receiver("q@B", credit=10)
    mesh.advance(0.5)
    assert receiver.is_attached
    assert not mesh["B"].core.context.nodes.find("", "q")
    assert mesh["A"].client().sender("q").credit == 0
    mesh.leave()


def test_a_lane_that_a_neighbour_does_not_take_at_first_is_attached_later(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = World("AB", LINE[:1])
    take, refusals = Routes.attach_lane, iter("two")

    def refusing(routes: Routes, neighbour: Neighbour, link: Receiver, attach: Attach, lane: Lane) -> None:
        if next(refusals, None) is None:
            take(routes, neighbour, link, attach, lane)
        else:
            link.refuse(Error(condition=AmqpCondition.RESOURCE_LIMIT_EXCEEDED, description="not now"))

    monkeypatch.setattr(Routes, "attach_lane", refusing)
    mesh["A"].client().receiver("q@B", credit=5)
    link = mesh["B"].client().sender("q")
    mesh.advance(0.15)
    assert link.credit == 0
    mesh.advance_until(lambda: link.credit > 0, 2.0)
    assert link.credit > 0
    mesh.leave()


def test_receivers_that_come_and_go_leave_nothing_behind() -> None:
    mesh = World("ABC", LINE)
    producer = mesh["C"].client()
    link = producer.sender("q")
    for turn in range(12):
        consumer = mesh["A"].client()
        consumer.receiver("q@C", credit=3)
        mesh.advance(0.05 * (turn % 4))
        send(mesh, producer, link, 2)
        consumer.take()
        consumer.close()
    producer.close()
    mesh.advance(60.0)
    assert has_no_lanes(mesh)
    assert [snapshot(node.core).addresses for node in mesh.nodes.values()] == [(), (), ()]
    mesh.leave()


def test_a_lane_to_a_remote_receiver_is_shown_as_a_lane() -> None:
    mesh = World("AB", LINE[:1])
    mesh["A"].client().receiver("q@B", credit=5)
    producer = mesh["B"].client()
    producer.sender("q")
    mesh.advance(0.2)
    there = snapshot(mesh["B"].core)
    (lane,) = there.lanes
    assert (lane.kind, lane.far, lane.address, lane.neighbour) == ("anycast", "A", "q@B", "A")
    assert [link.name for link in there.links] == ["s0"]
    (address,) = there.addresses
    assert (address.name, address.consumers, address.reason) == ("q", 1, None)
    mesh.leave()


def test_what_goes_on_from_a_name_begins_a_way_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_routes, "EXTRA_HOPS", 0)
    mesh = World("ABC", LINE)
    consumer, producer = mesh["A"].client(), mesh["B"].client()
    consumer.receiver("q@C", credit=10)
    link = producer.sender("q@C")
    mesh.advance(0.2)
    sent = producer.send(link)
    mesh.run()
    keys = {
        router: {
            delivery.tag[:-1]
            for record in mesh[router].core.context.connections
            for each in record.outgoing
            if each.lane is not None
            for delivery in each.endpoint.terminus.unsettled.values()
        }
        for router in "ABC"
    }
    assert [len(keys[router]) for router in "ABC"] == [0, 2, 1], "it passes B twice, by a key each"
    assert keys["C"] < keys["B"]
    consumer.take(1)[0].accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)], "the hops of its first way do not count on its second"
    mesh.leave()


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
def test_the_way_to_a_remote_receiver_takes_the_steps_that_the_sender_asked_for(second: bool) -> None:
    mesh = World("AB", LINE[:1])
    consumer, producer = mesh["A"].client(), mesh["B"].client()
    consumer.receiver("q@B", credit=10)
    link = producer.sender("q", rcv=ReceiverSettleMode.SECOND if second else ReceiverSettleMode.FIRST)
    mesh.advance(0.2)
    sent = producer.send(link)
    (record,) = (record for record in mesh["A"].core.context.connections if record.role == "mesh")
    steps = [delivery.second for each in record.incoming for delivery in each.endpoint.terminus.unsettled.values()]
    assert steps == [second], "a lane is of mode second, and says of each delivery whether it needs it (§2.7.5)"
    consumer.take(1)[0].accept()
    mesh.run()
    assert sent.said == [(Accepted(), not second)]
    sent.dispose(None, settled=True)
    mesh.run()
    mesh.leave()


def test_names_beyond_the_limit_are_given_nothing_until_there_are_fewer(caplog: pytest.LogCaptureFixture) -> None:
    mesh = World("AB", LINE[:1], mesh=MeshConfig(insecure=True, outposts=2))
    consumer, producer = mesh["A"].client(), mesh["B"].client()
    receivers = [consumer.receiver(f"q{number}@B", credit=10) for number in range(4)]
    senders = [producer.sender(f"q{number}") for number in range(4)]
    mesh.advance(0.2)
    assert [bool(each.credit) for each in senders].count(True) == 2
    assert [each.getMessage().split(" address=")[0] for each in caplog.records].count("too many outposts") == 1
    fed = [number for number, each in enumerate(senders) if each.credit]
    receivers[fed[0]].detach()
    mesh.run()
    mesh.advance(1.5)
    now = {number for number, each in enumerate(senders) if each.credit and number != fed[0]}
    assert len(now) == 2, "one of those that waited has its place"
    assert fed[1] in now
    mesh.leave()
    assert len(mesh["B"].mesh.routes.remote_consumers) == 0
