"""Configurations of the workers of a router, which are processes.

The workers of `A` are the routers `A.1`, `A.2`, ... of one mesh. They listen at the same ports, know all configured
addresses, and connect to each other by Unix sockets. Each connector, and each link to a broker, belongs to one of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from amqpmesh.router.config.file import (
    ConnectorConfig,
    LinkConfig,
    ListenerConfig,
    MeshConfig,
    RouterConfig,
    WorkerConfig,
)
from amqpmesh.router.config.urls import UNIX
from amqpmesh.topology.workers import worker_of

if TYPE_CHECKING:
    from pathlib import Path

LEAST_MEMORY: Final = 2**20
"""Octets of a worker's part of the memory: the least that a router can have."""

SIBLINGS: Final = "workers"
"""The name of a worker's listener for the others, and the stem of the names of its connectors to them."""


def worker_config(config: RouterConfig, number: int, count: int, folder: Path) -> RouterConfig:
    """Return the configuration of a worker.

    Args: config: of the router. number: of the worker, from 1. folder: for their Unix sockets.
    Raises: ConfigError: the id is too long for a router with workers, or the configuration uses a name that they need.
    """
    connectors, links = _connections(config, number, count)
    return replace(
        config,
        id=worker_of(config.id, number),
        memory=max(LEAST_MEMORY, config.memory // count),
        # Without [mesh] the workers are a mesh of their own, which no other router can join.
        mesh=config.mesh or MeshConfig(insecure=True),
        listeners=(*config.listeners, _listener(config, number, count, folder)),
        connectors=(*connectors, *(_connector(config, other, folder) for other in range(1, number))),
        container_links=links,
        worker=WorkerConfig(name=config.id, number=number, count=count, folder=folder),
    )


def hand_over_path(folder: Path, number: int) -> Path:
    """Return the path of the socket at which a worker takes up connections of the others."""
    return folder / f"take-{number}"


def _connections(
    config: RouterConfig, number: int, count: int
) -> tuple[tuple[ConnectorConfig, ...], tuple[LinkConfig, ...]]:
    """Return the connectors and links of this worker: the workers share them out, in turn.

    For connections on demand, a worker can need the credentials of a connector to a container, and its connection. In
    that case all workers have these connectors, but still only one has their links.
    """
    own = {each.name for position, each in enumerate(config.connectors) if position % count == number - 1}
    lends = bool(config.elsewhere.domains) or any(
        each.redirect is not None and each.redirect.is_followed for each in config.addresses
    )
    connectors = tuple(each for each in config.connectors if each.name in own or (lends and not each.is_mesh))
    return connectors, tuple(each for each in config.container_links if each.connector in own)


def _listener(config: RouterConfig, number: int, count: int, folder: Path) -> ListenerConfig:
    """Return the listener for the other workers."""
    url, limits = f"{UNIX}://{folder / str(number)}", config.limits()
    return ListenerConfig(url=url, name=SIBLINGS, role="mesh", connections=4 * count, **limits)  # type: ignore[arg-type]  # numbers


def _connector(config: RouterConfig, other: int, folder: Path) -> ConnectorConfig:
    """Return the connector to another worker: of two, the one with the higher number connects."""
    url, name, limits = f"{UNIX}://{folder / str(other)}", f"{SIBLINGS}-{other}", config.limits()
    hostname = worker_of(config.id, other)
    return ConnectorConfig(url=url, name=name, hostname=hostname, **limits)  # type: ignore[arg-type]  # numbers
