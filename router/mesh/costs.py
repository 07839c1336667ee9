"""What sending to neighbours costs, changed while the router runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.statistics.mesh_statistics import NeighbourStatistics
from amqpmesh.router.statistics.router_statistics import ConnectorStatistics, ListenerStatistics

if TYPE_CHECKING:
    from amqpmesh.router.core import Core

#: Whatever has a cost, as it was told.
Costly = ConnectorStatistics | ListenerStatistics | NeighbourStatistics


def set_cost(core: Core, told: Costly, cost: int) -> None:
    """Have sending cost so much: to a neighbour by one connection, or by all of a connector or listener.

    Raises: LookupError: there is none such any more, or no neighbour is ever there.
    """
    mesh = core.mesh
    if mesh is None:
        raise LookupError("this router has no neighbours: it is in no mesh")
    if isinstance(told, NeighbourStatistics):
        found = next((each for each in mesh.neighbours.values() if each.record.number == told.connection), None)
        if found is None:
            raise LookupError("that neighbour is gone")
        mesh.set_cost(found, cost)
        return
    configured = core.config.connectors if isinstance(told, ConnectorStatistics) else core.config.listeners
    config = next((each for each in configured if each.name == told.name and each.is_mesh), None)
    if config is None:
        raise LookupError("it leads to no neighbour: its role is not mesh")
    mesh.set_cost_of(config, cost)
