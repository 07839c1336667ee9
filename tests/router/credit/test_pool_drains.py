"""Drains of a pool: the sinks that are asked, and the end of a drain."""

from __future__ import annotations

from amqpmesh.router.kernel import Pool
from tests.support.worlds.credit_pools import BALANCED, Flow, flows, pass_time, relay, served


def test_a_drain_asks_every_input_once() -> None:
    pool, _, sinks = served(20, sinks=2)
    pool.drain(1.0)
    pool.drain(1.0)
    assert not pool.drained(1.0)
    assert flows(pool, 1.0) == dict.fromkeys(sinks, Flow(10, drain=True))
    pool.drain(1.1)
    assert flows(pool, 1.1) == {}
    assert not pool.drained(1.1)


def test_an_input_that_is_asked_to_drain_gets_nothing_more_before_it_is_through() -> None:
    pool, source, (i,) = served(20)
    for _ in range(15):
        relay(pool, i, source, 1.0)
    pool.set_usable(source, 0, 1.0)
    pool.grants(1.0)
    pool.drain(1.0)
    assert flows(pool, 1.0) == {i: Flow(5, drain=True)}
    pool.set_usable(source, 20, 1.0)
    assert flows(pool, 1.0) == {}
    for _ in range(5):
        relay(pool, i, source, 1.0)
    pool.set_usable(source, 20, 1.0)
    assert flows(pool, 1.0) == {i: Flow(20)}


def test_a_drain_is_done_when_all_have_answered() -> None:
    pool, source, (one, other) = served(20, sinks=2)
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
        pool.set_usable(source, source.usable - 1, 1.02)
    assert pool.drained(1.02)
    pool.drain(2.0)
    assert not pool.drained(2.0), "the next drain asks again"


def test_a_drain_does_not_wait_longer_than_the_drain_time() -> None:
    pool, source, (i,) = served(20)
    pool.drain(1.0)
    pool.grants(1.0)
    assert pool.next_timer() == 1.25
    assert not pool.drained(1.24)
    pool.handle_timer(1.25)
    assert pool.drained(1.25)
    assert not i.draining
    # Afterwards it is like any other sink.
    for _ in range(15):
        relay(pool, i, source, 2.0)
    pool.set_usable(source, 20, 2.0)
    assert flows(pool, 2.0) == {i: Flow(20)}
    pool.flow_received(i, 35, 0, 0, 2.0)
    assert flows(pool, 2.0) == {i: Flow(1)}


def test_an_idle_input_that_did_not_answer_a_drain_is_still_known_to_be_rich() -> None:
    pool, source, (idle,) = served(100)
    pool.grants(1.0)
    pool.handle_timer(1.0)
    busy = pool.add_sink(0)
    pool.grants(1.0)
    pool.drain(1.0)
    pool.grants(1.0)
    pass_time(pool, 1.3)
    while busy.granted:
        relay(pool, busy, source, 1.3)
        pool.grants(1.3)
    assert pass_time(pool, 1.5)[idle] == [Flow(100, drain=True)]


def test_a_drain_with_nobody_to_ask_is_done_at_once() -> None:
    pool = Pool(BALANCED)
    pool.drain(0.0)
    assert flows(pool) == {}
    assert pool.drained(0.0)


def test_an_input_without_credit_is_given_it_and_asked_to_drain_in_one_flow() -> None:
    pool, source, (i,) = served(1)
    relay(pool, i, source)
    pool.received(i, 0.0)  # no: it had no credit; yet nothing breaks
    pool.forwarded(i, 0.0)
    pool.set_usable(source, 10, 1.0)
    pool.drain(1.0)
    assert flows(pool, 1.0) == {i: Flow(10, drain=True)}


def test_an_input_that_leaves_is_not_waited_for() -> None:
    pool, _, (stays, leaves) = served(20, sinks=2)
    pool.drain(1.0)
    pool.grants(1.0)
    pool.flow_received(stays, 10, 0, 0, 1.0)
    pool.remove_sink(leaves, 1.0)
    assert pool.drained(1.0)
