"""Outgoing deliveries: a leg for each receiver, written frame by frame as the receiver takes them (§2.6.14)."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.delivery import message_head, tracing
from amqpmesh.router.delivery.exclusions import listed
from amqpmesh.router.delivery.lifetime import (
    begin_keeping,
    chosen_at,
    close_if_done,
    drop_chunks,
    drop_kept,
    end_lane,
    finish,
    leg_sent,
    uncount,
)
from amqpmesh.router.delivery.permitted import senders_state, too_large
from amqpmesh.router.delivery.queueing import forwarded, unqueue
from amqpmesh.router.delivery.vouches import is_vouched, vouch
from amqpmesh.router.kernel import Chunk, Leg, read_head
from amqpmesh.router.memory.holders import hold
from amqpmesh.router.model.connections import note_sender
from amqpmesh.router.model.lane import LaneKind
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.node import OwnNode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpmesh.router.amqp.codec.types import Symbol, ULong, Value
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Relay
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.model.node import Node


class Sent(Enum):
    """The result of writing a leg. The last three are for the caller to settle, and are rare."""

    #: The last frame is written, or the leg was aborted.
    WRITTEN = auto()
    #: The rest waits: for more of the message, for the session window, or until the peer reads.
    WAITS = auto()
    #: The last frame is written of a delivery whose sender has settled it, but not the lane that it came by.
    HANDED_ON = auto()
    #: The receiver withdrew its credit before the first frame: the delivery can take another route.
    UNSENT = auto()
    #: The message is larger than the receiver's max-message-size (§2.7.3).
    TOO_LARGE = auto()


#: The result of `start` with nothing to settle.
ALL_WRITTEN: Final[Sequence[tuple[Leg, Sent]]] = ()


def start(context: Context, relay: Relay, node: Node, links: list[OutgoingLink]) -> Sequence[tuple[Leg, Sent]] | None:
    """Send all that has come of a message by each link of `links`.

    Returns: the legs that the caller has to settle, `ALL_WRITTEN` if there are none; None: the message has expired.
    """
    chunks = relay.chunks
    if not chunks:
        # Only empty payload had come, and it has left by a leg that is gone.
        chunks.append(Chunk(b"", None, node.account))
    first = chunks[0]
    lane = node.lane
    if lane is not None and relay.key is None:
        relay.key = context.routes.new_key(lane)
    came_in = isinstance(relay.source, IncomingLink) and relay.source.lane is None
    # No router could tell that a settled delivery waits, so its sender would never be held back: such a delivery is
    # unsettled on a transit lane.
    tracked = relay.settled and came_in and lane is not None and lane.kind is LaneKind.TRANSIT
    ours = _for_routers(context, relay, lane, links, tracked=tracked)
    if context.traces.relays:
        tracing.chosen(context, relay, node, links)
        ours = {**ours, **tracing.marks(context, relay, node, links)}
    data = message_head.leaving(
        relay,
        first.data,
        node.config.delivery_annotations,
        context.now,
        ours=ours,
        within_mesh=_is_on_its_way(relay, links),
    )
    if data is None:
        return None
    # Only the ingress router sends a message again, not each router on the way. The router's own are not sent again.
    if node.config.redeliver and not (relay.settled or relay.attempts) and not node.is_multicast and came_in:
        begin_keeping(context, relay)
        for chunk in chunks:
            if relay.kept is not None:
                keep(context, relay, chunk.data)
    if data is not first.data:
        # If no frame of it leaves after all, it is treated as if it had come in this form, now.
        first.data = data
        if relay.head is not None:
            relay.head = read_head(data, complete=True)
            relay.arrived = context.now
    relay.attempts += 1
    node.left_at = context.now
    forwarded(context, relay)
    watchers = list(node.copies)
    for share in node.shares:
        share.take(context.now)
        share.pool.forwarded(share.credit_sink, context.now)
        watchers += share.node.copies
        context.touch(share.node)
    legs = [Leg(relay, each, False) for each in links]
    for chunk in chunks:
        chunk.holders = len(legs)
    for leg in legs:
        leg.tracked = tracked
        leg.chunks.extend(chunks)
    if relay.attempts == 1:
        for each in watchers:
            copy = Leg(relay, each, True)
            if all(give_copy(context, copy, chunk.data) for chunk in chunks):
                legs.append(copy)
    context.legs_seen += max(0, len(legs) - 1)
    if context.traces.relays:
        tracing.mark_lanes(context, relay, legs)
    for leg in legs:
        relay.add(leg)
    chunks.clear()
    unsettled = ALL_WRITTEN
    for leg in legs:
        outgoing = leg.outgoing
        assert isinstance(outgoing, OutgoingLink)
        if leg.copy and not outgoing.is_ready:
            outgoing.backlog.append(leg)
            continue
        _begin_leg(context, outgoing, leg)
        sent = pump(context, outgoing)
        if sent is not None:
            unsettled = [*unsettled, (leg, sent)]
    return unsettled


def _for_routers(
    context: Context, relay: Relay, lane: Lane | None, links: list[OutgoingLink], *, tracked: bool
) -> dict[Symbol | ULong, Value]:
    """Return the delivery annotations of a message for the next router.

    Args: lane: of the node that the message leaves from. links: those that it leaves by. tracked: as of its legs.
    """
    if lane is not None and lane.kind is LaneKind.TRANSIT and relay.to is not None:
        ours: dict[Symbol | ULong, Value] = {message_head.FINAL_ADDRESS: relay.to}
        if tracked:
            ours[message_head.PRESETTLED] = True
        if is_vouched(context, relay.to):
            ours.update(vouch(context, relay, lane, relay.chunks[0].data))
        return ours
    return listed(relay, links)


def _is_on_its_way(relay: Relay, links: list[OutgoingLink]) -> bool:
    """Tell whether a message came by a lane, and leaves by lanes of the same kind or to a node of the router's own.

    Then the annotations of routers pass.
    """
    source = relay.source
    came_by = source.lane if isinstance(source, IncomingLink) else None
    return came_by is not None and all(
        each.connection.own if each.lane is None else each.lane.kind is came_by.kind for each in links
    )


def give_copy(context: Context, leg: Leg, data: bytes) -> bool:
    """Give a `copy` receiver the next payload of a message, in a chunk of its own, which holds up no sender.

    Returns: False, if its backlog is full: then the receiver gets no more of this message.
    """
    outgoing = leg.outgoing
    assert isinstance(outgoing, OutgoingLink)
    budget = outgoing.copies
    assert budget is not None, "it sees copies"
    if budget.used + len(data) > budget.limit or context.memory.is_over(outgoing.connection.account):
        outgoing.missed += 1
        for chunk in leg.chunks:
            chunk.release()
        leg.chunks.clear()
        return False
    leg.chunks.append(Chunk(data, None, budget))
    return True


def keep(context: Context, relay: Relay, payload: bytes) -> None:
    """Keep the next payload of a message for a redelivery, unless the message is too large for one."""
    assert relay.kept is not None
    node = chosen_at(context, relay)
    assert node is not None
    relay.kept += payload
    node.account.add(len(payload))
    if len(relay.kept) > node.config.redeliver_max or context.memory.is_over(node.account):
        drop_kept(context, relay)


def _begin_leg(context: Context, outgoing: OutgoingLink, leg: Leg) -> None:
    relay = leg.relay
    if relay.key is None and outgoing.lane is not None:
        # The lane leads to a remote consumer of an address here: the delivery enters the mesh here.
        relay.key = context.routes.new_key(outgoing.lane)
    settled = (relay.settled or relay.presettled) and not leg.tracked
    leg.delivery = outgoing.endpoint.delivery(
        outgoing.next_tag(relay.key), message_format=relay.message_format, settled=settled
    )
    if outgoing.lane is not None and (leg.tracked or not relay.second):
        # Lanes are of mode second, for the deliveries that need it (§2.7.5).
        leg.delivery.rcv_settle_mode = ReceiverSettleMode.FIRST.value
    leg.delivery.leg = leg
    if outgoing.connection.own and isinstance(outgoing.node, OwnNode) and isinstance(relay.source, IncomingLink):
        note_sender(outgoing.node, leg.delivery.tag, relay.source)
    outgoing.current = leg
    if outgoing.bulk and isinstance(relay.source, IncomingLink):
        relay.source.begin_bulk(outgoing.node, leg)
    if not settled:
        leg.counted = True
        outgoing.outstanding += 1
    context.touch_outgoing(outgoing)


def pump(context: Context, outgoing: OutgoingLink) -> Sent | None:
    """Write the current leg of an outgoing link, as far as window and output allow, then the copies of its backlog.

    Returns: the result of the current leg, if the caller has to settle it; else None. Copies are settled here.
    """
    while True:
        leg = outgoing.current
        if leg is None:
            if outgoing.backlog:
                if outgoing.is_ready:
                    _begin_leg(context, outgoing, outgoing.backlog.popleft())
                    continue
                outgoing.stall()
            elif outgoing.copy and not outgoing.gone:
                outgoing.endpoint.drained()
            return None
        sent = _write(context, outgoing, leg)
        if sent is Sent.WRITTEN:
            outgoing.current = None
            may_pass(leg)
            context.touch_outgoing(outgoing)
            if leg.relay.presettled and not (leg.relay.settled or leg.copy or leg.aborting):
                return Sent.HANDED_ON
            leg_sent(context, leg)
        elif sent is Sent.TOO_LARGE and leg.copy:
            leg.decide(too_large(outgoing.endpoint.remote_max_message_size))
            leg.outcome_at = context.now
            _give_up_rest(leg)
        else:
            hold(context.memory, leg)
            return None if sent is Sent.WAITS else sent


def may_pass(leg: Leg) -> None:
    """Let later deliveries overtake a leg: no more frames of it will be written."""
    source, outgoing = leg.relay.source, leg.outgoing
    assert isinstance(outgoing, OutgoingLink)
    if outgoing.bulk and isinstance(source, IncomingLink):
        source.end_bulk(outgoing.node, leg)


def _write(context: Context, outgoing: OutgoingLink, leg: Leg) -> Sent:
    """Write a leg, as far as window and output allow."""
    relay = leg.relay
    delivery = leg.delivery
    assert delivery is not None
    sender = outgoing.endpoint
    if outgoing.gone or not sender.session.can_send:
        # The session has ended, and the link is about to end.
        return Sent.WRITTEN if leg.aborting else Sent.WAITS
    if leg.aborting:
        if not leg.started:
            return Sent.WRITTEN
        sender.transfer(delivery, aborted=True)
        if delivery.complete:
            return Sent.WRITTEN
        outgoing.stall()
        return Sent.WAITS
    if not leg.started and sender.credit <= 0:
        # The receiver withdrew its credit before the first frame.
        if relay.legs == [leg] and not leg.copy:
            outgoing.current = None
            may_pass(leg)
            context.touch_outgoing(outgoing)
            return Sent.UNSENT
        return Sent.WAITS
    limit = sender.remote_max_message_size
    chunks = leg.chunks
    while chunks:
        chunk = chunks[0]
        last = relay.complete and len(chunks) == 1
        data: bytes | memoryview = chunk.data
        if leg.offset:
            data = memoryview(data)[leg.offset :]
        if limit and delivery.size + len(data) > limit:
            return Sent.TOO_LARGE
        if not data and not last:
            chunks.popleft().release()
            leg.offset = 0
            continue
        if outgoing.is_held_up:
            if context.traces.relays:
                tracing.held_up(context, leg)
            outgoing.stall()
            return Sent.WAITS
        settles = relay.settled and not delivery.settled and not leg.tracked
        # The state that the sender gave goes with the first frame (§2.7.5, state).
        said = senders_state(relay.incoming) if relay.incoming is not None and not leg.started else None
        taken = sender.transfer(delivery, data, more=not last, settled=settles, state=said)
        if delivery.delivery_id != -1 and not leg.started:
            leg.started = True
            if context.traces.relays:
                tracing.left(context, leg)
            sender.flow_state.last_at = context.now
            outgoing.note_credit()
        keeps = sender.flow_state.keeps
        if keeps is not None and leg.counted and (taken or delivery.complete):
            keeps.keep(delivery.tag, bytes(data[:taken]), delivery.size == taken, not delivery.complete)
        if settles and delivery.settled:
            uncount(context, leg)
        if taken < len(data) or (last and not delivery.complete):
            if context.traces.relays:
                tracing.held_up(context, leg)
            leg.offset += taken
            outgoing.stall()
            return Sent.WAITS
        chunks.popleft().release()
        leg.offset = 0
    return Sent.WRITTEN if delivery.complete else Sent.WAITS


def abort(context: Context, relay: Relay) -> None:
    """Abort a delivery that its sender has aborted, or whose sender is gone before the last frame (§2.7.5)."""
    unqueue(context, relay)
    forwarded(context, relay, left=False)
    relay.dropped = True
    relay.complete = True
    if relay.incoming is not None:
        relay.incoming.relay = None
        relay.incoming = None
    relay.settled = True
    drop_chunks(relay)
    for leg in relay.legs:
        if not leg.done and not (leg.delivery is not None and leg.delivery.complete):
            abort_leg(context, leg)
    close_if_done(context, relay)


def abort_leg(context: Context, leg: Leg) -> None:
    """Abort a leg whose last frame is not written; its receiver gets `aborted`, if it has got a frame."""
    outgoing = leg.outgoing
    assert isinstance(outgoing, OutgoingLink)
    _give_up_rest(leg)
    if outgoing.current is leg:
        # With a closed session window, the frame leaves as soon as the window opens.
        pump(context, outgoing)
    elif leg in outgoing.backlog:
        outgoing.backlog.remove(leg)
        finish(context, leg)


def _give_up_rest(leg: Leg) -> None:
    """Drop the unwritten rest of a leg; its next frame is the last one, with `aborted` (§2.7.5)."""
    leg.aborting = True
    for chunk in leg.chunks:
        chunk.release()
    leg.chunks.clear()


def uncount_or_abort(context: Context, leg: Leg) -> None:
    """End a leg that is settled on the receiver's side; if frames of it are unwritten, abort it."""
    uncount(context, leg)
    if leg.delivery is not None and not leg.delivery.complete:
        abort_leg(context, leg)
    else:
        leg.end()
        end_lane(context, leg)
