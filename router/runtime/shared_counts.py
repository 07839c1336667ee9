"""Counts that the workers of a router share: places in files, each of which one worker at a time has locked.

A count with the limit N has N places, which are octets of a file. A worker that counts one more locks a free octet; the
system sees to it that no other worker has it, and frees all octets of a worker that ends, however it ends. So the
workers need no messages for it and no worker is asked first, and their sum never passes the limit. Nothing is written:
these files stay empty.
"""

from __future__ import annotations

import fcntl
import os
from bisect import insort
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from amqpmesh.router.logs import event_log
from amqpmesh.router.runtime.file_locks import IS_HELD, holder, set_lock
from amqpmesh.router.runtime.shared_tokens import SharedTokens

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from amqpmesh.router.config.mesh import WorkerConfig
    from amqpmesh.router.credit.places import Shared
    from amqpmesh.router.model.usage import Kind

log = event_log.EventLog("amqpmesh.io")

FILES: Final = 64
"""Files of all counts together: the system looks through all locks of a file for each of them."""

REGION: Final = 2**32
"""Octets of a file that belong to one count. One half is for what is beyond the limit."""

MOST: Final = REGION // 2
"""The greatest limit that is kept: more than a router can have of anything."""

_REGIONS: Final = 2**63 // REGION


