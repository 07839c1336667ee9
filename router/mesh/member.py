"""Membership of one router in the mesh: its neighbours, and the messages between them.

The topology decides which messages to send, and what follows from received ones. This module gives the topology
connections and a clock, and applies its changes to the routes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from amqpmesh.router.amqp.errors import CommandError, ProtocolError
from amqpmesh.router.amqp.link import Receiver
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, ConnectionCondition, Error
from amqpmesh.router.amqp.standard.messaging import Target
from amqpmesh.router.config.mesh import MeshConfig
from amqpmesh.router.delivery.link_loss import close_connection
from amqpmesh.router.mesh.mesh_routes import MeshRoutes
from amqpmesh.router.mesh.neighbour import CONTROL, LIVES, Neighbour, is_between_workers
from amqpmesh.router.mesh.next_hops import NextHops
from amqpmesh.router.mesh.routes import Routes
from amqpmesh.router.mesh.tenant_connections import TenantConnections
from amqpmesh.router.model.lane import PREFIX, Lane
from amqpmesh.router.statistics.configured import ConnectorStatistics
from amqpmesh.router.statistics.mesh_statistics import NeighbourStatistics
from amqpmesh.router.statistics.router_statistics import Costly
from amqpmesh.topology import changes
from amqpmesh.topology.address_book import Advert
from amqpmesh.topology.workers import Members, covers, upgraded_name

if TYPE_CHECKING:
    from amqpmesh.policies.policy_version import PolicyVersion
    from amqpmesh.router.amqp.events import LinkAttached, TransferReceived
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig
    from amqpmesh.router.containers.remote_nodes import RemoteNodes
    from amqpmesh.router.context import Context
    from amqpmesh.router.mesh.lane_connection import LaneConnection
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.topology.linkstate import Topology
    from amqpmesh.topology.signing import Signer


def _origin(record: ConnectionRecord) -> tuple[type, str]:
    """Return the kind and the name of the connector or listener of a connection."""
    config = record.connector or record.listener
    assert config is not None, "a connection has one or the other"
    return type(config), config.name


#: Seconds after which a connection to a neighbour is no longer new.
RIVAL_TIME: Final = 2.0

STANDS_BY: Final = "the connection that the other router has opened is used"

#: Seconds between two checks of this router's own certificate.
WATCH_TIME: Final = 3600.0

#: Seconds between two checks of the neighbours' certificates.
CHECK_TIME: Final = 60.0


class Recognizer(Protocol):
    """A judge of neighbours by their certificates."""

    def refusal(self, certificate: bytes | None, router: str) -> str | None:
        """Return the reason why a peer is not the router that it names; None: it is. Args: certificate: DER; None: it
        has none."""

    def expulsion(self, certificate: bytes | None, router: str) -> str | None:
        """Return the reason to part from a neighbour that was accepted before; None: it can stay."""

    def expires_in(self) -> float | None:
        """Return the seconds until this router's certificate expires; None: it need not be renewed yet."""


