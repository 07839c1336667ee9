"""The query of a watch, on Spark; and its minutes beside the tables of the daily jobs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow.parquet as pq
import pytest

from amqpmesh import Accepted
from amqpmesh.pipeline.jobs import JOBS
from amqpmesh.pipeline.live import Live
from amqpmesh.pipeline.live_minutes import INCOMPLETE, by_name
from amqpmesh.pipeline.watch import PUBLISHED, Watch, is_mesh
from amqpmesh.pipeline.work import Done, Work
from amqpmesh.policies import access
from amqpmesh.router.config.file import TelemetryConfig
from amqpmesh.router.telemetry.schema import Outcome
from tests.support.data.known_traffic import Known
from tests.support.data.segments import at
from tests.support.processes.router_thread import Served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 300.0
DELAY = 90_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read(out: Path, name: str) -> list[dict[str, Any]]:
    return [row for path in sorted((out / "live" / name).glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def run(spark: SparkSession, events: Path, out: Path, wrong: list[Any] | None = None) -> Live:
    """Watch what is there, from the checkpoint on."""
    checkpoint = out / "checkpoint"
    live = Live(out, checkpoint, [str(events)], DELAY)
    told = (wrong if wrong is not None else []).extend
    trigger = {"availableNow": True}
    with Watch(spark, [str(events)], live, checkpoint, since=EPOCH, told=told, trigger=trigger) as watch:
        assert watch.query.awaitTermination(PATIENCE)
        assert not watch.check()
    return live


def test_a_directory_is_read_on_from_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    events, out = tmp_path / "events", tmp_path / "out"
    known = Known(events, "AB")
    for number in range(200):
        known.deliver("AB", seconds=number)
    known.close(1)
    (events / "B" / "damaged.events").write_bytes(b"nothing")
    (last,) = (events / "B").glob("B.*.events")
    wrong: list[Any] = []
    last.rename(tmp_path / "hidden")  # it is not closed yet
    live = run(spark, events, out, wrong)
    assert [(source.rpartition("/")[2], problem) for source, problem, _ in wrong] == [("damaged.events", "foreign")]
    assert live.counts["segments"] == 1
    (tmp_path / "hidden").rename(last)
    live = run(spark, events, out)
    assert (live.counts["segments"], live.counts["faults"]) == (2, 1)
    closed = sum(row["messages"] for row in read(out, "traffic"))
    assert closed == sum(each.time < live.minutes.boundary for each in known.deliveries)
    assert live.minutes.boundary == at(80)
    # Each record of B that came too late is counted: its minute was closed when A alone had told of it.
    assert live.counts["late"] == 80
    assert {row["egress"] for row in read(out, "traffic")} == {None}
    assert sum(row["deliveries"] for row in read(out, "minutes")) == closed


def test_its_tables_are_those_of_the_daily_jobs(spark: SparkSession, tmp_path: Path) -> None:
    events, out = tmp_path / "events", tmp_path / "out"
    known = Known(events, "ABCD", seed=5)
    chance = known._chance
    for _ in range(400):
        known.deliver(
            chance.choice(("ABC", "CBA", "AB", "D")),
            address=chance.choice(("orders", "news", f"$dynamic/{chance.random()}")),
            tenant=chance.choice(("", "shop")),
            outcome=chance.choice([Outcome.ACCEPTED] * 6 + [Outcome.REJECTED, Outcome.RELEASED, Outcome.NONE]),
            condition=chance.choice(("", "amqp:decode-error")),
            settled=chance.random() < 0.1,
            unrecorded=chance.choice(("", "", "", "B", "C")),
            seconds=20 + chance.random() * 60,  # a minute as a whole
        )
    tried = known.deliver("AB", seconds=30, outcome=Outcome.RELEASED)
    known.deliver("AB", seconds=50, first=tried, attempt=2)
    known.deliver("ABC", "ABD", receivers=("one", "other"), copies=(False, True), seconds=40)
    known.deliver("D", outcome=Outcome.UNDELIVERED, receivers=("",), condition="amqp:not-found", seconds=41)
    known.deliver("A", sender="A", seconds=42)
    known.close(3)
    last = Known(tmp_path / "last", "E")
    last.deliver("E", seconds=400)
    last.close(1)
    run(spark, events, out)
    (tmp_path / "last").rename(events / "last")
    live = run(spark, events, out)
    assert live.counts["late"] == 0
    (events / "last").rename(tmp_path / "last")

    work = Work(spark, (str(events),), str(out))
    for name in ("ingest", "deliveries", "traffic", "latency", "losses", "anomalies"):
        JOBS[name].load()(work)
        work.publish(name, "", Done(0))

    def daily(table: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in work.read(table).collect()]

    matrix = ("ingress", "egress", "address", "tenant", "messages", "bytes", "records", "basis")

    def counted(rows: list[dict[str, Any]], *names: str, time: str | None = None) -> Counter[Any]:
        return Counter(tuple(row[name] for name in names) for row in rows)

    assert counted(read(out, "traffic"), *matrix) == counted(daily("traffic/matrix"), *matrix)
    latency = {(row["address"], row["tenant"]): row for row in daily("latency/addresses")}
    live_latency = {(row["address"], row["tenant"]): row for row in read(out, "latency")}
    assert live_latency.keys() == latency.keys()
    for name, row in live_latency.items():
        assert (row["deliveries"], row["answered"]) == (latency[name]["deliveries"], latency[name]["answered"])
        for percentile in ("p50", "p90", "p95", "p99"):
            column = f"outcome_{percentile}_ns"
            assert row[column] == pytest.approx(latency[name][column], rel=0.01)
    place = ("kind", "address", "tenant", "router", "receiver", "condition", "found")
    kinds = {row["kind"] for row in read(out, "losses")} - {INCOMPLETE}
    assert {"rejected", "released", "unanswered", "undelivered"} <= kinds
    found = [row for row in daily("losses/findings") if row["kind"] in kinds]
    assert counted([row for row in read(out, "losses") if row["kind"] != INCOMPLETE], *place) == counted(found, *place)


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Served]:
    """Run a router that publishes what it records."""
    served = Served(telemetry=TelemetryConfig(directory=tmp_path / "of router", publish=True, flush=0.05))
    yield served
    served.end()


def eventually(is_so: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.05)


def to_q(live: Live) -> int:
    """Return the messages to `q` in all minutes."""
    every = [*live.minutes.sums.values(), *(closed.sums for closed in live.closed.values())]
    rows = (row for sums in every for row in by_name(sums, "traffic"))
    return round(sum(values[0] for (_, _, address, *_), values in rows if address == "q"))


def test_what_routers_publish_is_read_beside_a_directory(
    spark: SparkSession, recording: Served, tmp_path: Path
) -> None:
    for address in ("q", "other"):
        recording.receive(address)
    known = Known(tmp_path / "hidden", "Z")
    known.deliver("Z", address="q", seconds=(time.time_ns() - at(0)) / 1e9)
    known.close(1)
    (tmp_path / "events").mkdir()
    out, sources = tmp_path / "out", [recording.url, str(tmp_path / "events")]
    live = Live(out, out / "checkpoint", sources, 3_600_000_000_000)
    noted: list[tuple[int, int]] = []

    def note(live: Live, now: int) -> None:
        noted.append((live.counts["records"], to_q(live)))  # in the thread that takes batches

    def is_heard() -> bool:
        """Send something, until it is heard: a router waits a second for credit, and this machine may be busy."""
        recording.first(1, recording.send("other", b""))
        time.sleep(0.2)
        return watch.check() and bool(noted) and noted[-1][0] > 0

    trigger = {"processingTime": "200 milliseconds"}
    with Watch(spark, sources, live, out / "checkpoint", since=EPOCH, noted=note, trigger=trigger) as watch:
        eventually(is_heard)
        outcomes = recording.send("q", *(b"%d" % number for number in range(50)))
        assert recording.first(50, outcomes) == [Accepted()] * 50
        (tmp_path / "hidden" / "Z").rename(tmp_path / "events" / "Z")
        eventually(lambda: watch.check() and noted[-1][1] == 51)
    assert live.counts["late"] == live.counts["faults"] == live.counts["ahead"] == 0


class Java:
    """Stands for Spark: a query whose thread is about to take a batch when it is stopped, and is waited for."""

    is_taken: bool | None = None
    isActive = True  # noqa: N815 - Spark's name

    def __getattr__(self, name: str) -> Java:
        return self

    def __call__(self, *_: object, **__: object) -> Java:
        return self

    def __getitem__(self, name: str) -> Java:
        return self

    def __ge__(self, other: object) -> Java:
        return self

    def foreachBatch(self, take: Callable[[Any, int], None]) -> Java:  # noqa: N802
        self.take = take
        return self

    def stop(self) -> None:
        thread = threading.Thread(target=self._late, daemon=True)
        thread.start()
        thread.join(10.0)  # Spark itself would wait forever

    def _late(self) -> None:
        try:
            self.take(self, 7)
            self.is_taken = True
        except RuntimeError:
            self.is_taken = False

    def collect(self) -> list[Any]:
        return []


def test_a_batch_that_comes_when_the_watch_ends_is_neither_taken_nor_waited_for(tmp_path: Path) -> None:
    java, live = Java(), Live(tmp_path, tmp_path / "checkpoint", ["events"], DELAY)
    with Watch(cast("SparkSession", java), ["events"], live, tmp_path / "checkpoint", since=EPOCH):
        java.take(java, 0)
    assert java.is_taken is False  # Spark does not take it for done, so that it comes again
    assert live.batch == 0


def test_urls_are_of_the_mesh_and_the_address_is_that_of_routers() -> None:
    assert [is_mesh(each) for each in ("amqp://here", "amqps://here:5671", "/amqp", "hdfs://there")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert PUBLISHED == access.PUBLISHED
