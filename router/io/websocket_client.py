"""The client's end of the handshake of a WebSocket (RFC 6455, 4.1; OASIS AMQP WebSocket Binding, 2.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from wsproto.connection import CLIENT
from wsproto.events import AcceptConnection, RejectConnection, RejectData, Request
from wsproto.handshake import H11Handshake
from wsproto.utilities import ProtocolError

from amqpmesh.router.amqp.errors import ConnectionClosedError, shown
from amqpmesh.router.io.dialing import PermanentError
from amqpmesh.router.io.streams import READ_SIZE
from amqpmesh.router.io.websocket_framing import SUBPROTOCOLS, Framing
from amqpmesh.router.io.websocket_stream import WebSocketOverStream

if TYPE_CHECKING:
    from amqpmesh.policies.redirect import PeerAddress

REASON: Final = 256
"""Octets of the reason that the server gives for a refusal."""

HEAD: Final = 16 * 2**10
"""Octets of the server's answer up to the end of its header fields."""

TEMPORARY: Final = frozenset({408, 425, 429})
"""Statuses of a refused request that may be accepted later, beside those of the server's faults (RFC 9110, 15.5)."""


async def open_websocket(stream: trio.abc.Stream, place: PeerAddress) -> WebSocketOverStream:
    """Open a WebSocket for AMQP over a stream.

    Raises: BrokenResourceError: the server has gone, or does not speak WebSocket now; the cause has the reason.
        PermanentError: it has refused the request, and would do so again.
    """
    handshake = H11Handshake(CLIENT)
    try:
        await stream.send_all(handshake.send(_request(place)))
        status = await _status(stream, handshake)
        if status is None:
            assert handshake.connection is not None, "it is accepted"
            return WebSocketOverStream(stream, Framing(handshake.connection))
        reason = f"{place}: refused with HTTP {status}{await _reason(stream, handshake)}"
    except (ProtocolError, ValueError) as error:
        raise trio.BrokenResourceError from _NoWebSocketError(f"no WebSocket for AMQP here: {error}")
    if 400 <= status < 500 and status not in TEMPORARY:
        raise PermanentError(ConnectionClosedError(reason))
    raise trio.BrokenResourceError from _NoWebSocketError(reason.removeprefix(f"{place}: "))


class _NoWebSocketError(Exception):
    """A handshake that has failed; the message gives the reason for people."""


def _request(place: PeerAddress) -> Request:
    host = f"[{place.certified}]" if ":" in place.certified else place.certified
    default = 443 if place.secure else 80
    return Request(
        host=host if place.port == default else f"{host}:{place.port}",
        target=place.websocket or "/",
        subprotocols=list(SUBPROTOCOLS[:2]),
    )


async def _status(stream: trio.abc.Stream, handshake: H11Handshake) -> int | None:
    """Return the status by which the server refuses the request; None: it accepts it. Raises: ProtocolError."""
    size = 0
    while True:
        for event in handshake.events():
            if isinstance(event, AcceptConnection):
                if event.subprotocol is None:
                    raise ValueError("the server names no subprotocol")
                return None
            if isinstance(event, RejectConnection):
                return event.status_code
        data = await stream.receive_some(READ_SIZE)
        size += len(data)
        if not data or size > HEAD:
            raise ValueError("the server has closed" if not data else "the answer has no end")
        handshake.receive_data(bytes(data))


async def _reason(stream: trio.abc.Stream, handshake: H11Handshake) -> str:
    """Return the reason that the server gives, for people; empty if there is none."""
    told = bytearray()
    while len(told) < REASON:
        for event in handshake.events():
            if isinstance(event, RejectData):
                told += event.data
                if event.body_finished:
                    return _shown(told)
        try:
            data = await stream.receive_some(READ_SIZE)
            if not data:
                break
            handshake.receive_data(bytes(data))
        except (trio.BrokenResourceError, ProtocolError):
            break
    return _shown(told)


def _shown(told: bytearray) -> str:
    text = told[:REASON].decode(errors="replace").strip()
    return f": {shown(text)}" if text else ""
