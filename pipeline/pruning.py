"""Removal of old records and deliveries from the results, and the note that keeps `ingest` from converting them again.

The segments of each life of a router are removed from the first one on. The note has the number of the last one, so
it does not grow. It is written first: a removal that is killed is completed by the next one. No Spark.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from amqpmesh.pipeline.events import PARTITIONED, file_of
from amqpmesh.pipeline.files import ordinary
from amqpmesh.pipeline.known_segments import Known
from amqpmesh.pipeline.published import WHOLE, Parts, Result, fresh, hour_name, is_there, load, publish, replace_file
from amqpmesh.pipeline.segment_rows import Row, forget, segment_rows
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.telemetry.segments import SUFFIX, Name

FILE: Final = "pruned.json"
"""The note's name, in the directory of `ingest`."""

_HOUR: Final = 3600


@dataclass(frozen=True)
class Pruned:
    """The records that were removed.

    Args: hour: deliveries that began before it are no rows any more, in hours since 1970. lives: for each life of a
        router, the number of the last segment that was removed.
    """

    hour: int = 0
    lives: Mapping[str, int] = field(default_factory=dict)

    def has(self, name: Name) -> bool:
        """Return True if a segment was removed, or comes before one that was."""
        return name.segment <= self.lives.get(_life(name), -1)


@dataclass(frozen=True)
class Removed:
    """The amount that was removed. Args: segments: of records. hours: of deliveries."""

    segments: int
    hours: int


def pruned(ingested: Path) -> Pruned:
    """Read the note. Args: ingested: the directory of `ingest`. Raises: CommandError: it is damaged."""
    try:
        told = json.loads((ingested / FILE).read_text(encoding="utf-8"))
        return Pruned(int(told["hour"]), {str(life): int(number) for life, number in told["lives"].items()})
    except FileNotFoundError:
        return Pruned()
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CommandError(f"{ingested / FILE} cannot be read: {error}") from None


def prune(out: str, before: datetime) -> Removed:
    """Remove segments that were last written before a time, and the hours of deliveries before it.

    Args: out: the directory of results. before: in UTC; the beginning of its hour counts.
    Raises: CommandError: `out` is no path of this machine, or has no results. OSError: a file cannot be removed.
    """
    place = ordinary(out) / "ingest"
    if not (place / "segments").is_dir():
        raise CommandError(f"no results of ingest in {out}")
    rows = segment_rows(place)
    known = pruned(place)
    hour = max(known.hour, int(before.timestamp() // _HOUR))
    lives = dict(known.lives)
    for life, number in _old(rows, hour * _HOUR * 1_000_000_000).items():
        lives[life] = max(number, lives.get(life, number))
    note = Pruned(hour, lives)
    replace_file(place / FILE, json.dumps({"hour": hour, "lives": lives}).encode())
    gone = [name for name in rows if note.has(name)]
    _forget_known(out, rows, note)
    for name in gone:
        file = file_of(name.file(""))
        for table in PARTITIONED:
            for path in place.glob(f"{table}/date=*/{_folder(file)}/{file}"):
                path.unlink(missing_ok=True)
        for table in ("quarantine", "segments"):  # the row comes last: what has one is removed by the next call
            (place / table / file).unlink(missing_ok=True)
    forget(place, [name.file("") for name in gone])
    return Removed(len(gone), _without_hours(out, note))


def _old(rows: Mapping[Name, Row], before: int) -> dict[str, int]:
    """Return for each life the last segment of those at its beginning that were last written before a time, in ns."""
    found: dict[str, int] = {}
    lives: dict[str, list[Name]] = defaultdict(list)
    for name in rows:
        lives[_life(name)].append(name)
    for life, names in lives.items():
        for name in sorted(names, key=lambda each: each.segment):
            written = [each["modified"] for each in rows[name]["copies"]]
            if max(*written, rows[name]["last_time"] or 0) >= before:
                break
            found[life] = name.segment
    return found


def _forget_known(out: str, rows: Mapping[Name, Row], note: Pruned) -> None:
    """Let jobs take the segments that are removed for none that they miss. Args: rows: also of these segments."""
    for job, result in load(out).jobs.items():
        if "known" in result.state and is_there(out, result):
            left = Known(**result.state["known"]).without(rows, note.has)
            if left is not None:
                # Without the digest of its input: the next run removes the rows.
                publish(out, job, replace(result, input="", state={**result.state, "known": vars(left)}))


def _without_hours(out: str, note: Pruned) -> int:
    """Publish `deliveries` without the hours that are too old. Returns: their number."""
    result = load(out).jobs.get("deliveries")
    first = hour_name(note.hour)
    gone = {part for parts in result.tables.values() for part in parts if _is_before(part, first)} if result else set()
    if result is None or not gone or not is_there(out, result):  # the next run makes anew what was removed by hand
        return 0
    kept = {
        table: {part: each for part, each in parts.items() if part not in gone} or _nothing(out, table, parts)
        for table, parts in result.tables.items()
    }
    segments = {
        name: told
        for name, told in result.state.get("segments", {}).items()
        if (named := Name.of(name + SUFFIX)) is None or not note.has(named)
    }
    hours = {each: told for each, told in result.state.get("hours", {}).items() if each not in gone}
    # Without the digest of its input: the next run counts anew.
    publish(out, "deliveries", Result("", result.done, kept, {**result.state, "segments": segments, "hours": hours}))
    return len(gone)


def _nothing(out: str, table: str, parts: Parts) -> Parts:
    """Return the parts of a table without rows, whose columns are those that it had.

    Raises: CommandError: somebody has removed its files.
    """
    place = ordinary(out)
    files = [path for each in parts.values() for path in sorted((place / each).glob("*.parquet"))]
    if not files:
        raise CommandError(f"{place / table} has no files any more: run the job deliveries again, with --anew")
    directory = fresh(table)
    (place / directory).mkdir(parents=True)
    pq.write_table(pq.read_schema(files[0]).empty_table(), place / directory / "part-0.parquet")
    return {WHOLE: directory}


def _is_before(part: str, first: str) -> bool:
    return part != WHOLE and part < first


def _life(name: Name) -> str:
    return f"{name.router}.{name.epoch}"


def _folder(file: str) -> str:
    return f"recorded_by={file.rsplit('.', 3)[0]}"
