"""Encoded values: skipping them, their descriptors, and uints read and written (§1.2, §1.6)."""

from __future__ import annotations

from typing import Final

from amqpmesh.router.kernel.violations import LINK, Incomplete, Violation

# By the high nibble of a format code (§1.2): octets of fixed width, and octets of the size field of variable width.
_FIXED: Final = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_SIZED: Final = {0xA: 1, 0xB: 4, 0xC: 1, 0xD: 4, 0xE: 1, 0xF: 4}
#: Format codes of §1.6; any other is malformed.
_KNOWN: Final = frozenset(
    bytes.fromhex("404142434445 50515253545556 6061 7071727374 8081828384 9498 a0a1a3 b0b1b3 c0c1 d0d1 e0f0")
)
#: By format code: octets after the code (0..16); -1 or -4: a size field of 1 or 4 octets; -99: an unknown code.
_WIDTH: Final = tuple(
    (_FIXED[code >> 4] if code >> 4 in _FIXED else -_SIZED[code >> 4]) if code in _KNOWN else -99 for code in range(256)
)

# Descriptor codes of sections (§3.2).
HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73

# The same as plain numbers of C, which are invisible outside of the compiled kernel.
_HEADER: Final = HEADER
_DELIVERY_ANNOTATIONS: Final = DELIVERY_ANNOTATIONS
_MESSAGE_ANNOTATIONS: Final = MESSAGE_ANNOTATIONS
_PROPERTIES: Final = PROPERTIES
_APPLICATION_PROPERTIES: Final = 0x74
_DATA: Final = 0x75
_SEQUENCE: Final = 0x76
_VALUE: Final = 0x77
_FOOTER: Final = 0x78

#: Values of a message within one another at most, where all of them are looked at.
_NESTED: Final = 32

#: Descriptor codes of sections by symbolic descriptor.
_SECTIONS: Final = {
    b"amqp:header:list": _HEADER,
    b"amqp:delivery-annotations:map": _DELIVERY_ANNOTATIONS,
    b"amqp:message-annotations:map": _MESSAGE_ANNOTATIONS,
    b"amqp:properties:list": _PROPERTIES,
    b"amqp:application-properties:map": _APPLICATION_PROPERTIES,
    b"amqp:data:binary": _DATA,
    b"amqp:amqp-sequence:list": _SEQUENCE,
    b"amqp:amqp-value:*": _VALUE,
    b"amqp:footer:map": _FOOTER,
}


def skip(data: bytes, at: int, end: int) -> int:
    """Return the end of the value at `at`, without decoding it. The value is not described.

    Raises: Incomplete: it ends beyond `end`. Violation: it is described, or its format code is unknown.
    Source: §1.2.
    """
    if at >= end:
        raise Incomplete
    width = _WIDTH[data[at]]
    if width >= 0:
        after = at + 1 + width
    elif width == -1:
        if at + 2 > end:
            raise Incomplete
        after = at + 2 + data[at + 1]
    elif width == -4:
        if at + 5 > end:
            raise Incomplete
        after = at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
    else:
        raise Violation(LINK, "amqp:decode-error", f"no such format code: 0x{data[at]:02x}")
    if after > end:
        raise Incomplete
    return after


def descriptor_code(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the numeric descriptor of the described value at `at`, and the begin of the value behind it.

    A symbolic descriptor outside of `_SECTIONS`, or a missing descriptor, is -1. Raises: Incomplete, Violation.
    """
    if at + 2 < end and data[at] == 0 and data[at + 1] == 0x53:
        return data[at + 2], at + 3
    if at >= end:
        raise Incomplete
    if data[at] != 0:
        return -1, at
    value_at = skip(data, at + 1, end)
    code = data[at + 1]
    if code == 0x80:
        return int.from_bytes(data[at + 2 : at + 10], "big"), value_at
    if code == 0xA3:
        return _SECTIONS.get(data[at + 3 : value_at], -1), value_at
    if code == 0xB3:
        return _SECTIONS.get(data[at + 6 : value_at], -1), value_at
    return -1, value_at


def uint32(data: bytes, at: int) -> int:
    """Return the number of the four octets at `at`."""
    # In C, an octet shifted by 24 at once would be negative: so each step is one of the wide type.
    value = data[at]
    value = value << 8 | data[at + 1]
    value = value << 8 | data[at + 2]
    return value << 8 | data[at + 3]


def uint_width(code: int) -> int:
    """Return the octets of a uint with this format code, or of null; 0: the code is of neither (§1.6.5)."""
    if code == 0x52:
        return 2
    if code == 0x43 or code == 0x40:
        return 1
    return 5 if code == 0x70 else 0


def uint_end(data: bytes, at: int, end: int) -> int:
    """Return the end of the uint or null at `at`; -1: there is none, or it ends beyond `end`."""
    if at >= end:
        return -1
    width = uint_width(data[at])
    return at + width if width and at + width <= end else -1


def uint_value(data: bytes, at: int, code: int) -> int:
    """Return the uint at `at`, whose octets are complete; null is -1."""
    if code == 0x52:
        return data[at + 1]
    if code == 0x70:
        return uint32(data, at + 1)
    return 0 if code == 0x43 else -1


def _append_uint(out: bytearray, value: int) -> None:
    """Append a uint in its shortest encoding."""
    at = len(out)
    for _ in range(_uint_octets(value)):
        out.append(0)
    o = out
    _put_uint(o, at, value)


def _uint_octets(value: int) -> int:
    """Return the octets of a uint in its shortest encoding."""
    return 1 if value == 0 else 2 if value < 256 else 5


def _put_uint(out: bytearray, at: int, value: int) -> int:
    """Write a uint in its shortest encoding into the room at `at`. Returns: its end."""
    if value == 0:
        out[at] = 0x43
        return at + 1
    if value < 256:
        out[at] = 0x52
        out[at + 1] = value
        return at + 2
    out[at] = 0x70
    out[at + 1] = value >> 24 & 255
    out[at + 2] = value >> 16 & 255
    out[at + 3] = value >> 8 & 255
    out[at + 4] = value & 255
    return at + 5
