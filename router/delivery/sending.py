"""Deliveries that leave, frame by frame: a leg for each receiver, written as far as it takes frames (§2.6.14)."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.delivery import message_head
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
from amqpmesh.router.kernel import Chunk, Leg, read_head
from amqpmesh.router.memory.holders import hold
from amqpmesh.router.model.lane import LaneKind
from amqpmesh.router.model.links import IncomingLink, OutgoingLink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpmesh.router.amqp.codec.types import Symbol, ULong, Value
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Relay
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.model.node import Address


class Sent(Enum):
    """What happened when a leg was written. The caller settles the last three; most calls have nothing to settle."""

    #: The last frame is written, or the leg was aborted.
    WRITTEN = auto()
    #: The rest waits for more of the message, or for the peer to read.
    WAITS = auto()
    #: The last frame is written of a delivery that is settled for all but the router where it came in.
    HANDED_ON = auto()
    #: The receiver withdrew its credit before the first frame: the delivery can take another route.
    UNSENT = auto()
    #: The message is larger than the receiver's max-message-size (§2.7.3).
    TOO_LARGE = auto()


#: What `start` returns when there is nothing to settle.
ALL_WRITTEN: Final[Sequence[tuple[Leg, Sent]]] = ()


def start(
    context: Context, relay: Relay, address: Address, taken: list[OutgoingLink]
) -> Sequence[tuple[Leg, Sent]] | None:
    """Send all that has come of a message to each of `taken`.

    Returns: the legs that the caller has to settle, `ALL_WRITTEN` if there are none; None: the message has expired.
    """
    chunks = relay.chunks
    if not chunks:
        # All that had come was empty, and left by a leg that is gone.
        chunks.append(Chunk(b"", None, address.account))
    first = chunks[0]
    lane = address.lane
    if lane is not None and relay.key is None:
        relay.key = context.routes.new_key(lane)
    came_in = isinstance(relay.source, IncomingLink) and relay.source.lane is None
    # Of what is settled no router could say that it waits, and its sender would never wait.
    tracked = relay.settled and came_in and lane is not None and lane.kind is LaneKind.TRANSIT
    data = message_head.leaving(
        relay,
        first.data,
        address.config.delivery_annotations,
        context.now,
        ours=_for_routers(relay, lane, taken, tracked=tracked),
        within_mesh=_is_on_its_way(relay, taken),
    )
    if data is None:
        return None
    # Where a message came in, it is sent again: else every router on its way would. Of the router's own none is.
    if address.config.redeliver and not (relay.settled or relay.attempts) and not address.is_multicast and came_in:
        begin_keeping(context, relay)
        for chunk in chunks:
            if relay.kept is not None:
                keep(context, relay, chunk.data)
    if data is not first.data:
        # Should nothing of it be sent after all, it is as if it had come so, now.
        first.data = data
        if relay.head is not None:
            relay.head = read_head(data, complete=True)
            relay.arrived = context.now
    relay.attempts += 1
    address.left_at = context.now
    forwarded(context, relay)
    watchers = list(address.copies)
    for share in address.shares:
        share.take(context.now)
        share.pool.forwarded(share.input, context.now)
        watchers += share.node.copies
        context.touch(share.node)
    legs = [Leg(relay, each, False) for each in taken]
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
    for leg in legs:
        relay.add(leg)
    chunks.clear()
    unsettled = ALL_WRITTEN
    for leg in legs:
        outgoing = leg.branch
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
    relay: Relay, lane: Lane | None, taken: list[OutgoingLink], *, tracked: bool
) -> dict[Symbol | ULong, Value]:
    """What a message says to the next router.

    Args: lane: of the node that it leaves from. taken: the links. tracked: as of its legs.
    """
    if lane is not None and lane.kind is LaneKind.TRANSIT and relay.to is not None:
        return {message_head.FINAL_ADDRESS: relay.to, **({message_head.PRESETTLED: True} if tracked else {})}
    return listed(relay, taken)


def _is_on_its_way(relay: Relay, taken: list[OutgoingLink]) -> bool:
    """Whether a message came by a lane, and leaves by one of its kind: for that is what routers say in it."""
    source = relay.source
    came_by = source.lane if isinstance(source, IncomingLink) else None
    return came_by is not None and all(each.lane is not None and each.lane.kind is came_by.kind for each in taken)


def give_copy(context: Context, leg: Leg, data: bytes) -> bool:
    """Give a `copy` receiver the next part of a message, in a chunk of its own: it holds up no sender.

    Returns: False, if its backlog is full: then it sees no more of this message.
    """
    outgoing = leg.branch
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
    """Keep the message for a redelivery, while it is small enough for one."""
    assert relay.kept is not None
    address = chosen_at(context, relay)
    assert address is not None
    relay.kept += payload
    address.account.add(len(payload))
    if len(relay.kept) > address.config.redeliver_max or context.memory.is_over(address.account):
        drop_kept(context, relay)


def _begin_leg(context: Context, outgoing: OutgoingLink, leg: Leg) -> None:
    relay = leg.relay
    if relay.key is None and outgoing.lane is not None:
        # A consumer of an address here, which is at another router: wherever it came from, it begins its way there.
        relay.key = context.routes.new_key(outgoing.lane)
    settled = (relay.settled or relay.presettled) and not leg.tracked
    leg.delivery = outgoing.link.delivery(
        outgoing.next_tag(relay.key), message_format=relay.message_format, settled=settled
    )
    if outgoing.lane is not None and (leg.tracked or not relay.second):
        # Lanes are of mode second, for those that need it (§2.7.5).
        leg.delivery.rcv_settle_mode = ReceiverSettleMode.FIRST.value
    leg.delivery.leg = leg
    outgoing.current = leg
    if outgoing.bulk and isinstance(relay.source, IncomingLink):
        relay.source.begin_bulk(outgoing.address, leg)
    if not settled:
        leg.counted = True
        outgoing.outstanding += 1
    context.touch_outgoing(outgoing)


def pump(context: Context, outgoing: OutgoingLink) -> Sent | None:
    """Write what the current leg of an outgoing link has, as far as window and output allow; then waiting copies.

    Returns: what the caller has to settle of that leg; None: nothing. It is never anything of a copy.
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
                outgoing.link.drained()
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
            leg.decide(too_large(outgoing.link.remote_max_message_size))
            leg.outcome_at = context.now
            _give_up_rest(leg)
        else:
            hold(context.memory, leg)
            return None if sent is Sent.WAITS else sent


