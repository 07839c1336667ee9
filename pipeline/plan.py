"""A plan of new link costs that relieve the busiest link for the recorded traffic: proposed, and checked.

The result of `cost_search` is checked with every single link and router failing (`contingency`), and changes that make
a failure worse are left out. The rest is tried on simulated routers (`rehearsal`). The result is a plan for `amqpmesh
routes apply`; the job itself changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from amqpmesh.pipeline.contingency import Case, Failure, Flow, contingency, flows
from amqpmesh.pipeline.cost_search import USUAL, Edge, Effort, arranged, capacities, edges_of, search
from amqpmesh.pipeline.deliveries import between
from amqpmesh.pipeline.events import Column, spark_schema, table
from amqpmesh.pipeline.files import ordinary
from amqpmesh.pipeline.graphs import Graph, recorded
from amqpmesh.pipeline.rehearsal import rehearsed
from amqpmesh.pipeline.routing import Amounts
from amqpmesh.pipeline.traffic_limits import Allowed, Limits, read
from amqpmesh.pipeline.work import Done, Table, Work
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.management.cost_plan import Change, Plan, Use, Verdict, to_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HARM: Final = 0.1
"""A failure is worse after the changes if the busiest link is then used more than with the present costs, by more than
this share. Uses up to the greatest one now, without a failure, do not count.
"""

TRIES: Final = 3
"""Searches with other random numbers before no changes are proposed, since all make a failure worse."""

NAMED: Final = 5
"""Links above their limit that a sentence names at most."""

NO_LIMITS: Final = Allowed()

FILE: Final = "plan.json"
"""The plan's name, beside its tables."""

_SAME: Final = 1e-9
"""The relative difference up to which amounts are equal."""

CHANGES: Final = (
    Column("number", pa.int64(), "the position in the order of the changes, from 1"),
    Column("router", pa.string(), "the router that sends"),
    Column("neighbour", pa.string(), "the router that receives"),
    Column("cost_before", pa.int64(), "the present cost of this direction"),
    Column("cost_after", pa.int64(), "the planned cost of this direction"),
    Column("bytes_before", pa.float64(), "the recorded traffic that this direction carries", "octets"),
    Column("bytes_after", pa.float64(), "the part of the recorded traffic that it will carry", "octets"),
    Column("use_before", pa.float64(), "`bytes_before`, divided by the capacity"),
    Column("use_after", pa.float64(), "`bytes_after`, divided by the capacity"),
)

LINKS: Final = CHANGES[1:]

FAILURES: Final = (
    Column("kind", pa.string(), "`link` or `router`"),
    Column("failure", pa.string(), "the failed router, `A`, or link, `A - B`"),
    Column(
        "most_loaded_before", pa.string(), "the direction with the highest use; null if no link carries any", "", True
    ),
    Column("most_loaded_after", pa.string(), "the same with the planned costs", "", True),
    Column("use_before", pa.float64(), "the use of `most_loaded_before`"),
    Column("use_after", pa.float64(), "the use of `most_loaded_after`"),
    Column("lost_before", pa.float64(), "messages without a path to the router that received them"),
    Column("lost_after", pa.float64(), "the same with the planned costs"),
    Column("worse", pa.bool_(), "true if the plan makes this failure worse than allowed; false in every proposed plan"),
)
TABLES: Final = {"plan/changes": CHANGES, "plan/links": LINKS, "plan/failures": FAILURES}

Row = Mapping[str, Any]
Check = Callable[[Case, Sequence[Failure]], Sequence[Row]]
"""A function that returns the effects of failures, in any order: rows of `contingency`."""


