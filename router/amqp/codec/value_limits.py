"""Limits on the number of values in a message or a performative, checked before it is decoded.

The memory and time of a value have little to do with its octets: fifteen million octets can be five million maps.
So values are counted before they are decoded. The count follows the same offsets as the decoder, allocates nothing, and
stops at the limit: a compound gives its count before its constituents.
"""

from typing import Final

from amqpmesh.router.amqp.codec.decoder import MALFORMED, MIN_WIDTHS, Buffer, Span, refuse_depth, span8, span32
from amqpmesh.router.amqp.codec.encoder import NULL, compound
from amqpmesh.router.amqp.errors import ProtocolError, Scope
from amqpmesh.router.amqp.standard.conditions import AmqpCondition

MAX_VALUES: Final = 20_000
"""The values that a message may hold, by default. So many take 10 to 70 ms to decode, depending on their types."""

FEW_VALUES: Final = 256
"""The values that a performative may hold, by default, as may anything else that a router decodes while others wait."""

# By format code: octets of a value of fixed width, its format code included; 0: its width varies.
_WIDTHS: Final = [0] * 0x40 + [1 + MIN_WIDTHS[code >> 4] if code < 0xA0 else 0 for code in range(0x40, 0x100)]

_SPANS: Final[dict[int, Span]] = {0xC: span8, 0xD: span32, 0xE: span8, 0xF: span32}
"""Span readers, by the subcategories of compounds and arrays (figure 1.5)."""

_MAPS: Final = frozenset({0xC1, 0xD1})

_DEAR: Final = frozenset({0x00, 0x94, 0x98, *range(0xC0, 0x100)})
"""Format codes of keys that count once for each octet. Compounds are encoded again, at each level, to be compared.
UUIDs and decimal128s can be chosen with colliding hashes, so that a dict compares each with all others."""


class _TooManyError(Exception):
    """There are more values than the limit allows."""


def refuse_values(payload: Buffer, most: int) -> None:
    """Refuse a message that holds too many values. Malformed octets pass: the decoder refuses them.

    A section counts with its descriptor and all values in it. Maps and arrays take longer to make, and count twice.
    Array elements without octets share one value and do not count, unless they are lists. A map key counts once for
    each of its octets, unless it is text, binary, a boolean, or a number of up to 8 octets.

    Args: most: values; 0: no limit.
    Raises: ProtocolError(LINK, resource-limit-exceeded): there are more.
    """
    if len(payload) <= most or not most:
        return  # each value has at least one octet
    offset = 0
    try:
        while offset < len(payload):
            offset, most = _count(payload, offset, 1, 0, most)
    except _TooManyError:
        raise ProtocolError(
            Scope.LINK, AmqpCondition.RESOURCE_LIMIT_EXCEEDED, "there are more values than the decoder permits"
        ) from None
    except (*MALFORMED, KeyError):
        return


def bounded(described: bytes, most: int = FEW_VALUES) -> bytes:
    """Return a described list unchanged; `abridged` if it holds more values than `most`."""
    try:
        refuse_values(described, most)
    except ProtocolError:
        return abridged(described)
    return described


def exceeds(performative: Buffer, most: int, apart: int = -1) -> bool:
    """Return whether a performative holds more values than `most`, counted as `refuse_values` does.

    Returns: False also if the octets are malformed: the decoder refuses those later.
    Args: performative: its octets, and any that follow. apart: the number of a field that does not count.
    """
    if len(performative) <= most:
        return False  # each value has at least one octet
    try:
        at, left = _count(performative, 1, 1, 1, most - 2)
        offset, count = _fields(performative, at)
        if 0 <= apart < count:
            offset, left = _count(performative, offset, apart, 2, left)
            offset = behind(performative, offset, 2)
            count -= apart + 1
        _count(performative, offset, count, 2, left)
    except _TooManyError:
        return True
    except (*MALFORMED, KeyError):
        pass
    return False


