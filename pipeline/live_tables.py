"""The tables of closed minutes: a file for each hour of each table, replaced at most once a minute. No Spark.

The file of an hour has all of its minutes so far: a reader sees it as it was, or with one minute more. A minute that is
closed again, after a kill, replaces its rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from amqpmesh.pipeline.anomalies import LEAST_MESSAGES
from amqpmesh.pipeline.events import Column
from amqpmesh.pipeline.live_minutes import INCOMPLETE, Sums, by_name, classes_by_address, percentile
from amqpmesh.pipeline.outliers import HISTORY, LEAST_HISTORY, MEASURES, judge
from amqpmesh.pipeline.published import hour_name, hour_of_name, replace_file
from amqpmesh.router.amqp.errors import CommandError

PERCENTILES: Final[Mapping[str, float]] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""The percentiles stated."""

ADDRESSES: Final = 100
"""Addresses that are judged, those with most messages in the minute and in those that are remembered."""

KNOWN: Final = 1_000
"""Addresses that `anomalies` has rows of, in the same order."""

REMEMBERED: Final = HISTORY + 61
"""Minutes before the present one that it is judged by."""

SEASON: Final = 1440
"""Minutes of a day, over which chance alone may cause as many anomalies as `outliers.FALSE_ALARMS` says."""

_START: Final = Column("window_start", pa.timestamp("us", "UTC"), "when the minute begins")
_ADDRESS: Final = Column("address", pa.string(), "the address of the deliveries; null if unknown", "", True)
_TENANT: Final = Column("tenant", pa.string(), "the tenant of the address; empty without tenants", "", True)

MINUTES: Final = (
    _START,
    Column("deliveries", pa.int64(), "attempts to deliver that began in it, as far as recorded"),
    Column("incomplete", pa.int64(), "of these, those of which records were missing when it was closed"),
    Column("records", pa.int64(), "hop records that came since the minute before was closed"),
    Column("late", pa.int64(), "of these, those that came too late for their minute, and are in none"),
    Column("ahead", pa.int64(), "of these, those whose time was too far ahead of this machine, and are in none"),
    Column("segments", pa.int64(), "segments that came in that time"),
    Column("faults", pa.int64(), "problems of these segments"),
)

TRAFFIC: Final = (
    _START,
    Column("ingress", pa.string(), "the router where messages entered the mesh; null if unknown", "", True),
    Column(
        "egress", pa.string(), "the router where they left the mesh; null if they did not leave, or unknown", "", True
    ),
    _ADDRESS,
    _TENANT,
    Column("messages", pa.float64(), "attempts to deliver; a multicast delivery counts once for each path"),
    Column("bytes", pa.float64(), "the payload of these messages", "octets"),
    Column("records", pa.int64(), "the deliveries that the figures are made from"),
    Column("basis", pa.string(), "`recorded`: from all records; `scaled`: from a sample, divided by its share"),
)

LATENCY: Final = (
    _START,
    _ADDRESS,
    _TENANT,
    Column("deliveries", pa.int64(), "deliveries that left the mesh, with known ingress and egress routers"),
    Column("answered", pa.int64(), "deliveries whose outcome passed the ingress router"),
    *(
        Column(
            f"outcome_{name}_ns",
            pa.int64(),
            f"{name} of the time from the first frame's arrival until the outcome passed, by the ingress clock",
            "ns",
            True,
        )
        for name in PERCENTILES
    ),
)

LOSSES: Final = (
    _START,
    Column("kind", pa.string(), f"the kind of loss, such as `rejected`; or `{INCOMPLETE}`: records are missing"),
    _ADDRESS,
    _TENANT,
    Column("router", pa.string(), "the router where it was found", "", True),
    Column("receiver", pa.string(), "the container-id of the receiving client, if it gave the outcome", "", True),
    Column("condition", pa.string(), "the error condition, if there is one", "", True),
    Column("found", pa.int64(), "deliveries"),
)

