"""Byte streams that Trio lacks: sockets for use without waiting, and streams with a prefix that was read already."""

import errno
import fcntl
import select
import socket
import struct
import sys
import termios
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import suppress

import trio

READ_SIZE = 64 * 2**10
"""Octets of one read at most: one batch."""

BATCH_TIME = 0.005
"""Seconds after which a batch yields to other tasks, even if it is not finished."""

RECEIVE_BUFFER = 2**20
"""Octets in the system's receive buffer for a nearby neighbour: as much as it sends in one turn when it has much. While
small deliveries pass, large ones fill less of it (`narrow_window`).
"""

UNSENT = 2**19
"""Octets that the system accepts for a neighbour before it has sent the earlier ones."""

UNSENT_TO_SENDER = 2**17
"""Octets that the system accepts for a peer that reads slowly and sends, before it has sent the earlier ones. The
flows by which the peer may send more come behind them.
"""

NEARBY = 0.002
"""Seconds of a round trip up to which a neighbour is nearby. A distant neighbour needs more octets under way for the
same rate, and waiting is a smaller part of its total latency: there the system sizes the buffers.
"""

#: Linux only: other systems have none of these, or use other names.
UNSENT_OPTION: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)
TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
MIN_RTT = slice(148, 152)  # of `struct tcp_info`, in microseconds
LAST_SENT = slice(44, 48)  # of the same: milliseconds since the last octets were sent
RESET = struct.pack("ii", 1, 0)  # of SO_LINGER: closing the socket resets the connection
UNACKNOWLEDGED: int | None = getattr(termios, "TIOCOUTQ", None) if sys.platform == "linux" else None


