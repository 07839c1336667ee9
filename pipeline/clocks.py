"""Estimates of the clocks of routers from deliveries, on Spark, and times corrected by them.

`clock_offsets` computes the estimates of one window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from amqpmesh.pipeline.clock_offsets import Bound
from amqpmesh.pipeline.clock_offsets import clocks as located
from amqpmesh.pipeline.deliveries import HOUR
from amqpmesh.pipeline.events import Column, arrow_schema, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WINDOW: Final = 10_000_000_000
"""Nanoseconds of a window, with one estimate for each clock."""

MINUTE: Final = 60_000_000_000
"""Nanoseconds of a window on days of which more than `SHORT` is recorded."""

SHORT: Final = 1_440 * WINDOW
"""Nanoseconds from the first to the last delivery of a day, up to which it has windows of `WINDOW`."""

DAY: Final = 86_400_000_000_000
"""Nanoseconds of a day."""

HOUR_OF: Final = f"hops[0].arrived_ns div {HOUR}"
"""The hour of a delivery, since 1970: that of its `sent_at`. Each hour is made by itself: windows of two hours have
nothing to do with each other.
"""

DRIFT: Final = 50
"""The greatest drift between two clocks, in parts per million; quartz drifts less. An observation some time from the
moment of the estimate is a weaker bound, and the error grows with that time.
"""

STAMP: Final = 1_000
"""The greatest error of a time stamp in nanoseconds: the system gives time as a floating-point number."""

ONE_FRAME: Final = 256
"""Octets of payload that fit into one frame on any connection (the smallest frame is 512 octets, §2.4.1). A larger
delivery can reach the next router before its last frame has left this one.
"""

DAY_OF_WINDOW: Final = f"timestamp_seconds(window_start div {DAY} * {DAY // 1_000_000_000})"
"""The day of a row of `latency/clocks`."""

DAY_OF_HOUR: Final = "timestamp_seconds(unix_seconds(hour_start) div 86400 * 86400)"
"""The day of rows with the beginning of an hour."""

CLOCKS: Final = (
    Column("window_start", pa.int64(), "when the window begins; the estimate is for its middle", "ns since 1970"),
    Column("window_ns", pa.int64(), "the length of the window", "ns"),
    Column("router", pa.string(), "the router whose clock is estimated"),
    Column("against", pa.string(), "the router with whose clock it is compared"),
    Column(
        "is_reference", pa.bool_(), "true if `against` is the reference for all corrections; false if it is a neighbour"
    ),
    Column("offset_ns", pa.int64(), "how far the clock of `router` is ahead; null if unknown", "ns", True),
    Column("error_ns", pa.int64(), "the largest possible error of `offset_ns`", "ns", True),
    Column("problem", pa.string(), "the reason for an unknown offset: `one way` or `inconsistent`", "", True),
)
STEPS: Final = "transform(slice(hops, 1, size(hops) - 1), (here, i) -> struct(here, hops[i + 1] as there))"
"""Pairs of neighbours on the path of a delivery."""

PASSED: Final = "outcome in ('accepted', 'rejected')"
"""Outcomes that a router records only after it got them from the next router: no router gives these itself for a
delivery that it has sent.
"""

_FOUND: Final = (*CLOCKS[:1], *CLOCKS[2:])


def estimated(attempts: DataFrame, window: int = WINDOW, drift: int = DRIFT) -> DataFrame:
    """Make the table `latency/clocks`.

    Args: attempts: the table `deliveries/attempts`. window, drift: as `WINDOW` and `DRIFT`.
    """
    middle = f"(sent - pmod(sent, {window}) + {window // 2})"
    passing = _passages(attempts).withColumn(
        "away", F.expr(f"cast(abs(sent - {middle}) * {drift} div 1000000 as bigint)")
    )
    seen = passing.select(
        F.expr(f"sent - pmod(sent, {window})").alias("window_start"),
        F.explode(
            F.expr(
                f"""array(
                named_struct('behind', router, 'ahead', next, 'most',
                    arrived_there - if(size <= {ONE_FRAME}, coalesce(left, arrived), arrived) + away + {STAMP}),
                named_struct('behind', next, 'ahead', router, 'most',
                    if({PASSED}, said - said_there, null) + away + {STAMP}))"""
            )
        ).alias("bound"),
    )
    least = (
        seen.select("window_start", "bound.*")
        .where("most is not null and behind <> ahead")
        .groupBy("window_start", "behind", "ahead")
        .agg(F.min("most").alias("most"))
    )
    found = least.groupBy("window_start").applyInArrow(_estimate, spark_schema(_FOUND))
    return found.withColumn("window_ns", F.lit(window).cast("bigint")).select([each.name for each in CLOCKS])


def _estimate(bounds: pa.Table) -> pa.Table:
    """Return the rows of one window."""
    start = bounds.column("window_start")[0].as_py()
    rows = [
        {"offset_ns": each["offset"], "error_ns": each["error"], "window_start": start, **each}
        for each in map(asdict, located(Bound(row["behind"], row["ahead"], row["most"]) for row in bounds.to_pylist()))
    ]
    schema = arrow_schema(_FOUND)
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema)


def _passages(attempts: DataFrame) -> DataFrame:
    """Return a row for each pair of neighbours on the path of a complete delivery."""
    whole = attempts.where("complete and size(hops) > 1")
    return whole.select(
        "size",
        "outcome",
        "settled",
        F.expr("hops[0].arrived_ns").alias("sent"),
        F.explode(F.expr(STEPS)).alias("step"),
    ).selectExpr(
        "size",
        "outcome",
        "sent",
        "step.here.router as router",
        "step.there.router as next",
        "step.here.arrived_ns as arrived",
        "step.here.arrived_ns + step.here.in_router_ns as left",
        "step.here.arrived_ns + step.here.outcome_after_ns as said",
        "step.there.arrived_ns as arrived_there",
        "step.there.arrived_ns + step.there.outcome_after_ns as said_there",
    )


def windows_of(spans: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return for each day, such as `2026-05-01`, the length of its windows in nanoseconds.

    Args: spans: for each hour's part, when its first and its last delivery were sent, in ns.
    """
    days: dict[str, tuple[int, int]] = {}
    for hour, (first, last, *_) in spans.items():
        low, high = days.get(hour[:10], (first, last))
        days[hour[:10]] = min(low, first), max(high, last)
    return {day: WINDOW if high - low <= SHORT else MINUTE for day, (low, high) in days.items()}


