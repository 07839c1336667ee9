"""A connection over a socket that the router's poller serves; its own task sleeps until the connection ends."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router.io.streams import READ_SIZE, DirectStream, LayeredStream
from amqpmesh.router.runtime.bridge import Bridge
from amqpmesh.router.runtime.driver import LEAST_SLICE
from amqpmesh.router.runtime.poller import READABLE, WRITABLE
from amqpmesh.router.runtime.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqpmesh.policies.tenants import Tenant
    from amqpmesh.router.amqp.events import Event
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.runtime.credentials import Credentials
    from amqpmesh.router.runtime.driver import Driver
    from amqpmesh.router.runtime.poller import Poller

LARGEST_READ: Final = 2**19
"""Octets of one read at most, from a peer that always has more. For reads of twice the size the system clears fresh
memory each time, page by page: messages of 1 MiB then cost half as much again.
"""

UNREAD: Final = 2**23
"""Octets of all connections that may be read and not yet passed to the core. A turn may end before all that was read is
passed on: if many such turns are due, less is read at once.
"""

PART_OF_UNREAD: Final = 8
"""One read takes at most 1 / n of the octets that may still be read."""

SMALL_READS: Final = 8
"""Reads in a row of less than half of the maximum, after which the maximum is halved. Traffic in waves is then read
wave by wave, with its ends in between.
"""


class PolledTransport(Transport):
    """A transport over a socket that is read and written when the poller reports it ready."""

    _stream: DirectStream
    #: Of a connection in TLS or a WebSocket that goes to another worker: this end of the socket that the worker gets.
    #: `_is_moved`: the worker has taken it. `_is_over`: it has ended here.
    _near: socket.socket | None = None
    _is_moved = False
    _is_over = False

    def __init__(
        self,
        driver: Driver,
        record: ConnectionRecord,
        stream: DirectStream,
        credentials: Credentials | None,
        poller: Poller,
    ) -> None:
        """Args: as for `Transport`."""
        super().__init__(driver, record, stream, credentials)
        self._poller = poller
        self._descriptor = stream.descriptor
        #: The events that it is polled for; None: it is not polled.
        self._events: int | None = None
        self._read_size = READ_SIZE
        self._small_reads = 0
        #: Output that the core has handed over and the system has not accepted.
        self._unsent: memoryview | None = None
        #: `_is_paused`: input waits until an output of another connection has been written. `_refused`: such an output
        #: that was never written to before; one attempt to write it comes first.
        self._is_paused = False
        self._refused: bytearray | None = None
        record.engine.flow_state.patient = True

    def serve(self, until: float) -> bool:
        """See `Polled`."""
        try:
            if self._unsent is not None:
                self._write_rest(self._unsent)
                if self._events is None:
                    return False
            more = not self._is_paused and self._read_on(until)
            if self._events != READABLE or self._is_writing or self._is_paused:
                self._update_events()
            if self._driver.paused and not self._is_paused:  # a paused reader has not passed on its input
                self._driver.heard(self._record)
        except Exception as error:
            self._fault(error)
            return False
        return more

    async def _read(self) -> None:
        while True:
            self._is_read = trio.Event()
            # The handshake may have read application data that the system does not report. WRITABLE is ready at once,
            # so the connection is served at once.
            if not self._is_held:  # else `go_on` has it polled
                self._poll(READABLE | WRITABLE)
            try:
                await self._is_read.wait()
            finally:
                self._stop_polling()
            if not self._pauses or not await self._resume():
                return

    def _poll(self, events: int) -> None:
        record = self._record
        self._poller.add(self._descriptor, self, events, record.contender, between=record.lanes_of is not None)
        self._events = events

    def share(self, tenant: Tenant) -> None:
        """See `Output`."""
        if self._events is not None:
            between = self._record.lanes_of is not None
            self._poller.share(self._descriptor, tenant, self._events, between=between)

    @property
    def is_heavy(self) -> bool:
        """See `Polled`."""
        return self._read_size > READ_SIZE or self._unsent is not None

    def _read_on(self, until: float) -> bool:
        """Read once, unless input is left to pass to the core. Returns: True if more can be done without waiting."""
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
                return stream.pending
            if not data:
                self._finish_reading()
                return False
            # The size of the next read follows from the last ones.
            if size < self._read_size:
                pass
            elif len(data) == self._read_size:
                self._read_size = min(LARGEST_READ, 2 * self._read_size)
                self._small_reads = 0
            elif self._read_size > READ_SIZE and len(data) < self._read_size // 2:
                self._small_reads += 1
                if self._small_reads == SMALL_READS:
                    self._read_size //= 2
                    self._small_reads = 0
            is_told = self._receive(data, until)
        if not is_told:
            return not self._wait()
        if record.login is not None and self._logs_in_at_once() and not (record.engine.finished or self._pauses):
            return self._has_work or bool(self._unread) or stream.pending
        if record.engine.finished or record.login is not None or record.tls_requested is not None:  # `_pauses`
            self._finish_reading()
            return False
        return stream.pending

    def _wait(self) -> bool:
        """Return True if the next input must wait for other connections to read."""
        sink = self._record.engine.flow_state.waits_for
        if sink is None:
            return False
        if sink.out and not sink.sending:
            self._refused = sink.out
            return False
        self._is_paused = True
        self._driver.wait(self, sink, self._record.engine.flow_state.waits_on)
        return True

    def _receive_more_once_written(self, until: float) -> bool:
        """Pass on more input, after an attempt to write the output that the input waits for.

        If the system accepted nothing of that output, the input waits for it no longer.
        """
        flow_state = self._record.engine.flow_state
        sink = flow_state.waits_for
        flow_state.patient = sink is None or sink.out is not self._refused
        self._refused = None
        try:
            return self._receive_more(until)
        finally:
            flow_state.patient = True

    def resume_reading(self) -> None:
        """See `PausedReader`."""
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
            self._output_blocked()
            self._update_events()

    def _write_rest(self, rest: memoryview) -> None:
        """Write the rest of earlier output."""
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

    # ------------------------------------------------------------------------------------ between two worker processes

    def hold(self) -> None:
        """Read and write nothing until `go_on` or `let_go`: another worker may serve the connection soon."""
        self._is_held = True
        self._stop_polling()

    @property
    def can_move(self) -> bool:
        """True if the connection can be handed over: it is in TLS or a WebSocket, goes on, and the system has accepted
        all output.
        """
        return self._goes_on and isinstance(self._stream, LayeredStream)

    @property
    def is_bridged(self) -> bool:
        """True if another worker gets the content alone, by a socket between the two: see `offered`."""
        return isinstance(self._stream, LayeredStream)

    @property
    def _goes_on(self) -> bool:
        return not (self._record.lost or self._record.engine.finished or self._is_writing)

    @contextmanager
    def offered(self) -> Iterator[int]:
        """Yield the descriptor of a socket for another worker: a Unix socket, to the other end of which the content of
        TLS or of the WebSocket goes. Raises: OSError: no resources.
        """
        self._drop_near()
        self._near, far = socket.socketpair()
        with far:
            yield far.fileno()

    @property
    def record(self) -> ConnectionRecord:
        """The connection in the core."""
        return self._record

    @property
    def unread(self) -> bytes:
        """The octets that were read and not passed to the core."""
        return self._unread[self._received :]

    def go_on(self, event: Event) -> None:
        """Serve the connection here. Never raise. Args: event: its first attach, with which the work stopped."""
        record = self._record
        self._drop_near()
        if self._is_over:
            return
        try:
            if not record.lost:
                record.unfinished = chain((event,), record.unfinished or ())
            self._has_work = True
            self._is_held = False
            # WRITABLE is ready at once, so the connection is served at once.
            self._poll(READABLE | WRITABLE)
            self._driver.writable(record)
        except Exception as error:
            self._events = None
            self._fault(error)

    def let_go(self) -> None:
        """Leave the connection to the worker that has taken it up: end without a word to the peer."""
        self._record.lost = True
        self._is_moved = True
        self._is_read.set()

    def cut(self) -> None:
        """End the connection for all processes that have its socket."""
        self._drop_near()
        self._is_read.set()

    def bridge(self) -> Bridge | None:
        """Return the bridge to the worker that has taken the connection up; None: it has ended here."""
        if not self._is_moved or self._near is None:
            return None
        assert isinstance(self._stream, LayeredStream)
        near, self._near = self._near, None
        return Bridge(self._stream, near, self._poller)

    def withdraw(self) -> None:
        """Note that the connection has ended here: another worker that has not taken it up does not get it."""
        self._is_over = True
        self._drop_near()

    def _drop_near(self) -> None:
        if self._near is not None:
            self._near.close()
            self._near = None

    # ----------------------------------------------------------------------------------------------------- being polled

    def _update_events(self) -> None:
        """Poll for the events that are needed now, and no others."""
        if self._events is None:
            return
        events = (0 if self._is_paused or self._is_congested else READABLE) | (0 if self._unsent is None else WRITABLE)
        if events != self._events:
            self._events = events
            self._poller.change(self._descriptor, events)

    def _stop_polling(self) -> None:
        """Stop being polled."""
        if self._events is not None:
            self._events = None
            self._poller.remove(self._descriptor)

    def _finish_reading(self) -> None:
        """End reading by the poller; the connection's task continues."""
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
