"""Streams whose processes or routers are killed: the sink has all that the sender was told is accepted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from amqpmesh import Direction, LinkStatistics
from tests.support.processes.cuttable_path import Way
from tests.support.processes.daemon import Daemon
from tests.support.processes.programs import ENVIRONMENT, ROOT
from tests.support.processes.router_thread import Served
from tests.support.spark.cluster import Cluster
from tests.support.spark.persistent import PATIENCE, Persistent, eventually, in_sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM = """
import sys
from amqpmesh.pipeline.session import session
url, folder, master, links = sys.argv[1:]
spark = session("kills", master, {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2"})
rows = spark.readStream.format("amqp").options(url=url, address="q", maxRowsPerBatch="300", links=links).load()
query = (
    rows.select("body", "error").writeStream.format("parquet")
    .option("checkpointLocation", folder + "/checkpoint").start(folder + "/sink")
)
print(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
query.awaitTermination()
"""

COUNT = 3000
CUT = 1200
"""Messages while a connection is cut: some batches before, between and behind the cuts."""


@contextmanager
def streaming(
    url: str, folder: Path, master: str, env: Mapping[str, str] = ENVIRONMENT, links: int = 1
) -> Iterator[int]:
    """Run a program that streams to a sink. Yields: the process id of its Java."""
    command = [sys.executable, "-c", PROGRAM, url, str(folder), master, str(links)]
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


def agree(sender: Persistent, folder: Path) -> None:
    """Assert that the sink has every message that was accepted for the sender."""
    accepted = set(sender.accepted)
    assert accepted <= in_sink(folder / "sink").keys()


def test_the_connection_is_cut_twice(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    way = Way(served)
    rows = spark.readStream.format("amqp").options(url=way.url, address="q", maxRowsPerBatch="300").load()
    writer = (
        rows.select("body").writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    query = writer.start(str(tmp_path / "sink"))
    try:
        with Persistent(served.url, CUT) as sender:
            for part in (CUT // 3, 2 * CUT // 3):
                sender.until(part)
                way.cut_soon()
            sender.until(CUT)
        agree(sender, tmp_path)
        assert query.exception() is None
        assert way.made == 3
    finally:
        query.stop()


@pytest.mark.slow
def test_the_router_is_killed_and_comes_back(tmp_path: Path) -> None:
    first = Daemon("--listen", "amqp://127.0.0.1:0", cwd=tmp_path, patience=2 * PATIENCE)
    port = first.port()
    url = f"amqp://127.0.0.1:{port}"
    try:
        with streaming(url, tmp_path, "local[2]"), Persistent(url, COUNT) as sender:
            sender.until(COUNT // 3)
            first.send(signal.SIGKILL)
            first.close()
            agree(sender, tmp_path)
            second = Daemon("--listen", url, cwd=tmp_path, patience=2 * PATIENCE)
            try:
                assert second.port() == port
                sender.until(COUNT)
                agree(sender, tmp_path)
            finally:
                second.close()
    finally:
        first.close()


@pytest.mark.slow
def test_the_drivers_java_is_killed_in_the_middle_of_a_batch(served: Served, tmp_path: Path) -> None:
    with Persistent(served.url, COUNT) as sender:
        with streaming(served.url, tmp_path, "local[2]", links=2) as java:
            sender.until(COUNT // 3)
            os.kill(java, signal.SIGKILL)
            served.until(lambda: not any(is_receiver(link) for link in served.router.statistics().links))
            agree(sender, tmp_path)
        with streaming(served.url, tmp_path, "local[2]", links=2):
            sender.until(COUNT)
            agree(sender, tmp_path)


def is_receiver(link: LinkStatistics) -> bool:
    return link.address == "q" and link.direction is Direction.OUTGOING


def executors(of: Cluster) -> list[int]:
    """Return the processes that the cluster's workers have started."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = each.read_bytes().split(b"\0")
            environment = (each.parent / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ours = f"SPARK_WORKER_DIR={of.environment['SPARK_WORKER_DIR']}".encode()
        if b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in command and ours in environment:
            found.append(int(each.parent.name))
    return found


def test_an_executor_is_killed_in_the_middle_of_a_stream(cluster: Cluster, served: Served, tmp_path: Path) -> None:
    with streaming(served.url, tmp_path, cluster.url, cluster.environment), Persistent(served.url, COUNT) as sender:
        sender.until(COUNT // 3)
        running = executors(cluster)
        assert running
        os.kill(running[0], signal.SIGKILL)
        sender.until(COUNT)
        agree(sender, tmp_path)
        eventually(lambda: executors(cluster) != running, "the worker starts another")
        assert sender.again == 0  # the reader on the driver has lost nothing
