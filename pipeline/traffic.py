"""Traffic: senders, receivers, amounts, the routers in between, and the use of each link.

If a router has recorded all of its deliveries, figures are exact, from the records. If it has recorded a share of them
(`sample`), or lost some for want of room, only the counters of its links are exact. Then the figures of links are the
counters. The figures of the matrix and of talkers are the records, scaled to the counters. Each hour is judged by
itself (`sampling`), so that `traffic_hours` can make it alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from amqpmesh.pipeline.deliveries import ns, with_grouped_addresses
from amqpmesh.pipeline.events import Column
from amqpmesh.pipeline.hop_records import LARGEST
from amqpmesh.pipeline.sampling import ALL, sampled_hours

if TYPE_CHECKING:
    from pyspark.sql import Column as ColumnOf
    from pyspark.sql import DataFrame

WINDOW: Final = 60
"""Seconds of a window."""

LOOK: Final = 10
"""Seconds before a link's first record of counters in which its deliveries arrived, unless `telemetry.counts` says
otherwise. Later records name the record before them.
"""

LONGEST: Final = 7_200
"""Seconds between two records of counters at most; `telemetry.counts` may be half of it. A longer time means that a
clock was changed.
"""


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of figures. Args: seconds: of each. since, until: as those of `Work`."""

    seconds: int = WINDOW
    since: datetime | None = None
    until: datetime | None = None


_SECOND: Final = 1_000_000_000
_NEEDED: Final = "router", "epoch", "segment", "time", "sample", "whole", "dropped", "first_time", "last_time"

_BASIS: Final = "`recorded`: exact, from all records; `scaled`: from a sample of records, scaled to the counters"

MATRIX: Final = (
    Column("window_start", pa.timestamp("us", "UTC"), "when the window begins"),
    Column("ingress", pa.string(), "the router where messages entered the mesh; null if unknown", "", True),
    Column(
        "egress", pa.string(), "the router where they left the mesh; null if they did not leave, or unknown", "", True
    ),
    Column("address", pa.string(), "the address of the messages; null if unknown", "", True),
    Column("tenant", pa.string(), "the tenant of the address; empty without tenants", "", True),
    Column("messages", pa.float64(), "attempts to deliver; a multicast delivery counts once for each path"),
    Column("bytes", pa.float64(), "the payload of these messages", "octets"),
    Column("records", pa.int64(), "the rows of `deliveries/attempts` that the figures are made from"),
    Column("basis", pa.string(), _BASIS + "; `counted`: from counters alone, without any record"),
)

TALKERS: Final = (
    Column("window_start", pa.timestamp("us", "UTC"), "when the hour begins"),
    Column("role", pa.string(), "`sender` or `receiver`"),
    Column("peer", pa.string(), "the container-id of the client"),
    Column("router", pa.string(), "the router that the client is connected to"),
    Column("address", pa.string(), "the address of the messages; null if unknown", "", True),
    Column("tenant", pa.string(), "the tenant of the address; empty without tenants", "", True),
    Column("messages", pa.float64(), "attempts to deliver; a multicast delivery counts once for each path"),
    Column("bytes", pa.float64(), "the payload of these messages", "octets"),
    Column("basis", pa.string(), _BASIS),
)

LINKS: Final = (
    Column("window_start", pa.timestamp("us", "UTC"), "when the window begins"),
    Column("router", pa.string(), "the router that sends"),
    Column("peer", pa.string(), "the router that receives"),
    Column("messages", pa.float64(), "deliveries in this direction, over all lanes between the two routers"),
    Column("bytes", pa.float64(), "the payload of these deliveries", "octets"),
    Column("messages_per_second", pa.float64(), "the average rate in the window"),
    Column("bytes_per_second", pa.float64(), "the average rate in the window", "octets per second"),
    Column(
        "use",
        pa.float64(),
        "the share of the link's capacity or, without a known capacity, of the largest `bytes_per_second` of the same "
        "day, in UTC",
    ),
    Column("relative", pa.bool_(), "true if the capacity of the link is unknown"),
    Column(
        "basis",
        pa.string(),
        "`recorded`: exact, from all records; `counted`: from counters, exact in total, spread evenly over the time "
        "between two readings; `scaled`: from a sample of records, divided by the share of the sample",
    ),
)
CARRIED: Final = "window_start", "router", "peer", "messages", "bytes", "basis"
"""The columns of `LINKS` that the others follow from."""

