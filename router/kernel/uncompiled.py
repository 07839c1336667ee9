"""Stand-ins in the uncompiled kernel: Cython's class decorators, without effect, and functions written in C.

The functions in C stand in types.pxd.
"""

from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

compiled: Final = False


def cclass(each: type[T]) -> type[T]:
    """Make a class a struct of C."""
    return each


def final(each: type[T]) -> type[T]:
    """Forbid subclasses."""
    return each


def no_gc(each: type[T]) -> type[T]:
    """Keep instances out of garbage collection."""
    return each


def freelist(size: int) -> Callable[[type[T]], type[T]]:
    """Keep the memory of up to `size` freed instances for new ones."""
    return lambda each: each


def grow(out: bytearray, octets: int) -> int:
    """Make `out` longer. The caller writes all of the new octets. Returns: the index of the first of them."""
    at = len(out)
    out += bytes(octets)
    return at


def copy(out: bytearray, at: int, data: bytes, begin: int, end: int) -> None:
    """Write `data[begin:end]` into `out` at an index. Args: begin, end: within `data`, and room in `out` for it."""
    out[at : at + end - begin] = data[begin:end]


def set_field(value: object, name: str, item: object) -> None:
    """Set an attribute past the `__setattr__` of its class."""
    object.__setattr__(value, name, item)
