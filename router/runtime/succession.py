"""The succession of a router's process: its successor takes the listening sockets over, and joins it in the mesh.

Both processes have the same listening sockets (SCM_RIGHTS, unix(7)), each with its queue of connections: so none is
refused, whichever of them ends. With SO_REUSEPORT each would have a queue of its own, and the system resets the
connections in it when the process ends that has not accepted them yet; nor can a Unix socket be shared that way.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router.config.connector import ConnectorConfig
from amqpmesh.router.config.listener import ListenerConfig
from amqpmesh.router.config.urls import UNIX
from amqpmesh.router.management.changed_config import end_connection
from amqpmesh.router.runtime.credentials import ConnectorCredentials, Credentials
from amqpmesh.router.runtime.inherited import give
from amqpmesh.router.runtime.listeners import Listener, bound_to_path
from amqpmesh.router.runtime.worker_channels import Door

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from amqpmesh.router.runtime.connectors import Connector
    from amqpmesh.router.runtime.driver import Driver
    from amqpmesh.router.runtime.edge import Edge
    from amqpmesh.router.runtime.listeners import Admit
    from amqpmesh.router.runtime.poller import Poller

WAITING: Final = 16
"""Processes that may wait for the sockets."""

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
        self._giving: Door | None = None

    # -------------------------------------------------------------------------------------------- of the predecessor

    def hand_over(self, channel: socket.socket, door: Path) -> None:
        """Send all listening sockets, and let the successor connect. Args: door: a path in a private folder.

        Raises: OSError.
        """
        if self._core.mesh is not None:
            self._let_in(door)
        places = [(each.config, each.sockets) for each in self._edge.listeners]
        give(channel, places, None if self._door is None else str(door))

    def give_at(self, path: Path) -> None:
        """Give the listening sockets to each process of this user that connects to a path: workers of a successor.

        Raises: OSError.
        """
        if self._poller is not None:
            self._giving = Door(path, WAITING, self._poller, self._give)

    def _give(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        places = [(each.config, each.sockets) for each in self._edge.listeners if not each.config.endpoint.is_unix]
        with connected, suppress(OSError):  # it has ended
            give(connected, places, None)

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
        if self._giving is not None:
            self._giving.close()
            self._giving = None

    def pause(self) -> None:
        """Accept no more connections: the successor does."""
        for each in self._edge.listeners:
            each.pause()

    def resume(self) -> None:
        """Accept connections again: there is no successor any more."""
        self._edge.accept_again()

    # ---------------------------------------------------------------------------------------------- of the successor

    def join(self, door: str) -> None:
        """Connect to the predecessor, as its neighbour."""
        limits = self._core.context.config.limits()
        name = f"{DOOR}-{len(self._edge.unlisted) + 1}"
        config = ConnectorConfig(url=f"{UNIX}://{door}", name=name, **limits)  # type: ignore[arg-type]  # numbers
        self._edge.unlisted.append(self._start_connector(config, ConnectorCredentials(None, None)))

    async def until_joined(self) -> None:
        """Wait for a path to the predecessor."""
        mesh, own = self._core.mesh, self._core.context.id
        if mesh is not None:
            # A router of no mesh does not load the topology.
            from amqpmesh.topology.workers import upgraded_name, without_number

            topology = mesh.topology

            def is_joined() -> bool:
                name = upgraded_name(own)
                alike = [each for each in topology.routers() if upgraded_name(each) == name]
                before = [each for each in alike if without_number(each) != without_number(own)]
                return any(topology.distance(each) is not None for each in before)

            await self._driver.until(is_joined)

    def part(self) -> None:
        """Connect to the predecessor no more: it has ended."""
        while self._edge.unlisted:
            link = self._edge.unlisted.pop()
            link.stop()
            end_connection(self._core, link.config, trio.current_time())
