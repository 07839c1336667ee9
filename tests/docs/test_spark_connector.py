"""The page on the Spark connector: its tables equal the code's, and its programs run."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from amqpmesh import Accepted, Message
from amqpmesh.pipeline.connector import columns, options, values
from amqpmesh.router.config.address import AddressConfig
from tests.docs.pages import ROOT
from tests.support.processes.router_thread import PATIENCE, Served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (ROOT / "docs" / "analyse/spark-connector.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_options_and_columns_are_those_that_there_are() -> None:
    assert options.documented() in PAGE
    assert columns.documented() in PAGE


def test_every_format_of_a_body_has_a_line() -> None:
    section = PAGE.split("### Bodies")[1].split("## Columns")[0]
    assert re.findall(r"^\| `(\w+)`", section, flags=re.MULTILINE)[1:] == [each.value for each in options.BodyFormat]


def test_every_type_has_a_line() -> None:
    section = PAGE.split("### Types")[1]
    cells = re.findall(r"^\| (`[^|]*`) \|", section, flags=re.MULTILINE)
    assert sorted(name for cell in cells for name in re.findall(r"`(\w+)`", cell)) == sorted(values.TYPES)


def test_what_a_router_holds_unless_it_is_told_otherwise() -> None:
    assert f"is {AddressConfig(pattern='q').max_unsettled:,} deliveries" in PAGE


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.end()


@pytest.mark.slow
def test_the_programs_run(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    # Spark's own process keeps the directory that it began in, so that where the files go is said in full.
    places = {"amqp://127.0.0.1:5672": served.url, '"orders.': f'"{tmp_path}/orders.'}
    programs = list(PROGRAMS)
    for written, meant in places.items():
        programs = [each.replace(written, meant) for each in programs]
    orders, projected, invoices, sample = programs
    names: dict[str, Any] = {}
    exec(orders, names)
    try:
        outcomes = served.send("orders", Message(b'{"what": "tea", "pieces": 3}', subject="order"), b"no JSON")
        assert served.first(2, outcomes) == [Accepted()] * 2
        rows = spark.read.parquet(f"{tmp_path}/orders.parquet").collect()
        assert {(row.order and row.order.pieces, row.subject, row.error is None) for row in rows} == {
            (3, "order", True),
            (None, None, False),
        }
    finally:
        names["query"].stop()
    exec(projected, names)
    assert names["bodies"].columns == ["body", "error", "payload"]
    came = served.receive("invoices")
    exec(invoices, names)
    assert sorted((message.subject, bytes(message.body)) for message in came) == [
        ("cups", b'{"what":"cups","pieces":6}'),
        ("tea", b'{"what":"tea","pieces":3}'),
    ]
    exec(sample, names)
    served.send("samples", b"1", b"2")
    began = time.monotonic()
    assert names["sample"].count() == 2
    assert time.monotonic() - began < PATIENCE
