"""The kernel's choice among several shares of an ingress: the same as that of the router."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.policies.distribution import Distribution, choose, eligible
from amqpmesh.router import kernel as bound
from amqpmesh.router.kernel import relay_frames
from tests.support.worlds.kernel_router import Router
from tests.support.worlds.kernels import Kernels, agreed
from tests.support.worlds.side_by_side import transfer

PAYLOAD = b"\x00\x53\x77\xa1\x04body"


@dataclass(frozen=True)
class Spec:
    """A share that a test asks for. A link: unsettled deliveries, credit, and whether it is in a large delivery."""

    is_lane: bool
    cost: int
    turn: int
    credit: int
    links: tuple[tuple[int, int, bool], ...]
    is_open: bool = True


@dataclass
class Share:
    """A share as the router sees it, with the kernel's one."""

    fast: Any
    cost: int
    turn: int

    @property
    def is_ready(self) -> bool:
        """True if it has credit."""
        return bool(self.fast.route.borrowed > 0)

    @property
    def outstanding(self) -> int:
        """Its unsettled deliveries, as those of a `CreditShare`."""
        if self.fast.is_lane:
            return sum(link.outstanding for link in self.fast.counted)
        return min((link.outstanding for link in self.fast.counted if link.link_credit > 0), default=0)

    @property
    def busy(self) -> bool:
        """True if none of its links can take a delivery."""
        links = self.fast.route.links
        return not any(link.link_credit > 0 and link.outstanding < link.max_outstanding for link in links)


class Ingress:
    """A router whose sender's deliveries leave by several shares."""

    def __init__(self, kernel: Any, distribution: Distribution, specs: list[Spec]) -> None:
        self.distribution = distribution
        self.router = Router(kernel, consumers=sum(len(spec.links) for spec in specs))
        self.relay = kernel.relay_frames
        route = self.router.fast_route
        route.links = []
        route.order = kernel.LEAST if distribution is Distribution.BALANCED else kernel.TURNS
        links = iter(self.router.outgoing)
        self.shares = []
        for spec in specs:
            fast = kernel.FastShare(None)
            fast.turn, fast.is_lane, fast.is_open = spec.turn, spec.is_lane, spec.is_open
            fast.route.borrowed, fast.route.credit_slack, fast.route.hops = spec.credit, 10, 3
            fast.route.order = kernel.FIRST if spec.is_lane else kernel.LEAST
            for outstanding, credit, is_busy in spec.links:
                link = next(links)
                link.outstanding, link.link_credit, link.lane = outstanding, credit, spec.is_lane
                link.max_outstanding = 0 if is_busy else 100
                fast.route.links = [*fast.route.links, link]
            fast.counted = list(fast.route.links)
            self.shares.append(Share(fast, spec.cost, spec.turn))
        near = eligible(distribution, self.shares)
        for share in self.shares:
            share.fast.is_candidate = share in near
            share.fast.is_open = share.fast.is_open and share in near
        route.shares = [share.fast for share in self.shares]
        self.sent = 0

    def send(self, *, settled: bool = False) -> int | None:
        """Send a delivery. Returns: the number of the share that the kernel relayed it by; None: it left it."""
        before = self.counts()
        data = transfer(self.sent, b"%d" % self.sent, PAYLOAD, settled=1 if settled else -1)
        if not self.relay(self.router.source, data, 0, len(data)):
            assert self.counts() == before
            return None
        self.sent += 1
        (used,) = (number for number, share in enumerate(self.shares) if self._relayed(share) != before[number][0])
        assert self.counts()[used][:2] == (before[used][0] + 1, before[used][1] - 1)
        return used

    def chosen(self) -> int | None:
        """Return the number of the share that the router would choose, and give it its turn; None: none has credit."""
        ready = [share for share in self.shares if share.is_ready]
        taken = next(iter(choose(self.distribution, ready)), None)
        return None if taken is None else self.shares.index(taken)

    def counts(self) -> list[tuple[int, int, int]]:
        """Return what the kernel has counted, share by share."""
        return [(self._relayed(each), each.fast.route.borrowed, each.fast.turn) for each in self.shares]

    @staticmethod
    def _relayed(share: Share) -> int:
        return int(share.fast.relayed)


