"""Multicasts that the kernel relays without a decision: outcomes, endings, and receivers that are not ready."""

from __future__ import annotations

from itertools import product

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.events import TransferReceived
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Received, Rejected, Released
from amqpmesh.router.config.file import AddressConfig, Overflow
from amqpmesh.router.kernel import FastLeg, FastMulticast
from amqpmesh.router.management.snapshot import snapshot
from tests.support.worlds.network import OUTCOMES, Arrival, Client, Network, Sent, message
from tests.support.worlds.side_by_side import relaying

FIRST, SECOND = ReceiverSettleMode.FIRST, ReceiverSettleMode.SECOND

#: The outcomes by strength: the sender learns the strongest one.
STRENGTH = (Released(), OUTCOMES["modified"], Accepted(), OUTCOMES["rejected"])


class Scene:
    """A sender to a multicast, and its receivers, after a first delivery that the router has decided."""

    def __init__(
        self, receivers: int = 2, *, mode: ReceiverSettleMode = FIRST, credit: int = 20, one: bool = False
    ) -> None:
        """Args: one: all receivers are on one connection."""
        self.network = Network(
            AddressConfig(
                pattern="news", distribution=Distribution.MULTICAST, overflow=Overflow.DROP, overflow_time=0.5
            )
        )
        self.producer = self.network.client()
        self.consumers: list[Client] = [] if not one else [self.network.client()] * receivers
        while len(self.consumers) < receivers:
            self.consumers.append(self.network.client())
        self.links = [each.receiver("news", name=f"in-{at}", credit=credit) for at, each in enumerate(self.consumers)]
        self.link = self.producer.sender("news", rcv=mode)
        self.producer.send(self.link, settled=True)
        self.take()

    def send(self, *, settled: bool = False) -> Sent:
        """Send a delivery that the kernel relays alone."""
        with relaying(alone=True) as events:
            sent = self.producer.send(self.link, message("more"), settled=settled)
        assert not events[TransferReceived], "it was decided"
        return sent

    def take(self) -> list[Arrival]:
        """Return what has arrived, one delivery at each receiver."""
        found = [arrival for consumer in dict.fromkeys(self.consumers) for arrival in consumer.take()]
        return sorted(found, key=lambda arrival: self.links.index(arrival.link))

    def entries(self) -> list[object]:
        """Return the entries of all ledgers."""
        return [
            entry
            for record in self.network.core.context.connections
            for session in record.engine.channels.sessions
            for ledger in (session.flow_state.incoming, session.flow_state.outgoing)
            for entry in ledger.deliveries.values()
        ]

    def is_fast(self) -> bool:
        """Tell whether a delivery is unsettled, and the kernel relays it alone."""
        entries = self.entries()
        return bool(entries) and all(isinstance(entry, FastMulticast | FastLeg) for entry in entries)

    def leave(self) -> None:
        """Check that nothing is left."""
        assert self.network.relays == 0
        self.network.leave()
        assert snapshot(self.network.core).is_empty


@pytest.mark.parametrize("one", [False, True], ids=["apart", "together"])
@pytest.mark.parametrize("settles", list(product([True, False], repeat=2)))
@pytest.mark.parametrize("mode", [FIRST, SECOND])
@pytest.mark.parametrize(
    "states", list(product(STRENGTH, repeat=2)), ids=lambda states: "-".join(type(each).__name__ for each in states)
)
def test_the_sender_learns_the_strongest_outcome_and_each_receiver_is_settled_with_its_own(
    states: tuple[object, object], mode: ReceiverSettleMode, settles: tuple[bool, bool], one: bool
) -> None:
    scene = Scene(mode=mode, one=one)
    sent = scene.send()
    arrivals = scene.take()
    assert scene.is_fast()
    assert len(arrivals) == 2
    for arrival, state, settled in zip(arrivals, states, settles, strict=True):
        assert sent.said == []
        arrival.dispose(state, settled=settled)  # type: ignore[arg-type]  # a delivery state
        scene.network.run()
    strongest = max(states, key=STRENGTH.index)  # type: ignore[arg-type]
    assert sent.said == [(strongest, mode is FIRST)]
    if mode is SECOND:
        assert scene.is_fast()
        assert all(arrival.said == [] for arrival in arrivals), "the receivers wait for the sender"
        sent.dispose(Accepted(), settled=True)
        scene.network.run()
    for arrival, state, settled in zip(arrivals, states, settles, strict=True):
        assert arrival.said == ([] if settled else [(state, True)])
    scene.leave()


def test_presettled_deliveries_leave_nothing_behind() -> None:
    scene = Scene(3)
    for _ in range(5):
        scene.send(settled=True)
    assert len(scene.take()) == 15
    assert scene.entries() == []
    scene.leave()


