"""The state of `amqpmesh pipeline watch`: what came is added to minutes, closed ones are published. No Spark.

Each batch of segments has a number, and a batch that comes again changes nothing. The checkpoint has the records of
open minutes, in files, and one small file that names them (`BOOK`) and is replaced at once, behind the publication of
minutes that the batch has closed. So a watch that is killed anywhere goes on where it was.
"""

from __future__ import annotations

import fcntl
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from amqpmesh.pipeline.live_minutes import MINUTE, SCHEMA, Minutes, Sums, by_name, hop_records
from amqpmesh.pipeline.live_tables import History, Rows, forget, publish, rows, start, values
from amqpmesh.pipeline.published import replace_file
from amqpmesh.pipeline.sampling import ALL
from amqpmesh.pipeline.segments import Account, convert
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.telemetry.segments import Name

BOOK: Final = "book.json"
"""The file of the checkpoint that says what else counts."""

FORMAT: Final = 1
"""The version of that file's form."""

LIVES: Final = 4_096
"""Lives of routers whose segments are recognised if they come again."""

RECOGNISED: Final = 512
"""Segments of each life that are: the latest. Older ones are taken for some that came before."""

HOUR: Final = 60
"""Closed minutes that are remembered."""

ADDRESSES: Final = 1_000
"""Addresses of which a closed minute is remembered, those with most messages: peers choose addresses."""

NAMED: Final = 100
"""Problems of segments that are named at most, of one batch; the others are counted."""


@dataclass(frozen=True)
class Closed:
    """A closed minute, as it is remembered. Args: anomalies: the rows of that table, without the time."""

    sums: Sums
    anomalies: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Decoded:
    """A segment.

    Args: source: the path of its file, or the address. told: about it, as JSON (`decoded`). hops: its hop records, as
        an Arrow stream.
    """

    source: str
    told: str
    hops: bytes


def decoded(source: str, octets: bytes, file: str = "") -> Decoded:
    """Decode a segment; this runs on executors. Args: file: the name of its file, if it has one."""
    account = Account(Name.of(file))
    tables, latest = [SCHEMA.empty_table()], 0
    for table, batch in convert(octets, account):
        times = [each for each in batch.column("time").to_pylist() if each is not None] if table != "hops" else []
        latest = max(latest, *times, 0)
        if table == "hops":
            tables.append(hop_records(batch, ALL / max(1, account.sample or ALL)))
    found = SCHEMA.empty_table() if account.is_other else pa.concat_tables(tables)
    name = account.name
    told = {
        "name": None if name is None else [name.router, name.epoch, name.segment],
        "latest": max(latest, account.last_time or 0),
        "problems": [[str(each.problem), each.sentence] for each in account.findings],
    }
    return Decoded(source, json.dumps(told), _packed(found))


