"""Where producers are attached in a mesh: nodes that lead to consumers here and at other routers, by shares."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amqpmesh.policies.access import RESERVED
from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.addresses import Address
from amqpmesh.router.departures import send_back
from amqpmesh.router.lanes import Lane, LaneKind
from amqpmesh.router.lanes_out import LOCAL_COST
from amqpmesh.router.names import as_known_at, split
from amqpmesh.router.shares import Share
from amqpmesh.router.waiting import unqueue

if TYPE_CHECKING:
    from amqpmesh.router.core import Core
    from amqpmesh.router.settings.address import AddressConfig
    from amqpmesh.router.ways import Ways


def to_one(config: AddressConfig) -> AddressConfig:
    """The same for a node that leads to one router: how that distributes there, is its affair."""
    if config.distribution is not Distribution.MULTICAST:
        return config
    return replace(config, distribution=Distribution.BALANCED)


class Ingresses:
    """The ways out that each ingress has."""

    def __init__(self, core: Core, ways: Ways) -> None:
        self._core = core
        self._ways = ways
        #: What has producers here and is another router's, by the (tenant, name) that it has there.
        self._routed: dict[tuple[str, str], dict[Address, None]] = {}

    def __len__(self) -> int:
        """How many names of other routers have producers here."""
        return len(self._routed)

    def of(self, address: Address) -> Address:
        """Where producers of an address are attached: here, or a node that leads to other routers, too."""
        if address.maker is not None or address.name.startswith(RESERVED):
            return address
        if address.ingress is None:
            core, config, lane = self._core, address.config, None
            name, router = split(address.name)
            if router is not None:
                config = to_one(config)
                self._routed.setdefault((address.tenant, as_known_at(router, name)), {})[address] = None
            elif address.is_multicast:
                lane = Lane(LaneKind.TREE, core.id, address.tenant, address.name)
            ingress = Address(address.tenant, address.name, config, core.budget, lane=lane)
            ingress.is_ingress = True
            address.ingress = ingress
            core.touch(ingress)
            self.supply(address)
        return address.ingress

    def supply(self, address: Address) -> None:
        """Give an ingress the ways out that there are now."""
        core, ingress = self._core, address.ingress
        assert ingress is not None
        if address.far is not None:
            return
        if ingress.is_multicast:
            self._ways.lead(ingress)
            return
        name, only = split(address.name)
        if only is None:
            wanted: dict[Address, int] = {address: LOCAL_COST} if address.outgoing else {}
        else:
            # What has this name here are consumers of it: they wait at that router, among its own.
            name, wanted = as_known_at(only, name), {}
        for router, cost in self._ways.hops.egresses(address.tenant, name).items():
            if only in (None, router):
                node = self._ways.leading(Lane(LaneKind.ANYCAST, router, address.tenant, name))
                if node is not None:
                    wanted[node] = LOCAL_COST + cost
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

    def end_share(self, share: Share) -> None:
        """An ingress has this way no longer: what waits in it looks for another."""
        core = self._core
        share.end(core.now)
        for relay in share.node.waiting.relays():
            if relay.share is share:
                unqueue(core, relay)
                core.settlement.route_again(relay)
        if share.ingress.config.redeliver and share.ingress.shares:
            core.settlement.end_excluded(share.ingress)
        core.touch(share.node)
        core.touch(share.ingress)

    def supply_routed(self, tenant: str, name: str) -> None:
        """The producers of `name@router` here, whichever router it is, that knows its address as `name`."""
        for address in list(self._routed.get((tenant, name), ())):
            self.supply(address)

    def end_routed(self, address: Address) -> None:
        """Nobody here sends to a name at another router any more."""
        name, router = split(address.name)
        if router is not None:
            key = address.tenant, as_known_at(router, name)
            those = self._routed[key]
            del those[address]
            if not those:
                del self._routed[key]
