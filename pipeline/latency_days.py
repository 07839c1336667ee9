"""The job `latency`: of the days whose deliveries have changed, or of a limited time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from functools import reduce
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from amqpmesh.pipeline.clocks import DAY, DAY_OF_WINDOW, MINUTE, corrected, estimated, running, windows_of
from amqpmesh.pipeline.deliveries import without_management
from amqpmesh.pipeline.jobs import JOBS
from amqpmesh.pipeline.latency import TABLES, addresses, hops, links, shares
from amqpmesh.pipeline.published import WHOLE, Parts, changed_days, hours_of
from amqpmesh.pipeline.work import Done, Table, Work

TOP: Final = 10
"""Rows of each table of the summary."""

_ATTEMPTS: Final = "deliveries/attempts"
_CLOCKS: Final = "latency/clocks"


def job(work: Work) -> Done:
    """Run the job: for a limited time all of it, else only the days whose deliveries have changed."""
    before = work.before("latency")
    is_limited = work.since is not None or work.until is not None
    parts = {} if is_limited else dict(work.parts(_ATTEMPTS) or {})
    state = before.state if before is not None and before.state.get("version") == JOBS["latency"].version else {}
    changed = changed_days(parts, state.get("attempts", {})) if state and parts and WHOLE not in parts else None
    old = before.tables if before is not None and changed is not None else {}
    counted = {day: told for day, told in state["days"].items() if day not in changed} if changed is not None else {}
    read = 0
    if changed is None or changed:
        attempts = work.read(_ATTEMPTS, None if changed is None else hours_of(parts, changed))
        read = _write(work, attempts, old, changed)
        counted.update(_counted(work, changed))
    else:
        work.written.update({name: dict(parts) for name, parts in old.items()})
    told = {"version": JOBS["latency"].version, "attempts": parts, "days": counted}
    return _done(work, counted, read, {} if is_limited else told)


def _write(work: Work, attempts: DataFrame, old: Mapping[str, Parts], changed: Set[str] | None) -> int:
    """Write the tables of some days. Args: old: all parts of before. Returns: the deliveries read."""
    kept = {
        name: {day: place for day, place in parts.items() if day not in (changed or ())} for name, parts in old.items()
    }
    groups = [
        (window, attempts.where(f"hops[0].arrived_ns div {DAY} in ({', '.join(map(str, days))})"))
        for window, days in windows_of(attempts).items()
    ] or [(MINUTE, attempts)]
    estimates = reduce(DataFrame.unionByName, (estimated(some, window) for window, some in groups))
    work.write_days(_CLOCKS, estimates.selectExpr("*", f"window_start div {DAY} as date"), kept.get(_CLOCKS, {}))
    found = work.read(_CLOCKS, changed)
    clocks = [running(found.where(F.col("window_ns") == window), window).cache() for window, _ in groups]  # used thrice
    parts = zip(groups, clocks, strict=True)
    timed = reduce(DataFrame.unionByName, (corrected(some, each, window) for (window, some), each in parts))
    made = {
        "addresses": addresses(timed),
        "hops": hops(attempts),
        "links": links(timed, found),
        "shares": shares(timed),
    }
    for name, table in made.items():
        place = f"latency/{name}"
        rows = table.selectExpr("*", f"unix_micros(day) div {DAY // 1_000} as date")
        work.write_days(place, rows, kept.get(place, {}))
    for each in clocks:
        each.unpersist()
    return attempts.count()


_FIGURES: Final = ("rows", "deliveries", "unknown", "negative", "estimates", "inconsistent")


def _counted(work: Work, changed: Set[str] | None) -> dict[str, list[int]]:
    """Return for some days the sums of `_FIGURES`, and the largest error of a clock."""
    tables = {name: work.read(f"latency/{name}", changed) for name in TABLES}
    tables["clocks"] = tables["clocks"].withColumn("day", F.expr(DAY_OF_WINDOW))
    estimates, inconsistent = (
        F.count_if(F.expr(f"is_reference and problem is {which}")).alias(name)
        for name, which in (("estimates", "null"), ("inconsistent", "not null"))
    )
    more = {
        "addresses": [F.sum(name).alias(name) for name in ("deliveries", "unknown", "negative")],
        "clocks": [estimates, inconsistent, F.max(F.expr("if(is_reference, error_ns, null)")).alias("error")],
    }
    sums = [table.groupBy("day").agg(F.count("*").alias("rows"), *more.get(name, [])) for name, table in tables.items()]
    together = reduce(lambda some, others: some.unionByName(others, allowMissingColumns=True), sums)
    told = together.groupBy(F.date_format("day", "yyyy-MM-dd")).agg(*map(F.sum, _FIGURES), F.max("error"))
    return {day: [each or 0 for each in figures] for day, *figures in sorted(told.collect())}


def _done(work: Work, counted: Mapping[str, Sequence[int]], read: int, state: Mapping[str, Any]) -> Done:
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
    return Done(rows, figures, tuple(_tables(work)), state)


def _tables(work: Work) -> Iterable[Table]:
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
    apart = work.read("latency/clocks").where("is_reference and router <> against").groupBy("router", "against")
    furthest = apart.agg(
        F.max_by("offset_ns", "window_start").alias("offset_ns"), F.max_by("error_ns", "window_start").alias("error_ns")
    )
    yield Table(
        f"clocks that are furthest apart, at most {TOP} (ms, at last)",
        ("router", "compared with", "ahead by", "give or take"),
        tuple(
            (row["router"], row["against"], *_ms(row, "offset_ns", "error_ns"))
            for row in furthest.orderBy(F.abs("offset_ns").desc_nulls_last(), "router").limit(TOP).collect()
        ),
    )


def _ms(row: Any, *names: str) -> list[float | None]:
    return [None if row[name] is None else round(row[name] / 1e6, 3) for name in names]
