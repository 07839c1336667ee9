"""One router's part in the mesh: its neighbours, the ways that deliveries take from here, and the lanes of those ways.

The topology says what there is: routers, paths, who has consumers of what. Here that becomes nodes, links and shares
of credit. The router where a delivery comes in chooses the one where it leaves; those between only pass it on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.policies.access import RESERVED
from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.addresses import Address
from amqpmesh.router.amqp.definitions import AmqpCondition, ConnectionCondition, Error
from amqpmesh.router.amqp.errors import CommandError, ProtocolError
from amqpmesh.router.amqp.link import Receiver
from amqpmesh.router.amqp.messaging import Target
from amqpmesh.router.config import AddressConfig
from amqpmesh.router.lanes import EXTRA_HOPS, MAX_HOPS, PREFIX, Keys, Lane, LaneKind
from amqpmesh.router.names import split
from amqpmesh.router.neighbours import CONTROL, Neighbour
from amqpmesh.router.shares import Share
from amqpmesh.topology import protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.router.amqp.events import LinkAttached, TransferReceived
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.connections import ConnectionRecord
    from amqpmesh.router.core import Core
    from amqpmesh.router.links import OutgoingLink
    from amqpmesh.topology.protocol import Step, Topology

#: What reaching a consumer that is attached here costs; a path's cost comes on top.
LOCAL_COST: Final = 1

#: Seconds before a lane that a neighbour did not take is tried again.
RETRY_TIME: Final = 0.1


class Mesh:
    """The neighbours of a router, and what leads to other routers."""

    def __init__(self, core: Core, topology: Topology, epoch: int) -> None:
        """Args: epoch: this life of the router; each start has a higher one."""
        self._core = core
        self.topology = topology
        self.neighbours: dict[ConnectionRecord, Neighbour] = {}
        #: What leaves by lanes, by the lane; not the trees that begin here.
        self.ways: dict[Lane, Address] = {}
        #: Deliveries that had no hops left.
        self._keys = Keys(core.id, epoch)
        #: Nodes of trees, by address.
        self._trees: dict[tuple[str, str], dict[Address, None]] = {}
        #: Lanes that a neighbour did not take, and until when it is left alone with them.
        self._refusals: dict[tuple[Lane, ConnectionRecord], float] = {}
        self._turn = 0
        self._armed: float | None = None
        self._config = AddressConfig(pattern="#")

    # -------------------------------------------------------------------------------------------------- neighbours

    def opened(self, record: ConnectionRecord) -> None:
        """A connection is open; if it is to a neighbour, begin to talk."""
        if record.role != "mesh" or record in self.neighbours or not record.engine.can_send:
            return
        neighbour = self.neighbours[record] = Neighbour(record)
        self._apply(self.topology.connected(neighbour, record.cost, self._core.now, expected=neighbour.router))

    def lost(self, record: ConnectionRecord) -> None:
        """A connection is gone."""
        neighbour = self.neighbours.pop(record, None)
        if neighbour is not None:
            self._apply(self.topology.disconnected(neighbour, self._core.now))

    def takes(self, record: ConnectionRecord, event: LinkAttached) -> bool:
        """Whether an attach is one between neighbours."""
        target = event.attach.target
        return (
            record in self.neighbours
            and isinstance(event.link, Receiver)
            and isinstance(target, Target)
            and target.address is not None
            and (target.address == CONTROL or target.address.startswith(PREFIX))
        )

    def attached(self, record: ConnectionRecord, event: LinkAttached) -> None:
        """A neighbour's attach: the answer to ours, its control link, or a lane."""
        neighbour = self.neighbours.get(record)
        link, target = event.link, event.attach.target
        if link.context is neighbour or neighbour is None:
            return
        assert isinstance(link, Receiver)
        assert isinstance(target, Target)
        assert target.address is not None
        if target.address == CONTROL:
            neighbour.take(link, event.attach)
            return
        try:
            lane = Lane.parse(target.address)
        except ValueError as error:
            link.refuse(Error(condition=AmqpCondition.INVALID_FIELD, description=str(error)))
            return
        if lane.kind is LaneKind.TREE and self.topology.parent(lane.far) != neighbour.router:
            # One of the two does not know the graph yet; from two parents everything would come twice.
            error = Error(condition=AmqpCondition.NOT_ALLOWED, description="not the parent in this tree")
            link.refuse(error)
            return
        way = self._taking(lane)
        self._core.attaching.lane_in(record, link, event.attach, lane, way)
        if way is not None and way.lane is not None:
            self._lead(way)

    def refused(self, outgoing: OutgoingLink) -> None:
        """A neighbour has detached a lane of ours, or never took it: it is tried again, not at once."""
        way, record = outgoing.address, outgoing.connection
        assert way.lane is not None
        self._refusals[way.lane, record] = self._core.now + RETRY_TIME
        self._core.schedule(self._core.now + RETRY_TIME, lambda: self._try_again(way, record))

    def _try_again(self, way: Address, record: ConnectionRecord) -> None:
        lane = way.lane
        assert lane is not None
        self._refusals.pop((lane, record), None)
        if record in self.neighbours and (way.is_ingress or self.ways.get(lane) is way):
            self._lead(way)
            self._core.touch(way)

    def detached(self, neighbour: Neighbour) -> None:
        """A control link is gone: without it a connection is of no use."""
        self._close(neighbour, Error(condition=AmqpCondition.NOT_ALLOWED, description="the control link was detached"))

    def transferred(self, neighbour: Neighbour, event: TransferReceived) -> None:
        """Part of what a neighbour tells."""
        try:
            body = neighbour.received(event)
        except ProtocolError as error:
            self._close(neighbour, Error(condition=error.condition, description=str(error)))
            return
        if body is not None:
            self._apply(self.topology.received(neighbour, body, self._core.now))

    def window_opened(self, session: Session) -> None:
        """A session has room again."""
        for neighbour in self.neighbours.values():
            if neighbour.session is session:
                neighbour.pump()

    def _close(self, neighbour: Neighbour, error: Error) -> None:
        if neighbour.record.engine.can_send:
            neighbour.record.engine.close(error)
        self.lost(neighbour.record)

    # -------------------------------------------------------------------------------------------------- the topology

    def start(self) -> None:
        """Begin: timers run from now on."""
        self._arm()

    def drain(self) -> None:
        """Nothing is to come here any more."""
        self._apply(self.topology.drain(self._core.now))

    def set_cost(self, neighbour: Neighbour, cost: int) -> None:
        """What sending to a neighbour by this connection costs from now on."""
        neighbour.record.cost = cost
        self._apply(self.topology.set_cost(neighbour, cost, self._core.now))

    def _apply(self, step: Step) -> None:
        """Send what the topology has to say, and follow what it has found."""
        for adjacency, body in step.messages:
            assert isinstance(adjacency, Neighbour)
            if adjacency.record in self.neighbours and not adjacency.send(body):
                reason = Error(
                    condition=AmqpCondition.RESOURCE_LIMIT_EXCEEDED, description="nothing is read of the control link"
                )
                self._close(adjacency, reason)
        graph_changed = False
        addresses: set[tuple[str, str]] = set()
        for change in step.changes:
            match change:
                case protocol.GraphChanged():
                    graph_changed = True
                case protocol.AddressesChanged():
                    addresses |= change.addresses
                case protocol.Refused(adjacency=Neighbour() as refused):
                    self._log(change)
                    error = Error(condition=ConnectionCondition.CONNECTION_FORCED, description=change.reason)
                    self._close(refused, error)
                case _:
                    self._log(change)
        if graph_changed:
            for way in list(self.ways.values()):
                self._leave_strangers(way)
                self._lead(way)
            for address in self._core.addresses.values():
                if address.ingress is not None:
                    self._refresh(address)
        else:
            for tenant, name in addresses:
                found = self._core.addresses.find(tenant, name)
                if found is not None and found.ingress is not None:
                    self._refresh(found)
                for tree in list(self._trees.get((tenant, name), ())):
                    self._lead(tree)
        self._arm()

    def _leave_strangers(self, way: Address) -> None:
        """A tree has another parent now: what the one before still sends would come twice."""
        lane = way.lane
        if lane is None or lane.kind is not LaneKind.TREE:
            return
        parent = self.topology.parent(lane.far)
        for incoming in list(way.incoming):
            if incoming.connection.peer.container_id != parent:
                error = Error(condition=AmqpCondition.NOT_ALLOWED, description="no longer the parent in this tree")
                self._core.fail_link(incoming, error)

    def _arm(self) -> None:
        at = self.topology.next_timer()
        if at is not None and (self._armed is None or at < self._armed):
            self._armed = at
            self._core.schedule(at, self._tick)

    def _tick(self) -> None:
        if self._armed is not None and self._armed <= self._core.now:
            self._armed = None
            self._apply(self.topology.handle_timer(self._core.now))

    def _log(self, change: protocol.Change) -> None:
        log = self._core.log
        match change:
            case protocol.NeighbourUp():
                log.info("neighbour up", router=change.router)
            case protocol.NeighbourDown():
                log.info("neighbour down", router=change.router, reason=change.reason)
            case protocol.Refused():
                log.warning("neighbour refused", reason=change.reason)
            case protocol.Dropped():
                log.warning("advertisement dropped", origin=change.origin, reason=change.reason, count=change.count)
            case _:
                log.info("mesh changed", change=str(change))

    # ---------------------------------------------------------------------------------------------------- ways out

    def leads_elsewhere(self, named: str) -> bool:
        """Whether an address names a node of another router that is known."""
        _, container = split(named)
        return container is not None and container != self._core.id and self.topology.distance(container) is not None

    def transit(self, router: str) -> Address | None:
        """The way to another router, whatever the final address; None: there is no path."""
        if router == self._core.id or self.topology.distance(router) is None:
            return None
        return self._way(Lane(LaneKind.TRANSIT, router))

    def way(self, tenant: str, name: str) -> Address | None:
        """Where a message of an anonymous sender goes; None: nobody serves its address."""
        core = self._core
        local = core.addresses.find(tenant, name)
        if name.startswith(RESERVED) or (local is not None and local.maker is not None):
            return local
        distribution = core.addresses.config(name).distribution
        if distribution is Distribution.MULTICAST:
            return self.ingress(core.addresses.use(tenant, name))
        if local is not None and local.ingress is not None:
            return local.ingress
        costs = self._egresses(tenant, name)
        if local is not None and local.outgoing:
            costs[core.id] = 0
        if not costs:
            return local
        if distribution is Distribution.CLOSEST:
            least = min(costs.values())
            costs = {router: cost for router, cost in costs.items() if cost == least}
        self._turn += 1
        router = sorted(costs)[self._turn % len(costs)]
        return local if router == core.id else self.transit(router)

    def new_key(self, lane: Lane) -> bytes:
        """The delivery-tag of a delivery that begins its way by a lane here."""
        far = None if lane.kind is LaneKind.TREE else self.topology.length(lane.far)
        return self._keys.tag(MAX_HOPS if far is None else min(MAX_HOPS, far + EXTRA_HOPS))

    def ingress(self, address: Address) -> Address:
        """Where producers of an address are attached: here, or a node that leads to other routers, too."""
        if address.maker is not None or address.name.startswith(RESERVED):
            return address
        if address.ingress is None:
            core = self._core
            lane = Lane(LaneKind.TREE, core.id, address.tenant, address.name) if address.is_multicast else None
            ingress = Address(address.tenant, address.name, address.config, core.budget, lane=lane)
            ingress.is_ingress = True
            address.ingress = ingress
            core.touch(ingress)
            self._refresh(address)
        return address.ingress

    def consumers_changed(self, address: Address) -> None:
        """The first consumer of an address has come here, or the last is gone."""
        if address.maker is not None or address.name.startswith(RESERVED):
            return
        if address.is_advertised is not bool(address.outgoing):
            address.is_advertised = bool(address.outgoing)
            advert = protocol.Advert(address.config.distribution, consumers=1) if address.outgoing else None
            self._apply(self.topology.advertise(address.tenant, address.name, advert, self._core.now))
        if address.ingress is not None:
            self._refresh(address)
        for tree in list(self._trees.get((address.tenant, address.name), ())):
            self._lead(tree)

    def nobody_left(self, address: Address) -> None:
        """A node has lost the last link that deliveries left by."""
        if address.is_ingress:
            return
        if address.lane is None:
            self.consumers_changed(address)
        else:
            self._lead(address)

    def owns(self, address: Address) -> bool:
        """Whether it is a node of the mesh's: no address as clients see it."""
        return address.lane is not None or address.is_ingress

    def drop_if_idle(self, address: Address) -> bool:
        """Forget a node that nobody uses any more; whether it was."""
        core = self._core
        if address.incoming or address.waiting.size or address.borrowers:
            return False
        lane = address.lane
        if address.is_ingress:
            local = core.addresses.find(address.tenant, address.name)
            if local is not None and local.ingress is address:
                self._end_shares(address)
                self._retire(address.outgoing)
                local.ingress = None
                core.touch(local)
            return True
        assert lane is not None
        if self.ways.get(lane) is not address:
            return True
        if address.idle_since is None:
            address.idle_since = core.now
        if lane.kind is LaneKind.TREE:
            self._end_shares(address)
            self._trees[lane.tenant, lane.name].pop(address)
            if not self._trees[lane.tenant, lane.name]:
                del self._trees[lane.tenant, lane.name]
            self._retire(address.outgoing)
            del self.ways[lane]
            return True
        until = address.idle_since + core.config.mesh.lane_idle
        if core.now < until:
            core.schedule(until, lambda: core.touch(address))
            return False
        self._retire(address.outgoing)
        del self.ways[lane]
        return True

    def end_if_done(self, outgoing: OutgoingLink) -> None:
        """Detach a lane that is no longer used, once nothing on it is unsettled."""
        if outgoing.unsettled or outgoing.current is not None or outgoing.gone:
            return
        link = outgoing.link
        self._core.link_over(outgoing)
        if link.is_attached and link.session.can_send:
            link.detach()

    def _egresses(self, tenant: str, name: str) -> dict[str, int]:
        """The other routers that have consumers of an address, and what reaching them costs."""
        costs = {}
        for router, advert in self.topology.lookup(tenant, name).items():
            if router != self._core.id and advert.consumers:
                distance = self.topology.distance(router)
                if distance is not None:
                    costs[router] = distance
        return costs

    def _refresh(self, address: Address) -> None:
        """Give an ingress the ways out that there are now."""
        core, ingress = self._core, address.ingress
        assert ingress is not None
        if address.is_multicast:
            self._lead(ingress)
            return
        wanted: dict[Address, int] = {address: LOCAL_COST} if address.outgoing else {}
        for router, cost in self._egresses(address.tenant, address.name).items():
            way = self._way(Lane(LaneKind.ANYCAST, router, address.tenant, address.name))
            if way is not None:
                wanted[way] = LOCAL_COST + cost
        for share in list(ingress.shares):
            cost = wanted.pop(share.node, None)
            if cost is None:
                self._end_share(share)
            else:
                share.set_cost(cost, core.now)
        for node, cost in wanted.items():
            Share(ingress, node, cost)
            node.idle_since = None
            core.touch(node)
        core.touch(ingress)
        if not ingress.has_consumers:
            core.nobody_left(ingress)

    def _end_shares(self, ingress: Address) -> None:
        for share in list(ingress.shares):
            self._end_share(share)

    def _end_share(self, share: Share) -> None:
        """An ingress has this way no longer: what waits in it looks for another."""
        core = self._core
        share.end(core.now)
        for relay in share.node.waiting.relays():
            if relay.share is share:
                core.forwarding.unqueue(relay)
                core.settlement.route_again(relay)
        core.touch(share.node)
        core.touch(share.ingress)

    # -------------------------------------------------------------------------------------------------------- lanes

    def _taking(self, lane: Lane) -> Address | None:
        """Where what comes by a lane goes from here; None: each delivery to its own place at this router."""
        core = self._core
        if lane.kind is LaneKind.TREE:
            return self._node(lane)
        if lane.far != core.id:
            return self._node(lane)
        if lane.kind is LaneKind.TRANSIT:
            return None
        return core.addresses.use(lane.tenant, lane.name)

    def _node(self, lane: Lane) -> Address:
        """The node of a lane, made if there is none."""
        way = self.ways.get(lane)
        if way is None:
            config = self._core.addresses.config(lane.name) if lane.name else self._config
            way = self.ways[lane] = Address(lane.tenant, lane.name, config, self._core.budget, lane=lane)
            if lane.kind is LaneKind.TREE:
                self._trees.setdefault((lane.tenant, lane.name), {})[way] = None
            self._core.touch(way)
        way.idle_since = None
        return way

    def _way(self, lane: Lane) -> Address | None:
        """The node of a lane that leads somewhere; None: no path does."""
        way = self._node(lane)
        if not way.outgoing:
            self._lead(way)
        return way if way.outgoing else None

    def _lead(self, way: Address) -> None:
        """See to it that a way has its lane to the next hop, or to each child of its tree, and no other."""
        core, lane = self._core, way.lane
        assert lane is not None
        if lane.kind is LaneKind.TREE:
            self._lead_here(way, lane)
            hops = self._children(lane)
        else:
            hops = self._next_hop(lane)
        present = {each.connection for each in way.outgoing if not each.bulk}
        for record in hops - present:
            if self._refusals.get((lane, record), 0.0) > core.now:
                continue
            neighbour = self.neighbours[record]
            name = f"{lane.target}#{record.number}"
            try:
                core.attaching.lane_out(record, neighbour.session_with_room(), way, name)
            except CommandError as error:
                core.log.warning("no lane", neighbour=neighbour.router, lane=lane.target, reason=str(error))
        self._retire([each for each in way.outgoing if each.connection not in hops])
        core.touch(way)
        if not way.has_consumers:
            if way.is_ingress:
                core.nobody_left(way)
            for share in list(way.borrowers):
                self._end_share(share)
                if not share.ingress.has_consumers:
                    core.nobody_left(share.ingress)

    def need_bulk(self, way: Address) -> None:
        """Attach the second links of a lane, for what is large."""
        core, lane = self._core, way.lane
        assert lane is not None
        for each in list(way.outgoing):
            neighbour = self.neighbours.get(each.connection)
            if neighbour is None:
                continue
            try:
                outgoing = core.attaching.lane_out(
                    each.connection, neighbour.bulk_session(), way, f"{lane.target}#{each.connection.number}#bulk"
                )
            except CommandError as error:
                core.log.warning("no lane", neighbour=neighbour.router, lane=lane.target, reason=str(error))
            else:
                outgoing.bulk = True

    def _lead_here(self, way: Address, lane: Lane) -> None:
        """See to it that a tree leads to the consumers that are attached here, if there are any."""
        local = self._core.addresses.find(lane.tenant, lane.name)
        here = local is not None and bool(local.outgoing)
        for share in list(way.shares):
            if not here or share.node is not local:
                self._end_share(share)
        if here and not way.shares:
            assert local is not None
            Share(way, local, LOCAL_COST)
            self._core.touch(local)

    def _next_hop(self, lane: Lane) -> set[ConnectionRecord]:
        """The connection that a lane goes by from here, if a path leads there."""
        adjacency = self.topology.next_hop(lane.far, lane.target)
        return {adjacency.record} if isinstance(adjacency, Neighbour) and adjacency.record in self.neighbours else set()

    def _children(self, lane: Lane) -> set[ConnectionRecord]:
        """The connections to the children of this router in a tree that have consumers behind them."""
        consumers = self._egresses(lane.tenant, lane.name)
        children = self.topology.branches(lane.far, consumers)
        found = (self.topology.adjacency(child, lane.target) for child in children)
        return {each.record for each in found if isinstance(each, Neighbour) and each.record in self.neighbours}

    def _retire(self, links: Iterable[OutgoingLink]) -> None:
        """Links that nothing new leaves by."""
        for outgoing in list(links):
            address = outgoing.address
            outgoing.retired = True
            address.outgoing.pop(outgoing, None)
            address.creditors.pop(outgoing, None)
            if outgoing.branch is not None:
                address.pool.remove_branch(outgoing.branch, self._core.now)
                outgoing.branch = None
            self.end_if_done(outgoing)
