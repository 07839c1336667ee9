"""The ways that deliveries take out of this router, and the lanes that make them.

Where producers of an address are, its *ingress* chooses among the consumers here and the routers that have some: each
has a node of its own, and lends the ingress a share of its credit. Routers between only pass on what comes by a lane.
Routes are made when something needs them, follow the topology, and end when they have been idle.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final

from amqpmesh.policies.access import is_reserved
from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.address_syntax import local_key
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.attach.resolve import limit_windows
from amqpmesh.router.config.address import AddressConfig
from amqpmesh.router.delivery.link_loss import send_back
from amqpmesh.router.mesh.distribution_mismatch import DistributionMismatches
from amqpmesh.router.mesh.ingress import Ingresses, to_all, to_one
from amqpmesh.router.mesh.lane_links import LOCAL_COST, LaneLinks
from amqpmesh.router.mesh.neighbour import BULK_SESSIONS, Neighbour
from amqpmesh.router.mesh.next_hops import NextHops
from amqpmesh.router.mesh.outages import WAIT_TIME, Outages
from amqpmesh.router.mesh.remote_consumers import RemoteConsumers
from amqpmesh.router.mesh.tree_history import TreeHistories
from amqpmesh.router.model.credit_share import Share
from amqpmesh.router.model.lane import EXTRA_HOPS, MAX_HOPS, Keys, Lane, LaneKind
from amqpmesh.router.model.node import Address
from amqpmesh.router.model.refusal import RefusedError
from amqpmesh.router.small_set import SmallSet, with_item, without_item
from amqpmesh.topology.address_book import Advert

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.router.amqp.link import Receiver
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.core import Core
    from amqpmesh.router.mesh.member import Mesh
    from amqpmesh.router.model.links import OutgoingLink

#: Nodes that are looked at in one go after the graph has changed, and the seconds until others are.
BATCH: Final = 100
PAUSE: Final = 0.001

#: Seconds for which it is remembered what came by a tree that nothing comes by any more.
MEMORY_TIME: Final = 60.0


class Routes:
    """The nodes of a router that lead to other routers, and the links that leave them."""

    def __init__(self, core: Core, mesh: Mesh) -> None:
        self._core = core
        self._mesh = mesh
        self._topology = mesh.topology
        self._keys = Keys(core.id, core.flow_state)
        self._idle_time = core.config.mesh.lane_idle if core.config.mesh is not None else 0.0
        #: What leaves by lanes, by the lane; not the trees that begin here.
        self._nodes: dict[Lane, Address] = {}
        #: Those of an address.
        self._by_address: dict[tuple[str, str], SmallSet[Address]] = {}
        self.tree_histories = TreeHistories()
        self.next_hops = NextHops(core.id, mesh)
        self.lane_links = LaneLinks(core, self._retry)
        self._outages = Outages(core, self._topology, self._outage_over)
        #: Nodes that no lane leads to or from, since the graph has changed, and whose turn has not come.
        self._postponed: dict[Address, None] = {}
        self._is_updating = False
        self.ingresses = Ingresses(core, self, mesh.members)
        self.remote_consumers = RemoteConsumers(core, mesh, self)
        self.mismatches = DistributionMismatches(core, mesh.topology)

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def is_empty(self) -> bool:
        """Nothing leaves by lanes, and nobody here sends to other routers' names."""
        return not (self._nodes or len(self.ingresses) or len(self.remote_consumers))

    def nodes(self) -> list[Address]:
        """Those that leave by lanes, now."""
        return list(self._nodes.values())

    # ----------------------------------------------------------------------------------------- where deliveries go

    def transit(self, tenant: str, router: str) -> Address | None:
        """The way to another router, whatever the final address; None: there is no path."""
        if router == self._core.id or self._topology.distance(router) is None:
            return None
        return self.leading(Lane(LaneKind.TRANSIT, router, tenant))

    def route_to(self, tenant: str, name: str, container: str, config: AddressConfig) -> Address | None:
        """Where a message goes that is for a name at one container; None: there is no path, or nobody serves it."""
        members = self._mesh.members.of(container)
        is_one = members == (container,)
        if is_one and not config.redeliver:
            return self.transit(tenant, container)
        if is_reserved(name):
            # Any of them will do, and the nearest does.
            near = [(cost, each) for each in members if (cost := self._topology.distance(each)) is not None]
            return self.transit(tenant, min(near)[1]) if near else None
        told = ((each, self._topology.lookup(tenant, local_key(each, name))) for each in members)
        if not any(each in adverts and adverts[each].consumers for each, adverts in told):
            # One router may serve more than it tells of: what it leads elsewhere, by a pattern.
            return self.transit(tenant, container) if is_one else None
        ingress = self.ingresses.of(self._core.addresses.use(tenant, f"{name}@{container}"))
        return ingress if ingress.has_consumers else None

    def route(self, tenant: str, name: str, config: AddressConfig) -> Address | None:
        """Where a message goes that no link brought to its address; None: nobody serves that."""
        core = self._core
        local = core.addresses.find(tenant, name)
        if is_reserved(name) or (local is not None and local.maker is not None):
            return local
        distribution = config.distribution
        if distribution is Distribution.MULTICAST:
            return self.ingresses.of(core.addresses.use(tenant, name))
        if local is not None and local.ingress is not None:
            return local.ingress
        costs = self.next_hops.egresses(tenant, name)
        if local is not None and local.outgoing:
            costs[core.id] = 0
        if not costs:
            return local
        if config.redeliver:
            # What comes back is given another way, as that of any producer: it may be one that is not there yet.
            return self.ingresses.of(core.addresses.use(tenant, name))
        if distribution is Distribution.CLOSEST:
            least = min(costs.values())
            costs = {router: cost for router, cost in costs.items() if cost == least}
        if len(costs) > 1:
            # Which of them can take it shows where a lane leads to each: one that cannot would only have it wait.
            return self.ingresses.of(core.addresses.use(tenant, name))
        (router,) = costs
        return local if router == core.id else self.transit(tenant, router)

    def new_key(self, lane: Lane) -> bytes:
        """The delivery-tag of a delivery that begins its way by a lane here."""
        # The epoch is what the mesh has found it to be: after a start with a clock that was set back that is higher.
        return self._keys.tag(self._topology.epoch, self._hops(lane))

    def hop_limit(self, lane: Lane) -> int:
        """How many hops deliveries may make that begin their way by a lane here; keys of them may be asked for now."""
        self._keys.begin(self._topology.epoch)
        return self._hops(lane)

    def _hops(self, lane: Lane) -> int:
        far = None if lane.kind is LaneKind.TREE else self._topology.length(lane.far)
        return MAX_HOPS if far is None else min(MAX_HOPS, far + EXTRA_HOPS)

    # -------------------------------------------------------------------------------------------------- what changes

    def refresh(self, addresses: Iterable[tuple[str, str]] = ()) -> None:
        """The graph has changed, and with it who has consumers of these."""
        self._core.flow_state.generation += 1
        within_reach = {router for router in self._topology.routers() if self._topology.distance(router) is not None}
        if self._outages.update(within_reach):
            limit_windows(self._core)
        postponed: list[Address] = []
        for node in self.nodes():
            self._mark_old_parents(node)
            if node.outgoing or node.waiting.size or node.is_multicast:
                self.lead(node)
            else:
                postponed.append(node)
        # Who leads an ingress somewhere leads the nodes that it needs.
        self._postponed.clear()
        for address in self._core.addresses.values():
            ingress = address.ingress
            if ingress is not None:
                is_routed = any(not share.node.held for share in ingress.shares)
                if is_routed or ingress.waiting.size or address.is_multicast:
                    self.ingresses.supply(address)
                else:
                    self._postponed[address] = None
        self._postponed.update(dict.fromkeys(postponed))
        self.remote_consumers.refresh(addresses)
        for tenant, name in addresses:
            self._compare(tenant, name)
        if not self._is_updating:
            self._update_postponed()

    def _outage_over(self, router: str) -> None:
        """A router was waited for long enough: what is kept for its sake leads nowhere."""
        for node in self.nodes():
            if node.held and node.lane is not None and node.lane.far == router:
                self._postponed[node] = None
        if not self._is_updating:
            self._update_postponed()

    def _update_postponed(self) -> None:
        """Look for ways of nodes that have none, a part of them at a time: there may be tens of thousands, and
        while those of one part are attached, neighbours can be about the part before."""
        for node in list(islice(self._postponed, BATCH)):
            del self._postponed[node]
            if node.lane is None:
                if node.ingress is not None:
                    self.ingresses.supply(node)
            elif node.outgoing or self._nodes.get(node.lane) is not node:
                continue
            elif node.borrowers or node.incoming or node.waiting.size:
                self.lead(node)
            else:  # it is led when somebody needs it again
                self._hold(node, waits=False)
        self._is_updating = bool(self._postponed)
        if self._is_updating:
            self._core.schedule(self._core.now + PAUSE, self._update_postponed)

    def follow(self, addresses: Iterable[tuple[str, str]]) -> None:
        """Other routers have consumers of these now, or have none any more."""
        for tenant, name in addresses:
            # Whoever is supplied leads the nodes that lead nowhere yet.
            led = [node for node in self._by_address.get((tenant, name), ()) if node.outgoing or node.is_multicast]
            address = self._core.addresses.find(tenant, name)
            if address is not None and address.ingress is not None:
                self._postponed.pop(address, None)  # its turn is now
                self.ingresses.supply(address)
            self.ingresses.supply_routed(tenant, name)
            for node in list(self._by_address.get((tenant, name), ())):
                if node in led or not node.outgoing:
                    self.lead(node)
            self.remote_consumers.follow(tenant, name)
            self._compare(tenant, name)

    def _compare(self, tenant: str, name: str) -> None:
        """Others tell of an address: see whether they distribute it as this router does, if it is used here."""
        if self._core.addresses.find(tenant, name) is not None:
            self.mismatches.look(tenant, name)

    def consumers_changed(self, address: Address) -> None:
        """A consumer of an address has come here, or is gone."""
        if address.maker is not None or address.far is not None or is_reserved(address.name):
            return
        there_are = bool(address.outgoing)
        if address.is_advertised is not there_are:
            address.is_advertised = there_are
            if there_are:
                self.mismatches.look(address.tenant, address.name)
            advert = Advert(address.config.distribution, consumers=1) if there_are else None
            self._mesh.advertise(address.tenant, address.name, advert)
        if address.ingress is not None:
            self.ingresses.supply(address)
        self.ingresses.supply_routed(address.tenant, address.name)
        for node in list(self._by_address.get((address.tenant, address.name), ())):
            if node.is_multicast:
                self.lead(node)

    def lost_last_link(self, node: Address) -> None:
        """A node has lost the last link that deliveries left by."""
        if node.is_ingress:
            return
        if node.lane is None:
            self.consumers_changed(node)
        else:
            self.lead(node)

    def lane_refused(self, outgoing: OutgoingLink) -> None:
        """A neighbour has detached a lane of ours, or ended its session, or never took it: it is tried again, not at
        once.
        """
        assert outgoing.lane is not None
        self.lane_links.try_later(outgoing.lane, outgoing.connection)

    def is_internal(self, node: Address) -> bool:
        """Whether it is no address as clients see it."""
        return node.lane is not None or node.is_ingress

    def drop_if_idle(self, node: Address) -> bool:
        """Forget a node that nobody has used for a while; whether it was."""
        core, lane = self._core, node.lane
        if node.incoming or node.waiting.size or node.borrowers or node.returning:
            return False
        if any(share.input.waiting for share in node.shares):  # it may have to be given another way
            return False
        if node.is_ingress:
            local = core.addresses.find(node.tenant, node.name)
            if local is not None and local.ingress is node:
                local.ingress = None
                core.touch(local)
                self.ingresses.end_routed(local)
        else:
            assert lane is not None
            if self._nodes.get(lane) is not node:
                return True
            # A tree goes at once: its parent keeps it, who sees whether messages come.
            idle_time = 0.0 if lane.kind is LaneKind.TREE else self._idle_time
            if node.idle_since is None:
                node.idle_since = core.now
                if idle_time:
                    core.schedule(core.now + idle_time, lambda: core.touch(node))
            if core.now < node.idle_since + idle_time:
                return False
            del self._nodes[lane]
            if lane in self.tree_histories:
                until = core.now + MEMORY_TIME
                self.tree_histories.keep(lane, until)
                core.schedule(until, partial(self._forget_history, lane))
            left = without_item(self._by_address.pop((lane.tenant, lane.name)), node)
            if left:
                self._by_address[lane.tenant, lane.name] = left
        for share in list(node.shares):
            self.ingresses.end_share(share)
        self.lane_links.retire(node.outgoing)
        return True

    def _forget_history(self, lane: Lane) -> None:
        if lane not in self._nodes:
            self.tree_histories.forget(lane, self._core.now)

    # --------------------------------------------------------------------------------------------------------- lanes

    def attach_lane(self, neighbour: Neighbour, link: Receiver, attach: Attach, lane: Lane) -> None:
        """A neighbour attaches a lane."""
        core = self._core
        if lane.kind is LaneKind.TREE and self._topology.parent(lane.far) != neighbour.router:
            # One of the two does not know the graph yet; from two parents everything would come twice.
            link.refuse(Error(condition=AmqpCondition.NOT_ALLOWED, description="not the parent in this tree"))
            return
        node: Address | None
        if lane.far != core.id:
            node = self._node(lane)
        elif lane.kind is LaneKind.TRANSIT:
            node = None
        else:
            node = core.addresses.find(lane.tenant, lane.name)
            try:
                if node is None or node.config.redirect is not None:
                    node = core.elsewhere.ingress(lane.tenant, lane.name) or core.addresses.use(lane.tenant, lane.name)
            except RefusedError as refusal:
                link.refuse(refusal.error)
                return
        core.attaching.lane_in(neighbour.record, link, attach, lane, node)
        self.mismatches.look_at_lane(lane)
        if node is not None and node.lane is not None:
            self.lead(node)

    def need_bulk(self, node: Address) -> None:
        """Attach one more link of a lane, for what is large: there is none, or all that it has are busy or stopped."""
        if sum(each.bulk for each in node.outgoing) >= BULK_SESSIONS:
            return
        for each in [each for each in node.outgoing if not each.bulk]:
            neighbour = self._mesh.neighbours.get(each.connection)
            if neighbour is not None:
                self._attach(node, neighbour, bulk=True)

    def _node(self, lane: Lane) -> Address:
        """The node of a lane, made if there is none."""
        node = self._nodes.get(lane)
        if node is None:
            core = self._core
            # Transit has no address: nothing that is configured concerns it.
            config = core.addresses.config(lane.name) if lane.name else AddressConfig(pattern="#")
            if lane.kind is not LaneKind.TRANSIT:
                # The ingress router has decided how the address distributes, and its attach says so.
                config = to_all(config) if lane.kind is LaneKind.TREE else to_one(config)
            node = self._nodes[lane] = Address(lane.tenant, lane.name, config, core.budget, lane=lane)
            nodes = self._by_address.get((lane.tenant, lane.name), ())
            self._by_address[lane.tenant, lane.name] = with_item(nodes, node)
            core.touch(node)
        node.idle_since = None
        return node

    def leading(self, lane: Lane) -> Address | None:
        """The node of a lane that leads somewhere; None: no path does."""
        node = self._node(lane)
        if not node.outgoing:
            self.lead(node)
        return node if node.outgoing else None

    def lead(self, node: Address) -> None:
        """See to it that a node has its lane to the next hop, or to each child of its tree, and no other."""
        core, lane = self._core, node.lane
        assert lane is not None
        if node.held and not node.outgoing and self._outages.concerns(lane):
            return
        if lane.kind is LaneKind.TREE:
            self._lead_tree_here(node, lane)
            hops = self.next_hops.children(lane)
        else:
            hops = self.next_hops.next_hop(node, lane)
        present = {each.connection for each in node.outgoing if not each.bulk}
        for record, neighbour in hops.items():
            if record not in present:
                self._attach(node, neighbour)
        self.lane_links.retire([each for each in node.outgoing if each.connection not in hops])
        if not node.outgoing:
            self._hold(node, waits=lane.kind is LaneKind.ANYCAST and self._outages.concerns(lane))
            if node.held and node.borrowers:  # what was promised stays as it is, and somebody needs it
                return
        core.touch(node)
        if node.has_consumers:
            return
        for share in list(node.borrowers):
            self.ingresses.end_share(share)
            if not share.ingress.has_consumers:
                send_back(core, share.ingress)
        send_back(core, node)

    def _hold(self, node: Address, *, waits: bool) -> None:
        """Keep what leads to a node without a lane, or no longer. Args: waits: its router is likely to be back."""
        if node.held is not waits:
            node.held = waits
            node.pool.hold(inf if waits else 0.0)

    def _attach(self, node: Address, neighbour: Neighbour, *, bulk: bool = False) -> None:
        """Attach a lane, unless the neighbour is to be left alone with it."""
        lane = node.lane
        assert lane is not None
        # All that a tree carries goes by one link: what is large there stops that tree alone.
        apart = lane.kind is LaneKind.TREE
        outgoing = self.lane_links.attach(node, lane, neighbour, apart=apart, bulk=bulk)
        if outgoing is not None:
            outgoing.bulk = bulk
            if lane.kind is LaneKind.ANYCAST and not bulk:
                # What was promised for the sake of another link is kept until this one can have been given credit.
                node.held = False
                node.pool.hold(self._core.now + WAIT_TIME)

    def _retry(self, lane: Lane) -> None:
        # Whichever node is the lane's by now: who was left alone with it, was so for all of them.
        node = self._nodes.get(lane)
        if node is not None:
            self.lead(node)
        local = self._core.addresses.find(lane.tenant, lane.name)
        if local is not None and local.ingress is not None:
            self.ingresses.supply(local)
        self.ingresses.supply_routed(lane.tenant, lane.name)
        self.remote_consumers.follow(lane.tenant, lane.name)

    def _lead_tree_here(self, node: Address, lane: Lane) -> None:
        """See to it that a tree leads to the consumers that are attached here, or where a redirect leads."""
        core = self._core
        here = core.addresses.find(lane.tenant, lane.name)
        if lane.far != core.id and not lane.tenant and lane.name in core.elsewhere.single:
            try:
                here = core.elsewhere.ingress(lane.tenant, lane.name)
            except RefusedError:  # too much is used there
                here = None
        elif here is not None and (here.far is not None or not here.outgoing):
            here = None
        for share in list(node.shares):
            if share.node is not here:
                self.ingresses.end_share(share)
        if here is not None and not node.shares:
            Share(node, here, LOCAL_COST)
            core.touch(here)

    def _mark_old_parents(self, node: Address) -> None:
        """A tree has another parent now: what the one before still sends would come twice."""
        lane = node.lane
        if lane is None or lane.kind is not LaneKind.TREE:
            return
        parent = self._topology.parent(lane.far)
        for incoming in node.incoming:
            # It is not detached, so that what came by it before has its outcome.
            incoming.from_old_parent = incoming.connection.peer.container_id != parent
