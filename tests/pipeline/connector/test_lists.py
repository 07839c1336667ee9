"""Headers and properties read from many messages at once: as the decoder reads each of them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh import Message, Symbol, Timestamp, ULong
from amqpmesh.pipeline.connector import rows
from amqpmesh.pipeline.connector.offers import CARRIED
from amqpmesh.pipeline.connector.rows import Shape, batch

NAMES = ("header", "properties", "error", "payload", "body")

UINTS = st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1))
TEXTS = st.one_of(st.text(max_size=6), st.just("x" * 300))
SYMBOLS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=6).map(Symbol)
IDS = st.one_of(
    TEXTS, st.integers(0, 300).map(ULong), st.integers(0, 2**64 - 1).map(ULong), st.uuids(), st.binary(max_size=6)
)
TIMES = st.one_of(st.integers(-(2**40), 2**42), st.integers(-(2**63), 2**63 - 1)).map(Timestamp)

FIELDS = {
    "durable": st.booleans(), "priority": st.integers(0, 255), "ttl": UINTS.map(lambda each: each / 1000),
    "first_acquirer": st.booleans(), "delivery_count": UINTS,
    "message_id": IDS, "user_id": st.binary(max_size=6), "to": TEXTS, "subject": TEXTS, "reply_to": TEXTS,
    "correlation_id": IDS, "content_type": SYMBOLS, "content_encoding": SYMBOLS, "absolute_expiry_time": TIMES,
    "creation_time": TIMES, "group_id": TEXTS, "group_sequence": UINTS, "reply_to_group_id": TEXTS,
}  # fmt: skip
MESSAGES = st.fixed_dictionaries({}, optional=FIELDS).map(lambda fields: Message(b"tea", **fields).encode())


def made(payloads: list[bytes]) -> list[dict[str, Any]]:
    carried = pa.record_batch([payloads, [b"t"] * len(payloads), [0] * len(payloads)], schema=CARRIED)
    whole = batch(carried, Shape(NAMES), epoch="e", first=0)
    whole.validate(full=True)
    return whole.to_pylist()


def one_by_one(payloads: list[bytes]) -> list[dict[str, Any]]:
    """Return the rows that the decoder makes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rows, "structs", lambda *_: None)
        return made(payloads)


@given(st.lists(MESSAGES, min_size=1, max_size=8))
def test_all_fields_are_read_as_the_decoder_reads_them(payloads: list[bytes]) -> None:
    assert made(payloads) == one_by_one(payloads)


@given(st.lists(st.tuples(MESSAGES, st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_wrong_octet_gives_the_row_that_the_decoder_gives(given: list[tuple[bytes, int, int]]) -> None:
    payloads = []
    for payload, place, octet in given:
        at = place % len(payload)
        payloads.append(payload[:at] + bytes([octet]) + payload[at + 1 :])
    assert made(payloads) == one_by_one(payloads)


NULLS = b"\x40" * 13


@pytest.mark.parametrize(
    "section",
    [
        b"\x00\x53\x70\x45",
        b"\x00\x53\x70\xc0\x01\x00",
        b"\x00\x53\x70\xc0\x03\x02\x56\x01",
        b"\x00\x53\x70\xc0\x04\x03\x41\x40\x43",
        b"\x00\x53\x70\xd0\x00\x00\x00\x06\x00\x00\x00\x02\x41\x40",
        b"\x00\x53\x70\xd0\x00\x00\x00\x02\x00\x00",
        b"\x00\x53\x70\xd0\x00\x00\x00\x04\xff\xff\xff\xff",
        b"\x00\x53\x70\xc0\x00",
        b"\x00\x53\x70\xc0\x07\x06\x40\x40\x40\x40\x40\x40",
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x70\xc0\x02\x01\x41",
        b"\x00\xa3\x10amqp:header:list\xc0\x02\x01\x41",
        b"\x00\x53\x73\xc0\x0e\x0d" + NULLS,
        b"\x00\x53\x73\xc0\x0f\x0d" + NULLS + b"\x40",
        b"\x00\x53\x73\xc0\x04\x01\xa1\x01\xff",
        b"\x00\x53\x73\xc0\x06\x03\x40\x40\xa1\x01\xff",
        b"\x00\x53\x73\xc0\x0a\x07" + NULLS[:6] + b"\xa3\x01\xe4",
        b"\x00\x53\x73\xc0\x02\x01\x44",
        b"\x00\x53\x73\xc0\x03\x01\xa1\x00",
    ],
    ids=bytes.hex,
)
def test_rare_encodings_are_read_too_beside_plain_ones(section: bytes) -> None:
    plain = Message(b"tea", subject="s", durable=True).encode()
    body = Message(b"tea").encode()
    payloads = [plain, section + body, plain]
    assert made(payloads) == one_by_one(payloads)


def test_ids_of_all_types_stand_side_by_side() -> None:
    ids = ["a", ULong(2**64 - 1), None, UUID(int=7), ULong(0), b"\x00"]
    found = made([Message(b"tea", subject="s", message_id=each).encode() for each in ids])
    assert [row["properties"]["message_id"] and tuple(row["properties"]["message_id"].values()) for row in found] == [
        ("string", "a"), ("ulong", str(2**64 - 1)), None, ("uuid", str(UUID(int=7))), ("ulong", "0"),
        ("binary", "AA=="),
    ]  # fmt: skip
