"""Rows of the results, read without Spark: those that are selected, and what is said of what is not there."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqpmesh.pipeline import events, live_tables
from amqpmesh.pipeline.events import Column, arrow_schema
from amqpmesh.pipeline.published import Result, fresh, publish
from amqpmesh.pipeline.result_rows import DURATIONS, TIMES, VIEWS, select
from amqpmesh.pipeline.work import Done, Selection
from amqpmesh.router.amqp.errors import CommandError
from tests.pipeline.test_report import TABLES as OF_JOBS

TABLES = {**OF_JOBS, **{f"live/{name}": columns for name, columns in live_tables.TABLES.items()}}
BEGAN = datetime(2026, 5, 1, tzinfo=UTC)
HOUR = 3600 * 10**9


def ns(hours: float) -> int:
    return int(BEGAN.timestamp()) * 10**9 + int(hours * HOUR)


def write(out: Path, name: str, *rows: dict[str, Any]) -> None:
    """Write a table. Args: rows: what they do not name is null, or nothing of its type."""
    (out / name).mkdir(parents=True, exist_ok=True)
    filled = [{each.name: row.get(each.name, _nothing(each)) for each in TABLES[name]} for row in rows]
    pq.write_table(pa.Table.from_pylist(filled, arrow_schema(TABLES[name])), out / name / "part-0.parquet")


def _nothing(column: Column) -> Any:
    if column.optional:
        return None
    if pa.types.is_timestamp(column.type):
        return BEGAN
    if pa.types.is_list(column.type):
        return []
    return {pa.string(): "", pa.binary(): b"", pa.bool_(): False}.get(column.type, 0)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    finding = {"kind": "rejected", "tenant": "", "sentence": "it was rejected", "of": 9}
    write(
        tmp_path,
        "losses/findings",
        {**finding, "address": "orders", "router": "A", "found": 1, "first_time": ns(0), "last_time": ns(1)},
        {**finding, "address": "orders/eu", "router": "B", "found": 7, "first_time": ns(2), "last_time": ns(4)},
        {**finding, "address": "tea", "next_router": "A", "found": 3, "first_time": ns(5), "last_time": ns(6)},
        {**finding, "address": "tea", "tenant": "shop", "found": 2, "first_time": ns(7), "last_time": ns(8)},
        {**finding, "address": None, "found": 4, "first_time": ns(9), "last_time": ns(9)},
    )
    return tmp_path


def at(hours: float) -> datetime:
    return BEGAN + timedelta(hours=hours)


@pytest.mark.parametrize(
    ("selection", "found"),
    [
        (Selection(), [7, 4, 3, 2, 1]),
        (Selection(limit=2), [7, 4]),
        (Selection("orders"), [1]),
        (Selection("orders/#"), [7, 1]),
        (Selection("#"), [7, 3, 2, 1]),
        (Selection("nobody"), []),
        (Selection(tenant="shop"), [2]),
        (Selection(router="A"), [3, 1]),
        (Selection(since=at(3)), [7, 4, 3, 2]),
        (Selection(until=at(2)), [1]),
        (Selection(since=at(3), until=at(5.5)), [7, 3]),
        (Selection("tea", "", "A", at(0), at(9)), [3]),
    ],
)
def test_rows_are_selected_by_address_tenant_router_and_time_the_worst_first(
    out: Path, selection: Selection, found: list[int]
) -> None:
    selected = select(str(out), "losses", selection)
    assert [row["found"] for row in selected.rows] == found
    assert selected.found == (5 if selection.limit == 2 else len(found))


def test_a_table_without_an_order_is_read_until_there_are_enough(tmp_path: Path) -> None:
    rows = [{"address": "a" if number % 2 else "b", "sent_at": at(number), "size": number} for number in range(40)]
    write(tmp_path, "deliveries/attempts", *rows)
    first = select(str(tmp_path), "deliveries", Selection("a", limit=5), ["size"])
    assert ([row["size"] for row in first.rows], first.found) == ([1, 3, 5, 7, 9], None)
    late = select(str(tmp_path), "deliveries", Selection("a", since=at(30), until=at(36), limit=5), ["size", "sent_at"])
    assert ([row["size"] for row in late.rows], late.found) == ([31, 33, 35], 3)
    assert late.rows[0]["sent_at"] == "2026-05-02T07:00:00.000Z"


def test_a_row_about_a_day_is_one_of_each_time_within_it_the_last_day_first(tmp_path: Path) -> None:
    days = [BEGAN.replace(hour=0) + timedelta(days=each) for each in range(4)]
    write(tmp_path, "latency/hops", *({"day": day, "router": "A", "p99_ns": at} for at, day in enumerate(days)))
    some = Selection(since=days[1] + timedelta(hours=23), until=days[3])
    assert [row["p99_ns"] for row in select(str(tmp_path), "latency/hops", some, ["p99_ns"]).rows] == [2, 1]


def test_parts_of_a_table_in_folders_are_one_table(tmp_path: Path) -> None:
    for day, router in (("2026-05-01", "A"), ("2026-05-02", "B")):
        folder = tmp_path / f"ingest/hops/date={day}/recorded_by={router}"
        folder.mkdir(parents=True)
        row = {each.name: _nothing(each) for each in events.TABLES["hops"]}
        row |= {"time": ns(0 if router == "A" else 24), "router": router, "key": b"\x01\xff", "address": "orders"}
        pq.write_table(pa.Table.from_pylist([row], arrow_schema(events.TABLES["hops"])), folder / "0.parquet")
    selected = select(str(tmp_path), "ingest/hops", Selection("orders", since=at(12)), ["time", "router", "key"])
    assert selected.rows == [{"time": "2026-05-02T00:00:00.000Z", "router": "B", "key": "01ff"}]


def test_the_published_parts_of_a_table_are_read_and_nothing_else(out: Path) -> None:
    parts = {}
    for number, part in enumerate(("first", "second", "unnamed")):
        directory = fresh("losses/findings")
        row = {"kind": "rejected", "address": "orders", "sentence": "?", "found": number}
        write(out, "losses/findings", row)
        (out / directory).mkdir()
        (out / "losses/findings/part-0.parquet").rename(out / directory / "part-0.parquet")
        (out / directory / "_SUCCESS").touch()
        parts[part] = directory
    del parts["unnamed"]
    write(out, "losses/findings", {"kind": "rejected", "sentence": "of before", "found": 9})
    assert [row["found"] for row in select(str(out), "losses", Selection(), ["found"]).rows] == [9]
    publish(str(out), "losses", Result("", asdict(Done(0)), {"losses/findings": parts}))
    for place in (str(out), f"file://{out}"):
        selected = select(place, "losses", Selection("orders"), ["found", "kind"])
        assert selected.rows == [{"found": 1, "kind": "rejected"}, {"found": 0, "kind": "rejected"}]


def test_each_table_has_a_view_of_columns_that_are_there() -> None:
    assert {view.place for view in VIEWS.values()} == set(TABLES)
    for name, view in VIEWS.items():
        names = [each.name for each in TABLES[view.place]]
        used = {*view.columns, *view.times, *(column for column, _ in view.order)}
        assert used <= set(names), name
    every = {each.name: each.unit for columns in TABLES.values() for each in columns}
    assert {name for name, unit in every.items() if unit == "ns since 1970"} <= TIMES
    assert {name for name, unit in every.items() if unit == "ns" and not name.endswith("_ns")} <= DURATIONS


@pytest.mark.parametrize(
    ("name", "selection", "columns", "said"),
    [
        ("loss", Selection(), (), "no table 'loss'; there are anomalies, "),
        ("traffic", Selection(), (), "no results of traffic in "),
        ("losses", Selection(), ("sizes",), "losses has no column 'sizes'; there are finding, kind, "),
        ("contingency", Selection("a"), (), "contingency has no addresses"),
        ("contingency", Selection(tenant="a"), (), "contingency has no tenants"),
        ("contingency", Selection(router="a"), (), "contingency has no routers"),
        ("contingency", Selection(since=at(0)), (), "contingency has no times"),
    ],
)
def test_a_selection_that_the_table_cannot_make_is_told(
    out: Path, name: str, selection: Selection, columns: tuple[str, ...], said: str
) -> None:
    write(out, "contingency")
    with pytest.raises(CommandError, match=f"^{said}"):
        select(str(out), name, selection, columns)


def test_a_file_that_is_no_table_is_told(out: Path) -> None:
    (out / "losses/findings/part-1.parquet").write_bytes(b"no Parquet")
    with pytest.raises(CommandError, match="cannot be read"):
        select(str(out), "losses", Selection())
