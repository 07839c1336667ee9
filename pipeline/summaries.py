"""The data that the report shows: a bounded number of rows of each result, summed up by Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from amqpmesh.pipeline.anomalies import WINDOW
from amqpmesh.pipeline.deliveries import between, without_management
from amqpmesh.pipeline.events import table
from amqpmesh.pipeline.graphs import recorded
from amqpmesh.pipeline.losses import Loss
from amqpmesh.pipeline.mesh_picture import Carried
from amqpmesh.pipeline.passages import ALL
from amqpmesh.pipeline.pictures import ALL_OTHERS, Clock, Failed, Moved, Percentiles, Strange
from amqpmesh.pipeline.work import Work

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

ADDRESSES: Final = 12
"""Addresses with latency shown, those with most deliveries; and addresses with parts of their time shown."""

STACKED: Final = 7
"""Addresses with traffic over time shown, those with most messages; the others are summed up."""

ENDS: Final = 14
"""Routers on each side of the traffic matrix, those with most payload; the others are summed up."""

BINS: Final = 240
"""Windows of traffic over time at most; longer times have longer windows."""

LONGEST: Final = 31 * 86_400
"""Seconds of traffic over time at most, before the last message: one wrong clock must not compress everything else."""

CLOCKS: Final = 8
"""Clocks shown, those with the largest offsets."""

EPISODES: Final = 4
"""Episodes shown: the worst of the worst incidents."""

BEFORE: Final = 90
"""Windows shown before an episode; after it a third of that."""

SEEN: Final = 2_000
"""Windows of an episode shown at most, with those before and after it."""

FAILURES: Final = 12
"""Failures shown, the worst."""

PLANNED: Final = 14
"""Directions of links shown before and after a plan, those used most before or after."""

FOUND: Final = 5
"""Findings at the beginning of the page."""

NAMED: Final = 8
"""Names in a sentence at most."""


@dataclass(frozen=True)
class Basis:
    """The basis of all figures.

    Args: segments, octets, records: converted, and how many of these segments are incomplete. routers: with records.
        silent: some routers of the graph without records, and the number of all. shares: the routers that record the
        least share of their deliveries, with the share; and how many record no more than a share. dropped: records
        lost for want of room. quarantined: rows by problem. first, last: times of the first and the last delivery;
        None: there is none.
    """

    segments: int
    not_whole: int
    octets: int
    records: int
    routers: int
    silent: Sequence[str]
    silent_count: int
    shares: Mapping[str, float]
    shares_count: int
    dropped: int
    quarantined: Mapping[str, int]
    first: datetime | None
    last: datetime | None


def basis(work: Work) -> Basis:
    """Return the basis, from `ingest` and `deliveries`."""
    segments, quarantine, edges = (
        table(work.spark, work.place("ingest"), each) for each in ("segments", "quarantine", "edges")
    )
    lives = segments.groupBy("router", "epoch").agg(F.max("dropped").alias("dropped"))
    (told,) = segments.agg(
        F.count("*"), F.count_if(~F.col("whole")), F.sum("octets"), F.sum("hops"), F.count_distinct("router")
    ).collect()
    sampled = segments.groupBy("router").agg((F.min(F.coalesce("sample", F.lit(ALL))) / ALL).alias("share"))
    some = sampled.where("share < 1")
    known = segments.select("router").distinct()
    silent = edges.select(F.col("origin").alias("router")).distinct().join(known, "router", "left_anti")
    attempts = work.read("deliveries/attempts")
    (ends,) = attempts.agg(F.unix_micros(F.min("sent_at")), F.unix_micros(F.max("sent_at"))).collect()
    return Basis(
        segments=told[0],
        not_whole=told[1],
        octets=told[2] or 0,
        records=told[3] or 0,
        routers=told[4],
        silent=[row[0] for row in silent.orderBy("router").limit(NAMED).collect()],
        silent_count=silent.count(),
        shares=dict(some.orderBy("share", "router").limit(NAMED).collect()),
        shares_count=some.count(),
        dropped=lives.agg(F.sum("dropped")).collect()[0][0] or 0,
        quarantined=dict(quarantine.groupBy("problem").count().orderBy("problem").collect()),
        first=_moment(ends[0]),
        last=_moment(ends[1]),
    )


def _moment(us: int | None) -> datetime | None:
    return None if us is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


# ------------------------------------------------------------------------------------------------------------- traffic


def mesh(work: Work) -> tuple[list[str], list[Carried]]:
    """Return the routers, and the load of links, also of those without traffic."""
    ingested = work.place("ingest")
    hops = between(table(work.spark, ingested, "hops"), work.since, work.until)
    graph = recorded(table(work.spark, ingested, "edges"), hops)  # the graph of `contingency`
    summed = work.read("traffic/links").groupBy("router", "peer").agg(F.sum("bytes").alias("bytes"))
    most = summed.orderBy(F.desc("bytes"), "router", "peer").limit(LINKS).collect()
    carried = {(row["router"], row["peer"]): row["bytes"] for row in most}
    pairs = sorted({*graph.edges, *carried})
    links = [Carried(router, peer, carried.get((router, peer), 0.0)) for router, peer in pairs]
    return sorted(graph.routers.union(*carried)), links


LINKS: Final = 5_000
"""Directions of links shown with their load, those with most."""


def matrix(work: Work) -> dict[tuple[str, str], float]:
    """Return the octets from each ingress router to each egress router."""
    told = work.read("traffic/matrix").select(
        F.coalesce("ingress", F.lit(UNKNOWN)).alias("ingress"),
        F.coalesce("egress", F.lit(NOWHERE)).alias("egress"),
        "bytes",
    )
    for side in ("ingress", "egress"):
        told = _with_all_others(told, side, "bytes", ENDS)
    rows = told.groupBy("ingress", "egress").agg(F.sum("bytes")).collect()
    return {(row[0], row[1]): row[2] for row in rows}


UNKNOWN: Final = "(unknown)"

NOWHERE: Final = "(nowhere, or unknown)"


def over_time(work: Work) -> tuple[list[float], dict[str, list[float]]]:
    """Return messages per second by address: the edges of the windows in seconds since 1970, and the rates."""
    told = without_management(work.read("traffic/matrix")).select(
        F.unix_seconds("window_start").alias("at"), _address().alias("address"), "messages"
    )
    (ends,) = told.agg(F.min("at"), F.max("at")).collect()
    if ends[0] is None:
        return [], {}
    from amqpmesh.pipeline.traffic import WINDOW as WIDTH

    last = ends[1] + WIDTH
    first = max(ends[0], last - LONGEST)
    width = WIDTH * -(-(last - first) // (WIDTH * BINS))
    number = -(-(last - first) // width)
    folded = _with_all_others(told.where(F.col("at") >= first), "address", "messages", STACKED)
    place = F.floor((F.col("at") - first) / width)
    rates: dict[str, list[float]] = {}
    for address, at, messages in folded.groupBy("address", place).agg(F.sum("messages")).collect():
        rates.setdefault(address, [0.0] * number)[at] = messages / width
    return [float(first + place * width) for place in range(number + 1)], rates


def _with_all_others(rows: DataFrame, name: str, amount: str, most: int) -> DataFrame:
    """Return the rows with `ALL_OTHERS` in place of all names except the `most` names with the largest amounts."""
    kept = rows.groupBy(name).agg(F.sum(amount).alias("in_all")).orderBy(F.desc("in_all"), name).limit(most).collect()
    names = [row[0] for row in kept]
    return rows.withColumn(name, F.when(F.col(name).isin(names), F.col(name)).otherwise(ALL_OTHERS))


def _address() -> Expression:
    """Return an address' name, with its tenant if there is one."""
    address = F.coalesce("address", F.lit(UNKNOWN))
    return F.when(F.coalesce("tenant", F.lit("")) == "", address).otherwise(F.concat_ws(": ", "tenant", address))


