"""`amqpmesh pipeline show`: the table, JSON, and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqpmesh.pipeline.events import arrow_schema
from amqpmesh.pipeline.losses import TABLES
from tests.support.processes.router_thread import Command

HOUR = 1_777_593_600 * 10**9  # 2026-05-01 in UTC, in nanoseconds


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "losses/findings").mkdir(parents=True)
    common = {"finding": 1, "kind": "rejected", "sentence": "it was rejected", "of": 9, "left_out": 0}
    rows = [
        {**common, "tenant": tenant, "address": address, "found": found, "first_time": HOUR, "last_time": HOUR}
        for tenant, address, found in (("", "orders", 1), ("", "orders/eu", 7), ("shop", "tea", 2))
    ]
    table = pa.Table.from_pylist(rows, arrow_schema(TABLES["findings"]))
    pq.write_table(table, tmp_path / "losses/findings/part-0.parquet")
    return tmp_path


def test_the_command_prints_a_table(out: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(out)
    ended = command("pipeline", "show", "losses", "--address", "orders/#", "--limit", "1")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        "KIND      FOUND  OF  LAST_TIME                 SENTENCE",
        "rejected      7   9  2026-05-01T00:00:00.000Z  it was rejected",
        "",
        "the first 1 of 2 rows; --limit shows more",
    ]


def test_the_command_prints_json(out: Path, command: Command) -> None:
    ended = command(
        "pipeline", "show", "losses", "--out", str(out), "--tenant", "shop", "--json", "--columns", "found,of"
    )
    assert json.loads(ended.out) == {"table": "losses", "found": 1, "rows": [{"found": 2, "of": 9}]}
    ended = command("pipeline", "show", "losses", "--out", str(out), "--since", "-1h", "--json")
    assert json.loads(ended.out)["rows"] == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["loss"], "no table 'loss'"),
        (["losses", "--limit", "0"], "--limit"),
        (["losses", "--since", "-1h", "--until", "-2h"], "--since: must be before --until"),
        (["traffic"], "no results of traffic in "),
    ],
)
def test_the_command_ends_with_2(more: list[str], said: str, out: Path, command: Command) -> None:
    ended = command("pipeline", "show", *more, "--out", str(out))
    assert (ended.status, ended.out) == (2, "")
    assert said in ended.lines[-1]
