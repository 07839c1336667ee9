"""Heads of messages: whole or in pieces, in any encoding, with any octets."""

import time
from contextlib import suppress

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec.composite import decode_composite, encode_composite
from amqpmesh.router.amqp.codec.types import Timestamp, ULong
from amqpmesh.router.amqp.errors import ProtocolError
from amqpmesh.router.amqp.standard.messaging import AmqpValue, Header, Properties
from amqpmesh.router.kernel import (
    Head,
    Incomplete,
    Violation,
    patch_ttl,
    read_expiry,
    read_head,
    read_header_info,
    read_to,
)
from tests.support.data import encodings as wire
from tests.support.data.messages import (
    ANY_TTLS,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    TTLS,
    Message,
    headers,
    messages,
    properties,
)

Fields = dict[str, object]


def fields(head: Head | None) -> Fields | None:
    return None if head is None else {name: getattr(head, name) for name in head.__slots__}


def found(data: bytes, *, complete: bool = True) -> Head:
    head = read_head(data, complete)
    assert head is not None
    return head


# ----------------------------------------------------------------------------------------------------- what is found


@given(messages())
def test_the_head_of_a_message_is_found_whatever_its_encoding(message: Message) -> None:
    head = found(message.data)
    assert not head.irregular
    assert head.header == message.extent(HEADER)
    assert head.delivery_annotations == message.extent(DELIVERY_ANNOTATIONS)
    assert head.message_annotations == message.extent(MESSAGE_ANNOTATIONS)
    assert message.data[head.bare_at :] == message.bare
    assert head.ttl == (-1 if message.ttl is None else message.ttl)
    assert head.priority == message.priority


@settings(max_examples=50)
@given(messages())
def test_a_head_that_comes_in_pieces_is_found_once_it_is_whole(message: Message) -> None:
    data = message.data
    whole = fields(found(data))
    known = False
    for end in range(len(data) + 1):
        head = fields(read_head(data[:end], False))
        assert head in (None, whole)
        assert not known or head is not None, "what is known stays known"
        known = head is not None
    assert known or not message.bare, "a section of the bare message ends the head"


@settings(max_examples=50)
@given(messages())
def test_a_message_that_ends_within_its_head_has_what_came_before(message: Message) -> None:
    for end in range(len(message.data) - len(message.bare)):
        head = found(message.data[:end])
        ends = [0]
        for code in (HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS):
            extent = message.extent(code)
            ends += [extent[1]] if extent[1] <= end else []
        assert head.bare_at == max(ends)
        assert head.irregular is (head.bare_at != end)


@given(messages(), st.data())
def test_sections_out_of_order_or_doubled_end_the_head(message: Message, data: st.DataObject) -> None:
    head_sections = [each for each in message.sections if each[0] < PROPERTIES]
    assume(head_sections)
    order = data.draw(st.lists(st.sampled_from(head_sections), min_size=2, max_size=5))
    regular = next((n for n in range(1, len(order)) if order[n][0] <= order[n - 1][0]), len(order))
    head = found(b"".join(section for _, section in order) + message.bare)
    assert head.irregular is (regular < len(order))
    assert head.bare_at == sum(len(section) for _, section in order[:regular])
    regular_sections = dict(order[:regular])
    for code, extent in (
        (HEADER, head.header),
        (DELIVERY_ANNOTATIONS, head.delivery_annotations),
        (MESSAGE_ANNOTATIONS, head.message_annotations),
    ):
        assert extent[1] - extent[0] == len(regular_sections.get(code, b""))


MALFORMED_HEADERS = {
    "no list": "005370 a10141",
    "described": "005370 00537045",
    "an unknown format code": "005370 01",
    "no room for a count": "005370 c000",
    "no room for a count of four octets": "005370 d000000003 000000",
    "fewer fields than counted": "005370 c00203 40",
    "a priority cut off": "005370 c00302 41 50",
    "a priority that is a uint": "005370 c00402 41 5204",
    "a ttl that is a ulong": "005370 c00503 40 40 5309",
    "a ttl cut off": "005370 c00603 40 40 700000",
    "a ttl beyond the list": "005370 c00403 40 40 5209",
}


