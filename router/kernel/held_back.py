"""Deliveries that are held back: each came one ahead of its receiver's credit, and leaves by the next flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.backpressure import _COPIED
from amqpmesh.router.kernel.budget import OVERHEAD
from amqpmesh.router.kernel.fast_deliveries import _new_fast_delivery, _record
from amqpmesh.router.kernel.fast_route import _is_ready
from amqpmesh.router.kernel.head_sections import _bare_message_at
from amqpmesh.router.kernel.ledger import Delivery
from amqpmesh.router.kernel.solo_credit import _credit_changed
from amqpmesh.router.kernel.transfer_accounting import _first_transfer, _write_leg
from amqpmesh.router.kernel.violations import Violation

if TYPE_CHECKING:
    from amqpmesh.router.kernel.fast_route import FastRoute
    from amqpmesh.router.kernel.frame_fields import TransferFrame
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.router_state import KernelRouter
    from amqpmesh.router.kernel.session_endpoint import KernelSession
    from amqpmesh.router.kernel.solo_pool import SoloPool

#: The most deliveries of a router that are held back. It receives all of them before anything else, and others wait.
HELD_AT_ONCE: Final = 256
_HELD_AT_ONCE: Final = HELD_AT_ONCE


def _hold_back(
    router: KernelRouter,
    session: KernelSession,
    link: KernelLink,
    route: FastRoute,
    frame: TransferFrame,
    data: bytes,
    payload_at: int,
    end: int,
) -> bool:
    """Hold a whole delivery back whose receiver has no credit: one for each sender. Returns: whether it is held back.

    It is counted as it comes, and is a delivery of the sender's ledger and unsettled map. A message with a ttl or a
    priority is queued by the router.
    """
    solo = route.solo
    size = end - payload_at
    if (
        solo is None
        or not solo.calm
        or solo.sender is not link
        or solo.held is not None
        or len(router.held_back) >= _HELD_AT_ONCE
        or size >= _COPIED
        or frame.message_format > 0
    ):
        return False
    for out in solo.receivers:
        if out.link_credit > 0 or (out.max_message_size and size > out.max_message_size):
            return False
    whole = solo.account
    while whole.whole is not None:
        whole = whole.whole
    if whole.used + size + OVERHEAD > whole.limit:
        return False  # the memory is used up: the router decides who gets more
    router.header.clear()
    if (
        _bare_message_at(router.header, data, payload_at, end, route.passing, True) < 0
        or router.header.ttl >= 0
        or router.header.priority != 4
    ):
        return False
    try:
        delivery = _first_transfer(session, link, frame, size)
    except Violation:
        return False  # the engine reads the frame again, finds the same error, and answers it
    p = data
    solo.held = delivery
    solo.held_payload = p[payload_at:end]
    solo.held_at = router.now
    solo.held_info = router.header.info()
    solo.account.add(size + OVERHEAD)
    router.held_back.append(solo)
    router.relays += 1
    if router.relays > router.most_relays:
        router.most_relays = router.relays
    router.small_at = link.last_at = router.now
    link.behind = True
    _credit_changed(router, link, route)
    return True


def _credit_came(router: KernelRouter, link: KernelLink) -> None:
    """Send what was held back for a receiver that has got credit, and have its credit divided among the senders."""
    route = link.fast_route
    solo = route.solo if route is not None else None
    if solo is None or solo.held is None or not link.sender or _send_held(router, solo, link):
        _credit_changed(router, link, route)
    else:
        router.needs_update = True


def _names_held(router: KernelRouter, session: KernelSession) -> bool:
    """Return whether the disposition just read is a sender's, and names a delivery that the router has not received."""
    frame = router.disposition
    if not router.held_back or frame.receiver:
        return False
    for entry in session.incoming.select(frame.first, frame.last):
        if isinstance(entry, Delivery):
            delivery: Delivery = entry
            if delivery.relay is None:
                return True
    return False


def _send_held(router: KernelRouter, solo: SoloPool, out: KernelLink) -> bool:
    """Send the delivery that is held back to a receiver that has got credit. Returns: False: the router must."""
    link = solo.sender
    if not solo.calm or not _is_ready(out):
        return False
    payload = solo.held_payload
    size = len(payload)
    delivery = take_held(router, solo)
    settled = delivery.settled
    delivery_id = _write_leg(out, 0, settled, -1, b"", payload)
    out.last_at = router.now
    link.relayed += 1
    recorder = router.recorder
    counter = 0
    sent_at = -1.0
    if recorder is not None:
        counter = router.counter(link, delivery.tag)
        if recorder.takes(counter):
            sent_at = recorder.time()
            if settled:
                tag, info = delivery.tag, solo.held_info
                _record(router, recorder, link, out, tag, b"", counter, size, solo.held_at, sent_at, -1.0, b"", info)
    if not settled:
        fast = _new_fast_delivery(
            link, delivery.delivery_id, delivery.tag, delivery.second, solo.held_at, out, delivery_id, b""
        )
        fast.number = out.last_tag
        fast.sent_at = sent_at
        fast.size = size
        fast.header_info = solo.held_info
        fast.counter = counter
        out.outstanding += 1
        router.relays += 1
    link.session.release(1)
    return True


def take_held(router: KernelRouter, solo: SoloPool) -> Delivery:
    """Hold a delivery back no longer, and return it. It still holds a frame of its session's window."""
    delivery = solo.held
    assert delivery is not None
    solo.account.add(-(len(solo.held_payload) + OVERHEAD))
    solo.held = None
    solo.held_payload = b""
    solo.sender.behind = False
    router.held_back.remove(solo)
    router.relays -= 1
    return delivery
