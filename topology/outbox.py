"""What a call brings about, gathered until it is over."""

from collections import Counter
from collections.abc import Hashable
from typing import Any, Final

from amqpmesh.topology.adjacency import Adjacency
from amqpmesh.topology.changes import AddressesChanged, Change, Dropped, Step
from amqpmesh.topology.messages import Message, write_message
from amqpmesh.topology.records import Name
from amqpmesh.topology.settings import Settings
from amqpmesh.topology.timers import Timers

MAX_REPORTS: Final = 64
"""Different drops that one step reports; all of them are counted."""


class Outbox:
    """Messages and changes of a step; the timers that the parts of the protocol share."""

    def __init__(self, router: str, settings: Settings) -> None:
        self.router = router
        self.settings = settings
        self.timers: Timers[tuple[Any, ...]] = Timers()
        self.dropped: Counter[str] = Counter()
        """What was not taken, ever, by reason."""
        self.sent: Counter[str] = Counter()
        """Messages sent, ever, by type."""
        self.number = 0
        """That of the last message with records: they count for all neighbours together."""
        self._messages: list[tuple[Hashable, bytes]] = []
        self._changes: list[Change] = []
        self._addresses: set[Name] = set()
        self._reports: Counter[tuple[str, str, str, str]] = Counter()

    def send(self, adjacency: Adjacency, message: Message) -> None:
        """A message leaves."""
        self.sent[type(message).__name__] += 1
        self._messages.append((adjacency.name, write_message(message)))

    def report(self, change: Change) -> None:
        """The router has to know."""
        self._changes.append(change)

    def addresses_changed(self, names: frozenset[Name]) -> None:
        """The router has to know, once per step."""
        self._addresses |= names

    def drop(self, origin: str, neighbour: str, reason: str, detail: str) -> None:
        """Something was not taken."""
        self.dropped[reason] += 1
        report = (origin, neighbour, reason, detail)
        if report in self._reports or len(self._reports) < MAX_REPORTS:
            self._reports[report] += 1

    def finish_step(self) -> Step:
        """All of it; the next step begins empty."""
        if self._addresses:
            self._changes.append(AddressesChanged(frozenset(self._addresses)))
            self._addresses.clear()
        for (origin, neighbour, reason, detail), count in self._reports.items():
            self._changes.append(Dropped(origin, neighbour, reason, detail, count))
        self._reports.clear()
        step = Step(self._messages, self._changes)
        self._messages, self._changes = [], []
        return step
