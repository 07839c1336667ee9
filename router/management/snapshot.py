"""A snapshot of a router: its records, read into `Statistics` on request.

Nothing is counted only for snapshots. The counts of a link or connection are kept after its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.policies.access import is_reserved
from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.standard.messaging import (
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoLinksOrMessages,
    DeleteOnNoMessages,
)
from amqpmesh.router.attach.resolve import is_cut_off
from amqpmesh.router.management.mesh_snapshot import mesh_snapshot
from amqpmesh.router.model.blocked import (
    NO_CONSUMERS,
    ConsumerRouters,
    why_address,
    why_incoming,
    why_node,
    why_outgoing,
)
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.statistics.common import ConnectionDirection, Direction, Reason
from amqpmesh.router.statistics.mesh_statistics import LaneStatistics
from amqpmesh.router.statistics.router_statistics import (
    AddressStatistics,
    ConnectionStatistics,
    LinkStatistics,
    NodeStatistics,
    RouterStatistics,
    Statistics,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from amqpmesh.router.core import Core
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.counters import Tally
    from amqpmesh.router.model.node import Address

_LIFETIMES = {
    DeleteOnClose: "delete-on-close",
    DeleteOnNoLinks: "delete-on-no-links",
    DeleteOnNoMessages: "delete-on-no-messages",
    DeleteOnNoLinksOrMessages: "delete-on-no-links-or-messages",
}


def take_snapshot(core: Core) -> Steps[Statistics]:
    """Read everything, in steps; the work grows with the number of objects, not with the traffic.

    The router's own connection, its links, and addresses that only they use are left out: they always exist. Links that
    end between two steps, and their counts, are missing until the next snapshot.
    """
    core.context.catch_up()
    total = core.context.past.copy()
    by_address: dict[Address, Tally] = {}
    why: dict[Address, Reason | None] = {}
    where: dict[Address, ConsumerRouters] = {}
    reachability = core.mesh.selection.reachability() if core.mesh is not None else None
    for address in list(core.context.addresses.values()):
        by_address[address] = address.past.copy()
        where[address] = NO_CONSUMERS if reachability is None else reachability.of(address.tenant, address.name)
        why[address] = why_address(address, draining=core.context.draining, consumers=where[address])
        yield
    connections = []
    links = []
    lanes = []
    used: set[Address | None] = set()
    own = 0
    counted: set[IncomingLink | OutgoingLink] = set()

    def count(taken: IncomingLink | OutgoingLink) -> Address | None:
        counted.add(taken)
        total.add(taken)
        used_address = core.context.seen_as(taken.address) if taken.address is not None else None
        if used_address in by_address:
            by_address[used_address].add(taken)
        return used_address

    for record in list({**core.context.connections, **core.context.leaving}):
        if not record.own and record in core.context.connections:
            connections.append(_connection(record))
        for taken in (*record.incoming, *record.outgoing, *record.detached_unsettled):
            yield
            if not (taken in record.incoming or taken in record.outgoing or taken in record.detached_unsettled):
                continue
            used_address = count(taken)
            if record.lost:
                continue
            if record.own:
                own += 1
                continue
            if _is_lane(taken):
                lanes.append(_lane(core, taken))
                continue
            used.add(used_address)
            links.append(_incoming(core, taken, why) if isinstance(taken, IncomingLink) else _outgoing(taken))
        yield
    for taken in list(core.context.ended_links.links):
        if taken in core.context.ended_links.links and taken not in counted:
            count(taken)
        yield
    addresses = []
    nodes: list[NodeStatistics] = []
    for address, tally in by_address.items():
        if address in used or address.waiting.size or not address.kept:
            addresses.append(_address(address, tally, why[address], where[address]))
        nodes.extend(_nodes(address))
        yield
    seen = yield from mesh_snapshot(core, lanes)
    return Statistics(
        router=RouterStatistics(
            id=core.context.id,
            now=core.context.now,
            started_at=core.context.started_at,
            draining=core.context.draining,
            connections=len(connections),
            links=max(len(links), len(core.context.link_names) - own),
            addresses=len(addresses),
            relays=core.context.in_flight,
            buffered=core.context.budget.used,
            memory=core.context.budget.limit,
            memory_used_up=core.context.memory.used_up,
            deliveries_in=total.deliveries_in,
            deliveries_out=total.deliveries_out,
            octets_in=core.context.octets_in,
            octets_out=core.context.octets_out,
            undelivered=core.context.undelivered,
            expired=core.context.expired,
            stolen=core.context.stolen,
            irregular=core.context.irregular_heads,
            **total.outcomes(),
        ),
        container_links=core.containers.statistics(),
        connections=tuple(connections),
        links=tuple(links),
        addresses=tuple(addresses),
        nodes=tuple(nodes),
        lanes=tuple(lanes),
        **seen,
    )


def _connection(record: ConnectionRecord) -> ConnectionStatistics:
    engine, peer = record.engine, record.peer
    remote = engine.remote
    announced = remote.idle_time_out if remote is not None else None
    return ConnectionStatistics(
        number=record.number,
        direction=ConnectionDirection.IN if record.listener is not None else ConnectionDirection.OUT,
        role=record.role,
        listener=record.listener.name if record.listener is not None else None,
        connector=record.connector.name if record.connector is not None else None,
        cost=record.cost,
        host=record.host,
        container_id=peer.container_id,
        hostname=peer.hostname,
        tenant=peer.tenant,
        user=peer.user,
        mechanism=peer.mechanism,
        tls=record.tls,
        cipher=record.cipher,
        certificate_subject=record.certificate_subject,
        state=engine.state.name,
        connected_at=record.connected_at,
        idle_time_out=record.limits.idle_time_out or None,
        remote_idle_time_out=announced / 1000 if announced else None,
        max_frame_size=engine.remote_max_frame_size,
        sessions=sum(1 for _ in engine.channels.sessions),
        links=0 if record.lost else len(record.incoming) + len(record.outgoing) + len(record.detached_unsettled),
        octets_in=record.octets_in,
        octets_out=record.octets_out,
        unwritten=record.unwritten,
        held=record.held_frames,
    )


def _incoming(core: Core, incoming: IncomingLink, why: Mapping[Address, Reason | None]) -> LinkStatistics:
    address = incoming.address
    if address is None:
        of_address = None
    elif core.mesh is None or address.is_ingress:
        of_address = why.get(core.context.seen_as(address))
    else:  # the address is for receivers at this router only: other routers' receivers do not help
        of_address = why_node(address, draining=core.context.draining)
    reason = why_incoming(incoming, of_address, draining=core.context.draining)
    if is_cut_off(core.context, incoming):
        reason = Reason.NO_PATH
    return _link(
        incoming,
        Direction.INCOMING,
        copy=False,
        undelivered=incoming.input.waiting + incoming.waiting,
        missed=0,
        reason=reason,
    )


def _outgoing(outgoing: OutgoingLink) -> LinkStatistics:
    return _link(
        outgoing,
        Direction.OUTGOING,
        copy=outgoing.copy,
        undelivered=len(outgoing.backlog),
        missed=outgoing.missed,
        reason=why_outgoing(outgoing),
    )


def _link(
    taken: IncomingLink | OutgoingLink,
    direction: Direction,
    *,
    copy: bool,
    undelivered: int,
    missed: int,
    reason: Reason | None,
) -> LinkStatistics:
    link, record, address = taken.link, taken.connection, taken.address
    counted = link.flow_state
    return LinkStatistics(
        number=taken.number,
        name=link.name,
        connection=record.number,
        direction=direction,
        address=address.name if address is not None else _far(taken),
        tenant=record.peer.tenant,
        copy=copy,
        attached=link.is_attached,
        attached_at=taken.attached_at,
        deliveries=counted.deliveries,
        octets=counted.octets,
        undelivered=undelivered,
        unsettled=_unsettled(taken),
        missed=missed,
        available=counted.available,
        credit=counted.link_credit,
        zero_credit_since=taken.zero_credit_since,
        last_delivery_at=taken.last_delivery_at,
        reason=reason,
        presettled=counted.presettled,
        accepted=counted.accepted,
        rejected=counted.rejected,
        released=counted.released,
        modified=counted.modified,
    )


def _unsettled(taken: IncomingLink | OutgoingLink) -> int:
    """Return the number of unsettled deliveries on a link."""
    counted = taken.link.flow_state
    # The map of sent deliveries lacks those that the kernel relays on its fast path; the map of received ones has all.
    return counted.outstanding if counted.sender else len(counted.unsettled)


def _far(taken: IncomingLink | OutgoingLink) -> str | None:
    """Return the address at another router that a link sends to, or that whole router."""
    if not isinstance(taken, IncomingLink) or taken.container is None:
        return None
    return taken.to or f"@{taken.container}"


def _is_lane(taken: IncomingLink | OutgoingLink) -> bool:
    return taken.lane is not None


def _lane(core: Core, taken: IncomingLink | OutgoingLink) -> LaneStatistics:
    """Return the statistics of a lane at either of its ends."""
    counted, node = taken.link.flow_state, taken.address
    reason: Reason | None
    if isinstance(taken, IncomingLink):
        lane, direction, bulk, retired = taken.lane, Direction.INCOMING, taken.input.large, False
        waiting = taken.input.waiting + taken.waiting
        of_node = why_node(node, draining=core.context.draining) if node is not None else None
        reason = why_incoming(taken, of_node, draining=core.context.draining)
    else:
        lane, direction, bulk, retired = taken.lane, Direction.OUTGOING, taken.bulk, taken.retired
        waiting = taken.address.waiting.size
        reason = why_outgoing(taken)
    assert lane is not None
    return LaneStatistics(
        number=taken.number,
        name=taken.link.name,
        kind=lane.kind,
        address=lane.name or None,
        tenant=lane.tenant,
        far=lane.far,
        direction=direction,
        neighbour=taken.connection.peer.container_id,
        connection=taken.connection.number,
        bulk=bulk,
        retired=retired,
        attached_at=taken.attached_at,
        deliveries=counted.deliveries,
        octets=counted.octets,
        waiting=waiting,
        unsettled=_unsettled(taken),
        credit=counted.link_credit,
        zero_credit_since=taken.zero_credit_since,
        last_delivery_at=taken.last_delivery_at,
        reason=reason,
        presettled=counted.presettled,
        accepted=counted.accepted,
        rejected=counted.rejected,
        released=counted.released,
        modified=counted.modified,
    )


def _address(address: Address, tally: Tally, reason: Reason | None, where: ConsumerRouters) -> AddressStatistics:
    """Return the statistics of an address as clients see it: its node for consumers and its ingress for producers as
    one.
    """
    ingress = address.ingress
    lent = sum(share.input.granted for share in address.borrowers)
    producers = _producers(address)
    waiting, buffered, granted = address.waiting.size, address.buffered, address.granted - lent
    if ingress is not None:
        producers += _producers(ingress)
        waiting += ingress.waiting.size
        # Deliveries that are assigned to a lane, and wait for its credit.
        waiting += sum(share.input.waiting for share in ingress.shares if share.node is not address)
        buffered += ingress.buffered
        granted += ingress.granted
    return AddressStatistics(
        name=address.name,
        tenant=address.tenant,
        distribution=address.config.distribution,
        producers=producers,
        consumers=sum(not each.is_over for each in address.outgoing),
        consumers_at=where.within_reach,
        out_of_reach=where.out_of_reach,
        copies=len(address.copies),
        waiting=waiting,
        buffered=buffered,
        demand=_demand(address),
        granted=granted,
        deliveries_in=tally.deliveries_in,
        deliveries_out=tally.deliveries_out,
        undelivered=address.undelivered,
        reason=reason,
        **tally.outcomes(),
    )


def _producers(node: Address) -> int:
    return sum(each.lane is None and not each.link.flow_state.ended for each in node.incoming)


def _demand(address: Address) -> int:
    """Return the demand of all routes of an address; an ingress with several routes holds only a part of it."""
    ingress = address.ingress
    if ingress is None:
        return address.demand
    if address.is_multicast or address.far is not None:
        return ingress.demand
    ways = list(ingress.shares)
    if address.config.distribution is Distribution.CLOSEST:
        least = min((share.cost for share in ways), default=0)
        ways = [share for share in ways if share.cost == least]
    return sum(share.node.demand for share in ways)


def _nodes(address: Address) -> Iterator[NodeStatistics]:
    """Yield the router's own node of an address, if the address is reserved."""
    if is_reserved(address.name):
        maker = address.maker
        yield NodeStatistics(
            name=address.name,
            tenant=address.tenant,
            dynamic=maker is not None,
            maker=maker.number if maker is not None else None,
            lifetime=_LIFETIMES[type(address.lifetime)] if maker is not None else None,
        )
