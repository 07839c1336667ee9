"""Credit of one pool that senders of several tenants contend for: each tenant has a part by its weight."""

from __future__ import annotations

from collections import Counter, deque

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router import kernel as bound
from amqpmesh.router.credit.rate_line import Rate, RateLines, RateOwner
from amqpmesh.router.kernel import CreditSink, CreditSource, Pool, RateMeter
from tests.support.worlds.credit_pools import flows, pass_time
from tests.support.worlds.kernel_router import Router


class Contention:
    """Senders of several tenants that always have something to send, and a receiver with so much credit."""

    def __init__(self, senders: dict[str, int], weights: dict[str, float], credit: int) -> None:
        self.pool = Pool(Distribution.BALANCED)
        self.senders = {
            self.join(tenant, weights[tenant]): tenant for tenant, count in senders.items() for _ in range(count)
        }
        self.source: CreditSource = self.pool.add_source()
        self.credit = credit
        self.now = 0.0
        self.queue: deque[CreditSink] = deque()
        self.taken: Counter[str] = Counter()
        self.quiet: set[str] = set()

    def join(self, tenant: str, weight: float) -> CreditSink:
        sink = self.pool.add_sink(0)
        self.pool.join(sink, tenant, weight)
        return sink

    def leave(self, tenant: str) -> None:
        for sink in [each for each, its in self.senders.items() if its == tenant]:
            self.pool.remove_sink(sink, self.now)
            del self.senders[sink]

    def run(self, deliveries: int) -> dict[str, float]:
        """Let the receiver take so many. Returns: the part of each tenant."""
        self.taken.clear()
        self.pool.set_usable(self.source, self.credit, self.now)
        for _ in range(deliveries):
            self.pool.grants(self.now)
            for sink, tenant in self.senders.items():
                while sink.credit and tenant not in self.quiet:
                    self.pool.received(sink, self.now)
                    self.queue.append(sink)
            if self.queue:
                sink = self.queue.popleft()
                self.pool.forwarded(sink, self.now)
                if sink in self.senders:
                    self.taken[self.senders[sink]] += 1
            self.now += 0.001
            pass_time(self.pool, self.now)
        return {tenant: self.taken[tenant] / deliveries for tenant in self.senders.values()}


@pytest.mark.parametrize("credit", [1, 2, 10, 100, 1000])
@pytest.mark.parametrize(
    ("senders", "weights"),
    [
        ({"many": 100, "one": 1}, {"many": 1.0, "one": 1.0}),
        ({"many": 30, "one": 1}, {"many": 1.0, "one": 3.0}),
        ({"many": 30, "one": 1}, {"many": 3.0, "one": 1.0}),
        ({"a": 7, "b": 40, "c": 2}, {"a": 1.0, "b": 0.5, "c": 2.5}),
    ],
)
def test_each_tenant_gets_its_part_however_many_links_it_has(
    senders: dict[str, int], weights: dict[str, float], credit: int
) -> None:
    parts = Contention(senders, weights, credit).run(6000)
    whole = sum(weights.values())
    for tenant, weight in weights.items():
        assert parts[tenant] == pytest.approx(weight / whole, abs=0.04)


def test_what_a_tenant_does_not_use_others_get() -> None:
    world = Contention({"busy": 20, "quiet": 5}, {"busy": 1.0, "quiet": 9.0}, 50)
    assert world.run(3000)["quiet"] == pytest.approx(0.9, abs=0.04)
    world.quiet.add("quiet")
    world.run(2000)
    assert world.run(2000)["busy"] == 1.0
    world.quiet.clear()
    world.run(500)
    assert world.run(3000)["quiet"] == pytest.approx(0.9, abs=0.04)


def test_a_changed_weight_holds_for_links_that_are_there() -> None:
    world = Contention({"a": 10, "b": 10}, {"a": 1.0, "b": 1.0}, 50)
    assert world.run(3000)["a"] == pytest.approx(0.5, abs=0.04)
    world.pool.weigh("a", 4.0)
    assert world.pool.weights == {"a": 4.0, "b": 1.0}
    world.run(500)
    assert world.run(3000)["a"] == pytest.approx(0.8, abs=0.04)


def test_a_tenant_that_is_alone_again_has_all_and_shares_again_with_the_next() -> None:
    world = Contention({"a": 10, "b": 10}, {"a": 1.0, "b": 1.0}, 50)
    world.run(1000)
    world.leave("b")
    world.run(500)
    assert world.run(1000) == {"a": 1.0}
    world.senders[world.join("c", 3.0)] = "c"
    world.run(500)
    assert world.run(3000)["c"] == pytest.approx(0.75, abs=0.04)


def test_a_tenant_without_credit_does_not_wait_behind_one_that_holds_all_of_it() -> None:
    pool = Pool(Distribution.BALANCED)
    first = [pool.add_sink(0) for _ in range(3)]
    for each in first:
        pool.join(each, "a", 1.0)
    pool.set_usable(pool.add_source(), 90, 0.0)
    assert sum(flow.credit for flow in flows(pool).values()) == 90
    second = pool.add_sink(0)
    pool.join(second, "b", 1.0)
    flows(pool)
    for now in (0.0, 0.5, 1.5):  # the others are found to be idle, are asked to drain, and do not answer
        while second.granted:
            pool.received(second, now)
            pool.forwarded(second, now)
        flows(pool, now)
        pass_time(pool, now + 0.4)
        assert now != 0.5 or all(each.draining for each in first)
    assert second.credit >= 40


def test_no_more_is_granted_than_there_is() -> None:
    world = Contention({"a": 10, "b": 3}, {"a": 0.01, "b": 10_000.0}, 7)
    for _ in range(300):
        world.run(1)
        assert world.pool.waiting + world.pool.granted <= world.pool.demand + world.pool.overcommit


def test_a_link_gets_no_more_ahead_of_another_tenant_than_its_part_of_a_rate() -> None:
    pool, rates = Pool(Distribution.BALANCED), RateLines(lambda _: None)
    limited, other = pool.add_sink(0), pool.add_sink(0)
    pool.join(limited, "limited", 3.0)
    pool.join(other, "other", 1.0)
    line, rate = rates.of("limited", "ann"), Rate(RateOwner("messages", "limited"), 1.0, 10.0, False)
    # Two links of the tenant share the rate. One of them is at another address.
    limited.meter, elsewhere = (RateMeter(Router(bound).incoming, line) for _ in range(2))
    for meter in (limited.meter, elsewhere):
        line.limit(meter, [rate], 0, 0.0)
    source = pool.add_source(8)
    flows(pool)
    assert (limited.credit, limited.meter.limit()) == (5, 5)
    # The other tenant uses what it has, and its receiver has given far more credit.
    while other.credit:
        pool.received(other, 0.01)
        pool.forwarded(other, 0.01)
    pool.set_usable(source, 200, 0.01)
    flows(pool, 0.01)
    assert other.credit > 20
    assert limited.credit == 5
    assert not limited.meter.waits, "it has its part"
