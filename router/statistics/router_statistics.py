"""Statistics of a running router: listeners, connectors, connections, links, and addresses, at one moment.

A count starts when the object that it counts for is made. `now`, and each name that ends in `_since` or `_at`, are
seconds of the router's clock: only differences mean anything, as in `statistics.router.now - link.zero_credit_since`.
"""

from dataclasses import dataclass
from enum import StrEnum

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.statistics.common import ConnectionDirection, Direction, Outcomes, Reason
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
    """The router as a whole; outcomes are those that receivers had for it."""

    id: str
    """Its container-id."""
    now: float
    started_at: float
    draining: bool
    """It takes nothing new: it is about to end."""
    connections: int
    """Connections that are not gone yet."""
    links: int
    """Links of clients, and those that were detached and whose deliveries are not settled."""
    addresses: int
    """Addresses that somebody uses, dynamic nodes among them."""
    relays: int
    """Deliveries that are on their way, wait, or are unsettled on either side."""
    buffered: int
    """Octets of messages that wait here."""
    memory: int
    """Octets that may wait before senders get less credit."""
    memory_used_up: bool
    """So many wait: addresses above their share give no credit."""
    deliveries_in: int
    """Deliveries that have come."""
    deliveries_out: int
    """Deliveries that have left; a multicast counts once for each receiver."""
    octets_in: int
    """Octets that have come, as they are inside TLS."""
    octets_out: int
    """Octets that have left, as they are inside TLS."""
    undelivered: int
    """Deliveries that went back or were dropped because nobody was there to take them."""
    expired: int
    """Deliveries whose ttl, or absolute-expiry-time, ended here."""
    stolen: int
    """Links that were attached again elsewhere."""
    irregular: int
    """Messages whose sections were out of order, doubled or malformed; relayed untouched from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerStatistics:
    """Where clients connect."""

    name: str
    url: str
    """With the port that is in use."""
    connections: int
    """Those that came in by it and are not gone."""
    refused: int
    """Those that were too many."""
    role: str
    """`normal`: for clients. `mesh`: for neighbours."""
    cost: int
    """What sending a delivery costs on the connections that come in by it, unless a neighbour has a cost of its own."""


class ConnectorState(StrEnum):
    """What a connector does."""

    CONNECTING = "connecting"
    """It has begun to connect."""
    CONNECTED = "connected"
    """The peer has opened the connection."""
    WAITING = "waiting"
    """It could not, and will try again."""
    STANDING_BY = "standing by"
    """The router that it leads to has connected here itself: that connection is used."""
    ENDED = "ended"
    """It connects no more: the router is about to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorStatistics:
    """Where the router connects."""

    name: str
    role: str
    """`mesh` or `container`."""
    cost: int
    """What sending a delivery costs on its connections, unless a neighbour has a cost of its own."""
    state: ConnectorState
    url: str | None
    """Where it is connected, or connects; None: nowhere now."""
    redirected_from: str | None
    """The configured URL whose peer has sent it there, by however many redirects (§2.8.16); None: no redirect has."""
    connection: int | None
    """The number of its connection; None: there is none."""
    failures: int
    """How often in a row it came to no connection, or to one that did not last; 0 while it is connected."""
    reason: str | None
    """Why the last connection ended or did not come about; None: it is connected, or tries for the first time."""


