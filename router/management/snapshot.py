"""A snapshot of a router: its records, read into `Statistics` on request.

Nothing is counted only for snapshots. The counts of a link or connection are kept after its end.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from amqpmesh.policies.access import is_reserved
from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.standard.messaging import (
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoLinksOrMessages,
    DeleteOnNoMessages,
)
from amqpmesh.router.attach.resolve import is_cut_off
from amqpmesh.router.delivery.arrival import receive_held
from amqpmesh.router.departure.client_moves import is_withdrawn
from amqpmesh.router.incremental import run_to_end
from amqpmesh.router.management.limit_snapshot import Sizes, rate_statistics, usage_statistics
from amqpmesh.router.management.mesh_snapshot import mesh_snapshot
from amqpmesh.router.management.termini_snapshot import resumption_counts, termini_snapshot
from amqpmesh.router.model.blocked import (
    NO_CONSUMERS,
    ConsumerRouters,
    why_address,
    why_incoming,
    why_node,
    why_outgoing,
)
from amqpmesh.router.model.counters import LATENCY_NAMES, TenantCounts
from amqpmesh.router.model.foreign_links import name_of
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.node import DynamicNode, IngressNode, LocalNode, OwnNode
from amqpmesh.router.model.oldest import note_oldest, oldest_unsettled
from amqpmesh.router.statistics.common import ConnectionDirection, Reason
from amqpmesh.router.statistics.mesh_statistics import LaneStatistics
from amqpmesh.router.statistics.router_statistics import (
    AddressStatistics,
    ConnectionStatistics,
    LimitStatistics,
    LinkStatistics,
    NodeStatistics,
    RateStatistics,
    RouterStatistics,
    Statistics,
    TenantTotals,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from amqpmesh.router.core import Core
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.counters import Tally
    from amqpmesh.router.model.node import Node

#: Names that two clients take from each other which a snapshot has at most.
TWINS: Final = 100

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
    receive_held(core.context)
    total = core.context.past.copy()
    by_address: dict[LocalNode, Tally] = {}
    by_tenant = {tenant: counts.copy() for tenant, counts in core.context.by_tenant.items()}
    why: dict[Node, Reason | None] = {}
    where: dict[Node, ConsumerRouters] = {}
    reachability = core.mesh.mesh_routes.reachability() if core.mesh is not None else None
    for node in list(core.context.nodes.values()):
        by_address[node] = node.past.copy()
        where[node] = NO_CONSUMERS if reachability is None else reachability.of(node.tenant, node.name)
        why[node] = why_address(node, draining=core.context.draining, consumers=where[node])
        yield
    connections = []
    links = []
    lanes = []
    used: set[Node | None] = set()
    own = 0
    counted: set[IncomingLink | OutgoingLink] = set()
    ages: dict[object, float] = {}
    sizes = Sizes()

    def count(link: IncomingLink | OutgoingLink) -> Node | None:
        counted.add(link)
        total.add(link, core.context.now)
        if link.connection.peer.tenant:
            by_tenant.setdefault(link.connection.peer.tenant, TenantCounts()).past.add(link, core.context.now)
        used_address = core.context.seen_as(link.node) if link.node is not None else None
        if isinstance(used_address, LocalNode) and used_address in by_address:
            by_address[used_address].add(link, core.context.now)
        return used_address

    for record in list({**core.context.connections, **core.context.leaving}):
        if not record.own and record in core.context.connections:
            connections.append(connection_statistics(core, record))
            sizes.add(record)
            if record.peer.tenant:
                counts = by_tenant.setdefault(record.peer.tenant, TenantCounts())
                counts.octets_in += record.octets_in
                counts.octets_out += record.octets_out
        for sent_by, age in oldest_unsettled(record, core.context.now):
            note_oldest(ages, core.context.seen_as(sent_by.node), age)
        for link in (*record.incoming, *record.outgoing, *record.detached_unsettled):
            yield
            if not (link in record.incoming or link in record.outgoing or link in record.detached_unsettled):
                continue
            used_address = count(link)
            if record.lost:
                continue
            if record.own:
                own += 1
                continue
            if _is_lane(link):
                _settle(core, link)
                lanes.append(_lane(core, link))
                continue
            used.add(used_address)
            if isinstance(link, IncomingLink):
                sizes.add_link(link)
            links.append(link_statistics(core, link, why))
        yield
    for link in list(core.context.ended_links.links):
        if link in core.context.ended_links.links and link not in counted:
            count(link)
        yield
    addresses = []
    nodes: list[NodeStatistics] = []
    for node, tally in by_address.items():
        if node in used or node.waiting.size or not isinstance(node, OwnNode):
            addresses.append(address_statistics(node, tally, why[node], where[node], ages.get(node)))
        nodes.extend(_nodes(node))
        yield
    limits: list[LimitStatistics] = []
    for usage in core.context.usages:
        limits += usage_statistics(usage, core.context.usages.unsettled_of(usage), sizes)
        yield
    rates: list[RateStatistics] = []
    for bucket in list(core.context.rates.buckets):
        rate = rate_statistics(bucket, core.context.now)
        if rate is not None:
            rates.append(rate)
        yield
    seen = yield from mesh_snapshot(core, lanes)
    spans = core.context.traces.spans
    kept = yield from termini_snapshot(core)
    return Statistics(
        router=RouterStatistics(
            id=core.context.id,
            now=core.context.now,
            started_at=core.context.started_at,
            draining=core.context.draining or core.departure.is_on,
            moving=core.departure.left_in_all,
            connections=len(connections),
            links=max(len(links), len(core.context.link_names) - own),
            addresses=len(addresses),
            relays=core.context.in_flight,
            buffered=core.context.budget.used - core.context.kernel.windows.octets,
            remembered=core.context.kernel.windows.octets,
            memory=core.context.budget.limit,
            memory_used_up=core.context.memory.used_up,
            deliveries_in=total.deliveries_in,
            deliveries_out=total.deliveries_out,
            octets_in=core.context.octets_in,
            octets_out=core.context.octets_out,
            undelivered=core.context.undelivered,
            expired=core.context.expired,
            duplicates=core.context.kernel.windows.duplicates,
            window_passed=core.context.kernel.windows.window_passed,
            moved=core.context.kernel.windows.moved,
            stolen=core.context.stolen,
            denied=core.context.denied,
            limited=core.context.limited,
            handed_over=core.context.handed_over,
            taken_up=core.context.taken_up,
            irregular=core.context.irregular_heads,
            spans=0 if spans is None else spans.exported,
            spans_lost=0 if spans is None else spans.lost,
            unpublished=0 if core.context.recording is None else core.context.recording.unpublished,
            twins=tuple(f"{container} {link}" for container, link in islice(core.thefts.twins(), TWINS)),
            **resumption_counts(core.context.termini, kept),
            **total.outcomes(),
        ),
        container_links=core.containers.statistics(),
        connections=tuple(connections),
        links=tuple(links),
        termini=tuple(kept),
        addresses=tuple(addresses),
        nodes=tuple(nodes),
        limits=tuple(limits),
        rates=tuple(rates),
        lanes=tuple(lanes),
        totals={tenant: _totals(counts) for tenant, counts in by_tenant.items()},
        **seen,
    )


def snapshot(core: Core) -> Statistics:
    """Return the state of a router now, read without a pause."""
    return run_to_end(take_snapshot(core))


def _totals(counts: TenantCounts) -> TenantTotals:
    return TenantTotals(
        deliveries_in=counts.past.deliveries_in,
        deliveries_out=counts.past.deliveries_out,
        octets_in=counts.octets_in,
        octets_out=counts.octets_out,
        undelivered=counts.undelivered,
        expired=counts.expired,
        stolen=counts.stolen,
        denied=counts.denied,
        **counts.past.outcomes(),
    )


def connection_statistics(core: Core, record: ConnectionRecord) -> ConnectionStatistics:
    """Return the statistics of a connection."""
    engine, peer = record.engine, record.peer
    remote = engine.remote
    announced = remote.idle_time_out if remote is not None else None
    return ConnectionStatistics(
        number=record.number,
        direction=ConnectionDirection.IN if record.listener is not None else ConnectionDirection.OUT,
        role=record.role,
        listener=record.listener.name if record.listener is not None else None,
        connector=record.connector.name if record.connector is not None else None,
        cost=1 if core.mesh is None else core.mesh.cost_on(record),
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


def link_statistics(core: Core, link: IncomingLink | OutgoingLink, why: Mapping[Node, Reason | None]) -> LinkStatistics:
    """Return the statistics of a client's link. Args: why: the reasons why addresses can take nothing."""
    _settle(core, link)
    return _incoming(core, link, why) if isinstance(link, IncomingLink) else _outgoing(link)


