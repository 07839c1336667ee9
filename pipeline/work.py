"""The input of a job, and the account of its work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Cell = str | int | float | None


@dataclass(frozen=True)
class Work:
    """The input of a job.

    Args: spark: the session to do it in.
        events: the directories that hold segments, each a path or a URI.
        out: the directory for results, a path or a URI.
        since, until: only what happened from the one on and before the other, in UTC; None: without bound.
    """

    spark: SparkSession
    events: tuple[str, ...]
    out: str
    since: datetime | None = None
    until: datetime | None = None

    def place(self, job: str) -> str:
        """Return the directory of a job's result."""
        return f"{self.out.rstrip('/')}/{job}"

    def read(self, job: str) -> DataFrame:
        """Read the result of a job."""
        return self.spark.read.parquet(self.place(job))

    def write(self, job: str, result: DataFrame) -> int:
        """Write a job's result in the place of the one before. Returns: its rows."""
        result.write.mode("overwrite").parquet(self.place(job))
        return self.read(job).count()


@dataclass(frozen=True)
class Table:
    """A few rows for people to read, such as the top talkers; all of them are in the result."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Done:
    """The account of a job.

    Args: rows: of its result.
        figures: the few numbers that say how it went, by names that people read: `{"segments": 12, "quarantined": 0}`.
        tables: what is to be seen at once.
    """

    rows: int
    figures: Mapping[str, int | float] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
