"""The output of a step: messages and changes, gathered until its end."""

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
    """The messages and changes of a step, and the timers that the parts of the protocol share."""

    def __init__(self, router: str, settings: Settings) -> None:
        self.router = router
        self.settings = settings
        self.timers: Timers[tuple[Any, ...]] = Timers()
        self.dropped: Counter[str] = Counter()
        """Dropped messages and records so far, by reason."""
        self.sent: Counter[str] = Counter()
        """Messages sent so far, by type."""
        self.number = 0
        """The number of the last message with records; all neighbours share the count."""
        self._messages: list[tuple[Hashable, bytes]] = []
        self._changes: list[Change] = []
        self._addresses: set[Name] = set()
        self._reports: Counter[tuple[str, str, str, str]] = Counter()

    def send(self, adjacency: Adjacency, message: Message) -> None:
        """Send a message."""
        self.sent[type(message).__name__] += 1
        self._messages.append((adjacency.name, write_message(message)))

    def report(self, change: Change) -> None:
        """Report a change to the router."""
        self._changes.append(change)

    def addresses_changed(self, names: frozenset[Name]) -> None:
        """Report changed addresses to the router, once for each step."""
        self._addresses |= names

    def drop(self, origin: str, neighbour: str, reason: str, detail: str) -> None:
        """Count and report a dropped message or record."""
        self.dropped[reason] += 1
        report = (origin, neighbour, reason, detail)
        if report in self._reports or len(self._reports) < MAX_REPORTS:
            self._reports[report] += 1

    def finish_step(self) -> Step:
        """Return the output, and start the next step."""
        if self._addresses:
            self._changes.append(AddressesChanged(frozenset(self._addresses)))
            self._addresses.clear()
        for (origin, neighbour, reason, detail), count in self._reports.items():
            self._changes.append(Dropped(origin, neighbour, reason, detail, count))
        self._reports.clear()
        step = Step(self._messages, self._changes)
        self._messages, self._changes = [], []
        return step
