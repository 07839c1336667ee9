"""Message-ids in any encoding, and the entries of a window, in both kernels."""

from __future__ import annotations

import tracemalloc
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import ULong
from amqpmesh.router.amqp.codec.values import encode
from amqpmesh.router.amqp.standard.messaging import Properties
from amqpmesh.router.kernel import SEEN_OCTETS, Budget, MessageWindow, MessageWindows
from tests.support.data import encodings as wire
from tests.support.worlds.kernels import Kernels, agreed

VALUES = (
    st.integers(0, 2**64 - 1).map(ULong)
    | st.integers(0, 3).map(ULong)
    | st.uuids()
    | st.binary(max_size=70)
    | st.text(max_size=70)
    | st.sampled_from(["x" * 300, b"x" * 300, "1", b"1", UUID(int=0), bytes(16), ULong(0)])
)


def encodings(value: object) -> wire.Bytes:
    """Draw an encoding of a message-id."""
    if isinstance(value, ULong):
        forms = [b"\x80" + int(value).to_bytes(8, "big")]
        forms += [b"\x53" + bytes((int(value),))] if value < 256 else []
        forms += [b"\x44"] if value == 0 else []
        return st.sampled_from(forms)
    if isinstance(value, bytes):
        return wire.binaries(value)
    return wire.strings(value) if isinstance(value, str) else st.just(encode(value))


def section(item: bytes, form: int = 0xC0) -> bytes:
    """Return a section of properties with a message-id and a null."""
    items = item + b"\x40"
    if form == 0xC0 and len(items) < 255:
        return b"\x00\x53\x73\xc0" + bytes((len(items) + 1, 2)) + items
    return b"\x00\x53\x73\xd0" + (len(items) + 4).to_bytes(4, "big") + bytes((0, 0, 0, 2)) + items


def read(kernels: Kernels, data: bytes) -> Any:
    """Return the message-id of a message that has come so far, as both kernels read it."""
    return agreed(kernels, lambda of: of.read_message_id(data, 0, len(data)))


@settings(max_examples=40)
@given(VALUES, VALUES, st.sampled_from([0xC0, 0xD0]), st.data())
def test_message_ids_are_equal_if_type_and_value_are(
    kernels: Kernels, one: Any, two: Any, form: int, data: st.DataObject
) -> None:
    first, again, other = (read(kernels, section(data.draw(encodings(each)), form)) for each in (one, one, two))
    assert first == again
    assert (first == other) is (type(one) is type(two) and one == two)
    assert len(first) <= 65


@settings(max_examples=40)
@given(VALUES, st.data())
def test_a_message_id_is_read_as_soon_as_it_has_come(kernels: Kernels, value: Any, data: st.DataObject) -> None:
    item = data.draw(encodings(value))
    whole = section(item)
    end = len(whole) - 1  # a null follows
    found = read(kernels, whole)
    assert read(kernels, whole[:end]) == found
    for at in range(1, end):
        assert read(kernels, whole[:at])[:2] == ("raised", "Incomplete")


@pytest.mark.parametrize(
    ("octets", "found"),
    [
        (b"", None),
        (b"\x00\x53\x73\x45", None),
        (b"\x00\x53\x73\xc0\x01\x00", None),
        (b"\x00\x53\x73\xd0\x00\x00\x00\x04\x00\x00\x00\x00", None),
        (section(b"\x40"), None),
        (b"\x00\x53\x77\xa1\x01x", None),
        (section(b"\x41"), "Violation"),
        (section(b"\x70\x00\x00\x00\x01"), "Violation"),
        (section(b"\xa3\x01x"), "Violation"),
        (b"\x00\x53\x73\xa1\x01x", "Violation"),
        (b"\x00\x53\x73\xc0\x03\x01\xa1\x09xxxxxxxxxx", "Violation"),
        (encode_composite(Properties(subject="x")), None),
    ],
)
def test_a_message_may_have_none_or_a_malformed_one(kernels: Kernels, octets: bytes, found: str | None) -> None:
    assert read(kernels, octets) == found if found is None else read(kernels, octets)[1] == found


def window(most: int, time: float = 60.0, part: int = 2**40) -> MessageWindow:
    """Return a window. Args: part: octets that it may have."""
    windows = MessageWindows()
    windows.most = part
    return MessageWindow(windows, Budget(0, Budget(2**40)), most, time, lambda: False)


@pytest.mark.parametrize(("most", "part"), [(1000, 2**40), (2**30, 1000 * SEEN_OCTETS)])
def test_a_flood_of_message_ids_leaves_the_latest_and_memory_stays_flat(most: int, part: int) -> None:
    those = window(most, part=part)
    for number in range(30_000):
        seen = those.note(b"l%d" % number, False, number / 1000)
        those.end(seen, None if number % 2 else b"outcome", number / 1000)
    assert 900 <= len(those.entries) <= 1000
    assert those.windows.octets == those.account.used <= 1100 * SEEN_OCTETS
    assert those.windows.window_passed == 30_000 - len(those.entries)
    assert those.find(b"l29999", 30.0) is not None
    assert those.find(b"l28000", 30.0) is None
    those.clear()
    assert those.windows.octets == those.account.used == 0


def test_an_entry_takes_no_more_memory_than_it_counts() -> None:
    those = window(2**30)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(5000):
        those.note(b"s%064d" % number, False, 0.0)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert used <= those.windows.octets


def test_a_smaller_window_is_reached_in_small_steps() -> None:
    those = window(1000)
    for number in range(1000):
        those.end(those.note(b"l%d" % number, False, 0.0), None, 0.0)
    those.most = 10
    those.note(b"new", False, 0.0)
    assert len(those.entries) == 999
    assert those.tidy(60.0, 100) == 100
    while those.tidy(60.0, 100):
        pass
    assert list(those.entries) == [b"new"], "it is on its way"
