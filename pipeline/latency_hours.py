"""The job `latency`: of the hours whose deliveries have changed, or of a limited time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from functools import reduce
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from amqpmesh.pipeline.clocks import (
    DAY,
    DAY_OF_HOUR,
    DAY_OF_WINDOW,
    HOUR_OF,
    MINUTE,
    corrected,
    estimated,
    running,
    windows_of,
)
from amqpmesh.pipeline.deliveries import HOUR, without_management
from amqpmesh.pipeline.jobs import JOBS
from amqpmesh.pipeline.latency import TABLES, addresses, hops, links, shares
from amqpmesh.pipeline.latency_times import parts as parts_of_times
from amqpmesh.pipeline.latency_times import times
from amqpmesh.pipeline.published import WHOLE, Parts, day_of_name, day_of_part, hour_name, hours_of
from amqpmesh.pipeline.work import Done, Table, Work

TOP: Final = 10
"""Rows of each table of the summary."""

_ATTEMPTS: Final = "deliveries/attempts"
_CLOCKS: Final = "latency/clocks"
_TIMES: Final = "latency/times"
_PARTS: Final = "latency/parts"
_OF_HOURS: Final = _CLOCKS, _TIMES, _PARTS


def job(work: Work) -> Done:
    """Run the job: for a limited time all of it, else only the hours whose deliveries have changed, and their days."""
    before = work.before("latency")
    is_limited = work.since is not None or work.until is not None
    parts = {} if is_limited else dict(work.parts(_ATTEMPTS) or {})
    state = before.state if before is not None and before.state.get("version") == JOBS["latency"].version else {}
    if before is None or not state or not parts or WHOLE in parts:
        now = spans = _spans(work.read(_ATTEMPTS))
        _write(work, spans, {}, None)
        counted, last = _counted(work, None), _clocks(work, None)
    else:
        known: Mapping[str, str] = state["attempts"]
        changed = {name for name in {*parts, *known} if name and parts.get(name) != known.get(name)}
        now = _spans(work.read(_ATTEMPTS, changed)) if changed else {}
        spans = {name: told for name, told in state["spans"].items() if name not in changed} | now
        more = with_other_windows(spans, state["spans"]) - changed
        changed |= more
        now |= {name: spans[name] for name in more}
        days = {day_of_part(name) for name in changed}
        if changed:
            _write(work, spans, before.tables, changed)
        else:
            work.written.update({name: dict(each) for name, each in before.tables.items()})
        counted, last = (
            {day: told for day, told in state[name].items() if day not in days} for name in ("days", "clocks")
        )
        if days:
            counted.update(_counted(work, days))
            last.update(_clocks(work, days))
    read = sum(count for *_, count in now.values())
    told = {"version": JOBS["latency"].version, "attempts": parts, "spans": spans, "days": counted, "clocks": last}
    return _done(work, counted, last, read, {} if is_limited else told)


def with_other_windows(now: Mapping[str, Sequence[int]], before: Mapping[str, Sequence[int]]) -> set[str]:
    """Return the hours of days whose windows have another length than before: more, or less, of them is recorded."""
    earlier = windows_of(before)
    return hours_of(now, {day for day, window in windows_of(now).items() if earlier.get(day, window) != window})


def _spans(attempts: DataFrame) -> dict[str, list[int]]:
    """Return for each hour when its first and its last delivery were sent, in ns, and how many there are."""
    sent = F.expr("hops[0].arrived_ns")
    told = attempts.groupBy(F.expr(HOUR_OF)).agg(F.min(sent), F.max(sent), F.count("*")).collect()
    return {hour_name(hour): [*figures] for hour, *figures in sorted(told)}


def _write(work: Work, spans: Mapping[str, Sequence[int]], old: Mapping[str, Parts], changed: Set[str] | None) -> None:
    """Write the tables. Args: spans: of all hours. old: the parts of before. changed: hours to make; None: all."""
    days = None if changed is None else {day_of_part(name) for name in changed}
    attempts = work.read(_ATTEMPTS, changed)
    by_window: dict[int, list[str]] = {}
    for day, window in sorted(windows_of(spans).items()):
        if days is None or day in days:
            by_window.setdefault(window, []).append(day)
    groups = [
        (
            window,
            attempts.where(f"hops[0].arrived_ns div {DAY} in ({', '.join(str(day_of_name(day)) for day in some)})"),
        )
        for window, some in by_window.items()
    ] or [(MINUTE, attempts)]
    kept = {
        name: {part: place for part, place in old.get(name, {}).items() if part not in (changed or ())}
        for name in _OF_HOURS
    }
    estimates = reduce(DataFrame.unionByName, (estimated(some, window) for window, some in groups))
    work.write_hours(_CLOCKS, estimates.selectExpr("*", f"window_start div {HOUR} as hour"), kept[_CLOCKS], 1)
    found = work.read(_CLOCKS, changed)
    clocks = [running(found.where(F.col("window_ns") == window), window).cache() for window, _ in groups]  # used often
    each = zip(groups, clocks, strict=True)
    timed = reduce(DataFrame.unionByName, (corrected(some, now, window) for (window, some), now in each))
    for name, made in ((_TIMES, times(timed)), (_PARTS, parts_of_times(timed))):
        work.write_hours(name, made.selectExpr("*", "unix_seconds(hour_start) div 3600 as hour"), kept[name], 1)
    for now in clocks:
        now.unpersist()
    classes, found, parts = (_of_days(work, name, days) for name in (_TIMES, _CLOCKS, _PARTS))
    made_of_days = {
        "addresses": addresses(classes),
        "hops": hops(classes),
        "links": links(classes, found),
        "shares": shares(parts),
    }
    for name, table in made_of_days.items():
        place = f"latency/{name}"
        rows = table.selectExpr("*", "unix_seconds(day) div 86400 as date")
        others = {day: part for day, part in old.get(place, {}).items() if day not in (days or ())}
        work.write_days(place, rows, others)


def _of_days(work: Work, table: str, days: Set[str] | None) -> DataFrame:
    """Return the rows of a table of hours. Args: days: of these days; None: of all."""
    return work.read(table, None if days is None else hours_of(work.parts(table) or {}, days))


_FIGURES: Final = ("rows", "deliveries", "unknown", "negative", "estimates", "inconsistent")


def _counted(work: Work, days: Set[str] | None) -> dict[str, list[int]]:
    """Return for some days the sums of `_FIGURES`, and the largest error of a clock."""
    tables = {
        name: _of_days(work, place, days) if (place := f"latency/{name}") in _OF_HOURS else work.read(place, days)
        for name in TABLES
    }
    day_of = {"clocks": DAY_OF_WINDOW, "times": DAY_OF_HOUR, "parts": DAY_OF_HOUR}
    estimates, inconsistent = (
        F.count_if(F.expr(f"is_reference and problem is {which}")).alias(name)
        for name, which in (("estimates", "null"), ("inconsistent", "not null"))
    )
    more = {
        "addresses": [F.sum(name).alias(name) for name in ("deliveries", "unknown", "negative")],
        "clocks": [estimates, inconsistent, F.max(F.expr("if(is_reference, error_ns, null)")).alias("error")],
    }
    sums = [
        table.groupBy(F.expr(day_of.get(name, "day")).alias("day")).agg(F.count("*").alias("rows"), *more.get(name, []))
        for name, table in tables.items()
    ]
    together = reduce(lambda some, others: some.unionByName(others, allowMissingColumns=True), sums)
    told = together.groupBy(F.date_format("day", "yyyy-MM-dd")).agg(*map(F.sum, _FIGURES), F.max("error"))
    return {day: [each or 0 for each in figures] for day, *figures in sorted(told.collect())}


def _clocks(work: Work, days: Set[str] | None) -> dict[str, list[list[Any]]]:
    """Return for some days the last comparison of each clock: when, the two routers, the offset and its error."""
    apart = _of_days(work, _CLOCKS, days).where("is_reference and router <> against")
    last = apart.groupBy(F.date_format(F.expr(DAY_OF_WINDOW), "yyyy-MM-dd"), "router", "against").agg(
        F.max("window_start"), *(F.max_by(name, "window_start") for name in ("offset_ns", "error_ns"))
    )
    found: dict[str, list[list[Any]]] = {}
    for day, router, against, *told in last.collect():
        found.setdefault(day, []).append([told[0], router, against, *told[1:]])
    return {day: sorted(each) for day, each in found.items()}


def _done(
    work: Work,
    counted: Mapping[str, Sequence[int]],
    clocks: Mapping[str, Sequence[Sequence[Any]]],
    read: int,
    state: Mapping[str, Any],
) -> Done:
    rows, deliveries, unknown, negative, estimates, inconsistent = (
        sum(each[place] for each in counted.values()) for place in range(len(_FIGURES))
    )
    figures = {
        "deliveries": deliveries,
        "without clocks": unknown,
        "negative": negative,
        "estimates of clocks": estimates,
        "inconsistent": inconsistent,
        "largest error in ms": max((each[-1] for each in counted.values()), default=0) / 1e6,
        "deliveries read": read,
    }
    return Done(rows, figures, tuple(_tables(work, clocks)), state)


def _tables(work: Work, clocks: Mapping[str, Sequence[Sequence[Any]]]) -> Iterable[Table]:
    figures = ("p50_ns", "p99_ns", "outcome_p99_ns", "error_ns")
    slow = (
        without_management(work.read("latency/addresses"))
        .withColumn("date", F.date_format("day", "yyyy-MM-dd"))
        .orderBy(F.desc_nulls_last("p99_ns"), "date", "address", "tenant")
        .limit(TOP)
    )
    yield Table(
        f"slowest addresses of a day, at most {TOP} (ms)",
        (
            "address",
            "day",
            "deliveries",
            "half within",
            "99 of 100 within",
            "outcome of 99 of 100 within",
            "give or take",
        ),
        tuple((row["address"], row["date"], row["deliveries"], *_ms(row, *figures)) for row in slow.collect()),
    )
    where = (
        without_management(work.read("latency/shares"))
        .groupBy("part", "from_router", "to_router")
        .agg(F.sum(F.col("total_ns").cast("double")).alias("ns"))
    )
    parts = where.withColumn("share", F.expr("try_divide(100 * ns, sum(ns) over ())"))
    yield Table(
        f"where time is spent, at most {TOP} (%)",
        ("part", "from", "to", "share"),
        tuple(
            (
                row["part"],
                row["from_router"],
                row["to_router"],
                None if row["share"] is None else round(row["share"], 1),
            )
            for row in parts.orderBy(F.desc("ns"), "part", "from_router", "to_router").limit(TOP).collect()
        ),
    )
    last = {(router, against): told for day in sorted(clocks) for _, router, against, *told in clocks[day]}
    furthest = sorted(last.items(), key=lambda each: (each[1][0] is None, -abs(each[1][0] or 0), each[0]))
    yield Table(
        f"clocks that are furthest apart, at most {TOP} (ms, at last)",
        ("router", "compared with", "ahead by", "give or take"),
        tuple(
            (*pair, *(None if each is None else round(each / 1e6, 3) for each in told)) for pair, told in furthest[:TOP]
        ),
    )


def _ms(row: Any, *names: str) -> list[float | None]:
    return [None if row[name] is None else round(row[name] / 1e6, 3) for name in names]
