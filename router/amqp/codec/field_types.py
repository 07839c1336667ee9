"""Annotations for the fields of a composite: a Python type for the reader, an AMQP type on the wire.

`UInt` here is a plain int that is a uint on the wire, because its field is one. `types.UInt` is an int that carries its
AMQP type, for places without a declared type. An annotation may also be a composite, a restricted type, a class of
`types.py`, or a union of those, each with `| None`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, TypeAlias, TypeVar
from uuid import UUID

from amqpmesh.router.amqp.codec.types import Primitive, Value


class Shape(Enum):
    """The kind of an annotation that is not a primitive type."""

    ANY = "*"
    SIMPLE = "simple"
    MULTIPLE = "multiple"
    MAP = "map"
    LAZY_MAP = "lazy map"


@dataclass(frozen=True, slots=True)
class MaxOctets:
    """A restriction: a maximum of octets."""

    octets: int


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

Boolean: TypeAlias = Annotated[bool, Primitive.BOOLEAN]
UByte: TypeAlias = Annotated[int, Primitive.UBYTE]
UShort: TypeAlias = Annotated[int, Primitive.USHORT]
UInt: TypeAlias = Annotated[int, Primitive.UINT]
ULong: TypeAlias = Annotated[int, Primitive.ULONG]
Timestamp: TypeAlias = Annotated[int, Primitive.TIMESTAMP]
Uuid: TypeAlias = Annotated[UUID, Primitive.UUID]
Binary: TypeAlias = Annotated[bytes, Primitive.BINARY]
String: TypeAlias = Annotated[str, Primitive.STRING]
List: TypeAlias = Annotated[list[Value], Primitive.LIST]

AnyValue: TypeAlias = Annotated[Value, Shape.ANY]
"""Any value: type="*" without an archetype."""

SimpleValue: TypeAlias = Annotated[Value, Shape.SIMPLE]
"""Any value but a list, a map or an array (§3.2.5)."""

Multiple = Annotated[tuple[T, ...], Shape.MULTIPLE]
"""multiple="true" (§1.4): null, one value or an array on the wire, always a tuple here."""

Map = Annotated[Mapping[K, V], Shape.MAP]
"""A map with one type of keys and one of values. Values may be null if their type allows it."""

LazyMap = Annotated[Mapping[K, V], Shape.LAZY_MAP]
"""A map that is decoded entry by entry on demand (`maps.Entries`): it may have thousands, of which few are used."""
