"""Connections as the router sees them, beyond the protocol."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict
from weakref import ref

from amqpmesh.policies.access import Peer
from amqpmesh.router.amqp.dismantling import dismantle_connection
from amqpmesh.router.config.connector import ConnectorConfig
from amqpmesh.router.kernel import Budget
from amqpmesh.router.model.lane import tenant_of
from amqpmesh.router.model.node import OwnNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqpmesh.policies.rights import Rights
    from amqpmesh.policies.tenants import Tenant
    from amqpmesh.router.amqp.connection import Connection
    from amqpmesh.router.amqp.events import ConnectionClosed, Event
    from amqpmesh.router.amqp.sasl.mechanisms import Work
    from amqpmesh.router.config.file import Limits, ListenerConfig
    from amqpmesh.router.model.links import IncomingLink, OutgoingLink
    from amqpmesh.router.model.node import Node, NodeTable
    from amqpmesh.router.model.peer_token import PeerToken
    from amqpmesh.router.model.usage import Member


class Origin(TypedDict, total=False):
    """The name of a listener or of a connector."""

    listener: str
    connector: str


@lru_cache(maxsize=256)
def _before_open(host: str, listener: str = "", connector: str = "") -> Peer:
    """Return a peer of which only its host and our end are known."""
    return Peer(container_id="", host=host, listener=listener, connector=connector)


class Freed:
    """The number of a router's connections and links that were in memory and are not any more."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


MESH: Final = "$mesh"
"""In place of the tenant, of neighbours."""


