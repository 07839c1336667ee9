"""Findings about deliveries that went wrong, each with rows that show it.

Each day is judged by itself, so that `losses_days` can make it alone. Findings add up those of days.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import reduce
from string import Formatter
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from amqpmesh.pipeline.deliveries import with_grouped_addresses
from amqpmesh.pipeline.events import Column, spark_schema
from amqpmesh.pipeline.outlines import OUTLINES, SLOW_OUTCOME
from amqpmesh.pipeline.passages import DAY_OF_TIME, SECOND

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

EVIDENCE: Final = 20
"""Rows shown for a finding at most, worst first; the finding has the number of all."""

ATTEMPTS: Final = 5
"""Attempts after which a delivery counts as undeliverable."""

STORM_SHARE: Final = 0.2
"""The share of redeliveries in an address' deliveries that is a storm."""

STORM_LEAST: Final = 50
"""Deliveries to an address at least for a storm."""

SLOW_LEAST: Final = 10
"""Deliveries at least for a slow receiver."""

CREDIT_SHARE: Final = 0.5
"""A receiver is slow if it gives no credit for this share of the time from its first wait to the end of its last."""

CREDIT_LEAST: Final = 10 * SECOND
"""Nanoseconds without credit in all at least."""

GROWTH_LEAST: Final = 100
"""Unsettled deliveries of a receiver grow if there are so many more in the last record than in the first."""

GROWTH_SHARE: Final = 0.8
"""And if they do not shrink in this share of the records."""

GROWTH_TELLINGS: Final = 5
"""Records of counters at least for growth."""


class Loss(StrEnum):
    """The kinds of findings."""

    BROKEN = "broken"
    """A router has sent it to another one that has no record of it, though no records of that time are
    missing there.
    """
    UNANSWERED = "unanswered"
    """It ended without an outcome: its sender or its receiver was lost."""
    DROPPED = "dropped"
    """It was pre-settled, and then expired or reached no receiver; its sender was not informed."""
    REJECTED = "rejected"
    """Its receiver, or a router, rejected it as invalid."""
    UNDELIVERED = "undelivered"
    """There was no receiver for it."""
    EXPIRED = "expired"
    """Its ttl ended before it was sent."""
    MODIFIED = "modified"
    """Its receiver or a router on its path was lost, or the receiver did not process it."""
    RELEASED = "released"
    """Its receiver has released it."""
    ABORTED = "aborted"
    """Its sender aborted it."""
    LOOP = "loop"
    """It reached the same router more than once."""
    REPEATED = "repeated"
    """It was tried often."""
    STORM = "storm"
    """Many of an address' deliveries are redeliveries."""
    SLOW = "slow"
    """A receiver's outcomes come late."""
    NO_CREDIT = "no credit"
    """A receiver gives no credit for much of the time."""
    GROWING = "growing"
    """A receiver takes more than it settles."""


_SENTENCES: Final[Mapping[Loss, str]] = {
    Loss.BROKEN: "{found} of {of} deliveries left {router} for {next_router}, and there is no record of them there",
    Loss.UNANSWERED: "{found} of {of} deliveries to {address} by {router} ended without an outcome",
    Loss.DROPPED: "{found} of {of} deliveries to {address} by {router} were settled, and reached nobody",
    Loss.REJECTED: "{found} of {of} deliveries to {address} were rejected[ by {receiver}] at {router}[: {condition}]",
    Loss.UNDELIVERED: "{found} of {of} deliveries to {address} by {router} had nobody to go to[: {condition}]",
    Loss.EXPIRED: "{found} of {of} deliveries to {address} by {router} expired on their way",
    Loss.MODIFIED: "{found} of {of} deliveries to {address} ended as modified[ by {receiver}] at {router}",
    Loss.RELEASED: "{found} of {of} deliveries to {address} were released[ by {receiver}] at {router}",
    Loss.ABORTED: "{found} of {of} deliveries to {address} by {router} were aborted by their senders",
    Loss.LOOP: "{found} of {of} deliveries to {address} by {router} came to a router more than once",
    Loss.REPEATED: "{found} of {of} deliveries to {address} by {router} were tried often, one of them {worst} times",
    Loss.STORM: "{found} of {of} deliveries to {address} by {router} had been tried before",
    Loss.SLOW: "half of the {of} outcomes of {receiver} at {router} came late, one of them after {seconds} s",
    Loss.NO_CREDIT: "{receiver} at {router} gave no credit {found} times, once for {seconds} s",
    Loss.GROWING: "unsettled deliveries of {receiver} at {router} grew to {worst}",
}
"""The sentence of each kind, with values of the finding; a part in brackets is left out if its value is unknown."""

