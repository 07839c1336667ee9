"""Rates of clients, kept by credit: in virtual time, a sender at full speed gets the rate and the burst."""

from __future__ import annotations

from pathlib import Path

import pytest

from amqpmesh.router import core
from amqpmesh.router.batch import finish_batch
from amqpmesh.router.config.file import WorkerConfig
from amqpmesh.router.context import Context
from amqpmesh.router.credit import rate_line
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.statistics.common import Reason
from tests.support.worlds.network import message
from tests.support.worlds.rated import Rated, limits


@pytest.mark.parametrize(
    ("address", "credit", "settled"),
    [("q", 500, False), ("q", 500, True), ("q", 1, False), (None, 500, False), (None, 500, True)],
)
def test_a_sender_at_full_speed_gets_the_rate_and_the_burst(address: str | None, credit: int, settled: bool) -> None:
    world = Rated(limits('messages = "200/s", burst = 0.5'))
    world.receiver("q", credit)
    link = world.sender(address, message(to="q"), settled=settled)
    world.go(0.0)
    assert world.sent[link] == 100
    for second in (1, 2):
        world.go(1.0)
        assert world.sent[link] == 100 + 200 * second
    world.leave()


@pytest.mark.parametrize(("rate", "burst"), [("1/s", 1.0), ("10/s", 0.1), ("7/s", 3.0), ("500/s", 0.1)])
def test_never_more_than_the_rate_and_the_burst(rate: str, burst: float) -> None:
    number = float(rate.removesuffix("/s"))
    world = Rated(limits(f'messages = "{rate}", burst = {burst}'))
    world.receiver("q")
    link = world.sender("q")
    began = world.now
    for _ in range(20):
        world.go(0.05)
        most = max(1.0, number * burst) + number * (world.now - began)
        # The newest part, of one look at the line, may not be granted yet.
        assert most - max(1.0, 0.02 * number) - 1 <= world.sent[link] <= most + 1e-6


def test_a_rate_holds_although_all_credit_is_used_after_a_pause() -> None:
    world = Rated(limits('messages = "100/s"'))
    world.receiver("q")
    link = world.sender("q")
    world.advance(60.0)
    assert link.credit == 100, "what is granted counts against the burst"
    world.go(0.0)
    assert world.sent[link] == 100
    world.go(1.0)
    assert world.sent[link] == 200


@pytest.mark.parametrize("addresses", [("q", "q"), ("q", "p"), ("q", None)])
def test_two_senders_share_the_rate_of_their_tenant(addresses: tuple[str, str | None]) -> None:
    world = Rated(limits('messages = "200/s", burst = 0.5'))
    world.receiver("q")
    world.receiver("p")
    first, second = (world.sender(each, message(to="p")) for each in addresses)
    world.go(0.0)
    before = dict(world.sent)
    assert sum(before.values()) == 100
    world.go(2.0)
    assert [world.sent[link] - before[link] for link in (first, second)] == [200, 200]
    world.leave()


def test_twenty_senders_of_a_low_rate_have_their_turns_in_order() -> None:
    world = Rated(limits('messages = "5/s", burst = 0.2'))
    world.receiver("q")
    links = [world.sender("q") for _ in range(20)]
    world.go(20.0)
    assert sum(world.sent.values()) == 101
    assert {world.sent[link] for link in links} == {5, 6}


def test_senders_that_send_nothing_keep_one_delivery_of_the_burst_each() -> None:
    world = Rated(limits('messages = "5/s"'))
    world.receiver("q")
    busy, *idle = [world.sender("q") for _ in range(20)]
    world.go(10.0, [busy])
    assert world.sent[busy] == 5 + 50 - len(idle)
    before = world.sent[busy]
    world.go(10.0, [busy])
    assert world.sent[busy] - before == 50


def test_a_link_is_limited_by_the_least_of_its_rates() -> None:
    world = Rated(
        limits('messages = "100/s", burst = 0.1', 'messages = "50/s", messages_per_link = "20/s", burst = 0.1')
    )
    links = [world.sender(f"q{number}") for number in range(4)]
    for number in range(4):
        world.receiver(f"q{number}")
    world.go(0.0)
    before = sum(world.sent.values())
    world.go(2.0)
    assert sum(world.sent.values()) - before == pytest.approx(100, abs=1), "all are one user"
    assert max(world.sent.values()) - min(world.sent.values()) <= 3
    alone = Rated(limits('messages = "100/s"', 'messages_per_link = "20/s", burst = 0.5'))
    link = alone.sender("q")
    alone.receiver("q")
    alone.go(1.0)
    assert alone.sent[link] == 30
    assert len(links) == 4


def test_senders_of_an_address_share_its_rate() -> None:
    world = Rated(limits('messages_per_address = "100/s", burst = 0.1'))
    links = [world.sender(address) for address in ("q", "q", "p")]
    world.receiver("q")
    world.receiver("p")
    world.go(1.0)
    counts = [world.sent[link] for link in links]
    assert counts[0] + counts[1] == 110
    assert counts[2] == 110


