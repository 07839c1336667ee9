"""Messages as rows of the Spark connector, and rows as messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgpack
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from amqpmesh import AmqpSequence, AmqpValue, Char, Data, Described, Message, Symbol, Timestamp, UInt, ULong
from amqpmesh.pipeline.connector.columns import BY_NAME, TABLE, arrow_schema, documented, spark_schema
from amqpmesh.pipeline.connector.offers import CARRIED
from amqpmesh.pipeline.connector.options import BodyFormat, KeepPayload
from amqpmesh.pipeline.connector.rows import Shape, batch

ALL = tuple(BY_NAME)
PAST = 2**62


def read(*payloads: bytes, body: BodyFormat = BodyFormat.BINARY, form: int = 0, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of these messages as Python values, with all columns."""
    tags = [b"%d" % number for number in range(len(payloads))]
    carried = pa.record_batch([list(payloads), tags, [form] * len(payloads)], schema=CARRIED)
    made = batch(carried, Shape(ALL, body, **options), epoch="e", first=40)
    made.validate(full=True)
    return made.to_pylist(maps_as_pydicts="strict")


def one(message: Message, **options: Any) -> dict[str, Any]:
    (row,) = read(message.encode(), **options)
    return row


def text(kind: str, value: str | None) -> dict[str, str | None]:
    return {"type": kind, "value": value}


def test_every_section_is_a_column() -> None:
    row = one(
        Message(
            b"tea",
            durable=True,
            priority=7,
            ttl=1.5,
            delivery_count=2,
            message_id=2**64 - 1,
            user_id=b"me",
            to="there",
            subject="order",
            reply_to="here",
            correlation_id=UUID(int=7),
            content_type="text/plain",
            absolute_expiry_time=Timestamp(1_700_000_000_123),
            creation_time=Timestamp(0),
            group_id="g",
            group_sequence=2**32 - 1,
            application_properties={"n": UInt(7), "s": "text", "none": None},
            message_annotations={"x-opt-a": Symbol("s"), ULong(5): [1]},
            delivery_annotations={"x-d": True},
            footer={"x-f": b"\x00"},
        )
    )
    assert row == {
        "body": b"tea",
        "body_type": "data",
        "header": {"durable": True, "priority": 7, "ttl": 1500, "first_acquirer": False, "delivery_count": 2},
        "delivery_annotations": {"x-d": text("boolean", "true")},
        "message_annotations": {"x-opt-a": text("symbol", "s"), "ulong:5": text("list", "[1]")},
        "properties": {
            "message_id": text("ulong", "18446744073709551615"),
            "user_id": b"me",
            "to": "there",
            "subject": "order",
            "reply_to": "here",
            "correlation_id": text("uuid", str(UUID(int=7))),
            "content_type": "text/plain",
            "content_encoding": None,
            "absolute_expiry_time": datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC),
            "creation_time": datetime(1970, 1, 1, tzinfo=UTC),
            "group_id": "g",
            "group_sequence": 2**32 - 1,
            "reply_to_group_id": None,
        },
        "application_properties": {"n": text("uint", "7"), "s": text("string", "text"), "none": text("null", None)},
        "footer": {"x-f": text("binary", "AA==")},
        "message_format": 0,
        "delivery_tag": b"0",
        "epoch": "e",
        "sequence": 40,
        "error": None,
        "payload": None,
    }


def test_sections_that_are_not_there_are_null() -> None:
    row = one(Message(b"tea"))
    assert {name for name, value in row.items() if value is not None} == {
        "body", "body_type", "message_format", "delivery_tag", "epoch", "sequence",
    }  # fmt: skip


def test_rows_of_all_kinds_stand_in_the_order_in_which_they_came() -> None:
    messages = [
        Message(b"a"),
        Message(b"b", subject="s"),
        Message("c", application_properties={"n": 1}),
        Message(b"d" * 300),
        Message(b"e", durable=True),
    ]
    rows = read(b"", *(each.encode() for each in messages), b"\xff")
    assert [row["body"] for row in rows] == [None, b"a", b"b", b"c", b"d" * 300, b"e", None]
    assert [row["sequence"] for row in rows] == list(range(40, 47))
    assert [row["error"] is None for row in rows] == [True] * 6 + [False]
    assert [row["properties"] is None for row in rows] == [True, True, False, True, True, True, True]


