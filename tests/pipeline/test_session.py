"""The Spark session: its settings, their order of precedence, and no open port."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import SparkContext
from pyspark.sql.functions import udf

from amqpmesh.pipeline.session import LOCAL, PARTITIONS, SparkError, defaults, explained, is_running, session
from amqpmesh.router.amqp.errors import CommandError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANY_LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def test_it_is_the_one_that_there_is(spark: SparkSession) -> None:
    assert is_running()
    assert session("another").sparkContext is spark.sparkContext
    assert session("another", "local[2]").sparkContext is spark.sparkContext
    with pytest.raises(CommandError, match=r"the master is local\[2\] already, and cannot be local\[3\]"):
        session("another", "local[3]")


def test_what_it_wants_is_set_unless_the_caller_says_otherwise(spark: SparkSession) -> None:
    conf = dict(spark.sparkContext.getConf().getAll())
    assert conf["spark.app.name"] == "tests"
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert LOCAL.items() <= conf.items()
    assert conf["spark.sql.shuffle.partitions"] == "2"


def test_it_listens_on_loopback_only(spark: SparkSession) -> None:
    process = SparkContext._gateway.proc.pid
    sockets = {
        found[1]
        for link in Path(f"/proc/{process}/fd").iterdir()
        if link.is_symlink() and (found := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link)))
    }
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]
    ]
    listening = {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets}
    assert listening
    assert listening <= ANY_LOOPBACK


def test_the_executors_python_is_this_one(spark: SparkSession) -> None:
    python = udf(lambda _: sys.executable, "string")
    assert [row[0] for row in spark.range(2).select(python("id")).distinct().collect()] == [sys.executable]


def test_times_are_of_no_zone_but_utc(spark: SparkSession) -> None:
    (row,) = spark.sql("select cast(timestamp_seconds(0) as string)").collect()
    assert row[0] == "1970-01-01 00:00:00"


@pytest.mark.parametrize(
    "master", ["", "here", "local[]", "local[x]", "spark://", "http://somewhere", "sc://somewhere"]
)
def test_what_is_no_master_is_refused(master: str) -> None:
    with pytest.raises(CommandError, match="no master of Spark"):
        session("tests", master)


@pytest.mark.parametrize(
    ("master", "partitions"),
    [
        ("local", PARTITIONS),
        ("local[3]", 3 * PARTITIONS),
        ("local[3,2]", 3 * PARTITIONS),
        ("local[*]", len(os.sched_getaffinity(0)) * PARTITIONS),
        ("spark://somewhere:7077", None),
        ("local-cluster[2,1,1024]", None),
        ("yarn", None),
        ("k8s://https://somewhere", None),
    ],
)
def test_only_an_embedded_session_is_made_small(master: str, partitions: int | None) -> None:
    wanted = defaults(master)
    assert wanted["spark.sql.session.timeZone"] == "UTC"
    assert wanted.get("spark.sql.shuffle.partitions") == (None if partitions is None else str(partitions))
    assert ("spark.driver.host" in wanted) is (partitions is not None)


def test_an_error_on_an_executor_is_told_in_a_line(spark: SparkSession) -> None:
    divided = udf(lambda number: number // 0, "long")
    with pytest.raises(SparkError, match=r"^halves: ZeroDivisionError: .*zero$"), explained("halves"):
        spark.range(1).select(divided("id")).collect()


def test_an_error_of_a_query_is_told_in_a_line(spark: SparkSession) -> None:
    with pytest.raises(SparkError, match=r"^names: \[UNRESOLVED_COLUMN.*\].*`nothing`.*$"), explained("names"):
        spark.range(1).select("nothing")


def test_an_error_of_java_is_told_in_a_line(spark: SparkSession) -> None:
    java = spark.sparkContext._jvm.java
    missing = java.nio.file.Paths.get(java.net.URI("file:///nowhere"))
    with pytest.raises(SparkError, match=r"^files: java.nio.file.NoSuchFileException: /nowhere$"), explained("files"):
        java.nio.file.Files.readAllLines(missing)
