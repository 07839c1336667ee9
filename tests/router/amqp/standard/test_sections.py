"""An annotated message, split into its sections (§3.2)."""

import pytest

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import ProtocolError
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

HEAD: list[Section] = [
    Header(durable=True),
    DeliveryAnnotations({Symbol("x-opt-a"): 1}),
    MessageAnnotations({Symbol("x-opt-b"): 2}),
    Properties(to="q"),
    ApplicationProperties({"k": "v"}),
]
FOOT: list[Section] = [Footer({Symbol("x-opt-c"): 3})]
BODIES: list[list[Section]] = [
    [Data(b"a"), Data(b""), Data(b"b" * 1000)],
    [AmqpSequence([1]), AmqpSequence([])],
    [AmqpValue("x")],
]


@pytest.mark.parametrize("body", BODIES)
def test_a_message_is_the_sections_that_it_was_made_of(body: list[Section]) -> None:
    sections = [*HEAD, *body, *FOOT]
    payload = encode_sections(sections)
    for data in (payload, bytearray(payload), memoryview(payload)):
        assert decode_sections(data) == sections
    assert decode_sections(b"") == []


@pytest.mark.parametrize("tail", ["40", "00", "00 53 24 45", "00 53 75 a0 05 00"])
def test_a_value_that_is_no_section_is_refused(tail: str) -> None:
    with pytest.raises(ProtocolError):
        decode_sections(encode_sections(HEAD) + bytes.fromhex(tail))
