"""Values and octets (§1.2, §1.6): all encodings are read, the most compact is written, hostile octets are refused."""

import math
import tracemalloc
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec import types
from amqpmesh.router.amqp.codec.decoder import MAX_EMPTY_LISTS
from amqpmesh.router.amqp.codec.types import Array, Described, Primitive, Symbol, UInt, ULong
from amqpmesh.router.amqp.codec.values import MAX_ARRAY_OF_NOTHING, MAX_DEPTH, decode, decode_exactly, encode
from amqpmesh.router.amqp.errors import CommandError, ProtocolError, Scope
from tests.support.data.values import identical, values

# Every encoding of §1.6; the most compact encoding of a value comes first.
ENCODINGS: list[tuple[Any, list[str]]] = [
    (None, ["40"]),
    (True, ["41", "56 01"]),
    (False, ["42", "56 00"]),
    (types.UByte(255), ["50 ff"]),
    (types.UShort(0x1234), ["60 12 34"]),
    (types.UInt(0), ["43", "52 00", "70 00 00 00 00"]),
    (types.UInt(255), ["52 ff", "70 00 00 00 ff"]),
    (types.UInt(256), ["70 00 00 01 00"]),
    (types.ULong(0), ["44", "53 00", "80 00 00 00 00 00 00 00 00"]),
    (types.ULong(255), ["53 ff", "80 00 00 00 00 00 00 00 ff"]),
    (types.ULong(2**64 - 1), ["80 ff ff ff ff ff ff ff ff"]),
    (types.Byte(-1), ["51 ff"]),
    (types.Short(-2), ["61 ff fe"]),
    (types.Int(-128), ["54 80", "71 ff ff ff 80"]),
    (types.Int(128), ["71 00 00 00 80"]),
    (127, ["55 7f", "81 00 00 00 00 00 00 00 7f"]),
    (-129, ["81 ff ff ff ff ff ff ff 7f"]),
    (types.Float(-0.75), ["72 bf 40 00 00"]),
    (0.1, ["82 3f b9 99 99 99 99 99 9a"]),
    (types.Decimal32(0x32800001), ["74 32 80 00 01"]),
    (types.Decimal64(0x31C0000000000001), ["84 31 c0 00 00 00 00 00 01"]),
    (types.Decimal128(1 << 127), ["94 80" + "00" * 15]),
    (types.Char("𝄞"), ["73 00 01 d1 1e"]),
    (types.Timestamp(1311704463521), ["83 00 00 01 31 67 ad b8 a1"]),
    (types.Timestamp(-1), ["83 ff ff ff ff ff ff ff ff"]),
    (UUID(int=1), ["98" + "00" * 15 + "01"]),
    (b"", ["a0 00", "b0 00 00 00 00"]),
    (b"ab", ["a0 02 61 62", "b0 00 00 00 02 61 62"]),
    (b"x" * 256, ["b0 00 00 01 00" + "78" * 256]),
    ("é", ["a1 02 c3 a9", "b1 00 00 00 02 c3 a9"]),
    ("é" * 128, ["b1 00 00 01 00" + "c3a9" * 128]),
    (Symbol("a"), ["a3 01 61", "b3 00 00 00 01 61"]),
    (Symbol("a" * 256), ["b3 00 00 01 00" + "61" * 256]),
    ([], ["45", "c0 01 00", "d0 00 00 00 04 00 00 00 00"]),
    ([None, UInt(0)], ["c0 03 02 40 43", "d0 00 00 00 06 00 00 00 02 40 43"]),
    ([None] * 254, ["c0 ff fe" + "40" * 254]),
    ([None] * 255, ["d0 00 00 01 03 00 00 00 ff" + "40" * 255]),
    ({}, ["c1 01 00", "d1 00 00 00 04 00 00 00 00"]),
    ({"a": None}, ["c1 05 02 a1 01 61 40", "d1 00 00 00 08 00 00 00 02 a1 01 61 40"]),
    (Array(Primitive.UINT, []), ["e0 02 00 52", "e0 02 00 43", "e0 02 00 70", "f0 00 00 00 05 00 00 00 00 70"]),
    (
        Array(Primitive.UINT, [UInt(1), UInt(2)]),
        [
            "e0 04 02 52 01 02",
            "e0 0a 02 70 00 00 00 01 00 00 00 02",
            "f0 00 00 00 0d 00 00 00 02 70 00 00 00 01 00 00 00 02",
        ],
    ),
    (Array(Primitive.UINT, [UInt(0), UInt(0)]), ["e0 04 02 52 00 00", "e0 02 02 43"]),
    (Array(Primitive.UINT, [UInt(1), UInt(256)]), ["e0 0a 02 70 00 00 00 01 00 00 01 00"]),
    (Array(Primitive.LONG, [-128, 127]), ["e0 04 02 55 80 7f"]),
    (Array(Primitive.INT, [types.Int(128)]), ["e0 06 01 71 00 00 00 80"]),
    (Array(Primitive.NULL, [None, None]), ["e0 02 02 40"]),
    (Array(Primitive.BOOLEAN, [True, False]), ["e0 04 02 56 01 00"]),
    (Array(Primitive.BOOLEAN, [True, True]), ["e0 04 02 56 01 01", "e0 02 02 41"]),
    (Array(Primitive.SYMBOL, [Symbol("a"), Symbol("")]), ["e0 05 02 a3 01 61 00", "e0 0b 02 b3 00000001 61 00000000"]),
    (
        Array(Primitive.LIST, [[], [None]]),
        ["e0 07 02 c0 01 00 02 01 40", "e0 13 02 d0 00000004 00000000 00000005 00000001 40"],
    ),
    (Array(Primitive.LIST, [[], []]), ["e0 06 02 c0 01 00 01 00", "e0 02 02 45"]),
    (Array(Primitive.MAP, [{True: None}]), ["e0 06 01 c1 03 02 41 40"]),
    (
        Array(Primitive.ARRAY, [Array(Primitive.UBYTE, [types.UByte(7)]), Array(Primitive.NULL, [])]),
        ["e0 09 02 e0 03 01 50 07 02 00 40"],
    ),
    (Array(Primitive.STRING, ["x"], [ULong(3)]), ["e0 07 01 00 53 03 a1 01 78"]),
    (Array(Primitive.UBYTE, [types.UByte(1)], [ULong(3), Symbol("s")]), ["e0 0a 01 00 53 03 00 a3 01 73 50 01"]),
    (Described(ULong(0x24), []), ["00 53 24 45", "00 80 00 00 00 00 00 00 00 24 c0 01 00"]),
    (Described(Described(Symbol("a"), 1), "x"), ["00 00 a3 01 61 55 01 a1 01 78"]),
]