def _settle(core: Core, link: IncomingLink | OutgoingLink) -> None:
    """Bring the time without credit up to now."""
    if isinstance(link, IncomingLink) and link.credit_sink.meter is not None:
        link.credit_sink.meter.settle(link.credit_sink.granted, core.context.now)


def _incoming(core: Core, incoming: IncomingLink, why: Mapping[Node, Reason | None]) -> LinkStatistics:
    node = incoming.node
    if node is None:
        of_address = None
    elif core.mesh is None or isinstance(node, IngressNode):
        of_address = why.get(core.context.seen_as(node))
    else:  # the address is for receivers at this router only: other routers' receivers do not help
        of_address = why_node(node, draining=core.context.draining)
    reason = why_incoming(incoming, of_address, draining=core.context.draining or is_withdrawn(incoming))
    if is_cut_off(core.context, incoming):
        reason = Reason.NO_PATH
    return _link(
        incoming,
        address=name_of(incoming) or _far(incoming),
        copy=False,
        undelivered=incoming.credit_sink.waiting + incoming.waiting,
        missed=0,
        reason=reason,
    )


def _outgoing(outgoing: OutgoingLink) -> LinkStatistics:
    return _link(
        outgoing,
        address=name_of(outgoing),
        copy=outgoing.copy,
        undelivered=len(outgoing.backlog),
        missed=outgoing.missed,
        reason=why_outgoing(outgoing),
    )


