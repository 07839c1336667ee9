"""The job `anomalies`: values of the days that new segments change, or of a limited time, and a judgement of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from amqpmesh.pipeline.anomalies import MOST_WINDOWS, SERIES, VALUES, WINDOW, judged, ranked, series
from amqpmesh.pipeline.clocks import DAY
from amqpmesh.pipeline.day_records import days_of_records, records_of_days, with_stray
from amqpmesh.pipeline.deliveries import between
from amqpmesh.pipeline.events import table
from amqpmesh.pipeline.last_run import LastRun, last_run
from amqpmesh.pipeline.published import (
    WHOLE,
    Parts,
    changed_days,
    day_name,
    day_of_name,
    done_before,
    hours_of,
    since,
)
from amqpmesh.pipeline.work import Done, Table, Work

TOP: Final = 10
"""Rows of the table in the summary."""

_ATTEMPTS: Final = "deliveries/attempts"
_VALUES: Final = "anomalies/values"
_NAMED: Final = tuple(each.name for each in SERIES[:5])


def job(work: Work) -> Done:
    """Run the job: for a limited time all of it, else only the values of the days that new segments change."""
    parts = dict(work.parts(_ATTEMPTS) or {})
    if work.since is None and work.until is None and parts and WHOLE not in parts:
        return _daily(work, parts)
    _write(work, _everything(work), {})
    return _judged(work, {}, {})


def _everything(work: Work, hour: int = 0) -> DataFrame:
    """Return the values of all days. Args: hour: what is older, in hours since 1970, was pruned."""
    events, counts = (
        between(table(work.spark, work.place("ingest"), name), work.since, work.until) for name in ("events", "counts")
    )
    found = series(work.read(_ATTEMPTS), events, counts)
    return found.where(f"at * {WINDOW} >= {hour // 24 * DAY}") if hour else found


def _daily(work: Work, attempts: Parts) -> Done:
    last = last_run(work, "anomalies")
    state = last.result.state if last.result is not None else {}
    seen = [days_of_records(work.spark, last.ingested, name, last.new) for name in ("events", "counts")]
    stray = with_stray(state.get("stray", {}), last.new, *seen)
    told = last.state(attempts=attempts, stray=stray, pruned=last.hour)
    if last.result is None:
        _write(work, _everything(work, last.hour), {})
        return _judged(work, {"days written": len(work.written[_VALUES])}, told)
    touched = changed_days(attempts, state["attempts"]) | {
        day for each in seen for days in each.values() for day in days
    }
    # What a counter has grown by is told by the record before.
    touched |= {day_name(day_of_name(day) + 1) for days in seen[1].values() for day in days}
    if last.hour != state["pruned"]:  # counters of that day, and those before the next one's, may be gone
        touched |= {day_name(last.hour // 24), day_name(last.hour // 24 + 1)}
    touched = since(touched, last.hour)
    old = last.result.tables[_VALUES]
    kept = {day: old[day] for day in since(old, last.hour) - touched}
    if kept == old and not touched:
        work.written.update({name: dict(parts) for name, parts in last.result.tables.items()})
        done = done_before(last.result)
        return Done(done.rows, {**done.figures, "days written": 0}, done.tables, told)
    _write(work, _of_days(work, attempts, last, stray, touched), kept)
    return _judged(work, {"days written": len(touched)}, told)


def _of_days(
    work: Work, attempts: Parts, last: LastRun, stray: Mapping[str, list[str]], touched: Set[str]
) -> DataFrame:
    """Return the values of some days."""
    wanted = {day_of_name(day) for day in touched} or {0}
    events = records_of_days(work.spark, last.ingested, "events", last.segments, stray, wanted)
    both = wanted | {day - 1 for day in wanted}
    counts = records_of_days(work.spark, last.ingested, "counts", last.segments, stray, both)
    made = series(work.read(_ATTEMPTS, hours_of(attempts, touched)), events, counts)
    return made.where(f"at * {WINDOW} div {DAY} in ({', '.join(map(str, sorted(wanted)))})")


def _write(work: Work, made: DataFrame, kept: Parts) -> None:
    """Write the values of some days. Args: kept: the parts of the others."""
    rows = made.withColumn("time", F.col("at") * WINDOW).select(*(each.name for each in VALUES))
    work.write_days(_VALUES, rows.selectExpr("*", f"time div {DAY} as date"), kept)


def _judged(work: Work, figures: Mapping[str, int], state: Mapping[str, Any]) -> Done:
    """Judge all values of the last `MOST_WINDOWS`, and write the other tables."""
    parts = work.parts(_VALUES) or {}
    last = max(parts)
    some = parts if last == WHOLE else since(parts, 24 * (day_of_name(last) - MOST_WINDOWS * WINDOW // DAY - 1))
    all_series = work.read(_VALUES, {*some}).withColumn("at", F.expr(f"time div {WINDOW}")).cache()
    found = judged(all_series).cache()
    shown = found.withColumn("episodes", F.size("found").cast("bigint")).select([each.name for each in SERIES])
    rows = work.write("anomalies/series", shown)
    count = work.write("anomalies/episodes", ranked(found))
    seen = work.write("anomalies/windows", found.select(*_NAMED, F.inline("seen")))
    found.unpersist()
    all_series.unpersist()
    (told,) = work.read("anomalies/series").agg(F.count_if("is_short"), F.sum("judged")).collect()
    counted = {"episodes": count, "series": rows, "too short": told[0], "windows judged": told[1] or 0}
    return Done(rows + count + seen, {**counted, **figures}, tuple(_tables(work)), state)


def _tables(work: Work) -> Iterator[Table]:
    written = work.read("anomalies/episodes")
    worst = written.groupBy("incident").agg(
        F.count("*").alias("episodes"), F.min_by("sentence", "episode").alias("worst")
    )
    rows = worst.orderBy("incident").limit(TOP).collect()
    title = f"incidents, at most {TOP}, the worst first"
    yield Table(title, ("incident", "episodes", "worst"), tuple(tuple(row) for row in rows))
