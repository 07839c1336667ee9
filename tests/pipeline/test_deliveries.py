"""Rows of delivery attempts, compared with the deliveries."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from amqpmesh.pipeline import deliveries as module
from amqpmesh.pipeline.deliveries import ATTEMPTS, CONTRADICTIONS, SLACK, contradictions, deliveries
from amqpmesh.pipeline.events import spark_schema, table
from amqpmesh.pipeline.ingest import ingest
from amqpmesh.pipeline.jobs import JOBS
from amqpmesh.pipeline.work import Done, Work
from amqpmesh.router.telemetry.schema import Outcome
from tests.support.data.known_traffic import CROSSING, STAY, Delivery, Known
from tests.support.data.segments import BEGAN, at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def moment(ns: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)


def expected(known: Known, delivery: Delivery) -> list[dict[str, Any]]:
    """Return the rows of a delivery that all its routers have recorded."""
    rows = []
    longest = max(map(len, delivery.ways))
    answered = not delivery.settled and delivery.outcome is not Outcome.NONE
    outcome = delivery.outcome.name.lower()
    for way, receiver, copy in zip(delivery.ways, delivery.receivers, delivery.copies, strict=True):
        arrived = [delivery.time + index * (STAY + CROSSING) for index in range(len(way))]
        stays = [STAY] * (len(way) - 1) + [STAY if receiver else None]
        answers = [(longest - index) * 1_000_000 if answered else None for index in range(len(way))]
        keys = "router", "arrived_ns", "in_router_ns", "outcome_after_ns", "outcome"
        ended = [outcome] * len(way)
        rows.append({
            "key": known.key(delivery), "first_key": known.key(delivery, delivery.first), "attempt": delivery.attempt,
            "address": delivery.address, "tenant": delivery.tenant, "ingress": way[0],
            "egress": way[-1] if receiver else None, "path": list(way),
            "hops": [
                dict(zip(keys, each, strict=True)) for each in zip(way, arrived, stays, answers, ended, strict=True)
            ],
            "sent_at": moment(delivery.time),
            "latency_ns": arrived[-1] + STAY - delivery.time if receiver else None, "outcome": outcome,
            "egress_outcome": outcome if receiver else None,
            "condition": delivery.condition or None, "outcome_after_ns": answers[0],
            "settled": delivery.settled, "size": delivery.size, "priority": delivery.priority, "delivery_count": 0,
            "sender": delivery.sender,
            "sender_link": f"incoming-{delivery.sender}-{delivery.address}-{delivery.tenant}",
            "receiver": receiver or None,
            "receiver_link": f"outgoing-{receiver}-{delivery.address}-{delivery.tenant}" if receiver else None,
            "copy": copy, "legs": len(delivery.ways), "complete": True, "contradictions": [],
        })  # fmt: skip
    return rows


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["key"], row["path"], row["receiver"] or ""))


def collected(frame: DataFrame) -> list[dict[str, Any]]:
    """Rows; times as they are in UTC, wherever this runs."""
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    for row in rows:
        row["key"] = bytes(row["key"])
        row["sent_at"] = row["sent_at"].astimezone(UTC)
        if row.get("first_key") is not None:
            row["first_key"] = bytes(row["first_key"])
    return rows


class Bench:
    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.known = Known(root / "events", "ABCDE")
        self.work = Work(spark, (str(root / "events"),), str(root / "out"))

    def hops(self) -> DataFrame:
        self.known.close()
        ingest(self.spark, self.work.events, self.work.place("ingest"))
        return table(self.spark, self.work.place("ingest"), "hops")

    def rows(self) -> list[dict[str, Any]]:
        return ordered(collected(deliveries(self.hops())))

    def expected(self) -> list[dict[str, Any]]:
        return ordered([row for each in self.known.deliveries for row in expected(self.known, each)])


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path)


WAYS = ("A", "AB", "ABC", "CBA", "EDCBA", "BD", "ABAC")


def fill(known: Known, count: int) -> None:
    """All sorts of traffic."""
    chance = random.Random(5)
    for number in range(count):
        first = known.deliver(
            chance.choice(WAYS),
            address=chance.choice(["orders", "stock"]),
            tenant=chance.choice(["", "north"]),
            sender=chance.choice(["shop", "web"]),
            receivers=[chance.choice(["desk", "store", ""])],
            outcome=chance.choice(list(Outcome)),
            condition=chance.choice(["", "amqp:invalid-field", "shop:too-late"]),
            settled=chance.random() < 0.2,
            priority=chance.randrange(10),
        )
        if number % 7 == 0:
            for attempt in (2, 3):
                known.deliver("".join(first.ways[0]), attempt=attempt, first=first)
        if number % 5 == 0:
            known.deliver("ABC", "ABD", "AB", "A", receivers=["x", "y", "x", "z"], copies=[False, False, True, False])


def run(bench: Bench, *arriving: Path, publishes: bool = True) -> Done:
    """Run the job once some segments have arrived, as the command does. Args: publishes: else it is killed before."""
    events = Path(bench.work.events[0])
    for path in arriving:
        path.rename(events / path.name)
    bench.work.written.clear()
    ingest(bench.spark, bench.work.events, bench.work.place("ingest"))
    done: Done = JOBS["deliveries"].load()(bench.work)
    if publishes:
        bench.work.publish("deliveries", "", done)
    bench.work.written.clear()
    return done


def waiting(bench: Bench, root: Path) -> list[Path]:
    """Take all segments away. Returns: where they are now, in no order."""
    root.mkdir()
    paths = [path.rename(root / path.name) for path in Path(bench.work.events[0]).rglob("*.events")]
    random.Random(3).shuffle(paths)
    return paths


def test_rows_equal_what_was_delivered_in_whatever_order_segments_come(bench: Bench, tmp_path: Path) -> None:
    for hour in range(3):
        fill(bench.known, 60)
        bench.known.deliver("ABC", seconds=3600 * hour - 0.00001)  # it comes to B in the next hour
        bench.known.close(1)
    paths = waiting(bench, tmp_path / "waiting")
    run(bench, *paths[:7])
    done = run(bench, *paths[7:])
    rows = bench.expected()
    assert ordered(collected(bench.work.read("deliveries/attempts"))) == rows
    assert dict(done.tables[0].rows) == Counter(row["outcome"] for row in rows)
    assert (done.rows, done.figures["incomplete"]) == (len(rows), 0)
    # Of a later hour, only that is read and written.
    bench.known.deliver("ABC", seconds=36_000)
    bench.known.close(1)
    done = run(bench)
    assert [done.figures[each] for each in ("records read", "deliveries read", "hours written")] == [3, 0, 1]
    assert ordered(collected(bench.work.read("deliveries/attempts"))) == bench.expected()


@pytest.mark.parametrize("seed", range(2))
def test_runs_over_what_arrives_make_the_tables_of_one_run_over_all(bench: Bench, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        fill(bench.known, 12)
        for _ in range(8):
            missing = chance.choice(["", "", "A", "B", "D"])
            bench.known.deliver(chance.choice(WAYS), seconds=chance.uniform(0, 14_400), unrecorded=missing)
        twice = bench.known.deliver("ABC", seconds=chance.uniform(0, 14_400))
        bench.known.record(twice, "B", "A", "C", 1, longest=3)
        bench.known.close(chance.choice([1, 2]))
    paths = waiting(bench, tmp_path / "waiting")
    chance.shuffle(paths)
    while paths:
        size = chance.randrange(1, 14)
        run(bench, *paths[:size], publishes=chance.random() < 0.7)
        paths = paths[size:]
    done = run(bench)
    found = [collected(bench.work.read(f"deliveries/{name}")) for name in ("attempts", "quarantine")]
    bench.work = Work(bench.spark, bench.work.events, bench.work.out, anew=True)
    whole = run(bench)
    one = [collected(bench.work.read(f"deliveries/{name}")) for name in ("attempts", "quarantine")]
    assert ordered(found[0]) == ordered(one[0])
    told = [sorted((row["key"], row["sentence"], row["sent_at"]) for row in each[1]) for each in (found, one)]
    assert told[0] == told[1]
    assert told[0]
    assert [done.figures[each] for each in TOLD] == [whole.figures[each] for each in TOLD]
    assert dict(done.tables[0].rows) == dict(whole.tables[0].rows)


TOLD = "deliveries", "incomplete", "contradictions"


def test_rows_do_not_depend_on_how_records_are_spread_over_batches_and_partitions(bench: Bench) -> None:
    fill(bench.known, 60)
    hops = bench.hops().repartition(7, "router").cache()
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = bench.spark.conf.get(name)
    bench.spark.conf.set(name, "3")
    try:
        assert ordered(collected(deliveries(hops))) == bench.expected()
    finally:
        bench.spark.conf.set(name, before)


def test_keys_are_never_cut_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 4)
    keys = [key for key in range(40) for _ in range(key % 6 + 1)]
    batches = pa.table({"key": keys}).to_batches(max_chunksize=3)
    tables = [each.column("key").to_pylist() for each in module._whole_keys(batches)]
    assert [key for each in tables for key in each] == keys
    assert len(tables) > 10
    assert all(earlier[-1] != later[0] for earlier, later in pairwise(tables))


@pytest.mark.parametrize("missing", "ABC")
def test_a_delivery_without_one_router_s_record_is_there_and_not_complete(bench: Bench, missing: str) -> None:
    whole = bench.known.deliver("ABC")
    bench.known.deliver("ABC", unrecorded=missing)
    (row,) = [row for row in bench.rows() if row["key"] != bench.known.key(whole)]
    rest = "ABC".replace(missing, "")
    assert (row["path"], row["complete"], row["address"], row["tenant"]) == (list(rest), False, "orders", "")
    assert row["ingress"] == (None if missing == "A" else "A")
    assert row["egress"] == (None if missing == "C" else "C")
    known_ends = missing == "B"
    assert (row["latency_ns"] is not None) == known_ends
    assert (row["outcome"] is None, row["attempt"] is None, row["sender"] is None) == (missing == "A",) * 3
    assert (row["egress_outcome"] is None, row["receiver"] is None) == (missing == "C",) * 2


def test_what_no_router_has_recorded_is_not_there(bench: Bench) -> None:
    bench.known.deliver("ABC", unrecorded="ABC")
    assert bench.rows() == []


def test_a_time_restricts_by_when_it_was_sent(bench: Bench) -> None:
    for seconds in (0.0, 9.9999, 10.0, 19.9999, 20.0):
        bench.known.deliver("AB", seconds=seconds)
    bench.known.close()
    begin = datetime.fromtimestamp(BEGAN / 1000, UTC)
    for since, until, count in ((None, None, 5), (10, None, 3), (None, 10, 2), (10, 20, 2), (50, None, 0)):
        work = Work(
            bench.spark,
            bench.work.events,
            bench.work.out,
            None if since is None else begin + timedelta(seconds=since),
            None if until is None else begin + timedelta(seconds=until),
        )
        JOBS["ingest"].load()(work)
        done = JOBS["deliveries"].load()(work)
        assert done.rows == work.read("deliveries/attempts").count() == count, (since, until)
        assert done.figures["incomplete"] == 0


def test_a_delivery_over_the_edge_of_a_time_is_whole(bench: Bench) -> None:
    bench.known.deliver("AB", seconds=9.9999)  # it comes to B behind the edge
    hops = bench.hops()
    edge = datetime.fromtimestamp(BEGAN / 1000 + 10, UTC)
    assert module.between(hops, None, edge).count() == 1
    assert module.between(hops, None, edge + SLACK).count() == 2
    assert module.between(hops, edge, None).count() == 1


def test_contradictions_are_told_once_each_and_the_rows_stay(bench: Bench) -> None:
    twice = bench.known.deliver("AB", "AC", receivers=["x", "y"])
    bench.known.deliver("AB")
    bench.known.record(twice, "B", "A", "x", 1, longest=2)
    changed = Delivery(**{**twice.__dict__, "outcome": Outcome.REJECTED})
    bench.known.record(changed, "C", "A", "y", 1, longest=2)
    attempts = deliveries(bench.hops())
    assert attempts.count() == 3
    rows = collected(contradictions(attempts))
    assert sorted((row["sentence"], row["key"], row["ingress"], row["problem"]) for row in rows) == [
        ("B has recorded it twice, alike", bench.known.key(twice), "A", "contradiction"),
        ("C has recorded it twice, with another outcome", bench.known.key(twice), "A", "contradiction"),
    ]


def test_receivers_that_call_their_links_the_same_are_several(bench: Bench) -> None:
    bench.known.alike = True
    bench.known.deliver("AB", "AB", "A", "A", receivers=["x", "y", "x", "y"])
    rows = bench.rows()
    assert sorted(("".join(row["path"]), row["receiver"]) for row in rows) == [
        ("A", "x"), ("A", "y"), ("AB", "x"), ("AB", "y")
    ]  # fmt: skip
    assert not any(row["contradictions"] for row in rows)


def test_the_job_writes_both_tables_and_counts(bench: Bench) -> None:
    fill(bench.known, 50)
    bench.known.deliver("ABC", unrecorded="B")
    bench.known.close()
    assert JOBS["deliveries"].needs == ("ingest",)
    JOBS["ingest"].load()(bench.work)
    done = JOBS["deliveries"].load()(bench.work)
    rows = len(bench.expected())
    assert (done.rows, *(done.figures[each] for each in TOLD)) == (rows, rows, 1, 0)
    outcomes = Counter(row["outcome"] for row in bench.expected())
    assert dict(done.tables[0].rows) == outcomes
    for name, columns in (("attempts", ATTEMPTS), ("quarantine", CONTRADICTIONS)):
        assert bench.work.read(f"deliveries/{name}").schema == spark_schema(columns)


def test_nothing_recorded_is_no_row(bench: Bench) -> None:
    Path(bench.work.events[0]).mkdir(exist_ok=True)
    JOBS["ingest"].load()(bench.work)
    done = JOBS["deliveries"].load()(bench.work)
    assert (done.rows, done.figures["contradictions"], done.tables[0].rows) == (0, 0, ())
    assert bench.work.read("deliveries/attempts").schema == spark_schema(ATTEMPTS)


def test_a_clock_that_jumps_back_leaves_the_order_as_it_is(bench: Bench) -> None:
    delivery = bench.known.deliver("ABC", seconds=0)
    late = Delivery(**{**delivery.__dict__, "time": at(-3600)})
    bench.known.unrecord("B")
    bench.known.record(late, "B", "A", "C", 1, longest=3)
    (row,) = bench.rows()
    assert (row["path"], row["complete"]) == (["A", "B", "C"], True)
