"""Where clients connect: sockets bound, and those accepted that come."""

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

import trio

from amqpmesh.router.config.file import ListenerConfig
from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.io.streams import TcpStream
from amqpmesh.router.logs import event_log
from amqpmesh.router.statistics.router_statistics import ListenerStatistics

log = event_log.EventLog("amqpmesh.io")

BACKLOG = 0xFFFF
"""Connections that may wait to be accepted: the system lowers it to its own maximum. In a storm of reconnects every
one beyond it is refused, or waits for a retry a second later."""

ACCEPT_BATCH = 16
"""Connections accepted in a row, before those that are there get their turn."""

PAUSE = 0.1
"""Seconds until a listener tries again, after the system had nothing left for another connection."""

BIND_ATTEMPTS = 10
"""How often a port of the system's choice is tried, when a host has several addresses and it has to be free on each."""

WORKER = "worker"
"""What a peer's address is called that has come by a Unix socket."""

Address: TypeAlias = tuple[int, Sequence[Any]]
"""Of a socket: its family, and what `bind` takes."""

_CREDENTIALS = struct.Struct("3i")  # process, user, group

Admit: TypeAlias = Callable[["Listener", TcpStream, str], None]


class Listener:
    """A configured listener, bound.

    Attributes: `config`. `url`: with the port that is really listened at. `connections`: how many came by it and are
    still there. `most`: the most that were at once, since this was set to fewer. `refused`: how many more came than it
    takes.
    """

    def __init__(self, config: ListenerConfig, sockets: list[socket.socket]) -> None:
        """Args: sockets: bound to one port, each to another address of the host."""
        self.config = config
        self.url = str(config.endpoint if config.endpoint.is_unix else at_port(config.endpoint, sockets))
        self.connections = 0
        self.most = 0
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
    async def bind(cls, config: ListenerConfig, *, shared: bool = False) -> "Listener":
        """Listen at every address of the listener's host.

        Args: shared: other processes of this user listen there, too.
        Raises: OSError: with the URL; a port that is in use, a host that is none of ours, a port that takes privileges.
        """
        endpoint = config.endpoint
        if endpoint.is_unix:
            return cls(config, [_bound_to_path(endpoint.host)])
        try:
            found = await trio.socket.getaddrinfo(
                endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            return cls(config, _bound(_addresses(found), shared=shared, listens=True))
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
                    self._accept_one(listening, admit)
            except (BlockingIOError, ConnectionError):
                continue  # nobody is there any more
            except trio.ClosedResourceError:
                return
            except OSError as error:
                # Files or memory are used up. Those that are connected go on, and one of them may leave.
                log.warning("accept failed", peer=self.url, reason=error.strerror or str(error))
                await trio.sleep(PAUSE)
            except Exception as error:
                log.error("internal error", exception=error, peer=self.url)
                await trio.sleep(PAUSE)

    def _accept_one(self, listening: socket.socket, admit: Admit) -> None:
        """Raises: as sockets do."""
        connected, address = listening.accept()
        if not self.config.endpoint.is_unix:
            admit(self, TcpStream(connected), address[0])
        elif _is_of_this_user(connected):
            admit(self, TcpStream(connected), WORKER)
        else:
            connected.close()


def reserved(config: ListenerConfig) -> list[socket.socket]:
    """Bind to every address of a listener's host, and to one port, which nobody else then takes: `shared` listeners of
    this user's processes can be bound there as long as these sockets are open. Without Trio.

    Raises: OSError: as `Listener.bind`.
    """
    endpoint = config.endpoint
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets = _bound(_addresses(found))
        for each in sockets:
            # Not before it is bound: somebody else, who shares his port, too, would go unnoticed.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # Needed to bind beside connections that are closing; kept, anybody could bind beside it until it listens.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        return sockets
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(endpoint)) from error


def at_port(endpoint: Endpoint, sockets: Sequence[socket.socket]) -> Endpoint:
    """The same with the port that is really listened at."""
    port: int = sockets[0].getsockname()[1]
    return replace(endpoint, port=port)


def _addresses(found: Iterable[tuple[Any, ...]]) -> list[Address]:
    """What `getaddrinfo` has found, each once."""
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _bound(addresses: Sequence[Address], *, shared: bool = False, listens: bool = False) -> list[socket.socket]:
    for attempt in range(BIND_ATTEMPTS):
        try:
            return _bound_once(addresses, shared=shared, listens=listens)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or addresses[0][1][1] or attempt == BIND_ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _bound_once(addresses: Sequence[Address], *, shared: bool, listens: bool) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for family, address in addresses:
            bound = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(bound)
            bound.setblocking(False)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart waits for no old connection
            if shared:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a listener of its own
            # A port of the system's choice is chosen once, for all addresses.
            port = sockets[0].getsockname()[1] if len(sockets) > 1 else address[1]
            bound.bind((address[0], port, *address[2:]))
            if listens:
                bound.listen(BACKLOG)
    except BaseException:
        for bound in sockets:
            bound.close()
        raise
    return sockets


def _bound_to_path(path: str) -> socket.socket:
    """Listen at a Unix socket, in the place of one that was there."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        with suppress(FileNotFoundError):
            os.unlink(path)
        listening.bind(path)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise OSError(error.errno, error.strerror or str(error), path) from error
    return listening


def _is_of_this_user(connected: socket.socket) -> bool:
    """Whether a process of the same user is at the other end of a Unix socket (unix(7), SO_PEERCRED)."""
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(told)
    return bool(user == os.geteuid())
