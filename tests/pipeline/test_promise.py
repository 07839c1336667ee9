"""A plan that was applied, compared with the traffic since: kept, not in force, other traffic, other paths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from amqpmesh.pipeline.contingency import Flow
from amqpmesh.pipeline.graphs import Graph
from amqpmesh.pipeline.maintenance import carried, graph, repeated
from amqpmesh.pipeline.promise import kept
from amqpmesh.router.management.cost_plan import Change, Plan, Use, Verdict
from tests.pipeline.test_contingency import flow
from tests.pipeline.test_maintenance import both
from tests.pipeline.test_result_rows import at, write

PASSED = Verdict(True, "it passed")
CHANGES = (Change("A", "B", 1, 3),)
# From A to C by B, and from A to D by C: with the planned cost, all to C goes straight.
PLAN = Plan(
    *("2026-05-01T00:00:00+00:00", None, None, (), 3, 3, True),
    *(Use(1.0, "A", "B"), Use(0.6, "A", "C"), 1.0, PASSED, PASSED, CHANGES),
)
BEFORE = both(AB=1, BC=1, AC=3)
AFTER = Graph({**BEFORE.edges, ("A", "B"): 3}, BEFORE.routers)
SENT = [flow("one", "A", "C", 6), flow("two", "A", "B", 4)]


def test_a_promise_is_kept_if_no_link_has_carried_more() -> None:
    found = kept(PLAN, AFTER, SENT, {("A", "C"): 600.0, ("A", "B"): 400.0})
    assert (found.is_kept, found.missing, found.busiest) == (True, [], "A -> C")
    assert (found.promised, found.predicted, found.measured) == pytest.approx((0.6, 0.6, 0.6))
    assert found.sentences[-1] == "measured: 0.60, at A -> C"


def test_costs_that_are_not_in_force_are_named() -> None:
    for mesh in (BEFORE, both(BC=1, AC=3)):
        found = kept(PLAN, mesh, SENT, {("A", "C"): 1.0})
        assert (found.is_kept, found.missing) == (False, [*CHANGES])
        assert found.sentences[0] == "A -> B has not the planned cost 3"


def test_it_is_told_whether_the_traffic_or_its_paths_are_others() -> None:
    other = [flow("one", "A", "C", 9), flow("two", "A", "B", 1)]
    found = kept(PLAN, AFTER, other, {("A", "C"): 900.0})
    assert (found.is_kept, found.sentences[-1]) == (False, "the traffic is another one: plan again")
    found = kept(PLAN, AFTER, SENT, {("A", "B"): 1000.0})
    assert not found.is_kept
    assert found.sentences[-1].startswith("the traffic took other paths than predicted")
    assert kept(PLAN, AFTER, SENT, {("A", "C"): 655.0}).is_kept


def test_a_plan_that_was_made_with_limits_is_measured_by_them() -> None:
    # Of what they may carry, A -> B used 1,000 of 800 before, and A -> C uses 600 of 1,000 then.
    plan = replace(PLAN, relative=False, before=Use(1.25, "A", "B"), after=Use(0.6, "A", "C"))
    can = {("A", "B"): 800.0, ("A", "C"): 1000.0}
    found = kept(plan, AFTER, SENT, {("A", "C"): 600.0, ("A", "B"): 400.0}, can)
    assert (found.is_kept, found.busiest) == (True, "A -> C")
    assert (found.promised, found.predicted, found.measured) == pytest.approx((0.48, 0.48, 0.48))
    found = kept(plan, AFTER, SENT, {("A", "C"): 500.0, ("A", "B"): 500.0}, can)
    assert (found.is_kept, found.busiest, found.measured) == (True, "A -> B", pytest.approx(0.5))


def test_without_traffic_nothing_is_kept_or_broken() -> None:
    found = kept(replace(PLAN, before=Use(0.0, None, None)), AFTER, list[Flow](), {})
    assert (found.is_kept, found.measured, found.promised, found.predicted) == (False, None, 1.0, 1.0)
    assert found.sentences[-1] == "measured: no link has carried anything since"


def test_what_links_have_carried_in_a_time_is_read(tmp_path: Path) -> None:
    rows = [(0, "A", 5.0), (1, "A", 7.0), (2, "A", 9.0), (1, "B", 1.0)]
    write(
        tmp_path,
        "traffic/links",
        *({"window_start": at(hour), "router": router, "peer": "C", "bytes": octets} for hour, router, octets in rows),
    )
    assert carried(str(tmp_path)) == {("A", "C"): 21.0, ("B", "C"): 1.0}
    assert carried(str(tmp_path), at(1), at(2)) == {("A", "C"): 7.0, ("B", "C"): 1.0}


def test_a_multicast_counts_for_each_router_that_it_reached_as_in_the_prediction(tmp_path: Path) -> None:
    # One delivery from A by B to C and D, one to C alone, and one of an earlier hour.
    legs = [(1, b"1", "ABC", 5), (1, b"1", "ABD", 5), (1, b"2", "ABC", 70), (0, b"3", "ABC", 2), (0, b"3", "AB", 2)]
    write(
        tmp_path,
        "deliveries/attempts",
        *(
            {"key": key, "path": [*path], "size": size, "sent_at": at(hour), "egress": path[-1], "legs": count}
            for (hour, key, path, size), count in zip(legs, (2, 2, 1, 2, 2), strict=True)
        ),
    )
    assert repeated(str(tmp_path)) == {("A", "B"): 7.0}
    assert repeated(str(tmp_path), at(1)) == {("A", "B"): 5.0}
    assert repeated(str(tmp_path), at(0), at(1)) == {("A", "B"): 2.0}
    assert repeated(str(tmp_path), at(5)) == {}
    assert repeated(str(tmp_path / "empty")) == {}


def test_routers_that_have_recorded_and_have_no_links_are_in_the_graph(tmp_path: Path) -> None:
    write(tmp_path, "plan/links", *({"router": a, "neighbour": b, "cost_before": 2} for a, b in ("AB", "BA")))
    assert graph(str(tmp_path)).routers == {"A", "B"}
    write(tmp_path, "ingest/segments", {"router": "A"}, {"router": "alone"})
    assert (graph(str(tmp_path)).routers, len(graph(str(tmp_path)).edges)) == ({"A", "B", "alone"}, 2)
