"""Where clients connect: sockets bound, and those accepted that come."""

import errno
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import trio

from amqpmesh.router import logs
from amqpmesh.router.config import ListenerConfig
from amqpmesh.router.io.streams import TcpStream
from amqpmesh.router.statistics import ListenerStatistics

log = logs.EventLog("amqpmesh.io")

BACKLOG = 0xFFFF
"""Connections that may wait to be accepted: the system lowers it to its own maximum. In a storm of reconnects every
one beyond it is refused, or waits for a retry a second later."""

ACCEPT_BATCH = 16
"""Connections accepted in a row, before those that are there get their turn."""

PAUSE = 0.1
"""Seconds until a listener tries again, after the system had nothing left for another connection."""

BIND_ATTEMPTS = 10
"""How often a port of the system's choice is tried, when a host has several addresses and it has to be free on each."""

Admit: TypeAlias = Callable[["Listener", TcpStream, str], None]


class Listener:
    """A configured listener, bound.

    Attributes: `config`. `url`: with the port that is really listened at. `connections`: how many came by it and are
    still there. `refused`: how many more came than it takes.
    """

    def __init__(self, config: ListenerConfig, sockets: list[socket.socket]) -> None:
        """Args: sockets: bound to one port, each to another address of the host."""
        self.config = config
        self.url = str(replace(config.endpoint, port=sockets[0].getsockname()[1]))
        self.connections = 0
        self.refused = 0
        self._sockets = sockets

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self.config.name

    def statistics(self, cost: int) -> ListenerStatistics:
        """How it stands. Args: cost: of sending on its connections."""
        return ListenerStatistics(
            name=self.name,
            url=self.url,
            connections=self.connections,
            refused=self.refused,
            role=self.config.role,
            cost=cost,
        )

    @classmethod
    async def bind(cls, config: ListenerConfig) -> "Listener":
        """Listen at every address of the listener's host.

        Raises: OSError: with the URL; a port that is in use, a host that is none of ours, a port that takes privileges.
        """
        endpoint = config.endpoint
        try:
            found = await trio.socket.getaddrinfo(
                endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
            for attempt in range(BIND_ATTEMPTS):
                try:
                    return cls(config, _bound(addresses))
                except OSError as error:
                    if error.errno != errno.EADDRINUSE or endpoint.port or attempt == BIND_ATTEMPTS - 1:
                        raise
            raise AssertionError("the last attempt returns or raises")
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), str(endpoint)) from error

    async def accept(self, admit: Admit) -> None:
        """Hand whoever connects to `admit`, with the peer's address, until `close`."""
        async with trio.open_nursery() as nursery:
            for listening in self._sockets:
                nursery.start_soon(self._accept, listening, admit)

    def close(self) -> None:
        """Accept nobody any more."""
        for listening in self._sockets:
            if listening.fileno() != -1:
                trio.lowlevel.notify_closing(listening)
                listening.close()

    async def _accept(self, listening: socket.socket, admit: Admit) -> None:
        while listening.fileno() != -1:
            try:
                await trio.lowlevel.wait_readable(listening)
                for _ in range(ACCEPT_BATCH):
                    connected, address = listening.accept()
                    admit(self, TcpStream(connected), address[0])
            except (BlockingIOError, ConnectionError):
                continue  # nobody is there any more
            except trio.ClosedResourceError:
                return
            except OSError as error:
                # Files or memory are used up. Those that are connected go on, and one of them may leave.
                log.warning("cannot accept", peer=self.url, reason=error.strerror or str(error))
                await trio.sleep(PAUSE)
            except Exception as error:
                log.error("fault", exception=error, peer=self.url)
                await trio.sleep(PAUSE)


def _bound(addresses: Sequence[tuple[int, Sequence[object]]]) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for family, address in addresses:
            listening = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(listening)
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart waits for no old connection
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a listener of its own
            # A port of the system's choice is chosen once, for all addresses.
            port = sockets[0].getsockname()[1] if len(sockets) > 1 else address[1]
            listening.bind((address[0], port, *address[2:]))
            listening.listen(BACKLOG)
    except BaseException:
        for listening in sockets:
            listening.close()
        raise
    return sockets
