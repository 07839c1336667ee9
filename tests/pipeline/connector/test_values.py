"""AMQP values as values of Spark, and back."""

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from amqpmesh import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Primitive,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from amqpmesh.pipeline.connector.values import TYPES, MisfitError, from_text, to_json, to_text

NUMBER = Decimal("-12.50")
EACH: list[tuple[Any, str, str | None]] = [
    (None, "null", None),
    (True, "boolean", "true"),
    (UByte(255), "ubyte", "255"),
    (UShort(7), "ushort", "7"),
    (UInt(2**32 - 1), "uint", "4294967295"),
    (ULong(2**64 - 1), "ulong", "18446744073709551615"),
    (Byte(-7), "byte", "-7"),
    (Short(-7), "short", "-7"),
    (Int(-7), "int", "-7"),
    (-(2**63), "long", "-9223372036854775808"),
    (Float(0.5), "float", "0.5"),
    (0.1, "double", "0.1"),
    (float("inf"), "double", "inf"),
    (Decimal32.from_decimal(NUMBER), "decimal32", "-12.50"),
    (Decimal64.from_decimal(NUMBER), "decimal64", "-12.50"),
    (Decimal128.from_decimal(NUMBER), "decimal128", "-12.50"),
    (Char("ä"), "char", "ä"),
    (Timestamp(-(2**63)), "timestamp", "-9223372036854775808"),
    (UUID(int=7), "uuid", "00000000-0000-0000-0000-000000000007"),
    (b"\xff\x00", "binary", "/wA="),
    ("täxt", "string", "täxt"),
    (Symbol("sym"), "symbol", "sym"),
    ([1, "two", None], "list", '[1,"two",null]'),
    ({"one": 1}, "map", '{"one":1}'),
]
ONE_WAY: list[tuple[Any, str, str]] = [
    (Array(Primitive.INT, [Int(1), Int(2)]), "array", "[1,2]"),
    (Described(Symbol("x:price"), 7), "described", '{"descriptor":"x:price","value":7}'),
]


def test_every_type_of_the_standard_has_a_name_and_a_text() -> None:
    assert {name for _, name, _ in (*EACH, *ONE_WAY)} == set(TYPES)
    assert len(TYPES) == len(Primitive) + 1  # and described


@pytest.mark.parametrize(("value", "name", "text"), EACH, ids=lambda each: str(each)[:20])
def test_a_value_is_its_type_and_a_text_which_say_all_of_it(value: Any, name: str, text: str | None) -> None:
    assert to_text(value) == (name, text)
    back = from_text(name, text)
    assert type(back) is type(value)
    assert back == value


@pytest.mark.parametrize(("value", "name", "text"), ONE_WAY)
def test_arrays_and_described_values_are_read_and_not_written(value: Any, name: str, text: str) -> None:
    assert to_text(value) == (name, text)
    with pytest.raises(MisfitError, match=f"'{name}' is no type that is written here"):
        from_text(name, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("colour", "red"),
        ("ubyte", "256"),
        ("ubyte", "seven"),
        ("boolean", "yes"),
        ("uuid", "7"),
        ("binary", "?"),
        ("char", "ab"),
        ("symbol", "ä"),
        ("long", str(2**63)),
        ("decimal32", "0.123456789"),
        ("decimal32", "many"),
        ("list", "{}"),
        ("list", "["),
        ("string", None),
    ],
)
def test_a_text_that_is_none_of_its_type_is_refused(name: str, text: str | None) -> None:
    with pytest.raises(MisfitError):
        from_text(name, text)


def test_json_has_everything_of_a_value_but_types_that_it_has_not() -> None:
    value = {"n": UInt(7), Symbol("s"): [Timestamp(5), b"\x00", UUID(int=1)], "f": [0.5, float("nan"), float("-inf")]}
    assert to_json(value) == (
        '{"n":7,"s":[5,"AA==","00000000-0000-0000-0000-000000000001"],"f":[0.5,"NaN","-Infinity"]}'
    )


def test_keys_that_would_be_one_in_json_are_refused() -> None:
    with pytest.raises(MisfitError, match="not distinct"):
        to_json({"1": "a", 1: "b"})
