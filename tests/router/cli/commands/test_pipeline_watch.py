"""`amqpmesh pipeline watch`: arguments, output, and its end by a signal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from amqpmesh.pipeline.live import BOOK, alone
from tests.support.data.known_traffic import Known
from tests.support.processes.programs import ENVIRONMENT
from tests.support.processes.router_thread import Command
from tests.support.spark.session import JAVA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PATIENCE = 300.0  # seconds; a session of its own takes ten


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--to", "out"], "the following arguments are required: SOURCE"),
        (["."], "the following arguments are required: --to"),
        (["/nowhere", "--to", "out"], "SOURCE: no directory, and no amqp(s) URL: /nowhere"),
        (["s3://there", "--to", "out"], "s3://there"),
        ([".", "--to", "hdfs://there/out"], "hdfs://there/out"),
        ([".", "--to", "out", "--delay", "soon"], "--delay: must be a duration such as 90d"),
        ([".", "--to", "out", "--option", "user"], "--option: must be KEY=VALUE"),
        ([".", "--to", "out", "--metrics", "9464x"], "--metrics: must be ADDRESS:PORT"),
        ([".", "--to", "out", "--master", "here"], "no master of Spark: 'here'"),
    ],
)
def test_invalid_arguments_end_with_2_before_spark_is_started(
    more: list[str], said: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    ended = command("pipeline", "watch", *more)
    assert (ended.status, ended.out) == (2, "")
    assert said in ended.lines[-1]
    assert list(tmp_path.iterdir()) == []


def test_one_watch_writes_into_a_directory(command: Command, tmp_path: Path) -> None:
    with alone(tmp_path / "out" / "live"):
        ended = command(
            *("pipeline", "watch", f"{tmp_path}", "--to", f"{tmp_path}/out"),
            *("--checkpoint", f"{tmp_path}/checkpoint", "--master", "local[1]"),
        )
    assert (ended.status, ended.out) == (2, "")
    assert f"another watch uses {tmp_path}/out/live" in ended.lines[-1]


def recorded(directory: Path) -> None:
    known = Known(directory, "A")
    for number in range(200):
        known.deliver("A", seconds=number)
    known.close(1)


@pytest.mark.slow
def test_what_is_there_is_read_and_shown(spark: SparkSession, command: Command, tmp_path: Path) -> None:
    recorded(tmp_path / "events")
    (tmp_path / "events" / "x.events").write_bytes(b"nothing")
    arguments = ("pipeline", "watch", f"{tmp_path}/events", "--to", f"{tmp_path}/out", "--once")
    ended = command(*arguments, "--json")
    assert ended.status == 0, ended.lines
    assert json.loads(ended.out) == {
        "to": f"{tmp_path}/out", "segments": 1, "again": 0, "records": 200, "late": 0, "ahead": 0, "faults": 1,
        "problems": {"foreign": 1}, "minutes": 2,
    }  # fmt: skip
    assert ended.lines[-1].endswith("/x.events: foreign: no block of a segment stands in it")
    shown = command("pipeline", "show", "live", "--out", f"{tmp_path}/out", "--json")
    assert [row["deliveries"] for row in json.loads(shown.out)["rows"]] == [60, 20]
    ended = command(*arguments)
    assert (ended.status, ended.out) == (0, "")
    assert ended.lines[-1] == "watched: 1 segments, 0 again, 200 records, 0 late, 0 ahead, 1 faults"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_between_two_batches(number: signal.Signals, tmp_path: Path) -> None:
    recorded(tmp_path / "events")
    (tmp_path / "events" / "x.events").write_bytes(b"nothing")
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "amqpmesh", "pipeline", "watch", f"{tmp_path}/events", "--to", f"{tmp_path}/out"),
            *("--json", "--metrics", ":0", "--master", "local[1]", "--conf", f"spark.driver.extraJavaOptions={JAVA}"),
        ],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        alarm = threading.Timer(PATIENCE, program.kill)
        alarm.start()
        try:
            assert program.stderr is not None
            url = program.stderr.readline().removeprefix("metrics: ").strip()
            said = program.stderr.readline()  # the batch was taken
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                text = answer.read().decode()
            program.send_signal(number)
            out, error = program.communicate()
        finally:
            alarm.cancel()
            program.kill()
    assert said.endswith("/x.events: foreign: no block of a segment stands in it\n")
    assert "\namqpmesh_live_records_total 200\n" in text
    assert (program.returncode, error) == (0, "")
    assert json.loads(out)["segments"] == 1
    assert json.loads((tmp_path / "out" / "live" / "checkpoint" / BOOK).read_text())["counts"]["segments"] == 1