class DirectStream(trio.abc.Stream):
    """A stream over a socket, with reads and writes that do not wait, in addition to those of a Trio stream.

    Waiting costs a task switch, which takes longer than all other work on a small message.
    """

    #: True if there may be octets to read that the system does not know of.
    pending = False

    @property
    @abstractmethod
    def descriptor(self) -> int:
        """The socket's file descriptor; -1: it is closed."""

    @abstractmethod
    def receive_nowait(self, size: int) -> bytes | None:
        """Return up to `size` octets that have arrived; b"" at the end of the stream.

        Returns: None: nothing has arrived.
        Raises: trio.BrokenResourceError: the peer is gone. trio.ClosedResourceError: closed here.
        """

    @abstractmethod
    def send_nowait(self, data: bytes | bytearray | memoryview) -> int:
        """Write as much as the system accepts now. The caller's next write must continue with the rest.

        Returns: the number of octets written, from 0 to all.
        Raises: as `receive_nowait`.
        """

    @abstractmethod
    def end_writing(self) -> bool:
        """End our direction of the stream, without waiting. Returns: False: the peer is gone."""

    @abstractmethod
    async def wait_readable(self) -> None:
        """Wait until the socket may be readable. Raises: as `receive_nowait`."""

    @abstractmethod
    def close(self) -> None:
        """Close the socket at once; tasks that wait on it get `trio.ClosedResourceError`."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for the next octets; b"" at the end. Raises: as `receive_nowait`."""
        while True:
            await (trio.lowlevel.checkpoint() if self.pending else self.wait_readable())
            data = self.receive_nowait(READ_SIZE if max_bytes is None else max_bytes)
            if data is not None:  # None: a spurious wake-up
                return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write all octets; wait as long as that takes. Raises: as `receive_nowait`."""
        await trio.lowlevel.checkpoint()
        with memoryview(data) as view:
            at = self.send_nowait(view)
            while at < len(view):
                await self.wait_send_all_might_not_block()
                at += self.send_nowait(view[at:])

    async def aclose(self) -> None:
        """Close the socket, as `close`."""
        self.close()
        await trio.lowlevel.checkpoint()


class LayeredStream(DirectStream):
    """A stream over another one: `transport_stream`, whose socket it uses and closes."""

    transport_stream: DirectStream

    @property
    def descriptor(self) -> int:
        """See `DirectStream`."""
        return self.transport_stream.descriptor

    async def wait_readable(self) -> None:
        """See `DirectStream`."""
        await self.transport_stream.wait_readable()

    async def wait_send_all_might_not_block(self) -> None:
        """See `DirectStream`."""
        await self.transport_stream.wait_send_all_might_not_block()

    def close(self) -> None:
        """See `DirectStream`; it tells the peer nothing."""
        self.transport_stream.close()


def layers(stream: trio.abc.Stream) -> Iterator[trio.abc.Stream]:
    """Yield a stream, then the streams below it, down to the socket."""
    each: trio.abc.Stream | None = stream
    while each is not None:
        yield each
        each = getattr(each, "transport_stream", None)


def prepare(connected: socket.socket) -> None:
    """Set the options of a socket: no octet waits for more octets, and a peer that vanishes is noticed."""
    with suppress(OSError):  # the peer is gone already: the first read reports it; or it is a Unix socket
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class TcpStream(DirectStream, trio.abc.HalfCloseableStream):
    """A stream over a connected socket."""

    #: A task has waited for the socket: Trio knows it.
    _is_known = False

    def __init__(self, connected: socket.socket, *, is_prepared: bool = False) -> None:
        """Args: connected: the socket; it belongs to the stream from now on. is_prepared: it has its options already
        (`prepare`).
        """
        connected.setblocking(False)
        if not is_prepared:
            prepare(connected)
        self._socket = connected

    def limit_buffers(self) -> None:
        """Limit the octets that wait in the system's buffers: there, urgent octets cannot overtake earlier ones."""
        self.limit_unsent(UNSENT)
        with suppress(OSError):
            if (trip := self.round_trip()) is not None and trip <= NEARBY:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)

    def limit_unsent(self, octets: int) -> None:
        """Limit the octets that the system accepts before it has sent the earlier ones, where the system can do so."""
        if UNSENT_OPTION is not None:
            with suppress(OSError):  # the peer is gone already, or is another worker
                self._socket.setsockopt(socket.IPPROTO_TCP, UNSENT_OPTION, octets)

    def round_trip(self) -> float | None:
        """Return the shortest round trip so far, in seconds; None: the system does not say."""
        told = self._told()
        if len(told) >= MIN_RTT.stop:
            return int.from_bytes(told[MIN_RTT], sys.byteorder) / 1e6
        return 0.0 if self._socket.family == socket.AF_UNIX else None

    @property
    def is_acknowledged(self) -> bool:
        """True if the peer's system has received all that was written; False: it has not, or our system cannot tell."""
        if UNACKNOWLEDGED is None:
            return False
        with suppress(OSError):  # the peer is gone already
            if self._socket.family == socket.AF_UNIX:
                return True
            return not any(fcntl.ioctl(self._socket, UNACKNOWLEDGED, bytes(4)))
        return False

    @property
    def is_over(self) -> bool:
        """True if both directions of the stream have ended; octets may be left to read."""
        asking = select.poll()
        asking.register(self._socket, 0)
        return bool(asking.poll(0))

    @property
    def descriptor(self) -> int:
        """See `DirectStream`."""
        return self._socket.fileno()

    def receive_nowait(self, size: int) -> bytes | None:
        """See `DirectStream`."""
        try:
            return self._socket.recv(size)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise self._failure(error) from error

    def send_nowait(self, data: bytes | bytearray | memoryview) -> int:
        """See `DirectStream`."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._failure(error) from error

    async def wait_readable(self) -> None:
        """See `DirectStream`."""
        self._check_open()
        self._is_known = True
        await trio.lowlevel.wait_readable(self._socket)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the system accepts octets. Raises: as `receive_nowait`."""
        self._check_open()
        self._is_known = True
        await trio.lowlevel.wait_writable(self._socket)

    def end_writing(self) -> bool:
        """See `DirectStream`."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return True

    def reset(self) -> None:
        """End both directions of the stream, also for other processes that have the socket."""
        with suppress(OSError):  # the peer is gone already
            self._socket.shutdown(socket.SHUT_RDWR)

    def abandon(self, silence: float) -> None:
        """Close the socket, by a reset if the peer's system has all octets, and nothing was sent for a while.

        A peer that does not read notices a reset at its next write; at the end of the stream that write succeeds, and
        only the one after it fails. What it has and did not read it can still read on Linux; not all systems keep that
        beyond a reset, so it must have had time. Else, or where the system here does not tell, `close`.

        Args: silence: seconds since the last octets that the peer must have had.
        """
        told = self._told()
        is_silent = len(told) >= LAST_SENT.stop and int.from_bytes(told[LAST_SENT], sys.byteorder) / 1e3 >= silence
        if is_silent and self.is_acknowledged:
            with suppress(OSError):  # the peer is gone already
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.close()

    async def send_eof(self) -> None:
        """End our direction of the stream. Raises: as `receive_nowait`."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    def close(self) -> None:
        """See `DirectStream`."""
        if self._socket.fileno() != -1:
            if self._is_known:
                trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def _told(self) -> bytes:
        """Return the system's `struct tcp_info`; b"": the peer is gone already, or this is a Unix socket."""
        if TCP_INFO is not None:
            with suppress(OSError):
                return self._socket.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 256)
        return b""

    def _check_open(self) -> None:
        if self._socket.fileno() == -1:
            raise trio.ClosedResourceError("the socket was closed here")

    def _failure(self, error: OSError) -> trio.BrokenResourceError | trio.ClosedResourceError:
        if error.errno == errno.EBADF:
            return trio.ClosedResourceError("the socket was closed here")
        return trio.BrokenResourceError(str(error))


class BridgedStream(TcpStream):
    """A Unix socket to a worker that passes octets on to the peer: the system knows nothing of the peer."""

    @property
    def is_acknowledged(self) -> bool:
        """False: the octets may still be on their way to the peer."""
        return False

    def round_trip(self) -> float | None:
        """Return None: it is not known."""
        return None


class PrefixedStream(trio.abc.Stream):
    """A stream with octets in front that were read already: it returns those first."""

    def __init__(self, read: bytes, stream: trio.abc.Stream) -> None:
        """Args: read: the octets in front; may be empty. stream: belongs to this object from now on."""
        self._read = read
        self._stream = stream

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """See `trio.abc.ReceiveStream`."""
        if not self._read:
            return await self._stream.receive_some(max_bytes)
        await trio.lowlevel.checkpoint()
        size = len(self._read) if max_bytes is None else max_bytes
        taken, self._read = self._read[:size], self._read[size:]
        return taken

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See `trio.abc.SendStream`."""
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """See `trio.abc.SendStream`."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """See `trio.abc.AsyncResource`."""
        await self._stream.aclose()