_PLACE: Final = (
    Column("kind", pa.string(), "the kind of finding, such as `broken`"),
    Column("address", pa.string(), "the address of the deliveries", "", True),
    Column("tenant", pa.string(), "the tenant of the address; empty without tenants", "", True),
    Column("router", pa.string(), "the router where the problem was found", "", True),
    Column("next_router", pa.string(), "for `broken`, the router that has no record of the deliveries", "", True),
    Column("receiver", pa.string(), "the container-id of the receiving client", "", True),
    Column("link", pa.string(), "the name of the link to that client", "", True),
    Column("condition", pa.string(), "the error condition, if there is one", "", True),
)

_OF: Final = Column(
    "of",
    pa.int64(),
    "the number of deliveries that were examined on the days with such rows; null if the finding is about a link",
    "",
    True,
)
_COUNTED: Final = (
    Column("found", pa.int64(), "the number of rows that show the problem"),
    _OF,
    Column("worst", pa.int64(), "the largest `value` of these rows", "", True),
    Column("first_time", pa.int64(), "the earliest `time` of these rows", "ns since 1970", True),
    Column("last_time", pa.int64(), "the latest `time` of these rows", "ns since 1970", True),
)
_DAY: Final = Column("day", pa.timestamp("us", "UTC"), "when the day begins")

FINDINGS: Final = (
    Column("finding", pa.int64(), "the number of the finding, from 1"),
    *_PLACE,
    *_COUNTED,
    Column("sentence", pa.string(), "the finding in words"),
    Column("left_out", pa.int64(), "the number of these rows that are not in `evidence`"),
)

SHOWN: Final = (
    Column("finding", pa.int64(), "the number of the finding"),
    Column("kind", pa.string(), "the kind of finding, such as `broken`"),
    Column("key", pa.binary(), "the delivery key; null if the finding is about a link", "", True),
    Column(
        "time", pa.int64(), "when the delivery arrived, or when the router recorded the link", "ns since 1970", True
    ),
    Column("path", pa.list_(pa.string()), "the routers that recorded the delivery, in the order of its path", "", True),
    Column(
        "value",
        pa.int64(),
        "`repeated`, `storm`: attempts; `slow`: ns until the outcome; `no credit`: ns without credit; `growing`: "
        "unsettled deliveries",
        "",
        True,
    ),
)
DAILY: Final = (_DAY, *_PLACE, *_COUNTED)
ROWS: Final = (_DAY, *_PLACE, *SHOWN[2:])
TABLES: Final = {"findings": FINDINGS, "evidence": SHOWN, "daily": DAILY, "rows": ROWS, "outlines": OUTLINES}
"""The tables of `losses`, with their columns."""

_PLACED: Final = tuple(each.name for each in _PLACE)
_ROW: Final = SHOWN[2:]
_SUSPECT: Final = (_DAY, *_PLACE, _OF, *_ROW)


def suspects(
    outlines: DataFrame, later: DataFrame, gone: DataFrame, hops: DataFrame, events: DataFrame, counts: DataFrame
) -> DataFrame:
    """Return all rows that show a problem: the columns that identify its finding, and those shown as evidence.

    Lanes between routers are among the receivers (`findings` leaves them out).
    Args: outlines: the table `losses/outlines`. later: those, and of the day after. gone: as `without_record`
        returns it. hops, events, counts: the tables of `ingest`.
    """
    found = [
        _broken(gone, hops),
        _problems_of_deliveries(outlines),
        _ended(outlines, later),
        _slow_receivers(outlines),
        _no_credit(events),
        _growing_receivers(counts),
    ]
    empty = outlines.sparkSession.createDataFrame([], spark_schema(_SUSPECT))
    return reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), found, empty)


