"""A reader of a stream that is called as Spark calls it, without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.datasource import ReadMaxRows

from amqpmesh.pipeline.connector.options import Options, Use
from amqpmesh.pipeline.connector.rows import Shape
from amqpmesh.pipeline.connector.stream import AmqpStreamReader
from tests.support.processes.router_thread import PATIENCE

MANY = ReadMaxRows(1000)


class StreamQuery:
    """A reader, and the end of the last micro-batch that is in the commit log."""

    def __init__(self, url: str, names: tuple[str, ...], **options: str) -> None:
        self.reader = AmqpStreamReader(Options({"url": url, "address": "q", **options}, Use.STREAM), Shape(names))
        self.start: dict[str, Any] = self.reader.initialOffset()

    def here(self, count: int) -> dict[str, Any]:
        """Wait until so many have come, all told. Returns: the report."""
        report = waited(lambda: came if (came := self.reader.reportLatestOffset()) and came["seq"] >= count else None)
        assert report["seq"] == count
        return report


def waited(look: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    """Look until there is something, and return it."""
    began = time.monotonic()
    while (found := look()) is None:
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.01)
    return found
