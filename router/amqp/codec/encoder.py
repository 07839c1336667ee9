"""Writers of values: the most compact encoding of each (§1.2, §1.6).

A writer takes (value, depth) and returns the encoding. The tables at the end assign writers to types and classes. For a
value that it cannot encode, a writer raises the exception of Python's own (`REFUSALS`), which `values.encode` and
`composite.encode_composite` turn into a CommandError.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeAlias
from uuid import UUID

from amqpmesh.router.amqp.codec import types
from amqpmesh.router.amqp.codec.types import Array, Described, Primitive
from amqpmesh.router.amqp.errors import shown

Writer: TypeAlias = Callable[[Any, int], bytes]

MAX_DEPTH = 64
"""The deepest nesting of lists, maps, arrays, described values, composites and descriptors. Real messages nest less
than ten deep. The interpreter's stack ends at about a thousand frames, and a level takes up to four."""

MAX_ARRAY_OF_NOTHING = 256
"""The most elements of an array whose elements have no octets (null, true, uint0...). No octets back their count: a few
octets could ask for four thousand million elements."""

REFUSALS = (struct.error, TypeError, ValueError, OverflowError, AttributeError, KeyError)

NULL = b"\x40"


def enter(depth: int) -> None:
    """Refuse a value that nests too deep, before its constituents are written."""
    if depth >= MAX_DEPTH:
        raise ValueError(f"values nest deeper than {MAX_DEPTH}")


# Scalars: a format code and a fixed number of octets.


def _write_null(value: None, _depth: int) -> bytes:
    if value is not None:
        raise TypeError(f"{shown(value)} is not null")
    return NULL


def _write_boolean(value: bool, _depth: int) -> bytes:
    if value is True:
        return b"\x41"
    if value is False:
        return b"\x42"
    raise TypeError(f"{shown(value)} is not a boolean")


def _fixed(code: int, layout: str) -> Writer:
    pack = partial(struct.Struct(">B" + layout).pack, code)

    def write(value: Any, _depth: int) -> bytes:
        return pack(value)

    return write


def _unsigned(zero: bytes, small: int, code: int, layout: str) -> Writer:
    """Make the writer of an unsigned number: zero without octets, one octet up to 255, else the full width."""
    pack = partial(struct.Struct(">B" + layout).pack, code)
    table = [zero, *(bytes((small, value)) for value in range(1, 256))]

    def write(value: int, _depth: int) -> bytes:
        return table[value] if 0 <= value < 256 else pack(value)

    return write


def _signed(small: int, code: int, layout: str) -> Writer:
    pack_small = partial(struct.Struct(">Bb").pack, small)
    pack = partial(struct.Struct(">B" + layout).pack, code)

    def write(value: int, _depth: int) -> bytes:
        return pack_small(value) if -128 <= value < 128 else pack(value)

    return write


def _write_char(value: str, _depth: int) -> bytes:
    return b"\x73" + types.Char(value).encode("utf-32-be")


def _write_uuid(value: UUID, _depth: int) -> bytes:
    return b"\x98" + value.bytes


def _decimal(code: int, octets: int) -> Writer:
    head = bytes((code,))

    def write(value: Any, _depth: int) -> bytes:
        return head + int.to_bytes(value.bits, octets, "big")

    return write


# Variable width: a size, then the octets.


def _variable(small: int, large: int) -> Callable[[bytes], bytes]:
    heads = [bytes((small, size)) for size in range(256)]
    pack_large = partial(struct.Struct(">BI").pack, large)

    def write(octets: bytes) -> bytes:
        size = len(octets)
        return (heads[size] if size < 256 else pack_large(size)) + octets

    return write


_binary = _variable(0xA0, 0xB0)
_string = _variable(0xA1, 0xB1)
_symbol = _variable(0xA3, 0xB3)


def _octets(value: Any) -> bytes:
    # bytes(5) would be five zero octets.
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{shown(value)} is not binary")
    return bytes(value)


def _write_binary(value: bytes, _depth: int) -> bytes:
    return _binary(value if type(value) is bytes else _octets(value))


def _write_string(value: str, _depth: int) -> bytes:
    return _string(str.encode(value))


def _write_symbol(value: str, _depth: int) -> bytes:
    return _symbol(_ascii(value))


def _ascii(value: str) -> bytes:
    return str.encode(value, "ascii")


# Compounds: a size and a count, then the constituents.


def compound(head: bytes, small: int, large: int, count: int, body: bytes) -> bytes:
    """Join a list or map: `head` (a descriptor or nothing), format code, size and count, and the constituents."""
    size = len(body)
    if size < 255 and count < 256:
        return head + bytes((small, size + 1, count)) + body
    return head + struct.pack(">BII", large, size + 4, count) + body


def _write_list(value: Sequence[Any], depth: int) -> bytes:
    if not value:
        return b"\x45"
    return compound(b"", 0xC0, 0xD0, len(value), _constituents(value, depth))


