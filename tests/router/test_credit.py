from __future__ import annotations

import tracemalloc
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.credit import Branch, Input, Pool
from amqpmesh.router.windows import ahead

BALANCED = Distribution.BALANCED
SINGLE = [Distribution.BALANCED, Distribution.CLOSEST, Distribution.MULTICAST]


class Flow(NamedTuple):
    credit: int
    drain: bool = False
    echo: bool = False


def flows(pool: Pool, now: float = 0.0) -> dict[Input, Flow]:
    return {grant.input: Flow(*grant[1:]) for grant in pool.grants(now)}


def served(credit: int, inputs: int = 1) -> tuple[Pool, Branch, list[Input]]:
    """A pool that has dealt a consumer's credit to its inputs."""
    pool = Pool(BALANCED)
    those = [pool.add_input(0) for _ in range(inputs)]
    branch = pool.add_branch()
    pool.set_usable(branch, credit, 0.0)
    pool.grants(0.0)
    return pool, branch, those


def relay(pool: Pool, i: Input, branch: Branch, now: float = 0.0) -> None:
    pool.received(i, now)
    pool.forwarded(i, now)
    pool.set_usable(branch, branch.usable - 1, now)


def pass_time(pool: Pool, until: float) -> dict[Input, list[Flow]]:
    """Every flow that time alone brings about."""
    sent: dict[Input, list[Flow]] = {}
    while (due := pool.next_timer()) is not None and due <= until:
        pool.handle_timer(due)
        for i, flow in flows(pool, due).items():
            sent.setdefault(i, []).append(flow)
    return sent


# Who gives credit, and how much.


@pytest.mark.parametrize("distribution", Distribution)
def test_without_a_consumer_nobody_gets_credit(distribution: Distribution) -> None:
    pool = Pool(distribution)
    pool.add_input(0)
    assert flows(pool) == {}
    assert (pool.demand, pool.spare) == (0, 0)
    branch = pool.add_branch()
    assert flows(pool) == {}, "a consumer that never gave credit is none"
    pool.remove_branch(branch, 0.0)
    assert pool.next_timer() is None


@pytest.mark.parametrize("distribution", SINGLE)
def test_receivers_of_copies_are_no_consumers(distribution: Distribution) -> None:
    pool = Pool(distribution)
    i = pool.add_input(0)
    pool.add_branch(usable=100, counts=False)
    copies = pool.add_branch(usable=1, counts=False)
    pool.set_usable(copies, 50, 0.0)
    assert flows(pool) == {}
    pool.add_branch(usable=7)
    pool.set_usable(copies, 0, 0.0, withdrawn=True)
    pool.remove_branch(copies, 0.0)
    assert flows(pool) == {i: Flow(7)}


def test_an_unavailable_address_gives_no_credit() -> None:
    pool = Pool(Distribution.UNAVAILABLE)
    pool.add_input(0)
    pool.set_usable(pool.add_branch(usable=5), 10, 0.0)
    assert flows(pool) == {}


@pytest.mark.parametrize(
    ("distribution", "demand"),
    [(Distribution.BALANCED, 37), (Distribution.CLOSEST, 7), (Distribution.MULTICAST, 2)],
)
def test_the_demand_is_what_the_distribution_can_use(distribution: Distribution, demand: int) -> None:
    pool = Pool(distribution)
    i = pool.add_input(0)
    for usable, cost in ((2, 1), (5, 1), (30, 2)):
        pool.add_branch(usable=usable, cost=cost)
    assert pool.demand == demand
    assert flows(pool) == {i: Flow(demand)}


def test_the_next_closest_take_over_only_when_the_closest_are_gone() -> None:
    pool = Pool(Distribution.CLOSEST)
    near, _far = pool.add_branch(usable=5, cost=1), pool.add_branch(usable=30, cost=2)
    pool.set_usable(near, 0, 0.0)
    assert pool.demand == 0
    pool.remove_branch(near, 0.0)
    assert pool.demand == 30


@pytest.mark.parametrize("distribution", SINGLE)
def test_a_branch_that_has_left_changes_nothing_any_more(distribution: Distribution) -> None:
    pool = Pool(distribution)
    gone, here = pool.add_branch(usable=1), pool.add_branch(usable=3)
    assert here.usable == 3
    pool.remove_branch(gone, 0.0)
    pool.set_usable(gone, 50, 0.0)
    pool.remove_branch(gone, 0.0)
    assert pool.demand == 3


def test_a_multicast_waits_for_a_receiver_that_gave_no_credit_yet() -> None:
    pool = Pool(Distribution.MULTICAST)
    i = pool.add_input(0)
    pool.add_branch(usable=10)
    late = pool.add_branch()
    assert (pool.demand, pool.spare) == (0, 0)
    assert flows(pool) == {}
    pool.set_usable(late, 4, 0.0)
    assert flows(pool) == {i: Flow(4)}


def test_credit_is_divided_among_the_inputs_and_never_promised_twice() -> None:
    pool, _, inputs = served(100, inputs=4)
    assert [i.granted for i in inputs] == [25, 25, 25, 25]
    late = pool.add_input(0)
    assert flows(pool) == {late: Flow(5)}, "what is spare, and no more, until others give back"
    assert pool.granted == pool.demand + pool.spare == 105


def test_more_inputs_than_credit_get_one_each() -> None:
    pool, _, inputs = served(3, inputs=10)
    assert [i.granted for i in inputs] == [1] * 10
    assert (pool.demand, pool.spare) == (3, 10)


def test_one_input_never_gets_more_than_max_credit() -> None:
    pool = Pool(BALANCED, max_credit=250)
    i = pool.add_input(0)
    pool.add_branch(usable=1000)
    assert flows(pool) == {i: Flow(250)}


