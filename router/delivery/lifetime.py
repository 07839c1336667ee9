"""The end of relays and legs, and the parts of a message that are held until then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.delivery import tracing
from amqpmesh.router.model.credit_share import CreditShare
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.node import LaneNode, Node, node_of

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Leg, Relay


def leg_sent(context: Context, leg: Leg) -> None:
    """Note that the last frame of a leg is written, or that the leg was aborted."""
    delivery = leg.delivery
    if context.recording is not None:
        context.recording.sent(leg)
    if context.traces.relays:
        tracing.sent(context, leg)
    if leg.aborting or (delivery is not None and delivery.settled):
        finish(context, leg)


def finish(context: Context, leg: Leg) -> None:
    """End a leg: nothing more is sent on it, and no state of it will come."""
    uncount(context, leg)
    leg.end()
    end_lane(context, leg)
    close_if_done(context, leg.relay)


def end_lane(context: Context, leg: Leg) -> None:
    """Have a replaced lane detached, if this leg was its last."""
    outgoing = leg.outgoing
    assert isinstance(outgoing, OutgoingLink)
    if outgoing.retired:
        context.touch_outgoing(outgoing)


def uncount(context: Context, leg: Leg) -> None:
    """Count a leg no longer as unsettled on its link."""
    if leg.counted:
        outgoing = leg.outgoing
        assert isinstance(outgoing, OutgoingLink)
        leg.counted = False
        outgoing.outstanding -= 1
        keeps = outgoing.endpoint.flow_state.keeps
        if keeps is not None and leg.delivery is not None:
            keeps.drop(leg.delivery.tag)
        if outgoing in outgoing.connection.detached_unsettled:
            recount(context, outgoing)
        if outgoing.outstanding + 1 >= outgoing.max_unsettled:
            context.touch_outgoing(outgoing)


def close_if_done(context: Context, relay: Relay) -> None:
    """End a relay, once both sides have settled it."""
    if relay.closed or relay.queued or not relay.complete:
        return
    if relay.incoming is not None and not relay.incoming.settled:
        return
    if relay.open or (relay.chunks and not relay.legs):
        return
    relay.closed = True
    context.in_flight -= 1
    if isinstance(relay.source, IncomingLink):
        context.end_detached(relay.source)
    drop_kept(context, relay)
    if relay.seen is not None:
        context.kernel.windows.on_ended(relay)
    if context.recording is not None:
        context.recording.relay_ended(relay)
    if context.traces.relays:
        tracing.ended(context, relay)
    context.legs_seen += max(0, len(relay.legs) - 1)
    # Relays, legs and deliveries refer to each other: these circles end here.
    for leg in relay.legs:
        if leg.delivery is not None:
            leg.delivery.leg = None
        if isinstance(leg.outgoing, OutgoingLink):
            context.end_detached(leg.outgoing)
    if relay.incoming is not None:
        relay.incoming.relay = None
    relay.legs = []


def recount(context: Context, outgoing: OutgoingLink) -> None:
    """Count again the unsettled deliveries of a link that was detached without being closed."""
    record = outgoing.connection
    before = record.detached_unsettled.get(outgoing)
    if before is not None:
        record.detached_unsettled[outgoing] = outgoing.outstanding
        record.unsettled_after_detach[outgoing.node] = (
            record.unsettled_after_detach.get(outgoing.node, 0) + outgoing.outstanding - before
        )
        context.end_detached(outgoing)


def drop_chunks(relay: Relay) -> None:
    """Drop the part of a message that has not left."""
    for chunk in relay.chunks:
        chunk.release()
    relay.chunks.clear()


def begin_keeping(context: Context, relay: Relay) -> None:
    """Begin to keep a message that may be sent again, and the node where it would wait."""
    drop_kept(context, relay)
    relay.kept = bytearray()
    node = chosen_at(context, relay)
    assert node is not None
    node.returning += 1


def drop_kept(context: Context, relay: Relay) -> None:
    """Stop keeping a message: it will not be sent again."""
    if relay.kept is not None:
        node = chosen_at(context, relay)
        assert node is not None
        node.account.add(-len(relay.kept))
        relay.kept = None
        node.returning -= 1
        if not node.returning:
            context.touch(node)


def chosen_at(context: Context, relay: Relay) -> Node | None:
    """Return the node where the route of a delivery is chosen; None: its address is unknown."""
    return relay.share.ingress if isinstance(relay.share, CreditShare) else node_of(relay)


def count_undelivered(context: Context, node: Node | None) -> None:
    """Count a delivery that no receiver got. Args: node: its node; None: there is none."""
    context.undelivered += 1
    counts = None if node is None else context.counts_of(node.tenant)
    if counts is not None:
        counts.undelivered += 1
    if node is not None:
        context.seen_as(node).undelivered += 1
        if isinstance(node, LaneNode) and not node.has_consumers:
            context.no_path += 1
