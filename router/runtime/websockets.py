"""Handshakes of WebSockets with the clients of listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router.http.upgrade import Upgrade
from amqpmesh.router.io.handshake import took_too_long
from amqpmesh.router.io.secured_stream import LINGER, close_gracefully
from amqpmesh.router.io.streams import DirectStream
from amqpmesh.router.io.websocket_stream import WebSocketOverStream, WebSocketStream

if TYPE_CHECKING:
    from amqpmesh.router.config.listener import ListenerConfig
    from amqpmesh.router.logins import Logins

READ_SIZE: Final = 8 * 2**10
"""Octets of one read at most, while the request is not whole."""


class _RefusedError(Exception):
    """A request that was refused; the message gives the reason for people."""


class WebSocketHandshake:
    """A handshake over a socket, as the server, that needs no waiting: see `Opening`.

    Attributes: `transport_stream`: the stream below.
    """

    def __init__(self, stream: DirectStream, config: ListenerConfig) -> None:
        """Args: stream: belongs to this object from now on. config: of the listener."""
        self.transport_stream = stream
        self._upgrade = Upgrade(config)
        self._unsent = memoryview(b"")

    @property
    def descriptor(self) -> int:
        """The socket's file descriptor."""
        return self.transport_stream.descriptor

    @property
    def pending(self) -> bool:
        """True if there may be octets to read that the system does not know of."""
        return self.transport_stream.pending

    @property
    def is_blocked(self) -> bool:
        """True if the system has not accepted the whole answer."""
        return bool(self._unsent)

    def handshake_nowait(self) -> bool:
        """Go on as far as that needs no waiting. Returns: True if the WebSocket is open.

        Raises: trio.BrokenResourceError: the client is gone, or its request was refused, which is the cause.
        """
        upgrade, stream = self._upgrade, self.transport_stream
        while not upgrade.answer:
            data = stream.receive_nowait(READ_SIZE)
            if data is None:
                return False
            _receive(upgrade, data)
            self._unsent = memoryview(upgrade.answer)
        self._unsent = self._unsent[stream.send_nowait(self._unsent) :]
        if self._unsent:
            return False
        _check(upgrade)
        return True

    @property
    def opened(self) -> WebSocketStream:
        """The stream through the WebSocket, once it is open."""
        assert self._upgrade.framing is not None, "the handshake is done"
        return WebSocketStream(self.transport_stream, self._upgrade.framing)

    def close(self) -> None:
        """Close the socket."""
        self.transport_stream.close()


async def open_websocket(
    stream: trio.abc.Stream, config: ListenerConfig, host: str, logins: Logins
) -> WebSocketStream | WebSocketOverStream | None:
    """Open the WebSocket that a client asks for, as the server.

    Args: config: of the listener. host: the client's address. logins: logs a failure.
    Returns: None if it failed or took too long, which was logged.
    """
    upgrade = Upgrade(config)
    seconds = config.websocket_limits.request_time
    reason = took_too_long(seconds)
    with trio.move_on_after(seconds):
        try:
            while not upgrade.answer:
                _receive(upgrade, bytes(await stream.receive_some(READ_SIZE)))
            await stream.send_all(upgrade.answer)
            _check(upgrade)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            reason = str(error.__cause__ or error)
        else:
            assert upgrade.framing is not None, "it was not refused"
            if isinstance(stream, DirectStream):
                return WebSocketStream(stream, upgrade.framing)
            return WebSocketOverStream(stream, upgrade.framing)
    logins.not_upgraded(host, reason)
    with trio.move_on_after(LINGER):
        await close_gracefully(stream)
    return None


def _receive(upgrade: Upgrade, data: bytes) -> None:
    """Pass octets on. Raises: trio.BrokenResourceError: the client is gone."""
    try:
        upgrade.receive(data)
    except EOFError:
        raise trio.BrokenResourceError("the peer left") from None


def _check(upgrade: Upgrade) -> None:
    """Check the outcome. Raises: trio.BrokenResourceError: the request was refused."""
    if upgrade.refusal is not None:
        raise trio.BrokenResourceError from _RefusedError(upgrade.refusal)
