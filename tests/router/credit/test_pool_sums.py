"""Sums of a pool after any calls, and the demand kept up to date."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.kernel import CreditSink, CreditSource, Pool, credit_ahead
from tests.support.worlds.credit_pools import BALANCED, SINGLE


class AnyOrder(RuleBasedStateMachine):
    """The sums are the sums, promises keep to the demand, and a timer that was handled is over."""

    sinks = Bundle("sinks")
    sources = Bundle("sources")

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(BALANCED)
        self.now = 0.0
        self.inputs_here: list[CreditSink] = []
        self.all_inputs: list[CreditSink] = []
        self.told: dict[CreditSink, int] = {}

    @rule(target=sinks, count=st.integers(0, 2**32 - 1), firm=st.booleans(), drains=st.booleans(), large=st.booleans(),
          lowers=st.booleans())  # fmt: skip
    def an_input_comes(self, count: int, firm: bool, drains: bool, large: bool, lowers: bool) -> CreditSink:
        i = self.pool.add_sink(count, large=large)
        i.firm, i.drains, i.lowers = firm, drains, lowers and not firm
        self.told[i] = count
        self.inputs_here.append(i)
        self.all_inputs.append(i)
        return i

    @rule(i=consumes(sinks))
    def an_input_leaves(self, i: CreditSink) -> None:
        self.pool.remove_sink(i, self.now)
        self.inputs_here.remove(i)

    @rule(target=sources, usable=st.integers(0, 20))
    def a_branch_comes(self, usable: int) -> CreditSource:
        return self.pool.add_source(usable=usable)

    @rule(b=consumes(sources))
    def a_branch_leaves(self, b: CreditSource) -> None:
        self.pool.remove_source(b, self.now)

    @rule(b=sources, usable=st.integers(0, 20), withdrawn=st.booleans())
    def credit_changes(self, b: CreditSource, usable: int, withdrawn: bool) -> None:
        self.pool.set_usable(b, usable, self.now, withdrawn=withdrawn)

    @rule(i=sinks, count=st.integers(1, 10))
    def deliveries_come(self, i: CreditSink, count: int) -> None:
        for _ in range(count):
            self.pool.received(i, self.now)

    @rule(data=st.data())
    def deliveries_leave(self, data: st.DataObject) -> None:
        for i in self.all_inputs:
            for _ in range(data.draw(st.integers(0, i.waiting))):
                self.pool.forwarded(i, self.now)

    @rule(i=sinks, spent=st.integers(0, 10), shown=st.integers(0, 10), available=st.none() | st.integers(0, 5))
    def a_flow_comes(self, i: CreditSink, spent: int, shown: int, available: int | None) -> None:
        count = (i.delivery_count + min(spent, i.granted)) % 2**32
        self.pool.flow_received(i, count, shown, available, self.now)

    @rule(i=sinks)
    def a_peer_confirms(self, i: CreditSink) -> None:
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
        assert len({grant.sink for grant in grants}) == len(grants)
        for grant in grants:
            assert grant.sink in self.inputs_here
            assert grant.drain == grant.sink.draining
            limit = (grant.sink.delivery_count + grant.credit) % 2**32
            if grant.sink.firm:
                assert grant.credit >= grant.sink.credit
                assert not credit_ahead(self.told[grant.sink], limit) or not grant.credit, "no limit is lowered"
                assert not grant.echo
            else:
                assert grant.credit == grant.sink.credit
                assert grant.echo == (grant.sink.granted > grant.credit)
            self.told[grant.sink] = limit
        if self.pool.granted > before:
            assert self.pool.granted + self.pool.waiting <= self.pool.demand + self.pool.overcommit
        assert self.pool.grants(self.now) == [], "what is sent is sent"
        if self.pool.demand + self.pool.overcommit > self.pool.granted + self.pool.waiting:
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
    pool.add_sink(0)
    sources: list[CreditSource] = []
    opened: set[CreditSource] = set()
    for _ in range(data.draw(st.integers(0, 25))):
        usable = data.draw(st.integers(0, 4))
        if not sources or data.draw(st.integers(0, 3)) == 0:
            sources.append(pool.add_source(usable, cost=data.draw(st.integers(1, 3)), counts=data.draw(st.booleans())))
            b = sources[-1]
        else:
            b = data.draw(st.sampled_from(sources))
            if data.draw(st.integers(0, 4)) == 0:
                pool.remove_source(b, 0.0)
                sources.remove(b)
                opened.discard(b)
                continue
            withdrawn = data.draw(st.booleans())
            pool.set_usable(b, usable, 0.0, withdrawn=withdrawn)
            if withdrawn:
                opened.discard(b)
        if usable:
            opened.add(b)
        counting = [b for b in sources if b.counts]
        if distribution is Distribution.CLOSEST:
            counting = [b for b in counting if b.cost == min(each.cost for each in counting)]
        each_usable = [b.usable for b in counting]
        if distribution is Distribution.MULTICAST:
            expected, consumers = min(each_usable, default=0), bool(counting) and opened.issuperset(counting)
        else:
            expected, consumers = sum(each_usable), not opened.isdisjoint(counting)
        assert (pool.demand, pool.overcommit) == (expected, int(consumers))


def test_a_multicast_remembers_no_credit_that_nobody_has_any_more() -> None:
    pool = Pool(Distribution.MULTICAST)
    pool.add_source(1)
    rising = pool.add_source(1)
    sizes = []
    for most in (100, 10_000):
        tracemalloc.start()
        for usable in range(2, most):
            pool.set_usable(rising, usable, 0.0)
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert sizes[1] < sizes[0] + 10_000
    assert pool.demand == 1
