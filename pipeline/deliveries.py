"""Deliveries from joined hop records: a row for each attempt, with its path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpmesh.pipeline.events import TABLES, Column, Problem, arrow_schema, spark_schema, table
from amqpmesh.pipeline.files import ordinary
from amqpmesh.pipeline.hop_order import Chains, chains
from amqpmesh.pipeline.hop_records import OUTCOMES
from amqpmesh.pipeline.increments import Segment, converted, increment
from amqpmesh.pipeline.jobs import JOBS
from amqpmesh.pipeline.pruning import pruned
from amqpmesh.pipeline.published import WHOLE, Parts, hour_name
from amqpmesh.pipeline.work import Done, Table, Work

if TYPE_CHECKING:
    from pyspark.sql import Column as ColumnOf
    from pyspark.sql import DataFrame

SLACK: Final = timedelta(hours=1)
"""The longest delivery whose records are all found although the job is limited to a time."""

CHUNK: Final = 1 << 16
"""Hop records that are ordered at a time."""

_HOP: Final = pa.struct(
    [
        pa.field("router", pa.string()),
        pa.field("arrived_ns", pa.int64()),
        pa.field("in_router_ns", pa.int64()),
        pa.field("outcome_after_ns", pa.int64()),
        pa.field("outcome", pa.string()),
    ]
)

ATTEMPTS: Final = (
    Column("key", pa.binary(), "the delivery key; each attempt has its own"),
    Column("first_key", pa.binary(), "the delivery key of the message's first attempt; null if unknown", "", True),
    Column("attempt", pa.int64(), "the number of the attempt, from 1; null if unknown", "", True),
    Column("address", pa.string(), "the address of the delivery", "", True),
    Column("tenant", pa.string(), "the tenant of the address; empty without tenants", "", True),
    Column(
        "ingress",
        pa.string(),
        "the router where it entered the mesh; null if that router's record is missing",
        "",
        True,
    ),
    Column("egress", pa.string(), "the router where it left the mesh; null if it did not leave, or unknown", "", True),
    Column("path", pa.list_(pa.string()), "the routers that recorded it, in the order of its path"),
    Column(
        "hops",
        pa.list_(_HOP),
        "for each router of `path`: arrival, time in the router, and time until the outcome passed (all in ns); and "
        "the outcome there",
    ),
    Column("sent_at", pa.timestamp("us", "UTC"), "when its first frame arrived at the first router of `path`"),
    Column(
        "latency_ns",
        pa.int64(),
        "the time from `sent_at` until it left `egress`, by the clocks of both routers; null if unknown",
        "ns",
        True,
    ),
    Column("outcome", pa.string(), "the outcome at `ingress`; null if unknown", "", True),
    Column("egress_outcome", pa.string(), "the outcome at `egress`; null if unknown", "", True),
    Column(
        "condition",
        pa.string(),
        "the error condition of a rejection; null if there is none",
        "",
        True,
    ),
    Column(
        "outcome_after_ns",
        pa.int64(),
        "the time from `sent_at` until the outcome passed `ingress`; null if no outcome passed, or unknown",
        "ns",
        True,
    ),
    Column("settled", pa.bool_(), "true if it was sent settled: it is delivered at most once"),
    Column("size", pa.int64(), "its payload at the first router of `path`", "octets"),
    Column("priority", pa.int64(), "the priority in the header; 4 without one"),
    Column("delivery_count", pa.int64(), "the delivery-count in the header: attempts that failed before"),
    Column("sender", pa.string(), "the container-id of the client that sent it; null if unknown", "", True),
    Column("sender_link", pa.string(), "the name of the link on which it entered the mesh; null if unknown", "", True),
    Column(
        "receiver",
        pa.string(),
        "the container-id of the client that received it; null if it did not leave the mesh, or unknown",
        "",
        True,
    ),
    Column(
        "receiver_link",
        pa.string(),
        "the name of the link on which it left the mesh; null if it did not leave, or unknown",
        "",
        True,
    ),
    Column("copy", pa.bool_(), "true if it went to a receiver of copies, whose outcome does not reach the sender"),
    Column("legs", pa.int64(), "the number of rows with this key: more than 1 for a multicast delivery"),
    Column("complete", pa.bool_(), "true if no record of a router on its path is missing"),
    Column("contradictions", pa.list_(pa.string()), "sentences on contradictions between its records; usually empty"),
)

CONTRADICTIONS: Final = (
    Column("key", pa.binary(), "the delivery key"),
    Column("ingress", pa.string(), "the router where the delivery entered the mesh", "", True),
    Column("address", pa.string(), "the address of the delivery", "", True),
    Column("sent_at", pa.timestamp("us", "UTC"), "when it arrived at the first router that recorded it"),
    Column("problem", pa.string(), f"`{Problem.CONTRADICTION}`"),
    Column("sentence", pa.string(), "the contradiction in words"),
)
DYNAMIC: Final = "$dynamic"
"""Stands for all addresses of dynamic nodes (§3.5.3), which begin with it: there is one for each request."""

MANAGEMENT: Final = "$management"
"""The address of a router's management node, which `amqpmesh status` and other tools query."""

