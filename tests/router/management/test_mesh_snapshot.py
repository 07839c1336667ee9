"""The mesh snapshot: neighbours, routes, lanes, addresses of all routers, and reasons of waiting senders."""

from collections.abc import Callable

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.standard.delivery_states import Released
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.logs.event_log import event_of, fields_of
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.mesh import mesh_routes
from amqpmesh.router.model.blocked import ConsumerRouters, why_address
from amqpmesh.router.statistics.common import Reason
from amqpmesh.router.statistics.mesh_statistics import NeighbourStatistics
from amqpmesh.router.statistics.router_statistics import AddressStatistics, LinkStatistics, Statistics
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Client, message

LINE = [("A", "B"), ("B", "C")]


def told(mesh: World, router: str) -> Statistics:
    return snapshot(mesh[router].core)


def at(mesh: World, router: str, name: str = "q") -> AddressStatistics:
    (found,) = (each for each in told(mesh, router).addresses if each.name == name)
    return found


def only_link(mesh: World, router: str) -> LinkStatistics:
    (found,) = told(mesh, router).links
    return found


def neighbour(mesh: World, router: str, other: str) -> NeighbourStatistics:
    (found,) = (each for each in told(mesh, router).neighbours if each.router == other)
    return found


# Neighbours and routes.


def test_a_router_tells_its_neighbours_and_how_the_others_are_reached() -> None:
    mesh = World("ABCD", [("A", "B"), ("B", "D"), ("A", "C"), ("C", "D"), ("B", "C", 7)])
    seen = told(mesh, "A")
    assert [(each.router, each.up, each.advertised, each.reason) for each in seen.neighbours] == [
        ("B", True, True, None),
        ("C", True, True, None),
    ]
    assert [(each.router, each.distance, each.next_hops, each.hops) for each in seen.routes] == [
        ("B", 1, ("B",), 1),
        ("C", 1, ("C",), 1),
        ("D", 2, ("B", "C"), 2),
    ]
    assert seen.mesh is not None
    assert (seen.mesh.routers, seen.mesh.reachable, seen.mesh.neighbours, seen.mesh.lanes) == (4, 4, 2, 0)
    assert (neighbour(mesh, "B", "C").cost, neighbour(mesh, "B", "C").connector) == (7, "B-C")
    assert neighbour(mesh, "C", "B").listener == "mesh"
    mesh.leave()


def test_a_router_without_a_mesh_tells_of_none() -> None:
    mesh = World("A", [])
    mesh["A"].core.mesh = None
    seen = told(mesh, "A")
    assert (seen.mesh, seen.neighbours, seen.routes, seen.lanes, seen.adverts) == (None, (), (), (), ())


def test_a_neighbour_that_is_not_used_is_told_with_the_reason_and_since_when() -> None:
    mesh = World("AB", [])
    wire = mesh.join("A", "B")
    came_up = mesh.now
    mesh.advance(2.0)
    first = neighbour(mesh, "A", "B")
    assert (first.up, first.advertised, first.reason, first.since) == (True, True, None, came_up)
    for _ in range(6):
        mesh.cut(wire)
        wire = mesh.join("A", "B")
    again = neighbour(mesh, "A", "B")
    assert (again.up, again.advertised, again.reason) == (True, False, "lost too often recently")
    assert again.since == mesh.now
    assert [(each.router, each.distance, each.next_hops, each.hops) for each in told(mesh, "A").routes] == [
        ("B", None, (), None)
    ]


def test_a_neighbour_that_does_not_tell_of_this_router_is_told_so() -> None:
    mesh = World("AB", LINE[:1])
    graph = mesh["A"].mesh.topology.graph
    graph.update("B", {})
    found = neighbour(mesh, "A", "B")
    assert (found.up, found.remote_cost, found.reason) == (True, None, "the neighbour does not tell of it")


def test_a_router_that_drains_is_no_way_through() -> None:
    mesh = World("ABC", LINE)
    mesh["B"].core.start_drain(mesh.now)
    mesh.advance(1.0)
    assert {each.router: (each.transit, each.distance) for each in told(mesh, "A").routes} == {
        "B": (False, 1),
        "C": (True, None),
    }


