"""Listeners: bound sockets, and the connections that they accept."""

import errno
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

import trio

from amqpmesh.router.config.file import ListenerConfig
from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.io.streams import TcpStream, prepare
from amqpmesh.router.logs import event_log
from amqpmesh.router.runtime.inherited import Inherited
from amqpmesh.router.runtime.poller import READABLE, Poller
from amqpmesh.router.statistics.configured import ListenerStatistics

log = event_log.EventLog("amqpmesh.io")

BACKLOG = 0xFFFF
"""Connections that may wait to be accepted; the system lowers it to its own maximum. In a storm of reconnects each
connection beyond it is refused, or retries a second later.
"""

ACCEPT_BATCH = 16
"""Connections accepted in a row before open ones get their turn."""

REST = 256
"""Waiting connections that a listener accepts before it moves to another port."""

INHERITS = sys.platform == "linux"
"""An accepted socket has the options of the listening one (tcp(7))."""

PAUSE = 0.1
"""Seconds until a listener accepts again, after the system had no resources for another connection."""

BIND_ATTEMPTS = 10
"""Attempts to find a port of the system's choice that is free on all addresses of a host."""

WORKER = "worker"
"""The address given to peers that connect by a Unix socket."""

Address: TypeAlias = tuple[int, Sequence[Any]]
"""A socket's address: its family, and the argument of `bind`."""

_CREDENTIALS = struct.Struct("3i")  # process, user and group (unix(7))

Admit: TypeAlias = Callable[["Listener", TcpStream, str], None]