def test_who_stands_for_many_is_given_as_many_times_more_and_no_more_than_there_is() -> None:
    pool = Pool(BALANCED, max_credit=250)
    many, one = pool.add_input(0), pool.add_input(0)
    many.times = 3
    branch = pool.add_branch(usable=10_000)
    assert flows(pool) == {many: Flow(750), one: Flow(250)}
    pool.change_branch(branch, 0, 1, True, 0.0)
    small = Pool(BALANCED, max_credit=250)
    many, one = small.add_input(0), small.add_input(0)
    many.times = 3
    small.add_branch(usable=300)
    assert flows(small) == {many: Flow(150), one: Flow(150)}


@pytest.mark.parametrize(
    ("credit", "shares"), [(200, (136, 32, 32)), (96, (32, 32, 32)), (6, (2, 2, 2)), (2000, (500, 32, 32))]
)
def test_who_carries_what_is_large_beside_others_is_given_few(credit: int, shares: tuple[int, ...]) -> None:
    pool = Pool(BALANCED)
    inputs = [pool.add_input(0, large=large) for large in (False, True, True)]
    pool.add_branch(usable=credit)
    pool.grants(0.0)
    assert tuple(i.granted for i in inputs) == shares


def test_who_carries_what_is_large_is_given_whole_shares_once_no_other_uses_its_own() -> None:
    pool = Pool(BALANCED)
    small, large = pool.add_input(0), pool.add_input(0, large=True)
    branch = pool.add_branch(usable=400)
    pool.grants(0.0)
    assert (small.granted, large.granted) == (368, 32)
    sent = 0
    while not small.draining:
        assert sent < 100, "who is idle is asked for what it holds, since another starves"
        relay(pool, large, branch, 1.0)
        pool.set_usable(branch, 368, 1.0)
        for now in (1.0, 1.03):
            pool.handle_timer(now)
            pool.grants(now)
        sent += 1
    pool.flow_received(small, (small.delivery_count + small.credit) % 2**32, 0, 0, 1.05)
    pool.grants(1.05)
    assert large.granted > 300


def test_no_more_is_asked_back_than_what_is_large_needs() -> None:
    pool = Pool(BALANCED, max_credit=50)
    *idle, busy = [pool.add_input(0) for _ in range(6)]
    branch = pool.add_branch(usable=300)
    pool.grants(0.0)
    large = pool.add_input(0, large=True)
    relay(pool, busy, branch, 1.0)
    pool.grants(1.0)
    for _ in range(7):
        relay(pool, large, branch, 1.0)
    pool.grants(1.0)
    assert large.granted == 0
    asked = {i for i, sent in pass_time(pool, 1.09).items() if any(flow.drain for flow in sent)}
    assert asked == {idle[0]}, "thirty-two are enough, and one of those that are idle holds fifty"


# The spare delivery.


def use_up(pool: Pool, i: Input, branch: Branch, now: float) -> None:
    """Have an input send all that it may, and all of it leave."""
    while i.credit:
        relay(pool, i, branch, now)


def test_who_has_used_a_large_share_up_is_given_what_is_spare_only_when_nothing_else_comes() -> None:
    pool, branch, (i,) = served(100)
    use_up(pool, i, branch, 1.0)
    assert flows(pool, 1.0) == {}
    assert pool.next_timer() == pytest.approx(1.02)
    assert pass_time(pool, 2.0) == {i: [Flow(1)]}
    assert pool.next_timer() is None


def test_what_a_consumer_gives_meanwhile_comes_in_one_flow() -> None:
    pool, branch, (i,) = served(100)
    for now in (1.0, 1.01, 1.02):
        use_up(pool, i, branch, now)
        assert flows(pool, now) == {}
        pool.set_usable(branch, 100, now)
        assert flows(pool, now) == {i: Flow(100)}
    assert pool.next_timer() is None


def test_who_was_given_what_is_spare_late_once_is_given_it_at_once_while_shares_stay_small() -> None:
    pool, branch, (i,) = served(100)
    use_up(pool, i, branch, 1.0)
    assert flows(pool, 1.0) == {}
    assert pass_time(pool, 2.0) == {i: [Flow(1)]}
    pool.set_usable(branch, 1, 2.0)
    pool.grants(2.0)
    use_up(pool, i, branch, 2.0)
    assert flows(pool, 2.0) == {i: Flow(1)}


def test_who_comes_new_does_not_wait_for_what_is_spare_behind_who_expects_more() -> None:
    pool, branch, (i,) = served(100)
    use_up(pool, i, branch, 1.0)
    assert flows(pool, 1.0) == {}
    late = pool.add_input(0)
    assert flows(pool, 1.0) == {late: Flow(1)}
    assert pass_time(pool, 1.03) == {i: [Flow(1)]}


# What need not be told.


@given(
    credit=st.integers(1, 300),
    more=st.integers(0, 300),
    first=st.integers(0, 100),
    most=st.sampled_from([1, 5, 50, 250]),
    inputs=st.lists(st.booleans(), min_size=1, max_size=4),
    times=st.integers(1, 2),
    data=st.data(),
)
def test_what_is_relayed_quietly_would_have_changed_nothing(
    credit: int, more: int, first: int, most: int, inputs: list[bool], times: int, data: st.DataObject
) -> None:
    """Told of each delivery, a pool sends no flow for as many as it said that it need not be told of.

    Args: inputs: of each, whether it carries what is large.
    """
    pool = Pool(BALANCED, max_credit=most)
    those = [pool.add_input(0, large=large) for large in inputs]
    those[0].times = times
    branch = pool.add_branch(usable=credit)
    pool.grants(0.0)
    for _ in range(first):
        i = data.draw(st.sampled_from(those))
        if i.credit and branch.usable:
            relay(pool, i, branch)
            pool.grants(0.0)
    pool.set_usable(branch, branch.usable + more, 0.0)
    pool.grants(0.0)
    i = data.draw(st.sampled_from(those))
    for _ in range(min(pool.quiet(i), branch.usable)):
        relay(pool, i, branch)
        assert flows(pool) == {}


