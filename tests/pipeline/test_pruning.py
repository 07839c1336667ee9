"""Removal of what is old: what stays, what is not converted again, and a removal that is killed. Without Spark."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqpmesh.pipeline import known_segments
from amqpmesh.pipeline.increments import converted, increment
from amqpmesh.pipeline.ingest import Ingested, ingest
from amqpmesh.pipeline.pruning import FILE, Removed, prune, pruned
from amqpmesh.pipeline.published import WHOLE, Result, fresh, hour_name, load, publish
from amqpmesh.pipeline.result_rows import select
from amqpmesh.pipeline.segment_rows import segment_rows
from amqpmesh.pipeline.work import Done, Selection
from amqpmesh.router.amqp.errors import CommandError
from tests.support.data.known_traffic import Known
from tests.support.data.segments import BEGAN
from tests.support.spark.stub import Session

FIRST = BEGAN // 3_600_000
"""The hour in which all begins, since 1970."""


def at(hours: float) -> datetime:
    return datetime.fromtimestamp((FIRST + hours) * 3600, UTC)


class Place:
    """A router with a segment for each of six hours, and the rows of its deliveries."""

    def __init__(self, root: Path) -> None:
        self.events, self.out = root / "events", root / "out"
        self.known = Known(self.events, ".A")
        self.files = [self.record(hour) for hour in range(6)]
        self.convert()
        state = increment(converted(str(self.out / "ingest")), {}, 1).state
        hours = {hour_name(FIRST + each): each for each in range(6)}
        attempts = {part: self.write("attempts", hour) for part, hour in hours.items()}
        quarantine = {hour_name(FIRST + 1): self.write("quarantine", 1)}
        tables = {"deliveries/attempts": attempts, "deliveries/quarantine": quarantine}
        counted = {part: {"rows": 1} for part in hours}
        publish(str(self.out), "deliveries", Result("x", asdict(Done(6)), tables, {**state, "hours": counted}))

    def record(self, hour: int) -> Path:
        """Record a delivery of an hour. Returns: the closed segment, last written then."""
        before = {*self.events.rglob("*.events")}
        self.known.deliver("A", seconds=3600 * hour)
        self.known.close(1)
        new = {*self.events.rglob("*.events")} - before
        for each in new:
            os.utime(each, ((FIRST + hour + 0.5) * 3600,) * 2)
        return next(each for each in new if each.name[0] == "A")

    def convert(self) -> Ingested:
        return ingest(cast(Any, Session()), [str(self.events)], str(self.out / "ingest"))

    def write(self, table: str, hour: int) -> str:
        directory = fresh(f"deliveries/{table}")
        (self.out / directory).mkdir(parents=True)
        pq.write_table(pa.table({"sent_at": [hour]}), self.out / directory / "part-0.parquet")
        return directory

    def hops(self) -> int:
        return sum(pq.read_metadata(path).num_rows for path in (self.out / "ingest/hops").rglob("*.parquet"))

    def shown(self, table: str) -> list[int]:
        rows = select(str(self.out), table, Selection(), ["sent_at"]).rows
        return [datetime.fromisoformat(row["sent_at"]).microsecond for row in rows]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def parts(place: Place, table: str) -> list[str]:
    return sorted(load(str(place.out)).parts(f"deliveries/{table}") or ())


def test_what_was_last_written_before_a_time_is_removed_and_not_converted_again(place: Place) -> None:
    assert prune(str(place.out), at(3.2)) == Removed(6, 3)  # of both routers; the third hour is not over
    assert place.hops() == 3
    assert parts(place, "attempts") == [hour_name(FIRST + each) for each in (3, 4, 5)]
    assert parts(place, "quarantine") == [WHOLE]
    assert select(str(place.out), "deliveries/quarantine", Selection(), ["sent_at"]).rows == []
    result = place.convert()
    assert (result.converted, result.rows["hops"], place.hops()) == (0, 3, 3)
    assert "missing" not in result.problems
    state = load(str(place.out)).jobs["deliveries"].state
    assert [*state["hours"]] == parts(place, "attempts")
    step = increment(converted(str(place.out / "ingest")), state, 1)
    assert (step.is_whole, step.new) == (False, [])
    assert prune(str(place.out), at(3.2)) == Removed(0, 0)
    assert prune(str(place.out), at(1)) == Removed(0, 0)
    assert pruned(place.out / "ingest").hour == FIRST + 3


def test_new_segments_are_converted_as_before(place: Place) -> None:
    prune(str(place.out), at(100))
    assert place.hops() == 0
    place.record(6)
    result = place.convert()
    assert (result.converted, place.hops()) == (2, 1)


def test_jobs_that_keep_what_they_have_read_miss_no_segment(place: Place) -> None:
    rows = segment_rows(place.out / "ingest")
    some = {name: row for name, row in rows.items() if name.segment < 6}
    changed = {name: {**row, "whole": not row["whole"]} for name, row in some.items()}
    for job, known in (("traffic", some), ("losses", changed)):
        publish(
            str(place.out),
            job,
            Result("x", asdict(Done(1)), {}, {"known": vars(known_segments.Known.of(known)), "more": 1}),
        )
    prune(str(place.out), at(3))
    told = load(str(place.out)).jobs
    left = segment_rows(place.out / "ingest")
    assert known_segments.Known(**told["traffic"].state["known"]) == known_segments.Known.of(
        {name: left[name] for name in left if name in some}
    )
    assert (told["traffic"].input, told["traffic"].state["more"]) == ("", 1)
    assert known_segments.Known(**told["losses"].state["known"]) == known_segments.Known.of(
        changed
    )  # it has to read all again in any case


def test_a_segment_that_was_written_to_late_keeps_those_behind_it(place: Place) -> None:
    os.utime(place.files[2], ((FIRST + 100) * 3600,) * 2)
    place.convert()
    removed = prune(str(place.out), at(6))
    assert removed == Removed(6 + 2, 6)  # of the other router all; of this one, the first two
    assert place.hops() == 4


def test_a_removal_that_is_killed_is_completed_by_the_next(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = Path.unlink
    for steps in range(1, 60):
        left = steps

        def step(path: Path, missing_ok: bool = False) -> None:
            nonlocal left
            if path.suffix == ".parquet":
                left -= 1
                if not left:
                    raise KeyboardInterrupt
            unlink(path, missing_ok)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", step)
            try:
                prune(str(place.out), at(4))
            except KeyboardInterrupt:
                assert place.convert().converted == 0
            else:
                break
    assert steps > 5
    assert (place.hops(), place.convert().rows["hops"]) == (2, 2)
    assert parts(place, "attempts") == [hour_name(FIRST + each) for each in (4, 5)]


def test_a_damaged_row_of_a_segment_that_is_gone_keeps_nobody_from_the_others(place: Place) -> None:
    (row,) = (place.out / "ingest/segments").glob(f"{place.files[5].stem}*")
    row.write_bytes(row.read_bytes()[:20])
    place.files[5].unlink()
    state = load(str(place.out)).jobs["deliveries"].state
    assert increment(converted(str(place.out / "ingest")), state, 1).is_whole
    assert prune(str(place.out), at(100)) == Removed(6 + 5, 6)


def test_without_deliveries_records_are_removed(place: Place) -> None:
    (place.out / "published.json").unlink()
    assert prune(str(place.out), at(2)) == Removed(4, 0)


def test_tables_that_were_removed_by_hand_are_left_to_the_next_run_or_told(place: Place) -> None:
    (quarantine,) = (load(str(place.out)).parts("deliveries/quarantine") or {}).values()
    (place.out / quarantine / "part-0.parquet").unlink()
    with pytest.raises(CommandError, match="deliveries/quarantine has no files any more"):
        prune(str(place.out), at(3))
    assert place.hops() == 3
    (place.out / quarantine).rmdir()
    before = (place.out / "published.json").read_bytes()
    assert prune(str(place.out), at(4)) == Removed(2, 0)
    assert (place.out / "published.json").read_bytes() == before


def test_where_nothing_is_and_where_the_note_is_damaged_it_says_so(place: Place, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no results of ingest in "):
        prune(str(tmp_path / "nowhere"), at(0))
    for text in ("", "{}", "[]", json.dumps({"hour": 1, "lives": {"A": "x"}})):
        (place.out / "ingest" / FILE).write_text(text)
        with pytest.raises(CommandError, match=r"pruned\.json cannot be read"):
            prune(str(place.out), at(0) + timedelta(hours=1))
    assert place.hops() == 6
