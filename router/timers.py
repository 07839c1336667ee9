"""What is to be done when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

FEW = 64  # timers that are wanted no more, which may wait for their time: below that it is not worth looking for them


class Timer:
    """Something that is to be done at a time."""

    __slots__ = ("action", "deadline", "serial")

    def __init__(self, deadline: float, serial: int, action: Callable[[], None]) -> None:
        self.deadline = deadline
        self.serial = serial
        self.action: Callable[[], None] | None = action

    def __lt__(self, other: Timer) -> bool:
        return (self.deadline, self.serial) < (other.deadline, other.serial)


class Timers:
    """The earliest first; of those for one time, what was asked for first."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._serial = 0
        self._cancelled = 0

    def __len__(self) -> int:
        """Those that take memory, wanted or not."""
        return len(self._heap)

    def next(self) -> float | None:
        """When the next is due."""
        heap = self._heap
        while heap and heap[0].action is None:
            heappop(heap)
            self._cancelled -= 1
        return heap[0].deadline if heap else None

    def add(self, deadline: float, action: Callable[[], None]) -> Timer:
        """Have `action` among what is due once `deadline` has come."""
        self._serial += 1
        timer = Timer(deadline, self._serial, action)
        heappush(self._heap, timer)
        return timer

    def cancel(self, timer: Timer) -> None:
        """It is wanted no more. What it would have done is let go of now, the timer itself when half of all are so."""
        if timer.action is None:
            return
        timer.action = None
        self._cancelled += 1
        if self._cancelled > FEW and 2 * self._cancelled > len(self._heap):
            self._heap = [each for each in self._heap if each.action is not None]
            heapify(self._heap)
            self._cancelled = 0

    def due(self, now: float) -> Iterator[Callable[[], None]]:
        """What is to be done by now, also what is added meanwhile; each is asked for once what came before is done."""
        while (deadline := self.next()) is not None and deadline <= now:
            timer = heappop(self._heap)
            action, timer.action = timer.action, None
            assert action is not None  # or `next` had dropped it
            yield action
