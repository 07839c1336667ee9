"""Messages as text: a body for printing, or a whole message as JSON.

JSON has fewer types than AMQP: numbers of all widths are numbers, symbols and UUIDs strings, timestamps milliseconds
since 1970. Binary is a string if it is UTF-8, else `{"base64": "..."}`; a described value is
`{"descriptor": ..., "value": ...}`; a number that JSON lacks is a string such as "nan". Keys that are not strings
become their JSON as a string; a map with two equal keys after that becomes a list of pairs.
"""

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final
from uuid import UUID

from amqpmesh.router.amqp.codec.decimals import Decimal32, Decimal64, Decimal128
from amqpmesh.router.amqp.codec.types import Array, Described
from amqpmesh.router.amqp.standard.messaging import MESSAGE_FORMAT, AmqpSequence, AmqpValue, Data
from amqpmesh.router.client.delivery import Delivery
from amqpmesh.router.message.content import Message

_UNSET: Final = Message()


def from_octets(octets: bytes) -> str | bytes:
    """Return a body to send: text if it is UTF-8, else binary."""
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return octets


def to_octets(delivery: Delivery) -> bytes:
    """Return the body for printing: text and binary as they are, all else as JSON."""
    if delivery.message_format != MESSAGE_FORMAT:
        return delivery.payload
    value = _value(delivery.message.body)
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else dump(value)).encode()


def to_json(delivery: Delivery) -> bytes:
    """Return the message as one JSON object: its body, the type of its section, and all other fields that are set."""
    said: dict[str, Any] = {}
    if delivery.message_format != MESSAGE_FORMAT:
        said["message_format"] = delivery.message_format
        said["payload"] = delivery.payload
    else:
        message = delivery.message
        said["body"], said["section"] = _value(message.body), _section(message.body)
        for item in fields(message)[1:]:
            value = getattr(message, item.name)
            if value != getattr(_UNSET, item.name):
                said[item.name] = value
    if delivery.is_settled:
        said["settled"] = True
    return dump(said).encode()


def dump(value: object) -> str:
    """Return an AMQP value as JSON, in one line of ASCII: peers choose it, and must not control a terminal."""
    return json.dumps(_jsonable(value), allow_nan=False)


def _value(body: Any) -> Any:
    """Return a body without the sections around it."""
    if isinstance(body, tuple):
        parts = [part.value for part in body]
        return b"".join(parts) if isinstance(body[0], Data) else parts
    return body.value if isinstance(body, AmqpValue | AmqpSequence) else body


def _section(body: Any) -> str:
    first = body[0] if isinstance(body, tuple) else body
    if isinstance(first, AmqpSequence):
        return "amqp-sequence"
    return "data" if isinstance(first, bytes | Data) else "amqp-value"


def _jsonable(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, bytes):
        text = from_octets(value)
        return text if isinstance(text, str) else {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        pairs = [(_key(key), _jsonable(each)) for key, each in value.items()]
        named = dict(pairs)
        return named if len(named) == len(pairs) else pairs
    if isinstance(value, list):
        return [_jsonable(each) for each in value]
    if isinstance(value, Array):
        return [_jsonable(each) for each in value.values]
    if isinstance(value, Described):
        return {"descriptor": _jsonable(value.descriptor), "value": _jsonable(value.value)}
    assert isinstance(value, str | UUID | Decimal32 | Decimal64 | Decimal128)
    return str(value)


def _key(key: Any) -> str:
    plain = _jsonable(key)
    return plain if isinstance(plain, str) else json.dumps(plain)
