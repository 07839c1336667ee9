"""Stream reads: deliveries stay unsettled here until Spark has committed their micro-batch.

Spark starts one process for each query, which lives as long as the query, and asks its reader for offsets, partitions
and commits. That process holds the connection; with several links, each has a process that it starts. An offset is a
number of deliveries within an *epoch*, one life of that process.
A range of another epoch is empty here: its deliveries were never accepted, and the peer sends them again.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from amqpmesh.pipeline.connector.collector import spare_worker
from amqpmesh.pipeline.connector.intake import wait_for
from amqpmesh.pipeline.connector.rows import Shape, batch
from amqpmesh.pipeline.connector.stream_links import Ask, Links

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqpmesh.pipeline.connector.options import Options

ROWS = 10_000
"""Rows of a record batch, and of a partition at least."""


class AmqpPartition(InputPartition):
    """Deliveries of a micro-batch, as an Arrow stream: every read of it, on any executor, gives the same rows."""

    def __init__(self, epoch: str, first: int, octets: bytes) -> None:
        super().__init__(None)
        self.epoch = epoch
        self.first = first
        self.octets = octets

    def __repr__(self) -> str:
        return f"<AmqpPartition {self.epoch} from {self.first}, {len(self.octets)} octets>"


@dataclass(slots=True)
class Told:
    """Deliveries of one link that were announced to Spark, and are not accepted yet.

    `first` is the position of the first one in the stream, and `begin` that in its link.
    """

    first: int
    link: int
    begin: int
    count: int

    @property
    def end(self) -> int:
        """The position in the stream behind these deliveries, where the next ones begin."""
        return self.first + self.count


class AmqpStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one stream. A new one can be pickled: it connects when it is first asked for an offset."""

    def __init__(self, options: Options, shape: Shape) -> None:
        self._options = options
        self._shape = shape
        self._epoch = ""
        self._links: Links | None = None
        self._offered: deque[Told] = deque()
        #: Deliveries of each link announced to Spark.
        self._ends = [0] * options["links"]
        #: Deliveries of this epoch announced to Spark.
        self._end = 0
        #: With `availableNow`: the deadline, by `time.monotonic`.
        self._deadline: float | None = None
        #: The deadline has passed, and the deliveries that waited then were announced: no more are taken.
        self._is_over = False

    # ------------------------------------------------------------------------------------------------------- for Spark

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as those below
        """Return the offset for a query without a checkpoint: it starts with new messages."""
        return self._offset(0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch: the option `maxRowsPerBatch`."""
        return ReadMaxRows(self._options["maxRowsPerBatch"])

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the query when nothing has arrived for `quiet` seconds, or after `longest`.

        A peer cannot say what is available: a router does not know what senders have, and a broker sends only up to the
        credit. So waiting is the only way to find out.
        """
        self._started()
        self._deadline = time.monotonic() + self._options["longest"]

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch, after `start`, which is the end of the last one.

        Spark calls this only when the last micro-batch is in its commit log, so this accepts its deliveries, as
        `commit` does: for the last batch of an idle query Spark never calls `commit`.
        """
        links = self._started()
        begin = self._position(start)
        self._accept(begin)
        if begin < self._end:
            return self._offset(self._end)  # announced before, and not yet made a batch
        count = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options["maxRowsPerBatch"]
        if self._deadline is not None and not self._wait(links, count):
            return start
        for link, taken in enumerate(links.take(count, self._options["maxBytesPerBatch"])):
            if taken:
                self._offered.append(Told(self._end, link, self._ends[link], taken))
                self._ends[link] += taken
                self._end += taken
        return self._offset(self._end) if begin < self._end else start

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the position of the received deliveries, and their lag, for the query's progress."""
        if self._links is None:
            return None
        states = self._links.states()
        waiting = sum(each.waiting for each in states)
        return {
            **self._offset(self._end + waiting),
            "waiting": waiting,
            "unsettled": sum(each.unsettled for each in states),
            "oldest_ms": round(max(each.oldest for each in states) * 1000),
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[AmqpPartition]:
        """Return the deliveries from `start` to `end`; none, if those belong to another epoch."""
        begin, stop = self._position(start), self._position(end)
        each = max(ROWS, -(-(stop - begin) // self._options["partitions"]))
        asked: list[Ask] = []
        firsts: list[int] = []
        rows = 0
        for told in self._offered:
            first, last = max(begin, told.first), min(stop, told.end)
            if first < last:
                at = told.begin - told.first
                asked.append(Ask(told.link, "written", (first + at, last + at, each)))
                firsts.append(first)
                rows += last - first
        if rows != max(0, stop - begin):
            raise RuntimeError(f"{rows} deliveries are here of {begin} to {stop}: others were accepted already")
        return [
            AmqpPartition(self._epoch, first + number * each, octets)
            for first, streams in zip(firsts, self._started().all(asked) if asked else [], strict=True)
            for number, octets in enumerate(streams)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition; this runs on an executor."""
        assert isinstance(partition, AmqpPartition)
        spare_worker()
        with pa.ipc.open_stream(partition.octets) as stream:
            first = partition.first
            for whole in stream:
                for at in range(0, len(whole), ROWS):
                    part = whole.slice(at, ROWS)
                    yield batch(part, self._shape, epoch=partition.epoch, first=first)
                    first += len(part)

    def commit(self, end: dict[str, Any]) -> None:
        """Accept the deliveries of a micro-batch that is in Spark's commit log."""
        self._accept(self._position(end))

    def stop(self) -> None:
        """Release deliveries that are not accepted: the query has ended. It may be called again meanwhile."""
        if self._links is not None:
            self._links.stop()
            self._links = None

    # ---------------------------------------------------------------------------------------------------------- inside

    def _started(self) -> Links:
        if self._links is None:
            links = Links(self._options)
            self._end_on_sigterm()
            self._links = links
            links.start()
        return self._links

    def _end_on_sigterm(self) -> None:
        """Release deliveries on SIGTERM, with which Spark ends the process of a stopped query.

        The end of the process' pipe stops the reader, too. The second of the two stops waits for the first.
        """

        def end(*_: object) -> NoReturn:
            self.stop()
            sys.exit(0)

        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, end)

    def _offset(self, number: int) -> dict[str, Any]:
        self._epoch = self._epoch or uuid.uuid4().hex
        return {"epoch": self._epoch, "seq": number}

    def _position(self, offset: dict[str, Any]) -> int:
        """Return the number of deliveries of this epoch before an offset."""
        return int(offset["seq"]) if offset.get("epoch") == self._epoch else 0

    def _accept(self, end: int) -> None:
        """Accept all deliveries before `end`, which are in Spark's commit log."""
        ends: dict[int, int] = {}
        while self._offered and self._offered[0].first < end:
            told = self._offered[0]
            number = min(told.count, end - told.first)
            ends[told.link] = told.begin + number
            told.first, told.begin, told.count = told.first + number, told.begin + number, told.count - number
            if not told.count:
                self._offered.popleft()
        if ends:
            self._started().all([Ask(link, "accept", (until,)) for link, until in ends.items()])

    def _wait(self, links: Links, count: int) -> bool:
        """Wait for deliveries that arrive in time. Returns: True if there are some to take, or will be soon."""
        assert self._deadline is not None
        if self._is_over:
            return False
        waiting = wait_for(links.states, self._options["quiet"], self._deadline, enough=count)
        # If messages arrive faster than batches are processed, some always wait.
        self._is_over = time.monotonic() >= self._deadline
        return waiting > 0
