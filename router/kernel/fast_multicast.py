"""Multicast deliveries that the kernel relays without a decision: one incoming side, and a leg for each receiver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel import uncompiled as cython
from amqpmesh.router.kernel.delivery_keys import onward
from amqpmesh.router.kernel.ledger import Delivery
from amqpmesh.router.kernel.relays import Leg, Relay

if TYPE_CHECKING:
    from amqpmesh.router.kernel.link_endpoint import KernelLink


# As of `FastDelivery`: none becomes garbage in a cycle, because `legs` is emptied when the delivery ends.
@cython.final
@cython.no_gc
@cython.freelist(64)
@cython.cclass
class FastMulticast:
    """The incoming side of a delivery that is relayed to several receivers without a decision, until all sides settle.

    It leaves whole, and unsettled. The outcomes of its legs are counted and merged one by one, so each costs the same
    for ten receivers and for thousands. For any other operation, `_expand_multicast` makes a relay of it.
    """

    __slots__ = (
        "answered",
        "arrived",
        "counter",
        "header_info",
        "incoming",
        "incoming_id",
        "incoming_tag",
        "key",
        "legs",
        "message_format",
        "open",
        "second",
        "size",
        "strength",
        "strongest",
        "unanswered",
    )

    # Made by `__new__` without `__init__`, as `FastDelivery` is: `_new_multicast` sets all fields.
    incoming: KernelLink
    #: -1: the sender is gone, or has settled; `_AWAY`: the sender is away.
    incoming_id: int
    incoming_tag: bytes
    #: The tag on lanes; empty: it is the incoming tag with one hop less, or no leg leaves by a lane.
    key: bytes
    #: Of the message (§2.7.5); 0: the format of the standard.
    message_format: int
    #: rcv-settle-mode second is in force.
    second: bool
    #: The sender knows the outcome, and has to settle (mode second).
    answered: bool
    #: The time of its arrival, seconds.
    arrived: float
    #: All legs, settled ones included.
    legs: list[FastLeg]
    #: Legs that are not settled; `unanswered`: legs without an outcome.
    open: int
    unanswered: int
    #: The strongest outcome so far, the first of equal ones; None: there is none. `strength`: its strength; -1: none.
    strongest: bytes | None
    strength: int
    #: For hop records: octets of the payload; `HeaderFields.info`; the counter of its key.
    size: int
    header_info: int
    counter: int


@cython.final
@cython.no_gc
@cython.freelist(512)
@cython.cclass
class FastLeg:
    """The part of a fast multicast that leaves by one link."""

    __slots__ = (
        "multicast",
        "number",
        "outcome",
        "outcome_at",
        "outgoing",
        "outgoing_id",
        "sent_at",
        "settled",
    )

    # Made by `__new__` without `__init__`: `_new_leg` sets all fields.
    multicast: FastMulticast
    outgoing: KernelLink
    outgoing_id: int
    #: The tag of the outgoing delivery is this number in hexadecimal digits, but on a lane that of the multicast.
    number: int
    #: The outgoing delivery is settled.
    settled: bool
    #: The receiver's outcome, or the one in its place; None: there is none yet.
    outcome: bytes | None
    #: The time at which it left, seconds, -1: it is not recorded; `outcome_at`: of the outcome, -1: not yet.
    sent_at: float
    outcome_at: float


def _new_multicast(
    incoming: KernelLink, incoming_id: int, incoming_tag: bytes, second: bool, arrived: float
) -> FastMulticast:
    """Make a fast multicast without legs, and put it into the ledger."""
    multicast = FastMulticast.__new__(FastMulticast)
    multicast.incoming = incoming
    multicast.incoming_id = incoming_id
    multicast.incoming_tag = incoming_tag
    multicast.key = b""
    multicast.message_format = 0
    multicast.second = second
    multicast.answered = False
    multicast.arrived = arrived
    multicast.legs = []
    multicast.open = 0
    multicast.unanswered = 0
    multicast.strongest = None
    multicast.strength = -1
    multicast.size = 0
    multicast.header_info = 4
    multicast.counter = 0
    incoming.session.incoming.put(incoming_id, multicast)
    incoming.unsettled[incoming_tag] = multicast
    return multicast


def _new_leg(multicast: FastMulticast, outgoing: KernelLink, outgoing_id: int, number: int) -> FastLeg:
    """Add a leg to a multicast, and put it into the ledger."""
    leg = FastLeg.__new__(FastLeg)
    leg.multicast = multicast
    leg.outgoing = outgoing
    leg.outgoing_id = outgoing_id
    leg.number = number
    leg.settled = False
    leg.outcome = None
    leg.sent_at = -1.0
    leg.outcome_at = -1.0
    multicast.legs.append(leg)
    multicast.open += 1
    multicast.unanswered += 1
    outgoing.session.outgoing.put(outgoing_id, leg)
    outgoing.outstanding += 1
    return leg


def _expand_multicast(multicast: FastMulticast) -> Delivery:
    """Make a relay of a fast multicast that needs a decision. Returns: its incoming delivery."""
    incoming = multicast.incoming
    received = Delivery(incoming, multicast.incoming_tag, multicast.message_format, False, multicast.second)
    received.delivery_id = multicast.incoming_id if multicast.incoming_id >= 0 else -1
    received.complete = True
    relay = Relay(incoming.record, received, multicast.message_format, multicast.arrived)
    relay.waiting = False
    relay.complete = True
    relay.attempts = 1
    relay.counter = multicast.counter
    relay.header_info = multicast.header_info
    if multicast.key:
        relay.key = multicast.key
    received.relay = relay
    if multicast.answered:
        relay.answered = True
        received.state = multicast.strongest
    if multicast.incoming_id == -1:
        received.settled = received.remote_settled = True
        relay.incoming = None
    else:
        if received.delivery_id != -1:
            incoming.session.incoming.put(received.delivery_id, received)
        incoming.unsettled[received.tag] = received
    for each in multicast.legs:
        _expand_leg(each, relay)
    # The first of equally strong outcomes, which need not be that of the first leg.
    relay.strongest = multicast.strongest
    multicast.legs = []
    router = incoming.session.wire.router
    if router is not None and router.on_expand is not None:
        router.on_expand(relay)
    return received


def _leg_tag(fast: FastLeg) -> bytes:
    """Return the tag of the outgoing delivery of a leg."""
    if not fast.outgoing.lane:
        return b"%x" % fast.number
    return fast.multicast.key or onward(fast.multicast.incoming_tag)


def _expand_leg(fast: FastLeg, relay: Relay) -> None:
    """Add the leg of a fast multicast to the relay in its place."""
    multicast, outgoing = fast.multicast, fast.outgoing
    sent = Delivery(outgoing, _leg_tag(fast), relay.message_format, False, False)
    sent.complete = True
    sent.size = multicast.size
    sent.leg = leg = Leg(relay, outgoing.record, False)
    leg.delivery = sent
    leg.started = True
    relay.add(leg)
    if fast.outcome is not None:
        leg.decide(fast.outcome)
    leg.sent_at = fast.sent_at
    leg.outcome_at = fast.outcome_at
    if fast.settled:
        leg.end()
        sent.settled = sent.remote_settled = True
    else:
        sent.delivery_id = fast.outgoing_id
        leg.counted = True
        outgoing.session.outgoing.put(sent.delivery_id, sent)
        outgoing.unsettled[sent.tag] = sent
        _free_tag(fast)


def _free_tag(leg: FastLeg) -> None:
    """Forget the tag of a leg from lane to lane, which another delivery may have now."""
    multicast, outgoing = leg.multicast, leg.outgoing
    if outgoing.lane and not multicast.key:
        del outgoing.lane_to_lane[multicast.incoming_tag]
