"""Counts of owners that share one limit: the owner with the most is known without a search.

A table that clients can fill has a limit for all of them together. Of more entries, one is forgotten of the owner that
has the most: so nobody makes the router forget what others have left there. Counts change by one, so the owners with
the same count stand together, and the largest count moves by one as well.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Counts(Generic[K]):
    """The number of entries of each owner. An owner without entries is not kept."""

    __slots__ = ("_counts", "_largest", "_owners")

    def __init__(self) -> None:
        self._counts: dict[K, int] = {}
        #: The owners by their count, and the largest count; 0: there are none.
        self._owners: dict[int, dict[K, None]] = {}
        self._largest = 0

    def __len__(self) -> int:
        """Return the number of owners with entries."""
        return len(self._counts)

    def of(self, owner: K) -> int:
        """Return the number of entries of an owner."""
        return self._counts.get(owner, 0)

    def add(self, owner: K) -> None:
        """Count one more entry of an owner."""
        self._move(owner, self.of(owner) + 1)

    def remove(self, owner: K) -> None:
        """Count one entry of an owner less; it must have one."""
        self._move(owner, self._counts[owner] - 1)

    def largest(self) -> K:
        """Return the owner with the most entries; of several, the one that came to that number first.

        Raises: StopIteration: there are no entries.
        """
        return next(iter(self._owners[self._largest] if self._largest else ()))

    def _move(self, owner: K, count: int) -> None:
        before = self._counts.pop(owner, 0)
        if before:
            beside = self._owners[before]
            del beside[owner]
            if not beside:
                del self._owners[before]
        if count:
            self._counts[owner] = count
            self._owners.setdefault(count, {})[owner] = None
        if count > self._largest or self._largest not in self._owners:
            self._largest = count
