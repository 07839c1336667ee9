"""The handlers of the engine's events."""

from __future__ import annotations

from functools import partial
from sys import intern
from typing import TYPE_CHECKING, Final

from amqpmesh.policies.access import Peer
from amqpmesh.router.access import caps, token_links, tokens
from amqpmesh.router.access.change import check_login, with_groups
from amqpmesh.router.access.rates import give_turns
from amqpmesh.router.access.rights import admit, restrict
from amqpmesh.router.access.token_links import TokenLink
from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.errors import CommandError, ProtocolError
from amqpmesh.router.amqp.link import Receiver
from amqpmesh.router.amqp.sasl.exchange import SaslServer
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, ConnectionCondition, Error
from amqpmesh.router.attach.joining import begin_drain
from amqpmesh.router.attach.reattaching import MOST_READ
from amqpmesh.router.attach.stealing import Claim
from amqpmesh.router.containers.container_link import ContainerLink
from amqpmesh.router.containers.watches import drops_in_silence
from amqpmesh.router.delivery.arrival import transfer_received
from amqpmesh.router.delivery.dispatch import resume_sending, send_more
from amqpmesh.router.delivery.link_loss import (
    close_connection,
    close_link,
    end_connection,
    end_session,
    fail_links,
    suspend,
)
from amqpmesh.router.delivery.memory_pressure import look_at_portions
from amqpmesh.router.delivery.settlement import disposition_received, resumed
from amqpmesh.router.departure.departure import Departure
from amqpmesh.router.endpoint_setup import TENANT
from amqpmesh.router.memory.retained import of_attach, of_begin, of_open, remember, size_of_open
from amqpmesh.router.mesh.neighbour import Neighbour
from amqpmesh.router.mesh.tenant_connections import be_for_lanes_of
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.redirects import info
from amqpmesh.router.model.refusal import RefusedError
from amqpmesh.router.resumption.suspended_termini import SuspendedTermini

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.policies.redirect import Redirect
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.attach.answer import Attaching
    from amqpmesh.router.audit.trail import AuditTrail
    from amqpmesh.router.containers.container_links import Containers
    from amqpmesh.router.context import Context
    from amqpmesh.router.logins import Logins
    from amqpmesh.router.mesh.member import MeshMember
    from amqpmesh.router.model.connections import ConnectionRecord

#: The links whose deliveries the router relays.
_ROUTED: Final = (IncomingLink, OutgoingLink)


def _retained(record: ConnectionRecord, event: events.LinkAttached) -> Attach:
    """Return what the router retains of a peer's `attach`."""
    alike = event.alike
    if alike is None or record.own:
        return of_attach(event.attach, own=record.own)
    if alike.retained is None:
        alike.retained = of_attach(event.attach)
    return alike.retained


