"""Fixed windows of credit."""

from __future__ import annotations

import pytest

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.credit.fixed_credit import FixedCredit
from amqpmesh.router.kernel import Grant


def test_a_window_is_granted_whole_at_once() -> None:
    window = FixedCredit(64)
    i = window.add_sink(2**32 - 10, owner="link")
    assert window.grants(0.0) == [Grant(i, 64, False, False)]
    assert (i.owner, i.limit) == ("link", 54)
    assert window.grants(0.0) == []


def test_it_is_renewed_by_halves_when_deliveries_leave_and_not_when_they_come() -> None:
    window = FixedCredit(10)
    i = window.add_sink(0)
    window.grants(0.0)
    for _ in range(10):
        window.received(i, 0.0)
    assert (window.grants(0.0), i.granted, i.waiting) == ([], 0, 10)
    window.forwarded(i, 0.0)
    assert window.grants(0.0) == [Grant(i, 1, False, False)], "it held none"
    for _ in range(4):
        window.forwarded(i, 0.0)
    assert window.grants(0.0) == []
    window.forwarded(i, 0.0)
    assert window.grants(0.0) == [Grant(i, 6, False, False)]
    assert i.granted + i.waiting == window.window


def test_each_input_has_a_window_of_its_own() -> None:
    window = FixedCredit(4)
    one, other = window.add_sink(0), window.add_sink(0)
    window.grants(0.0)
    for _ in range(4):
        window.received(one, 0.0)
    assert (one.granted, other.granted) == (0, 4)


def test_a_suspended_window_is_renewed_afterwards() -> None:
    window = FixedCredit(4)
    i = window.add_sink(0)
    window.set_suspended(True)
    assert window.grants(0.0) == []
    window.set_suspended(False)
    assert window.grants(0.0) == [Grant(i, 4, False, False)]


def test_a_suspended_window_takes_its_credit_back() -> None:
    window = FixedCredit(4)
    i = window.add_sink(0)
    window.grants(0.0)
    window.set_suspended(True)
    assert window.grants(0.0) == [Grant(i, 0, False, True)]
    assert window.grants(0.0) == []


@pytest.mark.parametrize("answers", [True, False])
def test_a_suspended_window_asks_those_to_drain_that_must_not_be_lowered(answers: bool) -> None:
    window = FixedCredit(4)
    i = window.add_sink(0)
    i.firm = True
    window.grants(0.0)
    window.received(i, 0.0)
    window.forwarded(i, 0.0)
    window.set_suspended(True)
    assert window.grants(0.0) == [Grant(i, 3, True, False)]
    assert window.grants(0.0) == []
    if answers:
        window.flow_received(i, 4, 0, None, 0.0)
        assert window.grants(0.0) == []
    window.set_suspended(False)
    assert window.grants(0.0) == [Grant(i, 4, False, False)]
    assert window.grants(0.0) == []


def test_credit_given_back_unasked_is_granted_again() -> None:
    window = FixedCredit(4)
    i = window.add_sink(2**32 - 2)
    window.grants(0.0)
    window.flow_received(i, 2, 0, 7, 0.0)
    assert (i.delivery_count, i.granted, i.available) == (2, 0, 7)
    assert window.grants(0.0) == [Grant(i, 4, False, False)]
    window.received(i, 0.0)
    assert i.available == 6


def test_nothing_is_sent_to_an_input_that_has_left() -> None:
    window = FixedCredit(2)
    i = window.add_sink(0)
    window.grants(0.0)
    window.received(i, 0.0)
    window.received(i, 0.0)
    window.remove_sink(i, 0.0)
    window.forwarded(i, 0.0)
    window.forwarded(i, 0.0)
    assert window.grants(0.0) == []
    with pytest.raises(CommandError):
        window.forwarded(i, 0.0)
