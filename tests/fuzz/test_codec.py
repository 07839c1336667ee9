"""Random octets through every entry of the codec: the result is a value that can be encoded again, or one
ProtocolError; for an unsettled map, the error may come from the first read of an entry.

`corpus/` holds octets worth keeping, one case a file; all are replayed. New findings of a long run belong there.
"""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec import field_codecs
from amqpmesh.router.amqp.codec.composite import Registry, decode_composite, encode_composite
from amqpmesh.router.amqp.codec.values import decode, encode
from amqpmesh.router.amqp.errors import ProtocolError, Scope
from amqpmesh.router.amqp.sasl import exchange
from amqpmesh.router.amqp.standard.definitions import AmqpCondition
from amqpmesh.router.amqp.standard.performatives import decode_performative, encode_performative
from amqpmesh.router.amqp.standard.sections import decode_sections, encode_sections
from tests.support.data.values import identical, values

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())
SASL: Registry[Any] = Registry(
    exchange.SaslMechanisms, exchange.SaslInit, exchange.SaslChallenge, exchange.SaslResponse, exchange.SaslOutcome
)

# Octets that a hostile peer would write in place of a size, a count or a format code.
_POINTED = [b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff"]
_CODES = [bytes((code,)) for code in (0x40, 0x41, 0x43, 0x45, 0x53, 0xA3, 0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0)]


@st.composite
def mutated(draw: st.DrawFn, originals: st.SearchStrategy[bytes]) -> bytes:
    """Draw a valid encoding with some octets replaced, inserted, removed or repeated."""
    octets = draw(originals)
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(octets)))
        end = min(len(octets), begin + draw(st.integers(0, 4)))
        new = draw(st.one_of(st.binary(max_size=4), st.sampled_from(_POINTED + _CODES), st.just(octets[begin:end] * 2)))
        octets = octets[:begin] + new + octets[end:]
    return octets


# A performative, section or SASL body of the corpus, or any value, with or without a descriptor.
kept = st.sampled_from([path.read_bytes() for path in CORPUS])
described = st.builds(
    lambda declared, value: b"\x00" + encode(declared.name) + encode(value),
    st.sampled_from(list(field_codecs.DECLARED.values())),
    values,
)
hostile = st.one_of(st.binary(max_size=64), mutated(kept), mutated(values.map(encode)), mutated(described), described)


def check(octets: bytes) -> None:
    """Check that every decoder returns a value that can be encoded again, or raises a ProtocolError."""
    try:
        value, end = decode(octets)
    except ProtocolError as error:
        check_error(error)
    else:
        assert 0 < end <= len(octets)
        assert identical(decode(encode(value))[0], value)
    for read, write in (
        (decode_performative, encode_performative),
        (lambda data: decode_composite(SASL, data), encode_composite),
        (lambda data: (decode_sections(data), len(data)), encode_sections),
    ):
        try:
            composite, end = read(octets)
        except ProtocolError as error:
            check_error(error)
        else:
            assert 0 <= end <= len(octets)
            try:
                list(getattr(composite, "unsettled", None) or ())
            except ProtocolError as error:
                check_late_error(error)
                continue
            written = write(composite)
            assert write(read(written)[0]) == written


def check_error(error: ProtocolError) -> None:
    assert error.scope is Scope.CONNECTION
    assert error.condition in (AmqpCondition.DECODE_ERROR, AmqpCondition.INVALID_FIELD)
    assert 0 < len(error.description) < 1_000


def check_late_error(error: ProtocolError) -> None:
    """Check an error of an unsettled map, which is decoded entry by entry when a caller reads it."""
    if error.condition is AmqpCondition.RESOURCE_LIMIT_EXCEEDED:
        assert error.scope is Scope.LINK
    else:
        check_error(error)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_octets_worth_keeping_do_no_harm(path: Path) -> None:
    check(path.read_bytes())


@given(hostile)
@settings(max_examples=500)
def test_hostile_octets_are_a_value_or_one_error(octets: bytes) -> None:
    check(octets)


@pytest.mark.slow
@given(hostile)
@settings(max_examples=5_000, derandomize=False)
def test_hostile_octets_for_a_long_time(octets: bytes) -> None:
    check(octets)