# ------------------------------------------------------------------------------------------------------------- latency


def percentiles(work: Work) -> list[Percentiles]:
    """Return the latency of the addresses with most deliveries, each on its slowest day; the slowest first."""
    told = without_management(work.read("latency/addresses")).where("p50_ns is not null").withColumn("name", _address())
    of_address = Window.partitionBy("name")
    slowest = F.row_number().over(of_address.orderBy(F.desc("p99_ns"), "day"))
    days = told.withColumns({"in_all": F.sum("deliveries").over(of_address), "place": slowest}).where("place = 1")
    rows = days.orderBy(F.desc("in_all"), "name").limit(ADDRESSES).collect()
    found = [
        Percentiles(row["name"], row["p50_ns"], row["p90_ns"], row["p99_ns"], row["max_ns"], row["error_ns"])
        for row in rows
    ]
    return sorted(found, key=lambda each: (-each.p99, each.address))


def shares(work: Work) -> dict[str, dict[str, float]]:
    """Return the share of each part for the addresses with most time in all; the longest first."""
    told = without_management(work.read("latency/shares")).where("total_ns is not null").withColumn("name", _address())
    spent = told.groupBy("name", "part").agg(F.sum(F.col("total_ns").cast("double")).alias("ns"))
    summed = spent.groupBy("name").agg(F.sum("ns").alias("ns")).where("ns > 0")
    whole: dict[str, float] = dict(summed.orderBy(F.desc("ns"), "name").limit(ADDRESSES).collect())
    found: dict[str, dict[str, float]] = {name: {} for name in whole}
    for name, part, ns in spent.where(F.col("name").isin([*found])).collect():
        found[name][part] = ns / whole[name]
    return found