HOUR: Final = 3_600_000_000_000
"""Nanoseconds of an hour, which is a part of each table."""

_ATTEMPTS: Final = "deliveries/attempts"
_QUARANTINE: Final = "deliveries/quarantine"

_SCHEMA: Final = arrow_schema(ATTEMPTS)

_WHOLE: Final = (
    "time", "incoming_peer", "outgoing_peer", "size", "in_router", "outcome_after", "address", "tenant", "condition"
)  # fmt: skip

_BITS: Final = {
    "outcome": 4, "copy": 1, "settled": 1, "to_router": 1, "from_router": 1, "delivery_count": 16, "attempt": 16,
    "priority": 8, "hops_left": 8, "began": 1,
}  # fmt: skip
"""The bits of each value in the packed number, from the lowest on."""

_SHIFTS: Final = dict(zip(_BITS, accumulate(_BITS.values(), initial=0), strict=False))


def deliveries(hops: DataFrame) -> DataFrame:
    """Make the table `deliveries/attempts` (`ATTEMPTS`).

    There is one row for each path of a delivery to a receiver, or to its end: one for most, several (`legs`) for a
    multicast.
    Missing records remove no row: it is not `complete` then, and values of the missing record are null.

    Args: hops: the table `hops`, or some of its rows.
    """
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

    began, leaves_mesh = F.col("began"), ~F.coalesce("to_router", F.lit(False))
    needed = hops.select(
        F.xxhash64("key").alias("spread"),  # the first octets of keys are alike, and would be a bad order
        "key",
        _packed().alias("packed"),
        "router",
        F.xxhash64("outgoing_peer", "outgoing_link").alias("leaving"),  # several clients may use the same link name
        *_WHOLE,
        F.when(F.col("first_key") != F.col("key"), F.col("first_key")).alias("first_key"),
        F.when(began, F.col("incoming_link")).alias("incoming_link"),
        F.when(leaves_mesh, F.col("outgoing_link")).alias("outgoing_link"),
    )
    level = F.shiftright("packed", _SHIFTS["hops_left"])
    ordered = needed.repartition("spread").sortWithinPartitions(
        "spread", "key", F.desc(level), "router", "leaving", "time"
    )
    return ordered.mapInArrow(_join, spark_schema(ATTEMPTS))


def _packed() -> ColumnOf:
    """Return columns of few bits as one number: the cost of a shuffle grows with the number of columns."""
    from pyspark.sql import functions as F  # noqa: N812

    outcome: ColumnOf = F.lit(0)
    for place, known in enumerate(OUTCOMES, start=1):
        outcome = F.when(F.col("outcome") == known, place).otherwise(outcome)
    packed = F.lit(0).cast("bigint")
    for name, bits in _BITS.items():
        number = outcome if name == "outcome" else F.coalesce(F.col(name).cast("bigint"), F.lit(0))
        within = F.greatest(F.lit(0), F.least(number, F.lit((1 << bits) - 1)))
        packed = packed.bitwiseOR(F.shiftleft(within.cast("bigint"), _SHIFTS[name]))
    return packed


