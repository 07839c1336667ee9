"""Expiry of messages by ttl and absolute-expiry-time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.policies.expiry import remaining_ttl, seconds_left

UINT = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(
    ("ttl_ms", "elapsed_seconds", "left"),
    [
        (1000, 0.0, 1000),
        (1000, 0.25, 750),
        (1000, 0.9999, 1),
        (1000, 1.0, None),
        (1000, 2.0, None),
        (1, 0.0005, 1),
        (0, 0.0, None),
        (1000, -0.001, 1000),
        (2**32 - 1, 1.0, 2**32 - 1001),
    ],
)
def test_the_time_spent_here_is_taken_off(ttl_ms: int, elapsed_seconds: float, left: int | None) -> None:
    assert remaining_ttl(ttl_ms, elapsed_seconds) == left


@given(UINT, st.floats(-1, 10**7))
def test_what_is_left_is_alive_and_never_more_than_it_was(ttl_ms: int, elapsed_seconds: float) -> None:
    left = remaining_ttl(ttl_ms, elapsed_seconds)
    assert (left is None) == (max(0.0, elapsed_seconds) * 1000 >= ttl_ms)
    if left is not None:
        assert 1 <= left <= ttl_ms


@given(UINT, st.floats(0, 10**6), st.floats(0, 10**6))
def test_a_message_that_stays_longer_has_less_ttl_left(ttl_ms: int, one: float, other: float) -> None:
    short, long = sorted((one, other))
    assert (remaining_ttl(ttl_ms, short) or 0) >= (remaining_ttl(ttl_ms, long) or 0)


@pytest.mark.parametrize(("expiry_ms", "left"), [(1_000_500, 0.5), (999_000, -1.0), (-1, -1000.001), (0, float("inf"))])
def test_an_absolute_expiry_is_compared_with_the_wall_clock_and_0_is_none(expiry_ms: int, left: float) -> None:
    assert seconds_left(expiry_ms, 1000.0) == left
