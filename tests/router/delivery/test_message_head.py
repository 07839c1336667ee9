"""Messages that leave a router: equal to those that arrived, but for ttl and some annotations (§3.2)."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from amqpmesh.policies.annotations import DeliveryAnnotationsRule
from amqpmesh.router.amqp.codec.composite import decode_composite, encode_composite
from amqpmesh.router.amqp.codec.types import Symbol, ULong, Value
from amqpmesh.router.amqp.codec.value_limits import FEW_VALUES, refuse_values
from amqpmesh.router.amqp.errors import ProtocolError
from amqpmesh.router.amqp.standard.delivery_states import Modified
from amqpmesh.router.amqp.standard.messaging import AmqpValue, DeliveryAnnotations, Header, MessageAnnotations
from amqpmesh.router.delivery import message_head
from amqpmesh.router.kernel import Relay, read_head
from tests.support.data import encodings as wire
from tests.support.data.messages import (
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    TTLS,
    Message,
    messages,
)

PASS, DROP = DeliveryAnnotationsRule.PASS, DeliveryAnnotationsRule.DROP
RULES = st.sampled_from(DeliveryAnnotationsRule)

BODY = encode_composite(AmqpValue(value="body"))
#: Out of order, doubled, cut off, of the wrong types: each with nothing wrong before it.
IRREGULAR = {
    "annotations before the header": bytes.fromhex("005372c10100 005370c0050340405207"),
    "two headers": bytes.fromhex("005370c0050340405263 005370c0050340405207"),
    "two delivery annotations": bytes.fromhex("005371c10100 005371c10100"),
    "a header that is no list": bytes.fromhex("005370a10141"),
    "a header with a wrong durable": bytes.fromhex("005370c00603a101414040"),
    "a header cut off": bytes.fromhex("005370c00403404052"),
}


def relay(data: bytes, arrived: float = 0.0) -> Relay:
    made = Relay(None, None, 0, arrived)
    made.head = read_head(data, complete=True)
    return made


def with_head(*sections: Header | DeliveryAnnotations | MessageAnnotations) -> bytes:
    return b"".join(encode_composite(section) for section in sections) + BODY


# ---------------------------------------------------------------------------------------------------------- leaving


@given(messages(), st.data())
def test_a_message_leaves_as_it_came_but_for_its_ttl(message: Message, data: st.DataObject) -> None:
    waited = data.draw(st.floats(0, (message.ttl or 1e13) / 500))  # seconds; half of them within the ttl
    left = message_head.leaving(relay(message.data, 5.0), message.data, PASS, 5.0 + waited)
    if not message.ttl:
        assert left == message.data
        return
    elapsed = (5.0 + waited - 5.0) * 1000
    if elapsed >= message.ttl:
        assert left is None
        return
    assert left is not None
    header = message.section(HEADER)
    assert left[len(header) :] == message.data[len(header) :]
    before, after = decode_composite(Header, header)[0], decode_composite(Header, left)[0]
    assert after.ttl is not None
    assert max(1, message.ttl - elapsed) <= after.ttl < message.ttl - elapsed + 1
    assert (before.durable, before.priority, before.first_acquirer, before.delivery_count) == (
        after.durable,
        after.priority,
        after.first_acquirer,
        after.delivery_count,
    )


@given(messages(st.none()))
def test_dropped_delivery_annotations_are_all_that_goes(message: Message) -> None:
    came = relay(message.data)
    left = message_head.leaving(came, message.data, DROP, 0.0)
    start, end = message.extent(DELIVERY_ANNOTATIONS)
    assert left == message.data[:start] + message.data[end:]
    assert came.section_shift == (1 if end else 0)


@given(messages(TTLS.filter(lambda ttl: ttl != 1)), RULES, st.data())
def test_what_leaves_does_not_depend_on_how_much_has_come(
    message: Message, rule: DeliveryAnnotationsRule, data: st.DataObject
) -> None:
    whole = message.data
    cut = data.draw(st.integers(len(whole) - len(message.bare), len(whole)))
    first = message_head.leaving(relay(whole), whole[:cut], rule, 0.001)
    assert first is not None
    assert first + whole[cut:] == message_head.leaving(relay(whole), whole, rule, 0.001)


def test_the_meshs_own_annotations_go_and_the_clients_stay() -> None:
    ours, theirs = Symbol("x-opt-mesh-to"), Symbol("x-opt-trace")
    footer = MessageAnnotations(value={ours: "message annotations are propagated"})
    data = with_head(Header(ttl=7), DeliveryAnnotations(value={ours: "q", theirs: 1}), footer)
    came = relay(data)
    assert message_head.leaving(came, data, PASS, 0.0) == with_head(
        Header(ttl=7), DeliveryAnnotations(value={theirs: 1}), footer
    )
    assert came.section_shift == 0


@pytest.mark.parametrize("rule", DeliveryAnnotationsRule)
def test_a_section_of_which_nothing_is_left_goes(rule: DeliveryAnnotationsRule) -> None:
    data = with_head(Header(), DeliveryAnnotations(value={Symbol("x-opt-mesh-to"): "q"}))
    came = relay(data)
    assert message_head.leaving(came, data, rule, 0.0) == with_head(Header())
    assert came.section_shift == 1


def test_malformed_annotations_that_name_the_meshs_own_go() -> None:
    forged = b"\x00\x53\x71" + b"\xa3\x0dx-opt-mesh-to"
    assert message_head.leaving(relay(forged + BODY), forged + BODY, PASS, 0.0) == BODY


def test_a_message_of_another_format_leaves_as_it_came() -> None:
    came = Relay(None, None, 1, 0.0)
    assert message_head.leaving(came, b"anything", DROP, 1e9) == b"anything"
    assert message_head.expires_at(came) is None


@pytest.mark.parametrize("data", IRREGULAR.values(), ids=IRREGULAR.keys())
@pytest.mark.parametrize("rule", DeliveryAnnotationsRule)
def test_irregular_sections_leave_as_they_came(data: bytes, rule: DeliveryAnnotationsRule) -> None:
    came = relay(data)
    assert came.head is not None
    start, end = came.head.delivery_annotations if rule is DROP else (0, 0)
    assert message_head.leaving(came, data, rule, 0.0) == data[:start] + data[end:]


@pytest.mark.parametrize(("ttl", "expected"), [(None, None), (0, None), (1, 5.001), (60_000, 65.0)])
def test_a_message_expires_when_its_ttl_is_over(ttl: int | None, expected: float | None) -> None:
    data = with_head(Header(ttl=ttl))
    came = relay(data, arrived=5.0)
    assert message_head.expires_at(came) == expected
    if expected is not None:
        assert message_head.leaving(came, data, PASS, expected + 1e-6) is None


# ------------------------------------------------------------------------------------------- the strict reading


@pytest.mark.parametrize("section", [DeliveryAnnotations, MessageAnnotations])
@pytest.mark.parametrize("key", [Symbol("mine"), Symbol("x-mine"), ULong(7)])
def test_by_the_strict_reading_every_annotation_must_be_optional(
    section: type[DeliveryAnnotations | MessageAnnotations], key: Symbol | ULong
) -> None:
    optional: dict[Symbol | ULong, Value] = {Symbol("x-opt-a"): 1, Symbol("x-opt-b"): 2}
    for annotations, condition in ((optional, None), ({**optional, key: 3}, "amqp:not-implemented")):
        data = with_head(Header(), section(value=annotations))
        head = read_head(data, complete=True)
        assert head is not None
        refusal = message_head.strict_refusal(data, head)
        assert (refusal and refusal.condition) == condition


def test_by_the_strict_reading_annotations_that_cannot_be_read_are_refused() -> None:
    data = b"\x00\x53\x72\xa1\x01A" + BODY
    head = read_head(data, complete=True)
    assert head is not None
    refusal = message_head.strict_refusal(data, head)
    assert refusal is not None
    assert refusal.condition == "amqp:decode-error"


# ------------------------------------------------------------------------------------------------------ sent again


@given(messages(), st.booleans())
def test_a_message_that_is_sent_again_counts_its_tries_and_keeps_the_rest(message: Message, failed: bool) -> None:
    data = message.data
    again = message_head.redelivered(data, failed=failed, modified=None)
    start, end = message.extent(HEADER)
    before = decode_composite(Header, data[start:end])[0] if end else Header()
    after, after_end = decode_composite(Header, again)
    assert again[after_end:] == data[end:]
    assert after.first_acquirer is False
    assert after.delivery_count == before.delivery_count + failed
    assert (after.durable, after.priority, after.ttl) == (before.durable, before.priority, before.ttl)


@given(messages())
def test_annotations_of_a_modified_outcome_are_merged(message: Message) -> None:
    added: dict[Symbol, Value] = {Symbol("x-opt-why"): "new", Symbol("x-opt-more"): 1}
    again = message_head.redelivered(message.data, failed=True, modified=Modified(message_annotations=added))
    head = read_head(again, complete=True)
    assert head is not None
    start, end = message.extent(MESSAGE_ANNOTATIONS)
    old = decode_composite(MessageAnnotations, message.data[start:end])[0].value if end else {}
    start, end = head.message_annotations
    new = decode_composite(MessageAnnotations, again[start:end])[0].value
    try:
        refuse_values(message.data[slice(*message.extent(MESSAGE_ANNOTATIONS))], FEW_VALUES)
    except ProtocolError:  # so many are not read
        assert again[start:end] == message.section(MESSAGE_ANNOTATIONS)
    else:
        assert {key: value for key, value in new.items() if key in added} == added
        assert [key for key in new if key not in added] == [key for key in old if key not in added]
    assert again[head.bare_at :] == message.bare
    start, end = head.delivery_annotations
    assert again[start:end] == message.section(DELIVERY_ANNOTATIONS)


def test_the_tries_stop_at_the_largest_count() -> None:
    data = with_head(Header(delivery_count=2**32 - 1))
    assert message_head.redelivered(data, failed=True, modified=None) == data


@pytest.mark.parametrize("data", IRREGULAR.values(), ids=IRREGULAR.keys())
def test_a_malformed_message_is_sent_again_unchanged(data: bytes) -> None:
    modified = Modified(delivery_failed=True, message_annotations={Symbol("x-opt-k"): 1})
    assert message_head.redelivered(data + BODY, failed=True, modified=modified) == data + BODY


def test_annotations_that_cannot_be_merged_are_left_alone() -> None:
    data = b"\x00\x53\x72\xa1\x01A" + BODY
    modified = Modified(message_annotations={Symbol("x-opt-k"): 1})
    assert message_head.redelivered(data, failed=True, modified=modified) == data


def test_a_try_counts_though_there_are_too_many_annotations_to_merge_others_into() -> None:
    annotations = encode_composite(MessageAnnotations(value={Symbol("x-opt-many"): [None] * FEW_VALUES}))
    modified = Modified(message_annotations={Symbol("x-opt-k"): 1})
    again = message_head.redelivered(annotations + BODY, failed=True, modified=modified)
    header, end = decode_composite(Header, again)
    assert header.delivery_count == 1
    assert again[end:] == annotations + BODY


# --------------------------------------------------------------------------------------------------------- no ttl


@given(messages())
def test_a_dead_letter_has_no_ttl_and_is_otherwise_the_same(message: Message) -> None:
    data = message.data
    dead = message_head.without_ttl(data)
    start, end = message.extent(HEADER)
    if message.ttl is None:
        assert dead == data
        return
    header, header_end = decode_composite(Header, dead)
    before = decode_composite(Header, data[start:end])[0]
    assert dead[header_end:] == data[end:]
    assert header.ttl is None
    assert (header.durable, header.priority, header.delivery_count) == (
        before.durable,
        before.priority,
        before.delivery_count,
    )


def test_a_header_that_cannot_be_read_keeps_its_ttl() -> None:
    data = bytes.fromhex("005370c00703a10141405207") + BODY
    head = read_head(data, complete=True)
    assert head is not None
    assert head.ttl == 7
    assert message_head.without_ttl(data) == data


# --------------------------------------------------------------------------------------------------- whatever comes


@given(
    messages().map(lambda message: message.data).flatmap(wire.mutated),
    RULES,
    st.booleans(),
    st.sampled_from([None, Modified(message_annotations={Symbol("x-opt-k"): 1})]),
)
def test_whatever_comes_the_bare_message_leaves_as_it_came(
    data: bytes, rule: DeliveryAnnotationsRule, failed: bool, modified: Modified | None
) -> None:
    came = relay(data)
    assert came.head is not None
    bare = data[came.head.bare_at :]
    left = message_head.leaving(came, data, rule, 0.0)
    assert left is not None
    assert left.endswith(bare)
    assert message_head.redelivered(data, failed=failed, modified=modified).endswith(bare)
    assert message_head.without_ttl(data).endswith(bare)


@given(messages(TTLS.filter(bool)).map(lambda message: message.data).flatmap(wire.mutated))
def test_whatever_comes_only_a_ttl_is_patched(data: bytes) -> None:
    came = relay(data)
    assert came.head is not None
    assume(came.head.ttl > 1)
    left = message_head.leaving(came, data, PASS, 0.001)
    assert left is not None
    again = read_head(left, complete=True)
    assert again is not None
    assert (again.ttl, again.bare_at, again.irregular) == (came.head.ttl - 1, came.head.bare_at, came.head.irregular)
    try:
        before = decode_composite(Header, data)[0]
    except ProtocolError:
        return
    after = decode_composite(Header, left)[0]
    assert (after.durable, after.priority) == (before.durable, before.priority)
