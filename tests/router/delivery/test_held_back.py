"""Deliveries that are held back in the kernel: what interrupts them, and what bounds them."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from amqpmesh.router import core
from amqpmesh.router.amqp.events import TransferReceived
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.kernel import ACCEPTED_STATE, RELEASED_STATE
from amqpmesh.router.management.snapshot import snapshot
from tests.router.delivery.test_fast_routes_alike import USUAL, Dice, played
from tests.router.delivery.test_solo_alike import SoloBench
from tests.support.worlds.network import Network, Sent, message
from tests.support.worlds.side_by_side import relaying

WORLD = {**Dice(0, 0.0).world(at_once=False), "first_id": 0, "consumers": [(2, 2), (3, 3)], "credit": 1, "snd": 2}

Step = tuple[Any, ...]


def sent(handle: int, **fields: Any) -> Step:
    return "send", 0, [{**USUAL, "handle": handle, **fields}], []


def more(handle: int) -> Step:
    return "credit", handle, handle, 1, 1000, False, 0


def accepted(number: int) -> Step:
    return "say", number, [(None, 0, ACCEPTED_STATE, True, "usual", "compact")], []


#: Each receiver has got a delivery, then one of each sender is held back; both leave, and so on.
STEPS: tuple[Step, ...] = (
    sent(2), sent(3), more(2), more(3), sent(2), sent(3),
    sent(2), sent(3, settled=1), accepted(2), more(2), sent(2), accepted(3), more(3), sent(3), more(2), more(3),
)  # fmt: skip

INTRUSIONS: dict[str, list[Step]] = {
    "another sender": [("attach", 1, 2), ("send", 1, [{**USUAL, "handle": 2}], [])],
    "another receiver": [("attach", 3, 2)],
    "the sender detaches": [("detach", 0, 2, True)],
    "the receiver detaches": [("detach", 2, 2, True)],
    "the receiver detaches and comes again": [("detach", 2, 2, False), ("attach", 2, 2), more(2)],
    "the session of the sender ends": [("end", 0)],
    "the session of the receiver ends": [("end", 2)],
    "the sender is lost": [("lose", 0)],
    "the receiver is lost": [("lose", 2)],
    "the receiver closes": [("close", 2)],
    "the receiver drains": [("credit", 2, 2, 3, 1000, True, 0)],
    "the receiver's window closes": [("credit", 2, 2, 1, 0, False, 0)],
    "the receiver stops reading": [("stop", 2), more(2), ("stop", 2)],
    "a ttl": [sent(2, payload=message(ttl=60_000))],
    "a priority": [sent(2, payload=message("urgent", priority=9))],
    "several frames": [sent(2, payload=message("x" * 300), frames=3)],
    "an aborted one": [sent(2, end="aborted")],
    "the sender settles": [("say", 0, [(3, 20, ACCEPTED_STATE, True, "usual", "compact")], [])],
    "the sender states": [("say", 0, [(3, 20, RELEASED_STATE, False, "usual", "compact")], [])],
    "time": [("wait", 0.3)],
    "the statistics": [("look",)],
}


class HeldBench(SoloBench):
    """A bench that counts what is held back, and can look at the statistics in the middle."""

    held = 0

    def note(self, name: str) -> None:
        """Note the frames of a step, and what is held back after it."""
        kernel = self.networks[0].core.context.kernel
        for pool in kernel.held_back:
            assert pool.is_open
            assert pool.held
            HeldBench.held += len(pool.held)
        super().note(name)

    def look(self) -> None:
        """Look at the statistics."""
        self.log.append(snapshot(self.networks[0].core).router.buffered)


@pytest.mark.parametrize("what", INTRUSIONS)
def test_at_whatever_frame_something_happens_to_one_held_back_it_fares_like_one_that_waits(what: str) -> None:
    HeldBench.held = events = others = 0
    for at in range(7, 15):
        steps = [*STEPS[:at], *INTRUSIONS[what], *STEPS[at:]]
        relayed, some = played(WORLD, steps, mesh=False, alone=True, bench=HeldBench)
        decided, all_of_them = played(WORLD, steps, mesh=False, alone=False, bench=HeldBench)
        assert relayed == decided, (what, at)
        events, others = events + some, others + all_of_them
    assert events < others
    assert HeldBench.held > 20


@pytest.mark.parametrize("is_used_up", [False, True])
def test_nothing_is_held_back_beyond_the_memory(is_used_up: bool) -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    budget = network.core.context.budget
    budget.limit = 1000
    budget.add(900 if is_used_up else 0)
    receiver, link = consumer.receiver("q", credit=1), producer.sender("q")
    producer.send(link, message())
    receiver.flow(1)
    network.run()
    for _ in range(2):
        producer.send(link, message())
    assert bool(network.core.context.kernel.held_back) is not is_used_up
    receiver.flow(2)
    network.run()
    assert len(consumer.take(3)) == 3


@pytest.mark.parametrize("work", [1, 2, 3, 1000])
def test_deliveries_of_a_batch_are_held_back_and_received_in_the_turns_that_it_takes(work: int) -> None:
    with relaying(alone=True) as events, patch.object(core, "WORK_LIMIT", work):
        network = Network()
        client = network.client()  # it has all senders and all receivers on one session
        receivers = [client.receiver(f"q{number}", credit=1) for number in range(4)]
        links = [client.sender(f"q{number}") for number in range(4)]
        client.receiver("odd", credit=1)
        odd = client.sender("odd")
        for _ in range(2):
            for link, receiver in zip(links, receivers, strict=True):
                client.send(link, message())
                receiver.flow(1)
            network.run()
        for link in links:
            client.send(link, message())
        before = events[TransferReceived]
        # In one batch: the first frame and the last one need a decision.
        for link, body in ((odd, message(ttl=60_000)), *((link, message()) for link in links)):
            delivery = link.delivery(b"tag")
            client.sent[delivery] = Sent(link, delivery)
            link.transfer(delivery, body)
        client.sender("another")
        assert events[TransferReceived] == before + 1  # the first frame alone
        assert network.core.context.kernel.held_count == 0
        for receiver in receivers:
            receiver.flow(1)
        network.run()
        for arrival in client.take(17):
            arrival.accept()
        network.run()
        assert network.relays == 0
        assert [each.outcome for each in client.sent.values()] == [Accepted()] * 17
        network.leave()
