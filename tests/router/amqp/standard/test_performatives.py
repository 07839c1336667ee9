"""The nine frame bodies (§2.7): defaults, mandatory fields, full and compact encodings."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec import types
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Described, Symbol
from amqpmesh.router.amqp.codec.values import encode
from amqpmesh.router.amqp.errors import CommandError, ProtocolError
from amqpmesh.router.amqp.standard.definitions import (
    AmqpCondition,
    Error,
    LinkCondition,
    ReceiverSettleMode,
    Role,
    SenderSettleMode,
    SessionCondition,
)
from amqpmesh.router.amqp.standard.messaging import (
    Accepted,
    DeleteOnClose,
    Modified,
    Received,
    Rejected,
    Released,
    Source,
    Target,
    TerminusExpiryPolicy,
)
from amqpmesh.router.amqp.standard.performatives import (
    OFTEN_SHORT,
    PLAIN_CLOSE,
    SHORT,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Transfer,
    decode_performative,
    decode_short,
    encode_performative,
    encoded_begin,
    encoded_detach,
)
from amqpmesh.router.amqp.standard.transactions import Coordinator, Declared, TransactionalState
from tests.support.data.values import integers, symbols, text, values

uints = integers(0, 2**32 - 1)
maybe_uints = st.none() | uints
capabilities = st.lists(symbols, max_size=3).map(tuple)
fields = st.none() | st.dictionaries(symbols, values, max_size=2)
errors = st.builds(Error, condition=symbols, description=st.none() | text, info=fields)
tags = st.binary(max_size=32)
flags = st.booleans()
outcomes = st.one_of(
    st.just(Accepted()),
    st.just(Released()),
    st.builds(Rejected, error=st.none() | errors),
    st.builds(
        Modified, delivery_failed=st.none() | flags, undeliverable_here=st.none() | flags, message_annotations=fields
    ),
    st.builds(Declared, txn_id=tags),
)
states = st.one_of(
    outcomes,
    st.builds(Received, section_number=uints, section_offset=integers(0, 2**64 - 1)),
    st.builds(TransactionalState, txn_id=tags, outcome=st.none() | outcomes),
)
sources = st.builds(
    Source,
    address=st.none() | text,
    timeout=uints,
    dynamic=flags,
    dynamic_node_properties=st.none() | st.just({Symbol("lifetime-policy"): DeleteOnClose()}),
    filter=fields,
    default_outcome=st.none() | outcomes,
    outcomes=capabilities,
    capabilities=capabilities,
)
targets = st.builds(Target, address=st.none() | text, dynamic=flags, capabilities=capabilities)
limits = {"offered_capabilities": capabilities, "desired_capabilities": capabilities, "properties": fields}

PERFORMATIVES: dict[str, st.SearchStrategy[Performative]] = {
    "open": st.builds(
        Open,
        container_id=text,
        hostname=st.none() | text,
        max_frame_size=uints,
        channel_max=integers(0, 2**16 - 1),
        idle_time_out=maybe_uints,
        outgoing_locales=capabilities,
        **limits,
    ),
    "begin": st.builds(
        Begin,
        remote_channel=st.none() | integers(0, 2**16 - 1),
        next_outgoing_id=uints,
        incoming_window=uints,
        outgoing_window=uints,
        handle_max=uints,
        **limits,
    ),
    "attach": st.builds(
        Attach,
        name=text,
        handle=uints,
        role=st.sampled_from(Role),
        snd_settle_mode=st.sampled_from(SenderSettleMode),
        rcv_settle_mode=st.sampled_from(ReceiverSettleMode),
        source=st.none() | sources,
        target=st.none() | targets | st.builds(Coordinator, capabilities=capabilities),
        unsettled=st.none() | st.dictionaries(tags, st.none() | states, max_size=3),
        incomplete_unsettled=flags,
        initial_delivery_count=maybe_uints,
        max_message_size=st.none() | integers(0, 2**64 - 1),
        **limits,
    ),
    "flow": st.builds(
        Flow,
        next_incoming_id=maybe_uints,
        incoming_window=uints,
        next_outgoing_id=uints,
        outgoing_window=uints,
        handle=maybe_uints,
        delivery_count=maybe_uints,
        link_credit=maybe_uints,
        available=maybe_uints,
        drain=flags,
        echo=flags,
        properties=fields,
    ),
    "transfer": st.builds(
        Transfer,
        handle=uints,
        delivery_id=maybe_uints,
        delivery_tag=st.none() | tags,
        message_format=maybe_uints,
        settled=st.none() | flags,
        more=flags,
        rcv_settle_mode=st.none() | st.sampled_from(ReceiverSettleMode),
        state=st.none() | states,
        resume=flags,
        aborted=flags,
        batchable=flags,
    ),
    "disposition": st.builds(
        Disposition,
        role=st.sampled_from(Role),
        first=uints,
        last=maybe_uints,
        settled=flags,
        state=st.none() | states,
        batchable=flags,
    ),
    "detach": st.builds(Detach, handle=uints, closed=flags, error=st.none() | errors),
    "end": st.builds(End, error=st.none() | errors),
    "close": st.builds(Close, error=st.none() | errors),
}


@pytest.mark.parametrize("name", PERFORMATIVES)
@given(data=st.data(), payload=st.binary(max_size=4))
def test_a_performative_is_the_same_after_a_round_trip(name: str, data: st.DataObject, payload: bytes) -> None:
    performative = data.draw(PERFORMATIVES[name])
    octets = encode_performative(performative)
    again, end = decode_performative(octets + payload)
    assert end == len(octets)
    assert type(again) is type(performative)
    # The encodings are compared: a NaN among the properties is not equal to itself.
    assert encode_performative(again) == octets


MINIMAL: list[tuple[Performative, str]] = [
    (Open(container_id="c"), "00 53 10 c0 13 0a a10163 40 70ffffffff 60ffff 40 40 40 40 40 40"),
    (
        Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=2),
        "00 53 11 c0 0f 08 40 43 5201 5202 70ffffffff 40 40 40",
    ),
    (
        Attach(name="n", handle=0, role=Role.SENDER),
        "00 53 12 c0 13 0e a1016e 43 42 5002 5000 40 40 40 42 40 40 40 40 40",
    ),
    (
        Flow(incoming_window=1, next_outgoing_id=2, outgoing_window=3),
        "00 53 13 c0 0f 0b 40 5201 5202 5203 40 40 40 40 42 42 40",
    ),
    (Transfer(handle=0), "00 53 14 c0 02 01 43"),
    (Transfer(handle=0, delivery_id=1, delivery_tag=b"\x01", more=True), "00 53 14 c0 0a 06 43 5201 a00101 40 40 41"),
    (Disposition(role=Role.RECEIVER, first=5), "00 53 15 c0 04 02 41 5205"),
    (
        Disposition(role=Role.RECEIVER, first=5, last=7, settled=True, state=Accepted()),
        "00 53 15 c0 0b 05 41 5205 5207 41 00532445",
    ),
    (Detach(handle=300, closed=True), "00 53 16 c0 07 02 70 0000012c 41"),
    (End(), "00 53 17 45"),
    (
        Close(error=Error(condition=AmqpCondition.NOT_FOUND)),
        "00 53 18 c0 1a 01 00 53 1d c0 14 01 a3 12" + b"amqp:not-found".hex(),
    ),
]


@pytest.mark.parametrize(("performative", "octets"), MINIMAL[:-1], ids=lambda value: type(value).__name__)
def test_open_begin_attach_and_flow_are_written_in_full_and_the_others_compactly(
    performative: Performative, octets: str
) -> None:
    assert encode_performative(performative).hex(" ") == bytes.fromhex(octets).hex(" ")


@pytest.mark.parametrize(("performative", "_octets"), MINIMAL, ids=lambda value: type(value).__name__)
def test_an_unset_field_reads_as_its_default(performative: Performative, _octets: str) -> None:
    assert decode_performative(encode_performative(performative))[0] == performative


def test_a_short_list_reads_as_a_full_one() -> None:
    short = bytes.fromhex("00 53 12 c0 06 03 a1016e 43 42")
    assert decode_performative(short)[0] == Attach(name="n", handle=0, role=Role.SENDER)


@pytest.mark.parametrize(
    ("octets", "pattern"),
    [
        ("00 53 10 45", r"open\.container-id: is mandatory"),
        ("00 53 11 c0 04 03 40 43 43", r"begin\.outgoing-window: is mandatory"),
        ("00 53 12 c0 05 02 a1016e 43", r"attach\.role: is mandatory"),
        ("00 53 12 c0 06 03 a1016e 40 42", r"attach\.handle: is mandatory"),
        ("00 53 13 c0 02 01 43", r"flow\.incoming-window: is mandatory"),
        ("00 53 14 45", r"transfer\.handle: is mandatory"),
        ("00 53 15 c0 02 01 41", r"disposition\.first: is mandatory"),
        ("00 53 16 45", r"detach\.handle: is mandatory"),
        ("00 53 18 c0 05 01 00 53 1d 45", r"close\.error: error\.condition: is mandatory"),
        ("00 53 14 c0 26 03 43 43 a0 21" + "00" * 33, r"transfer\.delivery-tag: 33 octets are more than 32"),
        ("00 53 12 c0 08 04 a1016e 43 42 5003", r"attach\.snd-settle-mode: 3 is not one of the choices"),
        ("00 53 12 c0 09 05 a1016e 43 42 40 5002", r"attach\.rcv-settle-mode: 2 is not one of the choices"),
        (
            "00 53 12 c0 0c 06 a1016e 43 42 40 40 00532945",
            r"attach\.source: .*ULong\(41\) is not permitted",
        ),
        ("00 53 15 c0 09 05 41 43 40 40 00531045", r"disposition\.state: .*ULong\(16\) is not permitted"),
    ],
)
def test_a_value_forbidden_in_a_field_is_an_invalid_field(octets: str, pattern: str) -> None:
    with pytest.raises(ProtocolError, match=pattern) as raised:
        decode_performative(bytes.fromhex(octets))
    assert raised.value.condition is AmqpCondition.INVALID_FIELD


@pytest.mark.parametrize(
    "octets",
    ["", "40", "00 53 24 45", "00 53 19 45", "00 a3 01 61 45", "00 53 14", "00 53 14 c0 01", "00 53 14 c0 03 01 60 00"],
)
def test_a_body_that_is_no_performative_is_a_decode_error(octets: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        decode_performative(bytes.fromhex(octets))
    assert raised.value.condition is AmqpCondition.DECODE_ERROR


@pytest.mark.parametrize(
    ("value", "same"),
    [
        (
            Attach(name="n", handle=0, role=Role.SENDER, snd_settle_mode=SenderSettleMode.SETTLED),
            {"snd_settle_mode": 1},
        ),
        (Source(expiry_policy=TerminusExpiryPolicy.NEVER), {"expiry_policy": types.Symbol("never")}),
    ],
)
def test_a_choice_of_numbers_or_symbols_may_be_written_as_what_it_equals(value: Any, same: dict[str, Any]) -> None:
    assert encode_composite(replace(value, **same)) == encode_composite(value)


def test_the_fields_of_a_role_are_as_true_as_the_standard_says() -> None:
    assert Role.RECEIVER
    assert not Role.SENDER


def test_conditions_are_the_symbols_that_they_stand_for() -> None:
    assert SessionCondition.WINDOW_VIOLATION == "amqp:session:window-violation"
    assert str(LinkCondition.STOLEN) == f"{LinkCondition.STOLEN}" == "amqp:link:stolen"
    assert {Symbol("amqp:link:stolen"): 1}[LinkCondition.STOLEN] == 1
    assert encode(LinkCondition.STOLEN) == encode(Symbol("amqp:link:stolen"))
    error, _ = decode_performative(encode_performative(Detach(handle=0, error=Error(condition=LinkCondition.STOLEN))))
    assert isinstance(error, Detach)
    assert error.error == Error(condition=Symbol("amqp:link:stolen"))


def test_filters_and_properties_may_hold_any_described_value() -> None:
    source = Source(
        filter={Symbol("f"): Described(Symbol("apache.org:selector-filter:string"), "a > 1"), Symbol("g"): None},
        dynamic_node_properties={
            Symbol("lifetime-policy"): DeleteOnClose(),
            Symbol("other"): Described(types.ULong(0x468C00000004), [1]),
        },
    )
    attach = Attach(name="n", handle=0, role=Role.RECEIVER, source=source, properties={Symbol("p"): Described(1, [])})
    again, _ = decode_performative(encode_performative(attach))
    assert again == attach
    assert isinstance(again, Attach)
    assert again.source is not None
    assert again.source.dynamic_node_properties is not None
    assert type(again.source.dynamic_node_properties[Symbol("lifetime-policy")]) is DeleteOnClose


def test_an_unsettled_map_that_is_empty_is_not_one_that_is_absent() -> None:
    for unsettled in (None, {}):
        attach = Attach(name="n", handle=0, role=Role.RECEIVER, unsettled=unsettled)
        again, _ = decode_performative(encode_performative(attach))
        assert isinstance(again, Attach)
        assert again.unsettled == unsettled


@pytest.mark.parametrize(
    ("performative", "pattern"),
    [
        (Attach(name="n", handle=2**32, role=Role.SENDER), r"attach\.handle"),
        (Transfer(handle=0, delivery_tag=b"x" * 33), r"transfer\.delivery-tag: 33 octets"),
        (Attach(name="n", handle=0, role=Role.SENDER, properties={1: 2}), r"attach\.properties"),
        (Attach(name="n", handle=0, role=Role.SENDER, unsettled={b"x" * 33: None}), r"attach\.unsettled"),
        (Disposition(role=Role.SENDER, first=0, state=Source()), r"disposition\.state"),
    ],
)
def test_a_performative_that_cannot_be_sent_is_the_callers_error(performative: Any, pattern: str) -> None:
    with pytest.raises(CommandError, match=pattern):
        encode_performative(performative)


def test_for_peers_that_read_what_they_should_a_flow_is_written_without_what_has_its_default() -> None:
    flow = Flow(incoming_window=5, next_outgoing_id=300, outgoing_window=7, handle=0, delivery_count=1, link_credit=2)
    compact = encode_performative(flow, compact=True)
    assert len(compact) == len(encode_performative(flow)) - 4, "available, drain, echo, properties: an octet each"
    assert decode_performative(compact) == (flow, len(compact))


SHORT_ONES = [
    Begin(next_outgoing_id=0, incoming_window=2048, outgoing_window=2**31),
    Begin(remote_channel=7, next_outgoing_id=2**32 - 1, incoming_window=2**32 - 1, outgoing_window=2**32 - 1),
    Detach(handle=0),
    Detach(handle=2**32 - 1, closed=True),
    Detach(handle=1, error=Error(condition=AmqpCondition.NOT_FOUND)),
    End(),
    Close(),
]


@pytest.mark.parametrize("performative", SHORT_ONES, ids=repr)
def test_short_bodies_that_come_again_and_again_are_decoded_once(performative: Any) -> None:
    for body in (encode_performative(performative), encode_performative(performative, compact=True)):
        assert body[1] == 0x53
        assert body[2] in OFTEN_SHORT
        assert len(body) <= SHORT
        assert decode_short(body) == decode_performative(body) == (performative, len(body))
        assert decode_short(body)[0] is decode_short(bytes(bytearray(body)))[0]


def test_a_peer_cannot_have_many_bodies_remembered() -> None:
    for handle in range(10_000):
        decode_short(encode_performative(Detach(handle=handle)))
        encoded_detach(handle, True)
        encoded_begin(handle, 0, 0, 0, 0, False)
    for each in (decode_short, encoded_detach, encoded_begin):
        assert each.cache_info().currsize == each.cache_info().maxsize == 256


def test_a_malformed_short_body_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(ProtocolError, match=r"detach\.handle: is mandatory"):
            decode_short(b"\x00\x53\x16\xc0\x02\x01\x40")


def test_what_is_written_without_a_performative_is_the_same() -> None:
    for handle in (0, 1, 255, 256, 2**32 - 1):
        for closed in (False, True):
            assert encoded_detach(handle, closed) == encode_performative(Detach(handle=handle, closed=closed))
    assert encode_performative(Close()) == PLAIN_CLOSE
    begin = Begin(remote_channel=1, next_outgoing_id=2, incoming_window=3, outgoing_window=4, handle_max=5)
    for compact in (False, True):
        assert encoded_begin(1, 2, 3, 4, 5, compact) == encode_performative(begin, compact=compact)
