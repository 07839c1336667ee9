"""Rows of the result tables, as they are on disk, without Spark: those of an address, a router, or a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset, fs

from amqpmesh.pipeline.deliveries import ns
from amqpmesh.pipeline.published import load
from amqpmesh.pipeline.segment_rows import segment_table
from amqpmesh.policies.patterns import PatternTable
from amqpmesh.router.amqp.errors import CommandError

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

    from amqpmesh.pipeline.work import Selection

BATCH: Final = 1 << 17
"""Rows read at a time: a table is never in memory as a whole."""


@dataclass(frozen=True)
class View:
    """A table, and how it is shown.

    Args: columns: those that people read first. times: the columns with the beginning and the end of a row's time, or
        one with both; none: its rows have no time. order: columns to sort by, with `ascending` or `descending`; none:
        the table may be too large, its rows come as they are stored.
    """

    place: str
    columns: tuple[str, ...]
    times: tuple[str, ...] = ()
    order: tuple[tuple[str, str], ...] = ()


def _largest(*columns: str) -> tuple[tuple[str, str], ...]:
    return tuple((each, "descending") for each in columns)


def _smallest(*columns: str) -> tuple[tuple[str, str], ...]:
    return tuple((each, "ascending") for each in columns)


_LATENCIES: Final = ("deliveries", "p50_ns", "p99_ns", "max_ns")

VIEWS: Final[Mapping[str, View]] = {
    "losses": View(
        "losses/findings",
        ("kind", "found", "of", "last_time", "sentence"),
        ("first_time", "last_time"),
        _largest("found"),
    ),
    "losses/evidence": View(
        "losses/evidence", ("finding", "kind", "time", "key", "path", "value"), ("time",), _smallest("finding", "time")
    ),
    "losses/daily": View(
        "losses/daily",
        ("day", "kind", "address", "router", "receiver", "found", "of", "worst"),
        ("day",),
        _largest("day", "found"),
    ),
    "losses/rows": View(
        "losses/rows",
        ("day", "kind", "address", "router", "receiver", "time", "key", "path", "value"),
        ("day",),
        _smallest("time"),
    ),
    "losses/outlines": View(
        "losses/outlines",
        ("time", "address", "ingress", "egress", "receiver", "outcome", "deliveries", "key", "path"),
        ("time",),
        _smallest("time"),
    ),
    "anomalies": View(
        "anomalies/episodes",
        ("begin_time", "end_time", "measure", "score", "sentence"),
        ("begin_time", "end_time"),
        _smallest("episode"),
    ),
    "anomalies/series": View(
        "anomalies/series", ("measure", "address", "router", "peer", "windows", "episodes"), (), _largest("episodes")
    ),
    "anomalies/windows": View(
        "anomalies/windows",
        ("time", "measure", "address", "router", "peer", "value", "usual", "low", "high"),
        ("time",),
        _smallest("time"),
    ),
    "anomalies/values": View(
        "anomalies/values",
        ("time", "measure", "address", "router", "peer", "value", "weight"),
        ("time",),
        _smallest("time"),
    ),
    "latency": View(
        "latency/addresses",
        ("day", "address", *_LATENCIES, "outcome_p99_ns", "error_ns"),
        ("day",),
        _largest("day", "p99_ns"),
    ),
    "latency/hops": View(
        "latency/hops", ("day", "router", *_LATENCIES, "outcome_p99_ns"), ("day",), _largest("day", "p99_ns")
    ),
    "latency/links": View(
        "latency/links",
        ("day", "from_router", "to_router", "receiver", *_LATENCIES, "round_trip_p99_ns"),
        ("day",),
        _largest("day", "p99_ns"),
    ),
    "latency/shares": View(
        "latency/shares",
        ("day", "address", "part", "from_router", "to_router", "deliveries", "share"),
        ("day",),
        _largest("day", "total_ns"),
    ),
    "latency/times": View(
        "latency/times",
        ("hour_start", "of", "measure", "address", "from_router", "to_router", "most_ns", "deliveries"),
        ("hour_start",),
        _smallest("hour_start", "most_ns"),
    ),
    "latency/parts": View(
        "latency/parts",
        ("hour_start", "address", "part", "from_router", "to_router", "deliveries"),
        ("hour_start",),
        _smallest("hour_start"),
    ),
    "latency/clocks": View(
        "latency/clocks",
        ("window_start", "router", "against", "offset_ns", "error_ns", "problem"),
        ("window_start",),
        _smallest("window_start", "router"),
    ),
    "traffic": View(
        "traffic/matrix",
        ("window_start", "address", "ingress", "egress", "messages", "bytes", "basis"),
        ("window_start",),
        _smallest("window_start"),
    ),
    "traffic/links": View(
        "traffic/links",
        ("window_start", "router", "peer", "messages_per_second", "bytes_per_second", "use", "basis"),
        ("window_start",),
        _smallest("window_start"),
    ),
    "traffic/talkers": View(
        "traffic/talkers",
        ("window_start", "role", "peer", "router", "address", "messages", "bytes"),
        ("window_start",),
        _largest("messages"),
    ),
    "contingency": View(
        "contingency",
        ("rank", "failure", "addresses_cut_off", "lost_messages", "stretch", "most_loaded", "use"),
        (),
        _smallest("rank"),
    ),
    "plan": View(
        "plan/changes",
        ("number", "router", "neighbour", "cost_before", "cost_after", "use_before", "use_after"),
        (),
        _smallest("number"),
    ),
    "plan/links": View(
        "plan/links",
        ("router", "neighbour", "cost_before", "cost_after", "use_before", "use_after"),
        (),
        _largest("use_before"),
    ),
    "plan/failures": View(
        "plan/failures",
        ("failure", "use_before", "use_after", "lost_before", "lost_after", "worse"),
        (),
        _largest("use_after"),
    ),
    "deliveries": View(
        "deliveries/attempts",
        ("sent_at", "address", "path", "outcome", "latency_ns", "sender", "receiver", "size"),
        ("sent_at",),
    ),
    "deliveries/quarantine": View("deliveries/quarantine", ("sent_at", "address", "ingress", "sentence"), ("sent_at",)),
    "live": View(
        "live/minutes",
        ("window_start", "deliveries", "incomplete", "records", "late", "segments", "faults"),
        ("window_start",),
        _largest("window_start"),
    ),
    "live/traffic": View(
        "live/traffic",
        ("window_start", "address", "ingress", "egress", "messages", "bytes", "basis"),
        ("window_start",),
        _largest("window_start", "messages"),
    ),
    "live/latency": View(
        "live/latency",
        ("window_start", "address", "deliveries", "answered", "outcome_p50_ns", "outcome_p99_ns"),
        ("window_start",),
        _largest("window_start", "deliveries"),
    ),
    "live/losses": View(
        "live/losses",
        ("window_start", "kind", "address", "router", "receiver", "condition", "found"),
        ("window_start",),
        _largest("window_start", "found"),
    ),
    "live/anomalies": View(
        "live/anomalies",
        ("window_start", "measure", "address", "value", "usual", "low", "high", "score"),
        ("window_start",),
        _largest("window_start"),
    ),
    "ingest": View(
        "ingest/segments",
        ("router", "segment", "first_time", "last_time", "hops", "events", "whole", "dropped"),
        ("first_time", "last_time"),
        _smallest("time"),
    ),
    "ingest/quarantine": View("ingest/quarantine", ("segment", "router", "problem", "records", "sentence")),
    "ingest/hops": View(
        "ingest/hops",
        ("time", "router", "address", "incoming_peer", "outgoing_peer", "outcome", "in_router"),
        ("time",),
    ),
    "ingest/events": View(
        "ingest/events", ("time", "router", "happening", "link", "peer", "address", "waited"), ("time",)
    ),
    "ingest/counts": View(
        "ingest/counts", ("time", "router", "link", "peer", "address", "deliveries", "unsettled", "credit"), ("time",)
    ),
    "ingest/edges": View("ingest/edges", ("time", "router", "origin", "neighbour", "cost"), ("time",)),
}
"""The tables by the names that people give them; a job's own name is that of its main table."""

