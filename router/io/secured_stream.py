"""TLS over a connected socket, which can be read and written without waiting, as the socket can."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import trio

from amqpmesh.router.io.streams import READ_SIZE, DirectStream, TcpStream

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD: Final = 16 * 2**10
"""Octets of content in a record of TLS at most (RFC 8446, 5.1)."""

FETCHED: Final = 2 * RECORD
"""Octets that are handed to OpenSSL at once: what its memory has grown to for them it keeps, for each connection."""

PIECE: Final = 8 * RECORD
"""Octets that are encrypted before the system is asked whether it takes them."""

LINGER: Final = 1.0
"""Seconds to wait for the peer's end of the stream after ours. A socket that is closed with bytes unread is reset, and
the reason in our `close` would be lost.
"""


class TlsStream(DirectStream):
    """TLS within a `TcpStream`, by memory: what `trio.SSLStream` does with a task that waits, without one.

    As https does, the end of the stream is taken for the end of TLS: many a peer just closes its socket, and AMQP's own
    `close` says whether anything is missing. One task at a time.
    """

    def __init__(
        self, stream: TcpStream, context: ssl.SSLContext, *, server_hostname: str | None = None, read: bytes = b""
    ) -> None:
        """Args: stream: belongs to this one from now on. server_hostname: of the server, as its certificate has to name
        it; None: we are the server. read: what was read of the peer's TLS already.
        """
        self.transport_stream = stream
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._incoming.write(read)
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_hostname is None, server_hostname=server_hostname
        )
        #: Encrypted and not written yet; how many octets of the caller's are in it.
        self._unsent = memoryview(b"")
        self._owed = 0

    @property
    def descriptor(self) -> int:
        """As of `DirectStream`."""
        return self.transport_stream.descriptor

    async def do_handshake(self) -> None:
        """Agree on keys, and see who the peer is. Raises: trio.BrokenResourceError: caused by what went wrong."""
        await self._finish(self._tls.do_handshake)
        self.pending = True  # what the peer has sent right behind its own

    async def unwrap(self) -> None:
        """Say that this is the end, and wait until the peer has. Raises: as `do_handshake`."""
        await self._finish(self._tls.unwrap)

    def getpeercert(self, binary_form: bool = False) -> Any:
        """As of `ssl.SSLObject`."""
        return self._tls.getpeercert(binary_form)

    def version(self) -> str | None:
        """As of `ssl.SSLObject`."""
        return self._tls.version()

    def cipher(self) -> tuple[str, str, int] | None:
        """As of `ssl.SSLObject`."""
        return self._tls.cipher()

    # ------------------------------------------------------------------------------------------------ without waiting

    def receive_nowait(self, size: int) -> bytes | None:
        """As of `DirectStream`. Args: size: octets of content, and of what the system is asked for, at most."""
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
                data = None if is_exhausted else self.transport_stream.receive_nowait(FETCHED)
                if data:
                    is_exhausted = len(data) < FETCHED
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
        """As of `DirectStream`. Of what is not written part may be encrypted already."""
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
                self._encrypt(view[written : written + PIECE])

    async def wait_readable(self) -> None:
        """As of `DirectStream`."""
        await self.transport_stream.wait_readable()

    async def wait_send_all_might_not_block(self) -> None:
        """As of `DirectStream`."""
        await self.transport_stream.wait_send_all_might_not_block()

    def close(self) -> None:
        """As of `DirectStream`; of TLS nothing is said."""
        self.transport_stream.close()

    # ------------------------------------------------------------------------------------------------------- the steps

    async def _finish(self, step: Callable[[], object]) -> None:
        """Do what takes several messages of both sides."""
        while True:
            is_done = True
            try:
                step()
            except ssl.SSLWantReadError:
                is_done = False
            except (ssl.SSLError, ssl.CertificateError) as error:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    self._answer()  # the peer is told why
                raise trio.BrokenResourceError from error
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
        """What is here, b"" at the end of TLS; None: more of the stream is needed for it."""
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

    def _answer(self) -> None:
        """Send what TLS itself has to say; it must not wait for the next that the caller does."""
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
