"""Attaches that differ in their name and their handle alone: read and answered as if nothing were remembered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp import alike_attaches
from amqpmesh.router.amqp.alike_attaches import ANSWERS, LONGEST, REMEMBERED, AlikeAttaches, AttachTerms, decode_alike
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import ProtocolError
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Released
from amqpmesh.router.amqp.standard.messaging import DistributionMode, Source, Target
from amqpmesh.router.amqp.standard.performatives import Attach, decode_performative, encode_performative
from amqpmesh.router.amqp.standard.transactions import Coordinator

HANDLES = st.sampled_from([0, 1, 255, 256, 2**32 - 1])
NAMES = st.one_of(st.text(max_size=12), st.sampled_from(["n" * 240, "n" * 255, "n" * 256, "\N{SNOWMAN}" * 90]))
ADDRESSES = st.one_of(st.none(), st.text(max_size=8))
OUTCOMES = st.sampled_from([None, Accepted(), Released(), Modified(delivery_failed=True)])
SYMBOLS = st.sampled_from([(), (Symbol("amqp:accepted:list"),), (Symbol("a"), Symbol("b"))])

SOURCES = st.one_of(
    st.none(),
    st.builds(
        Source,
        address=ADDRESSES,
        dynamic=st.booleans(),
        distribution_mode=st.sampled_from([None, *DistributionMode]),
        filter=st.sampled_from([None, {Symbol("f"): "x"}]),
        default_outcome=OUTCOMES,
        outcomes=SYMBOLS,
        capabilities=SYMBOLS,
    ),
)
TARGETS = st.one_of(st.none(), st.just(Coordinator()), st.builds(Target, address=ADDRESSES, dynamic=st.booleans()))
ATTACHES = st.builds(
    Attach,
    name=NAMES,
    handle=HANDLES,
    role=st.sampled_from(Role),
    snd_settle_mode=st.sampled_from(SenderSettleMode),
    rcv_settle_mode=st.sampled_from(ReceiverSettleMode),
    source=SOURCES,
    target=TARGETS,
    unsettled=st.sampled_from([None, {}]),
    initial_delivery_count=st.sampled_from([None, 0, 7]),
    max_message_size=st.sampled_from([None, 0, 2**40]),
    desired_capabilities=SYMBOLS,
    properties=st.sampled_from([None, {Symbol("p"): 1}]),
)


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike_attaches, "_known", {})


def plainly(body: bytes) -> Attach | str:
    """Decode with nothing remembered. Returns: the attach, or the error in its place."""
    try:
        attach, end = decode_performative(body)
    except ProtocolError as error:
        return str(error)
    assert isinstance(attach, Attach)
    return attach if end == len(body) else "more"


def alike(body: bytes) -> Attach | str | None:
    """Decode with what is remembered. Returns: as `plainly`; None: it is left to the decoder."""
    try:
        found = decode_alike(body)
    except ProtocolError as error:
        return str(error)
    return None if found is None else found[0]


@given(ATTACHES, NAMES, HANDLES, st.booleans())
def test_it_reads_what_the_decoder_reads(attach: Attach, name: str, handle: int, compact: bool) -> None:
    for each in (attach, replace(attach, name=name, handle=handle), attach):
        body = encode_performative(each, compact=compact)
        assert alike(body) in (None, plainly(body))


@given(ATTACHES, st.integers(3, 80), st.integers(0, 255))
def test_it_reads_no_octets_that_the_decoder_refuses(attach: Attach, at: int, octet: int) -> None:
    body = encode_performative(attach)
    alike(body)
    broken = bytearray(body)
    broken[at % len(body)] = octet
    if broken[:3] == body[:3]:
        assert alike(bytes(broken)) in (None, plainly(bytes(broken)))
        assert alike(body[:-1]) in (None, plainly(body[:-1]))


@given(ATTACHES, NAMES, HANDLES, st.booleans())
def test_an_answer_has_the_octets_of_one_that_is_encoded_alone(
    attach: Attach, name: str, handle: int, compact: bool
) -> None:
    terms = AttachTerms(attach, compact=compact)
    assert terms.body(name, handle) == encode_performative(replace(attach, name=name, handle=handle), compact=compact)


def body_of(address: str, *, name: str = "n", properties: dict[Symbol, object] | None = None) -> bytes:
    target = Target(address=address)
    attach = Attach(name=name, handle=0, role=Role.RECEIVER, target=target, properties=properties)
    return encode_performative(attach)


def test_alike_attaches_share_what_is_remembered() -> None:
    one, other, third = (decode_alike(body_of(*each)) for each in (("q",), ("q",), ("r",)))
    assert one is not None
    assert other is not None
    assert third is not None
    assert one[1] is other[1] is not third[1]
    assert one[0].target is other[0].target


@pytest.mark.parametrize(
    "body",
    [body_of("q" * LONGEST), body_of("q", properties={Symbol("p"): 1}), body_of("q", name="n" * 256)],
    ids=["long", "map", "long name"],
)
def test_some_are_left_to_the_decoder(body: bytes) -> None:
    assert decode_alike(body) is None
    assert not alike_attaches._known


def test_the_number_of_those_that_are_remembered_is_bounded() -> None:
    for number in range(2 * REMEMBERED + 1):
        assert decode_alike(body_of(f"q{number}")) is not None
        assert len(alike_attaches._known) <= REMEMBERED
    assert len(alike_attaches._known) == 1


def test_the_number_of_answers_that_are_remembered_is_bounded() -> None:
    attach = Attach(name="n", handle=0, role=Role.RECEIVER)
    known = AlikeAttaches(attach)
    for most in range(2 * ANSWERS + 1):
        known.remember(most, attach, compact=False)
        assert len(known.answers) <= ANSWERS