ROUTERS: Final = ("router", "from_router", "to_router", "next_router", "ingress", "egress", "neighbour", "origin")
"""The columns with ids of routers."""

TIMES: Final = frozenset(
    (
        "time",
        "since",
        "first_time",
        "last_time",
        "begin_time",
        "end_time",
        "peak_time",
        "window_start",
        "sent_at",
        "day",
    )
)
"""The columns with a time: nanoseconds since 1970, or a timestamp."""

DURATIONS: Final = frozenset(("in_router", "outcome_after", "waited"))
"""The columns with nanoseconds, beside those named `..._ns`."""


@dataclass(frozen=True)
class Selected:
    """The selected rows. Args: found: how many there are; None: at least one more than these."""

    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    found: int | None


class NoTableError(CommandError):
    """No run has made the table."""


def select(out: str, name: str, selection: Selection, columns: Sequence[str] = ()) -> Selected:
    """Read rows of a table. Args: out: the directory of results, a path or a URI. columns: instead of the view's.

    Raises: CommandError: there is no such table or column, or the table does not have what is selected by.
    """
    view = VIEWS.get(name)
    if view is None:
        raise CommandError(f"no table {name!r}; there are {', '.join(sorted(VIEWS))}")
    try:
        return selected(opened(out, view), name, view, selection, columns)
    except (OSError, pa.ArrowInvalid) as error:
        raise CommandError(f"{out}/{view.place} cannot be read: {error}") from None


