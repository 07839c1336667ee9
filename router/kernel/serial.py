"""Serial numbers of 32 bits, which wrap (RFC 1982).

The standard calls them sequence numbers. Only `serial_add` and `serial_distance` know how they wrap.
"""

from __future__ import annotations

from typing import Final

_MASK: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000

#: More than any count will reach.
MANY: Final = 0x7FFFFFFF


def serial_add(value: int, increment: int) -> int:
    """Return the serial number `increment` after `value`; a negative increment goes back (RFC 1982, 3.1)."""
    return (value + increment) & _MASK


def serial_distance(start: int, end: int) -> int:
    """Return the distance from `start` to `end`: -2**31 .. 2**31-1 (RFC 1982, 3.2; half a turn is negative)."""
    return ((end - start + _HALF) & _MASK) - _HALF
