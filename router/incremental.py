"""Work in steps, so that whoever has it done may do other things in between."""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""A piece of work: a step is done each time it is asked for the next; what it returns at last is the result."""


def at_once(steps: Steps[T]) -> T:
    """The result, with nothing in between."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