def daily(suspected: DataFrame) -> DataFrame:
    """Make the table `losses/daily`. Args: suspected: as `suspects` returns them."""
    found = suspected.groupBy("day", *_PLACED).agg(
        F.count("*").alias("found"),
        F.max("of").alias("of"),
        F.max("value").alias("worst"),
        F.min("time").alias("first_time"),
        F.max("time").alias("last_time"),
    )
    return found.select([F.col(each.name).cast(each.dataType) for each in spark_schema(DAILY)])


def rows(suspected: DataFrame) -> DataFrame:
    """Make the table `losses/rows`. Args: suspected: as `suspects` returns them."""
    some = _worst(suspected, "day", *_PLACED)
    return some.select([F.col(each.name).cast(each.dataType) for each in spark_schema(ROWS)])


def _worst(some: DataFrame, *names: str) -> DataFrame:
    """Return the rows to be shown of those that are equal in some columns."""
    worst_first = Window.partitionBy(*names).orderBy(F.desc_nulls_last("value"), "time", "key")
    return some.withColumn("place", F.row_number().over(worst_first)).where(F.col("place") <= EVIDENCE)


def findings(daily: DataFrame, routers: Sequence[str]) -> DataFrame:
    """Make the table `losses/findings`. Args: daily: the table `losses/daily`. routers: all."""
    # A lane to a router waits for credit, too: that is no finding.
    is_lane = F.col("kind").isin(Loss.NO_CREDIT, Loss.GROWING) & F.coalesce(
        F.col("receiver").isin(*routers), F.lit(False)
    )
    found = (
        daily.where(~is_lane)
        .groupBy(*_PLACED)
        .agg(
            F.sum("found").alias("found"),
            F.sum("of").alias("of"),
            F.max("worst").alias("worst"),
            F.min("first_time").alias("first_time"),
            F.max("last_time").alias("last_time"),
        )
    )
    order = F.array_position(F.lit([str(each) for each in Loss]), F.col("kind"))
    numbered = found.withColumn("finding", F.row_number().over(Window.orderBy(order, F.desc("found"), *_PLACED)))
    told = F.coalesce(*(F.when(F.col("kind") == kind, _sentence_of(sentence)) for kind, sentence in _SENTENCES.items()))
    complete = numbered.withColumn("sentence", told).withColumn(
        "left_out", F.greatest(F.col("found") - EVIDENCE, F.lit(0))
    )
    schema = spark_schema(FINDINGS)
    return complete.select([F.col(each.name).cast(each.dataType) for each in schema])


def evidence(rows: DataFrame, found: DataFrame) -> DataFrame:
    """Make the table `losses/evidence`. Args: rows: the table `losses/rows`. found: the table `losses/findings`."""
    some = _worst(rows, *_PLACED)
    same = reduce(lambda all_of, name: all_of & some[name].eqNullSafe(found[name]), _PLACED, F.lit(True))
    return some.join(found, same).select(
        found["finding"], found["kind"], *(some[name] for name in (each.name for each in _ROW))
    )


def _sentence_of(sentence: str) -> Expression:
    """Return a sentence of `_SENTENCES` with its values; unknown ones are a question mark, or left out."""
    parts: list[Expression] = []
    for some in re.split(r"(\[.*?\])", sentence):
        is_optional = some.startswith("[")
        said: list[Expression] = []
        for text, name, _, _ in Formatter().parse(some.strip("[]")):
            said.append(F.lit(text))
            if name == "seconds":
                said.append(F.format_number(F.col("worst") / SECOND, 1))
            elif name is not None:
                value = F.col(name).cast("string")
                said.append(value if is_optional else F.coalesce(value, F.lit("?")))
        parts.append(F.coalesce(F.concat(*said), F.lit("")))
    return F.concat(*parts)


# ------------------------------------------------------------------------------------------------------- of deliveries

_TOTALLED: Final = ("day", "address", "tenant", "router")

_PART: Final = "deliveries / greatest(coalesce(legs, 1), 1)"
"""The weight of a row: a delivery with several legs has several."""


