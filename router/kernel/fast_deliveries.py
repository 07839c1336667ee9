"""Deliveries that the kernel relays without a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel import uncompiled as cython
from amqpmesh.router.kernel.delivery_keys import _KEY, onward
from amqpmesh.router.kernel.encoded_states import _ACCEPTED, _MODIFIED, _REJECTED, state_kind
from amqpmesh.router.kernel.hop_recorder import _BEGAN, _SETTLED
from amqpmesh.router.kernel.ledger import Delivery
from amqpmesh.router.kernel.relays import Leg, Relay

if TYPE_CHECKING:
    from amqpmesh.router.kernel.hop_recorder import Recorder
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.router_state import KernelRouter


# Many live long, and none is garbage: whose link is over is expanded. These decorators have no effect in types.pxd.
@cython.final
@cython.no_gc
@cython.freelist(512)
@cython.cclass
class FastDelivery:
    """One delivery that is relayed without a decision: the incoming and the outgoing one, while either is unsettled.

    It is written whole, by one link. Whatever else is asked of it is asked of what `expand` makes of it.
    """

    __slots__ = (
        "arrived",
        "counter",
        "incoming",
        "incoming_id",
        "incoming_tag",
        "left",
        "number",
        "outcome",
        "outgoing",
        "outgoing_id",
        "outgoing_tag",
        "over",
        "said",
        "second",
        "size",
        "told",
    )

    # Made by `__new__` alone, which compiled is much quicker: `_new_fast_delivery` sets all of it.
    incoming: KernelLink
    incoming_id: int
    incoming_tag: bytes
    #: rcv-settle-mode second is in force.
    second: bool
    #: When it came, seconds.
    arrived: float
    outgoing: KernelLink
    outgoing_id: int
    #: Empty: it is the number, in hexadecimal digits; or, on a lane, the one that it came with, with one hop less.
    outgoing_tag: bytes
    number: int
    #: The receiver has settled it.
    over: bool
    #: What the receiver has said, and the sender was told; only in mode second it is not the end.
    outcome: bytes | None
    #: When that was, seconds.
    said: float
    #: If it is to be recorded: when it left, seconds, octets of its payload, what its header told, and the counter of
    #: its key. -1: it is not.
    left: float
    size: int
    told: int
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
) -> FastDelivery:
    """One more, which the ledgers of both sides have; the unsettled map of a lane that it leaves by is the caller's."""
    fast = FastDelivery.__new__(FastDelivery)
    fast.incoming = incoming
    fast.incoming_tag = incoming_tag
    fast.second = second
    fast.arrived = arrived
    fast.outgoing = outgoing
    fast.outgoing_tag = outgoing_tag
    fast.number = 0
    fast.over = False
    fast.outcome = None
    fast.said = -1.0
    fast.incoming_id = incoming_id
    incoming.session.incoming.put(incoming_id, fast)
    incoming.unsettled[incoming_tag] = fast
    fast.outgoing_id = outgoing_id
    outgoing.session.outgoing.put(outgoing_id, fast)
    return fast


def expand(fast: FastDelivery) -> tuple[Delivery, Delivery]:
    """Make of a fast delivery the relay that it is, for those who decide. Returns: what came, and what left."""
    incoming, outgoing = fast.incoming, fast.outgoing
    came = Delivery(incoming, fast.incoming_tag, 0, False, fast.second)
    came.delivery_id = fast.incoming_id
    came.complete = True
    came.state = fast.outcome
    orphaned = fast.incoming_id == -1
    left = Delivery(outgoing, _left_with(fast), 0, False, False)
    left.complete = True
    relay = _relay_by_one_leg(came, left, fast.arrived)
    relay.complete = True
    relay.answered = fast.outcome is not None
    relay.counter = fast.counter
    relay.told = fast.told
    leg: Leg = relay.legs[0]
    if fast.outcome is not None:
        leg.decide(fast.outcome)
    leg.said = fast.said
    leg.left = fast.left
    left.size = fast.size
    if orphaned:
        came.settled = came.remote_settled = True
        relay.incoming = None
    else:
        incoming.session.incoming.put(came.delivery_id, came)
        incoming.unsettled[came.tag] = came
    if fast.over:
        leg.end()
        left.settled = left.remote_settled = True
    else:
        left.delivery_id = fast.outgoing_id
        leg.counted = True
        outgoing.session.outgoing.put(left.delivery_id, left)
        outgoing.unsettled[left.tag] = left
        if outgoing.lane and not fast.outgoing_tag:
            del outgoing.lane_to_lane[fast.incoming_tag]
    router = incoming.session.wire.router
    if router is not None and router.on_expand is not None:
        router.on_expand(relay)
    return came, left


