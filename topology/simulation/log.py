"""The events of a simulated mesh, line by line: the same seed gives the same lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import trio

from amqpmesh.router.logs.event_log import ROOT, LogEvent, escaped

_MESH: Final[trio.lowlevel.RunVar[Log | None]] = trio.lowlevel.RunVar("amqpmesh simulation's log", None)

_ROUTER: Final[ContextVar[str]] = ContextVar("amqpmesh simulation's router", default="-")
"""The id of the router that the current task belongs to."""


def log_as(router: str) -> None:
    """Mark this task, and all tasks that it starts later, as a router's: their log records are its own."""
    _ROUTER.set(router)


@dataclass(frozen=True, slots=True)
class Event:
    """A fault, a change of a connection, or a log record of a router."""

    at: float
    """Virtual time, in seconds from the beginning of the run."""
    router: str
    """The router; `-`: none in particular."""
    text: str
    """The event's name, and its fields."""
    seen: str
    """A digest of all octets that have arrived anywhere so far, with their times and connections."""

    def __str__(self) -> str:
        return f"{self.at:.6f} {self.router} {self.text} seen={self.seen}"


class Log:
    """The events of a run, in order.

    `str()` returns them, a line each. Two equal runs have equal lines. Each line ends with a digest of all octets that
    arrived before: runs that differ in any octet have different lines.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        #: Faults of this library that routers have logged.
        self.faults: list[BaseException] = []
        self._digest = blake2b(digest_size=4)
        self._muted: set[str] = set()

    def __str__(self) -> str:
        return "".join(f"{event}\n" for event in self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def find(self, text: str, router: str | None = None) -> list[Event]:
        """Return the events with this beginning, of one router or of all."""
        return [each for each in self.events if each.text.startswith(text) and router in (None, each.router)]

    def note(self, router: str, event: str, **fields: object) -> None:
        """Note an event."""
        words = [event, *(f"{key}={escaped(value)}" for key, value in fields.items() if value is not None)]
        self._add(router, " ".join(words))

    def carried(self, connection: int, receiver: str, data: bytes) -> None:
        """Note octets that have arrived."""
        self._digest.update(b"%a %d %a %d " % (trio.current_time(), connection, receiver, len(data)) + data)

    @contextmanager
    def muted(self, router: str) -> Iterator[None]:
        """Ignore log records of a router within the block: the router is dead."""
        self._muted.add(router)
        try:
            yield
        finally:
            self._muted.remove(router)

    def record(self, said: LogEvent, fault: BaseException | None) -> None:
        """Note a log record. Args: fault: the exception, if it is a fault of this library."""
        router = _ROUTER.get()
        if router in self._muted:
            return
        self._add(router, str(said))
        if fault is not None:
            self.faults.append(fault)

    def _add(self, router: str, text: str) -> None:
        self.events.append(Event(trio.current_time(), router, text, self._digest.hexdigest()))

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Capture the log records of the routers of this run. Meanwhile `amqpmesh` logs at least the level `INFO`."""
        logger = logging.getLogger(ROOT)
        handler = _Handler(self)
        level = logger.level
        token = _MESH.set(self)
        logger.addHandler(handler)
        logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
        try:
            yield
        finally:
            logger.setLevel(level)
            logger.removeHandler(handler)
            _MESH.reset(token)


class _Handler(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        if not trio.lowlevel.in_trio_run() or _MESH.get() is not self._log or not isinstance(record.msg, LogEvent):
            return
        self._log.record(record.msg, record.exc_info[1] if record.exc_info else None)
