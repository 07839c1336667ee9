"""Episodes in a mesh's traffic: all that were injected are found, and no others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from amqpmesh.pipeline import anomalies
from amqpmesh.pipeline import events as declared
from amqpmesh.pipeline.anomalies import WINDOW
from amqpmesh.pipeline.anomalies_days import job
from amqpmesh.pipeline.work import Done, Work
from tests.support.data.attempts import Way, frame
from tests.support.data.segments import SECOND, at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]
MS = 1_000_000
START = at(0) // WINDOW * WINDOW
WINDOWS = 150
SILENT, SLOW, FAILING, FULL, POOR = (range(first, first + 5) for first in (100, 110, 112, 130, 140))


class Result(NamedTuple):
    done: Done
    episodes: list[Row]
    series: list[Row]
    windows: list[Row]
    values: list[Row]


def run(spark: SparkSession, out: Path, attempts: list[Row], counts: list[Row], events: list[Row]) -> Result:
    work = Work(spark, (), str(out))
    work.write("deliveries/attempts", frame(spark, attempts))
    segments = [{"router": each} for each in "AB"]
    for name, rows in {"counts": counts, "events": events, "segments": segments, "edges": []}.items():
        made = frame(spark, rows, declared.TABLES[name])
        made.write.mode("overwrite").parquet(work.place(f"ingest/{name}"))
    done = job(work)
    return Result(
        done, *([row.asDict() for row in work.read(f"anomalies/{each}").collect()] for each in anomalies.TABLES)
    )


def traffic(chance: random.Random) -> Iterator[Row]:
    way = Way(START, "AB", (1000, 1000), (1000,), (1000,))
    for window in range(WINDOWS):
        for address in ("silent", "slow", "failing", "short"):
            if (address == "silent" and window in SILENT) or (address == "short" and window < WINDOWS - 50):
                continue
            for _ in range(int(chance.gauss(40, 6))):
                way.sent = START + window * WINDOW + chance.randrange(WINDOW)
                way.address = address
                way.waits = int(chance.lognormvariate(0, 0.5) * 20 * MS) * (
                    10 if address == "slow" and window in SLOW else 1
                )
                fails = chance.random() < (0.7 if address == "failing" and window in FAILING else 0.02)
                way.outcome = "rejected" if fails else "accepted"
                yield way.row(chance.getrandbits(64), {})


def tellings(chance: random.Random) -> Iterator[Row]:
    """Six a minute; to a client nobody asks."""
    octets = deliveries = 0
    for step in range(WINDOWS * 6):
        new = chance.randint(20, 40) * (10 if step // 6 in FULL else 1)
        deliveries, octets = deliveries + new, octets + new * 500
        told = {
            "router": "A",
            "epoch": 1,
            "direction": "outgoing",
            "time": START + step * 10 * SECOND + 1,
            "link": "lane",
        }
        yield {**told, "number": 1, "peer": "B", "from_router": True, "deliveries": deliveries, "octets": octets}
        yield {**told, "number": 2, "peer": "client", "deliveries": deliveries, "octets": chance.randint(0, 10**9)}


def waits(chance: random.Random) -> Iterator[Row]:
    for window in range(WINDOWS):
        waited = 40 * SECOND if window in POOR else chance.randint(100, 200) * MS
        told = {"router": "B", "happening": "credit", "direction": "outgoing", "address": "orders", "tenant": ""}
        yield {**told, "time": START + window * WINDOW + 1, "waited": waited}


@pytest.fixture(scope="module")
def result(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Result:
    chance = random.Random(5)
    made = (list(each(chance)) for each in (traffic, tellings, waits))
    return run(spark, tmp_path_factory.mktemp("anomalies"), *made)


def test_what_was_injected_is_told_and_nothing_else(result: Result) -> None:
    found = sorted(
        (row["measure"], row["address"], row["router"], row["peer"],
         (row["begin_time"] - START) // WINDOW, (row["end_time"] - START) // WINDOW, row["score"] > 0)
        for row in result.episodes
    )  # fmt: skip
    assert found == sorted(
        [
            ("messages", "silent", None, None, SILENT.start, SILENT.stop, False),
            ("p50", "slow", None, None, SLOW.start, SLOW.stop, True),
            ("p95", "slow", None, None, SLOW.start, SLOW.stop, True),
            ("failures", "failing", None, None, FAILING.start, FAILING.stop, True),
            ("octets", None, "A", "B", FULL.start, FULL.stop, True),
            ("waits", "orders", "B", None, POOR.start, POOR.stop, True),
        ]
    )


def test_an_episode_is_explained_with_figures(result: Result) -> None:
    by_measure = {row["measure"]: row for row in result.episodes}
    silent = by_measure["messages"]
    assert silent["value"] == 0
    assert silent["usual"] == pytest.approx(40, rel=0.2)
    begin, end = "2026-05-01 03:26:00", "2026-05-01 03:31:00"
    assert silent["sentence"] == (
        f"messages to silent in 60 s fell to 0, usually {silent['usual']:.0f}, between {begin} and {end} UTC"
    )
    assert by_measure["p50"]["value"] == pytest.approx(200 * MS, rel=0.4)
    assert by_measure["p50"]["usual"] == pytest.approx(20 * MS, rel=0.3)
    assert by_measure["failures"]["usual"] == pytest.approx(0.02, abs=0.02)
    assert by_measure["octets"]["value"] == pytest.approx(6 * 30 * 10 * 500, rel=0.3)
    assert by_measure["octets"]["sentence"].startswith("octets from A to B in 60 s rose to ")
    assert "B waited for credit of orders rose to 40.0 s" in by_measure["waits"]["sentence"]


def test_episodes_at_one_time_are_one_incident_and_the_worst_comes_first(result: Result) -> None:
    incidents = {row["measure"]: row["incident"] for row in result.episodes}
    assert incidents["p50"] == incidents["p95"] == incidents["failures"]
    assert sorted(set(incidents.values())) == [1, 2, 3, 4]
    ordered = sorted(result.episodes, key=lambda row: row["episode"])
    assert [row["episode"] for row in ordered] == list(range(1, 7))
    assert [abs(row["score"]) for row in ordered] == sorted((abs(row["score"]) for row in ordered), reverse=True)
    assert ordered[0]["incident"] == 1
    assert [row[:2] for row in result.done.tables[0].rows] == [
        (incident, list(incidents.values()).count(incident)) for incident in (1, 2, 3, 4)
    ]


def test_windows_of_what_differed_tell_what_would_not_have(result: Result) -> None:
    differ = {(row["measure"], row["address"], row["router"]) for row in result.episodes}
    assert {(row["measure"], row["address"], row["router"]) for row in result.windows} == differ
    for episode in result.episodes:
        rows = [
            row
            for row in result.windows
            if (row["measure"], row["address"]) == (episode["measure"], episode["address"])
        ]
        assert sorted(row["time"] for row in rows) == [START + at * WINDOW for at in range(1, WINDOWS - 1)]
        judged = [row for row in rows if row["usual"] is not None and row["value"] is not None]
        outside = [row["time"] for row in judged if not row["low"] <= row["value"] <= row["high"]]
        assert sorted(outside) == list(range(episode["begin_time"], episode["end_time"], WINDOW))
        assert all(0 <= row["low"] <= row["usual"] <= row["high"] for row in judged)


def test_series_without_history_are_said_to_be_short(result: Result) -> None:
    series = {(row["measure"], row["address"]): row for row in result.series}
    assert len(series) == 4 * 4 + 2
    assert {address for (_, address), row in series.items() if row["is_short"]} == {"short"}
    assert series["messages", "slow"]["windows"] == WINDOWS - 2  # the first and the last are not whole
    assert series["messages", "slow"]["judged"] == WINDOWS - 2 - 60
    assert series["messages", "silent"]["episodes"] == 1
    assert result.done.figures["too short"] == 4
    assert result.done.figures["episodes"] == 6


def test_nothing_and_nulls_are_no_trouble(spark: SparkSession, tmp_path: Path) -> None:
    assert run(spark, tmp_path / "nothing", [], [], []).done.rows == 0
    unknown = ("address", "tenant", "outcome", "settled", "legs", "latency_ns", "outcome_after_ns", "copy")
    bare = dict.fromkeys(unknown)
    attempts = [{**Way(START, "A", (1,)).row(number, {}), **bare} for number in range(30)]
    attempts.append({**attempts[0], "hops": [{"router": "A", "arrived_ns": 5}]})  # a clock that began in 1970
    counts = [
        {"router": "A", "peer": "B", "from_router": True, "direction": "outgoing", "time": START},
        {"peer": "B", "from_router": True, "direction": "outgoing"},
    ]
    events = [{"happening": "credit", "direction": "outgoing", "waited": 5}]
    found = run(spark, tmp_path / "nulls", attempts, counts * 2, events)
    assert found.episodes == []
    assert {(row["measure"], row["address"], row["windows"]) for row in found.series} == {("messages", None, 0)}


def test_counters_grow_since_a_record_of_the_same_day_or_the_day_before(spark: SparkSession, tmp_path: Path) -> None:
    lane = {"router": "A", "epoch": 1, "number": 1, "peer": "B", "from_router": True, "direction": "outgoing"}
    times = [at(day * 86_400) for day in (0, 1, 1.5, 3, 4)]
    counts = [{**lane, "time": time, "deliveries": n, "octets": 100 * n * n} for n, time in enumerate(times)]
    found = run(spark, tmp_path / "days", [], counts, [])
    windows = {row["time"]: row["value"] for row in found.values}
    assert windows == {times[n] // WINDOW * WINDOW: octets for n, octets in ((1, 100), (2, 300), (4, 700))}
