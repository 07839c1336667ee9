"""Receiving in batches: many undecoded deliveries at a time, decided many at a time.

For programs that hold deliveries until another system has them, such as a job on a cluster. A `Receiver` makes an
object for each delivery, decodes its message and wakes a task. Here a delivery is one entry in each of two lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.client.links.arguments import whole
from amqpmesh.router.client.links.attach_options import ReceiverOptions
from amqpmesh.router.client.links.batch_link import Batch, BatchLink
from amqpmesh.router.client.public_link import PublicLink
from amqpmesh.router.kernel import ACCEPTED_STATE, RELEASED_STATE

if TYPE_CHECKING:
    from amqpmesh.router.client.connect import Connection


class BatchReceiver(PublicLink[BatchLink]):
    """A link to receive from in batches: `async with batch_receiver(connection, "orders", ...) as incoming`.

    No method waits: `take` returns the deliveries that are there, and a decision is sent when the connection is next
    written to. Leaving the receiver releases all deliveries that are not decided.
    """

    __slots__ = ()

    def check(self) -> None:
        """Check that the link is usable.

        Raises: LinkDetachedError, ConnectionClosedError: the link is over for good. CommandError: the program has left
            it.
        """
        self._link.check()

    @property
    def received(self) -> int:
        """The number of all deliveries that have arrived so far."""
        return self._link.received

    @property
    def waiting(self) -> int:
        """The number of deliveries that can be taken now."""
        return self._link.waiting

    @property
    def undecided(self) -> int:
        """The number of deliveries that have arrived and are not decided."""
        return self._link.undecided

    @property
    def is_full(self) -> bool:
        """True if no more deliveries arrive until some are decided."""
        return self._link.is_full

    def take(self, count: int, octets: int) -> Batch:
        """Take up to `count` deliveries of up to `octets` in all; at least one if there is any, whatever its size."""
        return self._link.take(count, octets)

    def accept(self, batch: Batch) -> bool:
        """Accept the deliveries (§3.4.2). Returns: whether the peer is told; False if their link is gone."""
        return self._link.decide(batch, ACCEPTED_STATE)

    def release(self, batch: Batch) -> bool:
        """Release the deliveries, for another receiver to process (§3.4.4). Returns: as `accept`."""
        return self._link.decide(batch, RELEASED_STATE)


def batch_receiver(
    connection: Connection,
    address: str,
    *,
    credit: int,
    memory: int,
    most: int | None = None,
    options: ReceiverOptions | None = None,
) -> BatchReceiver:
    """Make a link to receive from in batches.

    Args: credit: the most undecided deliveries, here or on their way; at least 1. memory: octets of deliveries here at
        which the peer is stopped; as many again, but `LEAST_WINDOW` frames at least, and the rest of one delivery may
        arrive beyond it. most: all deliveries that are wanted; None: no limit. options: of the attach.
    """
    if whole("credit", credit) == 0:
        raise CommandError("without credit nothing can come")
    manager = connection._link_manager
    name = manager.name_for(None)
    return BatchReceiver(
        BatchLink(manager, name, address, options or ReceiverOptions(), credit=credit, memory=memory, most=most)
    )
