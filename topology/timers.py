"""Deadlines by name: each name has one at most, and setting it again moves it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)

SLACK: Final = 64
"""Void entries of the heap that are not worth a search."""


class _Entry(Generic[Name]):
    """The deadline of a name; None: it was cancelled or moved."""

    __slots__ = ("at", "name", "turn")

    def __init__(self, at: float, turn: int, name: Name) -> None:
        self.at = at
        self.turn = turn
        self.name: Name | None = name

    def __lt__(self, other: _Entry[Name]) -> bool:
        return (self.at, self.turn) < (other.at, other.turn)


class Timers(Generic[Name]):
    """The deadlines. Setting one costs O(log n).

    A cancelled or moved deadline frees its name at once. Its entry stays in the heap until its time, or until half of
    all entries are void.
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
        """Set the deadline of a name, or move it."""
        before = self._entries.get(name)
        if before is not None:
            if before.at == at:
                return
            before.name = None
        self._turn += 1  # of equal deadlines, the one set first comes first
        entry = self._entries[name] = _Entry(at, self._turn, name)
        heappush(self._heap, entry)
        self._tidy()

    def set_earlier(self, name: Name, at: float) -> bool:
        """Set the deadline of a name, unless it has an earlier one. Returns: whether it changed."""
        before = self._entries.get(name)
        if before is not None and before.at <= at:
            return False
        self.set(name, at)
        return True

    def cancel(self, name: Name) -> None:
        """Cancel the deadline of a name; a name without one is ignored."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            entry.name = None
            self._tidy()

    def next(self) -> float | None:
        """Return the next deadline; None: there is none."""
        heap = self._heap
        while heap and heap[0].name is None:
            heappop(heap)
        return heap[0].at if heap else None

    def due(self, now: float) -> Iterator[Name]:
        """Iterate over the names whose deadline has come, in order, and remove them.

        It includes deadlines that are set meanwhile. Each name is removed only after the work for the one before, which
        can cancel it.
        """
        while (at := self.next()) is not None and at <= now:
            name = heappop(self._heap).name
            assert name is not None  # `next` has dropped void entries
            del self._entries[name]
            yield name

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + SLACK:
            self._heap = [entry for entry in self._heap if entry.name is not None]
            heapify(self._heap)
