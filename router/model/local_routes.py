"""The routes to other routers, as the steps of a delivery see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.model.blocked import NO_CONSUMERS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from amqpmesh.router.amqp.codec.types import Symbol, Value
    from amqpmesh.router.config.address import AddressConfig
    from amqpmesh.router.kernel import TreeHistory
    from amqpmesh.router.model.blocked import ConsumerRouters
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.model.links import IncomingLink, OutgoingLink
    from amqpmesh.router.model.node import InternalNode, LaneNode, LocalNode, Node


class LocalRoutes:
    """The routes of a router in no mesh: all nodes are its own, so its methods find no other router and no lane.

    A router in a mesh has `MeshRoutes`, which has the same methods.
    """

    is_in_mesh = False

    def nodes(self) -> Sequence[LaneNode]:
        """Return the nodes of lanes."""
        return ()

    # Addresses and routers.

    def ingress(self, node: LocalNode) -> Node:
        """Return the node that the producers of an address are attached to."""
        return node if node.remote is None else node.remote.ingress()

    def routers_of(self, _container: str, /) -> tuple[str, ...]:
        """Return the other routers of the mesh that a container-id stands for, within reach or not."""
        return ()

    def is_reachable(self, _router: str, /) -> bool:
        """Tell whether a path leads to another router."""
        return False

    def consumer_routers(self, _tenant: str, _name: str, /) -> ConsumerRouters:
        """Return the other routers that have consumers of an address."""
        return NO_CONSUMERS

    def routers_with_consumers(self, _tenant: str, _name: str, /) -> Collection[str]:
        """Return the other routers within reach that have consumers of an address."""
        return ()

    def anonymous_route(self, tenant: str, name: str, config: AddressConfig) -> Node | None:
        """Return the node for a message of an anonymous link; None: there is no consumer of its address."""
        raise NotImplementedError

    def anonymous_route_to(self, tenant: str, name: str, container: str, config: AddressConfig) -> Node | None:
        """Return the node for a message to `name@container`; None: there is no path, or no consumer."""
        raise NotImplementedError

    def watch_transit(self, _tenant: str, _address: str, /) -> bool:
        """Tell whether messages to an address leave by the same transit lane until the router's epoch changes."""
        return False

    def watch_local(self, _node: LocalNode, /) -> None:
        """Have the router's epoch change once messages to an address of this router may lead to another node."""

    # Changes that routes follow.

    def consumers_changed(self, node: Node) -> None:
        """Follow a change of the consumers that this router has of an address."""

    def lost_last_link(self, node: Node) -> None:
        """Follow the loss of the last link by which deliveries of a node left."""

    def lane_refused(self, outgoing: OutgoingLink) -> None:
        """Attach again, later, a lane that a neighbour has refused or detached."""

    def need_bulk(self, node: InternalNode) -> None:
        """Attach one more link of a lane, for large messages, if more are allowed."""

    def drop_if_idle(self, node: InternalNode) -> bool:
        """Forget an internal node that has been idle. Returns: whether it was forgotten."""
        raise NotImplementedError

    # Tenants that contend for the credit of a node.

    def contend(self, node: Node) -> None:
        """Have senders of several tenants share the credit of an address with those at other routers."""

    def link_state(self, link: IncomingLink | OutgoingLink, properties: Mapping[Symbol, Value]) -> None:
        """Take what a neighbour says of a lane in the properties of a flow (§2.7.4)."""

    # Deliveries on lanes.

    def new_key(self, lane: Lane) -> bytes:
        """Return the delivery-tag of a delivery that enters a lane here."""
        raise NotImplementedError

    def hop_limit(self, lane: Lane) -> int:
        """Return the most hops of a delivery that enters a lane here."""
        raise NotImplementedError

    def is_new(self, incoming: IncomingLink, tag: bytes) -> bool:
        """Tell whether a delivery of a tree has not come before, from another parent."""
        raise NotImplementedError

    def tree_history(self, _lane: Lane, /) -> TreeHistory | None:
        """Return the history of a tree that leads to this router; None: no delivery of it has come."""
        return None

    def hops_behind(self, _outgoing: OutgoingLink, /) -> int:
        """Return the number of hops to the farthest consumer behind a lane of a tree."""
        return 0

    def receiver_name(self, outgoing: OutgoingLink) -> str:
        """Return a name of a receiver that no other receiver in the mesh has."""
        raise NotImplementedError
