"""The state that all steps of a router share: time, configuration, log, connections, nodes, budgets, and dirty sets."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

from amqpmesh.router.amqp.dismantling import dismantle_link
from amqpmesh.router.amqp.states import LinkEndpointState
from amqpmesh.router.credit.fixed_credit import FixedCredit
from amqpmesh.router.credit.rate_line import RateLines
from amqpmesh.router.incremental import SENT_A_TURN, Chores
from amqpmesh.router.kernel import KernelRouter, count_relayed
from amqpmesh.router.logs.event_log import EventLog
from amqpmesh.router.memory.holders import Memory
from amqpmesh.router.model.connections import Freed
from amqpmesh.router.model.counters import Tally, TenantCounts
from amqpmesh.router.model.credit_share import take_counts
from amqpmesh.router.model.ended_links import EndedLinks
from amqpmesh.router.model.link_names import LinkNames
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.local_routes import LocalRoutes
from amqpmesh.router.model.node import Node, NodeTable
from amqpmesh.router.model.open_pools import node_of_pool
from amqpmesh.router.model.usage import UsageTable
from amqpmesh.router.telemetry.traces import TraceBook
from amqpmesh.topology.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.policies.policy import Policy
    from amqpmesh.policies.policy_version import PolicyVersion
    from amqpmesh.policies.tenants import Tenant
    from amqpmesh.router.amqp.events import ConnectionOpened, Event, LinkAttached
    from amqpmesh.router.amqp.link import Link as Endpoint
    from amqpmesh.router.amqp.standard.definitions import Error
    from amqpmesh.router.audit.trail import AuditTrail
    from amqpmesh.router.config.file import RouterConfig
    from amqpmesh.router.config.listener import ListenerConfig
    from amqpmesh.router.config.users import Users
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.kernel import Budget, Pool
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.lasting_termini import LastingTermini
    from amqpmesh.router.model.refusal import RefusedError
    from amqpmesh.router.model.usage import Usage
    from amqpmesh.router.telemetry.recent_changes import RecentChanges
    from amqpmesh.router.telemetry.recording import Recording
    from amqpmesh.router.tokens.judge import Tokens
    from amqpmesh.topology.vouching import Client, Vouching

Link: TypeAlias = IncomingLink | OutgoingLink

PORTIONS_TIME: Final = 0.1
"""Seconds between two looks at the portions of limits that a worker has: what it does not need others may take."""

_DETACHED: Final = LinkEndpointState.DETACHED

#: The timers whose time has come that are handled before other tasks have their turn: thousands may be due at once.
AT_ONCE: Final = 64


class Errand:
    """An action that is due at a time. Each errand has an identity of its own among the timers."""

    __slots__ = ("action", "leaves_held")

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action
        self.leaves_held = False  # True: it changes no node, so what the kernel holds back stays there


#: A message that the kernel has asked about, and that the router may decide about next: its link, the address that it
#: names, the epoch, its node, the address after aliases, and the refusal. Each new address makes one: a plain tuple.
Foreseen: TypeAlias = "tuple[IncomingLink, str, int, Node | None, str, RefusedError | None]"


class Context:
    """The shared state of one router. `Core` makes it and keeps it; each room below `Core` is given it."""

    def __init__(
        self, config: RouterConfig, now: float, token: Callable[[int], str], wall_clock: Callable[[], float]
    ) -> None:
        """Args: token, wall_clock: as of `Core`."""
        self.config = config
        self.id = config.id
        self.token = token
        self.wall_clock = wall_clock
        #: The time of the current call of `Core`, seconds.
        self.now = now
        self.started_at = now
        self.log = EventLog("amqpmesh.router")
        #: The audit log; None: there is none.
        self.audit: AuditTrail | None = None
        #: The recorder of telemetry; None: nothing is recorded.
        self.recording: Recording | None = None
        #: The changes that pages show; None: there is no listener for HTTP.
        self.recent: RecentChanges | None = None
        self.traces = TraceBook(config.tracing)
        #: The state that the kernel shares with the router: counts, the time, and links with news (`catch_up`).
        self.kernel = KernelRouter()
        self.kernel.on_timer = self._set_pool_timer
        shared: dict[Budget, Usage] = {}
        self.memory = Memory(config.memory, config.workers, shared)
        self.memory.on_portion = self._note_portion
        self.budget = self.memory.budget
        #: The counts of what tenants, users and hosts have, for connections that the policy rules.
        self.usages = UsageTable(self.budget, config.workers, shared)
        #: Counts of which this worker has portions of octets. They are looked at while there are some.
        self.portions: dict[Usage, None] = {}
        self._portions_look: Errand | None = None
        self.nodes = NodeTable(config.address_table(), self.usages.memory_of)
        #: The routes to other routers; of a router in a mesh, `MeshRoutes`.
        self.routes = LocalRoutes()
        self.termini: LastingTermini  # those of `Handlers`
        self.connections: dict[ConnectionRecord, None] = {}
        #: Lost connections, until all their links have ended.
        self.leaving: dict[ConnectionRecord, None] = {}
        #: Work that is too much for one turn, and the part of it that ends deliveries of ended links.
        self.chores = Chores()
        self.ended_links = EndedLinks()
        self.freed = Freed()
        #: Attached links by their names, so that a second attach finds the first (§2.6.1).
        self.link_names = LinkNames()
        #: Links that wait for a rate.
        self.rates = RateLines(self._wake_rates)
        self._turns: Errand | None = None
        self.timers: Timers[ConnectionRecord | Node | Errand] = Timers()
        #: An address pattern makes messages expire by the wall clock.
        self.honours_expiry = any(each.absolute_expiry for each in config.addresses)
        #: An address pattern makes a name mean something else than the node of that name, or not that alone.
        self.has_detours = any(each.is_detour for each in config.addresses)
        #: The rules for clients; None: each client may do everything.
        self.policy: Policy | None = None
        #: The vouches for clients, between routers; None: the mesh has no certificates, or the router is in none.
        self.vouching: Vouching | None = None
        #: The clients that requests come from which the router sends for them, by the names of its own links.
        self.on_behalf: dict[str, Client] = {}
        #: The judge of tokens; None: no token is taken.
        self.tokens: Tokens | None = None
        #: The router takes nothing new.
        self.draining = False

        # Callables of rooms above, which `Core` or its owner sets before the first connection.
        #: The owner: a connection has output; the next timer may be earlier than before; the system of a connection's
        #: peer has acknowledged all that was written.
        self.on_output: Callable[[ConnectionRecord], None] = lambda _: None
        self.on_timer: Callable[[], None] = lambda: None
        #: An observer: the graph of the mesh has changed.
        self.on_graph_change: Callable[[], None] = lambda: None
        #: The owner: a client is one of a tenant, or its tenant has another weight, and there are several tenants.
        self.on_tenant: Callable[[ConnectionRecord, Tenant], None] = lambda *_: None
        self.is_acknowledged: Callable[[ConnectionRecord], bool] = lambda _: False
        #: Mesh: a policy is in force, whose tenants may be others than before.
        self.on_tenants: Callable[[], None] = lambda: None
        #: Mesh and container links: a connection is lost, and its links are still there.
        self.on_connection_lost: Callable[[ConnectionRecord], None] = lambda _: None
        #: Container links: the router has detached a link with an error.
        self.on_link_failed: Callable[[Endpoint, Error], None] = lambda *_: None
        #: The node of a message's own address, and that address with aliases followed; for a message of a sender, and
        #: for a copy that the router sends itself. Raises: RefusedError (the first only).
        self.resolve: Callable[[IncomingLink, str], tuple[Node | None, str]] = _unset
        self.resolve_copy: Callable[[str, str], tuple[Node | None, str]] = _unset
        #: The node of the message that the kernel has last asked about; None after the next event.
        self.foreseen: Foreseen | None = None
        #: The users of a listener now; None: it has none.
        self.users_of: Callable[[ListenerConfig], Users | None] = lambda _: None
        #: Whether the certificate of a client was revoked since its handshake.
        self.is_revoked: Callable[[ListenerConfig, bytes], bool] = lambda *_: False
        #: The owner: a neighbour has given a policy, which is to be judged.
        self.on_policy: Callable[[str, PolicyVersion, bytes], object] = lambda *_: None
        #: Whether another worker shall serve the connection of an attach, or of a router's `open`; then the event is
        #: not handled here.
        self.leads_away: Callable[[ConnectionRecord, LinkAttached | ConnectionOpened], bool] = lambda *_: False
        #: Have the links granted credit that have waited for a rate.
        self.give_turns: Callable[[], None] = lambda: None
        self.look_at_portions: Callable[[], None] = lambda: None
        #: Handle an event again that could not be handled when it came.
        self.handle: Callable[[ConnectionRecord, Event], None] = _unset

        # Dirty sets: filled while events are handled, emptied when the batch is finished.
        #: Nodes, outgoing links and windows of anonymous senders that have changed.
        self.touched: dict[Node, None] = {}
        self.touched_outgoing: dict[OutgoingLink, None] = {}
        self.touched_windows: dict[FixedCredit, None] = {}
        #: Nodes whose fast route was closed.
        self.closed: dict[Node, None] = {}
        #: Nodes that a receiver has left while others stay: messages that wait there may not be for those.
        self.deserted: dict[Node, None] = {}
        #: Nodes that could send more than the turn had time for.
        self.postponed: dict[Node, None] = {}
        #: Connections with fewer unsettled deliveries on detached links, and the nodes of those links.
        self.relieved: dict[ConnectionRecord, set[Node]] = {}
        #: Links that their peers have misused, with the error to detach each with.
        self.failed_links: dict[Link, Error] = {}
        #: Legs that this turn has looked at, beside one for each delivery. Each costs as much time as a delivery.
        self.legs_seen = 0
        #: Deliveries that have waited and were sent in this turn, `most_sent` at most; and those that wait at nodes of
        #: `postponed` that this turn looks at again.
        self.sent = 0
        self.most_sent = SENT_A_TURN
        self.looked_at = 0
        #: Deliveries that one counts as that the router decides about, in `KernelConnection.work`.
        self.decision = 1

        # Counters over the life of the router.
        self.octets_in = 0
        self.octets_out = 0
        #: The counts of links that are gone.
        self.past = Tally()
        self.links_made = 0
        self.undelivered = 0
        self.expired = 0
        self.stolen = 0
        #: Connections, links and messages that the policy did not permit.
        self.denied = 0
        #: Connections, sessions, links and dynamic nodes that a limit of the policy did not permit.
        self.limited = 0
        self.irregular_heads = 0
        #: The same for each tenant but the operator's; those of a tenant are begun when it is first counted.
        self.by_tenant: dict[str, TenantCounts] = {}
        #: Connections given to other workers of this router, and connections from them.
        self.handed_over = 0
        self.taken_up = 0
        #: Deliveries without a path to their router, and deliveries without a hop left.
        self.no_path = 0
        self.no_hops = 0

    # ------------------------------------------------------------------------------------------------------------ time

    def schedule(self, deadline: float, action: Callable[[], None]) -> Errand:
        """Call `action` at `deadline`. If nobody cancels it, the action must check that it is still wanted."""
        errand = Errand(action)
        self.timers.set(errand, deadline)
        self.on_timer()
        return errand

    def cancel(self, errand: Errand) -> None:
        """Drop an action that was scheduled; do nothing if it is done."""
        self.timers.cancel(errand)

    def _note_portion(self, usage: Usage) -> None:
        if not self.portions:
            self.wake_portions()
        self.portions[usage] = None

    def wake_portions(self) -> None:
        """Have the portions of this worker looked at soon."""
        if self._portions_look is not None:
            self.cancel(self._portions_look)
        self._portions_look = self.schedule(self.now + PORTIONS_TIME, self.look_at_portions)

    def _wake_rates(self, at: float) -> None:
        if self._turns is not None:
            self.cancel(self._turns)
        self._turns = self.schedule(at, self.give_turns)

    def set_timer(self, owner: ConnectionRecord | Node, deadline: float | None) -> None:
        """Have `owner` looked at by `deadline`. If it has an earlier timer, that one is kept."""
        if deadline is not None and self.timers.set_earlier(owner, deadline):
            self.on_timer()

    def _set_pool_timer(self, pool: Pool, deadline: float) -> None:
        node = node_of_pool(pool)
        if node is not None:
            self.set_timer(node, deadline)

    def forget_timer(self, owner: ConnectionRecord | Node) -> None:
        """Cancel the timer of `owner`."""
        self.timers.cancel(owner)
        if isinstance(owner, Node) and owner.made_pool is not None:
            owner.made_pool.timer_at = inf

    # -------------------------------------------------------------------------------------------------------- counters

    @property
    def in_flight(self) -> int:
        """The number of deliveries that the router has taken and that are not settled on both sides."""
        return self.kernel.relays

    @in_flight.setter
    def in_flight(self, relays: int) -> None:
        kernel = self.kernel
        kernel.relays = relays
        kernel.most_relays = max(kernel.most_relays, relays)

    def next_link_number(self) -> int:
        """Return the number of one more link, for logs and statistics."""
        self.links_made += 1
        return self.links_made

    def seen_as(self, node: Node) -> Node:
        """Return the node that clients know by the address of an internal node; without one, the node itself."""
        if node.is_internal and node.name:
            return self.nodes.find(node.tenant, node.name) or node
        return node

    def counts_of(self, tenant: str) -> TenantCounts | None:
        """Return the counts of a tenant; None: it is the operator's, whose are those of the router."""
        if not tenant:
            return None
        counts = self.by_tenant.get(tenant)
        if counts is None:
            counts = self.by_tenant[tenant] = TenantCounts()
        return counts

    def count_denied(self, tenant: str) -> None:
        """Count a connection, a link or a message that the policy did not permit."""
        self.denied += 1
        counts = self.counts_of(tenant)
        if counts is not None:
            counts.denied += 1

    def forget_connection(self, record: ConnectionRecord) -> None:
        """Forget a connection that is gone. Its tenant keeps the counts of its octets."""
        self.connections.pop(record, None)
        self.forget_timer(record)
        counts = self.counts_of(record.peer.tenant)
        if counts is not None:
            counts.octets_in += record.octets_in
            counts.octets_out += record.octets_out

    def keep_count(self, link: Link) -> None:
        """Add the counts of a link that is gone to those of its address and of the router, once."""
        if self.recording is not None:
            self.recording.last_counts(link)
        if not link.endpoint.flow_state.has_counted:
            return
        self.past.add(link, self.now)
        counts = self.counts_of(link.connection.peer.tenant)
        if counts is not None:
            counts.past.add(link, self.now)
        if link.node is not None:
            self.seen_as(link.node).count(link, self.now)
        link.endpoint.flow_state.reset_counters()

    def dismantle(self, link: Link) -> None:
        """Dismantle a link if nothing needs its parts any more: it or its session has ended, and all its deliveries.

        The two happen in either order; each of them asks for this.
        """
        endpoint = link.endpoint
        if (
            (endpoint.closed or endpoint.state is _DETACHED or endpoint.session.flow_state.channel == -1)
            and link not in self.ended_links.links
            and link not in link.connection.detached_unsettled
        ):
            dismantle_link(endpoint)
            part = link.credit_sink if isinstance(link, IncomingLink) else link.credit_source
            if part is not None:
                part.owner = None

    def dismantle_connection(self, record: ConnectionRecord) -> None:
        """Dismantle a connection whose transport is gone, and whose links have ended."""
        record.dismantle()
        self.termini.replace_connection(record)

    # --------------------------------------------------------------------------------------------------- detached links

    def end_detached(self, link: Link) -> None:
        """Let go of a link that was detached without being closed, if its last delivery is settled."""
        if link in link.connection.detached_unsettled and not link.has_unsettled:
            self.forget_detached(link)
            self.keep_count(link)
            self.dismantle(link)

    def forget_detached(self, link: Link) -> bool:
        """Let go of a link that was detached without being closed. Returns: whether it was such a link."""
        record = link.connection
        count = record.detached_unsettled.pop(link, None)
        if count is None:
            return False
        node = link.end_suspension(count)
        if node is not None:
            self.relieved.setdefault(record, set()).add(node)
        return True

    def fail_link(self, link: Link, error: Error) -> None:
        """Have a link detached with an error, once the event that shows the peer's fault is handled."""
        self.failed_links.setdefault(link, error)

    # ------------------------------------------------------------------------------------------------------- dirty sets

    def touch(self, node: Node) -> None:
        """Note that a node has changed: its fast route closes, and the batch's end looks at it."""
        if self.kernel.has_news():
            self.catch_up()
        self.touched[node] = None
        if node.fast_route is not None or node.borrowers:
            self.close_fast_route(node)
        elif node.made_pool is not None:
            node.made_pool.is_open = False  # it may get a route before the batch ends

    def touch_outgoing(self, outgoing: OutgoingLink) -> None:
        """Note that an outgoing link can take more or less than before."""
        self.touched_outgoing[outgoing] = None
        self.touch(outgoing.node)

    def touch_input(self, incoming: IncomingLink, *, with_node: bool = True) -> None:
        """Note that an incoming link may be due credit. Args: with_node: what waits at its node is looked at, too."""
        if with_node and incoming.node is not None:
            self.touch(incoming.node)
        if isinstance(incoming.pool, FixedCredit):
            self.touched_windows[incoming.pool] = None

    def postpone(self, node: Node) -> None:
        """Send more from a node once others have had their turn."""
        if node not in self.postponed:
            self.postponed[node] = None
            self.chores.put_off(self._touch_again(node))

    def _touch_again(self, node: Node) -> Steps[None]:
        del self.postponed[node]
        self.looked_at += node.waiting.size
        self.touch(node)
        yield

    def close_fast_route(self, node: Node, *, complete: bool = True) -> None:
        """Have the router decide again about each delivery that comes to a node, or to a node that leads there.

        Args: complete: close routes that list all links, too. A link that gets credit needs no decision there.
        """
        if complete and node.made_pool is not None:
            node.made_pool.is_open = False
        route = node.fast_route
        if route is not None and (complete or not route.lists_all):
            route.generation = 0
            self.closed[node] = None
        for share in node.borrowers:
            route = share.ingress.fast_route
            if route is not None and (complete or not route.lists_all):
                route.generation = 0
                self.closed[share.ingress] = None

    def forget_fast_routes(self, node: Node) -> None:
        """Close the fast routes to a node that a receiver leaves, and forget their links: a closed route may stay."""
        self.close_fast_route(node)
        for each in (node, *(share.ingress for share in node.borrowers)) if node.borrowers else (node,):
            if each.fast_route is not None:
                each.fast_route.links, each.fast_route.bulk = [], []

    def catch_up(self) -> None:
        """Tell links, pools and shares of the deliveries that the kernel has relayed alone."""
        kernel = self.kernel
        count_relayed(kernel)
        kernel.needs_update = False
        now = self.now
        flipped, kernel.flipped = kernel.flipped, []
        for link in flipped:
            link.flipped = False
            outgoing = link.record
            assert isinstance(outgoing, OutgoingLink)
            if (link.link_credit > 0) is not (outgoing in outgoing.node.creditors):
                outgoing.note_credit()
        undealt, kernel.undealt = kernel.undealt, []
        for pool in undealt:
            pool.is_undealt = False
            node = node_of_pool(pool)
            pool.is_open = False
            if node is not None:
                self.touched[node] = None
        left, kernel.left = kernel.left, []
        for link in left:
            link.dirty = False
            record = link.record
            if isinstance(record, OutgoingLink):
                if (link.link_credit > 0) is not (record in record.node.creditors):
                    record.note_credit()
                    if link.link_credit:  # it may take deliveries again
                        self.close_fast_route(record.node, complete=False)
                self.touched_outgoing[record] = None
                self._look_at(record.node)
            elif isinstance(record, IncomingLink):
                if link.remote_handle == -1:
                    self.end_detached(record)
                count, link.relayed = link.relayed, 0
                node = record.node
                if not link.link_credit:
                    record.time_credit(now)
                record.pool.relayed(record.credit_sink, count, link.last_at)
                link.credit_slack = record.pool.credit_slack(record.credit_sink)
                if isinstance(record.pool, FixedCredit):
                    self.touched_windows[record.pool] = None
                if node is None:
                    continue
                self._look_at(node)
                if node.shares and node.fast_route is not None and count:
                    for share in take_counts(node.fast_route, node.shares, count, link.last_at):
                        self._look_at(share.node)

    def _look_at(self, node: Node) -> None:
        """Have a node looked at by the end of the batch. Its fast route stays."""
        self.touched[node] = None
        if node.made_pool is not None:
            node.made_pool.is_open = False


def _unset(*_: object) -> NoReturn:
    raise AssertionError("the core sets it before the first connection")
