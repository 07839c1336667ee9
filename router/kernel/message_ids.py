"""Message-ids, in a form in which equal ones of the same type compare equal (§3.2.4, message-id)."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from amqpmesh.router.kernel.encoded_values import PROPERTIES, descriptor_code, skip, uint32
from amqpmesh.router.kernel.violations import LINK, Incomplete, Violation

#: The most octets of a string or binary that is remembered as it is. A digest stands for a longer one: it needs less
#: memory, and nobody finds two values with one digest.
LONGEST_ID: Final = 64
_LONGEST_ID: Final = LONGEST_ID


def read_message_id(data: bytes, at: int, end: int) -> bytes | None:
    """Return the message-id of a message: a letter for its type, then its octets; None: it has none.

    Args: at: the begin of the bare message in `data`, whose properties come first, or are not looked at. end: of what
        has come of the message.
    Raises: Incomplete: the message-id ends beyond `end`. Violation: the section is malformed.
    """
    if at >= end:
        return None
    code, value_at = descriptor_code(data, at, end)
    if code != PROPERTIES:
        return None
    if value_at >= end:
        raise Incomplete
    form = data[value_at]
    if form == 0x45:
        return None
    if form == 0xC0:
        if end - value_at < 3:
            raise Incomplete
        list_end = value_at + 2 + data[value_at + 1]
        count = data[value_at + 2]
        item = value_at + 3
    elif form == 0xD0:
        if end - value_at < 9:
            raise Incomplete
        list_end = value_at + 5 + uint32(data, value_at + 1)
        count = uint32(data, value_at + 5)
        item = value_at + 9
    else:
        raise Violation(LINK, "amqp:decode-error", "the properties section is not a list")
    if count == 0:
        return None
    after = skip(data, item, min(end, list_end)) if list_end > end else _item_within(data, item, list_end)
    return _comparable_id(data, item, after)


def _item_within(data: bytes, item: int, list_end: int) -> int:
    """Return the end of an item of a list that has come as a whole."""
    try:
        return skip(data, item, list_end)
    except Incomplete:
        raise Violation(LINK, "amqp:decode-error", "the properties are shorter than their fields") from None


def _comparable_id(data: bytes, item: int, after: int) -> bytes | None:
    form = data[item]
    octets = data[item + 1 : after]
    if form == 0xA1 or form == 0xB1:
        octets = octets[1 if form == 0xA1 else 4 :]
        return b"s" + octets if len(octets) <= _LONGEST_ID else b"S" + sha256(octets).digest()
    if form == 0xA0 or form == 0xB0:
        octets = octets[1 if form == 0xA0 else 4 :]
        return b"b" + octets if len(octets) <= _LONGEST_ID else b"B" + sha256(octets).digest()
    if form == 0x80:
        return b"l" + octets
    if form == 0x53:
        return b"l\x00\x00\x00\x00\x00\x00\x00" + octets
    if form == 0x44:
        return b"l\x00\x00\x00\x00\x00\x00\x00\x00"
    if form == 0x98:
        return b"u" + octets
    if form == 0x40:
        return None
    raise Violation(LINK, "amqp:decode-error", "the message-id is of none of its types")
