"""Senders that go ahead of receivers with little credit: what it saves, what bounds it, and who gets what waits."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from unittest.mock import patch

import pytest

from amqpmesh.router import core
from amqpmesh.router.amqp.events import Event, TransferReceived
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.batch import finish_batch
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.config.limits import MAX_AHEAD
from amqpmesh.router.context import Context
from amqpmesh.router.kernel import AHEAD_AT_ONCE, AHEAD_PAUSE, AHEAD_PERIOD
from amqpmesh.router.management.snapshot import snapshot
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Network, Sent, message
from tests.support.worlds.side_by_side import relaying

Events = Counter[type[Event]]

#: Seconds of a step of a receiver that is fast.
STEP = AHEAD_PERIOD / 25


@pytest.fixture
def events() -> Iterator[Events]:
    """Count the events that routers handle."""
    with relaying(alone=True) as counts:
        yield counts


class Line:
    """Senders of an address that use all of their credit, and receivers with little credit that accept what comes."""

    def __init__(self, credit: int, senders: int = 1, receivers: int = 1, size: int = 10, **settings: object) -> None:
        self.credit, self.size = credit, size
        self.network = Network(AddressConfig(pattern="q", **settings))  # type: ignore[arg-type]  # as the test says
        self.consumers = [self.network.client() for _ in range(receivers)]
        self.receivers = [each.receiver("q", credit=credit) for each in self.consumers]
        self.producers = [self.network.client() for _ in range(senders)]
        self.links = [each.sender("q") for each in self.producers]
        self.sent = [0] * senders
        #: How many times a sender has found credit.
        self.steps = 0
        self.got: list[list[str]] = [[] for _ in range(receivers)]
        self.presettled: list[Sent] = []

    @property
    def held(self) -> int:
        """Return how many deliveries the router holds back."""
        return self.network.core.context.kernel.held_count

    @property
    def ahead(self) -> int:
        """Return how many deliveries wait, or may come, beyond the receivers' credit."""
        node = self.network.core.context.nodes.find("", "q")
        assert node is not None
        pool = node.pool
        return pool.waiting + pool.granted - pool.demand

    def send(self, settled: bool = False) -> None:
        """Use all credit."""
        for number, (producer, link) in enumerate(zip(self.producers, self.links, strict=True)):
            self.steps += link.credit > 0
            while link.credit > 0:
                body = f"{number}:{self.sent[number]}:" + "x" * self.size
                sent = producer.send(link, message(body), settled=settled)
                if settled:
                    self.presettled.append(sent)
                self.sent[number] += 1

    def step(self, *, settled: bool = False, which: tuple[int, ...] | None = None) -> None:
        """Have receivers accept what has come and give credit again, and the senders use theirs."""
        self.send(settled)
        for number in range(len(self.consumers)) if which is None else which:
            self.take(number)
            self.receivers[number].flow(self.credit)
            self.network.run()
        self.network.now += STEP

    def take(self, number: int) -> None:
        """Have a receiver accept what has come."""
        for arrival in self.consumers[number].take():
            self.got[number].append(text(arrival.payload))
            if not arrival.delivery.settled:
                arrival.accept()

    def finish(self) -> None:
        """Have the receivers take all that has been sent, and check that nothing is left."""
        for _ in range(60):
            for number, receiver in enumerate(self.receivers):
                if receiver.is_attached:
                    self.take(number)
                    receiver.flow(self.credit)
            self.network.run()
            self.network.now += STEP
        assert self.network.relays == 0
        assert self.held == 0
        for producer in self.producers:
            for each in producer.sent.values():
                assert each.outcome == (None if each in self.presettled else Accepted())
        self.network.leave()


def text(payload: bytes) -> str:
    """Return the number of the sender and of its message."""
    found = re.search(rb"\d+:\d+(?=:x)", bytes(payload))
    assert found is not None
    return found[0].decode()


def fast(line: Line) -> Line:
    """Have the receivers take what comes for a while, until the senders go ahead: some time after the router has queued
    a delivery.
    """
    for pause in (AHEAD_PAUSE, 0):
        for _ in range(50):
            line.step()
        line.network.now += pause
    return line


