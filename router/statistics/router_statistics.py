"""Statistics of a running router: listeners, connectors, connections, links, and addresses, at one moment.

A counter starts when its object is created. `now`, and each name that ends in `_since` or `_at`, are seconds of the
router's clock: only differences have a meaning, as in `statistics.router.now - link.zero_credit_since`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.statistics.common import ConnectionDirection, Direction, Outcomes, Reason
from amqpmesh.router.statistics.configured import (
    ConnectorStatistics,
    ContainerLinkStatistics,
    ListenerStatistics,
    PolicyStatistics,
    TableStatistics,
    UserStatistics,
)
from amqpmesh.router.statistics.mesh_statistics import (
    AdvertStatistics,
    DisagreementStatistics,
    LaneStatistics,
    MeshStatistics,
    NeighbourStatistics,
    RouteStatistics,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterStatistics(Outcomes):
    """The router as a whole. The outcomes are those of the receivers."""

    id: str
    """The router's container-id."""
    now: float
    started_at: float
    draining: bool
    """The router is stopping: it moves its clients away, or accepts nothing new any more."""
    moving: int
    """Clients' connections that it has yet to move to other routers before it stops."""
    connections: int
    """Open connections, including those that are closing."""
    links: int
    """Links of clients, including detached links with unsettled deliveries."""
    addresses: int
    """Addresses in use, including dynamic nodes."""
    relays: int
    """Deliveries in flight: arriving, waiting, or unsettled on one side."""
    buffered: int
    """Octets of messages that wait in this router."""
    remembered: int
    """Octets of the message-ids that addresses remember, within the memory."""
    memory: int
    """The configured memory budget, in octets."""
    memory_used_up: bool
    """The budget is used up: addresses above their share give no credit."""
    deliveries_in: int
    """Deliveries received."""
    deliveries_out: int
    """Deliveries sent; a multicast counts once for each receiver."""
    octets_in: int
    """Octets received, counted inside TLS."""
    octets_out: int
    """Octets sent, counted inside TLS."""
    undelivered: int
    """Deliveries that were released or dropped because no receiver took them."""
    expired: int
    """Deliveries whose ttl or absolute-expiry-time ended in this router."""
    duplicates: int
    """Messages that were dropped because their message-ids were seen before."""
    window_passed: int
    """Message-ids forgotten because of `duplicate_window`, `duplicate_time` or the memory."""
    moved: int
    """Changes of the routers among which message-ids are divided, and messages sent to another one."""
    stolen: int
    """Links that another connection took over (link stealing, §2.6.1)."""
    denied: int
    """Connections, links and messages that the policy did not permit."""
    limited: int
    """Connections, sessions, links and dynamic nodes refused because of a limit of the policy."""
    handed_over: int
    """Connections handed over to another worker of this router: the address of their first link lives there, or it has
    the lanes of the router that has connected.
    """
    taken_up: int
    """Connections taken up from other workers of this router."""
    irregular: int
    """Messages with sections out of order, duplicate or malformed. The router relays the rest of such a message
    unchanged.
    """
    spans: int = 0
    """Spans of messages that the collector of OpenTelemetry has taken."""
    spans_lost: int = 0
    """Messages in the share of `[tracing]` without a span at the collector: beyond `rate` or `queue`, or not sent."""
    unpublished: int = 0
    """Messages with telemetry that were dropped, since no receiver took them in time."""
    resumable: int = 0
    """Links of senders that may be resumed, those of senders that are away included (§2.6.13)."""
    suspended: int = 0
    """Senders whose end of the link is kept here while they are away."""
    resumed: int = 0
    """Links that such senders have resumed."""
    lapsed: int = 0
    """Ends of links that nobody resumed in time."""
    evicted: int = 0
    """Ends of links that were given up before their time, for want of room."""
    parked_unsettled: int = 0
    """Unsettled deliveries of links that are away."""
    kept_octets: int = 0
    """Octets of the memory that these links and their deliveries take."""
    resumed_outcomes: int = 0
    """Deliveries whose outcome the peer heard when its link came back."""
    resumed_again: int = 0
    """Deliveries without an outcome that went on with a link that came back."""
    aborted_resumes: int = 0
    """Deliveries that a sender aborted, or settled before their outcome, when it came back."""
    restated: int = 0
    """Deliveries for which a peer that came back had another outcome than the router (§3.4.6)."""
    in_doubt: int = 0
    """Deliveries of peers that came back of which nothing was known here."""
    twins: tuple[str, ...] = ()
    """The links that are not resumed, since two clients with one container-id take them from each other: of each the
    container-id and its name, at most 100.
    """
    changed: tuple[str, ...] = ()
    """The keys of the configuration that management has changed, as `amqpmesh apply` names them: at most 100, and the
    number of the others.
    """
    settings: Mapping[str, object] = field(default_factory=dict)
    """The keys of `[router]` with the values in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantTotals(Outcomes):
    """The counts of one tenant's clients at this router: of their connections, links and messages."""

    deliveries_in: int = 0
    deliveries_out: int = 0
    octets_in: int = 0
    octets_out: int = 0
    undelivered: int = 0
    expired: int = 0
    stolen: int = 0
    denied: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStatistics:
    """One connection."""

    number: int
    """The connection's number in the log, unique in this router."""
    direction: ConnectionDirection
    """`in`: the peer opened it. `out`: the router opened it."""
    role: str
    """The peer is a client (`normal`), a neighbour (`mesh`), or a container to which the router has links
    (`container`).
    """
    listener: str | None
    """The name of the listener that accepted it; None: the router opened it."""
    connector: str | None
    """The name of the connector that opened it; None: the peer opened it."""
    cost: int
    """The cost of sending over this connection."""
    host: str
    """The peer's IP address, without the port."""
    container_id: str
    """The container-id in the peer's `open`; "" before the `open` arrives."""
    hostname: str | None
    """The hostname in the peer's `open` (the virtual host)."""
    tenant: str
    user: str | None
    """The authenticated user; None: the peer is anonymous."""
    mechanism: str | None
    """The SASL mechanism of the side that connected; None: no SASL layer."""
    tls: str | None
    """The version of TLS, for example `TLSv1.3`; None: no TLS."""
    cipher: str | None
    """The cipher suite of TLS."""
    certificate_subject: str | None
    """The subject of the peer's certificate."""
    state: str
    """The state of §2.4.6: `OPENED` while it is in use."""
    connected_at: float
    idle_time_out: float | None
    """Seconds without a frame after which this router closes it; None: never."""
    remote_idle_time_out: float | None
    """Seconds without a frame after which the peer may close it, as announced by the peer; None: never."""
    max_frame_size: int
    """The largest frame that the peer accepts, in octets."""
    sessions: int
    links: int
    octets_in: int
    octets_out: int
    unwritten: int
    """Octets that wait to be written, because the peer does not read."""
    held: int
    """Transfer frames of the peer that wait in this router."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatistics(Outcomes):
    """One link of a client. Links between routers are lanes: see `LaneStatistics`."""

    number: int
    """The link's number, unique in this router."""
    name: str
    """The link name in the attach; unique only for one container and direction."""
    connection: int
    """The number of its connection."""
    direction: Direction
    address: str | None
    """The address; `name@ROUTER` for an address of another router, `@ROUTER` for all addresses of that router. None: an
    anonymous sender, which names an address in each message.
    """
    tenant: str
    copy: bool
    """The receiver browses: it gets a copy of each delivery (distribution-mode copy)."""
    attached: bool
    """False: detached but not closed, and kept for its unsettled deliveries."""
    attached_at: float
    deliveries: int
    """Deliveries received or sent, counted at the first frame."""
    octets: int
    """Octets of their messages."""
    undelivered: int
    """Deliveries received on it that wait to be forwarded, also those of an anonymous sender at other routers. For a
    `copy` receiver: deliveries that wait for its credit.
    """
    unsettled: int
    """Deliveries that are not settled on both sides yet."""
    missed: int
    """Deliveries skipped for this receiver, because it is a `copy` receiver or a slow receiver of a multicast."""
    available: int
    """Deliveries that the sender has available, as last announced in a flow (§2.6.7)."""
    credit: int
    """Deliveries that may still be sent on it (link-credit, §2.6.7)."""
    zero_credit_since: float | None
    """The time since which it has no credit; None: it has credit."""
    last_delivery_at: float | None
    """The time when the last delivery began; None: there was none."""
    reason: Reason | None
    """The reason why the link has no credit, or cannot use its credit; None: it can send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminusStatistics:
    """The end of a client's link that is kept while the client is away (§2.6.13)."""

    number: int
    """The number of the link that it had last."""
    name: str
    """The link name in the attach."""
    connection: int
    """The number of the connection that it was attached on."""
    direction: Direction
    """`incoming`: the client is a sender."""
    address: str | None
    """As of a link."""
    tenant: str
    user: str | None
    """The authenticated user; None: the client is anonymous."""
    host: str
    """The client's IP address, without the port."""
    container_id: str
    """The client's container-id: the one that may resume the link."""
    unsettled: int
    """Its unsettled deliveries."""
    octets: int
    """The octets of the router's memory that it takes, with its deliveries."""
    timeout: int
    """The seconds that it was granted."""
    suspended_since: float
    """The time when it lost its link."""
    expires_at: float | None
    """The time when it ends; None: its time does not run yet, since its session or connection is still there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressStatistics(Outcomes):
    """One address in use at this router. When it is no longer in use, the router deletes it and its counters. The
    counters include the deliveries on lanes of the address. Deliveries that wait for a lane count only if a client of
    this router sent them.
    """

    name: str
    tenant: str
    distribution: Distribution
    producers: int
    """Sender links of clients at this router, without anonymous senders."""
    consumers: int
    """Receiver links of clients at this router, and lanes to receivers of `name@THIS-ROUTER` that are attached to other
    routers.
    """
    consumers_at: tuple[str, ...]
    """The reachable other routers with consumers of it, sorted."""
    out_of_reach: tuple[str, ...]
    """The unreachable other routers that had consumers of it when last known."""
    copies: int
    """Links of `copy` receivers."""
    waiting: int
    """Deliveries that wait for a receiver."""
    buffered: int
    """Octets of messages that wait in this router."""
    demand: int
    """Deliveries that receivers can take now."""
    granted: int
    """Credit given to senders and other routers that they have not used yet."""
    deliveries_in: int
    """Deliveries received, without those of anonymous senders."""
    deliveries_out: int
    """Deliveries sent; a multicast counts once for each receiver."""
    transit_in: int
    """Of `deliveries_in`, the ones that came from other routers, by lanes of the address."""
    transit_out: int
    """Of `deliveries_out`, the ones that were sent to other routers, by lanes of the address."""
    octets_in: int
    """Octets of the messages of `deliveries_in`."""
    octets_out: int
    """Octets of the messages of `deliveries_out`."""
    zero_credit_in: float
    """Seconds in which its senders had no credit, all of them together."""
    zero_credit_out: float
    """Seconds in which its receivers gave no credit, all of them together."""
    delayed_1s: int
    """Deliveries whose outcome came more than a second after their arrival at this router."""
    delayed_10s: int
    """Deliveries whose outcome came more than ten seconds after their arrival."""
    latency: Mapping[str, int]
    """Deliveries by the time from their arrival to the receiver's outcome, one in 64 of each link: by the upper bounds
    of that time in seconds, `inf` for all others.
    """
    latency_seconds: float
    """The sum of these times, in seconds."""
    oldest_unsettled: float | None
    """The age of the oldest delivery that was sent and is not settled, in seconds, if its session has no older one.
    None: there is none.
    """
    undelivered: int
    """Deliveries that were released or dropped because no receiver took them."""
    relayed: int
    """Deliveries received, and relayed without a decision: these are fast."""
    decided: int
    """Deliveries received that the router had to decide about, including those of anonymous senders."""
    decisions: Mapping[str, int]
    """The latter by reason (`Decision`), largest number first."""
    reason: Reason | None
    """The reason why receivers can take nothing now; None: they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatistics:
    """A node of the router itself: a dynamic node, or `$management`."""

    name: str
    """The address, without `@ROUTER`."""
    tenant: str
    dynamic: bool
    """It is a dynamic node, made for a link (§3.5.3)."""
    maker: int | None
    """The number of the connection that made it."""
    lifetime: str | None
    """The lifetime policy of a dynamic node (§3.5.10 to §3.5.13), for example `delete-on-close`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStatistics:
    """A limit of the policy: how much of it a tenant, a user or a host uses now.

    If the router has several workers, `used` counts at all of them. Of `message`, `frame` and `session_window` it is
    the greatest that a link, a connection or a session of this worker has now; a link that is older than the limit may
    have none, which is 2**64 - 1.
    """

    tenant: str
    limit: str
    """The limit's name in the policy, for example `connections`."""
    user: str | None
    """The user whose limit it is; None: it is the tenant's, or of a host."""
    host: str | None
    """The host whose limit it is, or whose peers share it because they have not logged in."""
    used: int
    allowed: int
    """The limit; `used` may be more, if the limit has shrunk."""
    refused: int
    """Refusals because of it, at this worker; 0 of sizes and octets. Those of users and hosts count from their first
    connection on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateStatistics:
    """A rate of the policy: how much of it a tenant, a user or an address uses now, at this worker.

    Figures are messages, octets, connections or attaches. One that has not been used for a while is not there.
    """

    tenant: str
    limit: str
    """The rate's name in the policy, for example `messages`."""
    user: str | None
    """The user whose rate it is; None: it is the tenant's, or of a host."""
    host: str | None
    """The host whose peers share it because they have not logged in."""
    address: str | None
    """The address whose rate it is."""
    used: float
    """In a second, a mean over some seconds."""
    allowed: float
    """In a second. If the router has several workers: the part of this one."""
    burst: float
    """The number that may come at once."""
    left: float
    """The number that may come at once now, beside the credit that senders have."""
    waiting: int
    """Links that wait for it."""


