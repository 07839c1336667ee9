"""The segments that an earlier run of a job has read, in little space, since a month has many; and their records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amqpmesh.pipeline.events import TABLES, file_of, spark_schema
from amqpmesh.pipeline.published import Result, digest
from amqpmesh.pipeline.segment_rows import Row
from amqpmesh.pipeline.segments import date_of
from amqpmesh.router.telemetry.segments import Name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Known:
    """The segments of a run.

    Args: lives: for each life of a router, ranges of the numbers of its segments. digest: of their rows.
    """

    lives: Mapping[str, Sequence[Sequence[int]]]
    digest: str

    @staticmethod
    def of(rows: Mapping[Name, Row]) -> Known:
        """Return what is known of segments."""
        lives: dict[str, list[list[int]]] = defaultdict(list)
        for name in sorted(rows, key=lambda each: (each.router, each.epoch, each.segment)):
            ranges = lives[_life(name)]
            if ranges and ranges[-1][1] + 1 == name.segment:
                ranges[-1][1] = name.segment
            else:
                ranges.append([name.segment, name.segment])
        told = sorted((name.file(""), row["path"], row["copies"], row["whole"]) for name, row in rows.items())
        return Known(dict(lives), digest(told))

    def has(self, name: Name) -> bool:
        """Return True if a segment is one of these."""
        return any(first <= name.segment <= last for first, last in self.ranges(name))

    def ranges(self, name: Name) -> Sequence[Sequence[int]]:
        """Return the numbers of those segments that are of the same life as this one."""
        return self.lives.get(_life(name), ())

    def is_there(self, rows: Mapping[Name, Row]) -> bool:
        """Return True if all these segments are among some, as they were."""
        return Known.of({name: row for name, row in rows.items() if self.has(name)}) == self

    def without(self, rows: Mapping[Name, Row], is_gone: Callable[[Name], bool]) -> Known | None:
        """Return those that are not gone; None: some were not there already. Args: rows: all, also of those gone."""
        if not self.is_there(rows):
            return None
        return Known.of({name: row for name, row in rows.items() if self.has(name) and not is_gone(name)})


def usable_state(before: Result | None, version: int, rows: Mapping[Name, Row]) -> Mapping[str, Any]:
    """Return what a job's last run wanted to know in this one; empty: the tables of before cannot be changed.

    They can if they are of this version of the job, and if their segments are all there, as they were.
    """
    if before is None or before.state.get("version") != version:
        return {}
    return before.state if Known(**before.state["known"]).is_there(rows) else {}


def records(spark: SparkSession, ingested: Path, name: str, rows: Mapping[Name, Row]) -> DataFrame:
    """Return the records of some segments. Args: ingested: the directory of `ingest`. name: of their table."""
    schema = spark_schema(TABLES[name])
    files = [path for each, row in rows.items() if row[name] and (path := ingested / name / _file(each, row)).exists()]
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*map(str, files)).select(schema.names)


def _file(name: Name, row: Row) -> Path:
    """Return the file with the records of a segment, below the directory of their table."""
    file = file_of(name.file(""))
    return Path(f"date={date_of(row['time'])}", f"recorded_by={file.rsplit('.', 3)[0]}", file)


def _life(name: Name) -> str:
    return f"{name.router}.{name.epoch}"