def _link(
    link: IncomingLink | OutgoingLink,
    *,
    address: str | None,
    copy: bool,
    undelivered: int,
    missed: int,
    reason: Reason | None,
) -> LinkStatistics:
    endpoint, record = link.endpoint, link.connection
    counted = endpoint.flow_state
    return LinkStatistics(
        number=link.number,
        name=endpoint.name,
        connection=record.number,
        direction=link.direction,
        address=address,
        tenant=record.peer.tenant,
        copy=copy,
        attached=endpoint.is_attached,
        attached_at=link.attached_at,
        deliveries=counted.deliveries,
        octets=counted.octets,
        undelivered=undelivered,
        unsettled=link.unsettled,
        missed=missed,
        available=counted.available,
        credit=counted.link_credit,
        zero_credit_since=link.zero_credit_since,
        last_delivery_at=link.last_delivery_at,
        reason=reason,
        presettled=counted.presettled,
        accepted=counted.accepted,
        rejected=counted.rejected,
        released=counted.released,
        modified=counted.modified,
    )


def _far(incoming: IncomingLink) -> str | None:
    """Return the address at another router that a link sends to; `@ROUTER` if it sends to all of that router's
    addresses.
    """
    return None if incoming.container is None else incoming.to or f"@{incoming.container}"


def _is_lane(link: IncomingLink | OutgoingLink) -> bool:
    return link.lane is not None


def _lane(core: Core, link: IncomingLink | OutgoingLink) -> LaneStatistics:
    """Return the statistics of a lane at either of its ends."""
    counted, node = link.endpoint.flow_state, link.node
    reason: Reason | None
    if isinstance(link, IncomingLink):
        lane, bulk, retired = link.lane, link.credit_sink.large, False
        waiting = link.credit_sink.waiting + link.waiting
        of_node = why_node(node, draining=core.context.draining) if node is not None else None
        reason = why_incoming(link, of_node, draining=core.context.draining)
    else:
        lane, bulk, retired = link.lane, link.bulk, link.retired
        waiting = link.node.waiting.size
        reason = why_outgoing(link)
    assert lane is not None
    return LaneStatistics(
        number=link.number,
        name=link.endpoint.name,
        kind=lane.kind,
        address=lane.name or None,
        tenant=lane.tenant,
        far=lane.far,
        direction=link.direction,
        neighbour=link.connection.peer.container_id,
        connection=link.connection.number,
        bulk=bulk,
        retired=retired,
        attached_at=link.attached_at,
        deliveries=counted.deliveries,
        octets=counted.octets,
        waiting=waiting,
        unsettled=link.unsettled,
        credit=counted.link_credit,
        zero_credit_since=link.zero_credit_since,
        last_delivery_at=link.last_delivery_at,
        reason=reason,
        presettled=counted.presettled,
        accepted=counted.accepted,
        rejected=counted.rejected,
        released=counted.released,
        modified=counted.modified,
    )


