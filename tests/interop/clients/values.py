"""AMQP values of the proton clients as typed JSON, so that sent and received values can be compared.

Every value is `[type, value]`. Integers, char and timestamp are decimal strings, since JSON's numbers are doubles;
float and double are the hexadecimal octets of their IEEE 754 form, decimals and binary hexadecimal octets.
A list is `["list", [...]]`, a map `["map", [[key, value], ...]]` in the order of the wire, an array
`["array", element type, [...]]` with its elements in full, a described value `["described", descriptor, value]`.
`values.js` is the same for rhea.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

import proton
from proton import Array, Data, Described

Typed = list[Any]

_INTEGERS: dict[str, Callable[[int], Any]] = {
    "ubyte": proton.ubyte,
    "ushort": proton.ushort,
    "uint": proton.uint,
    "ulong": proton.ulong,
    "byte": proton.byte,
    "short": proton.short,
    "int": proton.int32,
    "long": int,
    "timestamp": proton.timestamp,
}
_INTEGER_NAMES = {constructor: name for name, constructor in _INTEGERS.items()}

_ARRAY_TYPES = {
    "boolean": Data.BOOL,
    **{
        name: getattr(Data, name.upper())
        for name in (
            "null", "ubyte", "ushort", "uint", "ulong", "byte", "short", "int", "long", "timestamp", "float", "double",
            "char", "decimal32", "decimal64", "decimal128", "binary", "string", "symbol", "uuid", "list", "map",
        )
    },
}  # fmt: skip
_ARRAY_NAMES = {code: name for name, code in _ARRAY_TYPES.items()}


def to_json(value: Any) -> Typed:  # one row per type, as a table
    """Return a value that proton decoded as typed JSON."""
    match value:
        case None:
            return ["null"]
        case bool():
            return ["boolean", value]
        case proton.decimal32():
            return ["decimal32", value.to_bytes(4).hex()]
        case proton.decimal64():
            return ["decimal64", value.to_bytes(8).hex()]
        case proton.decimal128():
            return ["decimal128", value.hex()]
        case int():
            return [_INTEGER_NAMES[type(value)], str(int(value))]
        case proton.float32():
            return ["float", struct.pack(">f", value).hex()]
        case float():
            return ["double", struct.pack(">d", value).hex()]
        case proton.char():
            return ["char", str(ord(value))]
        case proton.symbol():
            return ["symbol", str(value)]
        case str():
            return ["string", str(value)]
        case bytes() | memoryview():
            return ["binary", bytes(value).hex()]
        case uuid.UUID():
            return ["uuid", value.hex]
        case Described():
            return ["described", to_json(value.descriptor), to_json(value.value)]
        case Array():
            elements = [to_json(element) for element in value.elements]
            if value.descriptor != proton.UNDESCRIBED:
                elements = [["described", to_json(value.descriptor), element] for element in elements]
            return ["array", _ARRAY_NAMES[value.type], elements]
        case dict():
            return ["map", [[to_json(key), to_json(item)] for key, item in value.items()]]
        case list() | tuple():
            return ["list", [to_json(item) for item in value]]
    raise TypeError(f"no AMQP type for {value!r}")


def from_json(typed: Typed) -> Any:
    """Return the value that proton encodes as this typed JSON."""
    match typed:
        case ["null"]:
            return None
        case ["boolean", value]:
            return value
        case ["decimal32", octets]:
            return proton.decimal32(int(octets, 16))
        case ["decimal64", octets]:
            return proton.decimal64(int(octets, 16))
        case ["decimal128", octets]:
            return proton.decimal128(bytes.fromhex(octets))
        case ["float", octets]:
            return proton.float32(struct.unpack(">f", bytes.fromhex(octets))[0])
        case ["double", octets]:
            return struct.unpack(">d", bytes.fromhex(octets))[0]
        case ["char", code]:
            return proton.char(chr(int(code)))
        case ["symbol", value]:
            return proton.symbol(value)
        case ["string", value]:
            return value
        case ["binary", octets]:
            return bytes.fromhex(octets)
        case ["uuid", octets]:
            return uuid.UUID(hex=octets)
        case ["described", descriptor, value]:
            return Described(from_json(descriptor), from_json(value))
        case ["array", kind, elements]:
            descriptor = proton.UNDESCRIBED
            if elements and elements[0][0] == "described":
                descriptor = from_json(elements[0][1])
                elements = [element[2] for element in elements]
            return Array(descriptor, _ARRAY_TYPES[kind], *(from_json(element) for element in elements))
        case ["map", items]:
            return {from_json(key): from_json(value) for key, value in items}
        case ["list", items]:
            return [from_json(item) for item in items]
        case [name, value] if name in _INTEGERS:
            return _INTEGERS[name](int(value))
    raise ValueError(f"not typed JSON: {typed!r}")


def sections(encoded: bytes) -> list[Typed]:
    """Return the sections of an encoded message, in the order of the wire: `[[descriptor code, value], ...]`."""
    found = []
    data = Data()
    while encoded:
        data.clear()
        consumed = data.decode(encoded)
        data.rewind()
        data.next()
        section: Any = data.get_object()
        found.append([int(section.descriptor), to_json(section.value)])
        encoded = encoded[consumed:]
    return found
