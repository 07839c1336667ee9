"""Deliveries of several frames that the kernel relays, and the counts of all that it relays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel.backpressure import _COPIED, _goes_to, _wait_for_output, goes_by
from amqpmesh.router.kernel.fast_deliveries import _compact_relay, _relay_by_one_leg
from amqpmesh.router.kernel.fast_route import _fits, _is_full, _lane_stays
from amqpmesh.router.kernel.fast_shares import _count_shared
from amqpmesh.router.kernel.going_ahead import pause_ahead
from amqpmesh.router.kernel.ledger import Delivery
from amqpmesh.router.kernel.transfer_accounting import _first_transfer, receive_transfer, send_transfer
from amqpmesh.router.kernel.violations import Violation

if TYPE_CHECKING:
    from amqpmesh.router.kernel.fast_route import FastRoute
    from amqpmesh.router.kernel.fast_shares import FastShare
    from amqpmesh.router.kernel.frame_fields import TransferFrame
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.relays import Leg, Relay
    from amqpmesh.router.kernel.router_state import KernelRouter
    from amqpmesh.router.kernel.session_endpoint import KernelSession


def _count_relayed(
    router: KernelRouter, link: KernelLink, out: KernelLink, route: FastRoute, share: FastShare | None
) -> None:
    """Count a delivery that was relayed by the link `out` of a route.

    Args: share: the one that the delivery leaves by, if the ingress has several.
    """
    if share is not None:
        _count_shared(router, link, share)
    if route.turn:
        out.turn = route.turn
    link.relayed += 1
    if link.anonymous:
        route.relayed += 1
    goes_by(link.session.wire, route)
    link.last_at = out.last_at = router.now
    link.credit_slack -= 1
    if route.borrowed > 0:
        route.borrowed -= 1
        route.credit_slack -= 1
        if link.credit_slack < 0 or route.credit_slack < 0:
            # First the node that it came to, then the one that it left from: as the router touches them.
            router.change(None if link.sink is None else link.sink.pool)
            if route.credit_slack < 0:
                router.change(None if route.share is None else route.share.pool)
    elif link.credit_slack < 0:
        router.change(None if link.sink is None else link.sink.pool)
    if not out.link_credit:
        router.change(None if out.source is None else out.source.pool)
    if not link.dirty:
        router.mark_dirty(link)
    if not out.dirty:
        router.mark_dirty(out)
        if out.session.wire.sending:  # its peer does not read: the waiting output must be counted
            router.needs_update = True


def _relay_first(
    router: KernelRouter,
    link: KernelLink,
    route: FastRoute,
    out: KernelLink,
    frame: TransferFrame,
    data: bytes,
    payload_at: int,
    end: int,
    tag: bytes,
) -> None:
    """Relay the first frame, which was checked, of a delivery that leaves in several frames.

    The delivery is a `Relay` until its end, as if the router had decided. Args: tag: of the outgoing delivery.
    """
    session, target = link.session, out.session
    if not frame.more and end - payload_at < _COPIED:
        router.small_at = router.now
    received = _first_transfer(session, link, frame, end - payload_at)
    sent = Delivery(out, tag, received.message_format, received.settled, False)
    relay = _relay_by_one_leg(received, sent, router.now)
    if router.recorder is not None and frame.message_format <= 0:
        relay.header_info = router.header.info()
    if out.lane:
        if not received.second:
            # Lanes have mode second, for deliveries that need it (§2.7.5).
            sent.rcv_settle_mode = 0
        if not link.lane:
            relay.counter = router.key_count
    link.relay = relay
    out.leg = sent.leg
    if not received.settled:
        out.outstanding += 1
        assert sent.leg is not None
        sent.leg.counted = True
    router.relays += 1
    if router.relays > router.most_relays:
        router.most_relays = router.relays
    if router.on_expand is not None:
        router.on_expand(relay)
    wire = target.wire
    _goes_to(router, session.wire, wire)
    if link.sink is not None:
        pause_ahead(link.sink.pool, router.now)
    payload = memoryview(data)[payload_at:end]
    send_transfer(out, wire.out, sent, payload, frame.more, False, None, wire.remote_max_frame_size)
    if out.keeps is not None and not received.settled:
        out.keeps.keep(tag, data[payload_at:end], True, frame.more)
    session.pass_on(end - payload_at)
    _count_relayed(router, link, out, route, None)
    if not target.woken:
        target.stir()
    if not frame.more:
        _relayed_whole(router, link, received, sent, relay)


def _relayed_whole(router: KernelRouter, link: KernelLink, received: Delivery, sent: Delivery, relay: Relay) -> None:
    """Finish a delivery of several frames, whose last frame was relayed."""
    out = sent.link
    link.relay = None
    out.leg = None
    relay.complete = True
    _compact_relay(router, received, sent, relay)
    router.mark_dirty(out)
    # Other deliveries may have waited for its last frame. The table of an anonymous sender does not tell.
    if link.anonymous or link.fast_route is None or link.fast_route.generation != router.generation:
        router.needs_update = True


def _relay_next(
    router: KernelRouter,
    session: KernelSession,
    link: KernelLink,
    frame: TransferFrame,
    data: bytes,
    payload_at: int,
    end: int,
) -> bool:
    """Relay a later frame of a delivery by its only leg. Returns: whether it was relayed.

    The leg must have sent all earlier frames.
    """
    received = link.current
    assert received is not None
    relay = link.relay
    if relay is None or received.relay is not relay or relay.dropped or len(relay.legs) != 1:
        return False
    leg: Leg = relay.legs[0]
    sent = leg.delivery
    if relay.kept is not None or relay.seen is not None:
        return False
    if sent is None or not leg.started or leg.done or leg.aborting or leg.chunks or sent.complete:
        return False
    out = sent.link
    size = end - payload_at
    last = not frame.more
    if (
        out.leg is not leg
        or (out.lane and last and not _lane_stays(router, link, out))
        or (frame.settled == 1 and not received.remote_settled)
        or sent.settled != received.settled
        or (not size and not last)
        or (out.max_message_size and sent.size + size > out.max_message_size)
        or out.session.channel == -1
        or (link.user_ids is not None and size > link.user_ids.skip)
    ):
        return False
    target = out.session
    wire = target.wire
    is_full = _is_full(out)
    if is_full or not _fits(out, size):
        _wait_for_output(router, session.wire, wire, is_full)
        return False
    try:
        receive_transfer(link, frame, size)
    except Violation:
        return False  # as in _relay_transfer
    if link.user_ids is not None:
        link.user_ids.skip -= size
    _goes_to(router, session.wire, wire)
    payload = memoryview(data)[payload_at:end]
    send_transfer(out, wire.out, sent, payload, frame.more, False, None, wire.remote_max_frame_size)
    if out.keeps is not None and leg.counted:
        out.keeps.keep(sent.tag, data[payload_at:end], False, frame.more)
    session.pass_on(size)
    if wire.sending and not out.dirty:  # as for a first frame
        router.mark_dirty(out)
        router.needs_update = True
    if not target.woken:
        target.stir()
    if last:
        _relayed_whole(router, link, received, sent, relay)
    return True