SEVERAL = (Data(value=b"a"), Data(value=b"b"))
BODIES: list[tuple[Any, BodyFormat, Any, str]] = [
    (b"tea", BodyFormat.BINARY, b"tea", "data"),
    (b"", BodyFormat.BINARY, b"", "data"),
    (SEVERAL, BodyFormat.BINARY, b"ab", "data"),
    (AmqpValue(value=b"tea"), BodyFormat.BINARY, b"tea", "binary"),
    ("tä", BodyFormat.BINARY, "tä".encode(), "string"),
    (None, BodyFormat.BINARY, None, "null"),
    ("tä".encode(), BodyFormat.STRING, "tä", "data"),
    (b"", BodyFormat.STRING, "", "data"),
    ("tä", BodyFormat.STRING, "tä", "string"),
    (Symbol("s"), BodyFormat.STRING, "s", "symbol"),
    (None, BodyFormat.STRING, None, "null"),
    (b' {"a": 1.50}', BodyFormat.JSON, ' {"a": 1.50}', "data"),
    ({"a": UInt(1)}, BodyFormat.JSON, '{"a":1}', "map"),
    (' {"a": 1.50}', BodyFormat.JSON, ' {"a": 1.50}', "string"),
    ('"tea"', BodyFormat.JSON, '"tea"', "string"),
    ("1" * 5_000, BodyFormat.JSON, "1" * 5_000, "string"),
    (Char("1"), BodyFormat.JSON, '"1"', "char"),
    (Symbol("[1]"), BodyFormat.JSON, "[1]", "symbol"),
    (AmqpValue(value=b' {"a": 1.50}'), BodyFormat.JSON, ' {"a": 1.50}', "binary"),
    (None, BodyFormat.JSON, "null", "null"),
    (AmqpSequence(value=[1, "two"]), BodyFormat.JSON, '[1,"two"]', "amqp-sequence"),
    ((AmqpSequence(value=[1]), AmqpSequence(value=[2])), BodyFormat.JSON, "[1,2]", "amqp-sequence"),
    (Described(Symbol("x"), 1), BodyFormat.JSON, '{"descriptor":"x","value":1}', "described"),
    (msgpack.packb({"a": [1, b"\x00"]}), BodyFormat.MSGPACK, '{"a":[1,"AA=="]}', "data"),
    (AmqpValue(value=msgpack.packb([1])), BodyFormat.MSGPACK, "[1]", "binary"),
]


@pytest.mark.parametrize(("body", "form", "wanted", "kind"), BODIES, ids=lambda each: str(each)[:20])
def test_a_body_is_what_its_format_makes_of_it(body: Any, form: BodyFormat, wanted: Any, kind: str) -> None:
    row = one(Message(body), body=form)
    assert (row["body"], row["body_type"], row["error"]) == (wanted, kind, None)


MISFITS: list[tuple[Any, BodyFormat, str]] = [
    (7, BodyFormat.BINARY, "body: an amqp-value of type long is no octets"),
    (AmqpSequence(value=[1]), BodyFormat.BINARY, "body: an amqp-sequence is no octets"),
    (b"\xff", BodyFormat.STRING, "body: not UTF-8: "),
    (7, BodyFormat.STRING, "body: an amqp-value of type long is no text"),
    (b"{", BodyFormat.JSON, "body: no JSON: "),
    (b"", BodyFormat.JSON, "body: no JSON: "),
    (b"\xff", BodyFormat.JSON, "body: not UTF-8: "),
    ("tea", BodyFormat.JSON, "body: no JSON: "),
    (AmqpValue(value=b"tea"), BodyFormat.JSON, "body: no JSON: "),
    (AmqpValue(value=b"\xff"), BodyFormat.JSON, "body: not UTF-8: "),
    (b"[" * 100_000, BodyFormat.JSON, "body: no JSON: "),
    ({1: "a", "1": "b"}, BodyFormat.JSON, "body: the keys of a map are not distinct as text"),
    (b"\xc1", BodyFormat.MSGPACK, "body: no msgpack: "),
    (b"", BodyFormat.MSGPACK, "body: no msgpack: "),
    (msgpack.packb(1) + b"\x01", BodyFormat.MSGPACK, "body: no msgpack: "),
    (msgpack.packb(msgpack.ExtType(5, b"x")), BodyFormat.MSGPACK, "body: ExtType cannot be said in JSON"),
    ("text", BodyFormat.MSGPACK, "body: an amqp-value of type string is no msgpack"),
]