def test_an_input_that_is_alone_is_quiet_until_it_has_used_up_what_it_was_given() -> None:
    pool, branch, (i,) = served(100)
    assert pool.quiet(i) == 97
    relay(pool, i, branch)
    pool.grants(0.0)
    assert pool.quiet(i) == 96
    late = pool.add_input(0)
    pool.grants(0.0)
    assert (pool.quiet(i), pool.quiet(late)) == (i.quiet, late.quiet)


# Renewed when a delivery has left.


def test_credit_is_renewed_when_a_delivery_leaves_and_not_when_it_comes() -> None:
    pool, branch, (i,) = served(10)
    for _ in range(10):
        pool.received(i, 0.0)
    assert flows(pool) == {i: Flow(1)}, "one to wait here, and no more"
    for _ in range(9):
        pool.forwarded(i, 0.0)
        pool.set_usable(branch, branch.usable - 1, 0.0)
    assert flows(pool) == {}, "what has left has used the consumer's credit"
    pool.set_usable(branch, 10, 0.0)
    assert flows(pool) == {i: Flow(10)}
    assert (i.granted, pool.waiting) == (10, 1)


def test_a_flow_is_sent_for_half_a_share_and_those_of_a_batch_are_one() -> None:
    pool, branch, (i,) = served(100)
    sent = 0
    for _ in range(1000):
        relay(pool, i, branch)
        pool.set_usable(branch, 100, 0.0)
        sent += len(pool.grants(0.0))
    assert sent == 20
    for _ in range(99):
        relay(pool, i, branch)
        pool.set_usable(branch, 100, 0.0)
    assert flows(pool) == {i: Flow(100)}


def test_a_consumer_that_takes_one_at_a_time_costs_one_flow_for_each_delivery() -> None:
    pool, branch, inputs = served(1, inputs=3)
    for n in range(30):
        relay(pool, inputs[n % 3], branch)
        between = flows(pool)
        pool.set_usable(branch, 1, 0.0)
        assert between | flows(pool) == {inputs[n % 3]: Flow(1)}


def test_no_more_wait_than_one_for_each_input() -> None:
    pool, branch, inputs = served(0, inputs=5)
    pool.set_usable(branch, 1, 0.0)
    pool.grants(0.0)
    pool.set_usable(branch, 0, 0.0)  # spent on something else: still a consumer
    for _ in range(10):
        for i in inputs:
            while i.granted:
                pool.received(i, 0.0)
        pool.grants(0.0)
    assert pool.waiting <= 6  # five, and the one that the credit was for


def test_forwarding_more_than_has_come_is_our_own_mistake() -> None:
    pool, branch, (i,) = served(5)
    relay(pool, i, branch)
    with pytest.raises(CommandError):
        pool.forwarded(i, 0.0)
    assert (pool.waiting, i.waiting) == (0, 0)


# Taken back.


def test_when_the_last_consumer_leaves_all_credit_is_taken_back_at_once() -> None:
    pool, branch, inputs = served(100, inputs=2)
    pool.remove_branch(branch, 1.0)
    assert flows(pool, 1.0) == dict.fromkeys(inputs, Flow(0, echo=True))
    assert pool.granted == 100, "until they show that they have seen it"
    pool.flow_received(inputs[0], 0, 0, 0, 1.1)
    assert pool.granted == 50
    assert flows(pool, 1.1) == {}


@pytest.mark.parametrize("withdrawn", [True, False])
def test_a_withdrawn_limit_ends_the_spare_credit_and_a_spent_one_does_not(withdrawn: bool) -> None:
    pool, branch, (i,) = served(1)
    relay(pool, i, branch)
    pool.set_usable(branch, 0, 0.0, withdrawn=withdrawn)
    assert pool.spare == (0 if withdrawn else 1)
    assert flows(pool) == ({} if withdrawn else {i: Flow(1)})


def test_a_consumer_that_withdraws_takes_its_credit_back_at_once() -> None:
    pool, branch, (i,) = served(10)
    pool.set_usable(branch, 0, 1.0, withdrawn=True)
    assert flows(pool, 1.0) == {i: Flow(0, echo=True)}


def test_what_cannot_be_lowered_any_more_is_let_alone() -> None:
    pool, branch, inputs = served(10, inputs=2)
    for i in inputs:
        for _ in range(4):
            pool.received(i, 1.0)
    pool.set_usable(branch, 0, 1.0)
    pool.grants(1.0)
    assert pass_time(pool, 1.1) == {}
    pool.grants(1.1)
    assert (pass_time(pool, 100.0), pool.next_timer()) == ({}, None)
    pool.set_usable(branch, 0, 100.0, withdrawn=True)
    assert flows(pool, 100.0) == dict.fromkeys(inputs, Flow(0, echo=True))


def test_what_is_sent_under_the_old_limit_counts_under_the_old_limit() -> None:
    pool, branch, (i,) = served(10)
    pool.remove_branch(branch, 0.0)
    pool.grants(0.0)
    for _ in range(4):
        pool.received(i, 0.0)
    assert (i.granted, i.credit, pool.waiting) == (6, 0, 4)
    assert i.limit == i.delivery_count == 4
    pool.flow_received(i, 4, 0, 0, 0.1)
    assert (i.granted, pool.granted) == (0, 0)


def test_an_older_flow_does_not_confirm_a_lower_limit() -> None:
    pool, branch, (i,) = served(10)
    pool.remove_branch(branch, 0.0)
    pool.grants(0.0)
    pool.received(i, 0.0)
    pool.flow_received(i, 1, 9, 0, 0.1)
    assert i.granted == 9


