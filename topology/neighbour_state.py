"""Records on their way to one neighbour: each until it is acknowledged, whatever adjacency it takes."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from amqpmesh.topology.address_log import StoredRecord
from amqpmesh.topology.adjacency import Adjacency
from amqpmesh.topology.messages import MAX_MESSAGE, Acknowledgement, AgedRecord, Message, Records, SummaryEntry
from amqpmesh.topology.records import ADDRESS_DELTA, ADDRESSES, Key

MAX_RECORDS: Final = 512
"""Records in a message, and acknowledgements."""

MAX_ACKNOWLEDGED: Final = 128
ROOM: Final = MAX_MESSAGE - 2048
"""For records in a message: the rest is for its other items."""

OVERHEAD: Final = 24
"""What msgpack adds to a record's octets, at most."""

MAX_BACK_OFF: Final = 8

SMALL_QUEUE: Final = 1024
"""Records in a queue that need not be looked through."""


class SentMessage(NamedTuple):
    """A message that has not been acknowledged."""

    keys: tuple[Key, ...]
    octets: int
    at: float


class NeighbourState:
    """What is said with one neighbour, as long as it has an adjacency that is up.

    What is queued is the key: what has been replaced in the meantime is not sent. Addresses wait for everything else,
    so a neighbour that is told of a million addresses still hears of each link at once.
    """

    def __init__(self, router: str, epoch: int) -> None:
        self.router = router
        self.epoch = epoch
        self.adjacencies: list[Adjacency] = []
        """Those that are up; the first one carries what is said."""
        self.to_acknowledge: list[int] = []
        self.exchange_started = False
        """Whether it has been sent a summary."""
        self.summary_complete = False
        """Whether the whole of its summary has come."""
        self.missing: dict[str, SummaryEntry] = {}
        """What it has and this router did not have yet; `full` waits for that."""
        self.full = False
        """Whether the neighbour is advertised: its database has come, or has had its time."""
        self.flushed_at = float("-inf")
        # Ordered ones: a plain dictionary takes longer and longer to find its first key as those before it are deleted.
        self._urgent: OrderedDict[Key, None] = OrderedDict()
        self._addresses: OrderedDict[Key, None] = OrderedDict()
        self._sent: dict[int, SentMessage] = {}
        self._octets = 0
        self._back_off = 1
        self._most_queued = SMALL_QUEUE

    @property
    def queued(self) -> int:
        """Records that wait to be sent."""
        return len(self._urgent) + len(self._addresses)

    @property
    def unacknowledged(self) -> int:
        """Messages that have been sent and not been acknowledged."""
        return len(self._sent)

    def queue(self, key: Key) -> None:
        """Queue a record."""
        kind = key.kind
        if kind is ADDRESS_DELTA or kind is ADDRESSES:
            self._addresses[key] = None
        else:
            self._urgent[key] = None

    def has(self, key: Key) -> None:
        """The neighbour has sent it itself."""
        self._urgent.pop(key, None)
        self._addresses.pop(key, None)

    def prune(self, get: Callable[[Key], StoredRecord | None]) -> None:
        """Forget what has been replaced while it was queued, or a neighbour that does not acknowledge costs ever more.

        It is looked for each time that the queue has grown to twice its size.
        """
        if self.queued > self._most_queued:
            for queue in (self._urgent, self._addresses):
                for key in [key for key in queue if get(key) is None]:
                    del queue[key]
            self._most_queued = 2 * self.queued + SMALL_QUEUE

    def wants_to_send(self, window: int) -> bool:
        """Whether there is something queued that may be sent now."""
        return self.queued > 0 and (self._octets < window or not self._sent)

    def next_message(
        self, get: Callable[[Key], StoredRecord | None], number: int, area: str, now: float
    ) -> Records | None:
        """The next queued records, as many as a message holds; None: none of them holds any more."""
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
                age = int((now - stored.signed_at) * 1000) + 1  # rounded up: ages never get less on their way
                carried.append(AgedRecord(age, *stored.signed))
                keys.append(key)
            del queue[key]
        if not carried:
            return None
        self._sent[number] = SentMessage(tuple(keys), ROOM - room, now)
        self._octets += ROOM - room
        return Records(number, tuple(carried), self._take_acknowledgements(), area)

    def acknowledgement(self, area: str) -> Message | None:
        """What is owed, by itself."""
        return Acknowledgement(self._take_acknowledgements(), area) if self.to_acknowledge else None

    def acknowledged(self, numbers: Iterable[int]) -> None:
        """The neighbour has dealt with these; what it does not owe is ignored."""
        for number in numbers:
            sent = self._sent.pop(number, None)
            if sent is not None:
                self._octets -= sent.octets
                self._back_off = 1

    def resend_at(self, interval: float) -> float | None:
        """When what is not acknowledged is to be sent again; None: all is."""
        first = next(iter(self._sent.values()), None)
        return None if first is None else first.at + interval * self._back_off

    def resend_overdue(self, interval: float, now: float) -> None:
        """Queue again what has not been acknowledged in time; more time is given from now on."""
        wait = interval * self._back_off
        if self._requeue([number for number, sent in self._sent.items() if sent.at + wait <= now]):
            self._back_off = min(2 * self._back_off, MAX_BACK_OFF)

    def resend_all(self) -> None:
        """Queue again all that has not been acknowledged."""
        self._requeue(list(self._sent))

    def _requeue(self, numbers: list[int]) -> bool:
        lost: list[Key] = []
        for number in numbers:
            sent = self._sent.pop(number)
            self._octets -= sent.octets
            lost += sent.keys
        # Before what is queued already: link states are to come before the addresses of their epoch.
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
