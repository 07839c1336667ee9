"""`ConnectionTasks`: the tasks that serve one connection over its stream."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router.client.links.client_connection import ClientConnection
from amqpmesh.router.io.secured_stream import close_gracefully
from amqpmesh.router.io.streams import READ_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.amqp.connection import Connection as Engine
    from amqpmesh.router.amqp.errors import ConnectionClosedError
    from amqpmesh.router.logs.frame_trace import FrameTracer

BACKLOG_LIMIT: Final = 4 * 2**20
"""Octets that may wait to be written before nothing more is read from the peer.

A peer may send requests and read no replies. Senders stop at far less, so two peers cannot wait for each other here.
"""

CLOSE_TIME: Final = 1.0
"""Seconds that the peer has to answer our `close`."""


class ConnectionTasks:
    """The tasks of one connection: one reads, one writes, one handles timers."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        engine: Engine,
        tracer: FrameTracer | None,
        *,
        unanswered: str,
        opened: Callable[[ClientConnection], None],
        ended: Callable[[ConnectionClosedError], None],
    ) -> None:
        """Args: tracer: logs the frames; None: they are not logged. unanswered: the error message if the peer closes
        the stream before its first byte. opened, ended: called at most once each.
        """
        self._stream = stream
        self._tracer = tracer
        self._opened = opened
        self._engine = engine
        self._reason = unanswered
        self._wanted = trio.Event()
        self._written = trio.Event()
        self._alarm = trio.CancelScope()
        #: Set when all tasks have ended.
        self.ended = trio.Event()
        self.client_connection = ClientConnection(engine, wake=self._wake, opened=self._is_open, ended=ended)
        engine.open()
        self._wake()  # the engine has written its protocol header already

    async def run(self) -> ClientConnection:
        """Serve the connection until it ends. Raises: no error of the peer's."""
        client_connection = self.client_connection
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read)
                nursery.start_soon(self._write)
                nursery.start_soon(self._keep_time)
                await client_connection.over.wait()
                with trio.move_on_after(CLOSE_TIME):
                    while self._engine.out or client_connection.writing:
                        await self._written.wait()
                nursery.cancel_scope.cancel()
            with trio.move_on_after(CLOSE_TIME):
                await close_gracefully(self._stream)
        except Exception as fault:
            client_connection.lost(f"a fault of this library: {fault!r}")
            raise
        finally:
            client_connection.lost("the connection was left")
            self.ended.set()
        return client_connection

    async def _read(self) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await self._stream.receive_some(READ_SIZE):
                self._reason = "the connection was lost"
                if self._tracer is not None:
                    self._tracer.received(data)
                await self.client_connection.receive(bytes(data))
                at = self._engine.next_timer()
                if at is not None and at < self._alarm.deadline:
                    self._alarm.deadline = at
                while len(self._engine.out) > BACKLOG_LIMIT and not self.client_connection.over.is_set():
                    await self._written.wait()
        self.client_connection.lost(self._reason)

    async def _write(self) -> None:
        try:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                await self.client_connection.gather()
                while data := self.client_connection.data_to_send():
                    if self._tracer is not None:
                        self._tracer.sent(data)
                    await self._stream.send_all(data)
                    self.client_connection.written()
                    written, self._written = self._written, trio.Event()
                    written.set()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # Bytes from the peer may still arrive, maybe a `close` with the reason.
            await trio.sleep(CLOSE_TIME)
            self.client_connection.lost(self._reason)

    async def _keep_time(self) -> None:
        while True:
            at = self._engine.next_timer()
            with trio.CancelScope(deadline=math.inf if at is None else at) as self._alarm:
                await trio.sleep_forever()
            self.client_connection.handle_timer()

    def _wake(self) -> None:
        self._wanted.set()

    def _is_open(self) -> None:
        self._opened(self.client_connection)