def test_a_flow_that_may_be_older_than_the_last_raise_confirms_nothing() -> None:
    pool, branch, (i,) = served(10)
    pool.remove_branch(branch, 0.0)
    pool.grants(0.0)
    branch = pool.add_branch(usable=5)
    pool.grants(0.0)
    pool.remove_branch(branch, 0.0)
    assert flows(pool) == {i: Flow(0, echo=True)}
    pool.flow_received(i, 0, 0, 0, 0.1)  # the answer to the first, or to the second?
    assert i.granted == 10
    pool.handle_timer(1.0)
    assert i.granted == 0
    branch = pool.add_branch(usable=5)
    pool.grants(2.0)
    pool.remove_branch(branch, 2.0)
    pool.grants(2.0)
    pool.flow_received(i, 0, 0, 0, 2.1)
    assert i.granted == 0, "the doubt is over"


def test_a_peer_that_confirms_nothing_is_believed_after_the_reclaim_time() -> None:
    pool, branch, (i,) = served(10)
    pool.remove_branch(branch, 1.0)
    pool.grants(1.0)
    assert pool.next_timer() == 2.0
    pool.handle_timer(2.0)
    assert (pool.granted, pool.next_timer()) == (0, None)
    pool.received(i, 2.1)  # it had sent one after all: that is no error
    assert (pool.granted, pool.waiting) == (0, 1)


def test_a_consumer_that_comes_at_once_is_not_kept_waiting_by_unconfirmed_limits() -> None:
    pool, branch, (i,) = served(10)
    pool.remove_branch(branch, 0.0)
    pool.grants(0.0)
    pool.add_branch(usable=5)
    assert flows(pool) == {i: Flow(5, echo=True)}
    assert pool.granted == 10, "it was promised these before"
    pool.flow_received(i, 0, 5, 0, 0.1)
    assert pool.granted == 5


def test_a_demand_that_falls_for_a_moment_costs_no_flow() -> None:
    pool, branch, (i,) = served(100)
    pool.set_usable(branch, 0, 1.0)  # the connection is congested
    assert flows(pool, 1.0) == {}
    assert pool.next_timer() == pytest.approx(1.02)
    pool.set_usable(branch, 100, 1.01)
    assert flows(pool, 1.01) == {}
    assert (pass_time(pool, 10.0), pool.next_timer()) == ({}, None)
    assert i.granted == 100


def test_a_demand_that_stays_low_lowers_idle_inputs_first() -> None:
    pool, branch, (idle, active) = served(100, inputs=2)
    pool.received(active, 1.0)
    pool.forwarded(active, 1.0)
    pool.set_usable(branch, 60, 1.0)
    pool.grants(1.0)
    assert pass_time(pool, 1.05) == {idle: [Flow(13, echo=True)]}  # 99 were promised, 60 and two can be kept
    pool.set_usable(branch, 5, 1.1)
    pool.grants(1.1)
    assert pass_time(pool, 1.2) == {idle: [Flow(1, echo=True)], active: [Flow(6, echo=True)]}


def test_a_lowered_consumer_leaves_each_input_one() -> None:
    pool, branch, inputs = served(100, inputs=4)
    pool.set_usable(branch, 0, 1.0)
    pool.grants(1.0)
    assert pass_time(pool, 1.1) == {i: [Flow(1, echo=True)] for i in inputs}
    for i in inputs:
        pool.flow_received(i, 0, 1, 0, 1.1)
    assert (flows(pool, 1.1), pool.next_timer()) == ({}, None)


def test_a_router_without_memory_gives_no_credit_and_takes_back_what_is_unused() -> None:
    pool, branch, (i,) = served(100)
    relay(pool, i, branch, 1.0)
    pool.set_suspended(True)
    pool.grants(1.0)
    assert pass_time(pool, 1.05) == {i: [Flow(0, echo=True)]}
    pool.flow_received(i, 1, 0, 0, 1.05)
    assert flows(pool, 1.05) == {}
    pool.set_suspended(False)
    assert flows(pool, 1.06) == {i: Flow(99)}


def test_an_input_that_leaves_gives_its_credit_to_the_others() -> None:
    pool, branch, (gone, other) = served(20, inputs=2)
    for _ in range(3):
        pool.received(gone, 0.0)
    for _ in range(10):
        relay(pool, other, branch)
    pool.set_usable(branch, 20, 0.0)
    pool.remove_input(gone, 0.0)
    assert flows(pool) == {other: Flow(18)}, "its three deliveries wait here still"
    for _ in range(3):
        pool.forwarded(gone, 0.0)
    assert (pool.waiting, pool.granted, pool.spare) == (0, 18, 1)


def test_an_input_that_leaves_while_it_is_lowered_is_forgotten() -> None:
    pool, branch, (i,) = served(20)
    pool.remove_branch(branch, 0.0)
    pool.grants(0.0)
    pool.remove_input(i, 0.0)
    assert (pool.granted, pool.next_timer()) == (0, None)


def test_a_multicast_takes_credit_back_for_a_new_receiver_that_gives_none() -> None:
    pool = Pool(Distribution.MULTICAST)
    inputs = [pool.add_input(0) for _ in range(2)]
    first = pool.add_branch(usable=10)
    pool.grants(0.0)
    for i in inputs:
        for _ in range(4):
            pool.received(i, 1.0)
    pool.set_usable(first, 0, 1.0)
    pool.grants(1.0)
    pass_time(pool, 1.1)  # one each is left, and that is as low as it goes
    pool.add_branch()
    pool.grants(2.0)
    assert pass_time(pool, 2.1) == {i: [Flow(0, echo=True)] for i in inputs}


# Idle ones and starving ones.


def starving(*, lowers: bool = False) -> tuple[Pool, Branch, Input, Input]:
    """One input holds everything and is idle, the other one cannot send any more."""
    pool, branch, (idle,) = served(100)
    idle.lowers = lowers
    busy = pool.add_input(0)
    pool.grants(1.0)
    while busy.granted:
        relay(pool, busy, branch, 1.0)
        pool.grants(1.0)
    return pool, branch, idle, busy


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
    assert not idle.draining, "a drain would go on to whoever sends to it"
    pool.flow_received(idle, 0, 2, 0, 1.03)
    assert flows(pool, 1.03) == {busy: Flow(98)}


