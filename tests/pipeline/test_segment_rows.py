"""Rows of converted segments: gathered by day, whenever a run is killed, and whatever is converted again."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqpmesh.pipeline import segment_rows as segment_rows_module
from amqpmesh.pipeline.ingest import Ingested, ingest
from amqpmesh.pipeline.pruning import prune
from amqpmesh.pipeline.segment_rows import FILE, gather, segment_rows, segment_table
from amqpmesh.router.amqp.errors import CommandError
from tests.support.data.segments import BEGAN, Recorder, at, hop
from tests.support.spark.stub import Session

DAY = 86_400


class Place:
    """Segments of several days, with a hop record each."""

    def __init__(self, root: Path) -> None:
        self.root, self.events, self.out = root, root / "events", root / "results" / "ingest"
        self.waiting = root / "waiting"
        self.events.mkdir()

    def record(self, day: int, segments: int = 3, router: str = "A") -> list[Path]:
        """Write the segments of a router's life that begins on a day. Returns: these; they have not arrived."""
        recorder = Recorder(self.waiting, router, epoch=BEGAN + day * DAY * 1000)
        paths = []
        for number in range(segments):
            recorder.hops(hop(time=at(day * DAY + number), counter=number + 1))
            paths.append(recorder.close())
        return paths

    def arrive(self, *paths: Path) -> Ingested:
        """Convert segments."""
        for path in paths:
            path.rename(self.events / path.name)
        return ingest(cast(Any, Session()), [str(self.events)], str(self.out))

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = segment_table(str(self.out)).to_pylist()
        assert [*segment_rows(self.out).values()] == rows  # none is there twice
        return rows

    def loose(self) -> set[str]:
        return {each.stem for each in (self.out / "segments").iterdir() if ".v" not in each.name}

    def days(self) -> list[str]:
        return sorted(each.name[:10] for each in (self.out / "segments").iterdir() if ".v" in each.name)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def names(paths: list[Path]) -> set[str]:
    return {each.stem for each in paths}


@pytest.mark.parametrize("history", [1, 4])
def test_files_that_are_read_grow_with_days_and_not_with_segments(
    place: Place, history: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(history):
        place.arrive(*place.record(day, 5))
    last = place.record(history, 4)
    place.arrive(*last)
    assert (len(place.days()), place.loose()) == (history, names(last))
    opened: list[object] = []
    read = pq.ParquetFile
    monkeypatch.setattr(pq, "ParquetFile", lambda *given: (opened.append(given), read(*given))[1])
    assert len(place.rows()) == 5 * history + 4
    assert len(opened) == 2 * (history + 4)  # it is read twice
    opened.clear()
    assert place.arrive(*place.record(history + 1, 2)).unchanged == 5 * history + 4
    # The rows of before are read twice, before and behind the conversion, and a closed day's once to be gathered.
    assert len(opened) <= 2 * (history + 4) + 10


def test_many_rows_of_the_latest_day_are_gathered_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_rows_module, "GATHERED", 6)
    paths = place.record(0, 7)
    place.arrive(*paths[:5])
    assert (len(place.loose()), place.days()) == (5, [])
    place.arrive(paths[5])
    assert (place.loose(), place.days()) == (set(), ["2026-05-01"])
    place.arrive(paths[6])
    assert (len(place.rows()), place.loose(), place.days()) == (7, names(paths[6:]), ["2026-05-01"])


def test_with_nothing_new_nothing_is_written_and_the_input_of_all_jobs_is_the_same(place: Place) -> None:
    paths = [path for day in range(3) for path in place.record(day)]
    first = place.arrive(*paths)
    before = {each: each.stat().st_mtime_ns for each in place.out.rglob("*.parquet") if each.stem != "listing"}
    again = place.arrive()
    assert (again.converted, again.digest) == (0, first.digest)
    assert {each: each.stat().st_mtime_ns for each in before} == before
    assert gather(place.out) == 0


class KilledError(BaseException):
    """As far as the program is concerned, it ends here."""


