"""Ingestion of segments into tables: each once, whatever happens to the directories meanwhile."""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqpmesh.pipeline import ingest as module
from amqpmesh.pipeline.events import LONGEST_NAME, PARTITIONED, TABLES, table
from amqpmesh.pipeline.files import LEFT_BEHIND, File
from amqpmesh.pipeline.ingest import Ingested, ingest, job, watch
from amqpmesh.pipeline.jobs import JOBS
from amqpmesh.pipeline.work import Work
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.telemetry.schema import VERSION, Kind
from amqpmesh.router.telemetry.segments import Name
from tests.support.data.segments import ACCEPTED, BEGAN, BEGUN, Recorder, at, hop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = 86_400.0


class Place:
    """Directories of events and of results, and runs over them."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.events = root / "events"
        self.events.mkdir()
        self.out = root / "out"

    def run(self, *others: Path, now: float | None = None) -> Ingested:
        return ingest(self.spark, [str(each) for each in (self.events, *others)], str(self.out), now)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """As others read them, through Spark."""
        return [row.asDict() for row in table(self.spark, str(self.out), name).collect()]

    def problems(self) -> list[tuple[str, str]]:
        return sorted((row["segment"], row["problem"]) for row in self.rows("quarantine"))

    def files(self) -> dict[str, tuple[int, int]]:
        """All that there is, and what changes when it is written anew."""
        return {
            str(path.relative_to(self.out)): (path.stat().st_ino, path.stat().st_mtime_ns)
            for path in self.out.rglob("*")
            if path.is_file() and path.stem != module.LISTING and path.name != ".days.lock"
        }


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def record(place: Path, router: str = "A", count: int = 10, **settings: Any) -> Recorder:
    """Return a recorder with some hop records in its segment."""
    recorder = Recorder(place, router, **settings)
    recorder.link("in", peer="shop")
    add(recorder, count)
    return recorder


def add(recorder: Recorder, count: int) -> None:
    recorder.hops(
        *(hop(time=at(each), counter=each, incoming=1, flags=BEGUN, outcome=ACCEPTED) for each in range(count))
    )


def test_a_segment_becomes_a_file_in_each_table(place: Place) -> None:
    recorder = record(place.events)
    recorder.put(Kind.EVENT, [{"time": 1, "happening": "up", "link": "in", "direction": "incoming"}])
    recorder.put(Kind.EDGE, [{"time": 2, "origin": "A", "whole": True}])
    path = recorder.close()
    result = place.run()
    assert (result.converted, result.unchanged, result.open, result.problems) == (1, 0, 0, {})
    assert result.rows == {"hops": 10, "events": 1, "counts": 0, "edges": 1}
    folder = f"date=2026-05-01/recorded_by=A/{path.stem}.parquet"
    assert set(place.files()) == {
        f"hops/{folder}", f"events/{folder}", f"edges/{folder}", f"segments/{path.stem}.parquet"
    }  # fmt: skip
    rows = place.rows("hops")
    assert [row["time"] for row in sorted(rows, key=lambda row: row["time"])] == [at(each) for each in range(10)]
    assert list(rows[0]) == [column.name for column in TABLES["hops"]]
    (segment,) = place.rows("segments")
    assert (segment["router"], segment["hops"], segment["whole"], segment["path"]) == ("A", 10, True, str(path))
    assert pq.ParquetFile(place.out / "hops" / folder).metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_second_run_writes_nothing_anew_and_a_new_segment_only_itself(place: Place) -> None:
    recorder = record(place.events)
    recorder.close()
    place.run()
    before = place.files()
    assert (place.run().converted, place.files()) == (0, before)
    add(recorder, 5)
    recorder.close()
    result = place.run()
    assert (result.converted, result.unchanged, result.rows["hops"]) == (1, 1, 15)
    assert {name: each for name, each in place.files().items() if name in before} == before


def test_a_run_that_was_killed_is_made_good_by_the_next(place: Place) -> None:
    path = record(place.events).close()
    place.run()
    (place.out / "segments" / f"{path.stem}.parquet").unlink()
    garbage = place.out / "hops" / f".1{module._TEMPORARY}"
    garbage.write_bytes(b"half a file")
    os.utime(garbage, (1, 1))
    young = garbage.with_name(f".2{module._TEMPORARY}")
    young.write_bytes(b"somebody writes it")
    assert place.run().converted == 1
    assert len(place.rows("hops")) == 10
    assert not garbage.exists()
    assert young.exists()


def test_a_file_about_what_was_converted_that_is_torn_is_written_anew(place: Place) -> None:
    path = record(place.events).close()
    place.run()
    marker = place.out / "segments" / f"{path.stem}.parquet"
    marker.write_bytes(marker.read_bytes()[:50])
    assert place.run().converted == 1
    assert len(place.rows("segments")) == 1


def test_nothing_is_in_an_empty_directory(place: Place) -> None:
    result = place.run()
    assert (result.converted, result.problems, sum(result.rows.values())) == (0, {}, 0)
    assert all(place.rows(name) == [] for name in TABLES)


def test_directories_below_are_looked_through_but_not_hidden_ones_nor_the_results(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(spark, tmp_path)
    record(place.events / "east" / "1").close()
    hidden = record(place.events, "B").close()
    hidden.rename(hidden.with_name(f".{hidden.name}.Xy3"))
    place.out = place.events / "results"
    assert place.run().rows["hops"] == 10
    assert place.run().problems == {}


def test_open_segments_are_left_alone_until_nobody_writes_to_them(place: Place) -> None:
    recorder = record(place.events)
    path = recorder.leave_open()
    written = path.stat().st_mtime
    result = place.run(now=written + LEFT_BEHIND - 1)
    assert (result.converted, result.open, result.rows["hops"]) == (0, 1, 0)
    result = place.run(now=written + LEFT_BEHIND + 1)
    assert (result.converted, result.open, result.rows["hops"]) == (1, 0, 10)
    assert place.problems() == [(path.stem, "left behind"), (path.stem, "unfinished")]
    path.rename(path.with_suffix(".events"))  # the router's next life, which has found that something more was written
    path.with_suffix(".events").write_bytes(recorder.end())
    result = place.run()
    assert (result.converted, result.rows["hops"], result.problems) == (1, 10, {})


def test_a_copy_counts_once(place: Place, tmp_path: Path) -> None:
    path = record(place.events).close()
    other = tmp_path / "other"
    shutil.copytree(place.events, other)
    result = place.run(other)
    assert (result.converted, result.rows["hops"], result.problems) == (1, 10, {})
    assert place.run(other).unchanged == 1
    (segment,) = place.rows("segments")
    assert {each["path"] for each in segment["copies"]} == {str(path), str(other / path.name)}


def test_a_directory_that_is_named_twice_or_linked_to_counts_once(place: Place, tmp_path: Path) -> None:
    record(place.events).close()
    (tmp_path / "link").symlink_to(place.events)
    result = place.run(place.events, tmp_path / "link")
    assert (result.rows["hops"], result.problems) == (10, {})
    assert len(place.rows("segments")[0]["copies"]) == 1


def test_of_copies_that_differ_the_longest_whole_one_counts_and_the_other_is_told(place: Place, tmp_path: Path) -> None:
    recorder = record(place.events)
    path = recorder.close()
    torn = tmp_path / "torn" / path.name
    torn.parent.mkdir()
    torn.write_bytes(path.read_bytes()[:-100] + bytes(200))  # longer, but not whole
    assert place.run(torn.parent).rows["hops"] == 10
    (row,) = place.rows("quarantine")
    assert (row["problem"], row["path"], row["octets"]) == ("duplicate", str(torn), torn.stat().st_size)


def test_a_whole_copy_that_comes_late_takes_the_place_of_a_torn_one(place: Place, tmp_path: Path) -> None:
    recorder = record(place.events)
    path = recorder.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-60])
    place.run()
    assert len(place.rows("hops")) == 10
    late = tmp_path / "late"
    late.mkdir()
    (late / path.name).write_bytes(whole)
    place.run(late)
    assert len(place.rows("hops")) == 10
    assert place.rows("segments")[0]["whole"]
    assert place.problems() == [(path.stem, "duplicate")]


def test_what_was_converted_stays_when_only_a_worse_copy_is_left(place: Place, tmp_path: Path) -> None:
    path = record(place.events).close()
    place.run()
    worse = tmp_path / "worse"
    worse.mkdir()
    (worse / path.name).write_bytes(path.read_bytes()[:200])
    path.unlink()
    result = place.run(worse)
    assert (result.converted, result.rows["hops"]) == (0, 10)
    assert place.problems() == [(path.name, "duplicate")]


def test_what_was_converted_stays_when_its_segment_is_removed(place: Place) -> None:
    path = record(place.events).close()
    place.run()
    path.unlink()
    result = place.run()
    assert (result.converted, result.rows["hops"], result.problems) == (0, 10, {})


def test_routers_whose_files_bear_the_same_name_are_told_apart_by_what_they_say(place: Place, tmp_path: Path) -> None:
    path = record(place.events, "A").close()
    record(tmp_path / "other", "B").close().rename(tmp_path / "other" / path.name)
    result = place.run(tmp_path / "other")
    assert (result.converted, result.rows["hops"]) == (2, 20)
    assert {row["router"] for row in place.rows("hops")} == {"A", "B"}
    assert [problem for _, problem in place.problems()] == ["misnamed"]


def test_a_segment_under_any_name_is_one(place: Place) -> None:
    path = record(place.events).close()
    path.rename(path.with_name("saved"))
    assert place.run().rows["hops"] == 10
    assert place.run().unchanged == 1


@pytest.mark.parametrize("router", ["a b/ü%", "date=1", "x.1", "..", "_x", "@ü", "{a,b}*[c]?", "1.5"])
def test_a_router_may_be_called_anything(place: Place, router: str) -> None:
    record(place.events, router).close()
    place.run()
    assert {row["router"] for row in place.rows("hops")} == {router}
    assert place.run().unchanged == 1


def test_a_name_too_long_for_a_file_is_no_segments(place: Place) -> None:
    (place.events / "saved").write_bytes(record(place.events, "x" * LONGEST_NAME).end())
    assert place.run().converted == 0
    assert place.problems() == [("saved", "foreign")]


def test_foreign_and_empty_files_are_told_and_nothing_else_is_disturbed(place: Place) -> None:
    record(place.events).close()
    (place.events / "README.txt").write_text("hello")
    (place.events / "none").touch()
    (place.events / Name("B", BEGAN, 1).file()).touch()
    (place.events / Name("C", BEGAN, 1).file()).write_bytes(random.Random(3).randbytes(5_000))
    result = place.run()
    assert result.rows["hops"] == 10
    assert place.problems() == [
        (f"B.{BEGAN}.000001", "empty"), (f"C.{BEGAN}.000001", "foreign"), ("README.txt", "foreign"), ("none", "empty")
    ]  # fmt: skip
    assert place.run().problems == result.problems


def test_what_a_newer_version_has_written_is_looked_at_again_each_time(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(place.events, version=VERSION + 1).close()
    for _ in range(2):
        result = place.run()
        assert (result.converted, result.rows["hops"]) == (1, 0)
        assert [problem for _, problem in place.problems()] == ["newer"]


def test_what_an_older_version_has_written_is_told_once(place: Place) -> None:
    record(place.events, version=VERSION - 1).close()
    assert [place.run().converted for _ in range(2)] == [1, 0]
    assert [problem for _, problem in place.problems()] == ["older"]


def test_names_that_no_router_gives_are_told_and_nothing_else_is_disturbed(place: Place) -> None:
    record(place.events).close()
    for odd in (b"\xff.1777600000000.000001.events", b"caf\xe9", b"B.99999999999999999999.000001.events", b"a\nb<i>"):
        Path(os.fsdecode(os.fsencode(place.events) + b"/" + odd)).write_bytes(b"x")
    (place.events / Name("C", 10**17, 1).file()).write_bytes(b"x" * 100)
    with open(place.events / Name("D", BEGAN, 1).file(), "wb") as endless:
        endless.truncate(1 << 40)
    (place.events / os.fsdecode(b"\xfe")).mkdir()
    result = place.run()
    assert result.rows["hops"] == 10
    assert place.problems() == [
        ("B.99999999999999999999.000001.events", "foreign"),
        ("C.100000000000000000.000001", "foreign"),
        (Name("D", BEGAN, 1).file(), "foreign"),
        ("\\xff.1777600000000.000001.events", "inaccessible"),
        ("a\nb<i>", "foreign"),
        ("caf\\xe9", "inaccessible"),
    ]


def test_what_is_no_file_is_told(place: Place) -> None:
    record(place.events).close()
    os.mkfifo(place.events / Name("B", BEGAN, 1).file())
    (place.events / "loop").symlink_to(place.events / "loop")
    (place.events / "nothing").symlink_to(place.events / "gone")
    assert place.run().rows["hops"] == 10
    assert place.problems() == [(Name("B", BEGAN, 1).file(), "foreign"), ("loop", "inaccessible")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_must_not_be_read_is_told(place: Place) -> None:
    path = record(place.events).close()
    path.chmod(0)
    closed = place.events / "closed"
    closed.mkdir(0)
    try:
        result = place.run()
    finally:
        closed.chmod(0o700)
    assert result.rows["hops"] == 0
    assert place.problems() == [(path.name, "inaccessible"), ("closed", "inaccessible")]
    path.chmod(0o600)
    assert place.run().rows["hops"] == 10
    assert place.problems() == []


def test_a_file_that_is_gone_before_its_task_begins_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    path = record(place.events).close()
    found = module.find

    def find_and_remove(*arguments: Any) -> Any:
        result = found(*arguments)
        path.unlink()
        return result

    monkeypatch.setattr(module, "find", find_and_remove)
    result = place.run()
    assert (result.converted, result.problems) == (0, {"inaccessible": (1, 0)})


def test_a_full_disk_keeps_nothing_of_what_it_did_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(pq.ParquetWriter):  # type: ignore[misc]
        def close(self) -> None:
            super().close()
            raise OSError(28, "No space left on device")

    path = record(tmp_path / "events").close()
    out = tmp_path / "out"
    for name in TABLES:
        (out / name).mkdir(parents=True)
    monkeypatch.setattr(module.pq, "ParquetWriter", Full)
    with pytest.raises(OSError, match="No space"):
        module._convert(out, Name("A", BEGAN, 1), [File(str(path), 1, 1)], None)
    assert [each for each in out.rglob("*") if each.is_file()] == []


def test_a_directory_that_is_not_there_is_an_error(place: Place, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        place.run(tmp_path / "nowhere")


@pytest.mark.parametrize("other", ["hdfs://store/events", "s3a://bucket/x", "file://elsewhere/x"])
def test_a_place_of_another_kind_is_refused(place: Place, other: str) -> None:
    with pytest.raises(CommandError, match=other):
        ingest(place.spark, [str(place.events)], other)
    with pytest.raises(CommandError, match=other):
        ingest(place.spark, [other], str(place.out))


def test_a_file_uri_is_a_path(place: Place) -> None:
    record(place.events).close()
    assert ingest(place.spark, [place.events.as_uri()], place.out.as_uri()).rows["hops"] == 10


def test_what_is_missing_between_segments_is_told_until_it_comes(place: Place) -> None:
    recorder = record(place.events)
    recorder.close()
    add(recorder, 7)
    late = recorder.close()
    add(recorder, 3)
    recorder.lose(4)
    recorder.close()
    add(recorder, 1)
    recorder.close()
    hidden = late.rename(late.with_name(".late"))
    assert place.run().problems == {"missing": (1, 7), "lost": (1, 4)}
    hidden.rename(late)
    assert place.run().problems == {"lost": (1, 4)}


def test_a_segment_over_midnight_is_one_file_of_the_day_that_it_began(place: Place) -> None:
    recorder = Recorder(place.events)
    recorder.begin(at(0))
    recorder.hops(hop(time=at(0)), hop(time=at(DAY)))
    recorder.close(at(DAY))
    place.run()
    assert [path.parts[-3] for path in (place.out / "hops").rglob("*.parquet")] == ["date=2026-05-01"]


def test_a_clock_that_jumps_back_costs_nothing(place: Place) -> None:
    recorder = Recorder(place.events)
    recorder.hops(hop(time=at(DAY)), hop(time=at(-DAY)), hop(time=0))
    recorder.close()
    recorder.begin(at(-400 * DAY))
    recorder.hops(hop(time=at(-400 * DAY)))
    recorder.close()
    assert place.run().rows["hops"] == 4
    segments = {row["segment"]: row for row in place.rows("segments")}
    assert (segments[1]["first_time"], segments[1]["last_time"]) == (0, at(DAY))


def test_a_segment_whose_day_changes_with_a_better_copy_is_not_there_twice(place: Place) -> None:
    recorder = Recorder(place.events)
    recorder.begin(at(5 * DAY))
    recorder.hops(hop(time=at(5 * DAY)))
    path = recorder.close()
    whole = path.read_bytes()
    path.write_bytes(b"\0" + whole[1:])  # its first block is damaged: the day is that of the router's beginning
    place.run()
    path.write_bytes(whole)
    place.run()
    assert len(place.rows("hops")) == 1
    assert [each.parts[-3] for each in (place.out / "hops").rglob("*.parquet")] == ["date=2026-05-06"]


def test_a_directory_may_be_written_to_meanwhile(place: Place) -> None:
    over = threading.Event()
    recorder = Recorder(place.events)
    recorder.link("in")
    written = 0

    def write() -> None:
        nonlocal written
        while not over.is_set() and written < 60:
            add(recorder, 3)
            path = recorder.leave_open()
            recorder.close()
            path.unlink()
            written += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            assert set(place.run().problems) <= {"missing"}
    finally:
        over.set()
        writer.join()
    result = place.run()
    assert (result.rows["hops"], result.problems) == (3 * written, {})
    assert {row["segment"] for row in place.rows("segments")} == set(range(1, written + 1))


def test_two_runs_at_once_do_the_same(place: Place) -> None:
    for number in range(8):
        record(place.events, f"R{number}").close()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            place.run()
        except BaseException as error:
            errors.append(error)

    both = [threading.Thread(target=run) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert errors == []
    assert len(place.rows("hops")) == 80


def test_a_stream_converts_what_is_closed_and_goes_on_where_it_was(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    recorder = record(place.events)
    recorder.close()
    for rows in (10, 15):
        query = watch(
            place.spark,
            [str(place.events), str(other)],
            str(place.out),
            str(tmp_path / "checkpoint"),
            availableNow=True,
        )
        assert query.awaitTermination(60)
        assert len(place.rows("hops")) == rows
        add(recorder, 5)
        recorder.close()


def test_the_job_tells_what_it_has_done(place: Place) -> None:
    record(place.events).close()
    (place.events / "README.txt").write_text("hello")
    done = JOBS["ingest"].load()(Work(place.spark, (str(place.events),), str(place.out.parent)))
    assert JOBS["ingest"].load() is job
    assert done.rows == 10
    assert done.figures == {
        "converted": 1, "unchanged": 0, "open": 0, "hops": 10, "events": 0, "counts": 0, "edges": 0, "quarantined": 1
    }  # fmt: skip
    assert [shown.rows for shown in done.tables] == [(("foreign", 1, 0),)]
    assert (place.out.parent / "ingest" / "hops").is_dir()


def test_the_tables_are_what_the_schemas_say(place: Place) -> None:
    recorder = record(place.events)
    recorder.put(Kind.EVENT, [{"time": 1, "happening": "up", "link": "in", "direction": "incoming"}])
    recorder.close()
    place.run()
    for name in PARTITIONED:
        for path in (place.out / name).rglob("*.parquet"):
            written = {field.name: field.type for field in pq.read_schema(path)}
            plain = {name: each.value_type if pa.types.is_dictionary(each) else each for name, each in written.items()}
            assert plain == {column.name: column.type for column in TABLES[name]}
