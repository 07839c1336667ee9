"""Values compared with their AMQP types: in Python `UInt(1) == 1`."""

from __future__ import annotations

from typing import Any

from amqpmesh import Array, Described


def typed(value: Any) -> Any:
    """Return the value with each type beside it, so that `==` sees both."""
    kind = type(value).__name__
    match value:
        case dict():
            return kind, {typed(key): typed(item) for key, item in value.items()}
        case list() | tuple():
            return kind, [typed(item) for item in value]
        case Described():
            return kind, typed(value.descriptor), typed(value.value)
        case Array():
            return kind, value.element, [typed(item) for item in value.values], value.descriptors
    return kind, value
