"""Runs of jobs over what arrives: they make the tables of one run over all, and keep what does not change."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from amqpmesh.pipeline.anomalies import TABLES as ANOMALIES
from amqpmesh.pipeline.ingest import ingest
from amqpmesh.pipeline.jobs import JOBS
from amqpmesh.pipeline.latency import TABLES as LATENCY
from amqpmesh.pipeline.losses import TABLES as LOSSES
from amqpmesh.pipeline.pruning import prune
from amqpmesh.pipeline.work import Done, Work
from amqpmesh.router.telemetry.schema import Kind, Outcome
from tests.support.data.segments import WHOLE_SAMPLE, at
from tests.support.spark.stub import Session
from tests.support.spark.traffic_bench import Bench, window

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

HALF = WHOLE_SAMPLE // 2


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path)


@pytest.fixture
def few_partitions(spark: SparkSession) -> Iterator[None]:
    """Let all that is little be one task, in tests of several runs."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    spark.conf.set(name, "2")
    yield
    spark.conf.set(name, str(before))


INCREMENTAL = "traffic", "latency", "losses", "anomalies"
"""The jobs behind `deliveries` that keep what new segments do not change."""


def run(
    bench: Bench, *arriving: Path, jobs: Sequence[str] = ("deliveries", *INCREMENTAL), killed: Sequence[str] = ()
) -> dict[str, Done]:
    """Run jobs once some segments have arrived. Args: killed: jobs that are killed before they publish."""
    for path in arriving:
        path.rename(bench.root / "events" / path.name)
    ingest(cast(Any, Session()), bench.work.events, bench.work.place("ingest"))
    told = {}
    for name in jobs:
        bench.work.written.clear()
        told[name] = JOBS[name].load()(bench.work)
        if name not in killed:
            bench.work.publish(name, "", told[name])
    bench.work.written.clear()
    return told


