"""Hot frames in their usual encoding, read from octets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.encoded_states import _ACCEPTED, _ACCEPTED_STATE, _STATES
from amqpmesh.router.kernel.encoded_values import uint32, uint_end, uint_value
from amqpmesh.router.kernel.frame_fields import _MAX_TAG, DispositionFrame, TransferFrame

if TYPE_CHECKING:
    from amqpmesh.router.kernel.frame_fields import FlowFrame

#: Octets of the smallest frame that is relayed.
_SMALLEST: Final = 15
_TRANSFER_CODE: Final = 0x14
_DISPOSITION_CODE: Final = 0x15
_ATTACH_CODE: Final = 0x12
_FLOW_CODE: Final = 0x13


def frame_size(data: bytes, at: int, most: int) -> int:
    """Return the size of the frame at `at` (§2.3.1); 0: its header is not complete; -1: its header is illegal.

    Args: most: octets of the largest frame that is accepted.
    """
    if len(data) - at < 8:
        return 0
    size = uint32(data, at)
    body_at = data[at + 4] * 4
    return -1 if body_at < 8 or size < body_at or size > most or data[at + 5] > 1 else size


def skim_transfer(data: bytes, at: int, end: int) -> tuple[TransferFrame, int] | None:
    """Read the `transfer` that begins at `at`. Returns: it, and the begin of its payload; None: the decoder must.

    Only the common shape is read: the descriptor 0x14 as a smallulong, a list, compact fields, no rare fields. Any
    other shape, malformed octets included, is left to the generic decoder, which also answers errors.
    """
    frame = TransferFrame(-1)
    payload_at = read_transfer(frame, data, at, end)
    return None if payload_at < 0 else (frame, payload_at)


def read_transfer(frame: TransferFrame, data: bytes, at: int, end: int) -> int:
    """Read a `transfer` as `skim_transfer` does, into a given frame, whose rare fields keep their defaults.

    Returns: the begin of the payload; -1: the decoder must read it, and the frame is undefined.
    """
    if end - at < 7 or data[at] or data[at + 1] != 0x53 or data[at + 2] != _TRANSFER_CODE:
        return -1
    if data[at + 3] == 0xC0:
        payload_at = at + 5 + data[at + 4]
        count = data[at + 5]
        at += 6
    elif data[at + 3] == 0xD0 and end - at > 12:
        payload_at = at + 8 + uint32(data, at + 4)
        count = uint32(data, at + 8)
        at += 12
    else:
        return -1
    # No field may end beyond the list.
    if payload_at > end or count < 1 or count > 11:
        return -1
    frame.delivery_id = frame.message_format = frame.settled = frame.rcv_settle_mode = -1
    frame.delivery_tag = None
    frame.more = False
    after = uint_end(data, at, payload_at)
    if after < 0 or data[at] == 0x40:
        return -1
    frame.handle = uint_value(data, at, data[at])
    at = after
    if count > 1:
        after = uint_end(data, at, payload_at)
        if after < 0:
            return -1
        frame.delivery_id = uint_value(data, at, data[at])
        at = after
    if count > 2:
        if at + 1 >= payload_at and (at >= payload_at or data[at] != 0x40):
            return -1
        code = data[at]
        if code == 0xA0:
            after = at + 2 + data[at + 1]
            if after > payload_at or data[at + 1] > _MAX_TAG:
                return -1
            p = data
            frame.delivery_tag = p[at + 2 : after]
            at = after
        elif code == 0x40:
            at += 1
        else:
            return -1
    if count > 3:
        after = uint_end(data, at, payload_at)
        if after < 0:
            return -1
        frame.message_format = uint_value(data, at, data[at])
        at = after
    if count > 4:
        if at >= payload_at:
            return -1
        code = data[at]
        if code == 0x41:
            frame.settled = 1
        elif code == 0x42:
            frame.settled = 0
        elif code != 0x40:
            return -1
        at += 1
    if count > 5:
        if at >= payload_at:
            return -1
        code = data[at]
        if code == 0x41:
            frame.more = True
        elif code != 0x42 and code != 0x40:
            return -1
        at += 1
    if count > 6:
        if at >= payload_at:
            return -1
        code = data[at]
        if code == 0x50 and at + 1 < payload_at and data[at + 1] < 2:
            frame.rcv_settle_mode = data[at + 1]
            at += 2
        elif code == 0x40:
            at += 1
        else:
            return -1
        # Some peers write the whole list: the state is null, the flags behind it are false; batchable, a hint, may be
        # true.
        if at + count - 7 != payload_at:
            return -1
        for field in range(7, count):
            if data[at] != 0x40 and (data[at] != 0x42 or field < 8) and (data[at] != 0x41 or field != 10):
                return -1
            at += 1
    return payload_at if at == payload_at else -1


def skim_disposition(data: bytes, at: int, end: int) -> DispositionFrame | None:
    """Read the `disposition` that begins at `at`; None: the decoder must read it (see `skim_transfer`)."""
    frame = DispositionFrame(False, 0, 0, False, None)
    return frame if read_disposition(frame, data, at, end) else None


def read_disposition(frame: DispositionFrame, data: bytes, at: int, end: int) -> bool:
    """Read a `disposition` as `skim_disposition` does, into a given frame. Returns: whether it was read."""
    if end - at < 9 or data[at] or data[at + 1] != 0x53 or data[at + 2] != _DISPOSITION_CODE:
        return False
    at = _fields_at(data, at + 3, end)
    if at < 0:
        return False
    count = data[at - 1]
    if count < 2 or count > 6:
        return False
    code = data[at]
    if code != 0x41 and code != 0x42:
        return False
    frame.receiver = code == 0x41
    at += 1
    after = uint_end(data, at, end)
    if after < 0 or data[at] == 0x40:
        return False
    frame.first = frame.last = uint_value(data, at, data[at])
    at = after
    frame.settled = False
    frame.state = None
    if count > 2:
        after = uint_end(data, at, end)
        if after < 0:
            return False
        if data[at] != 0x40:
            frame.last = uint_value(data, at, data[at])
        at = after
    if count > 3:
        if at >= end:
            return False
        code = data[at]
        if code == 0x41:
            frame.settled = True
        elif code != 0x42 and code != 0x40:
            return False
        at += 1
    if count > 5:
        # The hint `batchable` is not used.
        end -= 1
        code = data[end]
        if code < 0x40 or code > 0x42:
            return False
    if count > 4:
        if at >= end:
            return False
        if (
            end - at == 4
            and data[at + 2] == _ACCEPTED
            and data[at] == 0
            and data[at + 1] == 0x53
            and data[at + 3] == 0x45
        ):
            frame.state = _ACCEPTED_STATE
        else:
            state = data[at:end]
            if state not in _STATES:
                return False
            frame.state = _STATES[state]
        at = end
    return at == end


def split_attach(data: bytes) -> tuple[str, int, bytes] | None:
    """Cut the body of an `attach` behind its name and its handle (§2.7.3).

    Returns: the name, the handle, and what the other fields follow from: the number of all fields, then the octets of
        the others. None: the decoder must read it.
    """
    end = len(data)
    if end < 12 or data[0] or data[1] != 0x53 or data[2] != _ATTACH_CODE:
        return None
    at = _fields_at(data, 3, end)
    if at < 0 or at + 1 >= end or data[at] != 0xA1:
        return None
    handle_at = at + 2 + data[at + 1]
    if handle_at >= end:
        return None
    after = uint_end(data, handle_at, end)
    if after < 0 or data[handle_at] == 0x40:
        return None
    try:
        name = data[at + 2 : handle_at].decode("utf-8")
    except UnicodeDecodeError:
        return None
    return name, uint_value(data, handle_at, data[handle_at]), data[at - 1 : at] + data[after:]


def _fields_at(data: bytes, at: int, end: int) -> int:
    """Return the begin of the fields of the list at `at`; the octet before it is their number.

    Returns: -1: there is no list, it does not end at `end`, or it has more than 255 fields.
    """
    if data[at] == 0xC0:
        return at + 3 if at + 2 + data[at + 1] == end else -1
    if data[at] != 0xD0 or end - at < 9 or at + 5 + uint32(data, at + 1) != end or uint32(data, at + 5) > 255:
        return -1
    return at + 9


def read_flow(frame: FlowFrame, data: bytes, at: int, end: int) -> bool:
    """Read the `flow` that begins at `at` into a given frame.

    Returns: whether it was read: it has the common shape, and no properties.
    """
    if end - at < 10 or data[at] or data[at + 1] != 0x53 or data[at + 2] != _FLOW_CODE:
        return False
    at = _fields_at(data, at + 3, end)
    if at < 0:
        return False
    count = data[at - 1]
    if count < 4 or count > 11:
        return False
    frame.handle = frame.delivery_count = frame.link_credit = -1
    frame.drain = frame.echo = False
    for field in range(count):
        if field < 8:
            after = uint_end(data, at, end)
            if after < 0:
                return False
            value = uint_value(data, at, data[at])
            at = after
            if field == 0:
                frame.next_incoming_id = value
            elif field < 4:
                if value < 0:
                    return False
                if field == 1:
                    frame.incoming_window = value
                elif field == 2:
                    frame.next_outgoing_id = value
                else:
                    frame.outgoing_window = value
            elif field == 4:
                frame.handle = value
            elif field == 5:
                frame.delivery_count = value
            elif field == 6:
                frame.link_credit = value
            # `available` is of no use: only a sender knows it.
        else:
            if at >= end or not (0x40 <= data[at] <= 0x42) or (field == 10 and data[at] != 0x40):
                return False
            if data[at] == 0x41:
                if field == 8:
                    frame.drain = True
                else:
                    frame.echo = True
            at += 1
    return at == end