def test_a_sender_within_its_rate_does_not_wait_behind_one_that_has_reached_its_own() -> None:
    world = Rated(limits(slow='messages = "10/s"', fast='messages = "200/s"'))
    slow, fast = (world.sender("q", client=world.client(user=each)) for each in ("slow", "fast"))
    world.receiver("q", 50)
    world.go(2.0)
    assert world.sent == {slow: pytest.approx(30, abs=1), fast: 600}, "its last token comes as the time ends"
    world.leave()


def test_each_worker_keeps_an_equal_part_of_a_rate() -> None:
    worker = WorkerConfig(name="A", number=1, count=2, folder=Path("/none"))
    world = Rated(limits('messages = "200/s", burst = 0.5'), worker=worker)
    world.receiver("q")
    link = world.sender("q")
    world.go(1.0)
    assert world.sent[link] == 50 + 100


def test_octets_count_as_they_come() -> None:
    payload = message("x" * 1000)
    world = Rated(limits('octets = "100 kB/s", burst = 0.5'))
    world.receiver("q")
    link = world.sender("q", payload)
    world.go(0.0)
    assert 0 <= 50_000 - world.sent[link] * len(payload) < len(payload)
    world.go(3.0)
    assert 0 <= 350_000 - world.sent[link] * len(payload) < len(payload)
    world.leave()


@pytest.mark.parametrize(("owner", "times"), [("link", 2), ("address", 1)])
def test_octets_of_each_link_or_of_all_links_to_an_address_are_limited(owner: str, times: int) -> None:
    payload = message("x" * 950)
    world = Rated(limits(f'octets_per_{owner} = "50 kB/s"'))
    *both, other = (world.sender(address, payload) for address in ("q", "q", "p"))
    world.receiver("q")
    world.receiver("p")
    world.go(4.0)
    most = (4 + 1) * 50_000  # with the burst of a second
    assert sum(world.sent[link] for link in both) * len(payload) == pytest.approx(times * most, rel=0.03)
    assert world.sent[other] * len(payload) == pytest.approx(most, rel=0.03)


def test_messages_larger_than_the_burst_leave_a_debt() -> None:
    payload = message("x" * 100_000)
    world = Rated(limits('octets = "50 kB/s", burst = 0.5'))
    world.receiver("q")
    link = world.sender("q", payload)
    world.go(1.0)
    assert world.sent[link] == 1
    # A message is let in when the bucket is full, and its debt is paid before.
    world.go(19.0)
    assert world.sent[link] == (20 * 50_000 + 25_000) // len(payload)


def test_larger_messages_than_before_are_paid_for_later() -> None:
    world = Rated(limits('octets = "100 kB/s"'))
    world.receiver("q")
    client = world.client()
    link = world.sender("q", bytes(message("x" * 70)), client=client)
    world.go(0.0)
    sent = world.incoming(link).endpoint.flow_state.octets
    assert sent == pytest.approx(100_000, abs=100)
    world.go(0.5, [world.sender("elsewhere")])
    while link.credit:
        client.send(link, message("x" * 1000))
    before = world.incoming(link).endpoint.flow_state.octets
    assert before > 200_000, "credit was granted for small messages"
    world.go(5.0)
    assert world.incoming(link).endpoint.flow_state.octets <= 100_000 + 100_000 * 5.5 + 100


def test_a_new_link_gets_its_part_of_what_another_holds_and_does_not_use() -> None:
    world = Rated(limits('messages = "100/s"'))
    world.receiver("q")
    idle = world.sender("q")
    assert idle.credit == 100
    busy = world.sender("q")
    assert busy.credit == 0
    world.go(1.0, [busy])
    assert idle.credit <= 1, "it was asked to drain"
    before = world.sent[busy]
    world.go(1.0, [busy])
    assert world.sent[busy] - before >= 99
    world.leave()


def test_an_anonymous_sender_gives_back_what_it_does_not_use() -> None:
    world = Rated(limits('messages = "60/s"'))
    world.receiver("q")
    idle = world.sender(None)
    assert idle.credit == 60
    busy = world.sender("q")
    world.go(2.0, [busy])
    assert world.sent[busy] >= 60
    assert idle.credit <= 30


@pytest.mark.parametrize("address", ["q", None])
def test_a_sender_that_does_not_answer_a_drain_loses_what_it_does_not_use(address: str | None) -> None:
    world = Rated(limits('messages = "60/s"'))
    world.receiver("q")
    client = world.client()
    client.drains = False
    idle = world.sender(address, message(to="q"), client=client)
    assert idle.credit == 60
    busy = world.sender("q")
    world.go(3.0, [busy])
    before = world.sent[busy]
    world.go(1.0, [busy])
    assert world.sent[busy] - before == 60
    world.go(0.0)
    assert world.sent[idle] > 0, "it goes on as others do"


