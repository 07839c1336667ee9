"""What is due is done in order, and what is wanted no more is let go of."""

from __future__ import annotations

from functools import partial
from weakref import ref

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.timers import FEW, Timer, Timers


class Owner:
    """What a timer is for."""

    def act(self) -> None:
        raise AssertionError("it is wanted no more")


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=300), st.integers(0, 9))
def test_the_earliest_comes_first_and_what_is_cancelled_does_not_come(wanted: list[tuple[int, bool]], now: int) -> None:
    timers, done, added = Timers(), list[tuple[int, int]](), list[tuple[Timer, bool]]()
    for number, (deadline, cancelled) in enumerate(wanted):
        timer = timers.add(deadline, partial(done.append, (deadline, number)))
        added.append((timer, cancelled))
    for timer, cancelled in added:
        if cancelled:
            timers.cancel(timer)
            timers.cancel(timer)  # which changes nothing
    left = sorted((deadline, number) for number, (deadline, cancelled) in enumerate(wanted) if not cancelled)
    assert timers.next() == (left[0][0] if left else None)
    for action in timers.due(now):
        action()
    assert done == [each for each in left if each[0] <= now]
    later = [each for each in left if each[0] > now]
    assert timers.next() == (later[0][0] if later else None)


def test_what_is_added_meanwhile_is_done_in_its_turn_and_what_is_cancelled_meanwhile_is_not() -> None:
    timers, done = Timers(), list[str]()
    last = timers.add(3, lambda: done.append("cancelled"))

    def first() -> None:
        done.append("first")
        timers.add(2, lambda: done.append("added"))
        timers.add(9, lambda: done.append("not yet"))
        timers.cancel(last)

    timers.add(1, first)
    for action in timers.due(5):
        action()
    timers.cancel(last)
    assert done == ["first", "added"]
    assert timers.next() == 9


def test_a_cancelled_timer_keeps_nothing_and_many_take_no_memory() -> None:
    timers = Timers()
    kept = timers.add(1000, lambda: None)
    for number in range(10 * FEW):
        owner = Owner()
        timer, gone = timers.add(number + 1, owner.act), ref(owner)
        del owner
        assert gone() is not None
        timers.cancel(timer)
        assert gone() is None
        assert len(timers) <= 2 * FEW + 2
    assert timers.next() == kept.deadline
    assert not list(timers.due(999))
