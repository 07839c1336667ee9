"""Links whose receivers are away and may come back: their deliveries stay in the ledger that they left by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel.fast_deliveries import FastDelivery, _expanded, _outgoing_tag
from amqpmesh.router.kernel.fast_multicast import FastLeg, _leg_tag
from amqpmesh.router.kernel.ledger import _AWAY, Delivery

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
    """Return whether a delivery has left on a lane in rcv-settle-mode second (§2.7.5).

    While its sender is away outcomes are kept in either mode: `in_first` has the tags of those of mode first.
    """
    if isinstance(entry, FastDelivery):
        fast: FastDelivery = entry
        is_away = fast.incoming_id == _AWAY or fast.incoming.parked
        return fast.second and not (is_away and _is_first(fast.incoming, fast.incoming_tag))
    if isinstance(entry, FastLeg):
        leg: FastLeg = entry
        whole = leg.multicast
        is_away = whole.incoming_id == _AWAY or whole.incoming.parked
        return whole.second and not (is_away and _is_first(whole.incoming, whole.incoming_tag))
    assert isinstance(entry, Delivery)
    delivery: Delivery = entry
    sent: Leg | None = delivery.leg
    if sent is None or sent.tracked:
        return False
    relay: Relay = sent.relay
    incoming: Delivery | None = relay.incoming
    if incoming is None or not relay.second:
        return False
    is_away = incoming.delivery_id == -1 or incoming.link.parked
    return not (is_away and _is_first(incoming.link, incoming.tag))


def _is_first(link: KernelLink, tag: bytes) -> bool:
    return link.in_first is not None and tag in link.in_first
