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
    """Give a receiver that can take no delivery of a multicast a limited time to give credit.

    If the kernel divides the credit, it tells of a receiver that nobody watches, and of no other.
    """
    if outgoing.skipped:
        return
    flow_state = outgoing.endpoint.flow_state
    if outgoing.stalled_since is None or flow_state.could_take:
        outgoing.stalled_since = _unable_since(context, outgoing)
        if not flow_state.is_watched:
            _look_later(context, outgoing)


def _unable_since(context: Context, outgoing: OutgoingLink) -> float:
    """Return since when a receiver can take nothing that could before."""
    flow_state = outgoing.endpoint.flow_state
    flow_state.could_take = False
    return context.now if flow_state.link_credit else max(flow_state.dry_since, flow_state.last_at)


def _look_later(context: Context, outgoing: OutgoingLink) -> None:
    """Look at a stalled receiver again once the patience with it is over."""
    assert outgoing.stalled_since is not None
    outgoing.endpoint.flow_state.is_watched = True
    over = outgoing.stalled_since + _patience(context, outgoing)
    context.schedule(over, partial(_look_again, context, outgoing)).leaves_held = True


def _patience(context: Context, outgoing: OutgoingLink) -> float:
    """Return how many seconds a multicast waits for a receiver."""
    patience = outgoing.node.config.overflow_time
    if outgoing.node.lane is not None:
        # The router of the stalled receiver skips it first, so that other receivers behind the lane miss nothing.
        patience += HOP_PATIENCE * context.routes.hops_behind(outgoing)
    return patience


def _look_again(context: Context, outgoing: OutgoingLink, *, is_second: bool = False) -> None:
    """Look at a stalled receiver.

    Args: is_second: the first look has found that the patience is over, and what was held back is received since.
        Others may have had their turn in between.
    """
    flow_state = outgoing.endpoint.flow_state
    if is_second and flow_state.is_watched:
        return  # it is looked at again anyway
    flow_state.is_watched = False
    if outgoing.gone or outgoing.skipped:
        return
    if outgoing.usable:
        outgoing.stalled_since = None
        return
    if outgoing.stalled_since is None or flow_state.could_take:
        outgoing.stalled_since = _unable_since(context, outgoing)
    else:
        outgoing.stalled_since = max(outgoing.stalled_since, flow_state.last_at)  # it took one at once
    if outgoing.stalled_since + _patience(context, outgoing) > context.now:
        _look_later(context, outgoing)
    elif not is_second:
        context.schedule(context.now, partial(_look_again, context, outgoing, is_second=True))
    else:
        _lose_patience(context, outgoing)


def _lose_patience(context: Context, outgoing: OutgoingLink) -> None:
    node = outgoing.node
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
