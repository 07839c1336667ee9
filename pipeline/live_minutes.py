"""Deliveries of the latest minutes, from hop records as they come: in any order, and from several routers. No Spark.

The records of open minutes are kept. New ones change what their deliveries add to the sums of minutes: it is taken
away, and added as it is now. So sums are always those of all records so far, and each batch costs as much as it
touches. A *minute* is named by its number since 1970. It is closed when the latest time that was seen is a delay later
than its end; its records are dropped then, and those that come later are counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpmesh.pipeline.deliveries import DYNAMIC, MANAGEMENT, attempt_rows
from amqpmesh.pipeline.hop_order import Chains, Numbers, chains
from amqpmesh.pipeline.losses import Loss

MINUTE: Final = 60_000_000_000
"""Nanoseconds of a minute."""

MOST: Final = 2_000_000
"""Hop records of open minutes at most: with more, the oldest minutes are closed early. Some 400 MB."""

AHEAD: Final = 60_000_000_000
"""Nanoseconds that a record may be ahead of the clock of this machine. Others are counted, and not used: they would
close the present minutes.
"""

STEPS: Final = 64
"""Classes of latencies between one value and twice that: a percentile is wrong by at most 0.6 %."""

INCOMPLETE: Final = "incomplete"
"""In place of a kind of loss: records of the delivery were missing when its minute was closed."""

SCHEMA: Final = pa.schema(
    [
        ("time", pa.int64()), ("key", pa.binary()), ("first_key", pa.binary()), ("hops_left", pa.int64()),
        ("began", pa.bool_()), ("attempt", pa.int64()), ("address", pa.string()), ("tenant", pa.string()),
        ("incoming_link", pa.string()), ("incoming_peer", pa.string()), ("from_router", pa.bool_()),
        ("outgoing_link", pa.string()), ("outgoing_peer", pa.string()), ("to_router", pa.bool_()),
        ("outcome", pa.string()), ("condition", pa.string()), ("settled", pa.bool_()), ("copy", pa.bool_()),
        ("size", pa.int64()), ("in_router", pa.int64()), ("outcome_after", pa.int64()), ("priority", pa.int64()),
        ("delivery_count", pa.int64()), ("router", pa.string()), ("weight", pa.float64()),
    ]
)  # fmt: skip
"""The columns of hop records here: those of `ingest`, and the number of records that each stands for."""

Sums = dict[tuple[Any, ...], tuple[float, ...]]
"""The sums over deliveries of a minute, by the name of a table and what identifies its row."""

_ENDED: Final = (Loss.REJECTED, Loss.UNDELIVERED, Loss.EXPIRED, Loss.MODIFIED, Loss.RELEASED, Loss.ABORTED)


def hop_records(batch: pa.RecordBatch, weight: float) -> pa.Table:
    """Return hop records in the columns of `SCHEMA`. Args: batch: as `segments.convert` yields it."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["weight"] = pa.array(np.full(batch.num_rows, weight))
    return pa.table([columns[each.name].cast(each.type) for each in SCHEMA], schema=SCHEMA)


