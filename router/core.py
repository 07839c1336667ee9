"""The router without I/O: connections, bytes and time go in, and the bytes to send on each connection come out.

One `Core` is one container. Its owner has the sockets and the clock. The owner calls `receive` for each batch of bytes,
then `data_to_send` for each connection that `on_output` has named.
"""

from __future__ import annotations

import secrets
import time
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from amqpmesh.router.access.change import put_in_force
from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.negotiation import Negotiation
from amqpmesh.router.amqp.standard.definitions import Error
from amqpmesh.router.attach.answer import Attaching
from amqpmesh.router.attach.resolve import Lookup, limit_windows
from amqpmesh.router.batch import finish_batch, timer_due
from amqpmesh.router.containers.container_links import Containers
from amqpmesh.router.containers.on_demand import OnDemandConnections
from amqpmesh.router.containers.remote_nodes import RemoteNodes
from amqpmesh.router.context import AT_ONCE, Context, Errand
from amqpmesh.router.delivery.anonymous_routes import find_route
from amqpmesh.router.delivery.arrival import receive_before, receive_held
from amqpmesh.router.delivery.dispatch import resume_sending
from amqpmesh.router.delivery.fast_routes import expanded, reopen
from amqpmesh.router.delivery.link_loss import end_connection
from amqpmesh.router.delivery.memory_pressure import nodes
from amqpmesh.router.endpoint_setup import client_sasl, container_id, endpoint, name_wanted, server_sasl
from amqpmesh.router.handlers import Handlers, weight
from amqpmesh.router.kernel import UNIT, UNIT_IN_MESH
from amqpmesh.router.logins import Logins
from amqpmesh.router.memory.holders import count_output, forget_output
from amqpmesh.router.memory.retained import forget
from amqpmesh.router.mesh.tenant_connections import be_for_lanes_of
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.router.model.local_routes import LocalRoutes
from amqpmesh.router.model.node import Node
from amqpmesh.router.telemetry.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqpmesh.policies.policy import Policy
    from amqpmesh.router.amqp.sasl.mechanisms import Authenticator
    from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig, RouterConfig
    from amqpmesh.router.config.observability import TelemetryConfig
    from amqpmesh.router.kernel import Recorder
    from amqpmesh.router.mesh.member import MeshMember
    from amqpmesh.router.telemetry.recording import Writer

#: The deliveries that one call of `receive` handles before other connections get a turn. One frame of 20 octets can
#: change the state of thousands of deliveries.
WORK_LIMIT: Final = 1000

#: The approximate memory of a delivery in flight, in octets, without its message.
RELAY: Final = 256

#: Seconds before a timer whose action has failed is due again. Without a pause it could be due at once, for ever.
AGAIN: Final = 1.0


