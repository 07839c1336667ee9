"""Receiving by the ten thousand: deliveries come as octets, undecoded, and are decided many at a time.

For a program that keeps what it received until somebody else has it, such as a job on a cluster. A `Receiver` makes an
object for each delivery, reads its message, and wakes a task; here a delivery is an entry of two lists.
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
    """A link to receive from in bulk; used as `async with batch_receiver(connection, "orders", ...) as incoming`.

    Nothing here waits: what came can be taken, and deciding tells the peer when its connection is next written to.
    Leaving it releases all that is not decided, whoever has it.
    """

    __slots__ = ()

    def check(self) -> None:
        """Raises: LinkDetachedError, ConnectionClosedError: the link is over for good. CommandError: it was left."""
        self._link.check()

    @property
    def received(self) -> int:
        """Deliveries that came in all."""
        return self._link.received

    @property
    def waiting(self) -> int:
        """Deliveries that can be taken now."""
        return self._link.waiting

    @property
    def undecided(self) -> int:
        """Deliveries that are here and not decided."""
        return self._link.undecided

    @property
    def is_full(self) -> bool:
        """Whether no more will come before something is decided."""
        return self._link.is_full

    def take(self, count: int, octets: int) -> Batch:
        """Up to `count` deliveries and so many octets, but one if there is any, however large."""
        return self._link.take(count, octets)

    def accept(self, bulk: Batch) -> bool:
        """They were processed (§3.4.2). Returns: whether the peer is told: not, if their link is gone."""
        return self._link.decide(bulk, ACCEPTED_STATE)

    def release(self, bulk: Batch) -> bool:
        """They were not processed, and somebody else may (§3.4.4). Returns: as `accept`."""
        return self._link.decide(bulk, RELEASED_STATE)


def batch_receiver(
    connection: Connection,
    address: str,
    *,
    credit: int,
    memory: int,
    most: int | None = None,
    options: ReceiverOptions | None = None,
) -> BatchReceiver:
    """A link to receive from in bulk.

    Args: credit: deliveries that may be here or on their way, and not decided, 1 at least. memory: octets of those here
        that are enough; up to `WINDOW` frames may come beyond, and the rest of one delivery. most: deliveries that are
        wanted in all; None: no limit. options: of the attach.
    """
    if whole("credit", credit) == 0:
        raise CommandError("without credit nothing can come")
    home = connection._link_manager
    name = home.name_for(None)
    return BatchReceiver(
        BatchLink(home, name, address, options or ReceiverOptions(), credit=credit, memory=memory, most=most)
    )
