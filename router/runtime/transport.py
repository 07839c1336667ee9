"""One connection's transport: it passes input to the core, and writes the core's output."""

import math
from abc import ABC, abstractmethod

import trio

from amqpmesh.policies.tenants import Tenant
from amqpmesh.router.io.handshake import secure
from amqpmesh.router.io.secured_stream import LINGER, TlsStream, close_gracefully
from amqpmesh.router.io.streams import UNSENT_TO_SENDER, TcpStream, layers
from amqpmesh.router.logs import event_log
from amqpmesh.router.logs.frame_trace import FrameTracer
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.router.runtime.credentials import Credentials
from amqpmesh.router.runtime.driver import Driver

log = event_log.EventLog("amqpmesh.io")

MOST_SLICE = 2**20
"""Octets passed to the core between two readings of the clock, at most. A slice starts at the driver's `least_slice`,
and grows while slices take far less time than they may.
"""

BACKLOG_LIMIT = 4 * 2**20
"""Octets of unwritten output, beyond one frame, at which a peer is not read any further: it sends requests and reads no
answers. Deliveries stop at far less, so two routers cannot block each other here.
"""

LINE_RATE = 1e9
"""Octets a second that a narrow window allows at any distance, if frames have their maximum size."""

WRITE_TIME_OUT = 5.0
"""Seconds for a peer to take the last octets, once the connection has ended."""


