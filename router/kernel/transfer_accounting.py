"""Accounting of transfers and of our own dispositions (§2.5.6, §2.6.7, §2.6.12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.kernel.encoded_states import is_terminal
from amqpmesh.router.kernel.fast_deliveries import FastDelivery, _expanded, _is_ended
from amqpmesh.router.kernel.fast_multicast import FastMulticast
from amqpmesh.router.kernel.frame_fields import TransferFrame
from amqpmesh.router.kernel.frame_writing import _write_whole, write_transfer
from amqpmesh.router.kernel.ledger import _AWAY, Delivery
from amqpmesh.router.kernel.serial import _MASK, serial_distance
from amqpmesh.router.kernel.violations import LINK, SESSION, Violation

if TYPE_CHECKING:
    from amqpmesh.router.kernel.ledger import Entry
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.router_state import KernelRouter
    from amqpmesh.router.kernel.session_endpoint import KernelSession


def receive_transfer(link: KernelLink, frame: TransferFrame, payload_size: int) -> Delivery:
    """Account an incoming transfer on `link`: session window, credit, delivery, ledger.

    All checks precede all changes.
    Returns: the delivery of the frame. If it is `ignored`, the peer has resumed a delivery that our unsettled map does
        not hold, or that had arrived whole: its frames are only counted (§2.6.13).
    Raises: Violation at the session (window-violation, invalid field) or at the link (transfer-limit-exceeded,
        message-size-exceeded, invalid field).
    Source: §2.5.6 receiving a transfer, §2.6.7, §2.7.5.
    """
    session = link.session
    if serial_distance(session.next_incoming_id, session.incoming_limit) <= 0:
        raise Violation(SESSION, "amqp:session:window-violation", "transfer beyond the incoming window")
    delivery = link.current
    if delivery is None:
        return _first_transfer(session, link, frame, payload_size)
    if frame.delivery_id != -1 and frame.delivery_id != delivery.delivery_id:
        raise Violation(SESSION, "amqp:invalid-field", "delivery-id changed within a delivery")
    if frame.delivery_tag is not None and frame.delivery_tag != delivery.tag:
        raise Violation(SESSION, "amqp:invalid-field", "delivery-tag changed within a delivery")
    if frame.message_format != -1 and frame.message_format != delivery.message_format:
        raise Violation(SESSION, "amqp:invalid-field", "message-format changed within a delivery")
    if frame.aborted:
        payload_size = 0
    elif link.max_message_size and delivery.size + payload_size > link.max_message_size:
        raise Violation(LINK, "amqp:link:message-size-exceeded", f"more than {link.max_message_size} bytes")
    if frame.settled == 1 and link.snd_settle_mode == 0 and not frame.aborted:
        raise Violation(LINK, "amqp:invalid-field", "settled transfer on a link of snd-settle-mode unsettled")
    if link.snd_settle_mode == 1 and not (frame.settled == 1 or delivery.remote_settled or frame.aborted or frame.more):
        raise Violation(LINK, "amqp:invalid-field", "unsettled delivery on a link of snd-settle-mode settled")
    session.next_incoming_id = (session.next_incoming_id + 1) & _MASK
    session.held += 1
    if session.next_incoming_id == session.incoming_limit:
        session.look()  # frames that wait for one link must not stop the others
    if session.remote_outgoing_window > 0:
        session.remote_outgoing_window -= 1
    delivery.size += payload_size
    link.octets += payload_size
    if link.meter is not None:
        link.meter.withhold(session)
    if frame.state is not None:
        delivery.remote_state = frame.state
    if (frame.settled == 1 or frame.aborted) and not delivery.remote_settled:
        # From here on it is delivered at most once: the sender has forgotten it, and so do we (§2.7.5, settled).
        delivery.settled = delivery.remote_settled = True
        forget(delivery)
    if frame.aborted:
        delivery.aborted = True
    if frame.aborted or not frame.more:
        delivery.complete = True
        link.current = None
    return delivery


def _first_transfer(session: KernelSession, link: KernelLink, frame: TransferFrame, payload_size: int) -> Delivery:
    """Account the first frame of a delivery, which needs an id and a tag of its own, and credit."""
    if frame.resume:
        known = None if frame.delivery_tag is None else link.unsettled.get(frame.delivery_tag)
        if isinstance(known, FastDelivery) and known.incoming_id == _AWAY and _stays_fast(link, frame, known):
            return _resume_fast(session, link, frame, known)
        if isinstance(known, FastDelivery | FastMulticast) and known.incoming_id == _AWAY:
            known = _expanded(known, False)
        if isinstance(known, Delivery) and known.delivery_id == -1:
            return _resume(session, link, frame, known)
    _check_first_transfer(session, link, frame, payload_size)
    if frame.aborted:
        payload_size = 0
    settled = frame.settled == 1
    _count_first_transfer(session, link, settled, payload_size)
    session.held += 1
    if frame.more:
        session.begin_parts()
    else:
        session.in_parts = False
    if session.next_incoming_id == session.incoming_limit:
        session.look()
    assert frame.delivery_tag is not None
    second = link.second and frame.rcv_settle_mode != 0
    message_format = frame.message_format if frame.message_format != -1 else 0
    delivery = Delivery(link, frame.delivery_tag, message_format, settled, second)
    delivery.delivery_id = frame.delivery_id
    delivery.size = payload_size
    delivery.remote_state = frame.state
    if frame.aborted:
        delivery.aborted = True
        delivery.settled = delivery.remote_settled = True
        delivery.complete = True
        return delivery
    if frame.resume:
        delivery.ignored = True
        delivery.settled = delivery.remote_settled = True
    elif not settled:
        session.incoming.put(delivery.delivery_id, delivery)
        link.unsettled[delivery.tag] = delivery
    if frame.more:
        link.current = delivery
    else:
        delivery.complete = True
    return delivery


def _resume(session: KernelSession, link: KernelLink, frame: TransferFrame, delivery: Delivery) -> Delivery:
    """Account a resumed delivery of the link's unsettled map that had come whole: its frames are dropped."""
    del link.unsettled[delivery.tag]
    try:
        _check_first_transfer(session, link, frame, 0)
    finally:
        link.unsettled[delivery.tag] = delivery
    _count_first_transfer(session, link, False, 0)
    session.held += 1
    if session.next_incoming_id == session.incoming_limit:
        session.look()
    delivery.delivery_id = frame.delivery_id
    delivery.second = link.second and frame.rcv_settle_mode != 0
    delivery.ignored = True
    delivery.aborted = frame.aborted
    delivery.size = 0
    if frame.state is not None:
        delivery.remote_state = frame.state
    if frame.settled == 1 or frame.aborted:
        delivery.remote_settled = True
    else:
        session.incoming.put(delivery.delivery_id, delivery)
    if frame.more and not frame.aborted:
        link.current = delivery
    return delivery