def test_what_is_dropped_of_the_meshs_own_messages_is_counted_by_reason() -> None:
    mesh = World("AB", LINE[:1])
    part = mesh["A"].mesh
    (from_b,) = part.neighbours.values()
    part.topology.received(from_b, b"\xc1", mesh.now)
    part.topology.received(from_b, bytes(2**20), mesh.now)
    seen = told(mesh, "A").mesh
    assert seen is not None
    assert (seen.dropped_malformed, seen.dropped_oversized) == (1, 1)
    assert sum(part.topology.dropped.values()) == 2
    assert seen.messages_sent == sum(part.topology.sent.values()) > 0


# Lanes, links, addresses.


def test_lanes_are_told_as_lanes_and_clients_links_as_links() -> None:
    mesh = World("ABC", LINE)
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    consumer.receiver("q", credit=5)
    producer.send(producer.sender("q"))
    assert [len(told(mesh, router).links) for router in "ABC"] == [1, 0, 1]
    assert [told(mesh, router).router.links for router in "ABC"] == [1, 0, 1]
    lanes = {
        router: [
            (each.kind, each.address, each.far, each.direction, each.neighbour, each.deliveries, each.unsettled)
            for each in told(mesh, router).lanes
        ]
        for router in "ABC"
    }
    assert lanes == {
        "A": [("anycast", "q", "C", "outgoing", "B", 1, 1)],
        "B": [("anycast", "q", "C", "incoming", "A", 1, 1), ("anycast", "q", "C", "outgoing", "C", 1, 1)],
        "C": [("anycast", "q", "C", "incoming", "B", 1, 1)],
    }
    assert [neighbour(mesh, "B", each).lanes for each in "AC"] == [1, 1]
    assert told(mesh, "B").addresses == ()
    mesh.leave()


def test_an_address_is_one_on_each_router_and_counts_no_lane_as_a_client() -> None:
    mesh = World("ABC", LINE)
    consumer, near, producer = mesh["C"].client(), mesh["A"].client(), mesh["A"].client()
    consumer.receiver("q", credit=5)
    near.receiver("q", credit=5)
    link = producer.sender("q")
    for _ in range(6):
        producer.send(link)
    for client in (consumer, near):
        for arrival in client.take():
            arrival.accept()
    mesh.run()
    here, there = at(mesh, "A"), at(mesh, "C")
    assert (here.producers, here.consumers, here.consumers_at) == (1, 1, ("C",))
    assert (there.producers, there.consumers, there.consumers_at) == (0, 1, ("A",))
    assert (here.deliveries_in, here.deliveries_out, here.accepted) == (6, 6, 6)
    assert there.deliveries_in == there.deliveries_out == there.accepted > 0
    mesh.leave()


def test_what_its_lanes_have_counted_stays_with_an_address() -> None:
    mesh = World("AB", LINE[:1])
    consumer, producer = mesh["B"].client(), mesh["A"].client()
    consumer.receiver("q", credit=5)
    link = producer.sender("q")
    for _ in range(3):
        producer.send(link)
    for arrival in consumer.take(3):
        arrival.accept()
    consumer.close()
    mesh.advance(60.0)
    assert told(mesh, "A").lanes == ()
    here = at(mesh, "A")
    assert (here.deliveries_in, here.deliveries_out, here.accepted) == (3, 3, 3)
    mesh.leave()


def test_what_waits_for_a_lane_counts_where_it_came_in() -> None:
    mesh = World("AB", LINE[:1])
    consumer, producer = mesh["B"].client(), mesh["A"].client()
    consumer.receiver("q", credit=2)
    link = producer.sender("q")
    (wire,) = mesh.wires
    wire.frozen = True
    sent = 0
    while link.credit:
        producer.send(link)
        sent += 1
    here = at(mesh, "A")
    (lane,) = told(mesh, "A").lanes
    assert here.deliveries_in == sent
    assert here.waiting == sent - lane.deliveries > 0
    assert here.buffered > 0
    wire.frozen = False
    mesh.run()
    assert at(mesh, "A").waiting + at(mesh, "B").waiting == sent - 2
    consumer.take(2)
    mesh.leave()


