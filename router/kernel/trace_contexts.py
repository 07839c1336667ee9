"""Trace contexts in messages: the fields that the W3C's draft for AMQP names, found without decoding a section."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel.encoded_values import _APPLICATION_PROPERTIES, _HEADER, _MESSAGE_ANNOTATIONS, uint32

if TYPE_CHECKING:
    from amqpmesh.router.kernel.frame_fields import TransferFrame

_TRACEPARENT: Final = b"traceparent"
_TRACESTATE: Final = b"tracestate"

#: Keys of a section that are looked at, at most.
MOST_KEYS: Final = 64
_MOST_KEYS: Final = MOST_KEYS

#: Octets of `traceparent`, of version 00, and of any later one at least: 00-TRACE_ID-PARENT_ID-FLAGS.
_PARENT_SIZE: Final = 55

#: The ids of which all are sampled: 63 bits of each are compared.
ALL_IDS: Final = 2**63


class TraceContexts:
    """The choice of messages that the router makes spans of: those in whose trace context the sender asks for it.

    The share is chosen by the trace-id, so that all routers of a mesh, and programs that sample by the same rule,
    choose the same traces (`TraceIdRatioBased` of OpenTelemetry).
    """

    __slots__ = ("passed_over", "room", "threshold")

    def __init__(self, threshold: int) -> None:
        #: Trace-ids whose last octets, as a number without the lowest bit, are less are in the share; 0..2**63.
        self.threshold = threshold
        #: Messages that may still be chosen for now.
        self.room = 0
        #: Messages that were not chosen for want of room.
        self.passed_over = 0

    def takes(self, data: bytes, at: int, end: int) -> bool:
        """Return whether a message of format 0, whose first frame has the payload from `at` to `end`, is chosen."""
        at = _parent_at(data, at, end)
        if at < 0 or not self._has_share(data, at):
            return False
        if self.room <= 0:
            self.passed_over += 1
            return False
        return True

    def _has_share(self, data: bytes, at: int) -> bool:
        """Return whether the `traceparent` at `at` is sampled, and its trace-id in the share."""
        flags = _hexadecimal(data[at + 54])
        if flags < 0 or not flags & 1 or data[at + 2] != 0x2D or data[at + 35] != 0x2D or data[at + 52] != 0x2D:
            return False
        number = 0
        for each in range(at + 19, at + 35):
            digit = _hexadecimal(data[each])
            if digit < 0:
                return False
            number = number << 4 | digit
        return number >> 1 < self.threshold


def read_trace_context(data: bytes) -> tuple[bytes, bytes] | None:
    """Return the octets of `traceparent` and `tracestate` in the first frame of a message; None: it has no context.

    Of a missing `tracestate` the octets are empty. Nothing of both is checked but their encoding.
    """
    end = len(data)
    at = _next_map(data, 0, end)
    while at >= 0:
        after = _whole_section(data, at, end)
        parent = _string_in(data, at, after, _TRACEPARENT)
        if parent >= 0:
            state = _string_in(data, at, after, _TRACESTATE)
            return _octets_of(data, parent, after), _octets_of(data, state, after) if state >= 0 else b""
        at = _next_map(data, after, end)
    return None


def _octets_of(data: bytes, at: int, end: int) -> bytes:
    return data[at + (2 if data[at] < 0xB0 else 5) : _item_end(data, at, end)]


def _is_traced(contexts: TraceContexts, frame: TransferFrame, data: bytes, at: int, end: int) -> bool:
    """Return whether the router makes a span of a message, and so has to decide about it."""
    return frame.message_format <= 0 and contexts.takes(data, at, end)


def _parent_at(data: bytes, at: int, end: int) -> int:
    """Return where the text of `traceparent` begins, `_PARENT_SIZE` octets at least; -1: there is none.

    That of the message annotations counts before that of the application-properties.
    """
    at = _next_map(data, at, end)
    while at >= 0:
        after = _whole_section(data, at, end)
        value = _string_in(data, at, after, _TRACEPARENT)
        if value >= 0:
            text = value + (2 if data[value] < 0xB0 else 5)
            return text if _item_end(data, value, after) - text >= _PARENT_SIZE else -1
        at = _next_map(data, after, end)
    return -1


def _next_map(data: bytes, at: int, end: int) -> int:
    """Return the begin of the next section that may have a context, from that at `at` on; -1: there is none.

    It is whole, and all sections before it are, in the usual encoding.
    """
    while end - at >= 4 and data[at] == 0 and data[at + 1] == 0x53:
        code = data[at + 2]
        after = _whole_section(data, at, end) if _HEADER <= code <= _APPLICATION_PROPERTIES else -1
        if after < 0:
            return -1
        if code in (_MESSAGE_ANNOTATIONS, _APPLICATION_PROPERTIES):
            return at
        at = after
    return -1


def _whole_section(data: bytes, at: int, end: int) -> int:
    """Return the end of the list or map that is the section at `at`; -1: it is neither, or not whole."""
    form = data[at + 3]
    after = end + 1
    if form == 0x45:
        after = at + 4
    elif (form == 0xC0 or form == 0xC1) and end - at >= 5:
        after = at + 5 + data[at + 4]
    elif (form == 0xD0 or form == 0xD1) and end - at >= 8:
        after = at + 8 + uint32(data, at + 4)
    return after if after <= end else -1


def _string_in(data: bytes, at: int, end: int, name: bytes) -> int:
    """Return the begin of the value with the key `name` in the map that is a section; -1: it has no such string.

    Args: at, end: of the section, which is whole.
    """
    keys = 0
    if data[at + 3] == 0xC1 and end - at >= 6:
        keys = data[at + 5] >> 1
        at += 6
    elif data[at + 3] == 0xD1 and end - at >= 12:
        keys = uint32(data, at + 8) >> 1
        at += 12
    keys = min(keys, _MOST_KEYS)
    size = len(name)
    while keys > 0:
        value = _item_end(data, at, end)
        after = _item_end(data, value, end) if value >= 0 else -1
        if after < 0:
            return -1
        # Strings and symbols, with a size of one octet or of four.
        if (
            (value - at - size == 2 or value - at - size == 5)
            and data[value - size] == 0x74
            and _is_text(data[at])
            and data[value - size : value] == name
        ):
            return value if _is_text(data[value]) else -1
        at = after
        keys -= 1
    return -1


def _item_end(data: bytes, at: int, end: int) -> int:
    """Return the end of the value at `at`, by the upper half of its format code (§1.2); -1: it ends beyond `end`, or is
    described.
    """
    if at >= end:
        return -1
    kind = data[at] >> 4
    after = end + 1
    if kind >= 10:
        if kind & 1 == 0:
            if end - at >= 2:
                after = at + 2 + data[at + 1]
        elif end - at >= 5:
            after = at + 5 + uint32(data, at + 1)
    elif kind > 4:
        after = at + 1 + (1 << (kind - 5))
    elif kind == 4:
        after = at + 1
    return after if after <= end else -1


def _is_text(form: int) -> bool:
    """Return whether a format code is one of a string or a symbol."""
    return form == 0xA1 or form == 0xA3 or form == 0xB1 or form == 0xB3


def _hexadecimal(octet: int) -> int:
    """Return the number of a hexadecimal digit in lower case; -1: it is none."""
    if 0x30 <= octet <= 0x39:
        return octet - 0x30
    return octet - 0x57 if 0x61 <= octet <= 0x66 else -1