def clocks(work: Work) -> list[Clock]:
    """Return the clocks with the largest offsets."""
    known = work.read("latency/clocks").where("is_reference and offset_ns is not null and router <> against")
    pairs = known.groupBy("router", "against").agg(F.max(F.abs("offset_ns")).alias("far"))
    most = [(row[0], row[1]) for row in pairs.orderBy(F.desc("far"), "router").limit(CLOCKS).collect()]
    if not most:
        return []
    wanted = reduce(
        lambda some, more: some | more,
        ((F.col("router") == router) & (F.col("against") == against) for router, against in most),
    )
    rows: dict[tuple[str, str], list[tuple[float, float, float]]] = {pair: [] for pair in most}
    middle = (F.col("window_start") + F.col("window_ns") / 2) / 1e9
    some = known.where(wanted).select("router", "against", middle.alias("at"), "offset_ns", "error_ns")
    for row in some.orderBy("at").collect():
        rows[row["router"], row["against"]].append((row["at"], row["offset_ns"], row["error_ns"]))
    return [Clock(*pair, *(list(each) for each in zip(*found, strict=True))) for pair, found in rows.items()]


# ----------------------------------------------------------------------------------------------------- what went wrong


def losses(work: Work) -> dict[str, tuple[int, int]]:
    """Return by kind the number of findings, and the number of rows that show them."""
    told = work.read("losses/findings").groupBy("kind").agg(F.count("*"), F.sum("found"))
    found = {row[0]: (row[1], row[2]) for row in told.collect()}
    return {str(kind): found[kind] for kind in Loss if kind in found}


def anomalies(work: Work) -> list[Strange]:
    """Return the worst episode of each of the worst incidents, with its series around it."""
    told = work.read("anomalies/episodes")
    first = told.groupBy("incident").agg(F.min("episode").alias("episode")).orderBy("incident").limit(EPISODES)
    windows = work.read("anomalies/windows")
    found = []
    for episode in told.join(F.broadcast(first.select("episode")), "episode").orderBy("episode").collect():
        names = ("measure", "address", "tenant", "router", "peer")
        same = reduce(
            lambda some, more: some & more,
            (F.col(each).eqNullSafe(F.lit(episode[each]).cast("string")) for each in names),
        )
        near = F.col("time").between(
            episode["begin_time"] - BEFORE * WINDOW, episode["end_time"] + BEFORE // 3 * WINDOW
        )
        columns = ("time", "value", "usual", "low", "high")
        rows = windows.where(same & near).select(*columns).orderBy("time").limit(SEEN).collect()
        times, *others = ([row[each] for row in rows] for each in columns)
        found.append(
            Strange(
                episode["sentence"].rpartition(", between ")[0],  # the picture shows the times
                episode["measure"],
                episode["begin_time"] / 1e9,
                episode["end_time"] / 1e9,
                [each / 1e9 for each in times],
                *([float("nan") if each is None else each for each in other] for other in others),
            )
        )
    return found


def contingency(work: Work) -> list[Failed]:
    """Return the worst failures."""
    rows = work.read("contingency").orderBy("rank").limit(FAILURES).collect()
    return [Failed(row["failure"], row["addresses_cut_off"], row["lost_messages"], row["use"]) for row in rows]


def alone(work: Work) -> Counter[str]:
    """Count single links and routers whose failure cuts off no address, and those whose failure does."""
    told = work.read("contingency").where("kind <> 'pair'").groupBy(F.col("addresses_cut_off") > 0).count().collect()
    return Counter({"cut off" if row[0] else "none": row[1] for row in told})


def plan(work: Work) -> list[Moved]:
    """Return the use of the busiest directions of links before and after the plan; none if the plan changes nothing."""
    told = work.read("plan/links").select("router", "neighbour", "use_before", "use_after")
    if told.where("use_before <> use_after").isEmpty():
        return []
    rows = told.orderBy(F.desc(F.greatest("use_before", "use_after")), "router", "neighbour").limit(PLANNED).collect()
    return [Moved(*row) for row in rows]
