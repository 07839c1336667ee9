"""The conversion of closed segments to Parquet, once each: on Spark's executors, which share the directories with the
driver.

For each segment there is one file in each table (`events.TABLES`), written under a temporary name and renamed; the file
of `segments` comes last. It records what was converted, so the next run skips what has not changed since, and completes
a run that was killed. The driver gathers these files by day (`segment_rows`).
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from amqpmesh.pipeline.events import PARTITIONED, TABLES, Problem, arrow_schema, file_of
from amqpmesh.pipeline.files import File, Found, find, ordinary
from amqpmesh.pipeline.pruning import pruned
from amqpmesh.pipeline.published import digest
from amqpmesh.pipeline.segment_rows import Row, gather, segment_rows
from amqpmesh.pipeline.segments import Account, Finding, convert
from amqpmesh.pipeline.work import Done, Table, Work
from amqpmesh.router.telemetry.schema import VERSION
from amqpmesh.router.telemetry.segments import OPEN, SUFFIX, Name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TASKS: Final = 4
"""Tasks for each core: with several, a long segment at the end keeps the other cores waiting only briefly."""

STALE: Final = 24 * 3600.0
"""Seconds after which a temporary file is abandoned."""

LISTING: Final = "listing"
"""The file in `quarantine` for findings outside of segments; it is written again by each run."""

_BINARY_FILE: Final = "path string, modificationTime timestamp, length long, content binary"

_TEMPORARY: Final = ".tmp"
_RESULT: Final = pa.schema([("path", pa.string()), ("problem", pa.string()), ("sentence", pa.string())])


@dataclass(frozen=True, slots=True)
class Ingested:
    """The result of a run, and the totals of all runs."""

    converted: int
    unchanged: int
    open: int
    """Files that are being written to."""
    rows: Mapping[str, int]
    """The rows of all tables, by name; of all runs together."""
    problems: Mapping[str, tuple[int, int]]
    """The rows of `quarantine` by problem, and the number of records concerned, as far as known."""
    digest: str
    """Of all that the tables are made from; other tables made from the same ones need not be made again."""


@dataclass(frozen=True)
class Prepared:
    """Segments that were found, before any is converted.

    Args: done: the rows of those that were converted before. tasks: the conversions to be made, for executors.
    """

    place: Path
    found: Found
    done: Mapping[Name, Row]
    tasks: list[dict[str, Any]]


def prepare(events: Iterable[str], out: str, now: float | None = None) -> Prepared:
    """Find out which segments are new; without Spark.

    Args, Raises: as `ingest`.
    """
    place = ordinary(out)
    for table in TABLES:
        (place / table).mkdir(parents=True, exist_ok=True)
        _sweep(place / table)
    done = segment_rows(place)
    known = {file: name for name, row in done.items() for file in _files(row) if (row["version"] or 0) <= VERSION}
    found = find([ordinary(each) for each in events], place, known, time.time() if now is None else now)
    gone = pruned(place)
    for name in [each for each in found.segments if gone.has(each)]:
        del found.segments[name]
    new = {name: files for name, files in found.segments.items() if not known.keys() >= set(files)}
    return Prepared(place, found, done, [_task(name, files, done.get(name)) for name, files in new.items()])


def complete(prepared: Prepared, spark: SparkSession | None) -> Ingested:
    """Convert the new segments. Args: spark: may be None if there are none."""
    place, found, tasks = prepared.place, prepared.found, prepared.tasks
    failures = _convert_all(spark, tasks, place) if spark is not None else []
    gather(place)
    done = segment_rows(place) if tasks else prepared.done
    listed = found.findings + failures
    _write_listing(place, listed, done)
    told = sorted((path, finding.problem, finding.sentence) for path, finding in listed)
    return Ingested(
        converted=len(tasks) - len(failures),
        unchanged=len(found.segments) - len(tasks),
        open=found.open,
        rows={table: sum(row[table] for row in done.values()) for table in PARTITIONED},
        problems=_problems(place),
        digest=digest(sorted(done.values(), key=lambda row: str(row["name"])), told),
    )


def ingest(spark: SparkSession, events: Iterable[str], out: str, now: float | None = None) -> Ingested:
    """Convert new segments in directories.

    Args: events: the directories, searched recursively. out: the directory for the tables. now: seconds since 1970;
        None: by the clock of this machine.
    Raises: CommandError: a place is no ordinary path. OSError: a directory cannot be read, or written to.
    """
    return complete(prepare(events, out, now), spark)


def job(work: Work) -> Done:
    """Run the job; it converts all segments, whatever the time of the other jobs."""
    return summary(ingest(work.spark, work.events, work.place("ingest")))


def summary(result: Ingested) -> Done:
    """Return what the job tells."""
    figures = {"converted": result.converted, "unchanged": result.unchanged, "open": result.open, **result.rows}
    figures["quarantined"] = sum(rows for rows, _ in result.problems.values())
    rows = tuple((problem, *counts) for problem, counts in sorted(result.problems.items()))
    tables = (Table("what is wrong", ("problem", "rows", "records"), rows),) if rows else ()
    return Done(sum(result.rows.values()), figures, tables)


def watch(spark: SparkSession, events: Sequence[str], out: str, checkpoint: str, **trigger: Any) -> StreamingQuery:
    """Convert segments as a stream, as they are closed.

    A batch of the stream only says that there are new segments. So nothing is lost or doubled if a batch is repeated or
    a checkpoint is lost.
    Args: checkpoint: a directory for the stream's state. trigger: of `DataStreamWriter.trigger`:
        `processingTime="1 minute"`, `availableNow=True`.
    """
    streams = [_closed(spark, str(ordinary(each))) for each in events]
    stream = streams[0]
    for each in streams[1:]:
        stream = stream.union(each)

    def convert_batch(batch: DataFrame, _: int) -> None:
        ingest(batch.sparkSession, events, out)

    writer = stream.writeStream.foreachBatch(convert_batch).option("checkpointLocation", checkpoint)
    return writer.trigger(**trigger).start()


def _closed(spark: SparkSession, directory: str) -> DataFrame:
    """Return a stream of the names of closed segments, without their content."""
    reader = spark.readStream.format("binaryFile").schema(_BINARY_FILE).option("pathGlobFilter", f"*{SUFFIX}")
    return reader.option("recursiveFileLookup", "true").load(directory).select("path")


# ------------------------------------------------------------------------------------------------------- on the driver


def _sweep(folder: Path) -> None:
    """Remove temporary files of a run that was killed long ago."""
    for each in folder.glob(f".*{_TEMPORARY}"):
        with suppress(OSError):
            if time.time() - each.stat().st_mtime > STALE:
                each.unlink()


def _files(row: Row) -> list[File]:
    return [File(**each) for each in row["copies"]]


def _task(name: Name, files: Sequence[File], row: Row | None) -> dict[str, Any]:
    """Return the task for an executor. Args: row: of an earlier conversion."""
    before = None
    if row is not None and row["path"] not in {file.path for file in files}:
        before = [row["whole"], row["octets"]]  # the converted file is gone, and the current one might be worse
    return {"name": asdict(name), "files": [asdict(each) for each in sorted(files)], "before": before}


def _convert_all(spark: SparkSession, tasks: list[dict[str, Any]], place: Path) -> list[tuple[str, Finding]]:
    """Convert segments. Returns: the files that were not converted, and why."""
    if not tasks:
        return []
    tasks.sort(key=lambda task: -sum(file["octets"] for file in task["files"]))  # long ones first
    partitions = min(len(tasks), TASKS * spark.sparkContext.defaultParallelism)
    rows = [(index % partitions, json.dumps(task)) for index, task in enumerate(tasks)]
    dealt = spark.createDataFrame(rows, "part int, task string").repartitionByRange(partitions, "part")
    results = dealt.mapInArrow(partial(_take, str(place)), "path string, problem string, sentence string").collect()
    return [
        (row["path"], Finding(Problem(row["problem"]), row["sentence"]))
        for row in results
        if row["problem"] is not None
    ]


def _write_listing(place: Path, findings: Sequence[tuple[str, Finding]], done: Mapping[Name, Row]) -> None:
    rows = [_quarantined(os.path.basename(path), path, None, finding) for path, finding in findings]
    rows += [_quarantined(name.file(""), None, name.router, finding) for name, finding in _gaps(done)]
    _write(place / "quarantine" / f"{LISTING}.parquet", rows, "quarantine")


def _gaps(done: Mapping[Name, Row]) -> Iterator[tuple[Name, Finding]]:
    """Yield each segment behind a gap, and the gap: missing segments or hop records of the same run of its router."""
    ordered = sorted(done, key=lambda name: (name.router, name.epoch, name.segment))
    for earlier, later in pairwise(ordered):
        if (earlier.router, earlier.epoch) != (later.router, later.epoch):
            continue
        between = later.segment - earlier.segment - 1
        ended, began = done[earlier]["next_hop"], done[later]["first_hop"]
        lost = began - ended if None not in (ended, began) else 0
        if between:
            sentence = f"{between} segments before it are not there"
            yield later, Finding(Problem.MISSING, sentence, records=max(0, lost))
        elif lost > 0:
            sentence = f"{lost} hop records between segment {earlier.segment} and it are lost"
            yield later, Finding(Problem.LOST, sentence, records=lost)


def _problems(place: Path) -> dict[str, tuple[int, int]]:
    rows: Counter[str] = Counter()
    records: Counter[str] = Counter()
    for path in (place / "quarantine").glob("*.parquet"):
        for row in pq.ParquetFile(path).read(["problem", "records"]).to_pylist():
            rows[row["problem"]] += 1
            records[row["problem"]] += row["records"] or 0
    return {problem: (rows[problem], records[problem]) for problem in rows}


# -------------------------------------------------------------------------------------------------------- on executors


def _take(place: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert segments. Yields: for each the file, and the reason if it was not converted."""
    for batch in batches:
        for told in batch.column("task").to_pylist():
            task = json.loads(told)
            files = [File(**each) for each in task["files"]]
            path, problem, sentence = files[0].path, None, None
            try:
                _convert(Path(place), Name(**task["name"]), files, task["before"])
            except _NotConvertedError as error:
                path, problem, sentence = error.args
            yield pa.RecordBatch.from_pylist([{"path": path, "problem": problem, "sentence": sentence}], _RESULT)