def selected(table: Dataset, name: str, view: View, selection: Selection, columns: Sequence[str]) -> Selected:
    """Select rows of a table. Raises: as `select`."""
    schema = table.schema
    shown = tuple(columns or (each for each in view.columns if each in schema.names))
    for each in shown:
        if each not in schema.names:
            raise CommandError(f"{name} has no column {each!r}; there are {', '.join(schema.names)}")
    wanted = _condition(name, view, schema, selection)
    matches = None if selection.address is None else _matcher(selection.address)
    read = tuple(dict.fromkeys((*shown, *(each for each, _ in view.order), *(("address",) if matches else ()))))
    if view.order:
        order = [each for each in view.order if each[0] in schema.names]
        first, number = None, 0
        for batch in table.to_batches(columns=list(read), filter=wanted, batch_size=BATCH):
            some = pa.Table.from_batches([batch if matches is None else batch.filter(matches(batch["address"]))])
            number += len(some)
            if first is not None:
                some = pa.concat_tables([first, some])
            # Only the first rows are kept; the order is stable, as that of all rows at once would be.
            first = some.sort_by(order).slice(0, selection.limit)
        return Selected(shown, [] if first is None else _written(first, shown), number)
    found: list[dict[str, Any]] = []
    for batch in table.to_batches(columns=list(read), filter=wanted, batch_size=BATCH):
        kept = batch if matches is None else batch.filter(matches(batch["address"]))
        found += _written(kept.slice(0, selection.limit + 1 - len(found)), shown)
        if len(found) > selection.limit:
            return Selected(shown, found[: selection.limit], None)
    return Selected(shown, found, len(found))


