"""Numbered messages from a sender to a receiver that drops duplicates, with the outcome of each."""

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
"""Messages in flight at most."""

BATCH_TIME: Final = 0.001
"""Seconds in which messages are collected, to be written at once."""

IN_DOUBT, NOT_ACCEPTED = "in doubt", "not accepted"


class Traffic:
    """A number of messages, each sent until it is accepted, and checked on arrival.

    A message that was not accepted is sent again: a killed router loses the state of its deliveries. A duplicate may
    arrive only of a message whose outcome is unknown; any other duplicate is irregular. The receiver recognizes
    duplicates by their message-id (§3.2.4), and its application gets only the first.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.accepted = 0
        #: Messages that the receiver rejected; they are not sent again.
        self.rejected = 0
        #: Repeated sends, by the outcome before.
        self.again: Counter[str] = Counter()
        #: Duplicates that were dropped, by their message-id.
        self.dropped = 0
        self.irregular = 0
        #: Duplicates that the application got.
        self.twice = 0
        #: The longest time without an arrival while messages were in flight, in seconds.
        self.longest_pause = 0.0
        self.arrived = 0
        self._ids: set[object] = set()
        self._arrived_flags = bytearray(count)
        self._accepted_flags = bytearray(count)
        self._doubtful: set[int] = set()
        #: Messages below the limit may be sent; `_next` is the next one.
        self._limit = count
        self._next = 0
        self._to_repeat: deque[int] = deque()
        self._waiting_since = 0.0
        self._wake = trio.Event()

    @property
    def sent(self) -> int:
        """Messages sent or waiting to be sent; each counts once."""
        return self._next

    @property
    def on_their_way(self) -> int:
        """Messages that were sent, or wait to be sent again, and are neither accepted nor rejected yet."""
        return self._next - self.accepted - self.rejected

    @property
    def is_over(self) -> bool:
        """True if each message was accepted or rejected."""
        return self.accepted + self.rejected == self.count

    @property
    def lost(self) -> int:
        """Messages that were not accepted, and accepted ones that never arrived."""
        told = zip(self._arrived_flags, self._accepted_flags, strict=True)
        return self.count - self.accepted + sum(1 for came, accepted in told if accepted and not came)

    @property
    def is_sound(self) -> bool:
        """True if nothing is lost, duplicates are only of messages in doubt, and the application got none."""
        return not (self.lost or self.irregular or self.twice)

    def allow(self, limit: int) -> None:
        """Allow messages up to a number to be sent."""
        self._limit = limit
        self._wake.set()

    async def send(self, sender: Sender) -> None:
        """Send until each message is accepted or rejected. Raises: as `Sender.transfer`."""
        end = link_of(sender)
        batch_ends = 0.0
        while not self.is_over:
            number = self._take()
            if number is None:
                self._wake = trio.Event()
                await self._wake.wait()
                continue
            outgoing = end.submit(
                encode_message(Message(str(number), message_id=number)), watch=partial(self._count_outcome, number)
            )
            if not outgoing.done.is_set():
                await outgoing.done.wait()
            if outgoing.failure is not None or trio.current_time() > batch_ends:
                await end.until_sent(outgoing)
                batch_ends = trio.current_time() + BATCH_TIME

    async def receive(self, receiver: Receiver) -> None:
        """Accept all messages. Raises: as `Receiver.receive`."""
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
        pause = now - self._waiting_since if self.arrived else 0.0  # the first waits for a path to be found
        self._waiting_since = now
        self.longest_pause = max(self.longest_pause, pause)
        self.arrived += 1
        number, name = int(message.body), message.message_id
        if name is None or name not in self._ids:
            self._ids.add(name)
            self.twice += self._arrived_flags[number]
            self._arrived_flags[number] = 1
        elif number in self._doubtful:
            self.dropped += 1
        else:
            self.irregular += 1

    def _count_outcome(self, number: int, outgoing: Outgoing) -> None:
        outcome = outgoing.outcome
        if isinstance(outcome, Accepted):
            self.accepted += 1
            self._accepted_flags[number] = 1
        elif isinstance(outcome, Rejected):
            self.rejected += 1
        else:
            in_doubt = outcome is None or (isinstance(outcome, Modified) and outcome.delivery_failed)
            if in_doubt:
                self._doubtful.add(number)
            self.again[IN_DOUBT if in_doubt else NOT_ACCEPTED] += 1
            self._to_repeat.append(number)
        self._wake.set()
