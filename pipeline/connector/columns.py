"""The columns of messages, in one table: the source of Spark's types, Arrow's types, and the documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from amqpmesh.pipeline.connector.options import BodyFormat

VALUE: Final = pa.struct([("type", pa.string()), ("value", pa.string())])
"""An AMQP value: the name of its type, and its text."""

VALUES: Final = pa.map_(pa.string(), VALUE)

TIME: Final = pa.timestamp("us", tz="UTC")

HEADER: Final = pa.struct(
    [
        ("durable", pa.bool_()),
        ("priority", pa.int16()),
        ("ttl", pa.int64()),
        ("first_acquirer", pa.bool_()),
        ("delivery_count", pa.int64()),
    ]
)

PROPERTIES: Final = pa.struct(
    [
        ("message_id", VALUE),
        ("user_id", pa.binary()),
        ("to", pa.string()),
        ("subject", pa.string()),
        ("reply_to", pa.string()),
        ("correlation_id", VALUE),
        ("content_type", pa.string()),
        ("content_encoding", pa.string()),
        ("absolute_expiry_time", TIME),
        ("creation_time", TIME),
        ("group_id", pa.string()),
        ("group_sequence", pa.int64()),
        ("reply_to_group_id", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    name: str
    arrow: pa.DataType
    meaning: str
    #: True if it can be written, too.
    written: bool = True


TABLE: Final = (
    Column(
        "body", pa.binary(),
        "The body, in the format of the option `body`. The type is `string` for every format except `binary`.",
    ),
    Column(
        "body_type", pa.string(),
        "The kind of the body on the wire: `data`, `amqp-sequence`, or the AMQP type of an amqp-value, such as "
        "`string`.",
        written=False,
    ),
    Column("header", HEADER, "The header (§3.2.1), with the standard's defaults; `ttl` in milliseconds."),
    Column("delivery_annotations", VALUES, "The delivery annotations (§3.2.2)."),
    Column("message_annotations", VALUES, "The message annotations (§3.2.3)."),
    Column("properties", PROPERTIES, "The properties (§3.2.4)."),
    Column("application_properties", VALUES, "The application properties (§3.2.5)."),
    Column("footer", VALUES, "The footer (§3.2.9)."),
    Column(
        "message_format", pa.int64(), "The message-format; 0 for messages with the sections above (§3.2.16).",
        written=False,
    ),
    Column("delivery_tag", pa.binary(), "The delivery-tag. A router gives each delivery a new one.", written=False),
    Column("epoch", pa.string(), "The life of the stream's reader that received the message.", written=False),
    Column(
        "sequence", pa.int64(), "The position of the message in that life or, for a batch read, in the task; from 0.",
        written=False,
    ),
    Column(
        "error", pa.string(), "The reason why a part of the message could not be decoded; null if all parts were.",
        written=False,
    ),
    Column("payload", pa.binary(), "All octets of the message; filled as the option `payload` says."),
)  # fmt: skip

BY_NAME: Final = {column.name: column for column in TABLE}


def arrow_schema(body: BodyFormat, names: list[str] | None = None) -> pa.Schema:
    """Return Arrow's schema of all columns, or of some. Args: names: in any order. Raises: KeyError: there is no such
    column.
    """
    return pa.schema([(name, _type(name, body)) for name in (names if names is not None else BY_NAME)])


def spark_schema(body: BodyFormat) -> StructType:
    """Return Spark's schema."""
    return StructType([StructField(name, _spark(_type(name, body))) for name in BY_NAME])


def _spark(arrow: pa.DataType) -> DataType:
    if pa.types.is_struct(arrow):
        return StructType([StructField(each.name, _spark(each.type)) for each in arrow])
    if pa.types.is_map(arrow):
        return MapType(_spark(arrow.key_type), _spark(arrow.item_type))
    return _SPARK[arrow]()


_SPARK: Final[dict[pa.DataType, type[DataType]]] = {
    pa.string(): StringType,
    pa.binary(): BinaryType,
    pa.bool_(): BooleanType,
    pa.int16(): ShortType,
    pa.int64(): LongType,
    TIME: TimestampType,
}


def _type(name: str, body: BodyFormat) -> pa.DataType:
    if name == "body" and body is not BodyFormat.BINARY:
        return pa.string()
    return BY_NAME[name].arrow


def documented() -> str:
    """Return the table for people, in Markdown."""
    rows = ["| column | type | meaning |", "|---|---|---|"]
    rows += [f"| `{column.name}` | `{_spark(column.arrow).simpleString()}` | {column.meaning} |" for column in TABLE]
    return "\n".join(rows) + "\n"
