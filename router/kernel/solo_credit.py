"""Credit of pools with one sender and few receivers, granted without a turn of the router (§2.6.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel.rate_meter import _NO_LIMIT
from amqpmesh.router.kernel.serial import _MASK, serial_distance

if TYPE_CHECKING:
    from amqpmesh.router.kernel.fast_route import FastRoute
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.router_state import KernelRouter
    from amqpmesh.router.kernel.solo_pool import SoloPool


def _credit_changed(router: KernelRouter, link: KernelLink, route: FastRoute | None) -> None:
    """Have credit granted after the batch, since a link of a route has used or got some: here, or by the router."""
    solo = route.solo if route is not None else None
    if solo is None or not solo.calm or (solo.sender is not link and not link.sender):
        router.needs_update = True
    elif not solo.due:
        solo.due = True
        router.solo_pools.append(solo)


def _grant_solo(router: KernelRouter, is_end: bool) -> None:
    """Grant the credit of the pools that are due, or leave them to the router.

    Args: is_end: of the batch. If not, the router grants in the end: a sender may not use what it has not been told of.
    """
    for solo in router.solo_pools:
        solo.due = False
        router.mark_dirty(solo.sender)
        for out in solo.receivers:
            router.mark_dirty(out)
        if not is_end or not solo.calm or not grant_solo(solo, router.now):
            router.needs_update = True
    router.solo_pools.clear()


def grant_solo(solo: SoloPool, now: float) -> bool:
    """Grant the free credit of a pool to its sink, as `Pool.grants` does, and have the flow written.

    Returns: False: the router has to grant, because time or something else but these numbers decides. Nothing that the
        router would do is done then.
    """
    link = solo.sender
    session = link.session
    demand = 0
    for at in range(len(solo.receivers)):
        out = solo.receivers[at]
        if _is_hindered(out):
            return False
        since = solo.receivers_dry[at]
        if out.link_credit and since >= 0 and now - since >= solo.credit_wait:
            return False
        demand += out.link_credit
    granted = link.link_credit
    waiting = 0 if solo.held is None else 1
    free = demand + 1 - granted - waiting
    if (
        free < 0
        or (waiting and demand)
        or (not granted and solo.sender_dry >= 0 and now - solo.sender_dry >= solo.credit_wait)
    ):
        return False
    meter = link.meter
    room = _NO_LIMIT if meter is None else meter.room(granted, now)
    used_at = max(solo.used_at, link.last_at)
    low = granted > 0 and (solo.low or granted <= solo.low_at)
    before = granted
    low_at, plenty, placed_at = solo.low_at, solo.plenty, solo.placed_at
    if free and (low or not granted):
        if not room and meter is not None and not meter.waits:
            return False  # it has to wait for its rate
        if granted and placed_at <= now - solo.idle_time:
            if used_at <= now - solo.idle_time:
                return False  # the sink is idle
            placed_at = used_at
        share = max(1, min(solo.max_credit, demand))
        if meter is not None:
            share = min(share, meter.limit())
        if not granted and room:
            if plenty and free <= 1:
                if now < used_at + solo.starve_time:
                    if solo.overcommit_at <= now:
                        return False  # no timer is set
                else:
                    plenty = False
                    granted = 1
            else:
                granted = 1
            if granted:
                used_at = placed_at = now
                low_at = 0
                low = share > 1
        if low:
            half = share // 2
            if granted > before or granted <= half:
                if granted > before or demand + 1 - granted - waiting >= share - half:
                    raised = max(0, min(share - granted, demand + 1 - granted - waiting, room - granted + before))
                    granted += raised
                    if raised >= solo.many_granted:
                        plenty = True
                    if granted > half:
                        low = False
                        low_at = half
            else:
                low = False
                low_at = half
    solo.low, solo.low_at, solo.plenty, solo.used_at, solo.placed_at = low, low_at, plenty, used_at, placed_at
    free = demand + 1 - granted - waiting
    slack = max(0, granted - low_at - 1)
    if solo.max_credit > 2 * free:
        slack = max(slack, min(granted - 1, demand - 2 * free - 1))
    link.credit_slack = slack
    if granted > before:
        link.link_credit = granted
        solo.raised += granted - before
        if meter is not None:
            meter.grant(granted - before, granted, now)
        limit = (link.delivery_count + granted) & _MASK
        if serial_distance(link.granted_limit, limit) > 0:
            link.granted_limit = limit
        if not solo.flow_due:
            solo.flow_due = True
            session.flows.append(solo)
            session.stir()
    if granted:
        solo.sender_dry = -1.0
    elif solo.sender_dry < 0:
        solo.sender_dry = link.last_at
    for at in range(len(solo.receivers)):
        out = solo.receivers[at]
        if out.link_credit:
            solo.receivers_dry[at] = -1.0
        else:
            since = solo.receivers_dry[at]
            if since < 0:
                solo.receivers_dry[at] = out.last_at
    return True


def _is_hindered(out: KernelLink) -> bool:
    """Return whether something else than a receiver's credit limits what it can take."""
    session = out.session
    wire = session.wire
    return (
        out.max_outstanding - out.outstanding < out.link_credit
        or session.remote_incoming_window <= 0
        or wire.sending > 0
        or len(wire.out) > wire.backlog
        or out.leg is not None
        or session.channel == -1
    )
