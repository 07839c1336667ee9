"""Incoming deliveries, frame by frame: their head sections, and the nodes that they are for (§2.6.14).

A message is cut through: its first frame leaves as soon as its head is known and a receiver has credit. Frames that
cannot leave yet are kept as chunks, and hold the sender's session window. So they take no more memory than the window
allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.policies.expiry import seconds_left
from amqpmesh.router.amqp.events import HELD_BACK, CreditChanged, DispositionReceived, Event, TransferReceived
from amqpmesh.router.amqp.shortening import lasting_state
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.delivery import decisions, hop_spans, message_head, tracing
from amqpmesh.router.delivery.anonymous_routes import annotations_alone, open_route, resolve
from amqpmesh.router.delivery.dispatch import send_more, send_on
from amqpmesh.router.delivery.duplicates import is_first, looks_at, read_id
from amqpmesh.router.delivery.exclusions import is_excluded, nobody_else, read
from amqpmesh.router.delivery.fast_routes import open_input
from amqpmesh.router.delivery.foreign_user_ids import foreign_user_id, hidden_user_id
from amqpmesh.router.delivery.lifetime import close_if_done, drop_kept
from amqpmesh.router.delivery.link_loss import fail_link
from amqpmesh.router.delivery.permitted import rejected, unknown_transaction
from amqpmesh.router.delivery.queueing import config_of, enqueue, forwarded, is_full
from amqpmesh.router.delivery.refusal import fail_and_tell, fail_sender, refuse, refuse_and_tell
from amqpmesh.router.delivery.sending import abort, abort_leg, give_copy, keep
from amqpmesh.router.delivery.settlement import end_unsent, undelivered
from amqpmesh.router.delivery.vouches import is_vouched
from amqpmesh.router.kernel import (
    ACCEPTED,
    DECLARED,
    SMALL,
    TRANSACTIONAL,
    Chunk,
    Incomplete,
    Pool,
    Relay,
    Violation,
    goes_by,
    pause_ahead,
    read_expiry,
    read_head,
    read_header_info,
    read_to,
    state_kind,
    take_held,
)
from amqpmesh.router.memory.holders import begun_on
from amqpmesh.router.model.foreign_links import name_of
from amqpmesh.router.model.lane import LaneKind, next_tag
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.refusal import RefusedError
from amqpmesh.router.statistics.common import Decision

if TYPE_CHECKING:
    from collections import deque

    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Budget, HeldDelivery, KernelConnection, KernelSession
    from amqpmesh.router.model.node import Node


def transfer_received(context: Context, event: TransferReceived, came_at: float | None = None) -> None:
    """Handle one frame of a delivery. Args: came_at: its time, seconds; None: it is now."""
    incoming = event.link.context
    session = event.link.session.flow_state
    delivery = event.delivery
    if not isinstance(incoming, IncomingLink) or incoming in context.ended_links.stopped:
        # The attach is not answered yet, or the link is refused, or is about to be detached: the frame is counted and
        # dropped.
        session.release(1)
        return
    has_route = decisions.came(context, incoming) if event.first else True
    delivery.remote_state = lasting_state(delivery.remote_state)
    if state_kind(delivery.remote_state) in (TRANSACTIONAL, DECLARED):
        session.release(1)
        fail_link(context, incoming, unknown_transaction())
        return
    if event.first:
        now = context.now if came_at is None else came_at
        relay = Relay(incoming, delivery, delivery.message_format, now)
        delivery.relay = relay
        incoming.current = relay
        context.in_flight += 1
        delivery.link.last_at = now
        if not delivery.link.link_credit:
            incoming.time_credit(now)
        incoming.pool.received(incoming.credit_sink, now)
        if delivery.complete and not delivery.aborted and delivery.size < SMALL:
            context.kernel.small_at = context.now
        elif isinstance(incoming.pool, Pool):
            pause_ahead(incoming.pool, context.now)
        delivery.link.credit_slack = incoming.credit_sink.credit_slack
        context.touch_input(incoming)
    else:
        assert delivery.relay is not None
        relay = delivery.relay
        if delivery.remote_settled and not relay.settled:
            # The delivery and its legs are pre-settled from this frame on (§2.7.5, settled).
            relay.settled = relay.presettled = True
            drop_kept(context, relay)
            if relay.legs:
                forwarded(context, relay, left=False)  # no other router will tell any more that it waits there
    if delivery.aborted:
        incoming.current = None
        session.release(1)
        abort(context, relay)
        return
    if (
        relay.node is not None
        and not (event.first or relay.dropped)
        and (hidden := hidden_user_id(context, incoming, event.payload, complete=delivery.complete)) is not None
    ):
        session.release(1)
        fail_and_tell(context, relay, relay.to or name_of(incoming), hidden)
        return
    if delivery.complete:
        relay.complete = True
        incoming.current = None
    if relay.dropped:
        session.release(1)
        close_if_done(context, relay)
        return
    _append(context, relay, event.payload, session, has_route=has_route)
    if event.first:
        open_input(context, incoming)


def receive_before(context: Context, event: Event, wire: KernelConnection) -> None:
    """Receive what the kernel holds back before an event of a connection is handled, unless it concerns none of that.

    Credit and accepted deliveries concern a node whose pool they close: what is held back there is received at the end
    of the batch.
    """
    if event is HELD_BACK:
        receive_held(context, wire=wire)
    elif context.kernel.held_back and not (
        (isinstance(event, CreditChanged) and isinstance(event.link.context, OutgoingLink))
        or (isinstance(event, DispositionReceived) and _is_accepted(event))
    ):
        receive_held(context)


def _is_accepted(event: DispositionReceived) -> bool:
    """Return whether receivers have accepted deliveries: none of them comes back."""
    return state_kind(event.state) == ACCEPTED and all(each.link.sender for each in event.deliveries)


def receive_held(context: Context, *, closed: bool = False, wire: KernelConnection | None = None) -> None:
    """Count what the kernel has relayed alone, and receive what it holds back: that waits for credit from now on.

    Args: closed: leave what waits at nodes whose credit the kernel divides. wire: leave what came by other connections.
    """
    kernel = context.kernel
    if kernel.has_news():
        context.catch_up()
    if not kernel.held_back:
        return
    waiting = [(pool, held) for pool in kernel.held_back if not (closed and _stays(pool)) for held in pool.held or ()]
    waiting.sort(key=_is_before_exit)  # those that are further on came before
    for pool, held in waiting:
        if wire is not None and held.link.session.wire is not wire:
            continue
        incoming = held.link.record
        assert isinstance(incoming, IncomingLink)
        delivery = take_held(kernel, pool, held)
        transfer_received(context, TransferReceived(incoming.endpoint, delivery, held.payload, True), held.came_at)


def _stays(pool: Pool) -> bool:
    """Return whether the kernel divides the credit of a pool, and of the ingresses that what it holds back has come by:
    else a later delivery, which waits there, would overtake.
    """
    return pool.is_open and all(_is_ingress_open(held) for held in pool.held or () if held.at_exit)


def _is_ingress_open(held: HeldDelivery) -> bool:
    sink = held.link.sink
    return sink is not None and sink.pool is not None and sink.pool.is_open


def _is_before_exit(waiting: tuple[Pool, HeldDelivery]) -> bool:
    return not waiting[1].at_exit


def _append(context: Context, relay: Relay, payload: bytes, session: KernelSession, *, has_route: bool) -> None:
    """Append the next payload of a relay to its legs, or to its queue."""
    source = relay.source
    assert isinstance(source, IncomingLink)
    account = _account(relay, source)
    if source.lane is not None and relay.complete and not relay.legs and not relay.chunks:
        # All lanes of a neighbour share its session: a whole message that waits must not close the window for others.
        session.release(1)
        chunk = Chunk(payload, None, account)
    else:
        chunk = Chunk(payload, session, account)
    if not relay.legs:
        relay.chunks.append(chunk)
        if relay.node is None:
            _route(context, relay, has_route=has_route)
        return
    if relay.kept is not None:
        keep(context, relay, payload)
    context.legs_seen += max(0, len(relay.legs) - 1)
    for leg in [leg for leg in relay.legs if not leg.done and not leg.aborting]:
        if not leg.copy:
            chunk.holders += 1
            leg.chunks.append(chunk)
        elif not give_copy(context, leg, payload):
            abort_leg(context, leg)
            continue
        outgoing = leg.outgoing
        assert isinstance(outgoing, OutgoingLink)
        if outgoing.current is leg:
            if outgoing.bulk:  # the kernel may have begun the delivery
                source.begin_bulk(outgoing.node, leg)
            send_more(context, outgoing)
    # This function held the chunk until here, so that no leg freed it before the next leg had it.
    chunk.release()
    close_if_done(context, relay)


def _account(relay: Relay, source: IncomingLink) -> Budget:
    """Return the account of the next payload: that of the payload before it; the sender's until the node is known."""
    if relay.chunks:
        return relay.chunks[0].account
    for leg in relay.legs:
        if not leg.copy:
            assert isinstance(leg.outgoing, OutgoingLink)
            return begun_on(relay, leg.outgoing)
    return source.connection.account


