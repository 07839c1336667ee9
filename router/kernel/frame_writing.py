"""Hot frames, written as compactly as the standard allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.encoded_values import _append_uint, _put_uint, _uint_octets
from amqpmesh.router.kernel.uncompiled import copy, grow

if TYPE_CHECKING:
    from amqpmesh.router.kernel.frame_fields import DispositionRun, TransferFrame
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.session_endpoint import KernelSession

#: Descriptor and format code of the usual encodings.
_TRANSFER_LIST8: Final = b"\x00\x53\x14\xc0"
_DISPOSITION_LIST8: Final = b"\x00\x53\x15\xc0"

#: Frame header, descriptor and list8 header; the sizes, the channel and the count are filled in.
_TRANSFER_START: Final = b"\x00\x00\x00\x00\x02\x00\x00\x00" + _TRANSFER_LIST8 + b"\x00\x00"
_DISPOSITION_START: Final = b"\x00\x00\x00\x00\x02\x00\x00\x00" + _DISPOSITION_LIST8 + b"\x00\x00"

_FLOW_START: Final = b"\x00\x00\x00\x00\x02\x00\x00\x00\x00\x53\x13\xc0\x00\x00"

#: By the octets of a frame before its payload: its begin, and room for its fields.
_HEADS: Final = tuple(_TRANSFER_START + bytes(max(0, octets - 14)) for octets in range(100))

#: `_NULLS[count:n]`: the nulls between `count` written fields and field n.
_NULLS: Final = b"\x40" * 11

_DIGITS: Final = b"0123456789abcdef"

#: Octets of a state that fits into the smallest frame of a `disposition`.
_SHORT: Final = 400

#: Our outgoing window: as many transfers as the peer takes.
OUTGOING_WINDOW: Final = 0x7FFFFFFF
_OUTGOING_WINDOW: Final = OUTGOING_WINDOW


def write_transfer(
    out: bytearray,
    channel: int,
    frame: TransferFrame,
    payload: bytes | memoryview,
    limit: int,
    in_full: bool = False,
) -> int:
    """Append one `transfer` frame of at most `limit` octets to `out`, compact: trailing defaults are left out (§2.7.5).

    If the payload does not fit, its first part is written, and `more` is set.

    Args: limit: at least the octets of the frame without payload: 65 for a first frame without a state, 70 in full.
        in_full: write nulls for the trailing defaults.
    Returns: the octets of the payload that are written.
    """
    start = len(out)
    _write_transfer_head(out, channel, frame, in_full)
    written = len(payload)
    room = limit - (len(out) - start)
    if written > room:
        if not frame.more:
            del out[start:]
            frame.more = True
            _write_transfer_head(out, channel, frame, in_full)
            room = limit - (len(out) - start)
        written = max(0, room)
        payload = memoryview(payload)[:written]
    out += payload
    out[start : start + 4] = (len(out) - start).to_bytes(4, "big")
    return written


def _write_transfer_head(out: bytearray, channel: int, frame: TransferFrame, in_full: bool) -> None:
    """Append a frame up to its payload, without the frame's size."""
    start = len(out)
    out += _TRANSFER_START
    if channel:
        out[start + 6 : start + 8] = channel.to_bytes(2, "big")
    _append_uint(out, frame.handle)
    count = 1
    if frame.delivery_id != -1:
        _append_uint(out, frame.delivery_id)
        count = 2
    tag = frame.delivery_tag
    if tag is not None:
        out += _NULLS[count:2]
        out.append(0xA0)
        out.append(len(tag))
        out += tag
        count = 3
    if frame.message_format != -1:
        out += _NULLS[count:3]
        _append_uint(out, frame.message_format)
        count = 4
    if frame.settled == 1:
        out += _NULLS[count:4]
        out.append(0x41)
        count = 5
    if frame.more:
        out += _NULLS[count:5]
        out.append(0x41)
        count = 6
    if frame.rcv_settle_mode != -1:
        out += _NULLS[count:6]
        out.append(0x50)
        out.append(frame.rcv_settle_mode)
        count = 7
    if frame.state is not None:
        out += _NULLS[count:7]
        out += frame.state
        count = 8
    if frame.resume:
        out += _NULLS[count:8]
        out.append(0x41)
        count = 9
    if frame.aborted:
        out += _NULLS[count:9]
        out.append(0x41)
        count = 10
    if in_full:
        out += _NULLS[count:11]
        count = 11
    _close_list(out, start, count)


