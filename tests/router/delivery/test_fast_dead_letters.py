"""Copies of rejected messages that the fast path sends to the dead-letter address (§3.4.3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec.composite import decode_composite
from amqpmesh.router.amqp.events import DispositionReceived, TransferReceived
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Modified, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import Header
from amqpmesh.router.config.file import AddressConfig
from tests.router.delivery.test_fast_routes import Events, decided, events, send
from tests.support.worlds.network import Client, Network, Sent, message
from tests.support.worlds.side_by_side import relaying

__all__ = ["events"]

INVALID = Rejected(error=Error(condition=AmqpCondition.DECODE_ERROR, description="no such field"))


class Scene:
    """A sender, a receiver of an address with dead letters, and a receiver of those, after the first decisions."""

    def __init__(self, credit: int = 100, **config: Any) -> None:
        self.network = Network(AddressConfig(pattern="q", redeliver=True, dead_letter="dead"), **config)
        self.consumer, self.undertaker, self.producer = (self.network.client(window=1000) for _ in range(3))
        self.receiver = self.consumer.receiver("q", credit=100)
        self.dead = self.undertaker.receiver("dead", credit=credit)
        self.link = self.producer.sender("q")
        self.send(1)
        self.say(Accepted())

    def send(self, count: int) -> list[Sent]:
        """Send messages."""
        return send(self.producer, self.link, *[message(str(number)) for number in range(count)])

    def say(self, outcome: DeliveryState, client: Client | None = None, *, settled: bool = True) -> int:
        """Let a receiver say an outcome of all that has arrived. Returns: how much that was."""
        arrived = (client or self.consumer).take()
        for each in arrived:
            each.dispose(outcome, settled=settled)
        self.network.run()
        return len(arrived)

    @property
    def left(self) -> tuple[int, int, int]:
        """The octets that are kept, the deliveries in flight, and those that wait for the undertaker."""
        context = self.network.core.context
        node, dead = (context.nodes.find("", name) for name in ("q", "dead"))
        assert node is not None
        return node.account.used, context.in_flight, 0 if dead is None else dead.waiting.size


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("outcome", [Rejected(), INVALID])
def test_rejected_messages_are_copied_without_a_decision(events: Events, outcome: Rejected, settled: bool) -> None:
    scene = Scene()
    sent = scene.send(6)
    assert decided(events, lambda: scene.say(outcome, settled=settled), DispositionReceived) == 0
    assert [each.outcome for each in sent] == [outcome] * 6
    copies = scene.undertaker.take(6)
    heads = [decode_composite(Header, bytes(each.payload)) for each in copies]
    assert [(header.delivery_count, header.first_acquirer) for header, _ in heads] == [(1, False)] * 6
    bodies = [bytes(each.payload)[at:] for each, (_, at) in zip(copies, heads, strict=True)]
    assert bodies == [message(str(number), header=False) for number in range(6)]
    assert scene.left == (0, 6, 0)
    for each, said in zip(copies, [Accepted(), Released(), Rejected(), Modified(), None, Accepted()], strict=True):
        each.dispose(said, settled=True)
    scene.network.run()
    assert scene.left == (0, 0, 0), "a dead letter dies once"
    scene.network.leave()


def test_a_copy_outlives_the_sender_and_is_settled_by_the_undertaker() -> None:
    scene = Scene()
    scene.send(3)
    scene.say(Rejected())
    scene.link.detach()
    scene.network.run()
    copies = scene.undertaker.take(3)
    for each in copies:
        each.dispose(Accepted(), settled=False)
    scene.network.run()
    assert scene.left[1:] == (0, 0)
    scene.network.leave()


def test_copies_end_with_their_receiver() -> None:
    scene = Scene()
    sent = scene.send(3)
    scene.say(Rejected())
    assert len(scene.undertaker.take(3)) == 3
    scene.dead.detach()
    scene.network.run()
    assert scene.left == (0, 0, 0)
    assert [each.outcome for each in sent] == [Rejected()] * 3
    scene.network.leave()


def test_a_copy_that_finds_no_credit_waits_and_is_not_overtaken() -> None:
    scene = Scene(credit=2)
    scene.send(5)
    assert scene.say(Rejected()) == 5
    assert scene.left == (0, 2 + 3, 3)
    scene.dead.flow(10)
    scene.network.run()
    bodies = [bytes(each.payload) for each in scene.undertaker.take()]
    assert [body[-1:] for body in bodies] == [str(number).encode() for number in range(5)]
    scene.network.leave()


def test_an_undertaker_that_comes_later_gets_what_is_rejected_from_then_on() -> None:
    scene = Scene()
    scene.dead.detach()
    scene.network.run()
    scene.send(2)
    scene.say(Rejected())
    assert scene.network.core.context.undelivered == 2
    other = scene.network.client()
    other.receiver("dead")
    scene.send(2)
    scene.say(Rejected())
    assert len(other.take()) == 2
    assert scene.network.core.context.undelivered == 2
    scene.network.leave()


def test_a_change_of_the_pattern_holds_for_the_next_rejected_message() -> None:
    scene = Scene()
    scene.send(1)
    scene.say(Rejected())
    assert len(scene.undertaker.take()) == 1
    context = scene.network.core.context
    node = context.nodes.find("", "q")
    assert node is not None
    node.config = AddressConfig(pattern="q", redeliver=True)
    scene.network.core.change(lambda: context.touch(node), scene.network.now)
    scene.send(2)
    scene.say(Rejected())
    scene.network.run()
    assert not scene.undertaker.take()
    scene.network.leave()


Saying = tuple[int, DeliveryState, bool]
OUTCOMES = st.sampled_from([Accepted(), Rejected(), INVALID, Released(), Modified(delivery_failed=True)])
STEPS = st.lists(
    st.tuples(st.integers(0, 5), st.lists(st.tuples(st.integers(1, 4), OUTCOMES, st.booleans()), max_size=4)),
    max_size=8,
)


def _played(steps: list[tuple[int, list[Saying]]], *, alone: bool) -> tuple[list[bytes], list[object]]:
    """Send messages and say outcomes in turns. Args: alone: on the fast path.

    Returns: the dead letters in their order, and what the sender was told.
    """
    with relaying(alone=alone) as counts:
        scene = Scene(credit=500)
        sent, left = [], []
        before = counts[TransferReceived]
        for count, sayings in steps:
            sent += scene.send(count)
            for size, outcome, settled in sayings:
                left += scene.consumer.take()
                now, left = left[:size], left[size:]
                for each in now:
                    each.dispose(outcome, settled=settled)
                scene.network.run()
        assert counts[TransferReceived] - before == (0 if alone else len(sent))
        copies = scene.undertaker.take()
        for each in copies:
            each.accept()
        scene.network.run()
        scene.network.leave()
    return [bytes(each.payload) for each in copies], [each.said for each in sent]


@settings(max_examples=30)
@given(STEPS)
def test_dead_letters_are_sent_as_if_each_was_decided(steps: list[tuple[int, list[Saying]]]) -> None:
    assert _played(steps, alone=True) == _played(steps, alone=False)
