"""Deliveries whose sender is away, and which it may resume over another link (§2.6.13).

Such a delivery has no delivery-id: its sender knows it by its tag alone. It is in the unsettled map of a link, and in
no ledger. An outcome that comes meanwhile is kept, in either mode, until the sender has heard it.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from amqpmesh.router.kernel.fast_deliveries import FastDelivery, _compact_relay, _expanded
from amqpmesh.router.kernel.fast_multicast import FastMulticast
from amqpmesh.router.kernel.fast_settlement import _pass_settlement_down
from amqpmesh.router.kernel.ledger import _AWAY, Delivery
from amqpmesh.router.kernel.link_sweep import _end_fast_delivery
from amqpmesh.router.kernel.multicast_settlement import _orphan, _settle_multicast
from amqpmesh.router.kernel.serial import MANY

if TYPE_CHECKING:
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.relays import Leg, Relay


def keep_outcomes(link: KernelLink) -> None:
    """Have the outcomes of a link's deliveries kept from now on: its sender is away, and they are set aside later.

    Meanwhile the link has not ended, as far as its deliveries are concerned.
    """
    before = link.parked
    link.parked = True
    link.max_outstanding = MANY
    for tag, entry in link.unsettled.items():
        if isinstance(entry, FastDelivery):
            fast: FastDelivery = entry
            if fast.incoming_id != _AWAY and not before:
                note_mode(link, tag, not fast.second)
            fast.second = True
        elif isinstance(entry, FastMulticast):
            multicast: FastMulticast = entry
            if multicast.incoming_id != _AWAY and not before:
                note_mode(link, tag, not multicast.second)
            multicast.second = True
        else:
            delivery: Delivery = entry
            relay: Relay | None = delivery.relay
            if relay is not None and delivery.complete and not delivery.settled:
                if delivery.delivery_id != -1 and not before:
                    note_mode(link, tag, not relay.second)
                relay.second = True


def set_aside(link: KernelLink, holder: KernelLink, compacts: bool, most: int) -> int:
    """Move the deliveries of a link whose sender is away to a link that no frame names.

    Only those that have come whole are moved: the sender sends the others again.
    Args: compacts: nothing but the kernel refers to relays that wait for an outcome alone: they become fast deliveries.
        most: deliveries that are looked at, those that came first.
    Returns: the number of the other relays.
    """
    ledger = link.session.incoming
    relays = 0
    for tag in list(islice(link.unsettled, most)):
        entry = link.unsettled[tag]
        if compacts and isinstance(entry, Delivery) and _waits_for_outcome(entry):
            _compact(entry)
            entry = link.unsettled[tag]
        first = link.in_first is not None and tag in link.in_first
        if isinstance(entry, FastDelivery):
            fast: FastDelivery = entry
            if fast.incoming_id != _AWAY:
                first = first if link.parked else not fast.second
                ledger.remove(fast.incoming_id)
                fast.incoming_id = _AWAY
            fast.second = True
            fast.incoming = holder
        elif isinstance(entry, FastMulticast):
            multicast: FastMulticast = entry
            if multicast.incoming_id != _AWAY:
                first = first if link.parked else not multicast.second
                ledger.remove(multicast.incoming_id)
                multicast.incoming_id = _AWAY
            multicast.second = True
            multicast.incoming = holder
        else:
            delivery: Delivery = entry
            relay: Relay | None = delivery.relay
            if relay is None or delivery.settled or not delivery.complete:
                continue
            if delivery.delivery_id != -1 and not link.parked:
                first = not relay.second
            if ledger.find(delivery.delivery_id) is delivery:
                ledger.remove(delivery.delivery_id)
            delivery.delivery_id = -1
            delivery.link = holder
            relay.second = True
            relays += 1
        del link.unsettled[tag]
        holder.unsettled[tag] = entry
        if first:
            note_mode(holder, tag, True)
    return relays


def note_mode(link: KernelLink, tag: bytes, first: bool) -> None:
    """Note the rcv-settle-mode in which a delivery came whose sender is away, or has not resumed it."""
    if first:
        if link.in_first is None:
            link.in_first = set()
        link.in_first.add(tag)
    elif link.in_first is not None:
        link.in_first.discard(tag)


def _waits_for_outcome(delivery: Delivery) -> bool:
    """Return whether a relay was sent whole by one link, and only the outcome of its receiver is missing."""
    relay: Relay | None = delivery.relay
    if (
        relay is None
        or delivery.delivery_id == -1
        or delivery.link.lane
        or delivery.link.session.wire.router is None
        or delivery.link.session.wire.router.recorder is not None
        or not relay.complete
        or relay.closed
        or relay.waiting
        or relay.queued
        or relay.chunks
        or relay.recorded
        or relay.portion is not None
        or relay.kept is not None
        or relay.seen is not None
        or relay.excluded is not None
        or relay.to is not None
        or len(relay.legs) != 1
    ):
        return False
    leg: Leg = relay.legs[0]
    sent: Delivery | None = leg.delivery
    return (
        sent is not None
        and sent.complete
        and sent.delivery_id != -1
        and not sent.link.lane
        and leg.started
        and leg.counted
        and not (leg.copy or leg.done or leg.aborting or leg.tracked or leg.chunks)
    )


def _compact(delivery: Delivery) -> None:
    """Make a fast delivery of a relay, unless there is a state of it."""
    router = delivery.link.session.wire.router
    relay: Relay | None = delivery.relay
    assert router is not None
    assert relay is not None
    leg: Leg = relay.legs[0]
    assert leg.delivery is not None
    _compact_relay(router, delivery, leg.delivery, relay)


def take_up(holder: KernelLink, tag: bytes, link: KernelLink) -> None:
    """Move a delivery to the link over which its sender may resume it."""
    note_mode(link, tag, holder.in_first is not None and tag in holder.in_first)
    entry = holder.unsettled.pop(tag)
    if isinstance(entry, FastDelivery):
        fast: FastDelivery = entry
        fast.incoming = link
        if fast.outcome is not None:
            link.outstanding += 1
    elif isinstance(entry, FastMulticast):
        multicast: FastMulticast = entry
        multicast.incoming = link
        if multicast.answered:
            link.outstanding += 1
    else:
        delivery: Delivery = entry
        delivery.link = link
    link.unsettled[tag] = entry


def told_outcome(entry: Delivery | FastDelivery | FastMulticast) -> bytes | None:
    """Return the state that the sender of a delivery has been told or will be, encoded; None: there is none yet."""
    if isinstance(entry, FastDelivery):
        fast: FastDelivery = entry
        return fast.outcome
    if isinstance(entry, FastMulticast):
        multicast: FastMulticast = entry
        return multicast.strongest if multicast.answered else None
    delivery: Delivery = entry
    return delivery.state


def expanded(entry: Delivery | FastDelivery | FastMulticast) -> Delivery:
    """Return a received delivery as one that the router can decide about."""
    return _expanded(entry, False)


def settle_away(holder: KernelLink, tag: bytes) -> Delivery | None:
    """Settle a delivery whose sender has settled it while it was away. Returns: it, if the router must decide."""
    entry = holder.unsettled[tag]
    router = holder.session.wire.router
    assert router is not None
    if isinstance(entry, FastDelivery):
        fast: FastDelivery = entry
        if fast.outcome is not None:
            fast.incoming_id = 0
            holder.session.incoming.put(0, fast)
            _pass_settlement_down(router, fast, None)
            return None
    elif isinstance(entry, FastMulticast):
        multicast: FastMulticast = entry
        if multicast.answered:
            _settle_multicast(router, multicast, None)
            return None
    return _expanded(entry, False)


def end_away(holder: KernelLink, tag: bytes) -> Delivery | None:
    """Have a delivery settled by its receivers, whose sender does not come back. Returns: as `settle_away`."""
    entry = holder.unsettled[tag]
    router = holder.session.wire.router
    assert router is not None
    if isinstance(entry, FastDelivery):
        if _end_fast_delivery(router, entry, False):
            return None
    elif isinstance(entry, FastMulticast):
        _orphan(router, entry)
        return None
    return _expanded(entry, False)
