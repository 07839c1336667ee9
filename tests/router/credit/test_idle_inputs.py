"""Credit of idle sinks, and sinks that starve meanwhile."""

from __future__ import annotations

import pytest

from amqpmesh.router.kernel import CreditSink, CreditSource, Pool
from tests.support.worlds.credit_pools import BALANCED, Flow, flows, pass_time, relay, served


def starving(*, lowers: bool = False) -> tuple[Pool, CreditSource, CreditSink, CreditSink]:
    """One sink holds everything and is idle, the other one cannot send any more."""
    pool, source, (idle,) = served(100)
    idle.lowers = lowers
    busy = pool.add_sink(0)
    pool.grants(1.0)
    while busy.granted:
        relay(pool, busy, source, 1.0)
        pool.grants(1.0)
    return pool, source, idle, busy


def test_an_idle_input_is_asked_to_give_back_what_another_starves_for() -> None:
    pool, _, idle, busy = starving()
    assert pass_time(pool, 1.02) == {idle: [Flow(100, drain=True)]}
    assert idle.draining
    pool.flow_received(idle, 100, 0, 0, 1.03)
    assert flows(pool, 1.03) == {busy: Flow(98), idle: Flow(1)}
    assert not idle.draining
    assert pass_time(pool, 1.05) == {}, "what it keeps causes no traffic"


def test_an_idle_input_that_does_not_answer_is_lowered_after_the_reclaim_time() -> None:
    pool, _, idle, busy = starving()
    pass_time(pool, 1.02)
    assert pass_time(pool, 2.0) == {}
    assert pass_time(pool, 2.03) == {idle: [Flow(1)], busy: [Flow(98)]}


def test_an_idle_input_that_may_be_lowered_is_at_once() -> None:
    pool, _, idle, busy = starving(lowers=True)
    assert pass_time(pool, 1.02) == {idle: [Flow(2, echo=True)]}
    assert not idle.draining, "a drain would go on to all that send to it"
    pool.flow_received(idle, 0, 2, 0, 1.03)
    assert flows(pool, 1.03) == {busy: Flow(98)}


def test_an_idle_input_that_does_not_answer_is_believed_to_have_seen_its_limit_after_the_reclaim_time() -> None:
    pool, _, _, busy = starving(lowers=True)
    pass_time(pool, 1.02)
    assert pass_time(pool, 2.0) == {}
    assert pass_time(pool, 2.03) == {busy: [Flow(98)]}


def slow_beside_fast(*, held: int, demand: int) -> tuple[Pool, CreditSource, CreditSink, CreditSink]:
    """One sink holds credit and uses it, but slowly; the other one has used all that it was given."""
    pool = Pool(BALANCED)
    slow = pool.add_sink(0)
    slow.lowers = True
    source = pool.add_source(usable=held)
    pool.grants(0.0)
    fast = pool.add_sink(0)
    pool.grants(1.0)
    relay(pool, slow, source, 1.0)
    pool.set_usable(source, demand, 1.0)
    pool.grants(1.0)
    while fast.granted:
        pool.received(fast, 1.0)
        pool.grants(1.0)
    return pool, source, slow, fast


def test_credit_of_a_busy_sink_beyond_its_share_goes_to_a_sink_without_any() -> None:
    pool, _, slow, fast = slow_beside_fast(held=100, demand=100)
    assert slow.granted == 99
    assert pass_time(pool, 1.019) == {}
    assert pass_time(pool, 1.02) == {slow: [Flow(50, echo=True)]}
    pool.flow_received(slow, 1, 50, 0, 1.03)
    assert flows(pool, 1.03).keys() == {fast}
    assert (slow.granted, fast.granted) == (50, 100 + pool.overcommit - pool.waiting - 50)


@pytest.mark.parametrize(("held", "asked"), [(100, True), (98, False)])
def test_a_sink_without_lower_limits_is_drained_only_if_it_has_far_too_much(held: int, asked: bool) -> None:
    pool, _, slow, _ = slow_beside_fast(held=held, demand=98)
    slow.firm, slow.lowers = True, False
    assert pass_time(pool, 1.02) == ({slow: [Flow(held - 1, drain=True)]} if asked else {})


