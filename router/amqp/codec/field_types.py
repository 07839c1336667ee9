"""What the annotations of a composite's fields can be: to the reader a Python type, on the wire one of the standard's.

`UInt` here is an int that is a uint on the wire, because the field says so; `types.UInt` is an int that knows it is
one, for where nothing else does. An annotation may also be a composite, a restricted type, a class of `types.py`, a
union of those, each with `| None`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, TypeAlias, TypeVar
from uuid import UUID

from amqpmesh.router.amqp.codec.types import Primitive, Value


class Shape(Enum):
    """What an annotation holds, where that is more than a primitive type."""

    ANY = "*"
    SIMPLE = "simple"
    MULTIPLE = "multiple"
    MAP = "map"
    LAZY_MAP = "lazy map"


@dataclass(frozen=True, slots=True)
class MaxOctets:
    """A restriction: no more octets than this."""

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
"""type="*" without an archetype that says which."""

SimpleValue: TypeAlias = Annotated[Value, Shape.SIMPLE]
"""Any value but a list, a map or an array (§3.2.5)."""

Multiple = Annotated[tuple[T, ...], Shape.MULTIPLE]
"""multiple="true" (§1.4): null, one value or an array on the wire, always a tuple here."""

Map = Annotated[Mapping[K, V], Shape.MAP]
"""A map whose keys and values are of one type each. Values may be null if their type says so."""

LazyMap = Annotated[Mapping[K, V], Shape.LAZY_MAP]
"""The same, read entry by entry when somebody asks (`maps.Entries`): it may have thousands, of which few are of use."""
