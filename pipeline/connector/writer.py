"""Writing: each task sends its rows, and ends when all are accepted; then Spark commits."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from amqpmesh.pipeline.connector.messages import Writing, payload
from amqpmesh.pipeline.connector.sending import Letter, RowError, Tally, send
from amqpmesh.pipeline.connector.values import MisfitError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from amqpmesh.pipeline.connector.options import Options

LETTERS = 10_000
"""Rows encoded at a time."""

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Spark's name of the batch among the properties of a task."""


@dataclass
class Sent(WriterCommitMessage):
    """The result of a task."""

    tally: Tally


class Tasks:
    """The work of a task, the same for both writers."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._writing = Writing(options["body"], options["deliveryKey"])
        #: Stands for a query's id if there is none: the same for all attempts of a task.
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send the rows of a partition; this runs on an executor. Raises: RowError, AmqpMeshError: as `send`."""
        return Sent(send(self._options, self._letters(iterator)))

    def _letters(self, batches: Iterator[pa.RecordBatch]) -> Iterator[list[Letter]]:
        context = TaskContext.get()
        query, batch, partition = self._run, "0", 0
        if context is not None:
            query = context.getLocalProperty(QUERY_ID) or query
            batch = context.getLocalProperty(BATCH_ID) or batch
            partition = context.partitionId()
        numbers = count()
        for whole in batches:
            for at in range(0, len(whole), LETTERS):
                letters = []
                for row in whole.slice(at, LETTERS).to_pylist():
                    key = f"{query}/{batch}/{partition}/{next(numbers)}"
                    try:
                        letters.append(Letter(key, payload(row, self._writing, key)))
                    except MisfitError as error:
                        raise RowError(f"row {key}: {error}") from None
                yield letters


class AmqpStreamWriter(Tasks, DataSourceStreamArrowWriter):
    """The writer of a stream. A batch is committed when all its tasks have succeeded. Commit and abort do nothing more:
    rows of an aborted batch that were sent cannot be recalled.
    """


class AmqpBatchWriter(Tasks, DataSourceArrowWriter):
    """The writer of a batch."""
