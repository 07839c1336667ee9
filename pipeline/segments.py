"""The conversion of a segment's octets into columns and findings. No Spark, no files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpmesh.pipeline import hop_records
from amqpmesh.pipeline.events import LONGEST_NAME, TABLES, Problem, arrow_schema, encoded
from amqpmesh.router.telemetry.schema import COUNTS, EDGE, END, EVENT, LINK, SEGMENT, VERSION, Field, Kind, Type
from amqpmesh.router.telemetry.segments import Block, Damage, Name, read

BATCH: Final = 1 << 18
"""Hop records converted at a time: 8 MB of a segment, and three times that in memory."""

MOST_FINDINGS: Final = 100
"""Findings of one problem that are listed singly for a segment; the others are summed up in one."""

MAPS: Final[Mapping[int, str]] = {Kind.EVENT: "events", Kind.COUNTS: "counts", Kind.EDGE: "edges"}
"""The kinds of map records that become tables."""

_KINDS: Final = frozenset(Kind)

HOPS: Final = encoded(arrow_schema(TABLES["hops"]))
"""The columns of hop records during the conversion."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of a segment."""

    problem: Problem
    sentence: str
    at: int | None = None
    octets: int | None = None
    records: int | None = None


@dataclass(slots=True)
class Account:
    """The data of a segment about itself, and the findings in it."""

    name: Name | None = None
    """From its first block, else from its file; None: neither has one."""
    time: int | None = None
    sample: int | None = None
    version: int | None = None
    whole: bool = False
    dropped: int | None = None
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("hops", *MAPS.values()), 0))
    first_hop: int | None = None
    next_hop: int | None = None
    first_time: int | None = None
    last_time: int | None = None
    findings: list[Finding] = field(default_factory=list)

    def add_hops(self, times: pa.Array) -> None:
        """Count hop records with these times."""
        self.rows["hops"] += len(times)
        earliest, latest = pc.min_max(times).as_py().values()
        self.first_time = earliest if self.first_time is None else min(self.first_time, earliest)
        self.last_time = latest if self.last_time is None else max(self.last_time, latest)

    @property
    def is_other(self) -> bool:
        """True if it is of another version: none of it is used."""
        return self.version is not None and self.version != VERSION

    @property
    def began(self) -> int:
        """The beginning of the segment, nanoseconds since 1970; if unknown, that of its router's life."""
        named = self.name.epoch * 1_000_000 if self.name else 0
        return self.time if self.time is not None else min(named, hop_records.LARGEST)

    @property
    def date(self) -> str:
        """The date of the beginning, in UTC; the first of all dates if the time is invalid."""
        return date_of(self.began)


