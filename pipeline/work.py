"""The input and the result of a job, and what is selected from a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.pipeline.published import WHOLE, Parts, Result, day_name, fresh, hour_name, is_there, load, paths, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES: Final = 4
"""Files of an hour at most: as many cores write it at the same time."""

Cell = str | int | float | None


@dataclass(frozen=True)
class Work:
    """The input of a job.

    Args: spark: the session.
        events: the directories with segments, each a path or a URI.
        out: the directory for results, a path or a URI.
        since, until: the beginning and the end of the time that counts, in UTC; the end itself does not count. None: no
            limit.
        anew: what runs before this one have published is not used.
        written: the parts of tables that were written and are not published yet (`published.Parts`).
    """

    spark: SparkSession
    events: tuple[str, ...]
    out: str
    since: datetime | None = None
    until: datetime | None = None
    anew: bool = False
    written: dict[str, Parts] = field(default_factory=dict, compare=False, repr=False)

    def place(self, job: str) -> str:
        """Return the directory of a job's result."""
        return f"{self.out.rstrip('/')}/{job}"

    def read(self, table: str, only: Set[str] | None = None) -> DataFrame:
        """Read a result table: what was written with this, else what is published.

        Args: only: some of its parts; None: all. Raises: CommandError: see `published.paths`.
        """
        parts = self.parts(table)
        if parts is None:
            return self.spark.read.parquet(*paths(self.out, table))
        some = [self.place(each) for name, each in parts.items() if only is None or name in only]
        if some:
            return self.spark.read.parquet(*some)
        return self.spark.read.parquet(self.place(next(iter(parts.values())))).limit(0)

    def parts(self, table: str) -> Parts | None:
        """Return the parts of a result table: those that were written with this, else those that are published."""
        written = self.written.get(table)
        return load(self.out).parts(table) if written is None else written

    def write(self, table: str, result: DataFrame) -> int:
        """Write a result table; others see it once the job is published. Returns: its rows."""
        directory = fresh(table)
        result.write.parquet(self.place(directory))
        self.written[table] = {WHOLE: directory}
        return self.read(table).count()

    def write_hours(self, table: str, rows: DataFrame, kept: Parts, files: int = FILES) -> None:
        """Write the rows of some hours of a table, on this machine.

        Args: rows: with a column `hour`, hours since 1970, and, for several files, one `key`. kept: the parts of other
            hours, which stay. files: of an hour, at most.
        """
        from pyspark.sql import functions as F  # noqa: N812

        cores = self.spark.sparkContext.defaultParallelism
        by_key = [F.pmod(F.xxhash64("key"), F.lit(min(cores, files)))] if files > 1 else []
        self._write_parts(table, rows.repartition("hour", *by_key), "hour", hour_name, kept)

    def write_days(self, table: str, rows: DataFrame, kept: Parts) -> None:
        """Write the rows of some days of a table, a file for each, on this machine.

        Args: rows: with a column `date`, days since 1970. kept: the parts of other days, which stay.
        """
        self._write_parts(table, rows.repartition("date"), "date", day_name, kept)

    def _write_parts(self, table: str, rows: DataFrame, column: str, named: Callable[[int], str], kept: Parts) -> None:
        from amqpmesh.pipeline.files import ordinary  # here: it needs Arrow

        directory = fresh(table)
        rows.write.partitionBy(column).parquet(self.place(directory))
        place = ordinary(self.place(directory))
        found = sorted(int(each.name.partition("=")[2]) for each in place.glob(f"{column}=*"))
        others = {name: each for name, each in kept.items() if name != WHOLE}  # that one has no rows
        parts = {**others, **{named(each): f"{directory}/{column}={each}" for each in found}}
        if not parts:
            directory = fresh(table)
            rows.drop(column).limit(0).write.parquet(self.place(directory))
            parts = {WHOLE: directory}
        self.written[table] = parts

    def before(self, job: str) -> Result | None:
        """Return what a job has published before, if its tables are there."""
        result = None if self.anew else load(self.out).jobs.get(job)
        return result if result is not None and is_there(self.out, result) else None

    def publish(self, job: str, given: str, done: Done) -> None:
        """Publish the tables that a job has written. Args: given: the digest of its input.

        Raises: CommandError, OSError: see `published.publish`.
        """
        told = {name: value for name, value in asdict(done).items() if name != "state"}
        publish(self.out, job, Result(given, told, dict(self.written), done.state))
        self.written.clear()


@dataclass(frozen=True)
class Selection:
    """The rows that are wanted.

    Args: address: a pattern of addresses. since, until: in UTC; rows whose time is partly within count.
        limit: rows at most. finding: the number of a finding.
    """

    address: str | None = None
    tenant: str | None = None
    router: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 50
    finding: int | None = None


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
        state: for the job's next run (`Work.before`); JSON can hold it.
    """

    rows: int
    figures: Mapping[str, int | float] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
