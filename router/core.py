"""The router without I/O: connections in, bytes in, time in; what each connection is to be sent comes out.

One `Core` is one container. It is driven by whoever owns sockets and clock: `receive` for each batch of bytes, then
`data_to_send` for every connection that `on_output` named.
"""

from __future__ import annotations

import secrets
import time
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.negotiation import Negotiation
from amqpmesh.router.amqp.standard.definitions import Error
from amqpmesh.router.attach.answer import Attaching
from amqpmesh.router.attach.resolve import Lookup, limit_windows
from amqpmesh.router.batch import finish_batch
from amqpmesh.router.containers.container_links import Containers
from amqpmesh.router.containers.on_demand import Places
from amqpmesh.router.containers.remote_nodes import Elsewhere
from amqpmesh.router.credit.sinks import FixedCredit
from amqpmesh.router.delivery.dispatch import resume_sending
from amqpmesh.router.delivery.fast_routes import catch_up, close, expanded, reopen
from amqpmesh.router.delivery.left_unsettled import Leftovers
from amqpmesh.router.delivery.link_loss import connection_gone
from amqpmesh.router.delivery.memory_pressure import nodes
from amqpmesh.router.delivery.settlement import end_waiting
from amqpmesh.router.endpoint_setup import client_sasl, endpoint, server_sasl
from amqpmesh.router.handlers import handle
from amqpmesh.router.incremental import Chores, run_to_end
from amqpmesh.router.kernel import KernelRouter, serial_distance
from amqpmesh.router.logins import Logins
from amqpmesh.router.logs.event_log import EventLog
from amqpmesh.router.management.snapshot import take_snapshot
from amqpmesh.router.memory.holders import Memory, count_output, forget_output
from amqpmesh.router.memory.retained import forget
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.router.model.counters import Tally
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.node import Address, AddressTable
from amqpmesh.topology.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig, RouterConfig
    from amqpmesh.router.config.users import Users
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.mesh.member import Mesh
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.statistics.router_statistics import Costly, Statistics
    from amqpmesh.router.telemetry.recording import Recording

#: Deliveries that are looked at before other connections come first: a frame of 20 octets can speak of thousands.
WORK_LIMIT: Final = 1000

#: Octets that a delivery under way takes here, about, beside what waits of it.
RELAY: Final = 256

#: Seconds after a fault of ours in something that was due until it is done again: it may be due at once, and for ever.
AGAIN: Final = 1.0


