"""Which call a reply belongs to that cannot be read as a whole: its properties may be legible all the same (§3.2.4)."""

from __future__ import annotations

from typing import Any, Final

from amqpmesh.router.amqp.codec.composite import declaration
from amqpmesh.router.amqp.codec.value_limits import MAX_VALUES, refuse_values
from amqpmesh.router.amqp.errors import ProtocolError
from amqpmesh.router.amqp.standard.messaging import DeliveryAnnotations, Header, MessageAnnotations, Properties
from amqpmesh.router.amqp.standard.sections import decode_sections
from amqpmesh.router.kernel import Incomplete, Violation, descriptor_code, skip

_PROPERTIES: Final = declaration(Properties).code

_BEFORE: Final = frozenset(declaration(kind).code for kind in (Header, DeliveryAnnotations, MessageAnnotations))
"""Sections that may come before the properties: gone over, whatever is in them."""


def correlation_of(payload: bytes) -> Any:
    """The correlation-id in a payload, maybe of a message that is none; None: there is none that could be read."""
    at, size = 0, len(payload)
    try:
        while at < size:
            code, begin = descriptor_code(payload, at, size)
            end = skip(payload, begin, size)
            if code == _PROPERTIES:
                refuse_values(payload[at:end], MAX_VALUES)
                (properties,) = decode_sections(payload[at:end])
                return properties.correlation_id if isinstance(properties, Properties) else None
            if code not in _BEFORE:
                break
            at = end
    except (Incomplete, Violation, ProtocolError):
        pass
    return None
