"""Random meshes, clients, messages, outcomes and faults: what senders heard and what receivers did agree.

A seed is one history. What is found is made shorter by its steps: the history that fails is the shortest of its seed.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.histories import Kind, play

SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
@settings(max_examples=8)
@given(seed=SEEDS, steps=st.integers(1, 120))
def test_at_the_end_what_senders_heard_is_what_receivers_did(kind: Kind, seed: int, steps: int) -> None:
    play(seed, steps, kind)


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
def test_histories_are_of_use(kind: Kind) -> None:
    history = play(3, 150, kind, most=12)
    assert len(history.letters) > 20
    assert sum(bool(letter.receipts) for letter in history.letters.values()) > 10
    assert history.trails.longest > 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
@pytest.mark.parametrize("block", range(4))
def test_it_is_so_in_large_meshes_and_long_histories_too(block: int, kind: Kind) -> None:
    for seed in range(1000 + 5 * block, 1000 + 5 * block + 5):
        play(seed, 300, kind, most=12)