def most_ahead(line: Line) -> int:
    """Return by how many deliveries the senders are ahead at most in some steps."""
    most = 0
    for _ in range(40):
        line.step()
        line.send()
        most = max(most, line.ahead)
    return most


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(("credit", "steps"), [(1, 0.25), (2, 0.4), (5, 0.6), (10, 1.0)])
def test_a_step_of_the_receiver_is_no_longer_a_step_of_the_sender(
    events: Events, credit: int, steps: float, settled: bool
) -> None:
    line = fast(Line(credit))
    line.steps, sent, turns = 0, line.sent[0], 0
    before = events[TransferReceived]

    def counted(context: Context) -> None:
        nonlocal turns
        turns += 1
        finish_batch(context)

    with patch.object(core, "finish_batch", counted):
        for _ in range(100):
            line.step(settled=settled)
    assert line.steps <= 100 * steps
    assert line.sent[0] - sent >= 100 * credit - MAX_AHEAD
    assert events[TransferReceived] == before
    assert turns <= 110  # each `advance` takes one
    line.finish()
    assert line.got[0] == [f"0:{number}" for number in range(line.sent[0])]


@pytest.mark.parametrize("senders", [1, 2, 4, 12, 40])
def test_senders_share_what_they_go_ahead_by(senders: int) -> None:
    line = fast(Line(2 if senders == 40 else max(2, senders), senders))
    most = most_ahead(line)
    assert most <= max(MAX_AHEAD + 1, senders)
    assert senders == 40 or most >= 17
    line.finish()
    for number, sent in enumerate(line.sent):
        assert sent >= 1
        mine = [each for each in line.got[0] if each.startswith(f"{number}:")]
        assert mine == [f"{number}:{each}" for each in range(sent)]


def test_nobody_goes_ahead_of_a_slow_receiver() -> None:
    line = Line(1)
    for _ in range(20):
        line.step()
        line.network.advance(2 * AHEAD_PERIOD)
        line.send()
        assert line.ahead <= 1
    line.finish()


def test_a_sender_goes_ahead_no_more_once_a_receiver_is_slow() -> None:
    line = fast(Line(2))
    assert line.ahead > 8
    for _ in range(30):
        line.network.advance(2 * AHEAD_PERIOD)
        line.step()
    line.send()
    assert line.ahead <= 1
    line.finish()


@pytest.mark.parametrize("settings", [{"ahead": 0}, {"redeliver": True}])
def test_nobody_goes_ahead_where_that_is_off_or_needs_decisions(settings: dict[str, object]) -> None:
    line = fast(Line(2, **settings))
    assert line.ahead <= 1
    line.finish()


def test_the_configuration_says_the_most() -> None:
    line = fast(Line(2, ahead=3))
    assert most_ahead(line) == 4
    line.finish()


def test_nobody_goes_ahead_of_receivers_that_can_take_many() -> None:
    line = fast(Line(100))
    line.send()
    assert line.ahead <= 1
    line.finish()


@pytest.mark.parametrize("size", [5000, 20_000])
def test_nobody_goes_ahead_with_large_messages(size: int) -> None:
    line = fast(Line(2))
    line.size = size
    for _ in range(30):
        line.step()
    assert line.ahead <= 1
    line.size = 10
    assert fast(line).ahead > 8
    line.finish()


def test_all_nodes_together_go_ahead_by_a_bounded_number() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    count = 20
    receivers = [consumer.receiver(f"q{number}", credit=2) for number in range(count)]
    links = [producer.sender(f"q{number}") for number in range(count)]
    most = []
    for _ in range(70):
        for link in links:
            while link.credit > 0:
                producer.send(link, message())
        most.append(network.core.context.kernel.held_count)
        for arrival in consumer.take():
            arrival.accept()
        for receiver in receivers:
            receiver.flow(2)
        network.run()
        network.now += STEP
    assert max(most) <= 256
    assert max(most[45:]) <= count + AHEAD_AT_ONCE
    for _ in range(20):
        for arrival in consumer.take():
            arrival.accept()
        for receiver in receivers:
            receiver.flow(2)
        network.run()
    assert network.relays == 0
    network.leave()


def test_nobody_goes_ahead_once_the_memory_is_used_up() -> None:
    line = fast(Line(2))
    budget = line.network.core.context.budget
    limit, budget.limit = budget.limit, 50_000
    budget.add(51_000)
    for _ in range(40):
        line.step()
    line.send()
    assert line.ahead <= 1
    budget.add(-51_000)
    budget.limit = limit
    line.finish()


@pytest.mark.parametrize("settled", [False, True])
def test_what_waits_goes_to_the_receiver_that_is_idle(settled: bool) -> None:
    line = fast(Line(1, receivers=2))
    line.send(settled)
    before = [len(each) for each in line.got]
    assert line.held > 4
    for _ in range(40):
        line.step(settled=settled, which=(1,))
    slow, idle = (len(each) - then for each, then in zip(line.got, before, strict=True))
    assert slow == 0
    assert idle >= 40
    line.finish()


