"""The days that depend on new segments, besides those of their deliveries. Without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from amqpmesh.pipeline.day_records import BEFORE, with_stray
from amqpmesh.pipeline.losses_days import judged_otherwise
from amqpmesh.pipeline.passages import SLACK
from amqpmesh.pipeline.published import changed_days, day_name, day_of_name, hours_of, since
from amqpmesh.router.telemetry.segments import Name

DAY = 86_400_000_000_000
WHOLE = 1 << 32
HALF = WHOLE // 2


def test_a_day_has_changed_if_one_of_its_hours_was_written_again_or_is_gone() -> None:
    before = {"2026-05-01T22": "a", "2026-05-02T00": "b", "2026-05-03T05": "c", "2026-05-04T05": "d", "": "e"}
    now = {"2026-05-01T22": "a", "2026-05-02T00": "B", "2026-05-03T05": "c", "2026-05-03T06": "f"}
    assert changed_days(now, before) == {"2026-05-02", "2026-05-03", "2026-05-04"}
    assert hours_of(now, {"2026-05-03", "2026-05-04"}) == {"2026-05-03T05", "2026-05-03T06"}


def test_of_hours_and_days_those_from_an_hour_on_are_left_and_whole_tables() -> None:
    day = day_of_name("2026-05-02")
    assert day_name(day) == "2026-05-02"
    parts = ["", "2026-05-01", "2026-05-02", "2026-05-02T04", "2026-05-02T05", "2026-05-03T00"]
    assert since(parts, day * 24 + 5) == {"", "2026-05-02", "2026-05-02T05", "2026-05-03T00"}
    assert since(parts, 0) == {*parts}


def test_a_segment_is_stray_on_days_that_are_far_from_its_own() -> None:
    name = Name("A", 10**12, 1)
    days = {day_name(20_000 + each) for each in (-30, -2, -1, 0, 1, BEFORE, BEFORE + 1)}
    found = with_stray({day_name(7): ["B"]}, {name: {"time": 20_000 * DAY}}, {name: days}, {name: {day_name(7)}})
    far = {day_name(20_000 + each): [name.file("")] for each in (-30, -2, BEFORE + 1)}
    assert found == {**far, day_name(7): sorted(["B", name.file("")])}
    assert with_stray(found, {name: {"time": 20_000 * DAY}}, {name: days}) == found


@pytest.mark.parametrize(
    ("before", "now", "days"),
    [
        ([[0, 1000, WHOLE]], [[0, 1000, WHOLE]], set()),
        ([[0, 1000, WHOLE]], [[0, 1500, WHOLE]], set()),  # it goes on, and no passage waited for that
        ([[0, 1000, WHOLE]], [[0, 2500, WHOLE]], {"second"}),
        ([[0, 1000, WHOLE]], [[500, 2500, WHOLE]], {"first", "second"}),  # pruned, and goes on
        ([[0, 150, WHOLE]], [[0, 1500, WHOLE]], {"first"}),
        ([[0, 150, WHOLE], [600, 1500, WHOLE]], [[0, 1500, WHOLE]], {"first"}),  # what lay between has come
        ([[0, 3000, WHOLE]], [[0, 3000, HALF]], {"first", "second"}),
        ([], [[2500, 9000, WHOLE]], {"second"}),
        ([[0, 900, WHOLE]], [], {"first"}),
        ([[5000, 9000, WHOLE]], [], set()),
    ],
)  # fmt: skip
def test_a_day_is_judged_again_if_other_things_are_known_of_a_router_at_its_passages(
    before: list[list[int]], now: list[list[int]], days: set[str]
) -> None:
    def later(stretches: list[list[int]]) -> Any:
        return {"B": [[begin + SLACK, end + SLACK, sample] for begin, end, sample in stretches]} if stretches else {}

    def passage(first: int, over: int) -> Any:
        return {"B": [2 * SLACK + first, SLACK + over, 0]}

    passages = {"first": passage(200, 700), "second": passage(2100, 4000), "none": {"C": [SLACK, 5000 + SLACK, 1]}}
    assert judged_otherwise(passages, later(before), later(now)) == days