def steps(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Do something before each step that changes the disk."""

    def before(change: Callable[..., Any]) -> Callable[..., Any]:
        def perform(*arguments: Any, **named: Any) -> Any:
            do()
            return change(*arguments, **named)

        return perform

    for owner, name in ((os, "replace"), (os, "fsync"), (Path, "unlink")):
        monkeypatch.setattr(owner, name, before(getattr(owner, name)))


def test_a_reader_sees_each_row_once_whenever_it_reads(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for day in range(3):
        place.arrive(*place.record(day))
    late = [*place.record(0, 2, "B"), *place.record(1, 2, "B")]
    monkeypatch.setattr("amqpmesh.pipeline.ingest.gather", lambda _: 0)
    place.arrive(*late)
    rows, seen = place.rows(), []
    assert len(rows) == 13
    assert names(late) <= place.loose()
    with monkeypatch.context() as patch:
        steps(patch, lambda: seen.append(place.rows()))
        assert gather(place.out) == 2
    assert len(seen) > 8
    assert all(each == rows for each in (*seen, place.rows()))
    assert not names(late) & place.loose()


@pytest.mark.parametrize("seed", range(3))
def test_runs_that_are_killed_over_what_arrives_leave_the_rows_of_one_run_over_all(
    place: Place, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    paths = [path for day in range(4) for router in "AB" for path in place.record(day, 2, router)]
    chance.shuffle(paths)
    left = 0

    def step() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise KilledError

    killed = 0
    while paths:
        size = chance.randrange(1, 6)
        some, paths = paths[:size], paths[size:]
        left = chance.randrange(1, 12 * size)
        with monkeypatch.context() as patch:
            steps(patch, step)
            try:
                place.arrive(*some)
            except KilledError:
                killed += 1
    assert killed > 1
    result = place.arrive()
    found = place.rows()
    assert (result.rows["hops"], len(place.days())) == (16, 3)
    assert len([*(place.out / "segments").iterdir()]) == 3 + len(place.loose())
    place.out = place.root / "other"
    whole = place.arrive()
    assert found == place.rows()
    assert result.digest == whole.digest


def test_a_segment_of_a_gathered_day_that_changes_is_converted_again_and_there_once(place: Place) -> None:
    first, *_ = [path for day in range(2) for path in place.record(day)]
    place.arrive(*place.waiting.iterdir())
    path = place.events / first.name
    path.write_bytes(path.read_bytes()[:-20])
    result = place.arrive()
    assert (result.converted, result.unchanged) == (1, 5)
    assert [row["whole"] for row in place.rows()] == [False, *[True] * 5]
    assert first.stem not in place.loose()


@pytest.mark.parametrize("first", [0, 2])
def test_a_segment_whose_day_was_not_known_before_is_there_once(place: Place, first: int) -> None:
    """A segment that does not tell its time counts for the day on which its router's life began."""
    recorder = Recorder(place.waiting)
    recorder.begin(at(2 * DAY))
    recorder.hops(hop(time=at(2 * DAY), counter=1))
    path = recorder.close()
    data = path.read_bytes()
    place.arrive(*place.record(first, 1, "B"), *place.record(3, 1, "B"))
    path.write_bytes(data[:20] + b"?" + data[21:])
    place.arrive(path)
    assert (place.days(), path.stem in place.loose()) == (sorted({"2026-05-01", f"2026-05-0{first + 1}"}), False)
    (place.events / path.name).write_bytes(data)
    assert place.arrive().converted == 1
    assert (len(place.rows()), path.stem in place.loose()) == (3, False)
    assert place.arrive().converted == 0


def test_a_damaged_file_of_a_day_has_its_segments_converted_again(place: Place) -> None:
    for day in range(3):
        place.arrive(*place.record(day))
    rows = place.rows()
    (file, _) = sorted(each for each in (place.out / "segments").iterdir() if ".v" in each.name)
    file.write_bytes(file.read_bytes()[:100])
    assert len(place.rows()) == 6
    assert place.arrive().converted == 3
    assert place.rows() == rows
    (file, _) = sorted(each for each in (place.out / "segments").iterdir() if ".v" in each.name)
    file.unlink()
    assert place.arrive().converted == 3
    assert place.rows() == rows


def test_a_file_of_a_day_that_cannot_be_read_now_is_not_taken_for_lost(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(2):
        place.arrive(*place.record(day))
    rows, days = place.rows(), (place.out / FILE).read_text()

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("amqpmesh.pipeline.ingest.gather", lambda _: 0)
    place.arrive(*place.record(0, 1, "B"))
    monkeypatch.undo()
    with monkeypatch.context() as patch:
        patch.setattr(pq, "ParquetFile", refuse)
        for ask in (place.rows, lambda: gather(place.out)):
            with pytest.raises(OSError, match="too many open files"):
                ask()
    assert (place.out / FILE).read_text() == days
    assert gather(place.out) == 1
    assert [each for each in place.rows() if each["router"] == "A"] == rows


def test_what_is_no_row_is_left_alone(place: Place) -> None:
    place.arrive(*place.record(0))
    rows = place.rows()
    foreign = {"name": [7], "router": ["A"], "epoch": ["x"], "segment": [1], "time": [1]}
    pq.write_table(pa.table(foreign), place.out / "segments" / "foreign.parquet")
    assert place.rows() == rows
    assert place.arrive().unchanged == 3
    assert place.rows() == rows


def test_what_is_pruned_is_no_row_of_its_day_any_more(place: Place) -> None:
    for day in range(4):
        place.arrive(*place.record(day, 2))
        for each in place.events.glob(f"A.{BEGAN + day * DAY * 1000}.*"):
            os.utime(each, (BEGAN / 1000 + day * DAY + 60 * int(each.stem[-1]),) * 2)
    place.arrive()
    removed = prune(str(place.out.parent), datetime.fromtimestamp(BEGAN / 1000 + 2 * DAY, UTC))
    assert (removed.segments, removed.hours) == (4, 0)
    assert {row["epoch"] for row in place.rows()} == {BEGAN + day * DAY * 1000 for day in (2, 3)}
    assert place.days() == ["2026-05-03"]
    assert place.arrive().converted == 0


def test_a_file_of_days_that_is_newer_or_damaged_is_told(place: Place) -> None:
    for day in range(2):
        place.arrive(*place.record(day))
    file = place.out / FILE
    told = json.loads(file.read_text())
    for text, said in (
        (json.dumps({**told, "format": 2}), "has format 2, and this program reads 1"),
        (json.dumps({**told, "days": {"2026-05-01": "../../mine.parquet"}}), "is damaged"),
        (json.dumps({**told, "days": {"../../mine": told["days"]["2026-05-01"]}}), "is damaged"),
        (json.dumps({**told, "days": 7}), "is damaged"),
        (file.read_text()[:-5], "is damaged"),
        ("[]", "is damaged"),
    ):
        file.write_text(text)
        with pytest.raises(CommandError, match=said):
            place.rows()
        with pytest.raises(CommandError, match=said):
            place.arrive()
