"""A connection to a neighbour: a control link in each direction, and the sessions for lanes.

A message of the link-state protocol is one `data` section, sent settled on a link whose target is `$mesh`. The topology
reads and writes its content.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.codec.composite import decode_composite, encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import ProtocolError, Scope
from amqpmesh.router.amqp.link import Receiver, Sender, Terminus
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Role, SenderSettleMode
from amqpmesh.router.amqp.standard.messaging import Data, Source, Target
from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.mesh.lane_connection import LaneConnection

if TYPE_CHECKING:
    from amqpmesh.router.amqp.events import TransferReceived
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.config.mesh import MeshConfig
    from amqpmesh.router.kernel import Delivery
    from amqpmesh.router.model.connections import ConnectionRecord

CONTROL: Final = "$mesh"
"""The target of control links, which carry the messages of the link-state protocol."""

LIVES: Final = {Symbol("amqpmesh:lives"): True}
"""In the error of a `close` by a router that lives, and parts from a neighbour that was silent (§2.8.14, info)."""

CREDIT: Final = 1000
"""Messages that a neighbour can send on its control link before it gets further credit."""

MAX_MESSAGE: Final = 96 * 1024
"""Octets of a message on a control link: the topology's messages have 64 KiB at most."""

MAX_QUEUE: Final = 32 * 2**20
"""Octets that wait to be sent on the control link. A neighbour with more of them has stopped reading."""


def is_between_workers(record: ConnectionRecord) -> bool:
    """Tell whether a connection is one between two workers of one router."""
    if record.listener is not None:
        return record.listener.endpoint.is_unix
    return record.connector is not None and any(isinstance(e, Endpoint) and e.is_unix for e in record.connector.places)


class Neighbour(LaneConnection):
    """The other end of a mesh connection."""

    def __init__(self, record: ConnectionRecord, now: float, config: MeshConfig) -> None:
        """Args: now: seconds. config: limits the deliveries in sessions for lanes."""
        #: The time when it came up or went down; seconds.
        self.since = now
        #: The session of this router's control link. It has no lane, so no delivery delays the link-state protocol.
        self.session: Session = record.engine.begin()
        super().__init__(record, config)
        endpoint = self.session.attach(
            Terminus(f"{CONTROL}/{record.number}", Role.SENDER),
            source=Source(),
            target=Target(address=CONTROL),
            snd_settle_mode=SenderSettleMode.SETTLED,
        )
        assert isinstance(endpoint, Sender)
        endpoint.context = self
        self._sender = endpoint
        self._receiver: Receiver | None = None
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._sending: Delivery | None = None
        self._sent = 0
        self._tag = 0
        self._coming = bytearray()

    def send(self, body: bytes) -> bool:
        """Send a message as soon as possible. Returns: False: so much waits that the neighbour must have stopped
        reading."""
        message = encode_composite(Data(value=body))
        self._queue.append(message)
        self._queued += len(message)
        self.pump()
        return self._queued <= MAX_QUEUE

    def has_control_link_in(self, session: Session) -> bool:
        """Tell whether a control link, of either side, is attached in a session."""
        return session is self.session or (self._receiver is not None and session is self._receiver.session)

    def pump(self) -> None:
        """Send queued messages, as far as credit and window allow."""
        endpoint = self._sender
        while self._queue and endpoint.is_attached and endpoint.session.can_send:
            delivery = self._sending
            if delivery is None:
                if endpoint.credit <= 0:
                    return
                self._tag = (self._tag + 1) & 0xFFFF_FFFF
                delivery = self._sending = endpoint.delivery(self._tag.to_bytes(4, "big"), settled=True)
                self._sent = 0
            message = self._queue[0]
            self._sent += endpoint.transfer(delivery, memoryview(message)[self._sent :])
            if not delivery.complete:
                return
            self._sending = None
            self._queued -= len(self._queue.popleft())

    def answer_attach(self, endpoint: Receiver, attach: Attach) -> None:
        """Answer the attach of the neighbour's control link."""
        endpoint.attach(source=attach.source, target=Target(address=CONTROL), max_message_size=MAX_MESSAGE)
        endpoint.context = self
        self._receiver = endpoint
        endpoint.flow(CREDIT)

    def received(self, event: TransferReceived) -> bytes | None:
        """Take a part of a message. Returns: the body of a whole message.

        Raises: ProtocolError(LINK): it is no message of the link-state protocol.
        """
        endpoint = event.link
        endpoint.session.release(1)
        if event.delivery.aborted:
            self._coming.clear()
            return None
        self._coming += event.payload
        if not event.delivery.complete:
            return None
        message, self._coming = bytes(self._coming), bytearray()
        if endpoint.credit <= CREDIT // 2:
            endpoint.flow(CREDIT)
        section, size = decode_composite(Data, message)
        if size != len(message):
            raise ProtocolError(Scope.LINK, AmqpCondition.DECODE_ERROR, "a control message is one data section")
        return bytes(section.value)
