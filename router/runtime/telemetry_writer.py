"""A router's telemetry on its way to the disk: a thread writes, and the event loop never waits for it.

The loop fills blocks of hop records, and the thread empties them. If the thread is too slow, no block is free, and
records are lost and counted. A failing disk, or a directory that cannot be created, is logged now and then and tried
again: it never stops the router from relaying.
"""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections import deque
from functools import partial
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, Final

import trio

from amqpmesh.router.kernel import Recorder
from amqpmesh.router.logs import event_log
from amqpmesh.router.runtime.segment_files import SegmentFiles
from amqpmesh.router.telemetry.live_segments import LiveSegments
from amqpmesh.router.telemetry.recording import ALL
from amqpmesh.router.telemetry.schema import UNIT_OCTETS, Kind
from amqpmesh.router.telemetry.segments import AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from amqpmesh.router.config.observability import TelemetryConfig
    from amqpmesh.router.core import Core
    from amqpmesh.router.runtime.telemetry_publisher import TelemetryPublisher

BLOCK: Final = 65_536
"""Units of hop records in a block. Waking the thread costs as much as storing thousands of them, so blocks
are large.
"""

BLOCKS: Final = 2
"""Blocks at least: one is filled while another is written."""

RECORDS: Final = 50_000
"""Map records that may wait to be written; further ones are lost."""

STEP: Final = 100
"""Links that are told without a pause, at the beginning of a recording of a router that runs."""

PAUSE: Final = 0.01
"""Seconds between two looks whether the thread has written enough of what is to be told at the beginning."""

TOLD: Final = 10.0
"""Seconds between two log lines about lost records."""

CLOSE: Final = 2e-6
"""Seconds between two readings of clocks that count as simultaneous."""

LOOKS: Final = 10
"""Attempts at such readings at most."""

END_TIME: Final = 5.0
"""Seconds that the disk has for the rest when the router ends."""

log = event_log.EventLog("amqpmesh.telemetry")


