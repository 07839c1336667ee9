"""Readers of values: every encoding of every type (§1.2, §1.6).

A reader takes (data, offset, depth), where offset is behind the format code, and returns (value, offset behind it).
Offsets only grow, and each element of a list or map has at least one octet. So the time is linear in the octets that
came, whatever the counts say. Readers index and unpack without checking the end of the data. The exceptions that Python
raises there (`MALFORMED`) become a ProtocolError in `values.decode` and `composite.decode_composite`.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NoReturn, TypeAlias
from uuid import UUID

from amqpmesh.router.amqp.codec import types
from amqpmesh.router.amqp.codec.encoder import MAX_ARRAY_OF_NOTHING, MAX_DEPTH
from amqpmesh.router.amqp.codec.maps import make_map
from amqpmesh.router.amqp.codec.types import Array, Described, Primitive, Symbol
from amqpmesh.router.amqp.errors import ProtocolError, decode_error

Buffer: TypeAlias = bytes | bytearray | memoryview
Reader: TypeAlias = Callable[[Buffer, int, int], tuple[Any, int]]

MALFORMED = (IndexError, struct.error, UnicodeDecodeError)

MAX_EMPTY_LISTS = 8
"""The most lists without octets in an array: unlike other values without octets, lists cannot be shared."""


def malformed(error: Exception) -> ProtocolError:
    """Return the error for an exception of `MALFORMED`."""
    if isinstance(error, UnicodeDecodeError):
        return decode_error(f"text is not {error.encoding.upper()}")
    return decode_error("the data ends within a value")


def _truncated() -> ProtocolError:
    return decode_error("the data ends within a value")


# Fixed width.


def _empty(value: Any) -> Reader:
    def read(_data: Buffer, offset: int, _depth: int) -> tuple[Any, int]:
        return value, offset

    return read


def _read_list0(_data: Buffer, offset: int, _depth: int) -> tuple[Any, int]:
    return [], offset


def _fixed(layout: str) -> Reader:
    form = struct.Struct(">" + layout)
    unpack, width = form.unpack_from, form.size

    def read(data: Buffer, offset: int, _depth: int) -> tuple[Any, int]:
        return unpack(data, offset)[0], offset + width

    return read


def read_octet(data: Buffer, offset: int, _depth: int) -> tuple[int, int]:
    """Read an unsigned number of one octet."""
    return data[offset], offset + 1


def _read_boolean(data: Buffer, offset: int, _depth: int) -> tuple[bool, int]:
    octet = data[offset]
    if octet > 1:
        raise decode_error(f"a boolean is 0 or 1, not {octet}")
    return octet == 1, offset + 1


def _read_char(data: Buffer, offset: int, _depth: int) -> tuple[str, int]:
    if offset + 4 > len(data):
        raise _truncated()
    return str(data[offset : offset + 4], "utf-32-be"), offset + 4


def _read_uuid(data: Buffer, offset: int, _depth: int) -> tuple[UUID, int]:
    if offset + 16 > len(data):
        raise _truncated()
    return UUID(bytes=bytes(data[offset : offset + 16])), offset + 16


def _decimal(cls: Callable[[int], Any], octets: int) -> Reader:
    def read(data: Buffer, offset: int, _depth: int) -> tuple[Any, int]:
        end = offset + octets
        if end > len(data):
            raise _truncated()
        return cls(int.from_bytes(data[offset:end], "big")), end

    return read


# Variable width.

_unpack_size = struct.Struct(">I").unpack_from


def _read_binary8(data: Buffer, offset: int, _depth: int) -> tuple[bytes, int]:
    end = offset + 1 + data[offset]
    if end > len(data):
        raise _truncated()
    return bytes(data[offset + 1 : end]), end


def _read_binary32(data: Buffer, offset: int, _depth: int) -> tuple[bytes, int]:
    end = offset + 4 + _unpack_size(data, offset)[0]
    if end > len(data):
        raise _truncated()
    return bytes(data[offset + 4 : end]), end


def _text8(encoding: str) -> Reader:
    def read(data: Buffer, offset: int, _depth: int) -> tuple[str, int]:
        end = offset + 1 + data[offset]
        if end > len(data):
            raise _truncated()
        return str(data[offset + 1 : end], encoding), end

    return read


def _text32(encoding: str) -> Reader:
    def read(data: Buffer, offset: int, _depth: int) -> tuple[str, int]:
        end = offset + 4 + _unpack_size(data, offset)[0]
        if end > len(data):
            raise _truncated()
        return str(data[offset + 4 : end], encoding), end

    return read


# Compound: a size (of the count and the constituents), a count, then the constituents.

_unpack_size_count = struct.Struct(">II").unpack_from


def span8(data: Buffer, offset: int) -> tuple[int, int, int]:
    """Return the begin, the end and the number of constituents; size and count have one octet each."""
    return offset + 2, offset + 1 + data[offset], data[offset + 1]


def span32(data: Buffer, offset: int) -> tuple[int, int, int]:
    """Return the begin, the end and the number of constituents; size and count have four octets each."""
    size, count = _unpack_size_count(data, offset)
    return offset + 8, offset + 4 + size, count


Span: TypeAlias = Callable[[Buffer, int], tuple[int, int, int]]


def refuse_depth(depth: int) -> None:
    """Refuse a value that nests too deep."""
    if depth >= MAX_DEPTH:
        raise decode_error(f"values nest deeper than {MAX_DEPTH}")


def enter(data: Buffer, begin: int, end: int, count: int, depth: int) -> None:
    """Refuse a compound that ends beyond the data, or nests too deep, before it is read and memory allocated."""
    if end > len(data):
        raise _truncated()
    # Each constituent has at least a format code. (A size too small for the count field is refused here, too.)
    if count > end - begin:
        raise decode_error(f"{count} constituents do not fit {max(end - begin, 0)} octets")
    refuse_depth(depth)


def leave(offset: int, end: int) -> None:
    """Refuse a compound whose constituents do not end at its end."""
    if offset != end:
        raise decode_error(
            f"the constituents end {abs(end - offset)} octets {'before' if offset < end else 'behind'} their size"
        )


def read_items(data: Buffer, begin: int, end: int, count: int, depth: int) -> list[Any]:
    """Read the constituents of a list or map, of any types."""
    enter(data, begin, end, count, depth)
    depth += 1
    items = []
    offset = begin
    for _ in range(count):
        item, offset = READERS[data[offset]](data, offset + 1, depth)
        items.append(item)
    leave(offset, end)
    return items


def _list(span: Span) -> Reader:
    def read(data: Buffer, offset: int, depth: int) -> tuple[list[Any], int]:
        begin, end, count = span(data, offset)
        return read_items(data, begin, end, count, depth), end

    return read


def _map(span: Span) -> Reader:
    def read(data: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        begin, end, count = span(data, offset)
        refuse_odd(count)
        items = read_items(data, begin, end, count, depth)
        return distinct(items[0::2], items[1::2]), end

    return read


def refuse_odd(count: int) -> None:
    """Refuse a map with an odd number of constituents (§1.6.23)."""
    if count % 2:
        raise decode_error(f"a map has as many keys as values, so not {count} constituents")


def distinct(keys: list[Any], values: list[Any]) -> Any:
    """Make a map of keys and values; refuse identical keys (§1.6.23)."""
    try:
        return make_map(keys, values)
    except ValueError as error:
        raise decode_error(f"in a map, {error}") from error


def _read_described(data: Buffer, offset: int, depth: int) -> tuple[Described, int]:
    refuse_depth(depth)
    depth += 1
    descriptor, offset = READERS[data[offset]](data, offset + 1, depth)
    value, offset = READERS[data[offset]](data, offset + 1, depth)
    return Described(descriptor, value), offset


# Arrays: like compounds, with one constructor for all elements.


def _array(span: Span) -> Reader:
    def read(data: Buffer, offset: int, depth: int) -> tuple[Array, int]:
        begin, end, count = span(data, offset)
        code, values, descriptors = read_elements(data, begin, end, count, depth, READERS_BY_CODE)
        return Array(ENCODINGS[code], values, descriptors), end

    return read


def read_elements(
    data: Buffer, offset: int, end: int, count: int, depth: int, readers: Mapping[int, Reader]
) -> tuple[int, Sequence[Any], list[Any]]:
    """Read the format code, the elements and the descriptors of an array. Args: readers: by permitted format code."""
    # Elements may have no octets; their constructor has one.
    enter(data, offset, end, 1, depth)
    depth += 1
    descriptors = []
    while data[offset] == 0x00:
        descriptor, offset = READERS[data[offset + 1]](data, offset + 2, depth)
        descriptors.append(descriptor)
    code = data[offset]
    offset += 1
    reader = readers.get(code)
    if reader is None:
        raise decode_error(f"0x{code:02x} is not the format code of such an element")
    width = MIN_WIDTHS[code >> 4]
    if count * width > end - offset:
        raise decode_error(f"{count} elements do not fit {max(end - offset, 0)} octets")
    if width == 0:
        leave(offset, end)
        return code, _empty_elements(reader, count), descriptors
    values = []
    for _ in range(count):
        value, offset = reader(data, offset, depth)
        values.append(value)
    leave(offset, end)
    return code, values, descriptors


def _empty_elements(reader: Reader, count: int) -> Sequence[Any]:
    """Make `count` elements that have no octets."""
    most = MAX_EMPTY_LISTS if reader is _read_list0 else MAX_ARRAY_OF_NOTHING
    if count > most:
        raise decode_error(f"{count} array elements without octets where {most} are allowed")
    if reader is _read_list0:
        return [[] for _ in range(count)]
    return _shared_empty_elements(reader, count)


@cache
def _shared_empty_elements(reader: Reader, count: int) -> tuple[Any, ...]:
    """Return elements that share one immutable object: separate ones would take 500 times the size of the frame."""
    return (reader(b"", 0, 0)[0],) * count


MIN_WIDTHS = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16, 0xA: 1, 0xB: 4, 0xC: 2, 0xD: 8, 0xE: 3, 0xF: 9}
"""The least octets of a value behind its format code, by the code's subcategory (figure 1.5)."""


