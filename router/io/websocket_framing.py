"""AMQP in the binary messages of a WebSocket (RFC 6455; OASIS AMQP WebSocket Binding 1.0), without I/O."""

from __future__ import annotations

from typing import Final

from wsproto.connection import CLIENT, SERVER, Connection, ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage
from wsproto.frame_protocol import CloseReason

SUBPROTOCOLS: Final = ("amqp", "AMQPWSB10", "binary")
"""The subprotocols that stand for AMQP, the preferred one first: that of the binding, that of its draft, which Azure's
clients and services speak, and the one that clients of Qpid Dispatch Router use.
"""

FRAMES: Final = 32
"""Frames that are read in a row. A peer may send an octet in each, or none: so other peers get their turns."""

LEAST: Final = 8
"""Octets of AMQP that pay for a frame: each frame and each header of AMQP has as many at least (§2.2, §2.3.1)."""

MOST_SMALL: Final = 1_000
"""Frames that nothing pays for, at most. Reading one takes some 20 us, also if it brings an octet, or is a ping."""

PIECE: Final = 2**17
"""Octets of one message at most that is sent."""


class Framing:
    """One end of an open WebSocket. AMQP is a stream of octets: it begins and ends anywhere in a message.

    Attributes: `has_more`: frames may be left to read. `is_over`: nothing more comes: the peer has closed the
        WebSocket, or has broken its rules. `fault`: the rule that the peer has broken; None: none.
    """

    def __init__(self, connection: Connection) -> None:
        """Args: connection: open, without extensions: nothing is compressed."""
        self._connection = connection
        self.has_more = True
        self.is_over = False
        self.fault: str | None = None
        #: Octets that the peer has to send to pay for its frames so far; 0: it has paid.
        self._debt = 0
        #: The payload of the last ping without an answer, and our end of the WebSocket that is not sent.
        self._pinged: bytes | None = None
        self._close: CloseConnection | None = None

    @classmethod
    def of_server(cls, read: bytes = b"") -> Framing:
        """Return the server's end. Args: read: octets behind the request."""
        return cls(Connection(SERVER, trailing_data=read))

    @classmethod
    def of_client(cls, read: bytes = b"") -> Framing:
        """Return the client's end. Args: read: octets behind the answer."""
        return cls(Connection(CLIENT, trailing_data=read))

    def feed(self, data: bytes) -> None:
        """Take octets from the peer; `take` reads them."""
        if not self.is_over:
            self._debt = max(0, self._debt - LEAST)  # a frame that comes alone, such as a ping now and then, is free
            self._connection.receive_data(data)
            self.has_more = True

    def take(self, most: int = FRAMES) -> bytes:
        """Return the content of the next frames. Args: most: frames to read."""
        parts: list[bytes | bytearray] = []
        self.has_more = False
        for event in self._connection.events():
            if isinstance(event, BytesMessage):
                parts.append(event.data)
            elif isinstance(event, Ping):
                # One answer, to the last of several pings, is enough (RFC 6455, 5.5.3).
                self._pinged = event.payload
            elif isinstance(event, TextMessage):
                self._fail(CloseReason.UNSUPPORTED_DATA, "a text message: AMQP comes in binary messages")
                break
            elif isinstance(event, CloseConnection):
                if self._connection.state is ConnectionState.OPEN:  # of our own end, about broken rules
                    self._fail(event.code, event.reason or "")
                else:
                    self.is_over = True
                    if self._connection.state is ConnectionState.REMOTE_CLOSING:
                        self._close = event.response()
                break
            self._debt = max(0, self._debt + LEAST - (len(event.data) if isinstance(event, BytesMessage) else 0))
            if self._debt > MOST_SMALL * LEAST:
                self._fail(CloseReason.POLICY_VIOLATION, f"too many frames of fewer than {LEAST} octets")
                break
            most -= 1
            if most <= 0:
                self.has_more = True
                break
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    @property
    def has_answer(self) -> bool:
        """True if the peer waits for an answer."""
        return self._pinged is not None or self._close is not None

    def answer(self) -> bytes:
        """Return the octets that the peer waits for: the answer to its ping, or to its end of the WebSocket."""
        answer = b""
        if self._pinged is not None:
            if self._may_send:
                answer = self._connection.send(Pong(self._pinged))
            self._pinged = None
        if self._close is not None:
            answer += self._connection.send(self._close)
            self._close = None
        return answer

    @property
    def _may_send(self) -> bool:
        return self._connection.state is ConnectionState.OPEN

    @property
    def is_closed(self) -> bool:
        """True if nothing can be sent any more."""
        return self._close is not None or not self._may_send

    def framed(self, content: memoryview) -> bytes:
        """Return the octets of a message. Args: content: `PIECE` octets at most."""
        return self._connection.send(BytesMessage(data=content))  # type: ignore[arg-type]  # it takes any buffer

    def end(self) -> bytes:
        """Return our end of the WebSocket, if it was not sent yet, and the answer that the peer waits for."""
        if not self.is_closed:
            self._close = CloseConnection(CloseReason.NORMAL_CLOSURE)
        return self.answer()

    def _fail(self, code: int, reason: str) -> None:
        self.is_over, self.fault = True, reason
        if self._may_send:  # each end closes the WebSocket once (RFC 6455, 5.5.1)
            self._close = CloseConnection(code, reason)