@pytest.mark.parametrize("text", MALFORMED_HEADERS.values(), ids=MALFORMED_HEADERS.keys())
@pytest.mark.parametrize("behind", [b"", bytes.fromhex("005375a0024142")])
def test_a_malformed_header_is_left_alone(text: str, behind: bytes) -> None:
    head = found(bytes.fromhex(text) + behind)
    assert fields(head) == fields(Head()) | {"irregular": True}  # type: ignore[operator]  # neither is None


@given(messages().map(lambda message: message.data).flatmap(wire.mutated), st.booleans())
def test_whatever_comes_the_head_lies_within_it(data: bytes, complete: bool) -> None:
    head = read_head(data, complete)
    if head is None:
        assert not complete
        return
    extents = [each for each in (head.header, head.delivery_annotations, head.message_annotations) if each != (0, 0)]
    ends = [0, *(end for _, end in extents)]
    assert [start for start, _ in extents] == ends[:-1], "head sections follow each other from the start"
    assert head.bare_at == ends[-1] <= len(data)
    assert -1 <= head.ttl < 2**32
    assert 0 <= head.priority <= 255


@given(headers(ANY_TTLS, 7).flatmap(lambda header: wire.mutated(header[0])))
def test_a_header_that_the_decoder_takes_is_read_alike(data: bytes) -> None:
    try:
        header, end = decode_composite(Header, data)
    except ProtocolError:
        return
    head = found(data[:end])
    assert (head.priority, head.ttl) == (header.priority, -1 if header.ttl is None else header.ttl)


@given(messages(ANY_TTLS))
def test_hop_records_show_the_priority_and_the_delivery_count_of_any_header(message: Message) -> None:
    header = decode_composite(Header, message.section(HEADER))[0]
    shown = header.priority | header.delivery_count << 8
    assert read_header_info(message.data, *message.extent(HEADER)) == shown


COUNTS = {
    "no header": ("", 4),
    "a delivery-count beyond 16 bits": ("005370 c00905 40404040 7000010001", 4 | 0xFFFF << 8),
    "a delivery-count that is a string": ("005370 c00805 40 5007 4040 a10131", 7),
    "a first-acquirer that is no boolean": ("005370 c00905 404040 a10131 5202", 4 | 2 << 8),
    "a priority that is a uint": ("005370 c00402 41 5204", 4),
}


@pytest.mark.parametrize(("text", "shown"), COUNTS.values(), ids=COUNTS.keys())
def test_a_field_that_cannot_be_read_is_shown_by_its_default(text: str, shown: int) -> None:
    data = bytes.fromhex(text)
    assert read_header_info(data, 0, len(data)) == shown


# ------------------------------------------------------------------------------------------------------------- ttl


@given(messages(TTLS.filter(bool)), st.data())
def test_a_patched_ttl_is_all_that_changes(message: Message, data: st.DataObject) -> None:
    assert message.ttl is not None
    ttl = data.draw(st.integers(0, message.ttl))
    before = message.data
    after = patch_ttl(before, found(before), ttl)
    head = found(after)
    assert head.ttl == ttl
    assert len(after) == len(before)
    old = decode_composite(Header, message.section(HEADER))[0]
    new = decode_composite(Header, after[: head.header[1]])[0]
    assert (new.durable, new.priority, new.first_acquirer, new.delivery_count) == (
        old.durable,
        old.priority,
        old.first_acquirer,
        old.delivery_count,
    )
    changed = [at for at in range(len(before)) if before[at] != after[at]]
    assert all(head.ttl_at < at <= head.ttl_at + 4 for at in changed)


# --------------------------------------------------------------------------------------------------------------- to


@given(messages())
def test_the_to_of_a_message_is_found_whatever_its_encoding(message: Message) -> None:
    assume(message.bare)
    assert read_to(message.data, len(message.data) - len(message.bare)) == message.to


@given(messages(has_properties=True))
def test_a_to_that_comes_in_pieces_is_found_once_it_is_whole(message: Message) -> None:
    bare = message.bare
    known = False
    for end in range(len(message.section(PROPERTIES)) + 1):
        try:
            assert read_to(bare[:end], 0) == message.to
            known = True
        except Incomplete:
            assert not known, "what is known stays known"
    assert known


@given(st.none() | st.text(max_size=6), st.data())
def test_a_to_that_the_decoder_takes_is_read_alike_and_any_other_is_refused(
    to: str | None, data: st.DataObject
) -> None:
    damaged = data.draw(properties(to).flatmap(wire.mutated))
    try:
        decoded, end = decode_composite(Properties, damaged)
    except ProtocolError:
        with suppress(Incomplete, Violation):
            read_to(damaged, 0)
        return
    assert read_to(damaged[:end], 0) == decoded.to


