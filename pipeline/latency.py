"""Tables of latency for each day: by address, by router, by link, and by part of a delivery's path.

Each day is judged by itself, from the hours of the deliveries that were sent on it (`latency_times`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from amqpmesh.pipeline.clocks import CLOCKS, DAY_OF_HOUR, DAY_OF_WINDOW, DRIFT
from amqpmesh.pipeline.events import Column
from amqpmesh.pipeline.latency_times import PARTS, TIMES, class_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NS: Final = "ns"

PERCENTILES: Final[Mapping[str, float]] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""The percentiles stated, besides the maximum."""


def _statistics_columns(what: str, prefix: str = "") -> tuple[Column, ...]:
    words = {**{name: name for name in PERCENTILES}, "max": "maximum"}
    return tuple(
        Column(f"{prefix}{name}_ns", pa.int64(), f"{word} of {what}", _NS, True) for name, word in words.items()
    )


_DAY: Final = Column("day", pa.timestamp("us", "UTC"), "when the day begins on which the deliveries were sent")

_TENANT: Final = Column("tenant", pa.string(), "the tenant of the address; empty without tenants", "", True)

_ERROR: Final = Column(
    "error_ns",
    pa.int64(),
    "the largest error of these times because of the clocks; null if unknown for some",
    _NS,
    True,
)

ADDRESSES: Final = (
    _DAY,
    Column("address", pa.string(), "the address of the deliveries", "", True),
    _TENANT,
    Column("deliveries", pa.int64(), "deliveries that left the mesh, with known ingress and egress routers"),
    Column("unknown", pa.int64(), "of these, deliveries between clocks that could not be compared; not corrected"),
    Column("negative", pa.int64(), "of these, deliveries whose time is negative after the correction"),
    *_statistics_columns(
        "the time from the first frame's arrival to the last frame's departure from the mesh, corrected"
    ),
    _ERROR,
    Column("answered", pa.int64(), "deliveries whose outcome passed the ingress router"),
    *_statistics_columns(
        "the time from the first frame's arrival until the outcome passed, by the ingress clock", "outcome_"
    ),
)

HOPS: Final = (
    _DAY,
    Column("router", pa.string(), "the router"),
    Column("deliveries", pa.int64(), "deliveries that left the router"),
    *_statistics_columns(
        "the time from the first frame's arrival to the last frame's departure, by the router's clock"
    ),
    Column("answered", pa.int64(), "deliveries that left the router and whose outcome passed it"),
    *_statistics_columns(
        "the time from the last frame's departure until the outcome passed, by the router's clock", "outcome_"
    ),
)

LINKS: Final = (
    _DAY,
    Column("from_router", pa.string(), "the router that sends"),
    Column("to_router", pa.string(), "the router that receives; null if a client receives", "", True),
    Column("receiver", pa.string(), "the container-id of that client", "", True),
    Column("link", pa.string(), "the name of the link to that client", "", True),
    Column("deliveries", pa.int64(), "deliveries over the link"),
    Column(
        "unknown",
        pa.int64(),
        "of these, deliveries between clocks that could not be compared; not corrected; null for a client",
        "",
        True,
    ),
    Column(
        "negative",
        pa.int64(),
        "of these, deliveries whose time is negative after the correction; null for a client",
        "",
        True,
    ),
    *_statistics_columns(
        "the time from the last frame's departure to the first frame's arrival at the other router, corrected"
    ),
    _ERROR,
    Column("answered", pa.int64(), "deliveries whose outcome came back"),
    *_statistics_columns(
        "the time there and back, without the time at the other router; for a client, the time until its outcome",
        "round_trip_",
    ),
)

SHARES: Final = (
    _DAY,
    Column("address", pa.string(), "the address of the deliveries", "", True),
    _TENANT,
    Column(
        "part",
        pa.string(),
        "`router`: inside a router; `link`: from a router to the next; `receiver`: until the receiver's outcome; "
        "`return`: the outcome's way back over a link; "
        "`lost`: until a router ended the delivery, because the next router or the receiver was gone",
    ),
    Column("from_router", pa.string(), "the router; for a link, the router that sends"),
    Column("to_router", pa.string(), "for a link, the router that receives", "", True),
    Column("deliveries", pa.int64(), "deliveries with this part"),
    Column("total_ns", pa.int64(), "the sum of their times in this part; null if too large for the type", _NS, True),
    Column(
        "share",
        pa.float64(),
        "the part's share of all time of the address on that day; these shares of an address add up to 1",
        "",
        True,
    ),
)
TABLES: Final = {
    "clocks": CLOCKS,
    "times": TIMES,
    "parts": PARTS,
    "addresses": ADDRESSES,
    "hops": HOPS,
    "links": LINKS,
    "shares": SHARES,
}
"""The tables of `latency`, with their columns."""


def _in_column_order(table: DataFrame, name: str) -> DataFrame:
    return table.select([each.name for each in TABLES[name]])