def test_an_idle_input_that_does_not_answer_is_believed_to_have_seen_its_limit_after_the_reclaim_time() -> None:
    pool, _, _, busy = starving(lowers=True)
    pass_time(pool, 1.02)
    assert pass_time(pool, 2.0) == {}
    assert pass_time(pool, 2.03) == {busy: [Flow(98)]}


def slow_beside_fast(*, held: int, demand: int) -> tuple[Pool, Branch, Input, Input]:
    """One input holds credit and uses it, but slowly; the other one has used all that it was given."""
    pool = Pool(BALANCED)
    slow = pool.add_input(0)
    slow.lowers = True
    branch = pool.add_branch(usable=held)
    pool.grants(0.0)
    fast = pool.add_input(0)
    pool.grants(1.0)
    relay(pool, slow, branch, 1.0)
    pool.set_usable(branch, demand, 1.0)
    pool.grants(1.0)
    while fast.granted:
        pool.received(fast, 1.0)
        pool.grants(1.0)
    return pool, branch, slow, fast


def test_what_an_input_holds_beyond_its_share_goes_to_who_has_nothing_though_it_is_not_idle() -> None:
    pool, _, slow, fast = slow_beside_fast(held=100, demand=100)
    assert slow.granted == 99
    assert pass_time(pool, 1.019) == {}
    assert pass_time(pool, 1.02) == {slow: [Flow(50, echo=True)]}
    pool.flow_received(slow, 1, 50, 0, 1.03)
    assert flows(pool, 1.03).keys() == {fast}
    assert (slow.granted, fast.granted) == (50, 100 + pool.spare - pool.waiting - 50)


@pytest.mark.parametrize(("held", "asked"), [(100, True), (98, False)])
def test_who_cannot_be_told_a_lower_limit_is_asked_for_everything_only_if_it_has_far_too_much(
    held: int, asked: bool
) -> None:
    pool, _, slow, _ = slow_beside_fast(held=held, demand=98)
    slow.firm, slow.lowers = True, False
    assert pass_time(pool, 1.02) == ({slow: [Flow(held - 1, drain=True)]} if asked else {})


def test_who_is_given_one_at_a_time_as_often_as_it_asks_gets_its_share_of_what_others_hold() -> None:
    pool, branch, (slow,) = served(100)
    slow.lowers = True
    fast = pool.add_input(0)
    for turn in range(50):
        now = 1.0 + turn / 100
        for i in (fast, *((slow,) if turn % 5 == 0 else ())):
            if i.granted:
                relay(pool, i, branch, now)
        pool.set_usable(branch, 100, now)
        pool.grants(now)
        for i, sent in pass_time(pool, now + 0.009).items():
            pool.flow_received(i, i.delivery_count, sent[-1].credit, 0, now + 0.009)
            pool.grants(now + 0.009)
        assert fast.granted, "it never has nothing for long"
    assert fast.granted > 25


def test_those_who_have_nothing_are_not_looked_at_while_others_have_not_confirmed_what_they_give_back() -> None:
    pool, branch, (idle,) = served(100)
    idle.lowers = True
    pool.grants(1.0)
    hungry = [pool.add_input(0) for _ in range(3)]
    pool.grants(1.0)
    for i in hungry:
        while i.granted:
            relay(pool, i, branch, 1.0)
            pool.grants(1.0)
    assert pass_time(pool, 1.02).keys() == {idle}
    line = pool._lines.hungry
    pool.grants(1.021)
    assert pool._lines.hungry is line


def test_nobody_who_uses_its_credit_gives_any_for_those_who_have_just_come() -> None:
    pool, branch, (busy,) = served(100)
    new = [pool.add_input(0) for _ in range(5)]
    pool.grants(1.0)
    for turn in range(50):
        now = 1.0 + turn / 100
        relay(pool, busy, branch, now)
        pool.set_usable(branch, 100, now)
        assert pass_time(pool, now + 0.01).keys() <= set(new)
    assert busy.granted >= 50


def test_what_is_asked_back_of_who_may_be_lowered_is_no_more_than_others_need() -> None:
    pool = Pool(BALANCED, max_credit=50)
    idle = [pool.add_input(0) for _ in range(2)]
    for each in idle:
        each.lowers = True
    branch = pool.add_branch(usable=100)
    pool.grants(0.0)
    large = pool.add_input(0, large=True)
    pool.grants(1.0)
    relay(pool, idle[1], branch, 1.0)
    relay(pool, large, branch, 1.0)
    pool.grants(1.0)
    assert pass_time(pool, 1.05) == {idle[0]: [Flow(18, echo=True)]}
    pool.flow_received(idle[0], 0, 18, 0, 1.06)
    assert flows(pool, 1.06) == {large: Flow(32)}


def test_an_idle_input_that_was_asked_may_use_its_credit_instead() -> None:
    pool, branch, idle, _ = starving()
    pass_time(pool, 1.02)
    for _ in range(98):
        relay(pool, idle, branch, 1.03)
    assert idle.draining
    assert idle not in flows(pool, 1.03), "nothing more before it is through"
    pool.set_usable(branch, 100, 1.03)
    for _ in range(2):
        relay(pool, idle, branch, 1.03)
    assert not idle.draining
    assert flows(pool, 1.03)[idle].credit > 1


def test_an_idle_input_that_must_not_be_lowered_keeps_what_it_was_told_and_the_others_have_it_too() -> None:
    pool, _, idle, busy = starving()
    idle.firm = True
    assert pass_time(pool, 1.02) == {idle: [Flow(100, drain=True)]}
    assert pass_time(pool, 2.03) == {idle: [Flow(100)], busy: [Flow(98)]}
    assert idle.credit == 1


