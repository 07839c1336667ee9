"""Routes of a router in a mesh, as the steps of a delivery see them; the routes of messages of anonymous senders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.policies.access import is_reserved
from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.address_syntax import local_key, split
from amqpmesh.router.mesh.contenders import Contenders
from amqpmesh.router.mesh.reachability import Reachability
from amqpmesh.router.model.lane import EXTRA_HOPS, MAX_HOPS, Keys, Lane, LaneKind
from amqpmesh.router.model.local_routes import LocalRoutes
from amqpmesh.router.model.node import DynamicNode, LocalNode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from amqpmesh.router.amqp.codec.types import Symbol, Value
    from amqpmesh.router.config.address import AddressConfig
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import TreeHistory
    from amqpmesh.router.mesh.routes import Routes
    from amqpmesh.router.model.blocked import ConsumerRouters
    from amqpmesh.router.model.links import IncomingLink, OutgoingLink
    from amqpmesh.router.model.node import InternalNode, LaneNode, Node
    from amqpmesh.topology.linkstate import Topology
    from amqpmesh.topology.workers import Members


class MeshRoutes(LocalRoutes):
    """The routes of a router in a mesh, as the steps of a delivery see them.

    `anonymous_route` and `anonymous_route_to` choose the route of a message that names its address itself. Ingresses
    choose the routes of all other messages.
    """

    is_in_mesh = True

    def __init__(self, context: Context, topology: Topology, members: Members, routes: Routes) -> None:
        self._context = context
        self._topology = topology
        self._members = members
        self._routes = routes
        self._keys = Keys(context.id, context.kernel)
        self._contenders = Contenders(context)

    def nodes(self) -> list[LaneNode]:
        """Return the nodes of lanes."""
        return self._routes.nodes()

    def ingress(self, node: LocalNode) -> Node:
        """Return the node that the producers of an address are attached to."""
        return node.remote.ingress() if node.remote is not None else self._routes.ingress(node)

    def routers_of(self, container: str, /) -> tuple[str, ...]:
        """Return the other routers of the mesh that a container-id stands for, within reach or not."""
        return self._members.of(container)

    def is_reachable(self, router: str, /) -> bool:
        """Tell whether a path leads to another router."""
        return self._topology.distance(router) is not None

    def consumer_routers(self, tenant: str, name: str, /) -> ConsumerRouters:
        """Return the other routers that have consumers of an address."""
        return self.reachability().of(tenant, name)

    def routers_with_consumers(self, tenant: str, name: str, /) -> Collection[str]:
        """Return the other routers within reach that have consumers of an address."""
        return self._routes.next_hops.egresses(tenant, name)

    def reachability(self) -> Reachability:
        """Return the consumers at other routers as they are now, for queries of many addresses."""
        return Reachability(self._topology, self._members)

    # --------------------------------------------------------------------------------------- changes that routes follow

    def consumers_changed(self, node: Node) -> None:
        """Follow a change of the consumers that this router has of an address."""
        if isinstance(node, LocalNode) and node.remote is None:
            self._routes.consumers_changed(node)

    def lost_last_link(self, node: Node) -> None:
        """Follow the loss of the last link by which deliveries of a node left."""
        self._routes.lost_last_link(node)

    def lane_refused(self, outgoing: OutgoingLink) -> None:
        """Attach again, later, a lane that a neighbour has refused or detached."""
        self._routes.lane_refused(outgoing)

    def need_bulk(self, node: InternalNode) -> None:
        """Attach one more link of a lane, for large messages, if more are allowed."""
        self._routes.need_bulk(node)

    def drop_if_idle(self, node: InternalNode) -> bool:
        """Forget an internal node that has been idle. Returns: whether it was forgotten."""
        return self._routes.drop_if_idle(node)

    def contend(self, node: Node) -> None:
        """Have senders of several tenants share the credit of an address with those at other routers."""
        self._contenders.begin(node)

    def link_state(self, link: IncomingLink | OutgoingLink, properties: Mapping[Symbol, Value]) -> None:
        """Take what a neighbour says of a lane in the properties of a flow (§2.7.4)."""
        self._contenders.hear(link, properties)

    # ------------------------------------------------------------------------------------ messages of anonymous senders

    def transit(self, tenant: str, router: str) -> Node | None:
        """Return the node that leads to another router, whatever the final address; None: there is no path."""
        if router == self._context.id or self._topology.distance(router) is None:
            return None
        return self._routes.reachable(Lane(LaneKind.TRANSIT, router, tenant))

    def anonymous_route_to(self, tenant: str, name: str, container: str, config: AddressConfig) -> Node | None:
        """Return the node for a message to `name@container`; None: there is no path, or no consumer."""
        members = self._members.of(container)
        is_one = members == (container,)
        if is_one and not config.redeliver:
            return self.transit(tenant, container)
        if is_reserved(name):
            # Any of the workers can answer; take the nearest.
            near = [(cost, each) for each in members if (cost := self._topology.distance(each)) is not None]
            return self.transit(tenant, min(near)[1]) if near else None
        lookups = ((each, self._topology.lookup(tenant, local_key(each, name))) for each in members)
        if not any(each in adverts and adverts[each].consumers for each, adverts in lookups):
            # A router can serve more addresses than it advertises: those that it forwards by a pattern.
            return self.transit(tenant, container) if is_one else None
        ingress = self._routes.ingress(self._context.nodes.use(tenant, f"{name}@{container}"))
        return ingress if ingress.has_consumers else None

    def anonymous_route(self, tenant: str, name: str, config: AddressConfig) -> Node | None:
        """Return the node for a message of an anonymous link; None: there is no consumer of its address."""
        context = self._context
        local = context.nodes.find(tenant, name)
        if is_reserved(name) or isinstance(local, DynamicNode):
            return local
        distribution = config.distribution
        if distribution is Distribution.MULTICAST:
            return self._routes.ingress(context.nodes.use(tenant, name))
        if local is not None and local.ingress is not None:
            return local.ingress
        costs = self._routes.next_hops.egresses(tenant, name)
        if local is not None and local.outgoing:
            costs[context.id] = 0
        if not costs:
            return local
        if config.redeliver or config.drops_duplicates:
            # A delivery that is sent back takes another route, which may not exist yet. A message-id has one router.
            return self._routes.ingress(context.nodes.use(tenant, name))
        if distribution is Distribution.CLOSEST:
            least = min(costs.values())
            costs = {router: cost for router, cost in costs.items() if cost == least}
        if len(costs) > 1:
            # Only lanes with credit show which router can take the message: at another one it would wait.
            return self._routes.ingress(context.nodes.use(tenant, name))
        (router,) = costs
        return local if router == context.id else self.transit(tenant, router)

    def watch_transit(self, tenant: str, address: str) -> bool:
        """Tell whether messages to an address leave by the same transit lane until the router's epoch changes.

        The epoch changes once other routers have consumers of it, or this one.
        """
        name, container = split(address)
        if self._context.nodes.config(name).redeliver:
            return False
        if container is None:
            self._routes.watched_addresses.watch(tenant, name)
        return True

    def watch_local(self, node: LocalNode) -> None:
        """Have the router's epoch change once messages to an address of this router may lead to another node."""
        if not (isinstance(node, DynamicNode) or is_reserved(node.name)):
            self._routes.watched_addresses.watch(node.tenant, node.name)

    # ---------------------------------------------------------------------------------------------- deliveries on lanes

    def is_new(self, incoming: IncomingLink, tag: bytes) -> bool:
        """Tell whether a delivery of a tree has not come before, from another parent."""
        return self._routes.tree_histories.is_new(incoming, tag)

    def tree_history(self, lane: Lane) -> TreeHistory | None:
        """Return the history of a tree that leads to this router; None: no delivery of it has come."""
        return self._routes.tree_histories.get(lane)

    def hops_behind(self, outgoing: OutgoingLink, /) -> int:
        """Return the number of hops to the farthest consumer behind a lane of a tree."""
        return self._routes.next_hops.hops_behind(outgoing)

    def receiver_name(self, outgoing: OutgoingLink) -> str:
        """Return a name of a receiver that no other receiver in the mesh has."""
        return f"{self._context.id}/{self._topology.epoch:x}/{outgoing.number}"

    def new_key(self, lane: Lane) -> bytes:
        """Return the delivery-tag of a delivery that enters a lane here."""
        # The topology may have raised the epoch: after a restart with a clock that was set back.
        return self._keys.tag(self._topology.epoch, self._hops(lane))

    def hop_limit(self, lane: Lane) -> int:
        """Return the most hops of a delivery that enters a lane here, and let the kernel make keys for the lane."""
        self._keys.begin(self._topology.epoch)
        return self._hops(lane)

    def _hops(self, lane: Lane) -> int:
        far = None if lane.kind is LaneKind.TREE else self._topology.length(lane.far)
        return MAX_HOPS if far is None else min(MAX_HOPS, far + EXTRA_HOPS)
