"""Numbered messages from a sender to a receiver, which drops those that it has had, and what became of each."""

from collections import Counter, deque
from functools import partial
from typing import Final

import trio

from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Rejected
from amqpmesh.router.client.links.outgoing import Outgoing
from amqpmesh.router.client.receiver import Receiver
from amqpmesh.router.client.sender import Sender, link_of
from amqpmesh.router.message.content import Message, encode_message

IN_FLIGHT: Final = 2_000
"""Messages that may be on their way at a time."""

BATCH_TIME: Final = 0.001
"""Seconds in which what is sent is gathered, to be written at once."""

IN_DOUBT, NOT_ACCEPTED = "in doubt", "not accepted"


class Traffic:
    """So many messages, each sent until it is accepted, and looked for where it should arrive.

    What was not accepted is sent again: a router that dies takes with it who had what. Only of those whose outcome
    nobody knows a second one may arrive; any other that does is irregular. The receiver knows both by the message-id
    (§3.2.4), and hands the first one alone to its application.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.accepted = 0
        #: Numbers that the receiver rejected: they would be rejected again.
        self.rejected = 0
        #: How often one was sent again, by the outcome that it had had.
        self.again: Counter[str] = Counter()
        #: How often one arrived and was dropped, since one of its message-id had; it may have been sent twice, or not.
        self.dropped = 0
        self.irregular = 0
        #: How often the application was handed one that it had had.
        self.twice = 0
        #: The longest time in which nothing arrived and something should have, in seconds.
        self.longest_pause = 0.0
        self.arrived = 0
        self._ids: set[object] = set()
        self._came = bytearray(count)
        self._told = bytearray(count)
        self._doubtful: set[int] = set()
        #: Numbers below the limit may be sent now; this is the next.
        self._limit = count
        self._next = 0
        self._to_repeat: deque[int] = deque()
        self._waiting_since = 0.0
        self._wake = trio.Event()

    @property
    def sent(self) -> int:
        """Messages that were sent, or wait to be; each counts once."""
        return self._next

    @property
    def on_their_way(self) -> int:
        """Messages that were sent, or wait to be, and have no outcome."""
        return self._next - self.accepted - self.rejected

    @property
    def is_over(self) -> bool:
        """All were accepted, or will not be."""
        return self.accepted + self.rejected == self.count

    @property
    def lost(self) -> int:
        """Messages that were not accepted, and those that were and never arrived."""
        told = zip(self._came, self._told, strict=True)
        return self.count - self.accepted + sum(1 for came, accepted in told if accepted and not came)

    @property
    def is_sound(self) -> bool:
        """Nothing is lost, nothing arrived twice but what was in doubt, and the application has had nothing twice."""
        return not (self.lost or self.irregular or self.twice)

    def allow(self, limit: int) -> None:
        """Send so many, and no more until it is said."""
        self._limit = limit
        self._wake.set()

    async def send(self, sender: Sender) -> None:
        """Send until all are accepted. Raises: as `Sender.transfer`."""
        end = link_of(sender)
        batch_ends = 0.0
        while not self.is_over:
            number = self._take()
            if number is None:
                self._wake = trio.Event()
                await self._wake.wait()
                continue
            outgoing = end.submit(
                encode_message(Message(str(number), message_id=number)), watch=partial(self._decided, number)
            )
            if not outgoing.done.is_set():
                await outgoing.done.wait()
            if outgoing.failure is not None or trio.current_time() > batch_ends:
                await end.until_sent(outgoing)
                batch_ends = trio.current_time() + BATCH_TIME

    async def receive(self, receiver: Receiver) -> None:
        """Accept what comes. Raises: as `Receiver.receive`."""
        async for delivery in receiver:
            self._arrived(delivery.message)
            delivery.accept()

    def _take(self) -> int | None:
        """Return the number of the next message; None: none is to be sent now."""
        if self.on_their_way >= IN_FLIGHT and not self._to_repeat:
            return None
        if self._to_repeat:
            return self._to_repeat.popleft()
        if self._next >= self._limit:
            return None
        if self.on_their_way == 0:
            self._waiting_since = trio.current_time()
        self._next += 1
        return self._next - 1

    def _arrived(self, message: Message) -> None:
        now = trio.current_time()
        pause = now - self._waiting_since if self.arrived else 0.0  # before the first, a way was looked for
        self._waiting_since = now
        self.longest_pause = max(self.longest_pause, pause)
        self.arrived += 1
        number, name = int(message.body), message.message_id
        if name is None or name not in self._ids:
            self._ids.add(name)
            self.twice += self._came[number]
            self._came[number] = 1
        elif number in self._doubtful:
            self.dropped += 1
        else:
            self.irregular += 1

    def _decided(self, number: int, outgoing: Outgoing) -> None:
        outcome = outgoing.outcome
        if isinstance(outcome, Accepted):
            self.accepted += 1
            self._told[number] = 1
        elif isinstance(outcome, Rejected):
            self.rejected += 1
        else:
            in_doubt = outcome is None or (isinstance(outcome, Modified) and outcome.delivery_failed)
            if in_doubt:
                self._doubtful.add(number)
            self.again[IN_DOUBT if in_doubt else NOT_ACCEPTED] += 1
            self._to_repeat.append(number)
        self._wake.set()
