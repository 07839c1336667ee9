"""Receiving by the ten thousand: deliveries come as octets, undecoded, and are decided many at a time.

For a program that keeps what it received until somebody else has it, such as a job on a cluster. A `Receiver` makes an
object for each delivery, reads its message, and wakes a task; here a delivery is an entry of two lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.client.base import Attached
from amqpmesh.router.client.links.arguments import whole
from amqpmesh.router.client.links.attach_options import ReceiverTerms
from amqpmesh.router.client.links.batch_link import Bulk, BulkEnd
from amqpmesh.router.kernel import ACCEPTED_STATE, RELEASED_STATE

if TYPE_CHECKING:
    from amqpmesh.router.client.connect import Connection


class BulkReceiver(Attached[BulkEnd]):
    """A link to receive from in bulk; used as `async with bulk_receiver(connection, "orders", ...) as incoming`.

    Nothing here waits: what came can be taken, and deciding tells the peer when its connection is next written to.
    Leaving it releases all that is not decided, whoever has it.
    """

    __slots__ = ()

    def check(self) -> None:
        """Raises: LinkDetachedError, ConnectionClosedError: the link is over for good. CommandError: it was left."""
        self._end.check()

    @property
    def received(self) -> int:
        """Deliveries that came in all."""
        return self._end.received

    @property
    def waiting(self) -> int:
        """Deliveries that can be taken now."""
        return self._end.waiting

    @property
    def undecided(self) -> int:
        """Deliveries that are here and not decided."""
        return self._end.undecided

    @property
    def is_full(self) -> bool:
        """Whether no more will come before something is decided."""
        return self._end.is_full

    def take(self, count: int, octets: int) -> Bulk:
        """Up to `count` deliveries and so many octets, but one if there is any, however large."""
        return self._end.take(count, octets)

    def accept(self, bulk: Bulk) -> bool:
        """They were processed (§3.4.2). Returns: whether the peer is told: not, if their link is gone."""
        return self._end.decide(bulk, ACCEPTED_STATE)

    def release(self, bulk: Bulk) -> bool:
        """They were not processed, and somebody else may (§3.4.4). Returns: as `accept`."""
        return self._end.decide(bulk, RELEASED_STATE)


def bulk_receiver(
    connection: Connection,
    address: str,
    *,
    credit: int,
    memory: int,
    most: int | None = None,
    terms: ReceiverTerms | None = None,
) -> BulkReceiver:
    """A link to receive from in bulk.

    Args: credit: deliveries that may be here or on their way, and not decided, 1 at least. memory: octets of those here
        that are enough; up to `WINDOW` frames may come beyond, and the rest of one delivery. most: deliveries that are
        wanted in all; None: no limit. terms: of the attach.
    """
    if whole("credit", credit) == 0:
        raise CommandError("without credit nothing can come")
    home = connection._home
    name = home.name_for(None)
    return BulkReceiver(BulkEnd(home, name, address, terms or ReceiverTerms(), credit=credit, memory=memory, most=most))