class TelemetryWriter:
    """The writer of one router's records, from `begin` until `end`."""

    def __init__(
        self, config: TelemetryConfig, router: str, wall_clock: Callable[[], float], publisher: TelemetryPublisher
    ) -> None:
        """Args: wall_clock: seconds since 1970. publisher: of the records, if they are to be messages, too."""
        self.config = config
        self._router = router
        self._publisher = publisher
        #: The segments of those who listen, and the keys of their tenants; None: the records are on the disk alone.
        self._live: LiveSegments | None = None
        self._live_numbers: dict[tuple[str, Kind], int] = {}
        self._secret = token_bytes(64)
        publisher.limit(config.memory)
        self._wanted: Collection[str] = ()
        self._wall_clock = wall_clock
        self._epoch = round(wall_clock() * 1000)
        self._files = SegmentFiles(config, router, self._epoch, round(config.sample * ALL))
        self._follow(config, 0)
        self._free = deque(
            array("Q", bytes(UNIT_OCTETS * BLOCK)) for _ in range(max(BLOCKS, config.memory // (UNIT_OCTETS * BLOCK)))
        )
        #: The thread's work, each with its time, nanoseconds since 1970.
        self._waiting: deque[tuple[int, Callable[[int], None]]] = deque()
        #: Map records of the next blocks, by kind. `_accepted_records` counts those that the loop has accepted,
        #: `_written_records` those that the thread has written.
        self._gathered: dict[Kind, list[dict[str, Any]]] = {}
        #: Lost map records of each kind, for want of room.
        self._missed: dict[Kind, int] = {}
        self._ended_links: list[int] = []
        self._accepted_records = 0
        self._written_records = 0
        self._filled = threading.Event()
        #: `_is_over`: nothing more is recorded. `_ends`: the thread ends when all is written.
        self._is_over = False
        self._ends = False
        self._thread = threading.Thread(target=self._write, name=f"telemetry of {router}", daemon=True)
        #: Map records lost for want of room; and the disk's last error.
        self._lost = 0
        self._failure: str | None = None

    def begin(self, core: Core) -> None:
        """Record from now on."""
        self._run_write(
            self._now(), self._files.begin
        )  # in this thread: an earlier life's segment is closed before this router listens
        self._prepare(core)
        self._recording.begin()

    async def join(self, core: Core) -> None:
        """Record from now on, while the router runs: first the links that are there, which records name by numbers."""
        self._enqueue(self._files.begin)
        self._prepare(core)
        for record in list(core.context.connections):
            links = [*record.incoming, *record.outgoing, *record.detached_unsettled]
            for at in range(0, len(links), STEP):
                for link in links[at : at + STEP]:
                    self._recording.introduce(link)
                self._hand_over()
                self._filled.set()
                await trio.lowlevel.checkpoint()
                while self._accepted_records - self._written_records > RECORDS // 2 and not self._is_over:
                    await trio.sleep(PAUSE)
                if self._is_over:
                    return
        self._recording.begin()

    def _prepare(self, core: Core) -> None:
        clock = trio.lowlevel.current_clock()
        # Trio's clock is the performance counter, shifted: reading that directly costs a third.
        shift = getattr(clock, "offset", None)
        recorder = Recorder(time.perf_counter if shift is not None else clock.current_time)
        recorder.shift = shift or 0.0
        self._recorder = recorder
        self._context = core.context
        self._set_base()
        self._recording = core.record(recorder, self.config, self, self._epoch)
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing more: `end` follows."""
        self._is_over = True

    def can_become(self, config: TelemetryConfig) -> bool:
        """Tell whether `change` can follow another configuration."""
        return (config.directory, config.memory) == (self.config.directory, self.config.memory)

    def change(self, config: TelemetryConfig) -> None:
        """Record by another configuration from now on, in segments of its own.

        Args: config: with the same directory and memory.
        """
        self._recording.flush()
        self._recording.change(config)
        self._hand_over()
        self._enqueue(partial(self._files.change, config, round(config.sample * ALL)))
        self._enqueue(partial(self._follow, config))
        self._filled.set()
        self.config = config
        if not config.publish:
            self._publisher.rest()

    async def run(self) -> None:
        """Pass records to the thread, again and again, until `end`."""
        began_at = counted_at = trio.current_time()
        told_at = -math.inf
        segment = lost = 0
        while True:
            await trio.sleep(self.config.flush)
            if self._is_over:
                return
            self._set_base()
            now = trio.current_time()
            if segment != self._files.number:
                segment, began_at = self._files.number, now
                self._recording.whole_graph()
            if now - counted_at >= self.config.counts:
                counted_at = now
                for record in list(self._context.connections):
                    self._recording.counts(record)
                    await trio.lowlevel.checkpoint()
                    if self._is_over:
                        return
            self._recording.flush()
            self._hand_over()
            if self.config.publish:
                self._wanted = await self._publisher.wanted()
                if self._is_over:
                    return
                self._recording.unpublished = self._publisher.dropped
                self._enqueue(self._publish)
            if now - began_at >= self.config.segment_time:
                self._enqueue(self._files.close)
            self._filled.set()
            so_far = self._recorder.lost + self._files.refused + self._files.unwritten + self._lost
            if (so_far != lost or self._failure) and now - told_at >= TOLD:
                told_at = now
                log.warning("telemetry lost", records=so_far - lost, reason=self._failure or "no room")
                lost, self._failure = so_far, None

    async def end(self) -> None:
        """Write all records and close the segment, within `END_TIME`."""
        # Records after the end would open a segment that is never closed.
        self._is_over = True
        for record in list(self._context.connections):
            self._recording.counts(record)
        await self._close()

    async def leave(self) -> None:
        """Do the same while the router runs on, in small steps."""
        self._is_over = True
        self._publisher.rest()
        for record in list(self._context.connections):
            self._recording.counts(record)
            self._hand_over()
            self._filled.set()
            await trio.lowlevel.checkpoint()
        await self._close()

    async def _close(self) -> None:
        self._recording.end()
        self._context.recording = None
        self._hand_over()
        self._enqueue(self._files.close)
        self._ends = True
        self._filled.set()
        await trio.to_thread.run_sync(self._thread.join, END_TIME)
        if self._thread.is_alive():
            log.warning("telemetry lost", reason="the disk takes too long")

    # ---------------------------------------------------------------------------------------------------- from the loop

    def take(self, kind: Kind, records: list[dict[str, Any]]) -> None:
        """Accept records of one kind, in order."""
        if not records:
            return
        if self._accepted_records - self._written_records + len(records) > RECORDS:
            self._lost += len(records)
            self._missed[kind] = self._missed.get(kind, 0) + len(records)
            return
        self._accepted_records += len(records)
        self._gathered.setdefault(kind, []).extend(records)

    def gone(self, number: int) -> None:
        """Note that the number of a link or address has ended."""
        self._ended_links.append(number)

    def take_hops(self, words: array[int], used: int, first: int, count: int) -> array[int] | None:
        """Accept hop records. Returns: a block for the next ones; None: no block is free."""

        def write(now: int) -> None:
            octets = memoryview(words).cast("B")[: 8 * used]
            try:
                if self._live is not None and self._wanted:
                    self._live.take_hops(octets, first, count)
                self._files.dropped = self._recorder.lost
                self._files.take_hops(octets, first, count, now)
            finally:
                self._free.append(words)

        self._hand_over()
        self._enqueue(write)
        self._filled.set()
        return self.room()

    def room(self) -> array[int] | None:
        """Return a free block; None: there is none."""
        # The block written last: it is still in the processor's cache.
        return self._free.pop() if self._free else None

    def _hand_over(self) -> None:
        """Enqueue the gathered records: they may explain the hop records that follow."""
        for kind, records in self._gathered.items():
            self._enqueue(partial(self._take, kind, records))
        self._gathered.clear()
        for kind, count in self._missed.items():
            self._enqueue(partial(self._miss, kind, count))
        self._missed.clear()
        if self._ended_links:
            gone, self._ended_links = self._ended_links, []
            self._enqueue(lambda _: self._forget(gone))

    def _enqueue(self, write: Callable[[int], None]) -> None:
        self._waiting.append((self._now(), write))

    def _set_base(self) -> None:
        """Set the recorder's base from the wall clock, which may have been changed."""
        # The process may be suspended between two readings: those closest to each other count.
        closest = math.inf
        for _ in range(LOOKS):
            before = trio.current_time()
            now = self._now()
            after = trio.current_time()
            if after - before < closest:
                closest = after - before
                self._recorder.base = now - round((before + after) / 2 * 1e9)
            if closest < CLOSE:
                break

    def _now(self) -> int:
        return round(self._wall_clock() * 1e9)

    # -------------------------------------------------------------------------------------------------- from the thread

    def _write(self) -> None:
        while not (self._ends and not self._waiting):
            self._filled.wait()
            self._filled.clear()
            while self._waiting:
                now, write = self._waiting.popleft()
                self._run_write(now, write)
                if self._live is not None and self._live.is_due:
                    self._run_write(now, self._publish)
                if self._files.is_due:
                    self._run_write(now, self._files.close)

    def _run_write(self, now: int, write: Callable[[int], None]) -> None:
        try:
            write(now)
        except OSError as error:
            self._failure = f"{error.filename or self.config.directory}: {error.strerror}"
        except Exception as error:  # an internal error: only these records are lost
            log.error("internal error", exception=error)

    def _take(self, kind: Kind, records: list[dict[str, Any]], now: int) -> None:
        self._written_records += len(records)
        if self._live is not None:
            first = self._files.next_number(kind)
            for at in range(0, len(records), AT_ONCE):  # a hundred thousand links may have been counted at once
                self._live.take(kind, first + at, records[at : at + AT_ONCE], wanted=bool(self._wanted))
                if self._live.is_due:
                    self._publish(now)
        self._files.take(kind, records, now)

    def _forget(self, numbers: list[int]) -> None:
        self._files.forget(numbers)
        if self._live is not None:
            self._live.forget(numbers)

    def _follow(self, config: TelemetryConfig, _: int) -> None:
        """Make segments for those who listen, or none, as the configuration says."""
        sample = round(config.sample * ALL)
        if not config.publish:
            self._live = None
        elif self._live is None:
            known = self._files.links
            self._live = LiveSegments(self._router, self._epoch, sample, known, self._live_numbers, self._secret)
        else:
            self._live.sample = sample

    def _publish(self, now: int) -> None:
        """Offer what was recorded to those who listen."""
        if self._live is not None:
            dropped = self._files.dropped + self._files.refused
            for tenant, name, octets in self._live.close(now, self._wanted, dropped, self._publisher.key):
                self._publisher.offer(tenant, name, octets)

    def _miss(self, kind: Kind, count: int, _: int) -> None:
        self._files.lose(kind, count)