class ConnectionRecord:
    """One connection of this router."""

    __slots__ = (
        "__weakref__",
        "account",
        "certificate",
        "certificate_subject",
        "certificate_user",
        "cipher",
        "closed",
        "congested",
        "connected_at",
        "connector",
        "contender",
        "cost",
        "counted",
        "cut",
        "detached_unsettled",
        "doubtful",
        "engine",
        "freed",
        "host",
        "incoming",
        "inside",
        "is_handed_over",
        "judged",
        "lanes_of",
        "limits",
        "listener",
        "login",
        "lost",
        "number",
        "octets_in",
        "octets_out",
        "outgoing",
        "output_backlog",
        "own",
        "peer",
        "remembered",
        "rights",
        "role",
        "stalled",
        "stands_by",
        "strict_annotations",
        "tls",
        "tls_requested",
        "token",
        "trace_frames",
        "unfinished",
        "unsettled_after_detach",
        "usage",
    )

    def __init__(
        self,
        number: int,
        engine: Connection,
        config: ListenerConfig | ConnectorConfig,
        host: str,
        now: float,
        *,
        memory: Budget,
        freed: Freed,
        own: bool = False,
        inside: bool = False,
    ) -> None:
        """Args: config: of the listener that accepted it, or of the connector that opened it. memory, freed: of the
        router.
        """
        #: The number in logs, unique in this router; 0: the router's own connection.
        self.number = engine.flow_state.number = number
        self.engine = engine
        #: The limits of the resources that it may use.
        self.limits: Limits = config
        #: The listener that accepted it; None: the router opened it.
        self.listener: ListenerConfig | None = None
        #: The connector that opened it; None: the peer did.
        self.connector: ConnectorConfig | None = None
        if isinstance(config, ConnectorConfig):
            self.connector = config
        else:
            self.listener = config
        #: The peer: `normal`, a client; `mesh`, a neighbour; `container`, a container that links of this router go to.
        self.role: str = config.role
        #: The configured cost of sending a delivery to the peer; None: there is none. A neighbour may have one.
        self.cost = config.cost
        #: True if the peer's messages must not have reserved annotations (§3.2.10).
        self.strict_annotations = self.listener is not None and self.listener.strict_annotations
        self.trace_frames = config.trace_frames
        #: True if this router is also the peer: it may then consume the router's own addresses, and is not counted.
        self.own = own
        #: True if a program has the peer's links within the router's process: it may do all that the router may.
        self.inside = inside
        #: The peer's address, without its port.
        self.host = host
        self.peer = _before_open(host, **self.origin)
        #: What the policy lets the peer do; None: the policy does not rule the connection.
        self.rights: Rights | None = None
        #: The rights by which all its links were judged; None: these differ, or it is not known.
        self.judged: Rights | None = None
        #: The token of the peer; None: it has shown none, and need not.
        self.token: PeerToken | None = None
        #: Its part in what its tenant, user and host have; None: the policy does not rule the connection.
        self.usage: Member | None = None
        #: The tenant whose share of the router's time it takes; None: it takes that of no tenant.
        self.contender: Tenant | None = None
        #: Of a neighbour: the key of the tenant whose lanes alone it has; None: it has those of all.
        self.lanes_of: str | None = None
        #: True up to its first attach, if another worker of this router has accepted it and hands it over.
        self.is_handed_over = False
        #: True if the container accepts messages for nodes that do not exist.
        self.doubtful = False
        #: The peer's certificate, verified by TLS; DER.
        self.certificate: bytes | None = None
        self.certificate_subject: str | None = None
        self.certificate_user: str | None = None
        #: The version of TLS and its cipher suite; None: there is no TLS.
        self.tls: str | None = None
        self.cipher: str | None = None
        #: Seconds.
        self.connected_at = now
        #: The account of octets that the router holds for the peer. Of these, `remembered`: octets of names; `counted`:
        #: octets of unwritten output.
        self.account = Budget(memory.limit, memory)
        self.remembered = 0
        self.counted = 0
        #: Octets received, and octets taken to be sent, inside TLS.
        self.octets_in = 0
        self.octets_out = 0
        #: The first bytes of a TLS handshake in this stream; None: no handshake is due.
        self.tls_requested: bytes | None = None
        #: The work that its SASL exchange waits for: the check or the hash of a password.
        self.login: Work | None = None
        #: True if its output was over the limit, so that links of it may be stalled.
        self.congested = False
        #: Links that could not send because of that.
        self.stalled: dict[OutgoingLink, None] = {}
        #: The event that ended it; None: it has not ended, or its transport has ended without one.
        self.closed: ConnectionClosed | None = None
        #: True if its links have been ended.
        self.lost = False
        #: True if it was ended without a `close`: the peer does not read, and would not get one.
        self.cut = False
        #: True if it was closed because the router uses the connection that the same neighbour has opened.
        self.stands_by = False
        #: Events left over from a batch with too much work; None: there are none.
        self.unfinished: Iterator[Event] | None = None
        self.incoming: dict[IncomingLink, None] = {}
        self.outgoing: dict[OutgoingLink, None] = {}
        #: The number of unsettled deliveries on links of `detached_unsettled`, by node.
        self.unsettled_after_detach: dict[Node, int] = {}
        #: Links that were detached but not closed: their deliveries stay until the session ends (§2.7.6). The values
        #: are the numbers of their deliveries in `unsettled_after_detach`.
        self.detached_unsettled: dict[IncomingLink | OutgoingLink, int] = {}

        self.freed = freed
        self.limit_output(config.output_backlog)

    def __del__(self) -> None:
        if not self.own:
            self.freed.count += 1

    def dismantle(self) -> None:
        """Cut the references from its parts: its transport is gone, and its deliveries have ended."""
        dismantle_connection(self.engine)
        self.stalled = {}
        self.unfinished = None

    @property
    def origin(self) -> Origin:
        """The name of its listener or of its connector, for logs."""
        if self.connector is not None:
            return {"connector": self.connector.name}
        assert self.listener is not None, "a connection has one or the other"
        return {"listener": self.listener.name}

    @property
    def held_frames(self) -> int:
        """Transfer frames from the peer that the router still holds."""
        return sum(session.flow_state.held for session in self.engine.channels.sessions)

    @property
    def unwritten(self) -> int:
        """Octets that wait to be written."""
        flow_state = self.engine.flow_state
        return flow_state.sending + len(flow_state.out)

    def limit_output(self, octets: int) -> None:
        """Set the limit of unwritten octets: above it the connection's links get no more deliveries."""
        self.output_backlog = self.engine.flow_state.backlog = octets

    def is_congested(self, part: int = 1) -> bool:
        """Return whether too much output waits to be written. Args: part: compare with 1 / n of the limit."""
        flow_state = self.engine.flow_state
        if (flow_state.sending + len(flow_state.out)) * part > flow_state.backlog:
            self.congested = True
            return True
        return False

    @property
    def principal(self) -> str:
        """The identity by which its links can be stolen: the user, else the host."""
        return self.peer.user if self.peer.user is not None else f"host {self.host}"

    @property
    def holder(self) -> tuple[str, str]:
        """The tenant and the principal whose memory it takes; of a neighbour, `MESH` and its container-id."""
        if self.role == "mesh":
            return MESH, self.peer.container_id
        return self.peer.tenant, self.principal

    @property
    def held(self) -> int:
        """Octets that closing it frees: of one whose links are ending anyway, those of its unwritten output."""
        return self.counted if self.lost else self.account.used


#: Deliveries to a node of the router itself whose senders are remembered: more than wait for its answers.
SENDERS: Final = 64


def note_sender(node: OwnNode, tag: bytes, link: IncomingLink) -> None:
    """Remember the sender of a delivery to a node of the router's own, whether it is settled or not.

    Args: tag: under which it leaves the node. link: that it came by.
    """
    node.senders[tag] = tenant_of(link), ref(link.connection) if link.lane is None else None
    if len(node.senders) > SENDERS:
        del node.senders[next(iter(node.senders))]


class Asking(NamedTuple):
    """The sender of a delivery to a node of the router's own."""

    tenant: str
    connection: ConnectionRecord | None
    """None: it is a client of another router."""


def brought_by(nodes: NodeTable, name: str, tag: bytes) -> Asking | None:
    """Return the sender of a delivery to a node of the router's own; ask once for each delivery.

    Args: name: of the node. tag: the delivery-tag on the node's outgoing link.
    Returns: None: its connection is gone.
    """
    node = nodes.find("", name)
    found = node.senders.pop(tag, None) if isinstance(node, OwnNode) else None
    if found is None:
        return None
    tenant, connection = found
    if connection is None:
        return Asking(tenant, None)
    record = connection()
    return None if record is None else Asking(tenant, record)
