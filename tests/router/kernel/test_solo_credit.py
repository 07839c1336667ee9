"""Credit of a pool with one sender and one receiver: the kernel grants what the router's pool would."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.credit.pool import Pool
from amqpmesh.router.credit.sinks import CreditSink
from amqpmesh.router.credit.solo import give, give_settings, is_calm, take
from amqpmesh.router.credit.sources import CreditSource
from amqpmesh.router.kernel import (
    Budget,
    Delivery,
    KernelConnection,
    KernelLink,
    KernelSession,
    SoloPool,
    grant_solo,
    serial_add,
)


def _pool(max_credit: int) -> tuple[Pool, CreditSource, CreditSink]:
    pool = Pool(Distribution.BALANCED, max_credit=max_credit)
    sink = pool.add_sink(0)
    sink.firm = True
    return pool, pool.add_source(0), sink


def _numbers(pool: Pool, sink: CreditSink) -> dict[str, object]:
    waiters = pool._waiters
    return {
        "granted": (pool.granted, sink.granted, sink.credit, sink.limit, sink.announce()),
        "lines": (bool(waiters.empty), bool(waiters.low), bool(waiters.active), bool(waiters.idle_rich)),
        "sink": (sink._low_at, sink._plenty, sink._idle, sink._used_at, sink._placed_at, sink.delivery_count),
        "slack": pool.credit_slack(sink),
        "times": pool._overcommit_at,
    }


class _Sides:
    """The router's pool told of everything, and beside it a pool whose credit the kernel grants while it is calm."""

    def __init__(self, max_credit: int) -> None:
        self.now = 1.0
        self.told, self.told_source, self.told_sink = _pool(max_credit)
        self.pool, self.source, self.sink = _pool(max_credit)
        self.incoming = KernelLink(KernelSession(100), False, None, {})
        session = KernelSession(100, 0, 0, KernelConnection())
        session.channel = 0
        session.remote_incoming_window = 1000
        session.wire.backlog = 1000
        self.out = KernelLink(session, True, None, {})
        self.out.max_outstanding = 10**6
        self.solo = SoloPool(self.incoming, [self.out], Budget(10**6))
        give_settings(self.pool, self.solo)
        self.count = 0
        self.alone = 0
        self.waits = False

    def relay(self, count: int) -> None:
        """Relay deliveries, as far as there is credit on both sides."""
        count = min(count, self.out.link_credit, self.incoming.link_credit)
        if count:
            self.out.link_credit -= count
            self.incoming.link_credit -= count
            self.incoming.delivery_count = serial_add(self.incoming.delivery_count, count)
            self.incoming.last_at = self.now
            self.count += count
            self.told.relayed(self.told_sink, count, self.now)

    def hold(self) -> None:
        """Hold a delivery back, if there is credit for it and none to send it on."""
        if self.solo.calm and self.solo.held is None and self.incoming.link_credit and not self.out.link_credit:
            self.incoming.link_credit -= 1
            self.incoming.delivery_count = serial_add(self.incoming.delivery_count, 1)
            self.incoming.last_at = self.now
            self.solo.held = Delivery(self.incoming, b"", 0, False, False)
            self.told.received(self.told_sink, self.now)

    def flow(self, credit: int) -> None:
        """Give the receiver credit: what is held back leaves first."""
        self.out.link_credit = max(self.out.link_credit, credit)
        if self.solo.held is not None or self.waits:
            self.out.link_credit -= 1
            self.told.forwarded(self.told_sink, self.now)
            if self.waits:
                self.pool.forwarded(self.sink, self.now)
            else:
                self.count += 1
            self.solo.held, self.waits = None, False

    def grant(self) -> None:
        """Grant credit on both sides, and compare what the sender is told."""
        usable = self.out.link_credit
        self.told.set_usable(self.told_source, usable, self.now)
        told = [grant.credit for grant in self.told.grants(self.now)]
        before = self.incoming.link_credit
        if self.solo.calm and grant_solo(self.solo, self.now):
            granted = [self.incoming.link_credit] if self.incoming.link_credit != before else []
            assert self.incoming.credit_slack == self.told.credit_slack(self.told_sink)
            self.alone += 1
        else:
            self.take()
            self.pool.set_usable(self.source, usable, self.now)
            granted = [grant.credit for grant in self.pool.grants(self.now)]
            self.incoming.link_credit = self.sink.credit
            self.incoming.granted_limit = self.sink.limit
            assert _numbers(self.pool, self.sink) == _numbers(self.told, self.told_sink)
            if is_calm(self.pool, self.sink, usable):
                give(self.pool, self.sink, self.solo)
        assert granted == told
        assert self.incoming.link_credit == self.told_sink.credit
        assert self.incoming.granted_limit == self.told_sink.limit

    def take(self) -> None:
        """Tell the pool of what the kernel has relayed and granted."""
        count, self.count = self.count, 0
        if self.solo.calm:
            take(self.pool, self.sink, self.solo, count, self.incoming.last_at)
        elif count:
            self.pool.relayed(self.sink, count, self.now)
        if self.solo.held is not None:  # the router receives it, and it waits
            self.pool.received(self.sink, self.incoming.last_at)
            self.waits = True
            self.solo.held = None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["relay", "relay", "flow", "flow", "both", "hold", "hold", "wait", "pause", "update"]),
        st.sampled_from([1, 1, 1, 2, 3, 5, 10, 40, 100, 700]),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=400)
@given(STEPS, st.sampled_from([1, 2, 3, 10, 50, 500]))
def test_the_kernel_grants_what_the_pool_would_grant_for_the_same_history(
    steps: list[tuple[str, int]], max_credit: int
) -> None:
    sides = _Sides(max_credit)
    sides.grant()
    for step, number in steps:
        if step in ("relay", "both"):
            sides.relay(number)
        if step in ("flow", "both"):
            sides.flow(number)
        if step == "hold":
            sides.hold()
        if step == "wait":
            sides.now += number / 10_000
        elif step == "pause":
            sides.now += number / 100
        elif step == "update":
            sides.take()
            assert sides.sink.granted == sides.told_sink.granted
        sides.grant()
    sides.take()
    sides.pool.set_usable(sides.source, sides.out.link_credit, sides.now)
    assert sides.pool.grants(sides.now) == []
    assert sides.told.grants(sides.now) == []
    assert _numbers(sides.pool, sides.sink) == _numbers(sides.told, sides.told_sink)


def test_a_receiver_that_renews_its_credit_needs_no_turn_of_the_pool() -> None:
    for credit in (1, 2, 5, 10, 20, 50, 100, 500):
        sides = _Sides(500)
        for _ in range(100):
            sides.out.link_credit = credit
            sides.grant()
            sides.relay(credit)
            sides.grant()
            sides.now += 0.001
        assert sides.alone >= 150, credit