def date_of(time: int) -> str:
    """Return the date of a time, in UTC; the first of all dates if it is invalid. Args: time: ns since 1970."""
    try:
        return datetime.fromtimestamp(time // 1_000_000_000, UTC).date().isoformat()
    except (OverflowError, OSError, ValueError):
        return "1970-01-01"


def peek(start: bytes) -> tuple[Name | None, int | None]:
    """Return the segment and version from a file's start. Args: start: some KiB of it."""
    for block in read(start, Damage()):
        if block.kind == Kind.SEGMENT:
            try:
                return _read_first_block(block)[:2]
            except ValueError:
                break
        break
    return None, None


def convert(data: bytes, account: Account) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield a segment's rows: batches, each with the name of its table. Everything else is in the account after the
    last one.

    Args: account: with the name of the file. Source: `router.telemetry.segments`, `router.telemetry.schema`.
    """
    if not data:
        account.findings.append(Finding(Problem.EMPTY, "nothing stands in it", records=0))
        return
    conversion = _Conversion(account)
    damage = Damage()
    for block in read(data, damage):
        conversion.note_damage(damage)
        yield from conversion.take(block)
        if account.is_other:
            break
    else:
        conversion.note_damage(damage)
    yield from conversion.flush()
    conversion.close(damage, len(data))


class _Conversion:
    """The conversion of one segment."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self._links = hop_records.Links()
        self._words: list[hop_records.Numbers] = []
        self._rows: list[hop_records.Numbers] = []  # of links: incoming, outgoing, address
        self._waiting = 0
        self._next: dict[int, int] = {}
        self._damaged_since: dict[int, bool] = {}
        self._places = 0
        self._blocks = 0
        self._end: dict[str, Any] | None = None
        #: The offset where another segment begins, and the number of records from there on.
        self._another: int | None = None
        self._behind = 0
        self._unknown_links = 0
        self._unknown_outcomes = 0
        self._counts: dict[Problem, int] = {}

    def take(self, block: Block) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Convert one more block: yield rows that fill a batch."""
        if block.kind == Kind.SEGMENT and self._blocks and self._another is None:
            self._another = block.at
        if self._another is not None:
            self._behind += 0 if block.kind in (Kind.SEGMENT, Kind.END) else block.count
            return
        if block.kind == Kind.END:
            self._end = self._read_end(block)
            return
        self._blocks += 1
        try:
            if block.kind == Kind.SEGMENT:
                self._begin(block)
            elif block.kind == Kind.LINK:
                self._links.add(_declared_fields(block.records(), LINK))
            elif block.kind in MAPS:
                self._number(block)
                yield MAPS[block.kind], self._map(MAPS[block.kind], block)
            elif block.kind == Kind.HOP:
                self._number(block)
                self._hops(block)
            else:
                raise ValueError("there is no such kind")
        except ValueError as error:
            self._unreadable(block, error)
        if self._waiting >= BATCH:
            yield from self.flush()

    def flush(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the remaining hop records."""
        if self._waiting:
            yield "hops", self._batch()

    def note_damage(self, damage: Damage) -> None:
        """Note octets skipped since the last block."""
        for begin, end in damage.where[self._places :]:
            self._damaged_since = dict.fromkeys(Kind, True)
            self._find(Problem.DAMAGED, f"octets {begin} to {end} are no whole block", begin, octets=end - begin)
        self._places = len(damage.where)

    def close(self, damage: Damage, octets: int) -> None:
        """End the conversion."""
        account = self.account
        if account.is_other:
            sentence = f"version {account.version} has written it, and this is {VERSION}"
            problem = Problem.NEWER if (account.version or 0) > VERSION else Problem.OLDER
            account.findings = [Finding(problem, sentence, octets=octets)]
            return
        if self._blocks == 0 and self._end is None:
            account.findings = [Finding(Problem.FOREIGN, "no block of a segment stands in it", octets=octets)]
            return
        if damage.torn:
            self._tear(damage)
        if self._another is not None:
            sentence = f"another segment begins at {self._another}: nothing behind that is used"
            self._find(Problem.UNREADABLE, sentence, self._another, octets=octets - self._another, records=self._behind)
        self._compare(damage)
        if self._unknown_links:
            sentence = f"{self._unknown_links} hop records name links that nothing explains"
            self._find(Problem.UNKNOWN_LINK, sentence, records=self._unknown_links)
        if self._unknown_outcomes:
            sentence = f"{self._unknown_outcomes} hop records have an outcome that is none"
            self._find(Problem.UNKNOWN_OUTCOME, sentence, records=self._unknown_outcomes)
        for problem, count in self._counts.items():
            if count > MOST_FINDINGS:
                sentence = f"{count - MOST_FINDINGS} more of this kind"
                account.findings.append(Finding(problem, sentence, records=None))

    # ------------------------------------------------------------------------------------------------------- findings

    def _find(self, problem: Problem, sentence: str, at: int | None = None, **concerned: int) -> None:
        self._counts[problem] = self._counts.get(problem, 0) + 1
        if self._counts[problem] <= MOST_FINDINGS:
            self.account.findings.append(Finding(problem, sentence, at, **concerned))

    def _unreadable(self, block: Block, error: ValueError) -> None:
        kind = Kind(block.kind).name.lower() if block.kind in _KINDS else block.kind
        sentence = f"a block of kind {kind} at {block.at} cannot be read: {error}"
        self._find(Problem.UNREADABLE, sentence, block.at, octets=len(block.body), records=block.count)

    def _tear(self, damage: Damage) -> None:
        """Note that the last skipped part is the torn end."""
        findings = self.account.findings
        begin, end = damage.where[-1]
        self._counts[Problem.DAMAGED] -= 1
        torn = Finding(Problem.TORN, f"it ends in the middle of a block, at {begin}", begin, end - begin)
        last = next((index for index, each in enumerate(findings) if each.at == begin), None)
        if last is None or findings[last].problem is not Problem.DAMAGED:
            findings.append(torn)
        else:
            findings[last] = torn

    def _compare(self, damage: Damage) -> None:
        """Compare the end record with the content."""
        account = self.account
        if self._end is None:
            self._find(Problem.UNFINISHED, "it does not say that it is complete")
            return
        account.dropped = self._end["dropped"]
        found = {"hops": account.rows["hops"], "blocks": self._blocks}
        wrong = [
            f"{self._end[name]} {name} instead of {found[name]}" for name in found if self._end[name] != found[name]
        ]
        account.whole = not (wrong or damage.blocks or self._counts.get(Problem.UNREADABLE))
        if wrong:
            missing = self._end["hops"] - account.rows["hops"]
            self._find(Problem.MISCOUNTED, f"at its end it says {' and '.join(wrong)}", records=max(0, missing))

    def _number(self, block: Block) -> None:
        """Check that the number of the first record is the expected one."""
        first, behind = (min(each, hop_records.LARGEST) for each in (block.first, block.first + block.count))
        expected = self._next.get(block.kind)
        self._next[block.kind] = behind
        damaged, self._damaged_since[block.kind] = self._damaged_since.get(block.kind, False), False
        if block.kind == Kind.HOP:
            if self.account.first_hop is None:
                self.account.first_hop = first
            self.account.next_hop = behind
        if expected is None or expected == first:
            return
        kind = Kind(block.kind).name.lower()
        if first < expected:
            sentence = f"at {block.at} the numbers of {kind} records go back from {expected} to {first}"
            self._find(Problem.DISORDERED, sentence, block.at)
            return
        why = "in a damaged part, or for want of room" if damaged else "for want of room"
        sentence = f"{first - expected} {kind} records before {block.at} are lost, {why}"
        self._find(Problem.LOST, sentence, block.at, records=first - expected)

    # ---------------------------------------------------------------------------------------------- blocks of each kind

    def _begin(self, block: Block) -> None:
        name, version, told = _read_first_block(block)
        account = self.account
        account.version = version
        if account.is_other:
            return
        if account.name is not None and account.name != name:
            self._find(Problem.MISNAMED, f"it is {name.file('')}, and its name says {account.name.file('')}")
        account.name, account.time, account.sample = name, told["time"], told["sample"]

    def _read_end(self, block: Block) -> dict[str, Any] | None:
        try:
            (end,) = _declared_fields(block.records(), END)
        except ValueError as error:
            self._unreadable(block, error)
            return None
        return end

    def _map(self, table: str, block: Block) -> pa.RecordBatch:
        """Convert a block of maps column by column, so that values are checked one type at a time."""
        records = block.records()
        own = {**self._source(len(records)), "router": pa.repeat(pa.scalar(self._router, pa.string()), len(records))}
        schema = arrow_schema(TABLES[table])
        arrays = []
        for each in schema:
            array = own.get(each.name)
            if array is None:
                array = _column([record.get(each.name) for record in records], each)
            arrays.append(array)
        self.account.rows[table] += len(records)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _hops(self, block: Block) -> None:
        words = hop_records.records(block.body, block.count)
        self._words.append(words)
        self._rows.append(hop_records.rows(words, self._links))
        self._waiting += block.count

    def _batch(self) -> pa.RecordBatch:
        words, rows = np.concatenate(self._words, axis=1), np.concatenate(self._rows)
        self._words, self._rows, self._waiting = [], [], 0
        columns = hop_records.columns(words, rows, self._links)
        columns["router"] = hop_records.coded(np.zeros(len(rows), np.int32), [self._router])
        columns.update(self._source(len(rows)))
        self.account.add_hops(columns["time"])
        self._unknown_links += int((rows == hop_records.UNKNOWN).any(axis=1).sum())
        self._unknown_outcomes += columns["outcome"].null_count
        return pa.RecordBatch.from_arrays([columns[each.name] for each in HOPS], schema=HOPS)

    @property
    def _router(self) -> str:
        return self.account.name.router if self.account.name else ""

    def _source(self, size: int) -> dict[str, pa.Array]:
        name = self.account.name or Name("", 0, 0)
        return {
            "epoch": pa.repeat(pa.scalar(name.epoch, pa.int64()), size),
            "segment": pa.repeat(pa.scalar(name.segment, pa.int64()), size),
        }


# ------------------------------------------------------------------------------------------------------ records as maps

_PYTHON: Final[Mapping[Type, type]] = {
    Type.STRING: str,
    Type.BINARY: bytes,
    Type.BOOLEAN: bool,
    Type.INTEGER: int,
    Type.TIME: int,
}

_TIMES: Final = {
    each.name for fields in (EVENT, COUNTS, EDGE, SEGMENT, END) for each in fields if each.type is Type.TIME
}

_PYTHON_OF: Final = {pa.string(): str, pa.binary(): bytes, pa.bool_(): bool, pa.int64(): int}


def _declared_fields(records: Sequence[Mapping[str, Any]], fields: Sequence[Field]) -> list[dict[str, Any]]:
    """Return the declared fields of each record. Raises: ValueError: a value is missing, or of another type."""
    return [{each.name: _value(record, each) for each in fields} for record in records]


def _value(record: Mapping[str, Any], declared: Field) -> Any:
    value = record.get(declared.name)
    if value is None and declared.optional:
        return None
    if type(value) is not _PYTHON[declared.type]:
        raise ValueError(f"{declared.name} is {type(value).__name__}, not {declared.type.value}")
    _bounded(declared.name, (value,))
    return value


def _bounded(name: str, values: Iterable[Any]) -> None:
    """Check numbers. Raises: ValueError: no router writes such a number."""
    most = hop_records.LATEST if name in _TIMES else hop_records.MOST_COUNTED
    for each in values:
        if type(each) is int and not 0 <= each <= most:
            raise ValueError(f"{name} is {each}, and not from 0 to {most}")


def _column(values: Sequence[Any], declared: pa.Field) -> pa.Array:
    """Make a column. Raises: ValueError: a value is missing, or of another type."""
    expected = _PYTHON_OF[declared.type]
    others = {*map(type, values)} - {expected, type(None)}  # Arrow alone would convert 1.5 to 1
    if others:
        raise ValueError(f"{declared.name} is {others.pop().__name__}, not {expected.__name__}")
    _bounded(declared.name, values)
    try:
        array = pa.array(values, declared.type)
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(f"{declared.name}: {error}") from None
    if array.null_count and not declared.nullable:
        raise ValueError(f"{declared.name} is missing")
    return array


def _read_first_block(block: Block) -> tuple[Name, int, dict[str, Any]]:
    """Read the first block. Raises: ValueError."""
    (told,) = block.records()[:1] or ({},)
    version = told.get("version")
    if type(version) is int and version > VERSION:  # everything else may have another meaning then
        return Name(str(told.get("router")), 0, 0), min(version, hop_records.LARGEST), {}
    (told,) = _declared_fields([told], SEGMENT)
    name = Name(told["router"], told["epoch"], told["segment"])
    if Name.of(name.file()) != name or len(name.file("")) > LONGEST_NAME:
        raise ValueError("it names no segment")
    return name, told["version"], told