# The tables.


def _read_unknown(data: Buffer, offset: int, _depth: int) -> NoReturn:
    raise decode_error(f"0x{data[offset - 1]:02x} is not a format code")


PLAIN: dict[Primitive, dict[int, Reader]] = {
    Primitive.NULL: {0x40: _empty(None)},
    Primitive.BOOLEAN: {0x41: _empty(True), 0x42: _empty(False), 0x56: _read_boolean},
    Primitive.UBYTE: {0x50: read_octet},
    Primitive.USHORT: {0x60: _fixed("H")},
    Primitive.UINT: {0x43: _empty(0), 0x52: read_octet, 0x70: _fixed("I")},
    Primitive.ULONG: {0x44: _empty(0), 0x53: read_octet, 0x80: _fixed("Q")},
    Primitive.BYTE: {0x51: _fixed("b")},
    Primitive.SHORT: {0x61: _fixed("h")},
    Primitive.INT: {0x54: _fixed("b"), 0x71: _fixed("i")},
    Primitive.LONG: {0x55: _fixed("b"), 0x81: _fixed("q")},
    Primitive.FLOAT: {0x72: _fixed("f")},
    Primitive.DOUBLE: {0x82: _fixed("d")},
    Primitive.DECIMAL32: {0x74: _decimal(types.Decimal32, 4)},
    Primitive.DECIMAL64: {0x84: _decimal(types.Decimal64, 8)},
    Primitive.DECIMAL128: {0x94: _decimal(types.Decimal128, 16)},
    Primitive.CHAR: {0x73: _read_char},
    Primitive.TIMESTAMP: {0x83: _fixed("q")},
    Primitive.UUID: {0x98: _read_uuid},
    Primitive.BINARY: {0xA0: _read_binary8, 0xB0: _read_binary32},
    Primitive.STRING: {0xA1: _text8("utf-8"), 0xB1: _text32("utf-8")},
    Primitive.SYMBOL: {0xA3: _text8("ascii"), 0xB3: _text32("ascii")},
    Primitive.LIST: {0x45: _read_list0, 0xC0: _list(span8), 0xD0: _list(span32)},
    Primitive.MAP: {0xC1: _map(span8), 0xD1: _map(span32)},
    Primitive.ARRAY: {0xE0: _array(span8), 0xF0: _array(span32)},
}
"""Readers of a field of a primitive type, by format code. They return plain Python values: the field has the type."""