def expand_link(link: KernelLink) -> None:
    """Make of each fast delivery on a link the relay that it is: somebody looks at what is on it."""
    if not link.outstanding and not link.unsettled:
        return
    ledger = link.session.outgoing if link.sender else link.session.incoming
    for entry in ledger.deliveries.values():
        if isinstance(entry, FastDelivery) and (entry.outgoing if link.sender else entry.incoming) is link:
            expand(entry)


def _relay_by_one_leg(came: Delivery, left: Delivery, now: float) -> Relay:
    """The relay of a delivery that leaves by one leg, which has begun. Args: now: when it came, seconds."""
    relay = Relay(came.link.record, came, came.message_format, now)
    relay.waiting = False
    relay.attempts = 1
    came.relay = relay
    left.leg = leg = Leg(relay, left.link.record, False)
    leg.delivery = left
    leg.started = True
    relay.add(leg)
    return relay


def _compact_relay(router: KernelRouter, came: Delivery, left: Delivery, relay: Relay) -> None:
    """A relay is through: what is left of it, if nobody has said anything of it yet, is a fast delivery."""
    leg: Leg = relay.legs[0]
    recorder = router.recorder
    counter = relay.counter
    at = -1.0
    if recorder is not None:
        if not counter:
            relay.counter = counter = router.counter(came.link, came.tag)
        if recorder.takes(counter):
            at = leg.left = recorder.time()
    if came.settled:
        relay.closed = True
        leg.end()
        router.relays -= 1
        if recorder is not None and at >= 0:
            _record(
                router,
                recorder,
                came.link,
                left.link,
                came.tag,
                left.tag,
                counter,
                left.size,
                relay.came,
                at,
                -1.0,
                b"",
                relay.told,
            )
    elif (
        relay.answered
        or relay.attempts != 1
        or relay.section_shift
        or leg.outcome is not None
        or came.state is not None
        or left.state is not None
        or came.remote_state is not None
        or left.remote_state is not None
        or came.remote_settled
        or left.settled
        or left.remote_settled
        # Its key was in use, so that it has another tag, and stays in the map.
        or (came.link.lane and left.link.lane and left.tag != onward(came.tag))
    ):
        return
    else:
        tag = left.tag
        goes_on = came.link.lane and left.link.lane
        if goes_on:
            tag = b""
        fast = _new_fast_delivery(
            came.link, came.delivery_id, came.tag, came.second, relay.came, left.link, left.delivery_id, tag
        )
        fast.left = at
        fast.size = left.size
        fast.told = relay.told
        fast.counter = counter
        del left.link.unsettled[left.tag]
        if goes_on:
            left.link.lane_to_lane[came.tag] = fast
    # They refer to each other: the circles end here.
    came.relay = left.leg = None
    relay.legs = []


def _left_with(fast: FastDelivery) -> bytes:
    """The tag that it left with."""
    if fast.outgoing_tag:
        return fast.outgoing_tag
    return onward(fast.incoming_tag) if fast.outgoing.lane else b"%x" % fast.number


def _record(
    router: KernelRouter,
    recorder: Recorder,
    link: KernelLink,
    out: KernelLink,
    came_with: bytes,
    left_with: bytes,
    counter: int,
    size: int,
    came: float,
    left: float,
    said: float,
    state: bytes,
    told: int,
) -> None:
    """Record what came by one link and left by one. Args: state: its outcome; empty: it was settled before."""
    kind = state_kind(state) if state else 0
    # Numbered from `accepted`, as their codes are.
    outcome = kind - _ACCEPTED + 1 if _ACCEPTED <= kind <= _MODIFIED else 0
    flags = 0 if state else _SETTLED
    if link.lane and len(came_with) == _KEY + 1:
        key = came_with
        hops_left = came_with[_KEY]
    else:
        key = router.key_prefix
        if out.lane and not left_with:
            left_with = onward(came_with)
        hops_left = left_with[len(left_with) - 1] if out.lane and left_with else 0
        flags |= _BEGAN
    condition = 0
    if kind == _REJECTED and recorder.on_rejected is not None:
        condition = recorder.on_rejected(state)
    recorder.store(
        key,
        counter,
        hops_left,
        flags,
        outcome,
        link.number,
        out.number,
        size,
        came,
        left,
        said,
        told,
        0,
        1,
        0,
        condition,
    )


def _is_over(entry: Delivery | FastDelivery, sent: bool) -> bool:
    """Whether the link that an entry of a ledger came or left by is over. Args: sent: it left by it."""
    if isinstance(entry, FastDelivery):
        fast: FastDelivery = entry
        return fast.outgoing.over if sent else fast.incoming.over
    delivery: Delivery = entry
    return delivery.link.over


def _delivery(entry: Delivery | FastDelivery, sent: bool) -> Delivery:
    """What an entry of a ledger is, to those who decide. Args: sent: it is a ledger of deliveries that we sent."""
    if isinstance(entry, Delivery):
        return entry
    incoming, outgoing = expand(entry)
    return outgoing if sent else incoming
