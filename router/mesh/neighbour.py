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
"""The target of control links, which carry the messages of the link-state protocol."""

CREDIT: Final = 1000
"""Messages that a neighbour can send on its control link before it gets further credit."""

MAX_MESSAGE: Final = 96 * 1024
"""Octets of a message on a control link: the topology's messages have 64 KiB at most."""

BULK_SESSIONS: Final = 16
"""Sessions for large deliveries to one neighbour; and as many for lanes that have no other link."""

MAX_QUEUE: Final = 32 * 2**20
"""Octets that wait to be sent on the control link. A neighbour with more of them has stopped reading."""


class Neighbour:
    """The other end of a mesh connection."""

    def __init__(self, record: ConnectionRecord, now: float, config: MeshConfig) -> None:
        """Args: now: seconds. config: limits the deliveries in sessions for lanes."""
        self.record = record
        record.limit_output(config.output_backlog)
        self._config = config
        #: The time when it came up or went down; seconds.
        self.since = now
        #: The session of this router's control link. It has no lane, so no delivery delays the link-state protocol.
        self.session: Session = record.engine.begin()
        #: Sessions of lanes: for small deliveries, for large ones, and for lanes whose only link carries both.
        self._shared: deque[Session] = deque((self._begin_shared(),))
        self._bulk: deque[Session] = deque()
        self._tree_sessions: deque[Session] = deque()
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

    @property
    def router(self) -> str:
        """The neighbour's id."""
        return self.record.peer.container_id

    @property
    def transit_window(self) -> int:
        """Deliveries that it may send on a transit lane before this router has passed on one of them, or lets it wait.

        The clients of many routers share a transit lane, so it is as wide as the credit of several of them.
        """
        return self._config.transit_window

    def answer_begin(self, session: Session) -> None:
        """Answer a neighbour's session with a window for its deliveries.

        A delivery that arrives whole is passed on at once, or waits for credit that was granted for it. So a wide
        window lets nothing pile up here, and a narrow one would close again and again. A session for large deliveries
        gets a wide window, too. A large delivery waits here while its receiver does not read, so the number of such
        sessions is limited.
        """
        assert session.remote is not None
        desired = session.remote.desired_capabilities
        if WHOLE in desired:
            wide = sum(each.window for each in self._sessions_desiring(WHOLE) if each.window > each.part)
            window = max(session.part, (self._config.lane_window - wide) // 2)
            session.begin(window=window, offered_capabilities=(WHOLE,))
        elif LARGE in desired and len(self._sessions_desiring(LARGE)) <= 2 * BULK_SESSIONS:
            session.begin(window=max(session.part, self._config.bulk_window), offered_capabilities=(LARGE,))
            # A tree has one link for all its deliveries. Small ones leave this router at once.
            session.flow_state.let_widen()
        else:
            session.begin()

    def _sessions_desiring(self, capability: Symbol) -> list[Session]:
        """Return the sessions of this connection that the neighbour began with a desired capability."""
        sessions = self.record.engine.channels.sessions
        return [each for each in sessions if each.remote is not None and capability in each.remote.desired_capabilities]

    def _begin_shared(self) -> Session:
        return self.record.engine.begin(desired_capabilities=(WHOLE,))

    def _begin_bulk(self) -> Session:
        return self.record.engine.begin(desired_capabilities=(LARGE,))

    def send(self, body: bytes) -> bool:
        """Send a message as soon as possible. Returns: False: so much waits that the neighbour must have stopped
        reading."""
        message = encode_composite(Data(value=body))
        self._queue.append(message)
        self._queued += len(message)
        self.pump()
        return self._queued <= MAX_QUEUE

    def session_with_room(self) -> Session:
        """Return a session with room for one more lane. Raises: CommandError: the neighbour allows no
        further session."""
        session = self._with_room(self._shared, 1, self._begin_shared)
        self._shared.rotate()  # the other sessions are probably full
        return session

    def bulk_session(self, *, alone: bool) -> Session:
        """Return a session for large deliveries.

        Each lane gets a session of its own while there are unused ones, so that a slow reader of one delivery stops no
        other lane. A session is used while its window is closed only if all others are closed, too.

        Args: alone: the lane has no other link. Then this link carries small deliveries, too, so it does not share a
            session with lanes that have another link for those.
        Raises: CommandError: the neighbour allows no further session.
        """
        sessions = self._tree_sessions if alone else self._bulk
        session = self._with_room(sessions, BULK_SESSIONS, self._begin_bulk)
        for _ in range(BULK_SESSIONS - 1):
            if not session.is_closed:
                break
            session = self._with_room(sessions, BULK_SESSIONS, self._begin_bulk)
        return session

    @staticmethod
    def _with_room(sessions: deque[Session], fewest: int, begin: Callable[[], Session]) -> Session:
        """Return the next session with room; a new one, if none has room, or there are fewer than `fewest`."""
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