def _write_map(value: Mapping[Any, Any], depth: int) -> bytes:
    return compound(b"", 0xC1, 0xD1, 2 * len(value), _pairs(value, depth))


def _constituents(values: Iterable[Any], depth: int) -> bytes:
    enter(depth)
    return b"".join([write_value(value, depth + 1) for value in values])


def _pairs(value: Mapping[Any, Any], depth: int) -> bytes:
    return _constituents(chain.from_iterable(value.items()), depth)


def _write_described(value: Described, depth: int) -> bytes:
    enter(depth)
    return b"\x00" + write_value(value.descriptor, depth + 1) + write_value(value.value, depth + 1)


# Arrays: one constructor, then the octets of the elements.


def write_array(value: Array, depth: int) -> bytes:
    """Write an array with the narrowest constructor that fits all elements."""
    body, count = _array(value, depth)
    size = len(body)
    if size < 255 and count < 256:
        return bytes((0xE0, size + 1, count)) + body
    return struct.pack(">BII", 0xF0, size + 4, count) + body


def _array(value: Array, depth: int) -> tuple[bytes, int]:
    enter(depth)
    descriptors = [b"\x00" + write_value(descriptor, depth + 1) for descriptor in value.descriptors]
    code, elements = ELEMENT_WRITERS[value.element](value.values, depth + 1)
    return b"".join([*descriptors, bytes((code,)), *elements]), len(value.values)


ElementWriter: TypeAlias = Callable[[Sequence[Any], int], tuple[int, list[bytes]]]


def _null_elements(values: Sequence[Any], depth: int) -> tuple[int, list[bytes]]:
    if len(values) > MAX_ARRAY_OF_NOTHING:
        raise ValueError(f"an array of nulls has at most {MAX_ARRAY_OF_NOTHING} elements")
    for value in values:
        _write_null(value, depth)
    return 0x40, []


def _boolean_elements(values: Sequence[Any], depth: int) -> tuple[int, list[bytes]]:
    return 0x56, [b"\x01" if _write_boolean(value, depth) == b"\x41" else b"\x00" for value in values]


def _same_width(code: int, writer: Writer) -> ElementWriter:
    """Make the writer of array elements whose type has one encoding, without the format code."""

    def write(values: Sequence[Any], depth: int) -> tuple[int, list[bytes]]:
        return code, [writer(value, depth)[1:] for value in values]

    return write


def _packed(small: int, small_layout: str, large: int, large_layout: str) -> ElementWriter:
    """Make the writer of integers in an array: all in one octet, or all in the full width.

    Zeros are not written without octets: decoders are suspicious of a count without octets behind it.
    """
    small_struct, large_struct = struct.Struct(">" + small_layout), struct.Struct(">" + large_layout)

    def write(values: Sequence[Any], _depth: int) -> tuple[int, list[bytes]]:
        try:
            return small, [small_struct.pack(value) for value in values]
        except struct.error:
            return large, [large_struct.pack(value) for value in values]

    return write


def _sized(small: int, large: int, octets: Callable[[Any], bytes]) -> ElementWriter:
    def write(values: Sequence[Any], _depth: int) -> tuple[int, list[bytes]]:
        elements = [octets(value) for value in values]
        if all(len(element) < 256 for element in elements):
            return small, [bytes((len(element),)) + element for element in elements]
        return large, [len(element).to_bytes(4, "big") + element for element in elements]

    return write


def _compound_elements(small: int, large: int, body: Callable[[Any, int], tuple[bytes, int]]) -> ElementWriter:
    def write(values: Sequence[Any], depth: int) -> tuple[int, list[bytes]]:
        elements = [body(value, depth) for value in values]
        if all(len(octets) < 255 and count < 256 for octets, count in elements):
            return small, [bytes((len(octets) + 1, count)) + octets for octets, count in elements]
        return large, [struct.pack(">II", len(octets) + 4, count) + octets for octets, count in elements]

    return write


# Tables: writers for fields of a primitive type, for elements of an array, for values of a Python class.

FIELD_WRITERS: dict[Primitive, Writer] = {
    Primitive.NULL: _write_null,
    Primitive.BOOLEAN: _write_boolean,
    Primitive.UBYTE: _fixed(0x50, "B"),
    Primitive.USHORT: _fixed(0x60, "H"),
    Primitive.UINT: _unsigned(b"\x43", 0x52, 0x70, "I"),
    Primitive.ULONG: _unsigned(b"\x44", 0x53, 0x80, "Q"),
    Primitive.BYTE: _fixed(0x51, "b"),
    Primitive.SHORT: _fixed(0x61, "h"),
    Primitive.INT: _signed(0x54, 0x71, "i"),
    Primitive.LONG: _signed(0x55, 0x81, "q"),
    Primitive.FLOAT: _fixed(0x72, "f"),
    Primitive.DOUBLE: _fixed(0x82, "d"),
    Primitive.DECIMAL32: _decimal(0x74, 4),
    Primitive.DECIMAL64: _decimal(0x84, 8),
    Primitive.DECIMAL128: _decimal(0x94, 16),
    Primitive.CHAR: _write_char,
    Primitive.TIMESTAMP: _fixed(0x83, "q"),
    Primitive.UUID: _write_uuid,
    Primitive.BINARY: _write_binary,
    Primitive.STRING: _write_string,
    Primitive.SYMBOL: _write_symbol,
    Primitive.LIST: _write_list,
    Primitive.MAP: _write_map,
    Primitive.ARRAY: write_array,
}

