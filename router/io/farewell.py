"""How a stream is left: outwards first, then read to its end."""

from contextlib import suppress

import trio

from amqpmesh.router.io.secured_stream import TlsStream
from amqpmesh.router.io.streams import READ_SIZE

LINGER = 1.0
"""Seconds to wait for the peer's end of the stream after ours: closing a socket of which not everything was read
resets it, and the reason in our `close` would be lost with it."""


async def take_leave(stream: trio.abc.Stream) -> None:
    """End our direction of a stream, then read on until the peer has ended its own (§2.2, §5.1).

    Closed with bytes unread, a socket is reset, and what was written last would be lost. It may wait for ever.
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
