"""Passages of deliveries from router to router with only the first router's record, and whether that proves a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from amqpmesh.pipeline.clocks import DAY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SECOND: Final = 1_000_000_000

DAY_OF_TIME: Final = f"timestamp_seconds(time div {DAY} * {DAY // SECOND})"
"""The day of rows with a `time` in nanoseconds, in UTC."""

ALL: Final = 1 << 32
"""The sample of a router that records every key."""

SLACK: Final = 10 * SECOND
"""Nanoseconds that a router must have recorded before a delivery was sent to it, and after its outcome was known, for a
missing record to be evidence. Larger clock offsets may mislead.
"""

PATIENCE: Final = 600 * SECOND
"""The same after a delivery without an outcome: the next router may wait for one, and records the delivery
only then.
"""


def without_record(outlines: DataFrame, hops: DataFrame, segments: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return passages from router to router with only the first router's record.

    A passage is evidence if the other router recorded at that time, without gaps, and with at least as large a sample.
    If record numbers are missing there, a segment is incomplete, or there is no segment of that time, nothing follows.
    Args: outlines: the table `losses/outlines`. hops, segments: the tables of `ingest`.
    Returns: passages that are evidence; and the others.
    """
    keys = outlines.where("not complete").select("key", F.expr(DAY_OF_TIME).alias("day")).distinct()
    some = hops.join(keys, "key")
    there = some.selectExpr("key", "router as next_router").distinct()
    sent = some.where("to_router and outgoing_peer is not null").selectExpr(
        "day",
        "key",
        "router",
        "outgoing_peer as next_router",
        "epoch",
        "segment",
        "time",
        "time + coalesce(outcome_after, in_router, 0) as over",
        f"if(not settled and outcome = 'none', {PATIENCE}, {SLACK}) as slack",
    )
    samples = segments.select("router", "epoch", "segment", F.col("sample").alias("mine"))
    gone = sent.join(there, ["key", "next_router"], "left_anti").join(samples, ["router", "epoch", "segment"], "left")
    recorded = stretches(segments).withColumnRenamed("router", "next_router")
    knows = (
        (gone["next_router"] == recorded["next_router"])
        & (recorded["begin"] <= gone["time"] - SLACK)
        & (recorded["end"] >= gone["over"] + gone["slack"])
        & (recorded["sample"] >= F.coalesce(gone["mine"], F.lit(ALL)))
    )
    return gone.join(recorded, knows, "left_semi"), gone.join(recorded, knows, "left_anti")


def stretches(segments: DataFrame) -> DataFrame:
    """Return times without missing records of a router: `router`, `begin`, `end`, and the least `sample` in them."""
    life = Window.partitionBy("router", "epoch").orderBy("segment")
    before = segments.withColumn(
        "dropped_before", F.coalesce(F.lag("dropped").over(life), F.expr("if(segment = 1, 0, dropped)"))
    )
    good = before.where("whole and dropped <=> dropped_before and (first_hop is null or next_hop - first_hop = hops)")
    earlier = life.rowsBetween(Window.unboundedPreceding, -1)
    follows = (F.col("segment") == F.lag("segment").over(life) + 1) & F.coalesce(
        F.col("first_hop") == F.last("next_hop", ignorenulls=True).over(earlier), F.lit(True)
    )
    parts = good.withColumn("begins", F.when(follows, 0).otherwise(1)).withColumn("part", F.sum("begins").over(life))
    return parts.groupBy("router", "epoch", "part").agg(
        F.min("time").alias("begin"),
        F.max(F.expr("greatest(time, coalesce(last_time, time))")).alias("end"),
        F.min(F.coalesce("sample", F.lit(0))).alias("sample"),
    )
