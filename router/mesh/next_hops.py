"""Which neighbours lanes go to, as the topology has it now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.mesh.neighbour import Neighbour
from amqpmesh.router.model.lane import LaneKind

if TYPE_CHECKING:
    from amqpmesh.router.mesh.member import Mesh
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.model.links import OutgoingLink
    from amqpmesh.router.model.node import Address


class NextHops:
    """The next hop of a lane, and how far it leads."""

    def __init__(self, router: str, mesh: Mesh) -> None:
        """Args: router: this one's id."""
        self._id = router
        self._mesh = mesh
        self._topology = mesh.topology

    def children(self, lane: Lane) -> dict[ConnectionRecord, Neighbour]:
        """The connections to the children of this router in a tree that have consumers behind them."""
        consumers = self.egresses(lane.tenant, lane.name)
        neighbours = self._mesh.neighbours
        children = (
            self._topology.adjacency(child, lane.target) for child in self._topology.branches(lane.far, consumers)
        )
        return {each.record: each for each in children if isinstance(each, Neighbour) and each.record in neighbours}

    def next_hop(self, node: Address, lane: Lane) -> dict[ConnectionRecord, Neighbour]:
        """The connection that a lane goes by, if there is a path: the one that it has, while that is as good as any.

        Where nobody consumes any more no path is needed: what is on the way goes back at once.
        """
        topology, neighbours = self._topology, self._mesh.neighbours
        if topology.distance(lane.far) is None:
            return {}
        if lane.kind is LaneKind.ANYCAST and lane.far not in topology.lookup(lane.tenant, lane.name):
            return {}
        kept = next((neighbours.get(each.connection) for each in node.outgoing), None)
        hop = topology.next_hop(lane.far, lane.target, kept)
        return {hop.record: hop} if isinstance(hop, Neighbour) and hop.record in neighbours else {}

    def egresses(self, tenant: str, name: str) -> dict[str, int]:
        """The other routers that have consumers of an address, and what reaching them costs."""
        costs = {}
        for router, advert in self._topology.lookup(tenant, name).items():
            if router != self._id and advert.consumers:
                distance = self._topology.distance(router)
                if distance is not None:
                    costs[router] = distance
        return costs

    def hops_behind(self, outgoing: OutgoingLink) -> int:
        """How many hops the farthest consumer is away to which a lane of a tree leads."""
        lane = outgoing.address.lane
        assert lane is not None
        behind = self._topology.branches(lane.far, self.egresses(lane.tenant, lane.name))
        routers = behind.get(outgoing.connection.peer.container_id, ())
        return max((self._topology.length(each) or 0 for each in routers), default=0)
