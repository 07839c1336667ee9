"""One connection: read, feed, flush."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from amqpmesh.router import logs
from amqpmesh.router.connections import ConnectionRecord
from amqpmesh.router.io.credentials import Credentials
from amqpmesh.router.io.driver import Driver
from amqpmesh.router.io.handshake import secure
from amqpmesh.router.io.streams import BATCH_TIME, LINGER, READ_SIZE, PutBack, TcpStream, take_leave
from amqpmesh.router.io.surroundings import seconds_worked
from amqpmesh.router.tracing import FrameTracer

log = logs.EventLog("amqpmesh.io")

SLICE = 8 * 2**10
"""Octets that are fed at once: about a millisecond of small messages, so that a look at the clock comes in time."""

BACKLOG_LIMIT = 4 * 2**20
"""Octets that may wait to be written, beyond one frame, before a peer is read no further: one that asks and asks and
reads no answer. Deliveries stop at far less, so two routers cannot wait for each other here."""

WRITE_TIME_OUT = 5.0
"""Seconds for a peer to take the last bytes, once the connection has ended."""


class Starter(Protocol):
    """Starts a task that ends with the router: `nursery.start_soon`."""

    def __call__(self, task: Callable[[bytes | memoryview], Awaitable[None]], data: bytes | memoryview, /) -> None:
        """Start it."""


class Transport:
    """Reads what a peer sends and writes what the core has for it, from the first byte to the last.

    Bytes are asked for and handed to the system in one step. What the system does not take at once is left to a task
    that waits, and the core is asked for more only when that is through: one writer at any time, and a peer that does
    not read stops nobody else.
    """

    def __init__(
        self,
        driver: Driver,
        record: ConnectionRecord,
        stream: trio.abc.Stream,
        credentials: Credentials | None,
        start: Starter,
    ) -> None:
        """Args: stream: closed by whoever made it, once `run` has returned. credentials: of its listener; None: it came
        in by none. start: for the task that waits.
        """
        self._driver = driver
        self._record = record
        self._stream = stream
        self._credentials = credentials
        self._start = start
        self._log = log.bind(connection=record.number, **record.origin)
        self._tracer = FrameTracer(connection=record.number, **record.origin) if record.trace_frames else None
        self._everything = trio.CancelScope()
        self._reading = trio.CancelScope()
        self._writing: trio.CancelScope | None = None
        self._written = trio.Event()
        #: Nothing may be written now: a TLS handshake is going on.
        self._held = False
        #: Nothing can be written any more, though there may be something left to be read.
        self._broken = False
        #: Why nothing could be read any more; None: the stream came to its end, or has not.
        self.broken: str | None = None

    async def run(self) -> None:
        """Serve the connection until it ends. Raises: nothing; faults of ours are logged."""
        try:
            with self._everything:
                if self._record.role == "mesh":
                    self._keep_short()
                await self._driver.turn()
                self._driver.connect(self._record, self)
                self._note_tls()
                self._driver.settle()
                with self._reading:
                    await self._read()
                if self._record.engine.finished:
                    await self._take_leave()
        except Exception as error:
            self._fault(error)
        finally:
            if self._writing is not None:
                self._writing.cancel()
            await self._driver.turn()
            self._driver.lost(self._record)

    def flush(self) -> None:
        """Write what the core has, as far as the system takes it now. Never raises, never waits."""
        try:
            if self._writing is None and not self._held and not self._broken:
                self._write_now()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._break_off()
        except Exception as error:
            self._fault(error)
        if self._record.engine.finished:
            self._reading.cancel()

    # ------------------------------------------------------------------------------------------------------- reading

    async def _read(self) -> None:
        limit = BACKLOG_LIMIT + self._record.limits.max_frame_size
        while True:
            try:
                data = await self._stream.receive_some(READ_SIZE)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                self.broken = str(error.__cause__ or error)
                self._log.debug("transport broken", reason=self.broken)
                return
            if not data or not await self._feed(bytes(data)):
                return
            while len(self._record.engine.out) > limit:
                await self._next_write()

    async def _feed(self, data: bytes) -> bool:
        """Tell the core what came. Returns: whether to read on."""
        record, core = self._record, self._driver.core
        if self._tracer is not None:
            self._tracer.received(data)
        began = seconds_worked()
        for at in range(0, len(data), SLICE):
            if seconds_worked() - began > BATCH_TIME:
                self._driver.settle()
                await trio.lowlevel.checkpoint()
                began = seconds_worked()
            part = data[at : at + SLICE]
            while not core.receive(record, part, trio.current_time()):
                part = b""
                self._driver.settle()
                await trio.lowlevel.checkpoint()
                began = seconds_worked()
            if record.engine.finished:
                break
            if record.tls_requested is not None:
                return await self._secure(record.tls_requested + data[at + SLICE :])
        self._driver.settle()
        return not record.engine.finished

    async def _secure(self, rest: bytes) -> bool:
        """Go on inside TLS (§5.2). Args: rest: read already, and part of the handshake. Returns: whether to read on."""
        credentials = self._credentials
        assert credentials is not None, "a listener offers TLS"
        assert credentials.context is not None, "TLS is offered only where there is a certificate"
        self._driver.settle()
        await self._until_written()  # our protocol header is the last that goes in clear
        self._held = True
        secured = await secure(PutBack(rest, self._stream), credentials.context, self._record.host)
        if secured is None:
            return False
        self._stream, identity = secured
        self._note_tls()
        if self._tracer is not None:
            self._tracer.secured()
        self._held = False
        self._driver.core.secured(
            self._record,
            trio.current_time(),
            certificate=identity.certificate,
            certificate_user=identity.user,
            certificate_subject=identity.subject,
            users=credentials.users,
        )
        self._driver.settle()
        return True

    def _keep_short(self) -> None:
        """Large and small deliveries of all clients share a connection to a neighbour: little of it may wait where only
        the first comes first.
        """
        stream = self._stream
        tcp = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        if isinstance(tcp, TcpStream):
            tcp.keep_short()

    def _note_tls(self) -> None:
        if isinstance(self._stream, trio.SSLStream):
            self._record.tls = self._stream.version()
            self._record.cipher, *_ = self._stream.cipher() or (None,)

    # ------------------------------------------------------------------------------------------------------- writing

    def _data_to_send(self) -> bytes:
        data = self._driver.core.data_to_send(self._record, trio.current_time())
        if self._tracer is not None:
            self._tracer.sent(data)
        return data

    def _write_now(self) -> None:
        driver, record = self._driver, self._record
        data: bytes | memoryview = self._data_to_send()
        if not data:
            return
        if isinstance(self._stream, TcpStream):
            sent = self._stream.send_nowait(data)
            if sent == len(data):
                driver.core.sent(record, trio.current_time())
                return
            data = memoryview(data)[sent:]
        self._writing = trio.CancelScope(shield=True)  # it ends with the connection, not before
        self._start(self._write, data)

    async def _write(self, data: bytes | memoryview) -> None:
        """Write this, then whatever has gathered meanwhile."""
        driver, record = self._driver, self._record
        assert self._writing is not None
        try:
            with self._writing:
                while data:
                    await self._stream.send_all(data)
                    driver.core.sent(record, trio.current_time())
                    data = self._data_to_send()
                    self._written.set()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._break_off()
        except Exception as error:
            self._fault(error)
        self._writing = None
        self._written.set()
        driver.settle()

    async def _until_written(self) -> None:
        while self._writing is not None:
            await self._next_write()

    async def _next_write(self) -> None:
        self._written = trio.Event()
        await self._written.wait()

    # -------------------------------------------------------------------------------------------------------- ending

    def _break_off(self) -> None:
        # The peer is gone, but what it sent before may still be here: a message, a `close`.
        self._broken = True
        self._reading.deadline = trio.current_time() + LINGER

    def _fault(self, error: Exception) -> None:
        """A fault of ours: it costs this connection, no other."""
        self._log.error("fault", exception=error, peer=self._record.host)
        self._broken = True
        self._everything.cancel()

    async def _take_leave(self) -> None:
        """The connection has ended by the standard: see to it that the peer hears so."""
        with trio.move_on_after(WRITE_TIME_OUT):
            await self._until_written()
        if self._writing is not None or self._held or self._broken:
            return
        with trio.move_on_after(LINGER):
            await take_leave(self._stream)
