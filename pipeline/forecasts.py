"""Forecasts of the daily traffic of links and routers, from published tables, without Spark.

Several methods predict each day from the days before it. The method with the least error on older days is checked on
the last `HELD` days, which had no part in its choice. It is used only where it has beaten there the value of the last
known day; elsewhere the forecast is that value. Its error is stated in both cases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpmesh.pipeline.deliveries import MANAGEMENT
from amqpmesh.pipeline.result_rows import VIEWS, View, opened
from amqpmesh.pipeline.traffic_limits import Limits

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

    from amqpmesh.pipeline.routing import Amounts

NAME: Final = "forecasts"
"""The name of the table that `findings.select` makes of them."""

AHEAD: Final = (1, 7)
"""The days behind the last whole one that are forecast."""

HELD: Final = 7
"""The days at the end that check a method, and have no part in its choice."""

CHOSEN: Final = 14
"""The days before those by which the method is chosen, at most."""

LEAST: Final = 7
"""The days before the first prediction, at least."""

LONGEST: Final = 90
"""The days of a series that count, at most: the latest."""

KNOWN: Final = 3
"""The predictions that an error is made from, at least; a series with fewer days has no forecast."""

YESTERDAY: Final = "yesterday"
"""The method that others have to beat: the value of the last known day."""

_WINDOW: Final = timedelta(minutes=1)
"""Of the tables. A day is whole if, at the ends of the records, its first and its last window are there."""

Method = Callable[["Amounts"], "Amounts"]


def _trend(values: Amounts) -> Amounts:
    last = values[:, -14:]
    places = np.arange(last.shape[1]) - (last.shape[1] - 1) / 2
    slope = last @ places / (places @ places)
    return np.asarray(last.mean(axis=1) + slope * (places[-1] + 1))


def _smoothed(values: Amounts) -> Amounts:
    level = values[:, 0]
    for each in values.T[1:]:
        level = level + 0.3 * (each - level)
    return level


def _weekly(values: Amounts) -> Amounts:
    """Return the level of the last week, with the part that this day of the week had in the weeks before."""
    weeks = [values[:, end - 7 : end] for end in range(values.shape[1], 6, -7)][:4]
    means = np.array([week.mean(axis=1) for week in weeks])
    firsts = np.array([week[:, 0] for week in weeks])
    parts = np.divide(firsts, means, out=np.zeros_like(means), where=means > 0)
    return np.asarray(means[0] * parts.sum(axis=0) / np.maximum(1, (means > 0).sum(axis=0)))


METHODS: Final[Mapping[str, Method]] = {
    YESTERDAY: lambda values: values[:, -1],
    "last week": lambda values: values[:, -7],
    "mean of a week": lambda values: np.asarray(values[:, -7:].mean(axis=1)),
    "median of a week": lambda values: np.asarray(np.median(values[:, -7:], axis=1)),
    "smoothed": _smoothed,
    "trend of two weeks": _trend,
    "weekly": _weekly,
}
"""Each predicts the day behind some days, of several series at once: a row each, the latest day last.

