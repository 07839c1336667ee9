"""Connections to neighbours for the lanes of one tenant each, beside those for the lanes of all.

Where tenants contend, what one of them has under way must not stand in front of what another one sends. On a connection
of its own a tenant has its own output, its own buffers in the system, and its own share of the time of both routers.
The router that opens the connection to a neighbour opens these, before it opens that one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from amqpmesh.policies.tenants import LONGEST
from amqpmesh.router.amqp.standard.definitions import ConnectionCondition, Error
from amqpmesh.router.delivery.link_loss import close_connection
from amqpmesh.router.endpoint_setup import TENANT
from amqpmesh.router.mesh.lane_connection import LaneConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from amqpmesh.router.config.file import RouterConfig
    from amqpmesh.router.config.mesh import MeshConfig
    from amqpmesh.router.context import Context
    from amqpmesh.router.mesh.neighbour import Neighbour
    from amqpmesh.router.model.connections import ConnectionRecord

NO_LANES: Final = "the neighbour gives tenants no connections of their own"


def be_for_lanes_of(record: ConnectionRecord, tenant: str, config: RouterConfig) -> None:
    """Make a connection one for the lanes of a tenant alone. Our `open`, which is to be sent yet, names the tenant.

    It has no link-state protocol, so its idle time-out finds out that the neighbour is silent (§2.4.5).
    """
    record.lanes_of = tenant
    settings = record.engine.settings
    hold = None if settings.idle_time_out is None or config.mesh is None else config.mesh.hold
    record.engine.restrict(replace(settings, properties={TENANT: tenant}, idle_time_out=hold))


class TenantConnections:
    """The connections of single tenants that are open now."""

    def __init__(self, context: Context, config: MeshConfig, neighbours: Mapping[ConnectionRecord, Neighbour]) -> None:
        """Args: neighbours: those that are connected now, a view."""
        self._context = context
        self._config = config
        self._neighbours = neighbours
        self._by_record: dict[ConnectionRecord, LaneConnection] = {}
        #: By the neighbour and the tenant, oldest first.
        self._by_tenant: dict[tuple[str, str], list[LaneConnection]] = {}
        #: Called when `tenants` may have changed.
        self.followers: list[Callable[[], None]] = []
        context.on_tenants = self._tenants_changed

    def __iter__(self) -> Iterator[LaneConnection]:
        """Iterate over all of them."""
        return iter(self._by_record.values())

    def __contains__(self, record: ConnectionRecord) -> bool:
        return record in self._by_record

    @property
    def tenants(self) -> tuple[str, ...]:
        """The keys of the tenants that get connections of their own: those with most weight; none, if there are not
        several tenants.
        """
        policy = self._context.policy
        if policy is None or len(policy.tenants) < 2:
            return ()
        several = sorted((each for each in policy.tenants if each.key), key=lambda each: (-each.weight, each.key))
        return tuple(each.key for each in several[: self._config.tenant_connections])

    def get(self, record: ConnectionRecord) -> LaneConnection | None:
        """Return the connection of one tenant with this record."""
        return self._by_record.get(record)

    def instead(self, neighbour: LaneConnection, tenant: str) -> LaneConnection:
        """Return the connection by which the lanes of a tenant go to a neighbour."""
        if not self._by_tenant:
            return neighbour
        own = self._by_tenant.get((neighbour.router, tenant))
        return neighbour if own is None else own[0]

    def neighbour(self, record: ConnectionRecord) -> Neighbour | None:
        """Return the neighbour that a connection of one tenant goes to, if it is connected."""
        connection = self._by_record.get(record)
        if connection is None:
            return None
        return next((each for each in self._neighbours.values() if each.router == connection.router), None)

    def enter(self, record: ConnectionRecord, told: object) -> str | None:
        """Take a connection for the lanes of one tenant.

        Args: told: the tenant that the peer has named in its `open`.
        Returns: the reason why it is not taken; None: it is.

        Raises: CommandError: the peer allows no session, or its frames are too small.
        """
        tenant, router = record.lanes_of, record.peer.container_id
        assert tenant is not None, "it is for one tenant"
        if record.connector is not None:
            if told != tenant:
                return NO_LANES
        elif len(tenant) > LONGEST:
            return "no tenant has such a name"
        else:
            ways = 1 + sum(each.router == router for each in self._neighbours.values())
            if sum(each.router == router for each in self) >= ways * self._config.tenant_connections:
                return "the neighbour has too many connections for tenants (tenant_connections)"
        connection = LaneConnection(record, self._config)
        self._by_record[record] = connection
        self._by_tenant.setdefault((router, tenant), []).append(connection)
        self._share(record)
        return None

    def leave(self, record: ConnectionRecord) -> bool:
        """Forget a connection that is lost. Returns: False: it is none of these."""
        connection = self._by_record.pop(record, None)
        if connection is None:
            return False
        key = connection.router, record.lanes_of or ""
        own = self._by_tenant[key]
        own.remove(connection)
        if not own:
            del self._by_tenant[key]
        return True

    def close(self, record: ConnectionRecord, reason: str) -> None:
        """Close a connection of one tenant."""
        if not record.lost:
            close_connection(
                self._context, record, Error(condition=ConnectionCondition.CONNECTION_FORCED, description=reason)
            )

    def gather(self, connector: str) -> None:
        """Close those of a connector that lead to another worker than its connection for all: opened again, they lead
        to the same one. Args: connector: its name.
        """
        neighbour = next((each for each in self._neighbours.values() if _is_of(each, connector)), None)
        if neighbour is None:
            return
        for connection in [each for each in self if _is_of(each, connector) and each.router != neighbour.router]:
            self.close(connection.record, "it leads to another worker than the connection between the routers")

    def close_all(self, router: str) -> None:
        """Close the connections to a router that is no neighbour any more."""
        for connection in [each for each in self if each.router == router]:
            self.close(connection.record, "the connection between the routers has ended")

    def _tenants_changed(self) -> None:
        for record in self._by_record:
            self._share(record)
        for follow in tuple(self.followers):
            follow()

    def _share(self, record: ConnectionRecord) -> None:
        """Have a connection share the time of the router, with the weight that its tenant has here."""
        policy = self._context.policy
        tenant = None if policy is None or len(policy.tenants) < 2 else policy.tenant(record.lanes_of or "")
        if tenant is not None:
            record.contender = tenant
            self._context.on_tenant(record, tenant)


def _is_of(connection: LaneConnection, connector: str) -> bool:
    config = connection.record.connector
    return config is not None and config.name == connector
