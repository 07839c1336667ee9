"""Generated AMQP values, and their equality by type and content, which Python's == does not see."""

import math
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from amqpmesh.router.amqp.codec import types
from amqpmesh.router.amqp.codec.maps import PairMap
from amqpmesh.router.amqp.codec.types import Array, Described, Primitive
from amqpmesh.router.amqp.codec.values import encode

INTEGERS = {
    Primitive.UBYTE: types.UByte,
    Primitive.USHORT: types.UShort,
    Primitive.UINT: types.UInt,
    Primitive.ULONG: types.ULong,
    Primitive.BYTE: types.Byte,
    Primitive.SHORT: types.Short,
    Primitive.INT: types.Int,
    Primitive.TIMESTAMP: types.Timestamp,
}
DECIMALS = {
    Primitive.DECIMAL32: types.Decimal32,
    Primitive.DECIMAL64: types.Decimal64,
    Primitive.DECIMAL128: types.Decimal128,
}

# Around 255 octets the encodings change.
_LENGTHS = st.one_of(st.integers(0, 6), st.sampled_from([254, 255, 256, 300]))


def integers(least: int, most: int) -> st.SearchStrategy[int]:
    """Draw integers, with the edges of the encodings among them."""
    edges = [edge for edge in (-129, -128, -1, 0, 1, 127, 128, 255, 256, least, most) if least <= edge <= most]
    return st.one_of(st.integers(least, most), st.sampled_from(edges))


binary = _LENGTHS.flatmap(lambda length: st.binary(min_size=length, max_size=length))
text = st.one_of(
    st.text(max_size=8), _LENGTHS.map("x".__mul__), st.sampled_from(["é" * 127, "é" * 128, "\0", "\ufeff"])
)
symbols = st.one_of(st.text(st.characters(max_codepoint=127), max_size=8), _LENGTHS.map("x".__mul__)).map(types.Symbol)
characters = st.characters(exclude_categories=["Cs"]).map(types.Char)

SCALARS: dict[Primitive, st.SearchStrategy[Any]] = {
    Primitive.NULL: st.none(),
    Primitive.BOOLEAN: st.booleans(),
    **{primitive: integers(cls.MIN, cls.MAX).map(cls) for primitive, cls in INTEGERS.items()},
    Primitive.LONG: integers(types.Long.MIN, types.Long.MAX),
    Primitive.FLOAT: st.floats(width=32).map(types.Float),
    Primitive.DOUBLE: st.floats(),
    **{primitive: st.integers(0, 2**cls.WIDTH - 1).map(cls) for primitive, cls in DECIMALS.items()},
    Primitive.CHAR: characters,
    Primitive.UUID: st.uuids(),
    Primitive.BINARY: binary,
    Primitive.STRING: text,
    Primitive.SYMBOL: symbols,
}
scalars = st.one_of(*SCALARS.values())
descriptors = st.one_of(SCALARS[Primitive.ULONG], symbols)


def maps(keys: st.SearchStrategy[Any], values: st.SearchStrategy[Any]) -> st.SearchStrategy[PairMap]:
    """Draw maps with keys of any type, in any order."""
    # Not by unique_by, which makes the repr of the strategy for each key that it drops: hundreds of kilobytes of it.
    pairs = st.lists(st.tuples(keys, values), max_size=4)
    return pairs.map(lambda pairs: PairMap({encode(pair[0]): pair for pair in pairs}.values()))


def arrays(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Array]:
    """Draw arrays of any element type; of lists, maps and arrays too."""
    described = st.one_of(st.just([]), st.lists(descriptors, min_size=1, max_size=2))
    lists, mappings = st.lists(children, max_size=3), maps(scalars, children)

    def of(element: Primitive, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Array]:
        return st.builds(Array, st.just(element), st.lists(values, max_size=4), described)

    flat = st.one_of(*(of(element, values) for element, values in SCALARS.items()))
    return st.one_of(flat, of(Primitive.LIST, lists), of(Primitive.MAP, mappings), of(Primitive.ARRAY, flat))


def _deeper(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(children, max_size=4),
        maps(children, children),
        st.builds(Described, descriptors, children),
        arrays(children),
    )


values = st.recursive(scalars, _deeper, max_leaves=12)


def identical(one: Any, other: Any) -> bool:
    """Return whether two values are one AMQP value: same type, same content, maps in the same order."""
    if isinstance(one, Mapping):
        return isinstance(other, Mapping) and identical(list(one.items()), list(other.items()))
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(identical, one, other))
    if isinstance(one, Array):
        return one.element is other.element and identical(
            (one.values, one.descriptors), (other.values, other.descriptors)
        )
    if isinstance(one, Described):
        return identical((one.descriptor, one.value), (other.descriptor, other.value))
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    return bool(one == other)
