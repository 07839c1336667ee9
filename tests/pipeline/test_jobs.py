"""The table of jobs, and the choice of jobs that have to run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from amqpmesh.pipeline import jobs
from amqpmesh.pipeline.jobs import JOBS, RUN, Job, chosen
from amqpmesh.router.amqp.errors import CommandError


def test_each_job_stands_after_those_that_it_needs() -> None:
    before: set[str] = set()
    for job in JOBS.values():
        assert before.issuperset(job.needs), job.name
        before.add(job.name)
    assert RUN not in JOBS


def test_each_job_is_a_function_of_the_module_that_bears_its_name() -> None:
    for name, job in JOBS.items():
        assert job.name == name
        assert callable(job.load())


def test_what_a_job_needs_is_done_before_it_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [Job("a", "?"), Job("b", "?", ("a",)), Job("c", "?", ("a",)), Job("d", "?", ("c", "b")), Job("e", "?")]
    monkeypatch.setattr(jobs, "JOBS", {job.name: job for job in table})
    assert [job.name for job in chosen("a")] == ["a"]
    assert [job.name for job in chosen("c")] == ["a", "c"]
    assert [job.name for job in chosen("d")] == ["a", "b", "c", "d"]
    assert [job.name for job in chosen(RUN)] == ["a", "b", "c", "d", "e"]


def test_a_job_that_there_is_not_is_the_callers_error() -> None:
    with pytest.raises(CommandError, match="no job 'nothing'; there are .*run"):
        chosen("nothing")


def test_the_table_is_read_without_spark() -> None:
    check = (
        "import sys, amqpmesh.pipeline.jobs\n"
        "print([name for name in ('pyspark', 'pandas', 'pyarrow', 'numpy', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"
