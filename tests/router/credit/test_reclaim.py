"""Credit that a pool takes back: notices to sinks, and their confirmations."""

from __future__ import annotations

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.kernel import Pool
from tests.support.worlds.credit_pools import Flow, flows, pass_time, relay, served


def test_when_the_last_consumer_leaves_all_credit_is_taken_back_at_once() -> None:
    pool, source, sinks = served(100, sinks=2)
    pool.remove_source(source, 1.0)
    assert flows(pool, 1.0) == dict.fromkeys(sinks, Flow(0, echo=True))
    assert pool.granted == 100, "until they show that they have seen it"
    pool.flow_received(sinks[0], 0, 0, 0, 1.1)
    assert pool.granted == 50
    assert flows(pool, 1.1) == {}


@pytest.mark.parametrize("withdrawn", [True, False])
def test_a_withdrawn_limit_ends_the_spare_credit_and_a_spent_one_does_not(withdrawn: bool) -> None:
    pool, source, (i,) = served(1)
    relay(pool, i, source)
    pool.set_usable(source, 0, 0.0, withdrawn=withdrawn)
    assert pool.overcommit == (0 if withdrawn else 1)
    assert flows(pool) == ({} if withdrawn else {i: Flow(1)})


def test_a_consumer_that_withdraws_takes_its_credit_back_at_once() -> None:
    pool, source, (i,) = served(10)
    pool.set_usable(source, 0, 1.0, withdrawn=True)
    assert flows(pool, 1.0) == {i: Flow(0, echo=True)}


def test_a_sink_whose_limit_cannot_be_lowered_is_left_alone() -> None:
    pool, source, sinks = served(10, sinks=2)
    for i in sinks:
        for _ in range(4):
            pool.received(i, 1.0)
    pool.set_usable(source, 0, 1.0)
    pool.grants(1.0)
    assert pass_time(pool, 1.1) == {}
    pool.grants(1.1)
    assert (pass_time(pool, 100.0), pool.next_timer()) == ({}, None)
    pool.set_usable(source, 0, 100.0, withdrawn=True)
    assert flows(pool, 100.0) == dict.fromkeys(sinks, Flow(0, echo=True))


def test_a_delivery_sent_under_the_old_limit_counts_under_the_old_limit() -> None:
    pool, source, (i,) = served(10)
    pool.remove_source(source, 0.0)
    pool.grants(0.0)
    for _ in range(4):
        pool.received(i, 0.0)
    assert (i.granted, i.credit, pool.waiting) == (6, 0, 4)
    assert i.limit == i.delivery_count == 4
    pool.flow_received(i, 4, 0, 0, 0.1)
    assert (i.granted, pool.granted) == (0, 0)


def test_an_older_flow_does_not_confirm_a_lower_limit() -> None:
    pool, source, (i,) = served(10)
    pool.remove_source(source, 0.0)
    pool.grants(0.0)
    pool.received(i, 0.0)
    pool.flow_received(i, 1, 9, 0, 0.1)
    assert i.granted == 9


def test_a_flow_that_may_be_older_than_the_last_raise_confirms_nothing() -> None:
    pool, source, (i,) = served(10)
    pool.remove_source(source, 0.0)
    pool.grants(0.0)
    source = pool.add_source(usable=5)
    pool.grants(0.0)
    pool.remove_source(source, 0.0)
    assert flows(pool) == {i: Flow(0, echo=True)}
    pool.flow_received(i, 0, 0, 0, 0.1)  # the answer to the first, or to the second?
    assert i.granted == 10
    pool.handle_timer(1.0)
    assert i.granted == 0
    source = pool.add_source(usable=5)
    pool.grants(2.0)
    pool.remove_source(source, 2.0)
    pool.grants(2.0)
    pool.flow_received(i, 0, 0, 0, 2.1)
    assert i.granted == 0, "the doubt is over"


def test_a_peer_that_confirms_nothing_is_believed_after_the_reclaim_time() -> None:
    pool, source, (i,) = served(10)
    pool.remove_source(source, 1.0)
    pool.grants(1.0)
    assert pool.next_timer() == 2.0
    pool.handle_timer(2.0)
    assert (pool.granted, pool.next_timer()) == (0, None)
    pool.received(i, 2.1)  # it had sent one after all: that is no error
    assert (pool.granted, pool.waiting) == (0, 1)