def all_rows(bench: Bench) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of all tables, in order. A sum of fractions depends on their order a little."""
    found = {}
    of_jobs = {"traffic": ("matrix", "talkers", "links"), "latency": LATENCY, "losses": LOSSES, "anomalies": ANOMALIES}
    tables = [f"{job}/{name}" for job, names in of_jobs.items() for name in names]
    for name in tables:
        rows = [[_value(each) for each in row] for row in bench.work.read(name).collect()]
        found[name] = sorted((tuple(row) for row in rows), key=repr)
    return found


def _value(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def close(bench: Bench, seconds: float) -> None:
    """Close a segment of each router, which was last written at some time."""
    before = {*bench.root.rglob("*.events")}
    bench.known.close(1)
    for path in {*bench.root.rglob("*.events")} - before:
        os.utime(path, ns=(at(seconds), at(seconds)))


@pytest.mark.timeout(1200)  # several runs of Spark, on whatever machine
def test_runs_over_what_arrives_make_the_tables_of_one_run_over_all(bench: Bench, few_partitions: None) -> None:
    """Of a router that records all, one that lost some, and one that records a sample from its second segment on.

    The second hour is partly on the next day.
    """
    chance = random.Random(4)
    bench.known.recorders["C"].sample = HALF
    for hour in range(21, 24):
        for _ in range(12):
            way = chance.choice(["A", "AB", "ABC", "CB", "CBA", "BA", "CA"])
            sampled = way[0] != "C" or hour == 21 or chance.random() < 0.5
            outcome = chance.choice([Outcome.ACCEPTED] * 3 + [Outcome.REJECTED, Outcome.NONE])
            gone = "B" if way == "ABC" else ""
            seconds = (hour + chance.random()) * 3600
            first = bench.known.deliver(way, seconds=seconds, sampled=sampled, outcome=outcome, unrecorded=gone)
            if sampled and outcome is Outcome.REJECTED:  # some of them on the next day
                bench.known.deliver(way, seconds=seconds + 1800, attempt=2, first=first)
        for router, peer, direction in (("C", "shop", "incoming"), ("C", "B", "outgoing"), ("B", "shop", "incoming")):
            look = (hour * 3600 + 3590, 9 * hour + 9, 900 * hour + 900)
            bench.count(router, peer, direction, look, since=at(hour * 3600 - 10), number=1 + (direction == "outgoing"))
        for part in range(6):
            bench.count(
                "A", "hoarder", "outgoing", (hour * 3600 + part * 600, part, part), number=9, unsettled=40 * part
            )
        waited = {"link": "outgoing-hoarder", "direction": "outgoing", "peer": "hoarder", "address": "orders"}
        told = {**waited, "tenant": "", "time": at(hour * 3600 + 3500), "happening": "credit", "waited": 7 * hour}
        bench.known.recorders["A"].put(Kind.EVENT, [told])
        if hour == 22:
            bench.known.recorders["B"].lose(3)
        bench.known.close(1)
    waiting = bench.root / "waiting"
    waiting.mkdir()
    paths = [path.rename(waiting / path.name) for path in sorted((bench.root / "events").rglob("*.events"))]
    chance.shuffle(paths)
    run(bench, *paths[:5])
    run(bench, *paths[5:9], jobs=["deliveries", "traffic"], killed=["traffic"])
    done = run(bench, *paths[9:])
    found = all_rows(bench)
    assert {row[-1] for row in found["traffic/matrix"]} == {"recorded", "scaled", "counted"}
    assert {row[-1] for row in found["traffic/links"]} >= {"recorded", "counted"}
    assert all(len({row[0] for row in found[name]}) == 2 for name in ("latency/shares", "losses/daily", "losses/rows"))
    assert {row[1] for row in found["losses/findings"]} >= {"broken", "unanswered", "growing"}
    assert {row[0] for row in found["anomalies/values"]} == {"messages", "octets", "waits"}
    bench.work = Work(bench.spark, bench.work.events, bench.work.out, anew=True)
    whole = run(bench, jobs=INCREMENTAL)
    assert found == all_rows(bench)
    for name in INCREMENTAL:
        read = {"records read", "hours written", "days written", "deliveries read"}
        assert {*done[name].figures} == {*whole[name].figures}
        for figure in {*done[name].figures} - read:
            assert done[name].figures[figure] == pytest.approx(whole[name].figures[figure]), (name, figure)
        assert (done[name].rows, done[name].tables) == (whole[name].rows, whole[name].tables)


@pytest.mark.timeout(1200)  # several runs of Spark, on whatever machine
def test_of_a_later_hour_only_that_is_read_and_written(bench: Bench, few_partitions: None) -> None:
    close(bench, 0)
    assert {done.rows for done in run(bench).values()} == {0}  # a table without rows is one part, which is no hour
    history = 3
    for hour in range(history):
        for _ in range(20):
            bench.known.deliver("AB", seconds=3600 * hour, size=100)
        close(bench, 3600 * hour)
    run(bench, jobs=["deliveries", "traffic", "latency"])
    before = all_rows(bench)
    for _ in range(9):
        bench.known.deliver("AB", seconds=36_000, size=100_000)
    close(bench, 36_000)
    done = run(bench)["traffic"]
    assert [done.figures[each] for each in ("records read", "hours written")] == [18, 1]
    after = all_rows(bench)
    assert {*before["traffic/matrix"]} < {*after["traffic/matrix"]}
    assert (done.rows, done.figures["messages"]) == (history + 1, 20 * history + 9)
    assert {row[7] for row in before["traffic/links"]} == {1.0}
    shares = sorted(row[7] for row in after["traffic/links"])
    assert shares == [pytest.approx(20 / 9_000, abs=1e-4)] * history + [1.0]
    bench.known.deliver("AB", seconds=100_000)  # on the next day
    close(bench, 100_000)
    later = run(bench)
    assert (later["traffic"].figures["hours written"], later["latency"].figures["deliveries read"]) == (1, 1)
    assert [later["losses"].figures[each] for each in ("records read", "days written")] == [0, 1]
    assert later["anomalies"].figures["days written"] == 1
    found = all_rows(bench)
    of_times = [name for name in found if name.startswith(("traffic/", "latency/"))]
    assert all({*after[name]} < {*found[name]} for name in of_times)
    values = {row[5] for row in found["anomalies/values"]}
    assert {row[5] for row in after["anomalies/values"]} < values
    close(bench, 100_010)
    last = run(bench, jobs=INCREMENTAL)
    assert (last["traffic"].figures["hours written"], last["latency"].figures["deliveries read"]) == (0, 0)
    assert last["losses"].figures["days written"] == last["anomalies"].figures["days written"] == 0
    assert all_rows(bench) == found
    prune(bench.work.out, window(at(90_000)))
    kept = run(bench, jobs=["deliveries", *INCREMENTAL])
    assert [kept["traffic"].figures[each] for each in ("messages", "records read", "hours written")] == [1, 0, 0]
    left = all_rows(bench)
    assert all(
        left[name] == [row for row in found[name] if row[0] not in {one[0] for one in after[name]}] for name in of_times
    )
    assert {row[5] for row in left["anomalies/values"]} == {max(values)}
    bench.work = Work(bench.spark, bench.work.events, bench.work.out, anew=True)
    run(bench, jobs=["anomalies"])
    assert all_rows(bench) == left
