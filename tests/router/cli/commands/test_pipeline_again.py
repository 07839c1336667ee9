"""`amqpmesh pipeline` once more: what is made again, and what is as before. Without Spark."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqpmesh.pipeline.jobs import JOBS, Account, Job
from amqpmesh.pipeline.pruning import Removed, prune
from amqpmesh.pipeline.published import WHOLE, Result, fresh, hour_name, load, paths, publish
from amqpmesh.pipeline.work import Done, Work
from tests.support.data.known_traffic import Known
from tests.support.processes.router_thread import Command
from tests.support.spark.stub import Session

ALL = ("ingest", "deliveries", "traffic")
Run = Callable[..., dict[str, Any]]


class Mesh:
    """Recorded events, and jobs that write a number for each of their runs."""

    def __init__(self, root: Path) -> None:
        self.events, self.out = root / "events", root / "out"
        self.known = Known(self.events, "A")
        self.ran: list[str] = []
        self.sessions: list[Session] = []
        self.jobs = cast("dict[str, Job]", JOBS)

    def record(self) -> None:
        self.known.deliver("A")
        self.known.close()

    def job(self, name: str) -> Callable[[Work], Done]:
        def job(work: Work) -> Done:
            self.ran.append(name)
            folder = fresh(name)
            (self.out / folder).mkdir(parents=True)
            pq.write_table(pa.table({"run": [len(self.ran)]}), self.out / folder / "part-0.parquet")
            work.written[name] = {WHOLE: folder}
            return Done(len(self.ran), {"run": len(self.ran)})

        return job

    def start(self, *_: Any) -> Session:
        self.sessions.append(Session())
        return self.sessions[-1]

    def report(self, work: Work, accounts: Sequence[Account]) -> Path:
        self.ran.append("report")
        path = Path(work.out, "report.html")
        path.write_text(" ".join(str(each.done.rows) for each in accounts))
        return path


@pytest.fixture
def mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mesh]:
    mesh = Mesh(tmp_path)
    monkeypatch.setattr("amqpmesh.pipeline.session.session", mesh.start)
    monkeypatch.setattr("amqpmesh.pipeline.session.is_running", lambda: False)
    monkeypatch.setattr("amqpmesh.pipeline.report.report", mesh.report)
    load = Job.load
    monkeypatch.setattr(Job, "load", lambda job: load(job) if job.name == "ingest" else mesh.job(job.name))
    mesh.record()
    every = dict(JOBS)
    for name in every.keys() - ALL:
        del mesh.jobs[name]
    yield mesh
    mesh.jobs.clear()
    mesh.jobs.update(every)  # in their order, which other tests compare


@pytest.fixture
def run(mesh: Mesh, command: Command) -> Run:
    def run(*more: str, job: str = "run") -> dict[str, Any]:
        """Run the command. Returns: the jobs and the reports that ran, and which jobs it says are as before."""
        mesh.ran.clear()
        mesh.sessions.clear()
        ended = command("pipeline", job, "--events", str(mesh.events), "--out", str(mesh.out), "--json", *more)
        assert (ended.status, ended.err) == (0, "")
        told = json.loads(ended.out)
        same = [each["job"] for each in told["jobs"] if each["unchanged"]]
        assert all(each.stopped == 1 for each in mesh.sessions)
        return {"ran": [*mesh.ran], "same": same, "sessions": len(mesh.sessions), "told": told}

    return run


NEW = ["deliveries", "traffic", "report"]


def test_with_nothing_new_nothing_is_computed_and_spark_is_not_started(mesh: Mesh, run: Run) -> None:
    first = run()
    assert (first["ran"], first["same"], first["sessions"]) == (NEW, [], 1)
    before = [paths(str(mesh.out), each) for each in ALL]
    second = run()
    assert (second["ran"], second["same"], second["sessions"]) == ([], [*ALL], 0)
    assert [paths(str(mesh.out), each) for each in ALL] == before
    assert second["told"]["report"] == first["told"]["report"]
    for one, other in zip(first["told"]["jobs"][1:], second["told"]["jobs"][1:], strict=True):
        assert (one["rows"], one["figures"], one["tables"]) == (other["rows"], other["figures"], other["tables"])
    figures = [each["told"]["jobs"][0]["figures"] for each in (first, second)]
    assert [(each["converted"], each["unchanged"], each["hops"]) for each in figures] == [(2, 0, 1), (0, 2, 1)]


@pytest.mark.parametrize("how", ["a segment", "a file that is none", "another time", "a lost table", "by hand"])
def test_what_is_new_is_computed(mesh: Mesh, run: Run, how: str) -> None:
    run()
    more = []
    if how == "a segment":
        mesh.record()
    elif how == "a file that is none":
        (mesh.events / "other.events").write_text("nothing")
    elif how == "another time":
        more = ["--since", "2026-05-01"]
    elif how == "a lost table":
        shutil.rmtree(paths(str(mesh.out), "deliveries")[0])
    else:
        more = ["--anew"]
    assert run(*more)["ran"] == NEW
    assert run(*(each for each in more if each != "--anew"))["ran"] == []


def test_a_job_of_another_version_is_made_again(mesh: Mesh, run: Run) -> None:
    run()
    mesh.jobs["traffic"] = Job("traffic", "?", ("ingest", "deliveries"), version=99)
    assert run()["ran"] == ["traffic", "report"]


def test_what_reads_tables_that_are_made_again_is_made_again(mesh: Mesh, run: Run) -> None:
    run()
    mesh.jobs["deliveries"] = Job("deliveries", "?", ("ingest",), version=2)
    assert run()["ran"] == NEW


def test_what_was_made_from_the_tables_of_another_run_is_made_again(
    mesh: Mesh, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary = mesh.job

    def job(name: str) -> Callable[[Work], Done]:
        if name != "traffic":
            return ordinary(name)

        def between(work: Work) -> Done:
            other = Work(work.spark, work.events, work.out)
            other.publish("deliveries", "of less", ordinary("deliveries")(other))
            return ordinary(name)(work)

        return between

    with monkeypatch.context() as patch:
        patch.setattr(mesh, "job", job)
        run()
    assert run()["ran"] == NEW
    assert run()["ran"] == []


def test_what_was_made_of_hours_that_are_pruned_is_made_again(mesh: Mesh, run: Run) -> None:
    ordinary = mesh.job
    run()
    work = Work(mesh.start(), (), str(mesh.out))  # type: ignore[arg-type]
    done = ordinary("deliveries")(work)
    ((_, directory),) = work.written["deliveries"].items()
    before = load(str(mesh.out)).jobs["deliveries"]
    hours = {hour_name(0): directory, **before.tables["deliveries"]}
    publish(str(mesh.out), "deliveries", Result(before.input, asdict(done), {"deliveries": hours}))
    run()
    assert prune(str(mesh.out), datetime(1970, 1, 2, tzinfo=UTC)) == Removed(0, 1)
    assert run()["ran"] == NEW


def test_a_report_is_made_again_if_it_is_gone_and_a_job_by_itself_makes_none(mesh: Mesh, run: Run) -> None:
    assert run(job="traffic")["ran"] == ["deliveries", "traffic"]
    assert run()["ran"] == ["report"]
    (mesh.out / "report.html").unlink()
    assert run()["ran"] == ["report"]


def test_a_run_that_failed_goes_on_where_it_was(
    mesh: Mesh, run: Run, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    arguments = ("pipeline", "run", "--events", str(mesh.events), "--out", str(mesh.out))
    with monkeypatch.context() as patch:
        patch.setattr("amqpmesh.pipeline.report.report", fail)
        assert command(*arguments).status != 0
    assert run()["ran"] == ["report"]


def test_the_table_says_what_is_as_before(mesh: Mesh, run: Run, command: Command) -> None:
    run()
    lines = command("pipeline", "run", "--events", str(mesh.events), "--out", str(mesh.out)).out.splitlines()
    assert ["as before" in each for each in lines[:4]] == [False, True, True, True]


def test_what_is_pruned_is_not_made_again(mesh: Mesh, run: Run, command: Command) -> None:
    run()
    arguments = ("pipeline", "prune", "--out", str(mesh.out))
    assert json.loads(command(*arguments, "--keep", "90d", "--json").out)["segments"] == 0
    for each in mesh.events.rglob("*.events"):
        os.utime(each, (0, 0))
    run()
    assert command(*arguments, "--keep", "1h").out == "removed 2 segments, and 0 hours of deliveries\n"
    figures = run()["told"]["jobs"][0]["figures"]
    assert (figures["converted"], figures["hops"]) == (0, 0)


@pytest.mark.parametrize("keep", ["90", "-90d", "0d", "90y", "d", "9" * 20 + "w", "9" * 400 + "d"])
def test_a_duration_that_is_none_is_told(mesh: Mesh, command: Command, keep: str) -> None:
    ended = command("pipeline", "prune", "--out", str(mesh.out), f"--keep={keep}")
    assert ended.status == 2
    assert "--keep: must be a duration such as 90d" in ended.lines[-1]


@pytest.mark.parametrize(
    ("figures", "statuses"),
    [
        ({"findings": 0}, [0, 0, 0]),
        ({"findings": 2, "slow": 2}, [5, 0, 0]),
        ({"findings": 3, "slow": 2, "storm": 1}, [5, 5, 0]),
        ({"findings": 1, "broken": 1}, [5, 5, 5]),
    ],
)
def test_findings_as_bad_as_was_said_end_with_5(
    mesh: Mesh, command: Command, monkeypatch: pytest.MonkeyPatch, figures: dict[str, int], statuses: list[int]
) -> None:
    mesh.jobs["losses"] = Job("losses", "?", ("ingest", "deliveries"))
    ordinary = mesh.job

    def job(name: str) -> Callable[[Work], Done]:
        return ordinary(name) if name != "losses" else lambda _: Done(1, figures)

    monkeypatch.setattr(mesh, "job", job)
    arguments = ("pipeline", "losses", "--events", str(mesh.events), "--out", str(mesh.out), "--json")
    ended = command(*arguments)
    assert ended.status == 0
    told = {"notice": figures.get("slow", 0), "warning": figures.get("storm", 0), "serious": figures.get("broken", 0)}
    assert json.loads(ended.out)["findings"] == told
    # Also of what is as before.
    assert [command(*arguments, "--fail-on", each).status for each in told] == statuses
    assert command(*arguments, "--fail-on", "bad").status == 2
