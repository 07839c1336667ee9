"""Stand-ins for Cython's class decorators in the uncompiled kernel: they have no effect."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


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