class _Errand:
    """Something to be done at a time; a name of its own, however many do the same."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action


class Core:
    """One router: its connections, links, addresses and relays."""

    def __init__(
        self,
        config: RouterConfig,
        now: float,
        token: Callable[[int], str] = secrets.token_hex,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Args: token: so many octets that nobody can guess, in hexadecimal digits. wall_clock: seconds since 1970."""
        self.config = config
        self.id = config.id
        self.token = token
        self.wall_clock = wall_clock
        #: Some pattern has messages expire by the wall clock.
        self.honours_expiry = any(each.absolute_expiry for each in config.addresses)
        #: Seconds, as the last call told.
        self.now = now
        self.log = EventLog("amqpmesh.router")
        #: Set by the owner, before there are connections: one has something to be sent; the next timer may be earlier.
        self.on_output: Callable[[ConnectionRecord], None] = lambda _: None
        self.on_timer: Callable[[], None] = lambda: None
        #: Set by the owner, if it can tell: the system of a connection's peer has acknowledged all that was written.
        self.is_acknowledged: Callable[[ConnectionRecord], bool] = lambda _: False
        self.connections: dict[ConnectionRecord, None] = {}
        #: Those that are lost, while what was on them is being ended.
        self.leaving: dict[ConnectionRecord, None] = {}
        self.memory = Memory(config.memory)
        self.budget = self.memory.budget
        self.addresses = AddressTable(config.address_table(), self.budget)
        #: What is too much for one turn; and what of that are deliveries of links that are over.
        self.chores = Chores()
        self.leftovers = Leftovers(self)
        self.attaching = Attaching(self)
        self.lookup = Lookup(self)
        self.logins = Logins(self)
        self.places = Places(self)
        self.containers = Containers(self)
        self.elsewhere = Elsewhere(self)
        self.mesh: Mesh | None = None
        self.recording: Recording | None = None
        self.flow_state = KernelRouter()
        self.flow_state.on_expand = expanded
        self.draining = False
        self.started_at = now
        #: What links that are gone have counted.
        self.past = Tally()
        self.octets_in = 0
        self.octets_out = 0
        #: Counters over the router's life.
        self.undelivered = 0
        self.expired = 0
        self.stolen = 0
        self.irregular_heads = 0
        #: Deliveries that found no way on, and those that may not make another hop.
        self.no_path = 0
        self.no_hops = 0
        #: Legs that were looked at in this turn, beside one of each delivery: it costs as much as so many deliveries.
        self.legs_seen = 0
        self._numbers = 0
        self._timers: Timers[ConnectionRecord | Address | _Errand] = Timers()
        #: What the batch has touched.
        self.touched: dict[Address, None] = {}
        #: Connections where fewer deliveries are unsettled on links that are detached, and of which addresses.
        self.relieved: dict[ConnectionRecord, set[Address]] = {}
        #: Those that a receiver has left while others stay: what waits there may not be for those.
        self.deserted: dict[Address, None] = {}
        #: Where deliveries were relayed without a decision, until something changed.
        self.closed: dict[Address, None] = {}
        #: Links that their peers have misused, and the errors to detach them with once the event is handled.
        self.failed_links: dict[IncomingLink | OutgoingLink, Error] = {}
        self.touched_outgoing: dict[OutgoingLink, None] = {}
        self.touched_windows: dict[FixedCredit, None] = {}
        #: Where more could be sent on than there was time for.
        self.postponed: dict[Address, None] = {}

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
        record = ConnectionRecord(number, engine, listener, host, now, memory=self.budget, own=own)
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
        engine = endpoint(
            self._id_for(connector), connector, Negotiation(server=False, sasl=sasl), now, hostname=hostname
        )
        self._numbers += 1
        record = ConnectionRecord(self._numbers, engine, connector, host, now, memory=self.budget)
        record.certificate = certificate
        record.certificate_subject = certificate_subject
        record.certificate_user = certificate_user
        engine.open()
        self._add(record, now)
        return record

    def _id_for(self, connector: ConnectorConfig) -> str:
        """Who we are where a connector leads. Of workers only one has its links: they are those of the router, whatever
        its number is.
        """
        worker = self.config.worker
        has_links = any(each.connector == connector.name for each in self.config.container_links)
        return self.id if worker is None or not has_links else worker.name

    def _add(self, record: ConnectionRecord, now: float) -> None:
        self.now = now
        record.engine.context = record
        record.engine.flow_state.router = self.flow_state
        record.engine.on_wake = partial(self.on_output, record)
        self.connections[record] = None
        self.set_timer(record, record.engine.next_timer())

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

    def logged_in(self, record: ConnectionRecord, now: float) -> bool:
        """What `record.login` asked for is done: the SASL exchange goes on. Returns: as `receive`."""
        record.login = None
        record.engine.sasl_worked(now)
        self.set_timer(record, record.engine.next_timer())
        return self.receive(record, b"", now)

    def receive(self, record: ConnectionRecord, data: bytes | bytearray, now: float) -> bool:
        """A batch of bytes came from the peer; what follows from it is done when this returns.

        Returns: False, if it means so much work that others should come first, or where `waits_for` of the connection
            is to be written first: then call again, without data.
        """
        self.now = self.flow_state.now = now
        self._begin_turn()
        size = len(data)
        record.octets_in += size
        self.octets_in += size
        engine = record.engine
        flow_state = engine.flow_state
        flow_state.work = WORK_LIMIT
        unfinished = record.unfinished
        if unfinished is None:
            if engine.relay(data, now):
                if self.flow_state.due or self.touched:
                    finish_batch(self)
                return True
            if engine.is_halted:
                finish_batch(self)
                return False
            unfinished = engine.receive(b"", now)
        record.unfinished = None
        for event in unfinished:
            if self.flow_state.touched:
                catch_up(self)
            flow_state.work -= len(event.deliveries) if isinstance(event, events.DispositionReceived) else 1
            handle(self, record, event)
            if self.legs_seen:
                flow_state.work -= self.legs_seen
                if isinstance(event, events.DispositionReceived) and event.deliveries:
                    record.unfinished = chain((event,), unfinished)
                    break
                self.legs_seen = 0
            if flow_state.work <= 0:
                record.unfinished = unfinished
                break
            if self.closed:
                reopen(self, amid=True)
        if flow_state.sending:
            count_output(self, record)
        finish_batch(self)
        return record.unfinished is None and flow_state.waits_for is None

    def _begin(self, now: float) -> None:
        """Something is to be done: all know what was relayed before it."""
        self.now = self.flow_state.now = now
        self._begin_turn()
        if self.flow_state.touched:
            catch_up(self)

    def _begin_turn(self) -> None:
        self.chores.begin_turn()
        self.legs_seen = 0

    def work(self, now: float, enough: Callable[[], bool]) -> None:
        """Do more of what was too much for one turn (`chores`). After a fault of ours in some of it, which is raised,
        the next call does the rest. Args: enough: whether others should have their turn.
        """
        self._begin(now)
        try:
            while self.chores and not enough():
                self.chores.step()
        finally:
            finish_batch(self)

    def receive_eof(self, record: ConnectionRecord, now: float) -> None:
        """The transport is gone."""
        self._begin(now)
        for event in record.engine.receive_eof():
            handle(self, record, event)
        connection_gone(self, record)
        forget(record, record)
        forget_output(record)
        self.connections.pop(record, None)
        record.unfinished = None
        self.forget_timer(record)
        finish_batch(self)

    def data_to_send(self, record: ConnectionRecord, now: float) -> bytearray:
        """All that is to be sent to the peer now, which is the caller's."""
        engine = record.engine
        data = engine.data_to_send(now)
        size = len(data)
        engine.flow_state.sending += size
        record.octets_out += size
        self.octets_out += size
        return data

    def unsent(self, record: ConnectionRecord) -> None:
        """Not all that was taken to be sent can be written now: until it is `sent`, it counts as held."""
        count_output(self, record)
        if self.memory.is_exceeded:
            finish_batch(self)

    def sent(self, record: ConnectionRecord, now: float) -> None:
        """What was taken to be sent is written."""
        record.engine.flow_state.sending = 0
        if record.counted:
            forget_output(record)
        if record.congested:
            self._begin(now)
            record.congested = False
            stalled, record.stalled = record.stalled, {}
            resume_sending(self, stalled)
            finish_batch(self)

    def handle(self, record: ConnectionRecord, event: events.Event) -> None:
        """Do what follows from what a peer did; for what could not be done when it came."""
        handle(self, record, event)

    # ------------------------------------------------------------------------------------------------------------ time

    def next_timer(self) -> float | None:
        """When `handle_timer` is to be called at the latest."""
        return self._timers.next()

    def handle_timer(self, now: float) -> None:
        """Do what is due. After a fault of ours in some of it, which is raised, the next call does what is left."""
        self._begin(now)
        try:
            for due in self._timers.due(now):
                try:
                    if isinstance(due, _Errand):
                        due.action()
                    else:
                        self._timer_due(due)
                except Exception:
                    self._timers.set(due, now + AGAIN)  # it is wanted all the same, but others come first
                    raise
        finally:
            finish_batch(self)

    def schedule(self, deadline: float, action: Callable[[], None]) -> None:
        """Have `action` called once `deadline` has come; it looks for itself whether it is still wanted."""
        self._timers.set(_Errand(action), deadline)
        self.on_timer()

    def set_timer(self, owner: ConnectionRecord | Address, deadline: float | None) -> None:
        """See to it that `owner` is looked at by `deadline`; what is set already and earlier will do."""
        if deadline is not None and self._timers.set_earlier(owner, deadline):
            self.on_timer()

    def forget_timer(self, owner: ConnectionRecord | Address) -> None:
        """Nobody needs to look at `owner` any more."""
        self._timers.cancel(owner)

    def _timer_due(self, owner: ConnectionRecord | Address) -> None:
        if isinstance(owner, Address):
            due = owner.next_timer()
            if due is None or due > self.now:  # what it was set for has come about meanwhile
                self.set_timer(owner, due)
                return
            owner.pool.handle_timer(self.now)
            end_waiting(self, owner)
            self.touch(owner)
            return
        for event in owner.engine.handle_timer(self.now):
            handle(self, owner, event)
        if owner.engine.finished:
            self.on_output(owner)
        self.set_timer(owner, owner.engine.next_timer())

    # -------------------------------------------------------------------------------------------------------- shutdown

    def start_drain(self, now: float) -> None:
        """Take nothing new: producers get no more credit, and unused credit is taken back."""
        self._begin(now)
        self._give_no_credit()
        if self.mesh is not None:
            self.mesh.drain()
        finish_batch(self)

    def _give_no_credit(self) -> None:
        self.draining = True
        for node in nodes(self):
            self.touch(node)
        limit_windows(self)

    @property
    def is_quiet(self) -> bool:
        """No delivery is on its way or waits for an outcome, and all that is gone is let go of."""
        return self.relays == 0 and not self.chores

    @property
    def has_credit_out(self) -> bool:
        """Somebody may still send what they were given credit for, as far as is known."""
        links = (incoming.link for record in self.connections for incoming in record.incoming)
        return any(serial_distance(link.delivery_count, link.known_limit) > 0 for link in links)

    def close_all(self, now: float, error: Error) -> None:
        """Send `close` with `error` on every connection; nothing new is begun."""
        self._begin(now)
        self._give_no_credit()
        for record in list(self.connections):
            if record.engine.can_send:
                record.engine.close(error)
                connection_gone(self, record)
            elif not record.lost:
                record.engine.finished = True
                self.on_output(record)
            self.set_timer(record, record.engine.next_timer())
        self.logins.tell_left_out()
        finish_batch(self)

    def statistics(self) -> Statistics:
        """How things stand now."""
        return run_to_end(take_snapshot(self))

    def passed(self) -> tuple[int, int]:
        """How many connections and links are gone, and how many there are.

        One that is lost has its links until they are let go of, and its engine until it is closed has them, too.
        """
        records = {**self.connections, **self.leaving}
        there = len(records) + sum(
            sum(len(session.links) for session in each.engine.channels.sessions)
            if each.lost
            else len(each.incoming) + len(each.outgoing) + len(each.lingering)
            for each in records
        )
        return self._numbers + self.attaching.made - there, there

    def most_held(self) -> int:
        """Octets that deliveries took at most, about, since this was last asked."""
        flow, budget = self.flow_state, self.budget
        most = flow.most_relays * RELAY + budget.most
        flow.most_relays, budget.most = flow.relays, budget.used
        return most

    def compact(self) -> None:
        """Let go of the room that deliveries and links had, where none is left."""
        self.lookup.compact()
        for record in self.connections:
            for session in record.engine.channels.sessions:
                session.flow_state.compact()
            for table in (record.outgoing, record.incoming):
                for each in table:
                    each.link.flow_state.compact()

    # ----------------------------------------------------------------------------------------------------- the batch

    @property
    def relays(self) -> int:
        """Live relays."""
        return self.flow_state.relays

    @relays.setter
    def relays(self, relays: int) -> None:
        flow = self.flow_state
        flow.relays = relays
        flow.most_relays = max(flow.most_relays, relays)

    def touch(self, address: Address) -> None:
        """Something changed at an address: it is looked at when the batch is done."""
        if self.flow_state.touched:
            catch_up(self)
        self.touched[address] = None
        close(self, address)

    def postpone(self, address: Address) -> None:
        """More is to be sent on from there, once others have had their turn."""
        if address not in self.postponed:
            self.postponed[address] = None
            self.chores.put_off(self._touch_again(address))

    def _touch_again(self, address: Address) -> Steps[None]:
        del self.postponed[address]
        self.touch(address)
        yield

    def fail_link(self, taken: IncomingLink | OutgoingLink, error: Error) -> None:
        """Have a link detached with an error, once the event that shows it is handled."""
        self.failed_links.setdefault(taken, error)

    def touch_outgoing(self, outgoing: OutgoingLink) -> None:
        """What an outgoing link can take has changed."""
        self.touched_outgoing[outgoing] = None
        self.touch(outgoing.address)

    def touch_input(self, incoming: IncomingLink) -> None:
        """An incoming link may be due credit."""
        if incoming.address is not None:
            self.touch(incoming.address)
        if isinstance(incoming.pool, FixedCredit):
            self.touched_windows[incoming.pool] = None

    # --------------------------------------------------------------------------------------------------------- the mesh

    def ingress(self, address: Address) -> Address:
        """Where producers of an address are attached: there, or at a node that leads to others, too."""
        if address.far is not None:
            return address.far.ingress()
        return address if self.mesh is None else self.mesh.routes.ingress(address)

    def consumers_changed(self, address: Address) -> None:
        """A consumer of an address has come: the mesh is told of it."""
        if self.mesh is not None and address.far is None:
            self.mesh.routes.consumers_changed(address)

    def need_bulk(self, way: Address) -> None:
        """Something large is to leave by a lane."""
        assert self.mesh is not None
        self.mesh.routes.need_bulk(way)

    def cost_of(self, config: ListenerConfig | ConnectorConfig) -> int:
        """What sending costs now on the connections of a listener or connector."""
        return config.cost if self.mesh is None else self.mesh.cost_of(config)

    def set_cost(self, told: Costly, cost: int, now: float) -> None:
        """Change what sending to neighbours costs. Raises: LookupError: there is nothing such."""
        self._begin(now)
        if self.mesh is None:
            raise LookupError("this router has no neighbours: it is in no mesh")
        self.mesh.change_cost(told, cost)
        finish_batch(self)

    def is_new(self, incoming: IncomingLink, tag: bytes) -> bool:
        """Whether a delivery by a tree is one that this router has not had."""
        assert self.mesh is not None
        return self.mesh.routes.tree_histories.is_new(incoming, tag)

    def hops_to(self, lane: Lane) -> int:
        """How many hops deliveries may make that begin their way by `lane` here."""
        assert self.mesh is not None
        return self.mesh.selection.hop_limit(lane)

    def new_key(self, lane: Lane) -> bytes:
        """The delivery-tag of a delivery that begins its way by `lane` here."""
        assert self.mesh is not None
        return self.mesh.selection.new_key(lane)
