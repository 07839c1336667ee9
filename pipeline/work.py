"""The input and the result of a job, and what is selected from a result."""

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

    Args: spark: the session.
        events: the directories with segments, each a path or a URI.
        out: the directory for results, a path or a URI.
        since, until: the beginning and the end of the time that counts, in UTC; the end itself does not count. None: no
            limit.
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
        """Write a job's result; replace an earlier one. Returns: its rows."""
        result.write.mode("overwrite").parquet(self.place(job))
        return self.read(job).count()


@dataclass(frozen=True)
class Selection:
    """The rows that are wanted.

    Args: address: a pattern of addresses. since, until: in UTC; rows whose time is partly within count.
        limit: rows at most.
    """

    address: str | None = None
    tenant: str | None = None
    router: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 50


@dataclass(frozen=True)
class Table:
    """A few rows for people to read, such as the top talkers; the result has all rows."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Done:
    """The result of a job.

    Args: rows: of its result.
        figures: its key figures, by readable names: `{"segments": 12, "quarantined": 0}`.
        tables: shown at once.
    """

    rows: int
    figures: Mapping[str, int | float] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
