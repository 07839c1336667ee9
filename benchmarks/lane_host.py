"""A router of a mesh, within a process that can say what it takes, and cut its connection.

    python -m benchmarks.lane_host --id A [--neighbour amqp://127.0.0.1:5673] [--resume 60] [--trace]

It says where it listens, and answers each line on stdin with a JSON line: `memory`, `state`, `cut`, `back 1000`, once
so many lanes have credit that were attached after the cut, and `resumed 1000`, once nothing waits for the cut
connection any more, and so many deliveries have been resumed since the line `turns` or the last `resumed`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import socket
import sys
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import trio

from amqpmesh import ConnectorConfig, ListenerConfig, MeshConfig, Router
from amqpmesh.router.cli.process.system import collect_garbage_less_often
from amqpmesh.router.config.address import AddressConfig
from amqpmesh.router.config.resumption import ResumptionConfig
from amqpmesh.router.io.streams import TcpStream
from amqpmesh.router.model.links import OutgoingLink
from benchmarks.processes import resident_bytes

#: Links of one client, all in one session.
LINKS = 50_000

#: Seconds between two looks at whether lanes are back.
LOOK = 0.1
RESUMED_LOOK = 0.01  # that costs little

#: No limit for whatever a benchmark leaves unsettled.
MANY = 10**7


class Turns(trio.abc.Instrument):
    """The longest turn of a task of this process: CPU, seconds."""

    def __init__(self) -> None:
        self.longest = self._began = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002 - trio's
        """Note when a turn begins."""
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count a turn, but for those that wait for the benchmark."""
        if not task.name.startswith(__name__):
            self.longest = max(self.longest, time.thread_time() - self._began)


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def memory() -> dict[str, int]:
    """Octets: resident, and of live objects, if they are traced."""
    gc.collect()
    return {"resident": resident_bytes(os.getpid()), "traced": tracemalloc.get_traced_memory()[0]}


def state(router: Router) -> dict[str, int]:
    """Return the numbers of links, lanes and addresses."""
    seen = router.statistics()
    return {
        "links": len(seen.links),
        "lanes": len(seen.lanes),
        "idle_lanes": sum(not lane.credit for lane in seen.lanes),
        "addresses": len(seen.addresses),
    }


async def back(router: Router, count: int, before: set[int]) -> float:
    """Wait until `count` lanes have credit on new connections. Returns: the time, seconds.

    Args: before: the numbers of the old connections.
    """
    connections = router._started().context.connections
    while True:
        seen = time.monotonic()
        now = [record for record in connections if record.number not in before]
        # The check of ten thousand lanes takes time that must not count: it waits until all links are there.
        if (
            sum(len(record.outgoing) for record in now) >= count
            and sum(1 for lane in lanes(router) if lane.endpoint.credit and lane.connection in now) >= count
        ):
            return seen
        await trio.sleep(LOOK)


async def resumed(router: Router, count: int) -> dict[str, float]:
    """Wait until so many deliveries have been resumed, no other one is to be, and nothing is put off.

    Lanes without deliveries are not waited for: the sending router does not attach them again.
    Returns: the time, and the deliveries that were resumed in all: less than `count` if lanes were given up.
    """
    context = router._started().context
    termini = context.termini
    while True:
        seen = time.monotonic()
        again = termini.counts.resumed_again
        is_over = again >= count or not termini.suspended_number
        if is_over and not context.chores and not any(each.unsettled for each in termini.kept()):
            return {"at": seen, "resumed": again}
        await trio.sleep(RESUMED_LOOK)


def lanes(router: Router) -> Iterator[OutgoingLink]:
    """Those that leave a router. What `statistics` says of ten thousand takes too long to be asked for often."""
    return (
        each for record in router._started().context.connections for each in record.outgoing if each.lane is not None
    )


async def host(options: argparse.Namespace, turns: Turns) -> None:
    neighbours: list[socket.socket] = []

    async def opening(endpoint: Any) -> trio.abc.Stream:
        neighbours.append(socket.create_connection((endpoint.host, endpoint.port)))
        return TcpStream(neighbours[-1])

    loopback = "amqp://127.0.0.1:0"
    listeners = [
        ListenerConfig(url=loopback, name="clients", links=LINKS, handle_max=LINKS, idle_time_out=0.0),
        ListenerConfig(url=loopback, name="neighbours", role="mesh"),
    ]
    connectors = [ConnectorConfig(url=options.neighbour, role="mesh")] if options.neighbour else []
    limits: dict[str, Any] = {}
    if options.resume:
        limits = {
            "memory": 2**33,
            "resumption": ResumptionConfig(unsettled=MANY),
            "addresses": (AddressConfig(pattern="#", max_unsettled=MANY, max_credit=MANY),),
        }
    router = Router(
        id=options.id, mesh=MeshConfig(insecure=True, resume=options.resume), listeners=listeners,
        connectors=connectors, open_stream=opening, drain=0.1, **limits,
    )  # fmt: skip
    async with router:
        say(urls=[each.url for each in router.listeners], pid=os.getpid())
        before: set[int] = set()
        again = 0
        while line := (await trio.to_thread.run_sync(sys.stdin.readline)).strip():
            if line == "memory":
                say(**memory())
            elif line == "cut":
                before = {lane.connection.number for lane in lanes(router)}
                neighbours[-1].shutdown(socket.SHUT_RDWR)
                say(at=time.monotonic())
            elif line == "turns":
                gc.collect()
                collect_garbage_less_often()
                turns.longest, again = 0.0, router._started().context.termini.counts.resumed_again
                say()
            elif line.startswith("back"):
                say(at=await back(router, int(line.split()[1]), before))
            elif line.startswith("resumed"):
                found = await resumed(router, again + int(line.split()[1]))
                say(**found, longest=turns.longest, again=found["resumed"] - again)
            else:
                say(**state(router))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--id", required=True)
    parser.add_argument("--neighbour", help="the URL of another one's second listener")
    parser.add_argument("--resume", type=int, default=0, help="seconds that lanes are kept; turns are timed then")
    parser.add_argument("--trace", action="store_true", help="account live objects: it takes half of the speed")
    options = parser.parse_args()
    if options.trace:
        tracemalloc.start()
    turns = Turns()
    trio.run(host, options, turns, instruments=[turns] if options.resume else [])


if __name__ == "__main__":
    main()
