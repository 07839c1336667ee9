"""A simulated network: hosts, the paths between them, and their faults."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Collection
from random import Random
from typing import Final

import trio

from amqpmesh.topology.simulation.links import Conditions, End, SimulatedConnection
from amqpmesh.topology.simulation.log import Log

Serve = Callable[[End, "Host"], Awaitable[None]]
"""A server of connections: runs at the end of a connection until that is over."""


class Host:
    """A machine: a router's, or a client's."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: True while it does nothing.
        self.frozen = False
        #: By port: the server of connections; empty while no router runs.
        self.servers: dict[int, Serve] = {}
        self._thawed = trio.Event()

    def thaw(self) -> None:
        """Continue."""
        self.frozen = False
        self._thawed.set()
        self._thawed = trio.Event()

    async def thawed(self) -> None:
        """Wait until it is not frozen."""
        while self.frozen:
            await self._thawed.wait()


class NetworkPath:
    """The shared part of connections between two hosts."""

    def __init__(self, conditions: Conditions, chance: Random) -> None:
        self.conditions = conditions
        #: True while connections by it break, and none opens.
        self.cut = False
        self._chance = chance
        self._free_at: dict[Host, float] = {}

    def arrival(self, sender: Host, octets: int, after: float) -> float:
        """Return the time when octets sent now arrive. Args: after: the arrival of octets sent before; not earlier."""
        conditions, begins = self.conditions, trio.current_time()
        if conditions.bandwidth is not None:
            begins = max(begins, self._free_at.get(sender, 0.0)) + octets / conditions.bandwidth
            self._free_at[sender] = begins
        late = self._chance.uniform(0.0, conditions.jitter) if conditions.jitter else 0.0
        return max(after, begins + conditions.latency + late)


class Network:
    """A network that carries octets between hosts."""

    def __init__(self, chance: Random, log: Log) -> None:
        self.log: Final = log
        self._chance = chance
        self._connections: dict[SimulatedConnection, NetworkPath] = {}
        self._numbers = 0
        self._groups: dict[Host, int] = {}
        self._healed = trio.Event()

    def path(self, conditions: Conditions) -> NetworkPath:
        """Make a path."""
        return NetworkPath(conditions, self._chance)

    async def connect(self, near: Host, far: Host, port: int, path: NetworkPath, start: Callable[..., object]) -> End:
        """Connect to a port of another host, in the time of a round trip.

        Args: start: runs the server there.
        Raises: OSError: no server listens there, or there is no path.
        """
        for sender in (near, far):  # there and back
            await near.thawed()
            if path.cut:
                raise _error(errno.EHOSTUNREACH)
            await trio.sleep(path.arrival(sender, 0, 0.0) - trio.current_time())
            while self.is_severed(near, far):  # there is no answer meanwhile
                await self._healed.wait()
        serve = far.servers.get(port)
        if path.cut or serve is None:
            raise _error(errno.EHOSTUNREACH if path.cut else errno.ECONNREFUSED)
        self._numbers += 1
        connection = SimulatedConnection(self, self._numbers, path, near, far)
        self._connections[connection] = path
        self.log.note(near.name, "connected", wire=connection.number, to=far.name)
        ours, theirs = connection.ends
        start(serve, theirs, near)
        return ours

    @property
    def is_partitioned(self) -> bool:
        """True if there are hosts that cannot reach each other."""
        return len(set(self._groups.values())) > 1

    def is_severed(self, one: Host, other: Host) -> bool:
        """Return True if two hosts are on different sides of a partition."""
        sides = self._groups.get(one), self._groups.get(other)
        return None not in sides and sides[0] != sides[1]

    def partition(self, groups: Collection[Collection[Host]]) -> None:
        """Let nothing pass between these groups; no end learns of that. Hosts in no group reach all."""
        held = [connection for connection in self._connections if not connection.carries()]
        self._groups = {host: number for number, group in enumerate(groups) for host in group}
        for connection in held:
            if connection.carries():
                connection.resume()
        self._healed.set()
        self._healed = trio.Event()

    def break_all(self, path: NetworkPath) -> int:
        """Break the connections by a path. Returns: their number."""
        found = [connection for connection, by in self._connections.items() if by is path]
        for connection in found:
            del self._connections[connection]
            self.log.note(
                "-", "connection lost", wire=connection.number, ends=f"{connection.near.name},{connection.far.name}"
            )
            connection.cut()
        return len(found)

    def kill(self, host: Host) -> None:
        """Kill a host: it sends nothing more."""
        for connection in [connection for connection in self._connections if host in (connection.near, connection.far)]:
            connection.killed(host)

    def forget(self, connection: SimulatedConnection) -> None:
        """Forget a connection that both ends have closed."""
        self._connections.pop(connection, None)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