def _write_whole(
    out: bytearray,
    channel: int,
    handle: int,
    delivery_id: int,
    tag: bytes,
    hops: int,
    number: int,
    settled: bool,
    mode: int,
    data: bytes,
    payload_at: int,
    end: int,
) -> None:
    """Append the only frame of a delivery of format 0: the same octets as `write_transfer`.

    The fast path's writer: it sizes the frame first and fills in a template, where `write_transfer` appends each field.

    Args: tag: empty: the tag is `number` in hexadecimal digits. hops: the last octet of the tag; 0: the tag's own.
        mode: rcv-settle-mode, 0 for first; -1: none. payload_at, end: the payload in `data`.
    """
    digits = len(tag)
    if not digits:
        digits = 1
        rest = number >> 4
        while rest:
            digits += 1
            rest >>= 4
    tail = 5 if mode == 0 else 2 if settled else 1
    octets = 16 + _uint_octets(handle) + _uint_octets(delivery_id) + digits + tail
    size = octets + end - payload_at
    at = grow(out, size)
    copy(out, at, _HEADS[octets], 0, octets)
    copy(out, at + octets, data, payload_at, end)
    # All writes below lie within those octets.
    o = out
    o[at + 12] = octets - 13
    o[at + 13] = 7 if mode == 0 else 5 if settled else 4
    if channel:
        o[at + 6] = channel >> 8
        o[at + 7] = channel & 255
    if size > 0xFFFF:
        o[at] = size >> 24
        o[at + 1] = size >> 16 & 255
    o[at + 2] = size >> 8 & 255
    o[at + 3] = size & 255
    at = _put_uint(o, at + 14, handle)
    at = _put_uint(o, at, delivery_id)
    o[at] = 0xA0
    o[at + 1] = digits
    at += 2
    if tag:
        t = tag
        for rest in range(digits):
            o[at + rest] = t[rest]
        at += digits
        if hops:
            o[at - 1] = hops
    else:
        at += digits
        rest = at - 1
        while digits:
            o[rest] = _DIGITS[number & 15]
            number >>= 4
            rest -= 1
            digits -= 1
    # Message format, settled, more, rcv-settle-mode.
    o[at] = 0x43
    if tail > 1:
        o[at + 1] = 0x41 if settled else 0x40
    if mode == 0:
        o[at + 2] = 0x40
        o[at + 3] = 0x50


def _close_list(out: bytearray, start: int, count: int) -> None:
    """Fill in the size and the count of a performative's list, which becomes a list32 if it is long."""
    size = len(out) - start - 13
    if size < 256:
        out[start + 12] = size
        out[start + 13] = count
    else:
        # The state is large: an error with its info, or annotations to merge.
        out[start + 11 : start + 14] = b"\xd0" + (size + 3).to_bytes(4, "big") + count.to_bytes(4, "big")


def write_dispositions(session: KernelSession) -> bool:
    """Write the dispositions that are due on a session, if each is certain to fit into a frame.

    Returns: whether they are written. If not, the engine writes them.
    """
    if session.progress:
        return False
    wire = session.wire
    for run in session.dispositions:
        if run.state is not None and len(run.state) > _SHORT:
            return False
    for run in session.dispositions:
        write_disposition(wire.out, session.channel, run)
    session.dispositions.clear()
    return True


def write_disposition(out: bytearray, channel: int, run: DispositionRun) -> None:
    """Append a whole `disposition` frame to `out`, compact (§2.7.6)."""
    start = len(out)
    out += _DISPOSITION_START
    if channel:
        out[start + 6] = channel >> 8
        out[start + 7] = channel & 255
    out.append(0x41 if run.receiver else 0x42)
    _append_uint(out, run.first)
    count = 2
    if run.last != run.first:
        _append_uint(out, run.last)
        count = 3
    elif run.settled or run.state is not None:
        out.append(0x40)
    if run.settled or run.state is not None:
        out.append(0x41 if run.settled else 0x42)
        count = 4
    if run.state is not None:
        out += run.state
        count = 5
    _close_list(out, start, count)
    size = len(out) - start
    out[start] = size >> 24
    out[start + 1] = size >> 16 & 255
    out[start + 2] = size >> 8 & 255
    out[start + 3] = size & 255


def write_flow(session: KernelSession, link: KernelLink | None, echo: bool, counted: bool = True) -> None:
    """Append a `flow` with the state of a session, and of a link if one is given, to the output (§2.7.4).

    Args: echo: ask the peer for an answer. counted: we know the link's delivery-count.
    """
    out = session.wire.out
    compact = session.wire.compact
    start = len(out)
    window = session.announce()
    out += _FLOW_START
    if session.channel:
        out[start + 6] = session.channel >> 8
        out[start + 7] = session.channel & 255
    if session.begun:
        _append_uint(out, session.next_incoming_id)
    else:
        out.append(0x40)
    _append_uint(out, window)
    _append_uint(out, session.next_outgoing_id)
    _append_uint(out, _OUTGOING_WINDOW)
    count = 4
    drain = False
    if link is not None:
        _append_uint(out, link.handle)
        if counted:
            _append_uint(out, link.delivery_count)
        else:
            out.append(0x40)
        _append_uint(out, link.link_credit)
        _append_uint(out, link.available)
        count = 8
        drain = link.drain
    if not compact or drain or echo:
        out += _NULLS[count:8]
        out.append(0x41 if drain else 0x42 if not compact else 0x40)
        count = 9
        if not compact or echo:
            out.append(0x41 if echo else 0x42)
            count = 10
        if not compact:
            out.append(0x40)
            count = 11
    _close_list(out, start, count)
    out[start + 3] = len(out) - start
