"""Publication of results: a file names the directories that are the tables, and is replaced at once.

A job writes into directories of its own (`fresh`), and then names them (`publish`). So a reader sees all tables of a
job as they were before a run, or all as they are after it, and a run that is killed leaves what there was. A directory
is removed by the job's publication after the one that replaced it: who has read the file can still read the tables.

The file also says from which input a job has made its tables, so that nothing is computed twice. Importing this needs
neither Spark nor Arrow.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.router.amqp.errors import CommandError

if TYPE_CHECKING:
    from amqpmesh.pipeline.work import Done

FILE: Final = "published.json"
"""The file's name, in the directory of results."""

FORMAT: Final = 1
"""The version of the file's form."""

WHOLE: Final = ""
"""The name of the only part of a table that has no parts."""

ABANDONED: Final = 24 * 3600.0
"""Seconds after which a directory that was never named is removed: the run that wrote it was killed."""

_LOCK: Final = ".published.lock"
_VERSION: Final = re.compile(r"v\d{1,20}-[0-9a-f]{8}")
_TABLE: Final = re.compile(r"[a-z]+(/[a-z]+)?")
#: Only such directories are removed, and only below such tables, whatever the file says.
_DIRECTORY: Final = re.compile(rf"{_TABLE.pattern}/{_VERSION.pattern}(/[a-z]+=[0-9A-Za-z-]+)?")
_SPARKS: Final = ("part-*.parquet", "_SUCCESS", ".part-*.crc", "._SUCCESS.crc")

Parts = Mapping[str, str]
"""The parts of a table: for the name of each, its directory, relative to that of the results."""


@dataclass(frozen=True)
class Result:
    """A publication of one job.

    Args: input: a digest of all that the tables are made from (`digest`). done: the job's `Done`, as `asdict` gives it.
        tables: the parts of each table. state: what the job wants to know in its next run.
    """

    input: str
    done: Mapping[str, Any]
    tables: Mapping[str, Parts]
    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """The content of the file. Args: jobs: by name. replaced: directories that no table has any more."""

    jobs: Mapping[str, Result] = field(default_factory=dict)
    replaced: tuple[str, ...] = ()

    def parts(self, table: str) -> Parts | None:
        """Return the parts of a table; None: it is not published."""
        for result in self.jobs.values():
            if table in result.tables:
                return result.tables[table]
        return None


def digest(*values: Any) -> str:
    """Return a digest of values that JSON can hold; equal ones have the same."""
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def fresh(table: str) -> str:
    """Return a directory for a table that nothing else writes to, relative to that of the results."""
    return f"{table}/v{time.time_ns()}-{uuid.uuid4().hex[:8]}"


def hour_name(hour: int) -> str:
    """Return the name of an hour's part, such as `2026-05-01T12`, in UTC. Args: hour: hours since 1970."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=hour)).strftime("%Y-%m-%dT%H")


def day_name(day: int) -> str:
    """Return the name of a day's part, such as `2026-05-01`, in UTC. Args: day: days since 1970."""
    return hour_name(day * 24)[:10]


def day_of_name(name: str) -> int:
    """Return the day of a part, since 1970. Args: name: as `day_name` returns it."""
    return hour_of_name(f"{name}T00") // 24


def hour_of_name(name: str) -> int:
    """Return the hour of a part, since 1970. Args: name: as `hour_name` returns it."""
    return int(datetime.fromisoformat(f"{name}:00+00:00").timestamp()) // 3600


def day_of_part(name: str) -> str:
    """Return the day of a part of an hour, such as `2026-05-01`; a part of a day is its own."""
    return name[:10]


def changed_days(now: Parts, before: Mapping[str, str]) -> set[str]:
    """Return the days with parts that are new, gone, or written again. Args: now, before: the parts of a table."""
    return {day_of_part(name) for name in {*now, *before} if name and now.get(name) != before.get(name)}


def hours_of(parts: Iterable[str], days: Set[str]) -> set[str]:
    """Return the names of those parts that are of some days."""
    return {name for name in parts if day_of_part(name) in days}


def since(parts: Iterable[str], hour: int) -> set[str]:
    """Return the names of those parts that are of an hour or later, or are whole tables. Args: hour: since 1970."""
    first = hour_name(hour)
    return {name for name in parts if name == WHOLE or name >= first[: len(name)]}


def paths(out: str, table: str) -> list[str]:
    """Return the directories with the Parquet files of a result table.

    `spark.read.parquet(*paths("results", "traffic/matrix"))` reads a table. A table that no run has published, such as
    those of `ingest`, is all of its own directory.

    Args: out: the directory of results, a path or a URI. table: such as `traffic/matrix`.
    Raises: CommandError: what was published cannot be read, or a newer version has published it.
    """
    parts = load(out).parts(table)
    base = out.rstrip("/")
    return [f"{base}/{table}"] if parts is None else [f"{base}/{each}" for each in parts.values()]