def _stays_fast(link: KernelLink, frame: TransferFrame, fast: FastDelivery) -> bool:
    """Return whether a fast delivery that is resumed needs no decision: its sender says nothing of it, and waits."""
    return (
        not (frame.more or frame.aborted or frame.settled == 1)
        and (frame.state is None or not is_terminal(frame.state))
        and (fast.outcome is None or (link.second and frame.rcv_settle_mode != 0))
    )


def _resume_fast(session: KernelSession, link: KernelLink, frame: TransferFrame, fast: FastDelivery) -> Delivery:
    """Account a fast delivery that its sender resumes, and tell the sender the outcome if there is one.

    Returns: a delivery that stands for its frame, which is dropped.
    """
    tag = fast.incoming_tag
    del link.unsettled[tag]
    try:
        _check_first_transfer(session, link, frame, 0)
    finally:
        link.unsettled[tag] = fast
    _count_first_transfer(session, link, False, 0)
    session.held += 1
    if session.next_incoming_id == session.incoming_limit:
        session.look()
    fast.incoming_id = frame.delivery_id
    fast.second = link.second and frame.rcv_settle_mode != 0
    session.incoming.put(fast.incoming_id, fast)
    if fast.outcome is not None:
        session.dispose(True, fast.incoming_id, False, fast.outcome)
    dropped = Delivery(link, tag, fast.message_format, True, False)
    dropped.ignored = dropped.complete = True
    return dropped


def _check_first_transfer(session: KernelSession, link: KernelLink, frame: TransferFrame, payload_size: int) -> None:
    """Check the first frame of a delivery. Raises: Violation."""
    if frame.delivery_id == -1:
        raise Violation(SESSION, "amqp:invalid-field", "first transfer of a delivery without delivery-id")
    if frame.delivery_tag is None:
        raise Violation(SESSION, "amqp:invalid-field", "first transfer of a delivery without delivery-tag")
    if serial_distance(link.delivery_count, link.granted_limit) <= 0:
        raise Violation(LINK, "amqp:link:transfer-limit-exceeded", "transfer without link credit")
    entry = session.incoming.find(frame.delivery_id)
    if entry is not None and not _makes_room(session, entry):
        raise Violation(SESSION, "amqp:invalid-field", f"delivery-id {frame.delivery_id} is in use")
    if frame.delivery_tag in link.unsettled:
        raise Violation(LINK, "amqp:not-allowed", "delivery-tag is in use by an unsettled delivery")
    if frame.rcv_settle_mode == 1 and not link.second:
        raise Violation(LINK, "amqp:invalid-field", "rcv-settle-mode second on a link of mode first")
    if frame.settled == 1:
        if link.snd_settle_mode == 0 and not frame.aborted:
            raise Violation(LINK, "amqp:invalid-field", "settled transfer on a link of snd-settle-mode unsettled")
    elif link.snd_settle_mode == 1 and not frame.aborted and not frame.more:
        raise Violation(LINK, "amqp:invalid-field", "unsettled delivery on a link of snd-settle-mode settled")
    if link.max_message_size and payload_size > link.max_message_size and not frame.aborted:
        raise Violation(LINK, "amqp:link:message-size-exceeded", f"more than {link.max_message_size} bytes")


