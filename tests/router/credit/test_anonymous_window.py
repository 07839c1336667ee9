"""Shares of a sender's window among the destinations of its messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.credit.anonymous_window import Portion, SharedWindow
from amqpmesh.router.kernel import CreditSink


def granted(window: SharedWindow, i: CreditSink) -> int:
    """Return how many deliveries the sender may send now."""
    window.grants(0.0)
    return i.granted


def wait(window: SharedWindow, i: CreditSink, to: str, count: int = 1) -> Portion:
    """So many messages come for an address, and wait."""
    for _ in range(count):
        window.received(i, 0.0)
        portion = window.hold(i, to)
    return portion


def resume(window: SharedWindow, i: CreditSink, count: int) -> None:
    """So many messages come for another address, and leave."""
    for _ in range(count):
        window.received(i, 0.0)
        window.passed(i, "another")


def begun(size: int) -> tuple[SharedWindow, CreditSink]:
    window = SharedWindow(size)
    i = window.add_sink(0)
    assert granted(window, i) == size
    return window, i


def test_what_waits_for_the_only_address_holds_all_of_the_window() -> None:
    window, i = begun(64)
    portion = wait(window, i, "q", 64)
    assert granted(window, i) == 0
    assert not window.is_full("q", 1), "its sender waits, and nothing is refused"
    window.end(i, portion, "q", left=True)
    assert granted(window, i) == 1


def test_an_address_that_takes_nothing_holds_nothing_while_others_go_on() -> None:
    window, i = begun(64)
    wait(window, i, "q", 40)
    resume(window, i, 15)
    assert window.held(i) == 40
    resume(window, i, 1)
    assert window.held(i) == 0
    assert granted(window, i) == 64
    assert not window.is_full("q", 41)
    assert window.is_full("q", 40)


def test_an_address_whose_receivers_are_slow_holds_a_part_while_others_go_on() -> None:
    window, i = begun(64)
    portion = wait(window, i, "q", 40)
    for waiting in range(39, 19, -1):
        resume(window, i, 16)
        window.end(i, portion, "q", left=True)
        assert (portion.waiting, window.held(i)) == (waiting, 16)


def test_an_address_that_takes_as_much_as_others_holds_what_waits_for_it_again() -> None:
    window, i = begun(64)
    portion = wait(window, i, "q", 40)
    resume(window, i, 16)
    for most in (16, 32, 64):
        window.end(i, portion, "q", left=True)
        assert portion.most == most, "others went on before the first of them alone"
    assert window.held(i) == 37
    assert not window.is_full("q", 1)


def test_what_holds_nothing_of_the_window_is_bounded_although_its_address_takes_some_again() -> None:
    window, i = begun(64)
    portion = wait(window, i, "q", 40)
    resume(window, i, 16)
    window.end(i, portion, "q", left=True)
    window.end(i, portion, "q", left=True)
    assert (portion.waiting, portion.most) == (38, 32)
    assert window.is_full("q", 38)
    assert not window.is_full("q", 39)


def test_one_that_has_waited_in_vain_shows_that_no_more_than_a_part_need_to_wait() -> None:
    window, i = begun(64)
    portion = wait(window, i, "q", 40)
    window.give_up(portion)
    assert portion.most == 64, "nobody else goes on: its sender is to wait"
    window.end(i, portion, "q", left=True)
    resume(window, i, 16)
    assert (portion.most, window.is_full("q", 500)) == (16, False)
    window.give_up(portion)
    window.end(i, portion, "q", left=False)
    assert (portion.most, window.is_full("q", 500)) == (0, True)
    window.end(i, portion, "q", left=True)
    assert (portion.most, window.is_full("q", 500)) == (16, False)


def test_what_leaves_by_a_lane_is_none_of_the_others_for_its_own_address() -> None:
    window, i = begun(64)
    there = wait(window, i, "q", 4)
    lane = wait(window, i, "a lane", 40)
    for _ in range(30):
        window.end(i, lane, "q", left=True)
    assert there.most == 64
    for _ in range(9):
        window.end(i, lane, "another", left=True)
    assert there.most == 64
    resume(window, i, 7)
    assert there.most == 0


@pytest.mark.parametrize("size", [1, 2, 3])
def test_one_address_does_not_hold_all_of_a_small_window(size: int) -> None:
    window, i = begun(size)
    wait(window, i, "q")
    assert granted(window, i) > 0
    resume(window, i, 1)
    assert granted(window, i) == size
    wait(window, i, "q")
    resume(window, i, 1)
    assert granted(window, i) == size


def test_what_left_may_wait_after_all() -> None:
    window, i = begun(4)
    for _ in range(4):
        window.received(i, 0.0)
        window.passed(i, "q")
    window.take_back(i)
    portion = window.hold(i, "q")
    assert granted(window, i) == 3
    for _ in range(9):
        window.received(i, 0.0)
        window.passed(i, "q")
    assert portion.most == 4, "those for its own address do not go on without it"


def test_nothing_ends_that_does_not_wait() -> None:
    window, i = begun(4)
    portion = wait(window, i, "q")
    window.end(i, portion, "q", left=False)
    with pytest.raises(CommandError):
        window.end(i, portion, "q", left=False)


@given(
    st.integers(1, 100),
    st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(["wait", "leave", "end", "drop", "up"]))),
)
def test_what_is_held_is_the_sum_of_the_portions_and_the_sender_gets_the_rest(
    size: int, steps: list[tuple[str, str]]
) -> None:
    window, i = begun(size)
    portions: dict[str, Portion] = {}
    for to, step in steps:
        portion = portions.get(to)
        if step == "wait":
            portions[to] = wait(window, i, to)
        elif step == "leave":
            window.received(i, 0.0)
            window.passed(i, to)
        elif portion is not None and step == "up":
            window.give_up(portion)
        elif portion is not None:
            window.end(i, portion, to, left=step == "end")
            if not portion.waiting:
                del portions[to]
        assert window.held(i) == sum(min(each.waiting, each.most) for each in portions.values())
        assert i.waiting == sum(each.waiting for each in portions.values())
        if not i.granted:
            assert granted(window, i) == max(0, min(size, window.capacity - window.held(i)))
    for to, portion in portions.items():
        while portion.waiting:
            window.end(i, portion, to, left=True)
    assert (window.held(i), granted(window, i) * 2 >= size) == (0, True)


@given(st.integers(1, 100), st.integers(0, 30), st.integers(0, 30), st.integers(0, 200))
def test_what_is_counted_together_within_the_slack_gives_the_credit_that_single_counts_give(
    size: int, dead: int, slow: int, count: int
) -> None:
    def waiting() -> tuple[SharedWindow, CreditSink]:
        window, i = begun(size)
        for to, number in (("dead", dead), ("slow", slow)):
            for _ in range(min(number, i.granted)):
                wait(window, i, to)
            granted(window, i)
        return window, i

    single, one = waiting()
    together, other = waiting()
    flows: list[int] = []
    counted: list[int] = []
    relayed, slack = 0, together.credit_slack(other)
    for number in range(count):
        if not one.granted:
            break
        resume(single, one, 1)
        flows += [number for _ in single.grants(0.0)]
        relayed += 1
        if relayed > slack:
            together.relayed(other, relayed, 0.0)
            counted += [number for _ in together.grants(0.0)]
            relayed, slack = 0, together.credit_slack(other)
    assert counted == flows
    assert other.granted - relayed == one.granted