ANOMALIES: Final = (
    _START,
    Column("measure", pa.string(), "`messages`, `p50`, `p95` or `failures`"),
    _ADDRESS,
    _TENANT,
    Column("value", pa.float64(), "messages, ns, or a share"),
    Column("weight", pa.float64(), "the messages that the value is made from"),
    Column("usual", pa.float64(), "the expected value; null if the minute was not judged", "", True),
    Column("low", pa.float64(), "a lower value is an anomaly; null if the minute was not judged", "", True),
    Column("high", pa.float64(), "a higher value is an anomaly; null if the minute was not judged", "", True),
    Column(
        "score",
        pa.float64(),
        "the deviation, in multiples of the least that counts; an anomaly is above 1 or below -1; null if not judged",
        "",
        True,
    ),
)

TABLES: Final[Mapping[str, Sequence[Column]]] = {
    "minutes": MINUTES,
    "traffic": TRAFFIC,
    "latency": LATENCY,
    "losses": LOSSES,
    "anomalies": ANOMALIES,
}
"""The tables of `live`, with their columns."""

Rows = dict[str, list[dict[str, Any]]]
"""Rows by table."""

Series = tuple[str, Any, Any]
"""A measure, an address, and a tenant."""


def rows(number: int, sums: Sums) -> Rows:
    """Return the rows of a minute, without `minutes` and `anomalies`."""
    begins = start(number)
    found: Rows = {"traffic": [], "latency": [], "losses": []}
    for (ingress, egress, address, tenant, scaled), (messages, octets, records) in by_name(sums, "traffic"):
        found["traffic"].append(
            {
                "window_start": begins, "ingress": ingress, "egress": egress, "address": address, "tenant": tenant,
                "messages": round(messages, 6), "bytes": round(octets, 6), "records": round(records),
                "basis": "scaled" if scaled else "recorded",
            }
        )  # fmt: skip
    outcomes = classes_by_address(sums, "outcomes")
    for (address, tenant), (deliveries, answered) in by_name(sums, "latency"):
        classes = outcomes.get((address, tenant), {})
        told = {f"outcome_{name}_ns": percentile(classes, share) for name, share in PERCENTILES.items()}
        found["latency"].append(
            {
                "window_start": begins, "address": address, "tenant": tenant, "deliveries": round(deliveries),
                "answered": round(answered), **told,
            }
        )  # fmt: skip
    for (kind, address, tenant, router, receiver, condition), (count,) in by_name(sums, "losses"):
        found["losses"].append(
            {
                "window_start": begins, "kind": kind, "address": address, "tenant": tenant, "router": router,
                "receiver": receiver, "condition": condition, "found": round(count),
            }
        )  # fmt: skip
    return found