def test_a_tree_is_told_with_the_router_that_it_begins_at() -> None:
    mesh = World("ABC", LINE, AddressConfig(pattern="news", distribution=Distribution.MULTICAST))
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    consumer.receiver("news", credit=5)
    producer.send(producer.sender("news"))
    consumer.take(1)[0].accept()
    mesh.run()
    assert {(each.kind, each.far, each.address) for each in told(mesh, "B").lanes} == {("tree", "A", "news")}
    here = at(mesh, "A", "news")
    assert (here.producers, here.consumers, here.deliveries_out, here.accepted) == (1, 0, 1, 1)
    mesh.leave()


def test_other_routers_adverts_are_told_reachable_or_not() -> None:
    mesh = World("ABC", LINE)
    mesh["C"].client().receiver("q")
    mesh.advance(0.2)
    seen = {(each.name, each.router, each.distribution, each.reachable) for each in told(mesh, "A").adverts}
    assert seen == {("q", "C", "balanced", True)}
    mesh.cut(*mesh.between("B", "C"))
    mesh.advance(0.5)
    seen = {(each.name, each.router, each.distribution, each.reachable) for each in told(mesh, "A").adverts}
    assert seen == {("q", "C", "balanced", False)}


# Why a sender has no credit.


def nobody(_mesh: World) -> None:
    """No receiver attaches."""


def no_credit(mesh: World) -> None:
    mesh["C"].client().receiver("q", credit=0)


def here_and_there_no_credit(mesh: World) -> None:
    mesh["A"].client().receiver("q", credit=0)
    mesh["C"].client().receiver("q", credit=0)


def taken_back(mesh: World) -> None:
    receiver = mesh["C"].client().receiver("q", credit=5)
    mesh.advance(0.2)
    receiver.flow(0)


def out_of_reach(mesh: World) -> None:
    mesh["C"].client().receiver("q")
    mesh.advance(0.2)
    mesh.cut(*mesh.between("B", "C"))


def parted(mesh: World) -> None:
    mesh.cut(*mesh.between("B", "C"))


def draining(mesh: World) -> None:
    mesh["C"].client().receiver("q")
    mesh["A"].core.start_drain(mesh.now)


@pytest.mark.parametrize(
    ("happened", "reason"),
    [
        (nobody, Reason.NO_RECEIVER),
        (no_credit, Reason.FAR_NO_CREDIT),
        (here_and_there_no_credit, Reason.NO_CREDIT),
        (taken_back, Reason.FAR_NO_CREDIT),
        (out_of_reach, Reason.NO_PATH),
        (parted, Reason.SPLIT),
        (draining, Reason.DRAINING),
    ],
)
@pytest.mark.parametrize("distribution", [Distribution.BALANCED, Distribution.CLOSEST, Distribution.MULTICAST])
def test_a_sender_is_told_why_it_has_no_credit(
    happened: Callable[[World], None], reason: Reason, distribution: Distribution
) -> None:
    mesh = World("ABC", LINE, AddressConfig(pattern="q", distribution=distribution))
    producer: Client = mesh["A"].client()
    producer.sender("q", name="waits")
    happened(mesh)
    mesh.advance(2.5)  # what leads to a router that is lost is kept for a while
    (waiting,) = (each for each in told(mesh, "A").links if each.name == "waits")
    assert (waiting.credit, waiting.reason, at(mesh, "A").reason) == (0, reason, reason)