def test_detached_links_pay_back_what_they_have_not_used_and_a_new_link_gains_nothing() -> None:
    world = Rated(limits('messages = "100/s"'))
    world.receiver("q")
    first = world.sender("q")
    assert first.credit == 100
    first.detach(closed=True)
    world.run()
    second = world.sender("q")
    world.go(0.0, [second])
    assert world.sent[second] == 100
    second.detach(closed=True)
    world.run()
    third = world.sender("q")
    world.go(0.0, [third])
    assert world.sent[third] == 0
    world.go(1.0, [third])
    assert world.sent[third] == 100


def test_a_bucket_is_forgotten_once_it_is_full() -> None:
    world = Rated(limits('messages = "100/s", messages_per_link = "10/s"'))
    world.receiver("q")
    for _ in range(50):
        link = world.sender("q")
        link.detach(closed=True)
        world.run()
    world.advance(2.0)
    links = [world.sender("q") for _ in range(20)]
    assert len(links) == 20
    assert len(list(world.core.context.rates.buckets)) <= 21 + 4


def test_a_drain_is_answered_while_a_sender_waits_for_its_rate() -> None:
    world = Rated(limits('messages = "10/s", burst = 0.1'))
    client = world.client()
    link = client.receiver("q", credit=5)
    sender = world.sender("q")
    world.go(0.25)
    assert (world.sent[sender], len(client.take())) == (3, 3)
    link.flow(2, drain=True)
    world.go(1.0)
    assert (link.credit, len(client.take())) == (0, 0)
    link.flow(5)
    world.go(1.0)
    assert len(client.take()) == 5
    world.leave()


def test_a_changed_rate_holds_for_links_that_exist() -> None:
    world = Rated(limits())
    world.receiver("q")
    link = world.sender("q")
    world.load(limits('messages = "100/s"'))
    before = world.sent[link]
    world.go(1.0)
    assert world.sent[link] - before <= 500, "at most the credit that it had"
    world.go(5.0)
    before = world.sent[link]
    world.go(1.0)
    assert world.sent[link] - before == 100
    world.load(limits('messages = "200/s"'))
    before = world.sent[link]
    world.go(1.0)
    assert 198 <= world.sent[link] - before <= 220
    world.load(limits())
    assert world.incoming(link).credit_sink.meter is None
    assert link.credit == 500


def turns_of_a_pair(policy: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the turns of the router for 2,000 messages of a pair."""
    world = Rated(policy)
    world.receiver("q", 100)
    link = world.sender("q")
    turns = 0

    def counted(context: Context) -> None:
        nonlocal turns
        turns += 1
        finish_batch(context)

    monkeypatch.setattr(core, "finish_batch", counted)
    while world.sent[link] < 2000:
        world._step(())
    monkeypatch.undo()
    return turns


def test_a_pair_below_its_rate_stays_in_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    without = turns_of_a_pair(limits(), monkeypatch)
    assert turns_of_a_pair(limits('messages = "100_000/s", octets = "1 GB/s"'), monkeypatch) <= without + 2


def test_one_timer_serves_all_that_wait() -> None:
    world = Rated(limits('messages = "10/s"'))
    for number in range(50):
        world.receiver(f"q{number}", 10)
        world.sender(f"q{number}")
    world.go(1.0)
    assert len(world.core.context.rates) > 30
    count = 0

    def counted(at: float) -> None:
        nonlocal count
        count += 1

    world.core.context.rates._wake = counted
    world.go(0.001)
    assert count <= 1


def test_the_reason_of_a_sender_that_waits_is_shown() -> None:
    world = Rated(limits('messages = "10/s"'))
    world.receiver("q")
    world.sender("q")
    world.go(0.5)
    links = [each for each in snapshot(world.core).links if each.direction == "incoming"]
    assert [each.reason for each in links] == [Reason.RATE]


@pytest.mark.parametrize("limit", ["messages_per_link", "octets_per_address"])
def test_ever_other_names_of_links_and_addresses_take_no_more_memory(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_line, "NAMES", 20)
    world = Rated(limits(f'{limit} = "10/h", messages = "1000/s"'))
    client = world.client()
    for number in range(50):
        address = f"q{number}"
        world.receiver(address)
        link = client.sender(address)
        client.send(link, message(), settled=True)
        link.detach()
        world.run()
    assert len(list(world.core.context.rates.buckets)) <= 20 + 2
    owners = [each.key for each in world.core.context.rates.buckets]
    assert any(owner == rate_line.RateOwner(owner.limit, owner.tenant) for owner in owners), "the tenant's own is kept"
    world.leave()


def test_ever_other_hosts_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_line, "OWNERS", 20)
    world = Rated(limits(user='messages = "10/h"'))
    world.receiver("q")
    for number in range(50):
        client = world.client(host=f"2001:db8::{number}")
        client.send(client.sender("q"), message(), settled=True)
        client.lose()
    assert len(list(world.core.context.rates.buckets)) == 20
    world.leave()
