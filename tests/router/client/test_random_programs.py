"""Random programs on one router, whose accounts agree whatever fails."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError, InDoubtError
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Rejected, Released
from amqpmesh.router.client.links.incoming import DeliveryAbortedError
from amqpmesh.router.io.dialing import Backoff
from amqpmesh.router.io.environment import REAL
from amqpmesh.router.message.content import Message
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import Roads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from amqpmesh.router.client.connect import Connection
    from amqpmesh.router.client.delivery import Delivery
    from amqpmesh.router.client.factory import LinkFactory
    from amqpmesh.router.client.receiver import Receiver
    from amqpmesh.router.client.requester import Requester
    from amqpmesh.router.client.sender import Sender
    from amqpmesh.router.client.sent import Sent

ADDRESSES = ("a", "b")
END = 600.0
"""Seconds of virtual time that a history may take."""


@dataclass
class Accounts:
    """The fate of each message, by its number: as its sender knows it, and as receivers do."""

    #: Results of `transfer` and of `outcome`.
    ends: dict[int, list[str]] = field(default_factory=dict)
    #: Messages that were whole when a program took them.
    arrived: Counter[int] = field(default_factory=Counter)
    #: Decisions that the sender was to be told.
    decided: dict[int, list[str]] = field(default_factory=dict)

    def check(self) -> None:
        """Assert the laws of the accounts."""
        assert all(number == 1 for number in self.arrived.values()), "something came twice"
        for number, ends in self.ends.items():
            decided = self.decided.get(number, [])
            assert len(decided) <= 1
            assert len(ends) == 1, f"{number} ended {ends}"
            (end,) = ends
            if end in ("raised", "cancelled"):
                assert not self.arrived[number], f"{number} was not sent, and arrived"
            elif end == "Accepted":
                assert decided == ["Accepted"]
            elif end == "Rejected":
                assert decided == ["Rejected"]
            elif end in ("Released", "Modified"):
                # Decided by the receiver, or by the router for a receiver that is gone and may have decided too late.
                assert decided in ([], [end]) or end == "Modified"
            else:
                assert end in ("in doubt", "settled"), end
        assert set(self.arrived) <= set(self.ends)


class History:
    """One random history, all of it drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.accounts = Accounts()
        self.numbers = iter(range(10**6))
        self.producers_done = trio.Event()
        self.router = Router(drain=5.0)
        self.connections: list[Connection] = []

    async def run(self) -> None:
        """Run the history, from the start of the router to its end."""
        with trio.fail_after(END):
            async with trio.open_nursery() as streams, AsyncExitStack() as stack:
                self.roads = Roads(streams)
                self.roads.lead_to(self.router)
                await stack.enter_async_context(self.router)
                for reconnect in (True, True, False):
                    self.connections.append(await stack.enter_async_context(self.connect(reconnect=reconnect)))
                async with trio.open_nursery() as programs:
                    async with trio.open_nursery() as producing:
                        for _ in range(self.chance.randint(2, 4)):
                            programs.start_soon(self.consume)
                        for address in ADDRESSES:  # a last receiver for the messages that the others leave
                            programs.start_soon(self.consume_all, address)
                        programs.start_soon(self.answer)
                        for _ in range(self.chance.randint(2, 4)):
                            producing.start_soon(self.produce)
                        for _ in range(self.chance.randint(0, 2)):
                            producing.start_soon(self.ask)
                        producing.start_soon(self.break_roads)
                    self.producers_done.set()
                    programs.cancel_scope.deadline = trio.current_time() + 30
                    await trio.sleep(20)
                    programs.cancel_scope.cancel()
                await trio.sleep(5)
                await wait_all_tasks_blocked()
                self.check_tables()
        self.accounts.check()
        assert self.router.statistics().is_empty

    def check_tables(self) -> None:
        """Assert that every link was left, and that connections hold nothing of them (which no public name shows)."""
        for connection in self.connections:
            client_connection = connection._link_manager.client_connection
            if client_connection is not None:
                assert [client_connection._links, client_connection._stalled, client_connection._leaving] == [
                    {},
                    {},
                    {},
                ]
                assert not list(client_connection.engine.channels.sessions)
            assert not connection._link_manager._links
        assert self.router.statistics().router.relays == 0

    @asynccontextmanager
    async def factory(self) -> AsyncIterator[LinkFactory]:
        """Return the router, a connection that exists, or one that is made and left."""
        if self.chance.random() < 0.3:
            async with self.connect(reconnect=self.chance.random() < 0.5) as connection:
                yield connection
        else:
            yield self.chance.choice([self.router, *self.connections])

    def connect(self, *, reconnect: bool) -> Connection:
        return self.roads.connect(reconnect=Backoff(0.1, 1.0) if reconnect else False)

    async def pause(self, most: float = 0.5) -> None:
        await trio.sleep(self.chance.choice([0.0, self.chance.uniform(0, most)]))

    def patience(self) -> trio.CancelScope:
        """Return a time limit, mostly none."""
        return trio.move_on_after(self.chance.choice([60.0, 60.0, self.chance.uniform(0, 1.0), 0.0]))

    # ------------------------------------------------------------------------------------------------------ what breaks

    async def break_roads(self) -> None:
        for _ in range(self.chance.randint(0, 3)):
            await trio.sleep(self.chance.uniform(0, 3))
            if self.chance.random() < 0.3:
                self.roads.close()
            await self.roads.cut()
            await self.pause(2.0)
            self.roads.lead_to(self.router)

    # ----------------------------------------------------------------------------------------------------- what is sent

    async def produce(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            snd = self.chance.choice(list(SenderSettleMode))
            rcv = self.chance.choice(list(ReceiverSettleMode))
            address = self.chance.choice(ADDRESSES)
            with suppress(AmqpMeshError), self.patience():
                async with (
                    self.factory() as factory,
                    factory.sender(address, snd_settle_mode=snd, rcv_settle_mode=rcv) as sender,
                    trio.open_nursery() as nursery,
                ):
                    for _ in range(self.chance.randint(1, 6)):
                        nursery.start_soon(self.send, sender, snd)
                        await self.pause()

    async def send(self, sender: Sender, snd: SenderSettleMode) -> None:
        number = next(self.numbers)
        ends: list[str] = []
        size = self.chance.choice([0, 10, 10, 70_000, 300_000])
        settled = snd is SenderSettleMode.MIXED and self.chance.random() < 0.3
        message = Message(bytes(size), message_id=number)
        sent: Sent | None = None
        await trio.lowlevel.checkpoint()  # if cancelled here, there was no call
        self.accounts.ends[number] = ends
        with self.patience():
            try:
                sent = await sender.transfer(message, settled=settled)
            except AmqpMeshError:
                ends.append("raised")
                return
            except trio.Cancelled:
                ends.append("cancelled")
                raise
        if sent is None:
            return
        if sent.settled:
            ends.append("settled")
        else:
            with trio.CancelScope(shield=True):  # it must end, even if this task is cancelled
                ends.append(await ended(sent))

    async def ask(self) -> None:
        with suppress(AmqpMeshError), self.patience():
            async with (
                self.factory() as factory,
                factory.requester("questions") as requester,
                trio.open_nursery() as nursery,
            ):
                for number in range(self.chance.randint(1, 5)):
                    nursery.start_soon(self.request, requester, number)
                    await self.pause()

    async def request(self, requester: Requester, number: int) -> None:
        with self.patience(), suppress(AmqpMeshError):
            reply = await requester.request(number)
            assert reply.body == number

    async def answer(self) -> None:
        async with self.router.receiver("questions", credit=3) as questions:
            async for delivery in questions:
                with suppress(AmqpMeshError):
                    async with delivery as message:
                        await self.pause()
                        await delivery.reply(message.body)

    # ------------------------------------------------------------------------------------------------- what is received

    async def consume_all(self, address: str) -> None:
        async with self.router.receiver(address, credit=2) as receiver:
            async for delivery in receiver:
                self.arrived(delivery)
                self.decide(delivery)

    async def consume(self) -> None:
        while not self.producers_done.is_set():
            with suppress(AmqpMeshError), self.patience():
                streaming = self.chance.random() < 0.4
                async with (
                    self.factory() as factory,
                    factory.receiver(
                        self.chance.choice(ADDRESSES),
                        credit=self.chance.choice([0, 1, 5, 100]),
                        buffer=self.chance.choice([1, 2**20]),
                        streaming=streaming,
                        rcv_settle_mode=self.chance.choice(list(ReceiverSettleMode)),
                    ) as receiver,
                ):
                    await self.take(receiver, streaming=streaming)
            await trio.sleep(self.chance.uniform(0.01, 1))

    async def take(self, receiver: Receiver, *, streaming: bool) -> None:
        held: list[Delivery] = []
        for _ in range(self.chance.randint(1, 12)):
            with suppress(CommandError):
                receiver.flow(1)
            with trio.move_on_after(self.chance.uniform(0, 2)):
                held.append(await receiver.receive())
                if streaming and self.chance.random() < 0.8:
                    try:
                        await held[-1].read()
                    except DeliveryAbortedError:
                        held.pop()
                        continue
                    self.arrived(held[-1])
                elif not streaming:
                    self.arrived(held[-1])
            self.chance.shuffle(held)
            while held and self.chance.random() < 0.6:
                self.decide(held.pop())

    def arrived(self, delivery: Delivery) -> None:
        number = delivery.message.message_id
        assert isinstance(number, int)
        self.accounts.arrived[number] += 1

    def decide(self, delivery: Delivery) -> None:
        number = delivery.message.message_id
        assert isinstance(number, int)
        kind = self.chance.choice([Accepted, Accepted, Accepted, Rejected, Released, Modified])
        ways = {
            Accepted: delivery.accept,
            Rejected: delivery.reject,
            Released: delivery.release,
            Modified: delivery.modify,
        }
        try:
            told = ways[kind]()
        except CommandError:
            return  # no message, or the receiver was left while it was read
        if told:
            self.accounts.decided.setdefault(number, []).append(kind.__name__)


async def ended(sent: Sent) -> str:
    try:
        return type(await sent.outcome()).__name__
    except InDoubtError:
        return "in doubt"


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_the_accounts_are_right_whatever_happens(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)
    for seed in range(first, first + 10):
        monkeypatch.setattr("trio._core._run._r", random.Random(seed))
        REAL.chance.seed(seed)
        try:
            trio.run(History(seed).run, clock=MockClock(autojump_threshold=0))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
