"""TLS over a socket, read and written without waiting; and the graceful end of any stream."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import trio

from amqpmesh.router.io.streams import READ_SIZE, LayeredStream, TcpStream

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD: Final = 16 * 2**10
"""Octets of content in one TLS record at most (RFC 8446, 5.1)."""

READ_PIECE: Final = 2 * RECORD
"""Octets that are handed to OpenSSL at once. Its buffer of each connection grows to this size and never shrinks."""

WRITE_PIECE: Final = 8 * RECORD
"""Octets that are encrypted before they are offered to the system."""

LINGER: Final = 1.0
"""Seconds to wait for the peer's end of the stream after ours. A socket that is closed with bytes unread is reset, and
the reason in our `close` would be lost.
"""

SILENCE: Final = 0.95 * LINGER
"""Seconds without output after which a peer that has not answered our `close` is reset. Systems count in ticks of up to
10 ms: after `LINGER` they may say a little less.
"""


class TlsStream(LayeredStream):
    """TLS in memory, over a `TcpStream`. It can be used without waiting; `trio.SSLStream` needs a task that waits.

    As in https, the end of the stream counts as the end of TLS: many peers just close the socket, and AMQP's own
    `close` says whether anything is missing. Only one task at a time may use it.
    """

    def __init__(
        self, stream: TcpStream, context: ssl.SSLContext, *, server_hostname: str | None = None, read: bytes = b""
    ) -> None:
        """Args: stream: belongs to this object from now on. server_hostname: the name that the server's certificate
        must have;
        None: we are the server. read: octets of the peer's TLS that were read already.
        """
        self.transport_stream = stream
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._incoming.write(read)
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_hostname is None, server_hostname=server_hostname
        )
        #: Encrypted octets that are not written yet, and how many octets of the caller's content they hold.
        self._unsent = memoryview(b"")
        self._owed = 0

    async def do_handshake(self) -> None:
        """Do the TLS handshake. Raises: trio.BrokenResourceError: it failed; the cause is the TLS error."""
        await self._finish(self._tls.do_handshake)
        self.pending = True  # the peer may have sent data right after its handshake

    def handshake_nowait(self) -> bool:
        """Go on with the TLS handshake as far as that needs no waiting. Raises: as `do_handshake`.

        Returns: True if it is done. If not, it goes on when the socket is readable, or writable if it `is_blocked`.
        """
        while True:
            is_done = self._try(self._tls.do_handshake)
            self._send_own()
            if self.is_blocked:
                return False
            if is_done:
                self.pending = True  # the peer may have sent data right after its handshake
                return True
            data = self.transport_stream.receive_nowait(READ_SIZE)
            if data is None:
                return False
            if data:
                self._incoming.write(data)
            else:
                self._incoming.write_eof()

    @property
    def is_blocked(self) -> bool:
        """True if the system has not accepted all that was encrypted."""
        return bool(self._unsent)

    def end_writing(self) -> bool:
        """See `DirectStream`. The end of TLS is sent first, if the system accepts it."""
        with suppress(ssl.SSLError):  # the peer has not ended TLS, or still sends
            self._tls.unwrap()
        try:
            self._send_own()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return self.transport_stream.end_writing()

    async def unwrap(self) -> None:
        """End TLS, and wait until the peer ends it, too. Raises: as `do_handshake`."""
        await self._finish(self._tls.unwrap)

    @property
    def context(self) -> ssl.SSLContext:
        """The context of the handshake."""
        return self._tls.context

    def getpeercert(self, binary_form: bool = False) -> Any:
        """See `ssl.SSLObject`."""
        return self._tls.getpeercert(binary_form)

    def version(self) -> str | None:
        """See `ssl.SSLObject`."""
        return self._tls.version()

    def cipher(self) -> tuple[str, str, int] | None:
        """See `ssl.SSLObject`."""
        return self._tls.cipher()

    # ------------------------------------------------------------------------------------------------ without waiting

    def receive_nowait(self, size: int) -> bytes | None:
        """See `DirectStream`. Args: size: octets of content at most."""
        parts: list[bytes] = []
        room = size
        is_exhausted = False
        self.pending = False
        while room > 0:
            part = self._decrypted(min(RECORD, room))
            if part:
                parts.append(part)
                room -= len(part)
            elif part is not None:  # the end of TLS
                if not parts:
                    return b""
                break
            else:
                data = None if is_exhausted else self.transport_stream.receive_nowait(READ_PIECE)
                if data:
                    is_exhausted = len(data) < READ_PIECE
                    self._incoming.write(data)
                    continue
                if data is not None and not parts:
                    return b""
                self._answer()
                return b"".join(parts) if parts else None
        self.pending = True
        self._answer()
        return b"".join(parts)

    def send_nowait(self, data: bytes | bytearray | memoryview) -> int:
        """See `DirectStream`. Octets that do not count as sent may be encrypted already."""
        written = 0
        with memoryview(data) as view:
            while True:
                if self._unsent:
                    sent = self.transport_stream.send_nowait(self._unsent)
                    self._unsent = self._unsent[sent:]
                    if self._unsent:
                        return written
                    written, self._owed = written + self._owed, 0
                if written == len(view):
                    return written
                self._encrypt(view[written : written + WRITE_PIECE])

    # ------------------------------------------------------------------------------------------------------- the steps

    def _try(self, step: Callable[[], object]) -> bool:
        """Go on with a TLS operation. Returns: True if it is done; else it needs input. Raises: as `do_handshake`."""
        try:
            step()
        except ssl.SSLWantReadError:
            return False
        except (ssl.SSLError, ssl.CertificateError) as error:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                self._answer()  # send the TLS alert with the reason
            raise trio.BrokenResourceError from error
        return True

    async def _finish(self, step: Callable[[], object]) -> None:
        """Repeat a TLS operation that needs several messages of both sides, until it is done."""
        while True:
            is_done = self._try(step)
            self._unsent = memoryview(bytes(self._unsent) + self._outgoing.read())
            await self.transport_stream.send_all(self._unsent)
            self._unsent = memoryview(b"")
            if is_done:
                return
            if data := await self.transport_stream.receive_some(READ_SIZE):
                self._incoming.write(data)
            else:
                self._incoming.write_eof()

    def _decrypted(self, size: int) -> bytes | None:
        """Return content, b"" at the end of TLS; None: TLS needs more octets of the stream."""
        try:
            return self._tls.read(size)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLError as error:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                self._answer()
            raise trio.BrokenResourceError from error

    def _encrypt(self, piece: memoryview) -> None:
        records = []
        try:
            for at in range(0, len(piece), RECORD):
                self._tls.write(piece[at : at + RECORD])
                records.append(self._outgoing.read())
        except ssl.SSLError as error:
            raise trio.BrokenResourceError from error
        self._unsent, self._owed = memoryview(b"".join(records)), len(piece)

    def _send_own(self) -> None:
        """Write TLS messages of our own, as far as the system accepts them."""
        self._unsent = memoryview(bytes(self._unsent) + self._outgoing.read())
        if self._unsent:
            self._unsent = self._unsent[self.transport_stream.send_nowait(self._unsent) :]

    def _answer(self) -> None:
        """Send TLS messages of our own, such as key updates, without waiting for the caller's next write."""
        if self._outgoing.pending and not self._unsent:
            self._unsent = memoryview(self._outgoing.read())
            self._unsent = self._unsent[self.transport_stream.send_nowait(self._unsent) :]


async def close_gracefully(stream: trio.abc.Stream) -> None:
    """End our direction of a stream, then read on until the peer has ended its own (§2.2, §5.1).

    A socket that is closed with bytes unread is reset, and the bytes written last would be lost. The peer may never end
    its direction: callers limit the wait by `LINGER`.
    """
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        if isinstance(stream, TlsStream):
            await stream.unwrap()
            stream = stream.transport_stream
        elif isinstance(stream, trio.SSLStream):
            stream, _ = await stream.unwrap()
        if isinstance(stream, trio.abc.HalfCloseableStream):
            await stream.send_eof()
            while await stream.receive_some(READ_SIZE):
                pass
