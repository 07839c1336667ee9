"""Messages made from rows: from all writable columns of `columns.py`, or some of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgpack
from pyspark.sql.types import MapType, StringType, StructType

from amqpmesh.pipeline.connector.columns import BY_NAME, spark_schema
from amqpmesh.pipeline.connector.options import BodyFormat
from amqpmesh.pipeline.connector.values import MisfitError, from_text
from amqpmesh.router.amqp.codec.types import Symbol, Timestamp, ULong
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.standard.messaging import MESSAGE_FORMAT
from amqpmesh.router.message.content import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from pyspark.sql.types import DataType

ANNOTATIONS: Final = ("delivery_annotations", "message_annotations", "footer")


def check_columns(schema: StructType, body: BodyFormat) -> None:
    """Check that rows of a schema can be written. Raises: CommandError: a column cannot."""
    full = spark_schema(body)
    for field in schema:
        if field.name not in BY_NAME:
            raise CommandError(f"column {field.name}: there is none; there are {', '.join(BY_NAME)}")
        if not BY_NAME[field.name].written:
            continue
        wanted = full[field.name].dataType
        if not _can_be_written_as(field.dataType, wanted):
            told = f"column {field.name}: is {wanted.simpleString()}, not {field.dataType.simpleString()}"
            raise CommandError(f"{told}, with body={body.value}" if field.name == "body" else told)
    if not {"body", "payload"} & set(schema.names):
        raise CommandError("there is neither a column body nor a column payload")


def _can_be_written_as(given: DataType, wanted: DataType) -> bool:
    """Return whether values of a given type can be written as the wanted type.

    They can if both types are equal, if both are structs and the wanted one has all fields of the given one, or if a
    string is given for a value (a type and a text).
    """
    if _is_value(wanted) and isinstance(given, StringType):
        return True
    if isinstance(wanted, StructType) and isinstance(given, StructType):
        fields = {field.name: field.dataType for field in wanted}
        return all(field.name in fields and _can_be_written_as(field.dataType, fields[field.name]) for field in given)
    if isinstance(wanted, MapType) and isinstance(given, MapType):
        return given.keyType == wanted.keyType and _can_be_written_as(given.valueType, wanted.valueType)
    return type(given) is type(wanted)


def _is_value(kind: DataType) -> bool:
    return isinstance(kind, StructType) and kind.names == ["type", "value"]


@dataclass(frozen=True, slots=True)
class Writing:
    """The settings for writing rows. `key`: the application property for the key of each row; empty: none."""

    body: BodyFormat
    key: str = ""


def payload(row: Mapping[str, Any], writing: Writing, key: str) -> bytes:
    """Return the encoded message of a row. If the row names no message-id, it is the key.

    Args: row: by column, as Arrow gives it to Python, maps as lists of pairs. key: of the row.
    Raises: MisfitError: a column cannot be written; with the reason.
    """
    if row.get("message_format") not in (None, MESSAGE_FORMAT):
        raise MisfitError(f"message_format: {row['message_format']} is not written here")
    octets: bytes | None = row.get("payload")
    if octets is not None:
        return octets
    message = Message(_BODIES[writing.body](row.get("body")))
    for name in ("header", "properties"):
        for field, value in (row.get(name) or {}).items():
            if value is not None:
                setattr(message, field, _convert_field(f"{name}.{field}", _FIELDS.get(field, _unchanged), value))
    for name in ANNOTATIONS:
        setattr(message, name, _convert_field(name, _annotations, row.get(name) or ()))
    message.application_properties = _convert_field(
        "application_properties", _map, row.get("application_properties") or ()
    )
    if message.message_id is None:
        message.message_id = key
    if writing.key:
        message.application_properties[writing.key] = key
    try:
        return message.encode()
    except CommandError as error:
        raise MisfitError(str(error)) from None


def _convert_field(name: str, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except (MisfitError, ValueError) as error:
        raise MisfitError(f"{name}: {error}") from None


def _unchanged(value: Any) -> Any:
    return value


def _value(given: Any) -> Any:
    """Return the value of a type and a text; a plain string is a string."""
    return given if given is None or isinstance(given, str) else from_text(given.get("type") or "null", given["value"])


def _map(pairs: Any) -> dict[str, Any]:
    return {key: _value(each) for key, each in pairs}


def _annotations(pairs: Any) -> dict[Any, Any]:
    return {
        ULong(int(key.removeprefix("ulong:"))) if key.startswith("ulong:") else Symbol(key): _value(each)
        for key, each in pairs
    }


def _time(value: datetime) -> Timestamp:
    return Timestamp(round(value.timestamp() * 1000))


def _id(given: Any) -> Any:
    value = _value(given)
    return int(value) if isinstance(value, ULong) else value


_FIELDS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "ttl": lambda value: value / 1000,
    "message_id": _id,
    "correlation_id": _id,
    "absolute_expiry_time": _time,
    "creation_time": _time,
}
"""Conversions of fields that a message has in another form than a row."""


def _json(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MisfitError(f"body: no JSON: {error}") from None
    return text.encode()


def _msgpack(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        packed: bytes = msgpack.packb(json.loads(text))
    except (ValueError, OverflowError, RecursionError) as error:
        raise MisfitError(f"body: no JSON that msgpack could hold: {error}") from None
    return packed


_BODIES: Final[Mapping[BodyFormat, Callable[[Any], Any]]] = {
    BodyFormat.BINARY: _unchanged,
    BodyFormat.STRING: _unchanged,
    BodyFormat.JSON: _json,
    BodyFormat.MSGPACK: _msgpack,
}
"""Conversions of the column `body`; null is a body of null."""
