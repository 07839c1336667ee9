"""Credit that the kernel divides along links: it grants what the pool grants that is told of everything."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.kernel import (
    CreditSink,
    CreditSource,
    KernelConnection,
    KernelLink,
    KernelRouter,
    KernelSession,
    Pool,
    deal,
    serial_add,
)


class _Sides:
    """A pool that is told of everything, and beside it one whose credit the kernel divides along links."""

    def __init__(self, max_credit: int, senders: int, receivers: int, ahead: int = 0) -> None:
        self.now = 1.0
        self.told = Pool(Distribution.BALANCED, max_credit=max_credit, ahead=ahead)
        self.pool = Pool(Distribution.BALANCED, max_credit=max_credit, ahead=ahead)
        self.pool.is_open = True
        self.router = KernelRouter()
        for pool in (self.told, self.pool):
            pool.is_plain = pool.goes_ahead = True
        self.told.ahead_most = self.router.ahead_at_once
        self.most_ahead = 0
        self.session = KernelSession(1000, 0, 0, KernelConnection())
        self.session.channel = 0
        self.session.remote_incoming_window = 1000
        self.session.wire.backlog = 1000
        self.incoming: list[tuple[KernelLink, CreditSink]] = []
        self.outgoing: list[tuple[KernelLink, CreditSource]] = []
        for number in range(senders):
            link = KernelLink(self.session, False, None, {})
            link.handle = link.remote_handle = number
            sink, twin = self.pool.add_sink(0), self.told.add_sink(0)
            sink.firm = twin.firm = number % 2 == 0
            sink.lowers = twin.lowers = number % 2 == 1
            sink.link, link.sink, twin.link = link, sink, link
            self.incoming.append((link, twin))
        for number in range(receivers):
            link = KernelLink(self.session, True, None, {})
            link.handle = link.remote_handle = 100 + number
            link.max_outstanding = 10**6
            source = self.pool.add_source(0)
            source.link, link.source = link, source
            self.outgoing.append((link, self.told.add_source(0)))

    def relay(self, which: int, count: int) -> None:
        """Relay deliveries, as far as there is credit on both sides."""
        link, twin = self.incoming[which % len(self.incoming)]
        out, _ = self.outgoing[which % len(self.outgoing)]
        count = min(count, out.link_credit, link.link_credit)
        if count:
            out.link_credit -= count
            link.link_credit -= count
            link.delivery_count = serial_add(link.delivery_count, count)
            link.last_at = self.now
            link.relayed += count
            self.told.relayed(twin, count, self.now)
            self.router.mark_dirty(link)
            self.router.mark_dirty(out)
            self.router.change(self.pool)

    def flow(self, which: int, credit: int) -> None:
        """Give a receiver credit."""
        out, _ = self.outgoing[which % len(self.outgoing)]
        out.link_credit = max(out.link_credit, credit)
        self.router.mark_dirty(out)
        self.router.change(self.pool)

    def grant(self) -> bool:
        """Divide credit on both sides, and compare. Returns: False: the kernel has left the pool to the router."""
        router = self.router
        for out, twin in self.outgoing:
            self.told.set_usable(twin, out.link_credit, self.now)
        router.now = self.now
        router.change(self.pool)
        deal(router)
        if router.undealt:
            return False
        self.told.grants(self.now)
        for link, twin in self.incoming:
            sink = link.sink
            assert sink is not None
            assert (link.link_credit, link.delivery_count) == (twin.credit, twin.delivery_count)
            assert (sink.granted, sink.limit, sink.waiting) == (twin.granted, twin.limit, twin.waiting)
        assert (self.pool.granted, self.pool.demand) == (self.told.granted, self.told.demand)
        assert self.pool.ahead == self.told.ahead
        self.most_ahead = max(self.most_ahead, self.pool.ahead)
        assert self.pool.next_timer() == self.told.next_timer()
        return True


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["relay", "relay", "flow", "flow", "both", "wait", "pause"]),
        st.integers(0, 7),
        st.sampled_from([1, 1, 1, 2, 3, 5, 10, 40, 100, 700]),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=200)
@given(
    STEPS, st.sampled_from([1, 2, 3, 10, 50, 500]), st.integers(1, 5), st.integers(1, 3), st.sampled_from([0, 5, 32])
)
def test_the_kernel_grants_what_the_pool_grants_for_the_same_history(
    steps: list[tuple[str, int, int]], max_credit: int, senders: int, receivers: int, ahead: int
) -> None:
    sides = _Sides(max_credit, senders, receivers, ahead)
    sides.grant()
    for step, which, number in steps:
        if step in ("relay", "both"):
            sides.relay(which, number)
        if step in ("flow", "both"):
            sides.flow(which, number)
        if step == "wait":
            sides.now += number / 10_000
        elif step == "pause":
            sides.now += number / 100
        if not sides.grant():
            return


def test_a_round_of_several_senders_needs_nothing_of_the_router() -> None:
    for credit in (1, 2, 5, 10, 50):
        sides = _Sides(500, 4, 1)
        for turn in range(100):
            sides.flow(0, credit)
            assert sides.grant()
            sides.relay(turn, credit)
            assert sides.grant()
            sides.now += 0.001
        assert not sides.router.needs_update
        assert sides.told.granted > 0


def test_a_round_is_divided_alike_while_senders_go_ahead() -> None:
    for credit in (1, 2, 5, 10):
        sides = _Sides(500, 4, 1, 32)
        for turn in range(200):
            sides.flow(0, credit)
            assert sides.grant()
            sides.relay(turn, credit)
            assert sides.grant()
            sides.now += 0.0005
        assert sides.most_ahead >= 7


def test_a_pool_that_takes_credit_back_is_left_to_the_router() -> None:
    sides = _Sides(500, 2, 1)
    sides.flow(0, 10)
    assert sides.grant()
    out, _ = sides.outgoing[0]
    out.link_credit = 0
    sides.router.mark_dirty(out)
    assert not sides.grant()
    assert sides.router.undealt == [sides.pool]
    assert sides.router.needs_update


def test_a_receiver_whose_window_is_closed_leaves_its_pool_to_the_router() -> None:
    sides = _Sides(500, 1, 1)
    sides.session.remote_incoming_window = 0
    sides.flow(0, 10)
    sides.grant()
    assert sides.router.undealt == [sides.pool]
    assert not sides.pool.is_open
    assert sides.router.left == [sides.outgoing[0][0]]