def _problems_of_deliveries(outlines: DataFrame) -> DataFrame:
    """Return problems that single deliveries show."""
    kinds = {
        Loss.UNANSWERED: "not settled and outcome = 'none'",
        Loss.DROPPED: "settled and ended not in ('none', 'accepted', 'aborted')",
        Loss.LOOP: "size(array_distinct(path)) < size(path)",
        Loss.REPEATED: f"tries >= {ATTEMPTS}",
        Loss.STORM: "tries > 1",
    }
    tried = (
        with_grouped_addresses(outlines)
        .where("ingress is not null and not coalesce(copy, false)")
        .selectExpr(
            f"{DAY_OF_TIME} as day",
            "address",
            "tenant",
            "ingress as router",
            "key",
            "coalesce(first_key, key) as first_key",
            "time",
            "path",
            "settled",
            "outcome",
            "ended",
            "tries",
            f"{_PART} as part",
        )
    )
    shown = F.array(*(F.when(F.expr(condition), str(kind)) for kind, condition in kinds.items()))
    flagged = tried.withColumn("kind", F.explode(F.array_compact(shown)))
    value = F.when(F.col("kind").isin(Loss.REPEATED, Loss.STORM), F.col("tries"))
    key = F.when(F.col("kind") == Loss.REPEATED, F.col("first_key")).otherwise(F.col("key"))
    once = flagged.groupBy("kind", *_TOTALLED, key.alias("key")).agg(
        F.min("time").alias("time"), F.min("path").alias("path"), F.max(value).alias("value")
    )
    totals = tried.groupBy(*_TOTALLED).agg(
        F.round(F.sum("part")).cast("bigint").alias("of"),
        F.sum(F.expr("if(tries > 1, part, 0)")).alias("again"),
    )
    found = _with(once, totals, _TOTALLED)
    return found.where(f"kind <> '{Loss.STORM}' or (of >= {STORM_LEAST} and again >= of * {STORM_SHARE})").drop("again")


def _ended(outlines: DataFrame, later: DataFrame) -> DataFrame:
    """Return deliveries that were neither accepted nor tried again on the same day or the next one: by receiver if it
    gave the outcome, else by ingress router.
    """
    counted = with_grouped_addresses(outlines).where("not settled and not coalesce(copy, false)")
    counted = counted.withColumn("day", F.expr(DAY_OF_TIME))
    again = later.where("attempt > 1").selectExpr(
        "first_key as tried", "attempt as later", f"{DAY_OF_TIME} as day_after"
    )
    said = counted.selectExpr(
        "*", "egress is not null and ended in ('rejected', 'released', 'modified') as by_receiver"
    )
    # If the receiver accepted it, or its outcome is unknown, the sender's outcome counts.
    heard = said.withColumn("kind", F.expr("if(coalesce(ended, 'none') in ('none', 'accepted'), outcome, ended)"))
    kinds = (Loss.REJECTED, Loss.UNDELIVERED, Loss.EXPIRED, Loss.MODIFIED, Loss.RELEASED, Loss.ABORTED)
    failed = heard.where(F.col("kind").isin(*map(str, kinds)))
    tried = "first_key = tried and attempt < later and day_after between day and day + interval 1 day"
    last = failed.join(again, F.expr(tried), "left_anti")
    row = ("day", "kind", "key", "time", "path", "condition", "address", "tenant")
    at_receiver = last.where("by_receiver").selectExpr(*row, "egress as router", "receiver")
    to_receiver = (
        counted.where("egress is not null")
        .groupBy("day", "address", "tenant", F.col("egress").alias("router"), "receiver")
        .agg(F.sum("deliveries").alias("of"))
    )
    elsewhere = last.where("ingress is not null and not by_receiver").selectExpr(*row, "ingress as router")
    begun = (
        counted.where("ingress is not null")
        .groupBy("day", "address", "tenant", F.col("ingress").alias("router"))
        .agg(F.round(F.sum(F.expr(_PART))).cast("bigint").alias("of"))
    )
    return _with(at_receiver, to_receiver, (*_TOTALLED, "receiver")).unionByName(
        _with(elsewhere.dropDuplicates(["kind", "key"]), begun, _TOTALLED), allowMissingColumns=True
    )