def contradictions(attempts: DataFrame) -> DataFrame:
    """Make the table `deliveries/quarantine` (`CONTRADICTIONS`). Args: attempts: the table `deliveries/attempts`."""
    from pyspark.sql import functions as F  # noqa: N812

    some = attempts.where(F.size("contradictions") > 0)
    sentences = some.select("key", "ingress", "address", "sent_at", F.explode("contradictions").alias("sentence"))
    problem = F.lit(str(Problem.CONTRADICTION)).alias("problem")
    # Each leg of a multicast delivery has the contradictions of all its key's records.
    return (
        sentences.groupBy("key", "sentence")
        .agg(F.min("ingress").alias("ingress"), F.min("address").alias("address"), F.min("sent_at").alias("sent_at"))
        .select("key", "ingress", "address", "sent_at", problem, "sentence")
    )


def between(rows: DataFrame, since: datetime | None, until: datetime | None) -> DataFrame:
    """Return the rows of a table of `ingest` that were recorded at `since` or later, and before `until`."""
    from pyspark.sql import functions as F  # noqa: N812

    if since is not None:
        rows = rows.where(F.col("time") >= ns(since))
    if until is not None:
        rows = rows.where(F.col("time") < ns(until))
    return rows


def ns(moment: datetime) -> int:
    """Return nanoseconds since 1970."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000


def job(work: Work) -> Done:
    """Run the job: for a limited time all of it, else only the hours that new segments change."""
    from pyspark.sql import functions as F  # noqa: N812

    if work.since is None and work.until is None:
        return _hourly(work)
    since, until = work.since and work.since - SLACK, work.until and work.until + SLACK
    hops = between(table(work.spark, work.place("ingest"), "hops"), since, until)
    attempts = deliveries(hops)
    if work.since is not None:
        attempts = attempts.where(F.col("sent_at") >= F.lit(work.since))
    if work.until is not None:
        attempts = attempts.where(F.col("sent_at") < F.lit(work.until))
    work.write(_ATTEMPTS, attempts)
    work.write(_QUARANTINE, contradictions(work.read(_ATTEMPTS)))
    return _done(_counted(work.read(_ATTEMPTS), work.read(_QUARANTINE)), {})


def _hourly(work: Work) -> Done:
    """Make the rows of deliveries with records in new segments, in the hours that these change."""
    before = work.before("deliveries")
    ingested = ordinary(work.place("ingest"))
    least = pruned(ingested).hour
    version = JOBS["deliveries"].version
    step = increment(converted(str(ingested)), before.state if before is not None else {}, version)
    old = before.tables if before is not None and not step.is_whole else {}
    counted = dict(before.state["hours"]) if before is not None and old else {}
    hops = _hops(work, step.new)
    keys = hops.select("key").distinct()
    if old:
        hops = hops.unionByName(_hops(work, step.again).join(keys, "key", "left_semi"))
        # Each row begins with one of these records, and each row of before did.
        numbers = hops.selectExpr(f"time div {HOUR}").distinct().collect()
        touched = {hour_name(row[0]) for row in numbers if row[0] >= least}
    else:
        touched = set()
    reread = sum(sum(counted.pop(each)["outcomes"].values()) for each in touched if each in counted)
    if touched or not old:
        rows = deliveries(hops).where(f"unix_micros(sent_at) div {HOUR // 1000} >= {least}")
        _write(work, _ATTEMPTS, rows, old, touched, keys)
        written = work.read(_ATTEMPTS, touched or None)
        concerned = written.join(keys, "key", "left_semi") if old else written
        _write(work, _QUARANTINE, contradictions(concerned), old, touched, keys)
        counted.update(_counted(written, work.read(_QUARANTINE, touched or None)))
    else:
        work.written.update({name: dict(parts) for name, parts in old.items()})
    figures = {
        "records read": step.hops,
        "deliveries read": reread,
        "hours written": len(touched) if old else len(counted),
    }
    return _done(counted, figures, {**step.state, "hours": counted})


def _hops(work: Work, segments: Sequence[Segment]) -> DataFrame:
    """Return the hop records of some segments."""
    schema = spark_schema(TABLES["hops"])
    files = [each.path for each in segments if each.path is not None]
    if not files:
        return work.spark.createDataFrame([], schema)
    return work.spark.read.schema(schema).parquet(*files)


def _write(
    work: Work, name: str, rows: DataFrame, old: Mapping[str, Parts], touched: Set[str], keys: DataFrame
) -> None:
    """Write new rows with those of other deliveries in the same hours. Args: keys: of all deliveries made anew."""
    parts = old.get(name, {})
    again = [work.place(parts[each]) for each in touched if each in parts]
    if again:
        rows = rows.unionByName(work.spark.read.parquet(*again).join(keys, "key", "left_anti"))
    kept = {each: place for each, place in parts.items() if each not in touched and each != WHOLE}
    work.write_hours(name, rows.selectExpr("*", f"unix_micros(sent_at) div {HOUR // 1000} as hour"), kept)


def _counted(attempts: DataFrame, quarantine: DataFrame) -> dict[str, Any]:
    """Count the rows of each hour."""
    from pyspark.sql import functions as F  # noqa: N812

    hour = F.expr(f"unix_micros(sent_at) div {HOUR // 1000}").alias("hour")
    counted: dict[str, Any] = {}
    told = attempts.groupBy(hour, "outcome").agg(F.count("*"), F.count_if(~F.col("complete"))).collect()
    for number, outcome, rows, incomplete in told:
        each = counted.setdefault(hour_name(number), {"outcomes": {}, "incomplete": 0, "contradictions": 0})
        each["outcomes"][outcome or "unknown"] = rows
        each["incomplete"] += incomplete
    for number, rows in quarantine.groupBy(hour).agg(F.count("*")).collect():
        counted[hour_name(number)]["contradictions"] = rows
    return counted


def _done(counted: Mapping[str, Any], figures: Mapping[str, int], state: Mapping[str, Any] | None = None) -> Done:
    outcomes: Counter[str] = Counter()
    for each in counted.values():
        outcomes.update(each["outcomes"])
    rows = outcomes.total()
    found = {
        "deliveries": rows,
        "incomplete": sum(each["incomplete"] for each in counted.values()),
        "contradictions": sum(each["contradictions"] for each in counted.values()),
    }
    shown = Table("outcomes", ("outcome", "deliveries"), tuple(outcomes.most_common()))
    return Done(rows, {**found, **figures}, (shown,), state or {})


# -------------------------------------------------------------------------------------------------------- on executors


def _join(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert ordered hop records into rows."""
    for records in _whole_keys(batches):
        yield from attempt_rows(chains(_unpacked(records))).to_batches()