class Core:
    """One router: the rooms that events go to, and the calls of its owner."""

    def __init__(
        self,
        config: RouterConfig,
        now: float,
        token: Callable[[int], str] = secrets.token_hex,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Args: token: makes a number of random octets, in hexadecimal digits. wall_clock: seconds since 1970."""
        self.context = context = Context(config, now, token, wall_clock)
        context.kernel.on_expand = expanded
        context.kernel.on_unknown = partial(find_route, context)
        self.logins = Logins(context)
        self.on_demand = OnDemandConnections(context)
        self.containers = Containers(context, self.on_demand)
        self.remote_nodes = RemoteNodes(context, self.containers, self.on_demand)
        self.lookup = Lookup(context, self.remote_nodes)
        self._handlers = Handlers(context, Attaching(context, self.lookup), self.containers, self.logins)
        self.departure, self.thefts = self._handlers.departure, self._handlers.attaching.thefts
        self._handle = context.handle = self._handlers.handle
        context.resolve, context.resolve_copy = self.lookup.resolve, self.lookup.of_copy
        context.on_connection_lost = self._handlers.connection_lost
        context.on_link_failed = self.containers.link_ended
        #: The number of connections so far, without the router's own.
        self._numbers = 0

    @property
    def mesh(self) -> MeshMember | None:
        """The router's membership in its mesh; None: the router is in no mesh."""
        return self._handlers.mesh

    @mesh.setter
    def mesh(self, mesh: MeshMember | None) -> None:
        self._handlers.mesh = mesh
        self.context.routes = LocalRoutes() if mesh is None else mesh.mesh_routes
        self.context.kernel.unit = UNIT if mesh is None else UNIT_IN_MESH

    def set_policy(self, policy: Policy, now: float) -> None:
        """Put a policy in force, also for connections and links that exist: those that it does not permit are ended."""
        self.change(lambda: put_in_force(self.context, policy), now)

    def change(self, action: Callable[[], object], now: float) -> None:
        """Change something apart from what peers send, with all that follows from it. Raises: as `action`."""
        self._begin(now)
        action()
        finish_batch(self.context)

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
        users: Authenticator | None = None,
        own: bool = False,
        inside: bool = False,
        negotiation: Negotiation | None = None,
    ) -> ConnectionRecord:
        """Take a connection that a peer has made to `listener`.

        Args: host: the peer's address without port. secured: the transport has TLS already. certificate: the client's
            verified certificate, DER. certificate_user, certificate_subject: read from it. users: for PLAIN and SCRAM.
            own: the router itself is at the other end, and serves its own nodes. inside: a program in the router's
            process is at the other end. negotiation: of the layers below AMQP, if another process of this router has
            done it.
        """
        negotiation = negotiation or Negotiation(
            server=True,
            sasl=server_sasl(listener, users, self.context.tokens, secured=secured, certificate_user=certificate_user),
            sasl_required=listener.sasl_demanded,
            tls=listener.tls is not None and not secured,
        )
        if not own:
            self._numbers += 1
        number = 0 if own else self._numbers
        engine = endpoint(self.context.id, listener, negotiation, now)
        context = self.context
        record = ConnectionRecord(
            number, engine, listener, host, now, memory=context.budget, freed=context.freed, own=own, inside=inside
        )
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
        lanes_of: str | None = None,
        wanted: Sequence[str] = (),
    ) -> ConnectionRecord:
        """Open a connection that the router has made to a peer.

        Args: host: the peer's address without port. secured: the transport has TLS already. certificate: the peer's
            verified certificate, DER. certificate_user, certificate_subject: read from it. password: of the connector's
            user. hostname: for `open` (§2.7.1); None: the connector's, else `host`. redirected: a peer's redirect named
            the place. lanes_of: the tenant whose lanes alone it is for; None: it is for all. wanted: ids of routers
            for `open`, see `WANTED`.
        Raises: CommandError: no mechanism can carry the user or the password.
        """
        hostname = hostname or connector.hostname or host
        redirected = redirected or self.on_demand.is_redirected(connector.name)
        sasl = client_sasl(
            connector, host, secured=secured, password=password, hostname=hostname, redirected=redirected
        )
        own_id = container_id(self.context.id, self.context.config, connector)
        engine = endpoint(own_id, connector, Negotiation(server=False, sasl=sasl), now, hostname=hostname)
        self._numbers += 1
        context = self.context
        record = ConnectionRecord(
            self._numbers, engine, connector, host, now, memory=context.budget, freed=context.freed
        )
        record.certificate = certificate
        record.certificate_subject = certificate_subject
        record.certificate_user = certificate_user
        if lanes_of is not None:
            be_for_lanes_of(record, lanes_of, context.config)
        if wanted:
            name_wanted(engine, wanted)
        engine.open()
        self._add(record, now)
        return record

    def _add(self, record: ConnectionRecord, now: float) -> None:
        self.context.now = now
        record.engine.context = record
        record.engine.flow_state.router = self.context.kernel
        record.engine.flow_state.on_wake = partial(self.context.on_output, record)
        self.context.connections[record] = None
        self.context.set_timer(record, record.engine.next_timer())

    def secured(
        self,
        record: ConnectionRecord,
        now: float,
        *,
        certificate: bytes | None = None,
        certificate_user: str | None = None,
        certificate_subject: str | None = None,
        users: Authenticator | None = None,
    ) -> None:
        """Go on with a connection whose stream has TLS now (§5.2). Args: as of `accept`."""
        self.context.now = now
        record.tls_requested = None
        record.certificate = certificate
        record.certificate_subject = certificate_subject
        record.certificate_user = certificate_user
        assert record.listener is not None, "a listener offers the layer"
        record.engine.negotiation.sasl = server_sasl(
            record.listener, users, self.context.tokens, secured=True, certificate_user=certificate_user
        )
        record.engine.secured()

    def logged_in(self, record: ConnectionRecord, now: float) -> bool:
        """Go on with a SASL exchange, whose `record.login` is done. Returns: as `receive`."""
        record.login = None
        record.engine.sasl_worked(now)
        self.context.set_timer(record, record.engine.next_timer())
        return self.receive(record, b"", now)

    def receive(self, record: ConnectionRecord, data: bytes | bytearray, now: float) -> bool:
        """Handle a batch of bytes from a peer, with all that follows from it.

        Returns: False, if work is left: there was too much for one turn, or the output of `waits_for` must be written
            first. The caller must call again then, without data.
        """
        context, engine, kernel = self.context, record.engine, self.context.kernel
        context.now = kernel.now = now
        context.chores.begin_turn()
        context.legs_seen = context.sent = 0
        size = len(data)
        record.octets_in += size
        context.octets_in += size
        flow_state = engine.flow_state
        flow_state.work = WORK_LIMIT
        unfinished = record.unfinished
        if unfinished is None:
            relayed = engine.relay(data, now)
            if relayed:
                context.foreseen = None
                if kernel.needs_update or context.touched:
                    finish_batch(context)
                return True
            if relayed is None:
                finish_batch(context)
                return False
            unfinished = engine.receive(b"", now)
        record.unfinished = None
        if kernel.has_news() or kernel.held_back:
            receive_held(context, wire=None if flow_state.pending_disposition is None else flow_state)
        for event in unfinished:
            if kernel.has_news():
                context.catch_up()
            if kernel.held_back:
                receive_before(context, event, flow_state)
            flow_state.work -= weight(event) * context.decision
            self._handle(record, event)
            context.foreseen = None  # it was for this event: what follows may be judged otherwise
            if context.legs_seen:
                flow_state.work -= context.legs_seen
                if isinstance(event, events.DispositionReceived) and event.deliveries:
                    record.unfinished = chain((event,), unfinished)
                    break
                context.legs_seen = 0
            if flow_state.work <= 0:
                record.unfinished = unfinished
                break
            if context.closed:
                reopen(context, amid=True)
        if flow_state.sending:
            count_output(context.memory, record)
        finish_batch(context)
        return record.unfinished is None and flow_state.waits_for is None

    def _begin(self, now: float) -> None:
        """Begin a turn: all that the kernel has relayed alone is counted before it."""
        self._turn(now)
        receive_held(self.context)

    def _turn(self, now: float) -> None:
        context = self.context
        context.now = context.kernel.now = now
        context.chores.begin_turn()
        context.legs_seen = context.sent = context.looked_at = 0

    def work(self, now: float, enough: Callable[[], bool]) -> None:
        """Do more of the work that was too much for one turn (`chores`).

        Args: enough: tells whether others should get a turn.
        Raises: the error of a failed piece of work, which is dropped; the next call does the rest.
        """
        self._begin(now)
        context = self.context
        try:
            while context.chores and context.looked_at < context.most_sent and not enough():
                context.chores.step()
        finally:
            finish_batch(context)

    def receive_eof(self, record: ConnectionRecord, now: float) -> None:
        """End a connection whose transport is gone."""
        self._begin(now)
        for event in record.engine.receive_eof():
            self._handle(record, event)
        end_connection(self.context, record)
        forget(record, record)
        forget_output(record)
        record.unfinished = None
        self.context.forget_connection(record)
        finish_batch(self.context)
        if record not in self.context.leaving:
            self.context.dismantle_connection(record)

    def data_to_send(self, record: ConnectionRecord, now: float) -> bytearray:
        """Return all output for a peer. The caller must send it, and tell `sent` or `output_blocked`."""
        engine = record.engine
        data = engine.data_to_send(now)
        size = len(data)
        engine.flow_state.sending += size
        record.octets_out += size
        self.context.octets_out += size
        return data

    def output_blocked(self, record: ConnectionRecord) -> None:
        """Note that output which the caller has taken cannot be written now: it counts as held until `sent`."""
        count_output(self.context.memory, record)
        if self.context.memory.is_exceeded:
            finish_batch(self.context)

    def sent(self, record: ConnectionRecord, now: float) -> None:
        """Note that all output which the caller has taken is written."""
        record.engine.flow_state.sending = 0
        if record.counted:
            forget_output(record)
        if record.congested:
            self._begin(now)
            record.congested = False
            stalled, record.stalled = record.stalled, {}
            resume_sending(self.context, stalled)
            finish_batch(self.context)

    # ------------------------------------------------------------------------------------------------------------ time

    def next_timer(self) -> float | None:
        """Return the time by which `handle_timer` must be called; None: it need not be called."""
        return self.context.timers.next()

    def handle_timer(self, now: float) -> None:
        """Do what is due, `AT_ONCE` at most, or what is work for a turn; the next call does the rest.

        Raises: the error of a failed action.
        """
        self._turn(now)
        self.context.catch_up()
        if self.context.touched:  # the kernel has relayed: pools learn what their consumers can take now
            finish_batch(self.context)
        try:
            for due in islice(self.context.timers.due(now), AT_ONCE):
                try:
                    self._timer_due(due)
                except Exception:
                    self.context.timers.set(due, now + AGAIN)  # it is still wanted, but others come first
                    raise
                if len(self.context.touched) >= self.context.most_sent:  # each may send and grant credit
                    break
        finally:
            finish_batch(self.context)

    def _timer_due(self, owner: ConnectionRecord | Node | Errand) -> None:
        if isinstance(owner, Node | Errand):
            timer_due(self.context, owner)
            return
        if not owner.engine.is_quiet(self.context.now):
            receive_held(self.context)
        for event in owner.engine.handle_timer(self.context.now):
            self._handle(owner, event)
        if owner.engine.finished:
            self.context.on_output(owner)
        self.context.set_timer(owner, owner.engine.next_timer())

    # -------------------------------------------------------------------------------------------------------- shutdown

    def start_drain(self, now: float) -> None:
        """Take no new deliveries: give producers no more credit, and withdraw unused credit."""
        self._begin(now)
        self._give_no_credit()
        if self.mesh is not None:
            self.mesh.drain()
        finish_batch(self.context)

    def _give_no_credit(self) -> None:
        self.context.draining = True
        self.context.termini.end_all("the router ends")
        for node in nodes(self.context):
            self.context.touch(node)
        limit_windows(self.context)

    @property
    def is_quiet(self) -> bool:
        """True if no delivery is in flight, and nothing is left of links and connections that are gone."""
        return self.context.in_flight == 0 and not self.context.chores

    @property
    def has_credit_out(self) -> bool:
        """True if a producer may still have credit, as far as its last flow tells."""
        return any(each.endpoint.may_send for record in self.context.connections for each in record.incoming)

    def close_all(self, now: float, error: Error) -> None:
        """Send `close` with `error` on each connection, and take no new deliveries."""
        self._begin(now)
        self._give_no_credit()
        for record in list(self.context.connections):
            if record.engine.can_send:
                record.engine.close(error)
                end_connection(self.context, record)
            elif not record.lost:
                record.engine.finished = True
                self.context.on_output(record)
            self.context.set_timer(record, record.engine.next_timer())
        self.logins.tell_left_out()
        finish_batch(self.context)

    def count_garbage_and_present(self) -> tuple[int, int]:
        """Return two counts of connections and links together: those that are over and still in memory, and those that
        exist.

        A lost connection exists until all its links have ended. A link that is over is in memory as long as one of its
        deliveries is.
        """
        context = self.context
        records = {**context.connections, **context.leaving}
        there = (
            sum(not each.own for each in records)
            + sum(len(each.incoming) + len(each.outgoing) + len(each.detached_unsettled) for each in records)
            + len(context.ended_links.links)
        )
        return self._numbers + context.links_made - context.freed.count - there, there

    def most_held(self) -> int:
        """Return the most memory that deliveries took since the last call, in octets, approximately."""
        kernel, budget = self.context.kernel, self.context.budget
        most = kernel.most_relays * RELAY + budget.most
        kernel.most_relays, budget.most = kernel.relays, budget.used
        return most

    def compact(self) -> None:
        """Free the memory of tables that many deliveries and links have left."""
        self.lookup.compact()
        for record in self.context.connections:
            for session in record.engine.channels.sessions:
                session.flow_state.compact()
            for each in (*record.outgoing, *record.incoming):
                each.endpoint.flow_state.compact()

    def record(self, recorder: Recorder, config: TelemetryConfig, writer: Writer, epoch: int) -> Recording:
        """Begin to record telemetry. Args: writer: takes the records. epoch: as of `Recording`."""
        context = self.context
        context.recording = Recording(
            context.id,
            context.kernel,
            recorder,
            config,
            writer,
            epoch=epoch,
            topology=self.mesh.topology if self.mesh is not None else None,
            next_number=context.next_link_number,
        )
        return context.recording

    # --------------------------------------------------------------------------------------------------------- the mesh

    def cost_of(self, config: ListenerConfig | ConnectorConfig) -> int:
        """Return the cost of sending on the connections of a listener or connector."""
        return (config.cost or 1) if self.mesh is None else self.mesh.cost_of(config)
