"""Distributions: the choice of receivers for a delivery."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.policies.distribution import Distribution, choose, eligible


@dataclass
class Receiver:
    outstanding: int = 0
    cost: int = 1
    busy: bool = False
    turn: int = 0


def one(distribution: Distribution, candidates: list[Receiver]) -> Receiver:
    (chosen,) = choose(distribution, candidates)
    return chosen


SINGLE = (Distribution.BALANCED, Distribution.CLOSEST)
receivers = st.lists(
    st.builds(Receiver, st.integers(0, 3), st.integers(1, 3), st.booleans(), st.integers(0, 5)), min_size=1, max_size=8
)


@pytest.mark.parametrize("distribution", Distribution)
def test_nobody_is_chosen_of_nobody(distribution: Distribution) -> None:
    assert list(choose(distribution, [])) == []
    assert eligible(distribution, []) == []


def test_multicast_is_for_all_and_unavailable_for_nobody() -> None:
    both = [Receiver(outstanding=5), Receiver(cost=9, busy=True)]
    assert list(choose(Distribution.MULTICAST, both)) == eligible(Distribution.MULTICAST, both) == both
    assert list(choose(Distribution.UNAVAILABLE, both)) == eligible(Distribution.UNAVAILABLE, both) == []


@given(receivers)
def test_balanced_takes_one_with_the_least_outstanding_that_is_not_busy(candidates: list[Receiver]) -> None:
    turns = {id(c): c.turn for c in candidates}
    chosen = one(Distribution.BALANCED, candidates)
    ranks = [(c.busy, c.outstanding, turns[id(c)]) for c in candidates]
    assert (chosen.busy, chosen.outstanding, turns[id(chosen)]) == min(ranks)


@given(receivers)
def test_closest_takes_one_of_the_cheapest_whatever_it_has_outstanding(candidates: list[Receiver]) -> None:
    turns = {id(c): c.turn for c in candidates}
    chosen = one(Distribution.CLOSEST, candidates)
    assert (chosen.cost, chosen.busy, turns[id(chosen)]) == min((c.cost, c.busy, turns[id(c)]) for c in candidates)


@given(receivers)
def test_only_the_cheapest_are_eligible_for_closest(candidates: list[Receiver]) -> None:
    least = min(c.cost for c in candidates)
    assert eligible(Distribution.CLOSEST, candidates) == [c for c in candidates if c.cost == least]
    assert eligible(Distribution.BALANCED, candidates) == candidates


@pytest.mark.parametrize("distribution", SINGLE)
@given(st.integers(1, 8), st.integers(0, 8), st.integers(0, 60), st.randoms(use_true_random=False))
def test_equals_get_equal_shares_within_one(
    distribution: Distribution, equals: int, others: int, deliveries: int, rng: random.Random
) -> None:
    same = [Receiver() for _ in range(equals)]
    worse = [Receiver(outstanding=1, cost=2) for _ in range(others)]
    everybody = same + worse
    rng.shuffle(everybody)
    shares = Counter({id(receiver): 0 for receiver in same})
    shares.update(id(one(distribution, everybody)) for _ in range(deliveries))
    assert set(shares) == {id(receiver) for receiver in same}, "one that is worse was taken"
    assert max(shares.values()) - min(shares.values()) <= 1


@given(st.integers(1, 6), st.integers(0, 100), st.randoms(use_true_random=False))
def test_receivers_that_settle_at_their_own_pace_have_equally_much_outstanding(
    count: int, deliveries: int, rng: random.Random
) -> None:
    consumers = [Receiver() for _ in range(count)]
    for _ in range(deliveries):
        least = min(c.outstanding for c in consumers)
        chosen = one(Distribution.BALANCED, consumers)
        assert chosen.outstanding == least
        chosen.outstanding += 1
        rng.choice(consumers).outstanding = 0


@pytest.mark.parametrize("distribution", SINGLE)
def test_one_that_was_away_takes_its_turn_once_and_not_all_it_missed(distribution: Distribution) -> None:
    here, away = [Receiver(), Receiver()], Receiver()
    for _ in range(10):
        choose(distribution, here)
    shares = Counter(id(one(distribution, [*here, away])) for _ in range(9))
    assert shares[id(away)] == 3
