"""Timers by name: each fires once, in order, and cancelled ones are forgotten."""

from __future__ import annotations

from weakref import ref

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.topology.timers import SLACK, Timers

NAMES = st.sampled_from(["a", "b", ("c", 1)])
TIMES = st.integers(0, 20).map(float)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), NAMES, TIMES),
        st.tuples(st.just("earlier"), NAMES, TIMES),
        st.tuples(st.just("cancel"), NAMES, TIMES),
        st.tuples(st.just("due"), NAMES, TIMES),
    ),
    max_size=60,
)


class Owner:
    """The name of a deadline."""


@given(CALLS)
def test_each_name_comes_up_once_at_the_time_it_was_set_to_last(calls: list[tuple[str, object, float]]) -> None:
    timers, model = Timers[object](), dict[object, float]()
    for call, name, at in calls:
        match call:
            case "set":
                timers.set(name, at)
                model[name] = at
            case "earlier":
                assert timers.set_earlier(name, at) == (at < model.get(name, float("inf")))
                model[name] = min(at, model.get(name, at))
            case "cancel":
                timers.cancel(name)
                model.pop(name, None)
            case _:
                due = list(timers.due(at))
                assert [model[each] for each in due] == sorted(model[each] for each in due)
                assert set(due) == {each for each, when in model.items() if when <= at}
                for each in due:
                    del model[each]
        assert timers.next() == min(model.values(), default=None)
        assert len(timers) == len(model)
        assert all((name in timers) == (name in model) for name in ("a", "b", ("c", 1)))


def test_of_equal_times_the_first_set_comes_first() -> None:
    timers = Timers[str]()
    for name in "cab":
        timers.set(name, 1.0)
    assert list(timers.due(1.0)) == ["c", "a", "b"]


def test_what_is_set_meanwhile_comes_up_in_its_turn_and_what_is_cancelled_meanwhile_does_not() -> None:
    timers, came = Timers[str](), list[str]()
    timers.set("first", 1)
    timers.set("cancelled", 3)
    for name in timers.due(5):
        came.append(name)
        if came == ["first"]:
            timers.set("set", 2)
            timers.set("first", 4)
            timers.set("not yet", 9)
            timers.cancel("cancelled")
    assert came == ["first", "set", "first"]
    assert timers.next() == 9


def test_what_is_cancelled_or_comes_up_is_let_go_of_and_many_take_no_room() -> None:
    timers = Timers[object]()
    timers.set("kept", 1000)
    for number in range(10 * SLACK):
        owner = Owner()
        timers.set(owner, number + 1)
        timers.set(owner, number + 2)
        gone = ref(owner)
        if number % 2:
            timers.cancel(owner)
        else:
            assert list(timers.due(number + 2)) == [owner]
        del owner
        assert gone() is None
        assert len(timers._heap) <= SLACK + 2  # no public method shows it
    assert timers.next() == 1000
    assert not list(timers.due(999))


def test_what_is_set_again_and_again_takes_no_room() -> None:
    timers = Timers[str]()
    for number in range(10_000):
        timers.set("a", float(number))
    assert len(timers._heap) <= SLACK + 2