def _makes_room(session: KernelSession, entry: Entry) -> bool:
    """Free the id of an incoming delivery if its link has ended. Returns: whether it has."""
    if not _is_ended(entry, False):
        return False
    delivery = _expanded(entry, False)
    session.incoming.remove(delivery.delivery_id)
    session.displaced.append(delivery)
    return True


def _count_first_transfer(session: KernelSession, link: KernelLink, settled: bool, payload_size: int) -> None:
    """Count the first frame of an incoming delivery in the session, and the delivery on the link."""
    session.next_incoming_id = (session.next_incoming_id + 1) & _MASK
    if session.remote_outgoing_window > 0:
        session.remote_outgoing_window -= 1
    link.delivery_count = (link.delivery_count + 1) & _MASK
    if link.link_credit > 0:
        link.link_credit -= 1
    if link.available > 0:
        link.available -= 1
    link.deliveries += 1
    link.octets += payload_size
    if settled:
        link.presettled += 1


def discard_transfer(session: KernelSession) -> None:
    """Account a transfer that is dropped, because its link is being detached. Raises: as `receive_transfer`."""
    if serial_distance(session.next_incoming_id, session.incoming_limit) <= 0:
        raise Violation(SESSION, "amqp:session:window-violation", "transfer beyond the incoming window")
    session.next_incoming_id = (session.next_incoming_id + 1) & _MASK
    session.held += 1
    session.release(1)


def send_transfer(
    link: KernelLink,
    out: bytearray,
    delivery: Delivery,
    payload: bytes | memoryview,
    more: bool,
    aborted: bool,
    state: bytes | None,
    limit: int,
    resume: bool = False,
) -> int:
    """Append the next frames of `delivery` to `out`, as far as the session's window allows, and account them.

    The first frame takes an id and one credit of the link. The caller ensures that there is credit, and that the frames
    of no other delivery are incomplete. `delivery.settled` is written into every frame.

    Args: more: other parts follow. aborted: abort a delivery that has begun; `payload` is empty, `more` false.
        state: encoded, for the first frame. limit: octets of the largest frame that the peer takes. resume: the
        receiver knows the delivery by a former link.
    Returns: the octets of the payload that are written; `delivery.complete` is set with the last frame.
    Source: §2.5.6 sending a transfer, §2.6.7, §2.6.14.
    """
    session = link.session
    size = len(payload)
    written = 0
    settled = 1 if delivery.settled else -1
    while session.remote_incoming_window > 0 and not delivery.complete:
        first = delivery.delivery_id == -1
        if first:
            delivery_id = session.next_delivery_id
            frame = TransferFrame(link.handle, delivery_id, delivery.tag, delivery.message_format, settled, more)
            frame.state = state
            frame.resume = resume
            frame.rcv_settle_mode = delivery.rcv_settle_mode
        elif written == size and more:
            break
        else:
            frame = TransferFrame(link.handle, settled=settled, more=more, aborted=aborted)
        rest = memoryview(payload)[written:] if written else payload
        written += write_transfer(out, session.channel, frame, rest, limit, session.in_full)
        if first:
            delivery.delivery_id = delivery_id
            _count_first_sent(session, link, delivery.settled)
            if not delivery.settled:
                session.outgoing.put(delivery_id, delivery)
                link.unsettled[delivery.tag] = delivery
        else:
            session.next_outgoing_id = (session.next_outgoing_id + 1) & _MASK
            session.remote_incoming_window -= 1
        if frame.more:
            link.current = delivery
        else:
            link.current = None
            delivery.complete = True
    if delivery.complete and aborted:
        delivery.aborted = True
        delivery.settled = delivery.remote_settled = True
        forget(delivery)
    delivery.size += written
    link.octets += written
    return written


