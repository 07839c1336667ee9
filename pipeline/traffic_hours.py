"""The job `traffic`: of the hours that new segments change, or of a limited time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.pipeline.deliveries import HOUR, between, without_management
from amqpmesh.pipeline.events import table
from amqpmesh.pipeline.files import ordinary
from amqpmesh.pipeline.known_segments import Known, records
from amqpmesh.pipeline.last_run import last_run
from amqpmesh.pipeline.published import WHOLE, Parts, hour_name, hour_of_name, since
from amqpmesh.pipeline.sampling import AFTER, BEFORE, sampled_hours
from amqpmesh.pipeline.segment_rows import Row
from amqpmesh.pipeline.traffic import CARRIED, Windows, carried, links, matrix, talkers, used, weighted
from amqpmesh.pipeline.work import Done, Table, Work
from amqpmesh.router.telemetry.segments import Name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOP: Final = 10
"""Rows of the tables in a summary."""

_ATTEMPTS: Final = "deliveries/attempts"
_MATRIX: Final = "traffic/matrix"
_TALKERS: Final = "traffic/talkers"
_LINKS: Final = "traffic/links"
_OF_WINDOW: Final = f"unix_micros(window_start) div {HOUR // 1000}"


def job(work: Work) -> Done:
    """Run the job: for a limited time all of it, else only the hours that new segments change."""
    if work.since is None and work.until is None:
        return _hourly(work)
    ingested = work.place("ingest")
    hops = between(table(work.spark, ingested, "hops"), work.since, work.until)
    counts, segments = (table(work.spark, ingested, name) for name in ("counts", "segments"))
    windows = Windows(since=work.since, until=work.until)
    attempts = weighted(work.read(_ATTEMPTS), counts, segments, windows)
    work.write(_MATRIX, matrix(attempts))
    work.write(_TALKERS, talkers(attempts))
    work.write(_LINKS, links(hops, counts, segments, windows))
    return _done(work, _counted(work.read(_MATRIX)), {}, {})


def _hourly(work: Work) -> Done:
    last = last_run(work, "traffic")
    rows, new = last.segments, last.new
    attempts = dict(work.parts(_ATTEMPTS) or {})
    sampled = {
        hour_name(hour): dict(sorted(each.items()))
        for hour, each in sampled_hours(rows.values()).items()
        if hour >= last.hour
    }
    segments = table(work.spark, work.place("ingest"), "segments")
    if last.result is None or WHOLE in attempts:
        hops, counts = (table(work.spark, work.place("ingest"), name) for name in ("hops", "counts"))
        _write(work, work.read(_ATTEMPTS), hops, counts, segments, {}, None, last.hour)
        counted = _counted(work.read(_MATRIX))
        read, hours = sum(row["hops"] for row in rows.values()), len(counted)
    else:
        state = last.result.state
        touched = _touched(work, last.known, new, sampled)
        # The only part of a table without rows is no hour: until now, nothing may have been delivered.
        parts = {*attempts, *state["attempts"]} - {WHOLE}
        touched |= {each for each in parts if attempts.get(each) != state["attempts"].get(each)}
        touched |= {each for each in {*sampled, *state["sampled"]} if sampled.get(each) != state["sampled"].get(each)}
        # What is older was pruned.
        touched = since(touched, last.hour)
        old = {
            name: {part: parts[part] for part in since(parts, last.hour)} for name, parts in last.result.tables.items()
        }
        counted = {each: state["hours"][each] for each in since(state["hours"], last.hour) - touched}
        read, hours = 0, len(touched)
        if touched:
            there = _overlapping(rows, touched)
            read = sum(row["hops"] for row in there.values())
            routers = {router for each in touched for router in sampled.get(each, ())}
            counting = {name: row for name, row in rows.items() if name.router in routers}
            some = [work.place(attempts[each]) for each in sorted(touched) if each in attempts]
            _write(
                work,
                work.spark.read.parquet(*some) if some else work.read(_ATTEMPTS).limit(0),
                _of(work, there, "hops").where(_isin(f"time div {HOUR}", touched)),
                _of(work, counting, "counts"),
                segments,
                old,
                touched,
            )
            counted.update(_counted(work.read(_MATRIX, touched)))
        else:
            for name, left in old.items():
                if left:
                    work.written[name] = left
                else:  # all of it was pruned
                    work.write_hours(name, work.read(name).limit(0).selectExpr("*", "0 as hour"), {}, 1)
    told = last.state(attempts=attempts, sampled=sampled, hours=counted)
    return _done(work, counted, {"records read": read, "hours written": hours}, told)


def _touched(work: Work, known: Known, new: Mapping[Name, Row], sampled: Mapping[str, Mapping[str, int]]) -> set[str]:
    """Return the hours with records in new segments, and those with other growth of counters than before."""
    hours = _distinct(_of(work, new, "hops"))
    some = {router for routers in sampled.values() for router in routers}
    counting = {name: row for name, row in new.items() if name.router in some}
    for hour in _distinct(_of(work, counting, "counts")):
        hours |= {*range(hour - BEFORE, hour + AFTER + 1)}
    touched = {hour_name(hour) for hour in hours}
    # What a counter has grown by is told by the record before: that of a late segment changes what came later.
    late = {name.router for name in counting if any(last > name.segment for _, last in known.ranges(name))}
    return touched | {each for each, routers in sampled.items() if late & {*routers}}


def _distinct(records: DataFrame) -> set[int]:
    """Return the hours of records."""
    return {row[0] for row in records.selectExpr(f"time div {HOUR}").distinct().collect() if row[0] is not None}


def _overlapping(rows: Mapping[Name, Row], touched: Set[str]) -> dict[Name, Row]:
    """Return the segments that may have hop records of some hours."""
    hours = sorted(map(hour_of_name, touched))
    found = {}
    for name, row in rows.items():
        if row["first_time"] is not None:
            at = bisect_left(hours, row["first_time"] // HOUR)
            if at < len(hours) and hours[at] <= row["last_time"] // HOUR:
                found[name] = row
    return found


def _of(work: Work, rows: Mapping[Name, Row], name: str) -> DataFrame:
    """Return the records of some segments. Args: name: of their table."""
    return records(work.spark, ordinary(work.place("ingest")), name, rows)


def _write(
    work: Work,
    attempts: DataFrame,
    hops: DataFrame,
    counts: DataFrame,
    segments: DataFrame,
    old: Mapping[str, Parts],
    touched: Set[str] | None,
    least: int = 0,
) -> None:
    """Write the tables. Args: old: the parts of before. touched: the hours that are made; None: all from `least` on."""
    rows = weighted(attempts, counts, segments)
    load = carried(hops, counts, segments)
    redone: Set[str] = touched or set()
    if least and touched is None:
        rows, load = (each.where(f"{_OF_WINDOW} >= {least}") for each in (rows, load))
    if touched is not None:
        rows, load = (each.where(_isin(_OF_WINDOW, touched)) for each in (rows, load))
        # The share of the busiest link is one of the day, so that the rest of these days is written, too.
        days = {each[:10] for each in touched}
        parts = old.get(_LINKS, {})
        rest = {each: place for each, place in parts.items() if each[:10] in days and each not in touched}
        if rest:
            load = load.unionByName(work.spark.read.parquet(*map(work.place, rest.values())).select(*CARRIED))
        redone = {*touched, *rest}
    for name, made, gone in (
        (_MATRIX, matrix(rows), touched or set()),
        (_TALKERS, talkers(rows), touched or set()),
        (_LINKS, used(load), redone),
    ):
        kept = {each: place for each, place in old.get(name, {}).items() if each not in gone and each != WHOLE}
        work.write_hours(name, made.selectExpr("*", f"{_OF_WINDOW} as hour"), kept, 1)


def _isin(hour: str, touched: Set[str]) -> str:
    """Return the condition that an hour, since 1970, is one of these."""
    return f"{hour} in ({', '.join(str(hour_of_name(each)) for each in touched)})"


# --------------------------------------------------------------------------------------------------------- what is told


def _counted(rows: DataFrame) -> dict[str, Any]:
    """Return the sums of each hour of the matrix."""
    from pyspark.sql import functions as F  # noqa: N812

    own = F.sum(F.when(F.coalesce(F.col("address").startswith("$management"), F.lit(False)), F.col("messages")))
    summed = rows.groupBy(F.expr(_OF_WINDOW)).agg(
        F.count("*"), F.sum("messages"), F.sum("bytes"), own, F.count_if(F.col("basis") != "recorded")
    )
    return {hour_name(hour): [each or 0 for each in told] for hour, *told in sorted(summed.collect())}


def _done(
    work: Work, counted: Mapping[str, Sequence[float]], figures: Mapping[str, int], state: Mapping[str, Any]
) -> Done:
    rows, messages, octets, own, inexact = (sum(counted[each][place] for each in sorted(counted)) for place in range(5))
    told = {
        "messages": round(messages),
        "bytes": round(octets),
        "of the routers' own": round(own),
        "rows not exact": int(inexact),
    }
    return Done(int(rows), {**told, **figures}, (*_top_talkers(work), _top_links(work)), state)


def _top_talkers(work: Work) -> list[Table]:
    from pyspark.sql import functions as F  # noqa: N812

    tables = []
    summed = without_management(work.read(_TALKERS)).groupBy("role", "peer", "router", "address", "tenant")
    talking = summed.agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"))
    for role in ("sender", "receiver"):
        shown = talking.where(F.col("role") == role).orderBy(F.desc("bytes"), "peer").limit(TOP)
        rows = [
            (row["peer"], row["router"], row["address"], round(row["messages"]), round(row["bytes"]))
            for row in shown.collect()
        ]
        tables.append(Table(f"busiest {role}s", (role, "router", "address", "messages", "bytes"), tuple(rows)))
    return tables


def _top_links(work: Work) -> Table:
    from pyspark.sql import functions as F  # noqa: N812

    shown = (
        work.read(_LINKS)
        .groupBy("router", "peer")
        .agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"), F.max("use").alias("use"))
        .orderBy(F.desc("use"), F.desc("bytes"), "router", "peer")
        .limit(TOP)
    )
    rows = [
        (row["router"], row["peer"], round(row["messages"]), round(row["bytes"]), round(row["use"], 3))
        for row in shown.collect()
    ]
    return Table("busiest links", ("router", "to", "messages", "bytes", "use"), tuple(rows))
