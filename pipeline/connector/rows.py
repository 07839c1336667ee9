"""Rows made from messages: only the requested columns are decoded.

Nothing that does not fit a column is lost: the column is null, `error` has the reason, and `payload` has all octets.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np
import pyarrow as pa

from amqpmesh.pipeline.connector.columns import HEADER, PROPERTIES, VALUES, arrow_schema
from amqpmesh.pipeline.connector.lists import EARLIEST, LATEST, Field, Kind, structs
from amqpmesh.pipeline.connector.options import BodyFormat, KeepPayload
from amqpmesh.pipeline.connector.sections import DATA, SEQUENCE, VALUE, Sections, find, section
from amqpmesh.pipeline.connector.values import MisfitError, to_json, to_text
from amqpmesh.router.amqp.codec.types import Symbol, ULong
from amqpmesh.router.amqp.codec.value_limits import MAX_VALUES, refuse_values
from amqpmesh.router.amqp.errors import ProtocolError
from amqpmesh.router.amqp.standard.messaging import (
    AmqpSequence,
    AmqpValue,
    ApplicationProperties,
    DeliveryAnnotations,
    Footer,
    Header,
    MessageAnnotations,
    Properties,
)
from amqpmesh.router.kernel import skip

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Shape:
    """The rows to make: the columns, in order, and the options that concern them."""

    names: tuple[str, ...]
    body: BodyFormat = BodyFormat.BINARY
    keep: KeepPayload = KeepPayload.ERRORS


class Conversion:
    """The conversion of received deliveries to rows."""

    def __init__(self, carried: pa.RecordBatch, epoch: str, first: int) -> None:
        """Args: carried: as `offers.CARRIED`. epoch, first: the position of the first one in its stream."""
        self.carried = carried
        self.epoch = epoch
        self.first = first
        self.payloads: pa.BinaryArray = carried.column(0)
        self.sections: Sections = find(self.payloads, carried.column(2).to_numpy())
        #: The first reason why a part of each message cannot be decoded.
        self.errors = {row: f"message: {why}" for row, why in self.sections.errors.items()}
        self._octets: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self.payloads)

    @property
    def octets(self) -> list[bytes]:
        """The payloads as Python bytes."""
        if self._octets is None:
            self._octets = self.payloads.to_pylist()
        return self._octets

    def tried(self, row: int, name: str, read: Callable[..., Any], *arguments: Any) -> Any:
        """Return a part of a message, or None if it cannot be decoded."""
        try:
            return read(*arguments)
        except ProtocolError as error:
            self.errors.setdefault(row, f"{name}: {error.description}")
        except (MisfitError, RecursionError) as error:
            self.errors.setdefault(row, f"{name}: {error}")
        return None


def batch(carried: pa.RecordBatch, shape: Shape, *, epoch: str, first: int) -> pa.RecordBatch:
    """Return the rows of deliveries, in their order; no content raises an error.

    Args: carried, epoch, first: as of `Conversion`.
    """
    conversion = Conversion(carried, epoch, first)
    made: dict[str, pa.Array] = {}
    for name in sorted(shape.names, key=_LAST.__contains__):
        made[name] = _MAKERS[name](conversion, shape)
    return pa.RecordBatch.from_arrays(
        [made[name] for name in shape.names], schema=arrow_schema(shape.body, list(shape.names))
    )


# --------------------------------------------------------------------------------------------------------------- bodies


def _body_octets(conversion: Conversion, row: int) -> bytes:
    """Return the content of one or several data sections."""
    payload = conversion.octets[row]
    parts = []
    for _, at in conversion.sections.bodies(row):
        if payload[at] not in (0xA0, 0xB0):
            raise MisfitError("a data section is no binary")
        parts.append(payload[at + _head(payload[at]) : skip(payload, at, len(payload))])
    return b"".join(parts)


def _head(code: int) -> int:
    """Return the number of octets of a binary before its content."""
    return 2 if code == 0xA0 else 5


def _value(conversion: Conversion, row: int) -> Any:
    """Return the value of an amqp-value, or the elements of one or several amqp-sequences."""
    payload = conversion.octets[row]
    refuse_values(payload, MAX_VALUES)
    bodies = conversion.sections.bodies(row)
    if conversion.sections.kinds[row] == VALUE:
        return section(AmqpValue, payload, bodies[0][0]).value
    return [each for at, _ in bodies for each in section(AmqpSequence, payload, at).value]


def _content(conversion: Conversion, row: int) -> Any:
    """Return the octets of data sections, or the value of any other body."""
    return _body_octets(conversion, row) if conversion.sections.kinds[row] == DATA else _value(conversion, row)


def _text(octets: bytes) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError as error:
        raise MisfitError(f"not UTF-8: {error}") from None


def _binary(conversion: Conversion, row: int) -> bytes | None:
    value = _content(conversion, row)
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return str.encode(value)
    raise MisfitError(f"{_describe_value(conversion, row, value)} is no octets")


def _string(conversion: Conversion, row: int) -> str | None:
    if conversion.sections.kinds[row] == DATA:
        return _text(_body_octets(conversion, row))
    value = _value(conversion, row)
    if value is None or isinstance(value, str):
        return None if value is None else str.__str__(value)
    raise MisfitError(f"{_describe_value(conversion, row, value)} is no text")


def _json(conversion: Conversion, row: int) -> str:
    value = _content(conversion, row)
    if type(value) not in (str, Symbol, bytes):
        return to_json(value)
    # Senders put JSON in text and in octets. Text that is not JSON is an error in both: converted to a JSON string, it
    # could not be told from JSON text.
    text = _text(value) if isinstance(value, bytes) else str.__str__(value)
    try:
        json.loads(text, parse_int=str)  # JSON numbers have any length
    except (ValueError, RecursionError) as error:
        raise MisfitError(f"no JSON: {error}") from None
    return text


def _msgpack(conversion: Conversion, row: int) -> str:
    octets = _content(conversion, row)
    if not isinstance(octets, bytes):
        raise MisfitError(f"{_describe_value(conversion, row, octets)} is no msgpack, which stands in octets")
    try:
        value = msgpack.unpackb(octets, strict_map_key=False)
    except Exception as error:  # msgpack raises a dozen kinds of errors
        raise MisfitError(f"no msgpack: {str(error) or type(error).__name__}") from None
    return to_json(value)


def _describe_value(conversion: Conversion, row: int, value: Any) -> str:
    if conversion.sections.kinds[row] == SEQUENCE:
        return "an amqp-sequence"
    return f"an amqp-value of type {to_text(value)[0]}"


_FORMATS: Final[Mapping[BodyFormat, Callable[[Conversion, int], Any]]] = {
    BodyFormat.BINARY: _binary,
    BodyFormat.STRING: _string,
    BodyFormat.JSON: _json,
    BodyFormat.MSGPACK: _msgpack,
}


def _bodies(conversion: Conversion, shape: Shape) -> pa.Array:
    if (
        shape.body in (BodyFormat.BINARY, BodyFormat.STRING)
        and (contents := conversion.sections.contents()) is not None
    ):
        if shape.body is BodyFormat.BINARY:
            return contents
        with suppress(pa.ArrowInvalid):  # not all are UTF-8
            return contents.cast(pa.string())
    read, kinds = _FORMATS[shape.body], conversion.sections.kinds.tolist()
    values = [conversion.tried(row, "body", read, conversion, row) if kind else None for row, kind in enumerate(kinds)]
    return pa.array(values, pa.binary() if shape.body is BodyFormat.BINARY else pa.string())


def _body_types(conversion: Conversion, shape: Shape) -> pa.Array:
    kinds = conversion.sections.kinds
    if len(conversion) and (kinds == DATA).all():
        return pa.array(repeat("data", len(conversion)), pa.string())
    return pa.array([_body_type(conversion, row, kind) for row, kind in enumerate(kinds.tolist())], pa.string())


def _body_type(conversion: Conversion, row: int, kind: int) -> str | None:
    if kind == VALUE:
        value = conversion.tried(row, "body", lambda: to_text(_value(conversion, row))[0])
        return None if value is None else str(value)
    return {DATA: "data", SEQUENCE: "amqp-sequence"}.get(kind)


# ------------------------------------------------------------------------------------------------------- other sections


def _decoded(
    conversion: Conversion, kind: type[Any], name: str, rows: Sequence[int], offsets: Sequence[int]
) -> dict[int, Any]:
    """Return a decoded section of these messages, by row."""

    def read(payload: bytes, at: int) -> Any:
        refuse_values(payload, MAX_VALUES)
        return section(kind, payload, at)

    places = zip(rows, offsets, strict=True)
    decoded = {row: conversion.tried(row, name, read, conversion.octets[row], at) for row, at in places}
    return {row: each for row, each in decoded.items() if each is not None}


def _headers(conversion: Conversion, shape: Shape) -> pa.Array:
    return _lists(
        conversion,
        0x70,
        _HEADER_FIELDS,
        HEADER,
        lambda rows, offsets: _structs(rows, HEADER, _decoded(conversion, Header, "header", rows, offsets), {}),
    )


def _properties(conversion: Conversion, shape: Shape) -> pa.Array:
    def decode(rows: list[int], offsets: list[int]) -> pa.StructArray:
        decoded = _decoded(conversion, Properties, "properties", rows, offsets)
        for row, properties in decoded.items():
            for name in ("absolute_expiry_time", "creation_time"):
                time = getattr(properties, name)
                if time is not None and not EARLIEST <= time <= LATEST:
                    why = f"{int(time)} ms since 1970 is not in the years 1 to 9999"
                    conversion.errors.setdefault(row, f"properties.{name}: {why}")
        return _structs(rows, PROPERTIES, decoded, _PROPERTY)

    return _lists(conversion, 0x73, _PROPERTIES_FIELDS, PROPERTIES, decode)


_HEADER_FIELDS: Final = (
    Field(Kind.BOOLEAN), Field(Kind.UBYTE, 4), Field(Kind.UINT), Field(Kind.BOOLEAN), Field(Kind.UINT, 0),
)  # fmt: skip
_PROPERTIES_FIELDS: Final = (
    Field(Kind.ID), Field(Kind.BINARY), Field(Kind.STRING), Field(Kind.STRING), Field(Kind.STRING), Field(Kind.ID),
    Field(Kind.SYMBOL), Field(Kind.SYMBOL), Field(Kind.TIME), Field(Kind.TIME), Field(Kind.STRING), Field(Kind.UINT),
    Field(Kind.STRING),
)  # fmt: skip
"""The fields of a header (§3.2.1) and of properties (§3.2.4), in order."""


def _lists(
    conversion: Conversion,
    code: int,
    fields: Sequence[Field],
    kind: pa.StructType,
    decode: Callable[[list[int], list[int]], pa.StructArray],
) -> pa.Array:
    """Return a struct column of a section that is a list; it is null in rows whose message lacks the section.

    Args: decode: returns the structs of rows whose sections, at those offsets, cannot be read together.
    """
    sections, count = conversion.sections, len(conversion)
    rows, offsets = sections.heads.get(code, (_NONE, _NONE))
    if not rows.size:
        return pa.nulls(count, kind)
    together = sections.lengths[rows] <= MAX_VALUES  # so that there cannot be more values
    made: list[pa.Array] = []
    places = np.zeros(count, np.int64)
    absent = np.ones(count, bool)
    absent[rows] = False
    found = structs(sections.octets, (sections.starts[rows] + offsets)[together], fields, kind)
    if found is None:
        together[:] = False
    else:
        together[together] = found[0]
        made.append(found[1])
        places[rows[together]] = np.arange(len(found[1]))
    alone = rows[~together]
    if alone.size:
        places[alone] = np.arange(len(alone)) + len(made[0] if made else ())
        made.append(decode(alone.tolist(), offsets[~together].tolist()))
    whole = made[0] if len(made) == 1 else pa.concat_arrays(made)
    return whole if len(rows) == count and not alone.size else whole.take(pa.array(places, mask=absent))


_NONE: Final = np.zeros(0, np.int64)


def _time(value: int) -> int | None:
    return value * 1000 if EARLIEST <= value <= LATEST else None


def _id(value: Any) -> tuple[str, str | None]:
    return to_text(ULong(value) if type(value) is int else value)  # of these fields an int is a ulong (§3.2.11)


_PROPERTY: Final[Mapping[str, Callable[[Any], Any]]] = {
    "message_id": _id,
    "correlation_id": _id,
    "absolute_expiry_time": _time,
    "creation_time": _time,
}
"""Conversions of fields that Spark has in another form."""


def _structs(
    rows: Sequence[int], kind: pa.StructType, decoded: Mapping[int, Any], forms: Mapping[str, Callable[[Any], Any]]
) -> pa.StructArray:
    """Return the structs of rows, null for those that could not be decoded."""
    each = [decoded.get(row) for row in rows]
    columns = []
    for item in kind:
        form = forms.get(item.name)
        values: list[Any] = [None if one is None else getattr(one, item.name) for one in each]
        if form is not None:
            values = [None if value is None else form(value) for value in values]
        columns.append(_pairs(values) if pa.types.is_struct(item.type) else pa.array(values, item.type))
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=pa.array([one is None for one in each]))


def _pairs(values: list[Any]) -> pa.Array:
    """Return a column of AMQP values, each a type and a text, or None."""
    names = pa.array([None if value is None else value[0] for value in values], pa.string())
    texts = pa.array([None if value is None else value[1] for value in values], pa.string())
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays([names, texts], fields=list(VALUES.item_type), mask=mask)


def _maps(kind: type[Any], code: int, name: str) -> Callable[[Conversion, Shape], pa.Array]:
    def make(conversion: Conversion, shape: Shape) -> pa.Array:
        rows, offsets = conversion.sections.heads.get(code, (_NONE, _NONE))
        decoded = _decoded(conversion, kind, name, rows.tolist(), offsets.tolist())
        tried = {row: conversion.tried(row, name, _entries, each.value) for row, each in decoded.items()}
        maps = {row: entries for row, entries in tried.items() if entries is not None}
        if not maps:
            return pa.nulls(len(conversion), VALUES)
        starts: list[int | None] = []
        keys: list[str] = []
        values: list[tuple[str, str | None]] = []
        for row in range(len(conversion)):
            entries = maps.get(row)
            starts.append(None if entries is None else len(keys))
            if entries:
                keys.extend(entries)
                values.extend(entries.values())
        starts.append(len(keys))
        offsets = pa.array(starts, pa.int32())
        return pa.MapArray.from_arrays(offsets, pa.array(keys, pa.string()), _pairs(values), VALUES)

    return make


def _entries(value: Mapping[Any, Any]) -> dict[str, tuple[str, str | None]]:
    """Return the entries of a map. Raises: MisfitError: two keys are equal in Spark: a symbol, and the text of
    a ulong.
    """
    entries = {
        str.__str__(key) if isinstance(key, str) else f"ulong:{key}": to_text(each) for key, each in value.items()
    }
    if len(entries) != len(value):
        raise MisfitError("two keys are the same as text")
    return entries


# ----------------------------------------------------------------------------------------------------- all the columns


def _sparse(count: int, values: Mapping[int, Any], kind: pa.DataType) -> pa.Array:
    """Return a column that is null almost everywhere."""
    if not values:
        return pa.nulls(count, kind)
    return pa.array([values.get(row) for row in range(count)], kind)


def _payloads(conversion: Conversion, shape: Shape) -> pa.Array:
    if shape.keep is KeepPayload.ALWAYS:
        return conversion.payloads
    return _sparse(len(conversion), {row: conversion.octets[row] for row in conversion.errors}, pa.binary())


_LAST: Final = frozenset({"error", "payload"})
"""Columns made after all others: they depend on the errors of those."""

_MAKERS: Final[dict[str, Callable[[Conversion, Shape], pa.Array]]] = {
    "body": _bodies,
    "body_type": _body_types,
    "header": _headers,
    "delivery_annotations": _maps(DeliveryAnnotations, 0x71, "delivery_annotations"),
    "message_annotations": _maps(MessageAnnotations, 0x72, "message_annotations"),
    "properties": _properties,
    "application_properties": _maps(ApplicationProperties, 0x74, "application_properties"),
    "footer": _maps(Footer, 0x78, "footer"),
    "message_format": lambda conversion, shape: conversion.carried.column(2),
    "delivery_tag": lambda conversion, shape: conversion.carried.column(1),
    "epoch": lambda conversion, shape: pa.array(repeat(conversion.epoch, len(conversion)), pa.string()),
    "sequence": lambda conversion, shape: pa.array(
        np.arange(conversion.first, conversion.first + len(conversion)), pa.int64()
    ),
    "error": lambda conversion, shape: _sparse(len(conversion), conversion.errors, pa.string()),
    "payload": _payloads,
}