CAPACITY: Final = "router string, peer string, messages_per_second double, bytes_per_second double"
"""The columns of links' capacities, in one direction; either figure may be null."""


ALWAYS: Final = Windows()


def weighted(attempts: DataFrame, counts: DataFrame, segments: DataFrame, windows: Windows = ALWAYS) -> DataFrame:
    """Return `attempts` with window_start, weight (the deliveries that each stands for) and basis, and rows for counted
    deliveries without records.

    Args: attempts: `deliveries/attempts`. counts, segments: of `ingest`, of all times.
    """
    from pyspark.sql import functions as F  # noqa: N812

    start = _start(F.unix_micros("sent_at") * 1_000, windows)
    rows = with_grouped_addresses(attempts).withColumn("window_start", start)
    # A message that entered once may have several attempts, and several paths.
    entering = F.when(F.col("attempt") == 1, 1.0 / F.col("legs")).otherwise(0.0)
    recorded = (
        rows.where(F.col("ingress").isNotNull())
        .groupBy("window_start", "ingress")
        .agg(F.sum(entering).alias("recorded"))
    )
    entered = _counts_over_time(
        counts.where((F.col("direction") == "incoming") & ~F.col("from_router")), segments, windows
    )
    entered = entered.groupBy("window_start", F.col("router").alias("ingress")).agg(
        F.sum("messages").alias("entered"), F.sum("bytes").alias("entered_bytes")
    )
    factors = (
        recorded.join(entered, ["window_start", "ingress"], "full")
        .join(
            F.broadcast(_sampled(segments)),
            (F.col("ingress") == F.col("sampling")) & (hour_of(F.col("window_start")) == F.col("sampled_hour")),
            "inner",
        )
        .select(
            "window_start",
            "ingress",
            "entered",
            "entered_bytes",
            "recorded",
            F.when(F.coalesce("recorded", F.lit(0.0)) == 0, F.lit(None))
            .otherwise(F.greatest(F.lit(1.0), F.coalesce(F.col("entered") / F.col("recorded"), "nominal")))
            .alias("weight"),
        )
    )
    known = factors.where(F.col("weight").isNotNull()).select("window_start", "ingress", "weight")
    scaled = rows.join(F.broadcast(known), ["window_start", "ingress"], "left").select(
        *(F.col(name) for name in rows.columns),
        F.coalesce("weight", F.lit(1.0)).alias("weight"),
        F.when(F.col("weight").isNull(), "recorded").otherwise("scaled").alias("basis"),
    )
    unknown = factors.where(F.col("weight").isNull() & (F.col("entered") > 0))
    rest = unknown.select(
        "window_start",
        "ingress",
        F.col("entered").alias("weight"),
        (F.col("entered_bytes") / F.col("entered")).alias("each"),
        F.lit("counted").alias("basis"),
    )
    return scaled.withColumn("each", F.col("size").cast("double")).unionByName(rest, allowMissingColumns=True)


def matrix(weighted: DataFrame) -> DataFrame:
    """Make the table `traffic/matrix`. Args: weighted: as `weighted` returns it."""
    from pyspark.sql import functions as F  # noqa: N812

    return weighted.groupBy("window_start", "ingress", "egress", "address", "tenant").agg(
        F.sum("weight").alias("messages"),
        F.sum(F.col("weight") * F.col("each")).alias("bytes"),
        F.count("key").alias("records"),
        F.max("basis").alias("basis"),  # scaled, if any is
    )


