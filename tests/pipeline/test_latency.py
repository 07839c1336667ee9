"""Latencies, their shares, and clock offsets, compared with a mesh that is known."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from amqpmesh.pipeline import latency
from amqpmesh.pipeline.clock_offsets import INCONSISTENT, ONE_WAY
from amqpmesh.pipeline.clocks import MINUTE, STAMP, WINDOW, corrected, estimated, running, windows_of
from amqpmesh.pipeline.latency import TABLES, addresses, hops, shares
from amqpmesh.pipeline.latency import links as link_table
from amqpmesh.pipeline.latency_hours import job, with_other_windows
from amqpmesh.pipeline.latency_times import CLASSES, times
from amqpmesh.pipeline.latency_times import parts as parts_of
from amqpmesh.pipeline.published import hour_name
from amqpmesh.pipeline.work import Done, Work
from tests.support.data.attempts import Way, frame
from tests.support.data.segments import at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MS = 1_000_000
START = at(0) // WINDOW * WINDOW
CLOCKS: dict[str, Callable[[int], float]] = {
    "A": lambda _: 0,
    "B": lambda time: 250 * MS + 20e-6 * (time - START),
    "C": lambda time: -3_000 * MS - 10e-6 * (time - START),
    "D": lambda _: 40 * MS,
}
WAYS = ("ABC", "CBA", "ABD", "AB", "B")


def ways(count: int = 4_000, seed: int = 1) -> list[Way]:
    """Return a minute of traffic: a link takes 0.2 ms at least, and one of B and C asymmetrically more."""
    chance = random.Random(seed)

    def over(one: str, other: str) -> int:
        least = 900_000 if (one, other) == ("B", "C") else 200_000
        return least + int(chance.expovariate(1 / 300_000))

    found = []
    for _ in range(count):
        path = chance.choice(WAYS)
        steps = list(pairwise(path))
        found.append(
            Way(
                sent=START + chance.randrange(60_000 * MS),
                path=path,
                stays=[20_000 + int(chance.expovariate(1 / 50_000)) for _ in path],
                there=[over(*step) for step in steps],
                back=[over(other, one) for one, other in steps],
                waits=int(chance.expovariate(1 / 2_000_000)),
                outcome=chance.choice(("accepted", "accepted", "accepted", "rejected")),
                address=f"to-{path[-1]}",
                size=chance.choice((100, 10_000)),
            )
        )
    return found


class Result(NamedTuple):
    ways: list[Way]
    done: Done
    tables: dict[str, list[dict[str, Any]]]


def run(spark: SparkSession, out: Path, attempts: DataFrame) -> Result:
    work = Work(spark, (), str(out))
    work.write("deliveries/attempts", attempts)
    done = job(work)
    return Result([], done, {name: [row.asDict() for row in work.read(f"latency/{name}").collect()] for name in TABLES})


def rows(ways: Iterable[Way]) -> list[dict[str, Any]]:
    return [way.row(number, CLOCKS) for number, way in enumerate(ways)]


@pytest.fixture(scope="module")
def result(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Result:
    known = ways()
    return run(spark, tmp_path_factory.mktemp("latency"), frame(spark, rows(known)))._replace(ways=known)


def rank(values: list[int], share: float) -> tuple[int, int]:
    """Between which two values a percentile of these is: the nearest rank, and the end of its class."""
    ordered = sorted(values)
    nearest = ordered[max(0, -(-round(len(ordered) * share * 100) // 100) - 1)]
    return nearest, max(each for each in ordered if each <= nearest * math.exp(1 / CLASSES))


def test_the_true_clocks_are_within_the_error_in_every_window(result: Result) -> None:
    found = result.tables["clocks"]
    assert {row["problem"] for row in found} == {None}
    assert {(row["router"], row["against"]) for row in found if row["is_reference"]} == {(each, "A") for each in "ABCD"}
    worst = 0
    for row in found:
        middle = row["window_start"] + row["window_ns"] // 2
        true = CLOCKS[row["router"]](middle) - CLOCKS[row["against"]](middle)
        assert abs(row["offset_ns"] - true) <= row["error_ns"]
        worst = max(worst, row["error_ns"])
    assert worst < 2.5 * MS  # seconds apart, and known within what the links take at least


def test_latencies_by_address_are_true_within_the_error(result: Result) -> None:
    true = defaultdict(list)
    for way in result.ways:
        true[way.address].append(sum(way.stays) + sum(way.there))
    found = {row["address"]: row for row in result.tables["addresses"]}
    assert set(found) == set(true)
    for address, row in found.items():
        assert row["deliveries"] == row["answered"] == len(true[address])
        assert row["unknown"] == 0
        for name, share in latency.PERCENTILES.items():
            low, high = rank(true[address], share)
            assert low - row["error_ns"] <= row[f"{name}_ns"] <= high + row["error_ns"]
    assert found["to-A"]["error_ns"] < 3 * MS


def test_what_one_clock_has_measured_is_exact(result: Result) -> None:
    stays, waited = defaultdict(list), defaultdict(list)
    outcome = defaultdict(list)
    for way in result.ways:
        for router, stay in zip(way.path, way.stays, strict=True):
            stays[router].append(stay)
        for hop, router in enumerate(way.path):
            waited[router].append(sum(way.there[hop:]) + sum(way.stays[hop + 1 :]) + way.waits + sum(way.back[hop:]))
        outcome[way.address].append(sum(way.stays) + sum(way.there) + way.waits + sum(way.back))
    for row in result.tables["hops"]:
        assert row["deliveries"] == len(stays[row["router"]])
        assert row["max_ns"] == max(stays[row["router"]])
        assert row["outcome_max_ns"] == max(waited[row["router"]])
        for name, share in latency.PERCENTILES.items():
            low, high = rank(stays[row["router"]], share)
            assert low <= row[f"{name}_ns"] <= high
    for row in result.tables["addresses"]:
        low, high = rank(outcome[row["address"]], 0.5)
        assert low <= row["outcome_p50_ns"] <= high
        assert row["outcome_max_ns"] == max(outcome[row["address"]])


def test_links_are_true_within_the_error_and_round_trips_exactly(result: Result) -> None:
    there, both = defaultdict(list), defaultdict(list)
    for way in result.ways:
        for hop, step in enumerate(pairwise(way.path)):
            there[step].append(way.there[hop])
            both[step].append(way.there[hop] + way.back[hop])
    lanes = {(row["from_router"], row["to_router"]): row for row in result.tables["links"] if row["to_router"]}
    assert set(lanes) == set(there)
    for step, row in lanes.items():
        assert row["deliveries"] == row["answered"] == len(there[step])
        assert row["round_trip_max_ns"] == max(both[step])
        for name, share in latency.PERCENTILES.items():
            low, high = rank(there[step], share)
            assert low - row["error_ns"] <= row[f"{name}_ns"] <= high + row["error_ns"]
            low, high = rank(both[step], share)
            assert low <= row[f"round_trip_{name}_ns"] <= high
    last = [row for row in result.tables["links"] if row["to_router"] is None]
    assert sum(row["deliveries"] for row in last) == len(result.ways)
    waits = [way.waits for way in result.ways if way.path[-1] == "C"]
    (row,) = (row for row in last if row["from_router"] == "C")
    assert row["round_trip_max_ns"] == max(waits)
    assert (row["receiver"], row["link"], row["p50_ns"], row["error_ns"]) == ("receiver", "in", None, None)


def test_the_parts_are_all_the_time_there_is(result: Result) -> None:
    total: dict[Any, int] = defaultdict(int)
    receiver: dict[Any, int] = defaultdict(int)
    links: dict[Any, int] = defaultdict(int)
    for way in result.ways:
        total[way.address] += sum(way.stays) + sum(way.there) + way.waits + sum(way.back)
        receiver[way.address, way.path[-1]] += way.waits
        links[way.address] += sum(way.there) + sum(way.back)
    found = result.tables["shares"]
    for address, true in total.items():
        mine = [row for row in found if row["address"] == address]
        assert sum(row["total_ns"] for row in mine) == true
        assert sum(row["share"] for row in mine) == pytest.approx(1)
        between = sum(row["total_ns"] for row in mine if row["part"] in ("link", "return"))
        assert between == links[address]  # whatever the clocks
    for row in found:
        if row["part"] == "receiver":
            assert row["total_ns"] == receiver[row["address"], row["from_router"]]


def test_the_parts_are_what_the_ingress_router_saw_however_it_ended(spark: SparkSession) -> None:
    apart = {"B": lambda _: 250 * MS}
    told = Way(START, "AB", (10, 20), (3 * MS,), (2 * MS,), 7 * MS)
    made = [told.row(0, apart)]
    for number, outcome in enumerate(("rejected", "released", "modified"), start=1):
        way = Way(START + number, "AB", (10, 20), (3 * MS,), (2 * MS,), 7 * MS, outcome, address=outcome)
        made.append(way.row(number, apart))
    # B keeps one until its ttl is over; A gives one up, which B has sent on, and is still to hear of.
    late = Way(START + 4, "AB", (10, 20), (3 * MS,), (2 * MS,), 7 * MS, "expired", address="expired").row(4, apart)
    late["hops"][1] |= {"in_router_ns": None, "outcome_after_ns": 40 * MS}
    late["hops"][0]["outcome_after_ns"] = late["outcome_after_ns"] = 10 + 3 * MS + 40 * MS + 2 * MS
    late |= {"egress": None, "receiver": None, "latency_ns": None}
    lost = Way(START + 5, "AB", (10, 20), (3 * MS,), (2 * MS,), 7 * MS, "modified", address="lost").row(5, apart)
    lost["hops"][0]["outcome_after_ns"] = lost["outcome_after_ns"] = 30 * MS
    lost["hops"][1] |= {"outcome": "none", "outcome_after_ns": None}
    attempts = frame(spark, [*made, late, lost])
    rows = shares(parts_of(corrected(attempts, running(estimated(attempts))))).collect()
    for each in (*made, late, lost):
        mine = {(row["part"], row["from_router"]): row for row in rows if row["address"] == each["address"]}
        assert sum(row["total_ns"] for row in mine.values()) == each["outcome_after_ns"], each["address"]
        assert {row["deliveries"] for row in mine.values()} == {1}
        assert mine["router", "A"]["total_ns"] == 10
        parts = {"expired": {"router", "link", "return"}, "lost": {"router", "link", "lost"}}
        assert {part for part, _ in mine} == parts.get(each["address"], {"router", "link", "receiver", "return"})
        if each["address"] not in parts:
            assert mine["receiver", "B"]["total_ns"] == 7 * MS
    assert {row["total_ns"] for row in rows if row["part"] == "router" and row["address"] == "expired"} == {10, 40 * MS}


def test_the_summary_says_what_was_found(result: Result) -> None:
    figures = result.done.figures
    assert figures["deliveries"] == len(result.ways)
    assert (figures["without clocks"], figures["inconsistent"]) == (0, 0)
    assert result.done.rows == sum(len(rows) for rows in result.tables.values())
    slow, where, apart = result.done.tables
    assert {row[0] for row in slow.rows} == {"to-A", "to-B", "to-C", "to-D"}
    assert where.rows[0][:2] == ("receiver", "B")
    assert apart.rows[0][:2] == ("C", "A")
    assert apart.rows[0][2] == pytest.approx(-3_000, abs=3)


def test_nothing_recorded_is_nothing_found(spark: SparkSession, tmp_path: Path) -> None:
    found = run(spark, tmp_path, frame(spark, []))
    assert all(not rows for rows in found.tables.values())
    assert found.done.rows == 0
    assert [table.rows for table in found.done.tables] == [(), (), ()]


def test_what_cannot_be_compared_is_taken_as_it_is_and_said(spark: SparkSession) -> None:
    known = [
        Way(START, "AB", (10, 20), (5 * MS,), (0,), None),  # nothing comes back
        Way(START + MS, "CD", (10, 20), (5 * MS,), (5 * MS,)),
        Way(START + 2 * MS, "CD", (10, 20), (5 * MS,), (5 * MS,)),
    ]
    made = [way.row(number, {"B": lambda _: 250 * MS}) for number, way in enumerate(known)]
    made[2]["hops"][1]["arrived_ns"] -= 60 * MS  # D was set back meanwhile
    made[2]["latency_ns"] -= 60 * MS
    attempts = frame(spark, made)
    found = estimated(attempts)
    timed = corrected(attempts, running(found))
    problems = {(row["against"], row["router"]): row["problem"] for row in found.collect()}
    assert problems == {("A", "B"): ONE_WAY, ("C", "D"): INCONSISTENT}
    (row,) = addresses(times(timed)).collect()
    assert (row["deliveries"], row["unknown"], row["error_ns"]) == (3, 3, None)
    assert row["max_ns"] == made[0]["latency_ns"]
    (lane,) = (row for row in link_table(times(timed), found).collect() if row["to_router"] == "B")
    assert lane["max_ns"] == 255 * MS
    assert (lane["unknown"], lane["answered"], lane["error_ns"]) == (1, 0, None)


def test_what_takes_less_than_nothing_is_said(spark: SparkSession) -> None:
    # Its last frame leaves A long after its first has come to B.
    large = Way(START, "AB", (50 * MS, 10), (-40 * MS,), (MS,), size=10_000_000)
    small = [Way(START + each, "AB", (10, 10), (MS,), (MS,)) for each in range(9)]
    attempts = frame(spark, [way.row(number, {}) for number, way in enumerate([large, *small])])
    found = estimated(attempts)
    timed = corrected(attempts, running(found))
    (row,) = (row for row in link_table(times(timed), found).collect() if row["to_router"] == "B")
    assert (row["deliveries"], row["negative"], row["unknown"]) == (10, 1, 0)
    (row,) = addresses(times(timed)).collect()
    assert (row["negative"], row["max_ns"] > 10 * MS) == (0, True)


def test_nulls_are_passed_over(spark: SparkSession) -> None:
    whole = Way(START, "AB", (10, 20), (MS,), (MS,)).row(0, {})
    bare = {**whole, "address": None, "tenant": None, "outcome": None, "latency_ns": None, "receiver": None}
    hop = {"router": "A", "arrived_ns": START, "in_router_ns": None, "outcome_after_ns": None}
    unsent = {**bare, "hops": [hop], "path": ["A"], "egress": None}
    torn = {**bare, "hops": [hop, {**hop, "router": "B"}]}
    attempts = frame(spark, [unsent, torn, {**torn, "outcome": "accepted"}, {**whole, "size": None}])
    found = estimated(attempts)
    timed = corrected(attempts, running(found))
    assert {row["router"] for row in found.collect()} == {"A", "B"}
    assert {row["router"]: row["deliveries"] for row in hops(times(timed)).collect()} == {"A": 1, "B": 1}
    assert {row["address"] for row in addresses(times(timed)).collect()} == {"orders"}
    assert {row["address"] for row in shares(parts_of(timed)).collect()} == {"orders"}
    assert sum(row["deliveries"] for row in link_table(times(timed), found).collect()) == 4


def test_a_stamp_that_is_a_little_wrong_is_no_contradiction(spark: SparkSession) -> None:
    one = Way(START, "AB", (0, 0), (0,), (0,)).row(0, {})
    one["hops"][1]["arrived_ns"] -= STAMP
    assert {row["problem"] for row in estimated(frame(spark, [one])).collect()} == {None}


def test_a_day_has_other_windows_once_more_than_some_hours_of_it_are_recorded() -> None:
    hour = 3600 * 1000 * MS
    day = hour_name(0)[:10]
    few = {hour_name(each): [each * hour, (each + 1) * hour, 1] for each in (0, 2)}
    more = {hour_name(each): [each * hour, (each + 1) * hour, 1] for each in (4, 30)}
    assert windows_of(few) == {day: WINDOW}
    assert windows_of({**few, **more}) == {day: MINUTE, hour_name(30)[:10]: WINDOW}
    assert with_other_windows(few, {}) == set()
    assert with_other_windows({**few, **more}, few) == {hour_name(each) for each in (0, 2, 4)}
    assert with_other_windows(few, {**few, **more}) == {*few}  # some of it was removed
