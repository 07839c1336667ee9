"""Routes of deliveries out of this router, and the lanes that carry them.

Producers of an address attach to its *ingress*. The ingress chooses among the consumers here and the routers that have
consumers. Each of those has a node of its own, and lends the ingress a share of its credit. Routers in between only
pass on the deliveries of a lane. A route is made on demand, follows the topology, and ends after an idle time.

`Routes` alone decides: `reconcile` gives a node the lanes and shares that the topology asks for. The parts
(`NextHops`, `LaneNodes`, `LaneLinks`, `Ingresses`, `RemoteConsumers`, `Outages`) return what they find, and call
nobody back.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final

from amqpmesh.policies.access import is_within
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.attach.resolve import limit_windows
from amqpmesh.router.delivery.link_loss import release_queued
from amqpmesh.router.mesh.distribution_mismatch import DistributionMismatches
from amqpmesh.router.mesh.ingress import Ingresses
from amqpmesh.router.mesh.lane_connection import BULK_SESSIONS
from amqpmesh.router.mesh.lane_links import RETRY_TIME, LaneLinks, take_lane
from amqpmesh.router.mesh.lane_nodes import LaneNodes
from amqpmesh.router.mesh.outages import WAIT_TIME, Outages
from amqpmesh.router.mesh.remote_consumers import RemoteConsumers
from amqpmesh.router.mesh.tree_history import TreeHistories
from amqpmesh.router.mesh.watched_addresses import WatchedAddresses
from amqpmesh.router.model.credit_share import LOCAL_COST, CreditShare
from amqpmesh.router.model.lane import Lane, LaneKind
from amqpmesh.router.model.node import DynamicNode, LaneNode, LocalNode
from amqpmesh.router.model.refusal import RefusedError
from amqpmesh.topology.address_book import Advert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from amqpmesh.router.amqp.link import Receiver
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.containers.remote_nodes import RemoteNodes
    from amqpmesh.router.context import Context
    from amqpmesh.router.mesh.lane_connection import LaneConnection
    from amqpmesh.router.mesh.next_hops import NextHops
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.links import OutgoingLink
    from amqpmesh.router.model.node import InternalNode, Node
    from amqpmesh.topology.linkstate import Topology
    from amqpmesh.topology.workers import Members

#: Nodes that are reconciled in one go after the graph has changed, and the seconds until the next ones.
BATCH: Final = 100
PAUSE: Final = 0.001

#: Seconds for which the history of a tree is kept when the tree is no longer used.
MEMORY_TIME: Final = 60.0


class Routes:
    """The nodes of a router that lead to other routers, and the links that leave them."""

    def __init__(
        self,
        context: Context,
        remote_nodes: RemoteNodes,
        topology: Topology,
        members: Members,
        next_hops: NextHops,
        advertise: Callable[[str, str, Advert | None], None],
    ) -> None:
        """Args: advertise: as `MeshMember.advertise`."""
        self._context = context
        self._remote_nodes = remote_nodes
        self._topology = topology
        self._advertise = advertise
        self._idle_time = context.config.mesh.lane_idle if context.config.mesh is not None else 0.0
        self._nodes = LaneNodes(context)
        self.tree_histories = TreeHistories()
        self.watched_addresses = WatchedAddresses(context.kernel)
        self.next_hops = next_hops
        self.lane_links = LaneLinks(context, topology)
        self._outages = Outages(context, topology)
        #: Nodes without a lane that are not reconciled yet since the graph has changed.
        self._postponed: dict[LocalNode | LaneNode, None] = {}
        self._is_reconciling = False
        self.ingresses = Ingresses(context, self.next_hops, members, self.watched_addresses)
        self.remote_consumers = RemoteConsumers(context, remote_nodes, topology)
        self.mismatches = DistributionMismatches(context, topology)

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def is_empty(self) -> bool:
        """True if no delivery can leave by a lane, and no producer here sends to a name of another router."""
        return not (self._nodes or self.ingresses or self.remote_consumers)

    def nodes(self, of: tuple[str, str] | None = None) -> list[LaneNode]:
        """Return the nodes of lanes. Args: of: the tenant and the name of an address; None: all."""
        return self._nodes.all() if of is None else self._nodes.of(*of)

    def ingress(self, node: LocalNode) -> Node:
        """Return the node that producers of an address attach to: the ingress, which is made if there is none."""
        if isinstance(node, DynamicNode) or is_within(node.name):
            return node
        if node.ingress is None:
            self.ingresses.make(node)
            self.reconcile(node)
            self.mismatches.check(node.tenant, node.name)
        assert node.ingress is not None
        return node.ingress

    # -------------------------------------------------------------------------------------------------- what changes

    def graph_changed(self, addresses: Iterable[tuple[str, str]] = ()) -> None:
        """Follow a change of the graph. Args: addresses: those whose consumers have changed as well."""
        self._context.kernel.generation += 1
        self.watched_addresses.end_routes()
        within_reach = {router for router in self._topology.routers() if self._topology.distance(router) is not None}
        changed, until = self._outages.update(within_reach)
        if until is not None:
            self._context.schedule(until, partial(self._end_outages, until))
        if changed:
            limit_windows(self._context)
        postponed: list[LaneNode] = []
        for node in self.nodes():
            self._mark_old_parents(node)
            if node.outgoing or node.waiting.size or node.is_multicast:
                self.reconcile(node)
            else:
                postponed.append(node)
        # To reconcile an ingress reconciles the nodes that it needs, so ingresses come first.
        self._postponed.clear()
        for local in self._context.nodes.values():
            ingress = local.ingress
            if ingress is not None:
                is_routed = any(not share.node.held for share in ingress.shares)
                if is_routed or ingress.waiting.size or local.is_multicast:
                    self.reconcile(local)
                else:
                    self._postponed[local] = None
        self._postponed.update(dict.fromkeys(postponed))
        for tenant, name in self.remote_consumers.addresses(addresses):
            self._reconcile_remote_consumers(tenant, name)
        for tenant, name in addresses:
            self._compare(tenant, name)
        if not self._is_reconciling:
            self._reconcile_postponed()

    def _end_outages(self, until: float) -> None:
        """Let go of the lanes to routers that were waited for long enough."""
        ended = set(self._outages.end(until))
        for node in self.nodes():
            if node.held and node.lane.far in ended:
                self._postponed[node] = None
        if ended and not self._is_reconciling:
            self._reconcile_postponed()

    def _reconcile_postponed(self) -> None:
        """Reconcile a part of the nodes that have no lane, and schedule the next part.

        There can be tens of thousands of such nodes. While the lanes of one part are attached, neighbours handle the
        part before.
        """
        for node in list(islice(self._postponed, BATCH)):
            del self._postponed[node]
            if isinstance(node, LocalNode):
                if node.ingress is not None:
                    self.reconcile(node)
            elif node.outgoing or self._nodes.get(node.lane) is not node:
                continue
            elif node.borrowers or node.incoming or node.waiting.size:
                self.reconcile(node)
            else:  # it gets a lane when it is used again
                self._hold(node, waits=False)
        self._is_reconciling = bool(self._postponed)
        if self._is_reconciling:
            self._context.schedule(self._context.now + PAUSE, self._reconcile_postponed)

    def consumers_elsewhere_changed(self, addresses: Iterable[tuple[str, str]]) -> None:
        """Follow a change of the consumers that other routers have of these addresses."""
        for tenant, name in addresses:
            # To reconcile an ingress gives lanes to the nodes that have none yet.
            had_lanes = [node for node in self._nodes.of(tenant, name) if node.outgoing or node.is_multicast]
            local = self._context.nodes.find(tenant, name)
            if local is not None and local.ingress is not None:
                self._postponed.pop(local, None)
                self.reconcile(local)
            else:
                self.watched_addresses.changed(tenant, name)
            self._reconcile_routed(tenant, name)
            for node in self._nodes.of(tenant, name):
                if node in had_lanes or not node.outgoing:
                    self.reconcile(node)
            self._reconcile_remote_consumers(tenant, name)
            self._compare(tenant, name)

    def _compare(self, tenant: str, name: str) -> None:
        """Check that other routers distribute an address as this router does, if the address is used here."""
        if self._context.nodes.find(tenant, name) is not None:
            self.mismatches.check(tenant, name)

    def consumers_changed(self, local: LocalNode) -> None:
        """Follow a change of the consumers that this router has of an address."""
        if isinstance(local, DynamicNode) or local.remote is not None or is_within(local.name):
            return
        there_are = bool(local.outgoing)
        if local.is_advertised is not there_are:
            local.is_advertised = there_are
            self.watched_addresses.changed(local.tenant, local.name)
            if there_are:
                self.mismatches.check(local.tenant, local.name)
            advert = Advert(local.config.advertised, consumers=1) if there_are else None
            self._advertise(local.tenant, local.name, advert)
        if local.ingress is not None:
            self.reconcile(local)
        self._reconcile_routed(local.tenant, local.name)
        for node in self._nodes.of(local.tenant, local.name):
            if node.is_multicast:
                self.reconcile(node)

    def lost_last_link(self, node: Node) -> None:
        """Follow the loss of the last link by which deliveries of a node left."""
        if isinstance(node, LocalNode):
            self.consumers_changed(node)
        elif isinstance(node, LaneNode):
            self.reconcile(node)

    def lane_refused(self, outgoing: OutgoingLink) -> None:
        """Follow the loss of a lane: the neighbour refused or detached it, or ended its session."""
        assert outgoing.lane is not None
        self._try_later(outgoing.lane, outgoing.connection)

    def drop_if_idle(self, node: InternalNode) -> bool:
        """Forget a node that was not used for a while. Returns: whether it is forgotten."""
        context = self._context
        if node.incoming or node.waiting.size or node.borrowers or node.returning:
            return False
        if any(share.credit_sink.waiting for share in node.shares):  # its delivery may have to take another route
            return False
        if not isinstance(node, LaneNode):
            if node.is_named and node.has_consumers and self._nodes.is_in_use(node, self._idle_time):
                return False
            local = context.nodes.find(node.tenant, node.name)
            if local is not None and local.ingress is node:
                local.ingress = None
                context.touch(local)
                self.ingresses.forget(local)
        else:
            lane = node.lane
            if self._nodes.get(lane) is not node:
                return True
            # A tree is forgotten at once: its parent, which sees the messages, keeps the lane while it is used.
            idle_time = 0.0 if lane.kind is LaneKind.TREE else self._idle_time
            if self._nodes.is_in_use(node, idle_time):
                return False
            self._nodes.remove(lane)
            if lane in self.tree_histories:
                until = context.now + MEMORY_TIME
                self.tree_histories.keep(lane, until)
                context.schedule(until, partial(self._forget_history, lane))
        for share in list(node.shares):
            self.ingresses.end_share(share)
        self.lane_links.retire(node.outgoing)
        return True

    def _forget_history(self, lane: Lane) -> None:
        if self._nodes.get(lane) is None:
            self.tree_histories.forget(lane, self._context.now)

    # --------------------------------------------------------------------------------------------------------- lanes

    def attach_lane(self, neighbour: LaneConnection, endpoint: Receiver, attach: Attach, lane: Lane) -> None:
        """Answer a neighbour's attach of a lane."""
        context = self._context
        if lane.kind is LaneKind.TREE and self._topology.parent(lane.far) != neighbour.router:
            # One of the two routers does not know the new graph yet. Two parents would send each delivery twice.
            endpoint.refuse(Error(condition=AmqpCondition.NOT_ALLOWED, description="not the parent in this tree"))
            return
        node: Node | None
        if lane.far != context.id:
            node = self._nodes.use(lane)
        elif lane.kind is LaneKind.TRANSIT:
            node = None
        else:
            node = context.nodes.find(lane.tenant, lane.name)
            try:
                if node is None or node.config.redirect is not None:
                    node = self._remote_nodes.ingress(lane.tenant, lane.name) or context.nodes.use(
                        lane.tenant, lane.name
                    )
            except RefusedError as refusal:
                endpoint.refuse(refusal.error)
                return
        take_lane(context, neighbour, endpoint, attach, lane, node)
        self.mismatches.check_lane(lane)
        if isinstance(node, LaneNode):
            self.reconcile(node)

    def need_bulk(self, node: InternalNode) -> None:
        """Attach one more link of a lane for large deliveries: there is none, or all of them are busy or stopped."""
        if sum(each.bulk for each in node.outgoing) >= BULK_SESSIONS:
            return
        for each in [each for each in node.outgoing if not each.bulk]:
            neighbour = self.next_hops.connection(each.connection)
            if neighbour is not None:
                self._attach(node, neighbour, bulk=True)

    def reachable(self, lane: Lane) -> LaneNode | None:
        """Return the node of a lane that has a path; None: there is no path."""
        node = self._nodes.use(lane)
        if not node.outgoing:
            self.reconcile(node)
        return node if node.outgoing else None

    def reconcile(self, node: LocalNode | LaneNode) -> None:
        """Give a node the lanes and shares that the topology asks for now, and no others.

        Args: node: a lane node gets the lane to the next hop, or to each child of its tree. The ingress of a local
            node gets a share of each node that leads to consumers.
        """
        if isinstance(node, LaneNode):
            self._reconcile_lane(node, node.lane)
            return
        ingress = node.ingress
        assert ingress is not None
        if node.remote is not None:
            return
        if ingress.lane is not None:
            self._reconcile_lane(ingress, ingress.lane)
            return
        found = self.ingresses.destinations(node)
        wanted = dict(found.here)
        for lane, cost in found.lanes.items():
            far = self.reachable(lane)
            if far is not None:
                wanted[far] = cost
        self.ingresses.set_shares(node, wanted)

    def _reconcile_lane(self, node: InternalNode, lane: Lane) -> None:
        context = self._context
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
            if node.held and node.borrowers:  # the granted credit stays, for producers hold it
                return
        context.touch(node)
        if node.has_consumers:
            return
        for share in list(node.borrowers):
            self.ingresses.end_share(share)
            if not share.ingress.has_consumers:
                release_queued(context, share.ingress)
        release_queued(context, node)

    def _reconcile_routed(self, tenant: str, name: str) -> None:
        """Reconcile the addresses `name@router` with producers here, for all routers at which the address is `name`."""
        for node in self.ingresses.routed(tenant, name):
            self.reconcile(node)

    def _reconcile_remote_consumers(self, tenant: str, address: str) -> None:
        """Give `name@THIS-ROUTER` a lane to each router that has consumers of it, and no other lane."""
        context, remote = self._context, self.remote_consumers
        if not remote.is_own(address):
            return
        wanted, had = remote.wanted(tenant, address), remote.take_links(tenant, address)
        if wanted and not had and not remote.has_room(tenant, address):
            return
        remote.stop_waiting(tenant, address)
        try:
            node = remote.use_local_node(tenant, address) if wanted else remote.local_node(tenant, address)
        except RefusedError:
            return
        if node is None:
            return
        links = {lane: self._remote_link(node, lane, cost, had.get(lane)) for lane, cost in wanted.items()}
        have = {lane: link for lane, link in links.items() if link is not None}
        if wanted:
            remote.set_links(tenant, address, have)
        elif (waiting := remote.first_waiting()) is not None:
            context.schedule(context.now, partial(self._reconcile_remote_consumers, *waiting))
        self.lane_links.retire([link for lane, link in had.items() if have.get(lane) is not link and not link.gone])
        context.touch(node)
        self.consumers_changed(node)
        if not node.outgoing:
            release_queued(context, node)

    def _remote_link(self, node: Node, lane: Lane, cost: int, had: OutgoingLink | None) -> OutgoingLink | None:
        """Return the link of a lane to remote consumers: the present one, while no other neighbour is nearer."""
        if had is not None and had.gone:
            had = None
        hop = self.next_hops.toward(lane, had)
        if hop is None:
            return None
        if had is None or hop.record is not had.connection:
            return self._attach_link(node, lane, hop, apart=True, cost=cost)
        if had.cost != cost and had.credit_source is not None:
            had.cost = cost
            node.pool.change_source(had.credit_source, 0, cost, not had.skipped, self._context.now)
            self._context.touch_outgoing(had)
        return had

    def _hold(self, node: InternalNode, *, waits: bool) -> None:
        """Keep or release the credit of a node without a lane. Args: waits: its router is likely to come back."""
        if node.held is not waits:
            node.held = waits
            node.pool.hold(inf if waits else 0.0)

    def _attach(self, node: InternalNode, neighbour: LaneConnection, *, bulk: bool = False) -> None:
        """Attach the lane of a node, unless the neighbour refused it a moment ago."""
        lane = node.lane
        assert lane is not None
        # A tree has one link for all its deliveries: a large one stops this tree alone.
        apart = lane.kind is LaneKind.TREE
        outgoing = self._attach_link(node, lane, neighbour, apart=apart, bulk=bulk)
        if outgoing is not None:
            outgoing.bulk = bulk
            if lane.kind is LaneKind.ANYCAST and not bulk:
                # Credit that was granted for a former link is kept until this link can have got credit.
                node.held = False
                node.pool.hold(self._context.now + WAIT_TIME)

    def _attach_link(
        self,
        node: Node,
        lane: Lane,
        neighbour: LaneConnection,
        *,
        apart: bool,
        bulk: bool = False,
        cost: int = LOCAL_COST,
    ) -> OutgoingLink | None:
        if self.lane_links.is_refused(lane, neighbour.record):
            return None
        try:
            return self.lane_links.attach(node, lane, neighbour, apart=apart, bulk=bulk, cost=cost)
        except CommandError as error:
            self._context.log.warning("lane refused", router=neighbour.router, lane=lane.target, reason=str(error))
            self._try_later(lane, neighbour.record)
            return None

    def _try_later(self, lane: Lane, record: ConnectionRecord) -> None:
        if self.lane_links.refused(lane, record):
            self._context.schedule(self._context.now + RETRY_TIME, partial(self._try_again, lane, record))

    def _try_again(self, lane: Lane, record: ConnectionRecord) -> None:
        self.lane_links.allow(lane, record)
        # The refusal holds for each node that needs the lane, also for one made since.
        node = self._nodes.get(lane)
        if node is not None:
            self.reconcile(node)
        local = self._context.nodes.find(lane.tenant, lane.name)
        if local is not None and local.ingress is not None:
            self.reconcile(local)
        self._reconcile_routed(lane.tenant, lane.name)
        self._reconcile_remote_consumers(lane.tenant, lane.name)

    def _lead_tree_here(self, node: InternalNode, lane: Lane) -> None:
        """Let a tree lead to the consumers that are attached here, or to the target of a redirect."""
        context = self._context
        here: Node | None = context.nodes.find(lane.tenant, lane.name)
        if lane.far != context.id and not lane.tenant and lane.name in self._remote_nodes.single:
            try:
                here = self._remote_nodes.ingress(lane.tenant, lane.name)
            except RefusedError:  # too many nodes are in use there
                here = None
        elif here is not None and (here.remote is not None or not here.outgoing):
            here = None
        for share in list(node.shares):
            if share.node is not here:
                self.ingresses.end_share(share)
        if here is not None and not node.shares:
            CreditShare(node, here, LOCAL_COST)
            context.touch(here)

    def _mark_old_parents(self, node: LaneNode) -> None:
        """Mark the links of former parents in a tree: their deliveries would come twice."""
        lane = node.lane
        if lane.kind is not LaneKind.TREE:
            return
        parent = self._topology.parent(lane.far)
        for incoming in node.incoming:
            # The link stays attached, so that the deliveries that came by it get their outcomes.
            incoming.from_old_parent = incoming.connection.peer.container_id != parent
            if incoming.from_old_parent:
                incoming.endpoint.flow_state.fast_route = None
