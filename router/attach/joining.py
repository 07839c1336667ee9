"""Receivers that begin to take deliveries: from then on they are consumers of their node, and may drain it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from amqpmesh.router.small_set import with_item

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.links import OutgoingLink


def join(context: Context, outgoing: OutgoingLink) -> None:
    """Make a link a consumer of its node, or one that sees copies.

    Its attach is answered; it has no credit yet, unless deliveries were resumed on it first.
    """
    node = outgoing.node
    if outgoing.copy:
        node.copies = with_item(node.copies, outgoing)
    else:
        node.outgoing = with_item(node.outgoing, outgoing)
    outgoing.join_pool(counts=not outgoing.copy)
    if node.is_multicast or context.recording is not None:
        context.touch_outgoing(outgoing)
    else:
        context.touch(node)  # without credit the link itself can take nothing
    context.routes.consumers_changed(node)


def begin_drain(context: Context, outgoing: OutgoingLink) -> None:
    """Have senders asked for what a draining receiver may still get: the answer to its drain comes after that."""
    node = outgoing.node
    if outgoing not in node.draining:
        node.draining = with_item(node.draining, outgoing)
        outgoing.drain_by = context.now + node.config.drain_time
        context.schedule(outgoing.drain_by, partial(context.touch, node))
    node.pool.drain(context.now)
    context.touch(node)