def test_a_sink_that_is_given_one_credit_at_a_time_gets_its_share_of_others_credit() -> None:
    pool, source, (slow,) = served(100)
    slow.lowers = True
    fast = pool.add_sink(0)
    for turn in range(50):
        now = 1.0 + turn / 100
        for i in (fast, *((slow,) if turn % 5 == 0 else ())):
            if i.granted:
                relay(pool, i, source, now)
        pool.set_usable(source, 100, now)
        pool.grants(now)
        for i, sent in pass_time(pool, now + 0.009).items():
            pool.flow_received(i, i.delivery_count, sent[-1].credit, 0, now + 0.009)
            pool.grants(now + 0.009)
        assert fast.granted, "it never has nothing for long"
    assert fast.granted > 25


def test_those_who_have_nothing_are_not_looked_at_while_others_have_not_confirmed_what_they_give_back() -> None:
    pool, source, (idle,) = served(100)
    idle.lowers = True
    pool.grants(1.0)
    empty = [pool.add_sink(0) for _ in range(3)]
    pool.grants(1.0)
    for i in empty:
        while i.granted:
            relay(pool, i, source, 1.0)
            pool.grants(1.0)
    assert pass_time(pool, 1.02).keys() == {idle}
    line = pool._waiters.empty
    pool.grants(1.021)
    assert pool._waiters.empty is line


def test_nobody_who_uses_its_credit_gives_any_for_those_who_have_just_come() -> None:
    pool, source, (busy,) = served(100)
    new = [pool.add_sink(0) for _ in range(5)]
    pool.grants(1.0)
    for turn in range(50):
        now = 1.0 + turn / 100
        relay(pool, busy, source, now)
        pool.set_usable(source, 100, now)
        assert pass_time(pool, now + 0.01).keys() <= set(new)
    assert busy.granted >= 50


def test_a_sink_with_lowered_limits_gives_back_no_more_than_others_need() -> None:
    pool = Pool(BALANCED, max_credit=50)
    idle = [pool.add_sink(0) for _ in range(2)]
    for each in idle:
        each.lowers = True
    source = pool.add_source(usable=100)
    pool.grants(0.0)
    large = pool.add_sink(0, large=True)
    pool.grants(1.0)
    relay(pool, idle[1], source, 1.0)
    relay(pool, large, source, 1.0)
    pool.grants(1.0)
    assert pass_time(pool, 1.05) == {idle[0]: [Flow(18, echo=True)]}
    pool.flow_received(idle[0], 0, 18, 0, 1.06)
    assert flows(pool, 1.06) == {large: Flow(32)}


def test_an_idle_input_that_was_asked_may_use_its_credit_instead() -> None:
    pool, source, idle, _ = starving()
    pass_time(pool, 1.02)
    for _ in range(98):
        relay(pool, idle, source, 1.03)
    assert idle.draining
    assert idle not in flows(pool, 1.03), "nothing more before it is through"
    pool.set_usable(source, 100, 1.03)
    for _ in range(2):
        relay(pool, idle, source, 1.03)
    assert not idle.draining
    assert flows(pool, 1.03)[idle].credit > 1


def test_an_idle_input_that_must_not_be_lowered_keeps_what_it_was_told_and_the_others_have_it_too() -> None:
    pool, _, idle, busy = starving()
    idle.firm = True
    assert pass_time(pool, 1.02) == {idle: [Flow(100, drain=True)]}
    assert pass_time(pool, 2.03) == {idle: [Flow(100)], busy: [Flow(98)]}
    assert idle.credit == 1


def test_when_the_last_consumer_leaves_inputs_that_must_not_be_lowered_are_asked_for_what_they_hold() -> None:
    pool, source, (first, second) = served(100, sinks=2)
    first.firm = second.firm = True
    pool.remove_source(source, 1.0)
    assert flows(pool, 1.0) == {first: Flow(50, drain=True), second: Flow(50, drain=True)}
    pool.flow_received(first, 50, 0, 0, 1.1)
    assert pass_time(pool, 1.9) == {}, "each is asked once"
    assert pass_time(pool, 2.1) == {second: [Flow(50)]}, "it drains no more"
    assert pass_time(pool, 9.0) == {}
    assert (first.granted, second.granted) == (0, 0)
    pool.add_source(10)
    assert flows(pool, 9.0) == {first: Flow(1), second: Flow(50)}, "those that rest have one each"


def test_inputs_that_must_not_be_lowered_and_use_their_credit_are_let_alone() -> None:
    pool, source, (busy,) = served(100)
    busy.firm = True
    relay(pool, busy, source, 1.0)
    pool.set_usable(source, 10, 1.0)
    assert pass_time(pool, 1.09) == {}
    assert busy.granted == 99