class MeshMember:
    """A router's membership in the mesh."""

    def __init__(
        self, context: Context, remote_nodes: RemoteNodes, topology: Topology, recognizer: Recognizer | None
    ) -> None:
        """Args: recognizer: None: each peer is accepted."""
        self._context = context
        self._recognizer = recognizer
        self._config = context.config.mesh or MeshConfig(insecure=True)
        self.topology = topology
        self.members = Members(topology.graph)
        self.neighbours: dict[ConnectionRecord, Neighbour] = {}
        #: Costs of connectors and listeners that were changed while running, by kind and name.
        self._costs: dict[tuple[type, str], int] = {}
        self.tenant_connections = TenantConnections(context, self._config, self.neighbours)
        hops = NextHops(context.id, topology, self.neighbours, self.tenant_connections)
        self.routes = Routes(context, remote_nodes, topology, self.members, hops, self.advertise)
        self.mesh_routes = MeshRoutes(context, topology, self.members, self.routes)
        self._are_moving = False
        self._armed: float | None = None
        self._arm()
        self._watch_certificate()
        self._watch_neighbours()
        for name, distribution in remote_nodes.single.items():
            self.advertise("", name, Advert(distribution, consumers=1))

    # -------------------------------------------------------------------------------------------------- neighbours

    def opened(self, record: ConnectionRecord, lanes_of: object) -> None:
        """Start the link-state protocol on a connection to a neighbour; do nothing on any other connection.

        Args: lanes_of: the tenant that the peer has named in its `open`: the connection is for its lanes alone.
        """
        if record.role != "mesh" or record in self.neighbours or not record.engine.can_send:
            return
        router = record.peer.container_id
        refusal = self._refusal(record)
        if refusal is not None:
            self._refuse(record, AmqpCondition.UNAUTHORIZED_ACCESS, refusal)
            return
        try:
            if record.lanes_of is not None:
                self._enter(record, lanes_of)
                return
            neighbour = Neighbour(record, self._context.now, self._config)
        except CommandError as error:  # the peer allows no second session, or its frames are too small
            self._refuse(record, AmqpCondition.RESOURCE_LIMIT_EXCEEDED, str(error))
            return
        self.neighbours[record] = neighbour
        now = self._context.now
        self._apply(self.topology.connected(neighbour, record.cost, now, expected=router))
        changed = self._costs.get(_origin(record))
        if changed is not None:
            self._apply(self.topology.set_cost(neighbour, changed, now))
        self._judge_rivals(router)

    def _enter(self, record: ConnectionRecord, lanes_of: object) -> None:
        """Take a connection for the lanes of one tenant. Raises: CommandError: the peer allows no session."""
        refusal = self.tenant_connections.enter(record, lanes_of)
        if refusal is not None:
            self._refuse(record, AmqpCondition.RESOURCE_LIMIT_EXCEEDED, refusal)
        else:
            self._move_lanes(record.peer.container_id)

    def _move_lanes(self, router: str) -> None:
        """Have the lanes of tenants to a neighbour go by the connections that they have there now: once for several."""
        if self.has_neighbour(router) and not self._are_moving:
            self._are_moving = True
            self._context.schedule(self._context.now, self._lanes_moved)

    def _lanes_moved(self) -> None:
        self._are_moving = False
        self.routes.graph_changed()

    def _refusal(self, record: ConnectionRecord) -> str | None:
        """Return the reason why a peer is not the router that it names; None: it is, as far as that can be known."""
        router = record.peer.container_id
        if is_between_workers(record):
            # Only processes of the same user can connect here: the permissions of the folder see to that.
            is_other = router != self._context.id and covers(upgraded_name(self._context.id), router)
            return None if is_other else "it is no worker of this router"
        return None if self._recognizer is None else self._recognizer.refusal(record.certificate, router)

    def _refuse(self, record: ConnectionRecord, condition: AmqpCondition, reason: str) -> None:
        """Close the connection of a peer that is no acceptable neighbour."""
        router = record.peer.container_id
        self._context.log.warning(
            "neighbour refused", connection=record.number, peer=record.host, router=router, reason=reason
        )
        if self._context.audit is not None:
            self._context.audit.of("neighbour refused", record, reason=reason)
        self.routes.lane_links.resumed.forget(record)
        close_connection(self._context, record, Error(condition=condition, description=reason))

    def has_neighbour(self, router: str) -> bool:
        """Tell whether there is a connection to a router."""
        return any(each.router == router for each in self.neighbours.values())

    def _judge_rivals(self, router: str) -> None:
        """Close this router's surplus connections to a neighbour, if both routers have connected to each other.

        The connections that were there for a while stay; of new ones, those that the router with the lower id opened.
        Both routers decide alike, and each closes its own connections only.
        """
        both = [each for each in self.neighbours.values() if each.router == router]
        ours = [each for each in both if each.record.connector is not None]
        theirs = [each for each in both if each.record.connector is None]
        if not ours or not theirs:
            return
        since_ours, since_theirs = (min(each.record.connected_at for each in some) for some in (ours, theirs))
        if self._context.now - min(since_ours, since_theirs) < RIVAL_TIME:
            stays = self._context.id < router
        else:
            stays = since_ours < since_theirs
        if not stays:
            for each in ours:
                each.record.stands_by = True
                self._close(each, Error(condition=ConnectionCondition.CONNECTION_FORCED, description=STANDS_BY))

    def lost(self, record: ConnectionRecord) -> None:
        """Handle the loss of a connection, which may be a neighbour's: its routes end."""
        neighbour = self.neighbours.pop(record, None)
        if neighbour is None:
            if self.tenant_connections.leave(record):
                self._move_lanes(record.peer.container_id)
            return
        if not self._apply(self.topology.disconnected(neighbour, self._context.now)):
            self.routes.graph_changed()
        if not self.has_neighbour(neighbour.router):
            self.tenant_connections.close_all(neighbour.router)

    def has_lanes(self, record: ConnectionRecord) -> bool:
        """Tell whether a connection is one to a neighbour."""
        return record in self.neighbours or record in self.tenant_connections

    def is_neighbours_attach(self, record: ConnectionRecord, event: LinkAttached) -> bool:
        """Tell whether an attach is for a control link or a lane of a neighbour."""
        target = event.attach.target
        return (
            self.has_lanes(record)
            and isinstance(event.link, Receiver)
            and isinstance(target, Target)
            and target.address is not None
            and (target.address == CONTROL or target.address.startswith(PREFIX))
        )

    def attached(self, record: ConnectionRecord, event: LinkAttached) -> None:
        """Handle a neighbour's attach: the answer to this router's attach, its control link, or a lane."""
        neighbour = self.routes.next_hops.connection(record)
        endpoint, target = event.link, event.attach.target
        if endpoint.context is neighbour or neighbour is None:
            return
        assert isinstance(endpoint, Receiver)
        assert isinstance(target, Target)
        assert target.address is not None
        if isinstance(neighbour, Neighbour) and target.address == CONTROL:
            neighbour.answer_attach(endpoint, event.attach)
            return
        try:
            lane = Lane.parse(target.address)
            if record.lanes_of is not None and lane.tenant != record.lanes_of:
                raise ValueError(f"the connection is for lanes of {record.lanes_of} alone")
        except ValueError as error:
            endpoint.refuse(Error(condition=AmqpCondition.INVALID_FIELD, description=str(error)))
            return
        self.routes.attach_lane(neighbour, endpoint, event.attach, lane)

    def refuse_client(self, record: ConnectionRecord) -> None:
        """Refuse a client on a listener that is for routers."""
        reason = "only routers of the mesh may connect here; clients use a listener of role normal"
        self._refuse(record, AmqpCondition.NOT_ALLOWED, reason)

    def detached(self, neighbour: Neighbour) -> None:
        """Close a neighbour's connection whose control link was detached: without that link it is of no use."""
        self._close(neighbour, Error(condition=AmqpCondition.NOT_ALLOWED, description="the control link was detached"))

    def begun(self, record: ConnectionRecord, session: Session) -> bool:
        """Answer a neighbour's session. Returns: False: the peer is no neighbour."""
        neighbour = self.routes.next_hops.connection(record)
        if neighbour is not None:
            neighbour.answer_begin(session)
        return neighbour is not None

    def ended(self, record: ConnectionRecord, session: Session) -> None:
        """Handle the end of a session, with which a control link may have ended."""
        neighbour = self.neighbours.get(record)
        if neighbour is not None and neighbour.has_control_link_in(session):
            self.detached(neighbour)

    def transferred(self, neighbour: Neighbour, event: TransferReceived) -> None:
        """Handle a part of a neighbour's message."""
        try:
            body = neighbour.received(event)
        except ProtocolError as error:
            self._close(neighbour, Error(condition=error.condition, description=str(error)))
            return
        if body is not None and neighbour.record in self.neighbours:
            self._apply(self.topology.received(neighbour, body, self._context.now))

    def window_opened(self, session: Session) -> None:
        """Go on sending messages after a session's window has opened."""
        for neighbour in self.neighbours.values():
            if neighbour.session is session:
                neighbour.pump()

    def _close(self, neighbour: Neighbour, error: Error) -> None:
        close_connection(self._context, neighbour.record, error)

    # ------------------------------------------------------------------------------------------------ the topology

    def advertise(self, tenant: str, name: str, advert: Advert | None) -> None:
        """Advertise an address to the mesh; None: withdraw it."""
        self._apply(self.topology.advertise(tenant, name, advert, self._context.now))

    def give_policy(self, version: PolicyVersion | None, data: bytes, now: float) -> None:
        """Offer a policy to the neighbours. Args: as of `Topology.give_policy`."""
        self._context.now = now
        self._apply(self.topology.give_policy(version, data, self._context.now))

    def refuse_policy(self, version: PolicyVersion, now: float) -> None:
        """Fetch a policy no more."""
        self._context.now = now
        self._apply(self.topology.refuse_policy(version, self._context.now))

    def set_overload(self, *, overload: bool) -> None:
        """Ask all routers for paths around this one, or ask no longer."""
        self._apply(self.topology.set_overload(self._context.now, overload=overload))

    def drain(self) -> None:
        """Withdraw all addresses, and let no path lead through this router."""
        self._apply(self.topology.drain(self._context.now))

    def renew(self, signer: Signer, now: float) -> None:
        """Sign with another certificate from now on, and check the neighbours' certificates again."""
        self._context.now = now
        if self._context.vouching is not None:
            self._context.vouching.signer = signer
        self._apply(self.topology.renew(signer, now))
        self.check()

    def check(self) -> None:
        """Part from neighbours that are no longer trusted."""
        if self._recognizer is None:
            return
        connections: list[LaneConnection] = [*self.neighbours.values(), *self.tenant_connections]
        for neighbour in [each for each in connections if not is_between_workers(each.record)]:
            refusal = self._recognizer.expulsion(neighbour.record.certificate, neighbour.router)
            if refusal is not None:
                self._refuse(neighbour.record, AmqpCondition.UNAUTHORIZED_ACCESS, refusal)

    def _watch_certificate(self) -> None:
        """Warn once an hour that this router's certificate expires, from the time on when it should be renewed."""
        if self._recognizer is None:
            return
        seconds = self._recognizer.expires_in()
        if seconds is not None:
            days = round(abs(seconds) / 86_400, 1)
            if seconds > 0:
                self._context.log.warning("certificate expires", router=self._context.id, days=days)
            else:
                self._context.log.warning("certificate expired", router=self._context.id, days=days)
        self._context.schedule(self._context.now + WATCH_TIME, self._watch_certificate)

    def _watch_neighbours(self) -> None:
        """Part from neighbours whose certificates have expired, once a minute."""
        if self._recognizer is not None:
            self.check()
            self._context.schedule(self._context.now + CHECK_TIME, self._watch_neighbours)

    def set_cost(self, neighbour: Neighbour, cost: int) -> None:
        """Set the cost of sending to a neighbour by this connection, as long as it lasts."""
        self._apply(self.topology.set_cost(neighbour, cost, self._context.now))

    def cost_of(self, config: ListenerConfig | ConnectorConfig) -> int:
        """Return the cost of the connections of a listener or connector: the changed one, or the configured one."""
        return self._costs.get((type(config), config.name), config.cost or 1)

    def cost_on(self, record: ConnectionRecord) -> int:
        """Return the cost of sending on a connection; 1 if it is not to a neighbour."""
        neighbour = self.neighbours.get(record)
        return 1 if neighbour is None else self.topology.cost_on(neighbour)

    def set_cost_of(self, config: ListenerConfig | ConnectorConfig, cost: int) -> None:
        """Set the cost of the present and future connections of a listener or connector, as long as this
        router runs."""
        origin = type(config), config.name
        self._costs[origin] = cost
        for neighbour in list(self.neighbours.values()):
            if _origin(neighbour.record) == origin:
                self.set_cost(neighbour, cost)

    def reset_costs(self, kept: frozenset[tuple[type, str]] = frozenset()) -> None:
        """Have the costs of the configuration. Args: kept: the listeners and connectors, by class and name, that have
        costs that were changed while running, and keep them."""
        self._costs = {origin: cost for origin, cost in self._costs.items() if origin in kept}
        for neighbour in list(self.neighbours.values()):
            record = neighbour.record
            config = record.connector or record.listener
            assert config is not None, "a connection has one or the other"
            record.cost = config.cost
            if _origin(record) not in kept:
                self._apply(self.topology.set_cost(neighbour, config.cost, self._context.now, configured=True))

    def change_cost(self, statistics: Costly, cost: int) -> None:
        """Change the cost of sending on a neighbour's connection, or on all connections of a connector or listener.

        Raises: LookupError: the neighbour is gone, or the connector or listener is not for neighbours.
        """
        if isinstance(statistics, NeighbourStatistics):
            number = statistics.connection
            found = next((each for each in self.neighbours.values() if each.record.number == number), None)
            if found is None:
                raise LookupError("that neighbour is gone")
            self.set_cost(found, cost)
            return
        configured = self._context.config
        tables = configured.connectors if isinstance(statistics, ConnectorStatistics) else configured.listeners
        config = next((each for each in tables if each.name == statistics.name and each.is_mesh), None)
        if config is None:
            raise LookupError("it leads to no neighbour: its role is not mesh")
        self.set_cost_of(config, cost)

    def _apply(self, step: changes.Step) -> bool:
        """Send the messages of a step, and apply its changes.

        Returns: whether all routes were reconciled.
        """
        for adjacency, body in step.messages:
            assert isinstance(adjacency, Neighbour)
            if adjacency.record in self.neighbours and not adjacency.send(body):
                reason = "the control link is not read"
                self._close(adjacency, Error(condition=AmqpCondition.RESOURCE_LIMIT_EXCEEDED, description=reason))
        graph_changed = False
        addresses: set[tuple[str, str]] = set()
        for change in step.changes:
            if isinstance(change, changes.NeighbourUp | changes.NeighbourDown):
                assert isinstance(change.adjacency, Neighbour)
                change.adjacency.since = self._context.now
            match change:
                case changes.NeighbourDown(adjacency=Neighbour() as neighbour) if neighbour.record in self.neighbours:
                    # The neighbour is connected but silent. It would not tell what it has of this router's deliveries,
                    # so it is closed.
                    end = Error(condition=ConnectionCondition.CONNECTION_FORCED, description=change.reason, info=LIVES)
                    self._close(neighbour, end)
                    graph_changed = True
                case changes.GraphChanged() | changes.NeighbourDown():
                    graph_changed = True
                case changes.AddressesChanged():
                    addresses |= change.addresses
                case changes.RevocationsChanged():
                    self.check()
                case changes.PolicyFetched():
                    self._context.on_policy(change.neighbour, change.version, change.data)
                case changes.Refused(adjacency=Neighbour() as neighbour):
                    error = Error(condition=ConnectionCondition.CONNECTION_FORCED, description=change.reason)
                    self._close(neighbour, error)
                case _:
                    pass
            self._log(change)
        if graph_changed:
            if self._context.recording is not None:
                self._context.recording.graph_changed()
            self._context.on_graph_change()
            self.routes.lane_links.resumed.graph_changed()
            self.routes.graph_changed(sorted(addresses))
        elif addresses:
            self.routes.consumers_elsewhere_changed(sorted(addresses))
        self._arm()
        return graph_changed

    def _arm(self) -> None:
        at = self.topology.next_timer()
        if at is not None and (self._armed is None or at < self._armed):
            self._armed = at
            self._context.schedule(at, self._tick)

    def _tick(self) -> None:
        if self._armed is not None and self._armed <= self._context.now:
            # If this router itself was late, messages that arrived meanwhile are not read yet: hold times are extended.
            late = self._context.now - self._armed
            self._armed = None
            for neighbour in self.neighbours.values():
                self.topology.note_traffic(neighbour, neighbour.record.engine.liveness.received_at + late)
            self._apply(self.topology.handle_timer(self._context.now))

    def _log(self, change: changes.Change) -> None:
        log = self._context.log
        match change:
            case changes.NeighbourUp(adjacency=Neighbour() as neighbour):
                log.info("neighbour up", router=change.router, connection=neighbour.record.number)
            case changes.NeighbourDown(adjacency=Neighbour() as neighbour):
                number = neighbour.record.number
                log.warning("neighbour down", router=change.router, connection=number, reason=change.reason)
            case changes.Refused():
                log.warning("neighbour refused", router=change.router, reason=change.reason)
                if self._context.audit is not None:
                    self._context.audit.of_host("neighbour refused", "", container=change.router, reason=change.reason)
            case changes.Damped(adjacency=Neighbour() as neighbour):
                seconds = round(change.until - self._context.now, 3)
                number = neighbour.record.number
                log.warning("neighbour damped", router=change.router, connection=number, seconds=seconds)
            case changes.Dropped():
                log.warning(
                    "advertisement dropped",
                    origin=change.origin,
                    router=change.neighbour,
                    reason=change.reason,
                    detail=change.detail,
                    count=change.count,
                )
            case changes.PolicyNotFetched():
                number = change.version.number
                log.warning("policy not fetched", router=change.neighbour, version=number, reason=change.reason)
            case changes.IdentityConflict():
                log.error("duplicate router id", router=change.router, neighbours=", ".join(change.neighbours))
            case _:
                pass
