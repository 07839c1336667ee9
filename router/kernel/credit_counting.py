"""The accounts of open pools: deliveries that were relayed, and what receivers can take now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.credit_sinks import _credit_of
from amqpmesh.router.kernel.fast_route import _is_full

if TYPE_CHECKING:
    from amqpmesh.router.kernel.fast_route import FastRoute
    from amqpmesh.router.kernel.fast_shares import FastShare
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.router_state import KernelRouter


#: Frames that a session's window has room for beyond the credit of a receiver of a multicast: less is narrow.
_NARROW: Final = 64


def count_relayed(router: KernelRouter) -> None:
    """Tell open pools of what was relayed. Links of others, and those that the router must look at, are `left`."""
    dirty = router.dirty
    if dirty:
        router.dirty = []
        for link in dirty:
            if _count_outgoing(router, link) if link.sender else _count_incoming(router, link):
                link.dirty = False
            else:
                router.left.append(link)


def _count_incoming(router: KernelRouter, link: KernelLink) -> bool:
    """Tell an open pool of deliveries that came by a link and left. Returns: False: the router must tell its pool."""
    sink = link.sink
    if sink is None or link.remote_handle == -1:
        return False
    pool = sink.pool
    if pool is None or not pool.is_open:
        return False
    count = link.relayed
    if count:
        link.relayed = 0
        pool.relayed(sink, count, link.last_at)
        route = link.fast_route
        if route is not None:
            if route.share is not None:
                _count_share(router, route, count, link.last_at)
            elif route.shares is not None:
                for share in route.shares:
                    _count_fast_share(router, share)
    _time_credit(router, link)
    link.credit_slack = pool.credit_slack(sink)
    return True


def _count_fast_share(router: KernelRouter, share: FastShare) -> None:
    """Tell the pools of a share of the deliveries that have left by it."""
    count = share.relayed
    if count:
        share.relayed = 0
        share.record.turn = share.turn  # type: ignore[attr-defined]
        _count_share(router, share.route, count, share.last_at)


def _count_share(router: KernelRouter, route: FastRoute, count: int, last_at: float) -> None:
    """Tell the pools of a share, and of the node it belongs to, of deliveries that have left by it."""
    sink = route.share
    assert sink is not None
    pool = sink.pool
    if pool is None:
        return
    pool.relayed(sink, count, last_at)
    route.credit_slack = pool.credit_slack(sink)
    source = sink.source
    if source is not None and source.pool is not None:
        source.pool.set_usable(source, _credit_of(sink), last_at)
    if not pool.is_open:
        router.note(pool)


def _count_lent(router: KernelRouter, route: FastRoute) -> None:
    """Tell the pools of a route's share of a delivery of an anonymous sender, whose counts do not tell of the share."""
    sink = route.share
    if sink is None or sink.pool is None:
        return
    sink.pool.relayed(sink, 1, router.now)
    source = sink.source
    if source is not None and source.pool is not None:
        source.pool.set_usable(source, _credit_of(sink), router.now)
    if route.credit_slack < 0:
        router.change(sink.pool)


def _count_outgoing(router: KernelRouter, link: KernelLink) -> bool:
    """Tell an open pool of what a receiver can take now. Returns: False: the router must look at the link."""
    source = link.source
    if source is None or link.remote_handle == -1:
        return False
    pool = source.pool
    if pool is None or not pool.is_open:
        return False
    session = link.session
    if (
        session.remote_incoming_window <= 0
        or session.channel == -1
        or session.wire.sending > 0
        or _is_full(link)
        or (link.leg is not None and link.leg.chunks)
    ):
        pool.is_open = False  # something else than credit limits what it can take
        router.note(pool)
        return False
    credit = link.link_credit
    usable = max(0, min(credit, link.max_outstanding - link.outstanding))
    is_multicast = pool._demand._least is not None
    if is_multicast and session.remote_incoming_window < usable + _NARROW:
        pool.is_open = (
            False  # other links of the session may use up the window: all others would wait for this receiver
        )
        router.note(pool)
        return False
    pool.set_usable(source, usable, router.now, link.lowered and not credit)
    _time_credit(router, link)
    if (credit > 0) != link.creditor and not link.flipped:
        link.flipped = True
        router.flipped.append(link)
    if usable:
        link.could_take = True
    elif is_multicast and not link.is_watched:
        router.leave(pool)  # a multicast has patience with it for a while
        return False
    return True


def _time_credit(router: KernelRouter, link: KernelLink) -> None:
    """Note since when a link has no credit, after a change of the credit."""
    if not link.link_credit:
        if link.dry_since < 0:
            link.dry_since = router.now
    elif link.dry_since >= 0:
        if router.now - link.dry_since >= router.credit_wait and router.on_waited is not None:
            router.on_waited(link.record)
        link.dry_for += router.now - link.dry_since
        link.dry_since = -1.0