def resume_transfer(
    link: KernelLink, out: bytearray, delivery: Delivery, state: bytes | None, limit: int, aborted: bool = False
) -> None:
    """Append the transfer that resumes a delivery which was sent over a former link: it has no octets (§2.6.13).

    The caller ensures that there is credit, and room in the session's window. A delivery that is settled here is
    settled by the transfer.
    Args: state: encoded, of the sender. limit: as of `send_transfer`. aborted: the delivery is given up.
    Source: §2.7.5 (resume), §3.4.6.
    """
    session = link.session
    delivery_id = session.next_delivery_id
    settled = 1 if delivery.settled and not aborted else -1
    frame = TransferFrame(
        link.handle, delivery_id, delivery.tag, delivery.message_format, settled, more=False, aborted=aborted
    )
    frame.resume = True
    frame.state = state
    frame.rcv_settle_mode = delivery.rcv_settle_mode
    write_transfer(out, session.channel, frame, b"", limit, session.in_full)
    delivery.delivery_id = delivery_id
    delivery.complete = True
    _count_first_sent(session, link, False)
    if not (delivery.settled or aborted):
        session.outgoing.put(delivery_id, delivery)
        link.unsettled[delivery.tag] = delivery


def _count_first_sent(session: KernelSession, link: KernelLink, settled: bool) -> None:
    """Count the first frame of an outgoing delivery in the session, and the delivery on the link."""
    session.next_outgoing_id = (session.next_outgoing_id + 1) & _MASK
    session.remote_incoming_window -= 1
    session.next_delivery_id = (session.next_delivery_id + 1) & _MASK
    link.delivery_count = (link.delivery_count + 1) & _MASK
    link.link_credit -= 1
    link.deliveries += 1
    if settled:
        link.presettled += 1


def _write_leg(out: KernelLink, message_format: int, settled: bool, mode: int, key: bytes, payload: bytes) -> int:
    """Write a whole delivery to a link that is ready.

    Args: mode: the rcv-settle-mode; -1: the link's. key: the tag, if the link is a lane. Returns: the delivery-id.
    """
    target = out.session
    sink = target.wire
    size = len(payload)
    tag = b""
    if out.lane:
        tag = key
    else:
        out.last_tag += 1
    delivery_id = target.next_delivery_id
    if target.in_full or message_format > 0:
        router = sink.router
        assert router is not None
        leaving = router.outgoing_frame
        leaving.handle = out.handle
        leaving.delivery_id = delivery_id
        leaving.delivery_tag = tag or b"%x" % out.last_tag
        leaving.message_format = message_format
        leaving.settled = 1 if settled else -1
        leaving.more = False
        leaving.rcv_settle_mode = mode
        write_transfer(sink.out, target.channel, leaving, payload, sink.remote_max_frame_size, target.in_full)
    else:
        _write_whole(
            sink.out, target.channel, out.handle, delivery_id, tag, 0, out.last_tag, settled, mode, payload, 0, size
        )
    _count_first_sent(target, out, settled)
    out.octets += size
    if out.keeps is not None and not settled:
        out.keeps.keep(b"%x" % out.last_tag, payload, True, False)
    if not target.woken:
        target.stir()
    return delivery_id


def _count_leg(router: KernelRouter, out: KernelLink) -> None:
    """Note that a delivery has left by a link."""
    out.last_at = router.now
    if not out.link_credit:
        router.change_open(None if out.source is None else out.source.pool)
    if not out.dirty:
        router.mark_dirty(out)
        if out.session.wire.sending:  # its peer does not read: the waiting output must be counted
            router.needs_update = True


def dispose(delivery: Delivery, state: bytes | None, settled: bool) -> None:
    """Tell the peer our state of `delivery`, and settle it here if `settled` (§2.6.12, §2.7.6).

    Nothing is sent if the peer has settled it, or if the link or the session has ended.
    """
    if delivery.settled:
        return
    if state is not None:
        delivery.state = state
    if settled:
        delivery.settled = True
        forget(delivery)
    link = delivery.link
    if delivery.delivery_id != -1 and not (delivery.remote_settled or link.ended) and link.session.channel != -1:
        link.session.dispose(not link.sender, delivery.delivery_id, settled, state)


def forget(delivery: Delivery) -> None:
    """Remove `delivery` from the ledger of its session and from the unsettled map of its terminus."""
    link = delivery.link
    ledger = link.session.outgoing if link.sender else link.session.incoming
    if ledger.find(delivery.delivery_id) is delivery:
        ledger.remove(delivery.delivery_id)
    if link.unsettled.get(delivery.tag) is delivery:
        del link.unsettled[delivery.tag]