def abridged(performative: Buffer, *, deep: bool = False) -> bytes:
    """Return a performative with its simple fields only: null replaces each described value, list, map and array.

    Args: deep: abridge described lists in the same way, in place of null.
    Raises: ProtocolError(CONNECTION, decode-error), or one of `MALFORMED`: it is no described list.
    """
    at = behind(performative, 1, 1)
    offset, count = _fields(performative, at)
    fields = []
    for _ in range(count):
        code, begin = performative[offset], offset
        offset = behind(performative, offset, 2)
        if code == 0x00 and deep:
            fields.append(abridged(performative[begin:offset], deep=True))
        else:
            fields.append(NULL if code == 0x00 or code >= 0xC0 else bytes(performative[begin:offset]))
    return compound(bytes(performative[:at]), 0xC0, 0xD0, count, b"".join(fields))


def _fields(data: Buffer, at: int) -> tuple[int, int]:
    """Return the offset of the first constituent of the list at `at`, and the number of constituents."""
    code = data[at]
    if code >> 4 not in (0xC, 0xD):
        return at + 1, 0
    begin, _, count = _SPANS[code >> 4](data, at + 1)
    return begin, count


def behind(data: Buffer, offset: int, depth: int = 0) -> int:
    """Return the offset behind a value, without reading its constituents.

    Raises: ProtocolError(CONNECTION, decode-error): descriptors nest too deep. One of `MALFORMED`: the data ends.
    """
    code = data[offset]
    if code == 0x00:
        refuse_depth(depth)
        return behind(data, behind(data, offset + 1, depth + 1), depth + 1)
    if _WIDTHS[code]:
        return offset + _WIDTHS[code]
    if code >> 4 in (0xA, 0xC, 0xE):
        return offset + 2 + data[offset + 1]
    return offset + 5 + int.from_bytes(data[offset + 1 : offset + 5], "big")


def _count(data: Buffer, offset: int, values: int, depth: int, left: int) -> tuple[int, int]:
    """Count values, nested ones included. Returns: the offset behind them, and the rest of the limit `left`."""
    left -= values
    if left < 0:
        raise _TooManyError
    for _ in range(values):
        code = data[offset]
        width = _WIDTHS[code]
        if width:
            offset += width
        elif code in (0xA0, 0xA1, 0xA3):
            offset += 2 + data[offset + 1]
        elif code >= 0xC0:
            offset, left = _count_compound(data, offset + 1, code, depth, left)
        elif code == 0x00:
            refuse_depth(depth)
            offset, left = _count(data, offset + 1, 2, depth + 1, left)
        else:
            offset += 5 + int.from_bytes(data[offset + 1 : offset + 5], "big")
    if left < 0:
        raise _TooManyError
    return offset, left


def _count_compound(data: Buffer, offset: int, code: int, depth: int, left: int) -> tuple[int, int]:
    """Count the values in a compound or array, as `_count` does. Args: offset: behind its format code."""
    begin, end, count = _SPANS[code >> 4](data, offset)
    refuse_depth(depth)
    if code >= 0xE0:
        return _count_elements(data, begin, end, count, depth + 1, left - 1)
    if code not in _MAPS:
        return _count(data, begin, count, depth + 1, left)
    left -= count + 1
    if left < 0:
        raise _TooManyError
    offset = begin
    for _ in range(count // 2):
        key = offset
        offset, left = _count(data, key, 1, depth + 1, left + 1)
        if data[key] in _DEAR:
            left -= offset - key
        offset, left = _count(data, offset, 1, depth + 1, left + 1)
    return offset, left


def _count_elements(data: Buffer, offset: int, end: int, count: int, depth: int, left: int) -> tuple[int, int]:
    """Count the elements of an array, as `_count` does. Args: offset: of their constructor."""
    while data[offset] == 0x00:
        offset, left = _count(data, offset + 1, 1, depth, left)
    code = data[offset]
    if not MIN_WIDTHS[code >> 4] and code != 0x45:
        return end, left
    left -= count
    if left < 0:
        raise _TooManyError
    if code >= 0xC0:
        offset += 1
        for _ in range(count):
            offset, left = _count_compound(data, offset, code, depth, left)
    return end, left
