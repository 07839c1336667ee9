"""How many values a message or a performative holds, found out before any of them is made.

What a value costs in memory and time has little to do with its octets: fifteen million can be five million maps. So
what a peer sent is counted before it is decoded. Counting follows the same offsets as the decoder, makes nothing, and
stops where there are too many: a compound says how many it has before they come.
"""

from typing import Final

from amqpmesh.router.amqp.codec.decoder import MALFORMED, MIN_WIDTHS, Buffer, Span, refuse_depth, span8, span32
from amqpmesh.router.amqp.codec.encoder import NULL, compound
from amqpmesh.router.amqp.errors import ProtocolError, Scope
from amqpmesh.router.amqp.standard.conditions import AmqpCondition

MAX_VALUES: Final = 20_000
"""How many values a message may hold, if the program says nothing else: as many take 10 to 70 ms to decode, depending
on what they are."""

FEW_VALUES: Final = 256
"""How many values a performative may hold, or what else a router decodes while others wait, if nothing else is said."""

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
            Scope.LINK, AmqpCondition.RESOURCE_LIMIT_EXCEEDED, "there are more values than are decoded here at once"
        ) from None
    except (*MALFORMED, KeyError):
        return


def bounded(described: bytes, most: int = FEW_VALUES) -> bytes:
    """A described list as it came, or, if it holds more values than `most`, without them: `abridged`."""
    try:
        refuse_values(described, most)
    except ProtocolError:
        return abridged(described)
    return described


def exceeds(performative: Buffer, most: int, apart: int = -1) -> bool:
    """Whether a performative holds more values than `most`, as `refuse_values` counts them. What is none is for the
    decoder to refuse.

    Args: performative: it, and whatever follows it. apart: a field of it, by number, that does not count.
    """
    if len(performative) <= most:
        return False  # each has an octet at least
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
    """A performative with its simple fields alone: null is in the place of each described value, list, map and array.

    Args: deep: instead of null there is of a described list the same.
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
    """Where the constituents of the list at `at` begin, and how many there are."""
    code = data[at]
    if code >> 4 not in (0xC, 0xD):
        return at + 1, 0
    begin, _, count = _SPANS[code >> 4](data, at + 1)
    return begin, count


def behind(data: Buffer, offset: int, depth: int = 0) -> int:
    """The offset behind a value, without a look at what it holds.

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