@dataclass(frozen=True)
class Proposed:
    """A proposal.

    Args: changes: in their order. case, changed: before and after. use: of the busiest link before, after, and in
        between. failures: rows of the table of that name. skipped: changes of the search that made a failure worse.
        least, evaluations, is_exhausted: of the search. allowed: the limits.
    """

    changes: tuple[Change, ...]
    case: Case
    changed: Case
    use: tuple[float, float, float]
    failures: tuple[Row, ...]
    skipped: int
    least: float
    evaluations: int
    is_exhausted: bool
    allowed: Allowed = NO_LIMITS

    @property
    def limits(self) -> str | None:
        """The links and tenants above a limit, before and after; None: there are no limits."""
        if not self.allowed.links:
            return None
        before, after = self.allowed.above(self.case), self.allowed.above(self.changed)
        named = "; ".join(_place(each) for each in list(after)[:NAMED])
        told = f"{len(before):,} above their limit before, {len(after):,} after"
        return f"{told}: {named}" if named else told

    @property
    def verdict(self) -> Verdict:
        """The result of the check by failures."""
        if not self.changes:
            reason = "there is nothing to gain"
            if self.skipped:
                reason = "all changes that gain enough make a failure worse"
                reason += ", or exceed a limit" if self.allowed.links else ""
            return Verdict(None, reason)
        before, after = (max(self.failures, key=lambda row: row[name]) for name in ("use_before", "use_after"))
        worse = [row for row in self.failures if row["worse"]]
        sentence = (
            f"of {len(self.failures):,} single failures the worst has a link used {before['use_before']:.2f} before "
            f"({before['failure']}), {after['use_after']:.2f} after ({after['failure']})"
        )
        return Verdict(not worse, f"{sentence}; {len(worse):,} are worse than is allowed")


def directly(case: Case, failures: Sequence[Failure]) -> list[Row]:
    """Check failures without Spark."""
    return [case.without(each) for each in failures]


def proposed(
    graph: Graph,
    flows: Sequence[Flow],
    *,
    capacity: Mapping[Edge, float] | None = None,
    allowed: Allowed = NO_LIMITS,
    effort: Effort = USUAL,
    harm: float = HARM,
    check: Check = directly,
) -> Proposed:
    """Propose changes that make no single failure worse, and put nothing above its limit.

    Args: capacity: of directions of links over the whole time, in octets; the others are equal. allowed: limits, which
        are capacities, too. harm: as `HARM`. check: evaluates failures.
    """
    first = Case.of(graph, flows)
    can = capacities(first.network, {**(capacity or {}), **allowed.links}, first.traffic.load)
    case = replace(first, capacity=can)
    singles = case.failures()
    before = _by_name(check(case, singles))
    above = allowed.above(case)
    most = float((case.traffic.load / can).max(initial=0.0))
    skipped = evaluations = 0
    is_exhausted = False
    for attempt in range(TRIES):
        found = search(case.traffic, can, replace(effort, seed=effort.seed + attempt))
        evaluations += found.evaluations
        is_exhausted = found.is_exhausted
        changes = dict(found.changes)
        while changes:
            changes, after, on_the_way = arranged(case.traffic, can, changes)
            if after > most * (1 - effort.gain):
                break
            changed = _with(graph, flows, changes, can)
            rows = _failure_rows(before, _by_name(check(changed, singles)), most, harm)
            if not any(row["worse"] for row in rows) and not allowed.broken(above, changed):
                made = tuple(Change(*edge, graph.edges[edge], cost) for edge, cost in changes.items())
                use = most, after, on_the_way
                return Proposed(
                    made, case, changed, use, tuple(rows), skipped, found.least, evaluations, is_exhausted, allowed
                )
            worse = {(row["kind"], row["failure"]) for row in rows if row["worse"]}
            again = [each for each in singles if (each.kind, each.name) in worse]

            def trial(left: Mapping[Edge, int], again: Sequence[Failure] = again) -> tuple[int, float]:
                """Return the number of failures that are worse and of limits that are broken; and the highest use."""
                with_them = _with(graph, flows, left, can)
                compared = _failure_rows(before, _by_name(directly(with_them, again)), most, harm)
                use = float((with_them.traffic.load / can).max(initial=0.0))
                return sum(row["worse"] for row in compared) + len(allowed.broken(above, with_them)), use

            changes = _without_one(changes, trial)
            skipped += 1
        if not found.changes:
            break
    rows = _failure_rows(before, before, most, harm)
    use = most, most, most
    return Proposed((), case, case, use, tuple(rows), skipped, found.least, evaluations, is_exhausted, allowed)


