"""The state of a neighbour: the records queued for it, and those sent and not yet acknowledged."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from amqpmesh.topology.address_log import StoredRecord
from amqpmesh.topology.adjacency import Adjacency
from amqpmesh.topology.messages import MAX_MESSAGE, Acknowledgement, AgedRecord, Message, Records, SummaryEntry
from amqpmesh.topology.records import ADDRESS_DELTA, ADDRESSES, Key

MAX_RECORDS: Final = 512
"""Records in a message; also acknowledgements that wait to be sent."""

MAX_ACKNOWLEDGED: Final = 128
ROOM: Final = MAX_MESSAGE - 2048
"""Octets for records in a message; the rest is for its other items."""

OVERHEAD: Final = 24
"""The most octets that msgpack adds to a record."""

MAX_BACK_OFF: Final = 8

SMALL_QUEUE: Final = 1024
"""Records in a queue that is not pruned yet."""


class SentMessage(NamedTuple):
    """A message that has not been acknowledged."""

    keys: tuple[Key, ...]
    octets: int
    at: float


class NeighbourState:
    """The state of the database exchange and of flooding with one neighbour, while an adjacency to it is up.

    The queues hold keys, so a record that was replaced meanwhile is not sent. Addresses wait for all other records: a
    neighbour that gets a million addresses still gets each link state at once.
    """

    def __init__(self, router: str, epoch: int) -> None:
        self.router = router
        self.epoch = epoch
        self.adjacencies: list[Adjacency] = []
        """The adjacencies that are up; messages go by the first one."""
        self.to_acknowledge: list[int] = []
        self.exchange_started = False
        """True once it was sent a summary."""
        self.summary_complete = False
        """True once its whole summary has arrived."""
        self.missing: dict[str, SummaryEntry] = {}
        """The records that it has and this router lacked; `full` waits for them."""
        self.full = False
        """True if the neighbour is advertised: its database has arrived, or the time for it is over."""
        self.flushed_at = float("-inf")
        # Ordered dictionaries: a plain one takes ever longer to find its first key as keys before it are deleted.
        self._urgent: OrderedDict[Key, None] = OrderedDict()
        self._addresses: OrderedDict[Key, None] = OrderedDict()
        self._sent: dict[int, SentMessage] = {}
        self._octets = 0
        self._back_off = 1
        self._most_queued = SMALL_QUEUE

    @property
    def queued(self) -> int:
        """The number of records that wait to be sent."""
        return len(self._urgent) + len(self._addresses)

    @property
    def unacknowledged(self) -> int:
        """The number of messages sent and not acknowledged."""
        return len(self._sent)

    def queue(self, key: Key) -> None:
        """Queue a record."""
        kind = key.kind
        if kind is ADDRESS_DELTA or kind is ADDRESSES:
            self._addresses[key] = None
        else:
            self._urgent[key] = None

    def remove_queued(self, key: Key) -> None:
        """Drop a record from the queue: the neighbour has it."""
        self._urgent.pop(key, None)
        self._addresses.pop(key, None)

    def prune(self, get: Callable[[Key], StoredRecord | None]) -> None:
        """Drop replaced records from the queues. Otherwise a neighbour that does not acknowledge would cost ever more.

        It works each time that the queue has grown to twice its size.
        """
        if self.queued > self._most_queued:
            for queue in (self._urgent, self._addresses):
                for key in [key for key in queue if get(key) is None]:
                    del queue[key]
            self._most_queued = 2 * self.queued + SMALL_QUEUE

    def wants_to_send(self, window: int) -> bool:
        """Tell whether a queued record can be sent now."""
        return self.queued > 0 and (self._octets < window or not self._sent)

    def next_message(
        self, get: Callable[[Key], StoredRecord | None], number: int, area: str, now: float
    ) -> Records | None:
        """Return a message with the next queued records, as many as it can hold; None: all of them were replaced."""
        carried: list[AgedRecord] = []
        keys: list[Key] = []
        room = ROOM
        while len(carried) < MAX_RECORDS and (queue := self._urgent or self._addresses):
            key = next(iter(queue))
            stored = get(key)
            if stored is not None:
                octets = stored.octets + OVERHEAD
                if octets > room and carried:
                    break
                room -= octets
                age = int((now - stored.signed_at) * 1000) + 1  # rounded up: ages never shrink on their way
                carried.append(AgedRecord(age, *stored.signed))
                keys.append(key)
            del queue[key]
        if not carried:
            return None
        self._sent[number] = SentMessage(tuple(keys), ROOM - room, now)
        self._octets += ROOM - room
        return Records(number, tuple(carried), self._take_acknowledgements(), area)

    def acknowledgement(self, area: str) -> Message | None:
        """Return a message with the due acknowledgements; None: there are none."""
        return Acknowledgement(self._take_acknowledgements(), area) if self.to_acknowledge else None

    def acknowledged(self, numbers: Iterable[int]) -> None:
        """Take acknowledgements; unknown numbers are ignored."""
        for number in numbers:
            sent = self._sent.pop(number, None)
            if sent is not None:
                self._octets -= sent.octets
                self._back_off = 1

    def resend_at(self, interval: float) -> float | None:
        """Return the time when unacknowledged records are sent again; None: there are none."""
        first = next(iter(self._sent.values()), None)
        return None if first is None else first.at + interval * self._back_off

    def resend_overdue(self, interval: float, now: float) -> None:
        """Queue again the records that were not acknowledged in time, and double the next interval."""
        wait = interval * self._back_off
        if self._requeue([number for number, sent in self._sent.items() if sent.at + wait <= now]):
            self._back_off = min(2 * self._back_off, MAX_BACK_OFF)

    def resend_all(self) -> None:
        """Queue again all unacknowledged records."""
        self._requeue(list(self._sent))

    def _requeue(self, numbers: list[int]) -> bool:
        lost: list[Key] = []
        for number in numbers:
            sent = self._sent.pop(number)
            self._octets -= sent.octets
            lost += sent.keys
        # They go before the others: a link state has to arrive before the addresses of its epoch.
        first, later = self._urgent, self._addresses
        self._urgent, self._addresses = OrderedDict(), OrderedDict()
        for key in lost:
            self.queue(key)
        self._urgent.update(first)
        self._addresses.update(later)
        return bool(lost)

    def _take_acknowledgements(self) -> tuple[int, ...]:
        taken = tuple(self.to_acknowledge[:MAX_ACKNOWLEDGED])
        del self.to_acknowledge[:MAX_ACKNOWLEDGED]
        return taken
