"""Deadlines by name: each name has one at most, and setting it again moves it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)

SLACK: Final = 64
"""Entries that hold no more and wait for their time: below that it is not worth looking for them."""


class _Entry(Generic[Name]):
    """When a name comes up; None: it does not any more, or not by this one."""

    __slots__ = ("at", "name", "turn")

    def __init__(self, at: float, turn: int, name: Name) -> None:
        self.at = at
        self.turn = turn
        self.name: Name | None = name

    def __lt__(self, other: _Entry[Name]) -> bool:
        return (self.at, self.turn) < (other.at, other.turn)


class Timers(Generic[Name]):
    """Setting costs O(log n). A name that is cancelled, or set anew, is let go of at once by what it was set to before,
    which itself stays until it comes up or half of all are so.
    """

    def __init__(self) -> None:
        self._entries: dict[Name, _Entry[Name]] = {}
        self._heap: list[_Entry[Name]] = []
        self._turn = 0

    def __contains__(self, name: Name) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def set(self, name: Name, at: float) -> None:
        """Let a name come up at a time, whatever it was set to before."""
        before = self._entries.get(name)
        if before is not None:
            if before.at == at:
                return
            before.name = None
        self._turn += 1  # of equal deadlines the one set first comes first
        entry = self._entries[name] = _Entry(at, self._turn, name)
        heappush(self._heap, entry)
        self._tidy()

    def set_earlier(self, name: Name, at: float) -> bool:
        """Let a name come up at a time, unless it does so before. Returns: whether that changed anything."""
        before = self._entries.get(name)
        if before is not None and before.at <= at:
            return False
        self.set(name, at)
        return True

    def cancel(self, name: Name) -> None:
        """Let a name not come up; one that is not set is ignored."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            entry.name = None
            self._tidy()

    def next(self) -> float | None:
        """When the next one comes up; None: nothing is set."""
        heap = self._heap
        while heap and heap[0].name is None:
            heappop(heap)
        return heap[0].at if heap else None

    def due(self, now: float) -> Iterator[Name]:
        """The names whose time has come, in order, and those that are set meanwhile to a time that has come; they are
        set no more. One is taken only once what came before it is done, which may cancel it.
        """
        while (at := self.next()) is not None and at <= now:
            name = heappop(self._heap).name
            assert name is not None  # or `next` had dropped it
            del self._entries[name]
            yield name

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + SLACK:
            self._heap = [entry for entry in self._heap if entry.name is not None]
            heapify(self._heap)