def _place(above: tuple[str, ...]) -> str:
    router, neighbour, *tenant = above
    return f"{router} -> {neighbour}" + "".join(f", tenant {each}" for each in tenant)


def _with(graph: Graph, flows: Sequence[Flow], changes: Mapping[Edge, int], capacity: Amounts) -> Case:
    return Case.of(Graph({**graph.edges, **changes}, graph.routers), flows, capacity)


def _without_one(
    changes: Mapping[Edge, int], trial: Callable[[Mapping[Edge, int]], tuple[int, float]]
) -> dict[Edge, int]:
    """Leave out one change: the one without which `trial` returns the least."""
    left = {edge: {other: cost for other, cost in changes.items() if other != edge} for edge in changes}
    return left[min(changes, key=lambda edge: (*trial(left[edge]), edge))]


def _by_name(rows: Sequence[Row]) -> dict[tuple[str, str], Row]:
    return {(row["kind"], row["failure"]): row for row in rows}


def _failure_rows(
    before: Mapping[tuple[str, str], Row], after: Mapping[tuple[str, str], Row], most: float, harm: float
) -> list[Row]:
    """Return the rows of the table `failures`: each failure before and after a change of costs.

    Args: before: the rows of all failures with the present costs. after: the rows of the failures to compare, with the
        changed costs. most: the use of the busiest link with the present costs and without a failure. harm: the part
        by which the change may raise the use of the busiest link during a failure without making that failure worse.
    """
    rows: list[Row] = []
    for name in sorted(after):
        one, other = before[name], after[name]
        limit = max(one["use"] * (1 + harm), most)
        rows.append(
            {
                "kind": name[0],
                "failure": name[1],
                "most_loaded_before": one["most_loaded"],
                "most_loaded_after": other["most_loaded"],
                "use_before": one["use"],
                "use_after": other["use"],
                "lost_before": one["lost_messages"],
                "lost_after": other["lost_messages"],
                "worse": bool(other["use"] > limit * (1 + _SAME) or other["lost_messages"] > one["lost_messages"]),
            }
        )
    return rows


def links(found: Proposed) -> list[Row]:
    """Return the rows of the table `links`."""
    case, changed = found.case, found.changed
    assert case.capacity is not None
    uses = case.traffic.load / case.capacity, changed.traffic.load / case.capacity
    return [
        {
            "router": router,
            "neighbour": neighbour,
            "cost_before": int(case.network.costs[edge]),
            "cost_after": int(changed.network.costs[edge]),
            "bytes_before": float(case.traffic.load[edge]),
            "bytes_after": float(changed.traffic.load[edge]),
            "use_before": float(uses[0][edge]),
            "use_after": float(uses[1][edge]),
        }
        for edge, (router, neighbour) in enumerate(edges_of(case.network))
    ]


def changes(found: Proposed) -> list[Row]:
    """Return the rows of the table `changes`."""
    by_edge = {(row["router"], row["neighbour"]): row for row in links(found)}
    return [
        {"number": number, **by_edge[each.router, each.neighbour]} for number, each in enumerate(found.changes, start=1)
    ]


def planned(found: Proposed, simulation: Verdict, work: Work, *, relative: bool = True) -> Plan:
    """Return the plan. Args: relative: the capacities are unknown."""
    rows = links(found)
    return Plan(
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        since=work.since.isoformat() if work.since else None,
        until=work.until.isoformat() if work.until else None,
        events=work.events,
        routers=len(found.case.network),
        links=len(found.case.network.links()),
        relative=relative,
        before=_most_used(rows, "use_before"),
        after=_most_used(rows, "use_after"),
        between=found.use[2],
        contingency=found.verdict,
        simulation=simulation,
        changes=found.changes,
    )