class Live:
    """The minutes: those that are open, and the latest that were closed."""

    def __init__(
        self, out: Path, checkpoint: Path, sources: Sequence[str], delay: int, *, keep: int = 24, since: float = 0.0
    ) -> None:
        """Go on from a checkpoint, or begin.

        Args: sources: they must be those of the checkpoint. delay: see `Minutes`. keep: hours of which minutes are
            kept. since: seconds since 1970; older files do not count, if this is not in the checkpoint.
        Raises: CommandError: the checkpoint is damaged, or of other sources. OSError: it cannot be read.
        """
        self._out, self._place, self._sources, self._keep = out, checkpoint, [*sources], keep
        self.since = since
        self.batch = -1
        self._files: list[str] = []
        self._segments: dict[str, list[int]] = {}
        self._since: Counter[str] = Counter()
        self.minutes = Minutes(delay)
        #: The sums and the anomalies of the last hour, by the number of the minute.
        self.closed: dict[int, Closed] = {}
        self._history: History | None = None
        #: All that was counted since the beginning, also by runs before this one.
        self.counts = self.minutes.counts
        self.problems: Counter[str] = Counter()
        self._restore()

    def take(self, batch: int, segments: Iterable[Decoded], now: int) -> list[tuple[str, str, str]]:
        """Add a batch, publish the minutes that it closes, and note it in the checkpoint.

        Args: batch: its number; one that was taken is ignored. now: ns since 1970.
        Returns: what is wrong with segments: source, problem, and a sentence; at most `NAMED`.
        Raises: OSError: a file cannot be written; the batch may be taken again then, by another `Live`. CommandError: a
            published table cannot be read.
        """
        if batch <= self.batch:
            return []
        wrong, found = [], [SCHEMA.empty_table()]
        before = Counter(self.counts)
        every = [(json.loads(segment.told), segment) for segment in segments]
        # Those of a life in their order: Spark gives large files first, and `_is_new` forgets low numbers.
        for told, segment in sorted(every, key=lambda each: (each[0]["name"] is None, each[0]["name"])):
            for problem, sentence in told["problems"]:
                self.problems[problem] += 1
                self.counts["faults"] += 1
                wrong.append((segment.source, problem, sentence))
            if told["name"] is None or not self._is_new(*told["name"]):
                self.counts["again" if told["name"] else "unnamed"] += 1
                continue
            self.counts["segments"] += 1
            records = _unpacked(segment.hops)
            self.counts["records"] += len(records)
            found.append(records)
            self.minutes.see(told["latest"], now)
        used = self.minutes.take(pa.concat_tables(found), now)  # at once: each time costs as much as there is
        self._since.update(self.counts - before)
        closed = self._close()
        self.counts["minutes"] += len(closed)
        if closed:
            publish(self._out, {number: found for number, (found, _) in closed.items()})
            self._remember(
                {
                    number: Closed(remembered(sums), _untimed(found["anomalies"]))
                    for number, (found, sums) in closed.items()
                }
            )
            forget(self._out, max(closed) // 60 - self._keep)
        self._note(batch, used, is_whole=bool(closed))
        return wrong[:NAMED]

    def _close(self) -> dict[int, tuple[Rows, Sums]]:
        """Close minutes, also those in which nothing was, between others."""
        before = self.minutes.boundary // MINUTE
        with_sums = dict(self.minutes.close())
        last = self.minutes.boundary // MINUTE
        first = max(before or min(with_sums, default=last), last - self._keep * 60)
        found: dict[int, tuple[Rows, Sums]] = {}
        for number in sorted({*range(first, last), *with_sums}):
            sums = with_sums.get(number, {})
            told = rows(number, sums)
            if self._history is None:
                self._history = History.read(self._out, number)
            told["anomalies"] = self._history.judged(number, values(sums))
            told["minutes"] = [
                {
                    "window_start": start(number),
                    "deliveries": sum(round(count) for _, (*_, count) in by_name(sums, "traffic")),
                    "incomplete": sum(row["found"] for row in told["losses"] if row["kind"] == "incomplete"),
                    **{name: self._since.pop(name, 0) for name in ("records", "late", "ahead", "segments", "faults")},
                }
            ]
            found[number] = told, sums
        return found

    def _remember(self, closed: Mapping[int, Closed]) -> None:
        """Remember closed minutes for an hour, also over a restart."""
        for number, each in [*closed.items()][-HOUR:]:
            told = {"sums": [*each.sums.items()], "anomalies": each.anomalies}
            replace_file(self._place / f"{number}.json", json.dumps(told).encode())
        self.closed |= closed
        last = max(self.closed)
        self.closed = {number: each for number, each in self.closed.items() if number > last - HOUR}
        for path in self._place.glob("[0-9]*.json"):
            if int(path.stem) not in self.closed:
                path.unlink(missing_ok=True)

    def _is_new(self, router: str, epoch: int, segment: int) -> bool:
        """Note a segment. Returns: False: it came before."""
        life = f"{epoch} {router}"
        numbers = self._segments.pop(life, [])
        self._segments[life] = numbers  # the last one that was heard of
        while len(self._segments) > LIVES:
            self._segments.pop(next(iter(self._segments)))
        if segment in numbers or (len(numbers) >= RECOGNISED and segment < numbers[0]):
            return False
        numbers.append(segment)
        numbers.sort()
        del numbers[:-RECOGNISED]
        return True

    # ------------------------------------------------------------------------------------------------- the checkpoint

    def _note(self, batch: int, used: pa.Table, *, is_whole: bool) -> None:
        """Note a batch. Args: used: its records. is_whole: the records of all open minutes are written, in one file."""
        self._place.mkdir(parents=True, exist_ok=True)
        records = self.minutes.pending if is_whole else used
        files = [] if is_whole else [*self._files]
        if len(records):
            name = f"{batch:012d}.arrow"
            replace_file(self._place / name, _packed(records))
            files.append(name)
        book = {
            "format": FORMAT, "sources": self._sources, "from": self.since, "batch": batch, "files": files,
            "boundary": self.minutes.boundary, "seen": self.minutes.seen, "segments": self._segments,
            "counts": self.counts, "problems": self.problems, "since": self._since,
        }  # fmt: skip
        replace_file(self._place / BOOK, json.dumps(book).encode())
        self.batch, self._files = batch, files
        for each in self._place.glob("*.arrow"):
            if each.name not in files:
                each.unlink(missing_ok=True)

    def _restore(self) -> None:
        where = self._place / BOOK
        try:
            book = json.loads(where.read_bytes())
        except FileNotFoundError:
            return
        except ValueError as error:
            raise _damaged(where, error) from None
        try:
            if book["format"] != FORMAT:
                raise CommandError(f"{where} has format {book['format']!r}, and this program reads {FORMAT}")
            if book["sources"] != self._sources:
                told = ", ".join(map(str, book["sources"]))
                raise CommandError(f"{self._place} is the checkpoint of other sources ({told}): name another one")
            self.since = float(book["from"])
            self.batch, self._files = int(book["batch"]), [str(each) for each in book["files"]]
            self._segments = {str(life): [*map(int, each)] for life, each in book["segments"].items()}
            self._since = Counter(book["since"])
            self.problems = Counter(book["problems"])
            tables = [SCHEMA.empty_table(), *(_unpacked((self._place / each).read_bytes()) for each in self._files)]
            self.minutes.boundary = int(book["boundary"])
            self.minutes.restore(pa.concat_tables(tables), int(book["seen"]))
            self.counts.clear()
            self.counts.update(book["counts"])
            for path in self._place.glob("[0-9]*.json"):
                if int(path.stem) * MINUTE < self.minutes.boundary:
                    told = json.loads(path.read_bytes())
                    sums = {tuple(name): tuple(value) for name, value in told["sums"]}
                    self.closed[int(path.stem)] = Closed(sums, told["anomalies"])
        except (KeyError, TypeError, ValueError, AttributeError, FileNotFoundError, pa.ArrowException) as error:
            raise _damaged(where, error) from None


def remembered(sums: Sums) -> Sums:
    """Return the sums of a closed minute that metrics have: of the largest addresses, without who told of a loss."""
    sizes: dict[tuple[Any, ...], float] = defaultdict(float)
    for (_, _, *place, _), (messages, *_) in by_name(sums, "traffic"):
        sizes[tuple(place)] += messages
    largest = {*sorted(sizes, key=lambda each: -sizes[each])[:ADDRESSES]}
    found: Sums = {}
    for name, amounts in sums.items():
        match name:
            case ("traffic", _, _, address, tenant, _) | ("outcomes", address, tenant, _):
                told = name
            case ("losses", _, address, tenant, _, _, _):
                told = (*name[:5], None, None)
            case _:
                continue
        if (address, tenant) in largest:
            before = found.get(told)
            found[told] = amounts if before is None else tuple(map(sum, zip(before, amounts, strict=True)))
    return found


def _packed(records: pa.Table) -> bytes:
    """Return hop records as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(records)
    octets: bytes = sink.getvalue().to_pybytes()
    return octets


def _unpacked(octets: bytes) -> pa.Table:
    with pa.ipc.open_stream(octets) as stream:
        return stream.read_all()


def _untimed(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "window_start"} for row in rows]


def _damaged(where: Path, error: Exception) -> CommandError:
    return CommandError(f"{where} is damaged ({error}): remove the checkpoint {where.parent}, and begin again")


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """Let no other watch use a checkpoint, or tables, during the block. Raises: CommandError: another one does."""
    place.mkdir(parents=True, exist_ok=True)
    with open(place / ".lock", "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(f"another watch uses {place}: name another directory") from None
        yield
