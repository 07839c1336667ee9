"""Deliveries that the kernel relays without a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel import uncompiled as cython
from amqpmesh.router.kernel.delivery_keys import _KEY, onward
from amqpmesh.router.kernel.encoded_states import _ACCEPTED, _MODIFIED, _REJECTED, state_kind
from amqpmesh.router.kernel.fast_multicast import FastLeg, FastMulticast, _expand_multicast
from amqpmesh.router.kernel.hop_recorder import _BEGAN, _SETTLED
from amqpmesh.router.kernel.ledger import Delivery
from amqpmesh.router.kernel.relays import Leg, Relay

if TYPE_CHECKING:
    from amqpmesh.router.kernel.hop_recorder import Recorder
    from amqpmesh.router.kernel.kept_messages import KeptMessage
    from amqpmesh.router.kernel.ledger import Entry
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.router_state import KernelRouter


# Many of them live long, and none becomes garbage in a cycle. The decorators have no effect in types.pxd.
@cython.final
@cython.no_gc
@cython.freelist(512)
@cython.cclass
class FastDelivery:
    """A delivery that is relayed without a decision: its incoming and its outgoing side, while either is unsettled.

    It leaves whole, by one link. For any other operation, `expand` makes a relay of it.
    """

    __slots__ = (
        "arrived",
        "counter",
        "header_info",
        "incoming",
        "incoming_id",
        "incoming_tag",
        "message_format",
        "number",
        "outcome",
        "outcome_at",
        "outgoing",
        "outgoing_id",
        "outgoing_settled",
        "outgoing_tag",
        "second",
        "sent_at",
        "size",
        "tracked",
    )

    # Made by `__new__` without `__init__`, which is faster in C: `_new_fast_delivery` sets all fields.
    incoming: KernelLink
    #: -1: the sender is gone, or has settled; `_AWAY`: the sender is away.
    incoming_id: int
    incoming_tag: bytes
    #: Of the message (§2.7.5); 0: the format of the standard.
    message_format: int
    #: rcv-settle-mode second is in force.
    second: bool
    #: The time of its arrival, seconds.
    arrived: float
    outgoing: KernelLink
    outgoing_id: int
    #: Empty: the tag is `number` in hexadecimal digits; on a lane it is the incoming tag with one hop less.
    #: If a transit lane begins here, the final address follows the tag.
    outgoing_tag: bytes
    number: int
    #: The receiver has settled the delivery.
    outgoing_settled: bool
    #: The sender has settled it, and gets no outcome: it is unsettled only on its transit lane.
    tracked: bool
    #: The outcome of the receiver, which was passed to the sender; set only in mode second.
    outcome: bytes | None
    #: The time of the outcome, seconds.
    outcome_at: float
    #: For hop records: the time at which it left, seconds, -1: it is not recorded; octets of its payload;
    #: `HeaderFields.info`; the counter of its key.
    sent_at: float
    size: int
    header_info: int
    counter: int


def _new_fast_delivery(
    incoming: KernelLink,
    incoming_id: int,
    incoming_tag: bytes,
    second: bool,
    arrived: float,
    outgoing: KernelLink,
    outgoing_id: int,
    outgoing_tag: bytes,
    tracked: bool = False,
) -> FastDelivery:
    """Make a fast delivery, and put it into both ledgers; into that of its receiver alone, if it is tracked.

    If both links are lanes, the caller must put it into `lane_to_lane` of the outgoing one.
    """
    fast = FastDelivery.__new__(FastDelivery)
    fast.incoming = incoming
    fast.incoming_tag = incoming_tag
    fast.message_format = 0
    fast.second = second
    fast.arrived = arrived
    fast.outgoing = outgoing
    fast.outgoing_tag = outgoing_tag
    fast.number = 0
    fast.outgoing_settled = False
    fast.outcome = None
    fast.outcome_at = -1.0
    fast.tracked = tracked
    if tracked:
        fast.incoming_id = -1
    else:
        fast.incoming_id = incoming_id
        incoming.session.incoming.put(incoming_id, fast)
        incoming.unsettled[incoming_tag] = fast
    fast.outgoing_id = outgoing_id
    outgoing.session.outgoing.put(outgoing_id, fast)
    return fast


def _settle_outgoing(router: KernelRouter, fast: FastDelivery) -> None:
    """Settle the outgoing delivery, unless it is settled."""
    link = fast.outgoing
    if not fast.outgoing_settled:
        fast.outgoing_settled = True
        link.session.outgoing.remove(fast.outgoing_id)
        if link.lane and not fast.outgoing_tag:
            del link.lane_to_lane[fast.incoming_tag]
        if link.keeps is not None:
            link.keeps.drop(_outgoing_tag(fast))
        if link.outstanding >= link.max_outstanding:
            router.mark_dirty(link)
            router.change(None if link.source is None else link.source.pool)
        link.outstanding -= 1


def expand(fast: FastDelivery) -> tuple[Delivery, Delivery]:
    """Make a relay of a fast delivery that needs a decision. Returns: its incoming delivery and its outgoing one."""
    incoming, outgoing = fast.incoming, fast.outgoing
    received = Delivery(incoming, fast.incoming_tag, fast.message_format, False, fast.second)
    received.delivery_id = fast.incoming_id if fast.incoming_id >= 0 else -1
    received.complete = True
    received.state = fast.outcome
    orphaned = fast.incoming_id == -1
    if orphaned:
        received.settled = True
        received.remote_settled = fast.tracked
    sent = Delivery(outgoing, _outgoing_tag(fast), fast.message_format, False, False)
    sent.complete = True
    relay = _relay_by_one_leg(received, sent, fast.arrived)
    relay.complete = True
    relay.answered = fast.outcome is not None
    relay.counter = fast.counter
    relay.header_info = fast.header_info
    if len(fast.outgoing_tag) > _KEY + 1:
        relay.to = fast.outgoing_tag[_KEY + 1 :].decode()
        relay.section_shift = -1  # a section of annotations was put in; taken out, where a transit lane ends
    elif incoming.anonymous and incoming.lane:
        relay.section_shift = 1
    leg: Leg = relay.legs[0]
    if fast.outcome is not None:
        leg.decide(fast.outcome)
    leg.outcome_at = fast.outcome_at
    leg.sent_at = fast.sent_at
    leg.tracked = fast.tracked  # then the relay has its sender's delivery, which is settled
    sent.size = fast.size
    if orphaned:
        received.remote_settled = True
        if not fast.tracked:
            relay.incoming = None
    else:
        if received.delivery_id != -1:
            incoming.session.incoming.put(received.delivery_id, received)
        incoming.unsettled[received.tag] = received
    if fast.outgoing_settled:
        leg.end()
        sent.settled = sent.remote_settled = True
    else:
        sent.delivery_id = fast.outgoing_id
        leg.counted = True
        outgoing.session.outgoing.put(sent.delivery_id, sent)
        outgoing.unsettled[sent.tag] = sent
        if outgoing.lane and not fast.outgoing_tag:
            del outgoing.lane_to_lane[fast.incoming_tag]
    router = incoming.session.wire.router
    if router is not None:
        kept: KeptMessage | None = router.kept.pop(fast, None) if router.kept else None
        if kept is not None:
            relay.kept = bytearray(kept.payload)
            relay.attempts = kept.attempts
            relay.failed = kept.failed
            if kept.outcome is not None:
                outgoing.outstanding += 1  # as before it was put off
        if router.noted:
            relay.seen = router.noted.pop(fast, None)
        if router.on_expand is not None:
            router.on_expand(relay)
    return received, sent


def expand_link(link: KernelLink) -> None:
    """Make a relay of each fast delivery on a link, for a caller that looks at all deliveries of the link."""
    if not link.outstanding and not link.unsettled:
        return
    ledger = link.session.outgoing if link.sender else link.session.incoming
    for entry in ledger.deliveries.values():
        if isinstance(entry, FastDelivery):
            if (entry.outgoing if link.sender else entry.incoming) is link:
                expand(entry)
        elif isinstance(entry, FastLeg):
            if entry.outgoing is link:
                _expand_multicast(entry.multicast)
        elif isinstance(entry, FastMulticast) and entry.incoming is link:
            _expand_multicast(entry)


def _relay_by_one_leg(received: Delivery, sent: Delivery, now: float) -> Relay:
    """Make the relay of a delivery with one leg, which has begun. Args: now: the time of its arrival, seconds."""
    relay = Relay(received.link.record, received, received.message_format, now)
    relay.waiting = False
    relay.attempts = 1
    received.relay = relay
    sent.leg = leg = Leg(relay, sent.link.record, False)
    leg.delivery = sent
    leg.started = True
    relay.add(leg)
    return relay


def _compact_relay(router: KernelRouter, received: Delivery, sent: Delivery, relay: Relay) -> None:
    """Make a fast delivery of a relay that was sent whole, if it has no outcome or other state yet."""
    leg: Leg = relay.legs[0]
    recorder = router.recorder
    counter = relay.counter
    at = -1.0
    if recorder is not None:
        if not counter:
            relay.counter = counter = router.counter(received.link, received.tag)
        if recorder.takes(counter):
            at = leg.sent_at = recorder.time()
    if received.settled:
        relay.closed = True
        leg.end()
        router.relays -= 1
        if recorder is not None and at >= 0:
            _record(
                router,
                recorder,
                received.link,
                sent.link,
                received.tag,
                sent.tag,
                counter,
                sent.size,
                relay.came,
                at,
                -1.0,
                b"",
                relay.header_info,
            )
    elif (
        relay.answered
        or relay.attempts != 1
        or relay.section_shift
        or leg.outcome is not None
        or received.state is not None
        or sent.state is not None
        or received.remote_state is not None
        or sent.remote_state is not None
        or received.remote_settled
        or sent.settled
        or sent.remote_settled
        or sent.size > 0xFFFFFFFF  # there is no room for so many octets
        # Its key was in use, so it has another tag, and stays in the unsettled map.
        or (received.link.lane and sent.link.lane and sent.tag != onward(received.tag))
    ):
        return
    else:
        tag = sent.tag
        goes_on = received.link.lane and sent.link.lane
        if goes_on:
            tag = b""
        fast = _new_fast_delivery(
            received.link,
            received.delivery_id,
            received.tag,
            received.second,
            relay.came,
            sent.link,
            sent.delivery_id,
            tag,
        )
        fast.message_format = received.message_format
        fast.sent_at = at
        fast.size = sent.size
        fast.header_info = relay.header_info
        fast.counter = counter
        del sent.link.unsettled[sent.tag]
        if goes_on:
            sent.link.lane_to_lane[received.tag] = fast
    # Break the reference cycles.
    received.relay = sent.leg = None
    relay.legs = []


def _outgoing_tag(fast: FastDelivery) -> bytes:
    """Return the tag of the outgoing delivery."""
    if fast.outgoing_tag:
        return fast.outgoing_tag[: _KEY + 1]
    return onward(fast.incoming_tag) if fast.outgoing.lane else b"%x" % fast.number


def _record(
    router: KernelRouter,
    recorder: Recorder,
    link: KernelLink,
    out: KernelLink,
    incoming_tag: bytes,
    outgoing_tag: bytes,
    counter: int,
    size: int,
    arrived: float,
    sent_at: float,
    outcome_at: float,
    state: bytes,
    header_info: int,
) -> None:
    """Record a delivery that left by one link. Args: state: its outcome; empty: it came settled."""
    kind = state_kind(state) if state else 0
    # Numbered from `accepted`, in the order of the descriptor codes.
    outcome = kind - _ACCEPTED + 1 if _ACCEPTED <= kind <= _MODIFIED else 0
    flags = 0 if state else _SETTLED
    if link.lane and len(incoming_tag) == _KEY + 1:
        key = incoming_tag
        hops_left = incoming_tag[_KEY]
    else:
        key = router.key_prefix
        if out.lane and not outgoing_tag:
            outgoing_tag = onward(incoming_tag)
        # A leg of a tree has the key of its multicast, though it leaves by no lane.
        is_key = len(outgoing_tag) > 0 and (out.lane or len(outgoing_tag) == _KEY + 1)
        hops_left = outgoing_tag[len(outgoing_tag) - 1] if is_key else 0
        flags |= _BEGAN
    condition = 0
    if kind == _REJECTED and recorder.on_rejected is not None:
        condition = recorder.on_rejected(state)
    address = 0
    if link.anonymous and recorder.on_anonymous is not None:
        address = recorder.on_anonymous(out.record)
    recorder.store(
        key,
        counter,
        hops_left,
        flags,
        outcome,
        link.number,
        out.number,
        size,
        arrived,
        sent_at,
        outcome_at,
        header_info,
        address,
        1,
        0,
        condition,
    )


def _is_ended(entry: Entry, sent: bool) -> bool:
    """Return whether the link of a ledger's entry has ended. Args: sent: the ledger is one of sent deliveries."""
    if isinstance(entry, FastDelivery):
        fast: FastDelivery = entry
        return fast.outgoing.ended if sent else fast.incoming.ended
    if isinstance(entry, Delivery):
        delivery: Delivery = entry
        return delivery.link.ended
    if isinstance(entry, FastLeg):
        leg: FastLeg = entry
        return leg.outgoing.ended
    multicast: FastMulticast = entry
    return multicast.incoming.ended


def _expanded(entry: Entry, sent: bool) -> Delivery:
    """Return an entry of a ledger as a `Delivery`. Args: sent: the ledger is one of sent deliveries."""
    if isinstance(entry, Delivery):
        return entry
    if isinstance(entry, FastMulticast):
        return _expand_multicast(entry)
    if isinstance(entry, FastLeg):
        leg: FastLeg = entry
        _expand_multicast(leg.multicast)
        found = leg.outgoing.session.outgoing.find(leg.outgoing_id)
        assert isinstance(found, Delivery)
        return found
    incoming, outgoing = expand(entry)
    return outgoing if sent else incoming