class Listener:
    """A configured listener, bound.

    Attributes: `config`. `url`: with the actual port. `connections`: accepted by it and still open. `most`: the highest
        number of them since `most` was last lowered. `refused`: connections beyond the limit. `sockets`: as bound.
    """

    def __init__(self, config: ListenerConfig, sockets: list[socket.socket]) -> None:
        """Args: sockets: bound to one port, each to another address of the host."""
        self.config = config
        self.url = _url_of(config, sockets)
        self.connections = 0
        #: Of one for HTTP: connections of AMQP through WebSockets, which are not among `connections`.
        self.websockets = 0
        self.most = 0
        self.refused = 0
        self.sockets = sockets
        self._poller: Poller | None = None
        self._admit: Admit | None = None
        #: The configuration has it no more: connections whose handshake is not over yet are closed, too.
        self.is_removed = False
        #: Another process accepts, which has the same sockets.
        self.is_paused = False

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self.config.name

    def statistics(self, cost: int) -> ListenerStatistics:
        """Return the state of the listener. Args: cost: the cost of sending over the listener's connections."""
        return ListenerStatistics(
            name=self.name,
            url=self.url,
            connections=self.connections + self.websockets,
            refused=self.refused,
            role=self.config.role,
            cost=cost,
        )

    @classmethod
    async def bind(
        cls, config: ListenerConfig, *, shared: bool = False, inherited: Inherited | None = None
    ) -> "Listener":
        """Listen at every address of the listener's host.

        Args: shared: other processes of this user listen at the same port. inherited: may have sockets of that place.
        Raises: OSError: with the URL; the port is in use or needs privileges, or the host is not local.
        """
        there = None if inherited is None else inherited.take(config)
        return cls(config, await listening_at(config.endpoint, shared=shared) if there is None else there)

    def move(self, config: ListenerConfig, sockets: list[socket.socket]) -> None:
        """Listen at other sockets from now on. The caller must call `accept` again. Its connections stay."""
        self.close()
        self.config, self.url, self.sockets, self._poller = config, _url_of(config, sockets), sockets, None

    def remove(self) -> None:
        """Close it, since the configuration has it no more."""
        self.is_removed = True
        self.close()

    def close_to_others(self, *, shared: bool) -> None:
        """Let no other listener of this user bind to the port, or let it. Args: shared: let it."""
        for each in self.sockets:
            if each.fileno() != -1 and each.family != socket.AF_UNIX:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)

    async def accept(self, admit: Admit, poller: Poller | None = None) -> None:
        """Pass each new connection with the peer's address to `admit`, until `close`.

        Args: poller: waits for connections from now on, and `accept` returns at once.
        """
        self._admit = admit
        self.is_paused = False
        if poller is not None and self._is_polled_by(poller, admit):
            return
        async with trio.open_nursery() as nursery:
            for listening in self.sockets:
                nursery.start_soon(self._accept, listening, admit)

    def pause(self) -> None:
        """Accept no more connections until the next `accept`, and keep the sockets, which another process has, too."""
        self.is_paused = True
        for listening in self.sockets:
            if listening.fileno() != -1:
                if self._poller is not None:
                    self._poller.remove(listening.fileno())
                trio.lowlevel.notify_closing(listening)
        self._poller = None

    def close(self) -> None:
        """Accept no more connections."""
        for listening in self.sockets:
            if listening.fileno() != -1:
                if self._poller is not None:
                    self._poller.remove(listening.fileno())
                trio.lowlevel.notify_closing(listening)
                listening.close()

    def accept_rest(self) -> None:
        """Accept the connections that wait, before `move`: once the sockets are closed, the system resets them."""
        for each in self.sockets:
            if self._admit is not None and each.fileno() != -1:
                self.accept_some(each, self._admit, REST)

    def _is_polled_by(self, poller: Poller, admit: Admit) -> bool:
        """Return False if the system has no resources for polling."""
        sockets = [each for each in self.sockets if each.fileno() != -1]
        added = []
        try:
            for listening in sockets:
                poller.add(listening.fileno(), _PolledSocket(self, listening, admit, poller), READABLE)
                added.append(listening)
        except OSError:
            for listening in added:
                poller.remove(listening.fileno())
            return False
        self._poller = poller
        return True

    def accept_some(self, listening: socket.socket, admit: Admit, most: int = ACCEPT_BATCH) -> float:
        """Accept connections that wait, `most` at most. Never raise.

        Returns: the seconds until it may accept again.
        """
        try:
            for _ in range(most):
                self._accept_one(listening, admit)
        except (BlockingIOError, ConnectionError):
            pass  # none is left, or the peer is gone already
        except OSError as error:
            # No file descriptors or memory are left. Open connections continue, and may free some.
            log.warning("accept failed", peer=self.url, reason=error.strerror or str(error))
            return PAUSE
        except Exception as error:
            log.error("internal error", exception=error, peer=self.url)
            return PAUSE
        return 0.0

    async def _accept(self, listening: socket.socket, admit: Admit) -> None:
        while listening.fileno() != -1 and not self.is_paused:
            try:
                await trio.lowlevel.wait_readable(listening)
            except trio.ClosedResourceError:
                return
            pause = self.accept_some(listening, admit)
            if pause:
                await trio.sleep(pause)

    def _accept_one(self, listening: socket.socket, admit: Admit) -> None:
        """Accept one connection. Raises: as sockets do."""
        connected, address = listening.accept()
        if not self.config.endpoint.is_unix:
            admit(self, TcpStream(connected, is_prepared=INHERITS), address[0])
        elif is_of_this_user(connected):
            admit(self, TcpStream(connected), WORKER)
        else:
            connected.close()


async def listening_at(
    endpoint: Endpoint, *, shared: bool = False, beside: Sequence[Listener] = ()
) -> list[socket.socket]:
    """Listen at every address of an endpoint's host.

    Args: shared: other processes of this user listen at the same port. beside: listeners of this router that are about
        to be closed, and may have the port as long.
    Raises: OSError: with the URL; as `Listener.bind`.
    """
    if endpoint.is_unix:
        return [bound_to_path(endpoint.host)]
    try:
        found = await trio.socket.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        addresses = _addresses(found)
        try:
            return _bind(addresses, shared=shared, listens=True)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not beside or shared:
                raise
        return _bind_beside(addresses, beside)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(endpoint)) from error


