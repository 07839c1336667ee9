"""The connections that suspended termini had last, and what stays of them: a terminus is not to hold all of it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.dismantling import reduce_session, replace_session
from amqpmesh.router.kernel import CreditSink
from amqpmesh.router.memory.retained import size_of_peer
from amqpmesh.router.model.lost_connection import LostConnection
from amqpmesh.router.small_set import first, with_item, without_item

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.kernel import KernelSession
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.lasting_termini import SuspendedTerminus
    from amqpmesh.router.model.links import IncomingLink, OutgoingLink
    from amqpmesh.router.small_set import SmallSet

#: Octets that count in the router's memory for each connection, beside long names of its peer: about what stays of it
#: when it is lost. It may be the ledger of a session that has deliveries yet.
OF_CONNECTION: Final = 1_024

#: Termini that one step looks at.
_AT_ONCE: Final = 50

#: In place of the sinks of links that get no credit any more, and of which no delivery waits.
_NO_CREDIT: Final = CreditSink(0, None, False)


class FormerConnections:
    """The connections that termini had last, lost ones and others."""

    def __init__(self, count: Callable[[tuple[str, str], int], None]) -> None:
        """Args: count: counts the octets of what stays of connections, for the holder of one of its termini."""
        self._count = count
        self._termini: dict[ConnectionRecord, SmallSet[SuspendedTerminus]] = {}

    def add(self, terminus: SuspendedTerminus) -> None:
        """Note the connection of a terminus that is suspended."""
        record = terminus.link.connection
        known = self._termini.get(record, ())
        if not known:
            self._count(terminus.grant.holder, _octets_of(record))
        self._termini[record] = with_item(known, terminus)

    def remove(self, terminus: SuspendedTerminus) -> None:
        """Forget that of a terminus that is kept no longer, or that is about to get another one."""
        record = terminus.link.connection
        known = self._termini.pop(record)
        payer = first(known).grant.holder
        left = without_item(known, terminus)
        if left:
            self._termini[record] = left
        if not left or first(left).grant.holder != payer:
            self._count(payer, -_octets_of(record))
            if left:
                self._count(first(left).grant.holder, _octets_of(record))

    def has_any_of(self, record: ConnectionRecord) -> bool:
        """Tell whether a terminus is kept whose link was of a connection."""
        return record in self._termini

    def replace(self, record: ConnectionRecord, reduce: Callable[[SuspendedTerminus], None]) -> Steps[None]:
        """Put a small record in the place of that of a lost connection, in each link that is kept, and free the rest.

        Args: reduce: frees what a terminus does not need of its former link.
        """
        lost = LostConnection(record).as_record
        while record in self._termini:
            for terminus in list(islice(self._termini[record], _AT_ONCE)):
                self.remove(terminus)
                terminus.link.connection = lost
                self.add(terminus)
                reduce(terminus)
            yield


def _octets_of(record: ConnectionRecord) -> int:
    """Return the octets that count for a connection. Its peer's names are those of its `open`, and do not change."""
    return OF_CONNECTION + size_of_peer(record.peer)


def reduce_incoming(link: IncomingLink) -> None:
    """Free most of a link of a lost connection, whose deliveries are in another place."""
    if link.node is not None and not link.credit_sink.waiting:
        link.credit_sink = _NO_CREDIT
    replace_session(link.endpoint)


def reduce_outgoing(link: OutgoingLink, nowhere: KernelSession) -> None:
    """Free most of a link of a lost connection, but for its deliveries. Args: nowhere: as of `reduce_session`."""
    link.credit_source = link.endpoint.flow_state.source = None
    reduce_session(link.endpoint, nowhere)