def talkers(weighted: DataFrame) -> DataFrame:
    """Make the table `traffic/talkers`."""
    from pyspark.sql import functions as F  # noqa: N812

    hour = F.timestamp_seconds(hour_of(F.col("window_start")) * 3_600)
    roles = (("sender", "sender", "ingress"), ("receiver", "receiver", "egress"))
    sides = [
        weighted.select(
            hour.alias("window_start"),
            F.lit(role).alias("role"),
            F.col(peer).alias("peer"),
            F.col(router).alias("router"),
            "address", "tenant", "weight", "each", "basis",
        )
        for role, peer, router in roles
    ]  # fmt: skip
    both = sides[0].union(sides[1]).where(F.col("peer").isNotNull())
    return both.groupBy("window_start", "role", "peer", "router", "address", "tenant").agg(
        F.sum("weight").alias("messages"),
        F.sum(F.col("weight") * F.col("each")).alias("bytes"),
        F.max("basis").alias("basis"),
    )


def links(
    hops: DataFrame,
    counts: DataFrame,
    segments: DataFrame,
    windows: Windows = ALWAYS,
    capacity: DataFrame | None = None,
) -> DataFrame:
    """Make the table `traffic/links`.

    Args: hops: of the requested time. counts, segments: of all times. capacity: of links (`CAPACITY`); None: unknown.
    """
    return used(carried(hops, counts, segments, windows), windows.seconds, capacity)


def carried(hops: DataFrame, counts: DataFrame, segments: DataFrame, windows: Windows = ALWAYS) -> DataFrame:
    """Return the load of links: `CARRIED` of the table `traffic/links`. Args: as `links`."""
    from pyspark.sql import functions as F  # noqa: N812

    sampled = F.broadcast(_sampled(segments))
    here = (F.col("router") == F.col("sampling")) & (hour_of(F.col("window_start")) == F.col("sampled_hour"))
    recorded = (
        hops.where(F.col("to_router"))
        .groupBy(_start(F.col("time"), windows).alias("window_start"), "router", F.col("outgoing_peer").alias("peer"))
        .agg(F.count("*").cast("double").alias("messages"), F.sum("size").cast("double").alias("bytes"))
        .join(sampled, here, "left")
    )
    outgoing = _counts_over_time(
        counts.where((F.col("direction") == "outgoing") & F.col("from_router")), segments, windows
    )
    counted = (
        outgoing.join(sampled, here, "left_semi")
        .groupBy("window_start", "router", "peer")
        .agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"))
        .withColumn("basis", F.lit("counted"))
    )
    counting = counted.select(
        F.col("router").alias("counting"), hour_of(F.col("window_start")).alias("counted_hour")
    ).distinct()
    told = (F.col("router") == F.col("counting")) & (hour_of(F.col("window_start")) == F.col("counted_hour"))
    share = F.coalesce("nominal", F.lit(1.0))
    rest = recorded.join(F.broadcast(counting), told, "left_anti").select(
        "window_start",
        "router",
        "peer",
        (F.col("messages") * share).alias("messages"),
        (F.col("bytes") * share).alias("bytes"),
        F.when(F.col("nominal").isNull(), "recorded").otherwise("scaled").alias("basis"),
    )
    return rest.unionByName(counted).select(*CARRIED)


def used(carried: DataFrame, seconds: int = WINDOW, capacity: DataFrame | None = None) -> DataFrame:
    """Make the table `traffic/links`. Args: carried: as `carried` returns it, of whole days. seconds: of a window."""
    from pyspark.sql import functions as F  # noqa: N812

    rates = carried.select(
        "*",
        (F.col("messages") / seconds).alias("messages_per_second"),
        (F.col("bytes") / seconds).alias("bytes_per_second"),
    )
    day = F.floor(hour_of(F.col("window_start")) / 24)
    busiest = rates.groupBy(day.alias("day")).agg(F.max("bytes_per_second").alias("most"))
    known = capacity if capacity is not None else carried.sparkSession.createDataFrame([], CAPACITY)
    of = known.select(
        "router",
        "peer",
        F.col("messages_per_second").alias("can_messages"),
        F.col("bytes_per_second").alias("can_bytes"),
    )
    # The scarcer of both; greatest ignores null.
    absolute = F.greatest(
        F.col("messages_per_second") / F.col("can_messages"), F.col("bytes_per_second") / F.col("can_bytes")
    )
    relative = F.when(F.col("most") > 0, F.col("bytes_per_second") / F.col("most")).otherwise(0.0)
    return (
        rates.join(F.broadcast(of), ["router", "peer"], "left")
        .join(F.broadcast(busiest), day == F.col("day"))
        .withColumn("use", F.coalesce(absolute, relative))
        .withColumn("relative", absolute.isNull())
        .select(*(column.name for column in LINKS))
    )


