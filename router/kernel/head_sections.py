"""Head sections of a message: the header and both annotations (§3.2)."""

from __future__ import annotations

from typing import Final

from amqpmesh.router.kernel.encoded_values import (
    _DELIVERY_ANNOTATIONS,
    _HEADER,
    _MESSAGE_ANNOTATIONS,
    PROPERTIES,
    descriptor_code,
    skip,
    uint32,
    uint_end,
    uint_value,
)
from amqpmesh.router.kernel.violations import LINK, Incomplete, Violation

#: The prefix of the keys of the mesh's own delivery annotations.
_OURS: Final = b"x-opt-mesh-"

#: The delivery annotations that pass unread: those of others than routers, none, or all. In the second case a message
#: that has some needs a decision; in the first one, a message that has some of a router.
PASS_THEIRS: Final = 0
PASS_NONE: Final = 1
PASS_ALL: Final = 2
_PASS_THEIRS: Final = PASS_THEIRS
_PASS_NONE: Final = PASS_NONE
_PASS_ALL: Final = PASS_ALL


class HeaderFields:
    """Fields of a message's header that the router reads, with their defaults where they are absent (§3.2.1)."""

    __slots__ = ("delivery_count", "priority", "ttl", "ttl_at")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Set all fields to their defaults."""
        #: 0..255.
        self.priority = 4
        #: Milliseconds; -1: absent.
        self.ttl = -1
        #: The offset of the ttl's format code; 0: absent.
        self.ttl_at = 0
        #: 0..2**32-1.
        self.delivery_count = 0

    def info(self) -> int:
        """Return the number that hop records have for a header: priority + 256 * delivery-count, the latter 65,535 at
        most.
        """
        return self.priority | min(self.delivery_count, 0xFFFF) << 8


def scan_header(fields: HeaderFields, data: bytes, at: int, end: int) -> bool:
    """Read the list of a header, which begins at `at` and ends at `end`, into `fields` (§3.2.1).

    Returns: whether priority and ttl are well-formed. Otherwise `fields` stays as it was. A delivery-count that cannot
        be read does no harm: it is 0.
    """
    form = data[at]
    if form == 0xC0 and end - at >= 3:
        count = data[at + 2]
        at += 3
    elif form == 0xD0 and end - at >= 9:
        count = uint32(data, at + 5)
        at += 9
    elif form == 0x45:
        count = 0
    else:
        return False
    priority = 4
    ttl = -1
    ttl_at = 0
    delivery_count = 0
    if count > 1:
        at = _after_any(data, at, end)
        if at < 0 or at >= end:
            return False
        if data[at] == 0x50 and end - at >= 2:
            priority = data[at + 1]
            at += 2
        elif data[at] == 0x40:
            at += 1
        else:
            return False
    if count > 2:
        ttl_at = at
        at = uint_end(data, at, end)
        if at < 0:
            return False
        ttl = uint_value(data, ttl_at, data[ttl_at])
    if count > 4:
        at = _after_any(data, at, end)
        if at >= 0 and uint_end(data, at, end) >= 0:
            delivery_count = max(0, uint_value(data, at, data[at]))
    fields.priority = priority
    fields.ttl = ttl
    fields.ttl_at = ttl_at
    fields.delivery_count = delivery_count
    return True


def _after_any(data: bytes, at: int, end: int) -> int:
    """Return where the value at `at` ends; -1: it is malformed, or ends beyond `end`. Nearly always it is a boolean."""
    if at < end and 0x40 <= data[at] <= 0x42:
        return at + 1
    try:
        return skip(data, at, end)
    except (Incomplete, Violation):
        return -1


class Head:
    """Extents of the head sections of a message of format 0: header and both annotations (§3.2).

    Extents are (start, end), offsets into the payload; (0, 0): the section is missing.
    """

    __slots__ = (
        "bare_at",
        "delivery_annotations",
        "header",
        "irregular",
        "message_annotations",
        "priority",
        "ttl",
        "ttl_at",
    )

    def __init__(self) -> None:
        self.header = (0, 0)
        self.delivery_annotations = (0, 0)
        self.message_annotations = (0, 0)
        #: The begin of the bare message.
        self.bare_at = 0
        #: 0..255, 4 if absent (§3.2.1).
        self.priority = 4
        #: Milliseconds; -1: absent.
        self.ttl = -1
        #: The offset of the ttl's format code.
        self.ttl_at = 0
        #: A section is malformed, out of order or doubled: it and all behind it count as bare message.
        self.irregular = False


def read_head(data: bytes, complete: bool) -> Head | None:
    """Find the head sections at the start of a message, without decoding them.

    Args: data: the payload so far, of message-format 0. complete: the payload is complete.
    Returns: the head; None: `data` ends before the first section of the bare message.
    Source: §3.2.
    """
    head = Head()
    at = 0
    end = len(data)
    last = 0
    while at < end:
        try:
            code, value_at = descriptor_code(data, at, end)
            if code < _HEADER or code > _MESSAGE_ANNOTATIONS:
                break
            if code <= last:
                head.irregular = True
                break
            after = skip(data, value_at, end)
            if code == _HEADER:
                fields = HeaderFields()
                if not scan_header(fields, data, value_at, after):
                    head.irregular = True
                    break
                head.priority, head.ttl, head.ttl_at = fields.priority, fields.ttl, fields.ttl_at
                head.header = (at, after)
            elif code == _DELIVERY_ANNOTATIONS:
                head.delivery_annotations = (at, after)
            else:
                head.message_annotations = (at, after)
        except Incomplete:
            if not complete:
                return None
            head.irregular = True
            break
        except Violation:
            head.irregular = True
            break
        last = code
        at = after
    else:
        if not complete:
            return None
    head.bare_at = at
    return head


def patch_ttl(data: bytes, head: Head, ttl: int) -> bytes:
    """Return the payload with a smaller ttl (milliseconds), whose encoding keeps its width.

    Args: data: the payload that `head` was read from. head: with a ttl above 0. ttl: 0..head.ttl.
    """
    at = head.ttl_at + 1
    width = 4 if data[at - 1] == 0x70 else 1
    return data[:at] + ttl.to_bytes(width, "big") + data[at + width :]


def _property(data: bytes, at: int, number: int) -> tuple[int, int] | None:
    """Find a field of the properties section, if the bare message at `at` begins with one (§3.2.4).

    Args: number: of the field, from 0. Returns: (start, end); None: there is no such field.
    Raises: Incomplete: the data ends before the field. Violation: the section is malformed.
    """
    end = len(data)
    code, value_at = descriptor_code(data, at, end)
    if code != PROPERTIES:
        return None
    # The list may continue in the next frame: its items are read up to the end of the data.
    if value_at >= end:
        raise Incomplete
    form = data[value_at]
    if form == 0x45:
        return None
    if form not in (0xC0, 0xD0):
        raise Violation(LINK, "amqp:decode-error", "the properties section is not a list")
    width = 1 if form == 0xC0 else 4
    item = value_at + 1 + 2 * width
    if item > end:
        raise Incomplete
    list_end = value_at + 1 + width + int.from_bytes(data[value_at + 1 : value_at + 1 + width], "big")
    if int.from_bytes(data[item - width : item], "big") <= number:
        return None
    known = min(end, list_end)
    try:
        for _ in range(number):
            item = skip(data, item, known)
        return item, skip(data, item, known)
    except Incomplete:
        if list_end <= end:
            raise Violation(LINK, "amqp:decode-error", "the properties are shorter than their fields") from None
        raise


def read_to(data: bytes, at: int) -> str | None:
    """Return the `to` of the properties, if the bare message at `at` begins with properties (§3.2.4).

    Raises: Incomplete: the data ends before `to`. Violation: the section is malformed.
    """
    found = _property(data, at, 2)
    if found is None:
        return None
    item, after = found
    code = data[item]
    if code == 0x40:
        return None
    if code not in (0xA1, 0xB1):
        raise Violation(LINK, "amqp:decode-error", "`to` is not a string")
    try:
        return data[item + (2 if code == 0xA1 else 5) : after].decode()
    except UnicodeDecodeError:
        raise Violation(LINK, "amqp:decode-error", "`to` is not UTF-8") from None


def read_expiry(data: bytes, at: int) -> int | None:
    """Return the absolute-expiry-time of the bare message at `at`, milliseconds since 1970; None: it has none.

    Raises: as `read_to`.
    """
    found = _property(data, at, 8)
    if found is None:
        return None
    item, after = found
    if data[item] == 0x40:
        return None
    if data[item] != 0x83:
        raise Violation(LINK, "amqp:decode-error", "the absolute-expiry-time is not a timestamp")
    return int.from_bytes(data[item + 1 : after], "big", signed=True)


def read_header_info(data: bytes, at: int, end: int) -> int:
    """Return the number that hop records have for the header section from `at` to `end`: see `HeaderFields.info`."""
    fields = HeaderFields()
    if at < end:
        scan_header(fields, data, descriptor_code(data, at, end)[1], end)
    return fields.info()


def _bare_message_at(fields: HeaderFields, data: bytes, at: int, end: int, passing: int, whole: bool) -> int:
    """Return the begin of the bare message, if the head sections are regular and may leave unchanged; else -1.

    The message is of format 0. A ttl leaves unchanged, too: no time has passed.
    Args: fields: filled in from the header, if there is one. passing: the delivery annotations that pass. whole: the
        message ends at `end`.
    """
    last = 0
    while end - at >= 4:
        if data[at] != 0 or data[at + 1] != 0x53:
            return -1
        code = data[at + 2]
        if code < _HEADER or code > _MESSAGE_ANNOTATIONS:
            return at
        if code <= last:
            return -1
        last = code
        form = data[at + 3]
        if form == 0x45:
            after = at + 4
        elif form == 0xC0 or form == 0xC1:
            if end - at < 5:
                return -1
            after = at + 5 + data[at + 4]
        elif form == 0xD0 or form == 0xD1:
            if end - at < 8:
                return -1
            after = at + 8 + uint32(data, at + 4)
        else:
            return -1
        if after > end:
            return -1
        if code == _HEADER:
            if not scan_header(fields, data, at + 3, after):
                return -1
        elif code == _DELIVERY_ANNOTATIONS and (
            passing == _PASS_NONE or (passing == _PASS_THEIRS and data.find(_OURS, at, after) >= 0)
        ):
            return -1
        at = after
    return at if whole and at == end else -1
