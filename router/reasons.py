"""Why nothing can be sent on a link now: the question that everybody asks whose sender waits.

A router gives the credit that receivers gave it, so most reasons are found at the other end of an address.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqpmesh.router.addresses import Address
    from amqpmesh.router.links import IncomingLink, OutgoingLink


class Reason(StrEnum):
    """Each value is what a person reads."""

    DETACHED = "link is detached"
    DRAINING = "router drains"
    MEMORY = "memory used up"
    # Of senders, and of their addresses.
    NO_RECEIVER = "no receiver anywhere"
    NO_CREDIT = "receivers give no credit"
    SPENT = "receivers' credit is used up"
    WINDOWS = "receivers' session windows are closed"
    UNREAD = "receivers do not read"
    UNSETTLED = "receivers settle too little"
    SLOWEST = "a multicast waits for its slowest receiver"
    # Of senders alone.
    OTHERS = "receivers' credit is used by others"
    HELD = "window is full"
    # Of receivers.
    RECEIVER_NO_CREDIT = "receiver gave no credit"
    RECEIVER_TOOK_BACK = "receiver took its credit back"
    RECEIVER_SPENT = "receiver's credit is used up"
    RECEIVER_WINDOW = "session window is closed"
    RECEIVER_UNREAD = "peer does not read"
    RECEIVER_UNSETTLED = "unsettled limit reached"


#: What holds up its receivers holds up an address. Those that are nearest to taking something again come first.
_OF_RECEIVERS: Final = {
    Reason.RECEIVER_UNREAD: Reason.UNREAD,
    Reason.RECEIVER_WINDOW: Reason.WINDOWS,
    Reason.RECEIVER_UNSETTLED: Reason.UNSETTLED,
    Reason.RECEIVER_SPENT: Reason.SPENT,
    Reason.RECEIVER_TOOK_BACK: Reason.NO_CREDIT,
    Reason.RECEIVER_NO_CREDIT: Reason.NO_CREDIT,
}


def why_outgoing(outgoing: OutgoingLink) -> Reason | None:
    """Why nothing can be sent to a receiver; None: it can."""
    link, connection = outgoing.link, outgoing.connection
    if not link.is_attached:
        return Reason.DETACHED
    if not link.credit:
        if link.flow_state.lowered:
            return Reason.RECEIVER_TOOK_BACK
        had_some = link.delivery_count != link.initial_delivery_count
        return Reason.RECEIVER_SPENT if had_some else Reason.RECEIVER_NO_CREDIT
    if connection.unwritten > connection.limits.output_backlog:
        return Reason.RECEIVER_UNREAD
    if link.session.flow_state.remote_incoming_window <= 0:
        return Reason.RECEIVER_WINDOW
    unsettled = outgoing.unsettled + connection.held.get(outgoing.address, 0)
    return Reason.RECEIVER_UNSETTLED if unsettled >= outgoing.max_unsettled else None


def why_address(address: Address, *, draining: bool) -> Reason | None:
    """Why no sender of an address is given credit; None: receivers can take something.

    Args: draining: the router takes nothing new.
    """
    if address.suspended:
        return Reason.DRAINING if draining else Reason.MEMORY
    if not address.has_consumers:
        return Reason.NO_RECEIVER
    if address.pool.demand:
        return None
    reasons = {why_outgoing(each) for each in address.outgoing if not each.left_out}
    if address.is_multicast and None in reasons:
        return Reason.SLOWEST
    return next((together for alone, together in _OF_RECEIVERS.items() if alone in reasons), None)


def why_incoming(
    incoming: IncomingLink, of_address: Reason | None, *, draining: bool, suspended: bool
) -> Reason | None:
    """Why a sender may send nothing; None: it may.

    Args: of_address: `why_address` of its own. draining: the router takes nothing new. suspended: it gives anonymous
        senders no credit.
    """
    link = incoming.link
    if not link.is_attached:
        return Reason.DETACHED
    if link.credit:
        return Reason.HELD if link.session.flow_state.incoming_window <= 0 else None
    if incoming.address is not None:
        return of_address or Reason.OTHERS
    if suspended:
        return Reason.DRAINING if draining else Reason.MEMORY
    return Reason.HELD