class Handlers:
    """The handlers of the engine's events, a method for each kind, and the rooms that they call."""

    def __init__(self, context: Context, attaching: Attaching, containers: Containers, logins: Logins) -> None:
        self._context = context
        context.give_turns = partial(give_turns, context)
        context.look_at_portions = partial(look_at_portions, context)
        self.attaching = attaching
        self.containers = containers
        self.logins = logins
        self.departure = Departure(context)
        context.termini = SuspendedTermini(context)
        #: None: the router is in no mesh.
        self.mesh: MeshMember | None = None

    def handle(self, record: ConnectionRecord, event: events.Event) -> None:
        """Do what follows from an event of a connection."""
        try:
            HANDLERS[type(event)](self, record, event)
        except (ProtocolError, CommandError) as error:
            # The peer's limits leave no room for an answer: no handle or channel is free, or its frames are too small.
            self._cannot_answer(record, event, error)
        if self._context.failed_links:
            fail_links(self._context)

    def connection_lost(self, record: ConnectionRecord) -> None:
        """Tell the mesh and the container links that a connection is lost."""
        if self.mesh is not None:
            self.mesh.routes.lane_links.resumed.losing(record)
            self.mesh.lost(record)
        self.containers.lost(record)
        self.attaching.thefts.ended(record)
        tokens.end(self._context, record)
        if self._context.audit is not None and record.engine.remote is not None:
            self._audit_end(self._context.audit, record)

    def _audit_end(self, audit: AuditTrail, record: ConnectionRecord) -> None:
        closed = record.closed  # None: the router has closed it, and the line before says why
        error = None if closed is None else closed.error
        audit.of(
            "connection closed",
            record,
            by="peer" if closed is not None and closed.by_peer else "router",
            seconds=round(self._context.now - record.connected_at, 3),
            condition=None if error is None else error.condition,
            reason=None if error is None else error.description,
        )

    def _cannot_answer(
        self, record: ConnectionRecord, event: events.Event, error: ProtocolError | CommandError
    ) -> None:
        condition = error.condition if isinstance(error, ProtocolError) else AmqpCondition.RESOURCE_LIMIT_EXCEEDED
        answer = Error(condition=condition, description=str(error))
        if isinstance(event, events.LinkAttached | events.LinkDetached):
            consequences = event.link.session.fail(answer)
        elif isinstance(event, events.SessionBegun) and record.engine.can_send:
            record.engine.close(answer)
            consequences = (events.ConnectionClosed(answer, by_peer=False),)
        else:
            raise error
        for consequence in consequences:
            HANDLERS[type(consequence)](self, record, consequence)

    def _tls_requested(self, record: ConnectionRecord, event: events.TlsRequested) -> None:
        record.tls_requested = event.rest

    def _authenticated(self, record: ConnectionRecord, _event: events.Authenticated) -> None:
        self.logins.accepted(record)

    def _work_due(self, record: ConnectionRecord, event: events.SaslWorkDue) -> None:
        record.login = event.work
        self._context.set_timer(record, record.engine.next_timer())

    def _opened(self, record: ConnectionRecord, event: events.ConnectionOpened) -> None:
        engine = record.engine
        sasl = engine.negotiation.sasl
        # SASL tells a listener the user of the peer. A connector has shown its own user: the peer's certificate tells
        # who the peer is.
        shown = isinstance(sasl, SaslServer) and sasl.done
        record.peer = Peer(
            container_id=event.open.container_id,
            user=engine.user if shown else record.certificate_user if record.connector is not None else None,
            mechanism=sasl.mechanism if sasl is not None and sasl.done else None,
            certificate_subject=record.certificate_subject,
            hostname=event.open.hostname,
            host=record.host,
            **record.origin,
        )
        token = sasl.token if isinstance(sasl, SaslServer) and shown else None
        if token is not None:
            record.peer = tokens.with_token(record.peer, token)
        else:
            record.peer = with_groups(self._context, record)
        is_of_router = record.role == "mesh" and record.listener is not None
        if is_of_router and self._context.leads_away(record, event):
            return
        engine.remote = of_open(event.open)
        lanes_of = (event.open.properties or {}).get(TENANT)
        record.doubtful = record.connector is not None and drops_in_silence(event.open.properties)
        if record.listener is not None:
            restrict(self._context, record)
            if record.role == "mesh" and isinstance(lanes_of, str):
                be_for_lanes_of(record, lanes_of, self._context.config)
            engine.open()
        octets = size_of_open(event.open)
        if octets and not remember(self._context.memory, record, octets):
            description = "container-id and hostname are too long"
            close_connection(
                self._context, record, Error(condition=AmqpCondition.RESOURCE_LIMIT_EXCEEDED, description=description)
            )
            return
        # The peer's idle time-out counts from here on, and may be sooner than the time-out of `open`.
        self._context.set_timer(record, engine.next_timer())
        if record.listener is not None and record.listener.redirect is not None:
            self._redirect(record, record.listener.redirect.place)
            return
        is_known = tokens.begin(self._context, record, token)
        if record.lost or not check_login(self._context, record):
            return
        if is_known and not admit(self._context, record):
            return
        if record.role == "mesh":
            engine.flow_state.container = intern(event.open.container_id)
        if self.mesh is not None:
            self.mesh.opened(record, lanes_of)
            if record in self.mesh.neighbours:
                self.mesh.routes.lane_links.resumed.came(self.mesh.neighbours[record])
            if record.connector is not None and record.role == "mesh":
                self.mesh.tenant_connections.gather(record.connector.name)
        self.containers.opened(record)
        if not record.own:
            self._context.log.info(
                "connection opened",
                connection=record.number,
                peer=record.host,
                container=record.peer.container_id,
                user=record.peer.user,
                connector=record.peer.connector or None,
            )
            if self._context.audit is not None:
                self._context.audit.of("connection opened", record)

    def _redirect(self, record: ConnectionRecord, place: Redirect) -> None:
        """Close a connection with a redirect (§2.8.16)."""
        self._context.log.info(
            "connection redirected", connection=record.number, peer=record.host, container=record.peer.container_id
        )
        if self._context.audit is not None:
            self._context.audit.of("connection redirected", record)
        error = Error(condition=ConnectionCondition.REDIRECT, description="the container moved", info=info(place))
        close_connection(self._context, record, error)

    def _closed(self, record: ConnectionRecord, event: events.ConnectionClosed) -> None:
        record.closed = record.closed or event
        if record.lost:
            return
        error = event.error
        sasl = record.engine.negotiation.sasl
        if sasl is not None and isinstance(sasl, SaslServer) and sasl.authenticator_error is not None:
            self._context.log.error("user lookup failed", exception=sasl.authenticator_error)
        if isinstance(sasl, SaslServer) and sasl.done and not sasl.succeeded:
            self.logins.refused(record, sasl.refused_user, sasl.reason)
            return
        # The connector logs a failed attempt to connect.
        if not record.own and (record.connector is None or record.engine.remote is not None):
            self._context.log.info(
                "connection closed",
                connection=record.number,
                peer=record.host,
                by="peer" if event.by_peer else "router",
                connector=record.peer.connector or None,
                condition=error.condition if error is not None else None,
                reason=error.description if error is not None else None,
            )
        end_connection(self._context, record)
        self._context.set_timer(record, record.engine.next_timer())

    def _session_begun(self, record: ConnectionRecord, event: events.SessionBegun) -> None:
        session = event.session
        assert session.remote is not None
        session.remote = of_begin(session.remote)
        if session.can_send:  # the peer has answered our `begin`
            return
        refusal = caps.begin(self._context, record, session)
        if refusal is not None:
            for consequence in session.fail(refusal):
                self.handle(record, consequence)
            return
        if self.mesh is None or not self.mesh.begun(record, session):
            session.begin()

    def _ended(self, record: ConnectionRecord, event: events.SessionEnded) -> None:
        if record.usage is not None:
            record.usage.end(event.session)
        end_session(self._context, record, event.session)
        if self.mesh is not None:
            self.mesh.ended(record, event.session)
            self.mesh.routes.lane_links.resumed.ended(record)
        if record.connector is not None:
            self.containers.ended(event.session, event.error, by_peer=event.by_peer)

    def _link_attached(self, record: ConnectionRecord, event: events.LinkAttached) -> None:
        if self._context.leads_away(record, event):
            return
        if self.departure.is_on and self.departure.turns_away(record, event):
            return
        record.is_handed_over = False
        endpoint = event.link
        if not isinstance(endpoint.context, OutgoingLink):
            self._take(record, event)
        elif self.mesh is not None and event.attach.target is not None:
            # An answer without a target is a refusal: a detach with the error follows (§2.6.3).
            self.mesh.routes.lane_links.resumed.answered(endpoint.context, event.attach)
        if endpoint.remote is not None:
            endpoint.remote = _retained(record, event)

    def _take(self, record: ConnectionRecord, event: events.LinkAttached) -> None:
        link = event.link.context
        if isinstance(link, ContainerLink):
            self.containers.attached(link, event)
        elif isinstance(link, Neighbour) or (self.mesh is not None and self.mesh.is_neighbours_attach(record, event)):
            assert self.mesh is not None
            resumed = self.mesh.routes.lane_links.resumed
            if not (isinstance(event.link, Receiver) and resumed.take(record, event.link, event.attach)):
                self.mesh.attached(record, event)
        elif self.mesh is not None and self.mesh.has_lanes(record):
            self.mesh.refuse_client(record)
        elif record.token is not None and token_links.is_of_tokens(record, event):
            self._take_token_link(record, event)
        else:
            self.attaching.answer(record, event)

    def _take_token_link(self, record: ConnectionRecord, event: events.LinkAttached) -> None:
        try:
            token_links.answer_attach(self._context, record, event)
        except RefusedError as refusal:
            event.link.refuse(refusal.error)
            self.attaching.refused(record, event.link, refusal.error, refusal)

    def _detached(self, record: ConnectionRecord, event: events.LinkDetached) -> None:
        endpoint = event.link
        link = endpoint.context
        if (link is None or isinstance(link, Claim)) and not event.by_peer and event.error is not None:
            self.attaching.refused(record, endpoint, event.error)
        if isinstance(link, _ROUTED):
            if isinstance(link, OutgoingLink) and link.lane is not None and not link.gone:
                assert self.mesh is not None
                self.mesh.routes.lane_refused(link)
            if event.by_peer and not event.closed:
                suspend(self._context, link)
            else:
                # Neither side can name its deliveries any more, whichever side has closed it (§2.6.5, §2.6.6).
                close_link(self._context, link)
        elif isinstance(link, TokenLink):
            token_links.detached(record, link)
        elif isinstance(link, Neighbour) and self.mesh is not None:
            self.mesh.detached(link)
        if event.by_peer and endpoint.session.can_send:  # a handler may have closed the connection
            endpoint.detach(closed=event.closed)
        self.containers.link_ended(endpoint, event.error, by_peer=event.by_peer)
        if event.closed and not event.by_peer:
            endpoint.let_go()
        if isinstance(link, _ROUTED):
            self._context.dismantle(link)

    def _transferred(self, _record: ConnectionRecord, event: events.TransferReceived) -> None:
        link = event.link.context
        if isinstance(link, Neighbour) and self.mesh is not None:
            self.mesh.transferred(link, event)
        elif isinstance(link, TokenLink):
            link.received(event)
        else:
            transfer_received(self._context, event)

    def _ignored(self, _record: ConnectionRecord, event: events.DeliveryIgnored) -> None:
        incoming = event.link.context
        if isinstance(incoming, IncomingLink):
            pool = incoming.pool
            pool.received(incoming.credit_sink, self._context.now)
            pool.forwarded(incoming.credit_sink, self._context.now)
            node = incoming.node
            self._context.touch_input(incoming, with_node=node is not None and pool is node.pool)
            self.attaching.told.resumed(incoming)
            if incoming in self.attaching.rounds:
                self.attaching.rounds[incoming].resumed(event.tag)

    def _resumed(self, _record: ConnectionRecord, event: events.DeliveryResumed) -> None:
        resumed(self._context, event.delivery)

    def _disposed(self, _record: ConnectionRecord, event: events.DispositionReceived) -> None:
        disposition_received(self._context, event)

    def _credit_changed(self, _record: ConnectionRecord, event: events.CreditChanged | events.DrainRequested) -> None:
        link = event.link.context
        flow = event.flow
        if flow.properties and isinstance(link, IncomingLink | OutgoingLink) and link.lane is not None:
            self._context.routes.link_state(link, flow.properties)
        if isinstance(link, Claim):
            link.flow = event
        elif isinstance(link, OutgoingLink):
            if self._context.termini.sources.go_on(link):
                return
            link.endpoint.offer(link.available)
            link.note_credit()
            self._context.touch_outgoing(link)
            if link.backlog or (link.current is not None and not link.current.started):
                send_more(self._context, link)
        elif isinstance(link, IncomingLink) and flow.delivery_count is not None:
            link.flow_received(flow, self._context.now)
            self._context.touch_input(link)
        elif isinstance(link, Neighbour | TokenLink):
            link.pump()

    def _drain_requested(self, record: ConnectionRecord, event: events.DrainRequested) -> None:
        self._credit_changed(record, event)
        link = event.link.context
        if isinstance(link, Claim):
            return
        if not isinstance(link, OutgoingLink):
            event.link.drained()
        elif link.copy:
            if not link.backlog:
                link.endpoint.drained()
        elif not self._context.termini.sources.is_returning(link):
            begin_drain(self._context, link)

    def _window_opened(self, record: ConnectionRecord, event: events.WindowOpened) -> None:
        session = event.session
        stalled, session.stalled = session.stalled, {}
        resume_sending(self._context, stalled)
        if self.mesh is not None:
            self.mesh.window_opened(session)
        if record.token is not None:
            token_links.window_opened(record, session)

    def _relayed(self, _record: ConnectionRecord, _event: events.Relayed | events.HeldBack) -> None:
        """Do nothing: the event only ends a run of relayed deliveries, so that other connections get a turn, or what
        the kernel holds back is received before the next frame (`receive_before`).
        """


