"""The router without I/O: connections in, bytes in, time in; what each connection is to be sent comes out.

One `Core` is one container. It is driven by whoever owns sockets and clock: `receive` for each batch of bytes, then
`data_to_send` for every connection that `on_output` named.
"""

from __future__ import annotations

import secrets
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, ClassVar, Final
from weakref import ref

from amqpmesh.policies.access import Peer
from amqpmesh.router.addresses import Address, AddressTable
from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.definitions import AmqpCondition, ConnectionCondition, Error
from amqpmesh.router.amqp.errors import CommandError, ProtocolError
from amqpmesh.router.amqp.messaging import DeleteOnClose, DeleteOnNoMessages, Source, Target
from amqpmesh.router.amqp.negotiation import Negotiation
from amqpmesh.router.amqp.sasl import SaslServer
from amqpmesh.router.arriving import transfer_received
from amqpmesh.router.attaching import Attaching
from amqpmesh.router.connections import ConnectionRecord
from amqpmesh.router.container_link import ContainerLink
from amqpmesh.router.containers import Containers
from amqpmesh.router.costs import set_cost
from amqpmesh.router.elsewhere import Elsewhere
from amqpmesh.router.few import excluding, including
from amqpmesh.router.forwarding import dispatch
from amqpmesh.router.kernel.relay import RELEASED_STATE, Budget, Relay, abandon, forget, serial_distance
from amqpmesh.router.lanes import REMEMBERED
from amqpmesh.router.leaving import abort, pump
from amqpmesh.router.links import IncomingLink, OutgoingLink
from amqpmesh.router.logs import EventLog
from amqpmesh.router.lookup import Lookup
from amqpmesh.router.neighbours import Neighbour
from amqpmesh.router.opening import client_sasl, endpoint, server_sasl
from amqpmesh.router.patience import take_back, watch
from amqpmesh.router.places import Places
from amqpmesh.router.redirects import info
from amqpmesh.router.settlement import Settlement
from amqpmesh.router.shares import Share
from amqpmesh.router.steps import at_once
from amqpmesh.router.survey import survey
from amqpmesh.router.tally import Tally
from amqpmesh.router.waiting import end_waiting, unqueue
from amqpmesh.router.windows import FixedWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from amqpmesh.policies.redirect import Redirect
    from amqpmesh.router.config import ConnectorConfig, ListenerConfig, RouterConfig
    from amqpmesh.router.costs import Costly
    from amqpmesh.router.lanes import Lane
    from amqpmesh.router.mesh import Mesh
    from amqpmesh.router.statistics import Statistics
    from amqpmesh.router.users import Users
    from amqpmesh.router.windows import Grant

#: Deliveries that are looked at before other connections come first: a frame of 20 octets can speak of thousands.
WORK_LIMIT: Final = 1000


