"""The negotiation before the first AMQP frame: protocol headers, TLS and SASL (§2.2, part 5)."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.frames import MIN_MAX_FRAME_SIZE, SASL_FRAME, protocol_header
from amqpmesh.router.amqp.states import direct

if TYPE_CHECKING:
    from amqpmesh.router.amqp.sasl.exchange import SaslClient, SaslServer

AMQP_ID: Final = 0
TLS_ID: Final = 2
SASL_ID: Final = 3

#: The layers by their protocol headers.
_IDS: Final = {protocol_header(each): each for each in (AMQP_ID, TLS_ID, SASL_ID)}


class Progress(Enum):
    """The result of a step of the negotiation."""

    GO_ON = auto()
    #: A TLS handshake follows.
    TLS = auto()
    #: The SASL exchange waits until the owner has done `sasl.work` and calls `sasl_worked`.
    WORK = auto()
    #: AMQP frames follow.
    AMQP = auto()
    #: The sides did not agree: the output is to be sent, then the transport is to be closed.
    REFUSED = auto()


P: Final = direct(Progress)


class Negotiation:
    """The protocol headers of one connection, and the SASL exchange between two of them.

    A server answers a header that it accepts with the same header. To any other it sends one that it would accept, and
    closes (§2.2). A client asks for the layers that it wants in this order: TLS, SASL, AMQP.
    """

    def __init__(
        self,
        *,
        server: bool,
        sasl: SaslServer | SaslClient | None = None,
        sasl_required: bool = False,
        tls: bool = False,
    ) -> None:
        """Args: sasl: the exchange, if the layer is offered (server) or wanted (client). sasl_required: a server
        accepts no connection without SASL. tls: the TLS layer is offered (server) or wanted (client) in this stream.
        """
        self.server = server
        self.sasl = sasl
        self.sasl_required = sasl_required
        self.tls = tls
        #: The peer sends frames now, not a protocol header; `in_sasl`: SASL frames.
        self.in_frames = False
        self.in_sasl = False
        #: The connection may be handed over to another process: its input behind these layers is kept.
        self.keeps_input = False
        self.refusal = ""
        #: The octets that came in place of a protocol header of AMQP 1.0.
        self.foreign = b""
        self.out = bytearray()

    @property
    def max_frame_size(self) -> int:
        """The octets of the largest frame that the peer may send before AMQP's own frames."""
        return self.sasl.max_frame_size if self.in_sasl and self.sasl is not None else MIN_MAX_FRAME_SIZE

    def start(self) -> None:
        """Write a client's first header: the client speaks first (§2.2)."""
        if not self.server:
            self.out += protocol_header(self._next_protocol_id())

    def secured(self) -> None:
        """Go on after the TLS handshake, which happens once (§5.2)."""
        self.tls = False
        self.start()

    def receive_header(self, header: bytes) -> Progress:
        """Take a protocol header, or the octets in its place."""
        wanted = self._next_protocol_id()
        asked = _IDS.get(header, -1)
        if asked != wanted and not self._takes(asked):
            if self.server:
                self.out += protocol_header(wanted)
            self.refusal = f"protocol header {header!r} is not acceptable"
            if asked == -1:
                self.foreign = header
            return P.REFUSED
        if self.server:
            self.out += header
        if asked == TLS_ID:
            return P.TLS
        if asked == SASL_ID:
            assert self.sasl is not None
            self.in_frames = self.in_sasl = True
            self._write_sasl(self.sasl.start())
            return P.GO_ON
        self.in_frames = True
        return P.AMQP

    def _takes(self, protocol_id: int) -> bool:
        """Return whether a server takes another layer than the one that it would name (-1: not one of AMQP 1.0)."""
        if not self.server or (self.sasl is not None and self.sasl.done):
            return False  # TLS lies below SASL (§5.1): it cannot begin after the peer has authenticated
        if protocol_id == TLS_ID:
            return self.tls
        return self.sasl is not None and (protocol_id == SASL_ID or (protocol_id == AMQP_ID and not self.sasl_required))

    def receive_sasl(self, body: bytes) -> Progress:
        """Take the body of a SASL frame. Raises: ProtocolError: it is malformed, or not due (§5.3.2)."""
        assert self.sasl is not None
        return self._after_sasl(self.sasl.receive(body))

    def sasl_worked(self) -> Progress:
        """Go on with the SASL exchange after its work (`work`, such as the check of a password) is done."""
        assert self.sasl is not None
        return self._after_sasl(self.sasl.resume())

    def _after_sasl(self, bodies: list[bytes]) -> Progress:
        assert self.sasl is not None
        self._write_sasl(bodies)
        if self.sasl.work is not None:
            return P.WORK
        if not self.sasl.done:
            return P.GO_ON
        # After the outcome a protocol header follows (§5.3.2).
        self.in_frames = self.in_sasl = False
        if not self.sasl.succeeded:
            self.refusal = self.sasl.reason or "authentication failed"
            return P.REFUSED
        self.start()
        return P.GO_ON

    def _next_protocol_id(self) -> int:
        """Return the protocol id that a client asks for next, or that a server names when it refuses another."""
        if self.tls and not self.server:
            return TLS_ID
        if self.sasl is not None and not self.sasl.done and (not self.server or self.sasl_required):
            return SASL_ID
        return AMQP_ID

    def _write_sasl(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self.out += (len(body) + 8).to_bytes(4, "big") + bytes((2, SASL_FRAME, 0, 0)) + body
