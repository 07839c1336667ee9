"""Costs of listeners and connectors that are changed alone while a router with workers runs: they hold for all workers.

A worker keeps such a cost as a router without workers does, for connections to come, too. The shared configuration has
all of them, so that a worker that has another part of the connectors can be asked for each, and one that is started
again has them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from amqpmesh.router.config.edits import KINDS
from amqpmesh.router.io.threads import aside
from amqpmesh.router.management.edit_requests import COSTLY
from amqpmesh.router.runtime.shared_config import SharedCost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig, RouterConfig
    from amqpmesh.router.runtime.shared_config import SharedConfig, SharedState


T = TypeVar("T", "ListenerConfig", "ConnectorConfig")


def _rows(config: RouterConfig) -> Iterator[tuple[str, ListenerConfig | ConnectorConfig]]:
    for kind in COSTLY:
        for name, row in KINDS[kind].rows(config).items():
            yield f"{kind}/{name}", row


def at_costs(config: RouterConfig, costs: Mapping[str, SharedCost]) -> RouterConfig:
    """Return a configuration with the costs that were changed alone."""
    if not costs:
        return config

    def at(identity: str, row: T) -> T:
        return replace(row, cost=costs[identity].cost) if identity in costs else row

    return replace(
        config,
        listeners=tuple(at(f"listener/{each.name}", each) for each in config.listeners),
        connectors=tuple(at(f"connector/{each.name}", each) for each in config.connectors),
    )


def kept(costs: Mapping[str, SharedCost], before: RouterConfig, after: RouterConfig) -> dict[str, SharedCost]:
    """Return the costs that stay after a change of tables: of those rows whose cost in the configuration stays."""
    configured = dict(_rows(before))
    return {
        identity: costs[identity]
        for identity, row in _rows(after)
        if identity in costs and identity in configured and configured[identity].cost == row.cost
    }


async def share_cost(shared: SharedConfig, state: SharedState, identity: str, cost: int) -> SharedState:
    """Write a changed cost for all workers. Returns: the new state. Raises: OSError."""
    number = state.changed + 1
    after = state._replace(costs={**state.costs, identity: SharedCost(cost, number)}, changed=number)
    await aside(shared.write, after)
    return after
