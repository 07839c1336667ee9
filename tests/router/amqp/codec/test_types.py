"""Values that carry their AMQP type (§1.6): ranges, rounding, and equality."""

import pytest

from amqpmesh.router.amqp.codec import types
from amqpmesh.router.amqp.codec.types import Array, Char, Float, Primitive, Symbol, Timestamp, UInt, ULong

BITS = {
    types.UByte: (0, 8),
    types.UShort: (0, 16),
    types.UInt: (0, 32),
    types.ULong: (0, 64),
    types.Byte: (1, 8),
    types.Short: (1, 16),
    types.Int: (1, 32),
    types.Long: (1, 64),
    types.Timestamp: (1, 64),
}


@pytest.mark.parametrize("cls", BITS)
def test_an_integer_has_the_range_of_its_width(cls: type[types.UInt]) -> None:
    signed, width = BITS[cls]
    least, most = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)
    assert (cls(least), cls(most)) == (least, most)
    for outside in (least - 1, most + 1):
        with pytest.raises(ValueError, match=cls.__name__):
            cls(outside)


def test_a_float_is_rounded_to_what_binary32_can_hold() -> None:
    assert Float(0.1) == 0.10000000149011612
    assert Float(float("-inf")) == float("-inf")
    with pytest.raises(ValueError, match="range"):
        Float(1e39)


@pytest.mark.parametrize("text", ["", "ab", chr(0xD800), chr(0xDFFF)])
def test_a_char_is_one_character_and_no_surrogate(text: str) -> None:
    with pytest.raises(ValueError, match="Unicode"):
        Char(text)


def test_a_symbol_is_ascii() -> None:
    assert Symbol("amqp:list\x7f") == "amqp:list\x7f"
    with pytest.raises(ValueError, match="ASCII"):
        Symbol("café")


def test_values_equal_what_a_program_writes_and_show_their_type() -> None:
    assert UInt(5) == ULong(5) == Timestamp(5) == 5
    assert Symbol("a") == "a"
    assert {Symbol("product"): 1}["product"] == 1
    assert repr([UInt(5), Symbol("a"), Char("b"), Float(1.5)]) == "[UInt(5), Symbol('a'), Char('b'), Float(1.5)]"
    assert f"{UInt(5)} {Symbol('a')} {Char('b')} {Float(1.5)} {UInt(5)!s}" == "5 a b 1.5 5"


def test_an_array_keeps_its_elements_in_a_tuple() -> None:
    assert Array(Primitive.UINT, [1, 2]) == Array(Primitive.UINT, (UInt(1), UInt(2)))
    assert Array(Primitive.UINT, []) != Array(Primitive.INT, [])
    assert hash(Array(Primitive.UINT, [1])) == hash(Array(Primitive.UINT, (1,)))
