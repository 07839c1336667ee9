"""The pace of repeated work."""

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.topology.pace import Pace


def test_the_first_is_at_once_and_waits_double_while_it_goes_on() -> None:
    pace = Pace(1.0)
    times = [pace.next(0.0)]
    for _ in range(6):
        pace.done(times[-1], 6.0)
        times.append(pace.next(times[-1]))
    assert times == [0, 1, 3, 7, 13, 19, 25]


def test_after_a_quiet_time_it_begins_again() -> None:
    pace = Pace(1.0)
    for at in (0.0, 1.0, 3.0):
        pace.done(at, 8.0)
    assert pace.next(3.0) == 7.0
    pace.done(11.5, 8.0)
    assert pace.next(11.5) == 12.5


@given(st.lists(st.floats(0, 5), max_size=30), st.floats(0, 4))
def test_no_wait_is_longer_than_it_may_be_nor_shorter_than_the_first(pauses: list[float], most: float) -> None:
    pace, now = Pace(1.0), 0.0
    for pause in pauses:
        now = pace.next(now + pause)
        pace.done(now, most)
        assert now + 0.999 <= pace.next(now) <= now + max(1.0, most) + 0.001