def address_statistics(
    node: LocalNode, tally: Tally, reason: Reason | None, where: ConsumerRouters, age: float | None
) -> AddressStatistics:
    """Return the statistics of an address as clients see it: its node for consumers and its ingress for producers as
    one.

    Args: age: of its oldest unsettled delivery, seconds.
    """
    ingress = node.ingress
    borrowed = sum(share.credit_sink.granted for share in node.borrowers)
    producers = _producers(node)
    waiting, buffered, granted = node.waiting.size, node.buffered, node.granted - borrowed
    if ingress is not None:
        producers += _producers(ingress)
        waiting += ingress.waiting.size
        # Deliveries that are assigned to a lane, and wait for its credit.
        waiting += sum(share.credit_sink.waiting for share in ingress.shares if share.node is not node)
        buffered += ingress.buffered
        granted += ingress.granted
    return AddressStatistics(
        name=node.name,
        tenant=node.tenant,
        distribution=node.config.distribution,
        producers=producers,
        consumers=sum(not each.is_over for each in node.outgoing),
        consumers_at=where.within_reach,
        out_of_reach=where.out_of_reach,
        copies=len(node.copies),
        waiting=waiting,
        buffered=buffered,
        demand=_demand(node),
        granted=granted,
        deliveries_in=tally.deliveries_in,
        deliveries_out=tally.deliveries_out,
        transit_in=tally.transit_in,
        transit_out=tally.transit_out,
        octets_in=tally.octets_in,
        octets_out=tally.octets_out,
        zero_credit_in=tally.zero_credit_in,
        zero_credit_out=tally.zero_credit_out,
        delayed_1s=tally.late,
        delayed_10s=tally.very_late,
        latency=dict(zip(LATENCY_NAMES, tally.latency, strict=True)),
        latency_seconds=tally.latency_sum,
        oldest_unsettled=age,
        undelivered=node.undelivered,
        relayed=_relayed(node, tally),
        decided=node.decisions.total,
        decisions=node.decisions.by_reason(),
        reason=reason,
        **tally.outcomes(),
    )


def _relayed(node: LocalNode, tally: Tally) -> int:
    """Return how many deliveries of an address came and were relayed without a decision."""
    routes = [each.fast_route for each in (node, node.ingress) if each is not None]
    anonymous = sum(each.relayed for each in routes if each is not None)
    return max(0, tally.deliveries_in - node.decisions.named) + anonymous


def _producers(node: Node) -> int:
    return sum(each.lane is None and not each.endpoint.flow_state.ended for each in node.incoming)


def _demand(node: LocalNode) -> int:
    """Return the demand of all routes of an address; an ingress with several routes holds only a part of it."""
    ingress = node.ingress
    if ingress is None:
        return node.demand
    if node.is_multicast or node.remote is not None:
        return ingress.demand
    ways = list(ingress.shares)
    if node.config.distribution is Distribution.CLOSEST:
        least = min((share.cost for share in ways), default=0)
        ways = [share for share in ways if share.cost == least]
    return sum(share.node.demand for share in ways)


def _nodes(node: LocalNode) -> Iterator[NodeStatistics]:
    """Yield the router's own node of an address, if the address is reserved."""
    if is_reserved(node.name):
        dynamic = node if isinstance(node, DynamicNode) else None
        yield NodeStatistics(
            name=node.name,
            tenant=node.tenant,
            dynamic=dynamic is not None,
            maker=dynamic.maker.number if dynamic is not None else None,
            lifetime=_LIFETIMES[type(dynamic.lifetime)] if dynamic is not None else None,
        )
