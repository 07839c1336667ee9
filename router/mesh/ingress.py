"""Where producers are attached in a mesh: nodes that lead to consumers here and at other routers, by shares."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amqpmesh.policies.access import is_reserved
from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.address_syntax import local_key, split
from amqpmesh.router.delivery.link_loss import send_back
from amqpmesh.router.delivery.queueing import unqueue
from amqpmesh.router.delivery.settlement import end_excluded, route_again
from amqpmesh.router.mesh.lane_links import LOCAL_COST
from amqpmesh.router.model.credit_share import Share
from amqpmesh.router.model.lane import Lane, LaneKind
from amqpmesh.router.model.node import Address
from amqpmesh.topology.workers import name_of

if TYPE_CHECKING:
    from amqpmesh.router.config.address import AddressConfig
    from amqpmesh.router.core import Core
    from amqpmesh.router.mesh.routes import Routes
    from amqpmesh.topology.workers import Members


def to_one(config: AddressConfig) -> AddressConfig:
    """The same for a node that leads to one router: how the address distributes there is that router's affair."""
    if config.distribution in (Distribution.BALANCED, Distribution.CLOSEST):
        return config
    return replace(config, distribution=Distribution.BALANCED)


def to_all(config: AddressConfig) -> AddressConfig:
    """The same for a node of a tree: its ingress router has found that the address is a multicast."""
    return (
        config
        if config.distribution is Distribution.MULTICAST
        else replace(config, distribution=Distribution.MULTICAST)
    )


class Ingresses:
    """The ways out that each ingress has."""

    def __init__(self, core: Core, routes: Routes, members: Members) -> None:
        self._core = core
        self._routes = routes
        self._members = members
        #: What has producers here and is another router's, by the (tenant, name) that it has there.
        self._routed: dict[tuple[str, str], dict[Address, None]] = {}

    def __len__(self) -> int:
        """How many names of other routers have producers here."""
        return len(self._routed)

    def of(self, address: Address) -> Address:
        """Where producers of an address are attached: here, or a node that leads to other routers, too."""
        if address.maker is not None or is_reserved(address.name):
            return address
        if address.ingress is None:
            core, config, lane = self._core, address.config, None
            name, router = split(address.name)
            if router is not None:
                config = to_one(config)
                self._routed.setdefault((address.tenant, local_key(router, name)), {})[address] = None
            elif address.is_multicast:
                lane = Lane(LaneKind.TREE, core.id, address.tenant, address.name)
            ingress = Address(address.tenant, address.name, config, core.budget, lane=lane)
            ingress.is_ingress = True
            address.ingress = ingress
            core.touch(ingress)
            self.supply(address)
            self._routes.mismatches.look(address.tenant, address.name)
        return address.ingress

    def supply(self, address: Address) -> None:
        """Give an ingress the ways out that there are now."""
        core, ingress = self._core, address.ingress
        assert ingress is not None
        if address.far is not None:
            return
        if ingress.is_multicast:
            self._routes.lead(ingress)
            return
        wanted = self._wanted(address)
        gone = []
        leads, moved = bool(wanted), False
        for share in ingress.shares:
            cost_now = wanted.pop(share.node, None)
            if cost_now is not None:
                moved = moved or cost_now != share.cost
                share.set_cost(cost_now, core.now)
            elif leads or not share.node.held:  # where nothing else leads on, what is lost is waited for
                gone.append(share)
        for node, cost in wanted.items():
            Share(ingress, node, cost)
            core.touch(node)
        for share in gone:  # now there may be others for what they leave behind
            self.end_share(share)
        if gone or wanted or moved:
            core.touch(ingress)
        if not ingress.has_consumers:
            send_back(core, ingress)

    def _wanted(self, address: Address) -> dict[Address, int]:
        """The ways out that an ingress is to have, and what reaching consumers by each costs."""
        core, routes, tenant = self._core, self._routes, address.tenant
        name, only = split(address.name)
        if only is None:
            wanted = {address: LOCAL_COST} if address.outgoing else {}
            leading = [(router, name, cost) for router, cost in routes.next_hops.egresses(tenant, name).items()]
        else:
            # What has this name here are consumers of it: they wait at that router, among its own.
            wanted, leading = {}, []
            for router in self._members.of(only):
                there = local_key(router, name)
                cost = routes.next_hops.egresses(tenant, there).get(router)
                if cost is not None:
                    leading.append((router, there, cost))
                elif router == core.id != only:  # one of those that are this one
                    here = core.addresses.find(tenant, there)
                    wanted |= {here: LOCAL_COST} if here is not None and here.outgoing else {}
        for router, there, cost in leading:
            node = routes.leading(Lane(LaneKind.ANYCAST, router, tenant, there))
            if node is not None:
                wanted[node] = LOCAL_COST + cost
        return wanted

    def end_share(self, share: Share) -> None:
        """An ingress has this way no longer: what waits in it looks for another."""
        core = self._core
        share.end(core.now)
        for relay in share.node.waiting.relays():
            if relay.share is share:
                unqueue(core, relay)
                route_again(core, relay)
        if share.ingress.config.redeliver and share.ingress.shares:
            end_excluded(core, share.ingress)
        core.touch(share.node)
        core.touch(share.ingress)

    def supply_routed(self, tenant: str, name: str) -> None:
        """The producers of `name@router` here, whichever router it is, that knows its address as `name`."""
        if not self._routed:
            return
        for address in list(self._routed.get((tenant, name), ())):
            self.supply(address)
        local, router = split(name)
        shared = None if router is None else name_of(router)
        if shared is not None:  # of several that are one each knows it by another name
            for address in list(self._routed.get((tenant, local_key(shared, local)), ())):
                self.supply(address)

    def end_routed(self, address: Address) -> None:
        """Nobody here sends to a name at another router any more."""
        name, router = split(address.name)
        if router is not None:
            key = address.tenant, local_key(router, name)
            those = self._routed[key]
            del those[address]
            if not those:
                del self._routed[key]
