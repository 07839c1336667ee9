"""Statistics of a mesh, as one of its routers sees it: neighbours, routes, lanes, and advertisements.

As in `router_statistics`, counters start when their object is created, and times are seconds of the router's clock.
"""

from dataclasses import dataclass

from amqpmesh.router.statistics.common import Direction, Outcomes, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshStatistics:
    """The mesh, as this router sees it."""

    id: str
    """The router's id."""
    epoch: int
    """The number of this run of the router; it grows with each start."""
    routers: int
    """Known routers, including this one."""
    reachable: int
    """Reachable routers, including this one."""
    neighbours: int
    """Connections to neighbours that are up."""
    lanes: int
    """Lanes to and from neighbours."""
    messages_sent: int
    """Mesh protocol messages sent to neighbours."""
    no_path: int
    """Deliveries released because no path led to their destination."""
    no_hops: int
    """Deliveries released because they had made too many hops or would have gone back. This happens while routers have
    different views of the graph.
    """
    dropped_malformed: int
    """Advertisements in a wrong format."""
    dropped_oversized: int
    """Advertisements above the size limit, including this router's own."""
    dropped_version: int
    """Advertisements of an unknown version."""
    dropped_kind: int
    """Advertisements of an unknown kind."""
    dropped_area: int
    """Advertisements of another area."""
    dropped_untrusted: int
    """Advertisements with an untrusted signature or certificate."""
    dropped_stale: int
    """Advertisements signed too long ago, or in the future."""
    dropped_replayed: int
    """Advertisements that were replayed."""
    dropped_full: int
    """Advertisements above the number that is kept for one router."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourStatistics:
    """One connection to a neighbour."""

    connection: int
    """The number of its connection."""
    router: str
    """The id of the neighbour."""
    connector: str | None
    """The name of the connector that opened it; None: the neighbour opened it."""
    listener: str | None
    """The name of the listener that accepted it; None: the router opened it."""
    cost: int
    """The cost of sending to the neighbour."""
    remote_cost: int | None
    """The neighbour's cost of sending to this router, over its cheapest connection; None: the neighbour does not
    advertise this router.
    """
    up: bool
    """Both routers receive each other's messages."""
    advertised: bool
    """This router advertises the connection to the mesh. Paths use it when both sides advertise it."""
    since: float
    """The time when it became up or down, in seconds of the router's clock."""
    lanes: int
    """Lanes on it."""
    octets_in: int
    """Octets received on it, counted inside TLS."""
    octets_out: int
    """Octets sent on it."""
    reason: str | None
    """The reason why no path uses the connection; None: paths may use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteStatistics:
    """The route to another router of the mesh."""

    router: str
    """The id of the other router."""
    distance: int | None
    """The cost of the cheapest paths; None: there is no path."""
    next_hops: tuple[str, ...]
    """The first hops of those paths, sorted. Lanes are spread over them."""
    hops: int | None
    """The number of hops of the longest of those paths; None: there is no path."""
    transit: bool
    """Paths may lead through it. False: it is stopping."""
    overload: bool
    """It moves its clients to other routers; paths lead through it only where there is no other way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatistics(Outcomes):
    """A lane: one link between two routers that carries deliveries."""

    number: int
    """The lane's number, unique among lanes and links of this router."""
    name: str
    """The link name in the attach."""
    kind: str
    """`anycast`: to the consumers of one address at one router. `tree`: to all consumers of one address. `transit`: to
    one router, to any address there.
    """
    address: str | None
    """The address; None: a transit lane has none."""
    tenant: str
    far: str
    """The router where its deliveries leave the mesh. For a tree: the router where they entered it."""
    direction: Direction
    neighbour: str
    """The id of the neighbour at the other end."""
    connection: int
    """The number of its connection."""
    bulk: bool
    """It is the lane's second link, for messages larger than one frame."""
    retired: bool
    """It is being replaced: it carries no new deliveries, and is detached when all are settled."""
    attached_at: float
    deliveries: int
    """Deliveries received or sent, counted at the first frame."""
    octets: int
    """Octets of their messages."""
    waiting: int
    """Incoming lane: deliveries received on it that wait to be forwarded. Outgoing lane: deliveries that wait for it
    and its parallel lanes.
    """
    unsettled: int
    """Deliveries that are not settled on both sides yet."""
    credit: int
    """Deliveries that may still be sent on it (link-credit, §2.6.7)."""
    zero_credit_since: float | None
    """The time since which it has no credit; None: it has credit."""
    last_delivery_at: float | None
    """The time when the last delivery began; None: there was none."""
    reason: Reason | None
    """The reason why the link has no credit, or cannot use its credit; None: it can send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertStatistics:
    """The advertisement of one address by another router."""

    name: str
    tenant: str
    router: str
    """The router that has consumers of the address."""
    distribution: str
    """The address's distribution at that router."""
    reachable: bool
    """There is a path to that router."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisagreementStatistics:
    """An address that has different distributions at this router and at another one."""

    address: str
    tenant: str
    here: str
    """The id of this router."""
    ours: str
    """The distribution by the patterns of this router."""
    router: str
    """The other router: it has receivers of the address, or sends multicasts through this router."""
    theirs: str
    """The address's distribution at that router."""
