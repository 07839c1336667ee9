"""Numbered messages across a simulated mesh: who got which, and what its sender was told."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from amqpmesh import Accepted, AmqpMeshError, Backoff, InDoubtError, Message, ReceiverSettleMode, Sender, Sent

if TYPE_CHECKING:
    from amqpmesh.topology.simulation.mesh import Mesh

PATIENT = Backoff(first=0.05, longest=0.5)


class Traffic:
    """The messages to one address, and their outcomes."""

    def __init__(self, mesh: Mesh, address: str = "q", *, every: float = 0.01, second: bool = False) -> None:
        """Args: every: seconds from one message to the next, of each sender. second: of rcv-settle-mode second."""
        self.mesh = mesh
        self.address = address
        self.every = every
        self._mode = ReceiverSettleMode.SECOND if second else ReceiverSettleMode.FIRST
        self.sent: list[int] = []
        #: What senders were told, by number.
        self.outcomes: dict[int, str] = {}
        #: When each message was sent, and when its sender was told.
        self.sent_at: dict[int, float] = {}
        self.told_at: dict[int, float] = {}
        #: How often each message was handed to a receiver, and how often that has accepted it.
        self.received: Counter[int] = Counter()
        self.accepted: Counter[int] = Counter()
        self.took_at: dict[int, float] = {}
        self._stopping = False

    @asynccontextmanager
    async def flowing(self, senders: str, receivers: str) -> AsyncIterator[None]:
        """Let messages flow; leaving waits until each has its outcome. Args: ids of routers, a letter each."""
        async with trio.open_nursery() as consumers:
            for router in receivers:
                await consumers.start(self._consume, router)
            async with trio.open_nursery() as producers:
                for router in senders:
                    await producers.start(self._produce, router)
                yield
                self._stopping = True
            consumers.cancel_scope.cancel()

    async def _produce(self, router: str, *, task_status: trio.TaskStatus[None]) -> None:
        async with (
            self.mesh.connect(router, reconnect=PATIENT) as connection,
            connection.sender(self.address, rcv_settle_mode=self._mode) as sender,
            trio.open_nursery() as nursery,
        ):
            task_status.started()
            while not self._stopping:
                await trio.sleep(self.every)
                if sender.credit:
                    await self._send(sender, nursery)

    async def _send(self, sender: Sender, nursery: trio.Nursery) -> None:
        number = len(self.sent)
        self.sent.append(number)
        self.sent_at[number] = trio.current_time()
        try:
            sent = await sender.transfer(Message(number))
        except AmqpMeshError as error:
            self._told(number, f"not sent: {type(error).__name__}")
        else:
            nursery.start_soon(self._await_outcome, number, sent)

    async def _await_outcome(self, number: int, sent: Sent) -> None:
        try:
            self._told(number, type(await sent.outcome()).__name__)
        except InDoubtError:
            self._told(number, "in doubt")

    def _told(self, number: int, what: str) -> None:
        assert number not in self.outcomes
        self.outcomes[number] = what
        self.told_at[number] = trio.current_time()

    async def _consume(self, router: str, *, task_status: trio.TaskStatus[None]) -> None:
        async with (
            self.mesh.connect(router, reconnect=PATIENT) as connection,
            connection.receiver(self.address, credit=20) as receiver,
        ):
            task_status.started()
            async for delivery in receiver:
                number = delivery.message.body
                self.received[number] += 1
                delivery.accept()
                self.accepted[number] += 1
                self.took_at.setdefault(number, trio.current_time())

    # --------------------------------------------------------------------------------------------------- the account

    def first_after(self, at: float) -> float:
        """Return the seconds from then until a message that was sent later was accepted, and its sender knew."""
        return (
            min(
                self.told_at[number]
                for number, outcome in self.outcomes.items()
                if outcome == Accepted.__name__ and self.sent_at[number] >= at
            )
            - at
        )

    def count(self) -> Counter[str]:
        """Return how often senders were told what."""
        return Counter(self.outcomes.values())

    def check(self) -> None:
        """Assert that every delivery has an honest outcome, nothing accepted is lost, and nothing came twice."""
        assert set(self.outcomes) == set(self.sent)
        for number, outcome in self.outcomes.items():
            if outcome == "Accepted":
                assert self.accepted[number], f"{number} was accepted, and nobody has it"
            elif outcome == "Released":
                assert not self.received[number], f"{number} was released, and somebody has it"
        assert max(self.received.values(), default=0) <= 1, "a message came twice"
