"""Deliveries of one link of a stream: taken for micro-batches, written as partitions, accepted when Spark committed."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from amqpmesh.pipeline.connector.collector import expecting
from amqpmesh.pipeline.connector.intake import Intake, State

if TYPE_CHECKING:
    from amqpmesh.pipeline.connector.options import Options
    from amqpmesh.router.client.links.batch_link import Batch, Packed


CARRIED: Final = pa.schema([("payload", pa.binary()), ("tag", pa.binary()), ("format", pa.int64())])
"""Received deliveries: the octets of each, its tag and its message-format."""


def carried(batch: Batch) -> pa.RecordBatch:
    """Return deliveries in the form for `rows.batch`. They share the batch's octets: it cannot be cut meanwhile."""
    formats = np.frombuffer(batch.formats, np.uintc).astype(np.int64)
    return pa.record_batch([_array(batch.payloads), _array(batch.tags), pa.array(formats)], schema=CARRIED)


def _array(packed: Packed) -> pa.BinaryArray:
    offsets = np.zeros(len(packed.sizes) + 1, np.int32)
    np.cumsum(np.frombuffer(packed.sizes, np.intc), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(packed.octets)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(packed.sizes), buffers)


@dataclass(slots=True)
class _Taken:
    """Deliveries that were taken, from `first` on, and are not accepted yet."""

    first: int
    batch: Batch

    @property
    def end(self) -> int:
        return self.first + len(self.batch)


class Offers:
    """The deliveries of one link, by their position: the number of deliveries that were taken from it before."""

    def __init__(self, options: Options, number: int = 0) -> None:
        """Args: number: of the link; each has an equal part of the credit and of the memory."""
        links = options["links"]
        credit = options.credit // links + (number < options.credit % links)
        memory = max(1, 2 * options["maxBytesPerBatch"] // links)
        self._credit = credit
        self._collector = ExitStack()
        self._intake = Intake(options, task="stream", credit=credit, memory=memory)
        self._taken: deque[_Taken] = deque()
        self._end = 0

    def start(self) -> None:
        """Connect and attach. Raises: AmqpMeshError: the peer refuses it, or there is no link in time."""
        self._collector.enter_context(expecting(self._credit))
        self._intake.start()

    def stop(self) -> None:
        """Release the deliveries that are not accepted, and close."""
        self._intake.stop()
        self._collector.close()

    def state(self) -> State:
        """Return the state now. Raises: AmqpMeshError: the link has ended for good, or is away for too long."""
        return self._intake.state()

    def take(self, count: int, octets: int) -> int:
        """Take up to `count` deliveries of up to `octets` in all, at least one if there is any. Raises: as `state`.

        Returns: how many were taken; their positions follow those of the last ones.
        """
        batch = self._intake.take(count, octets)
        if len(batch):
            self._taken.append(_Taken(self._end, batch))
            self._end += len(batch)
        return len(batch)

    def written(self, begin: int, end: int, each: int) -> list[bytes]:
        """Return the deliveries of some positions as Arrow streams, each of `each` rows, the last of fewer.

        Raises: RuntimeError: some of them were accepted, or never taken.
        """
        parts: list[pa.RecordBatch] = []
        for taken in self._taken:
            first, last = max(begin, taken.first), min(end, taken.end)
            if first < last:
                parts.append(carried(taken.batch).slice(first - taken.first, last - first))
        rows = sum(map(len, parts))
        if rows != end - begin:
            raise RuntimeError(f"{rows} deliveries are here of {begin} to {end}: others were accepted already")
        table = pa.concat_batches(parts) if len(parts) > 1 else parts[0]
        return [_stream(table.slice(at, each)) for at in range(0, rows, each)]

    def accept(self, end: int) -> None:
        """Accept all deliveries before a position. Raises: as `state`."""
        while self._taken and self._taken[0].first < end:
            taken = self._taken[0]
            if taken.end <= end:
                self._taken.popleft()
                part = taken.batch
            else:
                part = taken.batch.cut(end - taken.first)
                taken.first = end
            self._intake.accept(part)


def _stream(part: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, CARRIED) as stream:
        stream.write_batch(part)
    octets: bytes = sink.getvalue().to_pybytes()
    return octets
