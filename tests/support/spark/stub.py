"""In place of a session: it converts segments in this process, so that a test of something else needs no Java."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

Convert = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Session:
    """As much of a session as `ingest` needs."""

    def __init__(self) -> None:
        self.sparkContext = SimpleNamespace(defaultParallelism=1)
        self.stopped = 0

    def createDataFrame(self, rows: Sequence[tuple[Any, ...]], _: str) -> _Frame:  # noqa: N802
        return _Frame([row[1] for row in rows])

    def stop(self) -> None:
        self.stopped += 1


class _Frame:
    def __init__(self, tasks: list[str]) -> None:
        self._tasks = tasks
        self._rows: list[dict[str, Any]] = []

    def repartitionByRange(self, *_: Any) -> _Frame:  # noqa: N802
        return self

    def mapInArrow(self, convert: Convert, _: str) -> _Frame:  # noqa: N802
        given = iter([pa.RecordBatch.from_pydict({"task": self._tasks})])
        self._rows = [row for batch in convert(given) for row in batch.to_pylist()]
        return self

    def collect(self) -> list[dict[str, Any]]:
        return self._rows
