"""Multicasts that the kernel holds back until all receivers have credit: what that saves, and that nothing differs."""

from __future__ import annotations

from typing import Any, Final
from unittest.mock import patch

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router import core
from amqpmesh.router.amqp.events import TransferReceived
from amqpmesh.router.batch import finish_batch
from amqpmesh.router.config.file import AddressConfig, Overflow
from amqpmesh.router.context import Context
from amqpmesh.router.management.snapshot import snapshot
from tests.router.delivery.test_fast_routes_alike import Dice, MulticastDice, check, played
from tests.router.delivery.test_held_back import INTRUSIONS, HeldBench, accepted, sent
from tests.support.worlds.network import Network, message
from tests.support.worlds.side_by_side import relaying


class Scene:
    """A sender to a multicast that uses all of its credit, and receivers with little credit."""

    def __init__(self, receivers: int, credit: int, overflow: Overflow = Overflow.HOLD) -> None:
        self.network = Network(
            AddressConfig(pattern="news", distribution=Distribution.MULTICAST, overflow=overflow, overflow_time=0.5)
        )
        self.credit = credit
        self.consumers = [self.network.client() for _ in range(receivers)]
        self.links = [each.receiver("news", name=f"in-{at}", credit=credit) for at, each in enumerate(self.consumers)]
        self.producer = self.network.client()
        self.link = self.producer.sender("news")
        self.sent = 0
        self.got: list[list[bytes]] = [[] for _ in range(receivers)]

    @property
    def held(self) -> int:
        """Return how many deliveries the kernel holds back."""
        return self.network.core.context.kernel.held_count

    def send(self, *, settled: bool = False) -> None:
        """Use all credit."""
        while self.link.credit > 0:
            self.producer.send(self.link, message(f"number {self.sent}"), settled=settled)
            self.sent += 1

    def take(self, *which: int) -> None:
        """Have receivers, or some of them, accept what has come and give credit again."""
        for at in which or range(len(self.links)):
            for arrival in self.consumers[at].take():
                self.got[at].append(bytes(arrival.payload))
                if not arrival.delivery.settled:
                    arrival.accept()
            self.links[at].flow(self.credit)
            self.network.run()

    def finish(self) -> None:
        """Check that all receivers get all, in order, and that nothing is left."""
        for _ in range(60):
            self.take()
        assert self.got == [[message(f"number {number}") for number in range(self.sent)]] * len(self.links)
        assert self.network.relays == 0
        self.network.leave()

    def missed(self) -> list[int]:
        """Return how many deliveries each receiver has missed."""
        by_name = {each.name: each for each in snapshot(self.network.core).links}
        return [by_name[f"in-{at}"].missed for at in range(len(self.links))]


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("credit", [1, 2, 10])
@pytest.mark.parametrize("receivers", [2, 4])
def test_a_round_takes_no_turn_of_the_router(receivers: int, credit: int, settled: bool) -> None:
    scene = Scene(receivers, credit)
    turns = 0

    def counted(context: Context) -> None:
        nonlocal turns
        turns += 1
        finish_batch(context)

    for _ in range(5):
        scene.send(settled=settled)
        scene.take()
    with patch.object(core, "finish_batch", counted), relaying(alone=True) as events:
        held = before = scene.sent
        for _ in range(30):
            scene.send(settled=settled)
            held = max(held, scene.held)
            scene.take()
        assert events[TransferReceived] == 0
    assert held
    assert turns <= 6
    assert scene.sent - before >= 30 * credit - 1
    scene.finish()


def test_one_that_is_held_back_goes_to_all_once_the_last_one_has_credit() -> None:
    scene = Scene(3, 1)
    scene.send()
    scene.take()
    scene.send()
    assert scene.held == 1
    scene.take(0)
    scene.take(1)
    assert scene.held == 1
    assert [len(each) for each in scene.got] == [2, 2, 1]
    scene.take(2)
    assert [len(each.arrivals) for each in scene.consumers] == [1, 1, 1]
    scene.finish()