LINKS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([0, 1, 2, 9]), st.sampled_from([False] * 4 + [True])), max_size=3
).map(tuple)
SPECS = st.lists(
    st.builds(
        Spec,
        is_lane=st.booleans(),
        cost=st.sampled_from([1, 1, 2]),
        turn=st.integers(0, 5),
        credit=st.sampled_from([0, 1, 2, 5, 9]),
        links=LINKS,
        is_open=st.sampled_from([True] * 5 + [False]),
    ),
    min_size=1,
    max_size=4,
)
DISTRIBUTIONS = st.sampled_from([Distribution.BALANCED, Distribution.CLOSEST])


@settings(max_examples=150)
@given(DISTRIBUTIONS, SPECS)
def test_the_kernel_takes_the_share_that_the_router_would_take(distribution: Distribution, specs: list[Spec]) -> None:
    ingress = Ingress(bound, distribution, specs)
    for number in range(20):
        busy = [share.busy for share in ingress.shares]
        chosen = ingress.chosen()
        used = ingress.send(settled=number % 3 == 0)
        if used is None:
            # The router decides: nobody has credit, it would wait, or a share that only the router may use counts.
            assert (
                chosen is None
                or busy[chosen]
                or any(share.is_ready and not share.fast.is_open for share in ingress.shares)
            )
            return
        assert used == chosen
        assert [share.fast.turn for share in ingress.shares] == [share.turn for share in ingress.shares]


@settings(max_examples=60)
@given(DISTRIBUTIONS, SPECS)
def test_both_kernels_choose_alike(kernels: Kernels, distribution: Distribution, specs: list[Spec]) -> None:
    def sends(kernel: Any) -> object:
        ingress = Ingress(kernel, distribution, specs)
        used = [ingress.send(settled=number % 3 == 0) for number in range(12)]
        return used, ingress.counts(), ingress.router.state()

    agreed(kernels, sends)


def test_equal_shares_get_equally_many_whatever_their_kind() -> None:
    for distribution in (Distribution.BALANCED, Distribution.CLOSEST):
        specs = [Spec(is_lane, 1, 0, 50, ((0, 50, False),)) for is_lane in (False, True, True)]
        ingress = Ingress(bound, distribution, specs)
        used = [ingress.send() for _ in range(30)]
        assert [used.count(number) for number in range(3)] == [10, 10, 10]


def test_a_share_is_used_no_further_than_its_credit_and_the_pool_is_told_before() -> None:
    ingress = Ingress(bound, Distribution.BALANCED, [Spec(True, 1, 0, 3, ((0, 50, False),)) for _ in range(2)])
    ingress.router.incoming.credit_slack = 100
    ingress.shares[0].fast.route.credit_slack = 1
    used = []
    for _ in range(7):
        used.append(ingress.send())
        assert ingress.router.flow.needs_update == (used.count(0) > 1)
    assert used == [0, 1, 0, 1, 0, 1, None]


def test_what_does_not_fit_into_one_frame_is_left_to_the_router() -> None:
    ingress = Ingress(bound, Distribution.BALANCED, [Spec(True, 1, 0, 9, ((0, 9, False),)) for _ in range(2)])
    source = ingress.router.source
    for data in (transfer(0, b"t", PAYLOAD, more=True), transfer(0, b"t", PAYLOAD + bytes(500))):
        assert relay_frames(source, data, 0, len(data)) == 0
    assert ingress.send() == 0


def test_while_all_shares_wait_for_the_same_output_the_frame_waits_for_it() -> None:
    ingress = Ingress(bound, Distribution.BALANCED, [Spec(True, 1, 0, 9, ((0, 9, False),)) for _ in range(2)])
    source, sink = ingress.router.source, ingress.router.sink
    source.patient = sink.patient = True
    sink.out += bytes(sink.backlog + 1)
    assert ingress.send() is None
    assert source.waits_for is sink
    sink.out.clear()
    source.waits_for = None
    assert ingress.send() == 0
