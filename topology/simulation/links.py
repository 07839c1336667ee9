"""Connections of a simulated network: streams with latency, which can break."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from amqpmesh.topology.simulation.network import Host, Network, NetworkPath

WINDOW: Final = 256 * 2**10
"""Octets on the way or not yet read, after which the sender has to wait: as many as two sockets hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions under which a network carries octets, in each direction."""

    latency: float = 0.0
    """The least seconds on the way."""
    jitter: float = 0.0
    """The most additional seconds; the actual ones are random. Octets still arrive in order."""
    bandwidth: float | None = None
    """Octets a second, of all connections together; None: no limit."""

    def __post_init__(self) -> None:
        """Check the values. Raises: ValueError: a negative time, or no bandwidth."""
        if self.latency < 0 or self.jitter < 0 or (self.bandwidth is not None and self.bandwidth <= 0):
            raise ValueError(f"no network has {self}")


class _Ending:
    """The end of a direction."""


_END = _Ending()
_RESET = _Ending()


class Pipe:
    """One direction of a connection."""

    def __init__(self, connection: SimulatedConnection, path: NetworkPath, sender: Host, receiver: Host) -> None:
        self._connection = connection
        self._path = path
        self._sender = sender
        self._receiver = receiver
        self._flying: deque[tuple[float, bytes | _Ending]] = deque()
        self._octets = 0
        self._last_at = 0.0
        self._changed = trio.Event()
        #: Nothing more enters, whatever is written.
        self.over = False
        #: Nothing more leaves: the receiver has learnt that the connection is lost, or has closed it.
        self.lost = False

    def wake(self) -> None:
        """Wake all waiting tasks, which then look again."""
        self._changed.set()
        self._changed = trio.Event()

    def held(self) -> None:
        """Let octets that were held up move on from now."""
        now = trio.current_time()
        self._flying = deque((max(at, now + self._path.conditions.latency), data) for at, data in self._flying)
        self._last_at = max(self._last_at, now)
        self.wake()

    async def send(self, data: bytes) -> None:
        """Put octets in, waiting until there is room for them. Raises: trio.BrokenResourceError."""
        await trio.lowlevel.checkpoint()
        at = 0
        while at < len(data):
            if self.lost or self._connection.is_broken_for(self._sender):
                raise trio.BrokenResourceError("the connection is lost")
            if self.over:
                return  # the other end is gone, and this end does not know it yet
            room = WINDOW - self._octets
            if room <= 0:
                await self._changed.wait()
                continue
            part = data[at : at + room]
            at += len(part)
            self._octets += len(part)
            self._put(part, len(part))

    def end(self, *, reset: bool = False) -> None:
        """End the direction after all octets sent so far. Args: reset: let the reader find a loss, not an end."""
        if not self.over:
            self._put(_RESET if reset else _END, 0)
            self.over = True
            self.wake()

    def lose(self) -> None:
        """Lose the octets on the way; both ends learn of the loss."""
        self._flying.clear()
        self.over = self.lost = True
        self.wake()

    def _put(self, data: bytes | _Ending, octets: int) -> None:
        self._last_at = self._path.arrival(self._sender, octets, self._last_at)
        self._flying.append((self._last_at, data))
        self.wake()

    async def receive(self, most: int) -> bytes:
        """Take octets out; b"": there are no more. Raises: trio.BrokenResourceError."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._connection.closed_by(self._receiver):
                raise trio.ClosedResourceError("the connection was closed here")
            if self._receiver.frozen:
                await self._receiver.thawed()
                continue
            if self.lost:
                raise trio.BrokenResourceError("the connection is lost")
            due = self._flying[0][0] if self._flying and self._connection.carries() else None
            if due is not None and due <= trio.current_time():
                break
            with trio.CancelScope(deadline=due if due is not None else float("inf")):
                await self._changed.wait()
        at, data = self._flying[0]
        if data is _END:
            return b""
        if data is _RESET:
            self.lost = True
            self.wake()
            raise trio.BrokenResourceError("the connection was reset by its other end")
        assert isinstance(data, bytes)
        taken, rest = data[:most], data[most:]
        if rest:
            self._flying[0] = at, rest
        else:
            self._flying.popleft()
        self._octets -= len(taken)
        self._connection.log.carried(self._connection.number, self._receiver.name, taken)
        self.wake()
        return taken


class SimulatedConnection:
    """A connection between two hosts."""

    def __init__(self, network: Network, number: int, path: NetworkPath, near: Host, far: Host) -> None:
        """Args: near: the host that opened it."""
        self.number = number
        self.near, self.far = near, far
        self.log = network.log
        self._network = network
        self._closed: set[Host] = set()
        self._pipes = {near: Pipe(self, path, near, far), far: Pipe(self, path, far, near)}
        self.ends = End(self, near), End(self, far)

    def other(self, host: Host) -> Host:
        """Return the host at the other end."""
        return self.far if host is self.near else self.near

    def outgoing(self, host: Host) -> Pipe:
        """Return the direction that a host writes to."""
        return self._pipes[host]

    def carries(self) -> bool:
        """Return True if octets arrive now."""
        return not self._network.is_severed(self.near, self.far)

    def is_broken_for(self, host: Host) -> bool:
        """Return True if a host knows that the connection is lost."""
        return self._pipes[self.other(host)].lost

    def closed_by(self, host: Host) -> bool:
        """Return True if a host has closed it."""
        return host in self._closed

    def close(self, host: Host) -> None:
        """Close the connection at a host."""
        if host in self._closed:
            return
        self._closed.add(host)
        self.outgoing(host).end()
        incoming = self.outgoing(self.other(host))
        incoming.over = True  # octets that are still written go nowhere
        incoming.wake()
        if len(self._closed) == 2:
            self._network.forget(self)

    def killed(self, host: Host) -> None:
        """End the connection of a dead host: its octets arrive, then the other end learns of its death."""
        self._closed.add(host)
        self.outgoing(host).end(reset=True)
        self.outgoing(self.other(host)).over = True
        for pipe in self._pipes.values():
            pipe.wake()
        if len(self._closed) == 2:
            self._network.forget(self)

    def cut(self) -> None:
        """Lose the connection, with all octets on the way; both ends learn of the loss."""
        for pipe in self._pipes.values():
            pipe.lose()

    def resume(self) -> None:
        """Let octets that were held up move on."""
        for pipe in self._pipes.values():
            pipe.held()


class End(trio.abc.HalfCloseableStream):
    """One end of a connection, as a program uses it."""

    def __init__(self, connection: SimulatedConnection, host: Host) -> None:
        self._connection = connection
        self._host = host

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write, waiting while there is no room. Raises: trio.BrokenResourceError, trio.ClosedResourceError."""
        self._check()
        await self._connection.outgoing(self._host).send(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        """Check that the stream is open; `send_all` may have to wait all the same. Raises: as `send_all`."""
        await trio.lowlevel.checkpoint()
        self._check()

    async def send_eof(self) -> None:
        """End this direction. Raises: trio.ClosedResourceError."""
        await trio.lowlevel.checkpoint()
        self._check()
        self._connection.outgoing(self._host).end()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Read, waiting until there is something. Raises: as `send_all`."""
        incoming = self._connection.outgoing(self._connection.other(self._host))
        return await incoming.receive(WINDOW if max_bytes is None else max_bytes)

    async def aclose(self) -> None:
        """Close."""
        self._connection.close(self._host)
        await trio.lowlevel.checkpoint()

    def _check(self) -> None:
        if self._connection.closed_by(self._host):
            raise trio.ClosedResourceError("the connection was closed here")