def start(number: int) -> datetime:
    """Return when a minute begins. Args: number: since 1970."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(minutes=number)


def values(sums: Sums) -> dict[Series, tuple[float, float]]:
    """Return the value and the weight of each series in a minute, as `anomalies` makes them."""
    found: dict[Series, tuple[float, float]] = {}
    took = classes_by_address(sums, "took")
    for (address, tenant), (messages, ended, failed) in by_name(sums, "series"):
        found["messages", address, tenant] = (float(round(messages)), float(round(messages)))
        classes = took.get((address, tenant), {})
        timed = sum(classes.values())
        if timed >= LEAST_MESSAGES:
            for measure in ("p50", "p95"):
                found[measure, address, tenant] = (float(percentile(classes, PERCENTILES[measure]) or 0), timed)
        if ended >= LEAST_MESSAGES:
            found["failures", address, tenant] = (failed / ended, ended)
    return found


class History:
    """The series of the minutes before, by which a minute is judged."""

    def __init__(self) -> None:
        self._values: dict[Series, dict[int, tuple[float, float]]] = defaultdict(dict)

    @classmethod
    def read(cls, out: Path, before: int) -> History:
        """Return what is published. Args: out: the directory of results. before: the number of a minute.

        Raises: CommandError: a file cannot be read.
        """
        history = cls()
        first = before - REMEMBERED
        for hour in range(first // 60, before // 60 + 1):
            for row in _read(out, "anomalies", hour).to_pylist():
                number = int(row["window_start"].timestamp()) // 60
                if first <= number < before:
                    series = row["measure"], row["address"], row["tenant"]
                    history._values[series][number] = row["value"], row["weight"]
        return history

    def judged(self, number: int, present: Mapping[Series, tuple[float, float]]) -> list[dict[str, Any]]:
        """Return the rows of a minute, which later ones are judged by. Args: present: its values."""
        for one, now in present.items():
            self._values[one][number] = now
        for series, told in list(self._values.items()):
            for each in [each for each in told if each <= number - REMEMBERED]:
                del told[each]
            if not told:
                del self._values[series]
        largest = self._largest()
        chosen = {*largest[:ADDRESSES]}
        for series in [each for each in self._values if each[1:] not in largest]:
            del self._values[series]
        found = []
        for series in sorted(self._values, key=str):
            measure, address, tenant = series
            if measure == "messages" and number not in self._values[series]:
                self._values[series][number] = (0.0, 0.0)  # a missing number of messages means none
                if not any(value for value, _ in self._values[series].values()):
                    del self._values[series]
                    continue
            if number not in self._values[series]:
                continue
            value, weight = self._values[series][number]
            judgement = self._judge(series, number, len(chosen) * 4) if (address, tenant) in chosen else {}
            found.append(
                {
                    "window_start": start(number), "measure": measure, "address": address, "tenant": tenant,
                    "value": value, "weight": weight, **judgement,
                }
            )  # fmt: skip
        return found

    def _largest(self) -> list[tuple[Any, Any]]:
        """Return the addresses that are remembered, those with most messages first."""
        sizes = {
            series[1:]: sum(value for value, _ in told.values())
            for series, told in self._values.items()
            if series[0] == "messages"
        }
        return sorted(sizes, key=lambda each: (-sizes[each], str(each)))[:KNOWN]

    def _judge(self, series: Series, number: int, tests: int) -> dict[str, float]:
        told = self._values[series]
        first = min(told)
        if number - first < 2 * LEAST_HISTORY:
            return {}  # no window so early is judged
        line, weights = np.full(number - first + 1, np.nan), np.zeros(number - first + 1)
        for each, (value, weight) in told.items():
            line[each - first], weights[each - first] = value, weight
        found = judge(line, weights, MEASURES[series[0]], tests * SEASON, SEASON)
        columns = {"usual": found.usual, "low": found.low, "high": found.high, "score": found.score}
        if not np.isfinite(found.score[-1]):
            return {}
        return {name: float(each[-1]) for name, each in columns.items()}


def publish(out: Path, closed: Mapping[int, Rows]) -> None:
    """Write the rows of closed minutes into the files of their hours. Args: closed: rows by the number of the minute.

    Raises: OSError: a file cannot be written. CommandError: one that is there cannot be read.
    """
    hours: dict[int, list[int]] = defaultdict(list)
    for number in closed:
        hours[number // 60].append(number)
    for hour, numbers in sorted(hours.items()):
        again = pa.array([start(each) for each in numbers], pa.timestamp("us", "UTC"))
        for name in reversed([*TABLES]):  # who sees a row of `minutes` finds all others
            new = [row for each in numbers for row in closed[each].get(name, ())]
            before = _read(out, name, hour)
            kept = before.filter(pc.invert(pc.is_in(before["window_start"], again)))
            if not new and len(kept) == len(before):
                continue
            table = pa.concat_tables([kept, pa.Table.from_pylist(new, schema_of(name))]).sort_by("window_start")
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink, compression="zstd")
            replace_file(_file(out, name, hour), sink.getvalue().to_pybytes())


def forget(out: Path, before: int) -> None:
    """Remove files of hours. Args: before: the first hour that stays, since 1970."""
    for name in TABLES:
        for path in (out / "live" / name).glob("*.parquet"):
            with suppress(ValueError):  # a file of somebody else
                if hour_of_name(path.stem) < before:
                    path.unlink(missing_ok=True)


def schema_of(name: str) -> pa.Schema:
    """Return the schema of a table."""
    return pa.schema([(each.name, each.type) for each in TABLES[name]])


def _file(out: Path, name: str, hour: int) -> Path:
    return out / "live" / name / f"{hour_name(hour)}.parquet"


def _read(out: Path, name: str, hour: int) -> pa.Table:
    """Return the rows of an hour; none, if there is no file of it. Raises: CommandError: it is damaged, or another."""
    where = _file(out, name, hour)
    try:
        found = pq.ParquetFile(where).read()
        return found.select(schema_of(name).names).cast(schema_of(name))
    except FileNotFoundError:
        return schema_of(name).empty_table()
    except (pa.ArrowException, KeyError) as error:
        raise CommandError(f"{where} is damaged, or of another version ({error}): remove it") from None
