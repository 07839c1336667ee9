"""Maps with keys that a dict cannot hold or tell apart (§1.6.23)."""

from typing import Any
from uuid import UUID

import pytest

from amqpmesh.router.amqp.codec.maps import MAX_NUMERIC_KEYS, PairMap
from amqpmesh.router.amqp.codec.types import Array, Described, Primitive, Symbol, UInt, ULong
from amqpmesh.router.amqp.codec.values import MAX_DEPTH, decode_exactly, encode
from amqpmesh.router.amqp.errors import ProtocolError
from tests.support.data.values import identical

CONFUSED: list[tuple[Any, str]] = [
    (True, "boolean"),
    (1, "long"),
    (1.0, "double"),
    (UInt(1), "uint"),
    (ULong(1), "ulong"),
    ("1", "string"),
    (Symbol("1"), "symbol"),
    ([1], "list"),
    ({"a": 1}, "map"),
    (Array(Primitive.LIST, [[]]), "array"),
    (Described(ULong(1), []), "described"),
    (None, "null"),
    (0.0, "plus zero"),
    (-0.0, "minus zero"),
]


def test_keys_are_told_apart_by_type_in_their_order() -> None:
    read = decode_exactly(encode(PairMap(CONFUSED)))
    assert isinstance(read, PairMap)
    assert identical(list(read.items()), CONFUSED)
    assert {name: read[key] for key, name in CONFUSED} == {name: name for _, name in CONFUSED}
    assert len(read) == len(CONFUSED)
    assert identical(list(read), [key for key, _ in CONFUSED])


def test_a_map_that_a_dict_can_hold_is_a_dict() -> None:
    for pairs in ({"a": 1, "b": 2}, {Symbol("a"): None}, {1: "x", 2: "y"}, {b"a": 1, True: 2}, {}):
        read = decode_exactly(encode(pairs))
        assert type(read) is dict
        assert identical(read, pairs)


def test_a_key_that_is_not_there_is_a_key_error_whatever_it_is() -> None:
    pairs = PairMap(CONFUSED)
    for key in ("x", 2, [2], object()):
        assert key not in pairs
        with pytest.raises(KeyError):
            pairs[key]


def test_the_same_key_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        PairMap([([1], "a"), ([1], "b")])


def test_a_long_key_is_cut_in_the_error() -> None:
    key = encode("x" * 10_000)
    body = key + b"\x40" + key + b"\x40"
    with pytest.raises(ProtocolError) as raised:
        decode_exactly(b"\xd1" + (len(body) + 4).to_bytes(4, "big") + b"\0\0\0\4" + body)
    assert len(raised.value.description) < 200


def test_order_and_type_count_when_maps_are_compared() -> None:
    assert PairMap([(1, "a"), (True, "b")]) == PairMap([(1, "a"), (True, "b")])
    assert PairMap([(1, "a"), (True, "b")]) != PairMap([(True, "b"), (1, "a")])
    assert PairMap([(1, "a")]) != PairMap([(UInt(1), "a")])
    assert PairMap([(1, "a")]) != {1: "a"}
    assert repr(PairMap([([], UInt(1))])) == "PairMap([([], UInt(1))])"


def test_keys_chosen_to_collide_cost_no_more_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys have one hash, which a peer can compute: a dict would compare each pair, two million in all."""
    keys = [UUID(int=number * (2**61 - 1)) for number in range(2_000)]
    assert len(set(map(hash, keys))) == 1
    octets = encode(PairMap((key, None) for key in keys))
    comparisons = 0
    compare = UUID.__eq__

    def counted(one: UUID, other: object) -> bool:
        nonlocal comparisons
        comparisons += 1
        return compare(one, other)

    monkeypatch.setattr(UUID, "__eq__", counted)
    assert len(decode_exactly(octets)) == len(keys)
    assert comparisons < MAX_NUMERIC_KEYS**2


def test_a_map_of_many_numbers_is_read_whole() -> None:
    for count in (MAX_NUMERIC_KEYS, MAX_NUMERIC_KEYS + 1):
        read = decode_exactly(encode(dict.fromkeys(range(count), "x")))
        assert list(read.items()) == [(key, "x") for key in range(count)]


def test_a_map_in_the_key_of_a_map_and_so_on_is_read_in_one_go() -> None:
    value: Any = None
    for _ in range(MAX_DEPTH):
        value = PairMap([(value, None)])
    read = decode_exactly(encode(value))  # twice the work at each level would take for ever
    assert identical(read, value)
    assert read == value
