"""One connection: what was read is told to the core, and what that has for the peer is written."""

import math
from abc import ABC, abstractmethod

import trio

from amqpmesh.router.io.environment import environment
from amqpmesh.router.io.handshake import secure
from amqpmesh.router.io.secured_stream import LINGER, TlsStream, close_gracefully
from amqpmesh.router.io.streams import BATCH_TIME, TcpStream
from amqpmesh.router.logs import event_log
from amqpmesh.router.logs.frame_trace import FrameTracer
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.router.runtime.credentials import Credentials
from amqpmesh.router.runtime.driver import Driver

log = event_log.EventLog("amqpmesh.io")

LEAST_SLICE = 8 * 2**10
MOST_SLICE = 2**20
"""Octets that the core is told at once, between two looks at the clock. They begin with the least: that is some
milliseconds of small messages where the kernel is not compiled. While they take far less, there may be more."""

BACKLOG_LIMIT = 4 * 2**20
"""Octets that may wait to be written, beyond one frame, before a peer is read no further: one that asks and asks and
reads no answer. Deliveries stop at far less, so two routers cannot wait for each other here."""

LINE_RATE = 1e9
"""Octets a second that a narrow window lets through at any distance, if frames are as large as they may be."""

WRITE_TIME_OUT = 5.0
"""Seconds for a peer to take the last bytes, once the connection has ended."""


