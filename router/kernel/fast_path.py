"""The fast path: frames that are relayed without a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel.anonymous_routes import _anonymous_route
from amqpmesh.router.kernel.backpressure import (
    _COPIED,
    _PACE,
    _goes_to,
    _limit_wait,
    _wait_for_receiver,
    _wait_for_route,
    _wait_in_line,
)
from amqpmesh.router.kernel.client_batch import receive_batch
from amqpmesh.router.kernel.credit_dealing import _relay_flow, deal
from amqpmesh.router.kernel.delivery_keys import onward
from amqpmesh.router.kernel.dispositions import _relay_disposition
from amqpmesh.router.kernel.encoded_states import _ACCEPTED_STATE
from amqpmesh.router.kernel.encoded_values import uint32
from amqpmesh.router.kernel.fast_deliveries import _new_fast_delivery, _record
from amqpmesh.router.kernel.fast_duplicates import _new_id, _note_message
from amqpmesh.router.kernel.fast_redelivery import _keep, _may_keep
from amqpmesh.router.kernel.fast_route import _ALL, _link_for_large, _ready_link
from amqpmesh.router.kernel.fast_shares import _share_for
from amqpmesh.router.kernel.frame_reading import (
    _DISPOSITION_CODE,
    _FLOW_CODE,
    _SMALLEST,
    _TRANSFER_CODE,
    read_disposition,
    read_flow,
    read_transfer,
)
from amqpmesh.router.kernel.frame_writing import _write_whole, write_transfer
from amqpmesh.router.kernel.going_ahead import pause_ahead
from amqpmesh.router.kernel.head_sections import _bare_message_at
from amqpmesh.router.kernel.held_back import _hold_back, _names_held, _waits
from amqpmesh.router.kernel.multi_frame import _count_relayed, _relay_first, _relay_next
from amqpmesh.router.kernel.multicast_path import _relay_to_all
from amqpmesh.router.kernel.serial import serial_distance
from amqpmesh.router.kernel.trace_contexts import _is_traced
from amqpmesh.router.kernel.transfer_accounting import (
    _check_first_transfer,
    _count_first_sent,
    _count_first_transfer,
)
from amqpmesh.router.kernel.transit_routes import _HANDED_ON, _TRACKED
from amqpmesh.router.kernel.user_ids import _may_be_from
from amqpmesh.router.kernel.violations import Violation

if TYPE_CHECKING:
    from amqpmesh.router.kernel.connection_endpoint import KernelConnection
    from amqpmesh.router.kernel.fast_shares import FastShare
    from amqpmesh.router.kernel.frame_fields import TransferFrame
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.router_state import KernelRouter
    from amqpmesh.router.kernel.session_endpoint import KernelSession


def relay_frames(wire: KernelConnection, data: bytes, at: int, end: int) -> int:
    """Relay frames that come on a connection, as long as no decision is needed.

    Each frame is handled entirely, or not at all.

    Args: wire: a connection that both sides have opened. at: the begin of a frame in `data`.
    Returns: the begin of the first frame that is not relayed. It is incomplete, or the engine must read it, or
        `wire.waits_for` must be written first, or `wire.work` is used up, or the frame before it has left a
        `wire.pending_disposition`.
    """
    router = wire.router
    if router is None:
        return at if wire.batch is None else receive_batch(wire, wire.batch, data, at, end)
    begin = at
    frame = router.incoming_frame
    sessions = wire.sessions
    # The session and the link of the frame before: most frames have the same. No frame that is relayed changes them.
    channel = handle = -1
    session: KernelSession | None = None
    link: KernelLink | None = None
    if router.recorder is not None:
        router.recorder.times = 0
    while end - at >= _SMALLEST:
        size = uint32(data, at)
        after = at + size
        if size < _SMALLEST or after > end or size > wire.max_frame_size or data[at + 4] != 2 or data[at + 5]:
            break
        if channel != data[at + 6] << 8 | data[at + 7]:
            channel = data[at + 6] << 8 | data[at + 7]
            session = sessions.get(channel)
            handle = -1
        if session is None:
            break
        code = data[at + 10]
        if code == _TRANSFER_CODE:
            payload_at = read_transfer(frame, data, at + 8, after)
            if payload_at < 0:
                break
            if handle != frame.handle:
                handle = frame.handle
                link = session.links.get(handle)
            if (
                link is None
                or link.sender
                or not _relay_transfer(router, session, link, frame, data, payload_at, after)
            ):
                break
            # A large frame counts more: its output must be written before there is too much of it.
            wire.work -= 1 + (size >> router.unit)
        elif code == _DISPOSITION_CODE:
            if not read_disposition(router.disposition, data, at + 8, after) or _names_held(router, session):
                break
            if not _relay_disposition(router, wire, session, router.disposition):
                at = after
                break
        elif code == _FLOW_CODE:
            if not read_flow(router.flow, data, at + 8, after) or not _relay_flow(router, session, router.flow):
                break
            wire.work -= 1
        else:
            break
        at = after
        if wire.work <= 0:
            break
    if at > begin:
        if wire.waits_since >= 0:
            if wire.waits_on is None:
                wire.waited += router.now - wire.waits_since
            wire.waits_since = -1.0
        if wire.waited > 0:
            wire.waited = max(0.0, wire.waited - (at - begin) / _PACE)
    if wire.waits_for is not None:
        _limit_wait(router, wire)
    # A sender may not use what it has not been told of: before the end of the batch nothing is granted.
    if router.due and (end - at < _SMALLEST or uint32(data, at) > end - at or wire.work <= 0):
        deal(router)
    return at


def _relay_transfer(
    router: KernelRouter,
    session: KernelSession,
    link: KernelLink,
    frame: TransferFrame,
    data: bytes,
    payload_at: int,
    end: int,
) -> bool:
    """Relay a frame: a whole delivery, or a part of one. Returns: whether it was relayed."""
    if link.current is not None:
        return _relay_next(router, session, link, frame, data, payload_at, end)
    if link.user_ids is not None and not _may_be_from(router, link.user_ids, frame, data, payload_at, end):
        return False
    route = link.fast_route if not link.anonymous else _anonymous_route(router, link, frame, data, payload_at, end)
    if (
        route is None
        or route.generation != router.generation
        or link.behind
        or serial_distance(session.next_incoming_id, session.incoming_limit) <= 0
    ):
        if route is not None and route.queue is not None:
            _wait_in_line(router, session.wire, route, route.queue)
        return False
    if route.traced and router.contexts is not None and _is_traced(router.contexts, frame, data, payload_at, end):
        return False
    if route.order == _ALL:
        relayed = route.borrowed != 0 and not _waits(route)
        relayed = relayed and _relay_to_all(router, session, link, route, frame, data, payload_at, end)
        return relayed or (not frame.more and _hold_back(router, session, link, route, frame, data, payload_at, end))
    came = size = end - payload_at
    exchange = 0
    if link.anonymous and router.rewritten is not None:
        exchange = router.exchange
        data, payload_at = router.rewritten, 0
        size = end = len(data)
        if size > route.room:
            return False
    large = frame.more or size > route.room
    if large and route.window is not None:
        return False
    keeper = route.keeper if frame.settled != 1 else None
    if keeper is not None and (large or not _may_keep(router, keeper, link, frame, size)):
        return False
    share: FastShare | None = None
    if route.shares is not None:
        if large:
            return False
        share = _share_for(router, session.wire, route)
        if share is None:
            return False
        route = share.route
    window = route.window
    out: KernelLink | None = None
    if route.borrowed != 0 and not (link.sink is not None and link.sink.pool is not None and link.sink.pool.held):
        out = _ready_link(route) if not large else _link_for_large(route, size)
        if out is not None and out.source is not None and out.source.pool is not None and out.source.pool.held:
            out = None  # others wait already
    if out is None:
        if not large and window is None and _hold_back(router, session, link, route, frame, data, payload_at, end):
            return True
        if session.wire.patient and route.borrowed != 0:
            _wait_for_route(router, session.wire, route, size if large else 0)
            if session.wire.waits_for is None and not large:
                _wait_for_receiver(router, link, route)
        return False
    if out.max_message_size and size > out.max_message_size:
        return False
    recorder = router.recorder
    if recorder is not None:
        router.header.clear()
    bare_at = payload_at
    if frame.message_format <= 0:
        bare_at = _bare_message_at(router.header, data, payload_at, end, route.passing, not frame.more)
        if bare_at < 0:
            return False
    message_id: bytes | None = b""
    if window is not None:
        message_id = _new_id(router, window, frame, data, bare_at, end)
        if message_id is None:
            return False
    try:
        _check_first_transfer(session, link, frame, came)
    except Violation:
        return False  # the engine reads the frame again, finds the same error, and answers it
    incoming_tag = frame.delivery_tag
    assert incoming_tag is not None
    target = out.session
    sink = target.wire
    # The outgoing tag: `tag`; or the incoming tag with `hops` left; or `number`.
    tag = b""
    hops = 0
    number = 0
    if not out.lane:
        out.last_tag += 1
        number = out.last_tag
    elif not link.lane:
        tag = router.next_key(route.hops)
    else:
        hops = incoming_tag[len(incoming_tag) - 1] if incoming_tag else 0
        if hops < 2 or sink.container is session.wire.container or incoming_tag in out.lane_to_lane:
            return False
        hops -= 1
        if out.unsettled and onward(incoming_tag) in out.unsettled:
            return False
    if large:
        tag = tag or (onward(incoming_tag) if hops else b"%x" % number)
        _relay_first(router, link, route, out, frame, data, payload_at, end, tag)
        return True
    settled = frame.settled == 1 or exchange == _HANDED_ON
    leaves_settled = settled and exchange != _TRACKED
    second = link.second and frame.rcv_settle_mode != 0
    delivery_id = target.next_delivery_id
    # Lanes have mode second, for deliveries that need it (§2.7.5).
    mode = 0 if out.lane and (not second or exchange == _TRACKED) else -1
    p = data
    if target.in_full or frame.message_format > 0:
        leaving = router.outgoing_frame
        leaving.handle = out.handle
        leaving.delivery_id = delivery_id
        leaving.delivery_tag = tag or (onward(incoming_tag) if hops else b"%x" % number)
        leaving.message_format = frame.message_format if frame.message_format > 0 else 0
        leaving.settled = 1 if leaves_settled else -1
        leaving.more = False
        leaving.rcv_settle_mode = mode
        write_transfer(sink.out, target.channel, leaving, p[payload_at:end], sink.remote_max_frame_size, target.in_full)
    else:
        _write_whole(
            sink.out,
            target.channel,
            out.handle,
            delivery_id,
            incoming_tag if hops else tag,
            hops,
            number,
            leaves_settled,
            mode,
            data,
            payload_at,
            end,
        )
    _count_first_transfer(session, link, frame.settled == 1, came)
    session.in_parts = False
    if size < _COPIED:
        session.small += 1
        router.small_at = router.now
    else:
        session.count_large(size)
        _goes_to(router, session.wire, sink)
        if link.sink is not None:
            pause_ahead(link.sink.pool, router.now)
    session.release(0)
    _count_first_sent(target, out, leaves_settled)
    out.octets += size
    _count_relayed(router, link, out, route, share)
    counter = 0
    sent_at = -1.0
    info = 4
    if recorder is not None:
        counter = router.key_count if out.lane and not link.lane else router.counter(link, incoming_tag)
        if recorder.takes(counter):
            sent_at = recorder.time()
            if frame.message_format <= 0:
                info = router.header.info()
            if settled:
                _record(
                    router, recorder, link, out, incoming_tag, tag, counter, size, router.now, sent_at, -1.0, b"", info
                )
    if exchange == _HANDED_ON:
        link.count_outcome(_ACCEPTED_STATE)
        session.dispose(True, frame.delivery_id, True, _ACCEPTED_STATE)
    if leaves_settled and window is not None and message_id:
        _note_message(router, window, message_id, True, None)
    if not leaves_settled:
        if link.anonymous:
            tag += router.final_address
        fast = _new_fast_delivery(
            link, frame.delivery_id, incoming_tag, second, router.now, out, delivery_id, tag, exchange == _TRACKED
        )
        if frame.message_format > 0:
            fast.message_format = frame.message_format
        fast.number = number
        fast.sent_at = sent_at
        fast.size = size
        fast.header_info = info
        fast.counter = counter
        if hops:
            out.lane_to_lane[incoming_tag] = fast
        if out.keeps is not None:
            out.keeps.keep(b"%x" % number, data[payload_at:end], True, False)
        if keeper is not None:
            _keep(router, keeper, fast, data[payload_at:end])
        if window is not None and message_id:
            _note_message(router, window, message_id, settled, fast)
        out.outstanding += 1
        router.relays += 1
        if router.relays > router.most_relays:
            router.most_relays = router.relays
    if not target.woken:
        target.stir()
    return True