@pytest.mark.parametrize(
    ("happened", "reason"), [(nobody, Reason.NO_RECEIVER), (out_of_reach, Reason.NO_PATH), (parted, Reason.SPLIT)]
)
def test_the_log_says_in_the_same_words_why_a_sender_waits(
    happened: Callable[[World], None], reason: Reason, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    mesh = World("ABC", LINE)
    happened(mesh)
    mesh.advance(0.5)
    caplog.clear()
    mesh["A"].client().sender("q")
    (said,) = (fields_of(record) for record in caplog.records if event_of(record) == "sender waits")
    assert (said["address"], said["reason"]) == ("q", reason.value)
    assert only_link(mesh, "A").reason is reason


def test_receivers_elsewhere_that_have_all_they_gave_credit_for_are_the_reason() -> None:
    mesh = World("AB", LINE[:1])
    consumer, producer = mesh["B"].client(), mesh["A"].client()
    consumer.receiver("q", credit=1)
    link = producer.sender("q")
    while link.credit:
        producer.send(link)
    assert only_link(mesh, "A").reason is Reason.SPENT
    (lane,) = told(mesh, "A").lanes
    assert (lane.credit, lane.reason) == (0, Reason.RECEIVER_SPENT)


def test_a_lane_that_is_not_answered_yet_is_the_reason() -> None:
    mesh = World("AB", LINE[:1])
    mesh["B"].client().receiver("q", credit=5)
    mesh.advance(0.2)
    (wire,) = mesh.wires
    wire.frozen = True
    mesh["A"].client().sender("q")
    assert only_link(mesh, "A").reason is Reason.ATTACHING
    (lane,) = told(mesh, "A").lanes
    assert lane.reason is Reason.UNANSWERED
    wire.frozen = False
    mesh.advance(0.2)
    assert only_link(mesh, "A").reason is None


def test_without_a_lane_to_a_router_that_is_in_reach_that_is_the_reason() -> None:
    mesh = World("AB", LINE[:1])
    mesh["A"].client().sender("q")
    node = mesh["A"].core.context.nodes.find("", "q")
    assert node is not None
    assert why_address(node, draining=False, consumers=ConsumerRouters(("B",))) is Reason.NO_LANE


def test_a_receiver_that_takes_what_comes_from_elsewhere_has_no_reason_of_senders() -> None:
    mesh = World("AB", LINE[:1])
    mesh["B"].client().receiver("q", credit=5)
    mesh["A"].client().receiver("q", credit=5)
    mesh.advance(0.2)
    assert (at(mesh, "A").reason, at(mesh, "A").demand, at(mesh, "A").granted) == (None, 5, 0)


def test_demand_and_grants_are_those_of_all_ways_and_of_no_way_twice() -> None:
    mesh = World("AB", LINE[:1])
    mesh["A"].client().receiver("q", credit=3)
    mesh["B"].client().receiver("q", credit=4)
    producer = mesh["A"].client()
    link = producer.sender("q")
    mesh.advance(0.2)
    here = at(mesh, "A")
    assert here.demand == 7
    assert here.granted == link.credit >= 3
    mesh.leave()


@pytest.mark.parametrize("address", ["q@B", "$management@B", "@B"])
def test_a_sender_to_another_router_is_told_when_no_path_leads_there(address: str) -> None:
    mesh = World("AB", LINE[:1])
    mesh["A"].client().sender(address)
    there = only_link(mesh, "A")
    assert (there.address, there.reason) == (address, Reason.NO_RECEIVER if address == "q@B" else None)
    mesh.cut(*mesh.wires)
    mesh.advance(0.5)
    assert only_link(mesh, "A").reason is Reason.NO_PATH


# What did not find its way.


def test_what_no_path_leads_to_is_released_and_counted() -> None:
    mesh = World("ABC", LINE)
    mesh.cut(*mesh.between("B", "C"))
    producer = mesh["A"].client()
    sent = producer.send(producer.sender(None), message(to="q@C"))
    assert sent.said == [(Released(), True)]
    seen = told(mesh, "A")
    assert seen.mesh is not None
    assert (seen.mesh.no_path, seen.mesh.no_hops, seen.router.undelivered) == (1, 0, 1)
    mesh.leave()


def test_what_has_made_too_many_hops_is_released_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = World("ABC", LINE)
    mesh["C"].client().receiver("q", credit=5)
    producer = mesh["A"].client()
    link = producer.sender("q")
    mesh.advance(0.2)
    monkeypatch.setattr(mesh_routes, "EXTRA_HOPS", -1)
    producer.send(link)
    seen = told(mesh, "B").mesh
    assert seen is not None
    assert (seen.no_hops, seen.no_path) == (1, 0)
