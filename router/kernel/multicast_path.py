"""The relaying of multicast deliveries without a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.backpressure import _COPIED, _wait_for_output
from amqpmesh.router.kernel.credit_counting import _count_lent
from amqpmesh.router.kernel.delivery_keys import onward
from amqpmesh.router.kernel.fast_deliveries import _record
from amqpmesh.router.kernel.fast_multicast import _new_leg, _new_multicast
from amqpmesh.router.kernel.fast_route import _FRAME_HEAD, _is_free
from amqpmesh.router.kernel.head_sections import _bare_message_at
from amqpmesh.router.kernel.transfer_accounting import (
    _check_first_transfer,
    _count_first_transfer,
    _count_leg,
    _write_leg,
)
from amqpmesh.router.kernel.violations import Violation

if TYPE_CHECKING:
    from amqpmesh.router.kernel.fast_multicast import FastLeg, FastMulticast
    from amqpmesh.router.kernel.fast_route import FastRoute
    from amqpmesh.router.kernel.frame_fields import TransferFrame
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.router_state import KernelRouter
    from amqpmesh.router.kernel.session_endpoint import KernelSession

#: The most octets that are written for a delivery: some 10 ms of work. The router decides about a larger one, and takes
#: longer for it. Each output has a bound of its own (`backlog`).
_MOST_WRITTEN: Final = 32 * 2**20
#: Legs that are written in the time of one delivery.
_LEGS_A_DELIVERY: Final = 4


def _relay_to_all(
    router: KernelRouter,
    session: KernelSession,
    link: KernelLink,
    route: FastRoute,
    frame: TransferFrame,
    data: bytes,
    payload_at: int,
    end: int,
) -> bool:
    """Relay a whole delivery by all links of a route. Returns: whether it was relayed.

    Nothing is written before all links are known to take it.
    """
    size = end - payload_at
    incoming_tag = frame.delivery_tag
    if (
        frame.more
        or incoming_tag is None
        or not route.links
        or size > route.room
        or (size + _FRAME_HEAD) * len(route.links) > _MOST_WRITTEN
        or (link.lane and not _is_of_tree(session, route, incoming_tag))
        or not _all_ready(router, session, route, size, incoming_tag if link.lane else b"")
    ):
        return False
    recorder = router.recorder
    if recorder is not None:
        router.header.clear()
    if frame.message_format <= 0 and _bare_message_at(router.header, data, payload_at, end, route.passing, True) < 0:
        return False
    try:
        _check_first_transfer(session, link, frame, size)
    except Violation:
        return False  # the engine reads the frame again, finds the same error, and answers it
    settled = frame.settled == 1
    second = link.second and frame.rcv_settle_mode != 0
    # The tag of legs on lanes.
    key = b""
    if link.lane:
        assert route.history is not None
        route.history.note(incoming_tag)
        key = onward(incoming_tag)
    elif route.hops:
        key = router.next_key(route.hops)
    _count_first_transfer(session, link, settled, size)
    session.in_parts = False
    if size < _COPIED:
        session.small += 1
        router.small_at = router.now
    else:
        session.count_large(size)
        session.wire.toward = -1
    session.release(0)
    info = router.header.info() if recorder is not None and frame.message_format <= 0 else 4
    payload = data[payload_at:end]
    message_format = max(frame.message_format, 0)
    _write_to_all(
        router, link, route, frame.delivery_id, incoming_tag, settled, second, router.now, message_format, key, payload,
        info,
    )  # fmt: skip
    # `relay_frames` counts one delivery.
    session.wire.work -= (len(route.links) - 1) * (1 + (size >> 8)) // _LEGS_A_DELIVERY
    link.relayed += 1
    if link.anonymous:
        route.relayed += 1
    if route.borrowed > 0:
        route.borrowed -= 1
        route.credit_slack -= 1
        if link.anonymous:
            _count_lent(router, route)
        if route.credit_slack < 0:
            router.needs_update = True
    link.last_at = router.now
    link.credit_slack -= 1
    if link.credit_slack < 0:
        router.change_open(None if link.sink is None else link.sink.pool)
    if not link.dirty:
        router.mark_dirty(link)
    return True


def _write_to_all(
    router: KernelRouter,
    link: KernelLink,
    route: FastRoute,
    incoming_id: int,
    incoming_tag: bytes,
    settled: bool,
    second: bool,
    came_at: float,
    message_format: int,
    key: bytes,
    payload: bytes,
    header_info: int,
) -> None:
    """Write a delivery, which is accounted on its sender's side, to all links of a route.

    Args: link: that it came by. key: the tag of legs on lanes. header_info: for its records.
    """
    size = len(payload)
    recorder = router.recorder
    counter = 0
    recorded = False
    if recorder is not None:
        counter = router.key_count if key and not link.lane else router.counter(link, incoming_tag)
        recorded = recorder.takes(counter)
    multicast: FastMulticast | None = None
    if not settled:
        multicast = _new_multicast(link, incoming_id, incoming_tag, second, came_at)
        if not link.lane:
            multicast.key = key
        multicast.message_format = message_format
        multicast.size = size
        multicast.header_info = header_info
        multicast.counter = counter
        router.relays += 1
        if router.relays > router.most_relays:
            router.most_relays = router.relays
    for each in route.links:
        out: KernelLink = each
        mode = 0 if out.lane and not second else -1
        delivery_id = _write_leg(out, message_format, settled, mode, key, payload)
        sent_at = -1.0
        if recorder is not None and recorded:
            sent_at = recorder.time()
            if settled:
                _record(
                    router,
                    recorder,
                    link,
                    out,
                    incoming_tag,
                    key,
                    counter,
                    size,
                    came_at,
                    sent_at,
                    -1.0,
                    b"",
                    header_info,
                )
        if multicast is not None:
            leg: FastLeg = _new_leg(multicast, out, delivery_id, out.last_tag)
            leg.sent_at = sent_at
            if out.lane and link.lane:
                out.lane_to_lane[incoming_tag] = leg
        _count_leg(router, out)
    for out in route.left_out:
        out.missed += 1


def _may_wait_for_all(link: KernelLink, route: FastRoute, size: int) -> bool:
    """Return whether a delivery to all links of a route may be held back: nothing but their credit is in its way."""
    if size > route.room or not route.links or link.session.wire.waits_for is not None:
        return False
    lacks = False
    for each in route.links:
        out: KernelLink = each
        source = out.source
        if out.lane or (out.max_message_size and size > out.max_message_size):
            return False
        if out.link_credit <= 0 or (source is not None and source.pool is not None and source.pool.held):
            lacks = True
    return lacks


def _is_of_tree(session: KernelSession, route: FastRoute, tag: bytes) -> bool:
    """Return whether a delivery that came by a lane is one of the route's tree, and has not come before.

    The router decides about the first one from a new parent.
    """
    history = route.history
    return history is not None and history.expects(session.wire.container, tag)


def _all_ready(router: KernelRouter, session: KernelSession | None, route: FastRoute, size: int, tag: bytes) -> bool:
    """Return whether each link of a route can take a delivery in one frame now.

    Links of one connection follow each other in the route, so the room that they need together is counted. If an output
    is full that is not being written yet, the frame waits for it.

    Args: session: that the frame is read from; None: it was held back. tag: of a delivery that came by a lane; empty:
        it came by no lane.
    """
    next_tag = onward(tag)
    wire = None
    octets = size + _FRAME_HEAD
    beside = 0  # links of the same connection before this one
    for each in route.links:
        out: KernelLink = each
        target = out.session
        if target.wire is wire:
            beside += 1
        else:
            wire = target.wire
            beside = 0
        if tag and out.lane and (not next_tag or tag in out.lane_to_lane or next_tag in out.unsettled):
            return False  # it has no hops left, or needs another tag
        if (
            not _is_free(out)
            or target.remote_incoming_window <= beside
            or (out.max_message_size and size > out.max_message_size)
        ):
            return False
        if wire.sending + len(wire.out) + beside * octets > wire.backlog:
            if session is not None and session.wire.patient:
                _wait_for_output(router, session.wire, wire, True)
            return False
    return True