@pytest.mark.parametrize("end", ["detach", "lose", "drain"])
@pytest.mark.parametrize("settled", [False, True])
def test_what_is_held_goes_to_another_receiver_in_order_if_one_goes(end: str, settled: bool) -> None:
    line = Line(1)
    late = line.network.client()
    fast(line).send(settled)
    assert line.held > 8
    if end == "drain":
        line.receivers[0].flow(3, drain=True)
        line.network.run()
        assert line.receivers[0].credit == 0
    line.consumers.append(late)
    line.receivers.append(late.receiver("q", credit=1))
    line.got.append([])
    line.take(0)
    line.network.run()
    if end == "lose":
        line.consumers[0].lose()
    else:
        line.receivers[0].detach()
    line.network.run()
    line.finish()
    assert [*line.got[0], *line.got[1]] == [f"0:{number}" for number in range(line.sent[0])]


def test_senders_go_ahead_again_some_time_after_the_router_has_queued_what_waits(events: Events) -> None:
    line = Line(2)
    other = line.network.client()
    fast(line).send()
    held = line.held
    assert held > 8
    link = other.sender("q")  # the router looks at the node
    assert line.held == 0
    link.detach()
    before = events[TransferReceived]
    fast(line)
    assert events[TransferReceived] <= before + 2 * held
    before = events[TransferReceived]
    line.send()
    assert line.held > 8
    fast(line)
    assert events[TransferReceived] == before
    line.finish()
    assert line.got[0] == [f"0:{number}" for number in range(line.sent[0])]


def test_nobody_goes_ahead_while_something_else_waits_until_the_queue_is_empty(events: Events) -> None:
    line = fast(Line(2))
    while line.links[0].credit == 0:
        line.step()
        line.network.run()
    line.producers[0].send(line.links[0], message(f"0:{line.sent[0]}:x", ttl=60_000))
    line.sent[0] += 1
    before = events[TransferReceived]
    line.step()
    assert events[TransferReceived] > before
    fast(line)
    before = events[TransferReceived]
    fast(line)
    assert events[TransferReceived] == before
    assert line.ahead > 8
    line.finish()
    assert line.got[0] == [f"0:{number}" for number in range(line.sent[0])]


@pytest.mark.parametrize("credit", [1, 2, 10])
@pytest.mark.parametrize("senders", [1, 3])
@pytest.mark.parametrize("routers", ["AB", "ABC"])
def test_over_lanes_no_router_takes_a_turn_for_a_round(routers: str, senders: int, credit: int) -> None:
    mesh = World(routers, list(pairwise(routers)))
    consumer = mesh[routers[-1]].client()
    receiver = consumer.receiver("q", credit=credit)
    mesh.advance(0.5)
    producers = [mesh["A"].client() for _ in range(senders)]
    links = [each.sender("q") for each in producers]
    steps = sent = arrived = 0

    def round_() -> None:
        nonlocal steps, sent, arrived
        for producer, link in zip(producers, links, strict=True):
            steps += link.credit > 0
            while link.credit > 0:
                producer.send(link, message())
                sent += 1
        mesh.run()
        for arrival in consumer.take():
            arrived += 1
            arrival.accept()
        receiver.flow(credit)
        mesh.run()
        mesh.now += STEP

    with relaying(alone=True) as events:
        for _ in range(80):
            round_()
        before, steps = events[TransferReceived], 0
        for _ in range(50):
            round_()
        assert events[TransferReceived] == before
    assert steps <= 50 * (senders if credit == 10 else max(1, senders * 0.6))
    for _ in range(100):
        for arrival in consumer.take():
            arrived += 1
            arrival.accept()
        receiver.flow(credit)
        mesh.run()
    assert arrived == sent
    mesh.leave()


@pytest.mark.parametrize("senders", [1, 3])
@pytest.mark.parametrize("where", ["A", "B", "AB"])
@pytest.mark.parametrize("seed", range(3))
def test_over_lanes_the_order_stays_whatever_touches_the_nodes(seed: int, where: str, senders: int) -> None:
    dice = random.Random(seed)
    mesh = World("AB", [("A", "B")])
    consumer = mesh["B"].client()
    receiver = consumer.receiver("q", credit=10)
    mesh.advance(0.5)
    producers = [mesh["A"].client() for _ in range(senders)]
    links = [each.sender("q") for each in producers]
    sent = [0] * senders
    got: list[str] = []
    for number in range(140):
        for which, (producer, link) in enumerate(zip(producers, links, strict=True)):
            while number < 120 and link.credit > 0:
                producer.send(link, message(f"{which}:{sent[which]}:x"))
                sent[which] += 1
        mesh.run()
        if dice.random() < 0.1:
            mesh[dice.choice(where)].client().sender("q").detach()
        elif dice.random() < 0.1:
            mesh.advance(dice.choice([0.002, 0.03]))
        for arrival in consumer.take():
            got.append(text(arrival.payload))
            arrival.accept()
        receiver.flow(10)
        mesh.run()
        mesh.now += STEP
    for which, count in enumerate(sent):
        assert [each for each in got if each.startswith(f"{which}:")] == [f"{which}:{each}" for each in range(count)]
    mesh.leave()