def test_a_sender_that_limps_behind_idle_ones_gets_its_share() -> None:
    pool, source, (_, _, busy) = served(0, sinks=3)
    pool.set_usable(source, 300, 0.0)
    pool.grants(0.0)
    now = 1.0
    while busy.granted < 250:
        # Never without credit for long, but never with half a share of what lies idle.
        while busy.granted:
            relay(pool, busy, source, now)
        pool.set_usable(source, 300, now)
        for i, flow in flows(pool, now).items():
            if flow.drain:
                pool.flow_received(i, (i.delivery_count + flow.credit) % 2**32, 0, 0, now)
        now += 0.005
        pool.handle_timer(now)
        assert now < 1.2


def test_once_nobody_starves_any_more_idle_credit_is_let_alone() -> None:
    pool, source, idle, busy = starving()
    pool.set_usable(source, 300, 1.01)
    assert flows(pool, 1.01).keys() == {busy}
    assert (pass_time(pool, 10.0), pool.next_timer()) == ({}, None)
    assert (idle.granted, busy.granted) == (100, 202)


def test_no_more_is_asked_back_than_those_that_starve_need() -> None:
    pool = Pool(BALANCED, max_credit=50)
    idle = [pool.add_sink(0) for _ in range(6)]
    source = pool.add_source(usable=300)
    pool.grants(0.0)
    busy = pool.add_sink(0)
    pool.grants(1.0)
    while busy.granted:
        relay(pool, busy, source, 1.0)
        pool.grants(1.0)
    assert pass_time(pool, 1.9) == {i: [Flow(50, drain=True)] for i in idle[:2]}


def test_idle_inputs_that_hold_one_are_asked_for_nothing() -> None:
    pool, source, (*_, busy) = served(3, sinks=4)
    pass_time(pool, 1.0)
    while busy.granted:
        pool.received(busy, 1.0)
        pool.grants(1.0)
    pool.set_usable(source, 0, 1.0)
    pool.grants(1.0)
    assert (pass_time(pool, 10.0), pool.next_timer()) == ({}, None)


def test_shares_are_those_of_the_inputs_that_are_not_idle() -> None:
    pool, source, sinks = served(10, sinks=10)
    pool.grants(1.0)
    first, second = sinks[:2]
    for expected in ({first: Flow(100)}, {first: Flow(50), second: Flow(50)}):
        while first.granted:
            relay(pool, first, source, 1.0)
        pool.set_usable(source, 100, 1.0)
        assert flows(pool, 1.0) == expected
        while second.granted:
            relay(pool, second, source, 1.0)


def test_an_idle_input_is_not_given_more_because_the_demand_grew() -> None:
    pool, source, (i, _) = served(20, sinks=2)
    for _ in range(6):
        relay(pool, i, source, 0.0)
    assert flows(pool, 0.0) == {}
    pool.handle_timer(1.0)
    pool.set_usable(source, 200, 1.0)
    assert flows(pool, 1.0) == {}


def test_thousands_of_idle_inputs_cause_nothing() -> None:
    pool, source, sinks = served(10, sinks=5000)
    assert pass_time(pool, 10.0) == {}
    assert pool.next_timer() is None
    busy = sinks[0]
    for _ in range(100):
        relay(pool, busy, source, 10.0)
        pool.set_usable(source, 10, 10.0)
        assert flows(pool, 10.0).keys() <= {busy}
    assert busy.granted > 1
    assert pass_time(pool, 20.0) == {}


def test_an_idle_input_that_announces_deliveries_gets_its_share_when_it_has_sent_one() -> None:
    pool, source, (i, other) = served(1, sinks=2)
    pass_time(pool, 1.0)
    pool.grants(5.0)
    pool.flow_received(i, 0, 1, 40, 5.0)
    assert i.available == 40
    relay(pool, i, source, 5.0)
    assert i.available == 39
    pool.set_usable(source, 50, 5.0)
    assert flows(pool, 5.0)[i].credit >= 25
    assert other.granted == 1


def test_available_deliveries_never_fall_below_zero() -> None:
    pool, source, (i,) = served(10)
    pool.flow_received(i, 0, 10, 1, 0.0)
    pool.flow_received(i, 0, 10, None, 0.0)
    assert i.available == 1
    relay(pool, i, source)
    relay(pool, i, source)
    assert i.available == 0
