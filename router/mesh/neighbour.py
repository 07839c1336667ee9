"""A connection to a neighbour: the control link of each direction, and the sessions that lanes are attached in.

Routers of a mesh tell each other about it in messages of one `data` section each, sent settled on a link whose
target is `$mesh`. What they mean is the topology's to know.
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
from amqpmesh.router.endpoint_setup import LARGE, WHOLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.amqp.events import TransferReceived
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.config.mesh import MeshConfig
    from amqpmesh.router.kernel import Delivery
    from amqpmesh.router.model.connections import ConnectionRecord

CONTROL: Final = "$mesh"
"""The target of the links that routers tell each other about the mesh by."""

CREDIT: Final = 1000
"""Messages that a neighbour may send on its control link before it hears from us."""

MAX_MESSAGE: Final = 96 * 1024
"""Octets of a message on a control link: the topology's messages have 64 KiB at most."""

BULK_SESSIONS: Final = 16
"""Sessions for large deliveries to one neighbour; and for lanes that have no other link, as many."""

MAX_QUEUE: Final = 32 * 2**20
"""Octets that wait to be told to a neighbour. One that lets so much gather reads nothing."""


class Neighbour:
    """The other end of a mesh connection."""

    def __init__(self, record: ConnectionRecord, now: float, config: MeshConfig) -> None:
        """Args: now: seconds. config: what it may send in sessions for lanes before it waits, and what we may."""
        self.record = record
        record.limit_output(config.output_backlog)
        self._config = config
        #: When it became up, or ceased to be; seconds.
        self.since = now
        #: What our control link is attached in, and no lane: whatever lanes carry, neighbours hear of each other.
        self.session: Session = record.engine.begin()
        #: What lanes are attached in: those for what is small, those for what is large, and those for either that have
        #: no other link.
        self._shared: deque[Session] = deque((self._begin_shared(),))
        self._bulk: deque[Session] = deque()
        self._apart: deque[Session] = deque()
        link = self.session.attach(
            Terminus(f"{CONTROL}/{record.number}", Role.SENDER),
            source=Source(),
            target=Target(address=CONTROL),
            snd_settle_mode=SenderSettleMode.SETTLED,
        )
        assert isinstance(link, Sender)
        link.context = self
        self._sender = link
        self._receiver: Receiver | None = None
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._sending: Delivery | None = None
        self._sent = 0
        self._tag = 0
        self._coming = bytearray()

    @property
    def router(self) -> str:
        """Its id."""
        return self.record.peer.container_id

    def begun(self, session: Session) -> None:
        """Answer a session of its own. What comes whole leaves at once, or waits for credit that was given for it: a
        wide window for that makes nothing gather here, and a narrow one would close again and again. So it would where
        large deliveries follow each other, which wait here when their receiver does; that is bounded by how many such
        sessions there are."""
        assert session.remote is not None
        desired = session.remote.desired_capabilities
        if WHOLE in desired:
            wide = sum(each.window for each in self._begun_for(WHOLE) if each.window > each.part)
            window = max(session.part, (self._config.lane_window - wide) // 2)
            session.begin(window=window, offered_capabilities=(WHOLE,))
        elif LARGE in desired and len(self._begun_for(LARGE)) <= 2 * BULK_SESSIONS:
            session.begin(window=max(session.part, self._config.bulk_window), offered_capabilities=(LARGE,))
        else:
            session.begin()

    def _begun_for(self, capability: Symbol) -> list[Session]:
        """The sessions of this connection that were begun with this desired."""
        sessions = self.record.engine.channels.sessions
        return [each for each in sessions if each.remote is not None and capability in each.remote.desired_capabilities]

    def _begin_shared(self) -> Session:
        return self.record.engine.begin(desired_capabilities=(WHOLE,))

    def _begin_bulk(self) -> Session:
        return self.record.engine.begin(desired_capabilities=(LARGE,))

    def send(self, body: bytes) -> bool:
        """Tell it something, as soon as it can be told; False: so much waits that it must have stopped reading."""
        message = encode_composite(Data(value=body))
        self._queue.append(message)
        self._queued += len(message)
        self.pump()
        return self._queued <= MAX_QUEUE

    def session_with_room(self) -> Session:
        """A session that one more lane can be attached in. Raises: CommandError: the neighbour takes no session."""
        session = self._with_room(self._shared, 1, self._begin_shared)
        self._shared.rotate()  # until it is full, nobody need look at those that are
        return session

    def bulk_session(self, *, alone: bool) -> Session:
        """A session for what is large: of its own as far as there are any, so that a slow reader of one delivery stops
        no other; and none that one has stopped already, as long as there is another.

        Args: alone: for a lane that has no other link. What stops it stops what is small on it, too, so it is not in
            one session with what has others.
        Raises: CommandError: the neighbour takes no session.
        """
        sessions = self._apart if alone else self._bulk
        session = self._with_room(sessions, BULK_SESSIONS, self._begin_bulk)
        for _ in range(BULK_SESSIONS - 1):
            if not session.is_closed:
                break
            session = self._with_room(sessions, BULK_SESSIONS, self._begin_bulk)
        return session

    @staticmethod
    def _with_room(sessions: deque[Session], fewest: int, begin: Callable[[], Session]) -> Session:
        """The next of some sessions that has room; a new one, if none has, or there are fewer than so many."""
        for _ in range(len(sessions) if len(sessions) >= fewest else 0):
            session = sessions.popleft()
            if not session.can_send:  # it has ended
                continue
            sessions.append(session)
            if session.has_room:
                return session
        sessions.append(begin())
        return sessions[-1]

    def has_control_link_in(self, session: Session) -> bool:
        """Whether a control link, of either side, is attached in this session."""
        return session is self.session or (self._receiver is not None and session is self._receiver.session)

    def pump(self) -> None:
        """Send what waits, as far as credit and window allow."""
        link = self._sender
        while self._queue and link.is_attached and link.session.can_send:
            delivery = self._sending
            if delivery is None:
                if link.credit <= 0:
                    return
                self._tag = (self._tag + 1) & 0xFFFF_FFFF
                delivery = self._sending = link.delivery(self._tag.to_bytes(4, "big"), settled=True)
                self._sent = 0
            message = self._queue[0]
            self._sent += link.transfer(delivery, memoryview(message)[self._sent :])
            if not delivery.complete:
                return
            self._sending = None
            self._queued -= len(self._queue.popleft())

    def take(self, link: Receiver, attach: Attach) -> None:
        """Answer the attach of its control link."""
        link.attach(source=attach.source, target=Target(address=CONTROL), max_message_size=MAX_MESSAGE)
        link.context = self
        self._receiver = link
        link.flow(CREDIT)

    def received(self, event: TransferReceived) -> bytes | None:
        """Part of a message; the body of a whole one.

        Raises: ProtocolError(LINK): what came is no message of ours.
        """
        link = event.link
        link.session.release(1)
        if event.delivery.aborted:
            self._coming.clear()
            return None
        self._coming += event.payload
        if not event.delivery.complete:
            return None
        message, self._coming = bytes(self._coming), bytearray()
        if link.credit <= CREDIT // 2:
            link.flow(CREDIT)
        section, size = decode_composite(Data, message)
        if size != len(message):
            raise ProtocolError(Scope.LINK, AmqpCondition.DECODE_ERROR, "a control message is one data section")
        return bytes(section.value)
