"""The core's only caller: tells it what came and how late it is, then lets out what that produced."""

import math
from collections.abc import Callable
from typing import Protocol

import trio

from amqpmesh.router.core import Core
from amqpmesh.router.io.environment import environment
from amqpmesh.router.kernel import IMPATIENCE, PATIENCE, KernelConnection
from amqpmesh.router.logs import event_log
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.router.runtime.passwords import Passwords

log = event_log.EventLog("amqpmesh.io")

TURNS = 16
"""Connections that come or go in a row, before those that are there get their turn: thousands may at once."""

SLICE = 0.02
"""Seconds of work that is too much for one turn, such as a parting of thousands of links, before others have theirs."""

FAULT_PAUSE = 1.0
"""Seconds before timers go on after a fault of ours in one: another may be due at once."""


class Output(Protocol):
    """Where the bytes of one connection leave."""

    def flush(self, now: float) -> None:
        """Let out what there is, without waiting; never raises. Args: now: Trio's time."""

    @property
    def is_acknowledged(self) -> bool:
        """Whether the peer's system has all that was let out; False: it has not, or nobody can tell."""


class PausedReader(Protocol):
    """Who has told the core of bytes of which some wait until an output has been written."""

    def resume_reading(self) -> None:
        """It was, or that has taken too long: tell the rest."""


class Driver:
    """Every call of the core ends with `settle`: outputs leave in one write per connection, the alarm is set anew."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.passwords = Passwords(core.config)
        self._outputs: dict[ConnectionRecord, Output] = {}
        #: Connections with something to let out.
        self._ready: dict[ConnectionRecord, None] = {}
        self._alarm = trio.CancelScope()
        self._alarm_is_stale = False
        self._watches: dict[trio.Event, Callable[[], bool]] = {}
        #: There is something to be done in slices.
        self._has_chores = trio.Event()
        self._turns = trio.Semaphore(TURNS)
        #: Who waits for which output, and since when; and whether that is looked at soon.
        self._paused: dict[KernelConnection, tuple[float, list[PausedReader]]] = {}
        self._is_scheduled = False
        #: Octets that were read of connections, and that the core was not told of yet.
        self.unread = 0
        self._stopwatch = environment().stopwatch
        core.on_output = self._ready.setdefault
        core.on_timer = self._timer_changed
        core.is_acknowledged = self._is_acknowledged

    async def turn(self) -> None:
        """Wait until one more connection may come or go. Not to be cancelled."""
        with trio.CancelScope(shield=True):
            async with self._turns:
                await trio.lowlevel.checkpoint()

    def connect(self, record: ConnectionRecord, output: Output) -> None:
        """From now on, what there is to send to a connection is let out there."""
        self._outputs[record] = output
        self._ready[record] = None

    def writable(self, record: ConnectionRecord) -> None:
        """A connection can be written to again: what has gathered meanwhile leaves with the next `settle`."""
        self._ready[record] = None
        self._resume_readers(record.engine.flow_state)

    @property
    def has_paused_readers(self) -> bool:
        """Whether somebody waits until more can be written to a connection."""
        return bool(self._paused)

    def heard(self, record: ConnectionRecord) -> None:
        """The peer of a connection has said something: its windows may be wider."""
        self._resume_readers(record.engine.flow_state)

    def wait(self, reader: PausedReader, sink: KernelConnection) -> None:
        """Have somebody go on once more may be written to a connection, or it is lost, or that has taken too long."""
        _, readers = self._paused.setdefault(sink, (trio.current_time(), []))
        readers.append(reader)
        self._schedule_overdue()

    def _resume_overdue(self) -> None:
        """Who reads too slowly is not waited for any longer."""
        now = trio.current_time()
        for sink, (since, _) in tuple(self._paused.items()):
            if since + PATIENCE <= now:
                sink.slow_until = now + IMPATIENCE
                self._resume_readers(sink)
        self._is_scheduled = False
        self._schedule_overdue()

    def _schedule_overdue(self) -> None:
        if self._paused and not self._is_scheduled:
            self._is_scheduled = True
            self.core.schedule(min(since for since, _ in self._paused.values()) + PATIENCE, self._resume_overdue)

    def _resume_readers(self, sink: KernelConnection) -> None:
        _, readers = self._paused.pop(sink, (0.0, ()))
        for each in readers:
            each.resume_reading()

    def lost(self, record: ConnectionRecord) -> None:
        """The transport of a connection has ended."""
        del self._outputs[record]
        self._ready.pop(record, None)
        self._resume_readers(record.engine.flow_state)
        try:
            self.core.receive_eof(record, trio.current_time())
        except Exception as error:
            log.error("internal error", exception=error, connection=record.number)
        self.settle()

    def settle(self, seconds: float = math.inf) -> bool:
        """Let out what the core has to send, until it has nothing more.

        Args: seconds: of work, by the stopwatch, after which what follows from that is left for the next time: large
            deliveries go on whenever some of them has left, while others wait.
        Returns: whether something is left; then call again soon.
        """
        ready = self._ready
        if ready:
            now = trio.current_time()
            outputs = self._outputs
            until = self._stopwatch() + seconds
            while ready:
                records = tuple(ready)
                ready.clear()
                for record in records:
                    output = outputs.get(record)
                    if output is not None:
                        output.flush(now)
                if ready and self._stopwatch() > until:
                    break
        if self.core.chores:
            self._has_chores.set()
        if self._alarm_is_stale:
            self._alarm_is_stale = False
            self._alarm.deadline = self._next_timer()
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
        """Have the core do what was too much for one turn, a slice at a time. Never ends."""
        while True:
            await self._has_chores.wait()
            self._do_slice()
            await trio.lowlevel.checkpoint()

    def finish_chores(self) -> None:
        """Have all of that done now: nobody else is served any more."""
        while self.core.chores:
            self._do_slice()

    def _do_slice(self) -> None:
        self._has_chores = trio.Event()
        until = self._stopwatch() + SLICE
        try:
            self.core.work(trio.current_time(), lambda: self._stopwatch() > until)
        except Exception as error:
            log.error("internal error", exception=error)
        self.settle()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what calls of the core bring about, such as that nothing is unsettled."""
        event = trio.Event()
        if condition():
            event.set()
        self._watches[event] = condition
        try:
            await event.wait()
        finally:
            del self._watches[event]

    @property
    def is_idle(self) -> bool:
        """Whether there is no connection."""
        return not self._outputs

    def _is_acknowledged(self, record: ConnectionRecord) -> bool:
        output = self._outputs.get(record)
        return output is not None and not record.unwritten and output.is_acknowledged

    def _next_timer(self) -> float:
        at = self.core.next_timer()
        return math.inf if at is None else at

    def _timer_changed(self) -> None:
        self._alarm_is_stale = True