@pytest.mark.parametrize(("body", "form", "error"), MISFITS, ids=lambda each: str(each)[:20])
def test_a_body_that_does_not_fit_is_null_and_stands_in_the_payload(body: Any, form: BodyFormat, error: str) -> None:
    message = Message(body, subject="order")
    row = one(message, body=form)
    assert row["body"] is None
    assert row["error"].startswith(error)
    assert row["payload"] == message.encode()
    assert row["properties"]["subject"] == "order"  # what can be had is had


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"\xff", "message: what stands at 0 is no section"),
        (b"\x00\x53\x75", "message: it ends in the middle of a section"),
        (b"\x00\x53\x75\xa0\x05ab", "message: it ends in the middle of a section"),
        (b"\x00\x53\x7f\x40", "message: what stands at 0 is no section"),
        (b"\x00\x53\x75\x3f", "message: no such format code: 0x3f"),
        (Message(b"a").encode() + Message(b"a", durable=True).encode(), "message: section 0x70 behind 0x75"),
        (Message("a").encode() * 2, "message: section 0x77 behind 0x77"),
        (Message("a").encode() + Message(b"a").encode(), "message: section 0x75 behind 0x77"),
        (b"\x00\x53\x75\x40", "body: a data section is no binary"),
        (b"\x00\x53\x77\x00\x53\x01", "message: "),
    ],
)
def test_what_is_no_message_is_a_row_with_its_octets(payload: bytes, error: str) -> None:
    (row,) = read(payload)
    assert row["error"].startswith(error)
    assert row["payload"] == payload
    assert row["body"] is None
    assert row["delivery_tag"] == b"0"


def test_symbolic_descriptors_are_known() -> None:
    (row,) = read(b"\x00\xa3\x10amqp:data:binary\xa0\x02ab")
    assert (row["body"], row["error"]) == (b"ab", None)


def test_another_message_format_is_not_looked_into() -> None:
    (row,) = read(Message(b"a").encode(), form=7)
    assert row["error"] == "message: message-format 7 is not known here"
    assert row["message_format"] == 7
    assert row["payload"] == Message(b"a").encode()
    assert row["body"] is None


def test_a_time_that_spark_has_not_is_null_and_said() -> None:
    row = one(Message(b"a", creation_time=Timestamp(PAST), subject="s"))
    assert row["properties"]["creation_time"] is None
    assert row["properties"]["subject"] == "s"
    assert row["error"] == f"properties.creation_time: {PAST} ms since 1970 is not in the years 1 to 9999"


def test_a_section_that_is_malformed_is_null_and_the_others_are_there() -> None:
    broken = b"\x00\x53\x73\xc0\x03\x02\xa1\x00"  # a message-id that ends before its list does
    header = Message(None, durable=True).encode().removesuffix(Message(None).encode())
    (row,) = read(header + broken + Message(b"a").encode())
    assert row["error"].startswith("properties: ")
    assert row["properties"] is None
    assert row["body"] == b"a"
    assert row["header"]["durable"]


def test_two_keys_that_are_one_as_text_are_not_guessed_at() -> None:
    row = one(Message(b"a", message_annotations={ULong(5): 1, "ulong:5": 2}))
    assert row["message_annotations"] is None
    assert row["error"] == "message_annotations: two keys are the same as text"


def test_the_payload_is_there_always_if_that_is_wanted() -> None:
    assert one(Message(b"a"), keep=KeepPayload.ALWAYS)["payload"] == Message(b"a").encode()


def test_columns_that_are_not_asked_for_are_not_looked_at() -> None:
    message = Message(b"\xff", creation_time=Timestamp(PAST))
    carried = pa.record_batch([[message.encode()], [b"t"], [0]], schema=CARRIED)
    made = batch(carried, Shape(("error", "body_type"), BodyFormat.STRING), epoch="e", first=0)
    assert made.to_pylist() == [{"error": None, "body_type": "data"}]


def test_no_rows_are_a_batch_too() -> None:
    nothing = pa.record_batch([[], [], []], schema=CARRIED)
    assert len(batch(nothing, Shape(ALL), epoch="e", first=0)) == 0


@pytest.mark.parametrize("body", BodyFormat)
def test_rows_are_what_spark_was_told(body: BodyFormat) -> None:
    assert to_arrow_schema(spark_schema(body), timezone="UTC").equals(arrow_schema(body))


def test_the_table_for_people_has_a_line_for_each_column() -> None:
    assert [line.split("`")[1] for line in documented().splitlines()[2:]] == [column.name for column in TABLE]


def test_a_mebibyte_is_one_body() -> None:
    assert one(Message(bytes(2**20)))["body"] == bytes(2**20)
    assert pa.array([one(Message("x" * 2**20), body=BodyFormat.STRING)["body"]])[0].as_py() == "x" * 2**20