ONE_ENCODING = {
    Primitive.UBYTE: 0x50,
    Primitive.USHORT: 0x60,
    Primitive.BYTE: 0x51,
    Primitive.SHORT: 0x61,
    Primitive.FLOAT: 0x72,
    Primitive.DOUBLE: 0x82,
    Primitive.DECIMAL32: 0x74,
    Primitive.DECIMAL64: 0x84,
    Primitive.DECIMAL128: 0x94,
    Primitive.CHAR: 0x73,
    Primitive.TIMESTAMP: 0x83,
    Primitive.UUID: 0x98,
}

ELEMENT_WRITERS: dict[Primitive, ElementWriter] = {
    **{primitive: _same_width(code, FIELD_WRITERS[primitive]) for primitive, code in ONE_ENCODING.items()},
    Primitive.NULL: _null_elements,
    Primitive.BOOLEAN: _boolean_elements,
    Primitive.UINT: _packed(0x52, "B", 0x70, "I"),
    Primitive.ULONG: _packed(0x53, "B", 0x80, "Q"),
    Primitive.INT: _packed(0x54, "b", 0x71, "i"),
    Primitive.LONG: _packed(0x55, "b", 0x81, "q"),
    Primitive.BINARY: _sized(0xA0, 0xB0, _octets),
    Primitive.STRING: _sized(0xA1, 0xB1, str.encode),
    Primitive.SYMBOL: _sized(0xA3, 0xB3, _ascii),
    Primitive.LIST: _compound_elements(0xC0, 0xD0, lambda value, depth: (_constituents(value, depth), len(value))),
    Primitive.MAP: _compound_elements(0xC1, 0xD1, lambda value, depth: (_pairs(value, depth), 2 * len(value))),
    Primitive.ARRAY: _compound_elements(0xE0, 0xF0, _array),
}

CLASSES: dict[type, Primitive] = {
    type(None): Primitive.NULL,
    bool: Primitive.BOOLEAN,
    types.UByte: Primitive.UBYTE,
    types.UShort: Primitive.USHORT,
    types.UInt: Primitive.UINT,
    types.ULong: Primitive.ULONG,
    types.Byte: Primitive.BYTE,
    types.Short: Primitive.SHORT,
    types.Int: Primitive.INT,
    types.Long: Primitive.LONG,
    int: Primitive.LONG,
    types.Float: Primitive.FLOAT,
    float: Primitive.DOUBLE,
    types.Decimal32: Primitive.DECIMAL32,
    types.Decimal64: Primitive.DECIMAL64,
    types.Decimal128: Primitive.DECIMAL128,
    types.Char: Primitive.CHAR,
    types.Timestamp: Primitive.TIMESTAMP,
    UUID: Primitive.UUID,
    bytes: Primitive.BINARY,
    bytearray: Primitive.BINARY,
    memoryview: Primitive.BINARY,
    str: Primitive.STRING,
    types.Symbol: Primitive.SYMBOL,
    list: Primitive.LIST,
    tuple: Primitive.LIST,
    dict: Primitive.MAP,
    Array: Primitive.ARRAY,
}

VALUE_WRITERS: dict[type, Writer] = {cls: FIELD_WRITERS[primitive] for cls, primitive in CLASSES.items()}
"""Writers by the class of the value. Declarations of composites and restricted types add their own."""

VALUE_WRITERS[Described] = _write_described
VALUE_WRITERS[types.Encoded] = lambda value, _depth: value.octets


def write_value(value: Any, depth: int) -> bytes:
    """Write any value, as the AMQP type of its class."""
    writer = VALUE_WRITERS.get(type(value))
    return (writer or _inherited(type(value)))(value, depth)


def _inherited(cls: type) -> Writer:
    """Return the writer for a class that is not in the table: its nearest base's, else that of maps or lists."""
    for base in cls.__mro__[1:]:
        if base in VALUE_WRITERS:
            return VALUE_WRITERS[base]
    if issubclass(cls, Mapping):
        return _write_map
    if issubclass(cls, Sequence):
        return _write_list
    raise TypeError(f"{cls.__name__} has no AMQP type")
