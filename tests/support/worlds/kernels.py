"""Both kernels side by side, whichever of them is in use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, ModuleType
from typing import NamedTuple

import pytest

from amqpmesh.router.kernel import BOUND, binding


class Kernels(NamedTuple):
    """The kernel in plain Python, and compiled: two modules, each with classes of its own."""

    pure: ModuleType
    compiled: ModuleType


def both() -> Kernels:
    """Return both. Skip the test if there is no compiled kernel, or if it is of another source."""
    pure = ModuleType("pure_kernel", "The parts as the compiler sees them, in plain Python.")
    exec(_parts(), vars(pure))
    if BOUND.kernel == "compiled":
        return Kernels(pure, sys.modules[binding.COMPILED])
    compiled = binding.compiled_file()
    if compiled is None or not binding.is_of_source(compiled):
        pytest.skip("NOT TESTED, missing: a compiled kernel of this source (make .venv/kernel)")
    return Kernels(pure, binding.load(compiled, binding.COMPILED))


@cache
def _parts() -> CodeType:
    return compile(binding.put_together(), "<the kernel's parts>", "exec")


def agreed(kernels: Kernels, call: Callable[[ModuleType], object]) -> object:
    """Return the answer of both. Args: call: is given each kernel in turn; what it changes must be in what it returns.

    Raises: AssertionError: they answer differently.
    """
    pure, compiled = (_told(call, kernel) for kernel in kernels)
    assert compiled == pure
    return pure


def _told(call: Callable[[ModuleType], object], kernel: ModuleType) -> object:
    try:
        return comparable(call(kernel))
    except (kernel.Violation, kernel.Incomplete) as error:
        return "raised", type(error).__name__, str(error), comparable(vars(error))


def comparable(value: object, seen: dict[int, int] | None = None) -> object:
    """Return a value of either kernel in a form that both share: objects by class and attributes, and a second time
    by number; functions by name.
    """
    seen = {} if seen is None else seen
    if isinstance(value, bool | int | float | str | bytes | None):
        return int(value) if isinstance(value, bool) else value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if id(value) in seen:
        return "again", seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, dict):
        return [(comparable(key, seen), comparable(each, seen)) for key, each in value.items()]
    slots = getattr(value, "__slots__", None)
    if slots is not None:
        return type(value).__name__, [(name, comparable(getattr(value, name, None), seen)) for name in slots]
    if callable(value):
        return value.__name__
    assert hasattr(value, "__iter__"), value
    return [comparable(each, seen) for each in value]
