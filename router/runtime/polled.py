"""A connection over a socket that the router's poller waits for; its own task sleeps from the beginning to the end."""

from typing import Final

import trio

from amqpmesh.router.io.streams import READ_SIZE, DirectStream
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.router.runtime.credentials import Credentials
from amqpmesh.router.runtime.driver import Driver
from amqpmesh.router.runtime.poller import READABLE, WRITABLE, Poller
from amqpmesh.router.runtime.transport import LEAST_SLICE, Transport

LARGEST_READ: Final = 2**19
"""Octets that are read at once at most, from a peer that always has more than was read. For twice as many the system
clears fresh memory each time, page by page: messages of 1 MiB then cost half as much again."""

LARGEST_READ_IN_MESH: Final = 2**18
"""The same for a router of a mesh: to a neighbour what is large leaves in smaller pieces, so that more at once saves
little, and others wait longer."""

UNREAD: Final = 2**23
"""Octets of all connections that may be read before the core is told of them. A turn may be over before all that was
read is told: with many turns to come less is read at once."""

PART_OF_UNREAD: Final = 8
"""What one read takes at most of what may be read yet, 1 / n."""

SMALL_READS: Final = 8
"""Reads that came to less than half of what they might, after which less is read at once: what comes in waves is read
wave by wave, with their ends in between."""


class PolledTransport(Transport):
    """Its stream is asked for bytes, and given some, whenever the system is ready for it."""

    _stream: DirectStream

    def __init__(
        self,
        driver: Driver,
        record: ConnectionRecord,
        stream: DirectStream,
        credentials: Credentials | None,
        poller: Poller,
    ) -> None:
        """Args: as of `Transport`."""
        super().__init__(driver, record, stream, credentials)
        self._poller = poller
        self._descriptor = stream.descriptor
        #: What it is polled for; None: it is not.
        self._events: int | None = None
        self._is_read = trio.Event()
        self._read_size = READ_SIZE
        self._largest_read = LARGEST_READ if driver.core.mesh is None else LARGEST_READ_IN_MESH
        self._small_reads = 0
        #: Taken from the core, and not by the system.
        self._unsent: memoryview | None = None
        #: What was read is not told on until an output has been written; and what was to be written there, where nobody
        #: had tried that yet.
        self._is_paused = False
        self._refused: bytearray | None = None
        record.engine.flow_state.patient = True

    def serve(self, until: float) -> bool:
        """As of `Polled`."""
        try:
            if self._unsent is not None:
                self._write_rest(self._unsent)
                if self._events is None:
                    return False
            more = not self._is_paused and self._read_on(until)
            if self._events != READABLE or self._is_writing or self._is_paused:
                self._update_events()
            if self._driver.has_paused_readers and not self._is_paused:  # who waits has not told what it said
                self._driver.heard(self._record)
        except Exception as error:
            self._fault(error)
            return False
        return more

    async def _read(self) -> None:
        while True:
            # Something may have been read with the handshake, of which the system knows nothing. It can be written to
            # at once, so it is served at once.
            self._poller.add(self._descriptor, self, READABLE | WRITABLE)
            self._events = READABLE | WRITABLE
            try:
                await self._is_read.wait()
            finally:
                self._stop_polling()
            if not self._pauses or not await self._resume():
                return
            self._is_read = trio.Event()

    @property
    def is_heavy(self) -> bool:
        """As of `Polled`."""
        return self._read_size > READ_SIZE or self._unsent is not None

    def _read_on(self, until: float) -> bool:
        """Read once, unless the core was not told of all yet. Returns: whether there is more to do without waiting."""
        record, stream = self._record, self._stream
        if self._has_work or self._unread:
            if self._refused is not None:
                is_told = self._receive_more_once_written(until)
            else:
                is_told = self._receive_more(until)
        elif self._is_writing and self._is_congested:
            return False
        else:
            room = (UNREAD - self._driver.unread) // PART_OF_UNREAD
            size = min(self._read_size, max(LEAST_SLICE, room))
            try:
                data = stream.receive_nowait(size)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                self._read_failed(error)
                data = b""
            if data is None:
                return False
            if not data:
                self._finish_reading()
                return False
            # The next is as large as these suggest.
            if size < self._read_size:
                pass
            elif len(data) == self._read_size:
                self._read_size = min(self._largest_read, 2 * self._read_size)
                self._small_reads = 0
            elif self._read_size > READ_SIZE and len(data) < self._read_size // 2:
                self._small_reads += 1
                if self._small_reads == SMALL_READS:
                    self._read_size //= 2
                    self._small_reads = 0
            is_told = self._receive(data, until)
        if not is_told:
            return not self._wait()
        if record.engine.finished or self._pauses:
            self._finish_reading()
            return False
        return stream.pending

    def _wait(self) -> bool:
        """Whether what comes next has to wait until others have been read from."""
        sink = self._record.engine.flow_state.waits_for
        if sink is None:
            return False
        if sink.out and not sink.sending:
            self._refused = sink.out
            return False
        self._is_paused = True
        self._driver.wait(self, sink)
        return True

    def _receive_more_once_written(self, until: float) -> bool:
        """As `_receive_more`, once an output should have left: if it could not, it is not waited for."""
        flow_state = self._record.engine.flow_state
        sink = flow_state.waits_for
        flow_state.patient = sink is None or sink.out is not self._refused
        self._refused = None
        try:
            return self._receive_more(until)
        finally:
            flow_state.patient = True

    def resume_reading(self) -> None:
        """As of `PausedReader`."""
        self._is_paused = False
        if self._events is not None:
            self._update_events()
            self._poller.serve_soon(self._descriptor)

    def _write(self, data: bytearray, now: float) -> None:
        sent = self._stream.send_nowait(data)
        if sent == len(data):
            self._driver.core.sent(self._record, now)
        else:
            self._set_unsent(memoryview(data)[sent:])
            self._driver.core.unsent(self._record)
            self._update_events()

    def _write_rest(self, rest: memoryview) -> None:
        """Write what is left of before."""
        try:
            sent = self._stream.send_nowait(rest)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._write_failed()
            return
        if sent < len(rest):
            self._set_unsent(rest[sent:])
            return
        self._set_unsent(None)
        self._driver.core.sent(self._record, self._now())
        self._driver.writable(self._record)

    def _set_unsent(self, rest: memoryview | None) -> None:
        self._unsent = rest
        self._is_writing = rest is not None

    async def _until_written(self) -> None:
        while self._unsent is not None:
            await self._stream.wait_send_all_might_not_block()
            if self._unsent is not None:
                self._write_rest(self._unsent)
            self._driver.settle()

    def _stop_writing(self) -> None:
        self._set_unsent(None)

    # ----------------------------------------------------------------------------------------------------- being polled

    def _update_events(self) -> None:
        """Be polled for what is waited for, and nothing else."""
        if self._events is None:
            return
        events = (0 if self._is_paused or self._is_congested else READABLE) | (0 if self._unsent is None else WRITABLE)
        if events != self._events:
            self._events = events
            self._poller.change(self._descriptor, events)

    def _stop_polling(self) -> None:
        """Be polled no more."""
        if self._events is not None:
            self._events = None
            self._poller.remove(self._descriptor)

    def _finish_reading(self) -> None:
        """There is nothing to be read any more, or not so: the task goes on."""
        self._stop_polling()
        self._is_read.set()

    def _stop_reading(self) -> None:
        super()._stop_reading()
        self._stop_polling()

    def _write_failed(self) -> None:
        super()._write_failed()
        self._set_unsent(None)

    def _fault(self, error: Exception) -> None:
        super()._fault(error)
        self._stop_polling()