def _bind_beside(addresses: Sequence[Address], beside: Sequence[Listener]) -> list[socket.socket]:
    """Listen at a port that listeners of this router have. Nothing else can take the port in between."""
    for each in beside:
        each.close_to_others(shared=True)
    try:
        sockets = _bind(addresses, shared=True, listens=True)
    finally:
        for each in beside:
            each.close_to_others(shared=False)
    for bound in sockets:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)
    return sockets


def _url_of(config: ListenerConfig, sockets: Sequence[socket.socket]) -> str:
    return str(config.endpoint if config.endpoint.is_unix else at_port(config.endpoint, sockets))


class _PolledSocket:
    """One socket of a listener, as the poller serves it."""

    is_heavy = False

    def __init__(self, listener: Listener, listening: socket.socket, admit: Admit, poller: Poller) -> None:
        self._listener = listener
        self._listening = listening
        self._admit = admit
        self._poller = poller
        #: The poller's round in which it was served last.
        self._served_in = -1

    def serve(self, until: float) -> bool:  # noqa: ARG002 - a few connections
        """See `Polled`. The system reports the connections that are left.

        Usually only one waits, so another attempt would be in vain. If more wait, it is served again in the next round.
        """
        served_in = self._poller.rounds
        most = ACCEPT_BATCH if served_in == self._served_in + 1 else 1
        self._served_in = served_in
        pause = self._listener.accept_some(self._listening, self._admit, most)
        if pause:
            self._poller.rest(self._listening.fileno(), pause)
        return False


def reserved(config: ListenerConfig) -> list[socket.socket]:
    """Bind to every address of a listener's host at one port, and reserve the port for this user's processes.

    `shared` listeners can bind to the port while these sockets are open. It needs no Trio.

    Raises: OSError: as `Listener.bind`.
    """
    endpoint = config.endpoint
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets = _bind(_addresses(found))
        for each in sockets:
            # Set after `bind`: set before it, another process that shares its port, too, would go unnoticed.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # Needed only to bind beside closing connections; kept, any process could bind beside us until we listen.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        return sockets
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(endpoint)) from error


def at_port(endpoint: Endpoint, sockets: Sequence[socket.socket]) -> Endpoint:
    """Return the endpoint with the actual port."""
    port: int = sockets[0].getsockname()[1]
    return replace(endpoint, port=port)


def _addresses(found: Iterable[tuple[Any, ...]]) -> list[Address]:
    """Return the addresses that `getaddrinfo` found, each once."""
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _bind(addresses: Sequence[Address], *, shared: bool = False, listens: bool = False) -> list[socket.socket]:
    for attempt in range(BIND_ATTEMPTS):
        try:
            return _bind_once(addresses, shared=shared, listens=listens)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or addresses[0][1][1] or attempt == BIND_ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _bind_once(addresses: Sequence[Address], *, shared: bool, listens: bool) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for family, address in addresses:
            bound = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(bound)
            bound.setblocking(False)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart need not wait for old connections
            prepare(bound)
            if shared:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has its own socket
            # The system chooses a port once, for all addresses.
            port = sockets[0].getsockname()[1] if len(sockets) > 1 else address[1]
            bound.bind((address[0], port, *address[2:]))
            if listens:
                bound.listen(BACKLOG)
    except BaseException:
        for bound in sockets:
            bound.close()
        raise
    return sockets


def bound_to_path(path: str) -> socket.socket:
    """Listen at a Unix socket; replace an old one. Raises: OSError: with the path."""
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


def is_of_this_user(connected: socket.socket) -> bool:
    """Return True if the process at the other end of a Unix socket is of the same user (unix(7), SO_PEERCRED)."""
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(told)
    return bool(user == os.geteuid())
