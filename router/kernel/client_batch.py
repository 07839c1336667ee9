"""Batches of deliveries to a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel.encoded_values import uint32
from amqpmesh.router.kernel.frame_fields import TransferFrame
from amqpmesh.router.kernel.frame_reading import _SMALLEST, _TRANSFER_CODE, read_transfer
from amqpmesh.router.kernel.transfer_accounting import receive_transfer
from amqpmesh.router.kernel.violations import Violation

if TYPE_CHECKING:
    from amqpmesh.router.kernel.connection_endpoint import KernelConnection
    from amqpmesh.router.kernel.ledger import Delivery


class ReceivedBatch:
    """Deliveries of one frame each, on one link, that are not reported yet."""

    __slots__ = ("deliveries", "frame", "payloads")

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.payloads: list[bytes] = []
        #: The frame that is being read; reused for each.
        self.frame = TransferFrame(handle=0)


def receive_batch(wire: KernelConnection, batch: ReceivedBatch, data: bytes, at: int, end: int) -> int:
    """Take deliveries of one frame each, on links of a client that have the fast path.

    Args: data: as for `relay_frames`.
    Returns: the begin of the first frame that was not taken: it is incomplete, the engine must read it, or it is for
        another link than those before.
    """
    frame = batch.frame
    deliveries = batch.deliveries
    payloads = batch.payloads
    last = deliveries[-1].link if deliveries else None
    while end - at >= _SMALLEST:
        size = uint32(data, at)
        after = at + size
        if size < _SMALLEST or after > end or size > wire.max_frame_size or data[at + 4] != 2 or data[at + 5]:
            break
        session = wire.sessions.get(data[at + 6] << 8 | data[at + 7])
        if session is None or data[at + 10] != _TRANSFER_CODE:
            break
        payload_at = read_transfer(frame, data, at + 8, after)
        if payload_at < 0 or frame.more or frame.aborted or frame.resume:
            break
        link = session.links.get(frame.handle)
        if link is None or link.sender or link.current is not None or (last is not None and link is not last):
            break
        try:
            delivery = receive_transfer(link, frame, after - payload_at)
        except Violation:
            break  # the engine reads the frame again, finds the same error, and answers it
        last = link
        deliveries.append(delivery)
        payloads.append(data[payload_at:after])
        at = after
    return at