def test_when_the_last_consumer_leaves_inputs_that_must_not_be_lowered_are_asked_for_what_they_hold() -> None:
    pool, branch, (first, second) = served(100, inputs=2)
    first.firm = second.firm = True
    pool.remove_branch(branch, 1.0)
    assert flows(pool, 1.0) == {first: Flow(50, drain=True), second: Flow(50, drain=True)}
    pool.flow_received(first, 50, 0, 0, 1.1)
    assert pass_time(pool, 1.9) == {}, "each is asked once"
    assert pass_time(pool, 2.1) == {second: [Flow(50)]}, "it drains no more"
    assert pass_time(pool, 9.0) == {}
    assert (first.granted, second.granted) == (0, 0)
    pool.add_branch(10)
    assert flows(pool, 9.0) == {first: Flow(1), second: Flow(50)}, "those that rest have one each"


def test_inputs_that_must_not_be_lowered_and_use_their_credit_are_let_alone() -> None:
    pool, branch, (busy,) = served(100)
    busy.firm = True
    relay(pool, busy, branch, 1.0)
    pool.set_usable(branch, 10, 1.0)
    assert pass_time(pool, 1.09) == {}
    assert busy.granted == 99


def test_a_sender_that_limps_behind_idle_ones_gets_its_share() -> None:
    pool, branch, (_, _, busy) = served(0, inputs=3)
    pool.set_usable(branch, 300, 0.0)
    pool.grants(0.0)
    now = 1.0
    while busy.granted < 250:
        # Never without credit for long, but never with half a share of what lies idle.
        while busy.granted:
            relay(pool, busy, branch, now)
        pool.set_usable(branch, 300, now)
        for i, flow in flows(pool, now).items():
            if flow.drain:
                pool.flow_received(i, (i.delivery_count + flow.credit) % 2**32, 0, 0, now)
        now += 0.005
        pool.handle_timer(now)
        assert now < 1.2


def test_once_nobody_starves_any_more_idle_credit_is_let_alone() -> None:
    pool, branch, idle, busy = starving()
    pool.set_usable(branch, 300, 1.01)
    assert flows(pool, 1.01).keys() == {busy}
    assert (pass_time(pool, 10.0), pool.next_timer()) == ({}, None)
    assert (idle.granted, busy.granted) == (100, 202)


def test_no_more_is_asked_back_than_those_that_starve_need() -> None:
    pool = Pool(BALANCED, max_credit=50)
    idle = [pool.add_input(0) for _ in range(6)]
    branch = pool.add_branch(usable=300)
    pool.grants(0.0)
    busy = pool.add_input(0)
    pool.grants(1.0)
    while busy.granted:
        relay(pool, busy, branch, 1.0)
        pool.grants(1.0)
    assert pass_time(pool, 1.9) == {i: [Flow(50, drain=True)] for i in idle[:2]}


def test_idle_inputs_that_hold_one_are_asked_for_nothing() -> None:
    pool, branch, (*_, busy) = served(3, inputs=4)
    pass_time(pool, 1.0)
    while busy.granted:
        pool.received(busy, 1.0)
        pool.grants(1.0)
    pool.set_usable(branch, 0, 1.0)
    pool.grants(1.0)
    assert (pass_time(pool, 10.0), pool.next_timer()) == ({}, None)


def test_shares_are_those_of_the_inputs_that_are_not_idle() -> None:
    pool, branch, inputs = served(10, inputs=10)
    pool.grants(1.0)
    first, second = inputs[:2]
    for expected in ({first: Flow(100)}, {first: Flow(50), second: Flow(50)}):
        while first.granted:
            relay(pool, first, branch, 1.0)
        pool.set_usable(branch, 100, 1.0)
        assert flows(pool, 1.0) == expected
        while second.granted:
            relay(pool, second, branch, 1.0)


def test_an_idle_input_is_not_given_more_because_the_demand_grew() -> None:
    pool, branch, (i, _) = served(20, inputs=2)
    for _ in range(6):
        relay(pool, i, branch, 0.0)
    assert flows(pool, 0.0) == {}
    pool.handle_timer(1.0)
    pool.set_usable(branch, 200, 1.0)
    assert flows(pool, 1.0) == {}


def test_thousands_of_idle_inputs_cause_nothing() -> None:
    pool, branch, inputs = served(10, inputs=5000)
    assert pass_time(pool, 10.0) == {}
    assert pool.next_timer() is None
    busy = inputs[0]
    for _ in range(100):
        relay(pool, busy, branch, 10.0)
        pool.set_usable(branch, 10, 10.0)
        assert flows(pool, 10.0).keys() <= {busy}
    assert busy.granted > 1
    assert pass_time(pool, 20.0) == {}


def test_an_idle_input_that_announces_deliveries_gets_its_share_when_it_has_sent_one() -> None:
    pool, branch, (i, other) = served(1, inputs=2)
    pass_time(pool, 1.0)
    pool.grants(5.0)
    pool.flow_received(i, 0, 1, 40, 5.0)
    assert i.available == 40
    relay(pool, i, branch, 5.0)
    assert i.available == 39
    pool.set_usable(branch, 50, 5.0)
    assert flows(pool, 5.0)[i].credit >= 25
    assert other.granted == 1


def test_what_is_available_never_falls_below_nothing() -> None:
    pool, branch, (i,) = served(10)
    pool.flow_received(i, 0, 10, 1, 0.0)
    pool.flow_received(i, 0, 10, None, 0.0)
    assert i.available == 1
    relay(pool, i, branch)
    relay(pool, i, branch)
    assert i.available == 0


# A consumer drains.


