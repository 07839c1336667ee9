"""Statistics of a mesh, as one of its routers sees it: neighbours, routes, lanes, and adverts.

The rules of `router_statistics` for counts and times hold here, too.
"""

from dataclasses import dataclass

from amqpmesh.router.statistics.common import Direction, Outcomes, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshStatistics:
    """The router's part in its mesh."""

    id: str
    """Its id."""
    epoch: int
    """This life of it: each start has a greater one."""
    routers: int
    """Routers that are known, this one among them."""
    reachable: int
    """Those of them that a path leads to, this one among them."""
    neighbours: int
    """Connections to neighbours that are up."""
    lanes: int
    """Links to and from neighbours that deliveries go by."""
    messages_sent: int
    """What it has told neighbours about the mesh, messages."""
    no_path: int
    """Deliveries that were released because no path led where they were to go."""
    no_hops: int
    """Deliveries that were released because they had made too many hops, or would have gone back where they came from:
    routers had different ideas of the graph."""
    dropped_malformed: int
    """Advertisements that were no messages as routers write them."""
    dropped_oversized: int
    """Advertisements that were larger than may be; what this router has to say and cannot, too."""
    dropped_version: int
    """Advertisements of a version that is not known here."""
    dropped_kind: int
    """Advertisements of a kind that is not known here."""
    dropped_area: int
    """Advertisements of another area."""
    dropped_untrusted: int
    """Advertisements whose signature or certificate is not believed."""
    dropped_stale: int
    """Advertisements that had been signed too long ago, or in the future."""
    dropped_replayed: int
    """Advertisements that came again."""
    dropped_full: int
    """Advertisements of more than is kept for one router."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourStatistics:
    """One connection to a neighbour."""

    connection: int
    """The number of its connection."""
    router: str
    """Who is there."""
    connector: str | None
    """The name of the connector that opened it; None: the neighbour did."""
    listener: str | None
    """The name of the listener that it came in by; None: the router opened it."""
    cost: int
    """What sending to it costs."""
    remote_cost: int | None
    """What sending here costs, as the neighbour says: by the cheapest of its connections; None: it says nothing of this
    router."""
    up: bool
    """Both sides hear each other."""
    advertised: bool
    """The mesh is told of it by this router. Paths lead over it once both sides tell of it."""
    since: float
    """When it became up, or ceased to be."""
    lanes: int
    """Links on it that deliveries go by."""
    reason: str | None
    """Why no path leads over it; None: paths may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteStatistics:
    """Another router of the mesh, and how it is reached."""

    router: str
    """Its id."""
    distance: int | None
    """The cost of the cheapest paths there; None: no path leads there."""
    next_hops: tuple[str, ...]
    """The neighbours that those paths begin with, in order; lanes are spread over them."""
    hops: int | None
    """The most hops that one of those paths has; None: there is none."""
    transit: bool
    """Paths may lead through it: not, if it is about to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatistics(Outcomes):
    """One link by which routers give each other deliveries."""

    number: int
    """Unique within this router, links included."""
    name: str
    """As its attach said."""
    kind: str
    """`anycast`: to the consumers of one address at one router. `tree`: to all consumers of one address. `transit`: to
    one router, to any address there."""
    address: str | None
    """None: transit has none."""
    tenant: str
    far: str
    """The router where its deliveries leave the mesh; of a tree, the one where they came in."""
    direction: Direction
    neighbour: str
    """Who is at its other end."""
    connection: int
    """The number of its connection."""
    bulk: bool
    """A second link of a lane, for what is larger than a frame."""
    retired: bool
    """Nothing new leaves by it: it goes once all on it is settled."""
    attached_at: float
    deliveries: int
    """Deliveries whose first frame has come, or left."""
    octets: int
    """Octets of their messages."""
    waiting: int
    """Deliveries that came by it and wait to be sent on; of an outgoing one, those that wait for it and its like."""
    unsettled: int
    """Deliveries of which one side still has something to say."""
    credit: int
    """Deliveries that may still be sent on it (link-credit, §2.6.7)."""
    zero_credit_since: float | None
    """None: it has credit."""
    last_delivery_at: float | None
    """When the last delivery began; None: there was none."""
    reason: Reason | None
    """Why it has no credit, or cannot use it; None: it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertStatistics:
    """What another router tells the mesh of one address."""

    name: str
    tenant: str
    router: str
    """Who has consumers of it."""
    distribution: str
    """How the address distributes there."""
    reachable: bool
    """A path leads there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisagreementStatistics:
    """An address that this router and another distribute in different ways."""

    address: str
    tenant: str
    here: str
    """This router's id."""
    ours: str
    """How the address distributes by the patterns of this router."""
    router: str
    """The other router: it has receivers of the address, or its multicasts come by here."""
    theirs: str
    """How the address distributes there."""