def _unpacked(records: pa.Table) -> pa.Table:
    """Unpack the packed columns."""
    packed = np.asarray(records.column("packed"))
    numbers = {name: packed >> _SHIFTS[name] & (1 << bits) - 1 for name, bits in _BITS.items()}
    outcome = pa.DictionaryArray.from_arrays(
        pa.array(numbers["outcome"] - 1, mask=numbers["outcome"] == 0), pa.array(OUTCOMES, pa.string())
    )
    records = records.drop_columns(["spread", "packed"]).append_column("outcome", outcome.cast(pa.string()))
    for name, values in numbers.items():
        if name != "outcome":
            array = pa.array(values.astype(bool) if _BITS[name] == 1 else values)
            records = records.append_column(name, array)
    return records


def _whole_keys(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield tables of some size, each with all records of its keys."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.num_rows
        if size < CHUNK:
            continue
        together = pa.Table.from_batches(waiting).combine_chunks()
        keys = together.column("key")
        last = together.num_rows - 1
        while last and keys[last - 1] == keys[together.num_rows - 1]:
            last -= 1
        if last:
            yield together.slice(0, last)
        waiting = together.slice(last).to_batches()
        size = together.num_rows - last
    if size:
        yield pa.Table.from_batches(waiting).combine_chunks()


def attempt_rows(found: Chains) -> pa.Table:
    """Return the rows of `ATTEMPTS` for chains."""
    records, first, last = found.table, found.first, found.last

    def at_first(name: str) -> pa.ChunkedArray:
        return records.column(name).take(pa.array(first))

    def at_last(name: str) -> pa.ChunkedArray:
        return records.column(name).take(pa.array(last))

    begins = at_first("began")
    # It was sent to a peer that is not a router.
    ends = pc.and_(pc.is_valid(at_last("outgoing_peer")), pc.invert(pc.fill_null(at_last("to_router"), False)))
    on_the_way = pa.array(found.places)
    offsets = pa.array(found.offsets)
    routers = records.column("router").take(on_the_way).combine_chunks()
    stays = [
        records.column(name).take(on_the_way).combine_chunks()
        for name in ("time", "in_router", "outcome_after", "outcome")
    ]
    nothing = pa.scalar(None)
    began, left = at_first("time"), pc.add(at_last("time"), at_last("in_router"))
    both = pc.and_(begins, ends)
    columns = {
        "key": at_first("key"),
        "first_key": pc.if_else(begins, pc.coalesce(at_first("first_key"), at_first("key")), nothing),
        "attempt": pc.if_else(begins, at_first("attempt"), nothing),
        "address": pc.coalesce(at_first("address"), at_last("address")),
        "tenant": pc.coalesce(at_first("tenant"), at_last("tenant")),
        "ingress": pc.if_else(begins, at_first("router"), nothing),
        "egress": pc.if_else(ends, at_last("router"), nothing),
        "path": pa.ListArray.from_arrays(offsets, routers),
        "hops": pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([routers, *stays], fields=list(_HOP))),
        "sent_at": pa.array(np.asarray(began) // 1_000).cast(pa.timestamp("us", "UTC")),
        "latency_ns": pc.if_else(both, pc.subtract(left, began), nothing),
        "outcome": pc.if_else(begins, at_first("outcome"), nothing),
        "egress_outcome": pc.if_else(ends, at_last("outcome"), nothing),
        "condition": pc.coalesce(at_last("condition"), at_first("condition")),
        "outcome_after_ns": pc.if_else(begins, at_first("outcome_after"), nothing),
        "settled": at_first("settled"),
        "size": at_first("size"),
        "priority": at_first("priority"),
        "delivery_count": at_first("delivery_count"),
        "sender": pc.if_else(begins, at_first("incoming_peer"), nothing),
        "sender_link": pc.if_else(begins, at_first("incoming_link"), nothing),
        "receiver": pc.if_else(ends, at_last("outgoing_peer"), nothing),
        "receiver_link": pc.if_else(ends, at_last("outgoing_link"), nothing),
        "copy": at_last("copy"),
        "legs": pa.array(found.legs.astype(np.int64)),
        "complete": pa.array(found.complete),
        "contradictions": found.contradictions,
    }
    return pa.table([columns[each.name] for each in _SCHEMA], schema=_SCHEMA)


def with_grouped_addresses(rows: DataFrame) -> DataFrame:
    """Replace the addresses of all dynamic nodes by `DYNAMIC`, and those of the routers' own answers by `MANAGEMENT`.

    A router is both `sender` and `ingress` of its own answers.
    """
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

    shown = F.when(F.col("address").startswith(f"{DYNAMIC}/"), DYNAMIC).otherwise(F.col("address"))
    if {"sender", "ingress"} <= {*rows.columns}:
        shown = F.when(F.col("sender") == F.col("ingress"), MANAGEMENT).otherwise(shown)
    return rows.withColumn("address", shown)


def without_management(rows: DataFrame) -> DataFrame:
    """Return the rows without those of management traffic.

    Args: rows: what `with_grouped_addresses` returned, or a table made from it.
    """
    from pyspark.sql import functions as F  # noqa: N812

    return rows.where(~F.coalesce(F.col("address").startswith(MANAGEMENT), F.lit(False)))
