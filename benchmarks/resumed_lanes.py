"""The part `resumed lanes`: lanes between two routers that lose their connection, and come back by the next one.

The cores of both routers are in this process, and get their octets without sockets. Each lane has unsettled deliveries,
which receivers at the second router hold. The connection between the routers is lost, and there is another one. The
benchmark measures the CPU of both routers until all is resumed, and the longest turn of either. The last row has the
time that it takes two processes with a connection of loopback, by `benchmarks.resumed_processes`.

    python -m benchmarks.resumed_lanes [--lanes 1000] [--deliveries 100]
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Flow, Open, Transfer
from amqpmesh.router.cli.process.system import collect_garbage_less_often
from amqpmesh.router.config.address import AddressConfig
from amqpmesh.router.config.connector import ConnectorConfig
from amqpmesh.router.config.file import RouterConfig
from amqpmesh.router.config.listener import ListenerConfig
from amqpmesh.router.config.mesh import MeshConfig
from amqpmesh.router.config.resumption import ResumptionConfig
from amqpmesh.router.core import Core
from amqpmesh.router.mesh.member import MeshMember
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.topology.linkstate import Topology
from amqpmesh.topology.settings import Settings
from amqpmesh.topology.signing import Unsigned
from benchmarks import resumed_processes
from benchmarks.bench import Bench, progress
from benchmarks.processes import Failed
from benchmarks.resumption import BODY, HEADER, PART, SLICE, WINDOW, frame, tag
from benchmarks.tables import Figures, median, table

T = TypeVar("T")

LANES = 1_000
DELIVERIES = 100  # of each lane
STEP = 0.05  # seconds of the routers' clock from one look at their timers to the next


class Routers:
    """Two routers, a client of each, and the time that each turn takes."""

    def __init__(self, lanes: int) -> None:
        self.now = 1.0
        #: The longest turn, and the CPU of each router, seconds.
        self.longest = 0.0
        self.used: dict[Core, float] = {}
        self.listener = ListenerConfig(
            url="amqp://127.0.0.1:0",
            name="clients",
            idle_time_out=0.0,
            session_window=WINDOW,
            connection_window=WINDOW,
            output_backlog=2**30,
            handle_max=lanes,
            links=lanes + 1,
        )
        self.cores = [self._core(router, epoch) for epoch, router in enumerate("AB", 1000)]
        self.clients: list[ConnectionRecord] = []
        self.wire: list[tuple[Core, ConnectionRecord]] = []

    def _core(self, router: str, epoch: int) -> Core:
        resumption = ResumptionConfig(unsettled=10**7)
        mesh = MeshConfig(insecure=True, resume=60)
        addresses = (AddressConfig(pattern="#", max_unsettled=10**6, max_credit=10**6),)
        config = RouterConfig(
            id=router, resumption=resumption, mesh=mesh, listeners=(self.listener,), memory=2**33, addresses=addresses
        )
        core = Core(config, self.now)
        topology = Topology(router, Settings(), Unsigned(), Unsigned(), epoch, self.now)
        core.mesh = MeshMember(core.context, core.remote_nodes, topology, None)
        return core

    def timed(self, core: Core, call: Callable[[], T]) -> T:
        """Let a router have a turn, and note its time."""
        began = time.process_time()
        found = call()
        took = time.process_time() - began
        self.longest = max(self.longest, took)
        self.used[core] = self.used.get(core, 0.0) + took
        return found

    def begin(self) -> None:
        """Forget the times so far."""
        self.longest = 0.0
        self.used.clear()

    def join(self) -> None:
        """Connect the routers."""
        connector = ConnectorConfig(url="amqp://127.0.0.1:5672", name="mesh", role="mesh", idle_time_out=0.0)
        listener = ListenerConfig(url="amqp://127.0.0.1:0", name="mesh", role="mesh", idle_time_out=0.0)
        one, two = self.cores
        self.wire = [
            (one, one.connect(connector, "127.0.0.1", self.now, secured=False)),
            (two, two.accept(listener, "127.0.0.1", self.now, secured=False)),
        ]

    def cut(self) -> None:
        """Lose the connection between the routers."""
        for core, record in self.wire:
            self.timed(core, partial(core.receive_eof, record, self.now))
        self.wire = []
        self.run()

    def client(self, core: Core, name: str) -> ConnectionRecord:
        """Connect a client, and begin its session."""
        record = core.accept(self.listener, "127.0.0.1", self.now, secured=False)
        opened = Open(container_id=name, max_frame_size=2**20, channel_max=1)
        begun = Begin(next_outgoing_id=0, incoming_window=WINDOW, outgoing_window=WINDOW, handle_max=2**20)
        self.give(core, record, HEADER + frame(opened) + frame(begun))
        self.clients.append(record)
        return record

    def give(self, core: Core, record: ConnectionRecord, octets: bytes) -> None:
        """Give octets to a router as a socket does."""
        for at in range(0, len(octets), PART):
            part = octets[at : at + PART]
            while not self.timed(core, partial(core.receive, record, part, self.now)):
                part = b""  # the rest of it comes after others' turn
        self.run()

    def run(self) -> None:
        """Carry octets between the routers, and drop those to clients, until there are none."""
        moved = True
        while moved:
            moved = False
            for core in self.cores:
                while core.context.chores:
                    until = time.process_time() + SLICE
                    self.timed(core, partial(core.work, self.now, lambda until=until: time.process_time() > until))  # type: ignore[misc]
                    moved = True
            for core in self.cores:
                for record in core.context.connections:
                    if record in self.clients:
                        moved = bool(self.timed(core, partial(core.data_to_send, record, self.now))) or moved
                        core.sent(record, self.now)
            for (sender, out), (receiver, into) in (self.wire, self.wire[::-1]) if self.wire else ():
                data = bytes(self.timed(sender, partial(sender.data_to_send, out, self.now)))
                sender.sent(out, self.now)
                for at in range(0, len(data), PART):
                    part = data[at : at + PART]
                    while not self.timed(receiver, partial(receiver.receive, into, part, self.now)):
                        part = b""
                    moved = True

    def wait(self, seconds: float) -> None:
        """Let time pass, so that routers, receivers and senders become known."""
        end = self.now + seconds
        self.advance(lambda: self.now >= end, "")

    def advance(self, met: Callable[[], bool], what: str) -> None:
        """Let time pass until a condition is met. Raises: Failed: it is not met within a minute."""
        for _ in range(int(60 / STEP)):
            if met():
                return
            self.now += STEP
            for core in self.cores:
                self.timed(core, partial(core.handle_timer, self.now))
            self.run()
        raise Failed(what)


def run(lanes: int, deliveries: int) -> Figures:
    """Return the CPU of both routers from the next connection until all is resumed, and their longest turn."""
    routers = Routers(lanes)
    routers.join()
    first, second = routers.cores
    consumer = routers.client(second, "consumer")
    octets = []
    for number in range(lanes):
        source = Source(address=f"q{number}")
        receiver = Attach(
            name=f"r{number}", handle=number, role=Role.RECEIVER, source=source, target=Target(),
            rcv_settle_mode=ReceiverSettleMode.SECOND,
        )  # fmt: skip
        credit = Flow(
            next_incoming_id=0, incoming_window=WINDOW, next_outgoing_id=0, outgoing_window=WINDOW, handle=number,
            delivery_count=0, link_credit=2 * deliveries,
        )  # fmt: skip
        octets.append(frame(receiver) + frame(credit))
    routers.give(second, consumer, b"".join(octets))
    routers.wait(5.0)
    producer = routers.client(first, "producer")
    octets = []
    for number in range(lanes):
        sender = Attach(
            name=f"s{number}", handle=number, role=Role.SENDER, source=Source(), target=Target(address=f"q{number}"),
            rcv_settle_mode=ReceiverSettleMode.SECOND, initial_delivery_count=0,
        )  # fmt: skip
        octets.append(frame(sender))
    routers.give(first, producer, b"".join(octets))
    routers.wait(5.0)
    octets = []
    for number in range(lanes * deliveries):
        transfer = Transfer(handle=number % lanes, delivery_id=number, delivery_tag=tag(number), message_format=0)
        octets.append(frame(transfer, BODY))
    routers.give(first, producer, b"".join(octets))
    count = lanes * deliveries
    routers.advance(lambda: second.context.in_flight == count, f"not all of {count:,} deliveries have come")
    gc.collect()
    collect_garbage_less_often()
    routers.begin()
    routers.cut()
    parked = {"seconds": max(routers.used.values()), "park_ms": 1000 * routers.longest}
    termini = [core.context.termini for core in routers.cores]
    if any(each.suspended_number != lanes for each in termini):
        raise Failed("not all lanes are kept")
    routers.begin()
    routers.join()
    routers.run()
    routers.advance(lambda: not any(each.suspended_number for each in termini), "not all lanes are resumed")
    known = [each.counts.resumed_again for each in termini] + [core.context.in_flight for core in routers.cores]
    if known != [count] * 4:
        raise Failed("not all deliveries are resumed")
    one, two = (routers.used[core] for core in routers.cores)
    return {**parked, "sender_seconds": one, "receiver_seconds": two, "resume_ms": 1000 * routers.longest}


def once(*arguments: object) -> Figures:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.resumed_lanes", *map(str, arguments)]
    found: Figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def resumed_lanes(bench: Bench) -> None:
    """Measure what it costs two routers that their lanes come back."""
    if bench.router is not None:
        return
    rows = []
    for lanes, deliveries in ((LANES, DELIVERIES), (1, 20_000)) if bench.extent else ((LANES, DELIVERIES),):
        case = f"{lanes:,} lanes, {deliveries:,} deliveries each"
        progress(f"resumed lanes: {case}")
        times = median([once("--lanes", lanes, "--deliveries", deliveries) for _ in range(bench.rounds)])
        found = bench.keep("resumed lanes", case, {"router": times})["router"]
        row = [f"{found['seconds']:.2f} s", f"{found['park_ms']:.0f} ms"]
        row += [
            f"{found['sender_seconds']:.2f} s",
            f"{found['receiver_seconds']:.2f} s",
            f"{found['resume_ms']:.0f} ms",
        ]
        rows.append((case, row))
    columns = ["kept in", "longest turn", "resumed: CPU of the sending router", "of the receiving one", "longest turn"]
    table("resumed lanes", columns, rows)
    case = resumed_processes.case_of(LANES, DELIVERIES)
    progress(f"resumed lanes: {case}")
    times = median([resumed_processes.run(LANES, DELIVERIES) for _ in range(bench.rounds)])
    found = bench.keep("resumed lanes", case, {"router": times})["router"]
    row = [f"{found['seconds']:.2f} s", f"{found['sender_seconds']:.2f} s", f"{found['receiver_seconds']:.2f} s"]
    columns = ["back in", "CPU of the sending router", "of the receiving one", "longest turn"]
    table("resumed lanes", columns, [(case, [*row, f"{found['resume_ms']:.0f} ms"])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=LANES)
    parser.add_argument("--deliveries", type=int, default=DELIVERIES)
    options = parser.parse_args()
    print(json.dumps(run(options.lanes, options.deliveries)))


if __name__ == "__main__":
    main()
