"""Composites by the kernel: the same octets and values as by the codec's readers and writers (§1.4)."""

from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec.composite import choices, composite, declaration, decode_composite, encode_composite
from amqpmesh.router.amqp.codec.decoder import Buffer
from amqpmesh.router.amqp.codec.field_types import Binary, Boolean, Multiple, String, UByte, UInt, ULong, UShort
from amqpmesh.router.amqp.codec.types import Primitive, Symbol
from amqpmesh.router.amqp.errors import ProtocolError


@choices(Primitive.UBYTE)
class Colour(IntEnum):
    RED = 0
    BLUE = 200


@composite("example:small:list", 0xE1)
class Small:
    flag: Boolean = True


@composite("example:each:list", 0xE2)
class Each:
    """A field of each kind."""

    uint: UInt
    ulong: ULong | None = None
    ushort: UShort = 7
    ubyte: UByte = 0
    text: String | None = None
    octets: Binary | None = None
    flag: Boolean = False
    colour: Colour = Colour.RED
    small: Small | None = None
    names: Multiple[Symbol] = ()
    last: String = "end"


def numbers(bits: int) -> st.SearchStrategy[int]:
    edges = (0, 1, 255, 256, 2**16 - 1, 2**16, 2**32 - 1, 2**bits - 1)
    return st.sampled_from([each for each in edges if each < 2**bits]) | st.integers(0, 2**bits - 1)


SIZES = st.sampled_from([0, 1, 255, 256, 300])
VALUES = st.builds(
    Each,
    uint=numbers(32),
    ulong=st.none() | numbers(64),
    ushort=numbers(16),
    ubyte=numbers(8),
    text=st.none() | st.text(max_size=9) | SIZES.map("ä".__mul__),
    octets=st.none() | st.binary(max_size=9) | SIZES.map(b"x".__mul__),
    flag=st.booleans(),
    colour=st.sampled_from(Colour),
    small=st.none() | st.builds(Small, flag=st.booleans()),
    names=st.lists(st.sampled_from(["", "a", "b"]).map(Symbol), max_size=3).map(tuple),
    last=st.sampled_from(["end", ""]),
)


@given(VALUES, st.booleans(), st.sampled_from([bytes, bytearray, memoryview]))
def test_each_field_is_written_as_by_the_codec_and_read_from_any_buffer(
    value: Each, full: bool, kind: type[Buffer]
) -> None:
    octets = encode_composite(value, full=full)
    fields = declaration(Each).fields  # type: ignore[attr-defined]  # of a composite
    written = []
    for field in fields:
        item = getattr(value, field.attribute)
        is_null = item is None or (not full and not field.mandatory and item == field.default)
        written.append(b"\x40" if is_null else field.plan.write(item, 2))
    while not full and written[-1] == b"\x40":
        written.pop()
    assert octets.endswith(b"".join(written))
    assert octets[:4] == bytes((0, 0x53, 0xE2, 0xC0 if len(octets) < 260 else 0xD0))
    assert decode_composite(Each, kind(b"begin" + octets + b"end"), 5) == (value, 5 + len(octets))  # type: ignore[arg-type]  # of bytes


@given(VALUES)
def test_a_composite_that_is_cut_anywhere_is_refused(value: Each) -> None:
    octets = encode_composite(value)
    for end in range(len(octets)):
        with pytest.raises(ProtocolError):
            decode_composite(Each, octets[:end])


@pytest.mark.parametrize("one", [Small, Each])
def test_a_composite_of_a_longer_list_is_refused(one: type) -> None:
    head = bytes((0, 0x53, declaration(one).code, 0xC0, 13, 12)) + b"\x43" + b"\x40" * 11
    with pytest.raises(ProtocolError, match="12 fields where"):
        decode_composite(one, head)
