"""A bridge between a connection in TLS or a WebSocket here and the worker that serves it: it passes on the octets of
AMQP.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import trio

from amqpmesh.router.io.secured_stream import LINGER, SILENCE, close_gracefully
from amqpmesh.router.io.streams import READ_SIZE, TcpStream, layers
from amqpmesh.router.runtime.poller import OVER, READABLE, WRITABLE
from amqpmesh.router.runtime.transport import WRITE_TIME_OUT

if TYPE_CHECKING:
    from amqpmesh.router.io.streams import DirectStream
    from amqpmesh.router.runtime.poller import Poller


class _Side:
    """One end of a bridge, served by the poller. It reads nothing while the other end has octets to write."""

    def __init__(self, bridge: Bridge, stream: DirectStream, poller: Poller) -> None:
        self.stream = stream
        self.other = self
        #: Octets from the other side that the system has not accepted; the other side has ended.
        self._unsent = memoryview(b"")
        self._is_last = False
        self._has_ended = False
        self._read_all = False
        self._bridge = bridge
        self._poller = poller
        self._events = READABLE | WRITABLE  # TLS may hold octets that the system does not report
        poller.add(stream.descriptor, self, self._events)

    @property
    def is_heavy(self) -> bool:
        """See `Polled`."""
        return self._read_all

    def serve(self, until: float) -> bool:  # noqa: ARG002 - one read
        """See `Polled`."""
        try:
            self._write()
            more = self._read()
            if self._events == OVER:
                self._bridge.check()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._bridge.end()
            return False
        self._update()
        self.other._update()
        return more

    def stop(self) -> None:
        """Stop being polled."""
        if self._events != -1:
            self._events = -1
            self._poller.remove(self.stream.descriptor)

    def _read(self) -> bool:
        """Read once, and write it to the other side. Returns: True if more can be read without waiting."""
        other = self.other
        if self._has_ended or other._unsent:
            return False
        data = self.stream.receive_nowait(READ_SIZE)
        if data is None:
            self._read_all = False
            return self.stream.pending
        self._has_ended = not data
        self._read_all = len(data) == READ_SIZE
        if self._has_ended:
            self._bridge.heard_end(self)
        other._unsent, other._is_last = memoryview(data), self._has_ended
        other._write()
        return self.stream.pending and not other._unsent and not self._has_ended

    def _write(self) -> None:
        """Write what came from the other side, as far as the system accepts it."""
        if self._unsent:
            self._unsent = self._unsent[self.stream.send_nowait(self._unsent) :]
        if self._is_last and not self._unsent:
            self._is_last = False
            self._bridge.ended(self)

    def _update(self) -> None:
        if self._events == -1:
            return
        reads = not (self._has_ended or self.other._unsent)
        events = (READABLE if reads else 0) | (WRITABLE if self._unsent else 0) or OVER
        if events != self._events:
            self._events = events
            self._poller.change(self.stream.descriptor, events)


class Bridge:
    """A bridge from a client's stream to a Unix socket, the other end of which the serving worker has."""

    def __init__(self, client: DirectStream, near: socket.socket, poller: Poller) -> None:
        """Args: near: this end of the Unix socket; it belongs to this object from now on."""
        #: The worker has ended its connection, and the client has not taken its last octets; nothing is passed on.
        self._is_left = trio.Event()
        self._over = trio.Event()
        self._is_graceful = False
        #: The worker has ended its connection without waiting for the client: that one has not answered its `close`.
        self._is_unanswered = False
        self._worker_stream = TcpStream(near)
        self._client = _Side(self, client, poller)
        self._worker = _Side(self, self._worker_stream, poller)
        self._client.other, self._worker.other = self._worker, self._client

    async def run(self) -> None:
        """Pass octets on until one side has ended. The caller closes the client's stream."""
        try:
            await self._is_left.wait()
            with trio.move_on_after(WRITE_TIME_OUT):
                await self._over.wait()
            self.end()
            if self._is_graceful:
                with trio.move_on_after(LINGER):
                    await close_gracefully(self._client.stream)
                    self._is_unanswered = False
        finally:
            self.end()
            *_, below = layers(self._client.stream)
            if self._is_unanswered and isinstance(below, TcpStream):
                below.abandon(SILENCE)  # as the worker does with a client of its own
            self._worker_stream.close()

    def heard_end(self, side: _Side) -> None:
        """Note that a side has sent its last octets."""
        # A worker whose client has answered ends its own direction first, and waits for the client's.
        self._is_unanswered = side is self._worker and self._worker_stream.is_over

    def ended(self, side: _Side) -> None:
        """Note that a side has got the last octets of the other one."""
        if side is self._worker:  # the client has ended its direction: the worker may still have something to say
            self._worker_stream.end_writing()
        else:
            self._is_graceful = True
            self.end()

    def check(self) -> None:
        """Note whether the worker has left octets that the client does not take."""
        if self._worker_stream.is_over:
            self._is_left.set()

    def end(self) -> None:
        """Pass on nothing more."""
        for each in (self._client, self._worker):
            each.stop()
        self._is_left.set()
        self._over.set()