MALFORMED_PROPERTIES = {
    "no list": "005373 a10141",
    "a `to` that is a symbol": "005373 c00603 40 40 a30141",
    "a `to` that is not UTF-8": "005373 c00603 40 40 a101ff",
    "a `to` beyond the list": "005373 c00403 40 40 a10141",
    "fewer fields than counted": "005373 c00303 40 40 005375a00141",
    "fewer fields than counted, and nothing behind": "005373 c00303 40 40",
    "an unknown format code": "005373 c00403 40 01 40",
}


@pytest.mark.parametrize("text", MALFORMED_PROPERTIES.values(), ids=MALFORMED_PROPERTIES.keys())
def test_malformed_properties_are_a_violation(text: str) -> None:
    with pytest.raises(Violation):
        read_to(bytes.fromhex(text), 0)


def test_a_message_without_properties_has_no_to() -> None:
    assert read_to(encode_composite(AmqpValue(value="x")), 0) is None
    assert read_to(encode_composite(Properties(subject="s")), 0) is None
    with pytest.raises(Incomplete):
        read_to(b"", 0)


# ----------------------------------------------------------------------------------------------------------- expiry


@given(st.integers(-(2**63), 2**63 - 1), st.none() | st.text(max_size=300), st.data())
def test_an_absolute_expiry_is_read_as_soon_as_it_has_come(at: int, subject: str | None, data: st.DataObject) -> None:
    section = encode_composite(Properties(subject=subject, absolute_expiry_time=Timestamp(at), group_id="g"))
    end = data.draw(st.integers(0, len(section)))
    try:
        assert read_expiry(section[:end], 0) == at
    except Incomplete:
        assert end < len(section) - 3, "what comes behind it is not waited for"
    assert read_expiry(section, 0) == at


def test_properties_of_fewer_fields_have_no_expiry_and_are_not_read() -> None:
    broken = bytes.fromhex("005373 c0ff08 ff")
    assert read_expiry(broken, 0) is None
    assert read_expiry(encode_composite(Properties(group_id="g")), 0) is None
    assert read_expiry(encode_composite(AmqpValue(value="x")), 0) is None
    with pytest.raises(Violation):
        read_expiry(bytes.fromhex("005373 c00a09 4040404040404040 43"), 0)


# ---------------------------------------------------------------------------------------------------------- hostile

HOSTILE = {
    "a size of 4 GiB": "005371 d1ffffffff 00000002",
    "a count of 4 Gi": "005370 d000000008 ffffffff 40404040",
    "a descriptor of 4 GiB": "00b3ffffffff 41",
    "descriptors within descriptors": "00" * 60_000,
    "described descriptors": "00005370" * 10_000,
    "empty annotations again and again": "005371c10100" * 10_000,
    "nothing but nulls": "40" * 60_000,
    "a header list of nulls": "005370 d000010004 00010000" + "40" * 65_536,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_head_costs_next_to_nothing(text: str) -> None:
    data = bytes.fromhex(text)
    started = time.perf_counter()
    for complete in (False, True):
        head = read_head(data, complete)
        assert head is not None or not complete
    assert time.perf_counter() - started < 0.5


@pytest.mark.parametrize(
    "text",
    [
        "005373 d0ffffffff 00000003 40 40",
        "005373 d000000020 00000003 " + "00" * 28,
        "005373 d00000ffff 00000003 " + "005300" * 21_000,
    ],
    ids=["a size of 4 GiB", "descriptors within descriptors", "described values within described values"],
)
def test_hostile_properties_cost_next_to_nothing(text: str) -> None:
    data = bytes.fromhex(text)
    started = time.perf_counter()
    with pytest.raises((Incomplete, Violation)):
        read_to(data, 0)
    assert time.perf_counter() - started < 0.5


def test_a_descriptor_of_any_width_is_a_number() -> None:
    wide = b"\x00\x80" + ULong(0x70).to_bytes(8, "big") + b"\x45"
    other = b"\x00\x80" + (2**64 - 1).to_bytes(8, "big") + b"\x45"
    assert found(wide).header == (0, len(wide))
    assert (found(other).bare_at, found(other).irregular) == (0, False)
