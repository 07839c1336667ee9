"""Decimals in the binary integer encoding, bit for bit (§1.6.13 to §1.6.15)."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec.types import Decimal32, Decimal64, Decimal128

WIDTHS = (Decimal32, Decimal64, Decimal128)

KNOWN = [
    (Decimal32, 0x32800001, "1"),
    (Decimal64, 0x31C0000000000001, "1"),
    (Decimal128, 0x30400000000000000000000000000001, "1"),
    (Decimal64, 0xB1800000000002EE, "-7.50"),
    (Decimal32, 0x77F8967F, "9.999999E+96"),
    (Decimal64, 0x77FB86F26FC0FFFF, "9.999999999999999E+384"),
    (Decimal128, 0x5FFFED09BEAD87C0378D8E63FFFFFFFF, "9.999999999999999999999999999999999E+6144"),
    (Decimal32, 0x00000001, "1E-101"),
    (Decimal32, 0x80000000, "-0E-101"),
    (Decimal32, 0x78000000, "Infinity"),
    (Decimal64, 0xF800000000000000, "-Infinity"),
    (Decimal32, 0x7C000000, "NaN"),
    (Decimal32, 0x7E00007B, "sNaN123"),
    (Decimal64, 0xFC00000000000007, "-NaN7"),
]


def same_number(one: Decimal, other: Decimal) -> bool:
    """Return whether two numbers have the same digits, exponent and sign: 1.0 is not 1.00 here."""
    return str(one) == str(other)


@pytest.mark.parametrize(("cls", "bits", "text"), KNOWN)
def test_known_encodings_are_read_and_written(cls: type[Decimal32], bits: int, text: str) -> None:
    assert same_number(cls(bits).to_decimal(), Decimal(text))
    assert cls.from_decimal(Decimal(text)) == cls(bits)
    assert str(cls(bits)) == text


@pytest.mark.parametrize("cls", WIDTHS)
@given(data=st.data())
def test_a_number_that_fits_is_the_same_after_a_round_trip(cls: type[Decimal32], data: st.DataObject) -> None:
    sign = data.draw(st.integers(0, 1))
    coefficient = data.draw(st.integers(0, 10**cls.DIGITS - 1))
    exponent = data.draw(st.integers(-cls.BIAS, 3 * 2 ** (cls.EXPONENT_WIDTH - 2) - 1 - cls.BIAS))
    number = Decimal((sign, tuple(map(int, str(coefficient))), exponent))
    assert same_number(cls.from_decimal(number).to_decimal(), number)


@pytest.mark.parametrize("cls", WIDTHS)
@given(data=st.data())
def test_any_bits_are_some_number_whose_encoding_is_canonical(cls: type[Decimal32], data: st.DataObject) -> None:
    value = cls(data.draw(st.integers(0, 2**cls.WIDTH - 1)))
    number = value.to_decimal()
    canonical = cls.from_decimal(number)
    assert same_number(canonical.to_decimal(), number)
    assert cls.from_decimal(canonical.to_decimal()) == canonical


def test_a_coefficient_that_is_not_canonical_is_zero() -> None:
    assert Decimal32(0x6CB89680).to_decimal() == 0  # 10**7 has more than seven digits
    assert Decimal128(0x60000000000000000000000000000001).to_decimal() == 0
    assert Decimal32(0x7C0FFFFF).to_decimal().is_qnan()  # a payload with too many digits for a NaN


def test_zeros_move_between_digits_and_exponent_where_the_number_would_not_fit() -> None:
    assert Decimal32.from_decimal(Decimal("1E+96")).to_decimal() == Decimal("1E+96")
    assert Decimal32.from_decimal(Decimal("12345670000")).to_decimal() == Decimal(12345670000)
    assert Decimal32.from_decimal(Decimal("100E-103")).to_decimal() == Decimal("1E-101")
    assert Decimal32.from_decimal(Decimal("0E+500")).to_decimal() == 0


@pytest.mark.parametrize("text", ["12345678", "1E+97", "1E-102", "1E+100000", "NaN1000000"])
def test_a_number_that_would_be_rounded_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Decimal32"):
        Decimal32.from_decimal(Decimal(text))


def test_bits_beyond_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match="32 bits"):
        Decimal32(2**32)
