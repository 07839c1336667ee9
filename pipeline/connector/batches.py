"""Batch reads: one task receives until no more messages arrive. No commit follows a batch read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from amqpmesh.pipeline.connector.intake import Intake, wait_for
from amqpmesh.pipeline.connector.offers import carried
from amqpmesh.pipeline.connector.options import MIB, Acquire
from amqpmesh.pipeline.connector.rows import batch
from amqpmesh.pipeline.connector.stream import ROWS
from amqpmesh.router.amqp.standard.messaging import DistributionMode, Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqpmesh.pipeline.connector.options import Options
    from amqpmesh.pipeline.connector.rows import Shape

OCTETS = 16 * MIB
"""Octets of a record batch at most, except for a single larger message."""


class AmqpBatchReader(DataSourceReader):
    """The reader of a batch.

    With `acquire=accept` a row is accepted when Spark asks for the row after its record batch. If Spark fails later,
    the peer has deleted the message anyway.
    """

    def __init__(self, options: Options, shape: Shape) -> None:
        self._options = options
        self._shape = shape

    def partitions(self) -> list[InputPartition]:
        """Return one partition, since there is one link. Nothing is received while Spark plans."""
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - there is one
        """Receive until no message has come for `quiet` seconds, or a limit is reached; this runs on an executor."""
        options = self._options
        left: int | None = options["maxRows"]
        mode = DistributionMode.COPY if options["acquire"] is Acquire.BROWSE else DistributionMode.MOVE
        source = Source(address=options["address"], distribution_mode=mode)
        intake = Intake(options, task="batch", credit=options.credit, memory=2 * OCTETS, most=left, source=source)
        try:
            intake.start()
            deadline = time.monotonic() + options["longest"]
            first = 0
            while left != 0:
                enough = ROWS if left is None else min(ROWS, left)
                if not wait_for(lambda: [intake.state()], options["quiet"], deadline, enough=enough):
                    break
                taken = intake.take(enough, OCTETS)
                yield batch(carried(taken), self._shape, epoch="", first=first)
                intake.accept(taken)
                first += len(taken)
                left = None if left is None else left - len(taken)
                # If messages arrive faster than rows are made, some always wait.
                if time.monotonic() >= deadline:
                    break
        finally:
            intake.stop()
