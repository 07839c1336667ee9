"""Deliveries that wait at a node for a receiver, and the credit of their senders meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.standard.messaging import Received
from amqpmesh.router.config.limits import UINT_MAX
from amqpmesh.router.credit.anonymous_window import Portion, SharedWindow
from amqpmesh.router.delivery import message_head, tracing
from amqpmesh.router.kernel import RELEASED, dispose, state_kind
from amqpmesh.router.memory.holders import waiting_at
from amqpmesh.router.model.credit_share import CreditShare
from amqpmesh.router.model.lane import LaneKind
from amqpmesh.router.model.links import IncomingLink
from amqpmesh.router.model.node import Node, node_of

if TYPE_CHECKING:
    from amqpmesh.router.config.file import AddressConfig
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Relay


#: The states by which a router tells the ingress router that a delivery of a transit lane waits for credit, and that it
#: has left. No receiver gives them: a message has no section of that number.
WAITS: Final = encode_composite(Received(section_number=UINT_MAX, section_offset=1))
LEFT: Final = encode_composite(Received(section_number=UINT_MAX, section_offset=2))

#: In place of a portion: the ingress router was told that the delivery waits.
_TOLD: Final = object()


def enqueue(context: Context, relay: Relay, node: Node, incoming: IncomingLink) -> bool:
    """Queue a delivery that no receiver can take now. A delivery of an anonymous sender waits only for a limited time.

    Returns: False, if the delivery of an anonymous sender may not wait, since the memory is used up.
    """
    if incoming.node is None:
        if context.memory.is_over(waiting_at(context.memory, relay, node)):
            return False
        _hold(context, relay, incoming, node)
    wait(context, relay, node)
    context.touch(node)
    return True


def wait(context: Context, relay: Relay, node: Node) -> None:
    """Queue a delivery at a node, and count it on the node's account."""
    account = waiting_at(context.memory, relay, node)
    for chunk in relay.chunks:
        chunk.move(account)
    node.wait(relay, deadline(context, relay, node))
    if context.traces.relays:
        tracing.waits(context, relay, node)


def is_full(context: Context, relay: Relay, node: Node, incoming: IncomingLink) -> bool:
    """Tell whether no more messages of an anonymous sender may wait. Args: node: the node of the message."""
    pool, to = incoming.pool, relay.to
    if not (isinstance(pool, SharedWindow) and (pool.has_portion(to) or pool.has_portion(node))):
        return False
    most = config_of(context, relay, node).window
    return pool.is_full(to, most) or pool.is_full(node, most)


def _hold(context: Context, relay: Relay, incoming: IncomingLink, node: Node | None) -> None:
    """Hold back the anonymous sender of a message that waits.

    If the sender is at another router, that router is told, and holds the sender back.
    Args: node: the node where the message waits; None: it waits at another router.
    """
    pool = incoming.pool
    if incoming.lane is not None:
        # The lane has other senders, too. Only the ingress router knows the sender of this message.
        forwarded(context, relay)
        incoming.waiting += 1
        relay.portion = _TOLD
        if relay.incoming is not None:
            dispose(relay.incoming, WAITS, False)
    elif isinstance(pool, SharedWindow) and relay.to is not None:
        if not relay.waiting:
            relay.waiting = True
            pool.take_back(incoming.credit_sink)
        is_by_lane = node is not None and node.lane is not None and node.lane.kind is LaneKind.TRANSIT
        relay.portion = pool.hold(incoming.credit_sink, node if is_by_lane else relay.to)
        if relay.complete:
            for chunk in relay.chunks:
                # The anonymous sender's own window limits what waits, so other links of the session may go on.
                chunk.free_window()


def waits_there(context: Context, relay: Relay) -> None:
    """Hold back the sender of a delivery that waits at the far router of its transit lane."""
    source = relay.source
    if isinstance(source, IncomingLink) and source.node is None and relay.portion is None and relay.share is None:
        _hold(context, relay, source, None)


def decided_there(context: Context, relay: Relay, outcome: bytes) -> None:
    """Note the outcome of a delivery that waited at another router: its sender may send again."""
    if relay.portion is not None:
        if state_kind(outcome) == RELEASED:
            give_up_place(relay)
        forwarded(context, relay, left=False)


def give_up_place(relay: Relay) -> None:
    """Stop counting a delivery as a waiting one of its anonymous sender: it has waited too long."""
    portion, source = relay.portion, relay.source
    if isinstance(portion, Portion) and isinstance(source, IncomingLink) and isinstance(source.pool, SharedWindow):
        source.pool.give_up(portion)


def deadline(context: Context, relay: Relay, node: Node) -> float | None:
    """Return the time until which a delivery may wait: by its ttl or its anonymous sender's limit; None: no limit."""
    expires_at, source = message_head.expires_at(relay), relay.source
    if not isinstance(source, IncomingLink) or source.node is not None:
        return expires_at
    until = context.now + config_of(context, relay, node).anonymous_wait
    return until if expires_at is None else min(until, expires_at)


def config_of(context: Context, relay: Relay, node: Node) -> AddressConfig:
    """Return the configuration of the address that a waiting delivery is for.

    Args: node: the node where it waits. For the node of a transit lane the delivery's own address counts.
    """
    lane = node.lane
    if lane is None or lane.kind is not LaneKind.TRANSIT:
        return node.config
    to = relay.to
    if to is None and relay.head is not None:
        to = message_head.final_address(relay.chunks[0].data, relay.head)
    return node.config if to is None else context.nodes.config(to)


def requeue(context: Context, relay: Relay, node: Node) -> None:
    """Queue a delivery again, behind those of its priority; in a mesh at its ingress, which chooses the routes."""
    share = relay.share
    if isinstance(share, CreditShare):
        forwarded(context, relay)
        relay.share = None
        relay.key = None
        relay.node = node = share.ingress
    incoming = relay.source
    if isinstance(incoming, IncomingLink) and incoming.node is None:
        _hold(context, relay, incoming, node)
    wait(context, relay, node)
    context.touch(node)


def unqueue(context: Context, relay: Relay) -> None:
    """Take a delivery from the queue of its node."""
    node = node_of(relay)
    if relay.queued and node is not None:
        node.waiting.remove(relay)
        context.touch(node)


def forwarded(context: Context, relay: Relay, *, left: bool = True) -> None:
    """Note that the first frame of a delivery has left, or never will. Its sender may get new credit in its place.

    Args: left: True: the frame has left; False: the delivery ends here.
    """
    holder, portion = relay.share or relay.source, relay.portion
    if portion is not None:
        relay.portion = None
        if portion is _TOLD and isinstance(relay.source, IncomingLink):
            relay.source.waiting -= 1
            if left and relay.incoming is not None:
                dispose(relay.incoming, LEFT, False)
    if not relay.waiting:
        return
    if isinstance(holder, CreditShare):
        relay.waiting = False
        holder.pool.forwarded(holder.credit_sink, context.now)
        context.touch(holder.node)
        context.touch(holder.ingress)
    elif isinstance(holder, IncomingLink):
        relay.waiting = False
        pool = holder.pool
        if not isinstance(pool, SharedWindow):
            pool.forwarded(holder.credit_sink, context.now)
        elif not isinstance(portion, Portion):
            pool.passed(holder.credit_sink, relay.to)
        else:
            assert relay.to is not None
            pool.end(holder.credit_sink, portion, relay.to, left=left)
        context.touch_input(holder)