class _NotConvertedError(Exception):
    """The reason why a segment was not converted: path, problem, sentence."""


def _convert(place: Path, name: Name, files: Sequence[File], before: list[Any] | None) -> None:
    """Convert one segment.

    Args: before: the rank (`Rank`) of the file from which it was converted before; None: it was not.
    Raises: _NotConvertedError. OSError: a file cannot be written.
    """
    file, rank, duplicates = _choose(files, needs_rank=before is not None)
    if before is not None and list(rank) <= before:
        sentence = "what was converted before, from a file that is gone, is at least as good"
        raise _NotConvertedError(file.path, Problem.DUPLICATE, sentence)
    data = _read(file.path)
    account = Account(Name.of(os.path.basename(file.path)))
    with _Output(place, name) as output:
        for table, batch in convert(data, account):
            output.write(table, batch)
        output.keep(account)
    if file.path.endswith(OPEN):
        sentence = "it is open, and nobody has written to it for long"
        account.findings.append(Finding(Problem.LEFT_BEHIND, sentence, octets=len(data)))
    found = [(file.path, each) for each in account.findings] + duplicates
    rows = [_quarantined(name.file(""), path, name.router, finding) for path, finding in found]
    _write(place / "quarantine" / file_of(name.file("")), rows, "quarantine")
    ordered = [file, *(each for each in files if each != file)]
    row = _row(account, name, ordered, len(data), len(rows))
    _write(place / "segments" / file_of(name.file("")), [row], "segments")


