"""A changed configuration, put in force in the core of a running router."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, TypeVar

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.access.caps import renew_tenants
from amqpmesh.router.amqp.standard.definitions import ConnectionCondition, Error
from amqpmesh.router.config.address import AddressConfig
from amqpmesh.router.config.differences import row_pairs
from amqpmesh.router.containers.container_link import configured
from amqpmesh.router.delivery.duplicates import drop_window
from amqpmesh.router.delivery.link_loss import close_connection
from amqpmesh.router.delivery.memory_pressure import nodes
from amqpmesh.router.incremental import run_to_end
from amqpmesh.router.memory.holders import RESERVE
from amqpmesh.router.model.node import DynamicNode, LocalNode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig, RouterConfig
    from amqpmesh.router.context import Context
    from amqpmesh.router.core import Core
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.mesh.member import MeshMember
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.node import Node

T = TypeVar("T", "ListenerConfig", "ConnectorConfig")

NODES_A_STEP: Final = 64
"""Nodes that one step of a chore looks at."""

REMOVED: Final = "the configuration has changed"
"""The description that peers get whose listener or connector is gone."""


def running_config(core: Core) -> RouterConfig:
    """Return the configuration in force, with the costs that were changed while the router runs."""
    config = core.context.config
    listeners = tuple(_at_cost(each, core.cost_of(each)) for each in config.listeners)
    connectors = tuple(_at_cost(each, core.cost_of(each)) for each in config.connectors)
    if listeners == config.listeners and connectors == config.connectors:
        return config
    return replace(config, listeners=listeners, connectors=connectors)


def _at_cost(config: T, cost: int) -> T:
    return config if (config.cost or 1) == cost else replace(config, cost=cost)


def put_in_force(core: Core, config: RouterConfig, now: float, *, keep_costs: bool = False) -> None:
    """Put a configuration in force for addresses, memory, links to other containers, and costs.

    Nodes that exist are changed in small steps. A node in use keeps its distribution until nothing uses it any more.
    Args: config: without changes that need a restart. Its listeners and connectors are those of the connections.
        keep_costs: costs that were changed while the router runs stay, unless the configuration has another cost there.
    """
    core.change(partial(_put_in_force, core, config, keep_costs), now)


def _put_in_force(core: Core, config: RouterConfig, keep_costs: bool) -> None:
    context = core.context
    before, context.config = context.config, config
    if before.memory != config.memory:
        _set_memory(context, config.memory)
    core.on_demand.renew(config.elsewhere)
    if before.addresses != config.addresses or before.elsewhere != config.elsewhere:
        context.nodes.patterns = config.address_table()
        context.honours_expiry = any(each.absolute_expiry for each in config.addresses)
        context.has_detours = any(each.is_detour for each in config.addresses)
        core.lookup.compact()
        context.kernel.epoch += 1  # addresses of anonymous senders are looked up again
        gone, come = core.remote_nodes.renew()
        if core.mesh is not None:
            _advertise(context, core.mesh, gone, come)
        context.chores.put_off(_change_nodes(context, config))
    _change_links(core, before, config)
    if core.mesh is not None:
        core.mesh.reset_costs(_same_costs(before, config) if keep_costs else frozenset())


def _same_costs(before: RouterConfig, after: RouterConfig) -> frozenset[tuple[type, str]]:
    pairs = [*row_pairs(before, after, "listeners"), *row_pairs(before, after, "connectors")]
    return frozenset(
        (type(new), new.name) for old, new in pairs if old is not None and new is not None and old.cost == new.cost
    )


def _advertise(
    context: Context, mesh: MeshMember, before: Mapping[str, Distribution], after: Mapping[str, Distribution]
) -> None:
    """Advertise other addresses that the router serves for another container. Args: as `RemoteNodes.renew`."""
    for name in before.keys() - after.keys():
        local = context.nodes.find("", name)
        if local is None or not local.is_advertised:
            mesh.advertise("", name, None)
    from amqpmesh.topology.address_book import Advert  # a router of no mesh does not load the topology

    for name, distribution in after.items():
        if before.get(name) is not distribution:
            mesh.advertise("", name, Advert(distribution, consumers=1))


def _set_memory(context: Context, octets: int) -> None:
    memory = context.memory
    memory.budget.limit, memory.reserve.limit = octets, octets // RESERVE
    if context.policy is not None:
        renew_tenants(context, context.policy)


def _change_links(core: Core, before: RouterConfig, config: RouterConfig) -> None:
    for old, new in row_pairs(before, config, "container_links"):
        if old == new:
            continue
        if old is not None:
            core.containers.remove_configured(old.name)
        if new is not None:
            core.containers.add(configured(core.context, new))


def _change_nodes(context: Context, config: RouterConfig) -> Steps[None]:
    """Let the nodes that exist follow changed patterns."""
    for number, node in enumerate(list(nodes(context)), 1):
        if context.config is not config:
            return  # the next change looks at all of them
        _change_node(context, node)
        if number % NODES_A_STEP == 0:
            yield


def look_again(core: Core) -> None:
    """Decide again how the messages of all nodes pass, in small steps: spans or a recording have come or gone."""
    core.context.chores.put_off(_look_again(core.context))


def _look_again(context: Context) -> Steps[None]:
    for number, node in enumerate(list(nodes(context)), 1):
        if node.fast_route is not None:
            context.touch(node)
        if number % NODES_A_STEP == 0:
            yield


def _change_node(context: Context, node: Node) -> None:
    if isinstance(node, DynamicNode) or not node.name:  # no pattern concerns dynamic nodes and transit
        return
    config = _distributed(context.nodes.config(node.name), node.config.distribution)
    if config == node.config:
        return
    before, node.config = node.config, config
    if isinstance(node, LocalNode) and before.advertised != config.advertised:
        if not config.drops_duplicates:
            drop_window(context, node)
        if node.is_advertised:
            node.is_advertised = False  # so that it is advertised again, in other words
            context.routes.consumers_changed(node)
    if node.made_pool is not None:
        node.made_pool.change_settings(config.max_credit, config.drain_time, config.ahead)
    context.touch(node)


@lru_cache(maxsize=256)
def _distributed(config: AddressConfig, distribution: Distribution) -> AddressConfig:
    if config.distribution is distribution:
        return config
    # An overflow belongs to a multicast, and duplicates to other distributions.
    plain = AddressConfig(pattern=config.pattern)
    to_one = distribution in (Distribution.BALANCED, Distribution.CLOSEST)
    duplicates = config.duplicates if to_one else plain.duplicates
    return replace(config, distribution=distribution, overflow=plain.overflow, alias=None, duplicates=duplicates)


def end_clients(core: Core, listener: ListenerConfig) -> None:
    """Close the connections of a listener that is gone, in small steps."""
    concerned = [each for each in core.context.connections if each.listener is listener]
    if concerned:
        core.context.chores.put_off(_end_all(core.context, concerned))


def end_connection(core: Core, connector: ConnectorConfig, now: float) -> None:
    """Close the connection of a connector that is gone, at once: another one may open one for the same links."""
    concerned = [each for each in core.context.connections if each.connector is connector]
    core.change(lambda: run_to_end(_end_all(core.context, concerned)), now)


def _end_all(context: Context, records: list[ConnectionRecord]) -> Steps[None]:
    error = Error(condition=ConnectionCondition.CONNECTION_FORCED, description=REMOVED)
    for record in records:
        if not record.lost:
            close_connection(context, record, error)
            yield


def follow(context: Context, before: ListenerConfig | ConnectorConfig, after: ListenerConfig | ConnectorConfig) -> None:
    """Let the connections of a listener or connector follow its changed configuration, as far as they can."""
    for record in context.connections:
        if before is record.listener:
            record.listener = after  # type: ignore[assignment]  # of the same class
        elif before is record.connector:
            record.connector = after  # type: ignore[assignment]