@pytest.mark.parametrize(("value", "encodings"), ENCODINGS)
def test_every_encoding_is_read_and_the_first_one_written(value: Any, encodings: list[str]) -> None:
    assert encode(value) == bytes.fromhex(encodings[0])
    for encoding in encodings:
        assert identical(decode_exactly(bytes.fromhex(encoding)), value)


@given(values)
@example([True, 1, 1.0, UInt(1), ULong(1)])
def test_a_value_is_the_same_value_after_a_round_trip(value: Any) -> None:
    assert identical(decode_exactly(encode(value)), value)


@given(values)
def test_what_is_written_compactly_is_written_alike_again(value: Any) -> None:
    octets = encode(value)
    assert encode(decode_exactly(octets)) == octets


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@given(value=values, before=st.binary(max_size=3), after=st.binary(max_size=3))
def test_any_buffer_is_read_at_any_offset_and_the_end_told(
    kind: Callable[[bytes], Any], value: Any, before: bytes, after: bytes
) -> None:
    octets = encode(value)
    read, end = decode(kind(before + octets + after), len(before))
    assert identical(read, value)
    assert end == len(before) + len(octets)


def test_a_value_shares_no_memory_with_its_buffer() -> None:
    data = bytearray(encode([b"abc", "abc", Symbol("abc"), UUID(int=5)]))
    value = decode_exactly(memoryview(data))
    data[:] = bytes(len(data))
    assert value == [b"abc", "abc", Symbol("abc"), UUID(int=5)]
    data.clear()  # fails if the buffer is still exported


def test_a_failed_decoding_does_not_hold_on_to_a_bytearray() -> None:
    data = bytearray.fromhex("c0 02 01 a0 05")
    with pytest.raises(ProtocolError) as raised:
        decode(data)
    data.clear()
    assert raised.value.__traceback__ is not None


