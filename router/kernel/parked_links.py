"""Links whose receivers are away and may come back: their deliveries stay in the ledger that they left by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel.fast_deliveries import FastDelivery, _expanded, _outgoing_tag
from amqpmesh.router.kernel.fast_multicast import FastLeg, _leg_tag
from amqpmesh.router.kernel.ledger import Delivery

if TYPE_CHECKING:
    from amqpmesh.router.kernel.ledger import Entry
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.relays import Leg, Relay
    from amqpmesh.router.kernel.session_endpoint import KernelSession


def _sent_by(entry: Entry) -> KernelLink:
    """Return the link by which an entry of a ledger of sent deliveries has left."""
    if isinstance(entry, FastDelivery):
        fast: FastDelivery = entry
        return fast.outgoing
    if isinstance(entry, FastLeg):
        leg: FastLeg = entry
        return leg.outgoing
    assert isinstance(entry, Delivery)
    delivery: Delivery = entry
    return delivery.link


def parked_ids(session: KernelSession) -> dict[KernelLink, list[int]]:
    """Return the ids of what each parked link of a session has unsettled, in their order."""
    found: dict[KernelLink, list[int]] = {}
    entries: dict[int, Entry] = session.outgoing.deliveries
    for delivery_id, entry in entries.items():
        link = _sent_by(entry)
        if link.parked:
            if link in found:
                found[link].append(delivery_id)
            else:
                found[link] = [delivery_id]
    return found


def expand_sent(session: KernelSession, ids: list[int]) -> list[Delivery]:
    """Make relays of sent deliveries that are fast. Returns: those that are unsettled still, in the order of `ids`."""
    found: list[Delivery] = []
    for delivery_id in ids:
        entry = session.outgoing.find(delivery_id)
        if entry is not None:
            found.append(entry if isinstance(entry, Delivery) else _expanded(entry, True))
    return found


def sent_tag(entry: Entry) -> bytes:
    """Return the delivery-tag under which an entry of a ledger of sent deliveries has left."""
    if isinstance(entry, FastDelivery):
        return _outgoing_tag(entry)
    if isinstance(entry, FastLeg):
        return _leg_tag(entry)
    assert isinstance(entry, Delivery)
    delivery: Delivery = entry
    return delivery.tag


def left_in_second(entry: Entry) -> bool:
    """Return whether a delivery is known to have left on a lane in rcv-settle-mode second (§2.7.5).

    While its sender is away its own mode is not known: outcomes are kept in either.
    """
    if isinstance(entry, FastDelivery):
        fast: FastDelivery = entry
        return fast.second and fast.incoming_id >= 0 and not fast.incoming.parked
    if isinstance(entry, FastLeg):
        leg: FastLeg = entry
        return leg.multicast.second and leg.multicast.incoming_id >= 0 and not leg.multicast.incoming.parked
    assert isinstance(entry, Delivery)
    delivery: Delivery = entry
    sent: Leg | None = delivery.leg
    if sent is None or sent.tracked:
        return False
    relay: Relay = sent.relay
    incoming: Delivery | None = relay.incoming
    return relay.second and incoming is not None and incoming.delivery_id != -1 and not incoming.link.parked