There are `LEAST` days at least.
"""


@dataclass(frozen=True)
class Forecast:
    """A forecast.

    Args: kind: `link` or `router`. router, neighbour: the direction of a link; neighbour None: a router. measure:
        `octets`, all of a day, or `peak`, octets a second in the busiest minute. day: that is forecast. ahead: days
        from the last known one. value: the forecast. method: of `METHODS`. error: the mean of the absolute errors on
        `checked` days; error_yesterday: the same of the value of the last known day. last: that value. limit: of the
        link; None: unknown, or not of this measure.
    """

    kind: str
    router: str
    neighbour: str | None
    measure: str
    day: date
    ahead: int
    value: float
    method: str
    error: float
    error_yesterday: float
    checked: int
    last: float
    limit: float | None

    @property
    def kind_of_finding(self) -> str | None:
        """Return `above limit`, or `near limit` if only the forecast with its error is above it; None: neither."""
        if self.limit is None or self.value + self.error <= self.limit:
            return None
        return "above limit" if self.value > self.limit else "near limit"

    @property
    def sentence(self) -> str:
        """Return the forecast for people."""
        name = self.router if self.neighbour is None else f"{self.router} -> {self.neighbour}"
        limit = "" if self.limit is None else f"; the limit is {self.limit:,.0f}"
        what = "octets a second in the busiest minute" if self.measure == "peak" else "octets"
        return (
            f"{name} is forecast to carry {self.value:,.0f} {what} on {self.day}, give or take {self.error:,.0f}"
            f"{limit}, and the last day had {self.last:,.0f}"
        )


SCHEMA: Final = pa.schema(
    [
        ("rank", pa.int64()),
        ("kind", pa.string()),
        ("router", pa.string()),
        ("neighbour", pa.string()),
        ("measure", pa.string()),
        ("time", pa.timestamp("us", "UTC")),
        ("ahead", pa.int64()),
        ("value", pa.float64()),
        ("error", pa.float64()),
        ("error_yesterday", pa.float64()),
        ("method", pa.string()),
        ("checked", pa.int64()),
        ("last", pa.float64()),
        ("limit", pa.float64()),
    ]
)

VIEW: Final = View(
    NAME,
    ("router", "neighbour", "measure", "time", "value", "error", "error_yesterday", "method", "last", "limit"),
    ("time",),
    (("rank", "ascending"),),
)


@dataclass(frozen=True)
class Predicted:
    """A prediction of one series. Args: as of `Forecast`."""

    value: float
    method: str
    error: float
    error_yesterday: float
    checked: int


def predicted(values: Amounts, ahead: int) -> list[Predicted]:
    """Predict series some days behind the last one. Returns: one for each; none at all: there are too few days.

    Args: values: a row for each series, of days that follow each other, the latest last. ahead: 1: the next day.
    """
    days = values.shape[1]
    ends = range(LEAST, days - ahead + 1)
    held = ends[-HELD:]
    # What the choice is made from is known before the first of the held days is predicted.
    before = [end for end in ends[-HELD - CHOSEN : -HELD] if end + ahead <= held[0]]
    if len(before) < KNOWN:
        known = range(1, days - ahead + 1)[-HELD:]
        if len(known) < KNOWN:
            return []
        bases = _error(values, METHODS[YESTERDAY], known, ahead)
        return [
            Predicted(float(last), YESTERDAY, float(base), float(base), len(known))
            for last, base in zip(values[:, -1], bases, strict=True)
        ]
    names = [*METHODS]  # the first of equal ones is chosen
    chosen = np.argmin([_error(values, METHODS[name], before, ahead) for name in names], axis=0)
    errors = np.array([_error(values, METHODS[name], held, ahead) for name in names])
    told = np.array([_ahead(values, METHODS[name], ahead) for name in names])
    found = []
    for row, best in enumerate(chosen.tolist()):
        used = best if errors[best, row] < errors[0, row] else 0
        error, base = float(errors[used, row]), float(errors[0, row])
        found.append(Predicted(float(told[used, row]), names[used], error, base, len(held)))
    return found


def _error(values: Amounts, method: Method, ends: Iterable[int], ahead: int) -> Amounts:
    """Return the mean of the absolute errors. Args: ends: the number of days that each prediction is made from."""
    errors = [abs(_ahead(values[:, :end], method, ahead) - values[:, end + ahead - 1]) for end in ends]
    return np.asarray(np.mean(errors, axis=0))


def _ahead(values: Amounts, method: Method, ahead: int) -> Amounts:
    """Predict day by day, each from the days before it and the predictions; no traffic is less than none."""
    if method is METHODS[YESTERDAY]:
        return values[:, -1]
    for _ in range(ahead):
        values = np.column_stack((values, np.maximum(0.0, method(values))))
    return values[:, -1]


def forecasts(out: str, limits: Limits) -> list[Forecast]:
    """Make the forecasts: those that use most of their limit first, then those without a limit, the largest first.

    Args: out: the directory of results, a path or a URI. Raises: CommandError: the job `traffic` has not run.
    """
    series, days = _series(out)
    if not days:
        return []
    groups: dict[date, list[tuple[str, str, str | None, str]]] = defaultdict(list)
    for place, by_day in series.items():
        if (first := min((day for day in days if day in by_day), default=None)) is not None:
            groups[first].append(place)
    found: list[Forecast] = []
    for first, places in groups.items():
        known = [day for day in days if day >= first][-LONGEST:]
        values = np.array([[series[place].get(day, 0.0) for day in known] for place in places])
        for ahead in AHEAD:
            day = days[-1] + timedelta(days=ahead)
            for place, last, told in zip(places, values[:, -1], predicted(values, ahead), strict=False):
                limit = limits.links.get((place[1], place[2] or "")) if place[3] == "peak" else None
                errors = told.error, told.error_yesterday, told.checked
                found.append(Forecast(*place, day, ahead, told.value, told.method, *errors, float(last), limit))

    def rank(each: Forecast) -> tuple[Any, ...]:
        used = each.value / each.limit if each.limit is not None else 0.0
        return -used, -each.value, each.router, each.neighbour or "", each.measure, each.ahead

    return sorted(found, key=rank)


def rows(found: Iterable[Forecast]) -> pa.Table:
    """Return forecasts as the table `forecasts`."""
    names = [name for name in SCHEMA.names if name not in ("rank", "time")]
    return pa.Table.from_pylist(
        [
            {
                "rank": rank,
                "time": datetime(each.day.year, each.day.month, each.day.day, tzinfo=UTC),
                **{name: getattr(each, name) for name in names},
            }
            for rank, each in enumerate(found, start=1)
        ],
        SCHEMA,
    )


# ------------------------------------------------------------------------------------------------------------ the days

Series = dict[tuple[str, str, str | None, str], dict[date, float]]


def _series(out: str) -> tuple[Series, list[date]]:
    """Return the daily values of links and routers; and the days: whole ones, the last that follow each other."""
    links, matrix = opened(out, VIEWS["traffic/links"]), opened(out, VIEWS["traffic"])
    series: Series = defaultdict(lambda: defaultdict(float))
    seen: set[date] = set()
    ends: list[datetime] = []
    columns = ["window_start", "router", "peer", "bytes", "bytes_per_second"]
    for row in _daily(links, columns, ["router", "peer"], [("bytes", "sum"), ("bytes_per_second", "max")], ends):
        place, day = ("link", row["router"], row["peer"]), row["day"]
        series[(*place, "octets")][day] += row["bytes_sum"] or 0.0
        peaks = series[(*place, "peak")]
        peaks[day] = max(peaks[day], row["bytes_per_second_max"] or 0.0)
        seen.add(day)
    columns = ["window_start", "address", "ingress", "egress", "bytes"]
    for row in _daily(matrix, columns, ["address", "ingress", "egress"], [("bytes", "sum")], ends):
        seen.add(row["day"])
        if (row["address"] or "").startswith(MANAGEMENT):
            continue
        for router in {row["ingress"], row["egress"]} - {None}:
            series["router", router, None, "octets"][row["day"]] += row["bytes_sum"] or 0.0
    return series, _days(seen, ends)


def _daily(
    table: Dataset, columns: list[str], keys: list[str], sums: list[tuple[str, str]], ends: list[datetime]
) -> Iterable[dict[str, Any]]:
    """Yield sums of days, in parts. Args: ends: gets the first and the last window of each part."""
    for batch in table.to_batches(columns=columns):
        if not len(batch):
            continue
        limits = pc.min_max(batch["window_start"]).as_py()
        ends += [_utc(limits["min"]), _utc(limits["max"])]
        some = pa.Table.from_batches([batch]).append_column("day", pc.cast(batch["window_start"], pa.date32()))
        yield from some.group_by(["day", *keys]).aggregate(sums).to_pylist()


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _days(seen: set[date], ends: list[datetime]) -> list[date]:
    if not ends:
        return []
    first, last = min(ends), max(ends)
    partial = {first.date()} if first.time().replace(tzinfo=None) != datetime.min.time() else set[date]()
    if (last + _WINDOW).date() == last.date():
        partial.add(last.date())
    days: list[date] = []
    for day in sorted(seen - partial, reverse=True):
        if days and day != days[-1] - timedelta(days=1):
            break
        days.append(day)
    return days[::-1]
