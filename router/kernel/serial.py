"""Serial numbers of 32 bit that wrap (RFC 1982).

The standard calls them sequence numbers. Only `serial_add` and `serial_distance` know how they wrap.
"""

from __future__ import annotations

from typing import Final

_MASK: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000

#: More than there will be of anything that is counted.
MANY: Final = 0x7FFFFFFF


def serial_add(value: int, increment: int) -> int:
    """The serial number `increment` after (or, negative, before) `value` (RFC 1982, 3.1)."""
    return (value + increment) & _MASK


def serial_distance(start: int, end: int) -> int:
    """Return how far `end` lies after `start`: -2**31 .. 2**31-1 (RFC 1982, 3.2; half way round counts as before)."""
    return ((end - start + _HALF) & _MASK) - _HALF
