"""A reader whose process is ended: deliveries that are not accepted are released, by the links' processes too."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from amqpmesh import Released
from tests.support.processes.router_thread import PATIENCE, Served

ROOT = Path(__file__).parents[3]

#: What Spark's process does when a query is stopped: its pipe ends, so that it stops the reader, and SIGTERM comes: the
#: latter once the reader waits for its thread, or with nothing under way.
READER = """
import os, signal, sys, threading, time
from pyspark.sql.streaming.datasource import ReadMaxRows
from amqpmesh.pipeline.connector.options import Options, Use
from amqpmesh.pipeline.connector.rows import Shape
from amqpmesh.pipeline.connector.stream import AmqpStreamReader

options = Options({"url": sys.argv[1], "address": "q", "links": sys.argv[3]}, Use.STREAM)
reader = AmqpStreamReader(options, Shape(("body",)))
start = reader.initialOffset()
while not (report := reader.reportLatestOffset()) or report["seq"] < 3:
    reader.latestOffset(start, ReadMaxRows(3))
join = threading.Thread.join

def joined(thread, seconds=None):
    threading.Thread.join = join
    os.kill(os.getpid(), signal.SIGTERM)
    join(thread, seconds)

try:
    if sys.argv[2] == "stops":
        threading.Thread.join = joined
    else:
        os.kill(os.getpid(), signal.SIGKILL if sys.argv[2] == "is killed" else signal.SIGTERM)
finally:
    reader.stop()
"""


@pytest.mark.parametrize(
    ("what", "links", "status"),
    [("stops", "1", 0), ("waits", "1", 0), ("waits", "2", 0), ("is killed", "2", -signal.SIGKILL)],
)
def test_what_is_not_accepted_is_released(what: str, links: str, status: int, served: Served) -> None:
    outcomes = served.send("q", b"1", b"2", b"3")
    command = [sys.executable, "-c", READER, served.url, what, links]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (status, "")
    assert served.first(3, outcomes) == [Released()] * 3
