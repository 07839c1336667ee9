"""What comes before the first AMQP frame: protocol headers, the TLS and the SASL layer (§2.2, part 5)."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.frames import SASL_FRAME, protocol_header

if TYPE_CHECKING:
    from amqpmesh.router.amqp.sasl.exchange import SaslClient, SaslServer

AMQP_ID: Final = 0
TLS_ID: Final = 2
SASL_ID: Final = 3


class Progress(Enum):
    """What one step of the negotiation came to."""

    GO_ON = auto()
    #: The next thing is a TLS handshake.
    TLS = auto()
    #: The SASL exchange waits for `sasl.work`, then for `sasl_worked`.
    WORK = auto()
    #: AMQP frames follow.
    AMQP = auto()
    #: The layers could not be agreed on; what is to be sent is sent, then the transport is closed.
    REFUSED = auto()


class Negotiation:
    """The protocol headers of one connection, and the SASL exchange between two of them.

    The server answers each header that it accepts with the same one; to any other it sends one that it would accept,
    and closes (§2.2). The client asks for the layers it wants in turn: TLS, SASL, AMQP.
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
        takes no connection without it. tls: the TLS layer is offered (server) or wanted (client) inside this stream.
        """
        self.server = server
        self.sasl = sasl
        self.sasl_required = sasl_required
        self.tls = tls
        #: Frames come now, not a protocol header; and they are SASL's.
        self.in_frames = False
        self.in_sasl = False
        self.refusal = ""
        #: What came in the place of a protocol header, if it was none of AMQP 1.0.
        self.foreign = b""
        self.out = bytearray()

    def start(self) -> None:
        """A client speaks first (§2.2)."""
        if not self.server:
            self.out += protocol_header(self._wanted())

    def secured(self) -> None:
        """The TLS handshake is done: it happens once (§5.2)."""
        self.tls = False
        self.start()

    def receive_header(self, header: bytes) -> Progress:
        """A protocol header came, or something in its place."""
        wanted = self._wanted()
        acceptable = {wanted}
        if self.server:
            if self.sasl is not None and not self.sasl.done:
                acceptable.add(SASL_ID)
                if not self.sasl_required:
                    acceptable.add(AMQP_ID)
            # TLS comes below SASL: who has shown who he is does not start again in another layer (§5.1).
            if self.tls and not (self.sasl is not None and self.sasl.done):
                acceptable.add(TLS_ID)
        asked = next((each for each in sorted(acceptable) if header == protocol_header(each)), None)
        if asked is None:
            if self.server:
                self.out += protocol_header(wanted)
            self.refusal = f"protocol header {header!r} is not acceptable"
            if header not in map(protocol_header, (AMQP_ID, TLS_ID, SASL_ID)):
                self.foreign = header
            return Progress.REFUSED
        if self.server:
            self.out += protocol_header(asked)
        if asked == TLS_ID:
            return Progress.TLS
        if asked == SASL_ID:
            assert self.sasl is not None
            self.in_frames = self.in_sasl = True
            self._write_sasl(self.sasl.start())
            return Progress.GO_ON
        self.in_frames = True
        return Progress.AMQP

    def receive_sasl(self, body: bytes) -> Progress:
        """The body of a SASL frame came. Raises: ProtocolError: it is none, or not its turn (§5.3.2)."""
        assert self.sasl is not None
        return self._after_sasl(self.sasl.receive(body))

    def sasl_worked(self) -> Progress:
        """The work of the SASL exchange is done."""
        assert self.sasl is not None
        return self._after_sasl(self.sasl.go_on())

    def _after_sasl(self, bodies: list[bytes]) -> Progress:
        assert self.sasl is not None
        self._write_sasl(bodies)
        if self.sasl.work is not None:
            return Progress.WORK
        if not self.sasl.done:
            return Progress.GO_ON
        # After the outcome comes a protocol header again (§5.3.2).
        self.in_frames = self.in_sasl = False
        if not self.sasl.succeeded:
            self.refusal = self.sasl.reason or "authentication failed"
            return Progress.REFUSED
        self.start()
        return Progress.GO_ON

    def _wanted(self) -> int:
        """The protocol id that comes next for a client, and that a server names when it refuses another."""
        if self.tls and not self.server:
            return TLS_ID
        if self.sasl is not None and not self.sasl.done and (not self.server or self.sasl_required):
            return SASL_ID
        return AMQP_ID

    def _write_sasl(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self.out += (len(body) + 8).to_bytes(4, "big") + bytes((2, SASL_FRAME, 0, 0)) + body
