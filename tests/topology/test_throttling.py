"""Token buckets with bursts, and exponential backoff."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.topology.throttling import NEVER, Backoff, TokenBucket


@given(
    st.floats(0.5, 100),
    st.integers(1, 50),
    st.lists(st.tuples(st.floats(0, 2), st.integers(1, 20)), max_size=60),
)
def test_in_no_time_is_more_used_than_the_burst_and_the_rate_of_that_time(
    a_second: float, burst: int, tries: list[tuple[float, int]]
) -> None:
    rate = TokenBucket(a_second, burst)
    spent, now = NEVER, 100.0
    used: list[tuple[float, int]] = []
    for wait, amount in tries:
        now += wait
        if rate.when(spent, amount) <= now:
            spent = rate.used(spent, amount, now)
            used.append((now, min(amount, burst)))
    for index, (since, _) in enumerate(used):
        # An amount larger than the burst is paid for afterwards, in full.
        most = burst + (now - since) * a_second
        assert sum(amount for _, amount in used[index:]) <= most + 1e-6 * most


@given(st.floats(0.5, 100), st.integers(1, 50), st.lists(st.floats(0, 2), max_size=60))
def test_a_part_of_a_rate_never_exceeds_the_whole_rate(a_second: float, burst: int, waits: list[float]) -> None:
    whole = TokenBucket(a_second, burst)
    own = whole.part(0.8, 0.75)
    now, spent, taken = 100.0, NEVER, NEVER
    for wait in waits:
        now = max(now + wait, own.when(spent, 1))
        spent = own.used(spent, 1, now)
        assert whole.when(taken, 1) <= now + 1e-9
        taken = whole.used(taken, 1, now)


def test_nobody_is_held_up_by_more_than_the_burst() -> None:
    rate = TokenBucket(1.0, 10)
    assert rate.when(NEVER, 1000) == NEVER
    assert rate.when(rate.used(NEVER, 1000, 0.0), 1) == 991.0


def test_the_first_is_at_once_and_waits_double_while_it_goes_on() -> None:
    backoff = Backoff(1.0)
    times = [backoff.next(0.0)]
    for _ in range(6):
        backoff.done(times[-1], 6.0)
        times.append(backoff.next(times[-1]))
    assert times == [0, 1, 3, 7, 13, 19, 25]


def test_after_a_quiet_time_it_begins_again() -> None:
    backoff = Backoff(1.0)
    for at in (0.0, 1.0, 3.0):
        backoff.done(at, 8.0)
    assert backoff.next(3.0) == 7.0
    backoff.done(11.5, 8.0)
    assert backoff.next(11.5) == 12.5


@given(st.lists(st.floats(0, 5), max_size=30), st.floats(0, 4))
def test_no_wait_is_longer_than_it_may_be_nor_shorter_than_the_first(pauses: list[float], most: float) -> None:
    backoff, now = Backoff(1.0), 0.0
    for pause in pauses:
        now = backoff.next(now + pause)
        backoff.done(now, most)
        assert now + 0.999 <= backoff.next(now) <= now + max(1.0, most) + 0.001
