"""The order in which addresses prefer workers."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.attach.homes import ranking

NAMES = [f"orders/{number}" for number in range(1000)]


def test_the_order_is_the_same_in_every_process_and_release() -> None:
    assert ranking("", "orders", range(1, 5)) == [3, 4, 2, 1]
    assert ranking("other", "orders", range(1, 5)) != ranking("", "orders", range(1, 5))


@given(st.text(max_size=5), st.text(min_size=1, max_size=20), st.integers(1, 8), st.integers(1, 8))
def test_a_worker_that_ends_moves_its_own_addresses_alone(tenant: str, name: str, count: int, ended: int) -> None:
    everyone = ranking(tenant, name, range(1, count + 1))
    assert sorted(everyone) == list(range(1, count + 1))
    left = [number for number in range(1, count + 1) if number != ended]
    assert ranking(tenant, name, left) == [number for number in everyone if number != ended]


def test_addresses_are_spread_over_all_workers() -> None:
    homes = Counter(ranking("", name, range(1, 9))[0] for name in NAMES)
    assert min(homes.values()) > 0.7 * len(NAMES) / 8
    assert max(homes.values()) < 1.3 * len(NAMES) / 8