# ------------------------------------------------------------------------------------------------ counters and samples


def _start(time: ColumnOf, windows: Windows) -> ColumnOf:
    """Return the beginning of the window of a time."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.timestamp_seconds(F.floor(time / (windows.seconds * _SECOND)) * windows.seconds)


def _sampled(segments: DataFrame) -> DataFrame:
    """Return the hours (`sampled_hour`) in which routers have not recorded all deliveries, with the number that each of
    their records stands for.
    """
    rows = [row.asDict() for row in segments.select(*_NEEDED).collect()]
    shares = [
        (router, hour, float(ALL) / max(share, 1))
        for hour, routers in sampled_hours(rows).items()
        for router, share in routers.items()
    ]
    return segments.sparkSession.createDataFrame(shares, "sampling string, sampled_hour bigint, nominal double")


def hour_of(window_start: ColumnOf) -> ColumnOf:
    """Return the hour of a window, since 1970."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.floor(F.unix_micros(window_start) / F.lit(3_600_000_000))


def _counts_over_time(counts: DataFrame, segments: DataFrame, windows: Windows) -> DataFrame:
    """Return the load of links from their counters: the growth between two records is spread evenly over that time.

    Args: counts: of all times, all records of the links concerned. segments: all.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    # Sorted by counters, too: they only grow, while a clock may have been set back.
    looks = Window.partitionBy("router", "epoch", "number").orderBy("segment", "deliveries", "octets", "time")
    oldest = segments.groupBy("router", "epoch").agg(F.min("segment").alias("oldest"))
    # Counts before the first known segment of the router's life belong to an earlier time.
    is_baseline = (F.col("segment") > 1) & (F.col("segment") == F.col("oldest")) & F.col("since").isNotNull()
    end = F.col("time")
    last = F.coalesce("since", F.greatest(F.lag("time").over(looks), end - LOOK * _SECOND))
    begin = F.least(end, F.greatest(last, end - LONGEST * _SECOND))

    def grown(name: str) -> ColumnOf:
        before = F.coalesce(F.lag(name).over(looks), F.when(is_baseline, F.col(name)).otherwise(0))
        # A counter below its last value has restarted: all of it is new.
        return F.when(F.col(name) >= before, F.col(name) - before).otherwise(F.col(name))

    looked = (
        counts.join(F.broadcast(oldest), ["router", "epoch"], "left")
        .select(
            "router",
            "peer",
            begin.alias("begin"),
            end.alias("end"),
            grown("deliveries").alias("deliveries"),
            grown("octets").alias("octets"),
        )
        .where((F.col("deliveries") > 0) | (F.col("octets") > 0))
    )
    size = windows.seconds * _SECOND
    numbers = F.sequence(F.floor(F.col("begin") / size), F.floor(F.col("end") / size))
    pieces = looked.select("*", F.explode(numbers).alias("window"))
    low = F.greatest("begin", F.col("window") * size, F.lit(ns(windows.since) if windows.since else 0))
    high = F.least("end", (F.col("window") + 1) * size, F.lit(ns(windows.until) if windows.until else LARGEST))
    span = F.col("end") - F.col("begin")
    within = F.when(span > 0, F.greatest((high - low) / span, F.lit(0.0))).otherwise((high >= low).cast("double"))
    return pieces.select(
        F.timestamp_seconds(F.col("window") * windows.seconds).alias("window_start"),
        "router",
        "peer",
        (F.col("deliveries") * within).alias("messages"),
        (F.col("octets") * within).alias("bytes"),
    ).where(F.col("messages") > 0)