@given(values, st.data())
def test_a_truncated_value_is_a_decode_error(value: Any, data: st.DataObject) -> None:
    octets = encode(value)
    with pytest.raises(ProtocolError):
        decode(octets[: data.draw(st.integers(0, len(octets) - 1))])


def nested(depth: int, inner: str = "40") -> bytes:
    """Return lists nested in each other."""
    octets = bytes.fromhex(inner)
    for _ in range(depth):
        octets = b"\xd0" + (len(octets) + 4).to_bytes(4, "big") + b"\0\0\0\1" + octets
    return octets


MALFORMED = {
    "nothing": "",
    "no such fixed format code": "46",
    "no such wide format code": "ff 00",
    "no such format code as element": "e0 02 00 46",
    "boolean of 2": "56 02",
    "uint cut": "70 00 00 00",
    "uuid cut": "98 00",
    "decimal cut": "94 00",
    "char cut": "73 00 00",
    "char beyond unicode": "73 00 11 00 00",
    "char surrogate": "73 00 00 d8 00",
    "binary longer than the data": "a0 03 61 62",
    "binary with half a size": "b0 00 00",
    "binary of four gibibytes": "b0 ff ff ff ff",
    "string not UTF-8": "a1 01 ff",
    "string with an overlong encoding": "a1 02 c0 80",
    "string with a surrogate": "a1 03 ed a0 80",
    "symbol not ASCII": "a3 02 c3 a9",
    "list longer than the data": "c0 05 01 40",
    "list of size 0, which has no room for the count": "c0 00 00",
    "list32 of size 3": "d0 00 00 00 03 00 00 00 00",
    "list shorter than its elements": "c0 02 01 70 00 00 00 00",
    "list longer than its elements": "c0 03 01 40 40",
    "list with fewer elements than its count": "c0 03 03 40 40",
    "list with a huge count": "d0 00 00 00 04 ff ff ff ff",
    "list element that ends behind the list": "c0 03 01 a0 01 61",
    "map with an odd count": "c1 02 01 40",
    "map with a key twice": "c1 07 04 55 01 40 55 01 40",
    "map with a key in two encodings": "c1 0d 04 55 01 40 81 00 00 00 00 00 00 00 01 40",
    "map with a list as key twice": "c1 05 04 45 40 45 40",
    "map with NaN as key twice": "c1 15 04 82 7ff8000000000000 40 82 7ff8000000000000 40",
    "map with a huge count": "d1 00 00 00 04 ff ff ff fe",
    "array without a constructor": "e0 01 00",
    "array longer than the data": "e0 05 01 50 00",
    "array with fewer octets than elements": "e0 03 02 50 00",
    "array with more octets than elements": "e0 04 01 50 00 00",
    "array of nulls with octets": "e0 03 01 40 00",
    "array with a huge count": "f0 00 00 00 05 ff ff ff ff 50",
    "array of four thousand million nulls": "f0 00 00 00 05 ff ff ff ff 40",
    "array of four thousand million trues": "f0 00 00 00 05 ff ff ff ff 41",
    "array of four thousand million empty lists": "f0 00 00 00 05 ff ff ff ff 45",
    "array of described nothing": "e0 03 00 00 53",
    "array with a descriptor and no constructor": "e0 04 01 00 53 03",
    "array in an array with a huge count": "e0 0a 01 f0 00 00 00 05 ff ff ff ff 40",
    "array of strings not UTF-8": "e0 04 01 a1 01 ff",
    "array of described uint0 with a huge count": "f0 00 00 00 08 ff ff ff ff 00 53 03 43",
    "descriptor without a value": "00 53 24",
    "descriptor alone": "00",
    "lists too deep": nested(MAX_DEPTH + 1).hex(),
    "lists too deep by far": nested(20_000).hex(),
    "descriptors too deep": "00" * 100_000,
    "described values too deep": "00 40" * (MAX_DEPTH + 1) + "40",
    "arrays of arrays too deep": "",
}


def arrays_in_arrays(depth: int) -> bytes:
    body = b"\x40"
    for _ in range(depth):
        body = b"\xf0" + (len(body) + 4).to_bytes(4, "big") + b"\0\0\0\1" + body
    return b"\xf0" + (len(body) + 4).to_bytes(4, "big") + b"\0\0\0\1" + body