#: The handler of each kind of event.
HANDLERS: Final[dict[type, Callable[..., None]]] = {
    events.TlsRequested: Handlers._tls_requested,
    events.Authenticated: Handlers._authenticated,
    events.SaslWorkDue: Handlers._work_due,
    events.ConnectionOpened: Handlers._opened,
    events.ConnectionClosed: Handlers._closed,
    events.SessionBegun: Handlers._session_begun,
    events.SessionEnded: Handlers._ended,
    events.LinkAttached: Handlers._link_attached,
    events.LinkDetached: Handlers._detached,
    events.TransferReceived: Handlers._transferred,
    events.DeliveryIgnored: Handlers._ignored,
    events.DeliveryResumed: Handlers._resumed,
    events.DispositionReceived: Handlers._disposed,
    events.CreditChanged: Handlers._credit_changed,
    events.DrainRequested: Handlers._drain_requested,
    events.WindowOpened: Handlers._window_opened,
    events.Relayed: Handlers._relayed,
    events.HeldBack: Handlers._relayed,
}

#: The deliveries that an event counts as, because it takes as long; others count as one. An attach takes up to 150 us,
#: and some 15 us for each delivery in its map, the detach of a lane 80 us: one read of 64 KiB may have 1,300 attaches,
#: or 3,800 detaches.
_WEIGHTS: Final[dict[type, int]] = {events.LinkAttached: 10, events.LinkDetached: 5}


def weight(event: events.Event) -> int:
    """Return the deliveries that an event counts as in the turn of its connection."""
    known = _WEIGHTS.get(type(event))
    if known is not None:
        unsettled = event.attach.unsettled if isinstance(event, events.LinkAttached) else None
        return known if unsettled is None else known + min(len(unsettled), MOST_READ)
    return len(event.deliveries) if isinstance(event, events.DispositionReceived) else 1
