"""The hours in which a router is said not to have recorded all. Without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from amqpmesh.pipeline.sampling import AFTER, ALL, BEFORE, LONGEST, sampled_hours

HOUR = 3_600_000_000_000
HALF = ALL // 2


def row(segment: int, hour: float, until: float | None = None, router: str = "A", **more: Any) -> dict[str, Any]:
    """Return the row of a segment that begins in an hour, with hop records until then."""
    time = int(hour * HOUR)
    last = None if until is None else int(until * HOUR)
    first = None if until is None else time
    whole = {"sample": None, "whole": True, "dropped": 0, "first_time": first, "last_time": last}
    return {"router": router, "epoch": 7, "segment": segment, "time": time, **whole, **more}


def test_where_all_was_recorded_there_is_no_hour() -> None:
    assert sampled_hours([row(each, 100 + each, 101 + each) for each in range(1, 6)]) == {}
    assert sampled_hours([row(3, 100, dropped=5), row(4, 101, dropped=5)]) == {}  # lost before what is known
    assert sampled_hours([row(1, 1, sample=ALL)]) == {}
    assert sampled_hours([]) == {}


def test_a_sample_is_one_in_the_hours_of_its_segments_and_their_counters_and_the_least_share_counts() -> None:
    rows = [row(2, 101, 101.5, sample=HALF), row(1, 100, 100.5), row(3, 105, 105.5)]
    assert sampled_hours(rows) == {hour: {"A": HALF} for hour in range(101 - BEFORE, 105 + AFTER + 1)}
    rows += [row(1, 101, 101.2, "B", sample=7)]
    assert sampled_hours(rows)[101] == {"A": HALF, "B": 7}
    both = [row(1, 100, 100.5, sample=HALF), row(1, 100, 100.5, epoch=8, sample=9)]
    assert sampled_hours(both)[100] == {"A": 9}


@pytest.mark.parametrize(
    ("how", "hours"),
    [
        ({"whole": False}, {102, 103}),
        ({"dropped": 4}, {102, 103}),
        ({"segment": 4}, {101, 102, 103}),
    ],
)
def test_lost_records_are_of_the_hours_of_their_segment(how: dict[str, Any], hours: set[int]) -> None:
    rows = [row(1, 100.1, 100.9), row(2, 101.1, 101.9), {**row(3, 102.1, 102.9), **how}]
    later = row(rows[-1]["segment"] + 1, 103.1, 104.9, dropped=rows[-1]["dropped"])
    found = sampled_hours([*rows, later])
    assert {*found} - {100} == hours
    assert all(each == {"A": ALL} for each in found.values())


def test_a_clock_that_was_changed_fills_no_years() -> None:
    rows = [row(1, 1_000_000, 2_000_000, sample=1, first_time=0)]
    assert len(sampled_hours(rows)) == 2 * LONGEST + 1 + BEFORE + AFTER