class Core:
    """One router: its connections, links, addresses and relays."""

    def __init__(self, config: RouterConfig, now: float, token: Callable[[int], str] = secrets.token_hex) -> None:
        """Args: token: so many octets that nobody can guess, in hexadecimal digits."""
        self.config = config
        self.id = config.id
        self.token = token
        #: Seconds, as the last call told.
        self.now = now
        self.log = EventLog("amqpmesh.router")
        #: Set by the owner: a connection has something to be sent; the next timer may be earlier.
        self.on_output: Callable[[ConnectionRecord], None] = lambda _: None
        self.on_timer: Callable[[], None] = lambda: None
        self.connections: dict[ConnectionRecord, None] = {}
        self.budget = Budget(config.memory)
        self.addresses = AddressTable(config.address_table(), self.budget)
        self.settlement = Settlement(self)
        self.attaching = Attaching(self)
        self.lookup = Lookup(self)
        self.places = Places(self)
        self.containers = Containers(self)
        self.elsewhere = Elsewhere(self)
        self.mesh: Mesh | None = None
        self.draining = False
        self.started_at = now
        #: What links that are gone have counted.
        self.past = Tally()
        self.octets_in = 0
        self.octets_out = 0
        #: Live relays, and counters over the router's life.
        self.relays = 0
        self.undelivered = 0
        self.expired = 0
        self.stolen = 0
        self.irregular_heads = 0
        #: Deliveries that found no way on, and those that may not make another hop.
        self.no_path = 0
        self.no_hops = 0
        #: No credit is given: memory is used up, or the router drains.
        self.suspended = False
        self._numbers = 0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._timer_at: dict[ConnectionRecord | Address, float] = {}
        # What the batch has touched.
        self._addresses: dict[Address, None] = {}
        self._outgoing: dict[OutgoingLink, None] = {}
        self._windows: dict[FixedWindow, None] = {}

    # ------------------------------------------------------------------------------------------------- connections

    def accept(
        self,
        listener: ListenerConfig,
        host: str,
        now: float,
        *,
        secured: bool,
        certificate: bytes | None = None,
        certificate_user: str | None = None,
        certificate_subject: str | None = None,
        users: Users | None = None,
        own: bool = False,
    ) -> ConnectionRecord:
        """A peer has connected to `listener`.

        Args: host: the peer's address without port. secured: TLS is in force below. certificate: the verified one of
            the client, as DER. certificate_user, certificate_subject: what it says. users: for PLAIN and SCRAM.
            own: the router itself is at the other end, to serve its own nodes.
        """
        negotiation = Negotiation(
            server=True,
            sasl=server_sasl(listener, secured=secured, certificate_user=certificate_user, users=users),
            sasl_required=listener.sasl_demanded,
            tls=listener.tls is not None and not secured,
        )
        if not own:
            self._numbers += 1
        number = 0 if own else self._numbers
        engine = endpoint(self.id, listener, negotiation, now)
        record = ConnectionRecord(number, engine, listener, host, now, own=own)
        record.certificate = certificate
        record.certificate_subject = certificate_subject
        record.certificate_user = certificate_user
        self._add(record, now)
        return record

    def connect(
        self,
        connector: ConnectorConfig,
        host: str,
        now: float,
        *,
        secured: bool,
        certificate: bytes | None = None,
        certificate_user: str | None = None,
        certificate_subject: str | None = None,
        password: str | None = None,
        hostname: str | None = None,
        redirected: bool = False,
    ) -> ConnectionRecord:
        """The router has connected to a peer, and opens the connection.

        Args: host: the peer's, without port. secured: TLS is in force below. certificate: the verified one of the peer,
            as DER. certificate_user, certificate_subject: what it says. password: of the connector's user. hostname:
            which host is wanted (§2.7.1); None: the one that the connector names, else `host`. redirected: a redirect
            of a peer named the place.
        Raises: CommandError: a user or a password that no mechanism can carry.
        """
        hostname = hostname or connector.hostname or host
        redirected = redirected or self.places.is_redirected(connector.name)
        sasl = client_sasl(
            connector, host, secured=secured, password=password, hostname=hostname, redirected=redirected
        )
        engine = endpoint(self.id, connector, Negotiation(server=False, sasl=sasl), now, hostname=hostname)
        self._numbers += 1
        record = ConnectionRecord(self._numbers, engine, connector, host, now)
        record.certificate = certificate
        record.certificate_subject = certificate_subject
        record.certificate_user = certificate_user
        engine.open()
        self._add(record, now)
        return record

    def _add(self, record: ConnectionRecord, now: float) -> None:
        self.now = now
        record.engine.context = record
        record.engine.on_wake = lambda: self.on_output(record)
        self.connections[record] = None
        self._set_timer(record, record.engine.next_timer())

    def secured(
        self,
        record: ConnectionRecord,
        now: float,
        *,
        certificate: bytes | None = None,
        certificate_user: str | None = None,
        certificate_subject: str | None = None,
        users: Users | None = None,
    ) -> None:
        """TLS was negotiated in the stream of `record` (§5.2)."""
        self.now = now
        record.tls_requested = None
        record.certificate = certificate
        record.certificate_subject = certificate_subject
        record.certificate_user = certificate_user
        assert record.listener is not None, "a listener offers the layer"
        record.engine.negotiation.sasl = server_sasl(
            record.listener, secured=True, certificate_user=certificate_user, users=users
        )
        record.engine.secured()

    def receive(self, record: ConnectionRecord, data: bytes, now: float) -> bool:
        """A batch of bytes came from the peer; what follows from it is done when this returns.

        Returns: False, if it means so much work that others should come first: then call again, without data.
        """
        self.now = now
        record.octets_in += len(data)
        self.octets_in += len(data)
        work = 0
        unfinished = record.unfinished or record.engine.receive(data, now)
        record.unfinished = None
        for event in unfinished:
            self._handle(record, event)
            work += len(event.deliveries) if isinstance(event, events.DispositionReceived) else 1
            if work >= WORK_LIMIT:
                record.unfinished = unfinished
                break
        self._finish_batch()
        return record.unfinished is None

    def _handle(self, record: ConnectionRecord, event: events.Event) -> None:
        try:
            self._handlers[type(event)](self, record, event)
        except (ProtocolError, CommandError) as error:
            # The peer's limits leave no room for an answer: no handle or channel is free, or its frames are too small.
            self._cannot_answer(record, event, error)

    def _cannot_answer(
        self, record: ConnectionRecord, event: events.Event, error: ProtocolError | CommandError
    ) -> None:
        condition = error.condition if isinstance(error, ProtocolError) else AmqpCondition.RESOURCE_LIMIT_EXCEEDED
        answer = Error(condition=condition, description=str(error))
        if isinstance(event, events.LinkAttached):
            consequences = event.link.session.fail(answer)
        elif isinstance(event, events.SessionBegun) and record.engine.can_send:
            record.engine.close(answer)
            consequences = (events.ConnectionClosed(answer, by_peer=False),)
        else:
            raise error
        for consequence in consequences:
            self._handlers[type(consequence)](self, record, consequence)

    def receive_eof(self, record: ConnectionRecord, now: float) -> None:
        """The transport is gone."""
        self.now = now
        for event in record.engine.receive_eof():
            self._handle(record, event)
        self._connection_gone(record)
        self.connections.pop(record, None)
        record.unfinished = None
        self._timer_at.pop(record, None)
        self._finish_batch()

    def data_to_send(self, record: ConnectionRecord, now: float) -> bytes:
        """All that is to be sent to the peer now."""
        data = record.engine.data_to_send(now)
        record.sending += len(data)
        record.octets_out += len(data)
        self.octets_out += len(data)
        return data

    def sent(self, record: ConnectionRecord, now: float) -> None:
        """What was taken to be sent is written."""
        record.sending = 0
        if record.congested:
            self.now = now
            record.congested = False
            stalled, record.stalled = record.stalled, {}
            self._go_on(stalled)
            self._finish_batch()

    # ------------------------------------------------------------------------------------------------------------ time

    def next_timer(self) -> float | None:
        """When `handle_timer` is to be called at the latest."""
        return self._timers[0][0] if self._timers else None

    def handle_timer(self, now: float) -> None:
        """Do what is due."""
        self.now = now
        timers = self._timers
        while timers and timers[0][0] <= now:
            heappop(timers)[2]()
        self._finish_batch()

    def schedule(self, deadline: float, action: Callable[[], None]) -> None:
        """Have `action` called once `deadline` has come; it looks for itself whether it is still wanted."""
        self._serial += 1
        earliest = not self._timers or deadline < self._timers[0][0]
        heappush(self._timers, (deadline, self._serial, action))
        if earliest:
            self.on_timer()

    def _set_timer(self, owner: ConnectionRecord | Address, deadline: float | None) -> None:
        """See to it that `owner` is looked at by `deadline`; what is scheduled already and earlier will do."""
        if deadline is None:
            return
        scheduled = self._timer_at.get(owner)
        if scheduled is not None and scheduled <= deadline:
            return
        self._timer_at[owner] = deadline
        # The timer of what is gone waits for its time all the same: it must not keep what it was for.
        reference = ref(owner)
        self.schedule(deadline, lambda: self._timer_due(reference(), deadline))

    def _timer_due(self, owner: ConnectionRecord | Address | None, deadline: float) -> None:
        if owner is None or self._timer_at.get(owner) != deadline:
            return
        del self._timer_at[owner]
        if isinstance(owner, Address):
            due = owner.next_timer()
            if due is None or due > self.now:  # what it was set for has come about meanwhile
                self._set_timer(owner, due)
                return
            owner.pool.handle_timer(self.now)
            end_waiting(self, owner)
            self.touch(owner)
            return
        for event in owner.engine.handle_timer(self.now):
            self._handle(owner, event)
        if owner.engine.finished:
            self.on_output(owner)
        self._set_timer(owner, owner.engine.next_timer())

    # -------------------------------------------------------------------------------------------------------- shutdown

    def start_drain(self, now: float) -> None:
        """Take nothing new: producers get no more credit, and unused credit is taken back."""
        self.now = now
        self.draining = True
        if self.mesh is not None:
            self.mesh.drain()
        self._finish_batch()

    @property
    def is_quiet(self) -> bool:
        """No delivery is on its way or waits for an outcome."""
        return self.relays == 0

    @property
    def has_credit_out(self) -> bool:
        """Somebody may still send what they were given credit for, as far as is known."""
        links = (incoming.link for record in self.connections for incoming in record.incoming)
        return any(serial_distance(link.delivery_count, link.known_limit) > 0 for link in links)

    def close(self, record: ConnectionRecord, error: Error | None) -> None:
        """Close a connection, and let go of all that was on it: its peer may never answer."""
        if record.engine.can_send:
            record.engine.close(error)
        self._connection_gone(record)
        self._set_timer(record, record.engine.next_timer())

    def close_all(self, now: float, error: Error) -> None:
        """Send `close` with `error` on every connection; nothing new is begun."""
        self.now = now
        self.draining = True
        for record in list(self.connections):
            if record.engine.can_send:
                record.engine.close(error)
                self._connection_gone(record)
            elif not record.lost:
                record.engine.finished = True
                self.on_output(record)
            self._set_timer(record, record.engine.next_timer())
        self._finish_batch()

    def statistics(self) -> Statistics:
        """How things stand now."""
        return at_once(survey(self))

    # ----------------------------------------------------------------------------------------------------- the batch

    def touch(self, address: Address) -> None:
        """Something changed at an address: it is looked at when the batch is done."""
        self._addresses[address] = None

    def touch_outgoing(self, outgoing: OutgoingLink) -> None:
        """What an outgoing link can take has changed."""
        self._outgoing[outgoing] = None
        self._addresses[outgoing.address] = None

    def touch_input(self, incoming: IncomingLink) -> None:
        """An incoming link may be due credit."""
        if incoming.address is not None:
            self._addresses[incoming.address] = None
        if isinstance(incoming.pool, FixedWindow):
            self._windows[incoming.pool] = None

    def address_of(self, relay: Relay) -> Address | None:
        """The address that a relay goes to, once it is known."""
        address = relay.address
        return address if isinstance(address, Address) else None

    def _finish_batch(self) -> None:
        """Send what can go, and divide the credit that there is."""
        self._check_budget()
        while self._addresses or self._windows:
            addresses, self._addresses = self._addresses, {}
            for address in addresses:
                if address.waiting.size:
                    dispatch(self, address)
            outgoing, self._outgoing = self._outgoing, {}
            for each in outgoing:
                self._update_branch(each)
            for address in addresses:
                self._check_share(address)
                if address.has_pool:
                    self._grant(address.pool.grants(self.now))
                if address.draining or address.lenders:
                    self._answer_drains(address)
                if address.is_multicast:
                    # What its consumers can take all at once, nodes that lead here may wait for.
                    for share in address.borrowers:
                        if share.ingress.waiting.size:
                            self.touch(share.ingress)
                self._set_timer(address, address.next_timer())
                if self._drop_if_idle(address):
                    self._timer_at.pop(address, None)
            windows, self._windows = self._windows, {}
            for window in windows:
                self._grant(window.grants(self.now))

    def _update_branch(self, outgoing: OutgoingLink) -> None:
        branch = outgoing.branch
        if branch is not None and not outgoing.gone:
            flow_state = outgoing.link.flow_state
            outgoing.time_credit(self.now)
            withdrawn = flow_state.lowered and flow_state.link_credit == 0
            usable = outgoing.usable
            if outgoing.left_out and usable:
                branch = take_back(self, outgoing)
            elif outgoing.address.is_multicast and not usable:
                watch(self, outgoing)
            elif usable:
                outgoing.stalled_since = None
            outgoing.address.pool.set_usable(branch, usable, self.now, withdrawn=withdrawn)
            if not usable and flow_state.link_credit:
                outgoing.stall()

    def _drop_if_idle(self, address: Address) -> bool:
        """Forget an address that nobody uses any more; whether it was."""
        if address.far is not None:
            return address.far.look()
        if self.mesh is not None and self.mesh.ways.owns(address):
            return self.mesh.ways.drop_if_idle(address)
        return self.addresses.drop_if_idle(address)

    def _grant(self, grants: Iterable[Grant]) -> None:
        for grant in grants:
            incoming = grant.input.owner
            if isinstance(incoming, Share):
                incoming.grant(grant, self.now)
                if incoming.draining:
                    ingress = incoming.ingress
                    if incoming not in ingress.lenders:
                        ingress.lenders = including(ingress.lenders, incoming)
                        incoming.drain_by = self.now + ingress.config.drain_time
                        self.schedule(incoming.drain_by, partial(self.touch, ingress))
                self.touch(incoming.ingress)
            elif isinstance(incoming, IncomingLink) and incoming.link.is_attached:
                incoming.link.flow(grant.credit, drain=grant.drain, echo=grant.echo)
                incoming.time_credit(self.now)

    def _answer_drains(self, address: Address) -> None:
        over = address.pool.drained(self.now)
        for share in list(address.lenders):
            if over or self.now >= share.drain_by:
                address.lenders = excluding(address.lenders, share)
                share.drained(self.now)
                self.touch(share.node)
        for outgoing in list(address.draining):
            # What waits may wait for others, as a multicast does for its slowest: nobody is kept longer for that.
            # But a delivery that was given to it, and of which nothing is sent yet, needs one of the credit.
            unsent = outgoing.current is not None and not outgoing.current.started
            if not unsent and (over or self.now >= outgoing.drain_by):
                address.draining = excluding(address.draining, outgoing)
                outgoing.link.drained()
                self.touch_outgoing(outgoing)

    def _check_budget(self) -> None:
        """Once the memory is used up, those that hold much of it get no credit, until a tenth of it is free again."""
        used, limit = self.budget.used, self.budget.limit
        if used > 2 * limit:
            self._close_the_largest()
        suspended = used > limit or (self.suspended and used > limit * 0.9) or self.draining
        if suspended != self.suspended:
            self.suspended = suspended
            if suspended and not self.draining:
                self.log.warning("memory used up", octets=used, limit=limit, consequence="senders get no credit")
            for address in self.addresses.values():
                self.touch(address)
            self.limit_windows()

    def limit_windows(self) -> None:
        """Memory is used up or free again, or other routers are out of reach or within: see who may have a window."""
        for record in self.connections:
            for incoming in record.incoming:
                if isinstance(incoming.pool, FixedWindow):
                    incoming.pool.set_suspended(self.suspended or self.lookup.is_cut_off(incoming))
                    self.touch_input(incoming)

    def _close_the_largest(self) -> None:
        """Withholding credit was not enough: the connection whose frames fill the memory makes room for the others."""
        largest = max(
            (record for record in self.connections if not record.lost),
            key=lambda record: record.held_frames,
            default=None,
        )
        if largest is not None and largest.engine.can_send and not largest.own:
            error = Error(
                condition=AmqpCondition.RESOURCE_LIMIT_EXCEEDED, description="too much of the router's memory is held"
            )
            self.log.warning("connection closed for its memory", connection=largest.number, peer=largest.host)
            largest.engine.close(error)
            self._connection_gone(largest)
            self._set_timer(largest, largest.engine.next_timer())

    def _check_share(self, address: Address) -> None:
        """Whether this address is one of those."""
        suspended = self.suspended and (self.draining or address.buffered > address.budget.limit)
        if suspended != address.suspended:
            address.suspended = suspended
            if address.has_pool:
                address.pool.set_suspended(suspended)

    def ingress(self, address: Address) -> Address:
        """Where producers of an address are attached: there, or at a node that leads to others, too."""
        if address.far is not None:
            return address.far.ingress()
        return address if self.mesh is None else self.mesh.ways.ingress(address)

    def consumers_changed(self, address: Address) -> None:
        """A consumer of an address has come: the mesh is told of it."""
        if self.mesh is not None and address.far is None:
            self.mesh.ways.consumers_changed(address)

    def need_bulk(self, way: Address) -> None:
        """Something large is to leave by a lane."""
        assert self.mesh is not None
        self.mesh.ways.need_bulk(way)

    def cost_of(self, config: ListenerConfig | ConnectorConfig) -> int:
        """What sending costs now on the connections of a listener or connector."""
        return config.cost if self.mesh is None else self.mesh.cost_of(config)

    def set_cost(self, told: Costly, cost: int, now: float) -> None:
        """Change what sending to neighbours costs. Raises: LookupError: there is nothing such."""
        self.now = now
        set_cost(self, told, cost)
        self._finish_batch()

    def brought_by(self, name: str, tag: bytes) -> ConnectionRecord | None:
        """Who has sent a delivery to a node of the router's own, by the delivery-tag that it has there.

        Returns: None: it is settled, or came from another router: then nobody knows who its sender is.
        """
        address = self.addresses.find("", name)
        for outgoing in address.outgoing if address is not None else ():
            delivery = outgoing.link.terminus.unsettled.get(tag)
            source = delivery.leg.relay.source if delivery is not None and delivery.leg is not None else None
            if isinstance(source, IncomingLink) and source.lane is None:
                return source.connection
        return None

    def is_new(self, incoming: IncomingLink, tag: bytes) -> bool:
        """Whether a delivery by a tree is one that this router has not had."""
        assert self.mesh is not None
        return self.mesh.ways.is_new(incoming, tag)

    def new_key(self, lane: Lane) -> bytes:
        """The delivery-tag of a delivery that begins its way by `lane` here."""
        assert self.mesh is not None
        return self.mesh.ways.new_key(lane)

    # ---------------------------------------------------------------------------------------------------------- events

    def _tls_requested(self, record: ConnectionRecord, event: events.TlsRequested) -> None:
        record.tls_requested = event.rest

    def _opened(self, record: ConnectionRecord, event: events.ConnectionOpened) -> None:
        engine = record.engine
        sasl = engine.negotiation.sasl
        # Of a connection of ours the exchange has shown who we are; who the peer is, its certificate says.
        shown = isinstance(sasl, SaslServer) and sasl.done
        record.peer = Peer(
            container_id=event.open.container_id,
            user=engine.user if shown else record.certificate_user if record.connector is not None else None,
            mechanism=sasl.mechanism if sasl is not None and sasl.done else None,
            certificate_subject=record.certificate_subject,
            hostname=event.open.hostname,
            **record.origin,
        )
        if record.listener is not None:
            engine.open()
        # From here on idle time-outs count, which may come sooner than what was waited for.
        self._set_timer(record, engine.next_timer())
        if record.listener is not None and record.listener.redirect is not None:
            self._redirect(record, record.listener.redirect.place)
            return
        if self.mesh is not None:
            self.mesh.opened(record)
        self.containers.opened(record)
        if not record.own:
            self.log.info(
                "connection opened",
                connection=record.number,
                peer=record.host,
                container=record.peer.container_id,
                user=record.peer.user,
                connector=record.peer.connector or None,
            )

    def _redirect(self, record: ConnectionRecord, place: Redirect) -> None:
        """The connection belongs elsewhere: close it with where (§2.8.16)."""
        self.log.info(
            "connection redirected", connection=record.number, peer=record.host, container=record.peer.container_id
        )
        error = Error(condition=ConnectionCondition.REDIRECT, description="the container moved", info=info(place))
        record.engine.close(error)
        self._connection_gone(record)
        self._set_timer(record, record.engine.next_timer())

    def _closed(self, record: ConnectionRecord, event: events.ConnectionClosed) -> None:
        record.closed = record.closed or event
        if record.lost:
            return
        error = event.error
        sasl = record.engine.negotiation.sasl
        if sasl is not None and isinstance(sasl, SaslServer) and sasl.authenticator_error is not None:
            self.log.error("users cannot be looked up", exception=sasl.authenticator_error)
        if isinstance(sasl, SaslServer) and sasl.done and not sasl.succeeded:
            self.log.warning(
                "authentication failed",
                connection=record.number,
                peer=record.host,
                mechanism=sasl.mechanism,
                reason=sasl.reason,
            )
            return
        # Of one of ours that did not come about, the connector tells.
        if not record.own and (record.connector is None or record.engine.remote is not None):
            self.log.info(
                "connection closed",
                connection=record.number,
                peer=record.host,
                by="peer" if event.by_peer else "router",
                connector=record.peer.connector or None,
                condition=error.condition if error is not None else None,
                reason=error.description if error is not None else None,
            )
        self._connection_gone(record)
        self._set_timer(record, record.engine.next_timer())

    def _begun(self, _record: ConnectionRecord, event: events.SessionBegun) -> None:
        if not event.session.can_send:  # else it is the answer to our own
            event.session.begin()

    def _ended(self, record: ConnectionRecord, event: events.SessionEnded) -> None:
        # Those that we send on first: then nothing tries to send on them what others leave behind.
        for table in (record.outgoing, record.lingering, record.incoming):
            for each in [each for each in table if each.link.session is event.session]:
                if isinstance(each, OutgoingLink) and each.lane is not None:
                    assert self.mesh is not None
                    self.mesh.ways.refused(each)
                self.link_over(each)
        if self.mesh is not None:
            self.mesh.ended(record, event.session)
        if record.connector is not None:
            self.containers.ended(event.session, event.error, by_peer=event.by_peer)

    def _attached(self, record: ConnectionRecord, event: events.LinkAttached) -> None:
        taken = event.link.context
        if isinstance(taken, OutgoingLink):
            # The answer to our own attach. Without a target it is a refusal, and the detach will say why (§2.6.3).
            if taken.lane is not None and event.attach.target is not None and not event.attach.max_message_size:
                event.link.remote = REMEMBERED
        elif isinstance(taken, ContainerLink):
            self.containers.attached(taken, event)
        elif isinstance(taken, Neighbour) or (self.mesh is not None and self.mesh.takes(record, event)):
            assert self.mesh is not None
            self.mesh.attached(record, event)
        else:
            self.attaching.attached(record, event.link, event.attach)

    def _detached(self, record: ConnectionRecord, event: events.LinkDetached) -> None:
        link = event.link
        taken = link.context
        if isinstance(taken, Neighbour) and self.mesh is not None:
            self.mesh.detached(taken)
        if isinstance(taken, OutgoingLink) and taken.lane is not None and event.by_peer:
            assert self.mesh is not None
            self.mesh.ways.refused(taken)
        if isinstance(taken, IncomingLink | OutgoingLink):
            if event.by_peer and not event.closed:
                self._suspend(record, taken)
            else:
                # Its deliveries can no longer be spoken of, from whichever side it was closed (§2.6.5, §2.6.6).
                abandon(link.flow_state)
                self.link_over(taken)
        if event.by_peer and link.session.can_send:  # else the connection was closed for it
            link.detach(closed=event.closed)
        self.containers.detached(event)

    def _transferred(self, _record: ConnectionRecord, event: events.TransferReceived) -> None:
        neighbour = event.link.context
        if isinstance(neighbour, Neighbour) and self.mesh is not None:
            self.mesh.transferred(neighbour, event)
        else:
            transfer_received(self, event)

    def _ignored(self, _record: ConnectionRecord, event: events.DeliveryIgnored) -> None:
        incoming = event.link.context
        if isinstance(incoming, IncomingLink):
            incoming.pool.received(incoming.input, self.now)
            incoming.pool.forwarded(incoming.input, self.now)
            self.touch_input(incoming)

    def _disposed(self, _record: ConnectionRecord, event: events.DispositionReceived) -> None:
        self.settlement.disposition_received(event)

    def _credited(self, _record: ConnectionRecord, event: events.CreditChanged | events.DrainRequested) -> None:
        taken = event.link.context
        flow = event.flow
        if isinstance(taken, OutgoingLink):
            taken.link.offer(taken.address.waiting.size)
            taken.note_credit()
            self.touch_outgoing(taken)
            if taken.backlog or (taken.current is not None and not taken.current.started):
                pump(self, taken)
        elif isinstance(taken, IncomingLink) and flow.delivery_count is not None:
            taken.pool.flow_received(taken.input, flow.delivery_count, flow.link_credit, flow.available, self.now)
            taken.time_credit(self.now)
            self.touch_input(taken)
        elif isinstance(taken, Neighbour):
            taken.pump()

    def _drain_requested(self, record: ConnectionRecord, event: events.DrainRequested) -> None:
        self._credited(record, event)
        taken = event.link.context
        if not isinstance(taken, OutgoingLink):
            event.link.drained()
        elif taken.copy:
            if not taken.backlog:
                taken.link.drained()
        else:
            address = taken.address
            if taken not in address.draining:
                address.draining = including(address.draining, taken)
                taken.drain_by = self.now + address.config.drain_time
                self.schedule(taken.drain_by, partial(self.touch, address))
            address.pool.drain(self.now)
            self.touch(address)

    def _window_opened(self, _record: ConnectionRecord, event: events.WindowOpened) -> None:
        session = event.session
        stalled, session.stalled = session.stalled, {}
        self._go_on(stalled)
        if self.mesh is not None:
            self.mesh.window_opened(session)

    def _go_on(self, stalled: Iterable[OutgoingLink]) -> None:
        """What held these links back has changed."""
        for outgoing in stalled:
            if not outgoing.gone:
                pump(self, outgoing)
                self.touch_outgoing(outgoing)

    _handlers: ClassVar[dict[type, Callable[..., None]]] = {
        events.TlsRequested: _tls_requested,
        events.ConnectionOpened: _opened,
        events.ConnectionClosed: _closed,
        events.SessionBegun: _begun,
        events.SessionEnded: _ended,
        events.LinkAttached: _attached,
        events.LinkDetached: _detached,
        events.TransferReceived: _transferred,
        events.DeliveryIgnored: _ignored,
        events.DispositionReceived: _disposed,
        events.CreditChanged: _credited,
        events.DrainRequested: _drain_requested,
        events.WindowOpened: _window_opened,
    }

    # ------------------------------------------------------------------------------------------------------ departures

    def fail_link(self, taken: IncomingLink | OutgoingLink, error: Error) -> None:
        """Detach a link of ours with an error, and let go of what was on it."""
        self.link_over(taken)
        link = taken.link
        if link.is_attached and link.session.can_send:
            link.detach(error=error)
        self.containers.over(link, error)

    def _connection_gone(self, record: ConnectionRecord) -> None:
        if self.mesh is not None and not record.lost:
            self.mesh.lost(record)
        self.containers.lost(record)
        record.lost = True
        for table in (record.outgoing, record.lingering, record.incoming):
            for each in list(table):
                self.link_over(each)

    def _suspend(self, record: ConnectionRecord, taken: IncomingLink | OutgoingLink) -> None:
        """Detached, not closed: nothing more is sent, but what was sent lives until the session ends (§2.7.6)."""
        self._withdraw(taken)
        if taken.link.terminus.unsettled:
            record.lingering[taken] = None
            if isinstance(taken, OutgoingLink):
                record.held[taken.address] = record.held.get(taken.address, 0) + taken.unsettled
        else:
            self._keep_count(taken)

    def link_over(self, taken: IncomingLink | OutgoingLink) -> None:
        """A link is over: each of its deliveries ends with what is true of it."""
        self._withdraw(taken)
        self.no_longer_lingers(taken)
        unsettled = list(taken.link.terminus.unsettled.values())
        if isinstance(taken, OutgoingLink):
            for delivery in unsettled:
                if delivery.leg is not None:
                    self.settlement.hop_lost(delivery.leg)
        else:
            for delivery in unsettled:
                if delivery.relay is not None:
                    self.settlement.sender_gone(delivery.relay, delivery)
        for delivery in unsettled:
            forget(delivery)
        self._keep_count(taken)

    def _keep_count(self, taken: IncomingLink | OutgoingLink) -> None:
        """A link is gone: what it has counted stays, once."""
        if not taken.link.flow_state.received:
            return
        self.past.add(taken)
        if taken.address is not None:
            self.seen_as(taken.address).count(taken)
        taken.link.flow_state.reset_counters()

    def no_longer_lingers(self, taken: IncomingLink | OutgoingLink) -> None:
        """A link that was detached without being closed has no live delivery any more."""
        record = taken.connection
        if record.lingering.pop(taken, 0) == 0:
            return
        self._keep_count(taken)
        if not isinstance(taken, OutgoingLink):
            return
        held = record.held.pop(taken.address, 0) - taken.unsettled
        if held > 0:
            record.held[taken.address] = held
        for outgoing in record.outgoing:
            if outgoing.address is taken.address:
                self.touch_outgoing(outgoing)

    def _withdraw(self, taken: IncomingLink | OutgoingLink) -> None:
        """A link takes part in nothing new, and what is in the middle of its frames is given up."""
        self.attaching.forget(taken)
        record = taken.connection
        if isinstance(taken, OutgoingLink):
            if taken.gone:
                return
            taken.gone = True
            record.outgoing.pop(taken, None)
            address = taken.address
            address.copies = excluding(address.copies, taken)
            address.outgoing = excluding(address.outgoing, taken)
            address.draining = excluding(address.draining, taken)
            address.creditors = excluding(address.creditors, taken)
            if taken.branch is not None:
                address.pool.remove_branch(taken.branch, self.now)
            current, taken.current = taken.current, None
            if current is not None:
                self.settlement.hop_lost(current)
            while taken.backlog:
                self.settlement.hop_lost(taken.backlog.popleft())
            if not address.outgoing:
                if not taken.retired:
                    self.nobody_left(address)
            elif address.config.redeliver:
                self.settlement.end_excluded(address)
        else:
            if record.incoming.pop(taken, 0) == 0:
                return
            if taken.current is not None:
                relay, taken.current = taken.current, None
                abort(self, relay)
            taken.pool.remove_input(taken.input, self.now)
            if taken.address is not None:
                taken.address.incoming = excluding(taken.address.incoming, taken)
            address = taken.address  # type: ignore[assignment]  # None for an anonymous terminus
        if address is not None:
            self.touch(address)
            if address.maker is record and self._made(taken):
                self._maker_gone(address)

    def nobody_left(self, address: Address) -> None:
        """The last receiver is gone, or the last lane: what waits goes back (§3.4.4), or another way."""
        if self.mesh is not None:
            self.mesh.ways.nobody_left(address)
        if not address.outgoing:
            self.send_back(address)

    def send_back(self, address: Address) -> None:
        """What waits at an address that leads nowhere any more has its outcome, or looks for another way."""
        waiting = address.waiting
        while (relay := waiting.first()) is not None:
            if relay.share is not None:
                unqueue(self, relay)
                self.settlement.route_again(relay)
                continue
            self.count_undelivered(address)
            self.settlement.end_unsent(relay, RELEASED_STATE)

    def count_undelivered(self, address: Address | None) -> None:
        """A delivery went to nobody. Args: address: where it should have gone; None: there is no such address."""
        self.undelivered += 1
        if address is not None:
            self.seen_as(address).undelivered += 1
            if address.lane is not None and not (address.is_ingress or address.has_consumers):
                self.no_path += 1

    def seen_as(self, address: Address) -> Address:
        """The address as clients see it that a node belongs to; the node itself, where there is none."""
        if address.is_ingress or (address.name and self.mesh is not None and self.mesh.ways.owns(address)):
            return self.addresses.find(address.tenant, address.name) or address
        return address

    @staticmethod
    def _made(taken: IncomingLink | OutgoingLink) -> bool:
        """Whether the dynamic node at the other end of this link was made by it."""
        remote = taken.link.remote
        if remote is None:
            return False
        terminus = remote.source if isinstance(taken, OutgoingLink) else remote.target
        return isinstance(terminus, Source | Target) and terminus.dynamic

    def _maker_gone(self, address: Address) -> None:
        """The link that made a dynamic node is gone. With links as the condition it goes with the last of them."""
        lifetime = address.lifetime
        if isinstance(lifetime, DeleteOnClose) or (
            isinstance(lifetime, DeleteOnNoMessages) and not address.waiting.size
        ):
            self._remove_dynamic(address)

    def _remove_dynamic(self, address: Address) -> None:
        """A dynamic node goes with the link that made it: other links to it are detached (§3.5.10)."""
        self.addresses.remove(address)
        error = Error(condition=AmqpCondition.RESOURCE_DELETED, description="the dynamic node is gone")
        attached: list[IncomingLink | OutgoingLink] = [*address.incoming, *address.outgoing, *address.copies]
        for each in attached:
            self.fail_link(each, error)