Rank = tuple[bool, int]
"""The order of files of the same segment: complete before incomplete, long before short."""


def _choose(files: Sequence[File], *, needs_rank: bool) -> tuple[File, Rank, list[tuple[str, Finding]]]:
    """Return the file to convert for a segment, and findings on the others. Raises: _NotConvertedError."""
    if len(files) == 1 and not needs_rank:
        return files[0], (False, 0), []
    different: dict[bytes, tuple[Rank, File]] = {}
    for file in files:
        data = _read(file.path)
        digest = sha256(data).digest()
        if digest not in different:
            account = Account(Name.of(os.path.basename(file.path)))
            for _ in convert(data, account):
                pass
            different[digest] = (account.whole, len(data)), file
    (rank, chosen), *others = sorted(different.values(), reverse=True)
    duplicates = []
    for (whole, octets), file in others:
        state = "whole" if whole else "not whole"
        sentence = f"it holds something else ({octets} octets, {state}) than {chosen.path} ({rank[1]} octets)"
        duplicates.append((file.path, Finding(Problem.DUPLICATE, sentence, octets=octets)))
    return chosen, rank, duplicates


def _read(path: str) -> bytes:
    """Read a file. Raises: _NotConvertedError."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _NotConvertedError(path, Problem.INACCESSIBLE, f"it cannot be read: {error.strerror}") from None


class _Output:
    """The files of a segment in the tables, temporary until all are written."""

    def __init__(self, place: Path, name: Name) -> None:
        self._place, self._name = place, name
        self._writers: dict[str, tuple[Path, pq.ParquetWriter]] = {}

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *_: object) -> None:
        for path, writer in self._writers.values():
            with suppress(OSError):  # a full disk refuses the end of the file, too; the files must be removed anyway
                writer.close()
            path.unlink(missing_ok=True)

    def write(self, table: str, batch: pa.RecordBatch) -> None:
        """Append rows. Raises: OSError."""
        if table not in self._writers:
            path = _temporary(self._place / table)
            strings = [each.name for each in batch.schema if each.name not in ("key", "first_key")]
            writer = pq.ParquetWriter(path, batch.schema, compression="zstd", use_dictionary=strings)
            self._writers[table] = path, writer
        self._writers[table][1].write_batch(batch)

    def keep(self, account: Account) -> None:
        """Replace the segment's former files, now that all are written. Raises: OSError."""
        file = file_of(self._name.file(""))
        folder = Path(f"date={account.date}", f"recorded_by={file.rsplit('.', 3)[0]}")
        kept = set()
        for table, (path, writer) in ({} if account.is_other else self._writers).items():
            writer.close()
            target = self._place / table / folder / file
            _rename(path, target)
            kept.add(target)
        for table in PARTITIONED:  # segment names are percent-encoded, so they contain no pattern
            for old in (self._place / table).glob(f"date=*/{folder.name}/{file}"):
                if old not in kept:
                    old.unlink()