def load(out: str) -> Published:
    """Read the file; without one, nothing is published.

    Raises: CommandError: it cannot be read, it is damaged, or a newer version has written it.
    """
    where = f"{out.rstrip('/')}/{FILE}"
    text = _text(out)
    if text is None:
        return Published()
    try:
        told = json.loads(text)
        if told["format"] != FORMAT:
            raise CommandError(f"{where} has format {told['format']!r}, and this program reads {FORMAT}")
        jobs = {str(name): Result(**each) for name, each in told["jobs"].items()}
        published = Published(jobs, tuple(told["replaced"]))
        for job in jobs.values():
            if not isinstance(job.state, dict):
                raise ValueError("no result of a job")
            done_before(job)
        tables = [(table, parts) for job in jobs.values() for table, parts in job.tables.items()]
        for table, _ in tables:
            if not _TABLE.fullmatch(table):
                raise ValueError(f"no table: {table!r}")
        for each in (*(each for _, parts in tables for each in parts.values()), *published.replaced):
            if not _DIRECTORY.fullmatch(each):
                raise ValueError(f"no directory of a table: {each!r}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CommandError(f"{where} is damaged ({error}): remove it, and run the jobs again") from None
    return published


def publish(out: str, job: str, result: Result) -> None:
    """Name the tables of a job, all at once; remove what the publication before has replaced.

    All files of new tables are on the disk before the file names them.
    Raises: CommandError: `out` is no path of this machine, or a directory is gone; and as `load`. OSError: the file
        cannot be written.
    """
    from amqpmesh.pipeline.files import ordinary  # here: it needs Arrow

    place = ordinary(out)
    place.mkdir(parents=True, exist_ok=True)
    with _locked(place):
        before = load(out)
        if not is_there(out, result):  # it has parts of a run before, which another run has replaced twice since
            raise CommandError(f"{job}: another run has removed what this one was to keep: run it again")
        named = {each for parts in result.tables.values() for each in parts.values()}
        old = before.jobs.get(job)
        gone = {each for parts in old.tables.values() for each in parts.values()} if old is not None else set()
        replaced = {each for each in before.replaced if each.partition("/")[0] == job}
        others = {*before.replaced} - replaced
        jobs = {**before.jobs, job: result}
        kept = {each for other in jobs.values() for parts in other.tables.values() for each in parts.values()}
        # Before the file forgets them: what a run that is killed has not removed, the next one removes.
        for each in replaced - gone - kept:
            shutil.rmtree(place / each, ignore_errors=True)
        for each in sorted(named - gone):
            _flush(place, each)
        now = Published(jobs, tuple(sorted((gone - named) | others)))
        replace_file(place / FILE, json.dumps({"format": FORMAT, **asdict(now)}).encode())
        for table in result.tables:
            _tidy(place, table, {_version(each) for each in (*kept, *now.replaced)})


def done_before(result: Result) -> Done:
    """Return what a job told when it published a result.

    Raises: KeyError, TypeError: something is missing; `load` returns no such result.
    """
    from amqpmesh.pipeline.work import Done, Table

    told = dict(result.done)
    tables = [Table(each["title"], tuple(each["headings"]), tuple(map(tuple, each["rows"]))) for each in told["tables"]]
    return Done(told["rows"], told["figures"], tuple(tables))


def is_there(out: str, result: Result) -> bool:
    """Return True if all directories of a result are there."""
    from amqpmesh.pipeline.files import ordinary  # here: it needs Arrow

    place = ordinary(out)
    return all((place / each).is_dir() for parts in result.tables.values() for each in parts.values())


def _flush(place: Path, directory: str) -> None:
    """Have the files of a table's directory, and their names, written to the disk. Raises: OSError."""
    folder = place / directory
    for each in (*folder.iterdir(), folder):
        sync(each)
    for outer in folder.parents:
        sync(outer)
        if outer == place:
            return


def sync(path: Path) -> None:
    """Have a file, or the names in a directory, written to the disk. Raises: OSError."""
    opened = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError) if path.is_dir() else nullcontext():  # not all network file systems can do directories
            os.fsync(opened)
    finally:
        os.close(opened)


def _text(out: str) -> str | None:
    """Return the text of the file; None: there is none. Raises: CommandError: it cannot be read."""
    where = f"{out.rstrip('/')}/{FILE}"
    try:
        if "://" not in out:
            return Path(where).read_text(encoding="utf-8")
        from pyarrow import fs

        system, path = fs.FileSystem.from_uri(where)
        with system.open_input_stream(path) as stream:
            return bytes(stream.read()).decode()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise CommandError(f"{where} cannot be read: {error}") from None


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Let no other run change the file during the block."""
    with open(place / _LOCK, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def replace_file(target: Path, data: bytes) -> None:
    """Write a file completely, or keep the earlier one; make its folder. Raises: OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
        sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _version(directory: str) -> str:
    """Return the directory of a run's table, in which its parts are, too."""
    outer, _, last = directory.rpartition("/")
    return outer if "=" in last else directory


def _tidy(place: Path, table: str, known: set[str]) -> None:
    """Remove what killed runs, and versions before there was a publication, have left of a table."""
    folder = place / table
    for pattern in _SPARKS:
        for each in folder.glob(pattern):
            each.unlink(missing_ok=True)
    for each in folder.iterdir() if folder.is_dir() else ():
        if _VERSION.fullmatch(each.name) and f"{table}/{each.name}" not in known:
            with suppress(OSError):
                if time.time() - each.stat().st_mtime > ABANDONED:
                    shutil.rmtree(each)
