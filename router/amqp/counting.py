"""How many values a payload holds, found out before any of them is made.

What a value costs in memory and time has little to do with its octets: fifteen million can be five million maps. So
whoever decodes at once, for a program, what a peer sent counts first. Counting follows the same offsets as the decoder,
makes nothing, and stops where there are too many: a compound says how many it has before they come.
"""

from typing import Final

from amqpmesh.router.amqp.conditions import AmqpCondition
from amqpmesh.router.amqp.decoder import MALFORMED, MIN_WIDTHS, Buffer, Span, refuse_depth, span8, span32
from amqpmesh.router.amqp.errors import ProtocolError, Scope

MAX_VALUES: Final = 20_000
"""How many values a message may hold, if the program says nothing else: as many take 10 to 70 ms to decode, depending
on what they are."""

# By format code: octets of a value that has always as many, its format code included; else 0.
_WIDTHS: Final = [0] * 0x40 + [1 + MIN_WIDTHS[code >> 4] if code < 0xA0 else 0 for code in range(0x40, 0x100)]

_SPANS: Final[dict[int, Span]] = {0xC: span8, 0xD: span32, 0xE: span8, 0xF: span32}
"""By the subcategories of compounds and arrays (figure 1.5)."""

_MAPS: Final = frozenset({0xC1, 0xD1})

_DEAR: Final = frozenset({0x00, 0x94, 0x98, *range(0xC0, 0x100)})
"""Format codes of keys that count by the octet. Compounds are written again, at each level, to be compared; of UUIDs
and decimal128s anybody can choose so many of the same hash that a dict looks at all of them for each."""


class _TooManyError(Exception):
    """There are more values than may be."""


def refuse_values(payload: Buffer, most: int) -> None:
    """Refuse a message that holds too many values. What is no message is for the decoder to refuse.

    A section is a described value, and counts with its descriptor and all that it holds; maps and arrays, which take
    longer to make, count twice. Elements of an array that take no octets do not count, as all share one value, unless
    they are lists. A key of a map that is no text, binary, boolean or number of up to 8 octets counts as often as it
    has octets.

    Args: most: values; 0: no limit.
    Raises: ProtocolError(LINK, resource-limit-exceeded): there are more.
    """
    if len(payload) <= most or not most:
        return  # each has an octet at least
    offset = 0
    try:
        while offset < len(payload):
            offset, most = _count(payload, offset, 1, 0, most)
    except _TooManyError:
        raise ProtocolError(
            Scope.LINK, AmqpCondition.RESOURCE_LIMIT_EXCEEDED, "the message holds more values than are decoded here"
        ) from None
    except (*MALFORMED, KeyError):
        return


def _count(data: Buffer, offset: int, values: int, depth: int, left: int) -> tuple[int, int]:
    """Go over so many values. Returns: the offset behind them, and how many more there may be."""
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
    """The same for what a compound or array holds; `offset` is behind its format code."""
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
    """The same for the elements of an array; `offset` is at their constructor."""
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
