"""What the router knows of a connection beyond its protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.policies.access import Peer
from amqpmesh.router.config.connector import ConnectorConfig
from amqpmesh.router.kernel import Budget, Delivery, expand_link
from amqpmesh.router.model.links import IncomingLink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqpmesh.router.amqp.connection import Connection
    from amqpmesh.router.amqp.events import ConnectionClosed, Event
    from amqpmesh.router.amqp.sasl.mechanisms import Work
    from amqpmesh.router.config.file import Limits, ListenerConfig
    from amqpmesh.router.model.links import OutgoingLink
    from amqpmesh.router.model.node import Address, AddressTable


class ConnectionRecord:
    """One connection of this router."""

    __slots__ = (
        "account",
        "certificate",
        "certificate_subject",
        "certificate_user",
        "cipher",
        "closed",
        "congested",
        "connected_at",
        "connector",
        "cost",
        "counted",
        "cut",
        "detached_unsettled",
        "doubtful",
        "engine",
        "host",
        "incoming",
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
        "role",
        "stalled",
        "stands_by",
        "strict_annotations",
        "tls",
        "tls_requested",
        "trace_frames",
        "unfinished",
        "unsettled_after_detach",
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
        own: bool = False,
    ) -> None:
        """Args: config: of the listener that it came in by, or of the connector that opened it.
        memory: of the router.
        """
        #: For logs: unique within this router; 0: the router's own.
        self.number = engine.flow_state.number = number
        self.engine = engine
        #: What it may take.
        self.limits: Limits = config
        #: What it came in by; None: the router opened it.
        self.listener: ListenerConfig | None = None
        #: What opened it; None: the peer did.
        self.connector: ConnectorConfig | None = None
        if isinstance(config, ConnectorConfig):
            self.connector = config
        else:
            self.listener = config
        #: `normal`: of a client. `mesh`: of a neighbour. `container`: of a container that links of ours go to.
        self.role: str = config.role
        #: What sending a delivery costs this way.
        self.cost = config.cost
        #: Deliveries of the peer may have no annotations but its own (§3.2.10).
        self.strict_annotations = self.listener is not None and self.listener.strict_annotations
        self.trace_frames = config.trace_frames
        #: The router itself is at its other end: it may consume what is the router's own, and counts for nobody.
        self.own = own
        #: The peer's address, without its port.
        self.host = host
        self.peer = Peer(container_id="", **self.origin)
        #: The container accepts messages for nodes that are not there.
        self.doubtful = False
        #: Of the peer, as TLS has verified it; DER.
        self.certificate: bytes | None = None
        self.certificate_subject: str | None = None
        self.certificate_user: str | None = None
        #: The version of TLS and its cipher suite; None: there is no TLS.
        self.tls: str | None = None
        self.cipher: str | None = None
        #: Seconds.
        self.connected_at = now
        #: Octets that the router holds for the peer; of them those that its names take, and those that wait to be
        #: written.
        self.account = Budget(memory.limit, memory)
        self.remembered = 0
        self.counted = 0
        #: What was read and what was taken to be sent, inside TLS.
        self.octets_in = 0
        self.octets_out = 0
        #: TLS is to be negotiated in this stream now, beginning with these bytes.
        self.tls_requested: bytes | None = None
        #: What its SASL exchange waits for: a password is to be checked, or to be hashed.
        self.login: Work | None = None
        #: Its output was over the limit, and links of it may stand still for that.
        self.congested = False
        #: Links that could not send for that.
        self.stalled: dict[OutgoingLink, None] = {}
        #: How it ended; None: it has not, or its transport did.
        self.closed: ConnectionClosed | None = None
        #: Its links are let go of.
        self.lost = False
        #: It has ended, and its peer hears no farewell: it does not read what it was sent before.
        self.cut = False
        #: It was closed because the same neighbour's own connection is used.
        self.stands_by = False
        #: What a batch had too much work for.
        self.unfinished: Iterator[Event] | None = None
        self.incoming: dict[IncomingLink, None] = {}
        self.outgoing: dict[OutgoingLink, None] = {}
        #: The number of unsettled deliveries on links of `detached_unsettled`, by node.
        self.unsettled_after_detach: dict[Address, int] = {}
        #: Links that were detached without being closed: their deliveries live until the session ends (§2.7.6). Each
        #: has the number of its deliveries that count in `unsettled_after_detach`.
        self.detached_unsettled: dict[IncomingLink | OutgoingLink, int] = {}

        self.limit_output(config.output_backlog)

    @property
    def origin(self) -> dict[str, str]:
        """How it came about, for logs: the name of its listener, or of its connector."""
        if self.connector is not None:
            return {"connector": self.connector.name}
        assert self.listener is not None, "a connection has one or the other"
        return {"listener": self.listener.name}

    @property
    def held_frames(self) -> int:
        """Transfer frames that it sent and that are still here."""
        return sum(session.flow_state.held for session in self.engine.channels.sessions)

    @property
    def unwritten(self) -> int:
        """Octets that wait to be written."""
        flow_state = self.engine.flow_state
        return flow_state.sending + len(flow_state.out)

    def limit_output(self, octets: int) -> None:
        """So many may wait to be written before its links are given no more deliveries."""
        self.output_backlog = self.engine.flow_state.backlog = octets

    def is_congested(self, part: int = 1) -> bool:
        """More waits to be written than should. Args: part: 1 / n of it is too much for who asks."""
        flow_state = self.engine.flow_state
        if (flow_state.sending + len(flow_state.out)) * part > flow_state.backlog:
            self.congested = True
            return True
        return False

    @property
    def principal(self) -> str:
        """Who it is, as far as links can be stolen: the user, else the host."""
        return self.peer.user if self.peer.user is not None else f"host {self.host}"


def brought_by(nodes: AddressTable, name: str, tag: bytes) -> ConnectionRecord | None:
    """Who has sent a delivery to a node of the router's own, by the delivery-tag that it has there.

    Returns: None: it is settled, or came from another router: then nobody knows who its sender is.
    """
    address = nodes.find("", name)
    for outgoing in address.outgoing if address is not None else ():
        expand_link(outgoing.link.flow_state)
        delivery = outgoing.link.terminus.unsettled.get(tag)
        source = delivery.leg.relay.source if isinstance(delivery, Delivery) and delivery.leg is not None else None
        if isinstance(source, IncomingLink) and source.lane is None:
            return source.connection
    return None
