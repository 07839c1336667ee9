"""Checks of a simulated mesh: its routers know the real graph, and keep nothing of former clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Final

import networkx
import trio

if TYPE_CHECKING:
    from amqpmesh.topology.linkstate import Topology
    from amqpmesh.topology.simulation.nodes import Node

STEP: Final = 0.001
"""Seconds between two checks of the routes."""

LONG_STEP: Final = 0.05
"""Seconds between two checks of the tables."""


async def none_left(check: Callable[[], str | None], failure: str, timeout: float, step: float) -> float:
    """Wait until `check` returns None.

    Args: failure: the beginning of the error's message. timeout, step: seconds at most, and between two checks.
    Returns: the seconds that it took. Raises: trio.TooSlowError: it took more than `timeout`; its message ends with the
        last result of `check`.
    """
    began = trio.current_time()
    while True:
        left = check()
        now = trio.current_time()
        if left is None:
            return now - began
        if now >= began + timeout:
            raise trio.TooSlowError(f"{failure} after {timeout:g} s: {left}")
        await trio.sleep(step)


def disagreement(nodes: Collection[Node], links: Iterable[tuple[str, str]]) -> str | None:
    """Return the first fault in the routers' knowledge; None: all of them know the graph, and all consumers.

    Args: nodes: the running ones. links: those that work, each by its two routers.
    """
    graph = networkx.Graph()
    by_id = {node.id: node.router.mesh.topology for node in nodes}
    graph.add_nodes_from(by_id)
    graph.add_edges_from(links)
    for node in nodes:
        found = _of_neighbours(by_id[node.id], set(graph[node.id])) or _of_addresses(node)
        if found is not None:
            return f"{node.id}: {found}"
    for component in networkx.connected_components(graph):
        members = sorted(component)
        for router in members:
            found = _of_others(by_id[router], members, by_id)
            if found is not None:
                return f"{router}: {found}"
    return None


def leftovers(nodes: Iterable[Node]) -> str | None:
    """Return the first remains of clients in a router; None: there are none."""
    for node in nodes:
        told = node.statistics()
        assert told.mesh is not None
        left = {
            "addresses": told.router.addresses,
            "deliveries": told.router.relays,
            "octets": told.router.buffered,
            "lanes": told.mesh.lanes,
            "advertised addresses": len(told.adverts),
        }
        words = [f"{number} {what}" for what, number in left.items() if number]
        if words:
            return f"{node.id}: {', '.join(words)}"
    return None


def _of_neighbours(topology: Topology, expected: set[str]) -> str | None:
    told = {link.router for link in topology.neighbours() if link.advertised}
    for router in sorted(expected - told):
        reasons = [link.reason for link in topology.neighbours() if link.router == router]
        return f"no adjacency to {router}: {', '.join(reasons) or 'no connection'}"
    for router in sorted(told - expected):
        return f"still an adjacency to {router}"
    return None


def _of_addresses(node: Node) -> str | None:
    consumed, told = node.router.consumed, set(node.router.mesh.topology.book.advertised_by(node.id))
    for tenant, name in sorted(consumed ^ told):
        return f"has not told that it has {'a' if (tenant, name) in consumed else 'no'} consumer of {name}"
    return None


def _of_others(topology: Topology, members: list[str], by_id: dict[str, Topology]) -> str | None:
    reached = [router for router in topology.routers() if topology.distance(router) is not None]
    if reached != members:
        return f"reaches {', '.join(reached)}, and not {', '.join(members)}"
    for router in members:
        theirs = by_id[router]
        if topology.graph.neighbours(router) != theirs.graph.neighbours(router):
            return f"does not know the links of {router}"
        if topology.book.advertised_by(router) != theirs.book.advertised_by(router):
            return f"does not know the addresses of {router}"
    if not topology.graph.no_transit:
        cheapest = networkx.single_source_dijkstra_path_length(topology.graph.network, topology.router, weight="cost")
        if any(topology.distance(router) != cheapest.get(router) for router in members):
            return "has not computed its paths"
    return None