class Transport(ABC):
    """The transport of a connection from the first octet to the last; subclasses wait for the stream.

    It takes octets from the core and hands them to the system in one step. It takes no more until the system has
    accepted all of them. So a peer that does not read delays no other peer.
    """

    #: Less output waits in the system's buffers than the system would accept.
    _is_limited = False

    def __init__(
        self, driver: Driver, record: ConnectionRecord, stream: trio.abc.Stream, credentials: Credentials | None
    ) -> None:
        """Args: stream: the caller closes it once `run` has returned. credentials: of the listener; None: the router
        opened the connection.
        """
        self._driver = driver
        self._record = record
        self._stream = stream
        self._credentials = credentials
        self._tracer = FrameTracer(connection=record.number, **record.origin) if record.trace_frames else None
        self._now = trio.lowlevel.current_clock().current_time
        #: Input; the part up to `_received` has been passed to the core. `_has_work`: the core has work left on that
        #: part.
        self._unread = b""
        self._received = 0
        self._has_work = False
        self._slice = driver.least_slice
        #: The system has not accepted all output.
        self._is_writing = False
        #: Nothing may be written: a TLS handshake is under way, or the connection is being handed over.
        self._is_held = False
        #: Nothing can be written any more; input may be left to read.
        self._is_write_closed = False
        #: The error that ended reading; None: the stream ended normally, or has not ended.
        self.read_error: str | None = None

    async def run(self) -> None:
        """Serve the connection until it ends. Raises: nothing; internal errors are logged."""
        self._reading = trio.CancelScope()
        try:
            with trio.CancelScope() as self._scope:
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
        """Write the core's output, as far as the system accepts it now. Never raise, never wait."""
        try:
            if not (self._is_writing or self._is_held or self._is_write_closed):
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
        """See `Output`: only sockets can tell."""
        tcp = self._tcp
        return (
            tcp is not None and not (self._is_writing or self._is_held or self._is_write_closed) and tcp.is_acknowledged
        )

    @property
    def _tcp(self) -> TcpStream | None:
        """The socket below; None: there is none."""
        stream = self._stream
        if isinstance(stream, TcpStream):
            return stream
        *_, last = layers(stream)
        return last if isinstance(last, TcpStream) else None

    # -------------------------------------------------------------------------------------- for those that know streams

    @abstractmethod
    def share(self, tenant: Tenant) -> None:
        """See `Output`."""

    @abstractmethod
    async def _read(self) -> None:
        """Read and pass input to the core, until the stream or the connection has ended."""

    @abstractmethod
    def _write(self, data: bytearray, now: float) -> None:
        """Hand octets to the system, and report to the core once all are accepted. Raises: as streams do."""

    @abstractmethod
    async def _until_written(self) -> None:
        """Wait until the system has accepted all output."""

    @abstractmethod
    def _stop_writing(self) -> None:
        """Stop writing: the connection is over, whatever is left."""

    # ------------------------------------------------------------------------------------------------- telling the core

    def _output_blocked(self) -> None:
        """Tell the core that the system has not accepted all output.

        From then on, less output waits in the system's buffers if the peer sends, too. Flows cannot overtake that
        output, so a peer that reads slowly and gets much could send little.
        """
        self._driver.core.output_blocked(self._record)
        if not self._is_limited and self._record.incoming and self._record.role != "mesh":
            self._is_limited = True
            if (tcp := self._tcp) is not None:
                tcp.limit_unsent(UNSENT_TO_SENDER)

    def _receive(self, data: bytes, until: float) -> bool:
        """Pass new input to the core, which has had all earlier input. Args and returns: as of `_receive_more`."""
        if self._tracer is not None:
            self._tracer.received(data)
        if len(data) < self._driver.least_slice:  # most reads: too small to measure
            self._has_work = not self._driver.core.receive(self._record, data, self._now())
            return not self._has_work
        self._unread, self._received = data, 0
        self._driver.unread += len(data)
        return self._receive_more(until)

    def _clear_unread(self) -> None:
        self._driver.unread -= len(self._unread)
        self._unread, self._received = b"", 0

    def _receive_more(self, until: float) -> bool:
        """Pass more input to the core. When all is passed, the caller checks whether the connection has ended, or
        `_pauses`.

        Args: until: the stopwatch's time when others should have their turn.
        Returns: False: input or work is left; call again.
        """
        record, core, stopwatch = self._record, self._driver.core, self._driver.stopwatch
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
        """Adapt the size of the next slice to the time that others may wait: larger slices cost less."""
        most = self._driver.slice_seconds
        if seconds > most / 2:
            self._slice = max(self._driver.least_slice, self._slice // 2)
        elif octets == self._slice and seconds < most / 8:
            self._slice = min(MOST_SLICE, self._slice * 2)

    @property
    def _is_congested(self) -> bool:
        """True if the peer leaves so many answers unread that the router stops reading from it."""
        record = self._record
        return self._is_writing and len(record.engine.out) > BACKLOG_LIMIT + record.limits.max_frame_size

    # ------------------------------------------------------------------------------------------------- security layers

    @property
    def _pauses(self) -> bool:
        """True if nothing is read until a TLS handshake, or the work of a SASL exchange, is done."""
        return self._record.tls_requested is not None or self._record.login is not None

    async def _resume(self) -> bool:
        """Do the work that reading pauses for. Returns: True if reading continues."""
        if self._record.tls_requested is not None:
            return await self._secure()
        await self._log_in()
        return not self._record.engine.finished

    def _logs_in_at_once(self) -> bool:
        """Do the work of a SASL exchange now, if it is short. Returns: True if it is done."""
        record = self._record
        if record.login is None or not self._driver.passwords.do_now(record, record.login):
            return False
        self._has_work = not self._driver.core.logged_in(record, self._now())
        return True

    async def _log_in(self) -> None:
        """Check or hash a password; then the core gets the input that came after it."""
        record = self._record
        assert record.login is not None, "the exchange asked for it"
        await self._driver.passwords.do(record, record.login)
        self._has_work = not self._driver.core.logged_in(record, self._now())
        self._driver.settle()

    async def _secure(self) -> bool:
        """Continue inside TLS (§5.2); input that was not passed on is part of the handshake. Returns: True if reading
        continues.
        """
        record, credentials = self._record, self._credentials
        assert credentials is not None, "a listener offers TLS"
        assert credentials.context is not None, "TLS is offered only where there is a certificate"
        assert record.tls_requested is not None, "it was asked for"
        read = record.tls_requested + self._unread[self._received :]
        self._clear_unread()
        await self._until_written()  # our protocol header is the last octets without TLS
        self._is_held = True
        secured = await secure(
            self._stream,
            credentials.context,
            record.host,
            self._driver.core.logins,
            read=read,
            name=credentials.user_name,
        )
        if secured is None:
            return False
        self._stream, identity = secured
        self._record_tls()
        if self._tracer is not None:
            self._tracer.secured()
        self._is_held = False
        self._driver.core.secured(
            record,
            self._now(),
            certificate=identity.certificate,
            certificate_user=identity.user,
            certificate_subject=identity.subject,
            users=credentials.users_for(record.host),
        )
        self.flush(self._now())  # output of the meantime
        self._driver.settle()
        return True

    def _limit_buffers(self) -> None:
        """Limit the octets that wait on the way to a neighbour, but not below what must be under way at full rate.

        Large and small deliveries of all clients share a connection to a neighbour. Small ones overtake large ones only
        before they are written, so little should wait after that.
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
        if isinstance(self._stream, TcpStream):
            return
        for each in layers(self._stream):
            if isinstance(each, TlsStream | trio.SSLStream):
                self._record.tls = each.version()
                self._record.cipher, *_ = each.cipher() or (None,)

    # ---------------------------------------------------------------------------------------------------------- ending

    def _stop_reading(self) -> None:
        """Stop reading: the connection has ended by the standard."""
        self._reading.cancel()

    def _read_failed(self, error: trio.BrokenResourceError | trio.ClosedResourceError) -> None:
        self.read_error = str(error.__cause__ or error)
        record = self._record
        log.debug("transport broken", connection=record.number, **record.origin, reason=self.read_error)

    def _write_failed(self) -> None:
        # The peer is gone, but its last octets may still be unread: a message, a `close`.
        self._is_write_closed = True
        self._reading.deadline = self._now() + LINGER

    def _fault(self, error: Exception) -> None:
        """Log an internal error: it ends this connection, no other."""
        self._log_fault(error)
        self._scope.cancel()

    def _log_fault(self, error: Exception) -> None:
        record = self._record
        log.error("internal error", exception=error, connection=record.number, **record.origin, peer=record.host)
        self._is_write_closed = True

    async def _close_gracefully(self) -> None:
        """End the stream after the connection has ended by the standard: the peer must get our last frames."""
        if self._is_writing and not self._record.cut:  # no needless deadline: Trio would keep it until it has passed
            with trio.move_on_after(WRITE_TIME_OUT):
                await self._until_written()
        if self._is_writing or self._is_held or self._is_write_closed:
            return
        with trio.move_on_after(LINGER):
            await close_gracefully(self._stream)
