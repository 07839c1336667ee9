"""Ingress nodes: the nodes that producers attach to in a mesh. They lead to consumers here and at other routers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.address_syntax import local_key, split
from amqpmesh.router.config.address import Duplicates
from amqpmesh.router.delivery.link_loss import release_queued
from amqpmesh.router.delivery.queueing import unqueue
from amqpmesh.router.delivery.settlement import end_excluded, route_again
from amqpmesh.router.model.credit_share import LOCAL_COST, CreditShare
from amqpmesh.router.model.lane import Lane, LaneKind
from amqpmesh.router.model.node import IngressNode
from amqpmesh.topology.workers import name_of

if TYPE_CHECKING:
    from amqpmesh.router.config.address import AddressConfig
    from amqpmesh.router.context import Context
    from amqpmesh.router.mesh.next_hops import NextHops
    from amqpmesh.router.mesh.watched_addresses import WatchedAddresses
    from amqpmesh.router.model.node import LocalNode, Node
    from amqpmesh.topology.workers import Members


def to_one(config: AddressConfig) -> AddressConfig:
    """Return the configuration of a node that leads to one router.

    That router decides how the address distributes there.
    """
    if config.distribution in (Distribution.BALANCED, Distribution.CLOSEST):
        return config
    return replace(config, distribution=Distribution.BALANCED)


def to_all(config: AddressConfig) -> AddressConfig:
    """Return the configuration of a node of a tree: its ingress router has decided that the address is a multicast."""
    return (
        config
        if config.distribution is Distribution.MULTICAST
        else replace(config, distribution=Distribution.MULTICAST, duplicates=Duplicates.OFF)
    )


def to_any(config: AddressConfig) -> AddressConfig:
    """Return the configuration of an ingress that chooses routers by message-ids: each of them counts, near or far."""
    if config.distribution is Distribution.CLOSEST:
        return replace(config, distribution=Distribution.BALANCED)
    return config


class Destinations(NamedTuple):
    """The places with consumers of an address, each with the cost of reaching them."""

    here: dict[Node, int]
    """Nodes of this router."""
    lanes: dict[Lane, int]
    """Lanes to other routers."""


class Ingresses:
    """The ingress nodes of a router. `Routes` decides which nodes each of them leads to."""

    def __init__(
        self, context: Context, next_hops: NextHops, members: Members, watched_addresses: WatchedAddresses
    ) -> None:
        self._context = context
        self._next_hops = next_hops
        self._members = members
        self._watched_addresses = watched_addresses
        #: The addresses `name@router` with producers here, by the (tenant, name) that they have at that router.
        self._routed: dict[tuple[str, str], dict[LocalNode, None]] = {}

    def __len__(self) -> int:
        """Return the number of names at other routers, as in `name@router`, that producers here send to."""
        return len(self._routed)

    def make(self, node: LocalNode) -> None:
        """Give an address its ingress node, which leads nowhere yet."""
        context, config, lane = self._context, node.config, None
        name, router = split(node.name)
        if router is not None:
            config = to_one(config)
            self._routed.setdefault((node.tenant, local_key(router, name)), {})[node] = None
        elif node.is_multicast:
            lane = Lane(LaneKind.TREE, context.id, node.tenant, node.name)
        self._watched_addresses.changed(node.tenant, node.name)  # its messages lead to the ingress now
        if config.drops_duplicates:
            config = to_any(config)
        node.ingress = IngressNode(node.tenant, node.name, config, context.usages.memory_of(node.tenant), lane)
        context.touch(node.ingress)

    def destinations(self, node: LocalNode) -> Destinations:
        """Return the places with consumers of an address that is no multicast."""
        context, tenant = self._context, node.tenant
        name, only = split(node.name)
        here: dict[Node, int] = {}
        lanes: dict[Lane, int] = {}
        if only is None:
            if node.outgoing:
                here[node] = LOCAL_COST
            for router, cost in self._next_hops.egresses(tenant, name).items():
                lanes[Lane(LaneKind.ANYCAST, router, tenant, name)] = LOCAL_COST + cost
            return Destinations(here, lanes)
        # Local receivers of `name@router` are consumers at that router: `RemoteConsumers` serves them.
        for router in self._members.of(only):
            there = local_key(router, name)
            cost_there = self._next_hops.egresses(tenant, there).get(router)
            if cost_there is not None:
                lanes[Lane(LaneKind.ANYCAST, router, tenant, there)] = LOCAL_COST + cost_there
            elif router == context.id != only:  # this router is one of the workers that share the name
                local = context.nodes.find(tenant, there)
                if local is not None and local.outgoing:
                    here[local] = LOCAL_COST
        return Destinations(here, lanes)

    def set_shares(self, local: LocalNode, wanted: dict[Node, int]) -> None:
        """Let an ingress lead to exactly these nodes. Args: wanted: the cost of reaching the consumers behind each."""
        context, ingress = self._context, local.ingress
        assert ingress is not None
        missing, gone, moved, had = dict(wanted), [], False, bool(ingress.shares)
        for share in ingress.shares:
            cost_now = missing.pop(share.node, None)
            if cost_now is not None:
                moved = moved or cost_now != share.cost
                share.set_cost(cost_now, context.now)
            elif wanted or not share.node.held:  # a lost route is kept for a while if there is no other
                gone.append(share)
        for node, cost in missing.items():
            CreditShare(ingress, node, cost)
            context.touch(node)
        for share in gone:  # after the new ones, which can take the deliveries of the old ones
            self.end_share(share)
        if gone or missing or moved:
            context.touch(ingress)
        if had and (gone or missing) and ingress.config.drops_duplicates:
            context.kernel.windows.moved += 1
        if not ingress.has_consumers:
            release_queued(context, ingress)

    def end_share(self, share: CreditShare) -> None:
        """Take a node from an ingress. Deliveries that wait there are routed again."""
        context = self._context
        share.end(context.now)
        for relay in share.node.waiting.relays():
            if relay.share is share:
                unqueue(context, relay)
                route_again(context, relay)
        if share.ingress.config.redeliver and share.ingress.shares:
            end_excluded(context, share.ingress)
        context.touch(share.node)
        context.touch(share.ingress)

    def routed(self, tenant: str, name: str) -> list[LocalNode]:
        """Return the addresses `...@ROUTER` with producers here, for all routers at which the address is `name`."""
        if not self._routed:
            return []
        found = list(self._routed.get((tenant, name), ()))
        local, router = split(name)
        shared = None if router is None else name_of(router)
        if shared is not None:  # workers share a name, and each of them knows the address by its own name
            found += self._routed.get((tenant, local_key(shared, local)), ())
        return found

    def forget(self, node: LocalNode) -> None:
        """Forget an address whose ingress is gone."""
        name, router = split(node.name)
        if router is not None:
            key = node.tenant, local_key(router, name)
            those = self._routed[key]
            del those[node]
            if not those:
                del self._routed[key]
