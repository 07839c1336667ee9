"""The job `losses`: of the hours that new segments change, and their days, or of a limited time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from amqpmesh.pipeline.clocks import DAY
from amqpmesh.pipeline.day_records import Stray, days_of_records, records_of_days, with_stray
from amqpmesh.pipeline.deliveries import between
from amqpmesh.pipeline.events import table
from amqpmesh.pipeline.known_segments import records
from amqpmesh.pipeline.last_run import last_run
from amqpmesh.pipeline.losses import Loss, daily, evidence, findings, rows, suspects
from amqpmesh.pipeline.outlines import outlined
from amqpmesh.pipeline.passages import DAY_OF_TIME, SLACK, stretches, without_record
from amqpmesh.pipeline.published import WHOLE, Parts, changed_days, day_name, day_of_name, hours_of, since
from amqpmesh.pipeline.segment_rows import Row
from amqpmesh.pipeline.work import Done, Table, Work
from amqpmesh.router.telemetry.segments import Name

TOP: Final = 10
"""Rows of the table in the summary."""

_ATTEMPTS: Final = "deliveries/attempts"
_DAILY: Final = "losses/daily"
_ROWS: Final = "losses/rows"
_OUTLINES: Final = "losses/outlines"
Stretches = Mapping[str, Sequence[Sequence[int]]]
"""For each router, the times without missing records: begin, end, and the least sample."""


@dataclass(frozen=True)
class _Days:
    """The input of some days. Args: later: `outlines`, and those of the days after."""

    outlines: DataFrame
    later: DataFrame
    hops: DataFrame
    events: DataFrame
    counts: DataFrame
    segments: DataFrame


def job(work: Work) -> Done:
    """Run the job: for a limited time all of it, else only the days that new segments change."""
    parts = dict(work.parts(_ATTEMPTS) or {})
    if work.since is None and work.until is None and parts and WHOLE not in parts:
        return _daily(work, parts)
    _write_outlines(work, {}, None)
    told = _write(work, _everything(work), {})
    routers = table(work.spark, work.place("ingest"), "segments").select("router")
    return _merged(work, {*_routers(work), *(row[0] for row in routers.distinct().collect())}, told, {}, {})


def _write_outlines(work: Work, old: Parts, changed: Set[str] | None) -> int:
    """Write the outlines of some hours. Args: old: the parts of before. changed: hours to make; None: all.

    Returns: the deliveries read.
    """
    attempts = work.read(_ATTEMPTS, changed)
    kept = {hour: place for hour, place in old.items() if hour not in (changed or ())}
    work.write_hours(_OUTLINES, outlined(attempts), kept, 1)
    return attempts.count()


def _everything(work: Work, hour: int = 0) -> _Days:
    """Return the input of all days. Args: hour: what is older, in hours since 1970, was pruned."""
    ingested = {
        name: table(work.spark, work.place("ingest"), name) for name in ("hops", "events", "counts", "segments")
    }
    outlines = work.read(_OUTLINES)
    events, counts = (between(ingested[name], work.since, work.until) for name in ("events", "counts"))
    if hour:
        events, counts = (each.where(f"time >= {hour // 24 * DAY}") for each in (events, counts))
    return _Days(outlines, outlines, ingested["hops"], events, counts, ingested["segments"])


def _routers(work: Work) -> set[str]:
    """Return all routers in the graph."""
    edges = table(work.spark, work.place("ingest"), "edges")
    return {row[0] for row in edges.select("origin").distinct().collect() if row[0] is not None}


def _daily(work: Work, attempts: Parts) -> Done:
    last = last_run(work, "losses")
    ingested, known, new = last.ingested, last.segments, last.new
    segments = table(work.spark, str(ingested), "segments")
    recorded = _stretches(segments)
    routers = {name.router for name in known}
    seen = _seen(work, ingested, new)
    read = 0
    if last.result is None:
        judged = _write_outlines(work, {}, None)
        told = _write(work, _everything(work, last.hour), {})
        routers |= _routers(work)
        stray = with_stray({}, known, *seen)
        retried = _retried(work.read(_OUTLINES))
        touched = {*told, *(name[:10] for name in attempts)}
        read = sum(row["hops"] for row in known.values())
    else:
        state, earlier = last.result.state, last.result.tables
        before: Parts = state["attempts"]
        changed = {hour for hour in {*attempts, *before} if hour and attempts.get(hour) != before.get(hour)}
        if changed:
            judged = _write_outlines(work, earlier[_OUTLINES], changed)
        else:
            judged, work.written[_OUTLINES] = 0, dict(earlier[_OUTLINES])
        outlines = work.parts(_OUTLINES) or {}
        edges = records(work.spark, ingested, "edges", new).select("origin").distinct().collect()
        routers |= {*state["routers"], *(row[0] for row in edges if row[0] is not None)}
        stray = with_stray(state["stray"], new, *seen)
        touched = changed_days(attempts, before)
        touched |= {day for each in seen for days in each.values() for day in days}
        touched |= {day for row in new.values() for day in _span(row["first_time"], row["last_time"])}
        if last.hour != state["pruned"]:  # some of that day's records may be gone
            touched.add(day_name(last.hour // 24))
        touched |= judged_otherwise(state["passages"], state["recorded"], recorded)
        again = _retried(work.read(_OUTLINES, hours_of(outlines, touched)))
        retried = {day: each for day, each in state["retried"].items() if day not in touched} | again
        # An attempt is no loss if it was repeated on the next day.
        others = {day for day in touched if retried.get(day) != state["retried"].get(day)}
        touched = since(touched | {day_name(day_of_name(day) - 1) for day in others}, last.hour)
        old = {name: {day: earlier[name][day] for day in since(earlier[name], last.hour)} for name in (_DAILY, _ROWS)}
        kept = {name: {day: old[name][day] for day in old[name] if day not in touched} for name in (_DAILY, _ROWS)}
        told = {}
        if touched:
            days, read = _some(work, ingested, outlines, known, stray, touched, segments)
            told = _write(work, days, kept)
        else:
            for name, left in kept.items():
                if left:
                    work.written[name] = left
                else:  # all of it was pruned
                    work.write(name, work.read(name).limit(0))
        told |= {day: state["passages"][day] for day in since(state["passages"], last.hour) - touched}
    now = last.state(
        attempts=attempts,
        recorded=recorded,
        routers=sorted(routers),
        stray=stray,
        retried=retried,
        passages=told,
        pruned=last.hour,
    )
    return _merged(
        work, routers, told, {"deliveries read": judged, "records read": read, "days written": len(touched)}, now
    )


def _some(
    work: Work,
    ingested: Path,
    outlines: Parts,
    known: Mapping[Name, Row],
    stray: Stray,
    touched: Set[str],
    segments: DataFrame,
) -> tuple[_Days, int]:
    """Return the input of some days, and the hop records that are read."""
    wanted = {day_of_name(day) for day in touched}
    after = {day_name(day + 1) for day in wanted}
    events, counts = (
        records_of_days(work.spark, ingested, name, known, stray, wanted) for name in ("events", "counts")
    )
    some = work.read(_OUTLINES, hours_of(outlines, touched))
    spans = some.where("not complete").groupBy(F.expr(DAY_OF_TIME)).agg(F.min("begin_time"), F.max("end_time"))
    # With records of these days, and of deliveries whose records are not all there.
    ranges = [(low, high) for _, low, high in spans.collect()]
    if ranges:
        ranges += [(day * DAY, (day + 1) * DAY - 1) for day in wanted]
    passed = {
        name: row
        for name, row in known.items()
        if row["first_time"] is not None
        and any(row["first_time"] <= high and low <= row["last_time"] for low, high in ranges)
    }
    hops = records(work.spark, ingested, "hops", passed)
    later = work.read(_OUTLINES, hours_of(outlines, {*touched, *after}))
    return _Days(some, later, hops, events, counts, segments), sum(row["hops"] for row in passed.values())


def _write(work: Work, days: _Days, kept: Mapping[str, Parts]) -> dict[str, Any]:
    """Write the rows of some days.

    Returns: for each day and router, the times of the passages to it without a record, and the number of those that are
        not to be judged.
    """
    gone, unjudged = without_record(days.outlines, days.hops, days.segments)
    suspected = suspects(days.outlines, days.later, gone, days.hops, days.events, days.counts).cache()
    for name, made in ((_DAILY, daily(suspected)), (_ROWS, rows(suspected))):
        work.write_days(name, made.selectExpr("*", f"unix_micros(day) div {DAY // 1_000} as date"), kept.get(name, {}))
    suspected.unpersist()
    both = gone.withColumn("unknown", F.lit(0)).unionByName(unjudged.withColumn("unknown", F.lit(1)))
    passages = both.groupBy(F.date_format("day", "yyyy-MM-dd"), "next_router").agg(
        F.min("time"), F.max(F.col("over") + F.col("slack")), F.sum("unknown")
    )
    found: dict[str, Any] = defaultdict(dict)
    for day, router, *told in passages.collect():
        found[day][router] = told
    return dict(found)


def _merged(
    work: Work, routers: Iterable[str], told: Mapping[str, Any], figures: Mapping[str, int], state: Mapping[str, Any]
) -> Done:
    """Add up the findings of all days."""
    count = work.write("losses/findings", findings(work.read(_DAILY), sorted(each for each in routers if each)))
    found = work.read("losses/findings")
    shown = work.write("losses/evidence", evidence(work.read(_ROWS), found))
    kinds = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    first = tuple(
        (row["finding"], row["kind"], row["sentence"]) for row in found.orderBy("finding").limit(TOP).collect()
    )
    unjudged = sum(number for passed in told.values() for *_, number in passed.values())
    counted = {str(kind): kinds[kind] for kind in Loss if kind in kinds}
    title = f"what was found, at most {TOP} of {count}"
    return Done(
        count + shown,
        {"findings": count, **counted, "not to be judged": unjudged, **figures},
        (Table(title, ("number", "kind", "what was found"), first),),
        state,
    )


# --------------------------------------------------------------------------------------------- what a day depends on


def _seen(work: Work, ingested: Path, some: Mapping[Name, Row]) -> list[dict[Name, set[str]]]:
    """Return the days of which segments have events, and those of which they have counters."""
    return [days_of_records(work.spark, ingested, name, some) for name in ("events", "counts")]


def _span(first: int | None, last: int | None) -> list[str]:
    """Return the days from a time to another one."""
    return [] if first is None or last is None else [day_name(each) for each in range(first // DAY, last // DAY + 1)]


def _retried(outlines: DataFrame) -> dict[str, list[int]]:
    """Return for each day the number and a digest of later attempts whose first ones were before it."""
    again = outlines.where("attempt > 1").selectExpr(f"{DAY_OF_TIME} as day", "first_key", "attempt")
    earlier = outlines.selectExpr(f"{DAY_OF_TIME} as same_day", "first_key as same", "attempt as before")
    here = F.expr("day = same_day and first_key = same and before < attempt")
    digest = F.bit_xor(F.xxhash64("first_key", "attempt"))
    told = again.join(earlier, here, "left_anti").groupBy(F.date_format("day", "yyyy-MM-dd"))
    return {day: [*figures] for day, *figures in told.agg(F.count("*"), digest).collect()}


def _stretches(segments: DataFrame) -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]] = defaultdict(list)
    for row in stretches(segments).select("router", "begin", "end", "sample").collect():
        found[row[0]].append([*row[1:]])
    return {router: sorted(each) for router, each in sorted(found.items())}


def judged_otherwise(passages: Mapping[str, Any], before: Stretches, now: Stretches) -> set[str]:
    """Return the days with passages to routers of which more, or less, is known than before."""
    regions = {router: _differences(before.get(router, ()), now.get(router, ())) for router in {*before, *now}}
    return {
        day
        for day, routers in passages.items()
        for router, (first, over, _) in routers.items()
        if any(low <= over and first - SLACK <= high for low, high in regions.get(router, ()))
    }


def _differences(before: Sequence[Sequence[int]], now: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return the times that only one of two lists of stretches has; one that goes on has more at its end only."""
    found: list[tuple[int, int]] = []
    alike = {(tuple(each), tuple(other)) for each in before for other in now if _goes_on(each, other)}
    for each, other in alike:
        ends = ((each[place], other[place]) for place in (0, 1))
        found += [(min(pair), max(pair)) for pair in ends if pair[0] != pair[1]]
    ones, others = {one for one, _ in alike}, {other for _, other in alike}
    rest = [each for each in map(tuple, before) if each not in ones] + [
        each for each in map(tuple, now) if each not in others
    ]
    return found + [(begin, end) for begin, end, _ in rest]


def _goes_on(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return True if two stretches overlap and have the same sample."""
    return one[2] == other[2] and one[0] <= other[1] and other[0] <= one[1]
