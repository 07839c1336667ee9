"""Findings of all jobs in one form, from the published tables, without Spark: with a severity, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import dataset

from amqpmesh.pipeline import forecasts, result_rows
from amqpmesh.pipeline.advice import ANOMALIES, FORECASTS, LOSSES
from amqpmesh.pipeline.deliveries import ns
from amqpmesh.pipeline.result_rows import VIEWS, NoTableError, Selected, View, opened, selected
from amqpmesh.pipeline.severity import SEVERITIES, Severity
from amqpmesh.pipeline.traffic_limits import read
from amqpmesh.router.amqp.errors import CommandError

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

    from amqpmesh.pipeline.traffic_limits import Limits
    from amqpmesh.pipeline.work import Selection

NAME: Final = "findings"
"""The name of the table that `select` makes of them."""

MOST: Final = 100_000
"""Findings of a job that are read at most, the first ones of its table."""


@dataclass(frozen=True)
class Finding:
    """A finding.

    Args: severity: one of `Severity`. job: `losses`, `anomalies` or `forecasts`. kind: the kind of a loss, the measure
        of an anomaly, or the kind of a forecast. place: what identifies the finding in each run over the same mesh,
        without its times. finding: its number in the job's table. address, tenant, router, peer: None: it is not about
        one. begin_time, end_time: in ns since 1970; None: unknown. found: rows that show it; for an anomaly and a
        forecast 1. sentence: for people. evidence: where the rows are that show it. advice: what to do.
    """

    severity: str
    job: str
    kind: str
    place: tuple[str | None, ...]
    finding: int
    address: str | None
    tenant: str | None
    router: str | None
    peer: str | None
    begin_time: int | None
    end_time: int | None
    found: int
    sentence: str
    evidence: str
    advice: str


_SCHEMA: Final = pa.schema(
    [
        ("rank", pa.int64()),
        ("severity", pa.string()),
        ("job", pa.string()),
        ("kind", pa.string()),
        ("finding", pa.int64()),
        ("address", pa.string()),
        ("tenant", pa.string()),
        ("router", pa.string()),
        ("peer", pa.string()),
        ("begin_time", pa.int64()),
        ("end_time", pa.int64()),
        ("found", pa.int64()),
        ("sentence", pa.string()),
        ("evidence", pa.string()),
        ("advice", pa.string()),
    ]
)

_VIEW: Final = View(
    NAME,
    ("severity", "job", "finding", "end_time", "sentence", "advice"),
    ("begin_time", "end_time"),
    (("rank", "ascending"),),
)


def findings(out: str) -> list[Finding]:
    """Read the findings of all jobs that have run, the worst first; with those of forecasts, if links have limits.

    Args: out: the directory of results, a path or a URI.
    Raises: CommandError: no such job has run, or a table cannot be read.
    """
    found: list[Finding] = []
    missing: list[NoTableError] = []
    for job, made in (("losses", _losses), ("anomalies", _anomalies)):
        try:
            found += made(_rows(out, job))
        except NoTableError as error:
            missing.append(error)
    if len(missing) > 1:
        raise missing[0]
    if (limits := read(out)).links:
        with suppress(NoTableError):
            found += _forecasts(_made(out, limits))
    worst = list(Severity)[::-1]
    return sorted(found, key=lambda each: (worst.index(Severity(each.severity)), -each.found, each.job, each.finding))


def select(out: str, name: str, selection: Selection, columns: Sequence[str] = ()) -> Selected:
    """Read rows of a result table, of `findings`, or of `forecasts`; see `result_rows.select`."""
    if name == forecasts.NAME:
        table = dataset.dataset(forecasts.rows(_made(out, read(out))))
        return selected(table, name, forecasts.VIEW, selection, columns)
    if name != NAME:
        return result_rows.select(out, name, selection, columns)
    rows = [{"rank": rank, **asdict(each)} for rank, each in enumerate(findings(out), start=1)]
    return selected(dataset.dataset(pa.Table.from_pylist(rows, _SCHEMA)), name, _VIEW, selection, columns)


def _made(out: str, limits: Limits) -> list[forecasts.Forecast]:
    try:
        return forecasts.forecasts(out, limits)
    except (OSError, pa.ArrowInvalid) as error:
        raise CommandError(f"{out}/traffic cannot be read: {error}") from None


def _rows(out: str, job: str) -> list[dict[str, Any]]:
    try:
        table: Dataset = opened(out, VIEWS[job])
        rows: list[dict[str, Any]] = table.head(MOST).to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise CommandError(f"{out}/{VIEWS[job].place} cannot be read: {error}") from None
    return rows


def _losses(rows: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    names = ("kind", "tenant", "address", "router", "next_router", "receiver", "link", "condition")
    for row in rows:
        kind = row["kind"]
        if kind not in LOSSES:  # of a newer version
            continue
        shown = row["found"] - row["left_out"]
        left_out = f", and {row['left_out']:,} more" if row["left_out"] else ""
        yield Finding(
            severity=SEVERITIES["losses"][kind],
            job="losses",
            kind=kind,
            place=tuple(row.get(each) for each in names),
            finding=row["finding"],
            address=row["address"],
            tenant=row.get("tenant"),
            router=row["router"],
            peer=row["next_router"],
            begin_time=row["first_time"],
            end_time=row["last_time"],
            found=row["found"],
            sentence=row["sentence"],
            evidence=f"{shown:,} rows of losses/evidence, finding {row['finding']}{left_out}",
            advice=LOSSES[kind],
        )


def _anomalies(rows: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    names = ("measure", "tenant", "address", "router", "peer")
    for row in rows:
        measure, rose = row["measure"], row["score"] > 0
        if (measure, rose) not in ANOMALIES:  # of a newer version
            continue
        yield Finding(
            severity=SEVERITIES["anomalies"]["episodes"],
            job="anomalies",
            kind=measure,
            place=tuple(row.get(each) for each in names),
            finding=row["episode"],
            address=row["address"],
            tenant=row.get("tenant"),
            router=row["router"],
            peer=row["peer"],
            begin_time=row["begin_time"],
            end_time=row["end_time"],
            found=1,
            sentence=row["sentence"],
            evidence=f"its series in anomalies/windows; {abs(row['score']):,.1f} times the least that counts",
            advice=ANOMALIES[measure, rose],
        )


def _forecasts(made: Sequence[forecasts.Forecast]) -> Iterator[Finding]:
    """Yield a finding for each direction of a link: of the first day above its limit, or near it."""
    first: dict[tuple[str, str | None], tuple[int, forecasts.Forecast, str]] = {}
    for rank, each in enumerate(made, start=1):
        kind, place = each.kind_of_finding, (each.router, each.neighbour)
        if kind is None:
            continue
        known = first.get(place)
        if known is None or (kind != "above limit", each.ahead) < (known[2] != "above limit", known[1].ahead):
            first[place] = rank, each, kind
    for rank, each, kind in first.values():
        # It holds until the next day is whole, and the jobs have a day to say so. Thus those of days that follow each
        # other are one episode of `alerts`.
        day = each.day - timedelta(days=each.ahead - 1)
        begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
        yield Finding(
            severity=SEVERITIES["forecasts"][kind],
            job="forecasts",
            kind=kind,
            place=(kind, each.router, each.neighbour),
            finding=rank,
            address=None,
            tenant=None,
            router=each.router,
            peer=each.neighbour,
            begin_time=ns(begin),
            end_time=ns(begin + timedelta(days=2)),
            found=1,
            sentence=each.sentence,
            evidence=f"row {rank} of forecasts: by {each.method}, checked on {each.checked} days",
            advice=FORECASTS[kind],
        )
