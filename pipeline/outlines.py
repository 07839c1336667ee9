"""Outlines of deliveries: those that may be a loss, one by one, and all others counted.

Those of an hour are made from its deliveries alone, and are few. So a day is judged anew without a look at the
deliveries of its other hours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from amqpmesh.pipeline.deliveries import HOUR
from amqpmesh.pipeline.events import Column, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLOW_OUTCOME: Final = 1_000_000_000
"""Nanoseconds. A receiver is slow if half of its outcomes come later than that after the delivery was sent."""

_PLACE: Final = (
    Column("address", pa.string(), "the address of the deliveries", "", True),
    Column("tenant", pa.string(), "the tenant of the address; empty without tenants", "", True),
    Column("ingress", pa.string(), "the router where they entered the mesh", "", True),
    Column("egress", pa.string(), "the router where they left the mesh; null if they did not, or unknown", "", True),
    Column("sender", pa.string(), "the container-id of the sender, if this is `ingress` itself", "", True),
    Column("receiver", pa.string(), "the container-id of the client that received them", "", True),
    Column("receiver_link", pa.string(), "the name of the link to that client", "", True),
    Column("outcome", pa.string(), "the outcome at `ingress`; null if unknown", "", True),
    Column("ended", pa.string(), "the outcome at the last router of the path; null if unknown", "", True),
    Column("settled", pa.bool_(), "true if they were sent settled", "", True),
    Column("copy", pa.bool_(), "true if they went to a receiver of copies", "", True),
    Column("legs", pa.int64(), "the number of rows of each in `deliveries/attempts`", "", True),
    Column("complete", pa.bool_(), "true if no record of a router on the path is missing", "", True),
)

OUTLINES: Final = (
    *_PLACE,
    Column("deliveries", pa.int64(), "the number of these deliveries; 1 if one may be a loss"),
    Column("answered", pa.int64(), "of these, those whose receiver gave an outcome"),
    Column("time", pa.int64(), "when the first of them arrived", "ns since 1970", True),
    Column("key", pa.binary(), "the delivery key of one; null of several", "", True),
    Column("first_key", pa.binary(), "that of its first attempt; null of several, or if unknown", "", True),
    Column("attempt", pa.int64(), "the number of the attempt; null if unknown", "", True),
    Column("tries", pa.int64(), "how often it was tried, by `attempt` or by its delivery-count"),
    Column("condition", pa.string(), "the error condition of a rejection; null if there is none", "", True),
    Column("path", pa.list_(pa.string()), "the routers that recorded it; null of several", "", True),
    Column("last_time", pa.int64(), "when it arrived at the last of them; null of several", "ns since 1970", True),
    Column("waited_ns", pa.int64(), "the time until its receiver's outcome; null of several, or unknown", "ns", True),
    Column("begin_time", pa.int64(), "when its first record begins; null of several", "ns since 1970", True),
    Column("end_time", pa.int64(), "when its last record begins; null of several", "ns since 1970", True),
)

_PLAIN: Final = f"""coalesce(
    complete and ingress is not null and tries = 1 and size(array_distinct(path)) = size(path)
        and (outcome = 'accepted' or (settled and outcome = 'none')) and ended in ('none', 'accepted')
        and (waited_ns is null or waited_ns < {SLOW_OUTCOME}),
    false)"""
"""Deliveries that are no loss of any kind, and have nothing to do with one."""


def outlined(attempts: DataFrame) -> DataFrame:
    """Make the table `losses/outlines`, with a further column `hour`. Args: attempts: `deliveries/attempts`."""
    last = "element_at(hops, -1)"
    arrived = "transform(hops, hop -> hop.arrived_ns)"
    told = attempts.selectExpr(
        *(each.name for each in _PLACE if each.name not in ("sender", "ended")),
        "if(sender = ingress, sender, null) as sender",
        f"{last}.outcome as ended",
        "hops[0].arrived_ns as time",
        "key",
        "first_key",
        "attempt",
        "greatest(coalesce(attempt, 1), coalesce(delivery_count, 0) + 1) as tries",
        "condition",
        "path",
        f"{last}.arrived_ns as last_time",
        f"if(egress is null, null, {last}.outcome_after_ns - {last}.in_router_ns) as waited_ns",
        f"array_min({arrived}) as begin_time",
        f"array_max({arrived}) as end_time",
    ).withColumns({"hour": F.expr(f"time div {HOUR}"), "plain": F.expr(_PLAIN)})
    one_by_one = told.where("not plain").withColumns(
        {"deliveries": F.lit(1), "answered": F.expr("if(waited_ns is null, 0, 1)")}
    )
    counted = (
        told.where("plain")
        .groupBy("hour", *(each.name for each in _PLACE))
        .agg(
            F.count("*").alias("deliveries"),
            F.count("waited_ns").alias("answered"),
            F.min("time").alias("time"),
            F.lit(1).alias("tries"),
        )
    )
    both = one_by_one.drop("plain").unionByName(counted, allowMissingColumns=True)
    return both.select(*(F.col(each.name).cast(each.dataType) for each in spark_schema(OUTLINES)), "hour")
