"""Random meshes, clients, messages, outcomes and faults: senders' and receivers' accounts agree.

A seed is one history. A failing history is shortened step by step: the reported one is the shortest of its seed.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.worlds.correspondence import Kind
from tests.support.worlds.histories import play

SEEDS = st.integers(0, 2**32 - 1)

#: Addresses: plain ones, and names at the two routers that each mesh has.
NAMES = ("q", "near", "again", "q@R0", "q@R1", "near@R0", "few@R1", "again@R1")


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
@settings(max_examples=6)
@given(seed=SEEDS, steps=st.integers(1, 120))
def test_at_the_end_what_senders_heard_is_what_receivers_did(kind: Kind, seed: int, steps: int) -> None:
    play(seed, steps, kind)


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
@settings(max_examples=5)
@given(seed=SEEDS, steps=st.integers(1, 120))
def test_it_is_so_for_names_of_routers_wherever_they_are_named(kind: Kind, seed: int, steps: int) -> None:
    play(seed, steps, kind, addresses=NAMES)


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
def test_histories_are_of_use(kind: Kind) -> None:
    histories = [play(seed, 100, kind, most=12) for seed in range(3)]
    letters = [letter for history in histories for letter in history.letters.values()]
    assert len(letters) > 40
    assert sum(bool(letter.receipts) for letter in letters) > 20
    assert max(history.trails.longest for history in histories) > 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
@pytest.mark.parametrize("block", range(4))
def test_it_is_so_in_large_meshes_and_long_histories_too(block: int, kind: Kind) -> None:
    for seed in range(1000 + 3 * block, 1003 + 3 * block):
        play(seed, 300, kind, most=12)
