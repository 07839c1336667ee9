"""Free memory, returned to the system after connections and deliveries are gone."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Never

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from amqpmesh.router.core import Core
    from amqpmesh.router.runtime.listeners import Listener

INTERVAL: Final = 1.0  # seconds between two checks
MIN_CONNECTIONS: Final = 100  # connections that may close before memory is returned
MIN_CLOSED: Final = 1_000  # connections and links that are over and not freed, before garbage is collected
MIN_OCTETS: Final = 1 << 20  # octets of deliveries that may be gone before memory is returned
MAX_SLACK: Final = 32 << 20  # octets that the process may hold beyond what is in use
CONNECTION: Final = 50 << 10  # octets of a connection, roughly
RETRY_TIME: Final = 60.0  # seconds until another attempt after memory that could not be returned
STATM: Final = Path("/proc/self/statm")


class Peaks(NamedTuple):
    """The highest figures of a router within a period."""

    connections: int
    octets: int
    """The memory of deliveries in flight, roughly."""


class RouterMemory:
    """The memory in use by a router: its connections and deliveries."""

    def __init__(self, core: Core, listeners: Sequence[Listener]) -> None:
        self._core = core
        self._listeners = listeners
        #: Connections and links that are over, and that the last collection did not free.
        self._kept = 0

    def peaks(self) -> Peaks:
        """Return the peaks since the last call."""
        connections = sum(each.most for each in self._listeners)
        for each in self._listeners:
            each.most = each.connections
        return Peaks(connections, self._core.most_held())

    def has_garbage(self) -> bool:
        """Return True if more connections and links than exist now are over, and are not freed.

        The references of an ended connection are cut, so that it is freed without a collection. This is for the case
        that something was forgotten: a peer that can make garbage could otherwise use up the memory.
        """
        garbage, there = self._core.count_garbage_and_present()
        self._kept = min(self._kept, garbage)
        if garbage - self._kept <= max(there, MIN_CLOSED):
            return False
        self._kept = garbage
        return True

    def compact(self) -> None:
        """Free the room of past deliveries and links, which is otherwise kept for new ones."""
        self._core.compact()


class HighWaterMark:
    """The peak of a figure since memory was last returned."""

    def __init__(self, least: int) -> None:
        """Args: least: a smaller amount is not returned."""
        self._least = least
        self._most = 0
        self._before = 0

    def has_fallen(self, now: int) -> bool:
        """Return True if less than half of the peak is left, and the figure no longer falls fast.

        The peak then restarts from the current figure. A fall of less than `least` is ignored.
        """
        before, self._before = self._before, now
        self._most = max(self._most, now)
        if self._most - now <= max(now, self._least) or before - now > self._least:
            return False
        self._most = now
        return True


class Slack:
    """The memory that the process holds beyond its own needs and what is in use."""

    def __init__(self) -> None:
        self._least: int | None = None
        self._untrimmable = 0
        self._retry_at = 0.0

    def is_large(self, resident: int, now: Peaks) -> bool:
        """Return True if much memory is free that can perhaps be returned.

        Memory that the last `trimmed` has found impossible to return does not count for `RETRY_TIME`.
        """
        slack = self._slack(resident, now)
        self._untrimmable = min(self._untrimmable, slack) if trio.current_time() < self._retry_at else 0
        return slack - self._untrimmable > MAX_SLACK

    def trimmed(self, resident: int, now: Peaks) -> None:
        """Note that memory was returned. What is still free lies between used memory, and cannot be returned."""
        self._untrimmable = self._slack(resident, now)
        self._retry_at = trio.current_time() + RETRY_TIME

    def _slack(self, resident: int, now: Peaks) -> int:
        more = resident - now.octets - now.connections * CONNECTION
        self._least = more if self._least is None else min(self._least, more)
        return more - self._least


async def return_free_memory(memory: RouterMemory) -> Never:
    """Return free memory to the system, once less than half of the peak is in use, or much is free anyway.

    The C library keeps freed memory, and returned memory must be allocated again when load returns. So only a large
    amount is worth the cost, and nothing is returned while much is still closing. Garbage is collected only if there is
    much of it: a collection takes time in proportion to all objects.
    """
    connections, octets, slack = HighWaterMark(MIN_CONNECTIONS), HighWaterMark(MIN_OCTETS), Slack()
    with freezing_old_objects():
        while True:
            await trio.sleep(INTERVAL)
            now = memory.peaks()
            left, settled = connections.has_fallen(now.connections), octets.has_fallen(now.octets)
            littered = memory.has_garbage()
            if littered:
                collect()
            if left or littered or settled or slack.is_large(resident(), now):
                memory.compact()
                trim()
                slack.trimmed(resident(), now)


@contextmanager
def freezing_old_objects() -> Iterator[None]:
    """Treat objects that survived two collections as permanent within the block: only `collect` looks at them.

    Nothing is relayed during a collection. A link is ten objects, and a collection over all of 100,000 links takes a
    second. This concerns the whole process.
    """

    def searched(phase: str, info: Mapping[str, int]) -> None:
        if phase == "stop" and info["generation"]:
            gc.freeze()

    gc.callbacks.append(searched)
    try:
        yield
    finally:
        gc.callbacks.remove(searched)
        gc.unfreeze()


def collect() -> None:
    """Collect garbage among all objects."""
    gc.unfreeze()
    gc.collect()


def resident() -> int:
    """Return the resident memory of the process in octets; 0 if the system does not say."""
    try:
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def trim() -> bool:
    """Return the C library's free pages to the system (malloc_trim(3)). Returns: True if the C library can do that."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        say = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # a static interpreter, or musl, which has no malloc_trim
        return False
    say(ctypes.c_size_t(0))
    return True