def _statistics(times: DataFrame, of: str, *names: str, second: str) -> DataFrame:
    """Return for each day and some columns of `latency/times` what is told of the times of a table.

    Args: names: the columns. second: the prefix of the second measure's columns.
    """
    keys = ("day", *names)
    mine = times.where(F.col("of") == of).withColumn("day", F.expr(DAY_OF_HOUR))
    classes = mine.groupBy(*keys, "measure", F.expr(class_of("least_ns")).alias("class")).agg(
        F.min("least_ns").alias("least"),
        F.max("most_ns").alias("most"),
        F.sum("deliveries").alias("deliveries"),
        F.sum("unknown").alias("unknown"),
        F.max("error_ns").alias("error"),
    )
    one = Window.partitionBy(*keys, "measure")
    ranked = classes.withColumns(
        {
            "timed": F.expr("if(class is null, 0L, deliveries)"),
            "up_to": F.sum(F.expr("if(class is null, 0L, deliveries)")).over(one.orderBy(F.asc_nulls_first("class"))),
        }
    ).withColumn("all", F.sum("timed").over(one))
    told = []
    for prefix in ("", second):
        here = f"measure = '{prefix}' and class is not null"
        for name, share in PERCENTILES.items():
            # The nearest rank. Integers: it is the same however the share is rounded.
            reached = f"{here} and 100 * up_to >= {round(100 * share)} * all"
            told.append(F.min(F.expr(f"if({reached}, most, null)")).alias(f"{prefix}{name}_ns"))
        told.append(F.max(F.expr(f"if({here}, most, null)")).alias(f"{prefix}max_ns"))
    return ranked.groupBy(*keys).agg(
        *(
            F.coalesce(F.sum(F.expr(f"if(measure = '', {name}, null)")), F.lit(0)).alias(name)
            for name in ("deliveries", "unknown")
        ),
        F.coalesce(F.sum(F.expr("if(measure = '' and most < 0, deliveries, null)")), F.lit(0)).alias("negative"),
        F.expr("if(sum(unknown) = 0, max(error), null)").alias("error_ns"),
        F.coalesce(F.sum(F.expr(f"if(measure = '{second}', deliveries, null)")), F.lit(0)).alias("answered"),
        *told,
    )


def addresses(times: DataFrame) -> DataFrame:
    """Make the table `latency/addresses`. Args: times: the table `latency/times`."""
    return _in_column_order(_statistics(times, "addresses", "address", "tenant", second="outcome_"), "addresses")


def hops(times: DataFrame) -> DataFrame:
    """Make the table `latency/hops`. Args: times: the table `latency/times`."""
    found = _statistics(times, "hops", "from_router", second="outcome_").withColumnRenamed("from_router", "router")
    return _in_column_order(found, "hops")


def links(times: DataFrame, found: DataFrame, drift: int = DRIFT) -> DataFrame:
    """Make the table `latency/links`.

    Args: times: the table `latency/times`. found: the table `latency/clocks`, of the same days and drift.
    """
    both = _statistics(times, "links", "from_router", "to_router", "receiver", "link", second="round_trip_")
    near = _neighbour_errors(found, drift)
    all_links = both.join(near, ["day", "from_router", "to_router"], "left").withColumns(
        {
            "error_ns": F.expr("if(error_ns is null or to_router is null, null, least(error_ns, near))"),
            "unknown": F.expr("if(to_router is null, null, unknown)"),
            "negative": F.expr("if(to_router is null, null, negative)"),
        }
    )
    return _in_column_order(all_links, "links")


def _neighbour_errors(found: DataFrame, drift: int) -> DataFrame:
    """Return the errors of neighbours' clocks against each other, which are less than those against a third clock.

    Only for neighbours that were compared in every window of a day in which both clocks are known: without a
    comparison, a correction depends on the estimates of other clocks.
    """
    known = found.where("offset_ns is not null").withColumn("day", F.expr(DAY_OF_WINDOW))
    windows = known.where("is_reference").groupBy("day", "router").count()
    pairs = known.where("not is_reference").groupBy("day", "router", "against")
    error = F.max(F.expr(f"error_ns + window_ns * {drift} div 1000000"))
    compared = pairs.agg(F.count("*").alias("both"), error.alias("near"))
    always = (
        compared.join(windows.withColumnRenamed("count", "mine"), ["day", "router"])
        .join(windows.selectExpr("day", "router as against", "count as its"), ["day", "against"])
        .where("both = least(mine, its)")
    )
    there, back = "against as from_router, router as to_router", "router as from_router, against as to_router"
    return always.selectExpr("day", "near", f"inline(array(struct({there}), struct({back})))")


def shares(parts: DataFrame) -> DataFrame:
    """Make the table `latency/shares`. Args: parts: the table `latency/parts`."""
    by_address = ("day", "address", "tenant")
    exact = F.expr(f"cast(sum(high) as decimal(38, 0)) * {1 << 32} + sum(low_ns)")  # in whole numbers: in any order
    found = (
        parts.withColumn("day", F.expr(DAY_OF_HOUR))
        .groupBy(*by_address, "part", "from_router", "to_router")
        .agg(F.sum("deliveries").alias("deliveries"), exact.alias("ns"))
    )
    found = found.withColumns(
        {"total_ns": F.expr("try_cast(ns as bigint)"), "whole": F.sum("ns").over(Window.partitionBy(*by_address))}
    )
    share = F.expr("try_divide(cast(ns as double), cast(whole as double))")
    return _in_column_order(found.withColumn("share", share), "shares")
