"""Anomalies: times when the mesh differed from its own history, as few episodes with a sentence each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from amqpmesh.pipeline.clocks import DAY
from amqpmesh.pipeline.deliveries import with_grouped_addresses, without_management
from amqpmesh.pipeline.events import Column, arrow_schema, spark_schema
from amqpmesh.pipeline.outliers import MEASURES, SEASON, Episode, Judged, episodes, judge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WINDOW: Final = 60_000_000_000
"""Nanoseconds of a window; a series has one value for each."""

MOST_WINDOWS: Final = 43_200
"""Windows at most: a month. Earlier data is ignored, so that one wrong clock cannot make a series endless."""

LEAST_MESSAGES: Final = 20
"""Messages in a window at least for a value of latency or failures."""

ACCURACY: Final = 1_000
"""The accuracy of percentiles: a thousandth of all ranks."""

_SERIES: Final = (
    Column("measure", pa.string(), "`messages`, `p50`, `p95`, `failures`, `octets` or `waits`"),
    Column("address", pa.string(), "the address of the deliveries; null if the series is about a link", "", True),
    Column("tenant", pa.string(), "the tenant of the address; empty without tenants", "", True),
    Column("router", pa.string(), "the router that sends, or waits for credit; null for all routers", "", True),
    Column("peer", pa.string(), "the router at the other end of the link", "", True),
)

SERIES: Final = (
    *_SERIES,
    Column("windows", pa.int64(), "windows with a value"),
    Column("judged", pa.int64(), "windows that had enough history to be judged"),
    Column("is_short", pa.bool_(), "true if no window had enough history: the series was not judged"),
    Column("episodes", pa.int64(), "the number of its episodes"),
)

EPISODES: Final = (
    Column("episode", pa.int64(), "the rank of the episode, from 1, by the size of `score`"),
    Column("incident", pa.int64(), "the number of the incident: the episodes that overlap in time; 1 is the worst"),
    *_SERIES,
    Column("begin_time", pa.int64(), "when its first window begins", "ns since 1970"),
    Column("end_time", pa.int64(), "when its last window ends", "ns since 1970"),
    Column("peak_time", pa.int64(), "when the window with the largest deviation begins", "ns since 1970"),
    Column("value", pa.float64(), "the value in that window: messages, octets, ns, or a share"),
    Column("usual", pa.float64(), "the expected value of that window"),
    Column(
        "score", pa.float64(), "the deviation, in multiples of the least that counts; negative below the expectation"
    ),
    Column("sentence", pa.string(), "the episode in words"),
)

WINDOWS: Final = (
    *_SERIES,
    Column("time", pa.int64(), "when the window begins", "ns since 1970"),
    Column("value", pa.float64(), "messages, octets, ns, or a share; null if there was too little data", "", True),
    Column("usual", pa.float64(), "the expected value; null if the window was not judged", "", True),
    Column("low", pa.float64(), "a lower value is an anomaly; null if the window was not judged", "", True),
    Column("high", pa.float64(), "a higher value is an anomaly; null if the window was not judged", "", True),
)
VALUES: Final = (
    *_SERIES,
    Column("time", pa.int64(), "when the window begins", "ns since 1970"),
    Column("value", pa.float64(), "messages, octets, ns, or a share"),
    Column("weight", pa.float64(), "the messages, or waits, that the value is made from", "", True),
)
TABLES: Final = {"episodes": EPISODES, "series": SERIES, "windows": WINDOWS, "values": VALUES}
"""The tables of `anomalies`, with their columns."""

_NAMED: Final = tuple(each.name for each in _SERIES)
_TOLD: Final = EPISODES[len(_SERIES) + 2 :]
_FOUND: Final = pa.list_(pa.struct([pa.field(each.name, each.type) for each in _TOLD]))
_SEEN: Final = pa.list_(pa.struct([pa.field(each.name, each.type) for each in WINDOWS[len(_SERIES) :]]))
_JUDGED: Final = (
    *SERIES[:-1],
    Column("found", _FOUND, "its episodes"),
    Column("seen", _SEEN, "all its windows, if there is an episode"),
)


def _number(value: float) -> str:
    return f"{value:,.0f}"


_SENTENCES: Final[Mapping[str, tuple[str, Callable[[float], str]]]] = {
    "messages": ("messages to {address} in {window:g} s", _number),
    "p50": ("the median latency of {address}", lambda ns: f"{ns / 1e6:,.1f} ms"),
    "p95": ("the latency that 5 % of {address} exceed", lambda ns: f"{ns / 1e6:,.1f} ms"),
    "failures": ("the share of {address} that was not accepted", lambda share: f"{share:.1%}"),
    "octets": ("octets from {router} to {peer} in {window:g} s", _number),
    "waits": ("the time in {window:g} s that {router} waited for credit of {address}", lambda ns: f"{ns / 1e9:,.1f} s"),
}


# -------------------------------------------------------------------------------------------------------------- series


def series(attempts: DataFrame, events: DataFrame, counts: DataFrame, window: int = WINDOW) -> DataFrame:
    """Return all series: their names (`_SERIES`), `at`, the number of the window since 1970, `value`, and `weight`.

    Args: attempts: the table `deliveries/attempts`. events, counts: those of `ingest`. window: see `WINDOW`.
    """
    found = [
        _series_of_addresses(attempts, window),
        _series_of_links(counts, window),
        _series_of_waits(events, window),
    ]
    together = reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), found)
    return together.where("at is not null").select(
        *_NAMED, "at", F.col("value").cast("double").alias("value"), F.col("weight").cast("double").alias("weight")
    )


def _series_of_addresses(attempts: DataFrame, window: int) -> DataFrame:
    failed = "if(settled or outcome is null, null, double(outcome <> 'accepted'))"
    told = (
        without_management(with_grouped_addresses(attempts))
        .where("not coalesce(copy, false)")
        .selectExpr(
            "address",
            "tenant",
            f"hops[0].arrived_ns div {window} as at",
            "1 / greatest(coalesce(legs, 1), 1) as part",  # a delivery with several legs has a row for each
            "coalesce(outcome_after_ns, latency_ns) as took",
            f"{failed} as failed",
        )
    )
    by_window = told.groupBy("address", "tenant", "at").agg(
        F.round(F.sum("part")).alias("messages"),
        F.percentile_approx("took", [0.5, 0.95], ACCURACY).alias("percentiles"),
        F.count("took").alias("timed"),
        F.avg("failed").alias("failures"),
        F.count("failed").alias("ended"),
    )
    enough = f"if({{}} >= {LEAST_MESSAGES}, {{}}, null)"
    values = f"""array(
        struct('messages' as measure, double(messages) as value, double(messages) as weight),
        struct('p50' as measure, {enough.format("timed", "double(percentiles[0])")} as value, double(timed) as weight),
        struct('p95' as measure, {enough.format("timed", "double(percentiles[1])")} as value, double(timed) as weight),
        struct('failures' as measure, {enough.format("ended", "failures")} as value, double(ended) as weight))"""
    return by_window.select("address", "tenant", "at", F.inline(F.expr(values))).where("value is not null")


def _series_of_links(counts: DataFrame, window: int) -> DataFrame:
    """Return the load of links between routers, from one record of their counters to the next.

    A record whose earlier one is not of the same day or the day before tells nothing: a day needs no older records.
    """
    lanes = counts.where("direction = 'outgoing' and from_router and peer <> router")
    lanes = lanes.withColumn("day", F.expr(f"time div {DAY}"))
    link = Window.partitionBy("router", "epoch", "number").orderBy("time", "deliveries")
    more = lanes.select(
        "router",
        "peer",
        F.expr(f"time div {window}").alias("at"),
        (F.col("day") - F.lag("day").over(link)).alias("later"),
        (F.col("octets") - F.lag("octets").over(link)).alias("value"),
        (F.col("deliveries") - F.lag("deliveries").over(link)).alias("weight"),
    ).where("value >= 0 and later <= 1")
    summed = more.groupBy("router", "peer", "at").agg(F.sum("value").alias("value"), F.sum("weight").alias("weight"))
    return summed.withColumn("measure", F.lit("octets"))


def _series_of_waits(events: DataFrame, window: int) -> DataFrame:
    waits = events.where("happening = 'credit' and direction = 'outgoing' and waited > 0")
    by_window = with_grouped_addresses(waits).groupBy(
        "router", "address", "tenant", F.expr(f"time div {window}").alias("at")
    )
    return by_window.agg(F.sum(F.col("waited").cast("double")).alias("value"), F.count("*").alias("weight")).withColumn(
        "measure", F.lit("waits")
    )


# ------------------------------------------------------------------------------------------------------------- judged


def judged(all_series: DataFrame, window: int = WINDOW) -> DataFrame:
    """Judge each series. The first and the last window are left out, since they are incomplete.

    Args: all_series: as `series` returns them.
    Returns: the columns of `SERIES` except the last; `found`, the episodes of a series; and `seen`, all its windows, if
        it has an episode.
    """
    by_series = all_series.groupBy(*_NAMED).agg(F.min("at").alias("first"))
    (ends,) = all_series.agg(F.min("at"), F.max("at")).collect()
    begin, end = (0, 0) if ends[0] is None else (max(ends[0] + 1, ends[1] - MOST_WINDOWS), ends[1])
    lasts = F.lit(end) - F.greatest(F.col("first"), F.lit(begin))
    (told,) = by_series.agg(F.sum(F.greatest(lasts, F.lit(0)))).collect()
    tests = told[0] or 0

    def judge_one(rows: pa.Table) -> pa.Table:
        return _series_row(rows, begin, end, window, tests)

    return all_series.groupBy(*_NAMED).applyInArrow(judge_one, spark_schema(_JUDGED))


def _series_row(rows: pa.Table, begin: int, end: int, window: int, tests: int) -> pa.Table:
    """Return the row of one series. Args: begin, end: the first whole window, and the one after the last."""
    names = {name: rows.column(name)[0].as_py() for name in _NAMED}
    at = np.asarray(rows.column("at"))
    # A series that begins later has no earlier history of zeros.
    first = max(begin, int(at.min()))
    values, weights = np.full(max(0, end - first), np.nan), np.zeros(max(0, end - first))
    inside = (at >= first) & (at < end)
    places = at[inside] - first
    values[places] = rows.column("value").to_numpy()[inside]
    weights[places] = rows.column("weight").to_numpy()[inside]
    measure = MEASURES[names["measure"]]
    unit = 1.0
    if names["measure"] == "octets" and np.nansum(weights) > 0:
        unit = max(
            1.0, float(np.nansum(values) / np.nansum(weights))
        )  # in messages of the usual size, counts deviate by chance as messages do
    season = max(1, SEASON * 1_000_000_000 // window)
    found = judge(values / unit, weights, measure, tests, season)
    told = [_episode_row(each, found, unit, first, window, names) for each in episodes(found)]
    row = {
        **names,
        "windows": int(np.isfinite(values).sum()),
        "judged": found.windows,
        "is_short": found.windows == 0,
        "found": told,
        "seen": _window_values(found, unit, first, window) if told else [],
    }
    return pa.Table.from_pylist([row], arrow_schema(_JUDGED))


def _window_values(found: Judged, unit: float, first: int, window: int) -> list[dict[str, Any]]:
    """Return the value and the expectation of each window."""
    columns = {"value": found.values, "usual": found.usual, "low": found.low, "high": found.high}
    known = {
        name: [float(each) * unit if np.isfinite(each) else None for each in values] for name, values in columns.items()
    }
    return [
        {"time": (first + place) * window, **dict(zip(known, row, strict=True))}
        for place, row in enumerate(zip(*known.values(), strict=True))
    ]


def _episode_row(
    episode: Episode, found: Judged, unit: float, first: int, window: int, names: Mapping[str, str]
) -> dict[str, Any]:
    value, usual = float(found.values[episode.peak]) * unit, float(found.usual[episode.peak]) * unit
    begin, end, peak = ((first + each) * window for each in (episode.first, episode.last + 1, episode.peak))
    what, shown = _SENTENCES[names["measure"]]
    known = {name: "?" if text is None else text for name, text in names.items()}
    change = "rose" if episode.score > 0 else "fell"
    sentence = (
        f"{what.format(window=window / 1e9, **known)} {change} to {shown(value)}, usually {shown(usual)}, "
        f"between {_clock(begin)} and {_clock(end)} UTC"
    )
    return {
        "begin_time": begin,
        "end_time": end,
        "peak_time": peak,
        "value": value,
        "usual": usual,
        "score": episode.score,
        "sentence": sentence,
    }


def _clock(ns: int) -> str:
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def ranked(judged: DataFrame, window: int = WINDOW) -> DataFrame:
    """Make the table `anomalies/episodes`. Args: judged: as `judged` returns them."""
    each = judged.select(*_NAMED, F.inline("found"))
    in_time = Window.orderBy("begin_time", "end_time", *_NAMED)
    earlier = in_time.rowsBetween(Window.unboundedPreceding, -1)
    begins = F.coalesce((F.col("begin_time") > F.max("end_time").over(earlier)).cast("int"), F.lit(1))
    grouped = each.withColumn("begins", begins).withColumn("part", F.sum("begins").over(in_time))
    worst = grouped.withColumn("worst", F.max(F.abs("score")).over(Window.partitionBy("part")))
    order = [F.desc(F.abs("score")), F.col("begin_time"), *map(F.col, _NAMED)]
    numbered = worst.withColumn("episode", F.row_number().over(Window.orderBy(*order))).withColumn(
        "incident", F.dense_rank().over(Window.orderBy(F.desc("worst"), "part"))
    )
    return numbered.select([F.col(each.name).cast(each.dataType) for each in spark_schema(EPISODES)])
