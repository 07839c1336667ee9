"""The only caller of the core: it passes on input and time, then writes the output that follows."""

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

import trio

from amqpmesh.policies.tenants import Tenant
from amqpmesh.router.core import Core
from amqpmesh.router.io.environment import environment
from amqpmesh.router.io.streams import BATCH_TIME
from amqpmesh.router.kernel import IMPATIENCE, LONGEST, PATIENCE, FastRoute, KernelConnection, may_go_on
from amqpmesh.router.logs import event_log
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.router.runtime.passwords import Passwords
from amqpmesh.router.runtime.shares import SLICE as SHARED_SLICE

log = event_log.EventLog("amqpmesh.io")

TURNS = 16
"""Connections that start or end in a row before open ones get their turn: thousands may come at once."""

LEAST_SLICE = 8 * 2**10
LEAST_SHARED_SLICE = 2**10
"""Octets of input that are passed to the core without a look at the clock: some milliseconds of small messages if the
kernel is not compiled. The second holds where tenants contend for time.
"""

MOST_SENT = 25
"""Deliveries that have waited, and that one turn sends where tenants contend for time: some milliseconds of work."""

DECISION = 20
"""Deliveries that one counts as, in the turn of its connection, that the router decides about where tenants contend."""

SLICE = 0.02
"""Seconds of work that is too long for one turn, such as the loss of thousands of links, before other
tasks continue.
"""

FAULT_PAUSE = 1.0
"""Seconds before timers continue after an internal error in one of them: the next may be due at once."""


class Output(Protocol):
    """The output of one connection."""

    def flush(self, now: float) -> None:
        """Write what the core has, without waiting; never raise. Args: now: Trio's time."""

    def share(self, tenant: Tenant) -> None:
        """Count the time that the connection takes as its tenant's."""

    @property
    def is_acknowledged(self) -> bool:
        """True if the peer's system has received all that was written; False: it has not, or nothing can tell."""


class PausedReader(Protocol):
    """A reader of a connection whose next input waits until an output has been written."""

    def resume_reading(self) -> None:
        """Continue: the output has been written, or that has taken too long."""


