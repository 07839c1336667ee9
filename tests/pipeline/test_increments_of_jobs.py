"""Runs of jobs over what arrives: they make the tables of one run over all, and keep what does not change."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from amqpmesh.pipeline.anomalies import TABLES as ANOMALIES
from amqpmesh.pipeline.clocks import DAY
from amqpmesh.pipeline.ingest import ingest
from amqpmesh.pipeline.jobs import JOBS
from amqpmesh.pipeline.latency import TABLES as LATENCY
from amqpmesh.pipeline.losses import TABLES as LOSSES
from amqpmesh.pipeline.pruning import prune
from amqpmesh.pipeline.published import day_name, load
from amqpmesh.pipeline.work import Done, Work
from amqpmesh.router.telemetry.schema import Kind, Outcome
from tests.support.data.segments import WHOLE_SAMPLE, at
from tests.support.spark.stub import Session
from tests.support.spark.traffic_bench import Bench

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

HALF = WHOLE_SAMPLE // 2


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path)


@pytest.fixture
def few_partitions(spark: SparkSession) -> Iterator[None]:
    """Let all that is little be one task, and no code be made for it, in tests of several runs."""
    settings = {"spark.sql.shuffle.partitions": "2", "spark.sql.codegen.wholeStage": "false"}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name, earlier in before.items():
        spark.conf.set(name, str(earlier))


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


def traffic(bench: Bench, chance: random.Random) -> None:
    """Record hours of a router that records all, one that lost some, and one that records a sample from its second
    segment on. The second hour is partly on the next day.
    """
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


def parts(bench: Bench, *tables: str, until: str = "9") -> set[str]:
    """Return the directories of published parts. Args: tables: how their names begin. until: a day, or all."""
    jobs = load(bench.work.out).jobs
    published = [each for name in INCREMENTAL for each in jobs[name].tables.items() if each[0].startswith(tables)]
    return {place for _, parts in published for name, place in parts.items() if name < until}


@pytest.mark.timeout(1200)  # several runs of Spark, on whatever machine
def test_runs_over_what_arrives_make_the_tables_of_one_run_over_all_and_read_little(
    bench: Bench, few_partitions: None
) -> None:
    """In a random order, with a run that is killed, a later hour of the second day on top, after which its windows
    are longer, and a day and an hour that are removed.
    """
    chance = random.Random(4)
    traffic(bench, chance)
    waiting = bench.root / "waiting"
    waiting.mkdir()
    paths = [path.rename(waiting / path.name) for path in sorted((bench.root / "events").rglob("*.events"))]
    chance.shuffle(paths)
    run(bench, *paths[:6])
    run(bench, *paths[6:9], jobs=["deliveries", "latency"], killed=["latency"])
    run(bench, *paths[9:])
    before = all_rows(bench)
    second = at(3600 * 30) // DAY
    kept = parts(bench, "traffic/", "latency/", "anomalies/values", until=day_name(second))
    kept |= parts(bench, "losses/outlines")
    spans = load(bench.work.out).jobs["latency"].state["spans"]
    windows = sum(count for hour, (*_, count) in spans.items() if hour >= day_name(second))
    assert {row[-1] for row in before["traffic/matrix"]} == {"recorded", "scaled", "counted"}
    assert {row[-1] for row in before["traffic/links"]} >= {"recorded", "counted"}
    assert all(len({row[0] for row in before[name]}) == 2 for name in ("latency/shares", "losses/daily", "losses/rows"))
    assert {row[1] for row in before["losses/findings"]} >= {"broken", "unanswered", "growing"}
    assert {row[0] for row in before["anomalies/values"]} == {"messages", "octets", "waits"}
    for _ in range(9):
        bench.known.deliver("AB", seconds=3600 * 30, size=100_000)
    bench.known.close(1)
    told = {name: done.figures for name, done in run(bench).items()}
    assert [told[name]["deliveries read"] for name in ("deliveries", "latency", "losses")] == [0, windows + 9, 9]
    assert [told["traffic"][each] for each in ("records read", "hours written")] == [18, 1]
    assert told["deliveries"]["hours written"] == told["anomalies"]["days written"] == 1
    assert kept <= parts(bench, ""), "all other hours and days stay as they are"
    prune(bench.work.out, datetime.fromtimestamp(second * DAY // 1_000_000_000 + 3600, UTC))
    done = run(bench)
    read = {"records read", "hours written", "days written", "deliveries read"}
    assert {done[name].figures["deliveries read"] for name in ("deliveries", "latency", "losses")} == {0}
    found = all_rows(bench)
    assert min(row[0] for row in found["latency/shares"]) == max(row[0] for row in before["latency/shares"])
    bench.work = Work(bench.spark, bench.work.events, bench.work.out, anew=True)
    whole = run(bench, jobs=INCREMENTAL)
    assert found == all_rows(bench)
    for name in INCREMENTAL:
        assert {*done[name].figures} == {*whole[name].figures}
        for figure in {*done[name].figures} - read:
            assert done[name].figures[figure] == pytest.approx(whole[name].figures[figure]), (name, figure)
        assert (done[name].rows, done[name].tables) == (whole[name].rows, whole[name].tables)
