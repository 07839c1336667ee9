"""Incoming dispositions: stored in deliveries, or passed on (§2.7.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.fast_deliveries import FastDelivery, _expanded, _is_ended
from amqpmesh.router.kernel.fast_multicast import FastLeg, FastMulticast
from amqpmesh.router.kernel.fast_settlement import _pass_outcome_up, _pass_settlement_down
from amqpmesh.router.kernel.ledger import Delivery
from amqpmesh.router.kernel.multicast_settlement import _settle_multicast, _take_outcome

if TYPE_CHECKING:
    from amqpmesh.router.kernel.connection_endpoint import KernelConnection
    from amqpmesh.router.kernel.frame_fields import DispositionFrame
    from amqpmesh.router.kernel.ledger import Entry
    from amqpmesh.router.kernel.router_state import KernelRouter
    from amqpmesh.router.kernel.session_endpoint import KernelSession

#: The most deliveries of a disposition that are decided at once; `_PASSED`: that are passed on at once.
_PART: Final = 500
_PASSED: Final = 2000
#: Slots that are scanned in the time of one delivery.
_SLOTS_AT_ONCE: Final = 64


class PendingDisposition:
    """A disposition with deliveries to be decided, or with deliveries that are left for later; see `apply_more`.

    Attributes: `deliveries`: the deliveries to be decided now.
    """

    __slots__ = ("at", "deliveries", "receiver", "rest", "session", "settled", "state")

    def __init__(
        self,
        session: KernelSession,
        receiver: bool,
        state: bytes | None,
        settled: bool,
        deliveries: list[Delivery],
        rest: list[Entry],
    ) -> None:
        """Args: receiver: the peer is the receiver. rest: other deliveries that it named; the first `at` are done."""
        self.session = session
        self.receiver = receiver
        self.state = state
        self.settled = settled
        self.deliveries = deliveries
        self.rest = rest
        self.at = 0


def receive_disposition(session: KernelSession, frame: DispositionFrame) -> PendingDisposition | None:
    """Store an incoming disposition in its deliveries, or pass it on for fast deliveries (§2.7.6).

    Returns: the disposition, if deliveries are to be decided or are left for later; else None.
    """
    ledger = session.outgoing if frame.receiver else session.incoming
    pending = PendingDisposition(
        session, frame.receiver, frame.state, frame.settled, [], ledger.select(frame.first, frame.last)
    )
    session.wire.work -= ledger.scanned // _SLOTS_AT_ONCE
    return pending if apply_more(pending) else None


def apply_more(pending: PendingDisposition) -> bool:
    """Store or pass on more of a disposition.

    Deliveries that were settled in the meantime are skipped.
    Returns: whether `deliveries` are to be decided, or others are left for later.
    """
    session, receiver = pending.session, pending.receiver
    ledger = session.outgoing if receiver else session.incoming
    wire = session.wire
    work = wire.work  # settled legs of multicasts count, too
    rest = pending.rest
    count = len(rest)
    at = pending.at
    last = min(count, at + _PASSED)
    deliveries: list[Delivery] = []
    while at < last and len(deliveries) < _PART:
        entry = rest[at]
        at += 1
        delivery_id = _id_of(entry, receiver)
        live = ledger.find(delivery_id) if delivery_id >= 0 else None
        if live is not None:
            delivery = _apply(session, live, receiver, pending.state, pending.settled)
            if delivery is not None:
                deliveries.append(delivery)
        if work - wire.work >= _PASSED:
            break
    wire.work -= at - pending.at
    pending.at = at
    pending.deliveries = deliveries
    return at < count or len(deliveries) > 0


def _id_of(entry: Entry, sent: bool) -> int:
    """Return the delivery-id of a ledger's entry; -1: the delivery has ended. Args: sent: as of `_is_ended`."""
    if isinstance(entry, FastDelivery):
        fast: FastDelivery = entry
        return fast.outgoing_id if sent else fast.incoming_id
    if isinstance(entry, FastLeg):
        leg: FastLeg = entry
        return leg.outgoing_id
    if isinstance(entry, FastMulticast):
        multicast: FastMulticast = entry
        return multicast.incoming_id
    delivery: Delivery = entry
    return delivery.delivery_id


def _apply(session: KernelSession, entry: Entry, receiver: bool, state: bytes | None, settled: bool) -> Delivery | None:
    """Pass on a disposition of a ledger's entry, or store it in the delivery, which is then returned."""
    if _is_ended(entry, receiver):
        return None
    if isinstance(entry, FastDelivery):
        fast: FastDelivery = entry
        router = session.wire.router
        assert router is not None
        if receiver:
            # A disposition without a state and without settlement has no effect.
            if (state is None and not settled) or _pass_outcome_up(router, fast, state, settled):
                return None
        elif settled and fast.outcome is not None:
            _pass_settlement_down(router, fast, state)
            return None
    elif not isinstance(entry, Delivery):
        if _apply_to_multicast(session, entry, state, settled):
            return None
        live = session.outgoing.find(_id_of(entry, True)) if receiver else entry
        if live is None:
            return None
        entry = live
    delivery = _expanded(entry, receiver)
    if state is not None:
        delivery.remote_state = state
    if settled:
        delivery.remote_settled = True
    return delivery


def _apply_to_multicast(
    session: KernelSession, entry: FastMulticast | FastLeg, state: bytes | None, settled: bool
) -> bool:
    """Apply a disposition to a multicast or to a leg of one. Returns: False: the router has to decide.

    An entry before this one may have been another leg of the same multicast: so this leg may be settled, or expanded.
    """
    router = session.wire.router
    assert router is not None
    if isinstance(entry, FastLeg):
        leg: FastLeg = entry
        if leg.settled or (state is None and not settled):
            return True
        return session.outgoing.find(leg.outgoing_id) is leg and _take_outcome(router, leg, state, settled)
    multicast: FastMulticast = entry
    if settled and multicast.answered:
        _settle_multicast(router, multicast, state)
        return True
    return False


def _relay_disposition(
    router: KernelRouter, wire: KernelConnection, session: KernelSession, frame: DispositionFrame
) -> bool:
    """Apply an incoming disposition to the deliveries that it names.

    Returns: whether it is done; if not, `wire.pending_disposition` holds deliveries to be decided or left for later.
    """
    ledger = session.outgoing if frame.receiver else session.incoming
    undecided: list[Delivery] | None = None
    found = ledger.select(frame.first, frame.last)
    count = len(found)
    work = wire.work  # settled legs of multicasts count, too
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
        if at == _PASSED or work - wire.work >= _PASSED:
            break
    # A search that finds nothing is work, too.
    wire.work -= (at or 1) + ledger.scanned // _SLOTS_AT_ONCE
    if undecided is None:
        if at == count:
            return True
        undecided = []
    wire.pending_disposition = PendingDisposition(
        session, frame.receiver, frame.state, frame.settled, undecided, found[at:]
    )
    return False
