"""`amqpmesh pipeline watch` on Spark: segments of directories as they close, and of the mesh as they are published.

Spark keeps which segments were read, in the checkpoint, and its executors decode them. The driver adds each batch to
`Live`. A segment of the mesh is accepted once Spark has noted its batch, so one may come twice; `Live` recognises it.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import reduce
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from amqpmesh.pipeline.files import ordinary
from amqpmesh.pipeline.live import Decoded, Live, decoded
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.telemetry.segments import SUFFIX

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PUBLISHED: Final = "$telemetry"
"""The address at which routers publish what they record."""

TRIGGER: Final = 5
"""Seconds between two batches."""

OCTETS: Final = 64 << 20
"""Octets of a directory's segments in a batch, about: those that are there at first are read in several."""

OPTIONS: Final[Mapping[str, str]] = {
    "maxRowsPerBatch": "1000",
    "credit": "2000",
    "connectTimeout": "3600",
    "reconnectTimeout": "86400",
}
"""Options of the connector, unless others are given: a router that is away for a day is waited for."""

_FILE: Final = "path string, modificationTime timestamp, length long, content binary"
_DECODED: Final = pa.schema([("source", pa.string()), ("told", pa.string()), ("hops", pa.binary())])
_URL: Final = re.compile(r"amqps?://")

Told = Callable[[Sequence[tuple[str, str, str]]], None]
"""Is told what is wrong with segments: source, problem, and a sentence."""


def is_mesh(source: str) -> bool:
    """Return True if a source is a router, and no directory."""
    return _URL.match(source) is not None


class Watch:
    """A query over all sources. Use it as a context manager: it ends the query between two batches."""

    def __init__(
        self,
        spark: SparkSession,
        sources: Sequence[str],
        live: Live,
        checkpoint: Path,
        *,
        since: datetime,
        options: Mapping[str, str] | None = None,
        told: Told | None = None,
        noted: Callable[[Live, int], None] | None = None,
        trigger: Mapping[str, Any] | None = None,
    ) -> None:
        """Args: sources: directories, and URLs of routers. since: older files are not read. options: of the connector,
        for URLs. noted: is called behind each batch, with the time in ns since 1970. trigger: of
        `DataStreamWriter.trigger`.
        """
        self._live, self._told, self._noted = live, told, noted
        self._busy, self._ending = threading.Lock(), threading.Event()
        self._failure: BaseException | None = None
        streams = [
            _mesh(spark, each, options or {}) if is_mesh(each) else _directory(spark, each, since) for each in sources
        ]
        rows = reduce(lambda some, more: some.union(more), streams).mapInArrow(
            _decode, "source string, told string, hops binary"
        )
        writer = rows.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint / "spark"))
        self.query: StreamingQuery = writer.trigger(**(trigger or {"processingTime": f"{TRIGGER} seconds"})).start()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        with self._busy:  # a batch that is being taken is noted
            pass
        # Without the lock: Spark waits for its thread, which may be about to call `_take`.
        self.query.stop()

    def check(self) -> bool:
        """Return False if the query has ended. Raises: what has ended it."""
        if self.query.isActive:
            return True
        if self._failure is not None:
            raise self._failure
        if (error := self.query.exception()) is not None:
            raise error
        return False

    def _take(self, batch: DataFrame, number: int) -> None:
        with self._busy:
            if self._ending.is_set():
                raise RuntimeError("the watch ends: this batch comes again in the next one")
            if number <= self._live.batch:
                return
            try:
                rows = [Decoded(row["source"], row["told"], bytes(row["hops"])) for row in batch.collect()]
                now = time.time_ns()
                wrong = self._live.take(number, rows, now)
                if self._noted is not None:
                    self._noted(self._live, now)
            except (OSError, CommandError) as error:
                self._failure = error
                raise
        if self._told is not None and wrong:
            self._told(wrong)


def _directory(spark: SparkSession, source: str, since: datetime) -> DataFrame:
    """Return a stream of the closed segments in a directory, and below."""
    reader = spark.readStream.format("binaryFile").schema(_FILE)
    for name, value in (
        ("pathGlobFilter", f"*{SUFFIX}"),
        ("recursiveFileLookup", "true"),
        ("maxBytesPerTrigger", str(OCTETS)),
        ("ignoreMissingFiles", "true"),  # routers remove old ones
    ):
        reader = reader.option(name, value)
    found = reader.load(str(ordinary(source)))
    return found.where(found["modificationTime"] >= since).selectExpr("path as source", "content as octets")


def _mesh(spark: SparkSession, url: str, options: Mapping[str, str]) -> DataFrame:
    """Return a stream of the segments that the routers of a mesh publish."""
    given = {"address": PUBLISHED, **OPTIONS, **options, "url": url}
    found = spark.readStream.format("amqp").options(**given).schema("body binary").load()
    return found.select(F.lit(given["address"]).alias("source"), found["body"].alias("octets"))


# -------------------------------------------------------------------------------------------------------- on executors


def _decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for source, octets in zip(batch.column("source").to_pylist(), batch.column("octets").to_pylist(), strict=True):
            found = decoded(source, octets or b"", PurePosixPath(source).name)
            row = {"source": found.source, "told": found.told, "hops": found.hops}
            yield pa.RecordBatch.from_pylist([row], _DECODED)