class Transport(ABC):
    """Carries a connection from the first byte to the last; how its stream is waited for is for others to say.

    Bytes are asked for and handed to the system in one step. While there are some that it has not taken, the core is
    asked for no more: a peer that does not read stops nobody else.
    """

    def __init__(
        self, driver: Driver, record: ConnectionRecord, stream: trio.abc.Stream, credentials: Credentials | None
    ) -> None:
        """Args: stream: closed by whoever made it, once `run` has returned. credentials: of its listener; None: it came
        in by none.
        """
        self._driver = driver
        self._record = record
        self._stream = stream
        self._credentials = credentials
        self._log = log.bind(connection=record.number, **record.origin)
        self._tracer = FrameTracer(connection=record.number, **record.origin) if record.trace_frames else None
        self._stopwatch = environment().stopwatch
        self._now = trio.lowlevel.current_clock().current_time
        self._scope = trio.CancelScope()
        self._reading = trio.CancelScope()
        #: What the core was not told of yet, behind what it was, and whether it has work left of that.
        self._unread = b""
        self._received = 0
        self._has_work = False
        self._slice = LEAST_SLICE
        #: There is something left that the system has not taken.
        self._is_writing = False
        #: Nothing may be written now: a TLS handshake is going on.
        self._is_handshaking = False
        #: Nothing can be written any more, though there may be something left to be read.
        self._is_write_closed = False
        #: Why nothing could be read any more; None: the stream came to its end, or has not.
        self.read_error: str | None = None

    async def run(self) -> None:
        """Serve the connection until it ends. Raises: nothing; faults of ours are logged."""
        try:
            with self._scope:
                self._limit_buffers()
                await self._driver.turn()
                self._driver.connect(self._record, self)
                self._record_tls()
                self._driver.settle()
                with self._reading:
                    await self._read()
                if self._record.engine.finished:
                    await self._close_gracefully()
        except Exception as error:
            self._fault(error)
        finally:
            self._stop_writing()
            self._clear_unread()
            await self._driver.turn()
            self._driver.lost(self._record)

    def flush(self, now: float) -> None:
        """Write what the core has, as far as the system takes it now. Never raises, never waits."""
        try:
            if not (self._is_writing or self._is_handshaking or self._is_write_closed):
                data = self._driver.core.data_to_send(self._record, now)
                if data:
                    if self._tracer is not None:
                        self._tracer.sent(data)
                    self._write(data, now)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._write_failed()
        except Exception as error:
            self._fault(error)
        if self._record.engine.finished:
            self._stop_reading()

    @property
    def is_acknowledged(self) -> bool:
        """As of `Output`: sockets can tell."""
        tcp = self._tcp
        return (
            tcp is not None
            and not (self._is_writing or self._is_handshaking or self._is_write_closed)
            and tcp.is_acknowledged
        )

    @property
    def _tcp(self) -> TcpStream | None:
        """The socket that it goes by; None: there is none."""
        stream = self._stream
        tcp = stream.transport_stream if isinstance(stream, TlsStream | trio.SSLStream) else stream
        return tcp if isinstance(tcp, TcpStream) else None

    # -------------------------------------------------------------------------------------- for those that know streams

    @abstractmethod
    async def _read(self) -> None:
        """Read, and tell the core, until there is nothing to be read any more or the connection has ended."""

    @abstractmethod
    def _write(self, data: bytearray, now: float) -> None:
        """Hand this to the system, and tell the core once it has taken all of it. Raises: as streams do."""

    @abstractmethod
    async def _until_written(self) -> None:
        """Wait until the system has taken all of it."""

    @abstractmethod
    def _stop_writing(self) -> None:
        """Whatever is left, the connection is over."""

    # ------------------------------------------------------------------------------------------------- telling the core

    def _receive(self, data: bytes, until: float) -> bool:
        """Tell the core what was read; it was told of all before. Args and returns: as of `_receive_more`."""
        if self._tracer is not None:
            self._tracer.received(data)
        if len(data) < LEAST_SLICE:  # as most are: not worth a look at the clock
            self._has_work = not self._driver.core.receive(self._record, data, self._now())
            return not self._has_work
        self._unread, self._received = data, 0
        self._driver.unread += len(data)
        return self._receive_more(until)

    def _clear_unread(self) -> None:
        self._driver.unread -= len(self._unread)
        self._unread, self._received = b"", 0

    def _receive_more(self, until: float) -> bool:
        """Tell the core more. Once it is told, look whether the connection has ended, or `_pauses`.

        Args: until: by the stopwatch, when others should have their turn.
        Returns: False: there is more to tell, or to be done about it: then call again.
        """
        record, core, stopwatch = self._record, self._driver.core, self._stopwatch
        while True:
            part = b""
            if not self._has_work:
                part = self._unread[self._received : self._received + self._slice]
                self._received += len(part)
            began = stopwatch()
            self._has_work = not core.receive(record, part, self._now())
            if self._has_work:
                return False
            ended = stopwatch()
            self._measure(len(part), ended - began)
            if self._received == len(self._unread):
                self._clear_unread()
                return True
            if record.engine.finished or self._pauses:
                return True
            if ended > until:
                return False

    def _measure(self, octets: int, seconds: float) -> None:
        """The next slice takes about as long as may be: more costs less, but others wait for it."""
        if seconds > BATCH_TIME / 2:
            self._slice = max(LEAST_SLICE, self._slice // 2)
        elif octets == self._slice and seconds < BATCH_TIME / 8:
            self._slice = min(MOST_SLICE, self._slice * 2)

    @property
    def _is_congested(self) -> bool:
        """Whether the peer reads so little of its answers that it is not read further."""
        record = self._record
        return self._is_writing and len(record.engine.out) > BACKLOG_LIMIT + record.limits.max_frame_size

    # ------------------------------------------------------------------------------------------------- security layers

    @property
    def _pauses(self) -> bool:
        """Whether nothing is read until a TLS handshake is done, or the work of a SASL exchange."""
        return self._record.tls_requested is not None or self._record.login is not None

    async def _resume(self) -> bool:
        """Do what it pauses for. Returns: whether to read on."""
        if self._record.tls_requested is not None:
            return await self._secure()
        await self._log_in()
        return not self._record.engine.finished

    async def _log_in(self) -> None:
        """Have a password checked or hashed; what came behind it is told to the core then."""
        record = self._record
        assert record.login is not None, "the exchange asked for it"
        await self._driver.passwords.do(record, record.login)
        self._has_work = not self._driver.core.logged_in(record, self._now())
        self._driver.settle()

    async def _secure(self) -> bool:
        """Go on inside TLS (§5.2); what was read and not told is part of the handshake. Returns: whether to read on."""
        record, credentials = self._record, self._credentials
        assert credentials is not None, "a listener offers TLS"
        assert credentials.context is not None, "TLS is offered only where there is a certificate"
        assert record.tls_requested is not None, "it was asked for"
        read = record.tls_requested + self._unread[self._received :]
        self._clear_unread()
        await self._until_written()  # our protocol header is the last that goes in clear
        self._is_handshaking = True
        secured = await secure(self._stream, credentials.context, record.host, self._driver.core.logins, read=read)
        if secured is None:
            return False
        self._stream, identity = secured
        self._record_tls()
        if self._tracer is not None:
            self._tracer.secured()
        self._is_handshaking = False
        self._driver.core.secured(
            record,
            self._now(),
            certificate=identity.certificate,
            certificate_user=identity.user,
            certificate_subject=identity.subject,
            users=credentials.users,
        )
        self.flush(self._now())  # what has gathered meanwhile
        self._driver.settle()
        return True

    def _limit_buffers(self) -> None:
        """How much may wait on the way, for what is small to find little before it: no less than what is under way.

        Large and small deliveries of all clients share a connection to a neighbour: little of it may wait where only
        the first comes first.
        """
        record, tcp = self._record, self._tcp
        if tcp is None:
            return
        if record.role == "mesh":
            tcp.limit_buffers()
        trip = tcp.round_trip()
        if trip is not None:
            limits = record.limits
            record.engine.flow_state.narrow = limits.narrow_window + math.ceil(trip * LINE_RATE / limits.max_frame_size)

    def _record_tls(self) -> None:
        if isinstance(self._stream, TlsStream | trio.SSLStream):
            self._record.tls = self._stream.version()
            self._record.cipher, *_ = self._stream.cipher() or (None,)

    # ---------------------------------------------------------------------------------------------------------- ending

    def _stop_reading(self) -> None:
        """The connection has ended by the standard."""
        self._reading.cancel()

    def _read_failed(self, error: trio.BrokenResourceError | trio.ClosedResourceError) -> None:
        self.read_error = str(error.__cause__ or error)
        self._log.debug("transport broken", reason=self.read_error)

    def _write_failed(self) -> None:
        # The peer is gone, but what it sent before may still be here: a message, a `close`.
        self._is_write_closed = True
        self._reading.deadline = self._now() + LINGER

    def _fault(self, error: Exception) -> None:
        """A fault of ours: it costs this connection, no other."""
        self._log.error("internal error", exception=error, peer=self._record.host)
        self._is_write_closed = True
        self._scope.cancel()

    async def _close_gracefully(self) -> None:
        """The connection has ended by the standard: see to it that the peer hears so."""
        if (
            self._is_writing and not self._record.cut
        ):  # a deadline that is not needed would be kept by Trio until it has passed
            with trio.move_on_after(WRITE_TIME_OUT):
                await self._until_written()
        if self._is_writing or self._is_handshaking or self._is_write_closed:
            return
        with trio.move_on_after(LINGER):
            await close_gracefully(self._stream)
