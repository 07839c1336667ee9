"""The unsettled deliveries of links that have ended: each of them ends with the outcome that is true of it.

The deliveries are ended in steps. However many links of a session have ended, each ledger of the session is passed
through once for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.delivery.settlement import receiver_gone, sender_gone
from amqpmesh.router.kernel import Sweep, end_away, forget, sweep
from amqpmesh.router.model.ended_links import Round
from amqpmesh.router.model.links import IncomingLink, OutgoingLink

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.kernel import Delivery, KernelLink
    from amqpmesh.router.model.ended_links import Ledger, Links

#: Deliveries without a ledger that one step ends.
AT_ONCE: Final = 10


def add_ended(context: Context, link: IncomingLink | OutgoingLink) -> None:
    """Keep the counts of a link that has ended: now, or once its last delivery has ended."""
    if _has_left(link):
        context.ended_links.links[link] = None
    else:
        context.keep_count(link)


def end_deliveries(context: Context, link: IncomingLink | OutgoingLink, *, is_new: bool) -> None:
    """End the deliveries of a link that has ended: in steps, unless it has none.

    Args: is_new: it has ended now, and its counts are to be kept (`add_ended`).
    """
    if _has_left(link):
        if is_new:
            context.ended_links.links[link] = None
        context.chores.do(end_all(context, [link]))
        return
    if is_new:
        context.keep_count(link)
    _forget_link(context, link)


def end_all(context: Context, links: Links) -> Steps[None]:
    """End the deliveries of links that have ended."""
    rounds = context.ended_links.rounds
    ledgers: dict[Ledger, Links] = {}
    for link in links:
        state = link.endpoint.flow_state
        yield from end_backlog(context, link)
        if state.parked or state.session is not link.endpoint.session.flow_state:
            continue  # its peer may resume them
        if _has_left(link):
            ledgers.setdefault((state.session, state.sender), []).append(link)
        else:
            _forget_link(context, link)
    for ledger, those in ledgers.items():
        if ledger in rounds:
            rounds[ledger].join(those)
        else:
            yield from _sweep_ledger(context, ledger, those)


def end_backlog(context: Context, link: IncomingLink | OutgoingLink) -> Steps[None]:
    """End the copies that wait for the credit of a link that has ended."""
    while link.backlog:
        receiver_gone(context, link.backlog.popleft())
        yield


def _sweep_ledger(context: Context, ledger: Ledger, links: Links) -> Steps[None]:
    session, sent = ledger
    going = context.ended_links.rounds[ledger] = Round(Sweep(session, sent), links)
    try:
        while not _is_done(going):
            more = sweep(going.sweep)
            for delivery in going.sweep.deliveries:
                _end(context, delivery)
            yield
            if more:
                continue
            if not going.again:
                break
            going.again = False
            going.sweep.restart()
    finally:
        del context.ended_links.rounds[ledger]
    for link in going.links:
        # A sender that has not resumed its link leaves deliveries of the link before in no ledger (§2.6.13).
        yield from end_away_ones(context, link.endpoint.flow_state)
        _forget_link(context, link)


def end_away_ones(context: Context, holder: KernelLink) -> Steps[None]:
    """End the deliveries that a link has in no ledger: their sender is away, and does not come back."""
    for number, tag in enumerate(list(holder.unsettled)):
        if tag in holder.unsettled:
            delivery = end_away(holder, tag)
            if delivery is not None:
                _end(context, delivery)
        if number % AT_ONCE == AT_ONCE - 1:
            yield


def _forget_link(context: Context, link: IncomingLink | OutgoingLink) -> None:
    if context.ended_links.links.pop(link, 0) is None:
        context.keep_count(link)
    link.endpoint.flow_state.compact()  # deliveries that have not ended on their other side may hold it for long
    context.dismantle(link)


def _end(context: Context, delivery: Delivery) -> None:
    if delivery.leg is not None:
        receiver_gone(context, delivery.leg)
    elif delivery.relay is not None:
        sender_gone(context, delivery.relay, delivery)
    forget(delivery)


def _is_done(going: Round) -> bool:
    """Tell whether every delivery of a round's links has ended."""
    while going.open and not _has_left(going.open[-1]):
        going.open.pop()
    return not going.open


def _has_left(link: IncomingLink | OutgoingLink) -> bool:
    """Tell whether a link has a delivery that has not ended."""
    return link.has_unsettled or bool(link.backlog)