def running(found: DataFrame, window: int = WINDOW, drift: int = DRIFT) -> DataFrame:
    """Return the clocks between the middles of each two consecutive windows of an hour; a clock is assumed to run
    evenly between them.

    If one of the two estimates is unknown, the other one counts for the whole time.
    Args: found: the table `latency/clocks`, of the same window and drift.
    Returns: `hour`; `slot`, the beginning of the window whose middle is the earlier one; and `clocks`: for each known
        router its `reference`, `offset_ns` at the earlier and `next_ns` at the later middle, and `error_ns` between
        them.
    """
    slots = f"""array(named_struct('slot', window_start, 'is_later', false),
                      named_struct('slot', window_start - {window}, 'is_later', true))"""
    known = found.where("is_reference and offset_ns is not null").select(
        F.expr(f"window_start div {HOUR}").alias("hour"),
        "router",
        F.expr("struct(against as reference, offset_ns, error_ns)").alias("clock"),
        F.inline(F.expr(slots)),
    )
    by_router = known.groupBy("hour", "slot", "router").agg(
        F.min(F.expr("if(is_later, null, clock)")).alias("earlier"),
        F.min(F.expr("if(is_later, clock, null)")).alias("later"),
    )
    between = f"""case when router = one.reference then
            struct(router as reference, 0L as offset_ns, 0L as next_ns, 0L as error_ns)
        when earlier.reference = later.reference then
            struct(earlier.reference as reference, earlier.offset_ns as offset_ns, later.offset_ns as next_ns,
                greatest(earlier.error_ns, later.error_ns) + {window * drift // 2_000_000 + 1} as error_ns)
        else
            struct(one.reference as reference, one.offset_ns as offset_ns, one.offset_ns as next_ns,
                one.error_ns + {window * drift // 1_000_000} as error_ns)
        end"""
    either = by_router.withColumn("one", F.expr("coalesce(earlier, later)"))
    entries = either.select("hour", "slot", F.struct("router", F.expr(between).alias("clock")).alias("entry"))
    return entries.groupBy("hour", "slot").agg(F.map_from_entries(F.collect_list("entry")).alias("clocks"))


def corrected(attempts: DataFrame, clocks: DataFrame, window: int = WINDOW) -> DataFrame:
    """Add to each attempt the clocks at its time. Args: clocks: as `running` returns them, of the same window.

    Returns: with three more columns: `hour`; `clocks`; and `since`, the position between the earlier and the later
        middle, 0 to 1.
    """
    middle = f"(hops[0].arrived_ns - {window // 2})"
    placed = attempts.withColumns(
        {
            "hour": F.expr(HOUR_OF),
            "slot": F.expr(f"{middle} - pmod({middle}, {window})"),
            "since": F.expr(f"pmod({middle}, {window}) / {window}"),
        }
    )
    return placed.join(clocks, ["hour", "slot"], "left").drop("slot")


def clocks_of(one: str, other: str) -> list[str]:
    """Return columns of the clocks of two routers, `one` and `other`. The map may be long: each is looked up once."""
    return [f"clocks[{one}] as one", f"clocks[{other}] as other", f"{one} = {other} as is_same", "since"]


_BOTH: Final = "case when is_same then 0L when one.reference = other.reference then {} end"
SHIFT: Final = _BOTH.format(
    "other.offset_ns - one.offset_ns + cast(round("
    "(other.next_ns - other.offset_ns - one.next_ns + one.offset_ns) * since) as bigint)"
)
"""An expression over `clocks_of`: how far the clock of `other` is ahead of that of `one`; null: unknown."""
ERROR: Final = _BOTH.format("one.error_ns + other.error_ns")
