"""Messages read while they arrive: equal to whole ones, however they are cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.codec.values import encode
from amqpmesh.router.amqp.errors import ProtocolError
from amqpmesh.router.amqp.standard.definitions import LinkCondition
from amqpmesh.router.amqp.standard.messaging import AmqpSequence, AmqpValue, Data, Footer, Properties
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.reader import Parts
from tests.support.data.encodings import mutated
from tests.support.data.messages import messages
from tests.support.data.values import identical

SECTION_MAX = 4096


def read(payload: bytes, cuts: list[int]) -> Message | None:
    """Read a message in pieces; None: it is no message."""
    parts = Parts(SECTION_MAX)
    body = bytearray()
    ends = sorted(min(cut, len(payload)) for cut in cuts)
    try:
        for start, end in zip([0, *ends], [*ends, len(payload)], strict=True):
            for part in parts.feed(payload[start:end]):
                assert part, "nothing is no part"
                assert parts.head is not None, "the head comes first"
                body += part
        parts.finish()
        assert parts.head is not None
        if not parts.is_data:
            return parts.whole()
    except ProtocolError:
        return None
    return replace(parts.head, body=bytes(body) if parts.has_body else None)


def whole(payload: bytes) -> Message | None:
    """Decode a message at once, with its data sections joined; None: it is no message."""
    try:
        message = Message.decode(payload)
    except ProtocolError:
        return None
    if isinstance(message.body, tuple) and isinstance(message.body[0], Data):
        message.body = b"".join(section.value for section in message.body)
    return message


def equal(one: Message | None, other: Message | None) -> bool:
    if one is None or other is None:
        return one is other
    return identical(one.encode(), other.encode())


CUTS = st.lists(st.integers(0, 300), max_size=8)


@settings(max_examples=60)
@given(messages(), CUTS)
def test_a_message_is_the_same_however_it_is_cut(message: Any, cuts: list[int]) -> None:
    assert equal(read(message.data, cuts), whole(message.data))


@settings(max_examples=30)
@given(messages())
def test_a_message_is_the_same_octet_by_octet(message: Any) -> None:
    assert equal(read(message.data, list(range(len(message.data)))), whole(message.data))


@settings(max_examples=80)
@given(st.data(), messages(), CUTS)
def test_what_is_no_message_is_none_however_it_is_cut(data: st.DataObject, message: Any, cuts: list[int]) -> None:
    payload = data.draw(mutated(message.data))
    assert equal(read(payload, cuts), whole(payload))


DATA = encode_composite(Data(value=b"x"))
VALUE = encode_composite(AmqpValue(value=1))
SEQUENCE = encode_composite(AmqpSequence(value=[1]))
FOOTER = encode_composite(Footer(value={Symbol("x"): 1}))
PROPERTIES = encode_composite(Properties(message_id="m"))


@pytest.mark.parametrize(
    "sections",
    [
        (DATA, VALUE),
        (DATA, SEQUENCE),
        (VALUE, DATA),
        (DATA, FOOTER, DATA),
        (DATA, FOOTER, FOOTER),
        (FOOTER, DATA),
        (DATA, PROPERTIES),
        (PROPERTIES, PROPERTIES, DATA),
        (DATA, b"\x40"),
        (DATA[:-1],),
        (DATA[:3],),
        (DATA[:1],),
        (PROPERTIES[:-1],),
        (b"\x00\x53\x75\xa1\x01x",),
        (b"\x00\x53\x75\x40",),
        (b"\x00\x53\x79\x45",),
        (b"\x00\x45\x45",),
        (b"\x00\x1f\x45",),
    ],
    ids=lambda sections: b"".join(sections).hex(),
)
@pytest.mark.parametrize("step", [1, 1000])
def test_what_is_no_message_is_said_to_be_none(sections: tuple[bytes, ...], step: int) -> None:
    payload = b"".join(sections)
    assert whole(payload) is None
    assert read(payload, list(range(step, len(payload), step))) is None


def test_the_head_is_there_before_the_body() -> None:
    parts = Parts(SECTION_MAX)
    payload = Message(bytes(1000), subject="s", application_properties={"a": 1}).encode()
    start = payload.index(b"\x00\x53\x75")
    assert not list(parts.feed(payload[:start]))
    assert parts.head is None  # the head may have more sections
    assert not list(parts.feed(payload[start : start + 8]))
    assert parts.head is not None
    assert (parts.head.subject, parts.head.body) == ("s", None)
    assert b"".join(parts.feed(payload[start + 8 :])) == bytes(1000)
    parts.finish()


def test_a_footer_is_known_in_the_end() -> None:
    parts = Parts(SECTION_MAX)
    assert b"".join(parts.feed(DATA)) == b"x"
    assert parts.head is not None
    assert not list(parts.feed(FOOTER))
    parts.finish()
    assert parts.head.footer == {Symbol("x"): 1}


@pytest.mark.parametrize("code", [0x74, 0x78], ids=["before", "behind"])
@pytest.mark.parametrize("step", [1, 100, 10_000])
def test_what_is_said_beside_the_body_is_bounded(code: int, step: int) -> None:
    huge = b"\x00\x53" + bytes((code,)) + encode({"k": "v" * (SECTION_MAX + step)})
    parts = Parts(SECTION_MAX)
    if code == 0x78:
        list(parts.feed(DATA))
    taken = 0
    with pytest.raises(ProtocolError) as raised:
        for at in range(0, len(huge), step):
            taken = at
            list(parts.feed(huge[at : at + step]))
    assert raised.value.condition == LinkCondition.MESSAGE_SIZE_EXCEEDED
    assert taken <= SECTION_MAX + step


def test_a_body_may_be_of_any_size_and_nothing_of_it_is_kept() -> None:
    parts = Parts(SECTION_MAX)
    payload = b"\x00\x53\x75\xb0" + (2**32 - 1).to_bytes(4, "big")
    list(parts.feed(payload))
    for _ in range(1000):
        assert b"".join(parts.feed(bytes(10_000))) == bytes(10_000)
    assert not parts._buffer  # no public name shows it