def test_what_waits_at_an_exit_leaves_before_what_its_ingress_has_queued() -> None:
    mesh = World("AB", [("A", "B")])
    consumer = mesh["B"].client()
    receiver = consumer.receiver("q", credit=10)
    mesh.advance(0.5)
    producer = mesh["A"].client()
    link = producer.sender("q")
    got: list[int] = []
    sent = 0
    kernel = mesh["A"].core.context.kernel
    for number in range(120):
        while link.credit > 0:
            producer.send(link, message(f"0:{sent}:x"))
            sent += 1
        mesh.run()
        if number == 90:
            held = [each for pool in kernel.held_back for each in pool.held or ()]
            assert {each.at_exit for each in held} == {False, True}
            ingress = held[0].link.record.node  # type: ignore[attr-defined]
            mesh["A"].core.context.touch(ingress)
            finish_batch(mesh["A"].core.context)
        for arrival in consumer.take():
            got.append(int(text(arrival.payload).removeprefix("0:")))
            arrival.accept()
        receiver.flow(10)
        mesh.run()
        mesh.now += STEP
    assert got == list(range(len(got)))
    assert len(got) > 1000
    mesh.leave()


@pytest.mark.parametrize("settled", [False, True])
def test_the_order_stays_if_several_come_in_one_batch_behind_a_frame_that_needs_a_decision(settled: bool) -> None:
    line = Line(2)
    other = line.consumers[0].receiver("odd", credit=10)
    odd = line.producers[0].sender("odd")
    fast(line)
    line.send(settled)
    line.receivers[0].flow(line.held)
    line.network.run()
    assert line.held == 0
    assert line.links[0].credit >= 4
    with patch.object(line.network, "run"):  # the frames of all of them come at once
        line.producers[0].send(odd, message(ttl=60_000))
        line.send(settled)
    line.network.run()
    assert line.held == 0  # what the kernel has held back amid the batch, the router has received
    (arrival,) = [each for each in line.consumers[0].arrivals if each.link is other]
    line.consumers[0].arrivals.remove(arrival)
    arrival.accept()
    line.finish()
    assert line.got[0] == [f"0:{number}" for number in range(line.sent[0])]


def history(seed: int, *, alone: bool) -> int:
    """Play a random history. Returns: the number of decided transfers."""
    dice = random.Random(seed)
    with relaying(alone=alone) as events:
        line = Line(dice.choice([1, 2, 5]), senders=dice.randint(1, 3), receivers=dice.randint(1, 2))
        for _ in range(100):
            line.step(settled=dice.random() < 0.2)
            kind = dice.choice(["none"] * 12 + ["attach", "look", "pause", "drain", "ttl"])
            if kind == "attach":
                line.network.client().sender("q").detach()
            elif kind == "look":
                snapshot(line.network.core)
            elif kind == "pause":
                line.network.advance(dice.choice([0.005, 0.05]))
            elif kind == "drain":
                line.receivers[0].flow(3, drain=True)
                line.network.run()
            elif kind == "ttl" and line.links[0].credit > 0:
                line.producers[0].send(line.links[0], message(f"0:{line.sent[0]}:x", ttl=60_000))
                line.sent[0] += 1
        line.finish()
    for number, sent in enumerate(line.sent):
        got = [each for one in line.got for each in one if each.startswith(f"{number}:")]
        assert len(got) == len(set(got)) == sent
        if len(line.got) == 1:
            assert got == [f"{number}:{each}" for each in range(sent)]
    return events[TransferReceived]


def test_random_histories_lose_nothing_and_keep_the_order_while_senders_go_ahead() -> None:
    fast_ones = decided = 0
    for seed in range(6):
        fast_ones += history(seed, alone=True)
        decided += history(seed, alone=False)
    assert fast_ones < decided / 2


def test_a_timer_that_has_lost_its_reason_leaves_what_is_held_back() -> None:
    line = fast(Line(2))
    line.send()
    held = line.held
    assert held > 8
    core_of = line.network.core
    node = core_of.context.nodes.find("", "q")
    assert node is not None
    core_of.context.set_timer(node, line.network.now)
    core_of.handle_timer(line.network.now)
    assert line.held == held
    line.finish()
