"""Byte streams that `trio` does not bring: a socket that can be used without waiting, and bytes put back."""

import errno
import fcntl
import socket
import sys
import termios
from abc import abstractmethod
from contextlib import suppress

import trio

READ_SIZE = 64 * 2**10
"""Octets that are read at once at most: a batch."""

BATCH_TIME = 0.005
"""Seconds after which a batch gives the thread back, whatever is left of it."""

RECEIVE_BUFFER = 2**20
"""Octets that may wait to be read from a neighbour nearby: what it sends in one turn, when it has much. While something
small passes, what is large is not sent as far as that (`narrow_window`)."""

UNSENT = 2**19
"""Octets that the system takes for a neighbour before it has sent those that it has."""

NEARBY = 0.002
"""Seconds of a round trip up to which a neighbour is nearby. To others more has to be under way for the same rate, and
what waits is less of the whole time: there the system decides."""

#: Of Linux; other systems have none of these, or not by these names.
UNSENT_OPTION: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)
TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
MIN_RTT = slice(148, 152)  # of `struct tcp_info`, in microseconds
UNACKNOWLEDGED: int | None = getattr(termios, "TIOCOUTQ", None) if sys.platform == "linux" else None


class DirectStream(trio.abc.Stream):
    """A stream over a socket. Besides what a stream of `trio` does, reads and writes can be tried without waiting.

    Waiting costs a wake-up of a task, which is more than everything else that a small message needs here.
    """

    #: Whether there may be something to be read that the system does not know of.
    pending = False

    @property
    @abstractmethod
    def descriptor(self) -> int:
        """What the system knows the socket by; -1: it is closed."""

    @abstractmethod
    def receive_nowait(self, size: int) -> bytes | None:
        """What has come already, up to `size` octets; b"" at the end.

        Returns: None: nothing has come.
        Raises: trio.BrokenResourceError: the peer is gone. trio.ClosedResourceError: closed here.
        """

    @abstractmethod
    def send_nowait(self, data: bytes | bytearray | memoryview) -> int:
        """Write what the system takes now; the rest has to be what is written next.

        Returns: how many octets that was, from 0 to all.
        Raises: as `receive_nowait`.
        """

    @abstractmethod
    async def wait_readable(self) -> None:
        """Wait until something may have come. Raises: as `receive_nowait`."""

    @abstractmethod
    def close(self) -> None:
        """Close it, without another word; whoever waits in it gets `trio.ClosedResourceError`."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """The next bytes, b"" at their end. Raises: as `receive_nowait`."""
        while True:
            await (trio.lowlevel.checkpoint() if self.pending else self.wait_readable())
            data = self.receive_nowait(READ_SIZE if max_bytes is None else max_bytes)
            if data is not None:  # else woken for nothing
                return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write everything, waiting as long as it takes. Raises: as `receive_nowait`."""
        await trio.lowlevel.checkpoint()
        with memoryview(data) as view:
            at = self.send_nowait(view)
            while at < len(view):
                await self.wait_send_all_might_not_block()
                at += self.send_nowait(view[at:])

    async def aclose(self) -> None:
        """As `close`."""
        self.close()
        await trio.lowlevel.checkpoint()


class TcpStream(DirectStream, trio.abc.HalfCloseableStream):
    """A connected socket."""

    def __init__(self, connected: socket.socket) -> None:
        """Args: connected: it belongs to the stream from now on."""
        connected.setblocking(False)
        with suppress(OSError):  # a peer that is gone already: the first read will say so
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if connected.family in (socket.AF_INET, socket.AF_INET6):
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected

    def keep_short(self) -> None:
        """Let less wait in the system's buffers than it would: nothing can pass there what came before it."""
        with suppress(OSError):
            if UNSENT_OPTION is not None:
                self._socket.setsockopt(socket.IPPROTO_TCP, UNSENT_OPTION, UNSENT)
            if (trip := self.round_trip()) is not None and trip <= NEARBY:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)

    def round_trip(self) -> float | None:
        """Seconds of the shortest round trip so far; None: the system does not say."""
        if self._socket.family == socket.AF_UNIX:
            return 0.0
        if TCP_INFO is None:
            return None
        with suppress(OSError):  # the peer is gone already
            told = self._socket.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 256)
            if len(told) >= MIN_RTT.stop:
                return int.from_bytes(told[MIN_RTT], sys.byteorder) / 1e6
        return None

    @property
    def is_acknowledged(self) -> bool:
        """Whether the peer's system has all that was written; False: it has not, or ours does not say."""
        if UNACKNOWLEDGED is None:
            return False
        with suppress(OSError):  # the peer is gone already
            if self._socket.family == socket.AF_UNIX:
                return True
            return not any(fcntl.ioctl(self._socket, UNACKNOWLEDGED, bytes(4)))
        return False

    @property
    def descriptor(self) -> int:
        """As of `DirectStream`."""
        return self._socket.fileno()

    def receive_nowait(self, size: int) -> bytes | None:
        """As of `DirectStream`."""
        try:
            return self._socket.recv(size)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise self._failure(error) from error

    def send_nowait(self, data: bytes | bytearray | memoryview) -> int:
        """As of `DirectStream`."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._failure(error) from error

    async def wait_readable(self) -> None:
        """As of `DirectStream`."""
        self._check_open()
        await trio.lowlevel.wait_readable(self._socket)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the system takes something. Raises: as `receive_nowait`."""
        self._check_open()
        await trio.lowlevel.wait_writable(self._socket)

    async def send_eof(self) -> None:
        """Say that nothing more will be written. Raises: as `receive_nowait`."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    def close(self) -> None:
        """As of `DirectStream`."""
        if self._socket.fileno() != -1:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def _check_open(self) -> None:
        if self._socket.fileno() == -1:
            raise trio.ClosedResourceError("the socket was closed here")

    def _failure(self, error: OSError) -> trio.BrokenResourceError | trio.ClosedResourceError:
        if error.errno == errno.EBADF:
            return trio.ClosedResourceError("the socket was closed here")
        return trio.BrokenResourceError(str(error))


class PutBack(trio.abc.Stream):
    """A stream of which too much was read: those bytes come again, then what follows them."""

    def __init__(self, read: bytes, stream: trio.abc.Stream) -> None:
        """Args: read: may be empty. stream: belongs to this one from now on."""
        self._read = read
        self._stream = stream

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As `trio.abc.ReceiveStream`."""
        if not self._read:
            return await self._stream.receive_some(max_bytes)
        await trio.lowlevel.checkpoint()
        size = len(self._read) if max_bytes is None else max_bytes
        taken, self._read = self._read[:size], self._read[size:]
        return taken

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As `trio.abc.SendStream`."""
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """As `trio.abc.SendStream`."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """As `trio.abc.AsyncResource`."""
        await self._stream.aclose()