def _route(context: Context, relay: Relay, *, has_route: bool) -> None:
    """Read the head of a message, find its node, and send its first frame or queue it.

    Args: has_route: the link has a valid fast route, so the decision has another reason.
    """
    incoming = relay.source
    assert isinstance(incoming, IncomingLink)
    chunks = relay.chunks
    frames = len(chunks) if relay.complete else 2
    data = _joined(chunks)
    lane = incoming.lane
    to = incoming.to
    anonymous = incoming.node is None
    if relay.message_format == 0:
        head = read_head(data, relay.complete)
        if head is not None and anonymous and to is None:
            try:
                to = read_to(data, head.bare_at) if lane is None else message_head.final_address(data, head)
            except Incomplete:
                if not relay.complete:
                    head = None
            except Violation as violation:
                refuse(context, relay, Error(condition=AmqpCondition.DECODE_ERROR, description=violation.description))
                return
        if head is not None:
            try:
                foreign = foreign_user_id(context, relay, incoming, data, head)
            except Incomplete:
                head = None
            else:
                if foreign is not None:
                    refuse_and_tell(context, relay, to or name_of(incoming), foreign)
                    return
        if head is None:
            limit = incoming.connection.limits.head_max
            if len(data) > limit:
                state = rejected(AmqpCondition.RESOURCE_LIMIT_EXCEEDED, f"head sections of more than {limit} octets")
                end_unsent(context, relay, state)
            return
        if incoming.connection.strict_annotations:
            strange = message_head.strict_refusal(data, head)
            if strange is not None:
                fail_sender(context, relay, strange)
                return
        if head.irregular:
            context.irregular_heads += 1
        relay.head = head
        relay.priority = head.priority
        if anonymous and lane is not None and message_head.is_presettled(data, head):
            relay.presettled = True
        if lane is not None and head.delivery_annotations[1]:
            tracing.came(context, relay, incoming, data)
        if context.recording is not None and head.header[1]:
            relay.header_info = read_header_info(data, *head.header)
    elif (foreign := foreign_user_id(context, relay, incoming, data, None)) is not None:
        refuse_and_tell(context, relay, to or name_of(incoming), foreign)
        return
    elif anonymous:
        description = "an anonymous terminus needs messages of format 0"
        refuse(context, relay, Error(condition=AmqpCondition.NOT_IMPLEMENTED, description=description))
        return
    if anonymous and not to:
        # No router can ever serve the message, so sending it again would not help.
        description = "an anonymous terminus needs messages with `to`"
        refuse(context, relay, Error(condition=AmqpCondition.PRECONDITION_FAILED, description=description))
        return
    named = to
    try:
        if anonymous:
            assert to
            node, to = resolve(context, incoming, to)
        else:
            node = incoming.node
    except RefusedError as refusal:
        refuse_and_tell(context, relay, named, refusal)
        return
    if (
        is_vouched(context, to)
        and lane is None
        and not relay.complete
        and len(data) <= incoming.connection.limits.head_max
    ):
        return  # the vouch is for the whole of a request, which is short
    if context.traces.awaits:
        tracing.catch(context, relay, incoming, node, to, len(data))
    if context.traces.spans is not None:
        hop_spans.begin(context, relay, incoming, node, to, data)
    is_served = node is not None and node.has_consumers
    if node is not None and is_served:
        if anonymous and lane is None:
            relay.to = to
        if context.honours_expiry and not _note_expiry(context, relay, node, data):
            return
        if node.config.drops_duplicates and looks_at(node) and not read_id(relay, node, data):
            return
    # The history of a tree is asked last: a delivery counts as come once it is decided about.
    if (
        node is None
        or not is_served
        or not _may_hop(context, relay, incoming, node)
        or not _is_new(context, relay, incoming)
    ):
        if node is not None:
            decisions.note(context, incoming, node, Decision.NO_RECEIVER)
        undelivered(context, relay, node)
        return
    relay.node = node
    goes_by(incoming.connection.engine.flow_state, node.fast_route)
    known = decisions.before(context, relay, incoming, node, named, has_route=has_route)
    if anonymous and named is not None:
        name = named.encode() if lane is None else annotations_alone(relay, data)
        open_route(context, incoming, node, named, relay.to, name, settled=lane is not None and relay.presettled)
    if anonymous and lane is None and is_full(context, relay, node, incoming):
        decisions.note(context, incoming, node, Decision.QUEUED)
        undelivered(context, relay, node)
        return
    if lane is not None and lane.kind is LaneKind.ANYCAST:
        read(context, relay, data, node)
        if is_excluded(relay, node):
            decisions.note(context, incoming, node, Decision.EXCLUDED)
            end_unsent(context, relay, nobody_else(context, relay))
            return
    if relay.message_id is not None and not is_first(context, relay, node):
        decisions.note(context, incoming, node, Decision.DUPLICATE)
        return
    is_over = (node.waiting.size or not send_on(context, relay, node)) and not enqueue(context, relay, node, incoming)
    reason = decisions.after(relay, incoming, node, known, frames=frames, octets=len(data))
    decisions.note(context, incoming, node, reason)
    if is_over:
        undelivered(context, relay, node)


