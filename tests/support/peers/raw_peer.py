"""A container with one link, written from the standard on raw frames: nothing of the engine is in it but the codec.

It is a second implementation of resumption (§2.6.13, §3.4.6). What it promises outlives its connections; handles,
delivery-ids and credit belong to one connection.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.standard.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Open,
    Performative,
    decode_performative,
)
from tests.support.peers.scripted import AMQP, begun, frame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.amqp.standard.delivery_states import DeliveryState

Map = dict[bytes, "DeliveryState | None"]

#: Octets of a frame's size, and of a protocol header.
_SIZE: Final = 4
_HEADER: Final = 8


class RawPeer:
    """A container with one link, of a connection that may be lost at any octet."""

    #: It has an unsettled map, and asks for a time.
    is_lasting = True

    def __init__(self, container: str) -> None:
        self.container = container
        #: Octets to write: whole frames, and the header before them; each with the message that it is of.
        self._out: deque[tuple[bytes, object]] = deque()
        self.connections = 0
        self._input = bytearray()
        self._has_header = False
        #: The peer has answered the attach, and neither end has detached since.
        self.is_attached = False
        self._is_detaching = False
        #: The peer has closed the connection, which is to be cut.
        self.is_closed = False
        #: The link was detached with an error, or closed, by the peer.
        self.refusals: list[object] = []

    def connect(self) -> None:
        """Begin a new connection and session, and attach the link with its unsettled map."""
        self.connections += 1
        self._input.clear()
        self._out.clear()
        self._has_header = self.is_attached = self._is_detaching = self.is_closed = False
        self._begin_link()
        self._out.append((AMQP, None))
        self.write(Open(container_id=self.container))
        self.write(begun())
        self.write(self._attach())

    def write(self, performative: Performative, payload: bytes = b"", of: object = None) -> None:
        """Have a frame written. Args: of: the message that it has a part of."""
        self._out.append((frame(performative, payload), of))

    @property
    def has_output(self) -> bool:
        """There is a frame to write."""
        return bool(self._out)

    def take(self) -> bytes:
        """Return the next frame to write, which is then written."""
        octets, message = self._out.popleft()
        if message is not None:
            self._written(message)
        return octets

    def hear(self, octets: bytes) -> None:
        """Take octets of the peer, whole frames or not."""
        self._input += octets
        if not self._has_header:
            if len(self._input) < _HEADER:
                return
            assert self._input[:_HEADER] == AMQP
            del self._input[:_HEADER]
            self._has_header = True
        while len(self._input) >= _SIZE:
            size = int.from_bytes(self._input[:_SIZE], "big")
            if len(self._input) < size:
                return
            body = bytes(self._input[4 * self._input[4] : size])
            del self._input[:size]
            if body:
                performative, at = decode_performative(body)
                self._heard(performative, body[at:])

    def detach(self) -> None:
        """Detach the link without closing it; it is attached again once the peer has answered."""
        if self.is_attached:
            self.is_attached = False
            self._is_detaching = True
            self.write(Detach(handle=0))

    def end(self) -> None:
        """End the session; another one begins once the peer has answered."""
        if self.is_attached:
            self.is_attached = False
            self._begin_link()
            self.write(End())

    def lost(self) -> None:
        """Note that the connection is lost."""
        self.is_attached = False
        self._out.clear()

    def _heard(self, performative: Performative, payload: bytes) -> None:
        if isinstance(performative, Attach):
            self.is_attached = True
            theirs = None if performative.unsettled is None else dict(performative.unsettled.items())
            self._compare(performative, theirs)
        elif isinstance(performative, Detach):
            self._detached(performative)
        elif isinstance(performative, Close):
            self.lost()
            self.is_closed = True
        elif isinstance(performative, End):
            self._begin_link()
            self.write(begun())
            self.write(self._attach())
        elif not isinstance(performative, Open | Begin):
            self._take(performative, payload)

    def _detached(self, detach: Detach) -> None:
        """Answer a detach; a link that is not closed is attached again, as the rounds of incomplete maps need it."""
        was_attached, self.is_attached = self.is_attached, False
        was_detaching, self._is_detaching = self._is_detaching, False
        if was_attached:
            self.write(Detach(handle=0, closed=detach.closed))
        if detach.closed or detach.error is not None:
            self.refusals.append(detach.error)
        elif was_attached or was_detaching:
            self._begin_link()
            self.write(self._attach())

    # ------------------------------------------------------------------------------------------------- the link's side

    def _begin_link(self) -> None:
        """Forget what belongs to one link endpoint."""
        raise NotImplementedError

    def _attach(self) -> Attach:
        """Return the attach, with the unsettled map."""
        raise NotImplementedError

    def _compare(self, attach: Attach, theirs: Mapping[bytes, DeliveryState | None] | None) -> None:
        """Compare both unsettled maps, and do what follows."""
        raise NotImplementedError

    def _written(self, message: object) -> None:
        """Note that a frame with a part of a message was written."""

    def _take(self, performative: Performative, payload: bytes) -> None:
        """Take a frame of the link or its session."""
        raise NotImplementedError
