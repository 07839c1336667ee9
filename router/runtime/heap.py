"""Memory that connections and deliveries had, for the system again."""

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

INTERVAL: Final = 1.0  # seconds
MIN_CONNECTIONS: Final = 100  # connections that may leave before anything is done about it
MIN_CLOSED: Final = 1_000  # connections and links that may be gone before what they left is looked for
MIN_OCTETS: Final = 1 << 20  # octets of deliveries that may be gone before
MAX_SLACK: Final = 32 << 20  # octets that may be free in the process, beside what is held
CONNECTION: Final = 50 << 10  # octets of a connection, about
RETRY_TIME: Final = 60.0  # seconds after which what could not be given back is tried once more
STATM: Final = Path("/proc/self/statm")


class Peaks(NamedTuple):
    """The most that a router had at once."""

    connections: int
    octets: int
    """What deliveries under way took, about."""


class RouterMemory:
    """What a router holds: connections, and deliveries."""

    def __init__(self, core: Core, listeners: Sequence[Listener]) -> None:
        self._core = core
        self._listeners = listeners
        self._gone = 0

    def peaks(self) -> Peaks:
        """Those since this was last asked."""
        connections = sum(each.most for each in self._listeners)
        for each in self._listeners:
            each.most = each.connections
        return Peaks(connections, self._core.most_held())

    def has_garbage(self) -> bool:
        """Whether as many connections and links are gone as there are, since this was last so."""
        gone, there = self._core.passed()
        if gone - self._gone <= max(there, MIN_CLOSED):
            return False
        self._gone = gone
        return True

    def compact(self) -> None:
        """Let go of the room that deliveries and links had, which stays for the next ones else."""
        self._core.compact()


class HighWaterMark:
    """How much of something there was at most, until that was given back."""

    def __init__(self, little: int) -> None:
        """Args: little: of it nothing needs to be given back."""
        self._little = little
        self._most = 0
        self._before = 0

    def has_fallen(self, now: int) -> bool:
        """Whether more is gone than is there now, and little since this was last asked. If so it begins anew."""
        before, self._before = self._before, now
        self._most = max(self._most, now)
        if self._most - now <= max(now, self._little) or before - now > self._little:
            return False
        self._most = now
        return True


class Slack:
    """How much more memory the process has than is held, beyond what it has for itself."""

    def __init__(self) -> None:
        self._least: int | None = None
        self._untrimmable = 0
        self._retry_at = 0.0

    def is_large(self, resident: int, now: Peaks) -> bool:
        """Whether much is free that was not when what is free was `trimmed`, or that was so a while ago."""
        slack = self._slack(resident, now)
        self._untrimmable = min(self._untrimmable, slack) if trio.current_time() < self._retry_at else 0
        return slack - self._untrimmable > MAX_SLACK

    def trimmed(self, resident: int, now: Peaks) -> None:
        """What is there yet is in pieces that nobody can give back, as long as what lies between them stays."""
        self._untrimmable = self._slack(resident, now)
        self._retry_at = trio.current_time() + RETRY_TIME

    def _slack(self, resident: int, now: Peaks) -> int:
        more = resident - now.octets - now.connections * CONNECTION
        self._least = more if self._least is None else min(self._least, more)
        return more - self._least


async def return_free_memory(memory: RouterMemory) -> Never:
    """Give what is free to the system, once less is there than has gone since most was, or much is free anyway.

    What was a connection refers to itself in parts, and is found as garbage at some time; the C library keeps what is
    free. Looking takes as long as there is much to look at, and what is given back is had anew when it comes again: so
    it must be worth that, and waits as long as much leaves.
    """
    connections, octets, slack = HighWaterMark(MIN_CONNECTIONS), HighWaterMark(MIN_OCTETS), Slack()
    with freezing_old_objects():
        while True:
            await trio.sleep(INTERVAL)
            now = memory.peaks()
            left, settled = connections.has_fallen(now.connections), octets.has_fallen(now.octets)
            littered = memory.has_garbage()
            if left or littered:
                collect()
            if left or littered or settled or slack.is_large(resident(), now):
                memory.compact()
                trim()
                slack.trimmed(resident(), now)


@contextmanager
def freezing_old_objects() -> Iterator[None]:
    """Within it, what a search for garbage has twice found in use is taken for what stays: `collect` alone looks at it.

    Nothing is relayed while garbage is looked for. A link is ten objects, and a search that looks at all of 100,000
    links takes a second. It concerns the whole process.
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
    """Look for garbage among all objects."""
    gc.unfreeze()
    gc.collect()


def resident() -> int:
    """Octets of memory that the process has now; 0 where the system does not say."""
    try:
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def trim() -> bool:
    """Have the C library give its free pages back (malloc_trim(3)). Returns: whether there is a way to say so to it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        say = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # linked into the interpreter, or musl, which has none
        return False
    say(ctypes.c_size_t(0))
    return True
