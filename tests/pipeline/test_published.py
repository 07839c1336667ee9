"""Publication of results: a reader sees the old ones or the new ones, whenever a run is killed."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from amqpmesh.pipeline import published
from amqpmesh.pipeline.jobs import JOBS
from amqpmesh.pipeline.published import ABANDONED, FILE, WHOLE, Result, done_before, fresh, load, paths, publish
from amqpmesh.pipeline.work import Done, Table
from amqpmesh.router.amqp.errors import CommandError
from tests.pipeline.test_report import TABLES

DONE = Done(3, {"rows": 3, "share": 0.5}, (Table("some", ("name", "of"), (("a", None), ("b", 2))),))


def write(out: Path, table: str, text: str) -> str:
    """Write a directory of a table. Returns: it, relative to the results."""
    directory = fresh(table)
    (out / directory).mkdir(parents=True)
    (out / directory / "part-0.parquet").write_text(text)
    return directory


def run(out: Path, text: str, job: str = "traffic", tables: tuple[str, ...] = ("matrix", "links")) -> None:
    """Write all tables of a job, and publish them."""
    written = {f"{job}/{each}": {WHOLE: write(out, f"{job}/{each}", text)} for each in tables}
    publish(str(out), job, Result(text, asdict(DONE), written))


def read(out: Path, *tables: str) -> list[str]:
    """As a reader does, who looks once for all tables, and then reads them."""
    found = [load(str(out)).parts(each) for each in tables]
    return [(out / each / "part-0.parquet").read_text() for parts in found if parts for each in parts.values()]


BOTH = ("traffic/matrix", "traffic/links")


def test_tables_are_replaced_together_and_the_old_ones_stay_for_those_who_read_them(tmp_path: Path) -> None:
    assert paths(str(tmp_path), "traffic/matrix") == [f"{tmp_path}/traffic/matrix"]
    run(tmp_path, "first")
    (first,) = paths(f"{tmp_path}/", "traffic/matrix")
    run(tmp_path, "second")
    assert read(tmp_path, *BOTH) == ["second", "second"]
    assert (Path(first) / "part-0.parquet").read_text() == "first"
    run(tmp_path, "third")
    assert read(tmp_path, *BOTH) == ["third", "third"]
    assert not Path(first).exists()
    assert len([*(tmp_path / "traffic/matrix").iterdir()]) == 2


def test_what_a_job_has_replaced_outlives_the_publications_of_others(tmp_path: Path) -> None:
    run(tmp_path, "first")
    (first,) = paths(str(tmp_path), "traffic/matrix")
    run(tmp_path, "second")
    for other in ("losses", "latency"):
        run(tmp_path, "first", other)
        run(tmp_path, "second", other)
    assert (Path(first) / "part-0.parquet").read_text() == "first"
    run(tmp_path, "third")
    assert not Path(first).exists()


def test_what_a_job_told_is_kept(tmp_path: Path) -> None:
    run(tmp_path, "first")
    result = load(str(tmp_path)).jobs["traffic"]
    assert (result.input, done_before(result)) == ("first", DONE)
    assert published.is_there(str(tmp_path), result)
    shutil.rmtree(paths(str(tmp_path), "traffic/links")[0])
    assert not published.is_there(str(tmp_path), result)


class KilledError(BaseException):
    """As far as the program is concerned, it ends here."""


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Return a function that lets a later step that changes the disk, counted from 0, be the last one."""
    left = [-1]

    def step(do: Callable[..., Any]) -> Callable[..., Any]:
        def perform(*arguments: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == -1:
                left[0] = 0  # nothing else happens, not even what tidies up
                raise KilledError
            return do(*arguments, **named)

        return perform

    def after(steps: int) -> None:
        left[0] = steps

    for owner, name in ((os, "replace"), (os, "fsync"), (shutil, "rmtree"), (Path, "mkdir"), (Path, "unlink")):
        monkeypatch.setattr(owner, name, step(getattr(owner, name)))
    yield after
    left[0] = -2


def test_a_run_that_is_killed_at_any_step_leaves_the_old_or_the_new(
    tmp_path: Path, killed: Callable[[int], None]
) -> None:
    seen = set()
    for steps in range(100):
        out = tmp_path / str(steps)
        run(out, "oldest")
        run(out, "old")
        killed(steps)
        try:
            run(out, "new")
        except KilledError:
            killed(-1)
            (what,) = {*read(out, *BOTH)}
            assert len(read(out, *BOTH)) == 2
            seen.add(what)
            run(out, "newest")
            assert read(out, *BOTH) == ["newest"] * 2
            assert not [each for each in out.rglob("part-0.parquet") if each.read_text() == "oldest"]
        else:
            break
    assert seen == {"old", "new"}
    assert read(out, *BOTH) == ["new", "new"]


def test_tables_are_on_the_disk_before_they_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Path] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append(Path(f"/proc/self/fd/{file}").readlink()), fsync(file)))
    monkeypatch.setattr(os, "replace", lambda old, new: (done.append(Path(new)), replace(old, new)))
    run(tmp_path, "first")
    named = done.index(tmp_path / FILE)
    for table in BOTH:
        (folder,) = map(Path, paths(str(tmp_path), table))
        assert {folder / "part-0.parquet", folder, folder.parent, tmp_path} <= {*done[:named]}
    assert done[named + 1] == tmp_path


