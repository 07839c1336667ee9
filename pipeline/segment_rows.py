"""The rows of the table `segments`: loose ones, a file for each segment, and those of days, gathered in one file.

Executors write a file for each segment they convert; of a month's segments these would be too many to read. So a run
gathers them by day (`gather`). The file `days.json` names the file of each day, and is replaced at once. A loose row
comes before one of its day: it is newer, or the same. So a run that is killed anywhere leaves what there was. No Spark.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from amqpmesh.pipeline.events import SEGMENTS, arrow_schema
from amqpmesh.pipeline.published import replace_file, sync
from amqpmesh.pipeline.segments import date_of
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.telemetry.segments import Name

FILE: Final = "days.json"
"""The file that names the file of each day, in the directory of `ingest`."""

FORMAT: Final = 1
"""The version of that file's form."""

GATHERED: Final = 64
"""Loose rows of the latest day, from which on they are gathered; those of earlier days always are."""

_LOCK: Final = ".days.lock"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d\.v\d{1,20}-[0-9a-f]{8}\.parquet")
_NEEDED: Final = ("name", "router", "epoch", "segment", "time")

Row = Mapping[str, Any]


def segment_rows(ingested: Path) -> dict[Name, Row]:
    """Return the rows by segment, without unreadable ones; such a segment is converted again.

    Args: ingested: the directory of `ingest`. Raises: CommandError: see `segment_table`.
    """
    rows = segment_table(str(ingested)).to_pylist()
    return {Name(row["router"], row["epoch"], row["segment"]): row for row in rows}


def segment_table(ingested: str) -> pa.Table:
    """Return the rows, without unreadable ones, in the order of their names.

    Args: ingested: the directory of `ingest`, a path or a URI.
    Raises: CommandError: `days.json` is damaged, or a newer version has written it. OSError: a file cannot be read now.
    """
    is_uri = _SCHEME.match(ingested) is not None
    system, place = fs.FileSystem.from_uri(ingested) if is_uri else (fs.LocalFileSystem(), ingested)
    place = place.rstrip("/")
    folder = f"{place}/segments"
    while True:
        # In this order: a row that another run gathers meanwhile is in the days that are read behind it.
        loose = [found for each in _loose(system, folder) if (found := _read(system, each)) is not None]
        days = _days(system, place)
        gathered = {day: _read(system, f"{folder}/{file}") for day, file in days.items()}
        gone = [day for day, found in gathered.items() if found is None]
        if not gone or all(_days(system, place).get(day) == days[day] for day in gone):
            break  # what is named and not there, was removed by hand
    newer = _together(loose)
    older = _together(found for found in gathered.values() if found is not None)
    rows = pa.concat_tables([older.filter(pc.invert(pc.is_in(older["name"], newer["name"]))), newer])
    return rows.sort_by("name")


def gather(ingested: Path) -> int:
    """Move loose rows into the files of their days. Returns: the number of files that were written for days.

    Raises: CommandError: `days.json` is damaged. OSError: a file cannot be written.
    """
    system = fs.LocalFileSystem()
    with _locked(ingested):
        waiting: dict[str, list[tuple[Path, os.stat_result, pa.Table]]] = defaultdict(list)
        for path in map(Path, _loose(system, str(ingested / "segments"))):
            with suppress(FileNotFoundError):
                status = path.stat()
                if (found := _read(system, str(path))) is not None:
                    waiting[date_of(found["time"][0].as_py())].append((path, status, found))
        days = _days(system, str(ingested))
        latest = max((*waiting, *days), default="")
        closed = {day: each for day, each in waiting.items() if day < latest or len(each) >= GATHERED}
        if closed:
            new = {day: _together(found for _, _, found in each) for day, each in closed.items()}
            names = pa.chunked_array([name for rows in new.values() for name in rows["name"].chunks], pa.string())
            # Of all days: a segment that was torn before may have counted for another day than its own.
            _drop(system, ingested, days, names, new)
            _publish(ingested, days)
        for path, status, _ in (one for each in closed.values() for one in each):
            with suppress(FileNotFoundError):
                if _is_same(path.stat(), status):  # else another run has converted it again
                    path.unlink()
    return len(closed)


def forget(ingested: Path, names: Iterable[str]) -> None:
    """Remove the rows of segments. Args: names: without suffix. Raises: as `gather`."""
    system = fs.LocalFileSystem()
    gone = pa.array(sorted(names), pa.string())
    with _locked(ingested):
        days = _days(system, str(ingested))
        if _drop(system, ingested, days, gone, {}):
            _publish(ingested, days)


