"""Receivers that stall a multicast: the time that it waits for them, and their exclusion afterwards."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from amqpmesh.router.config.file import Overflow
from amqpmesh.router.model.foreign_links import name_of

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import CreditSource
    from amqpmesh.router.model.links import OutgoingLink

#: Seconds of patience with a lane of a multicast, for each router behind it, beside the address' own patience.
HOP_PATIENCE: Final = 0.25


def watch(context: Context, outgoing: OutgoingLink) -> None:
    """Give a receiver that can take no delivery of a multicast a limited time to give credit."""
    if outgoing.stalled_since is None and not outgoing.skipped:
        since = outgoing.stalled_since = context.now
        patience = outgoing.node.config.overflow_time
        if outgoing.node.lane is not None:
            # The router of the stalled receiver skips it first, so that other receivers behind the lane miss nothing.
            patience += HOP_PATIENCE * context.routes.hops_behind(outgoing)
        context.schedule(since + patience, partial(_lose_patience, context, outgoing, since))


def _lose_patience(context: Context, outgoing: OutgoingLink, since: float) -> None:
    node = outgoing.node
    if outgoing.gone or outgoing.stalled_since != since:
        return
    if node.config.overflow is Overflow.DROP:
        _leave_out(context, outgoing)
        context.touch(node)
    elif node.incoming:
        context.log.info(
            "multicast waits",
            connection=outgoing.connection.number,
            link=outgoing.endpoint.name,
            peer=outgoing.connection.host,
            address=name_of(outgoing),
            reason="this receiver gives no credit",
        )


def _leave_out(context: Context, outgoing: OutgoingLink) -> None:
    """Skip a stalled receiver: the multicast no longer waits for it."""
    if not outgoing.skipped and outgoing.credit_source is not None:
        outgoing.skipped = True
        outgoing.node.pool.change_source(outgoing.credit_source, 0, outgoing.cost, False, context.now)


def take_back(context: Context, outgoing: OutgoingLink, source: CreditSource) -> None:
    """Include a skipped receiver again, which has given credit. Args: source: its source of credit in the pool."""
    outgoing.skipped = False
    outgoing.stalled_since = None
    outgoing.node.pool.change_source(source, 0, outgoing.cost, True, context.now)
