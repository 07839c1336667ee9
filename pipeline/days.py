"""The traffic of the last day beside that of the day before and of a week before, from published tables."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from amqpmesh.pipeline.deliveries import MANAGEMENT
from amqpmesh.pipeline.result_rows import VIEWS, NoTableError, opened, time_of
from amqpmesh.pipeline.work import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyarrow.dataset import Dataset

DAY: Final = timedelta(days=1)
MINUTE: Final = timedelta(minutes=1)
"""A window of the table `traffic/matrix`."""

BEFORE: Final = (timedelta(days=0), timedelta(days=1), timedelta(days=7))
"""The times by which the compared days end earlier than the last one: itself, the day before, and that of last week."""

SHOWN: Final = 12
"""Addresses in the table at most, those whose messages changed most."""

ALL: Final = "(all)"


@dataclass(frozen=True)
class Compared:
    """The messages of an address in the last day, the day before, and the same day of the week before.

    Args: address: with its tenant, if there is one. yesterday, last_week: None: it begins before the first
        record.
    """

    address: str
    today: float
    yesterday: float | None
    last_week: float | None


def compared(out: str) -> tuple[datetime | None, list[Compared]]:
    """Compare the last 24 hours of the table `traffic/matrix` with earlier ones.

    Returns: their end; and a row for all addresses, then one for each, those that changed most first. Both are empty if
        there is no earlier day since the first record.
    Raises: CommandError: the job `traffic` has not run.
    """
    dataset = opened(out, VIEWS["traffic"])
    first, last = _ends(dataset)
    if first is None or last is None:
        return None, []
    end = last + MINUTE
    is_whole = [first <= end - before - DAY for before in BEFORE]
    if not any(is_whole[1:]):
        return None, []
    days = [
        _day(dataset, end - before) if whole else None
        for before, whole in zip(BEFORE, (True, *is_whole[1:]), strict=True)
    ]
    today, yesterday, last_week = days
    assert today is not None, "it is always read"
    rows = [
        Compared(
            name,
            today.get(name, 0.0),
            None if yesterday is None else yesterday.get(name, 0.0),
            None if last_week is None else last_week.get(name, 0.0),
        )
        for name in {name for day in days if day is not None for name in day}
    ]
    rows.sort(key=lambda each: (each.address != ALL, -_changed(each), each.address))
    return end, rows


def table(out: str) -> Table | None:
    """Return what `compared` finds as a table for people; None: there is nothing to compare."""
    try:
        end, rows = compared(out)
    except NoTableError:
        return None
    if end is None:
        return None
    return Table(
        f"messages of the 24 hours before {end:%Y-%m-%d %H:%M} UTC, beside those of the day before and of last week",
        ("address", "messages", "day before", "change", "last week", "change since"),
        tuple(
            (
                each.address,
                round(each.today),
                *_cells(each.today, each.yesterday),
                *_cells(each.today, each.last_week),
            )
            for each in rows[: SHOWN + 1]
        ),
    )


def _cells(today: float, before: float | None) -> tuple[int | None, str | None]:
    if before is None:
        return None, None
    return round(before), f"{today / before - 1:+.0%}" if before else ("new" if today else "+0%")


def _changed(row: Compared) -> float:
    return max(abs(row.today - before) for before in (row.yesterday, row.last_week) if before is not None)


def _ends(table: Dataset) -> tuple[datetime | None, datetime | None]:
    first: datetime | None = None
    last: datetime | None = None
    for batch in table.to_batches(columns=["window_start"]):
        ends = pc.min_max(batch["window_start"])
        low, high = _utc(ends["min"].as_py()), _utc(ends["max"].as_py())
        first = low if first is None or (low is not None and low < first) else first
        last = high if last is None or (high is not None and high > last) else last
    return first, last


def _utc(moment: Any) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _day(table: Dataset, end: datetime) -> dict[str, float]:
    """Return the messages of each address in the day before `end`, and of all."""
    kind = table.schema.field("window_start").type
    wanted = (pc.field("window_start") >= time_of(end - DAY, kind)) & (pc.field("window_start") < time_of(end, kind))
    found: dict[str, float] = defaultdict(float)
    names = ("tenant", "address")
    for batch in table.to_batches(columns=[*names, "messages"], filter=wanted & pc.field("address").is_valid()):
        for row in _summed(batch, names):
            if not row["address"].startswith(MANAGEMENT):
                found[f"{row['tenant']}: {row['address']}" if row["tenant"] else row["address"]] += row["messages_sum"]
                found[ALL] += row["messages_sum"]
    return dict(found)


def _summed(batch: pa.RecordBatch, names: Sequence[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        pa.Table.from_batches([batch]).group_by([*names]).aggregate([("messages", "sum")]).to_pylist()
    )
    return rows
