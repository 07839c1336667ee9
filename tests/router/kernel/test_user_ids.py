"""User-ids in any encoding: what the kernel permits alone, what the router permits, and what a receiver would read."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec.composite import Registry, decode_composite, encode_composite
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
from amqpmesh.router.kernel import Incomplete, SectionWalk, UserIdRule, Violation, read_head, read_user_id
from tests.support.data import encodings as wire
from tests.support.data.messages import bodies, messages, properties
from tests.support.worlds.kernel_router import Router
from tests.support.worlds.kernels import Kernels, agreed
from tests.support.worlds.side_by_side import transfer

OWN = b"alice"
RULES = [(OWN, True), (OWN, False), (None, True), (None, False)]
USER_IDS = st.sampled_from([OWN, b"", b"bob", b"alic", b"alice\0", b"ALICE", b"alice" * 60])
BODY = encode_composite(AmqpValue(value="x"))


def decided(data: bytes, rule: tuple[bytes | None, bool]) -> bool:
    """Return whether a router permits a whole message."""
    head = read_head(data, complete=True)
    assert head is not None
    if head.irregular:
        return False
    try:
        return UserIdRule(*rule).permits(read_user_id(data, head.bare_at)) and is_regular([data])
    except (Violation, Incomplete):
        return False


def is_regular(parts: list[bytes]) -> bool:
    """Return whether a walk finds nothing wrong in a message."""
    walk = SectionWalk()
    try:
        for part in parts:
            walk.feed(part)
        walk.finish()
    except Violation:
        return False
    return True


def alone(kernel: Any, data: bytes, rule: tuple[bytes | None, bool], *, message_format: int = 0) -> bool:
    """Return whether a kernel relays a message without the router."""
    router = Router(kernel)
    router.incoming.user_ids = kernel.UserIdRule(*rule)
    frame = transfer(0, b"t", data, message_format=message_format)
    return bool(kernel.relay_frames(router.source, frame, 0, len(frame)) == len(frame))


def permitted(user_id: bytes | None, rule: tuple[bytes | None, bool]) -> bool:
    own, may_be_absent = rule
    return own is not None and user_id == own if user_id else may_be_absent


@st.composite
def named(draw: st.DrawFn) -> tuple[bytes, bytes | None]:
    """Draw a message, and the user-id that it has."""
    message = draw(messages())
    user_id = draw(st.none() | USER_IDS)
    ids = st.one_of(st.just(b"\x53\x07"), st.just(b"\x98" + bytes(16)), st.binary(max_size=300).flatmap(wire.binaries))
    fields = [
        draw(st.sampled_from([st.just(wire.NULL), ids])),
        st.just(wire.NULL) if user_id is None else wire.binaries(user_id),
        st.just(wire.NULL) | wire.strings("to"),
    ]
    section = draw(wire.composites(0x73, "amqp:properties:list", [*fields], 13))
    before = [each for code, each in message.sections if code < 0x73]
    after = [each for code, each in message.sections if code > 0x73]
    if user_id is None and draw(st.booleans()):
        section = b""
    return b"".join([*before, section, *after]), user_id


@given(named(), st.sampled_from(RULES))
def test_the_router_permits_the_user_ids_that_the_rule_has_in_any_encoding(
    message: tuple[bytes, bytes | None], rule: tuple[bytes | None, bool]
) -> None:
    data, user_id = message
    assert decided(data, rule) is permitted(user_id, rule)


@given(named(), st.sampled_from(RULES))
def test_the_kernel_relays_no_message_that_the_router_refuses(
    kernels: Kernels, message: tuple[bytes, bytes | None], rule: tuple[bytes | None, bool]
) -> None:
    data, user_id = message
    assert not agreed(kernels, lambda kernel: alone(kernel, data, rule)) or permitted(user_id, rule)


SECTIONS = st.one_of(
    st.just(encode_composite(Header(durable=True))),
    st.just(encode_composite(DeliveryAnnotations(value={Symbol("x-opt-a"): 1}))),
    st.just(encode_composite(MessageAnnotations(value={Symbol("x-opt-a"): 1}))),
    USER_IDS.map(lambda each: encode_composite(Properties(user_id=each))),
    st.just(encode_composite(Properties(message_id="x"))),
    properties("to"),
    st.just(bytes.fromhex("005374c10702a1016ba10176")),
    st.just(bytes.fromhex("00a31e616d71703a6170706c69636174696f6e2d70726f706572746965733a6d6170c10100")),
    bodies().map(lambda each: b"".join(section for _, section in each)),
)

_SECTIONS: Registry[Section] = Registry(
    *(Header, DeliveryAnnotations, MessageAnnotations, Properties, ApplicationProperties),
    *(Data, AmqpSequence, AmqpValue, Footer),
)


@settings(max_examples=300)
@given(st.lists(SECTIONS, max_size=5).map(b"".join), st.sampled_from(RULES), st.data())
def test_sections_in_any_order_hide_no_user_id(
    kernels: Kernels, message: bytes, rule: tuple[bytes | None, bool], data: st.DataObject
) -> None:
    message = data.draw(st.just(message) | wire.mutated(message))
    is_alone = agreed(kernels, lambda kernel: alone(kernel, message, rule))
    is_permitted = decided(message, rule)
    assert is_permitted or not is_alone
    if not is_permitted:
        return
    at = 0
    while at < len(message):  # as receivers do that take the sections as they come
        try:
            found, at = decode_composite(_SECTIONS, message, at)
        except ProtocolError:
            return
        if isinstance(found, Properties):
            assert permitted(found.user_id, rule)


@given(st.lists(SECTIONS, max_size=4).map(b"".join), st.data())
def test_a_walk_finds_the_same_in_any_parts(message: bytes, data: st.DataObject) -> None:
    message = data.draw(st.just(message) | wire.mutated(message))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(message)), max_size=6)))
    parts = [message[a:b] for a, b in pairwise([0, *cuts, len(message)])]
    assert is_regular(parts) is is_regular([message]) is is_regular([bytes([each]) for each in message])


def test_the_items_of_a_value_take_its_size() -> None:
    for right in (
        "005377d1000000050000000141",
        "005377c103024041",
        "005377e0050355010203",
        "005377e00400004440",
        "005377e006010044004440",
        "005377f00000000900000002a101610162",
        "005377005301c0030153ff",
    ):
        assert is_regular([bytes.fromhex(right)]), right
    for wrong in (
        "005377c103014041",
        "005377c1020240",
        "005377e0050455010203",
        "005377e0050245",
        "005377f0ffffffff",
        "005373005301c0030153ff",
    ):
        assert not is_regular([bytes.fromhex(wrong)]), wrong
    assert not is_regular([b"\0\x53\x77" + b"\0" * 3000])
    assert not is_regular([b"\0\xb3" + b"\1" * 3000])


def test_the_usual_messages_are_relayed_by_the_kernel_alone(kernels: Kernels) -> None:
    mine = encode_composite(Properties(message_id="m" * 40, user_id=OWN, to="q"))
    head = encode_composite(Header(durable=True)) + encode_composite(
        MessageAnnotations(value={Symbol("x-opt-a"): "v" * 300})
    )
    long = encode_composite(Properties(message_id="m" * 250, user_id=OWN, to="q" * 250))
    more = encode_composite(ApplicationProperties(value={"k": 1}))
    for kernel in kernels:
        for data in (BODY, mine + BODY, head + mine + BODY, head + BODY, long + more + BODY, more + BODY):
            assert alone(kernel, data, (OWN, True))
        assert alone(kernel, mine + BODY, (OWN, False))
        assert not alone(kernel, BODY, (OWN, False))
        assert not alone(kernel, mine + BODY, (None, True))
        assert not alone(kernel, encode_composite(Properties(user_id=b"bob")) + BODY, (OWN, True))
        assert not alone(kernel, mine + BODY, (OWN, True), message_format=1)


def test_a_first_frame_that_does_not_show_the_user_id_is_left_to_the_router(kernels: Kernels) -> None:
    data = encode_composite(Properties(message_id="m" * 40, user_id=OWN))
    for kernel in kernels:
        for cut in range(len(data)):
            router = Router(kernel)
            router.incoming.user_ids = kernel.UserIdRule(OWN, True)
            frame = transfer(0, b"t", data[:cut], more=True)
            assert kernel.relay_frames(router.source, frame, 0, len(frame)) == 0, cut
