"""Hop records in the kernel, with the layout of the telemetry schema."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.kernel import UNRECORDED
from amqpmesh.router.telemetry import schema
from amqpmesh.router.telemetry.schema import Flag, Outcome
from tests.support.data.recordings import unpacked
from tests.support.worlds.kernels import Kernels

KEY = bytes(range(0xF0, 0xFE))
BASE = 1_700_000_000 * 10**9


def recorder(kernel: Any, units: int = 30) -> tuple[Any, array[int]]:
    words = array("Q", bytes(schema.UNIT_OCTETS * units))
    found = kernel.Recorder(lambda: 5.0)
    found.give(words)
    found.base = BASE
    return found, words


def numbers(most: int, *some: int) -> st.SearchStrategy[int]:
    """Draw numbers from 0 to `most`, often those around which another unit is needed."""
    return st.one_of(st.sampled_from([0, *(each + more for each in some for more in (-1, 0))]), st.integers(0, most))


RECORDS = st.fixed_dictionaries(
    {
        "key": st.sampled_from([KEY, KEY + bytes(7), bytes(14), b"\xff" * 21]),
        "counter": numbers(2**48 - 1, 2**32),
        "hops_left": st.integers(0, 255),
        "flags": st.integers(0, 7),
        "outcome": st.sampled_from(Outcome),
        "incoming": st.integers(0, UNRECORDED - 1),
        "outgoing": st.integers(0, 2**31 - 1),
        "size": numbers(2**62, 2**24),
        "came": numbers(2**20, 549, 1099, 1100),  # the upper bits of `BASE` change between
        "left": st.one_of(st.none(), numbers(2**20, 4, 5)),
        "said": st.one_of(st.none(), numbers(2**20, 68, 69)),
        "priority": st.integers(0, 255),
        "delivery_count": st.sampled_from([0, 0, 1, 0xFFFF]),
        "address": st.sampled_from([0, 0, 1, 2**31 - 1]),
        "attempt": st.sampled_from([1, 1, 2, 0xFFFF]),
        "first": st.sampled_from([0, 0, 1, 2**48 - 1]),
        "condition": st.sampled_from([0, 0, 1, 2**28, 2**32 - 1]),
    }
)


@given(st.lists(RECORDS, min_size=1, max_size=10))
def test_each_number_stands_where_it_is_declared(kernels: Kernels, records: list[dict[str, Any]]) -> None:
    expected = [
        {
            **{name: value for name, value in each.items() if name in schema.PACKED},
            "time": BASE + each["came"] * 10**9,
            "ingress": int.from_bytes(each["key"][:8], "big"),
            "epoch": int.from_bytes(each["key"][8:14], "big"),
            "flags": each["flags"]
            | (each["left"] is not None and Flag.TIMED)
            | (each["said"] is not None and Flag.ANSWERED),
            "in_router": max(0, each["left"] or 0) * 10**9,
            "outcome_after": max(0, each["said"] or 0) * 10**9,
        }
        for each in records
    ]
    stored = []
    for kernel in kernels:
        found, words = recorder(kernel)
        for each in records:
            came, left, said = float(each["came"]), each["left"], each["said"]
            assert found.store(
                each["key"], each["counter"], each["hops_left"], each["flags"], each["outcome"], each["incoming"],
                each["outgoing"], each["size"], came, -1.0 if left is None else came + left,
                -1.0 if said is None else came + said, each["priority"] | each["delivery_count"] << 8,
                each["address"], each["attempt"], each["first"], each["condition"],
            )  # fmt: skip
        stored.append(words[: found.used])
        assert unpacked(stored[-1]) == expected
    assert stored[0] == stored[1]


def store(found: Any, counter: int, key: bytes = KEY, *, size: int = 0, left: float = 0.0, attempt: int = 1) -> bool:
    return bool(found.store(key, counter, 0, 0, 0, 0, 0, size, 0.0, left, 0.0, 4, 0, attempt, 0, 0))


def test_a_delivery_that_left_or_was_answered_before_it_came_took_no_time(kernels: Kernels) -> None:
    for kernel in kernels:
        found, words = recorder(kernel)
        found.store(KEY, 1, 0, 0, 0, 0, 0, 0, 2.0, 1.0, 1.5, 4, 0, 1, 0, 0)
        (record,) = unpacked(words[: found.used])
        assert (record["in_router"], record["outcome_after"]) == (0, 0)


def test_only_what_is_rare_takes_another_unit(kernels: Kernels) -> None:
    for kernel in kernels:
        found, _ = recorder(kernel)
        used = []
        for size, key, attempt in (
            (0, KEY, 1),
            (2**24 - 1, KEY[:], 1),
            (2**24, KEY, 1),
            (0, KEY, 2),
            (0, bytes(14), 1),
        ):
            before = found.used
            store(found, 1, key, size=size, attempt=attempt)
            used.append((found.used - before) // schema.UNIT_WORDS)
        assert used == [2, 1, 2, 2, 2]
        found.give(array("Q", bytes(schema.UNIT_OCTETS * 30)))
        store(found, 1, bytes(14))
        assert found.used == 2 * schema.UNIT_WORDS  # each block begins with a key unit


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**32))
def test_both_kernels_take_the_same_sample(kernels: Kernels, counter: int, threshold: int) -> None:
    takes = []
    for kernel in kernels:
        found, _ = recorder(kernel)
        found.threshold = threshold
        takes.append(found.takes(counter))
    assert len(set(takes)) == 1
    assert takes[0] or threshold < 2**32


@pytest.mark.parametrize("share", [0.001, 0.01, 0.5])
def test_a_sample_is_as_large_as_its_share_over_any_stretch_of_keys(kernels: Kernels, share: float) -> None:
    for kernel in kernels:
        found, _ = recorder(kernel)
        found.threshold = round(share * 2**32)
        for begin in (0, 12_345, 2**40):
            taken = sum(found.takes(begin + each) for each in range(20_000))
            assert taken == pytest.approx(share * 20_000, abs=3)


def test_a_record_for_which_there_is_no_room_is_counted(kernels: Kernels) -> None:
    for kernel in kernels:
        found, _ = recorder(kernel, units=1 + 2 + 2)
        assert [store(found, each) for each in range(3)] == [True, True, False]
        assert (found.first, found.stored, found.lost) == (0, 3, 1)
        found.give(None)
        assert not store(found, 1)
        assert (found.first, found.stored, found.lost) == (3, 4, 2)


@given(st.integers(0, 10), st.lists(st.tuples(st.booleans(), st.booleans()), max_size=10))
def test_nothing_is_stored_behind_what_was_given(
    kernels: Kernels, units: int, records: list[tuple[bool, bool]]
) -> None:
    for kernel in kernels:
        found, words = recorder(kernel, units)
        for key, wide in records:
            store(found, 1, bytes(14) if key else KEY, attempt=1 + wide)
        assert found.used <= len(words)
        assert len(unpacked(words[: found.used])) == found.stored - found.lost


def test_the_kernel_and_the_declaration_agree_on_the_size(kernels: Kernels) -> None:
    assert {kernel.UNIT_WORDS for kernel in kernels} == {schema.UNIT_WORDS}
    places = [bits for parts in schema.PACKED.values() for bits in parts]
    taken = {(bits.unit, bits.word, bit) for bits in places for bit in range(bits.shift, bits.shift + bits.bits)}
    assert len(taken) == sum(bits.bits for bits in places)
    assert all(word < schema.UNIT_WORDS and bit < 64 for _, word, bit in taken)
    assert not any(unit is not schema.Unit.RECORD and word == 2 and bit >= 56 for unit, word, bit in taken)