def opened(out: str, view: View) -> Dataset:
    """Open a table as it is published.

    Raises: NoTableError: there is none. CommandError: as `published.load`. OSError: a file cannot be read.
    """
    system, path = fs.FileSystem.from_uri(out) if "://" in out else (fs.LocalFileSystem(), out)
    parts = load(out).parts(view.place)
    base = path.rstrip("/")
    place = f"{base}/{view.place}"
    if parts is None and system.get_file_info(place).type != fs.FileType.Directory:
        raise _none(out, view)
    if view.place == "ingest/segments":
        return dataset.dataset(segment_table(f"{out.rstrip('/')}/ingest"))
    if parts is None and view.place.startswith("ingest/"):
        return dataset.dataset(place, format="parquet", filesystem=system, partitioning="hive")
    # Without a publication, only the files of a version before there was one; below are those of runs that were killed.
    folders = [place] if parts is None else [f"{base}/{each}" for each in parts.values()]
    files = [each.path for folder in folders for each in system.get_file_info(fs.FileSelector(folder))]
    tables = [each for each in files if each.endswith(".parquet")]
    if not tables:
        raise _none(out, view)
    return dataset.dataset(tables, format="parquet", filesystem=system)


def _none(out: str, view: View) -> NoTableError:
    return NoTableError(f"no results of {view.place.partition('/')[0]} in {out}: run its job first")


def _condition(name: str, view: View, schema: pa.Schema, selection: Selection) -> pc.Expression | None:
    parts: list[pc.Expression] = []
    if selection.address is not None and "address" not in schema.names:
        raise CommandError(f"{name} has no addresses")
    if selection.tenant is not None:
        if "tenant" not in schema.names:
            raise CommandError(f"{name} has no tenants")
        parts.append(pc.field("tenant") == selection.tenant)
    if selection.router is not None:
        texts = [each for each in ROUTERS if each in schema.names and schema.field(each).type == pa.string()]
        named = [pc.field(each) == selection.router for each in texts]
        if not named:
            raise CommandError(f"{name} has no routers")
        parts.append(reduce(or_, named))
    if selection.finding is not None:
        if "finding" not in schema.names:
            raise CommandError(f"{name} has no findings")
        parts.append(pc.field("finding") == selection.finding)
    if (selection.since or selection.until) and not view.times:
        raise CommandError(f"{name} has no times: its rows are about all that the job read")
    if selection.since is not None:
        since = selection.since
        if view.times == ("day",):  # the row is about all of it
            since = since.replace(hour=0, minute=0, second=0, microsecond=0)
        parts.append(pc.field(view.times[-1]) >= time_of(since, schema.field(view.times[-1]).type))
    if selection.until is not None:
        parts.append(pc.field(view.times[0]) < time_of(selection.until, schema.field(view.times[0]).type))
    return reduce(and_, parts) if parts else None


def time_of(moment: datetime, kind: pa.DataType) -> Any:
    """Return a time as a column of some type has it: nanoseconds since 1970, or a timestamp."""
    if pa.types.is_timestamp(kind):
        return pa.scalar(moment if kind.tz else moment.replace(tzinfo=None), kind)
    return ns(moment)


def _matcher(pattern: str) -> Callable[[Any], Any]:
    """Return a function that tells of each address of a column whether a pattern matches it."""
    table = PatternTable([(pattern, True)])

    def matches(addresses: Any) -> Any:
        matching = [each for each in pc.unique(addresses).to_pylist() if each is not None and table.lookup(each)]
        return pc.is_in(addresses, pa.array(matching, pa.string()))

    return matches


def _written(rows: pa.Table | pa.RecordBatch, columns: Sequence[str]) -> list[dict[str, Any]]:
    return [dict(_values(row, columns)) for row in rows.select(list(columns)).to_pylist()]


def _values(row: Mapping[str, Any], columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for name in columns:
        value = row[name]
        if name in TIMES and isinstance(value, int):
            value = datetime.fromtimestamp(value / 1e9, UTC)
        if isinstance(value, datetime):
            value = value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC).isoformat(timespec="milliseconds")
            value = value.replace("+00:00", "Z")
        elif isinstance(value, bytes):
            value = value.hex()
        yield name, value
