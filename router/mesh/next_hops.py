"""Next hops of lanes: the neighbours that a lane goes to, by the current topology."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.mesh.neighbour import Neighbour
from amqpmesh.router.model.lane import LaneKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.mesh.lane_connection import LaneConnection
    from amqpmesh.router.mesh.tenant_connections import TenantConnections
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.model.links import OutgoingLink
    from amqpmesh.router.model.node import Node
    from amqpmesh.topology.linkstate import Topology


class NextHops:
    """The next hops of each lane, and the distances to its consumers."""

    def __init__(
        self,
        router: str,
        topology: Topology,
        neighbours: Mapping[ConnectionRecord, Neighbour],
        tenant_connections: TenantConnections,
    ) -> None:
        """Args: router: the id of this router. neighbours, tenant_connections: those that are connected now, views."""
        self._id = router
        self._topology = topology
        self._neighbours = neighbours
        self._tenant_connections = tenant_connections

    def connection(self, record: ConnectionRecord) -> LaneConnection | None:
        """Return the connection for lanes with a record; None: it is gone."""
        return self._neighbours.get(record) or self._tenant_connections.get(record)

    def children(self, lane: Lane) -> dict[ConnectionRecord, LaneConnection]:
        """Return the connections to the children of this router in a tree, if there are consumers behind them."""
        consumers = self.egresses(lane.tenant, lane.name)
        neighbours = self._neighbours
        children = (
            self._topology.adjacency(child, lane.target) for child in self._topology.branches(lane.far, consumers)
        )
        there = [each for each in children if isinstance(each, Neighbour) and each.record in neighbours]
        found = (self._tenant_connections.instead(each, lane.tenant) for each in there)
        return {each.record: each for each in found}

    def next_hop(self, node: Node, lane: Lane) -> dict[ConnectionRecord, LaneConnection]:
        """Return the neighbour that a lane goes to, by its connection; empty: there is no path, or no consumer.

        Without a consumer a lane needs no path: its deliveries are sent back at once.
        """
        if self._topology.distance(lane.far) is None:
            return {}
        if lane.kind is LaneKind.ANYCAST and lane.far not in self._topology.lookup(lane.tenant, lane.name):
            return {}
        hop = self.toward(lane, next(iter(node.outgoing), None))
        return {} if hop is None else {hop.record: hop}

    def toward(self, lane: Lane, link: OutgoingLink | None) -> LaneConnection | None:
        """Return the connection to the neighbour on a cheapest path to the end of a lane; None: there is no path.

        Args: link: the present link of the lane. Its neighbour stays while no other is nearer.
        """
        kept = None
        if link is not None:
            kept = self._neighbours.get(link.connection) or self._tenant_connections.neighbour(link.connection)
        hop = self._topology.next_hop(lane.far, lane.target, kept)
        if not isinstance(hop, Neighbour) or hop.record not in self._neighbours:
            return None
        return self._tenant_connections.instead(hop, lane.tenant)

    def egresses(self, tenant: str, name: str) -> dict[str, int]:
        """Return the other routers with consumers of an address, and the cost of the path to each."""
        costs = {}
        for router, advert in self._topology.lookup(tenant, name).items():
            if router != self._id and advert.consumers:
                distance = self._topology.distance(router)
                if distance is not None:
                    costs[router] = distance
        return costs

    def hops_behind(self, outgoing: OutgoingLink) -> int:
        """Return the number of hops to the farthest consumer behind a lane of a tree."""
        lane = outgoing.node.lane
        assert lane is not None
        behind = self._topology.branches(lane.far, self.egresses(lane.tenant, lane.name))
        routers = behind.get(outgoing.connection.peer.container_id, ())
        return max((self._topology.length(each) or 0 for each in routers), default=0)