def test_a_receiver_that_takes_one_after_another_is_not_left_out_and_one_that_stops_is_after_the_time() -> None:
    scene = Scene(2, 1, Overflow.DROP)
    for _ in range(20):
        scene.send()
        scene.take()
        scene.network.advance(0.1)
    assert scene.missed() == [0, 0]
    scene.send()
    scene.take()
    last = scene.network.now
    while scene.missed()[1] == 0:
        scene.take(0)
        scene.send()
        scene.network.advance(0.05)
        assert scene.network.now < last + 1.0
    assert scene.network.now - last >= 0.5
    scene.take(1)
    missed = scene.missed()[1]
    for _ in range(5):
        scene.send()
        scene.take()
    assert scene.missed() == [0, missed]
    scene.take()
    scene.take()
    assert len(scene.got[1]) == scene.sent - missed
    scene.network.leave()


Step = tuple[Any, ...]

#: A sender, and two receivers on connections of their own.
WORLD = {**Dice(0, 0.0).world(at_once=False), "first_id": 0, "consumers": [(2, 4), (3, 4)], "credit": 1, "snd": 2}


def given(number: int) -> Step:
    """Return the step by which a receiver gives credit for one delivery more."""
    return "credit", number, 4, 1, 1000, False, 0


#: Each receiver has got a delivery, then one is held back; it leaves, and so on.
STEPS: tuple[Step, ...] = (
    sent(4), given(2), sent(4), accepted(2), accepted(3), given(3),
    given(2), sent(4, settled=1), given(3), sent(4), given(2), given(3),
)  # fmt: skip


def intrusion(step: Step) -> Step:
    """Return a step of an intrusion with the links of the multicast."""
    name, *rest = step
    if name in ("attach", "detach", "credit"):
        number, _, *others = rest
        return name, number, 4, *others
    if name == "send":
        number, deliveries, cuts = rest
        return name, number, [{**each, "handle": 4} for each in deliveries], cuts
    return step


@pytest.mark.parametrize("what", INTRUSIONS)
def test_at_whatever_frame_something_happens_to_one_held_back_it_fares_like_one_that_waits(what: str) -> None:
    HeldBench.held = events = others = 0
    for at in range(2, len(STEPS)):
        steps = [*STEPS[:at], *map(intrusion, INTRUSIONS[what]), *STEPS[at:]]
        relayed, some = played(WORLD, steps, mesh=False, alone=True, bench=HeldBench)
        decided, all_of_them = played(WORLD, steps, mesh=False, alone=False, bench=HeldBench)
        assert relayed == decided, (what, at)
        events, others = events + some, others + all_of_them
    assert events < others
    assert HeldBench.held > 5


class FewDice(MulticastDice):
    """The random choices of a history of multicasts to receivers with little credit, one on each connection."""

    LINKS: Final = ((2, 4), (3, 6), (2, 7), (3, 7))

    def world(self, *, at_once: bool) -> dict[str, Any]:
        """Return the settings of routers and links. Args: at_once: see `Wired`."""
        credit = self.random.choice([1, 1, 2, 3, 5])
        return {**super().world(at_once=at_once), "consumers": list(self.LINKS), "credit": credit}

    def delivery(self) -> dict[str, Any]:
        """Return a delivery to send."""
        # One sender of an address: which of several gets more credit first may differ.
        handle = self.random.choice((4, 7))
        return {**super().delivery(), "handle": handle, "frames": self.usually(1, 2), "held": self.usually(0, 1)}

    def _credit(self) -> tuple[Any, ...]:
        credit = self.usually(self.random.randint(1, 3), 0, 20)
        return "credit", *self.random.choice(self.LINKS), credit, 1000, self.usually(False, True), self.usually(0, -1)

    def _attach(self) -> tuple[Any, ...]:
        return "attach", *self.random.choice([*self.LINKS, (0, 4), (0, 7)])

    def _detach(self) -> tuple[Any, ...]:
        return "detach", *self.random.choice([*self.LINKS, (0, 4), (0, 7)]), self.random.random() < 0.5


@pytest.mark.parametrize("odd", [0.0, 0.05, 0.15])
@pytest.mark.parametrize("seed", range(12))
def test_random_histories_have_the_same_frames_as_decided_ones(seed: int, odd: float) -> None:
    dice = FewDice(seed, odd)
    check(dice.world(at_once=False), dice.steps(60, at_once=False), mesh=False, bench=HeldBench)


def test_the_histories_hold_multicasts_back() -> None:
    HeldBench.held = 0
    for seed in range(6):
        dice = FewDice(seed, 0.05)
        played(dice.world(at_once=False), dice.steps(60, at_once=False), mesh=False, alone=True, bench=HeldBench)
    assert HeldBench.held > 10
