"""Consumers of this router's own addresses that are attached to other routers of the mesh, as `name@THIS-ROUTER`.

Where they are attached, that is an address like any other, which its router tells the mesh of. Here a lane leads there
from the address of the name, and stands among its consumers: whatever comes for the name, from producers here or
elsewhere, goes to them by the same rule as to those that are attached here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.address_syntax import local_key, split
from amqpmesh.router.delivery.link_loss import nobody_left
from amqpmesh.router.mesh.neighbour import Neighbour
from amqpmesh.router.model.lane import Lane, LaneKind
from amqpmesh.router.model.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.router.core import Core
    from amqpmesh.router.mesh.member import Mesh
    from amqpmesh.router.mesh.routes import Routes
    from amqpmesh.router.model.links import OutgoingLink
    from amqpmesh.router.model.node import Address


class RemoteConsumers:
    """The lanes to them, by address."""

    def __init__(self, core: Core, mesh: Mesh, routes: Routes) -> None:
        self._core = core
        self._mesh = mesh
        self._routes = routes
        self._own = core.config.names
        #: By (tenant, `name@THIS-ROUTER`), the lane to each router that has consumers of it.
        self._lanes: dict[tuple[str, str], dict[Lane, OutgoingLink]] = {}
        self._most = core.config.mesh.outposts if core.config.mesh is not None else 0
        #: Those that there is no room for, as many at most.
        self._waiting: dict[tuple[str, str], None] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def refresh(self, addresses: Iterable[tuple[str, str]]) -> None:
        """The graph has changed, and with it who has consumers of these."""
        for tenant, address in dict.fromkeys([*self._lanes, *addresses]):  # in an order that is the same in every run
            self.follow(tenant, address)

    def follow(self, tenant: str, address: str) -> None:
        """See to it that there is a lane to each router that has consumers of `name@THIS-ROUTER`, and to no other."""
        core = self._core
        name, container = split(address)
        if container not in self._own:
            return
        wanted = self._wanted(tenant, address, name)
        had = self._lanes.pop((tenant, address), {})
        if wanted and not had and not self._has_room(tenant, address):
            return
        self._waiting.pop((tenant, address), None)
        node = core.addresses.find(tenant, local_key(core.id, name))
        if node is None:
            if not wanted:
                return
            try:
                node = core.elsewhere.followed(tenant, name) or core.addresses.use(tenant, local_key(core.id, name))
            except RefusedError:  # too much is used there
                return
            core.touch(node)
        lanes = {lane: self._lane(node, lane, cost, had.get(lane)) for lane, cost in wanted.items()}
        have = {lane: link for lane, link in lanes.items() if link is not None}
        if wanted:
            # One that no path leads to yet, or that a neighbour did not take, is looked at again when that changes.
            self._lanes[tenant, address] = have
        elif self._waiting:
            core.schedule(core.now, partial(self.follow, *next(iter(self._waiting))))
        over = [link for lane, link in had.items() if have.get(lane) is not link and not link.gone]
        self._routes.lane_links.retire(over)
        core.touch(node)
        if node.outgoing:
            self._routes.consumers_changed(node)
        else:
            nobody_left(core, node)

    def _has_room(self, tenant: str, address: str) -> bool:
        """Whether one more name may have consumers elsewhere; else it waits for one that has none any more."""
        if len(self._lanes) < self._most:
            return True
        if not self._waiting:
            self._core.log.warning("too many outposts", address=address, outposts=self._most)
        if len(self._waiting) < self._most:
            self._waiting[tenant, address] = None
        return False

    def _wanted(self, tenant: str, address: str, name: str) -> dict[Lane, int]:
        """The lanes that there should be, and what reaching the consumers behind each costs."""
        core, topology = self._core, self._mesh.topology
        config = core.addresses.config(name)
        is_away = config.redirect is not None and not config.redirect.is_followed
        if is_away or config.alias is not None or config.distribution is Distribution.UNAVAILABLE:
            return {}  # here nobody may consume it, so nobody elsewhere may
        return {
            Lane(LaneKind.ANYCAST, router, tenant, address): 1 + (topology.distance(router) or 0)
            for router, advert in topology.lookup(tenant, address).items()
            if router != core.id and advert.consumers
        }

    def _lane(self, node: Address, lane: Lane, cost: int, had: OutgoingLink | None) -> OutgoingLink | None:
        """The link of a lane: the one that there is, while its path is as good as any."""
        core, neighbours = self._core, self._mesh.neighbours
        if had is not None and had.gone:
            had = None
        kept = neighbours.get(had.connection) if had is not None else None
        hop = self._mesh.topology.next_hop(lane.far, lane.target, kept)
        if not isinstance(hop, Neighbour) or hop.record not in neighbours:
            return None
        if had is None or hop is not kept:
            return self._routes.lane_links.attach(node, lane, hop, apart=True, cost=cost)
        if had.cost != cost and had.branch is not None:
            had.cost = cost
            node.pool.change_branch(had.branch, 0, cost, not had.skipped, core.now)
            core.touch_outgoing(had)
        return had
