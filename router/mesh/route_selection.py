"""Selection of the route of a message that no lane or local link determines, and the keys of deliveries on lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.policies.access import is_reserved
from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.address_syntax import local_key
from amqpmesh.router.model.lane import EXTRA_HOPS, MAX_HOPS, Keys, Lane, LaneKind

if TYPE_CHECKING:
    from amqpmesh.router.config.address import AddressConfig
    from amqpmesh.router.core import Core
    from amqpmesh.router.mesh.routes import Routes
    from amqpmesh.router.model.node import Address
    from amqpmesh.topology.linkstate import Topology
    from amqpmesh.topology.workers import Members


class RouteSelection:
    """The choice among the routes of a router, for messages that name their address themselves."""

    def __init__(self, core: Core, topology: Topology, members: Members, routes: Routes) -> None:
        self._core = core
        self._topology = topology
        self._members = members
        self._routes = routes
        self._keys = Keys(core.id, core.flow_state)

    def transit(self, tenant: str, router: str) -> Address | None:
        """Return the node that leads to another router, whatever the final address; None: there is no path."""
        if router == self._core.id or self._topology.distance(router) is None:
            return None
        return self._routes.reachable(Lane(LaneKind.TRANSIT, router, tenant))

    def route_to(self, tenant: str, name: str, container: str, config: AddressConfig) -> Address | None:
        """Return the node for a message to `name@container`; None: there is no path, or no consumer."""
        members = self._members.of(container)
        is_one = members == (container,)
        if is_one and not config.redeliver:
            return self.transit(tenant, container)
        if is_reserved(name):
            # Any of the workers can answer; take the nearest.
            near = [(cost, each) for each in members if (cost := self._topology.distance(each)) is not None]
            return self.transit(tenant, min(near)[1]) if near else None
        told = ((each, self._topology.lookup(tenant, local_key(each, name))) for each in members)
        if not any(each in adverts and adverts[each].consumers for each, adverts in told):
            # A router can serve more addresses than it advertises: those that it forwards by a pattern.
            return self.transit(tenant, container) if is_one else None
        ingress = self._routes.ingress(self._core.addresses.use(tenant, f"{name}@{container}"))
        return ingress if ingress.has_consumers else None

    def route(self, tenant: str, name: str, config: AddressConfig) -> Address | None:
        """Return the node for a message of an anonymous link; None: there is no consumer of its address."""
        core = self._core
        local = core.addresses.find(tenant, name)
        if is_reserved(name) or (local is not None and local.maker is not None):
            return local
        distribution = config.distribution
        if distribution is Distribution.MULTICAST:
            return self._routes.ingress(core.addresses.use(tenant, name))
        if local is not None and local.ingress is not None:
            return local.ingress
        costs = self._routes.next_hops.egresses(tenant, name)
        if local is not None and local.outgoing:
            costs[core.id] = 0
        if not costs:
            return local
        if config.redeliver:
            # A delivery that is sent back takes another route, which may not exist yet.
            return self._routes.ingress(core.addresses.use(tenant, name))
        if distribution is Distribution.CLOSEST:
            least = min(costs.values())
            costs = {router: cost for router, cost in costs.items() if cost == least}
        if len(costs) > 1:
            # Only lanes with credit show which router can take the message: at another one it would wait.
            return self._routes.ingress(core.addresses.use(tenant, name))
        (router,) = costs
        return local if router == core.id else self.transit(tenant, router)

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
