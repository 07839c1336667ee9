"""The division of credit after a batch, for nodes where nothing but credit matters, without a turn of the router.

The router opens a pool (`Pool.is_open`) once it has looked at the node: its deliveries need no decision, no receiver
drains, and nothing waits in its queue. It closes the pool when it touches the node. The kernel tells an open pool of
each delivery and of each credit, and has it divided by the same method as the router. What a pool cannot decide by its
numbers alone is left to the router (`KernelRouter.undealt`), which finds them as they are: there is one set of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel.credit_counting import _time_credit, count_relayed
from amqpmesh.router.kernel.credit_sinks import _announce, _credit_of
from amqpmesh.router.kernel.flow_control import _CREDIT_RAISED, apply_flow
from amqpmesh.router.kernel.going_ahead import _divide_ahead
from amqpmesh.router.kernel.held_back import _credit_came, _send_held
from amqpmesh.router.kernel.serial import _HALF, _MASK, serial_distance

if TYPE_CHECKING:
    from amqpmesh.router.kernel.credit_pool import Pool
    from amqpmesh.router.kernel.credit_sinks import CreditSink
    from amqpmesh.router.kernel.frame_fields import FlowFrame
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.router_state import KernelRouter
    from amqpmesh.router.kernel.session_endpoint import KernelSession


def deal(router: KernelRouter) -> None:
    """Divide the credit of the open pools that have changed, and of those whose shares have changed by that.

    As the router does: first all that is held back leaves, if it can; then credit is divided. Pools that this touches
    have the next turn.
    """
    count_relayed(router)
    while router.due:
        pools = router.due
        router.due = []
        dealt: list[Pool] = []
        for pool in pools:
            pool.is_due = False
            if pool.is_open and pool._is_calm() and (not pool.held or _send_held(router, pool)):
                dealt.append(pool)
            else:
                router.leave(pool)
        if router.dirty:
            count_relayed(router)
        for pool in dealt:
            if pool.is_open:
                _divide(router, pool)
            else:
                router.leave(pool)


def _divide(router: KernelRouter, pool: Pool) -> None:
    """Divide the credit of a calm pool, and tell its sinks: senders by a flow, shares at once."""
    now = router.now
    if pool.goes_ahead:
        _divide_ahead(router, pool)
    pool._divide(now)
    changed = pool._changed
    if changed:
        pool._changed = ()
        for sink in changed:
            if sink.link is not None:
                _tell(router, pool, sink)
            elif sink.source is not None:
                credit = _credit_of(sink)
                if sink.route is not None:
                    sink.route.borrowed = credit
                above = sink.source.pool
                if above is not None:
                    above.set_usable(sink.source, credit, now)
                    router.change(above)
    for sink in pool._watched_now():
        if sink.link is not None:
            sink.link.credit_slack = pool.credit_slack(sink)
        elif sink.route is not None:
            sink.route.credit_slack = pool.credit_slack(sink)
    at = pool.next_timer()
    if at is not None and at < pool.timer_at and router.on_timer is not None:
        pool.timer_at = at
        router.on_timer(pool, at)


def _tell(router: KernelRouter, pool: Pool, sink: CreditSink) -> None:
    """Have the flow written by which a sender gets credit."""
    link = sink.link
    assert link is not None
    link.link_credit = _announce(sink)
    limit = (link.delivery_count + link.link_credit) & _MASK
    if serial_distance(link.granted_limit, limit) > 0:
        link.granted_limit = limit
    link.raised = True
    link.credit_slack = pool.credit_slack(sink)
    _time_credit(router, link)
    if not link.flow_due and link.handle != -1:
        link.flow_due = True
        session = link.session
        if session.grants is None:
            session.grants = []
        session.grants.append(link)
        session.stir()


def _relay_flow(router: KernelRouter, session: KernelSession, frame: FlowFrame) -> bool:
    """Apply a `flow` that only widens an open window or adds credit to a link. Returns: whether it was one."""
    link: KernelLink | None = None
    if frame.handle != -1:
        link = session.links.get(frame.handle)
        if (
            link is None
            or not link.sender
            or link.fast_route is None
            or link.fast_route.generation != router.generation
            or frame.delivery_count == -1
            or frame.link_credit == -1
            or frame.link_credit >= _HALF
            or (link.leg is not None and not link.leg.started)
        ):
            return False
    if apply_flow(session, link, frame, _CREDIT_RAISED) & ~_CREDIT_RAISED:
        return False
    if link is not None:
        link.available = 0  # no message waits for credit
        router.mark_dirty(link)
        _credit_came(router, link)
    return True
