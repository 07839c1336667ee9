"""The input and the result of a job, and what is selected from a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from amqpmesh.pipeline.published import WHOLE, Parts, Result, fresh, paths, publish

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
        written: the parts of tables that were written and are not published yet (`published.Parts`).
    """

    spark: SparkSession
    events: tuple[str, ...]
    out: str
    since: datetime | None = None
    until: datetime | None = None
    written: dict[str, Parts] = field(default_factory=dict, compare=False, repr=False)

    def place(self, job: str) -> str:
        """Return the directory of a job's result."""
        return f"{self.out.rstrip('/')}/{job}"

    def read(self, table: str) -> DataFrame:
        """Read a result table: what was written with this, else what is published.

        Raises: CommandError: see `published.paths`.
        """
        parts = self.written.get(table)
        if parts is None:
            return self.spark.read.parquet(*paths(self.out, table))
        return self.spark.read.parquet(*(self.place(each) for each in parts.values()))

    def write(self, table: str, result: DataFrame) -> int:
        """Write a result table; others see it once the job is published. Returns: its rows."""
        directory = fresh(table)
        result.write.parquet(self.place(directory))
        self.written[table] = {WHOLE: directory}
        return self.read(table).count()

    def publish(self, job: str, given: str, done: Done) -> None:
        """Publish the tables that a job has written. Args: given: the digest of its input.

        Raises: CommandError, OSError: see `published.publish`.
        """
        publish(self.out, job, Result(given, asdict(done), dict(self.written)))
        self.written.clear()


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
