"""Tables of latency for each day: by address, by router, by link, and by part of a delivery's path.

Each day is judged by itself, from the deliveries that were sent on it, so that `latency_days` can make it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from amqpmesh.pipeline.clocks import CLOCKS, DAY_OF, DAY_OF_WINDOW, DRIFT, ERROR, PASSED, SHIFT, STEPS, clocks_of
from amqpmesh.pipeline.deliveries import with_grouped_addresses
from amqpmesh.pipeline.events import Column

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

ACCURACY: Final = 10_000
"""The accuracy of percentiles: the rank of the stated value is wrong by at most a ten thousandth of all values; up to
some thousands of values it is exact. It is always one of the values, that of the nearest rank, never between two.
"""

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
TABLES: Final = {"clocks": CLOCKS, "addresses": ADDRESSES, "hops": HOPS, "links": LINKS, "shares": SHARES}
"""The tables of `latency`, with their columns."""

_LATER: Final = "step.there.arrived_ns - step.here.arrived_ns"


def _figures(values: Expression, prefix: str = "") -> list[Expression]:
    """Return the columns of `_statistics_columns`, over values that are not null."""
    found = F.percentile_approx(values, list(PERCENTILES.values()), ACCURACY)
    columns = [found[at].alias(f"{prefix}{name}_ns") for at, name in enumerate(PERCENTILES)]
    return [*columns, F.max(values).alias(f"{prefix}max_ns")]


def _error_of_all(known: str) -> Expression:
    """Return the largest error; null, if one is unknown."""
    return F.expr(f"if(bool_and({known} is not null), max({known}), null)").alias("error_ns")


def _in_column_order(table: DataFrame, name: str) -> DataFrame:
    return table.select([each.name for each in TABLES[name]])


def addresses(attempts: DataFrame) -> DataFrame:
    """Make the table `latency/addresses`. Args: attempts: as `corrected` returns them."""
    shown = (
        with_grouped_addresses(attempts)
        .where("latency_ns is not null")
        .selectExpr("day", "address", "tenant", "latency_ns", "outcome_after_ns", *clocks_of("ingress", "egress"))
    )
    timed = shown.selectExpr(
        "day",
        "address",
        "tenant",
        f"latency_ns - coalesce({SHIFT}, 0L) as took",
        f"{ERROR} as error",
        "outcome_after_ns",
    )
    found = timed.groupBy("day", "address", "tenant").agg(
        F.count("*").alias("deliveries"),
        F.count_if(F.isnull("error")).alias("unknown"),
        F.count_if(F.col("took") < 0).alias("negative"),
        *_figures(F.col("took")),
        _error_of_all("error"),
        F.count("outcome_after_ns").alias("answered"),
        *_figures(F.col("outcome_after_ns"), "outcome_"),
    )
    return _in_column_order(found, "addresses")


def hops(attempts: DataFrame) -> DataFrame:
    """Make the table `latency/hops`. Args: attempts: the table `deliveries/attempts`."""
    at = attempts.select(F.expr(DAY_OF).alias("day"), F.explode("hops").alias("hop"))
    at = at.where("hop.in_router_ns is not null")
    waited = F.expr("hop.outcome_after_ns - hop.in_router_ns")
    found = at.groupBy("day", F.col("hop.router").alias("router")).agg(
        F.count("*").alias("deliveries"),
        *_figures(F.col("hop.in_router_ns")),
        F.count(waited).alias("answered"),
        *_figures(waited, "outcome_"),
    )
    return _in_column_order(found, "hops")


def links(attempts: DataFrame, found: DataFrame, drift: int = DRIFT) -> DataFrame:
    """Make the table `latency/links`.

    Args: attempts: as `corrected` returns them. found: the table `latency/clocks`, of the same days and drift.
    """
    lanes = (
        _steps(attempts)
        .groupBy("day", "from_router", "to_router")
        .agg(
            F.count("*").alias("deliveries"),
            F.count_if(F.isnull("shift")).alias("unknown"),
            F.count_if(F.expr("there - coalesce(shift, 0) < 0")).alias("negative"),
            *_figures(F.expr("there - coalesce(shift, 0)")),
            _error_of_all("error"),
            F.count("round_trip").alias("answered"),
            *_figures(F.col("round_trip"), "round_trip_"),
        )
    )
    near = _neighbour_errors(found, drift)
    lanes = lanes.join(near, ["day", "from_router", "to_router"], "left").withColumn(
        "error_ns", F.expr("if(error_ns is null, null, least(error_ns, near))")
    )
    last = attempts.where("egress is not null").selectExpr(
        "day",
        "egress as from_router",
        "receiver",
        "receiver_link as link",
        "element_at(hops, -1).outcome_after_ns - element_at(hops, -1).in_router_ns as round_trip",
    )
    out = last.groupBy("day", "from_router", "receiver", "link").agg(
        F.count("*").alias("deliveries"),
        F.count("round_trip").alias("answered"),
        *_figures(F.col("round_trip"), "round_trip_"),
    )
    return _in_column_order(lanes.unionByName(out, allowMissingColumns=True), "links")


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


def _steps(attempts: DataFrame) -> DataFrame:
    """Return a row for each link between routers that a complete delivery passed."""
    whole = attempts.where("complete and size(hops) > 1").withColumn("step", F.explode(F.expr(STEPS)))
    shown = whole.where("step.here.in_router_ns is not null").select(
        "day", "step", "outcome", *map(F.expr, clocks_of("step.here.router", "step.there.router"))
    )
    return shown.selectExpr(
        "day",
        "step.here.router as from_router",
        "step.there.router as to_router",
        f"{_LATER} - step.here.in_router_ns as there",
        f"{SHIFT} as shift",
        f"{ERROR} as error",
        f"if({PASSED}, "
        "step.here.outcome_after_ns - step.here.in_router_ns - step.there.outcome_after_ns, null) as round_trip",
    )


def shares(attempts: DataFrame) -> DataFrame:
    """Make the table `latency/shares`, of complete deliveries.

    The parts of a delivery add up to the time at its ingress router: until its outcome passed or, without an outcome,
    until it left the mesh by the clocks of both. Args: attempts: as `corrected` returns them.
    """
    last = "element_at(hops, -1)"
    timed = with_grouped_addresses(attempts).where(
        f"""complete and forall(slice(hops, 1, size(hops) - 1), hop -> hop.in_router_ns is not null)
        and if(egress is null, {last}.outcome_after_ns, {last}.in_router_ns) is not null"""
    )
    timed = timed.withColumns(
        {
            "final": F.expr("path[size(path) - 1]"),
            # A delivery that did not leave its last router ended there.
            "stays": F.expr("transform(hops, hop -> coalesce(hop.in_router_ns, hop.outcome_after_ns))"),
            # The outcome came back all the way; otherwise a router has given it itself.
            "answered": F.expr(
                """outcome <> 'none' and forall(hops, hop -> hop.outcome_after_ns is not null)
                and (egress is null or forall(hops, hop -> hop.outcome = outcome))"""
            ),
        }
    )
    by_address = ("day", "address", "tenant")
    nowhere = "cast(null as string) as to_router"
    stays = f"""concat(
        transform(hops, (hop, i) -> struct('router' as part, hop.router as from_router, {nowhere}, stays[i] as ns)),
        if(answered and egress is not null, array(struct('receiver' as part, final as from_router, {nowhere},
            {last}.outcome_after_ns - {last}.in_router_ns as ns)), array()),
        if(not answered and outcome_after_ns is not null, array(struct('lost' as part, final as from_router, {nowhere},
            outcome_after_ns - ({last}.arrived_ns + element_at(stays, -1) - hops[0].arrived_ns) as ns)), array()))"""
    at_routers = timed.select(*by_address, F.inline(F.expr(stays)), F.lit(True).alias("counts"))
    shown = timed.withColumn("step", F.explode(F.expr(STEPS))).select(
        *by_address,
        "step",
        "answered",
        "final",
        "outcome_after_ns",
        *map(F.expr, clocks_of("step.here.router", "step.there.router")),
    )
    # The time on a link was measured by two clocks: it is corrected by their offset, not measured again.
    there = "step.here.router as from_router, step.there.router as to_router"
    moves = f"""filter(array(
        struct('link' as part, {there}, {_LATER} - step.here.in_router_ns - shift as ns, true as counts),
        struct('return' as part, {there}, if(answered,
            step.here.outcome_after_ns - step.there.outcome_after_ns - ({_LATER}) + shift, null) as ns, true as counts),
        struct('lost' as part, final as from_router, {nowhere},
            if(not answered and outcome_after_ns is not null, shift, null) as ns, false as counts)),
        move -> move.ns is not null)"""
    between = shown.withColumn("shift", F.expr(f"coalesce({SHIFT}, 0L)")).select(*by_address, F.inline(F.expr(moves)))
    found = (
        at_routers.unionByName(between)
        .groupBy(*by_address, "part", "from_router", "to_router")
        .agg(
            F.count_if("counts").alias("deliveries"),
            F.try_sum("ns").alias("total_ns"),
            F.sum(F.col("ns").cast("double")).alias("about"),
        )
    )
    whole = F.sum("about").over(Window.partitionBy(*by_address))
    found = found.withColumn("whole", whole).withColumn("share", F.expr("try_divide(about, whole)"))
    return _in_column_order(found, "shares")
