"""Values that carry their AMQP type (§1.6).

Some of Python's own types stand for AMQP types: None is null, bool boolean, int long, float double, str string, bytes
binary, uuid.UUID uuid, list list, dict map. The other types have a class here.

Values compare as in Python: `UInt(1) == 1` and `Symbol("a") == "a"`. So a program can compare decoded values with
literals. Each value keeps its type, and is encoded as this type again. AMQP distinguishes map keys that are equal in
Python; `maps.py` deals with them.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Self, TypeAlias
from uuid import UUID

from amqpmesh.router.amqp.codec.decimals import Decimal32, Decimal64, Decimal128

__all__ = [
    "Array",
    "Byte",
    "Char",
    "Decimal32",
    "Decimal64",
    "Decimal128",
    "Described",
    "Extension",
    "Float",
    "Int",
    "Long",
    "Primitive",
    "Short",
    "Symbol",
    "Timestamp",
    "UByte",
    "UInt",
    "ULong",
    "UShort",
    "Value",
]


class Primitive(Enum):
    """The primitive types, in the order of §1.6."""

    NULL = "null"
    BOOLEAN = "boolean"
    UBYTE = "ubyte"
    USHORT = "ushort"
    UINT = "uint"
    ULONG = "ulong"
    BYTE = "byte"
    SHORT = "short"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL32 = "decimal32"
    DECIMAL64 = "decimal64"
    DECIMAL128 = "decimal128"
    CHAR = "char"
    TIMESTAMP = "timestamp"
    UUID = "uuid"
    BINARY = "binary"
    STRING = "string"
    SYMBOL = "symbol"
    LIST = "list"
    MAP = "map"
    ARRAY = "array"


class _Integer(int):
    """An integer of a fixed range. Raises: ValueError: it is out of range."""

    __slots__ = ()
    MIN: ClassVar[int]
    MAX: ClassVar[int]

    def __new__(cls, value: int) -> Self:
        if not cls.MIN <= value <= cls.MAX:
            raise ValueError(f"{value} is out of the range of {cls.__name__}")
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"

    def __str__(self) -> str:
        return int.__repr__(self)


class UByte(_Integer):
    """0 to 2**8 - 1 (§1.6.3)."""

    __slots__ = ()
    MIN, MAX = 0, 2**8 - 1


class UShort(_Integer):
    """0 to 2**16 - 1 (§1.6.4)."""

    __slots__ = ()
    MIN, MAX = 0, 2**16 - 1


class UInt(_Integer):
    """0 to 2**32 - 1 (§1.6.5)."""

    __slots__ = ()
    MIN, MAX = 0, 2**32 - 1


class ULong(_Integer):
    """0 to 2**64 - 1 (§1.6.6)."""

    __slots__ = ()
    MIN, MAX = 0, 2**64 - 1


class Byte(_Integer):
    """-2**7 to 2**7 - 1 (§1.6.7)."""

    __slots__ = ()
    MIN, MAX = -(2**7), 2**7 - 1


class Short(_Integer):
    """-2**15 to 2**15 - 1 (§1.6.8)."""

    __slots__ = ()
    MIN, MAX = -(2**15), 2**15 - 1


class Int(_Integer):
    """-2**31 to 2**31 - 1 (§1.6.9)."""

    __slots__ = ()
    MIN, MAX = -(2**31), 2**31 - 1


class Long(_Integer):
    """-2**63 to 2**63 - 1 (§1.6.10). A plain int is a long, too, and decoding returns a plain int."""

    __slots__ = ()
    MIN, MAX = -(2**63), 2**63 - 1


class Timestamp(_Integer):
    """Milliseconds since the Unix epoch, -2**63 to 2**63 - 1 (§1.6.17)."""

    __slots__ = ()
    MIN, MAX = -(2**63), 2**63 - 1


class Float(float):
    """A binary32 number (§1.6.11), rounded to that precision. Raises: ValueError: it is too large."""

    __slots__ = ()

    def __new__(cls, value: float) -> Self:
        """Round the number, or refuse one that is too large."""
        try:
            (rounded,) = struct.unpack(">f", struct.pack(">f", value))
        except OverflowError as error:
            raise ValueError(f"{value} is out of the range of Float") from error
        return super().__new__(cls, rounded)

    def __repr__(self) -> str:
        return f"Float({float.__repr__(self)})"

    def __str__(self) -> str:
        return float.__repr__(self)


class Char(str):
    """One Unicode character (§1.6.16). Raises: ValueError: it is not one character, or is a surrogate."""

    __slots__ = ()

    def __new__(cls, value: str) -> Self:
        """Check that it is one character."""
        if len(value) != 1 or "\ud800" <= value <= "\udfff":
            raise ValueError(f"{value!r} is not one Unicode character")
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"Char({str.__repr__(self)})"


class Symbol(str):
    """A word of a constrained domain, in ASCII (§1.6.21). Raises: ValueError: it is not ASCII."""

    __slots__ = ()

    def __new__(cls, value: str) -> Self:
        """Check that it is ASCII."""
        if not value.isascii():
            raise ValueError(f"{value!r} is not ASCII")
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"Symbol({str.__repr__(self)})"


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor, a ULong or a Symbol, that names its type (§1.1.2, §1.5)."""

    descriptor: "Value"
    value: "Value"


@dataclass(frozen=True, slots=True)
class Extension:
    """A value of a described type outside of the standard, in a place that permits it: the octets that came (§1.3)."""

    octets: bytes


@dataclass(frozen=True, slots=True, init=False)
class Array:
    """Values of one type (§1.6.24).

    Args: element: the type of all elements.
        values: the elements; in an array of described values, without their descriptors.
        descriptors: the descriptors of every element, outermost first; most arrays have none.
    """

    element: Primitive
    values: "tuple[Value, ...]"
    descriptors: "tuple[Value, ...]"

    def __init__(self, element: Primitive, values: "Sequence[Value]", descriptors: "Sequence[Value]" = ()) -> None:
        object.__setattr__(self, "element", element)
        object.__setattr__(self, "values", tuple(values))
        object.__setattr__(self, "descriptors", tuple(descriptors))


Value: TypeAlias = (
    bool
    | int
    | float
    | str
    | bytes
    | UUID
    | Decimal32
    | Decimal64
    | Decimal128
    | Described
    | Array
    | Sequence[Any]
    | Mapping[Any, Any]
    | None
)
"""Any AMQP value. Lists and maps hold `Value`s again; `get_type_hints` cannot resolve a recursive alias."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A value that is encoded already, to be a part of other values."""

    octets: bytes
