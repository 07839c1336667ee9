"""Receivers of a multicast whose credit comes and goes: the route stays, and all get what decisions would give them."""

from __future__ import annotations

import random

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.config.file import AddressConfig, Overflow
from amqpmesh.router.context import AT_ONCE
from amqpmesh.router.delivery.fast_links import FEW
from amqpmesh.router.kernel import AHEAD_PAUSE
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.statistics.common import Decision
from tests.support.worlds.network import Client, Network, message
from tests.support.worlds.side_by_side import relaying


class Scene:
    """A multicast with its sender and receivers, the last of which is slow."""

    def __init__(self, receivers: int, *, credit: int, slow: int, overflow: Overflow = Overflow.HOLD) -> None:
        self.network = Network(
            AddressConfig(pattern="news", distribution=Distribution.MULTICAST, overflow=overflow, overflow_time=0.5)
        )
        self.consumers: list[Client] = [self.network.client() for _ in range(receivers)]
        self.links = [each.receiver("news", name=f"in-{at}", credit=credit) for at, each in enumerate(self.consumers)]
        self.links[-1].flow(slow)
        self.network.run()
        self.producer = self.network.client()
        self.link = self.producer.sender("news")
        self.sent = 0

    def send(self, count: int, *, settled: bool = True) -> None:
        """Send messages, which arrive in one batch."""
        for _ in range(count):
            delivery = self.link.delivery(next(self.producer._tags).to_bytes(4, "big"), settled=settled)
            self.link.transfer(delivery, message(), more=False)
        self.sent += count
        self.network.run()

    def arrived(self) -> int:
        """Return how many deliveries have arrived at the first receiver, which nobody takes there."""
        return len(self.consumers[0].arrivals)

    def decided(self) -> int:
        """Return how many deliveries were decided."""
        (told,) = snapshot(self.network.core).addresses
        return told.decided

    def seen(self) -> list[tuple[int, int]]:
        """Return the numbers of deliveries that each receiver got, and missed."""
        by_name = {each.name: each for each in snapshot(self.network.core).links}
        return [(by_name[f"in-{at}"].deliveries, by_name[f"in-{at}"].missed) for at in range(len(self.links))]


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("receivers", [3, FEW + 2])
def test_a_slow_receivers_credit_lets_the_next_batch_be_relayed_without_a_decision(
    receivers: int, settled: bool
) -> None:
    scene = Scene(receivers, credit=100, slow=10)
    scene.send(1, settled=settled)
    scene.send(9, settled=settled)
    before = scene.decided()
    for _ in range(4):
        scene.links[-1].flow(10)
        scene.network.run()
        scene.send(min(10, scene.link.credit), settled=settled)
    (told,) = snapshot(scene.network.core).addresses
    assert scene.decided() == before
    assert told.relayed >= 20
    assert all(got == told.deliveries_in for got, _ in scene.seen())


@pytest.mark.parametrize("receivers", [3, FEW + 2])
def test_after_one_that_has_waited_for_the_slow_receiver_the_next_are_relayed(receivers: int) -> None:
    scene = Scene(receivers, credit=100, slow=1)
    scene.send(1)
    scene.network.advance(0.1)
    assert scene.link.credit, "a sender may always send one, so that the router learns what it has"
    scene.send(1)
    assert scene.seen()[-1][0] == 1, "it waits"
    scene.links[-1].flow(10)
    scene.network.run()
    before = scene.decided()
    scene.send(scene.link.credit)
    assert scene.decided() == before
    (told,) = snapshot(scene.network.core).addresses
    assert told.decisions[Decision.SLOWEST] == 1
    assert {got for got, _ in scene.seen()} == {told.deliveries_in}