def test_a_drain_asks_every_input_once() -> None:
    pool, _, inputs = served(20, inputs=2)
    pool.drain(1.0)
    pool.drain(1.0)
    assert not pool.drained(1.0)
    assert flows(pool, 1.0) == dict.fromkeys(inputs, Flow(10, drain=True))
    pool.drain(1.1)
    assert flows(pool, 1.1) == {}
    assert not pool.drained(1.1)


def test_an_input_that_is_asked_to_drain_gets_nothing_more_before_it_is_through() -> None:
    pool, branch, (i,) = served(20)
    for _ in range(15):
        relay(pool, i, branch, 1.0)
    pool.set_usable(branch, 0, 1.0)
    pool.grants(1.0)
    pool.drain(1.0)
    assert flows(pool, 1.0) == {i: Flow(5, drain=True)}
    pool.set_usable(branch, 20, 1.0)
    assert flows(pool, 1.0) == {}
    for _ in range(5):
        relay(pool, i, branch, 1.0)
    pool.set_usable(branch, 20, 1.0)
    assert flows(pool, 1.0) == {i: Flow(20)}


def test_a_drain_is_done_when_all_have_answered() -> None:
    pool, branch, (one, other) = served(20, inputs=2)
    pool.drain(1.0)
    pool.grants(1.0)
    pool.flow_received(one, 10, 0, 0, 1.01)
    assert flows(pool, 1.01) == {one: Flow(1)}, "it is not dealt anew what it gave back"
    assert not pool.drained(1.01)
    for _ in range(10):
        pool.received(other, 1.02)
    assert not pool.drained(1.02), "what has come must leave first"
    for _ in range(10):
        pool.forwarded(other, 1.02)
        pool.set_usable(branch, branch.usable - 1, 1.02)
    assert pool.drained(1.02)
    pool.drain(2.0)
    assert not pool.drained(2.0), "the next drain asks again"


def test_a_drain_does_not_wait_longer_than_the_drain_time() -> None:
    pool, branch, (i,) = served(20)
    pool.drain(1.0)
    pool.grants(1.0)
    assert pool.next_timer() == 1.25
    assert not pool.drained(1.24)
    pool.handle_timer(1.25)
    assert pool.drained(1.25)
    assert not i.draining
    # Afterwards it is like any other input.
    for _ in range(15):
        relay(pool, i, branch, 2.0)
    pool.set_usable(branch, 20, 2.0)
    assert flows(pool, 2.0) == {i: Flow(20)}
    pool.flow_received(i, 35, 0, 0, 2.0)
    assert flows(pool, 2.0) == {i: Flow(1)}


def test_an_idle_input_that_did_not_answer_a_drain_is_still_known_to_be_rich() -> None:
    pool, branch, (idle,) = served(100)
    pool.grants(1.0)
    pool.handle_timer(1.0)
    busy = pool.add_input(0)
    pool.grants(1.0)
    pool.drain(1.0)
    pool.grants(1.0)
    pass_time(pool, 1.3)
    while busy.granted:
        relay(pool, busy, branch, 1.3)
        pool.grants(1.3)
    assert pass_time(pool, 1.5)[idle] == [Flow(100, drain=True)]


def test_a_drain_with_nobody_to_ask_is_done_at_once() -> None:
    pool = Pool(BALANCED)
    pool.drain(0.0)
    assert flows(pool) == {}
    assert pool.drained(0.0)


def test_an_input_without_credit_is_given_it_and_asked_to_drain_in_one_flow() -> None:
    pool, branch, (i,) = served(1)
    relay(pool, i, branch)
    pool.received(i, 0.0)  # no: it had no credit; yet nothing breaks
    pool.forwarded(i, 0.0)
    pool.set_usable(branch, 10, 1.0)
    pool.drain(1.0)
    assert flows(pool, 1.0) == {i: Flow(10, drain=True)}


def test_an_input_that_leaves_is_not_waited_for() -> None:
    pool, _, (stays, leaves) = served(20, inputs=2)
    pool.drain(1.0)
    pool.grants(1.0)
    pool.flow_received(stays, 10, 0, 0, 1.0)
    pool.remove_input(leaves, 1.0)
    assert pool.drained(1.0)


# Serial numbers.


@pytest.mark.parametrize("start", [0, 2**31 - 3, 2**32 - 1, 2**32 - 5])
def test_delivery_counts_wrap(start: int) -> None:
    pool = Pool(BALANCED)
    i = pool.add_input(start)
    branch = pool.add_branch(usable=10)
    assert flows(pool) == {i: Flow(10)}
    assert i.limit == (start + 10) % 2**32
    for n in range(8):
        relay(pool, i, branch)
        assert i.delivery_count == (start + n + 1) % 2**32
    assert i.limit == (start + 10) % 2**32
    pool.flow_received(i, (start + 10) % 2**32, 0, 0, 0.0)
    assert (i.granted, i.delivery_count) == (0, (start + 10) % 2**32)
    pool.flow_received(i, (start + 9) % 2**32, 0, 0, 0.0)
    assert i.delivery_count == (start + 10) % 2**32, "a count never goes back"


# Whatever happens, in whatever order.


