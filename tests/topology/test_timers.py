"""Deadlines by name."""

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.topology.timers import Timers

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


@given(CALLS)
def test_each_name_comes_up_once_at_the_time_it_was_set_to_last(calls: list[tuple[str, object, float]]) -> None:
    timers, model = Timers(), dict[object, float]()
    for call, name, at in calls:
        match call:
            case "set":
                timers.set(name, at)
                model[name] = at
            case "earlier":
                timers.set_earlier(name, at)
                model[name] = min(at, model.get(name, at))
            case "cancel":
                timers.cancel(name)
                model.pop(name, None)
            case _:
                due = timers.due(at)
                assert [model[each] for each in due] == sorted(model[each] for each in due)
                assert set(due) == {each for each, when in model.items() if when <= at}
                for each in due:
                    del model[each]
        assert timers.next() == min(model.values(), default=None)
        assert len(timers) == len(model)
        assert all((name in timers) == (name in model) for name in ("a", "b", ("c", 1)))


def test_of_equal_times_the_first_set_comes_first() -> None:
    timers = Timers()
    for name in "cab":
        timers.set(name, 1.0)
    assert timers.due(1.0) == ["c", "a", "b"]


def test_what_is_set_again_and_again_takes_no_room() -> None:
    timers = Timers()
    for number in range(10_000):
        timers.set("a", float(number))
    assert len(timers._heap) < 200  # there is no other way to see it