@dataclass
class Minutes:
    """The open minutes.

    Args: delay: nanoseconds from the end of a minute until it is closed, by the times in records. boundary: everything
        before it, in ns since 1970, is closed. seen: the latest time of a record. counts: what was not used, by reason.
    """

    delay: int
    boundary: int = 0
    seen: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    most: int = MOST
    pending: pa.Table = field(default_factory=SCHEMA.empty_table)
    sums: dict[int, Sums] = field(default_factory=dict)
    #: The latest attempt of messages that were tried again, by the key of the first.
    _latest: dict[bytes, int] = field(default_factory=dict)

    def take(self, records: pa.Table, now: int) -> pa.Table:
        """Add hop records. Args: now: ns since 1970. Returns: those that are used: not too late, nor ahead."""
        times = np.asarray(records.column("time"))
        late, ahead = times < self.boundary, times > now + AHEAD
        self.counts["late"] += int(late.sum())
        self.counts["ahead"] += int(ahead.sum())
        used = records.filter(pa.array(~late & ~ahead))
        if len(used):
            self.see(int(pc.max(used.column("time")).as_py()), now)
            self._add(used)
        return used

    def restore(self, records: pa.Table, seen: int) -> None:
        """Begin with records that were used before. Args: seen: the latest time then."""
        self.seen = seen
        self._add(records)

    def see(self, time: int, now: int) -> None:
        """Note the time of any record: it has no other effect than to close minutes. Args: both in ns since 1970.

        One that is ahead of this machine counts as of now: the clock of one router closes no minute of others early.
        """
        if time <= now + AHEAD:
            self.seen = max(self.seen, min(time, now))

    def close(self) -> Iterator[tuple[int, Sums]]:
        """Close the minutes that are over. Yields: the number of each that has sums, and these."""
        boundary = (self.seen - self.delay) // MINUTE * MINUTE
        if len(self.pending) > self.most:
            boundary = max(boundary, self._early())
        if boundary <= self.boundary:
            return
        self.boundary = boundary
        self._drop()
        for number in sorted(each for each in self.sums if each * MINUTE < boundary):
            yield number, self.sums.pop(number)

    # ------------------------------------------------------------------------------------------------------------------

    def _add(self, used: pa.Table) -> None:
        keys, families = pc.unique(used.column("key")), self._tried_again(used)
        touched = pc.is_in(self.pending.column("key"), keys)
        if families:
            again = self.pending.filter(pc.is_in(self.pending.column("first_key"), pa.array(families, pa.binary())))
            touched = pc.or_(touched, pc.is_in(self.pending.column("key"), again.column("key").combine_chunks()))
        before = self.pending.filter(touched)
        self._count(before, -1)
        self._latest.update(families)
        self._count(pa.concat_tables([before, used]), 1)
        self.pending = pa.concat_tables([self.pending, used]).combine_chunks()

    def _tried_again(self, used: pa.Table) -> dict[bytes, int]:
        """Return the messages that these records have a later attempt of than was known, and the number of that."""
        some = used.filter(pc.and_(used.column("began"), pc.greater(pc.fill_null(used.column("attempt"), 1), 1)))
        found: dict[bytes, int] = {}
        for key, attempt in zip(some["first_key"].to_pylist(), some["attempt"].to_pylist(), strict=True):
            if key is not None and attempt > max(self._latest.get(key, 1), found.get(key, 1)):
                found[key] = attempt
        return found

    def _count(self, records: pa.Table, sign: int) -> None:
        """Add or take away what the deliveries with these records add up to."""
        if not len(records):
            return
        for number, name, values in _sums(chains(ordered(records)), self._latest):
            if number * MINUTE < self.boundary:
                continue
            sums = self.sums.setdefault(number, {})
            now = tuple(a + sign * b for a, b in zip(sums.get(name, (0.0,) * len(values)), values, strict=True))
            if any(abs(each) > 1e-6 for each in now):
                sums[name] = now
            else:
                sums.pop(name, None)

    def _early(self) -> int:
        """Return the boundary that leaves few enough records."""
        times = np.sort(np.asarray(self.pending.column("time")))
        oldest = int(times[-self.most])
        self.counts["closed early"] += 1
        return (oldest // MINUTE + 1) * MINUTE

    def _drop(self) -> None:
        """Drop the records of deliveries that began in closed minutes."""
        old = pc.less(self.pending.column("time"), self.boundary)
        touched = pc.is_in(self.pending.column("key"), self.pending.column("key").filter(old).combine_chunks())
        some = self.pending.filter(touched)
        if not len(some):
            return
        found = chains(ordered(some))
        first = pc.greater_equal(found.table.column("time").take(pa.array(found.first)), self.boundary)
        kept = found.table.column("key").take(pa.array(found.first)).filter(first).combine_chunks()
        keep = pc.or_(pc.invert(touched), pc.is_in(self.pending.column("key"), kept))
        self.pending = self.pending.filter(keep).combine_chunks()
        if self._latest:
            there = pc.unique(self.pending.column("first_key")).to_pylist()
            self._latest = {each: self._latest[each] for each in there if each in self._latest}


def ordered(records: pa.Table) -> pa.Table:
    """Return hop records in the order and with the columns that `chains` wants."""
    key, peer, link = (_codes(records.column(name)) for name in ("key", "outgoing_peer", "outgoing_link"))
    leaving = peer * (int(link.max(initial=0)) + 1) + link
    names = records.column("router").combine_chunks().dictionary_encode()
    rank = np.argsort(np.argsort(np.array(names.dictionary.to_pylist(), dtype=object), kind="stable"), kind="stable")
    router = rank[np.asarray(names.indices)]
    began, left, time = (np.asarray(records.column(name)) for name in ("began", "hops_left", "time"))
    order = np.lexsort((time, leaving, router, -left, ~began, key))
    return records.append_column("leaving", pa.array(leaving)).take(pa.array(order)).combine_chunks()


def _codes(column: pa.ChunkedArray) -> Numbers:
    """Return a number for each value: 0 for null, equal ones for equal values."""
    indices = column.combine_chunks().dictionary_encode().indices
    return np.asarray(pc.fill_null(pc.add(indices.cast(pa.int64()), 1), 0))


def _sums(found: Chains, latest: Mapping[bytes, int]) -> Iterator[tuple[int, tuple[Any, ...], tuple[float, ...]]]:
    """Yield what deliveries add up to: minute, name, and values; the same name may come several times."""
    rows = _with_places(found)
    yield from _grouped(
        rows,
        ("traffic", "ingress", "egress", "address", "tenant", "scaled"),
        messages=rows["weight"],
        octets=pc.multiply(rows["weight"], rows["size"].cast(pa.float64())),
        records=_ones(rows),
    )
    timed = rows.filter(pc.is_valid(rows["latency_ns"]))
    yield from _grouped(timed, ("latency", "address", "tenant"), _ones(timed), pc.is_valid(timed["outcome_after_ns"]))
    yield from _classes(timed, "outcomes", timed["outcome_after_ns"])
    told = rows.filter(
        pc.invert(
            pc.or_(pc.fill_null(rows["copy"], False), pc.fill_null(pc.starts_with(rows["address"], MANAGEMENT), False))
        )
    )
    ended = pc.and_(pc.invert(told["settled"]), pc.is_valid(told["outcome"]))
    failed = pc.and_(ended, pc.fill_null(pc.not_equal(told["outcome"], "accepted"), False))
    yield from _grouped(told, ("series", "address", "tenant"), told["part"], ended, failed)
    yield from _classes(told, "took", pc.coalesce(told["outcome_after_ns"], told["latency_ns"]))
    yield from _losses(rows, latest)


def _with_places(found: Chains) -> pa.Table:
    """Return rows of attempts with what is counted by: minute, grouped address, weight, and the end of the path."""
    first, last = found.table.take(pa.array(found.first)), found.table.take(pa.array(found.last))
    rows = attempt_rows(found)
    address = rows["address"]
    dynamic = pc.fill_null(pc.starts_with(address, f"{DYNAMIC}/"), False)
    address = pc.if_else(dynamic, DYNAMIC, address)
    own = pc.fill_null(pc.equal(rows["sender"], rows["ingress"]), False)
    address = pc.if_else(own, MANAGEMENT, address)
    weight = pc.if_else(pc.is_valid(rows["ingress"]), first["weight"], 1.0)
    places = found.offsets[1:] - found.offsets[:-1]
    chain = np.repeat(np.arange(len(places)), places)
    passed = found.table["router"].combine_chunks().dictionary_encode().indices.to_numpy()[found.places]
    loops = np.zeros(len(places), bool)
    size = int(passed.max(initial=0)) + 1
    pairs, times = np.unique(chain * size + passed, return_counts=True)
    loops[pairs[times > 1] // size] = True
    added = {
        "minute": pa.array(np.asarray(first["time"]) // MINUTE),
        "weight": weight,
        "scaled": pc.greater(weight, 1.0),
        "part": pc.divide(1.0, rows["legs"].cast(pa.float64())),
        "ended": last["outcome"],
        "last": last["router"],
        "beginning": first["router"],
        "loops": pa.array(loops),
    }
    rows = rows.drop_columns(["path", "hops", "contradictions"])
    rows = rows.set_column(rows.schema.get_field_index("address"), "address", address)
    for name, values in added.items():
        rows = rows.append_column(name, values)
    return rows


def _ones(rows: pa.Table) -> pa.Array:
    return pa.array(np.ones(len(rows)))


def _grouped(
    rows: pa.Table, names: tuple[str, ...], *values: Any, **more: Any
) -> Iterator[tuple[int, tuple[Any, ...], tuple[float, ...]]]:
    """Yield sums of values. Args: names: of the sums, then those of columns that identify one."""
    table, *by = names
    columns = {name: rows[name] for name in ("minute", *by)}
    for place, each in enumerate((*values, *more.values())):
        columns[f"value {place}"] = pc.fill_null(each.cast(pa.float64()), 0.0)
    found = (
        pa.table(columns)
        .group_by(["minute", *by])
        .aggregate([(name, "sum") for name in columns if name.startswith("value ")])
    )
    summed = [found[name].to_pylist() for name in found.column_names if name.endswith("_sum")]
    identity = [found[name].to_pylist() for name in by]
    for place, minute in enumerate(found["minute"].to_pylist()):
        name = (table, *(each[place] for each in identity))
        yield minute, name, tuple(each[place] for each in summed)


def _classes(rows: pa.Table, name: str, times: Any) -> Iterator[tuple[int, tuple[Any, ...], tuple[float, ...]]]:
    """Yield numbers of latencies by class."""
    some = rows.append_column("time", times)
    some = some.filter(pc.is_valid(some["time"]))
    yield from _grouped(
        some.append_column("class", pa.array(class_of(np.asarray(some["time"])))),
        (name, "address", "tenant", "class"),
        _ones(some),
    )


def class_of(times: Numbers) -> Numbers:
    """Return the class of each latency. Args: times: ns; one below 1 counts as 1."""
    classes: Numbers = np.floor(np.log2(np.maximum(times, 1)) * STEPS).astype(np.int64)
    return classes


def percentile(classes: Mapping[int, float], share: float) -> int | None:
    """Return a percentile in ns, by the nearest rank, in the middle of its class; None: there is no latency."""
    total = round(sum(classes.values()))
    rank, found = max(1, int(np.ceil(total * share))), 0
    for each in sorted(classes):
        found += round(classes[each])
        if found >= rank:
            return round(2 ** ((each + 0.5) / STEPS))
    return None


def _losses(rows: pa.Table, latest: Mapping[bytes, int]) -> Iterator[tuple[int, tuple[Any, ...], tuple[float, ...]]]:
    """Yield deliveries that went wrong, as `losses` counts them."""
    nothing = pa.nulls(len(rows), pa.string())
    whole = pc.is_valid(rows["ingress"])
    counted = pc.invert(pc.fill_null(rows["copy"], False))
    settled, ended = rows["settled"], pc.fill_null(rows["ended"], "none")
    outcome = pc.fill_null(rows["outcome"], "none")
    known = pc.and_(whole, counted)
    kinds = {
        Loss.UNANSWERED: pc.and_(known, pc.and_(pc.invert(settled), pc.equal(rows["outcome"], "none"))),
        Loss.DROPPED: pc.and_(
            known,
            pc.and_(settled, pc.invert(pc.is_in(ended, pa.array(["none", "accepted", "aborted"])))),
        ),
        Loss.LOOP: pc.and_(known, rows["loops"]),
    }
    for kind, condition in kinds.items():
        yield from _found(rows, str(kind), condition, rows["ingress"], nothing, nothing)
    by_receiver = pc.and_(pc.is_valid(rows["egress"]), pc.is_in(ended, pa.array(["rejected", "released", "modified"])))
    heard = pc.if_else(pc.is_in(ended, pa.array(["none", "accepted"])), outcome, ended)
    failed = pc.and_(pc.and_(counted, pc.invert(settled)), pc.is_in(heard, pa.array([str(each) for each in _ENDED])))
    failed = pc.and_(failed, pc.or_(by_receiver, whole))
    if latest:
        keys, attempts = rows["first_key"].to_pylist(), rows["attempt"].to_pylist()
        last = [
            key is None or number is None or number >= latest.get(key, 0)
            for key, number in zip(keys, attempts, strict=True)
        ]
        failed = pc.and_(failed, pa.array(last, pa.bool_()))
    router = pc.if_else(by_receiver, rows["egress"], rows["ingress"])
    receiver = pc.if_else(by_receiver, rows["receiver"], nothing)
    for each in _ENDED:
        condition = pc.and_(failed, pc.equal(heard, str(each)))
        yield from _found(rows, str(each), condition, router, receiver, rows["condition"], is_of_leg=by_receiver)
    place = pc.if_else(whole, rows["last"], rows["beginning"])
    yield from _found(rows, INCOMPLETE, pc.invert(rows["complete"]), place, nothing, nothing)


def _found(
    rows: pa.Table, kind: str, condition: Any, router: Any, receiver: Any, error: Any, is_of_leg: Any = None
) -> Iterator[tuple[int, tuple[Any, ...], tuple[float, ...]]]:
    """Yield the deliveries of one kind; a multicast counts once, and each of its legs only if its receiver said so."""
    condition = pc.fill_null(condition, False)
    if not pc.any(condition).as_py():
        return
    leg = pa.array(np.arange(len(rows)))
    some = pa.table(
        {
            "minute": rows["minute"], "kind": pa.array([kind] * len(rows)), "address": rows["address"],
            "tenant": rows["tenant"], "router": router, "receiver": receiver, "condition": error, "key": rows["key"],
            "leg": leg if is_of_leg is None else pc.if_else(is_of_leg, leg, -1),
        }
    )  # fmt: skip
    if is_of_leg is None:
        some = some.set_column(8, "leg", pa.array(np.zeros(len(rows), np.int64)))
    some = some.filter(condition)
    once = some.group_by(some.column_names).aggregate([])
    yield from _grouped(once, ("losses", "kind", "address", "tenant", "router", "receiver", "condition"), _ones(once))


def by_name(
    sums: Mapping[tuple[Any, ...], tuple[float, ...]], table: str
) -> Iterable[tuple[tuple[Any, ...], tuple[float, ...]]]:
    """Return the sums of one name, without it."""
    return ((name[1:], values) for name, values in sums.items() if name[0] == table)


def classes_by_address(
    sums: Mapping[tuple[Any, ...], tuple[float, ...]], name: str
) -> dict[tuple[Any, Any], dict[int, float]]:
    """Return numbers of latencies by address, tenant, and class. Args: name: `outcomes` or `took`."""
    found: dict[tuple[Any, Any], dict[int, float]] = defaultdict(dict)
    for (address, tenant, each), (count,) in by_name(sums, name):
        found[address, tenant][each] = count
    return found
