"""Costs of links to neighbours: set by each router, and changed while it runs."""

import pytest

from amqpmesh.router.management.requested_changes import set_cost
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.statistics.configured import ConnectorState, ConnectorStatistics
from amqpmesh.router.statistics.mesh_statistics import NeighbourStatistics
from tests.support.worlds.meshes import World

SQUARE = [("A", "B", 2), ("B", "D", 2), ("A", "C", 3), ("C", "D", 3)]


def neighbour(mesh: World, router: str, other: str) -> NeighbourStatistics:
    (found,) = (each for each in snapshot(mesh[router].core).neighbours if each.router == other)
    return found


def change_cost(mesh: World, router: str, other: str, cost: int) -> None:
    set_cost(mesh[router].core, neighbour(mesh, router, other), cost, mesh.now)
    mesh.advance(0.5)


def distance(mesh: World, router: str, other: str) -> int | None:
    (found,) = (each.distance for each in snapshot(mesh[router].core).routes if each.router == other)
    return found


def test_each_direction_costs_what_the_router_that_sends_says() -> None:
    mesh = World("AB", [("A", "B", 2)])
    change_cost(mesh, "A", "B", 9)
    assert (distance(mesh, "A", "B"), distance(mesh, "B", "A")) == (9, 2)
    assert (neighbour(mesh, "A", "B").cost, neighbour(mesh, "A", "B").remote_cost) == (9, 2)
    assert (neighbour(mesh, "B", "A").cost, neighbour(mesh, "B", "A").remote_cost) == (2, 9)


def test_traffic_takes_the_path_that_is_cheaper_now_and_no_delivery_is_lost() -> None:
    mesh = World("ABCD", SQUARE)
    consumer, producer = mesh["D"].client(), mesh["A"].client()
    consumer.receiver("q", credit=50)
    link = producer.sender("q")
    mesh.advance(0.2)
    before = producer.send(link)
    change_cost(mesh, "A", "B", 9)
    after = producer.send(link)
    carried = {router: [each.deliveries for each in snapshot(mesh[router].core).lanes] for router in "BC"}
    assert carried == {"B": [1, 1], "C": [1, 1]}
    for arrival in consumer.take(2):
        arrival.accept()
    mesh.run()
    assert before.said == after.said != []
    mesh.leave()


def test_the_next_connections_of_a_listener_cost_what_it_was_changed_to() -> None:
    mesh = World("AB", [("A", "B", 2)])
    part = mesh["B"].mesh
    (record,) = part.neighbours
    assert record.listener is not None
    part.set_cost_of(record.listener, 7)
    mesh.advance(0.5)
    assert neighbour(mesh, "A", "B").remote_cost == 7
    mesh.cut(*mesh.wires)
    mesh.join("A", "B")
    mesh.advance(1.0)
    assert (neighbour(mesh, "B", "A").cost, part.cost_of(record.listener)) == (7, 7)


def test_what_is_gone_or_no_way_to_a_neighbour_has_no_cost() -> None:
    mesh = World("AB", [("A", "B")])
    told = neighbour(mesh, "A", "B")
    connector = ConnectorStatistics(
        name="broker",
        role="container",
        cost=1,
        state=ConnectorState.WAITING,
        url=None,
        redirected_from=None,
        connection=None,
        failures=0,
        reason=None,
    )
    core = mesh["A"].core
    with pytest.raises(LookupError, match="role"):
        set_cost(core, connector, 3, mesh.now)
    mesh.cut(*mesh.wires)
    with pytest.raises(LookupError, match="gone"):
        set_cost(core, told, 3, mesh.now)
    core.mesh = None
    with pytest.raises(LookupError, match="no mesh"):
        set_cost(core, told, 3, mesh.now)
