"""Recent changes: what is kept of them, for how long, and what a changed graph has to tell."""

from __future__ import annotations

from amqpmesh.router.telemetry.recent_changes import (
    AT_ONCE,
    FIELDS,
    HOUR,
    LONGEST,
    GraphWatch,
    RecentChanges,
)
from amqpmesh.topology.graph import Graph
from amqpmesh.topology.records import SURCHARGE


def events(changes: RecentChanges, after: int = 0) -> list[tuple[str, dict[str, object]]]:
    return [(each.event, dict(each.fields)) for each in reversed(changes.since(0.0, after))]


def test_a_link_that_flaps_pushes_out_no_change_of_an_operator() -> None:
    changes = RecentChanges(10)
    changes.note(0.0, "configuration changed", {"key": "drain"})
    for number in range(1000):
        changes.note(0.0, "link down", {"router": "A", "to": f"B{number}"}, of_mesh=True)
    found = changes.since(0.0)
    assert len(found) == 6
    assert (found[-1].event, found[-1].number) == ("configuration changed", 1)
    assert [each.number for each in found[:5]] == [1001, 1000, 999, 998, 997]
    for number in range(1000):
        changes.note(0.0, "cost changed", {"cost": number})
    assert len(changes.since(0.0)) == 10
    assert changes.last == 2001


def test_changes_are_forgotten_after_an_hour() -> None:
    changes = RecentChanges(10)
    for at in (0.0, 10.0, 20.0):
        changes.note(at, "cost changed", {"cost": 1})
    assert [each.at for each in changes.since(HOUR + 10.0)] == [20.0, 10.0]
    assert [each.at for each in changes.since(HOUR + 10.0, after=2)] == [20.0]
    assert changes.since(3 * HOUR) == []


def test_a_change_takes_a_bounded_room() -> None:
    changes = RecentChanges(2)
    changes.note(0.0, "cost changed", {f"f{n}": "x" * 10_000 for n in range(100)})
    (found,) = changes.since(0.0)
    assert len(found.fields) == FIELDS
    assert all(len(str(each)) <= LONGEST + 3 for each in found.fields.values())
    changes = RecentChanges(2)
    changes.note(0.0, "cost changed", {"missing": None, "groups": ("a", "b"), "flag": True, "share": 0.5})
    assert events(changes) == [("cost changed", {"groups": "a, b", "flag": True, "share": 0.5})]


def test_links_that_come_go_and_cost_something_else_are_told_once() -> None:
    graph, changes = Graph(), RecentChanges(100)
    watch = GraphWatch(graph)
    graph.update("A", {"B": 1})
    graph.update("B", {"A": 2})
    watch.look(changes, 0.0)
    assert events(changes) == [("link up", {"router": "A", "to": "B"})]
    seen = changes.last
    watch.look(changes, 1.0)
    assert events(changes, seen) == []
    graph.update("B", {"A": 5})
    watch.look(changes, 2.0)
    assert events(changes, seen) == [("link cost changed", {"router": "B", "to": "A", "from_cost": 2, "cost": 5})]
    seen = changes.last
    graph.update("A", {})
    watch.look(changes, 3.0)
    graph.update("A", {"B": 1})
    watch.look(changes, 4.0)
    assert [each for each, _ in events(changes, seen)] == ["link down", "link up"]
    assert changes.graph_version == 5


def test_a_router_that_drains_is_told_without_the_surcharge_of_its_costs() -> None:
    graph, changes = Graph(), RecentChanges(100)
    watch = GraphWatch(graph)
    graph.update("A", {"B": 1})
    graph.update("B", {"A": 2})
    watch.look(changes, 0.0)
    seen = changes.last
    graph.set_overload("B", overload=True)
    graph.update("B", {"A": 2 + SURCHARGE})
    watch.look(changes, 1.0)
    assert events(changes, seen) == [("router drains", {"router": "B"})]
    seen = changes.last
    graph.set_overload("B", overload=False)
    graph.update("B", {"A": 2})
    watch.look(changes, 2.0)
    assert events(changes, seen) == [("router drains no longer", {"router": "B"})]


def test_a_large_change_is_told_in_part_and_forgotten_by_nobody() -> None:
    graph, changes = Graph(), RecentChanges(10_000)
    watch = GraphWatch(graph)
    graph.update("A", {f"n{each}": 1 for each in range(1000)})
    for each in range(1000):
        graph.update(f"n{each}", {"A": 1})
    watch.look(changes, 0.0)
    found = events(changes)
    assert len(found) == AT_ONCE + 1
    assert found[-1] == ("links changed", {"others": 1000 - AT_ONCE})
    seen = changes.last
    watch.look(changes, 1.0)
    assert events(changes, seen) == []
    for each in range(1000):  # the journal of the graph does not reach back that far
        graph.update(f"n{each}", {"A": 7})
    watch.look(changes, 2.0)
    assert events(changes, seen)[-1] == ("links changed", {"others": 1000 - AT_ONCE})
