"""A router's view of its mesh, read into statistics: neighbours, routes, and advertisements of addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from amqpmesh.router.statistics.mesh_statistics import (
    AdvertStatistics,
    DisagreementStatistics,
    MeshStatistics,
    NeighbourStatistics,
    RouteStatistics,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpmesh.router.core import Core
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.mesh.member import MeshMember
    from amqpmesh.router.mesh.neighbour import Neighbour
    from amqpmesh.router.statistics.mesh_statistics import LaneStatistics
    from amqpmesh.topology.linkstate import Link


class MeshFields(TypedDict, total=False):
    """The fields of `Statistics` about the mesh; empty without a mesh."""

    mesh: MeshStatistics
    neighbours: tuple[NeighbourStatistics, ...]
    routes: tuple[RouteStatistics, ...]
    adverts: tuple[AdvertStatistics, ...]
    disagreements: tuple[DisagreementStatistics, ...]


def mesh_snapshot(core: Core, lanes: Sequence[LaneStatistics]) -> Steps[MeshFields]:
    """Read the mesh's fields, in steps. Args: lanes: all current lanes."""
    mesh = core.mesh
    if mesh is None:
        return MeshFields()
    by_connection: dict[int, int] = {}
    for lane in lanes:
        by_connection[lane.connection] = by_connection.get(lane.connection, 0) + 1
    neighbours = []
    links = {link.adjacency: link for link in mesh.topology.neighbours()}
    for neighbour in list(mesh.neighbours.values()):
        link = links.get(neighbour)
        if link is not None:
            own = sum(
                by_connection.get(each.record.number, 0)
                for each in mesh.tenant_connections
                if mesh.tenant_connections.neighbour(each.record) is neighbour
            )
            own += by_connection.get(neighbour.record.number, 0)
            neighbours.append(neighbour_statistics(mesh, neighbour, link, own))
        yield
    routes = []
    adverts = []
    for router in mesh.topology.routers():
        yield
        if router == core.context.id:
            continue
        routes.append(_route(mesh, router))
        reachable = mesh.topology.distance(router) is not None
        for name, advert in list(mesh.topology.book.advertised_by(router).items()):
            if advert.consumers:
                adverts.append(
                    AdvertStatistics(
                        name=name.name,
                        tenant=name.tenant,
                        router=router,
                        distribution=advert.distribution,
                        reachable=reachable,
                    )
                )
            yield
    disagreements = yield from mesh.routes.mismatches.snapshot(mesh.routes.nodes())
    whole = _mesh(core, mesh, neighbours, routes, len(lanes))
    return MeshFields(
        mesh=whole,
        neighbours=tuple(neighbours),
        routes=tuple(routes),
        adverts=tuple(adverts),
        disagreements=disagreements,
    )


def _mesh(
    core: Core,
    mesh: MeshMember,
    neighbours: Sequence[NeighbourStatistics],
    routes: Sequence[RouteStatistics],
    lanes: int,
) -> MeshStatistics:
    topology = mesh.topology
    dropped = topology.dropped
    return MeshStatistics(
        id=topology.router,
        epoch=topology.epoch,
        routers=1 + len(routes),
        reachable=1 + sum(route.distance is not None for route in routes),
        neighbours=sum(neighbour.up for neighbour in neighbours),
        lanes=lanes,
        messages_sent=sum(topology.sent.values()),
        no_path=core.context.no_path,
        no_hops=core.context.no_hops,
        dropped_malformed=dropped.get("malformed", 0),
        dropped_oversized=dropped.get("oversized", 0),
        dropped_version=dropped.get("version", 0),
        dropped_kind=dropped.get("kind", 0),
        dropped_area=dropped.get("area", 0),
        dropped_untrusted=dropped.get("untrusted", 0),
        dropped_stale=dropped.get("stale", 0),
        dropped_replayed=dropped.get("replayed", 0),
        dropped_full=dropped.get("full", 0),
    )


def neighbour_statistics(mesh: MeshMember, neighbour: Neighbour, link: Link, lanes: int) -> NeighbourStatistics:
    """Return the statistics of a connection to a neighbour. Args: lanes: on it."""
    record, graph = neighbour.record, mesh.topology.graph
    router = neighbour.router
    remote_cost = graph.cost(router, mesh.topology.router)
    if remote_cost is not None and router in graph.overloaded:
        from amqpmesh.topology.records import SURCHARGE  # a router of no mesh does not load the topology

        remote_cost = max(1, remote_cost - SURCHARGE)
    reason = link.reason or ("the neighbour does not tell of it" if remote_cost is None else None)
    return NeighbourStatistics(
        connection=record.number,
        router=router,
        connector=record.connector.name if record.connector is not None else None,
        listener=record.listener.name if record.listener is not None else None,
        cost=link.cost,
        remote_cost=remote_cost,
        up=link.up,
        advertised=link.advertised,
        since=neighbour.since,
        lanes=lanes,
        octets_in=record.octets_in,
        octets_out=record.octets_out,
        reason=reason,
    )


def _route(mesh: MeshMember, router: str) -> RouteStatistics:
    topology = mesh.topology
    route = topology.paths.route(router)
    return RouteStatistics(
        router=router,
        distance=topology.distance(router),
        next_hops=route.next_hops if route is not None else (),
        hops=route.length if route is not None else None,
        transit=topology.graph.is_transit(router),
        overload=router in topology.graph.overloaded,
    )