ENCODINGS: dict[int, Primitive] = {code: primitive for primitive, codes in PLAIN.items() for code in codes}

# Constructors without range checks: a value that was decoded is in range.
_MAKERS: dict[Primitive, Callable[[Any], Any]] = {
    Primitive.UBYTE: partial(int.__new__, types.UByte),
    Primitive.USHORT: partial(int.__new__, types.UShort),
    Primitive.UINT: partial(int.__new__, types.UInt),
    Primitive.ULONG: partial(int.__new__, types.ULong),
    Primitive.BYTE: partial(int.__new__, types.Byte),
    Primitive.SHORT: partial(int.__new__, types.Short),
    Primitive.INT: partial(int.__new__, types.Int),
    Primitive.FLOAT: partial(float.__new__, types.Float),
    Primitive.CHAR: partial(str.__new__, types.Char),
    Primitive.TIMESTAMP: partial(int.__new__, types.Timestamp),
    Primitive.SYMBOL: partial(str.__new__, Symbol),
}


def _typed(read_plain: Reader, make: Callable[[Any], Any]) -> Reader:
    def read(data: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        value, offset = read_plain(data, offset, depth)
        return make(value), offset

    return read


TYPED: dict[Primitive, dict[int, Reader]] = {
    primitive: {code: _typed(read, _MAKERS[primitive]) for code, read in codes.items()}
    if primitive in _MAKERS
    else codes
    for primitive, codes in PLAIN.items()
}
"""Readers of values outside of typed fields, by format code. They return values that carry their AMQP type."""

READERS_BY_CODE: dict[int, Reader] = {code: read for codes in TYPED.values() for code, read in codes.items()}

READERS: list[Reader] = [READERS_BY_CODE.get(code, _read_unknown) for code in range(256)]
"""The reader of any value, by format code."""

READERS[0x00] = _read_described
