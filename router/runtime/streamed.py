"""A connection over any stream: one task reads, and another writes what the system does not accept at once."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from amqpmesh.policies.tenants import Tenant
from amqpmesh.router.io.streams import BATCH_TIME, READ_SIZE, DirectStream
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.router.runtime.credentials import Credentials
from amqpmesh.router.runtime.driver import Driver
from amqpmesh.router.runtime.transport import Transport


class Starter(Protocol):
    """A function that starts a task which ends with the router: `nursery.start_soon`."""

    def __call__(
        self, task: Callable[[bytearray | memoryview], Awaitable[None]], data: bytearray | memoryview, /
    ) -> None:
        """Start the task."""


class StreamTransport(Transport):
    """A transport for systems without polling, and for streams without a socket: in memory, or in a tunnel."""

    def __init__(
        self,
        driver: Driver,
        record: ConnectionRecord,
        stream: trio.abc.Stream,
        credentials: Credentials | None,
        start: Starter,
    ) -> None:
        """Args: start: starts the task that writes."""
        super().__init__(driver, record, stream, credentials)
        self._start = start
        self._writing: trio.CancelScope | None = None
        self._written = trio.Event()

    def share(self, tenant: Tenant) -> None:
        """See `Output`: Trio divides the time of such connections, without regard to tenants."""

    async def _read(self) -> None:
        record = self._record
        while True:
            try:
                data = await self._stream.receive_some(READ_SIZE)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                self._read_failed(error)
                return
            if not data:
                return
            is_told = self._receive(bytes(data), self._driver.stopwatch() + BATCH_TIME)
            while not is_told or self._pauses:
                self._driver.settle()
                if not is_told:
                    await trio.lowlevel.checkpoint()
                elif not await self._resume():
                    return
                is_told = self._receive_more(self._driver.stopwatch() + BATCH_TIME)
            self._driver.settle()
            if record.engine.finished:
                return
            while self._is_congested:
                await self._next_write()

    def _write(self, data: bytearray, now: float) -> None:
        rest: bytearray | memoryview = data
        if isinstance(self._stream, DirectStream):
            sent = self._stream.send_nowait(data)
            if sent == len(data):
                self._driver.core.sent(self._record, now)
                return
            rest = memoryview(data)[sent:]
        self._output_blocked()
        self._is_writing = True
        self._writing = trio.CancelScope(shield=True)  # it ends with the connection only
        self._start(self._write_rest, rest)

    async def _write_rest(self, data: bytearray | memoryview) -> None:
        """Write these octets, then all that the core has for the peer by then."""
        driver, record = self._driver, self._record
        assert self._writing is not None
        try:
            with self._writing:
                while data:
                    await self._stream.send_all(data)
                    driver.core.sent(record, self._now())
                    data = driver.core.data_to_send(record, self._now())
                    if data:
                        driver.core.output_blocked(record)
                    if self._tracer is not None:
                        self._tracer.sent(data)
                    self._written.set()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._write_failed()
        except Exception as error:
            self._fault(error)
        self._writing = None
        self._is_writing = False
        self._written.set()
        driver.settle()

    async def _until_written(self) -> None:
        while self._is_writing:
            await self._next_write()

    async def _next_write(self) -> None:
        self._written = trio.Event()
        await self._written.wait()

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