Costly = ConnectorStatistics | ListenerStatistics | NeighbourStatistics
"""Statistics of anything that has a cost of sending."""

Removable = ConnectionStatistics | LinkStatistics | TerminusStatistics
"""Statistics of anything that can be removed on request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """The state of a router at one moment."""

    router: RouterStatistics
    listeners: tuple[ListenerStatistics, ...] = ()
    connectors: tuple[ConnectorStatistics, ...] = ()
    container_links: tuple[ContainerLinkStatistics, ...] = ()
    policies: tuple[PolicyStatistics, ...] = ()
    """The policy of the router; none: it has none."""
    connections: tuple[ConnectionStatistics, ...] = ()
    links: tuple[LinkStatistics, ...] = ()
    termini: tuple[TerminusStatistics, ...] = ()
    """Of clients that are away."""
    addresses: tuple[AddressStatistics, ...] = ()
    nodes: tuple[NodeStatistics, ...] = ()
    limits: tuple[LimitStatistics, ...] = ()
    """Of tenants, users and hosts, without those that no policy sets."""
    rates: tuple[RateStatistics, ...] = ()
    """Of tenants, users, hosts and addresses, those of single links left out."""
    address_patterns: tuple[TableStatistics, ...] = ()
    """The tables `[[address]]` of the configuration."""
    tables: tuple[TableStatistics, ...] = ()
    """The tables of the configuration that are there once and can be changed: `elsewhere`, `log`, and others."""
    users: Sequence[UserStatistics] = ()
    """The password users of listeners, made when they are looked at: there may be a hundred thousand."""
    mesh: MeshStatistics | None = None
    """None: the router is in no mesh."""
    neighbours: tuple[NeighbourStatistics, ...] = ()
    routes: tuple[RouteStatistics, ...] = ()
    lanes: tuple[LaneStatistics, ...] = ()
    adverts: tuple[AdvertStatistics, ...] = ()
    disagreements: tuple[DisagreementStatistics, ...] = ()
    totals: Mapping[str, TenantTotals] = field(default_factory=dict)
    """The counts of each tenant but the operator's, as far as it has any."""

    @property
    def is_empty(self) -> bool:
        """True if nothing is left: no connection, link, address or delivery, and no octet of any."""
        whole = self.router
        return not (whole.connections or whole.links or whole.addresses or whole.relays or whole.buffered)
