"""Messages that are sent again by the fast path (§3.4.4, §3.4.5)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router.amqp.codec.composite import decode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.events import DispositionReceived, TransferReceived
from amqpmesh.router.amqp.link import Receiver, Sender
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Modified, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import Header
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.memory.holders import Memory
from tests.router.delivery.test_fast_routes import Events, decided, events, send
from tests.support.worlds.network import Client, Network, Sent, message
from tests.support.worlds.side_by_side import relaying

__all__ = ["events"]

OUTCOMES: list[tuple[DeliveryState, int]] = [
    (Released(), 0),
    (Modified(), 0),
    (Modified(delivery_failed=True), 1),
]


class Scene:
    """A sender, and a receiver of an address that redelivers, after the router has decided about a message."""

    def __init__(self, credit: int = 100, *, rcv: ReceiverSettleMode = ReceiverSettleMode.FIRST, **config: Any) -> None:
        self.network = Network(AddressConfig(pattern="q", redeliver=True, **config))
        self.consumer, self.producer = (self.network.client(window=1000) for _ in range(2))
        self.receiver: Receiver = self.consumer.receiver("q", credit=credit)
        self.link: Sender = self.producer.sender("q", rcv=rcv)
        self.send(1)
        self.accept(self.consumer)

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

    def accept(self, client: Client) -> int:
        """Accept all that has arrived."""
        return self.say(Accepted(), client)

    @property
    def buffered(self) -> int:
        """The octets that the router keeps of the address."""
        node = self.network.core.context.nodes.find("", "q")
        return 0 if node is None else node.account.used


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize(("outcome", "count"), OUTCOMES)
def test_messages_are_sent_again_without_a_decision(
    events: Events, outcome: DeliveryState, count: int, settled: bool
) -> None:
    scene = Scene()
    sent: list[Sent] = []
    assert decided(events, lambda: sent.extend(scene.send(6))) == 0
    assert decided(events, lambda: scene.say(outcome, settled=settled), DispositionReceived) == 0
    again = scene.consumer.take(6)
    heads = [decode_composite(Header, bytes(each.payload)) for each in again]
    assert [(header.delivery_count, header.first_acquirer) for header, _ in heads] == [(count, False)] * 6
    bodies = [bytes(each.payload)[at:] for each, (_, at) in zip(again, heads, strict=True)]
    assert bodies == [message(str(number), header=False) for number in range(6)]
    assert not any(each.said for each in sent)
    for each in again:
        each.accept()
    scene.network.run()
    assert [each.outcome for each in sent] == [Accepted()] * 6
    assert scene.buffered == 0
    scene.network.leave()


@pytest.mark.parametrize("attempts", [1, 2, 4])
def test_the_last_attempt_ends_it_as_the_receiver_says(attempts: int) -> None:
    scene = Scene(attempts=attempts)
    sent = scene.send(3)
    for number in range(attempts):
        assert not any(each.said for each in sent)
        assert scene.say(Modified(delivery_failed=True)) == 3, f"attempt {number}"
    assert [each.outcome for each in sent] == [Modified(delivery_failed=True)] * 3
    assert scene.buffered == 0
    scene.network.leave()


@pytest.mark.parametrize(
    "outcome", [Rejected(), Modified(undeliverable_here=True), Modified(message_annotations={Symbol("x-opt-k"): 1})]
)
def test_other_outcomes_are_decided(outcome: DeliveryState) -> None:
    scene = Scene()
    sent = scene.send(1)
    scene.say(Modified(delivery_failed=True))
    scene.say(outcome)
    assert scene.accept(scene.consumer) == (1 if outcome == Modified(message_annotations={Symbol("x-opt-k"): 1}) else 0)
    assert len(sent[0].said) == 1
    scene.network.leave()


def test_after_a_failed_attempt_the_sender_never_learns_that_it_was_released() -> None:
    scene = Scene(attempts=2)
    sent = scene.send(1)
    scene.say(Modified(delivery_failed=True))
    scene.say(Released())
    assert sent[0].outcome == Modified(delivery_failed=True)
    scene.network.leave()


def test_another_receiver_gets_what_the_first_one_leaves() -> None:
    scene = Scene()
    sent = scene.send(80)
    other = scene.network.client(window=1000)
    other.receiver("q", credit=500)
    scene.network.run()
    scene.receiver.detach()
    scene.network.advance(0.1)
    came = len(scene.consumer.take())
    assert scene.accept(other) == 80, f"{came} of them a second time"
    assert [each.outcome for each in sent] == [Accepted()] * 80
    scene.network.leave()


def test_what_finds_no_credit_waits_for_it_and_is_not_overtaken() -> None:
    scene = Scene(credit=4)
    scene.receiver.flow(4)
    scene.network.run()
    sent = scene.send(4)
    assert scene.say(Released()) == 4
    assert scene.consumer.take(0) == []
    late = scene.send(1)
    scene.receiver.flow(10)
    scene.network.run()
    arrived = scene.consumer.take(5)
    assert [bytes(each.payload).endswith(message("0", header=False)) for each in arrived] == [True, *[False] * 3, True]
    for each in arrived:
        each.accept()
    scene.network.run()
    assert [each.outcome for each in (*sent, *late)] == [Accepted()] * 5
    scene.network.leave()


def test_the_message_of_a_sender_that_is_gone_is_not_sent_again() -> None:
    scene = Scene()
    scene.send(3)
    scene.producer.lose()
    scene.network.advance(0.1)
    assert scene.say(Released()) == 3
    assert scene.consumer.take(0) == []
    assert scene.buffered == 0
    scene.network.leave()


def test_a_sender_that_settles_first_ends_it() -> None:
    scene = Scene()
    for each in scene.send(3):
        each.dispose(None, settled=True)
    scene.network.run()
    assert scene.buffered == 0
    scene.say(Released())
    assert scene.consumer.take(0) == []
    scene.network.leave()


def test_kept_messages_count_on_the_account_of_their_address() -> None:
    scene = Scene(redeliver_max=100)
    scene.send(5)
    assert scene.buffered == 5 * len(message("0"))
    large = send(scene.producer, scene.link, message("x" * 200))
    assert scene.buffered == 5 * len(message("0")), "it is not kept"
    scene.say(Released())
    assert large[0].outcome == Released()
    assert scene.accept(scene.consumer) == 5
    assert scene.buffered == 0
    scene.network.leave()


def test_once_the_memory_is_used_up_no_more_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.send(3)
    before = scene.buffered
    with monkeypatch.context() as full:
        full.setattr(Memory, "is_over", lambda *_: True)
        sent = scene.send(3)
        assert scene.buffered == before
    scene.say(Released())
    assert [each.outcome for each in sent] == [Released()] * 3
    assert scene.accept(scene.consumer) == 3
    scene.network.leave()


Saying = tuple[int, DeliveryState, bool]
SAYINGS = st.tuples(st.integers(1, 4), st.sampled_from([Accepted(), *(each for each, _ in OUTCOMES)]), st.booleans())
STEPS = st.lists(st.tuples(st.integers(0, 5), st.lists(SAYINGS, max_size=4)), max_size=8)


def _played(steps: list[tuple[int, list[Saying]]], *, alone: bool) -> tuple[list[bytes], list[object]]:
    """Send messages and say outcomes in turns, then accept what is left.

    Args: alone: on the fast path. Returns: the messages in the order of their arrival, and what the sender was told.
    """
    with relaying(alone=alone) as counts:
        scene = Scene(credit=500, attempts=3)
        sent, arrived, left = [], [], []
        before = counts[TransferReceived]
        for count, sayings in steps:
            sent += scene.send(count)
            for size, outcome, settled in sayings:
                left += scene.consumer.take()
                now, left = left[:size], left[size:]
                arrived += [bytes(each.payload) for each in now]
                for each in now:
                    each.dispose(outcome, settled=settled)
                scene.network.run()
        assert counts[TransferReceived] - before == (0 if alone else len(sent))
        while left := left + scene.consumer.take():
            arrived += [bytes(each.payload) for each in left]
            for each in left:
                each.accept()
            left = []
            scene.network.run()
        scene.network.leave()
    return arrived, [each.said for each in sent]


@settings(max_examples=50)
@given(STEPS)
def test_messages_are_sent_again_as_if_each_was_decided(steps: list[tuple[int, list[Saying]]]) -> None:
    assert _played(steps, alone=True) == _played(steps, alone=False)
