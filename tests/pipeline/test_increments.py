"""The segments that a run reads again: all that have records of the same deliveries, and few others. Without Spark."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

from amqpmesh.pipeline.increments import Increment, Segment, converted, increment, ranges
from amqpmesh.pipeline.ingest import ingest
from tests.support.data.known_traffic import Known
from tests.support.spark.stub import Session

HOUR = 3600.0


class Place:
    """Routers, of whose segments those are converted that have arrived."""

    def __init__(self, root: Path) -> None:
        self.events, self.waiting, self.out = root / "events", root / "waiting", root / "out"
        self.events.mkdir()
        self.known = Known(self.waiting, "ABC")
        self.state: Mapping[str, Any] = {}

    def deliver(self, way: str, count: int, hour: float = 0) -> list[Path]:
        """Record deliveries, and close the segments. Returns: these."""
        before = {*self.waiting.rglob("*.events")}
        for _ in range(count):
            self.known.deliver(way, seconds=hour * HOUR)
        self.known.close(1)
        return sorted({*self.waiting.rglob("*.events")} - before)

    def arrive(self, *paths: Path, version: int = 1) -> Increment:
        """Convert segments. Returns: what is to be read then; the next call takes that as read."""
        for path in paths:
            path.rename(self.events / path.name)
        ingest(cast(Any, Session()), [str(self.events)], str(self.out))
        step = increment(converted(str(self.out)), self.state, version)
        self.state = step.state
        return step


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def names(segments: list[Segment]) -> list[str]:
    return sorted(each.name for each in segments)


def stems(paths: list[Path]) -> list[str]:
    return sorted(path.stem for path in paths)


@pytest.mark.parametrize("history", [1, 6])
def test_what_is_read_does_not_depend_on_how_much_was_read_before(place: Place, history: int) -> None:
    for hour in range(history):
        step = place.arrive(*place.deliver("ABC", 10, hour))
        assert (len(step.new), step.again, step.is_whole) == (3, [], hour == 0)
    step = place.arrive(*place.deliver("AB", 4, history))
    assert (len(step.new), step.again, step.is_whole) == (3, [], False)
    assert step.hops == 8
    assert len(step.state["segments"]) == 3 * history + 3
    step = place.arrive()
    assert (step.new, step.again, step.is_whole, step.hops) == ([], [], False, 0)


def test_a_late_segment_is_read_with_those_that_have_records_of_the_same_deliveries(place: Place) -> None:
    first, second, third = (place.deliver("ABC", 5, hour) for hour in (9, 1, 5))  # clocks may say anything
    step = place.arrive(*first, second[0], second[2], *third)
    step = place.arrive(second[1])
    assert (names(step.new), names(step.again)) == (stems([second[1]]), stems([second[0], second[2]]))
    assert step.hops == 15


def test_a_segment_that_changes_has_all_read_and_so_has_one_that_is_gone(place: Place) -> None:
    first, second = (place.deliver("A", 5) for _ in range(2))
    place.arrive(*first, *second)
    path = place.events / first[0].name
    path.write_bytes(path.read_bytes()[:-20])
    step = place.arrive()
    assert (step.is_whole, len(step.new), step.again) == (True, 6, [])
    (gone,) = (place.out / "segments").glob(f"{second[0].stem}*")
    gone.unlink()
    path.unlink()
    (place.events / second[0].name).unlink()
    step = place.arrive()
    assert (step.is_whole, len(step.new)) == (True, 5)


def test_tables_of_another_version_are_made_from_all(place: Place) -> None:
    place.arrive(*place.deliver("A", 5))
    step = place.arrive(version=2)
    assert (step.is_whole, len(step.new)) == (True, 3)
    assert not place.arrive(version=2).is_whole


def test_the_ranges_of_a_file_are_those_of_its_keys(place: Place) -> None:
    place.deliver("A", 3)
    paths = place.deliver("AB", 2) + place.deliver("CB", 4)
    place.arrive(*paths)
    (each,) = (
        each for each in converted(str(place.out)).values() if each.path and each.hops == 4 and "B." in each.name
    )
    (life,) = ranges(each.path)
    assert life == (3).to_bytes(8, "big").hex() + life[16:]
    assert ranges(each.path)[life] == ("000000000006", "000000000009")


@pytest.mark.parametrize("seed", range(4))
def test_all_records_of_a_delivery_are_read_together_in_whatever_order_they_come(place: Place, seed: int) -> None:
    chance = random.Random(seed)
    paths = []
    for _ in range(6):
        for _ in range(chance.randrange(1, 12)):
            place.known.deliver(chance.choice(["A", "AB", "ABC", "CBA", "BC"]))
        before = {*place.waiting.rglob("*.events")}
        place.known.close(chance.choice([1, 2]))
        paths += sorted({*place.waiting.rglob("*.events")} - before)
    chance.shuffle(paths)
    while paths:
        size = chance.randrange(1, 9)
        some, paths = paths[:size], paths[size:]
        read_before = {*place.state.get("segments", ())}
        step = place.arrive(*some)
        assert {*names(step.new)} == {path.stem for path in some}
        segments = converted(str(place.out))
        keys = {name: _keys(each) for name, each in segments.items()}
        new = {key for name in names(step.new) for key in keys[name]}
        needed = {name for name in read_before if keys[name] & new}
        assert needed <= {*names(step.again)} <= read_before
        assert {*names(step.again)} == {name for name in read_before if _meets(segments[name], step.new)}


def _keys(segment: Segment) -> set[bytes]:
    return {*pq.read_table(segment.path, columns=["key"])["key"].to_pylist()} if segment.path else set()


def _meets(known: Segment, new: list[Segment]) -> bool:
    """Tell if the counters of a segment overlap those of one of several, for some life of a router."""
    first, *others = [ranges(each.path) if each.path else {} for each in (known, *new)]
    return any(
        first[life][0] <= each[life][1] and each[life][0] <= first[life][1]
        for each in others
        for life in first.keys() & each.keys()
    )
