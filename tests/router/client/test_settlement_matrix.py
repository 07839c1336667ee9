"""All ways to send, receive and decide, over in-process links and over streams (§2.6.12, §3.4)."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.standard.definitions import Error, ReceiverSettleMode, Role, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Rejected, Released
from amqpmesh.router.amqp.standard.performatives import Disposition
from amqpmesh.router.message.content import Message
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import joined
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.client.delivery import Delivery
    from amqpmesh.router.client.factory import LinkFactory
    from amqpmesh.router.message.outcomes import Outcome
    from amqpmesh.router.statistics.router_statistics import Statistics

FIRST, SECOND = ReceiverSettleMode.FIRST, ReceiverSettleMode.SECOND
INFO = {"x-opt-line": 7, "x-opt-words": ["no", "such"]}
ANNOTATIONS = {"x-opt-tries": 3, "x-opt-why": "later"}

#: The decision of a receiver, and the outcome that the sender is to get.
DECISIONS: dict[str, tuple[Callable[[Delivery], bool], Outcome]] = {
    "accepted": (lambda delivery: delivery.accept(), Accepted()),
    "rejected": (
        lambda delivery: delivery.reject("amqp:not-allowed", "spam", INFO),
        Rejected(
            error=Error(
                condition=Symbol("amqp:not-allowed"),
                description="spam",
                info={Symbol(key): value for key, value in INFO.items()},
            )
        ),
    ),
    "rejected-without-reason": (lambda delivery: delivery.reject(), Rejected()),
    "released": (lambda delivery: delivery.release(), Released()),
    "modified": (
        lambda delivery: delivery.modify(
            delivery_failed=True, undeliverable_here=True, message_annotations=ANNOTATIONS
        ),
        Modified(
            delivery_failed=True,
            undeliverable_here=True,
            message_annotations={Symbol(key): value for key, value in ANNOTATIONS.items()},
        ),
    ),
}
WAYS = [(sender, receiver) for sender in ("in-process", "stream") for receiver in ("in-process", "stream")]


class Way:
    """A router, and the places of its sender and its receiver."""

    def __init__(self, nursery: trio.Nursery, ends: tuple[str, str]) -> None:
        self._nursery = nursery
        self._ends = ends
        self._stack = AsyncExitStack()
        self.router = Router()

    async def __aenter__(self) -> tuple[LinkFactory, LinkFactory]:
        await self._stack.enter_async_context(self.router)
        sender, receiver = [await self._factory(end) for end in self._ends]
        return sender, receiver

    async def _factory(self, end: str) -> LinkFactory:
        if end == "in-process":
            return self.router
        return await self._stack.enter_async_context(joined(self._nursery, self.router))

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()
        assert self.router.statistics().is_empty


def outcomes(statistics: Statistics) -> dict[str, int]:
    """Return the outcomes that the router has counted at the address, without zeros."""
    (address,) = (each for each in statistics.addresses if each.name == "q")
    names = ("presettled", "accepted", "rejected", "released", "modified")
    counted = {name: getattr(address, name) for name in names}
    return {name: number for name, number in counted.items() if number}


@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize("rcv_receiver", [FIRST, SECOND], ids=["receiver-first", "receiver-second"])
@pytest.mark.parametrize("rcv_sender", [FIRST, SECOND], ids=["sender-first", "sender-second"])
@pytest.mark.parametrize("snd", [SenderSettleMode.UNSETTLED, SenderSettleMode.MIXED], ids=["unsettled", "mixed"])
@pytest.mark.parametrize("ends", WAYS, ids="-to-".join)
async def test_the_outcome_arrives_as_it_was_given_and_both_ends_settle(
    ends: tuple[str, str],
    snd: SenderSettleMode,
    rcv_sender: ReceiverSettleMode,
    rcv_receiver: ReceiverSettleMode,
    decision: str,
    nursery: trio.Nursery,
    autojump_clock: MockClock,
) -> None:
    decide, outcome = DECISIONS[decision]
    way = Way(nursery, ends)
    async with (
        way as (senders, receivers),
        receivers.receiver("q", rcv_settle_mode=rcv_receiver) as receiver,
        senders.sender("q", snd_settle_mode=snd, rcv_settle_mode=rcv_sender) as sender,
    ):
        message = Message("body", message_id="m", message_annotations={"x-opt-a": 1})
        sent = await sender.transfer(message)
        delivery = await receiver.receive()
        assert (delivery.message.body, delivery.message.message_id) == ("body", "m")
        assert not delivery.is_settled
        assert not sent.is_decided
        assert decide(delivery) is True
        # The receiver settles first, with its decision; or the sender does, once it knows the decision.
        assert delivery._incoming.is_over is (rcv_receiver is FIRST)
        assert await sent.outcome() == outcome
        with trio.fail_after(1):
            assert await delivery.settled() is True
        with pytest.raises(CommandError, match="already"):
            delivery.accept()
        await wait_all_tasks_blocked()
        assert (sender.unsettled, receiver.undecided) == (0, 0)
        statistics = way.router.statistics()
        assert not any(link.unsettled for link in statistics.links)
        assert outcomes(statistics) == {decision.partition("-")[0]: 1}


@pytest.mark.parametrize("rcv_receiver", [FIRST, SECOND], ids=["receiver-first", "receiver-second"])
@pytest.mark.parametrize("rcv_sender", [FIRST, SECOND], ids=["sender-first", "sender-second"])
@pytest.mark.parametrize("snd", [SenderSettleMode.SETTLED, SenderSettleMode.MIXED], ids=["settled", "mixed"])
@pytest.mark.parametrize("ends", WAYS, ids="-to-".join)
async def test_what_was_sent_settled_stays_so_whatever_is_said_of_it(
    ends: tuple[str, str],
    snd: SenderSettleMode,
    rcv_sender: ReceiverSettleMode,
    rcv_receiver: ReceiverSettleMode,
    nursery: trio.Nursery,
    autojump_clock: MockClock,
) -> None:
    way = Way(nursery, ends)
    async with (
        way as (senders, receivers),
        receivers.receiver("q", rcv_settle_mode=rcv_receiver, credit=1) as receiver,
        senders.sender("q", snd_settle_mode=snd, rcv_settle_mode=rcv_sender) as sender,
    ):
        for decide, _ in DECISIONS.values():
            sent = await sender.transfer("body", settled=snd is SenderSettleMode.MIXED)
            with pytest.raises(CommandError, match="settled"):
                await sent.outcome()
            delivery = await receiver.receive()
            assert delivery.is_settled
            assert await delivery.settled() is True
            assert decide(delivery) is False
        # Settled deliveries need no decision: a credit of 1 is enough for any number.
        for number in range(3):
            await sender.send(number, settled=snd is SenderSettleMode.MIXED)
            assert (await receiver.receive()).message.body == number
        assert outcomes(way.router.statistics()) == {"presettled": len(DECISIONS) + 3}


@pytest.mark.parametrize("ends", WAYS, ids="-to-".join)
@pytest.mark.parametrize("rcv", [FIRST, SECOND])
async def test_deliveries_may_be_decided_in_any_order(
    rcv: ReceiverSettleMode, ends: tuple[str, str], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    way = Way(nursery, ends)
    async with (
        way as (senders, receivers),
        receivers.receiver("q", rcv_settle_mode=rcv) as receiver,
        senders.sender("q", rcv_settle_mode=rcv) as sender,
    ):
        sent = [await sender.transfer(number) for number in range(10)]
        deliveries = [await receiver.receive() for _ in sent]
        given = [list(DECISIONS.values())[number % len(DECISIONS)] for number in range(10)]
        for number in (7, 0, 9, 2, 1, 8, 3, 6, 5, 4):
            assert given[number][0](deliveries[number])
        assert [await each.outcome() for each in sent] == [outcome for _, outcome in given]
        assert all([await delivery.settled() for delivery in deliveries])


# ------------------------------------------------------------------------------------------------- what is on the wire


async def test_with_mode_first_one_disposition_says_it_all(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    peer = Counterpart(nursery)
    async with peer.connect() as connection, connection.receiver("q") as receiver:
        await peer.links[0].send(Message(1).encode())
        (await receiver.receive()).accept()
        (told,) = await peer.rest()
        assert told == Disposition(role=Role.RECEIVER, first=0, settled=True, state=Accepted())


async def test_with_mode_second_the_receiver_settles_once_the_sender_has(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with peer.connect() as connection, connection.receiver("q", rcv_settle_mode=SECOND) as receiver:
        link = peer.links[0]
        assert link.attach.rcv_settle_mode is SECOND
        await link.send(Message(1).encode())
        delivery = await receiver.receive()
        settled = Call(nursery, delivery.settled)
        delivery.accept()
        (told,) = await peer.rest()
        assert isinstance(told, Disposition)
        assert (told.settled, told.state) == (False, Accepted())
        assert not settled.is_done
        await link.dispose(None, settled=True)
        assert await settled.result() is True
        assert not await peer.rest()  # a sender that has settled waits for nothing more


@pytest.mark.parametrize("rcv", [FIRST, SECOND])
async def test_a_sender_that_settles_before_the_decision_is_told_nothing(
    rcv: ReceiverSettleMode, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with peer.connect() as connection, connection.receiver("q", rcv_settle_mode=rcv, credit=1) as receiver:
        for number in range(3):
            await peer.links[0].send(Message(number).encode())
            delivery = await receiver.receive()
            settled = Call(nursery, delivery.settled)
            await wait_all_tasks_blocked()
            assert not settled.is_done
            await peer.links[0].dispose(None, number, settled=True)
            assert await settled.result() is True
            assert delivery.is_settled
            assert receiver.undecided == 1  # the delivery counts until the program has decided
            assert delivery.accept() is False
        assert receiver.undecided == 0


async def test_a_sender_that_leaves_before_it_settles_leaves_the_receiver_in_doubt(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with peer.connect() as connection, connection.receiver("q", rcv_settle_mode=SECOND) as receiver:
        await peer.links[0].send(Message(1).encode())
        delivery = await receiver.receive()
        settled = Call(nursery, delivery.settled)
        assert delivery.accept() is True
        await wait_all_tasks_blocked()
        await peer.links[0].detach()
        assert await settled.result() is False
