"""Deadlines by name: each name has one at most, and setting it again moves it."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final

SLACK: Final = 64


class Timers:
    """Setting and cancelling cost O(log n): entries that no longer hold stay in the heap until they come up."""

    def __init__(self) -> None:
        self._at: dict[Hashable, float] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._turn = 0

    def __contains__(self, name: Hashable) -> bool:
        return name in self._at

    def __len__(self) -> int:
        return len(self._at)

    def set(self, name: Hashable, at: float) -> None:
        """Let a name come up at a time, whatever it was set to before."""
        if self._at.get(name) == at:
            return
        self._at[name] = at
        self._turn += 1  # of equal deadlines the one set first comes first, and names are never compared
        heappush(self._heap, (at, self._turn, name))
        if len(self._heap) > 2 * len(self._at) + SLACK:
            self._heap = [entry for entry in self._heap if self._at.get(entry[2]) == entry[0]]
            heapify(self._heap)

    def set_earlier(self, name: Hashable, at: float) -> None:
        """Let a name come up at a time, unless it does so before."""
        if at < self._at.get(name, float("inf")):
            self.set(name, at)

    def cancel(self, name: Hashable) -> None:
        """Let a name not come up; one that is not set is ignored."""
        self._at.pop(name, None)

    def next(self) -> float | None:
        """When the next one comes up; None: nothing is set."""
        while self._heap:
            at, _, name = self._heap[0]
            if self._at.get(name) == at:
                return at
            heappop(self._heap)
        return None

    def due(self, now: float) -> list[Hashable]:
        """The names whose time has come, in order; they are set no more."""
        found = []
        while (at := self.next()) is not None and at <= now:
            name = heappop(self._heap)[2]
            del self._at[name]
            found.append(name)
        return found
