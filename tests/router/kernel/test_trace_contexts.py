"""Trace contexts as the kernel finds them in the first frame of a message, in any encoding, and hostile ones."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.messaging import (
    AmqpValue,
    ApplicationProperties,
    DeliveryAnnotations,
    Header,
    MessageAnnotations,
    Properties,
)
from amqpmesh.router.kernel import ALL_IDS, MOST_KEYS, TraceContexts, read_trace_context
from tests.support.worlds.kernels import Kernels, agreed

TRACE = "0123456789abcdef0123456789abcdef"
PARENT = f"00-{TRACE}-0123456789abcdef-01"
OTHER = PARENT.replace("0123", "4567")
BODY = encode_composite(AmqpValue(value="traceparent"))
HEADS = encode_composite(Header(priority=7, ttl=5)) + encode_composite(
    DeliveryAnnotations(value={Symbol("x-opt-a"): "traceparent"})
)


def annotated(**fields: object) -> bytes:
    return encode_composite(MessageAnnotations(value={Symbol(name): value for name, value in fields.items()}))  # type: ignore[misc]


def with_properties(**fields: object) -> bytes:
    return encode_composite(Properties(message_id="m", to="q")) + encode_composite(
        ApplicationProperties(value=fields)  # type: ignore[arg-type]
    )


def takes(data: bytes, sample: float = 1.0, room: int = 1) -> bool:
    contexts = TraceContexts(int(sample * ALL_IDS))
    contexts.room = room
    return bool(contexts.takes(data, 0, len(data)))


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (with_properties(traceparent=PARENT) + BODY, (PARENT, "")),
        (with_properties(a=1, b="x", traceparent=PARENT, tracestate="a=b") + BODY, (PARENT, "a=b")),
        (HEADS + annotated(traceparent=PARENT) + BODY, (PARENT, "")),
        (HEADS + annotated(traceparent=PARENT) + with_properties(traceparent=OTHER, tracestate="a=b"), (PARENT, "")),
        (annotated(other=1) + with_properties(traceparent=OTHER) + BODY, (OTHER, "")),
        (with_properties(**{f"k{each}": each for each in range(MOST_KEYS - 1)}, traceparent=PARENT), (PARENT, "")),
    ],
)
def test_the_context_of_the_annotations_comes_before_that_of_the_properties(
    message: bytes, found: tuple[str, str]
) -> None:
    assert read_trace_context(message) == tuple(each.encode() for each in found)
    assert takes(message)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        BODY,
        HEADS + BODY,
        with_properties() + BODY,
        with_properties(traceparent=7) + BODY,
        with_properties(tracestate="a=b") + BODY,
        with_properties(xtraceparent=PARENT) + BODY,
        with_properties(a="\x0btraceparent\xa1\x37" + PARENT) + BODY,
        BODY + with_properties(traceparent=PARENT),
        (with_properties(traceparent=PARENT))[:-1],
        with_properties(**{f"k{each}": each for each in range(MOST_KEYS)}, traceparent=PARENT),
    ],
)
def test_other_messages_have_none(message: bytes) -> None:
    assert read_trace_context(message) is None
    assert not takes(message)


@pytest.mark.parametrize(
    "text", ["", "00", PARENT[:-1], PARENT[:-1] + "0", PARENT[:-1] + "G", PARENT.replace("-", "_"), PARENT.upper()]
)
def test_a_malformed_context_or_one_that_is_not_sampled_chooses_no_message(text: str) -> None:
    assert not takes(with_properties(traceparent=text))


def test_the_share_is_that_of_opentelemetry_and_the_room_is_kept() -> None:
    sampling = pytest.importorskip("opentelemetry.sdk.trace.sampling")
    rule = sampling.TraceIdRatioBased(0.25)
    chosen = 0
    for number in range(1, 400):
        trace_id = number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128
        message = with_properties(traceparent=f"00-{trace_id:032x}-0123456789abcdef-01")
        expected = rule.should_sample(None, trace_id, "x").decision.is_sampled()
        assert takes(message, 0.25) is expected
        chosen += expected
    assert 60 < chosen < 140
    assert not takes(with_properties(traceparent=PARENT), 0.0)
    contexts = TraceContexts(ALL_IDS)
    message = with_properties(traceparent=PARENT)
    assert not contexts.takes(message, 0, len(message))
    assert contexts.passed_over == 1


SECTIONS = st.lists(
    st.sampled_from(
        [
            HEADS,
            annotated(traceparent=PARENT),
            annotated(a={Symbol("traceparent"): PARENT}),
            with_properties(traceparent=OTHER, tracestate="a=b"),
            with_properties(traceparent="\u20ac" * 30),
            b"\x00\x53\x72\xd1\x00\x00\x00\x10\xff\xff\xff\xff",
            b"\x00\x53\x74\xc1\x01\xff\xb1\xff\xff\xff\xff",
            b"\x00\x53\x74\xc1\x00",
            b"\x00\x53\x74\x45",
            BODY,
        ]
    ),
    max_size=4,
).map(b"".join)


@given(SECTIONS, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3), st.integers(0, 400))
def test_both_kernels_find_the_same_in_hostile_octets(
    kernels: Kernels, data: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    octets = bytearray(data)
    for at, octet in changes:
        if at < len(octets):
            octets[at] = octet
    message = bytes(octets[: max(0, len(octets) - cut)] if cut < 100 else octets)

    def look(kernel: ModuleType) -> object:
        contexts = kernel.TraceContexts(ALL_IDS // 2)
        contexts.room = 1
        return contexts.takes(message, 0, len(message)), kernel.read_trace_context(message)

    agreed(kernels, look)
