"""Jobs on a Spark cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas
from pyarrow import parquet

from amqpmesh.pipeline.jobs import JOBS
from amqpmesh.pipeline.published import paths
from amqpmesh.router.telemetry.schema import Kind
from tests.support.data.known_traffic import Known
from tests.support.data.segments import at
from tests.support.spark import counting_job
from tests.support.spark.cluster import WORKERS, Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PROGRAM = """
import json, sys
from amqpmesh.pipeline.session import session
from tests.pipeline.test_cluster import halved

spark = session("tests", sys.argv[1])
print(json.dumps([row.asDict() for row in halved(spark.range(0, 1000, 1, 4)).collect()]))
"""


MAIN = """
import sys
from amqpmesh.router.cli.main import main

sys.exit(main())
"""


def halved(numbers: DataFrame) -> DataFrame:
    """Halve numbers on the executors, and add the executor's name."""

    def halve(batches: Iterator[pandas.DataFrame]) -> Iterator[pandas.DataFrame]:
        for batch in batches:
            yield batch.assign(half=batch["id"] / 2, executor=os.environ["SPARK_EXECUTOR_DIRS"])

    return numbers.mapInPandas(halve, "id long, half double, executor string")


def test_a_function_of_frames_runs_on_all_executors(cluster: Cluster) -> None:
    rows = json.loads(cluster.run(PROGRAM, cluster.url))
    assert {row["id"]: row["half"] for row in rows} == {number: number / 2 for number in range(1000)}
    assert len({row["executor"] for row in rows}) == WORKERS


def test_the_command_runs_a_job_there(cluster: Cluster, tmp_path: Path) -> None:
    command = ("pipeline", "count", "--events", tmp_path, "--out", tmp_path / "out", "--master", cluster.url, "--json")
    (account,) = json.loads(cluster.run(counting_job.PROGRAM, *command))["jobs"]
    assert account["rows"] == 10
    assert sorted(parquet.read_table(*paths(str(tmp_path / "out"), "count"))["id"].to_pylist()) == list(range(10))
    told = {row["name"]: row["value"] for row in account["tables"][0]["rows"]}
    assert json.loads(told["settings"])["spark.master"] == cluster.url


def test_jobs_answer_there_what_they_answer_here(cluster: Cluster, tmp_path: Path) -> None:
    known = Known(tmp_path / "events", "ABC")
    for number in range(100):
        known.deliver("ABC", seconds=number, size=100)
    edges = [("A", "B"), ("B", "A"), ("B", "C"), ("C", "B")]
    told = [{"time": at(0), "origin": a, "neighbour": b, "cost": 1, "whole": True} for a, b in edges]
    for recorder in known.recorders.values():
        recorder.put(Kind.EDGE, told)
    known.close()
    out = tmp_path / "out"
    command = ("pipeline", "run", "--events", tmp_path / "events", "--out", out, "--master", cluster.url)
    settings = ("--conf", "spark.sql.shuffle.partitions=4", "--json")
    answer = json.loads(cluster.run(MAIN, *command, *settings))
    accounts = {account["job"]: account["rows"] for account in answer["jobs"]}
    assert list(accounts) == list(JOBS)
    # Deliveries in three minutes; five that may fail, and six pairs of them without a router and a link of its own.
    assert [accounts[each] for each in ("deliveries", "traffic", "contingency")] == [100, 3, 11]
    attempts = parquet.read_table(*paths(str(out), "deliveries/attempts")).to_pylist()
    assert {("".join(row["path"]), row["complete"]) for row in attempts} == {("ABC", True)}
    failures = {row["failure"]: row for row in parquet.read_table(*paths(str(out), "contingency")).to_pylist()}
    assert {failures[each]["lost_messages"] for each in ("A - B", "B", "C")} == {100.0}
    latencies = parquet.read_table(*paths(str(out), "latency/addresses")).to_pylist()
    assert sum(row["deliveries"] for row in latencies) == 100
    page = Path(answer["report"]).read_text(encoding="utf-8")
    assert all(name in page for name in JOBS)
