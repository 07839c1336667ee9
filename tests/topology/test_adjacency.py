"""Damping of adjacencies: penalties that decay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.topology.adjacency import Damping


@given(st.lists(st.floats(0.01, 30.0), min_size=1, max_size=20), st.floats(1.0, 60.0))
def test_it_falls_to_what_is_asked_when_it_says(pauses: list[float], half_life: float) -> None:
    damping = Damping(half_life, 8.0)
    now = 0.0
    for pause in pauses:
        now += pause
        damping.add("A", 1.0, now)
        assert 1.0 <= damping.penalty("A", now) <= 8.0
    at = damping.falls_to("A", 1.0, now)
    assert now <= at <= now + 3 * half_life + 1e-6
    assert damping.penalty("A", at) == pytest.approx(1.0)


def test_others_are_not_punished_and_what_is_over_is_forgotten() -> None:
    damping = Damping(1.0, 8.0)
    damping.add("A", 1.0, 0.0)
    assert damping.penalty("B", 0.0) == 0.0
    assert damping.falls_to("B", 1.0, 5.0) == 5.0
    assert damping.penalty("A", 2.0) == 0.25
    damping.forget(20.0)
    assert damping.penalty("A", 0.0) == 0.0