def _most_used(rows: Sequence[Row], name: str) -> Use:
    row = max(rows, key=lambda each: each[name], default=None)
    if row is None or not row[name]:
        return Use(0.0, None, None)
    return Use(row[name], row["router"], row["neighbour"])


def job(work: Work) -> Done:
    """Run the job."""
    edges = table(work.spark, work.place("ingest"), "edges")
    hops = between(table(work.spark, work.place("ingest"), "hops"), work.since, work.until)
    graph, sent = recorded(edges, hops), flows(work.read("traffic/matrix"))

    def check(case: Case, failures: Sequence[Failure]) -> list[Row]:
        names = ("kind", "failure", "most_loaded", "use", "lost_messages")
        return [row.asDict() for row in contingency(case, failures, edges).select(*names).collect()]

    allowed = _allowed(work, read(work.out))
    found = proposed(graph, sent, allowed=allowed, check=check)
    simulation = rehearsed(graph, [(each.ingress, each.egress, each.bytes) for each in sent], found.changes)
    plan = planned(found, simulation, work, relative=not allowed.links)
    rows = work.write("plan/changes", _frame(work.spark, changes(found), CHANGES))
    work.write("plan/links", _frame(work.spark, links(found), LINKS))
    work.write("plan/failures", _frame(work.spark, found.failures, FAILURES))
    save(work, to_json(plan))
    return Done(rows, _figures(found), (*_changes_shown(plan, found), _checks(plan, found)))


def _allowed(work: Work, limits: Limits) -> Allowed:
    if not limits.links:
        return NO_LIMITS
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

    minutes = work.read("traffic/matrix").groupBy("window_start").agg(F.sum("bytes").alias("octets"))
    (row,) = minutes.agg(F.sum("octets"), F.max("octets")).collect()
    return limits.of(row[0] or 0.0, row[1] or 0.0)


def _frame(spark: SparkSession, rows: Sequence[Row], columns: Sequence[Column]) -> DataFrame:
    ordered = [tuple(row[each.name] for each in columns) for row in rows]
    return spark.createDataFrame(ordered, spark_schema(columns)).coalesce(1)


def save(work: Work, text: str) -> None:
    """Write the plan beside its tables; replace an earlier one."""
    place = f"{work.place('plan')}/{FILE}"
    try:
        path = ordinary(place)
    except CommandError:  # a place that only Spark can write to
        java = work.spark.sparkContext._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
        target = java.Path(place)
        stream = target.getFileSystem(work.spark.sparkContext._jsc.hadoopConfiguration()).create(target, True)
        stream.write(text.encode())
        stream.close()
        return
    partial = path.with_name(f".{FILE}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _figures(found: Proposed) -> dict[str, int | float]:
    return {
        "changes": len(found.changes),
        "use before": found.use[0],
        "after": found.use[1],
        "on the way": found.use[2],
        "at least": found.least,
        "single failures": len(found.failures),
        "left out for a failure": found.skipped,
        "costs tried": found.evaluations,
        "search cut short": int(found.is_exhausted),
    }


def _changes_shown(plan: Plan, found: Proposed) -> tuple[Table, ...]:
    if not plan.changes:
        return ()
    headings = ("router", "neighbour", "cost", "cost then", "use", "use then")
    rows = [
        (each["router"], each["neighbour"], each["cost_before"], each["cost_after"], each["use_before"],
         each["use_after"])
        for each in changes(found)
    ]  # fmt: skip
    return (Table("changes", headings, tuple(rows)),)


def _checks(plan: Plan, found: Proposed) -> Table:
    words = {True: "passed", False: "failed", None: "not made"}
    checks = (("contingency", plan.contingency), ("simulation", plan.simulation))
    rows = [(name, words[verdict.passed], verdict.sentence) for name, verdict in checks]
    if found.limits is not None:
        rows.append(("limits", words[not found.allowed.above(found.changed)], found.limits))
    return Table("checks", ("check", "result", "what was found"), tuple(rows))
