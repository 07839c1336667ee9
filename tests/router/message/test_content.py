"""Messages as programs write and read them (§3.2)."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.maps import PairMap
from amqpmesh.router.amqp.codec.types import Decimal32, Described, Primitive, Symbol, Timestamp, UInt, ULong
from amqpmesh.router.amqp.codec.value_limits import MAX_VALUES
from amqpmesh.router.amqp.codec.values import encode
from amqpmesh.router.amqp.errors import CommandError, ProtocolError
from amqpmesh.router.amqp.standard.definitions import AmqpCondition
from amqpmesh.router.amqp.standard.messaging import (
    AmqpSequence,
    AmqpValue,
    ApplicationProperties,
    Data,
    DeliveryAnnotations,
    Footer,
    Header,
    MessageAnnotations,
    Properties,
    Section,
)
from amqpmesh.router.amqp.standard.sections import decode_sections, encode_sections
from amqpmesh.router.message.content import Message, encode_message
from tests.support.data import messages as generated
from tests.support.data.encodings import mutated
from tests.support.data.values import SCALARS, binary, characters, identical, symbols, text, values

FIELDS = [field.name for field in fields(Message)]


def same(one: Message, other: Message) -> bool:
    """Return whether two messages are equal, AMQP types included, which Python does not compare."""
    return all(identical(getattr(one, name), getattr(other, name)) for name in FIELDS)


# ------------------------------------------------------------------------------------------------------------ bodies


@settings(max_examples=60)
@given(values.filter(lambda value: not isinstance(value, bytes)))
def test_any_value_but_octets_is_an_amqp_value_and_comes_back_as_what_it_was(value: Any) -> None:
    payload = Message(value).encode()
    assert payload == encode_message(value) == b"\x00\x53\x77" + encode(value)
    assert identical(Message.decode(payload).body, value)


@pytest.mark.parametrize("octets", [b"", b"x", b"x" * 70_000])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_octets_are_a_data_section(kind: Any, octets: bytes) -> None:
    payload = Message(kind(octets)).encode()
    assert payload == encode_message(kind(octets))
    assert decode_sections(payload) == [Data(octets)]
    assert identical(Message.decode(payload).body, octets)


@settings(max_examples=60)
@given(binary)
def test_an_amqp_value_that_holds_octets_does_not_become_data(octets: bytes) -> None:
    body = Message.decode(Message(AmqpValue(octets)).encode()).body
    assert body == AmqpValue(octets)
    assert Message(body).encode() == Message(AmqpValue(octets)).encode()


@settings(max_examples=60)
@given(st.lists(values, max_size=3))
def test_a_sequence_is_no_list(items: list[Any]) -> None:
    sequence = Message.decode(Message(AmqpSequence(items)).encode()).body
    assert isinstance(sequence, AmqpSequence)
    assert identical(sequence.value, items)
    assert identical(Message.decode(Message(items).encode()).body, items)


@pytest.mark.parametrize("body", [(Data(b"a"), Data(b"")), (AmqpSequence([1]), AmqpSequence([])) * 2])
def test_several_sections_are_a_tuple_of_them(body: Any) -> None:
    payload = Message(body).encode()
    assert decode_sections(payload) == list(body)
    assert Message.decode(payload).body == body


@pytest.mark.parametrize("body", [Data(b"a"), AmqpValue("a")])
def test_one_section_says_the_same_as_what_is_in_it(body: Any) -> None:
    assert Message(body).encode() == Message((body,) if isinstance(body, Data) else body.value).encode()
    assert Message.decode(Message(body).encode()).body == body.value


def test_a_message_without_body_has_none() -> None:
    assert Message.decode(b"").body is None
    assert Message.decode(encode_composite(Properties(subject="x"))) == Message(None, subject="x")
    assert decode_sections(Message().encode()) == [AmqpValue(None)]


@pytest.mark.parametrize(
    ("one", "other"),
    [(UInt(1), ULong(1)), (Symbol("a"), "a"), (1, True), (1, UInt(1)), (Timestamp(1), 1), (1.0, 1), (Decimal32(0), 0)],
)
def test_what_python_takes_for_equal_stays_apart(one: Any, other: Any) -> None:
    for body in ([one, other], PairMap([(one, other), (other, one)]), Described(ULong(1), [one, other])):
        assert identical(Message.decode(Message(body).encode()).body, body)


# ------------------------------------------------------------------------------------------------- the other sections

PROPERTIES: dict[str, Any] = {
    "message_id": "id",
    "user_id": b"user",
    "to": "to",
    "subject": "subject",
    "reply_to": "reply-to",
    "correlation_id": 2**64 - 1,
    "content_type": Symbol("text/plain"),
    "content_encoding": Symbol("gzip"),
    "absolute_expiry_time": 2**63 - 1,
    "creation_time": -(2**63),
    "group_id": "group",
    "group_sequence": 2**32 - 1,
    "reply_to_group_id": "reply-to-group",
}
HEADER: dict[str, Any] = {"durable": True, "priority": 255, "first_acquirer": True, "delivery_count": 2**32 - 1}
MAPS: dict[str, type] = {
    "delivery_annotations": DeliveryAnnotations,
    "message_annotations": MessageAnnotations,
    "footer": Footer,
}


@pytest.mark.parametrize(("name", "value"), PROPERTIES.items())
def test_a_property_is_in_the_properties_and_nothing_else_is(name: str, value: Any) -> None:
    payload = Message(b"", **{name: value}).encode()
    assert decode_sections(payload) == [Properties(**{name: value}), Data(b"")]
    assert same(Message.decode(payload), Message(b"", **{name: value}))


@pytest.mark.parametrize(("name", "value"), HEADER.items())
def test_a_transport_header_is_in_the_header_and_nothing_else_is(name: str, value: Any) -> None:
    payload = Message(b"", **{name: value}).encode()
    assert decode_sections(payload) == [Header(**{name: value}), Data(b"")]
    assert same(Message.decode(payload), Message(b"", **{name: value}))


@pytest.mark.parametrize(("seconds", "milliseconds"), [(0, 0), (0.001, 1), (30, 30_000), (4294967.295, 2**32 - 1)])
def test_a_ttl_is_in_seconds_here_and_in_milliseconds_there(seconds: float, milliseconds: int) -> None:
    payload = Message(b"", ttl=seconds).encode()
    assert decode_sections(payload) == [Header(ttl=milliseconds), Data(b"")]
    assert Message.decode(payload).ttl == seconds


@pytest.mark.parametrize(("name", "section"), MAPS.items())
def test_keys_of_annotations_are_symbols_or_ulongs(name: str, section: type) -> None:
    annotations: dict[Any, Any] = {"x-opt-a": UInt(1), ULong(2**64 - 1): [None]}
    said: dict[str, Any] = {name: annotations}
    payload = Message(b"", **said).encode()
    (written,) = [each for each in decode_sections(payload) if isinstance(each, section)]
    read = getattr(Message.decode(payload), name)
    assert identical(read, {Symbol("x-opt-a"): UInt(1), ULong(2**64 - 1): [None]})
    assert written == section(read)


def test_application_properties_have_names_and_simple_values() -> None:
    properties: dict[str, Any] = {"a": UInt(1), "é": Symbol("b"), "": None, "n": b"\0", "id": UUID(int=5)}
    payload = Message(b"", application_properties=properties).encode()
    assert decode_sections(payload) == [ApplicationProperties(properties), Data(b"")]
    assert identical(Message.decode(payload).application_properties, properties)


def test_a_message_is_written_as_the_standard_says() -> None:
    message = Message(
        b"hi",
        durable=True,
        ttl=1.0,
        to="q",
        message_id=7,
        delivery_annotations={"d": True},
        message_annotations={"m": True},
        application_properties={"a": True},
        footer={"f": True},
    )
    assert message.encode() == bytes.fromhex(
        "00 53 70 c0 08 03 41 40 70 00 00 03 e8"  # header: durable, no priority, ttl 1000
        "00 53 71 c1 05 02 a3 01 64 41"
        "00 53 72 c1 05 02 a3 01 6d 41"
        "00 53 73 c0 07 03 53 07 40 a1 01 71"  # properties: message-id, no user-id, to
        "00 53 74 c1 05 02 a1 01 61 41"
        "00 53 75 a0 02 68 69"
        "00 53 78 c1 05 02 a3 01 66 41"
    )


ids = st.none() | st.one_of(text, binary, st.uuids(), st.integers(0, 2**64 - 1))
uints = st.integers(0, 2**32 - 1)
annotation_maps = st.dictionaries(symbols | SCALARS[Primitive.ULONG], values, max_size=3)
bodies = st.one_of(
    values,
    st.builds(AmqpSequence, st.lists(values, max_size=2)),
    binary.map(AmqpValue),
    st.lists(binary.map(Data), min_size=2, max_size=3).map(tuple),
)
strings = st.none() | text
whole_messages = st.builds(
    Message,
    bodies,
    durable=st.booleans(),
    priority=st.integers(0, 255),
    ttl=st.none() | uints.map(lambda milliseconds: milliseconds / 1000),
    first_acquirer=st.booleans(),
    delivery_count=uints,
    message_id=ids,
    user_id=st.none() | binary,
    to=strings,
    subject=strings,
    reply_to=strings,
    correlation_id=ids,
    content_type=st.none() | symbols,
    absolute_expiry_time=st.none() | st.integers(-(2**63), 2**63 - 1),
    creation_time=st.none() | st.integers(-(2**63), 2**63 - 1),
    group_id=strings,
    group_sequence=st.none() | uints,
    reply_to_group_id=strings,
    application_properties=st.dictionaries(text, st.one_of(text, symbols, characters, uints.map(UInt)), max_size=3),
    message_annotations=annotation_maps,
    delivery_annotations=annotation_maps,
    footer=annotation_maps,
)


@settings(max_examples=40)
@given(whole_messages)
def test_what_was_encoded_is_decoded(message: Message) -> None:
    assert same(Message.decode(message.encode()), message)


@settings(max_examples=40)
@given(generated.messages())
def test_a_message_in_any_encoding_is_read_and_says_the_same_when_it_is_sent_again(message: generated.Message) -> None:
    read = Message.decode(message.data)
    assert (read.priority, read.to) == (message.priority, message.to)
    assert read.ttl == (None if message.ttl is None else message.ttl / 1000)
    again = Message.decode(read.encode())
    assert same(again, read)


# ------------------------------------------------------------------------------------------------------------ refusals

REFUSED: list[tuple[str, Any]] = [
    ("durable", "yes"),
    ("priority", 256),
    ("priority", -1),
    ("priority", "4"),
    ("ttl", -0.001),
    ("ttl", 4294967.296),
    ("ttl", math.nan),
    ("ttl", math.inf),
    ("ttl", "30"),
    ("first_acquirer", 5),
    ("delivery_count", -1),
    ("delivery_count", 2**32),
    ("message_id", 1.5),
    ("message_id", -1),
    ("message_id", 2**64),
    ("message_id", ["x"]),
    ("correlation_id", object()),
    ("user_id", "a name"),
    ("to", 5),
    ("to", "\ud800"),
    ("subject", b"x"),
    ("reply_to", ["q"]),
    ("content_type", "é"),
    ("content_type", 5),
    ("absolute_expiry_time", "tomorrow"),
    ("creation_time", 1.5),
    ("creation_time", 2**63),
    ("group_id", 5),
    ("group_sequence", -1),
    ("group_sequence", 2**32),
    ("reply_to_group_id", 5),
    ("application_properties", {5: "x"}),
    ("application_properties", {"x": [1]}),
    ("application_properties", {"x": {}}),
    ("application_properties", {"x": object()}),
    ("application_properties", "x"),
    *((name, wrong) for name in MAPS for wrong in ({5: 1}, {"é": 1}, {b"x": 1}, {None: 1}, {"x": object()}, "x", 5)),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_value_that_does_not_fit_is_our_callers_fault_and_the_field_is_named(name: str, value: Any) -> None:
    with pytest.raises(CommandError) as raised:
        Message(b"", **{name: value}).encode()
    assert name in str(raised.value).replace("-", "_")  # in the standard's spelling, or in ours


ITSELF: list[Any] = []
ITSELF.append(ITSELF)


@pytest.mark.parametrize(
    "body",
    [
        object(),
        2**63,
        -(2**63) - 1,
        "\ud800",
        {"deep": [{"deeper": object()}]},
        ITSELF,
        (),
        (1, 2),
        (Data(b"x"), AmqpSequence([1])),
        (AmqpValue(1), AmqpValue(2)),
        (Data(b"x"), b"x"),
        Data("x"),  # type: ignore[arg-type]  # what a program without types may do
        AmqpSequence(5),  # type: ignore[arg-type]  # the same
        Message("a message within a message"),
    ],
)
def test_a_body_that_amqp_does_not_have_is_our_callers_fault(body: Any) -> None:
    with pytest.raises(CommandError):
        Message(body).encode()


@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_a_content_encoding_is_for_octets_alone(coding: str) -> None:
    with pytest.raises(CommandError, match="content_encoding"):
        Message("text", content_encoding=coding).encode()


# ------------------------------------------------------------------------------------------------------ from elsewhere

ORDER: list[Section] = [
    Header(durable=True),
    DeliveryAnnotations({Symbol("a"): 1}),
    MessageAnnotations({Symbol("a"): 1}),
    Properties(to="q"),
    ApplicationProperties({"a": 1}),
    Data(b"a"),
    Footer({Symbol("a"): 1}),
]


def test_sections_in_their_order_are_a_message() -> None:
    assert Message.decode(encode_sections(ORDER)).durable


@pytest.mark.parametrize("at", range(len(ORDER) - 1))
def test_sections_out_of_order_are_none(at: int) -> None:
    sections = [*ORDER]
    sections[at], sections[at + 1] = sections[at + 1], sections[at]
    with pytest.raises(ProtocolError, match=" after "):
        Message.decode(encode_sections(sections))


@pytest.mark.parametrize("at", range(len(ORDER)))
def test_a_section_comes_once_unless_it_is_a_body_of_several(at: int) -> None:
    sections = [*ORDER[: at + 1], *ORDER[at:]]
    if isinstance(ORDER[at], Data):
        assert Message.decode(encode_sections(sections)).body == (Data(b"a"), Data(b"a"))
    else:
        with pytest.raises(ProtocolError, match=" after "):
            Message.decode(encode_sections(sections))


@pytest.mark.parametrize(
    "body",
    [(Data(b""), AmqpValue(1)), (AmqpValue(1), AmqpValue(2)), (AmqpSequence([]), Data(b"")), (AmqpValue(1), Data(b""))],
)
def test_bodies_of_two_kinds_are_none(body: tuple[Section, ...]) -> None:
    with pytest.raises(ProtocolError, match=" after "):
        Message.decode(encode_sections(body))


def many(code: int, count: int, octets: bytes) -> bytes:
    """Encode an amqp-value of a compound or an array, with this code, count and content."""
    return b"\x00\x53\x77" + bytes((code,)) + (len(octets) + 4).to_bytes(4) + count.to_bytes(4) + octets


MANY = 1_000_000
BOMBS = {
    "nulls": many(0xD0, MANY, b"\x40" * MANY),
    "maps": many(0xD0, MANY, b"\xc1\x01\x00" * MANY),
    "pairs": many(0xD1, MANY, b"\x40" * MANY),
    "described values": many(0xD0, MANY, b"\x00\x44\x40" * MANY),
    "descriptors": many(0xF0, 1, b"\x00\x44" * MANY + b"\x40"),
    "elements of an array": many(0xF0, MANY, b"\x94" + bytes(16 * MANY)),
    "maps in an array": many(0xF0, 15_000, b"\xc1" + b"\x03\x02\x44\x40" * 15_000),
    "lists in lists": many(0xD0, 1000, (b"\xc0\xff\xfe" + b"\x40" * 254) * 1000),
    "arrays of nothing": many(0xD0, 15_000, b"\xe0\x02\xff\x40" * 15_000),
    "lists in arrays": many(0xD0, 5000, b"\xe0\x02\x08\x45" * 5000),
    "octets of a key": many(0xD1, 2, many(0xD0, 1, b"\xb0" + (9 * MANY).to_bytes(4) + bytes(9 * MANY))[3:] + b"\x40"),
    "data sections": b"\x00\x53\x75\xa0\x00" * MANY,
    "data sections by name": b"\x00\xa3\x10amqp:data:binary\xa0\x00" * MANY,
    "sections of text": b"\x00\x53\x77\xb1\x00\x00\x00\x01a" * MANY,
}


@pytest.mark.parametrize("payload", BOMBS.values(), ids=BOMBS)
def test_a_message_of_too_many_values_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError) as raised:
        Message.decode(payload)
    assert raised.value.condition == AmqpCondition.RESOURCE_LIMIT_EXCEEDED


@pytest.mark.parametrize(
    "payload", [b"\x00\x53\x75\xb0\x00\xff\xff\xff" + bytes(0xFFFFFF), many(0xD0, 9999, b"\x44" * 9999)]
)
def test_octets_and_as_many_values_as_may_be_are_a_message(payload: bytes) -> None:
    assert len(Message.decode(payload).body) in (0xFFFFFF, 9999)


def test_values_are_counted_to_the_limit() -> None:
    at_limit = MAX_VALUES - 3  # the section, its descriptor, the list
    for items in ([None] * at_limit, ["a"] * at_limit, [b"x" * 300] * at_limit):
        assert Message.decode(Message(items).encode()).body == items
        payload = Message([*items, None]).encode()
        with pytest.raises(ProtocolError, match="more values"):
            Message.decode(payload)
        for most in (MAX_VALUES + 1, 0):
            assert len(Message.decode(payload, max_values=most).body) == at_limit + 1


@settings(max_examples=60)
@given(values)
def test_no_value_is_refused_for_its_count_where_there_is_room(value: Any) -> None:
    payload = Message(AmqpValue([value, b"x" * 300_000])).encode()
    assert identical(Message.decode(payload, max_values=200_000), Message.decode(payload, max_values=0))


@settings(max_examples=40)
@given(st.data(), st.integers(1, 200))
def test_counting_hostile_octets_ends_as_decoding_them_or_earlier(data: st.DataObject, most: int) -> None:
    payload = data.draw(generated.messages().map(lambda message: message.data).flatmap(mutated) | st.binary())
    try:
        Message.decode(payload)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            Message.decode(payload, max_values=most)


@settings(max_examples=40)
@given(st.data())
def test_hostile_octets_are_a_message_or_a_protocol_error(data: st.DataObject) -> None:
    payload = data.draw(generated.messages().map(lambda message: message.data).flatmap(mutated) | st.binary())
    try:
        read = Message.decode(payload)
    except ProtocolError:
        return
    assert isinstance(read, Message)


def test_a_message_tells_what_is_set_and_nothing_that_it_holds() -> None:
    assert repr(Message(b"secret")) == "<Message bytes[6]>"
    assert repr(Message(None, ttl=1.5, footer={"a": "secret"})) == "<Message NoneType ttl=1.5 footer=['a']>"
    assert repr(Message({"pin": "secret"}, subject="s" * 500)) == f"<Message dict[1] subject='{'s' * 76}...>"
    assert repr(Message(7, reply_to="q")) == "<Message int reply_to='q'>"


def test_messages_that_say_and_hold_the_same_are_equal() -> None:
    assert Message("x") == Message("x")
    assert Message("x") != Message("x", subject="y")