MALFORMED["arrays of arrays too deep"] = arrays_in_arrays(MAX_DEPTH).hex()


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_octets_are_one_error(name: str) -> None:
    octets = bytes.fromhex(MALFORMED[name])
    for data in (octets, bytearray(octets), memoryview(octets)):
        with pytest.raises(ProtocolError) as raised:
            decode(data)
        assert raised.value.scope is Scope.CONNECTION
        assert raised.value.condition == "amqp:decode-error"


def test_the_greatest_depth_is_read_and_written() -> None:
    value: Any = None
    for _ in range(MAX_DEPTH):
        value = [value]
    assert decode_exactly(encode(value)) == value
    assert decode_exactly(nested(MAX_DEPTH)) == value
    assert isinstance(decode_exactly(arrays_in_arrays(MAX_DEPTH - 1)), Array)


def test_elements_without_octets_are_read_up_to_a_limit() -> None:
    array = decode_exactly(bytes.fromhex(f"f0 00000005 {MAX_ARRAY_OF_NOTHING:08x} 41"))
    assert array == Array(Primitive.BOOLEAN, [True] * MAX_ARRAY_OF_NOTHING)
    lists = decode_exactly(bytes.fromhex(f"e0 02 {MAX_EMPTY_LISTS:02x} 45"))
    lists.values[0].append(1)
    assert lists.values[1:] == ([],) * (MAX_EMPTY_LISTS - 1)
    for count, code in ((MAX_ARRAY_OF_NOTHING + 1, 0x41), (MAX_EMPTY_LISTS + 1, 0x45)):
        with pytest.raises(ProtocolError, match="without octets"):
            decode(bytes.fromhex(f"f0 00000005 {count:08x} {code:02x}"))


@pytest.mark.parametrize(
    "unit",
    ["45", "c1 01 00", "e0 02 ff 40", "e0 02 08 45", "e0 02 00 45", "a3 00", "00 40 40", "74 00 00 00 00", "c0 01 00"],
)
def test_memory_is_a_small_multiple_of_the_octets(unit: str) -> None:
    """64 KiB take a small multiple of their size in memory, whatever their counts claim."""
    octets = bytes.fromhex(unit)
    body = octets * (65_536 // len(octets))
    count = 65_536 // len(octets)
    data = b"\xd0" + (len(body) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + body
    decode(data)  # fills caches, which do not count
    tracemalloc.start()
    try:
        value = decode_exactly(data)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(value) == count
    assert size < 256 * len(data)


def test_octets_behind_a_value_are_refused_where_it_must_be_all() -> None:
    with pytest.raises(ProtocolError, match="1 octets follow"):
        decode_exactly(b"\x40\x40")


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        object(),
        {1, 2},
        "\ud800",
        CYCLE,
        [object()],
        {"a": object()},
        Array(Primitive.UBYTE, [256]),
        Array(Primitive.BOOLEAN, [2]),
        Array(Primitive.NULL, [1]),
        Array(Primitive.NULL, [None] * (MAX_ARRAY_OF_NOTHING + 1)),
        Array(Primitive.STRING, [1]),
        Array(Primitive.SYMBOL, ["é"]),
        Array(Primitive.BINARY, [5]),
        Array(Primitive.LIST, [1]),
        Described(ULong(1), object()),
    ],
)
def test_a_value_without_an_encoding_is_the_callers_error(value: Any) -> None:
    with pytest.raises(CommandError, match="cannot be encoded"):
        encode(value)


def test_what_stands_for_an_amqp_value_is_written_as_one() -> None:
    class Words(list[str]):
        pass

    class Colour(Symbol):
        pass

    assert encode(Words(["a"])) == encode(["a"]) == encode(("a",))
    assert encode(Colour("red")) == encode(Symbol("red"))
    assert encode(range(2)) == encode([0, 1])
    assert encode(bytearray(b"a")) == encode(memoryview(b"a")) == encode(b"a")
    assert encode(types.Long(5)) == encode(5)


def test_numbers_that_are_none_survive() -> None:
    assert math.isnan(decode_exactly(bytes.fromhex("72 7f c0 00 00")))
    assert encode(decode_exactly(bytes.fromhex("82 7f f0 00 00 00 00 00 01"))).hex() == "827ff0000000000001"