def test_a_consumer_that_comes_at_once_is_not_kept_waiting_by_unconfirmed_limits() -> None:
    pool, source, (i,) = served(10)
    pool.remove_source(source, 0.0)
    pool.grants(0.0)
    pool.add_source(usable=5)
    assert flows(pool) == {i: Flow(5, echo=True)}
    assert pool.granted == 10, "it was promised these before"
    pool.flow_received(i, 0, 5, 0, 0.1)
    assert pool.granted == 5


def test_a_demand_that_falls_for_a_moment_costs_no_flow() -> None:
    pool, source, (i,) = served(100)
    pool.set_usable(source, 0, 1.0)  # the connection is congested
    assert flows(pool, 1.0) == {}
    assert pool.next_timer() == pytest.approx(1.02)
    pool.set_usable(source, 100, 1.01)
    assert flows(pool, 1.01) == {}
    assert (pass_time(pool, 10.0), pool.next_timer()) == ({}, None)
    assert i.granted == 100


def test_a_demand_that_stays_low_lowers_idle_inputs_first() -> None:
    pool, source, (idle, not_idle) = served(100, sinks=2)
    pool.received(not_idle, 1.0)
    pool.forwarded(not_idle, 1.0)
    pool.set_usable(source, 60, 1.0)
    pool.grants(1.0)
    assert pass_time(pool, 1.05) == {idle: [Flow(13, echo=True)]}  # 99 were promised, 60 and two can be kept
    pool.set_usable(source, 5, 1.1)
    pool.grants(1.1)
    assert pass_time(pool, 1.2) == {idle: [Flow(1, echo=True)], not_idle: [Flow(6, echo=True)]}


def test_a_lowered_consumer_leaves_each_input_one() -> None:
    pool, source, sinks = served(100, sinks=4)
    pool.set_usable(source, 0, 1.0)
    pool.grants(1.0)
    assert pass_time(pool, 1.1) == {i: [Flow(1, echo=True)] for i in sinks}
    for i in sinks:
        pool.flow_received(i, 0, 1, 0, 1.1)
    assert (flows(pool, 1.1), pool.next_timer()) == ({}, None)


def test_a_router_without_memory_gives_no_credit_and_takes_back_what_is_unused() -> None:
    pool, source, (i,) = served(100)
    relay(pool, i, source, 1.0)
    pool.set_suspended(True)
    pool.grants(1.0)
    assert pass_time(pool, 1.05) == {i: [Flow(0, echo=True)]}
    pool.flow_received(i, 1, 0, 0, 1.05)
    assert flows(pool, 1.05) == {}
    pool.set_suspended(False)
    assert flows(pool, 1.06) == {i: Flow(99)}


def test_an_input_that_leaves_gives_its_credit_to_the_others() -> None:
    pool, source, (gone, other) = served(20, sinks=2)
    for _ in range(3):
        pool.received(gone, 0.0)
    for _ in range(10):
        relay(pool, other, source)
    pool.set_usable(source, 20, 0.0)
    pool.remove_sink(gone, 0.0)
    assert flows(pool) == {other: Flow(18)}, "its three deliveries wait here still"
    for _ in range(3):
        pool.forwarded(gone, 0.0)
    assert (pool.waiting, pool.granted, pool.overcommit) == (0, 18, 1)


def test_an_input_that_leaves_while_it_is_lowered_is_forgotten() -> None:
    pool, source, (i,) = served(20)
    pool.remove_source(source, 0.0)
    pool.grants(0.0)
    pool.remove_sink(i, 0.0)
    assert (pool.granted, pool.next_timer()) == (0, None)


def test_a_multicast_takes_credit_back_for_a_new_receiver_that_gives_none() -> None:
    pool = Pool(Distribution.MULTICAST)
    sinks = [pool.add_sink(0) for _ in range(2)]
    first = pool.add_source(usable=10)
    pool.grants(0.0)
    for i in sinks:
        for _ in range(4):
            pool.received(i, 1.0)
    pool.set_usable(first, 0, 1.0)
    pool.grants(1.0)
    pass_time(pool, 1.1)  # one each is left, and that is as low as it goes
    pool.add_source()
    pool.grants(2.0)
    assert pass_time(pool, 2.1) == {i: [Flow(0, echo=True)] for i in sinks}