@pytest.mark.parametrize("mode", [FIRST, SECOND])
def test_the_outcome_of_a_lost_receiver_counts_as_its_default(mode: ReceiverSettleMode) -> None:
    scene = Scene(3, mode=mode)
    sent = scene.send()
    arrivals = scene.take()
    scene.consumers[0].lose()
    scene.network.advance(0.1)
    assert scene.is_fast(), "nothing else was touched"
    assert sent.said == []
    for arrival in arrivals[1:]:
        arrival.dispose(Released(), settled=False)
    scene.network.run()
    assert sent.said == [(Modified(delivery_failed=True), mode is FIRST)]
    if mode is SECOND:
        sent.dispose(None, settled=True)
        scene.network.run()
    assert [arrival.said for arrival in arrivals[1:]] == [[(Released(), True)]] * 2
    scene.leave()


def test_receivers_of_a_lost_sender_are_settled_as_they_state_their_outcomes() -> None:
    scene = Scene(3)
    scene.send()
    arrivals = scene.take()
    arrivals[0].dispose(Accepted(), settled=False)
    scene.network.run()
    scene.producer.lose()
    scene.network.advance(0.1)
    assert arrivals[0].said == [(None, True)]
    assert scene.is_fast()
    arrivals[1].dispose(Released(), settled=False)
    arrivals[2].accept()
    scene.network.run()
    assert arrivals[1].said == [(None, True)]
    scene.leave()


@pytest.mark.parametrize("stated", [0, 1, 2])
def test_a_sender_that_settles_first_is_decided_about_with_the_outcomes_so_far(stated: int) -> None:
    scene = Scene(3)
    sent = scene.send()
    arrivals = scene.take()
    for arrival in arrivals[:stated]:
        arrival.dispose(Accepted(), settled=False)
    scene.network.run()
    sent.dispose(None, settled=True)
    scene.network.run()
    assert [arrival.said for arrival in arrivals] == [[(Accepted(), True)]] * stated + [[(None, True)]] * (3 - stated)
    scene.leave()


def test_a_state_that_is_no_outcome_has_the_router_decide_and_loses_no_outcome_before_it() -> None:
    scene = Scene(3, one=True)
    sent = scene.send()
    arrivals = scene.take()
    arrivals[0].dispose(OUTCOMES["rejected"], settled=True)
    arrivals[1].dispose(Accepted(), settled=False)
    scene.network.run()
    arrivals[2].dispose(Received(section_number=1, section_offset=0), settled=False)
    scene.network.run()
    assert not scene.is_fast()
    arrivals[2].accept()
    scene.network.run()
    assert sent.said == [(OUTCOMES["rejected"], True)]
    assert isinstance(sent.outcome, Rejected)
    assert arrivals[1].said == [(Accepted(), True)]
    scene.leave()


@pytest.mark.parametrize("one", [False, True])
def test_while_one_receiver_has_no_credit_the_delivery_waits_and_goes_to_all_in_order(one: bool) -> None:
    scene = Scene(2, credit=3, one=one)
    for _ in range(2):
        scene.send(settled=True)
    scene.links[0].flow(5)
    scene.network.run()
    with relaying(alone=True) as events:
        scene.producer.send(scene.link, message("waits"), settled=True)
    assert events[TransferReceived] == 0
    assert scene.network.core.context.kernel.held_count == 1
    assert len(scene.take()) == 4
    scene.links[1].flow(5)
    scene.network.run()
    assert [bytes(arrival.payload) for arrival in scene.take()] == [message("waits")] * 2
    scene.send(settled=True)
    assert len(scene.take()) == 2
    scene.leave()


def test_a_receiver_that_is_left_out_misses_deliveries_until_it_gives_credit_again() -> None:
    scene = Scene(3, credit=2)
    for each in scene.links[1:]:
        each.flow(20)
    scene.network.run()
    scene.producer.send(scene.link, settled=True)
    scene.network.advance(1.0)  # the first receiver has no credit any more
    scene.take()
    scene.producer.send(scene.link, settled=True)
    scene.take()
    before = [each.missed for each in snapshot(scene.network.core).links if each.address == "news"]
    for _ in range(3):
        scene.send(settled=True)
    assert [scene.links.index(each.link) for each in scene.take()] == [1] * 3 + [2] * 3
    after = [each.missed for each in snapshot(scene.network.core).links if each.address == "news"]
    assert sum(after) - sum(before) == 3
    scene.links[0].flow(10)
    scene.network.run()
    scene.producer.send(scene.link, settled=True)
    scene.send(settled=True)
    assert [scene.links.index(each.link) for each in scene.take()] == [0, 0, 1, 1, 2, 2]
    scene.leave()
