"""What Cython's decorators of classes mean where nothing is compiled, and Cython is not there: nothing."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def cclass(each: type[T]) -> type[T]:
    """It is a struct of C's."""
    return each


def final(each: type[T]) -> type[T]:
    """It has no subclasses."""
    return each


def no_gc(each: type[T]) -> type[T]:
    """It is not looked at for garbage."""
    return each


def freelist(size: int) -> Callable[[type[T]], type[T]]:
    """The memory of up to `size` that are gone is kept for the next ones."""
    return lambda each: each
