"""Incoming dispositions: noted on deliveries, or passed on (§2.7.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.fast_deliveries import FastDelivery, _expanded, _is_ended
from amqpmesh.router.kernel.fast_settlement import _pass_outcome_up, _pass_settlement_down

if TYPE_CHECKING:
    from amqpmesh.router.kernel.connection_endpoint import KernelConnection
    from amqpmesh.router.kernel.frame_fields import DispositionFrame
    from amqpmesh.router.kernel.ledger import Delivery
    from amqpmesh.router.kernel.router_state import KernelRouter
    from amqpmesh.router.kernel.session_endpoint import KernelSession

#: Deliveries of one disposition that are decided at once, and that are passed on: others come first, if there are more.
_PART: Final = 500
_PASSED: Final = 2000
#: Slots that are looked at in the time that a delivery takes.
_SLOTS_AT_ONCE: Final = 64


class PendingDisposition:
    """A disposition of which something has to be decided or is left for later; see `apply_more`.

    Attributes: `deliveries`: those to be decided now.
    """

    __slots__ = ("at", "deliveries", "receiver", "rest", "session", "settled", "state")

    def __init__(
        self,
        session: KernelSession,
        receiver: bool,
        state: bytes | None,
        settled: bool,
        deliveries: list[Delivery],
        rest: list[Delivery | FastDelivery],
    ) -> None:
        """Args: receiver: the peer is it. rest: what else there was when it was said; the first `at` are done with."""
        self.session = session
        self.receiver = receiver
        self.state = state
        self.settled = settled
        self.deliveries = deliveries
        self.rest = rest
        self.at = 0


def receive_disposition(session: KernelSession, frame: DispositionFrame) -> PendingDisposition | None:
    """Note on deliveries what an incoming disposition says of them, and pass it on where they are fast ones (§2.7.6).

    Returns: what is to be decided, of the first of them, or what is left for later; None: nothing.
    """
    ledger = session.outgoing if frame.receiver else session.incoming
    pending = PendingDisposition(
        session, frame.receiver, frame.state, frame.settled, [], ledger.select(frame.first, frame.last)
    )
    session.wire.work -= ledger.scanned // _SLOTS_AT_ONCE
    return pending if apply_more(pending) else None


def apply_more(pending: PendingDisposition) -> bool:
    """Note, or pass on, more of what was said. Returns: whether something of it is to be decided, `deliveries`, or is
    left for later.

    Others may have spoken of the same since: what is not live any more is left out.
    """
    session, receiver = pending.session, pending.receiver
    ledger = session.outgoing if receiver else session.incoming
    rest = pending.rest
    count = len(rest)
    at = pending.at
    last = min(count, at + _PASSED)
    deliveries: list[Delivery] = []
    while at < last and len(deliveries) < _PART:
        entry = rest[at]
        at += 1
        if isinstance(entry, FastDelivery):
            delivery_id = entry.outgoing_id if receiver else entry.incoming_id
        else:
            delivery_id = entry.delivery_id
        live = ledger.find(delivery_id) if delivery_id >= 0 else None
        if live is not None:
            delivery = _apply(session, live, receiver, pending.state, pending.settled)
            if delivery is not None:
                deliveries.append(delivery)
    session.wire.work -= at - pending.at
    pending.at = at
    pending.deliveries = deliveries
    return at < count or len(deliveries) > 0


def _apply(
    session: KernelSession, entry: Delivery | FastDelivery, receiver: bool, state: bytes | None, settled: bool
) -> Delivery | None:
    """Pass on what a disposition says of a ledger's entry, or note it on the delivery that is returned."""
    if _is_ended(entry, receiver):
        return None
    if isinstance(entry, FastDelivery):
        fast: FastDelivery = entry
        router = session.wire.router
        assert router is not None
        if receiver:
            # To say nothing changes nothing.
            if (state is None and not settled) or _pass_outcome_up(router, fast, state, settled):
                return None
        elif settled and fast.outcome is not None:
            _pass_settlement_down(router, fast, state)
            return None
    delivery = _expanded(entry, receiver)
    if state is not None:
        delivery.remote_state = state
    if settled:
        delivery.remote_settled = True
    return delivery


def _relay_disposition(
    router: KernelRouter, wire: KernelConnection, session: KernelSession, frame: DispositionFrame
) -> bool:
    """Apply an incoming disposition to the deliveries that it names.

    Returns: whether that was all; else `wire.pending_disposition` is what has to be decided, or is left for later.
    """
    ledger = session.outgoing if frame.receiver else session.incoming
    undecided: list[Delivery] | None = None
    found = ledger.select(frame.first, frame.last)
    count = len(found)
    at = 0
    for entry in found:
        at += 1
        delivery = _apply(session, entry, frame.receiver, frame.state, frame.settled)
        if delivery is not None:
            if undecided is None:
                undecided = []
            undecided.append(delivery)
            if len(undecided) == _PART:
                break
        if at == _PASSED:
            break
    # To find nothing is work, too.
    wire.work -= (at or 1) + ledger.scanned // _SLOTS_AT_ONCE
    if undecided is None:
        if at == count:
            return True
        undecided = []
    wire.pending_disposition = PendingDisposition(
        session, frame.receiver, frame.state, frame.settled, undecided, found[at:]
    )
    return False
