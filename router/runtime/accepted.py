"""A connection that a listener has accepted: the poller serves it up to its last octet.

It has a task only while it waits for something other than its socket's input: for a password check that takes long or
has to wait, for a TLS handshake that its peer has asked for, or for a peer that does not take the last octets.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from amqpmesh.router.amqp.states import CLOSING
from amqpmesh.router.io.secured_stream import SILENCE
from amqpmesh.router.io.streams import BATCH_TIME, READ_SIZE, DirectStream, TcpStream
from amqpmesh.router.runtime.polled import PolledTransport
from amqpmesh.router.runtime.poller import READABLE, WRITABLE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from amqpmesh.router.amqp.events import Event
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.runtime.credentials import Credentials
    from amqpmesh.router.runtime.driver import Driver
    from amqpmesh.router.runtime.poller import Poller


class AcceptedTransport(PolledTransport):
    """A polled transport without a task of its own; `begin` and `conclude` take the place of `run`."""

    def __init__(
        self,
        driver: Driver,
        record: ConnectionRecord,
        stream: DirectStream,
        credentials: Credentials,
        poller: Poller,
        start: Callable[[Callable[[], Awaitable[None]]], object],
        on_end: Callable[[AcceptedTransport], None],
    ) -> None:
        """Args: stream: belongs to this object from now on. start: runs a task that ends with the router. on_end: is
        called once, after the stream is closed.
        """
        super().__init__(driver, record, stream, credentials, poller)
        self._start = start
        self._on_end = on_end
        #: The scope of the task that waits for this connection; None: there is no such task.
        self._task: trio.CancelScope | None = None
        #: Nothing is passed to the core any more.
        self._is_read_out = False
        #: Our direction of the stream has ended, and the peer's has not.
        self._lingers = False
        #: It ends without waiting for its peer.
        self._is_dropped = False
        self._has_ended = False

    def begin(self) -> None:
        """Serve the connection from now on, and read at once. Never raise; internal errors are logged."""
        self._driver.connect(self._record, self)
        try:
            self._limit_buffers()
            self._record_tls()
            self._poll(READABLE)
        except Exception as error:
            self._fault(error)
            self._end()
            return
        if self.serve(self._driver.stopwatch() + BATCH_TIME):
            self._poller.serve_soon(self._descriptor)
        self._poller.wake()

    def serve(self, until: float) -> bool:
        """See `Polled`."""
        if not self._is_read_out:
            return super().serve(until)
        if self._lingers:
            self._read_rest()
        return False

    def cancel(self) -> None:
        """End the connection without waiting for its peer."""
        self._is_dropped = True
        if self._task is None:
            self._poller.conclude_soon(self)
        else:
            self._task.cancel()

    def conclude(self) -> None:
        """See `Concluding`: after the standard's end it waits for its peer's end of the stream, if more may come before
        that.
        """
        if self._has_ended or self._task is not None:
            return
        record = self._record
        if record.engine.finished and not (self._lingers or self._is_dropped or self._is_held):
            self.flush(self._now())
            if not (self._is_write_closed or (self._is_writing and record.cut)):
                if self._is_writing:
                    self._run(self._say_farewell)
                    return
                if not self._has_heard_all() and self._stream.end_writing():
                    self._lingers = True
                    self._poller.conclude_in_time(self)
                    return
        self._end()

    def _has_heard_all(self) -> bool:
        """Tell whether nothing more comes from the peer: its `close` is the last that it ever writes (§2.4.3).

        If more came, the closed socket would be reset, and our last frames might be lost. TLS and WebSockets have
        octets of their own, which come behind it.
        """
        closed = self._record.closed
        if closed is None or not closed.by_peer or type(self._stream) is not TcpStream:
            return False
        try:
            return not self._stream.receive_nowait(READ_SIZE)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return True

    def _read_rest(self) -> None:
        """Read what the peer sends after the connection's end, up to the end of the stream."""
        try:
            # Not inside TLS: our end of TLS was sent, and what comes is not read.
            assert self._tcp is not None
            is_over = self._tcp.receive_nowait(READ_SIZE) == b""
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            is_over = True
        if is_over:
            self._poller.conclude_soon(self)

    def _end(self) -> None:
        self._has_ended = True
        self._stop_polling()
        self._stop_writing()
        self._clear_unread()
        engine = self._record.engine
        is_unanswered = engine.is_deaf or engine.state in CLOSING
        self._driver.lost(self._record)
        # A socket that is held may be another worker's, too, whose close would then reset it.
        if self._is_dropped and is_unanswered and not self._is_held and self._tcp is not None:
            # The peer had its time (§2.4.3). python-proton stops reading at a `close` that it does not answer, and
            # notices the end of the stream in its second empty frame, up to two heartbeats later.
            self._tcp.abandon(SILENCE)
        self._stream.close()
        self._poller.forget(self)
        self._on_end(self)

    # ------------------------------------------------------------------------------------ between two worker processes

    @contextmanager
    def offered(self) -> Iterator[int]:
        """See `PolledTransport`: the socket itself."""
        yield self._descriptor

    @property
    def can_move(self) -> bool:
        """True if the connection can be handed over: nothing is between it and TCP, it goes on, and the system has
        accepted all output.
        """
        return not self._has_ended and self._goes_on and isinstance(self._stream, TcpStream)

    def take_up(self, data: bytes) -> None:
        """Replay the input of a connection that another worker has begun to serve, up to its first attach.

        `go_on` continues with the attach. Never raise; internal errors are logged. Args: data: all input.
        """
        self._is_held = True
        self._driver.connect(self._record, self)
        try:
            self._limit_buffers()
            self._receive(data, math.inf)
        except Exception as error:
            self._fault(error)

    def go_on(self, event: Event) -> None:
        """See `PolledTransport`."""
        if not self._has_ended:
            super().go_on(event)

    def let_go(self) -> None:
        """See `PolledTransport`."""
        if not self._has_ended:
            self._record.lost = True
            self._end()

    def cut(self) -> None:
        """See `PolledTransport`."""
        if isinstance(self._stream, TcpStream):
            self._stream.reset()
        self.cancel()

    # -------------------------------------------------------------------------------------------------- its short tasks

    def _run(self, task: Callable[[], Awaitable[None]]) -> None:
        # Shielded: after a cancellation from outside the router ends its connections itself, after a `close` to their
        # peers.
        self._task = trio.CancelScope(shield=True)
        self._start(task)

    async def _continue(self) -> None:
        """Do the work that reading pauses for, then read on."""
        assert self._task is not None
        goes_on = False
        try:
            with self._task:
                goes_on = await self._resume()
            if goes_on and not (self._is_dropped or self._is_held):
                # The handshake may have read application data that the system does not report. WRITABLE is ready at
                # once, so the connection is served at once.
                self._poll(READABLE | WRITABLE)
        except Exception as error:
            self._fault(error)
        self._task = None
        may_move = goes_on and self._is_held and not self._is_dropped
        if self._events is None and not may_move:
            self._stop_reading()

    async def _say_farewell(self) -> None:
        """End the stream once the peer has taken the last octets."""
        assert self._task is not None
        try:
            with self._task:
                await self._close_gracefully()
        except Exception as error:
            self._fault(error)
        await self._driver.turn()
        self._end()

    # ------------------------------------------------------------------------------------ without the scopes of a task

    def _finish_reading(self) -> None:
        if self._pauses:
            self._stop_polling()
            self._run(self._continue)
        else:
            self._stop_reading()

    def _stop_reading(self) -> None:
        if self._is_read_out:
            return
        if self._task is None:
            self._is_read_out = True
            self._poller.conclude_soon(self)
        else:
            self._task.cancel()

    def _write_failed(self) -> None:
        # The peer is gone, but its last octets may still be unread: a message, a `close`.
        self._is_write_closed = True
        self._set_unsent(None)
        self._poller.conclude_in_time(self)

    def _fault(self, error: Exception) -> None:
        self._log_fault(error)
        self._stop_polling()
        self.cancel()