def _drop(
    system: fs.FileSystem,
    ingested: Path,
    days: dict[str, str],
    gone: pa.Array | pa.ChunkedArray,
    new: Mapping[str, pa.Table],
) -> bool:
    """Write the files of days without some rows, and with new ones. Returns: False: nothing has changed.

    Args: days: is changed. gone: the names of segments. new: rows by day.
    """
    before = dict(days)
    for day in sorted({*days, *new}):
        found = _read(system, str(ingested / "segments" / days[day])) if day in days else None
        rows = _together([] if found is None else [found])
        kept = rows.filter(pc.invert(pc.is_in(rows["name"], gone)))
        if len(kept) == len(rows) and day not in new:
            continue
        days.pop(day, None)
        kept = pa.concat_tables([kept, *([new[day]] if day in new else [])])
        if len(kept):
            days[day] = _written(ingested, day, kept)
    return days != before


def _publish(ingested: Path, days: Mapping[str, str]) -> None:
    """Name the files of days, which are on the disk, and remove all others."""
    sync(ingested / "segments")
    replace_file(ingested / FILE, json.dumps({"format": FORMAT, "days": days}).encode())
    for path in (ingested / "segments").iterdir():
        if _DAY.fullmatch(path.name) and path.name not in days.values():
            path.unlink(missing_ok=True)


def _written(ingested: Path, day: str, rows: pa.Table) -> str:
    """Write the file of a day, which nobody reads before it is named. Returns: its name."""
    name = f"{day}.v{time.time_ns()}-{uuid.uuid4().hex[:8]}.parquet"
    with open(ingested / "segments" / name, "wb") as stream:
        pq.write_table(rows.sort_by("name"), stream, compression="zstd")
        stream.flush()
        os.fsync(stream.fileno())
    return name


def _days(system: fs.FileSystem, ingested: str) -> dict[str, str]:
    """Return the names of the files of days. Raises: CommandError: the file that names them cannot be read."""
    where = f"{ingested}/{FILE}"
    try:
        with system.open_input_stream(where) as stream:
            told = json.loads(bytes(stream.read()))
        if told["format"] != FORMAT:
            raise CommandError(f"{where} has format {told['format']!r}, and this program reads {FORMAT}")
        days = {str(day): str(file) for day, file in told["days"].items()}
        if not all(_DAY.fullmatch(file) and file.startswith(f"{day}.") for day, file in days.items()):
            raise ValueError("no file of a day")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CommandError(f"{where} is damaged ({error}): remove {ingested}, and run ingest again") from None
    return days


def _loose(system: fs.FileSystem, folder: str) -> list[str]:
    """Return the paths of the files of single segments."""
    selector = fs.FileSelector(folder, allow_not_found=True)
    files = [each for each in system.get_file_info(selector) if each.type == fs.FileType.File]
    return sorted(
        each.path
        for each in files
        if each.extension == "parquet" and each.base_name[0] not in "._" and not _DAY.fullmatch(each.base_name)
    )


def _read(system: fs.FileSystem, path: str) -> pa.Table | None:
    """Read rows; None: they are damaged, or not there any more.

    Raises: OSError: they cannot be read now. Rows of a day must not be taken for lost since too many files are open.
    """
    try:
        with system.open_input_file(path) as stream:
            rows = pq.ParquetFile(stream).read()
        return _together([rows]) if len(rows) and {*_NEEDED} <= {*rows.column_names} else None
    except (pa.ArrowException, OSError, ValueError) as error:
        if getattr(error, "errno", None) not in (None, errno.ENOENT):  # of the system, and not of the content
            raise
        return None


def _together(tables: Iterable[pa.Table]) -> pa.Table:
    """Return the rows of several tables, in the columns of this version."""
    # Files of Spark have columns that may be null, and so have those of all others, which they are joined with.
    schema = pa.schema([each.with_nullable(True) for each in arrow_schema(SEGMENTS)])
    return pa.concat_tables([schema.empty_table(), *tables], promote_options="default").select(schema.names)


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_ino, one.st_mtime_ns) == (other.st_ino, other.st_mtime_ns)


@contextmanager
def _locked(ingested: Path) -> Iterator[None]:
    """Let no other run gather rows during the block."""
    with open(ingested / _LOCK, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
