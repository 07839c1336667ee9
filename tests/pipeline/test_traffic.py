"""Traffic figures: exact where all was recorded, scaled by counters elsewhere."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from amqpmesh.pipeline.events import spark_schema
from amqpmesh.pipeline.jobs import JOBS
from amqpmesh.pipeline.traffic import (
    CAPACITY,
    LINKS,
    LONGEST,
    LOOK,
    MATRIX,
    TALKERS,
    Windows,
    matrix,
    talkers,
)
from tests.support.data.known_traffic import CROSSING, STAY, Delivery, Known
from tests.support.data.segments import BEGAN, WHOLE_SAMPLE, at
from tests.support.spark.traffic_bench import Bench, window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HALF = WHOLE_SAMPLE // 2
START = window(at(0))
Figures = dict[tuple[Any, ...], tuple[float, float]]


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path)


@pytest.fixture
def sampled(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path, HALF)


def fill(known: Known, count: int) -> None:
    chance = random.Random(9)
    for number in range(count):
        first = known.deliver(
            chance.choice(["A", "AB", "ABC", "EDCBA", "BD"]),
            address=chance.choice(["orders", "stock"]),
            tenant=chance.choice(["", "north"]),
            sender=chance.choice(["shop", "web"]),
            receivers=[chance.choice(["desk", "store", ""])],
        )
        if number % 6 == 0:
            known.deliver("".join(first.ways[0]), attempt=2, first=first)
        if number % 5 == 0:
            known.deliver("ABC", "ABD", receivers=["x", "y"])


def legs(known: Known) -> list[tuple[Delivery, tuple[str, ...], str]]:
    return [(each, *leg) for each in known.deliveries for leg in zip(each.ways, each.receivers, strict=True)]


def summed(amounts: list[tuple[tuple[Any, ...], int]]) -> Figures:
    found: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for key, size in amounts:
        found[key].append(size)
    return {key: (len(sizes), sum(sizes)) for key, sizes in found.items()}


def figures(frame: DataFrame, *columns: str) -> Figures:
    rows = [row.asDict() for row in frame.collect()]
    for row in rows:
        if "window_start" in row:
            row["window_start"] = row["window_start"].astimezone(UTC)
    return {tuple(row[name] for name in columns): (row["messages"], row["bytes"]) for row in rows}


MATRIX_KEY = "window_start", "ingress", "egress", "address", "tenant"


def rounded(found: Mapping[tuple[Any, ...], tuple[float, float]]) -> Figures:
    return {key: (round(messages, 6), round(size, 4)) for key, (messages, size) in found.items()}


def test_the_matrix_is_what_was_sent(bench: Bench) -> None:
    fill(bench.known, 300)
    bench.take()
    expected = summed([
        ((window(each.time), way[0], way[-1] if receiver else None, each.address, each.tenant), each.size)
        for each, way, receiver in legs(bench.known)
    ])  # fmt: skip
    frame = matrix(bench.weighted())
    assert figures(frame, *MATRIX_KEY) == expected
    assert len({key[0] for key in expected}) > 5
    assert {(row["basis"], row["messages"] == row["records"]) for row in frame.collect()} == {("recorded", True)}


def test_talkers_are_senders_and_receivers_of_each_hour(bench: Bench) -> None:
    fill(bench.known, 200)
    bench.take()
    amounts = []
    for each, way, receiver in legs(bench.known):
        amounts.append((("sender", each.sender, way[0], each.address, each.tenant), each.size))
        if receiver:
            amounts.append((("receiver", receiver, way[-1], each.address, each.tenant), each.size))
    frame = talkers(bench.weighted())
    assert figures(frame, "role", "peer", "router", "address", "tenant") == summed(amounts)
    assert {row["window_start"].astimezone(UTC) for row in frame.collect()} == {window(at(0), 3600)}


def test_links_carry_what_crossed_them_once_for_all_receivers_behind(bench: Bench) -> None:
    fill(bench.known, 200)
    bench.take()
    crossed = {
        (each.number, index, way[index], way[index + 1]): (
            (window(each.time + index * (STAY + CROSSING)), way[index], way[index + 1]), each.size,
        )
        for each, way, _ in legs(bench.known)
        for index in range(len(way) - 1)
    }  # fmt: skip
    rows = bench.links().collect()
    assert figures(bench.links(), "window_start", "router", "peer") == summed(list(crossed.values()))
    assert max(row["use"] for row in rows) == 1.0
    most = max(row["bytes"] for row in rows)
    assert all(row["use"] == pytest.approx(row["bytes"] / most) and row["relative"] for row in rows)
    assert all(row["bytes_per_second"] == pytest.approx(row["bytes"] / 60) for row in rows)


def test_use_is_of_the_capacity_that_is_scarcer(bench: Bench) -> None:
    for _ in range(60):
        bench.known.deliver("ABC", seconds=0, size=1_000)
    bench.take()
    rows = [("A", "B", 10.0, 2_000.0), ("B", "C", None, None)]
    capacity = bench.spark.createDataFrame(rows, CAPACITY)
    told = {
        (row["router"], row["peer"]): (row["use"], row["relative"]) for row in bench.links(capacity=capacity).collect()
    }
    assert told == {("A", "B"): (0.5, False), ("B", "C"): (1.0, True)}
    scarce = bench.spark.createDataFrame([("A", "B", 2.0, 2_000.0)], CAPACITY)
    assert {row["use"] for row in bench.links(capacity=scarce).collect() if row["router"] == "A"} == {0.5}


def test_windows_may_be_of_other_lengths(bench: Bench) -> None:
    for seconds in (0, 100, 700, 3_700):
        bench.known.deliver("A", seconds=seconds, size=1)
    bench.take()
    frame = matrix(bench.weighted(Windows(3_600)))
    assert sorted(figures(frame, "window_start").values()) == [(1, 1), (3, 3)]


def test_a_sample_is_scaled_to_what_was_counted(sampled: Bench) -> None:
    for number in range(40):
        sampled.known.deliver("AB", seconds=number / 4, sampled=number % 2 == 0, size=100)
    for number in range(10):
        sampled.known.deliver("AC", seconds=number / 4, sampled=number < 5, size=100)
    # 50 messages entered at A in that minute, of which 25 are recorded; its links to others carried what they carried.
    begin = (START - datetime.fromtimestamp(BEGAN / 1000, UTC)).total_seconds()
    sampled.count("A", "shop", "incoming", (begin, 0, 0), (begin + 60, 50, 5_000))
    sampled.count("A", "B", "outgoing", (begin, 0, 0), (begin + 60, 40, 4_000), number=2)
    sampled.count("A", "C", "outgoing", (begin, 0, 0), (begin + 60, 10, 1_000), number=3)
    sampled.count("A", "desk", "outgoing", (begin, 0, 0), (begin + 60, 99, 9_900), number=4)
    sampled.take()
    frame = matrix(sampled.weighted())
    assert rounded(figures(frame, "egress", "address")) == {("B", "orders"): (40, 4_000), ("C", "orders"): (10, 1_000)}
    assert {row["basis"] for row in frame.collect()} == {"scaled"}
    links = [row for row in sampled.links().collect() if row["window_start"].astimezone(UTC) == START]
    assert {(row["peer"], row["messages"], row["bytes"], row["basis"]) for row in links} == {
        ("B", 40.0, 4_000.0, "counted"), ("C", 10.0, 1_000.0, "counted")
    }  # fmt: skip


def test_a_sample_without_counts_is_scaled_by_its_share(sampled: Bench) -> None:
    for number in range(40):
        sampled.known.deliver("AB", seconds=number / 4, sampled=number % 2 == 0, size=100)
    sampled.take()
    assert rounded(figures(matrix(sampled.weighted()), "egress")) == {("B",): (40, 4_000)}
    (row,) = sampled.links().collect()
    assert (row["messages"], row["bytes"], row["basis"]) == (40, 4_000, "scaled")


def test_what_entered_and_was_not_recorded_at_all_is_told(sampled: Bench) -> None:
    sampled.known.deliver("AB", sampled=False)
    sampled.count("A", "shop", "incoming", (0, 8, 800))
    sampled.take()
    (row,) = matrix(sampled.weighted()).collect()
    assert (row["ingress"], row["egress"], row["messages"], row["bytes"], row["records"], row["basis"]) == (
        "A", None, 8.0, 800.0, 0, "counted"
    )  # fmt: skip


def test_retries_and_ways_of_multicast_are_no_messages_that_entered(sampled: Bench) -> None:
    first = sampled.known.deliver("AB", seconds=0, size=10)
    sampled.known.deliver("AB", seconds=0, attempt=2, first=first, size=10)
    sampled.known.deliver("AB", "AC", seconds=0, receivers=["x", "y"], size=10)
    sampled.count("A", "shop", "incoming", (0, 4, 40))  # twice as many as are recorded
    sampled.take()
    assert rounded(figures(matrix(sampled.weighted()), "egress")) == {("B",): (6, 60), ("C",): (2, 20)}


def test_a_router_that_lost_records_is_scaled_and_others_are_not(bench: Bench) -> None:
    for router in "AC":
        for _ in range(4):
            bench.known.deliver(router, seconds=0, size=10)
        bench.count(router, "shop", "incoming", (0, 6, 60))
    bench.known.recorders["A"].lose(2)
    bench.take()
    found = {row["ingress"]: (row["messages"], row["basis"]) for row in matrix(bench.weighted()).collect()}
    assert found == {"A": (6.0, "scaled"), "C": (4.0, "recorded")}


@pytest.mark.parametrize("how", ["torn", "missing"])
def test_figures_of_a_router_whose_segments_are_not_all_there_are_not_said_to_be_exact(bench: Bench, how: str) -> None:
    for router in "AC":
        bench.known.deliver(router, seconds=0)
    bench.known.close(3)
    path = sorted((bench.root / "events" / "A").iterdir())[1]
    if how == "torn":
        path.write_bytes(path.read_bytes()[:-10])
    else:
        path.unlink()
    bench.take()
    found = {row["ingress"]: row["basis"] for row in matrix(bench.weighted()).collect()}
    assert found == {"A": "scaled", "C": "recorded"}


def test_what_is_counted_is_spread_over_the_time_between_two_looks(sampled: Bench) -> None:
    begin = (START - datetime.fromtimestamp(BEGAN / 1000, UTC)).total_seconds()
    sampled.count("A", "shop", "incoming", (begin + 30, 0, 0), (begin + 150, 120, 1_200))
    sampled.known.recorders["A"].close()
    sampled.count("A", "shop", "incoming", (begin + 151, 5, 50), since=at(begin + 150))
    sampled.take()
    expected = {
        (START,): (30, 300),
        (START + timedelta(minutes=1),): (60, 600),
        (START + timedelta(minutes=2),): (30 + 5, 300 + 50),  # a counter that is lower has begun anew
    }
    assert rounded(figures(matrix(sampled.weighted()), "window_start")) == expected
    span = Windows(since=START + timedelta(seconds=60), until=START + timedelta(seconds=90))
    found = rounded(figures(matrix(sampled.weighted(span)), "window_start"))
    assert found == {(START + timedelta(minutes=1),): (30, 300)}


def test_what_a_link_has_counted_came_after_the_look_before_or_if_it_is_the_first_just_before_it(
    sampled: Bench,
) -> None:
    begin = (START - datetime.fromtimestamp(BEGAN / 1000, UTC)).total_seconds()
    sampled.count("A", "shop", "incoming", (begin + 600 + 30, 6, 60), since=at(begin + 600 - 30))
    sampled.count("A", "web", "incoming", (begin + 600 + LOOK / 2, 4, 40), number=2)
    sampled.take()
    found = rounded(figures(matrix(sampled.weighted()), "window_start"))
    assert found == {(START + timedelta(minutes=each),): (3 + 2, 30 + 20) for each in (9, 10)}


def test_what_was_counted_before_the_first_segment_that_is_left_is_of_another_time(sampled: Bench) -> None:
    sampled.known.close(1)
    for path in (sampled.root / "events").rglob("*.events"):
        path.unlink()
    sampled.count("A", "shop", "incoming", (0, 1_000_000, 1), (10, 1_000_003, 4), since=at(-10))
    sampled.known.recorders["A"].close()
    sampled.count("A", "web", "incoming", (20, 2, 2), number=9)
    sampled.take()
    assert sum(
        messages for messages, _ in figures(matrix(sampled.weighted()), "window_start").values()
    ) == pytest.approx(5)


def test_what_a_link_counts_first_in_a_later_segment_has_come_since_the_look_before(sampled: Bench) -> None:
    sampled.known.close(1)
    sampled.count("A", "shop", "incoming", (70, 6, 60), since=at(60))
    sampled.take()
    found = figures(matrix(sampled.weighted()), "window_start").values()
    assert sum(messages for messages, _ in found) == pytest.approx(6)


def test_a_clock_that_is_set_back_doubles_nothing_and_one_that_is_set_at_last_fills_no_years(sampled: Bench) -> None:
    looks = (100, 1_000, 10), (160, 2_000, 20), (110, 3_000, 30)
    sampled.count("A", "shop", "incoming", *looks, since=at(90))
    sampled.count("A", "web", "incoming", (200, 50, 50), number=2, since=0)
    sampled.take()
    found = figures(matrix(sampled.weighted()), "window_start")
    assert sum(messages for messages, _ in found.values()) == pytest.approx(3_050)
    assert len(found) <= LONGEST / 60 + 2


def test_the_job_writes_three_tables_and_shows_the_busiest(bench: Bench) -> None:
    fill(bench.known, 60)
    bench.known.close()
    for name in ("ingest", "deliveries"):
        JOBS[name].load()(bench.work)
    done = JOBS["traffic"].load()(bench.work)
    for name, columns in (("matrix", MATRIX), ("talkers", TALKERS), ("links", LINKS)):
        assert bench.work.read(f"traffic/{name}").schema == spark_schema(columns)
    everything = legs(bench.known)
    assert done.rows == bench.work.read("traffic/matrix").count()
    assert done.figures == {
        "messages": len(everything), "bytes": sum(each.size for each, _, _ in everything), "of the routers' own": 0,
        "rows not exact": 0, "records read": done.figures["records read"], "hours written": 1
    }  # fmt: skip
    assert [shown.title for shown in done.tables] == ["busiest senders", "busiest receivers", "busiest links"]
    assert all(shown.rows for shown in done.tables)
    assert done.tables[2].rows[0][-1] == 1.0


def test_without_traffic_there_are_no_rows(bench: Bench) -> None:
    bench.known.close()
    for name in ("ingest", "deliveries", "traffic"):
        done = JOBS[name].load()(bench.work)
    assert (done.rows, done.figures["messages"]) == (0, 0)
    assert all(shown.rows == () for shown in done.tables)
