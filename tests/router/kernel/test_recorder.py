"""Hop records as the kernel stores them: the words that `telemetry` says, in both kernels."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router import telemetry
from amqpmesh.router.telemetry import Flag, Outcome
from tests.support.kernels import Kernels
from tests.support.records import unpacked

KEY = bytes(range(0xF0, 0xFE))


def recorder(kernel: Any, records: int = 10) -> tuple[Any, array[int]]:
    words = array("Q", bytes(8 * telemetry.HOP_WORDS * records))
    found = kernel.Recorder(lambda: 5.0)
    found.give(words)
    found.base = 1_700_000_000 * 10**9
    return found, words


@given(
    counter=st.integers(0, 2**48 - 1),
    hops_left=st.integers(0, 255),
    flags=st.integers(0, 7),
    state=st.sampled_from(Outcome),
    links=st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)),
    size=st.integers(0, 2**62),
    told=st.tuples(st.integers(0, 255), st.integers(0, 0xFFFF)),
    left=st.sampled_from([-1.0, 0.0, 1.0, 3.5]),
    said=st.sampled_from([-1.0, 0.5, 2.0]),
)
def test_each_number_stands_where_it_is_declared(
    kernels: Kernels,
    counter: int,
    hops_left: int,
    flags: int,
    state: Outcome,
    links: tuple[int, int],
    size: int,
    told: tuple[int, int],
    left: float,
    said: float,
) -> None:
    expected = {
        "time": 1_700_000_001 * 10**9,
        "ingress": int.from_bytes(KEY[:8], "big"),
        "epoch": int.from_bytes(KEY[8:14], "big"),
        "hops_left": hops_left,
        "priority": told[0],
        "counter": counter,
        "outcome": state,
        "flags": flags | (left >= 0 and Flag.TIMED) | (said >= 0 and Flag.ANSWERED),
        "incoming": links[0],
        "outgoing": links[1],
        "address": 0,
        "attempt": 1,
        "delivery_count": told[1],
        "size": size,
        "in_router": max(0, round((left - 1.0) * 1e9)) if left >= 0 else 0,
        "outcome_after": max(0, round((said - 1.0) * 1e9)) if said >= 0 else 0,
        "first": 0,
    }
    for kernel in kernels:
        found, words = recorder(kernel)
        at = found.store(KEY, counter, hops_left, flags, state, *links, size, 1.0, left, said, told[0] | told[1] << 8)
        assert at == 0
        assert unpacked(words[: found.used]) == [expected]


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
        found, _ = recorder(kernel, records=2)
        stored = [found.store(KEY, each, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 4) for each in range(3)]
        assert stored == [0, telemetry.HOP_WORDS, -1]
        assert (found.stored, found.lost) == (3, 1)
        found.give(None)
        assert found.store(KEY, 1, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 4) == -1


def test_the_kernel_and_the_declaration_agree_on_the_size(kernels: Kernels) -> None:
    assert {kernel.HOP_WORDS for kernel in kernels} == {telemetry.HOP_WORDS}
    assert all(bits.word < telemetry.HOP_WORDS and bits.shift + bits.bits <= 64 for bits in telemetry.PACKED.values())
