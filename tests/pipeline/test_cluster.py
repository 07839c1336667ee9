"""A Spark cluster runs what the embedded session runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas
from pyarrow import parquet

from tests.support import counting
from tests.support.cluster import WORKERS, Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PROGRAM = """
import json, sys
from amqpmesh.pipeline.session import session
from tests.pipeline.test_cluster import halved

spark = session("tests", sys.argv[1])
print(json.dumps([row.asDict() for row in halved(spark.range(0, 1000, 1, 4)).collect()]))
"""


def halved(numbers: DataFrame) -> DataFrame:
    """What becomes of numbers on the executors, and on which."""

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
    (account,) = json.loads(cluster.run(counting.PROGRAM, *command))["jobs"]
    assert account["rows"] == 10
    assert sorted(parquet.read_table(account["out"])["id"].to_pylist()) == list(range(10))
    told = {row["name"]: row["value"] for row in account["tables"][0]["rows"]}
    assert json.loads(told["settings"])["spark.master"] == cluster.url