def may_pass(leg: Leg) -> None:
    """No more frames of a leg are to be written: what comes behind it need not follow it any more."""
    source, outgoing = leg.relay.source, leg.branch
    assert isinstance(outgoing, OutgoingLink)
    if outgoing.bulk and isinstance(source, IncomingLink):
        source.end_bulk(outgoing.address, leg)


def _write(context: Context, outgoing: OutgoingLink, leg: Leg) -> Sent:
    """Write what the leg has, as far as window and output allow."""
    relay = leg.relay
    delivery = leg.delivery
    assert delivery is not None
    sender = outgoing.link
    if outgoing.gone or not sender.session.can_send:
        # Its session is over, and the link about to be let go of.
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
        # The receiver took its credit back before a frame was sent.
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
            outgoing.stall()
            return Sent.WAITS
        settles = relay.settled and not delivery.settled and not leg.tracked
        # What the sender had said of it goes with the first frame (§2.7.5, state).
        said = senders_state(relay.incoming) if relay.incoming is not None and not leg.started else None
        taken = sender.transfer(delivery, data, more=not last, settled=settles, state=said)
        if delivery.delivery_id != -1 and not leg.started:
            leg.started = True
            sender.flow_state.last_at = context.now
            outgoing.note_credit()
        if settles and delivery.settled:
            uncount(context, leg)
        if taken < len(data) or (last and not delivery.complete):
            leg.offset += taken
            outgoing.stall()
            return Sent.WAITS
        chunks.popleft().release()
        leg.offset = 0
    return Sent.WRITTEN if delivery.complete else Sent.WAITS


def abort(context: Context, relay: Relay) -> None:
    """The sender aborted it, or is gone in the middle of it: so do its legs (§2.7.5, aborted)."""
    unqueue(context, relay)
    forwarded(context, relay, left=False)
    relay.dropped = True
    relay.complete = True
    relay.incoming = None
    relay.settled = True
    drop_chunks(relay)
    for leg in relay.legs:
        if not leg.done and not (leg.delivery is not None and leg.delivery.complete):
            abort_leg(context, leg)
    close_if_done(context, relay)


def abort_leg(context: Context, leg: Leg) -> None:
    """Give up a leg whose last frame is not written; the receiver hears `aborted` if it heard anything."""
    outgoing = leg.branch
    assert isinstance(outgoing, OutgoingLink)
    _give_up_rest(leg)
    if outgoing.current is leg:
        # Where the session's window is closed, the frame goes as soon as it opens.
        pump(context, outgoing)
    elif leg in outgoing.backlog:
        outgoing.backlog.remove(leg)
        finish(context, leg)


def _give_up_rest(leg: Leg) -> None:
    """Drop what is not written of a leg; its next frame is its last, and says `aborted` (§2.7.5)."""
    leg.aborting = True
    for chunk in leg.chunks:
        chunk.release()
    leg.chunks.clear()


def uncount_or_abort(context: Context, leg: Leg) -> None:
    """The receiver's end of a leg is settled; if its frames are not all written, no more are."""
    uncount(context, leg)
    if leg.delivery is not None and not leg.delivery.complete:
        abort_leg(context, leg)
    else:
        leg.end()
        end_lane(context, leg)