@pytest.mark.parametrize("overflow", [Overflow.HOLD, Overflow.DROP])
@pytest.mark.parametrize("receivers", [3, FEW + 2])
@pytest.mark.parametrize("seed", range(3))
def test_random_stalls_give_each_receiver_what_decisions_give(seed: int, receivers: int, overflow: Overflow) -> None:
    dice = random.Random(seed)
    scenes = [Scene(receivers, credit=20, slow=3, overflow=overflow) for _ in range(2)]
    for _ in range(40):
        step, which, credit = dice.random(), dice.choice([0, receivers - 1, receivers - 1]), dice.randint(0, 8)
        count, settled, pause = dice.randint(1, 4), dice.random() < 0.5, dice.choice([0.01, 0.2, 0.6])
        count = min(count, *(scene.link.credit for scene in scenes))
        for scene, alone in zip(scenes, (True, False), strict=True):
            with relaying(alone=alone):
                if step < 0.5:
                    scene.send(count, settled=settled)
                elif step < 0.85:
                    scene.links[which].flow(credit)
                    for link in scene.links[1:-1]:
                        link.flow(20)
                    scene.network.run()
                else:
                    scene.network.advance(pause)
        assert scenes[0].seen() == scenes[1].seen()
    assert scenes[0].decided() < scenes[1].decided(), "the first one relays alone"


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("pause", [0.0102, 0.05])
@pytest.mark.parametrize("receivers", [3, FEW + 2])
def test_what_a_slow_receiver_can_take_leaves_in_one_piece(receivers: int, pause: float, settled: bool) -> None:
    scene = Scene(receivers, credit=150, slow=10)
    scene.network.advance(AHEAD_PAUSE)
    for number in range(12):
        while scene.link.credit:
            scene.send(scene.link.credit, settled=settled)
        scene.network.advance(pause)
        before = scene.arrived()
        scene.links[-1].flow(10)
        scene.network.run()
        assert number < 7 or scene.arrived() - before == 10, "the sender has gone ahead by all of them"
    assert len(scene.consumers[-1].arrivals) == scene.arrived() >= 100


def test_a_sender_goes_ahead_no_more_once_the_slow_receiver_has_stopped_for_a_while() -> None:
    scene = Scene(3, credit=150, slow=10)
    for step in [0.01] * 8 + [0.2] * 30:
        scene.send(scene.link.credit)
        scene.network.advance(step)
        scene.links[-1].flow(10 if step < 0.1 else 1)
        scene.network.run()
    before = scene.sent
    scene.send(scene.link.credit)
    assert scene.sent - scene.arrived() <= 1
    assert before >= 80


def test_what_is_held_back_stays_there_when_idle_connections_and_stalled_receivers_are_looked_at() -> None:
    scene = Scene(3, credit=150, slow=10)
    silent = scene.network.client(idle_time_out=0.4)
    for _ in range(60):
        while scene.link.credit:
            scene.send(scene.link.credit)
        scene.network.advance(0.05)
        for consumer, link in zip(scene.consumers, scene.links, strict=True):
            consumer.take()
            link.flow(10 if link is scene.links[-1] else 150)
        scene.network.run()
    assert scene.sent >= 500
    assert silent.engine.liveness.received_at > scene.network.now - 0.4, "it has been sent empty frames"
    scene.links[-1].flow(40)
    scene.network.run()
    assert scene.network.core.context.kernel.held_count == 0
    assert scene.decided() <= 3


def test_receivers_that_have_taken_one_after_all_are_not_left_out_by_the_look_before() -> None:
    """They are as many as one turn handles: other tasks have theirs between the looks and what follows them."""
    scene = Scene(AT_ONCE, credit=100, slow=1, overflow=Overflow.DROP)
    stalled = scene.links[1:]
    for each in stalled:
        each.flow(1)
    for _ in range(2):
        scene.send(1)
    due = scene.network.core.next_timer()
    assert due is not None
    scene.network.now = due
    scene.network.core.handle_timer(due)
    assert scene.network.core.next_timer() == due, "not all of it is done"
    for each in stalled:
        each.flow(1)
    scene.network.run()
    assert scene.seen() == [(2, 0)] * len(scene.links)
    scene.network.advance(0.1)
    scene.send(1)
    for each in stalled:
        each.flow(1)
    scene.network.run()
    assert scene.seen() == [(3, 0)] * len(scene.links)
