"""Python's collector of garbage: a reader's deliveries, and a Spark worker's modules, are no garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import TaskContext

from amqpmesh.pipeline.connector import collector
from amqpmesh.pipeline.connector.collector import MOST, expecting
from amqpmesh.pipeline.connector.offers import CARRIED
from amqpmesh.pipeline.connector.options import Options, Use
from amqpmesh.pipeline.connector.rows import Shape
from amqpmesh.pipeline.connector.stream import AmqpPartition, AmqpStreamReader
from tests.support.processes.router_thread import Served


@pytest.fixture
def reader(served: Served) -> Iterator[AmqpStreamReader]:
    reader = AmqpStreamReader(Options({"url": served.url, "address": "q", "credit": "5000"}, Use.STREAM), Shape(()))
    yield reader
    reader.stop()


@pytest.fixture
def threshold() -> Iterator[int]:
    """Return a threshold that the collector has during the test."""
    before = gc.get_threshold()
    gc.set_threshold(700, *before[1:])
    yield 700
    gc.set_threshold(*before)


def test_a_reader_has_all_its_deliveries_without_a_collection(reader: AmqpStreamReader, threshold: int) -> None:
    reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert gc.get_threshold()[0] == threshold + 5000
    reader.stop()
    reader.stop()
    assert gc.get_threshold()[0] == threshold


def test_garbage_is_collected_at_last_however_many_objects_are_expected(threshold: int) -> None:
    with expecting(2**40):
        assert gc.get_threshold()[0] == threshold + MOST


def test_a_collector_that_is_switched_off_stays_off(threshold: int) -> None:
    gc.set_threshold(0)
    with expecting(1000):
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold()[0] == 0


def test_a_threshold_that_the_program_sets_meanwhile_stays(threshold: int) -> None:
    with expecting(1000):
        gc.set_threshold(threshold)
    assert gc.get_threshold()[0] == threshold


@pytest.mark.parametrize("is_task", [False, True])
def test_the_objects_of_a_spark_worker_are_exempt_once_and_those_of_others_never(
    is_task: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    # Not Python's own: a router in this process would use it, too.
    own = SimpleNamespace(
        collect=lambda: done.append("collect"), freeze=lambda: done.append("freeze"), get_freeze_count=lambda: len(done)
    )
    monkeypatch.setattr(collector, "gc", own)
    monkeypatch.setattr(TaskContext, "get", lambda: object() if is_task else None)
    reader = AmqpStreamReader(Options({"url": "amqp://127.0.0.1:1", "address": "q"}, Use.STREAM), Shape(()))
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, CARRIED).close()
    for _ in range(2):
        assert list(reader.read(AmqpPartition("e", 0, sink.getvalue().to_pybytes()))) == []
    assert done == (["collect", "freeze"] if is_task else [])
