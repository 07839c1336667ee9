"""Streams of AMQP through a WebSocket, over a socket that is used without waiting, and over any stream."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from amqpmesh.router.io.streams import READ_SIZE, DirectStream, LayeredStream
from amqpmesh.router.io.websocket_framing import FRAMES, PIECE

if TYPE_CHECKING:
    from amqpmesh.router.io.websocket_framing import Framing

ENDED = "the peer has closed the WebSocket"


class WebSocketStream(LayeredStream, trio.abc.HalfCloseableStream):
    """A WebSocket over a socket, with or without TLS. Only one task at a time may use it."""

    def __init__(self, stream: DirectStream, framing: Framing) -> None:
        """Args: stream: belongs to this object from now on."""
        self.transport_stream = stream
        self._framing = framing
        #: Octets of frames that are not written yet, and how many octets of the caller's content they hold.
        self._unsent = memoryview(b"")
        self._owed = 0
        self.pending = True

    def receive_nowait(self, size: int) -> bytes | None:
        """See `DirectStream`. A peer that sends many small frames is read in small portions.

        Raises: trio.BrokenResourceError: also if the peer has broken a rule of WebSocket, of which it is told.
        """
        framing, stream = self._framing, self.transport_stream
        parts: list[bytes] = []
        room = size
        has_ended = is_exhausted = False
        while room > 0:
            if not framing.has_more:
                if framing.is_over or is_exhausted:
                    break
                data = stream.receive_nowait(room)
                if not data:
                    has_ended = data is not None
                    break
                is_exhausted = len(data) < room
                framing.feed(data)
            part = framing.take()
            if part:
                parts.append(part)
                room -= len(part)
            if framing.has_more:
                break
        has_ended = has_ended or framing.is_over
        self.pending = framing.has_more or stream.pending or (has_ended and bool(parts))
        self._answer()
        if parts:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        if framing.fault is not None:
            raise trio.BrokenResourceError(f"WebSocket: {framing.fault}")
        return b"" if has_ended else None

    def send_nowait(self, data: bytes | bytearray | memoryview) -> int:
        """See `DirectStream`. Octets that do not count as sent may be in a frame already."""
        written = 0
        with memoryview(data) as view:
            while True:
                if self._unsent:
                    self._send_rest()
                    if self._unsent:
                        return written
                    written, self._owed = written + self._owed, 0
                self._unsent = memoryview(self._framing.answer())
                if self._unsent:
                    continue
                if written == len(view):
                    return written
                if self._framing.is_closed:
                    raise trio.BrokenResourceError(ENDED)
                with view[written : written + PIECE] as piece:
                    self._unsent, self._owed = memoryview(self._framing.framed(piece)), len(piece)

    def end_writing(self) -> bool:
        """See `DirectStream`. The end of the WebSocket is sent first, if the system accepts it."""
        self._unsent = memoryview(bytes(self._unsent) + self._framing.end())
        try:
            self._send_rest()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return self.transport_stream.end_writing()

    async def send_eof(self) -> None:
        """End the WebSocket: the peer does so, too. Raises: as `receive_nowait`."""
        rest, self._unsent = bytes(self._unsent) + self._framing.end(), memoryview(b"")
        await self.transport_stream.send_all(rest)

    def _send_rest(self) -> None:
        self._unsent = self._unsent[self.transport_stream.send_nowait(self._unsent) :]

    def _answer(self) -> None:
        """Answer a ping or the end of the WebSocket without waiting for the caller's next write."""
        if not self._unsent:
            self._unsent = memoryview(self._framing.answer())
            if self._unsent:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the next write reports it
                    self._send_rest()


class WebSocketOverStream(trio.abc.HalfCloseableStream):
    """A WebSocket over any stream. One task may read while another writes."""

    def __init__(self, stream: trio.abc.Stream, framing: Framing) -> None:
        """Args: stream: belongs to this object from now on."""
        self.transport_stream = stream
        self._framing = framing
        self._writing = trio.Lock()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for the next octets; b"" at the end. Raises: as `WebSocketStream.receive_nowait`.

        Args: max_bytes: octets that are read below at a time.
        """
        framing = self._framing
        while True:
            await trio.lowlevel.checkpoint()
            if not framing.has_more:
                if framing.fault is not None:
                    raise trio.BrokenResourceError(f"WebSocket: {framing.fault}")
                if framing.is_over:
                    return b""
                data = await self.transport_stream.receive_some(READ_SIZE if max_bytes is None else max_bytes)
                if not data:
                    return b""
                framing.feed(bytes(data))
            content = framing.take(FRAMES)
            if framing.has_answer and not self._writing.locked():  # else the task that writes answers
                await self._send()
            if content:
                return content

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write all octets; wait as long as that takes. Raises: BrokenResourceError: the WebSocket has ended."""
        async with self._writing:
            with memoryview(data) as view:
                for at in range(0, len(view), PIECE):
                    if self._framing.is_closed:
                        raise trio.BrokenResourceError(ENDED)
                    with view[at : at + PIECE] as piece:
                        framed = self._framing.framed(piece)
                    await self.transport_stream.send_all(framed)
        await self._send()

    async def wait_send_all_might_not_block(self) -> None:
        """See `trio.abc.SendStream`."""
        await self.transport_stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """End the WebSocket: the peer does so, too. Raises: as `send_all`."""
        await self._send(ends=True)

    async def aclose(self) -> None:
        """Close the stream below. It tells the peer nothing."""
        await self.transport_stream.aclose()

    async def _send(self, *, ends: bool = False) -> None:
        """Answer a ping or the end of the WebSocket. Args: ends: end it ourselves."""
        async with self._writing:
            answer = self._framing.end() if ends else self._framing.answer()
            if answer:
                await self.transport_stream.send_all(answer)