class ContainerLinkState(StrEnum):
    """What a link to a node of another container does."""

    DISCONNECTED = "no connection"
    """Its connector has none."""
    ATTACHING = "attaching"
    """The other container has not answered yet."""
    ATTACHED = "attached"
    WAITING = "waiting"
    """It was refused or detached, and is attached again later."""
    STOLEN = "stolen"
    """Another link of its name has taken its place; it is attached again much later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLinkStatistics:
    """A configured link to a node of another container. What goes by it is counted as of any link."""

    name: str
    connector: str
    """The name of the connector whose connections it goes over."""
    connection: int | None
    """The number of the connection; None: there is none."""
    direction: Direction
    node: str
    """The address of the node there."""
    address: str
    """What it feeds here, or is fed from."""
    state: ContainerLinkState
    since: float
    """When it came into that state."""
    link: int | None
    """The number of the link; None: it is not attached."""
    failures: int
    """How often in a row it was refused, or did not last; 0 while it is attached."""
    stolen: int
    """How often another link took its place."""
    retry_at: float | None
    """When it is attached again; None: with the next connection, or it is attached."""
    reason: str | None
    """Why it is not attached, the connector's reason where there is no connection; None: it is, or nothing was tried
    yet."""
    unwatched: str | None
    """Why the node there is not watched, so that the container may accept messages for a deleted node; None: it is
    watched, or need not be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStatistics:
    """One connection."""

    number: int
    """What logs call it; unique within this router."""
    direction: ConnectionDirection
    """Who opened it."""
    role: str
    """`normal`: a client's. `mesh`: a neighbour's. `container`: of a container that links of ours go to."""
    listener: str | None
    """The name of the listener that it came in by; None: the router opened it."""
    connector: str | None
    """The name of the connector that opened it; None: the peer did."""
    cost: int
    """What sending a delivery costs this way."""
    host: str
    """The peer's address without its port."""
    container_id: str
    """As the peer's `open` said; "" until it has come."""
    hostname: str | None
    """Whom it wanted to talk to, as its `open` said."""
    tenant: str
    user: str | None
    """Who the peer proved to be; None: nobody in particular."""
    mechanism: str | None
    """The SASL mechanism that the side which connected showed itself by; None without a SASL layer."""
    tls: str | None
    """The version of TLS, `TLSv1.3`; None without TLS."""
    cipher: str | None
    """The cipher suite of TLS."""
    certificate_subject: str | None
    """Of the peer's certificate."""
    state: str
    """By the standard's name (§2.4.6): `OPENED` while it is in use."""
    connected_at: float
    idle_time_out: float | None
    """Seconds without a frame after which we close it; None: never."""
    remote_idle_time_out: float | None
    """Seconds without a frame after which the peer may close it, as it announced; None: never."""
    max_frame_size: int
    """Octets of the largest frame that the peer takes."""
    sessions: int
    links: int
    octets_in: int
    octets_out: int
    unwritten: int
    """Octets that wait for the peer to read."""
    held: int
    """Transfer frames of the peer that wait here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatistics(Outcomes):
    """One link of a client. Those between routers are lanes."""

    number: int
    """Unique within this router."""
    name: str
    """As its attach said; unique for one container and direction only."""
    connection: int
    """The number of its connection."""
    direction: Direction
    address: str | None
    """With `@` and the router's id where it is another router's. None: an anonymous sender, each of whose messages says
    where it goes."""
    tenant: str
    copy: bool
    """Its receiver sees each delivery and takes it from nobody."""
    attached: bool
    """False: detached without being closed, and kept for what is not settled."""
    attached_at: float
    deliveries: int
    """Deliveries whose first frame has come, or left."""
    octets: int
    """Octets of their messages."""
    undelivered: int
    """Deliveries that came by it and wait to be sent on; for a `copy` receiver, those that wait for its credit."""
    unsettled: int
    """Deliveries of which one side still has something to say."""
    missed: int
    """Deliveries that a `copy` receiver, or one that held up a multicast, did not see."""
    available: int
    """Deliveries that the sending side had for it, or for its address, when it last said so (§2.6.7)."""
    credit: int
    """Deliveries that may still be sent on it (link-credit, §2.6.7)."""
    zero_credit_since: float | None
    """None: it has credit."""
    last_delivery_at: float | None
    """When the last delivery began; None: there was none."""
    reason: Reason | None
    """Why it has no credit, or cannot use it; None: it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressStatistics(Outcomes):
    """One address that somebody uses here. It is forgotten, and its counts with it, when nobody does any more.

    What its lanes carry counts here, too, whoever sent it; what waits for a lane does if it came in here.
    """

    name: str
    tenant: str
    distribution: Distribution
    producers: int
    """Links of clients here that deliveries come in by; anonymous senders are not among them."""
    consumers: int
    """Links of clients here that deliveries leave by."""
    consumers_at: tuple[str, ...]
    """The other routers that have consumers of it and can be reached, in order."""
    out_of_reach: tuple[str, ...]
    """Those that have some, as far as is known, and cannot be reached."""
    copies: int
    """Links of receivers that only see what goes to others."""
    waiting: int
    """Deliveries that wait for a receiver."""
    buffered: int
    """Octets of messages that wait here."""
    demand: int
    """Deliveries that receivers can take now."""
    granted: int
    """Deliveries that senders, and other routers, were given credit for and have not sent."""
    deliveries_in: int
    """Deliveries that have come; those of anonymous senders do not count here."""
    deliveries_out: int
    """Deliveries that have left; a multicast counts once for each receiver."""
    undelivered: int
    """Deliveries that went back or were dropped because nobody was there to take them."""
    reason: Reason | None
    """Why receivers can take nothing now; None: they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatistics:
    """A node that is the router's own: dynamic nodes, and `$management`."""

    name: str
    """The address, without `@` and the router's id."""
    tenant: str
    dynamic: bool
    """It was made for a link (§3.5.3)."""
    maker: int | None
    """The number of the connection that made it."""
    lifetime: str | None
    """What a dynamic node lives as long as (§3.5.10 to §3.5.13), `delete-on-close` among others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """How a router stands."""

    router: RouterStatistics
    listeners: tuple[ListenerStatistics, ...] = ()
    connectors: tuple[ConnectorStatistics, ...] = ()
    container_links: tuple[ContainerLinkStatistics, ...] = ()
    connections: tuple[ConnectionStatistics, ...] = ()
    links: tuple[LinkStatistics, ...] = ()
    addresses: tuple[AddressStatistics, ...] = ()
    nodes: tuple[NodeStatistics, ...] = ()
    mesh: MeshStatistics | None = None
    """None: the router is in no mesh."""
    neighbours: tuple[NeighbourStatistics, ...] = ()
    routes: tuple[RouteStatistics, ...] = ()
    lanes: tuple[LaneStatistics, ...] = ()
    adverts: tuple[AdvertStatistics, ...] = ()
    disagreements: tuple[DisagreementStatistics, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Nothing is left: no connection, link, address or delivery, and no byte of any."""
        whole = self.router
        return not (whole.connections or whole.links or whole.addresses or whole.relays or whole.buffered)