def _slow_receivers(outlines: DataFrame) -> DataFrame:
    """Return receivers whose outcomes come late."""
    last = outlines.where("egress is not null").selectExpr(
        f"{DAY_OF_TIME} as day",
        "address",
        "tenant",
        "egress as router",
        "receiver",
        "receiver_link as link",
        "key",
        "last_time as time",
        "path",
        "waited_ns as value",
        "answered",
    )
    place = (*_TOTALLED, "receiver", "link")
    is_late = f"value >= {SLOW_OUTCOME}"
    half = last.groupBy(*place).agg(F.sum("answered").alias("of"), F.count_if(F.expr(is_late)).alias("late"))
    slow = half.where(f"of >= {SLOW_LEAST} and late > of div 2").drop("late")
    return _with(last.where(is_late).drop("answered"), slow, place).withColumn("kind", F.lit(str(Loss.SLOW)))


# ------------------------------------------------------------------------------------------------------------ of links

_LINK: Final = ("day", "router", "peer", "link", "address", "tenant")


def _no_credit(events: DataFrame) -> DataFrame:
    """Return receivers without credit for long."""
    waits = events.where("happening = 'credit' and direction = 'outgoing' and waited is not null")
    waits = waits.where("time is not null").withColumn("day", F.expr(DAY_OF_TIME))
    by_link = waits.groupBy(*_LINK).agg(
        F.try_sum("waited").alias("waited"), F.expr("max(time) - min(time - waited)").alias("span")
    )
    poor = by_link.where(f"waited >= {CREDIT_LEAST} and waited >= span * {CREDIT_SHARE}").select(*_LINK)
    value = waits.select(*_LINK, "time", F.col("waited").alias("value"))
    return _of_link(_with(value, poor, _LINK), Loss.NO_CREDIT)


def _growing_receivers(counts: DataFrame) -> DataFrame:
    """Find receivers that take more than they settle."""
    one = Window.partitionBy("day", "router", "epoch", "number", "link", "peer", "address", "tenant")
    told = counts.where("direction = 'outgoing' and unsettled is not null and time is not null")
    told = told.withColumn("day", F.expr(DAY_OF_TIME))
    before = told.withColumn("before", F.lag("unsettled").over(one.orderBy("time", "deliveries")))
    seen = (
        before.withColumn("steps", F.count("before").over(one))
        .withColumn("up", F.count_if(F.col("unsettled") >= F.col("before")).over(one))
        .withColumn("grown", F.max_by("unsettled", "time").over(one) - F.min_by("unsettled", "time").over(one))
    )
    growing = seen.where(f"steps >= {GROWTH_TELLINGS - 1} and grown >= {GROWTH_LEAST} and up >= steps * {GROWTH_SHARE}")
    return _of_link(growing.select(*_LINK, "time", F.col("unsettled").alias("value")), Loss.GROWING)


def _of_link(rows: DataFrame, kind: Loss) -> DataFrame:
    return rows.withColumnRenamed("peer", "receiver").withColumn("kind", F.lit(str(kind)))


# ------------------------------------------------------------------------------------------------ from router to router


def _broken(gone: DataFrame, hops: DataFrame) -> DataFrame:
    sent = (
        hops.where("to_router")
        .groupBy(F.expr(DAY_OF_TIME).alias("day"), "router", F.col("outgoing_peer").alias("next_router"))
        .agg(F.count("*").alias("of"))
    )
    rows = gone.select("day", "router", "next_router", "key", "time", F.array("router").alias("path"))
    return _with(rows, sent, ("day", "router", "next_router")).withColumn("kind", F.lit(str(Loss.BROKEN)))


def _with(rows: DataFrame, others: DataFrame, names: Sequence[str]) -> DataFrame:
    """Join rows to others that are equal, or equally unknown, in the columns `names`."""
    renamed = others.withColumnsRenamed({name: f"same {name}" for name in names})
    same = reduce(lambda one, other: one & other, (rows[name].eqNullSafe(renamed[f"same {name}"]) for name in names))
    return rows.join(renamed, same).drop(*(f"same {name}" for name in names))