class Driver:
    """The core's driver. Each call of the core ends with `settle`: one write for each connection, and a new alarm."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.passwords = Passwords(core.context)
        self._outputs: dict[ConnectionRecord, Output] = {}
        #: The connections so far.
        self._connections = 0
        #: Connections with output to write.
        self._ready: dict[ConnectionRecord, None] = {}
        self._alarm = trio.CancelScope()
        self._alarm_is_stale = False
        self._watches: dict[trio.Event, Callable[[], bool]] = {}
        #: Set while there is work to do in slices.
        self._has_chores = trio.Event()
        self._turns = trio.Semaphore(TURNS)
        #: The readers that wait for each output, and since when; and the time of the next check for overdue ones.
        self.paused: dict[KernelConnection, tuple[float, list[tuple[PausedReader, FastRoute | None]]]] = {}
        self._check_at = math.inf
        #: Octets that were read from all connections and not passed to the core yet.
        self.unread = 0
        #: The seconds that one slice of input may take, and its least octets; see `Transport`.
        self.slice_seconds = BATCH_TIME
        self.least_slice = LEAST_SLICE
        #: The clock that limits the time of turns, seconds.
        self.stopwatch = environment().stopwatch
        self._now = trio.lowlevel.current_clock().current_time
        core.context.on_tenant = self._share
        core.context.on_output = self._ready.setdefault
        core.context.on_timer = self._timer_changed
        core.context.is_acknowledged = self._is_acknowledged

    async def turn(self) -> None:
        """Wait until one more connection may start or end. Cancellation does not interrupt it."""
        with trio.CancelScope(shield=True):
            async with self._turns:
                await trio.lowlevel.checkpoint()

    def connect(self, record: ConnectionRecord, output: Output) -> None:
        """Register the output of a connection."""
        self._connections += 1
        self._outputs[record] = output
        self._ready[record] = None

    def _share(self, record: ConnectionRecord, tenant: Tenant) -> None:
        self.slice_seconds, self.least_slice = SHARED_SLICE, LEAST_SHARED_SLICE
        self.core.context.most_sent, self.core.context.decision = MOST_SENT, DECISION
        output = self._outputs.get(record)
        if output is not None:
            output.share(tenant)

    def writable(self, record: ConnectionRecord) -> None:
        """Let a connection write again: the output that has gathered meanwhile leaves with the next `settle`."""
        self._ready[record] = None
        self._resume_readers(record.engine.flow_state, at_once=False)

    def heard(self, record: ConnectionRecord) -> None:
        """Resume the readers that wait for this connection: its peer has sent octets, perhaps for a wider window."""
        self._resume_readers(record.engine.flow_state, at_once=False)

    def wait(self, reader: PausedReader, sink: KernelConnection, route: FastRoute | None = None) -> None:
        """Pause a reader until more can be written to a connection, for `PATIENCE` seconds at most.

        Args: route: it waits until this route can take a delivery, and so do all others on its connection. It waits for
            `LONGEST` at most, which begins again when others go on by the route.
        """
        _, readers = self.paused.setdefault(sink, (trio.current_time(), []))
        readers.append((reader, route))
        self._schedule_overdue()

    def _resume_overdue(self) -> None:
        """Resume readers that have waited too long for a slow output."""
        now = trio.current_time()
        for sink, (since, readers) in tuple(self.paused.items()):
            if since + _patience(readers) <= now:
                sink.slow_until = now + IMPATIENCE
                self._resume_readers(sink)
        self._check_at = math.inf
        self._schedule_overdue()

    def _schedule_overdue(self) -> None:
        at = min((since + _patience(readers) for since, readers in self.paused.values()), default=math.inf)
        if at < self._check_at:
            self._check_at = at
            self.core.context.schedule(at, partial(self._check_overdue, at))

    def _check_overdue(self, at: float) -> None:
        if at == self._check_at:  # else another check was scheduled instead, or has done this one's work
            self._resume_overdue()

    def _resume_readers(self, sink: KernelConnection, *, at_once: bool = True) -> None:
        """Resume the readers that wait for a connection. Args: at_once: those of routes that are not ready, too."""
        waiting = self.paused.pop(sink, None)
        if waiting is None:
            return
        since, readers = waiting
        going = readers
        staying: list[tuple[PausedReader, FastRoute | None]] = []
        if not at_once:
            kernel = self.core.context.kernel
            going = []
            for each in readers:
                route = each[1]
                (going if route is None or may_go_on(kernel, route) else staying).append(each)
        if staying:
            self.paused[sink] = trio.current_time() if going else since, staying
        for reader, _ in going:
            reader.resume_reading()

    def lost(self, record: ConnectionRecord) -> None:
        """End a connection after its transport has ended."""
        del self._outputs[record]
        self._ready.pop(record, None)
        self._resume_readers(record.engine.flow_state)
        try:
            self.core.receive_eof(record, trio.current_time())
        except Exception as error:
            log.error("internal error", exception=error, connection=record.number)
        self.settle()

    def settle(self, seconds: float = math.inf) -> bool:
        """Write the core's output until there is no more.

        Args: seconds: of work, by the stopwatch, after which new output is left for the next call: while one large
            delivery is written in parts, other connections wait.
        Returns: True if output is left; then call again soon.
        """
        ready = self._ready
        if ready:
            now = self._now()
            outputs = self._outputs
            until = self.stopwatch() + seconds
            while ready:
                records = tuple(ready)
                ready.clear()
                for record in records:
                    output = outputs.get(record)
                    if output is not None:
                        output.flush(now)
                if ready and self.stopwatch() > until:
                    break
        if self.core.context.chores.left:
            self._has_chores.set()
        if self._alarm_is_stale:
            self._alarm_is_stale = False
            at = self._next_timer()
            if at < self._alarm.deadline:  # an alarm that comes too early does no harm
                self._alarm.deadline = at
        if self._watches:
            for event, condition in self._watches.items():
                if condition():
                    event.set()
        return bool(ready)

    async def run_timers(self) -> None:
        """Call the core when its timers are due. Never ends."""
        while True:
            with trio.CancelScope(deadline=self._next_timer()) as self._alarm:
                await trio.sleep_forever()
            try:
                self.core.handle_timer(trio.current_time())
            except Exception as error:
                log.error("internal error", exception=error)
                await trio.sleep(FAULT_PAUSE)
            self.settle()

    async def run_chores(self) -> None:
        """Have the core do long work, one slice at a time. Never ends."""
        while True:
            await self._has_chores.wait()
            self._do_slice()
            await trio.lowlevel.checkpoint()

    def finish_chores(self) -> None:
        """Do all long work now: no other task is served any more."""
        while self.core.context.chores:
            self._do_slice()

    def _do_slice(self) -> None:
        self._has_chores = trio.Event()
        until = self.stopwatch() + SLICE
        try:
            self.core.work(trio.current_time(), lambda: self.stopwatch() > until)
        except Exception as error:
            log.error("internal error", exception=error)
        self.settle()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that calls of the core bring about, for instance that nothing is unsettled."""
        event = trio.Event()
        if condition():
            event.set()
        self._watches[event] = condition
        try:
            await event.wait()
        finally:
            del self._watches[event]

    @property
    def endpoints(self) -> int:
        """The number of connections and links that have come or gone so far."""
        context = self.core.context
        return self._connections + context.links_made + context.freed.count

    @property
    def is_idle(self) -> bool:
        """True if there is no connection."""
        return not self._outputs

    def _is_acknowledged(self, record: ConnectionRecord) -> bool:
        output = self._outputs.get(record)
        return output is not None and not record.unwritten and output.is_acknowledged

    def _next_timer(self) -> float:
        at = self.core.next_timer()
        return math.inf if at is None else at

    def _timer_changed(self) -> None:
        self._alarm_is_stale = True


def _patience(readers: list[tuple[PausedReader, FastRoute | None]]) -> float:
    """Return for how many seconds readers of the same output wait at most."""
    return PATIENCE if any(route is None for _, route in readers) else LONGEST
