"""`ClientConnection`: the engine of one connection, and the links that its events go to."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import trio

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.errors import (
    CommandError,
    ConnectionClosedError,
    ProtocolError,
    SaslError,
    SessionEndedError,
    connection_closed,
)
from amqpmesh.router.amqp.sasl.exchange import SaslClient
from amqpmesh.router.amqp.sasl.mechanisms import Computation
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.amqp.states import LinkEndpointState
from amqpmesh.router.io.environment import stopwatch_seconds
from amqpmesh.router.io.streams import BATCH_TIME
from amqpmesh.router.io.threads import do
from amqpmesh.router.logs import event_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.amqp.connection import Connection as Engine
    from amqpmesh.router.amqp.sasl.mechanisms import Work
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.client.links.link import ClientLink

log = event_log.EventLog("amqpmesh.client")

BACKLOG: Final = 256 * 2**10
"""Octets that may wait to be written before senders stop."""

MIN_WINDOW: Final = 4
"""The smallest session window, in transfer frames, however small the buffer. Sessions of senders have it, too."""

TURNS: Final = 2
"""Turns of Trio without a decision of the program, after which outcomes are written."""

TLS_RECORDS: Final = range(20, 24)
"""The first octets of TLS records (RFC 8446, 5.1)."""


class ClientConnection:
    """The engine and its links. The owner of the transport passes on received bytes, and writes the bytes to send."""

    def __init__(
        self,
        engine: Engine,
        *,
        wake: Callable[[], None],
        opened: Callable[[], None],
        ended: Callable[[ConnectionClosedError], None],
    ) -> None:
        """Args: wake: there are bytes to send. opened: links can be attached. ended: the connection is over, with the
        error; called once.
        """
        self.engine = engine
        engine.flow_state.on_wake = wake
        self.is_open = False
        #: Whether it has been open, now or before.
        self.was_open = False
        #: The error that ended it; None: it is not over.
        self.failure: ConnectionClosedError | None = None
        #: Set at the end of the connection.
        self.over = trio.Event()
        #: Octets that the transport has taken and not written yet.
        self.writing = 0
        #: The program has taken, answered or decided a delivery while others wait for it: it may go on at once.
        self.decides_more = False
        #: The hashing that the SASL exchange waits for.
        self._work: Work | None = None
        self._opened = opened
        self._ended = ended
        self._links: dict[Session, dict[ClientLink, None]] = {}
        self._stalled: dict[ClientLink, None] = {}
        self._leaving: dict[ClientLink, Session] = {}

    # ------------------------------------------------------------------------------------------------ for the transport

    async def receive(self, data: bytes) -> None:
        """Process bytes from the peer, and let other tasks run now and then. Raises nothing but `Cancelled`."""
        began = stopwatch_seconds()
        while True:
            for event in self.engine.receive(data, trio.current_time()):
                self._handle(event)
                if stopwatch_seconds() - began > BATCH_TIME:
                    await trio.lowlevel.checkpoint()
                    began = stopwatch_seconds()
            work, self._work = self._work, None
            if work is None:
                break
            assert isinstance(work, Computation), "a client checks no password"
            await do(work)
            self.engine.sasl_worked(trio.current_time())
            data = b""
        self._report_answers()

    def receive_now(self, data: bytes | bytearray) -> None:
        """Process bytes from the peer without a pause, for a caller that lets other tasks run."""
        for event in self.engine.receive(data, trio.current_time()):
            self._handle(event)
        self._report_answers()

    def handle_timer(self) -> None:
        """Let the engine handle its timers."""
        for event in self.engine.handle_timer(trio.current_time()):
            self._handle(event)

    async def gather(self) -> None:
        """Let the program decide more of the deliveries that wait for it, as long as it decides one after the other.

        So their outcomes are written together, not each by itself.
        """
        began = stopwatch_seconds()
        idle = 0 if self.decides_more else TURNS
        # Trio runs the tasks of a turn in any order: in two turns the program has run at least once.
        while idle < TURNS and stopwatch_seconds() - began < BATCH_TIME:
            await trio.lowlevel.checkpoint()
            idle = 0 if self.decides_more else idle + 1
            self.decides_more = False

    def data_to_send(self) -> bytearray:
        """Return the bytes to write now."""
        data = self.engine.data_to_send(trio.current_time())
        self.writing = len(data)
        return data

    def written(self) -> None:
        """Resume stopped senders: the transport has written what it took."""
        self.writing = 0
        if self._stalled:
            stalled, self._stalled = self._stalled, {}
            for link in stalled:
                link.resume_sending()

    def lost(self, reason: str) -> None:
        """End the connection: its transport is gone."""
        self._closed(ConnectionClosedError(reason))
        self.engine.receive_eof()

    def close(self) -> None:
        """Send `close`. `over` is set once the peer has answered."""
        if self.engine.can_send:
            self.engine.close()
        elif not self.engine.finished:
            self.lost("closed before it was open")

    # ---------------------------------------------------------------------------------------------------- for the links

    def session_for(self, link: ClientLink, window: int = MIN_WINDOW) -> Session:
        """Return a session for a link: its own if the peer has a free channel.

        A link with a session of its own stops no other link if its buffer is full. And if the peer ends the session
        because of one link, as RabbitMQ does for each unknown address, only that link ends.

        Args: window: transfer frames that may be here and not taken. A shared session has the largest window that one
            of its links asked for.
        Raises: CommandError: the peer allows no more sessions.
        """
        session = self._begin(window)
        session.part = max(session.part, window)
        if window > session.window:
            session.flow_state.window_size = window
            session.flow()
        self._links[session][link] = None
        return session

    def release_session(self, link: ClientLink, session: Session) -> None:
        """Take `link` off its session. The session ends if no other link is on it."""
        self._stalled.pop(link, None)
        links = self._links.get(session)
        if links is not None:
            links.pop(link, None)
            if not links and session.can_send:
                del self._links[session]
                session.end()

    def await_detach(self, link: ClientLink, session: Session) -> None:
        """Tell `link`, which was detached on `session`, once the peer has answered."""
        self._leaving[link] = session

    def abandon_detach(self, link: ClientLink) -> None:
        """End the session of `link`, whose `detach` the peer does not answer, unless other links are on it."""
        session = self._leaving.pop(link, None)
        if session is not None:
            self.release_session(link, session)

    def must_wait(self, link: ClientLink) -> bool:
        """Return whether `link` must stop sending until more is written; then its `resume_sending` is called."""
        if self.writing + len(self.engine.out) <= BACKLOG:
            return False
        self._stalled[link] = None
        return True

    def refused(self, error: ProtocolError) -> None:
        """Close the connection: the peer has sent bytes that break the standard."""
        told = Error(condition=error.condition, description=error.description)
        if self.engine.can_send:
            self.engine.close(told)
        self._closed(ConnectionClosedError("the peer sent what cannot be read", told))

    def _begin(self, window: int) -> Session:
        try:
            session = self.engine.begin(window)
        except CommandError:
            # No channel is free: share the session with the fewest links.
            if not self._links:
                raise
            return min(self._links, key=lambda each: len(self._links[each]))
        self._links[session] = {}
        return session

    # -------------------------------------------------------------------------------------------------------- the peer

    def _handle(self, event: events.Event) -> None:
        try:
            self._HANDLERS[type(event)](self, event)
        except ProtocolError as error:
            self.refused(error)
        except CommandError as error:
            # The limits that the peer has set leave no room for our answer.
            log.warning("peer left no room for an answer", peer=self.engine.hostname or "", reason=str(error))

    def _connection_opened(self, _: events.ConnectionOpened) -> None:
        self.is_open = self.was_open = True
        self._opened()

    def _connection_closed(self, event: events.ConnectionClosed) -> None:
        if foreign := self.engine.negotiation.foreign:
            self._closed(ConnectionClosedError(foreign_protocol(foreign)))
            return
        sasl = self.engine.negotiation.sasl
        refusal = self.engine.negotiation.refusal
        if isinstance(sasl, SaslClient) and not sasl.succeeded and refusal:
            self._closed(SaslError(f"not let in: {refusal}"))  # the event only has the engine's own error
            return
        who = "the peer closed the connection" if event.by_peer else "the connection was closed"
        self._closed(connection_closed(who, event.error))

    def _session_begun(self, event: events.SessionBegun) -> None:
        if event.session not in self._links:
            event.session.begin()
            event.session.end(Error(condition=AmqpCondition.NOT_ALLOWED, description="sessions are begun by this end"))

    def _session_ended(self, event: events.SessionEnded) -> None:
        links = self._links.pop(event.session, {})
        for link in links:
            link.session_ended(SessionEndedError("the session was ended", event.error))

    def _link_attached(self, event: events.LinkAttached) -> None:
        link: ClientLink | None = event.link.context  # type: ignore[assignment]  # set by nobody else
        if link is None:
            event.link.refuse(Error(condition=AmqpCondition.NOT_ALLOWED, description="links are attached by this end"))
        else:
            link.attach_received(event.attach)

    def _link_detached(self, event: events.LinkDetached) -> None:
        link: ClientLink | None = event.link.context  # type: ignore[assignment]  # set by nobody else
        if event.by_peer:
            event.link.detach(closed=event.closed)
        if link is not None:
            link.detach_received(event)

    def _transfer_received(self, event: events.TransferReceived) -> None:
        link: ClientLink = event.link.context  # type: ignore[assignment]  # only attached links transfer
        link.transfer_received(event)

    def _batch_received(self, event: events.DeliveriesGathered) -> None:
        link: ClientLink = event.link.context  # type: ignore[assignment]  # only attached links transfer
        link.batch_received(event)

    def _delivery_ignored(self, event: events.DeliveryIgnored) -> None:
        link: ClientLink = event.link.context  # type: ignore[assignment]  # only attached links transfer
        link.flow_received()

    def _delivery_resumed(self, event: events.DeliveryResumed) -> None:
        link: ClientLink = event.link.context  # type: ignore[assignment]  # only attached links transfer
        link.delivery_resumed(event.delivery)

    def _disposed(self, event: events.DispositionReceived) -> None:
        for delivery in event.deliveries:
            link: ClientLink | None = delivery.link.record.context  # type: ignore[attr-defined]  # the engine's link
            if link is not None:
                link.disposition_received(delivery, event.state, event.settled)

    def _credit_changed(self, event: events.CreditChanged | events.DrainRequested) -> None:
        link: ClientLink | None = event.link.context  # type: ignore[assignment]  # set by nobody else
        if link is not None:
            link.flow_received()

    def _window_opened(self, event: events.WindowOpened) -> None:
        for link in list(self._links.get(event.session, ())):
            link.resume_sending()

    def _tls_requested(self, _: events.TlsRequested) -> None:
        raise AssertionError("a client asks for TLS before AMQP, or not at all")

    def _work_due(self, event: events.SaslWorkDue) -> None:
        self._work = event.work

    def _relayed(self, _: events.Relayed) -> None:
        """Ignore the event: `receive` looks at the clock between any two events."""

    _HANDLERS: ClassVar[dict[type, Callable[..., None]]] = {
        events.ConnectionOpened: _connection_opened,
        events.ConnectionClosed: _connection_closed,
        events.SessionBegun: _session_begun,
        events.SessionEnded: _session_ended,
        events.LinkAttached: _link_attached,
        events.LinkDetached: _link_detached,
        events.TransferReceived: _transfer_received,
        events.DeliveriesGathered: _batch_received,
        events.DeliveryIgnored: _delivery_ignored,
        events.DeliveryResumed: _delivery_resumed,
        events.DispositionReceived: _disposed,
        events.CreditChanged: _credit_changed,
        events.DrainRequested: _credit_changed,
        events.WindowOpened: _window_opened,
        events.Relayed: _relayed,
        events.TlsRequested: _tls_requested,
        events.SaslWorkDue: _work_due,
    }

    def _report_answers(self) -> None:
        """Tell the links whose `detach` the peer has answered."""
        for link in [link for link in self._leaving if link.engine_state is LinkEndpointState.DETACHED]:
            self.abandon_detach(link)
            link.detach_answered()

    def _closed(self, error: ConnectionClosedError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        self.is_open = False
        leaving, self._leaving = self._leaving, {}
        for link in leaving:
            link.detach_answered()
        self._links.clear()
        self._stalled.clear()
        self.over.set()
        self._ended(error)


def foreign_protocol(header: bytes) -> str:
    """Return an error message for a peer whose first bytes are not AMQP."""
    if header[0] in TLS_RECORDS:
        return "the peer answers in TLS: does it want amqps://?"
    return f"the peer does not speak AMQP 1.0: it begins with {header!r}"
