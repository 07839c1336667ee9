"""One router as several, in a process each: what each of them is configured as.

The workers of `A` are the routers `A.1`, `A.2`, ... of one mesh. They listen at the same ports, each knows all the
addresses that are configured, and each reaches every other one by a Unix socket; what is there once for `A`, a
connection to somebody or a link to a broker, one of them has.
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
"""Octets of a worker's part of the memory: what a router has at least."""

SIBLINGS: Final = "workers"
"""What a worker's listener for the others is called, and the stem of its connectors to them."""


def worker_config(config: RouterConfig, number: int, count: int, folder: Path) -> RouterConfig:
    """What one of the workers of a router is configured as.

    Args: config: of the router. number: of the worker, from 1. folder: for their Unix sockets.
    Raises: ConfigError: the id is too long for one that has workers, or the configuration has names that theirs need.
    """
    connectors, links = _connections(config, number, count)
    return replace(
        config,
        id=worker_of(config.id, number),
        memory=max(LEAST_MEMORY, config.memory // count),
        # Without [mesh] they are a mesh of their own, to which nobody else can come.
        mesh=config.mesh or MeshConfig(insecure=True),
        listeners=(*config.listeners, _listener(config, number, count, folder)),
        connectors=(*connectors, *(_connector(config, other, folder) for other in range(1, number))),
        container_links=links,
        worker=WorkerConfig(name=config.id, number=number, folder=folder),
    )


def _connections(
    config: RouterConfig, number: int, count: int
) -> tuple[tuple[ConnectorConfig, ...], tuple[LinkConfig, ...]]:
    """The connectors that this worker has, and the links on them: each has one worker, by turns.

    Where something is elsewhere, a worker may have to go there with the credentials of a connector, and over its
    connection: then those to containers are all workers', and still only one has the links.
    """
    own = {each.name for position, each in enumerate(config.connectors) if position % count == number - 1}
    lends = bool(config.elsewhere.domains) or any(
        each.redirect is not None and each.redirect.is_followed for each in config.addresses
    )
    connectors = tuple(each for each in config.connectors if each.name in own or (lends and not each.is_mesh))
    return connectors, tuple(each for each in config.container_links if each.connector in own)


def _listener(config: RouterConfig, number: int, count: int, folder: Path) -> ListenerConfig:
    """Where the others come in."""
    url, limits = f"{UNIX}://{folder / str(number)}", config.limits()
    return ListenerConfig(url=url, name=SIBLINGS, role="mesh", connections=4 * count, **limits)  # type: ignore[arg-type]  # numbers


def _connector(config: RouterConfig, other: int, folder: Path) -> ConnectorConfig:
    """To another one: of two the one with the higher number connects."""
    url, name, limits = f"{UNIX}://{folder / str(other)}", f"{SIBLINGS}-{other}", config.limits()
    hostname = worker_of(config.id, other)
    return ConnectorConfig(url=url, name=name, hostname=hostname, **limits)  # type: ignore[arg-type]  # numbers
