"""How long a multicast waits for a receiver that takes nothing, and what becomes of one that it waits for no more."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from amqpmesh.router.config.file import Overflow

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.credit.sources import Branch
    from amqpmesh.router.model.links import OutgoingLink

#: Seconds for each router behind a lane of a multicast, before the lane is given up for one that stalls there.
HOP_PATIENCE: Final = 0.25


def watch(context: Context, outgoing: OutgoingLink) -> None:
    """A receiver of a multicast can take nothing: see whether it has changed its mind after a while."""
    if outgoing.stalled_since is None and not outgoing.skipped:
        since = outgoing.stalled_since = context.now
        patience = outgoing.address.config.overflow_time
        if outgoing.address.lane is not None:
            # Who stalls there is left out there, and first: others behind that lane are to miss nothing.
            patience += HOP_PATIENCE * context.routes.hops_behind(outgoing)
        context.schedule(since + patience, partial(_lose_patience, context, outgoing, since))


def _lose_patience(context: Context, outgoing: OutgoingLink, since: float) -> None:
    address = outgoing.address
    if outgoing.gone or outgoing.stalled_since != since:
        return
    if address.config.overflow is Overflow.DROP:
        _leave_out(context, outgoing)
        context.touch(address)
    elif address.incoming:
        context.log.info(
            "multicast waits",
            connection=outgoing.connection.number,
            link=outgoing.link.name,
            peer=outgoing.connection.host,
            address=address.name,
            reason="this receiver gives no credit",
        )


def _leave_out(context: Context, outgoing: OutgoingLink) -> None:
    """A receiver that stalls sets the pace of a multicast no longer."""
    if not outgoing.skipped and outgoing.branch is not None:
        outgoing.skipped = True
        outgoing.address.pool.change_branch(outgoing.branch, 0, outgoing.cost, False, context.now)


def take_back(context: Context, outgoing: OutgoingLink, branch: Branch) -> None:
    """A receiver that was left out gives credit again. Args: branch: its place in the pool."""
    outgoing.skipped = False
    outgoing.stalled_since = None
    outgoing.address.pool.change_branch(branch, 0, outgoing.cost, True, context.now)
