"""A simulated network: hosts, the roads between them, and their faults."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Collection
from random import Random
from typing import Final

import trio

from amqpmesh.topology.simulation.links import Conditions, End, Wire
from amqpmesh.topology.simulation.log import Log

Serve = Callable[[End, "Host"], Awaitable[None]]
"""Serves who has connected, at the end of a connection, until it is over."""


class Host:
    """A machine: a router's, or a client's."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: It does nothing, for now.
        self.frozen = False
        #: By port, what takes connections here; nothing does while nobody runs.
        self.servers: dict[int, Serve] = {}
        self._thawed = trio.Event()

    def thaw(self) -> None:
        """Go on."""
        self.frozen = False
        self._thawed.set()
        self._thawed = trio.Event()

    async def thawed(self) -> None:
        """Wait until it is not frozen."""
        while self.frozen:
            await self._thawed.wait()


class Road:
    """The shared part of connections between two hosts."""

    def __init__(self, conditions: Conditions, chance: Random) -> None:
        self.conditions = conditions
        #: Connections by it break, and none comes about.
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
    """Carries octets between hosts."""

    def __init__(self, chance: Random, log: Log) -> None:
        self.log: Final = log
        self._chance = chance
        self._wires: dict[Wire, Road] = {}
        self._numbers = 0
        self._groups: dict[Host, int] = {}
        self._healed = trio.Event()

    def road(self, conditions: Conditions) -> Road:
        """Make a road."""
        return Road(conditions, self._chance)

    async def connect(self, near: Host, far: Host, port: int, road: Road, start: Callable[..., object]) -> End:
        """Connect to a port of another host; it takes as long as octets take to get there and back.

        Args: start: runs the server there.
        Raises: OSError: nobody listens there, or there is no way.
        """
        for sender in (near, far):  # there and back
            await near.thawed()
            if road.cut:
                raise _error(errno.EHOSTUNREACH)
            await trio.sleep(road.arrival(sender, 0, 0.0) - trio.current_time())
            while self.is_severed(near, far):  # nobody answers, for so long
                await self._healed.wait()
        serve = far.servers.get(port)
        if road.cut or serve is None:
            raise _error(errno.EHOSTUNREACH if road.cut else errno.ECONNREFUSED)
        self._numbers += 1
        wire = Wire(self, self._numbers, road, near, far)
        self._wires[wire] = road
        self.log.note(near.name, "connected", wire=wire.number, to=far.name)
        ours, theirs = wire.ends
        start(serve, theirs, near)
        return ours

    @property
    def is_partitioned(self) -> bool:
        """True if there are hosts that cannot reach each other."""
        return len(set(self._groups.values())) > 1

    def is_severed(self, one: Host, other: Host) -> bool:
        """Return True if two hosts are on two sides of a partition, so that nothing passes between them."""
        sides = self._groups.get(one), self._groups.get(other)
        return None not in sides and sides[0] != sides[1]

    def partition(self, groups: Collection[Collection[Host]]) -> None:
        """Let nothing pass between these; no end learns of that. Hosts that are in no group reach all."""
        held = [wire for wire in self._wires if not wire.carries()]
        self._groups = {host: number for number, group in enumerate(groups) for host in group}
        for wire in held:
            if wire.carries():
                wire.go_on()
        self._healed.set()
        self._healed = trio.Event()

    def break_all(self, road: Road) -> int:
        """Break the connections by a road. Returns: how many there were."""
        found = [wire for wire, by in self._wires.items() if by is road]
        for wire in found:
            del self._wires[wire]
            self.log.note("-", "connection lost", wire=wire.number, ends=f"{wire.near.name},{wire.far.name}")
            wire.cut()
        return len(found)

    def kill(self, host: Host) -> None:
        """Kill a host: it sends nothing more."""
        for wire in [wire for wire in self._wires if host in (wire.near, wire.far)]:
            wire.killed(host)

    def forget(self, wire: Wire) -> None:
        """Forget a connection that both ends have closed."""
        self._wires.pop(wire, None)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
