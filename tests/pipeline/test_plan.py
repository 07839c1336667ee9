"""Cost plans: they bear single failures as well as the costs before, and name their graph."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from amqpmesh.pipeline import plan as plan_module
from amqpmesh.pipeline.contingency import Case, Flow
from amqpmesh.pipeline.cost_search import Effort, edges_of
from amqpmesh.pipeline.events import TABLES, spark_schema
from amqpmesh.pipeline.graphs import Graph
from amqpmesh.pipeline.plan import CHANGES, FILE, Proposed, changes, directly, job, links, proposed, save
from amqpmesh.pipeline.traffic import MATRIX
from amqpmesh.pipeline.traffic_limits import FILE as FILE_OF_LIMITS
from amqpmesh.pipeline.traffic_limits import Allowed, read
from amqpmesh.pipeline.work import Work
from amqpmesh.router.management.cost_plan import Change, from_json, to_json
from tests.pipeline.test_rehearsal import SQUARE
from tests.pipeline.test_routing import flows_of, grid
from tests.router.management.test_cost_plan import PLAN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A sends twice as much to C as goes anywhere else, and all of it by B.
FLOWS = [Flow("", "orders", "A", "C", 20.0, 2000.0), Flow("", "news", "B", "C", 10.0, 1000.0)]
#: More than enough for graphs of four routers.
QUICK = Effort(evaluations=500)


def of(seed: int, harm: float) -> tuple[Graph, list[Flow], Proposed]:
    """Return the proposal for a random graph."""
    chance = random.Random(seed)
    graph = Graph(grid(chance, 8, 14))
    flows = [Flow("", f"a{at}", *flow, flow[2] * 100) for at, flow in enumerate(flows_of(chance, 8, 14))]
    return graph, flows, proposed(graph, flows, effort=QUICK, harm=harm)


def test_the_most_used_link_is_used_less_and_each_link_is_told_before_and_after() -> None:
    found = proposed(Graph(SQUARE), FLOWS, effort=QUICK)
    assert found.use == (1.0, pytest.approx(2 / 3), 1.0)
    (change,) = found.changes
    assert (change.router, change.before) == ("A", SQUARE[change.router, change.neighbour])
    rows = {(row["router"], row["neighbour"]): row for row in links(found)}
    assert set(rows) == set(SQUARE)
    assert (rows["B", "C"]["bytes_before"], rows["B", "C"]["use_before"]) == (3000.0, 1.0)
    assert rows["B", "C"]["bytes_after"] + rows["D", "C"]["bytes_after"] == 3000.0
    (told,) = changes(found)
    assert told["number"] == 1
    assert told["cost_before"] == change.before
    assert told["cost_after"] == change.after
    assert found.verdict.passed


def test_where_there_is_nothing_to_gain_nothing_is_proposed() -> None:
    line = {("A", "B"): 1, ("B", "A"): 1, ("B", "C"): 1, ("C", "B"): 1}
    found = proposed(Graph(line), FLOWS)
    assert (found.changes, found.use, found.verdict.passed) == ((), (1.0, 1.0, 1.0), None)
    assert not any(row["worse"] for row in found.failures)
    assert proposed(Graph({}), []).changes == ()


@pytest.mark.parametrize("seed", [4, 14])
def test_changes_that_make_a_failure_worse_are_left_out(seed: int) -> None:
    graph, flows, found = of(seed, harm=0.0)
    assert found.changes
    assert found.skipped > 0
    after = Graph({**graph.edges, **{(each.router, each.neighbour): each.after for each in found.changes}})
    before, case = Case.of(graph, flows), Case.of(after, flows)
    now = before.traffic.load.max()
    for failure in before.failures():
        limit = max(before.without(failure)["most_loaded_bytes"], now)
        assert case.without(failure)["most_loaded_bytes"] <= limit * (1 + 1e-9), failure.name
    assert found.use[1] == pytest.approx(case.traffic.load.max() / now)


def test_if_all_changes_make_a_failure_worse_none_is_proposed_unless_that_is_allowed() -> None:
    _, _, found = of(1, harm=0.0)
    assert (found.changes, found.use[1]) == ((), 1.0)
    assert found.verdict.sentence == "all changes that gain enough make a failure worse"
    _, _, found = of(1, harm=10.0)
    assert found.changes


def test_a_capacity_that_is_known_counts() -> None:
    capacity = dict.fromkeys(SQUARE, 4000.0) | {("A", "B"): 1000.0}
    found = proposed(Graph(SQUARE), FLOWS, capacity=capacity, effort=QUICK)
    assert found.use[:2] == (2.0, pytest.approx(0.5))
    assert max(row["use_before"] for row in found.failures) == 2.0


def test_a_link_above_its_limit_is_relieved_before_busier_ones_and_no_other_is_put_above_its_own() -> None:
    # B -> C carries 3,000, and A -> B 2,000: the latter is the one above its limit.
    allowed = Allowed({("A", "B"): 1500.0})
    found = proposed(Graph(SQUARE), FLOWS, allowed=allowed, effort=QUICK)
    rows = {(row["router"], row["neighbour"]): row for row in links(found)}
    assert (found.use[0], rows["A", "B"]["use_before"]) == (pytest.approx(4 / 3), pytest.approx(4 / 3))
    assert rows["A", "B"]["bytes_after"] <= 1500.0
    assert found.limits == "1 above their limit before, 0 after"
    # The other way cannot take it: neither all of it, nor half.
    shut = {edge: 500.0 for edge in SQUARE if "D" in edge}
    found = proposed(Graph(SQUARE), FLOWS, allowed=Allowed({**allowed.links, **shut}), effort=QUICK)
    assert (found.changes, found.limits) == ((), "1 above their limit before, 1 after: A -> B")


@pytest.mark.parametrize(("tenants", "some"), [({}, True), ({"blue": 0.9}, True), ({"blue": 0.3}, False)])
def test_a_tenant_is_put_above_its_share_of_no_link(tenants: dict[str, float], some: bool) -> None:
    blue = [flow._replace(tenant="blue") for flow in FLOWS]
    limits = dict.fromkeys(SQUARE, 2500.0)
    found = proposed(Graph(SQUARE), blue, allowed=Allowed(limits, tenants), effort=QUICK)
    assert bool(found.changes) == some
    if not some:
        assert found.verdict.sentence == "all changes that gain enough make a failure worse, or exceed a limit"
        assert found.limits is not None
        assert "B -> C, tenant blue" in found.limits


def test_tenants_with_no_chance_to_be_above_their_share_are_not_routed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Case, "load_of")
    allowed = Allowed(dict.fromkeys(SQUARE, 1e9), dict.fromkeys(("blue", "red"), 0.5))
    assert allowed.above(Case.of(Graph(SQUARE), FLOWS)) == {}


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_proposed_puts_nothing_above_its_limit(seed: int) -> None:
    chance = random.Random(seed)
    graph = Graph(grid(chance, 7, 12))
    flows = [
        Flow(chance.choice(("blue", "red")), f"a{at}", *flow, flow[2] * 100)
        for at, flow in enumerate(flows_of(chance, 7, 12))
    ]
    now = Case.of(graph, flows)
    load = dict(zip(edges_of(now.network), now.traffic.load.tolist(), strict=True))
    most = max(load.values())
    allowed = Allowed({edge: (octets or most) * chance.uniform(0.5, 2) for edge, octets in load.items()}, {"blue": 0.5})
    found = proposed(graph, flows, allowed=allowed, effort=Effort(evaluations=150), harm=10.0)
    edges = {**graph.edges, **{(each.router, each.neighbour): each.after for each in found.changes}}
    then = Case.of(Graph(edges, graph.routers), flows)
    for tenant, share in ((None, 1.0), ("blue", 0.5)):
        before, after = ((each.traffic.load if tenant is None else each.load_of(tenant)) for each in (now, then))
        for edge, one, other in zip(edges_of(now.network), before.tolist(), after.tolist(), strict=True):
            assert other <= max(one, allowed.links[edge] * share) * (1 + 1e-6), (tenant, edge)


# ------------------------------------------------------------------------------------------------------------- the job


def table(work: Work, name: str, columns: Any, *rows: dict[str, Any]) -> None:
    filled = [tuple(row.get(column.name) for column in columns) for row in rows]
    work.spark.createDataFrame(filled, spark_schema(columns)).write.parquet(work.place(name))


def test_the_job_writes_a_plan_that_was_checked_beside_its_tables(spark: SparkSession, tmp_path: Path) -> None:
    work = Work(spark, ("/events",), str(tmp_path))
    edges = [
        {"router": a, "time": 1, "origin": a, "neighbour": b, "cost": cost, "whole": True}
        for (a, b), cost in SQUARE.items()
    ]
    table(work, "ingest/edges", TABLES["edges"], *edges)
    table(work, "ingest/hops", TABLES["hops"], *({"router": each, "time": 5} for each in "ABCD"))
    minutes = (datetime(2026, 5, 1, 0, minute, tzinfo=UTC) for minute in (0, 1))
    table(work, "traffic/matrix", MATRIX, *({"window_start": next(minutes), **each._asdict()} for each in FLOWS))
    done = job(work)
    plan = from_json((tmp_path / "plan" / FILE).read_bytes())
    found = proposed(Graph(SQUARE), FLOWS, check=directly)
    assert plan.changes == found.changes
    assert plan.refusal is None
    assert (plan.routers, plan.links, plan.events) == (4, 4, ("/events",))
    assert (plan.before.share, plan.before.router, plan.before.neighbour) == (1.0, "B", "C")
    assert done.rows == done.figures["changes"] == 1
    assert [row.asDict() for row in work.read("plan/changes").collect()] == changes(found)
    assert [row.asDict() for row in work.read("plan/links").orderBy("router", "neighbour").collect()] == links(found)
    failures = work.read("plan/failures").orderBy("kind", "failure").collect()
    assert [row.asDict() for row in failures] == list(found.failures)
    assert {row["failure"] for row in failures} == {"A - B", "A - D", "B - C", "C - D", *"ABCD"}
    assert [table.title for table in done.tables] == ["changes", "checks"]

    # 1,800 octets in the busiest minute: 2,700 in a time with one and a half of it.
    (tmp_path / FILE_OF_LIMITS).write_text('[[link]]\nrouter = "B"\nneighbour = "C"\nbytes_per_second = 30\n')
    limited = Work(spark, (), str(tmp_path))
    assert plan_module._allowed(limited, read(str(tmp_path))).links == {("B", "C"): pytest.approx(2700.0)}

    other = Work(spark, (), f"file://{tmp_path}/other")
    (tmp_path / "other" / "plan").mkdir(parents=True)
    save(other, to_json(PLAN))
    assert from_json((tmp_path / "other" / "plan" / FILE).read_text()) == PLAN


def test_of_a_mesh_that_has_recorded_nothing_the_plan_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    work = Work(spark, ("/events",), str(tmp_path))
    for name in ("edges", "hops"):
        table(work, f"ingest/{name}", TABLES[name])
    table(work, "traffic/matrix", MATRIX)
    assert job(work).rows == 0
    plan = from_json((tmp_path / "plan" / FILE).read_bytes())
    assert (plan.changes, plan.before.share, plan.before.router) == ((), 0.0, None)
    assert work.read("plan/changes").columns == [column.name for column in CHANGES]


def test_a_change_is_named_for_people() -> None:
    assert Change("A", "B", 1, 2).name == "A -> B"