def test_what_a_killed_run_left_is_removed_after_a_day_and_what_is_being_written_stays(tmp_path: Path) -> None:
    run(tmp_path, "first")
    left, young = (tmp_path / write(tmp_path, "traffic/matrix", "?") for _ in range(2))
    long_ago = time.time() - ABANDONED - 60
    for each in (left, *map(Path, paths(str(tmp_path), "traffic/matrix"))):
        os.utime(each, (long_ago, long_ago))
    other = tmp_path / "traffic/matrix/mine"
    other.mkdir()
    os.utime(other, (long_ago, long_ago))
    run(tmp_path, "second")
    assert not left.exists()
    assert young.exists()
    assert other.exists()
    assert len([*(tmp_path / "traffic/matrix").iterdir()]) == 4


def test_a_table_of_before_there_was_a_publication_is_read_until_it_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "traffic/matrix"
    folder.mkdir(parents=True)
    for name in ("part-00000-1-c000.snappy.parquet", "_SUCCESS", ".part-00000-1-c000.snappy.parquet.crc", "notes"):
        (folder / name).touch()
    assert paths(str(tmp_path), "traffic/matrix") == [str(folder)]
    run(tmp_path, "new")
    assert sorted(each.name for each in folder.iterdir() if each.is_file()) == ["notes"]
    assert read(tmp_path, *BOTH) == ["new", "new"]


def test_jobs_that_publish_at_the_same_time_are_all_published(tmp_path: Path) -> None:
    jobs = ["traffic", "losses", "latency", "plan", "deliveries", "anomalies"]
    threads = [threading.Thread(target=run, args=(tmp_path, each, each)) for each in jobs]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert {name: result.input for name, result in load(str(tmp_path)).jobs.items()} == {each: each for each in jobs}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda told: {**told, "format": 2}, "has format 2, and this program reads 1"),
        (lambda told: {**told, "replaced": ["../mine"]}, "is damaged .*no directory of a table: '../mine'"),
        (lambda told: {**told, "replaced": ["/mine"]}, "is damaged"),
        (lambda told: {**told, "replaced": 7}, "is damaged"),
        (lambda told: {"format": 1, "jobs": {}}, "is damaged"),
        (lambda told: {**told, "jobs": {"traffic": {"input": ""}}}, "is damaged"),
        (
            lambda told: {**told, "jobs": {"traffic": {**told["jobs"]["traffic"], "tables": {"a": {"": ".."}}}}},
            "damage",
        ),
        *(
            (
                lambda told, table=table: {
                    **told,
                    "jobs": {"traffic": {**told["jobs"]["traffic"], "tables": {table: {}}}},
                },
                "is damaged .*no table: ",
            )
            for table in ("../mine", "/mine", "")
        ),
        *(
            (
                lambda told, name=name: {**told, "jobs": {"traffic": {**told["jobs"]["traffic"], name: []}}},
                "is damaged",
            )
            for name in ("done", "state")
        ),
        (
            lambda told: {
                **told,
                "jobs": {"traffic": {**told["jobs"]["traffic"], "done": {"rows": 1, "figures": {}}}},
            },
            "is damaged",
        ),
        (lambda told: [told], "is damaged"),
    ],
)
def test_a_file_that_is_newer_or_damaged_is_told_and_nothing_is_removed(
    tmp_path: Path, change: Callable[[Any], Any], said: str
) -> None:
    out, mine = tmp_path / "out", tmp_path / "mine"
    mine.mkdir()
    run(out, "first")
    (out / FILE).write_text(json.dumps(change(json.loads((out / FILE).read_text()))))
    with pytest.raises(CommandError, match=said):
        paths(str(out), "traffic/matrix")
    with pytest.raises(CommandError, match=said):
        run(out, "second")
    assert mine.exists()
    assert sum(each.read_text() == "first" for each in out.rglob("part-0.parquet")) == 2


def test_half_a_file_is_damaged(tmp_path: Path) -> None:
    run(tmp_path, "first")
    (tmp_path / FILE).write_text((tmp_path / FILE).read_text()[:-9])
    with pytest.raises(CommandError, match=r"published\.json is damaged \(.*\): remove it, and run the jobs again"):
        load(str(tmp_path))
    (tmp_path / FILE).write_text("[" * 200_000)
    with pytest.raises(CommandError, match="is damaged"):
        load(str(tmp_path))


def test_it_is_read_by_a_uri_too(tmp_path: Path) -> None:
    assert load(f"file://{tmp_path}").jobs == {}
    run(tmp_path, "first")
    assert load(f"file://{tmp_path}").jobs["traffic"].input == "first"
    (found,) = paths(f"file://{tmp_path}/", "traffic/links")
    assert found.startswith(f"file://{tmp_path}/traffic/links/v")
    with pytest.raises(CommandError, match="cannot be read"):
        load("nothing://there")


def test_tables_that_change_have_a_new_version() -> None:
    """Raise a job's `version` when its tables change, so that results of before are made again; then change this."""
    columns = {
        job: sorted(
            [name, each.name, str(each.type)]
            for name, table in TABLES.items()
            if name.partition("/")[0] == job
            for each in table
        )
        for job in JOBS
    }
    found = {job: (JOBS[job].version, published.digest(table)[:8]) for job, table in columns.items()}
    assert found == VERSIONS


VERSIONS = {
    "ingest": (1, "bfbe2de1"),
    "deliveries": (1, "1e408d69"),
    "traffic": (2, "c3091b3d"),
    "latency": (3, "dd4ce9f9"),
    "losses": (3, "e2341c91"),
    "anomalies": (2, "6359030a"),
    "contingency": (2, "78b64cef"),
    "plan": (1, "d04bdef0"),
}
