"""Times of the deliveries of each hour, in classes, and sums of their parts, from which the tables of days are made.

Those of several hours add up to those of all, in whatever order. So an hour that changes is made alone, and a day is
made from its hours, without a look at their deliveries.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from amqpmesh.pipeline.clocks import ERROR, PASSED, SHIFT, STEPS, clocks_of
from amqpmesh.pipeline.deliveries import with_grouped_addresses
from amqpmesh.pipeline.events import Column

CLASSES: Final = 256
"""Classes of times between one and 2.72 times that: those of a class differ by at most 0.4 %."""

_HOUR: Final = Column("hour_start", pa.timestamp("us", "UTC"), "when the hour begins in which the deliveries were sent")
_ADDRESS: Final = Column("address", pa.string(), "the address of the deliveries", "", True)
_TENANT: Final = Column("tenant", pa.string(), "the tenant of the address; empty without tenants", "", True)
_FROM: Final = Column("from_router", pa.string(), "the router; of a link, the one that sends", "", True)
_TO: Final = Column("to_router", pa.string(), "of a link, the router that receives", "", True)

TIMES: Final = (
    _HOUR,
    Column("of", pa.string(), "the table with these times: `addresses`, `hops` or `links`"),
    Column("measure", pa.string(), "the prefix of that table's columns, such as `outcome_`; empty for those without"),
    _ADDRESS,
    _TENANT,
    _FROM,
    _TO,
    Column("receiver", pa.string(), "of a link to a client, its container-id", "", True),
    Column("link", pa.string(), "of a link to a client, its name", "", True),
    Column("least_ns", pa.int64(), "the least time of this class; null if the times are unknown", "ns", True),
    Column("most_ns", pa.int64(), "the greatest time of this class; null if the times are unknown", "ns", True),
    Column("deliveries", pa.int64(), "deliveries in this class"),
    Column("unknown", pa.int64(), "of these, deliveries between clocks that could not be compared"),
    Column("error_ns", pa.int64(), "the largest error of the others because of the clocks", "ns", True),
)

PARTS: Final = (
    _HOUR,
    _ADDRESS,
    _TENANT,
    Column("part", pa.string(), "the part, as in `shares`"),
    _FROM,
    _TO,
    Column("deliveries", pa.int64(), "deliveries with this part"),
    Column("high", pa.int64(), "the sum of the high halves of their times, in units of 2^32 ns, rounded down"),
    Column("low_ns", pa.int64(), "the sum of what is left of their times", "ns"),
)

LATER: Final = "step.there.arrived_ns - step.here.arrived_ns"
_START: Final = "timestamp_seconds(hour * 3600)"
_KEYS: Final = tuple(each.name for each in TIMES[3:9])


def class_of(value: str) -> str:
    """Return an expression for the class of a time. Args: value: ns; of null, the class is null."""
    # Java's strict logarithm: the same on each machine, and never less for a greater time.
    size = f"1 + floor(ln(abs(cast({value} as double))) * {CLASSES})"
    return f"case when {value} = 0 then 0L else cast(sign({value}) as bigint) * ({size}) end"


def times(attempts: DataFrame) -> DataFrame:
    """Make the table `latency/times`. Args: attempts: as `corrected` returns them."""
    parts = (_of_addresses(attempts), _of_hops(attempts), _of_lanes(attempts), _of_links_to_clients(attempts))
    rows = reduce(DataFrame.unionByName, parts)
    classes = rows.groupBy("hour", "of", "measure", *_KEYS, F.expr(class_of("ns")).alias("class")).agg(
        F.min("ns").alias("least_ns"),
        F.max("ns").alias("most_ns"),
        F.count("*").alias("deliveries"),
        F.count_if(F.isnull("error")).alias("unknown"),
        F.max("error").alias("error_ns"),
    )
    return classes.withColumn("hour_start", F.expr(_START)).select([each.name for each in TIMES])


def _measured(rows: DataFrame, of: str, **measures: tuple[str, str]) -> DataFrame:
    """Return a row for each time that is known, and for each first one.

    Args: measures: for each prefix of columns, `first` for none, the time and the error of clocks, null if unknown.
    """
    told = [
        f"struct('{name.removeprefix('first')}' as measure, bigint({ns}) as ns, bigint({error}) as error)"
        for name, (ns, error) in measures.items()
    ]
    known = f"filter(array({', '.join(told)}), each -> each.ns is not null or each.measure = '')"
    keys = (F.col(name) if name in rows.columns else F.lit(None).cast("string").alias(name) for name in _KEYS)
    return rows.select("hour", F.lit(of).alias("of"), *keys, F.inline(F.expr(known)))


def _of_addresses(attempts: DataFrame) -> DataFrame:
    shown = (
        with_grouped_addresses(attempts)
        .where("latency_ns is not null")
        .selectExpr("hour", "address", "tenant", "latency_ns", "outcome_after_ns", *clocks_of("ingress", "egress"))
    )
    return _measured(
        shown, "addresses", first=(f"latency_ns - coalesce({SHIFT}, 0L)", ERROR), outcome_=("outcome_after_ns", "0")
    )


def _of_hops(attempts: DataFrame) -> DataFrame:
    at = attempts.select("hour", F.explode("hops").alias("hop")).where("hop.in_router_ns is not null")
    shown = at.selectExpr("hour", "hop.router as from_router", "hop")
    waited = "hop.outcome_after_ns - hop.in_router_ns"
    return _measured(shown, "hops", first=("hop.in_router_ns", "0"), outcome_=(waited, "0"))


def _of_lanes(attempts: DataFrame) -> DataFrame:
    """Return the times over the links between routers that complete deliveries passed."""
    whole = attempts.where("complete and size(hops) > 1").withColumn("step", F.explode(F.expr(STEPS)))
    shown = whole.where("step.here.in_router_ns is not null").selectExpr(
        "hour",
        "step",
        "outcome",
        "step.here.router as from_router",
        "step.there.router as to_router",
        *clocks_of("step.here.router", "step.there.router"),
    )
    back = f"if({PASSED}, step.here.outcome_after_ns - step.here.in_router_ns - step.there.outcome_after_ns, null)"
    there = f"{LATER} - step.here.in_router_ns - coalesce({SHIFT}, 0L)"
    return _measured(shown, "links", first=(there, ERROR), round_trip_=(back, "0"))


def _of_links_to_clients(attempts: DataFrame) -> DataFrame:
    """Return the times over links to clients: there is only a clock at their beginning."""
    last = attempts.where("egress is not null").selectExpr(
        "hour",
        "egress as from_router",
        "receiver",
        "receiver_link as link",
        "element_at(hops, -1).outcome_after_ns - element_at(hops, -1).in_router_ns as back",
    )
    return _measured(last, "links", first=("null", "0"), round_trip_=("back", "0"))


def parts(attempts: DataFrame) -> DataFrame:
    """Make the table `latency/parts`, of complete deliveries.

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
    by_address = ("hour", "address", "tenant")
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
        struct('link' as part, {there}, {LATER} - step.here.in_router_ns - shift as ns, true as counts),
        struct('return' as part, {there}, if(answered,
            step.here.outcome_after_ns - step.there.outcome_after_ns - ({LATER}) + shift, null) as ns, true as counts),
        struct('lost' as part, final as from_router, {nowhere},
            if(not answered and outcome_after_ns is not null, shift, null) as ns, false as counts)),
        move -> move.ns is not null)"""
    between = shown.withColumn("shift", F.expr(f"coalesce({SHIFT}, 0L)")).select(*by_address, F.inline(F.expr(moves)))
    halves = F.sum(F.shiftright("ns", 32)).alias("high"), F.sum(F.expr("ns & 4294967295")).alias("low_ns")
    found = (
        at_routers.unionByName(between)
        .groupBy(*by_address, "part", "from_router", "to_router")
        .agg(F.count_if("counts").alias("deliveries"), *halves)
    )
    return found.withColumn("hour_start", F.expr(_START)).select([each.name for each in PARTS])