def _note_expiry(context: Context, relay: Relay, node: Node, data: bytes) -> bool:
    """Note the absolute expiry of a message, if its address honours it. Returns: False: more of it must come first."""
    head, source = relay.head, relay.source
    assert isinstance(source, IncomingLink)
    if head is None or not config_of(context, relay, node).absolute_expiry:
        return True
    try:
        expiry = read_expiry(data, head.bare_at)
    except Violation:
        return True  # a malformed section has no expiry, and is the receiver's concern
    except Incomplete:
        return relay.complete or len(data) > source.connection.limits.head_max
    if expiry is not None:
        relay.expires = context.now + seconds_left(expiry, context.wall_clock())
    return True


def _joined(chunks: deque[Chunk]) -> bytes:
    """Join chunks into one, so that a head in many small frames does not use up the window that it needs."""
    first = chunks[0]
    if len(chunks) > 1:
        first.data = b"".join(chunk.data for chunk in chunks)
        while len(chunks) > 1:
            first.absorb(chunks.pop())
    return first.data


def _may_hop(context: Context, relay: Relay, incoming: IncomingLink, node: Node) -> bool:
    """Tell whether a delivery of a lane may go on: it has a hop left, and does not return to its neighbour."""
    if incoming.lane is None or node.lane is None:
        return True
    assert relay.incoming is not None
    relay.key = next_tag(relay.incoming.tag)
    if incoming.lane.kind is LaneKind.TREE:
        may = relay.key is not None or not node.outgoing
    else:
        # Without an outgoing link it waits for a router that is likely to come back.
        neighbour = incoming.connection.peer.container_id
        turns = node.outgoing and all(each.connection.peer.container_id == neighbour for each in node.outgoing)
        may = relay.key is not None and not turns
    context.no_hops += not may
    return may


def _is_new(context: Context, relay: Relay, incoming: IncomingLink) -> bool:
    """Tell whether a delivery has not come before by another parent, as it may while a tree changes."""
    if incoming.lane is None or incoming.lane.kind is not LaneKind.TREE:
        return True
    assert relay.incoming is not None
    return context.routes.is_new(incoming, relay.incoming.tag)
