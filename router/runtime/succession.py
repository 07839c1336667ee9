"""The succession of a router's process: its successor takes the listening sockets over, and joins it in the mesh.

Both processes have the same listening sockets (SCM_RIGHTS, unix(7)), each with its queue of connections: so none is
refused, whichever of them ends. With SO_REUSEPORT each would have a queue of its own, and the system resets the
connections in it when the process ends that has not accepted them yet; nor can a Unix socket be shared that way.
"""

from __future__ import annotations

import json
from socket import send_fds
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router.config.connector import ConnectorConfig
from amqpmesh.router.config.listener import ListenerConfig
from amqpmesh.router.config.urls import UNIX
from amqpmesh.router.management.changed_config import end_connection
from amqpmesh.router.runtime.credentials import ConnectorCredentials, Credentials
from amqpmesh.router.runtime.listeners import Listener, bound_to_path

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from amqpmesh.router.runtime.connectors import Connector
    from amqpmesh.router.runtime.driver import Driver
    from amqpmesh.router.runtime.edge import Edge
    from amqpmesh.router.runtime.listeners import Admit
    from amqpmesh.router.runtime.poller import Poller

DOOR: Final = "successor"
"""The name of the listener for the successor, and of the successor's connector to it."""


class Succession:
    """A running router, as its process hands it over to another one, or has got it from another one."""

    def __init__(
        self,
        driver: Driver,
        edge: Edge,
        poller: Poller | None,
        start: Callable[..., object],
        admit: Admit,
        start_connector: Callable[[ConnectorConfig, ConnectorCredentials], Connector],
    ) -> None:
        """Args: as of `Edge.begin`."""
        self._driver = driver
        self._core = driver.core
        self._edge = edge
        self._poller = poller
        self._start = start
        self._admit = admit
        self._start_connector = start_connector
        self._door: Listener | None = None
        self._link: Connector | None = None

    # -------------------------------------------------------------------------------------------- of the predecessor

    def hand_over(self, channel: socket.socket, door: Path) -> None:
        """Send all listening sockets, and let the successor connect. Args: door: a path in a private folder.

        Raises: OSError.
        """
        for each in self._edge.listeners:
            told = {"name": each.config.name, "url": str(each.config.endpoint)}
            descriptors = [one.fileno() for one in each.sockets if one.fileno() != -1]
            send_fds(channel, [json.dumps(told).encode()], descriptors)
        if self._core.mesh is not None:
            self._let_in(door)
        channel.send(json.dumps({"door": None if self._door is None else str(door)}).encode())

    def _let_in(self, path: Path) -> None:
        limits = self._core.context.config.limits()
        config = ListenerConfig(url=f"{UNIX}://{path}", name=DOOR, role="mesh", connections=4, **limits)  # type: ignore[arg-type]  # numbers
        self._door = Listener(config, [bound_to_path(str(path))])
        self._edge.credentials[config] = Credentials.load(config, self._core.context.config.mesh)
        self._start(self._door.accept, self._admit, self._poller)

    def close_door(self) -> None:
        """Let no successor connect any more."""
        if self._door is not None:
            self._door.close()
            self._door = None

    def pause(self) -> None:
        """Accept no more connections: the successor does."""
        for each in self._edge.amqp:
            each.pause()

    def resume(self) -> None:
        """Accept connections again: there is no successor any more."""
        self._edge.accept_again()

    # ---------------------------------------------------------------------------------------------- of the successor

    def join(self, door: str) -> None:
        """Connect to the predecessor, as its neighbour."""
        limits = self._core.context.config.limits()
        config = ConnectorConfig(url=f"{UNIX}://{door}", name=DOOR, **limits)  # type: ignore[arg-type]  # numbers
        self._link = self._start_connector(config, ConnectorCredentials(None, None))

    async def until_joined(self) -> None:
        """Wait for a path to the predecessor."""
        mesh, own = self._core.mesh, self._core.context.id
        if mesh is not None:
            from amqpmesh.topology.workers import upgraded_name  # a router of no mesh does not load the topology

            topology = mesh.topology

            def is_joined() -> bool:
                name = upgraded_name(own)
                alike = [each for each in topology.routers() if each != own and upgraded_name(each) == name]
                return any(topology.distance(each) is not None for each in alike)

            await self._driver.until(is_joined)

    def part(self) -> None:
        """Connect to the predecessor no more: it has ended."""
        if self._link is not None:
            self._link.stop()
            end_connection(self._core, self._link.config, trio.current_time())
            self._link = None