class SharedCounts:
    """The shared counts of one worker."""

    def __init__(self, worker: WorkerConfig) -> None:
        self._folder: Path = worker.folder
        #: The part of the places in which this worker looks first: so its places lie side by side.
        self._part = (worker.number - 1) / worker.count
        self._files: dict[int, int] = {}
        #: The rates of what cannot wait.
        self.tokens = SharedTokens(worker.folder / "tokens")

    def places(self, owner: tuple[object, ...], kind: Kind | Shared) -> SharedPlaces | None:
        """Return the places of an owner's count; None: the system refuses the file: this worker counts by itself."""
        key = blake2b(repr((*owner, kind.limit)).encode("utf-8", "surrogatepass"), digest_size=8).digest()
        number = int.from_bytes(key, "big")
        try:
            file = self._file(number % FILES)
        except OSError as error:
            log.warning("shared count unavailable", reason=error.strerror or str(error))
            return None
        return SharedPlaces(file, number // FILES % _REGIONS * REGION, self._part)

    def close(self) -> None:
        """Free all places."""
        self.tokens.close()
        while self._files:
            os.close(self._files.popitem()[1])

    def _file(self, number: int) -> int:
        if number not in self._files:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._files[number] = os.open(self._folder / f"counts-{number}", flags, 0o600)
        return self._files[number]


class SharedPlaces:
    """The places of one count, as one worker sees them: `Places`."""

    def __init__(self, file: int, base: int, part: float) -> None:
        """Args: base: the first octet of the count's region in the file. part: where to look first, 0 to 1."""
        self._file = file
        self._base = base
        self._part = part
        #: The places of this worker, as ranges (first, behind the last), sorted.
        self._own: list[tuple[int, int]] = []

    @property
    def _count(self) -> int:
        return sum(end - start for start, end in self._own)

    def take(self, most: int, *, forced: bool) -> bool:
        """See `Places`."""
        most = min(most, MOST)
        first = self._own[-1][1] if self._own else int(most * self._part)
        first = min(first, most)
        place = self._lock_one(first, most)
        if place is None:
            place = self._lock_one(0, first)
        if place is None:
            return forced and self._lock_one(most, REGION) is not None
        if not forced and self._is_beyond(most) and self._count + self.others() > most:
            # The limit has shrunk, or a connection goes from worker to worker: there are fewer free places than octets.
            self._unlock(place)
            return False
        return True

    def take_many(self, number: int, most: int) -> None:
        """See `Places`. They lie side by side beyond the limit: thousands take a few calls, and count all the same."""
        at = min(most, MOST)
        while number and at + number <= REGION:
            try:
                self._set(fcntl.F_WRLCK, at, number)
            except IS_HELD:
                holder = self._holder(at, at + number)
                at = at if holder is None else holder[1]
                continue
            except OSError as error:
                log.warning("shared count unavailable", reason=error.strerror or str(error))
                return
            insort(self._own, (at, at + number))
            return

    def take_some(self, number: int, most: int) -> int:
        """See `Places`."""
        most = min(most, MOST)
        first = min(most, self._own[-1][1] if self._own else int(most * self._part))
        taken = self._lock_some(first, most, number)
        return taken + self._lock_some(0, first, number - taken)

    def give_back(self, number: int) -> None:
        """See `Places`."""
        while number > 0 and self._own:
            start, end = self._own.pop()
            first = max(start, end - number)
            self._set(fcntl.F_UNLCK, first, end - first)
            if start < first:
                self._own.append((start, first))
            number -= end - first

    def release_all(self) -> None:
        """See `Places`."""
        for start, end in self._own:
            self._set(fcntl.F_UNLCK, start, end - start)
        self._own.clear()

    def release(self) -> None:
        """See `Places`. The last place goes first: those beyond the limit are in the way of others."""
        if self._own:
            self._unlock(self._own[-1][1] - 1)

    def others(self) -> int:
        """See `Places`."""
        return sum(end - start for start, end in self._held(0, REGION))

    def _is_beyond(self, most: int) -> bool:
        """Tell whether any worker has a place beyond the limit."""
        return self._own[-1][1] > most or self._holder(most, REGION) is not None

    def _lock_one(self, start: int, end: int) -> int | None:
        """Lock the first free place of a range. Returns: None: there is none."""
        at = start
        while at < end:
            own = next((behind for first, behind in self._own if first <= at < behind), None)
            if own is not None:
                at = own
                continue
            try:
                self._set(fcntl.F_WRLCK, at)
            except IS_HELD:
                holder = self._holder(at, at + 1)
                at = at if holder is None else holder[1]  # None: it has just been freed
                continue
            except OSError as error:  # the system has no more locks
                log.warning("shared count unavailable", reason=error.strerror or str(error))
                return None
            self._add(at, at + 1)
            return at
        return None

    def _lock_some(self, at: int, end: int, number: int) -> int:
        """Lock free places of a range, the first ones. Returns: how many."""
        taken = 0
        while at < end and taken < number:
            own = next((behind for first, behind in self._own if first <= at < behind), None)
            if own is not None:
                at = own
                continue
            behind = min([end, at + number - taken, *(first for first, _ in self._own if first > at)])
            holder = self._holder(at, behind)
            while holder is not None and holder[0] > at:
                behind = holder[0]
                holder = self._holder(at, behind)
            if holder is not None:
                at = holder[1]
                continue
            try:
                self._set(fcntl.F_WRLCK, at, behind - at)
            except IS_HELD:
                continue  # another worker was faster
            except OSError as error:
                log.warning("shared count unavailable", reason=error.strerror or str(error))
                break
            self._add(at, behind)
            taken += behind - at
            at = behind
        return taken

    def _unlock(self, place: int) -> None:
        self._set(fcntl.F_UNLCK, place)
        start, end = next(each for each in self._own if each[0] <= place < each[1])
        self._own.remove((start, end))
        for part in ((start, place), (place + 1, end)):
            if part[0] < part[1]:
                insort(self._own, part)

    def _add(self, start: int, end: int) -> None:
        for each in [each for each in self._own if each[1] == start or each[0] == end]:
            self._own.remove(each)
            start, end = min(start, each[0]), max(end, each[1])
        insort(self._own, (start, end))

    def _held(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges that other workers have, in no order."""
        ranges = [(start, end)]
        while ranges:
            start, end = ranges.pop()
            holder = self._holder(start, end) if start < end else None
            if holder is not None:
                first, behind = max(start, holder[0]), min(end, holder[1])
                yield first, behind
                ranges += [(start, first), (behind, end)]

    def _holder(self, start: int, end: int) -> tuple[int, int] | None:
        """Return a range that another worker has, of those that overlap a range; None: there is none."""
        found = holder(self._file, self._base + start, end - start)
        return None if found is None else (found[0] - self._base, found[0] - self._base + found[1])

    def _set(self, kind: int, place: int, octets: int = 1) -> None:
        set_lock(self._file, kind, self._base + place, octets)
