"""The order of Spark's calls that the stream reader relies on. It fails if a version of Spark changes this."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from tests.support.processes.router_thread import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES = 3


class Recorder(DataSourceStreamReader):
    """A stream of three rows, one a batch, which then is idle. It writes down what it is asked, and where the batches
    end that were in Spark's commit log by then."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def _note(self, call: str, *offsets: dict[str, int]) -> None:
        checkpoint = self._folder / "checkpoint"
        batches = [each.name for each in (checkpoint / "commits").glob("[0-9]*")]
        ends = [json.loads((checkpoint / "offsets" / each).read_text().splitlines()[-1]) for each in batches]
        with (self._folder / "calls").open("a") as calls:
            calls.write(json.dumps([call, [offset["n"] for offset in offsets], [end["n"] for end in ends]]) + "\n")

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's names
        return {"n": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        self._note("latestOffset", start)
        return {"n": min(start["n"] + 1, BATCHES)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        self._note("partitions", start, end)
        return [InputPartition(number) for number in range(start["n"], end["n"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (partition.value,)

    def commit(self, end: dict[str, int]) -> None:
        self._note("commit", end)


class Recorded(DataSource):
    @classmethod
    def name(cls) -> str:
        return "recorded"

    def schema(self) -> str:
        return "n int"

    def streamReader(self, schema: Any) -> Recorder:  # noqa: N802
        return Recorder(self.options["folder"])


@pytest.fixture
def calls(spark: SparkSession, tmp_path: Path) -> list[tuple[str, list[int], list[int]]]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        spark.dataSource.register(Recorded)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    rows = spark.readStream.format("recorded").option("folder", str(tmp_path)).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def noted() -> list[Any]:
        file = tmp_path / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    began = time.monotonic()
    while ["latestOffset", [BATCHES]] not in [each[:2] for each in noted()]:
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.05)
    query.stop()
    return noted()


def test_an_end_is_asked_about_only_when_its_batch_is_committed(calls: list[tuple[str, list[int], list[int]]]) -> None:
    asked = [(start, committed) for call, (start, *_), committed in calls if call == "latestOffset" and start > 0]
    assert {start for start, _ in asked} == {1, 2, 3}
    assert all(start in committed for start, committed in asked)


def test_commit_of_a_batch_comes_when_the_next_has_data_and_of_the_last_never(
    calls: list[tuple[str, list[int], list[int]]],
) -> None:
    order = [(call, offsets) for call, offsets, _ in calls if call != "latestOffset"]
    commits = [offsets[0] for call, offsets in order if call == "commit"]
    assert [each for each in commits if each > 0] == [1, 2]
    for end in (1, 2):
        assert order.index(("commit", [end])) < order.index(("partitions", [end, end + 1]))
    assert ("latestOffset", [BATCHES]) in [(call, offsets) for call, offsets, _ in calls]
