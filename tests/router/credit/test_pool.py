"""Credit of a pool: its division among sinks, and its renewal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.kernel import CreditSink, CreditSource, Pool
from tests.support.worlds.credit_pools import BALANCED, SINGLE, Flow, flows, pass_time, relay, served

# Who gives credit, and how much.


@pytest.mark.parametrize("distribution", Distribution)
def test_without_a_consumer_nobody_gets_credit(distribution: Distribution) -> None:
    pool = Pool(distribution)
    pool.add_sink(0)
    assert flows(pool) == {}
    assert (pool.demand, pool.overcommit) == (0, 0)
    source = pool.add_source()
    assert flows(pool) == {}, "a consumer that never gave credit is none"
    pool.remove_source(source, 0.0)
    assert pool.next_timer() is None


@pytest.mark.parametrize("distribution", SINGLE)
def test_receivers_of_copies_are_no_consumers(distribution: Distribution) -> None:
    pool = Pool(distribution)
    i = pool.add_sink(0)
    pool.add_source(usable=100, counts=False)
    copies = pool.add_source(usable=1, counts=False)
    pool.set_usable(copies, 50, 0.0)
    assert flows(pool) == {}
    pool.add_source(usable=7)
    pool.set_usable(copies, 0, 0.0, withdrawn=True)
    pool.remove_source(copies, 0.0)
    assert flows(pool) == {i: Flow(7)}


def test_an_unavailable_address_gives_no_credit() -> None:
    pool = Pool(Distribution.UNAVAILABLE)
    pool.add_sink(0)
    pool.set_usable(pool.add_source(usable=5), 10, 0.0)
    assert flows(pool) == {}


@pytest.mark.parametrize(
    ("distribution", "demand"),
    [(Distribution.BALANCED, 37), (Distribution.CLOSEST, 7), (Distribution.MULTICAST, 2)],
)
def test_the_demand_is_what_the_distribution_can_use(distribution: Distribution, demand: int) -> None:
    pool = Pool(distribution)
    i = pool.add_sink(0)
    for usable, cost in ((2, 1), (5, 1), (30, 2)):
        pool.add_source(usable=usable, cost=cost)
    assert pool.demand == demand
    assert flows(pool) == {i: Flow(demand)}


def test_the_next_closest_take_over_only_when_the_closest_are_gone() -> None:
    pool = Pool(Distribution.CLOSEST)
    near, _far = pool.add_source(usable=5, cost=1), pool.add_source(usable=30, cost=2)
    pool.set_usable(near, 0, 0.0)
    assert pool.demand == 0
    pool.remove_source(near, 0.0)
    assert pool.demand == 30


@pytest.mark.parametrize("distribution", SINGLE)
def test_a_branch_that_has_left_changes_nothing_any_more(distribution: Distribution) -> None:
    pool = Pool(distribution)
    gone, here = pool.add_source(usable=1), pool.add_source(usable=3)
    assert here.usable == 3
    pool.remove_source(gone, 0.0)
    pool.set_usable(gone, 50, 0.0)
    pool.remove_source(gone, 0.0)
    assert pool.demand == 3


def test_a_multicast_waits_for_a_receiver_that_gave_no_credit_yet() -> None:
    pool = Pool(Distribution.MULTICAST)
    i = pool.add_sink(0)
    pool.add_source(usable=10)
    late = pool.add_source()
    assert (pool.demand, pool.overcommit) == (0, 0)
    assert flows(pool) == {}
    pool.set_usable(late, 4, 0.0)
    assert flows(pool) == {i: Flow(4)}


def test_credit_is_divided_among_the_inputs_and_never_promised_twice() -> None:
    pool, _, sinks = served(100, sinks=4)
    assert [i.granted for i in sinks] == [25, 25, 25, 25]
    late = pool.add_sink(0)
    assert flows(pool) == {late: Flow(5)}, "what is overcommit, and no more, until others give back"
    assert pool.granted == pool.demand + pool.overcommit == 105


def test_more_inputs_than_credit_get_one_each() -> None:
    pool, _, sinks = served(3, sinks=10)
    assert [i.granted for i in sinks] == [1] * 10
    assert (pool.demand, pool.overcommit) == (3, 10)


def test_one_input_never_gets_more_than_max_credit() -> None:
    pool = Pool(BALANCED, max_credit=250)
    i = pool.add_sink(0)
    pool.add_source(usable=1000)
    assert flows(pool) == {i: Flow(250)}


def test_a_sink_for_many_senders_is_given_as_many_shares_and_no_more_than_there_is() -> None:
    pool = Pool(BALANCED, max_credit=250)
    many, one = pool.add_sink(0), pool.add_sink(0)
    many.times = 3
    source = pool.add_source(usable=10_000)
    assert flows(pool) == {many: Flow(750), one: Flow(250)}
    pool.change_source(source, 0, 1, True, 0.0)
    small = Pool(BALANCED, max_credit=250)
    many, one = small.add_sink(0), small.add_sink(0)
    many.times = 3
    small.add_source(usable=300)
    assert flows(small) == {many: Flow(150), one: Flow(150)}


@pytest.mark.parametrize(
    ("credit", "shares"), [(200, (136, 32, 32)), (96, (32, 32, 32)), (6, (2, 2, 2)), (2000, (500, 32, 32))]
)
def test_a_sink_of_large_messages_is_given_little_credit_beside_others(credit: int, shares: tuple[int, ...]) -> None:
    pool = Pool(BALANCED)
    sinks = [pool.add_sink(0, large=large) for large in (False, True, True)]
    pool.add_source(usable=credit)
    pool.grants(0.0)
    assert tuple(i.granted for i in sinks) == shares


def test_a_sink_of_large_messages_is_given_whole_shares_once_no_other_uses_its_own() -> None:
    pool = Pool(BALANCED)
    small, large = pool.add_sink(0), pool.add_sink(0, large=True)
    source = pool.add_source(usable=400)
    pool.grants(0.0)
    assert (small.granted, large.granted) == (368, 32)
    sent = 0
    while not small.draining:
        assert sent < 100, "who is idle is asked for what it holds, since another starves"
        relay(pool, large, source, 1.0)
        pool.set_usable(source, 368, 1.0)
        for now in (1.0, 1.03):
            pool.handle_timer(now)
            pool.grants(now)
        sent += 1
    pool.flow_received(small, (small.delivery_count + small.credit) % 2**32, 0, 0, 1.05)
    pool.grants(1.05)
    assert large.granted > 300


def test_no_more_is_asked_back_than_what_is_large_needs() -> None:
    pool = Pool(BALANCED, max_credit=50)
    *idle, busy = [pool.add_sink(0) for _ in range(6)]
    source = pool.add_source(usable=300)
    pool.grants(0.0)
    large = pool.add_sink(0, large=True)
    relay(pool, busy, source, 1.0)
    pool.grants(1.0)
    for _ in range(7):
        relay(pool, large, source, 1.0)
    pool.grants(1.0)
    assert large.granted == 0
    asked = {i for i, sent in pass_time(pool, 1.09).items() if any(flow.drain for flow in sent)}
    assert asked == {idle[0]}, "thirty-two are enough, and one of those that are idle holds fifty"


# The overcommit delivery.


def use_up(pool: Pool, i: CreditSink, source: CreditSource, now: float) -> None:
    """Have a sink send all that it may, and all of it leave."""
    while i.credit:
        relay(pool, i, source, now)


def test_a_sink_that_used_a_large_share_gets_overcommitted_credit_only_after_a_pause() -> None:
    pool, source, (i,) = served(100)
    use_up(pool, i, source, 1.0)
    assert flows(pool, 1.0) == {}
    assert pool.next_timer() == pytest.approx(1.02)
    assert pass_time(pool, 2.0) == {i: [Flow(1)]}
    assert pool.next_timer() is None


def test_credit_that_a_consumer_gives_meanwhile_comes_in_one_flow() -> None:
    pool, source, (i,) = served(100)
    for now in (1.0, 1.01, 1.02):
        use_up(pool, i, source, now)
        assert flows(pool, now) == {}
        pool.set_usable(source, 100, now)
        assert flows(pool, now) == {i: Flow(100)}
    assert pool.next_timer() is None


def test_a_sink_that_waited_once_for_overcommitted_credit_gets_it_at_once_while_shares_stay_small() -> None:
    pool, source, (i,) = served(100)
    use_up(pool, i, source, 1.0)
    assert flows(pool, 1.0) == {}
    assert pass_time(pool, 2.0) == {i: [Flow(1)]}
    pool.set_usable(source, 1, 2.0)
    pool.grants(2.0)
    use_up(pool, i, source, 2.0)
    assert flows(pool, 2.0) == {i: Flow(1)}


def test_a_new_sink_gets_overcommitted_credit_before_a_sink_that_expects_more() -> None:
    pool, source, (i,) = served(100)
    use_up(pool, i, source, 1.0)
    assert flows(pool, 1.0) == {}
    late = pool.add_sink(0)
    assert flows(pool, 1.0) == {late: Flow(1)}
    assert pass_time(pool, 1.03) == {i: [Flow(1)]}


# What need not be told.


@given(
    credit=st.integers(1, 300),
    more=st.integers(0, 300),
    first=st.integers(0, 100),
    most=st.sampled_from([1, 5, 50, 250]),
    sinks=st.lists(st.booleans(), min_size=1, max_size=4),
    times=st.integers(1, 2),
    data=st.data(),
)
def test_what_is_relayed_quietly_would_have_changed_nothing(
    credit: int, more: int, first: int, most: int, sinks: list[bool], times: int, data: st.DataObject
) -> None:
    """Told of each delivery, a pool sends no flow for as many as it said that it need not be told of.

    Args: sinks: of each, whether it carries what is large.
    """
    pool = Pool(BALANCED, max_credit=most)
    those = [pool.add_sink(0, large=large) for large in sinks]
    those[0].times = times
    source = pool.add_source(usable=credit)
    pool.grants(0.0)
    for _ in range(first):
        i = data.draw(st.sampled_from(those))
        if i.credit and source.usable:
            relay(pool, i, source)
            pool.grants(0.0)
    pool.set_usable(source, source.usable + more, 0.0)
    pool.grants(0.0)
    i = data.draw(st.sampled_from(those))
    for _ in range(min(pool.credit_slack(i), source.usable)):
        relay(pool, i, source)
        assert flows(pool) == {}


def test_an_input_that_is_alone_is_quiet_until_it_has_used_up_what_it_was_given() -> None:
    pool, source, (i,) = served(100)
    assert pool.credit_slack(i) == 97
    relay(pool, i, source)
    pool.grants(0.0)
    assert pool.credit_slack(i) == 96
    late = pool.add_sink(0)
    pool.grants(0.0)
    assert (pool.credit_slack(i), pool.credit_slack(late)) == (i.credit_slack, late.credit_slack)


# Renewed when a delivery has left.


def test_credit_is_renewed_when_a_delivery_leaves_and_not_when_it_comes() -> None:
    pool, source, (i,) = served(10)
    for _ in range(10):
        pool.received(i, 0.0)
    assert flows(pool) == {i: Flow(1)}, "one to wait here, and no more"
    for _ in range(9):
        pool.forwarded(i, 0.0)
        pool.set_usable(source, source.usable - 1, 0.0)
    assert flows(pool) == {}, "what has left has used the consumer's credit"
    pool.set_usable(source, 10, 0.0)
    assert flows(pool) == {i: Flow(10)}
    assert (i.granted, pool.waiting) == (10, 1)


def test_a_flow_is_sent_for_half_a_share_and_those_of_a_batch_are_one() -> None:
    pool, source, (i,) = served(100)
    sent = 0
    for _ in range(1000):
        relay(pool, i, source)
        pool.set_usable(source, 100, 0.0)
        sent += len(pool.grants(0.0))
    assert sent == 20
    for _ in range(99):
        relay(pool, i, source)
        pool.set_usable(source, 100, 0.0)
    assert flows(pool) == {i: Flow(100)}


def test_a_consumer_that_takes_one_at_a_time_costs_one_flow_for_each_delivery() -> None:
    pool, source, sinks = served(1, sinks=3)
    for n in range(30):
        relay(pool, sinks[n % 3], source)
        between = flows(pool)
        pool.set_usable(source, 1, 0.0)
        assert between | flows(pool) == {sinks[n % 3]: Flow(1)}


def test_no_more_wait_than_one_for_each_input() -> None:
    pool, source, sinks = served(0, sinks=5)
    pool.set_usable(source, 1, 0.0)
    pool.grants(0.0)
    pool.set_usable(source, 0, 0.0)  # spent on something else: still a consumer
    for _ in range(10):
        for i in sinks:
            while i.granted:
                pool.received(i, 0.0)
        pool.grants(0.0)
    assert pool.waiting <= 6  # five, and the one that the credit was for


def test_forwarding_more_than_has_come_is_our_own_mistake() -> None:
    pool, source, (i,) = served(5)
    relay(pool, i, source)
    with pytest.raises(ValueError, match="no delivery"):
        pool.forwarded(i, 0.0)
    assert (pool.waiting, i.waiting) == (0, 0)


# Serial numbers.


@pytest.mark.parametrize("start", [0, 2**31 - 3, 2**32 - 1, 2**32 - 5])
def test_delivery_counts_wrap(start: int) -> None:
    pool = Pool(BALANCED)
    i = pool.add_sink(start)
    source = pool.add_source(usable=10)
    assert flows(pool) == {i: Flow(10)}
    assert i.limit == (start + 10) % 2**32
    for n in range(8):
        relay(pool, i, source)
        assert i.delivery_count == (start + n + 1) % 2**32
    assert i.limit == (start + 10) % 2**32
    pool.flow_received(i, (start + 10) % 2**32, 0, 0, 0.0)
    assert (i.granted, i.delivery_count) == (0, (start + 10) % 2**32)
    pool.flow_received(i, (start + 9) % 2**32, 0, 0, 0.0)
    assert i.delivery_count == (start + 10) % 2**32, "a count never goes back"
