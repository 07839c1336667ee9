"""Deliveries that are held back: each came ahead of its receivers' credit, and leaves by the next flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.backpressure import _COPIED
from amqpmesh.router.kernel.budget import OVERHEAD, Budget
from amqpmesh.router.kernel.credit_counting import _count_incoming
from amqpmesh.router.kernel.credit_sinks import _credit_of
from amqpmesh.router.kernel.delivery_keys import onward
from amqpmesh.router.kernel.fast_deliveries import _new_fast_delivery, _record
from amqpmesh.router.kernel.fast_route import _ALL, _is_ready, _ready_link
from amqpmesh.router.kernel.head_sections import _bare_message_at
from amqpmesh.router.kernel.ledger import Delivery
from amqpmesh.router.kernel.multicast_path import _all_ready, _may_wait_for_all, _write_to_all
from amqpmesh.router.kernel.serial import _MASK
from amqpmesh.router.kernel.transfer_accounting import _first_transfer, _write_leg
from amqpmesh.router.kernel.violations import Violation

if TYPE_CHECKING:
    from amqpmesh.router.kernel.credit_pool import Pool
    from amqpmesh.router.kernel.credit_sinks import CreditSink
    from amqpmesh.router.kernel.fast_route import FastRoute
    from amqpmesh.router.kernel.frame_fields import TransferFrame
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.router_state import KernelRouter
    from amqpmesh.router.kernel.session_endpoint import KernelSession

#: The most deliveries of a router that are held back. It receives all of them before anything else, and others wait.
HELD_AT_ONCE: Final = 256
_HELD_AT_ONCE: Final = HELD_AT_ONCE


class HeldDelivery:
    """A whole delivery that waits for credit in the kernel: of a receiver, or of the share by which it will leave."""

    __slots__ = (
        "account",
        "at_exit",
        "at_sink",
        "came_at",
        "delivery",
        "header_info",
        "link",
        "payload",
        "route",
        "share_spent",
        "spent",
    )

    def __init__(
        self, link: KernelLink, delivery: Delivery, route: FastRoute, payload: bytes, came_at: float, account: Budget
    ) -> None:
        """Args: link: that it came by. account: of its octets. came_at: seconds."""
        self.link = link
        self.delivery = delivery
        self.route = route
        self.payload = payload
        self.came_at = came_at
        self.account = account
        #: The fields of its header, for its record.
        self.header_info = 0
        #: It waits at the node of a share, and counts in that pool. `at_sink`: the sink that it counts for.
        self.at_exit = False
        self.at_sink: CreditSink | None = None
        #: It has used granted credit of its link, and of the share.
        self.spent = False
        self.share_spent = False


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
    """Hold a whole delivery back whose receivers, or whose share, have no credit. Returns: whether it is held back.

    It is counted as it comes, and is a delivery of the sender's ledger and unsettled map. A message with a ttl or a
    priority is queued by the router.
    """
    size = end - payload_at
    sink = link.sink
    if (
        sink is None
        or sink.pool is None
        or not sink.pool.is_open
        or route.shares is not None
        or router.held_count >= _HELD_AT_ONCE
        or size >= _COPIED
        or frame.message_format > 0
    ):
        return False
    entered = sink.pool
    pool = entered
    share = route.share
    if share is not None and not entered.held and route.borrowed > 0:
        if share.pool is None or not share.pool.is_open:
            return False
        pool = share.pool
    is_exit = share is None or pool is not entered
    if route.order == _ALL and not _may_wait_for_all(link, route, size):
        return False
    for links in (route.links, route.bulk) if route.order != _ALL else ():
        for out in links:
            if out.link_credit > 0 and is_exit and not pool.held:
                return False
            if out.max_message_size and size > out.max_message_size:
                return False
            if out.lane and link.lane and not _may_go_on(link, out, frame.delivery_tag):
                return False
    account: Budget = link.record.connection.account  # type: ignore[attr-defined]
    whole = account
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
    if link.relayed and not _count_incoming(router, link):
        return False
    try:
        delivery = _first_transfer(session, link, frame, size)
    except Violation:
        return False  # the engine reads the frame again, finds the same error, and answers it
    if link.lane:  # all lanes of a neighbour share its session: its window stays open for others
        session.held -= 1
        session.look()
    p = data
    held = HeldDelivery(link, delivery, route, p[payload_at:end], router.now, account)
    held.header_info = router.header.info()
    held.spent = sink.granted > 0
    if pool is entered:
        pool.received(sink, router.now)
        held.at_sink = sink
    else:
        assert share is not None
        entered.relayed(sink, 1, router.now)
        _move(router, held, share)
    account.add(size + OVERHEAD)
    if pool.held is None:
        pool.held = []
    pool.held.append(held)
    if len(pool.held) == 1:
        router.held_back.append(pool)
    router.held_count += 1
    router.relays += 1
    if router.relays > router.most_relays:
        router.most_relays = router.relays
    router.small_at = link.last_at = router.now
    if not link.link_credit and link.dry_since < 0:
        link.dry_since = router.now
    link.credit_slack = entered.credit_slack(sink)
    router.change(entered)  # first the node that it came to, as the router touches them
    if pool is not entered:
        router.change(pool)
    return True


def _may_go_on(link: KernelLink, out: KernelLink, tag: bytes | None) -> bool:
    """Return whether a delivery that came by a lane may leave by another one, and keeps its key."""
    onto = b"" if tag is None else onward(tag)
    return (
        onto != b""
        and out.session.wire.container is not link.session.wire.container
        and tag not in out.lane_to_lane
        and onto not in out.unsettled
    )


def _move(router: KernelRouter, held: HeldDelivery, share: CreditSink) -> None:
    """Move a delivery to the node of a share, where it uses credit of the share."""
    pool = share.pool
    assert pool is not None
    held.at_exit = True
    held.at_sink = share
    held.share_spent = share.granted > 0
    pool.received(share, router.now)
    credit = _credit_of(share)
    held.route.borrowed = credit
    held.route.credit_slack = pool.credit_slack(share)
    source = share.source
    if source is not None and source.pool is not None:
        source.pool.set_usable(source, credit, router.now)


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


def _send_held(router: KernelRouter, pool: Pool) -> bool:
    """Send the deliveries that a pool holds back, as far as there is credit. Returns: False: the router must."""
    while pool.held:
        held = pool.held[0]
        gate = held.link.fast_route
        if gate is None or gate.generation != router.generation:
            return False
        share = held.route.share
        if share is not None and not held.at_exit:
            if _credit_of(share) <= 0:
                break
            beyond = share.pool
            sink = held.at_sink
            if beyond is None or not beyond.is_open or sink is None:
                return False
            _let_go(router, pool, held)
            pool.forwarded(sink, router.now)
            _move(router, held, share)
            router.change(beyond)
            router.change(pool)
            if beyond.held is None:
                beyond.held = []
            beyond.held.append(held)
            router.held_count += 1
            if len(beyond.held) == 1:
                router.held_back.append(beyond)
                if not _send_held(router, beyond):
                    return False
            continue
        if held.route.order == _ALL:
            if not _all_ready(router, None, held.route, len(held.payload), b""):
                return not _is_hindered(held.route)
            _send_to_all(router, pool, held)
            continue
        out = _ready_link(held.route)
        if out is None:
            return not _is_hindered(held.route)
        if not _send(router, pool, held, out):
            return False
    return True


def _waits(route: FastRoute) -> bool:
    """Return whether a delivery is held back that leaves by all links of a route."""
    if not route.links:
        return False
    out: KernelLink = route.links[0]
    return out.source is not None and out.source.pool is not None and bool(out.source.pool.held)


def _credit_came(router: KernelRouter, link: KernelLink) -> None:
    """Send what is held back for a receiver that has got credit, and have its credit divided.

    It leaves before the next frame: a decision about that frame finds nothing that it would have to receive.
    """
    pool = None if link.source is None else link.source.pool
    if pool is not None and pool.held and pool.is_open and not _send_held(router, pool):
        router.leave(pool)
    router.change(pool)


def _is_hindered(route: FastRoute) -> bool:
    """Return whether a link of a route has credit, and something else stops it: the router notes that.

    A multicast is stopped by something else if all of them have credit.
    """
    if route.order == _ALL:
        lacking = 0
        for out in route.links:
            lacking += out.link_credit <= 0
        return not lacking
    for links in (route.links, route.bulk):
        for out in links:
            if out.link_credit > 0:
                return True
    return False


def _send(router: KernelRouter, pool: Pool, held: HeldDelivery, out: KernelLink) -> bool:
    """Send a delivery that was held back. Returns: False: the router must."""
    link = held.link
    route = held.route
    if not _is_ready(out):
        return False
    delivery = held.delivery
    tag = delivery.tag
    key = b""
    mode = -1
    if out.lane:
        if link.lane:
            if not _may_go_on(link, out, tag):
                return False
            key = onward(tag)
        else:
            key = router.next_key(route.hops)
        if not delivery.second:
            mode = 0  # lanes have mode second, for deliveries that need it (§2.7.5)
    if route.turn:
        out.turn = route.turn
    payload = held.payload
    size = len(payload)
    settled = delivery.settled
    _let_go(router, pool, held)
    router.relays -= 1
    held.account.add(-(size + OVERHEAD))
    delivery_id = _write_leg(out, 0, settled, mode, key, payload)
    out.last_at = router.now
    if not out.dirty:
        router.mark_dirty(out)
    recorder = router.recorder
    counter = 0
    sent_at = -1.0
    if recorder is not None:
        counter = router.key_count if out.lane and not link.lane else router.counter(link, tag)
        if recorder.takes(counter):
            sent_at = recorder.time()
            if settled:
                info = held.header_info
                _record(router, recorder, link, out, tag, key, counter, size, held.came_at, sent_at, -1.0, b"", info)
    if not settled:
        goes_on = out.lane and link.lane
        fast = _new_fast_delivery(
            link, delivery.delivery_id, tag, delivery.second, held.came_at, out, delivery_id, b"" if goes_on else key
        )
        if not out.lane:
            fast.number = out.last_tag
        fast.sent_at = sent_at
        fast.size = size
        fast.header_info = held.header_info
        fast.counter = counter
        if goes_on:
            out.lane_to_lane[tag] = fast
        out.outstanding += 1
        router.relays += 1
    sink = held.at_sink
    assert sink is not None
    pool.forwarded(sink, router.now)
    if held.at_exit and sink.source is not None and sink.source.pool is not None:
        router.change(sink.source.pool)
    if not link.lane:
        link.session.release(1)
    return True


def _send_to_all(router: KernelRouter, pool: Pool, held: HeldDelivery) -> None:
    """Send a multicast that was held back. All its links are ready."""
    delivery = held.delivery
    link, payload, sink = held.link, held.payload, held.at_sink
    _let_go(router, pool, held)
    router.relays -= 1
    held.account.add(-(len(payload) + OVERHEAD))
    _write_to_all(
        router, link, held.route, delivery.delivery_id, delivery.tag, delivery.settled, delivery.second, held.came_at,
        0, b"", payload, held.header_info,
    )  # fmt: skip
    assert sink is not None
    pool.forwarded(sink, router.now)
    link.session.release(1)


def _let_go(router: KernelRouter, pool: Pool, held: HeldDelivery) -> None:
    """Take a delivery from those that a pool holds back."""
    assert pool.held is not None
    pool.held.remove(held)
    router.held_count -= 1
    if not pool.held:
        router.held_back.remove(pool)


def take_held(router: KernelRouter, pool: Pool, held: HeldDelivery) -> Delivery:
    """Hold a delivery back no longer, and return it. It counts in no pool now, and holds a frame of its session."""
    link, sink = held.link, held.link.sink
    assert sink is not None
    assert sink.pool is not None
    _let_go(router, pool, held)
    router.relays -= 1
    held.account.add(-(len(held.payload) + OVERHEAD))
    if held.at_exit:
        share = held.at_sink
        assert share is not None
        _take_back(pool, share, True, held.share_spent)
        held.route.borrowed = _credit_of(share)
        if share.source is not None:
            sink.pool.set_usable(share.source, _credit_of(share), router.now)
    _take_back(sink.pool, sink, not held.at_exit, held.spent)
    if link.lane:
        link.session.held += 1
    return held.delivery


def _take_back(pool: Pool, sink: CreditSink, waits: bool, spent: bool) -> None:
    """Count a delivery no longer, since the router will count it when it receives it."""
    sink.delivery_count = (sink.delivery_count - 1) & _MASK
    if waits:
        sink.waiting -= 1
        pool._waiting -= 1
    if spent:
        sink.granted += 1
        pool._granted += 1
