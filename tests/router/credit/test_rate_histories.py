"""Random histories of senders with rates: no bucket promises more than its burst, and none miscounts its links."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router import kernel as bound
from amqpmesh.router.credit import rate_line
from amqpmesh.router.credit.debtors import AT_ONCE, INTERVAL
from amqpmesh.router.credit.rate_line import EACH, Rate, RateLines, RateOwner, TenantLines
from amqpmesh.router.kernel import RateMeter
from amqpmesh.router.model.links import IncomingLink
from tests.support.worlds.kernel_router import Router
from tests.support.worlds.network import message
from tests.support.worlds.rated import Rated, limits

if TYPE_CHECKING:
    from amqpmesh.router.amqp.link import Sender

RATES = ["1/s", "7/s", "100/s", "5_000/s"]
OCTETS = ["50 B/s", "3 kB/s", "1 MB/s"]


@st.composite
def policies(draw: st.DrawFn) -> str:
    """Draw a policy with random rates of the tenant, its users, their links and addresses."""
    lines = []
    for names in (("messages", "messages_per_link", "messages_per_address"), ("messages", "messages_per_link")):
        chosen = [f'{name} = "{draw(st.sampled_from(RATES))}"' for name in names if draw(st.booleans())]
        chosen += [
            f'{name.replace("messages", "octets")} = "{draw(st.sampled_from(OCTETS))}"'
            for name in names
            if draw(st.integers(0, 3)) == 0
        ]
        if chosen:
            chosen.append(f"burst = {draw(st.sampled_from([0.01, 0.5, 1.0, 3.0]))}")
        lines.append(", ".join(chosen))
    return limits(*lines)


def check(world: Rated) -> None:
    """Compare the sums of all buckets with their links."""
    rates = world.core.context.rates
    meters = [
        link.credit_sink.meter
        for record in world.core.context.connections
        for link in record.incoming
        if link.credit_sink.meter is not None
    ]
    assert len(rates) == sum(meter.waits for meter in meters)
    for bucket in rates.buckets:
        users = [meter for meter in meters if bucket in meter.buckets]
        assert set(bucket.meters) == set(users)
        assert bucket.users == len(users)
        assert bucket.waiting == sum(bucket in meter.line.short(meter) for meter in users)  # type: ignore[attr-defined]
        held = sum(meter.held[meter.buckets.index(bucket)] for meter in users)
        assert abs(bucket.held - held) < 1e-3
        assert bucket.tokens <= max(0.0, bucket.burst - bucket.held) + 1e-3
    for meter in meters:
        link = meter.link.record
        assert isinstance(link, IncomingLink)
        units = [min(meter.size, each.burst) if each.of_octets else 1 for each in meter.buckets]
        assert meter.spent == [link.credit_sink.granted * unit for unit in units]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_bucket_promises_more_than_its_burst_and_none_miscounts_its_links(data: st.DataObject) -> None:
    draw = data.draw
    world = Rated(draw(policies()))
    for address in ("q", "p"):
        world.receiver(address, draw(st.sampled_from([1, 20, 500])))
    links: list[Sender] = []
    for _ in range(draw(st.integers(5, 25))):
        step = draw(st.sampled_from(["attach", "attach", "go", "go", "advance", "detach", "lose", "load"]))
        if step == "attach":
            size = draw(st.sampled_from([0, 100, 5_000]))
            link = world.sender(draw(st.sampled_from(["q", "p", None])), message("x" * size, to="q"))
            links.append(link)
        elif step == "go":
            some = [each for each in links if draw(st.booleans())]
            if some:
                world.go(draw(st.sampled_from([0.0, 0.02, 0.3])), some)
        elif step == "advance":
            world.advance(draw(st.sampled_from([0.01, 1.0, 30.0])))
        elif step == "load":
            world.load(draw(policies()))
        elif links:
            link = links.pop(draw(st.integers(0, len(links) - 1)))
            client = world._bodies[link][0]
            if step == "lose":
                world.core.receive_eof(client.record, world.now)
            else:
                link.detach(closed=draw(st.booleans()))
                world.run()
        check(world)


class Lines:
    """Links of a kernel that wait in lines, in virtual time."""

    def __init__(self) -> None:
        self.now = 10.0
        self.due: list[float] = []
        self.rates = RateLines(self.due.append)
        self._link = Router(bound).incoming

    def add(self, tenant: str, number: int, rate: float, burst: float, user: str = "ann") -> list[RateMeter]:
        """Have links of a user wait that share a rate of their tenant, all tokens of which have been spent."""
        line, shared = self.rates.of(tenant, user), Rate(RateOwner("messages", tenant), rate, burst, False)
        meters = [RateMeter(self._link, line) for _ in range(number)]
        for meter in meters:
            line.limit(meter, [shared], 0, self.now)
            meter.buckets[0].tokens = 0.0
            line.join(meter, 1, self.now)
        return meters

    def turn(self) -> list[RateMeter]:
        """Go on to the next turn. Returns: the links that it calls."""
        self.now = max(self.now, self.due[-1])
        return self.rates.turns(self.now)


def test_a_look_at_a_long_line_is_cut_into_turns_and_its_cost_does_not_grow_with_those_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = Lines()
    (bucket,) = lines.add("t", 10 * AT_ONCE, 1e-3, 1.0)[0].buckets
    looked = 0
    call = TenantLines._call

    def counted(lines: TenantLines, *args: Any) -> bool:
        nonlocal looked
        looked += 1
        return call(lines, *args)

    monkeypatch.setattr(TenantLines, "_call", counted)
    for turn in range(1, 11):
        before = lines.now
        for meter in lines.turn():
            meter.line.join(meter, 1, lines.now)  # type: ignore[attr-defined]  # a line
        bucket.tokens = 0.0
        assert looked == turn * AT_ONCE
        assert lines.now > before, "the timers that are due together are one turn"
        assert lines.due[-1] - lines.now == pytest.approx(max(INTERVAL, EACH * AT_ONCE))


def test_a_long_line_of_one_tenant_does_not_make_another_wait() -> None:
    lines = Lines()
    lines.add("long", 10 * AT_ONCE, 1000.0, 1000.0)
    (short,) = lines.add("short", 1, 100.0, 10.0)
    began, times = lines.now, 0
    while lines.now < began + 5.0:
        if short in lines.turn():
            times += 1
            short.buckets[0].tokens -= short.quota
            lines.rates.of("short", "ann").join(short, 1, lines.now)
    assert times * 0.03 > 5.0


def test_a_long_line_of_one_user_does_not_make_another_of_its_tenant_wait() -> None:
    lines = Lines()
    lines.add("t", 10 * AT_ONCE, 1000.0, 1000.0)
    (short,) = lines.add("t", 1, 1000.0, 1000.0, user="bob")
    (bucket,) = short.buckets
    began, times = lines.now, 0
    while lines.now < began + 5.0:
        called = lines.turn()
        bucket.fill(lines.now)
        assert sum(each.quota for each in called) <= bucket.tokens + 1e-6, "one turn gives no token twice"
        for meter in called:
            times += meter is short
            bucket.tokens -= meter.quota
        for meter in called:
            meter.line.join(meter, 1, lines.now)  # type: ignore[attr-defined]  # a line
    assert times * 0.05 > 5.0


def test_what_a_bucket_has_is_divided_among_users_and_then_among_their_links() -> None:
    lines = Lines()
    many = lines.add("t", 9, 1000.0, 1000.0)
    (one,) = lines.add("t", 1, 1000.0, 1000.0, user="bob")
    one.buckets[0].tokens = 900.0
    called = lines.turn()
    assert set(called) == {*many, one}
    of_many = sum(each.quota for each in many)
    assert one.quota == pytest.approx(of_many, rel=0.15)


def test_users_have_equal_parts_of_a_slow_rate_however_many_links_they_have() -> None:
    lines = Lines()
    lines.add("t", 20, 30.0, 3.0)
    lines.add("t", 3, 30.0, 3.0, user="bob")
    (one,) = lines.add("t", 1, 30.0, 3.0, user="cleo")
    (bucket,) = one.buckets
    parts: Counter[object] = Counter()
    began = lines.now
    while lines.now < began + 10.0:
        for meter in lines.turn():
            parts[meter.line] += meter.quota
            bucket.tokens -= meter.quota
            meter.line.join(meter, 1, lines.now)  # type: ignore[attr-defined]  # a line
    assert sum(parts.values()) == pytest.approx(300, abs=10)
    assert max(parts.values()) - min(parts.values()) <= 5


@pytest.mark.parametrize("are_tenants", [True, False])
def test_thousands_of_lines_are_looked_at_in_turns(are_tenants: bool) -> None:
    lines = Lines()
    names = [f"name-{number}" for number in range(2 * AT_ONCE + 1)]
    made = [lines.add(each if are_tenants else "t", 1, 1e6, 1e6, user=each) for each in names]
    made[0][0].buckets[0].tokens = 1e5
    lines.now += 1.0
    counts: list[int] = []
    while sum(counts) < len(made):
        counts.append(len(lines.turn()))
    assert counts == [AT_ONCE, AT_ONCE, 1]


def test_a_link_that_comes_again_and_again_does_not_make_a_long_line_be_looked_at_more_often() -> None:
    lines = Lines()
    *_, last = lines.add("t", 2 * AT_ONCE, 1000.0, 1000.0)
    line = lines.rates.of("t", "ann")
    line.leave(last)
    lines.turn()
    due = line.lines.due
    last.buckets[0].tokens = 0.0
    for _ in range(3):
        line.join(last, 1, lines.now)
        line.leave(last)
    assert line.lines.due == due


@pytest.mark.parametrize("by_name", [False, True])
def test_names_of_one_tenant_do_not_make_the_router_forget_those_of_another(
    by_name: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_line, "NAMES", 20)
    monkeypatch.setattr(rate_line, "OWNERS", 20)
    rates = RateLines(lambda _: None)

    def spend(tenant: str, number: int) -> bool:
        owner = RateOwner("messages", tenant, link=number)
        return rates.spend([Rate(owner, 0.001, 1.0, False, by_name, tenant)], 1.0) is None

    assert all(spend("a", number) for number in range(10))
    for number in range(100):
        assert spend("b", number)
        assert len(list(rates.buckets)) <= 20
    assert not any(spend("a", number) for number in range(10)), "what was used up is remembered"
    assert not spend("b", 99)
    assert spend("b", 50), "those of the tenant with most were forgotten"
    for number in range(10):
        assert spend("c", number)
        assert not spend("c", number), "a tenant that comes later has room, too"
