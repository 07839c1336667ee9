"""Channel numbers and handles: the lowest free one first, as the standard recommends (§2.5.1)."""

import heapq


class LowestFree:
    """Hands out the lowest number that is not in use, 0..maximum."""

    __slots__ = ("_free", "_next", "maximum")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._free: list[int] = []
        self._next = 0

    @property
    def in_use(self) -> int:
        """How many are in use."""
        return self._next - len(self._free)

    def take(self) -> int | None:
        """The lowest free number; None if all are in use."""
        if self._free and self._free[0] <= self.maximum:
            return heapq.heappop(self._free)
        if self._next > self.maximum:
            return None
        self._next += 1
        return self._next - 1

    def give_back(self, number: int) -> None:
        """`number` is free again."""
        heapq.heappush(self._free, number)