def _row(account: Account, name: Name, files: Sequence[File], octets: int, quarantined: int) -> Row:
    counted = dict.fromkeys(PARTITIONED, 0) if account.is_other else account.rows
    return {
        "name": name.file(""), "router": name.router, "epoch": name.epoch, "segment": name.segment,
        "version": account.version, "time": account.began, "sample": account.sample, "path": files[0].path,
        "copies": [asdict(each) for each in files], "octets": octets, "whole": account.whole, **counted,
        "quarantined": quarantined, "first_hop": account.first_hop, "next_hop": account.next_hop,
        "first_time": account.first_time, "last_time": account.last_time, "dropped": account.dropped,
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- both


def _quarantined(segment: str, path: str | None, router: str | None, finding: Finding) -> Row:
    return {"segment": segment, "path": path, "router": router, **asdict(finding)}


def _write(path: Path, rows: Sequence[Mapping[str, Any]], table: str) -> None:
    """Write a file of rows, unless there are none. Raises: OSError."""
    if not rows:
        path.unlink(missing_ok=True)
        return
    schema = arrow_schema(TABLES[table])
    temporary = _temporary(path.parent)
    try:
        pq.write_table(pa.Table.from_pylist(list(rows), schema), temporary, compression="zstd")
        _rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _temporary(folder: Path) -> Path:
    return folder / f".{uuid.uuid4().hex}{_TEMPORARY}"


def _rename(temporary: Path, target: Path) -> None:
    """Rename a file after flushing it to disk: no file with a final name is ever incomplete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(temporary, "rb") as written:
        os.fsync(written.fileno())
    os.replace(temporary, target)