class AnyOrder(RuleBasedStateMachine):
    """The sums are the sums, promises keep to the demand, and a timer that was handled is over."""

    inputs = Bundle("inputs")
    branches = Bundle("branches")

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(BALANCED)
        self.now = 0.0
        self.inputs_here: list[Input] = []
        self.all_inputs: list[Input] = []
        self.told: dict[Input, int] = {}

    @rule(target=inputs, count=st.integers(0, 2**32 - 1), firm=st.booleans(), drains=st.booleans(), large=st.booleans(),
          lowers=st.booleans())  # fmt: skip
    def an_input_comes(self, count: int, firm: bool, drains: bool, large: bool, lowers: bool) -> Input:
        i = self.pool.add_input(count, large=large)
        i.firm, i.drains, i.lowers = firm, drains, lowers and not firm
        self.told[i] = count
        self.inputs_here.append(i)
        self.all_inputs.append(i)
        return i

    @rule(i=consumes(inputs))
    def an_input_leaves(self, i: Input) -> None:
        self.pool.remove_input(i, self.now)
        self.inputs_here.remove(i)

    @rule(target=branches, usable=st.integers(0, 20))
    def a_branch_comes(self, usable: int) -> Branch:
        return self.pool.add_branch(usable=usable)

    @rule(b=consumes(branches))
    def a_branch_leaves(self, b: Branch) -> None:
        self.pool.remove_branch(b, self.now)

    @rule(b=branches, usable=st.integers(0, 20), withdrawn=st.booleans())
    def credit_changes(self, b: Branch, usable: int, withdrawn: bool) -> None:
        self.pool.set_usable(b, usable, self.now, withdrawn=withdrawn)

    @rule(i=inputs, count=st.integers(1, 10))
    def deliveries_come(self, i: Input, count: int) -> None:
        for _ in range(count):
            self.pool.received(i, self.now)

    @rule(data=st.data())
    def deliveries_leave(self, data: st.DataObject) -> None:
        for i in self.all_inputs:
            for _ in range(data.draw(st.integers(0, i.waiting))):
                self.pool.forwarded(i, self.now)

    @rule(i=inputs, spent=st.integers(0, 10), shown=st.integers(0, 10), available=st.none() | st.integers(0, 5))
    def a_flow_comes(self, i: Input, spent: int, shown: int, available: int | None) -> None:
        count = (i.delivery_count + min(spent, i.granted)) % 2**32
        self.pool.flow_received(i, count, shown, available, self.now)

    @rule(i=inputs)
    def a_peer_confirms(self, i: Input) -> None:
        before = i.granted
        self.pool.flow_received(i, i.delivery_count, i.credit, None, self.now)
        assert i.granted in (before, i.credit)

    @rule()
    def a_consumer_drains(self) -> None:
        self.pool.drain(self.now)

    @rule(suspended=st.booleans())
    def memory_runs_out_or_not(self, suspended: bool) -> None:
        self.pool.set_suspended(suspended)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.1, 0.3, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        due = self.pool.next_timer()
        if due is not None and due <= self.now:
            self.pool.handle_timer(self.now)
            after = self.pool.next_timer()
            assert after is None or after > self.now

    @rule()
    def a_batch_ends(self) -> None:
        before = self.pool.granted
        grants = self.pool.grants(self.now)
        assert len({grant.input for grant in grants}) == len(grants)
        for grant in grants:
            assert grant.input in self.inputs_here
            assert grant.drain == grant.input.draining
            limit = (grant.input.delivery_count + grant.credit) % 2**32
            if grant.input.firm:
                assert grant.credit >= grant.input.credit
                assert not ahead(self.told[grant.input], limit) or not grant.credit, "no limit is lowered"
                assert not grant.echo
            else:
                assert grant.credit == grant.input.credit
                assert grant.echo == (grant.input.granted > grant.credit)
            self.told[grant.input] = limit
        if self.pool.granted > before:
            assert self.pool.granted + self.pool.waiting <= self.pool.demand + self.pool.spare
        assert self.pool.grants(self.now) == [], "what is sent is sent"
        if self.pool.demand + self.pool.spare > self.pool.granted + self.pool.waiting:
            assert all(i.granted for i in self.inputs_here), "somebody has nothing while credit is free"

    @invariant()
    def the_sums_are_the_sums(self) -> None:
        assert self.pool.granted == sum(i.granted for i in self.inputs_here)
        assert self.pool.waiting == sum(i.waiting for i in self.all_inputs)
        for i in self.inputs_here:
            assert 0 <= i.credit <= i.granted
            assert i.limit == (i.delivery_count + i.credit) % 2**32


TestAnyOrder = AnyOrder.TestCase


@given(st.sampled_from(SINGLE), st.data())
def test_the_demand_kept_up_to_date_is_the_demand_counted_anew(distribution: Distribution, data: st.DataObject) -> None:
    pool = Pool(distribution)
    pool.add_input(0)
    branches: list[Branch] = []
    opened: set[Branch] = set()
    for _ in range(data.draw(st.integers(0, 25))):
        usable = data.draw(st.integers(0, 4))
        if not branches or data.draw(st.integers(0, 3)) == 0:
            branches.append(pool.add_branch(usable, cost=data.draw(st.integers(1, 3)), counts=data.draw(st.booleans())))
            b = branches[-1]
        else:
            b = data.draw(st.sampled_from(branches))
            if data.draw(st.integers(0, 4)) == 0:
                pool.remove_branch(b, 0.0)
                branches.remove(b)
                opened.discard(b)
                continue
            withdrawn = data.draw(st.booleans())
            pool.set_usable(b, usable, 0.0, withdrawn=withdrawn)
            if withdrawn:
                opened.discard(b)
        if usable:
            opened.add(b)
        counting = [b for b in branches if b.counts]
        if distribution is Distribution.CLOSEST:
            counting = [b for b in counting if b.cost == min(each.cost for each in counting)]
        each_usable = [b.usable for b in counting]
        if distribution is Distribution.MULTICAST:
            expected, consumers = min(each_usable, default=0), bool(counting) and opened.issuperset(counting)
        else:
            expected, consumers = sum(each_usable), not opened.isdisjoint(counting)
        assert (pool.demand, pool.spare) == (expected, int(consumers))


def test_a_multicast_remembers_no_credit_that_nobody_has_any_more() -> None:
    pool = Pool(Distribution.MULTICAST)
    pool.add_branch(1)
    rising = pool.add_branch(1)
    sizes = []
    for most in (100, 10_000):
        tracemalloc.start()
        for usable in range(2, most):
            pool.set_usable(rising, usable, 0.0)
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert sizes[1] < sizes[0] + 10_000
    assert pool.demand == 1
