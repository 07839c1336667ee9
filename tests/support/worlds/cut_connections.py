"""Senders and receivers of two routers while the connection between these is cut."""

from __future__ import annotations

from collections import Counter, defaultdict

import trio

from amqpmesh.router.client.receiver import Receiver
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.outcomes import OutcomeError
from amqpmesh.router.runtime.router import Router

TOTAL = 100
"""Messages of each sender."""


class Resending:
    """Senders that send again what failed, and receivers that count what arrives."""

    def __init__(self) -> None:
        #: Messages that arrived, how often, by the address that they were sent to.
        self._arrived: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._failed: Counter[str] = Counter()

    async def receive(self, receiver: Receiver, sent_to: str) -> None:
        """Accept what was sent to an address. Never ends."""
        async for delivery in receiver:
            async with delivery as message:
                assert isinstance(message.body, str)
                self._arrived[sent_to][message.body] += 1
                await trio.sleep(0.003)

    async def send(self, router: Router, address: str) -> None:
        """Send each message until it is accepted."""
        async with router.sender(address) as sender:
            for number in range(TOTAL):
                body = f"{address} {number}"
                self._arrived[address][body] += 0
                while True:
                    try:
                        await sender.send(Message(body))
                        break
                    except OutcomeError:
                        self._failed[body] += 1

    def check(self) -> None:
        """Assert that all messages arrived, once more only for each attempt that failed."""
        for address, arrived in self._arrived.items():
            assert len(arrived) == TOTAL, address
            assert all(1 <= times <= 1 + self._failed[body] for body, times in arrived.items())
        assert self._failed.total() > 0, "a cut leaves something in doubt"
