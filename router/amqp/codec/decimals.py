"""IEEE 754-2008 decimals in the binary integer encoding, kept bit for bit (§1.6.13 to §1.6.15).

A decimal is its bits. Two encodings of one number, such as 1.0 and 1.00, are different values. A value from the wire is
written with the same octets, even if it is not canonical.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, Self


@dataclass(frozen=True, slots=True)
class _BinaryIntegerDecimal:
    """A decimal of one of the three widths; each subclass has the parameters of IEEE 754-2008, table 3.6."""

    bits: int

    WIDTH: ClassVar[int]
    DIGITS: ClassVar[int]
    EXPONENT_WIDTH: ClassVar[int]
    BIAS: ClassVar[int]

    def __post_init__(self) -> None:
        if not 0 <= self.bits < 1 << self.WIDTH:
            raise ValueError(f"{type(self).__name__} has {self.WIDTH} bits")

    @classmethod
    def from_decimal(cls, number: Decimal) -> Self:
        """Encode a number, without rounding.

        Raises: ValueError: the number has more digits, or a larger or smaller exponent, than the width can hold.
        """
        sign, digits, exponent = number.as_tuple()
        coefficient = int("".join(map(str, digits)) or "0")
        top = sign << (cls.WIDTH - 1)
        if exponent == "F":
            return cls(top | 0b11110 << (cls.WIDTH - 6))
        if not isinstance(exponent, int):
            if coefficient >= 10 ** (cls.DIGITS - 1):
                raise ValueError(f"{number} has a longer payload than {cls.__name__} can hold")
            signalling = exponent == "N"
            return cls(top | 0b11111 << (cls.WIDTH - 6) | signalling << (cls.WIDTH - 7) | coefficient)
        coefficient, biased = cls._fit(number, coefficient, exponent + cls.BIAS)
        plain_width = cls.WIDTH - 1 - cls.EXPONENT_WIDTH
        if coefficient < 1 << plain_width:
            return cls(top | biased << plain_width | coefficient)
        # The coefficient begins with binary 100. The three bits are implied by 11 in front of the exponent.
        short_width = plain_width - 2
        low = coefficient & ((1 << short_width) - 1)
        return cls(top | 0b11 << (cls.WIDTH - 3) | biased << short_width | low)

    @classmethod
    def _fit(cls, number: Decimal, coefficient: int, biased: int) -> tuple[int, int]:
        """Shift zeros between coefficient and exponent until both are in range."""
        largest = cls._largest_exponent()
        if coefficient == 0:
            return 0, min(max(biased, 0), largest)
        while (coefficient >= 10**cls.DIGITS or biased < 0) and coefficient % 10 == 0:
            coefficient, biased = coefficient // 10, biased + 1
        if largest < biased <= largest + cls.DIGITS:
            coefficient, biased = coefficient * 10 ** (biased - largest), largest
        if coefficient >= 10**cls.DIGITS or not 0 <= biased <= largest:
            raise ValueError(f"{number} does not fit {cls.__name__} exactly")
        return coefficient, biased

    @classmethod
    def _largest_exponent(cls) -> int:
        """Return the largest biased exponent: its two highest bits are never both set."""
        return 3 * (1 << (cls.EXPONENT_WIDTH - 2)) - 1

    def to_decimal(self) -> Decimal:
        """Return the exact number; a coefficient that is not canonical is zero (IEEE 754-2008, 3.5.2)."""
        sign = self.bits >> (self.WIDTH - 1)
        combination = self.bits >> (self.WIDTH - 6) & 0b11111
        if combination == 0b11110:
            return Decimal("-Infinity" if sign else "Infinity")
        if combination == 0b11111:
            signalling = self.bits >> (self.WIDTH - 7) & 1
            payload = self.bits & ((1 << (self.WIDTH - 7)) - 1)
            canonical = payload if payload < 10 ** (self.DIGITS - 1) else 0
            return Decimal(f"{'-' * sign}{'s' * signalling}NaN{canonical or ''}")
        plain_width = self.WIDTH - 1 - self.EXPONENT_WIDTH
        if combination >> 3 == 0b11:
            short_width = plain_width - 2
            coefficient = 0b100 << short_width | self.bits & ((1 << short_width) - 1)
            exponent = self.bits >> short_width
        else:
            coefficient = self.bits & ((1 << plain_width) - 1)
            exponent = self.bits >> plain_width
        exponent &= (1 << self.EXPONENT_WIDTH) - 1
        digits = tuple(map(int, str(coefficient))) if coefficient < 10**self.DIGITS else (0,)
        return Decimal((sign, digits, exponent - self.BIAS))

    def __str__(self) -> str:
        return str(self.to_decimal())


class Decimal32(_BinaryIntegerDecimal):
    """A 32-bit decimal number, 7 digits (§1.6.13)."""

    __slots__ = ()
    WIDTH, DIGITS, EXPONENT_WIDTH, BIAS = 32, 7, 8, 101


class Decimal64(_BinaryIntegerDecimal):
    """A 64-bit decimal number, 16 digits (§1.6.14)."""

    __slots__ = ()
    WIDTH, DIGITS, EXPONENT_WIDTH, BIAS = 64, 16, 10, 398


class Decimal128(_BinaryIntegerDecimal):
    """A 128-bit decimal number, 34 digits (§1.6.15)."""

    __slots__ = ()
    WIDTH, DIGITS, EXPONENT_WIDTH, BIAS = 128, 34, 14, 6176
