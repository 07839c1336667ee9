"""The part `resumption`: senders that lose their connections, and resume their links over others.

A router's core is in this process, and gets the octets of its peers without sockets. Many links have unsettled
deliveries, which a receiver holds. All their connections are lost at once; the senders come back with their maps, and
resume each delivery. The benchmark measures the CPU that either takes, the longest time without a pause for others, and
the memory of what is kept meanwhile.

    python -m benchmarks.resumption [--links 10000] [--deliveries 10] [--connections 10] [--rounds 3]
    python -m benchmarks.run --only resumption --rounds 3 [--commit-figures]

The part `granted` has nothing to resume: a pair of clients asks for its links to be kept, and another one
does not.

    python -m benchmarks.run --only granted --rounds 7 [--commit-figures]
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.messaging import Source, Target, TerminusExpiryPolicy
from amqpmesh.router.amqp.standard.performatives import (
    Attach,
    Begin,
    Flow,
    Open,
    Performative,
    Transfer,
    encode_performative,
)
from amqpmesh.router.cli.process.system import collect_garbage_less_often
from amqpmesh.router.config.address import AddressConfig
from amqpmesh.router.config.file import RouterConfig
from amqpmesh.router.config.listener import ListenerConfig
from amqpmesh.router.config.resumption import ResumptionConfig
from amqpmesh.router.core import Core
from amqpmesh.router.model.connections import ConnectionRecord
from benchmarks.bench import Bench, progress
from benchmarks.processes import Failed
from benchmarks.tables import Figures, median, table
from benchmarks.targets import MODES, Traffic, router, under

T = TypeVar("T")

LINKS = 10_000
DELIVERIES = 10  # of each link
CONNECTIONS = 10
WINDOW = 2**20
PART = 2**16  # octets that the router reads at once
HEADER = b"AMQP\x00\x01\x00\x00"
BODY = b"\x00\x53\x75\xa0\x04data"
LASTING = "--lasting", "60"
SLICE = 0.004  # seconds of chores between looks at other work


def frame(performative: Performative, payload: bytes = b"") -> bytes:
    """Return an encoded frame on channel 0."""
    body = encode_performative(performative) + payload
    return (8 + len(body)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body


def tag(number: int) -> bytes:
    """Return a delivery-tag of 8 octets."""
    return number.to_bytes(8, "big")


class World:
    """A router's core, its peers, and the time that each call takes."""

    def __init__(self, links: int) -> None:
        resumption = ResumptionConfig(links=links, links_per_user=links, unsettled=10**7)
        self.listener = ListenerConfig(
            url="amqp://127.0.0.1:0",
            name="bench",
            idle_time_out=0.0,
            session_window=WINDOW,
            connection_window=WINDOW,
            output_backlog=2**30,
            handle_max=links,
            links=links + 1,
        )
        addresses = (AddressConfig(pattern="q", max_unsettled=10**7),)
        config = RouterConfig(id="A", resumption=resumption, listeners=(self.listener,), addresses=addresses)
        self.core = Core(config, 1.0)
        self.now = 1.0
        self.longest = 0.0

    def timed(self, call: Callable[[], T]) -> T:
        """Make a call, and note its time if it is the longest so far."""
        began = time.process_time()
        found = call()
        self.longest = max(self.longest, time.process_time() - began)
        return found

    def connect(self, number: int) -> ConnectionRecord:
        """Open a connection with a session."""
        record = self.core.accept(self.listener, "127.0.0.1", self.now, secured=False)
        opened = Open(container_id=f"peer-{number}", max_frame_size=2**20, channel_max=1)
        begun = Begin(next_outgoing_id=0, incoming_window=WINDOW, outgoing_window=WINDOW, handle_max=2**20)
        self.give(record, HEADER + frame(opened) + frame(begun))
        return record

    def give(self, record: ConnectionRecord, octets: bytes) -> None:
        """Give octets to the router as a socket does, and drop what it answers."""
        for at in range(0, len(octets), PART):
            part = octets[at : at + PART]
            while not self.timed(partial(self.core.receive, record, part, self.now)):
                part = b""  # the rest of it comes after others' turn
            self.timed(lambda: self._drain(record))
            self.work()

    def _drain(self, record: ConnectionRecord) -> None:
        self.core.data_to_send(record, self.now)
        self.core.sent(record, self.now)

    def work(self) -> None:
        """Do what the router has put off, in slices."""
        while self.core.context.chores:
            until = time.process_time() + SLICE
            self.timed(lambda until=until: self.core.work(self.now, lambda: time.process_time() > until))  # type: ignore[misc]


def attach(number: int, handle: int, unsettled: dict[bytes, None] | None) -> bytes:
    """Return the attach of a sender that asks to be kept."""
    target = Target(address="q", expiry_policy=TerminusExpiryPolicy.CONNECTION_CLOSE, timeout=60)
    return frame(
        Attach(
            name=f"link-{number}",
            handle=handle,
            role=Role.SENDER,
            source=Source(),
            target=target,
            unsettled=unsettled,  # type: ignore[arg-type]  # states are null
            initial_delivery_count=0,
        )
    )


def transfer(delivery: int, handle: int, of: int, *, resume: bool) -> bytes:
    """Return a delivery of one frame, or the frame that resumes it."""
    body = b"" if resume else BODY
    return frame(
        Transfer(handle=handle, delivery_id=delivery, delivery_tag=tag(of), message_format=0, resume=resume), body
    )


def run(links: int, deliveries: int, connections: int, *, memory: bool) -> Figures:
    """Measure once. Args: memory: count octets instead of seconds, which that would make longer."""
    world = World(links)
    consumer = world.connect(-1)
    receiver = Attach(name="r", handle=0, role=Role.RECEIVER, source=Source(address="q"), target=Target())
    credit = Flow(
        next_incoming_id=0, incoming_window=WINDOW, next_outgoing_id=0, outgoing_window=WINDOW, handle=0,
        delivery_count=0, link_credit=2**30,
    )  # fmt: skip
    world.give(consumer, frame(receiver) + frame(credit))
    each = links // connections

    def octets(of: int, *, resume: bool) -> tuple[bytes, bytes]:
        """Return the attaches of a connection's links, and their transfers."""
        attaches, transfers = [], []
        for handle in range(each):
            number = of * each + handle
            tags = range(number * deliveries, (number + 1) * deliveries)
            attaches.append(attach(number, handle, dict.fromkeys(map(tag, tags)) if resume else None))
            for at, delivery in enumerate(tags):
                transfers.append(transfer(handle * deliveries + at, handle, delivery, resume=resume))
        return b"".join(attaches), b"".join(transfers)

    first = [octets(of, resume=False) for of in range(connections)]
    again = [octets(of, resume=True) for of in range(connections)]
    gc.collect()
    collect_garbage_less_often()
    if memory:
        tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0] if memory else 0
    records = []
    for of, sent in enumerate(first):
        record = world.connect(of)
        for part in sent:
            world.give(record, part)
            world._drain(consumer)
        records.append(record)
    flight = world.core.context.in_flight
    if flight != links * deliveries:
        raise Failed(f"{flight:,} deliveries have come")
    del record
    world.longest, began = 0.0, time.process_time()
    while records:
        lost = records.pop()
        world.timed(lambda lost=lost: world.core.receive_eof(lost, world.now))  # type: ignore[misc]
        world.work()
        del lost
    parked = {"seconds": time.process_time() - began, "park_ms": 1000 * world.longest}
    if world.core.context.termini.suspended_number != links:
        raise Failed("not all links are kept")
    if memory:
        gc.collect()
        return {"octets": tracemalloc.get_traced_memory()[0] - before}
    world.longest, began = 0.0, time.process_time()
    for of, sent in enumerate(again):
        record = world.connect(of)
        for part in sent:
            world.give(record, part)
    if world.core.context.termini.resumptions != links:
        raise Failed("not all links are resumed")
    return {**parked, "resume_seconds": time.process_time() - began, "resume_ms": 1000 * world.longest}


def once(*arguments: object) -> Figures:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.resumption", "--once", *map(str, arguments)]
    found: Figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def measure(rounds: int, links: int, deliveries: int, connections: int) -> Figures:
    """Return the medians of the times, and the octets of a link and of a delivery."""
    shape = "--links", links, "--deliveries", deliveries, "--connections", connections
    times = median([once(*shape) for _ in range(rounds)])
    empty = once("--memory", "--links", links, "--deliveries", 0, "--connections", connections)["octets"]
    full = once("--memory", *shape)["octets"]
    return {**times, "octets": empty / links, "delivery_octets": (full - empty) / (links * deliveries or 1)}


def case_of(connections: int) -> str:
    """Return the name of a case. Args: connections: that have the links."""
    return f"{LINKS:,} links of {connections:,} connections, {DELIVERIES} deliveries each"


def resumption(bench: Bench) -> None:
    """Measure what links cost whose senders are away, and come back."""
    if bench.router is not None:
        return
    rows = []
    for connections in (10, 1_000) if bench.extent else (10,):
        case = case_of(connections)
        progress(f"resumption: {case}")
        found = bench.keep("resumption", case, {"router": measure(bench.rounds, LINKS, DELIVERIES, connections)})[
            "router"
        ]
        row = [f"{found['seconds']:.2f} s", f"{found['park_ms']:.0f} ms", f"{found['resume_seconds']:.2f} s"]
        row += [f"{found['resume_ms']:.0f} ms", f"{found['octets']:,.0f}", f"{found['delivery_octets']:,.0f}"]
        rows.append((case, row))
    columns = ["kept in", "longest pause", "resumed in", "longest pause", "octets of a link", "of a delivery"]
    table("resumption", columns, rows)


def granted(bench: Bench) -> None:
    """Measure what a message costs whose links would be kept if they were lost, beside links that would not.

    A receiver that does not say of its maps that they name what came whole (`amqpmesh:whole`) has the octets of its
    messages kept, too.
    """
    if bench.router is not None:
        return
    rows = []
    # They take turns at one process: two processes differ by more than what is looked for.
    with router() as off:
        targets = [
            under(off, "router off"),
            replace(off, name="router", lasting=(*LASTING, "--whole")),
            replace(off, name="router keeping", lasting=LASTING),
        ]
        for mode in MODES:
            traffic = Traffic(mode=mode)
            progress(f"granted: {traffic.name}")
            found = bench.compare("granted", targets, traffic)
            row = []
            for name, each in found.items():
                row += [f"{each['messages_per_second']:,.0f}/s", f"{each['cpu_us']:.3f} s"]
                if name != "router off":
                    row[-1] += f" ({each['cpu_us'] / found['router off']['cpu_us'] - 1:+.1%})"
            rows.append((traffic.name, row))
    columns = [cell for name in ("off", "granted, unused", "octets kept") for cell in (name, "CPU/million")]
    table("resumption", columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", type=int, default=LINKS)
    parser.add_argument("--deliveries", type=int, default=DELIVERIES)
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--once", action="store_true", help="print the figures of one run as JSON")
    parser.add_argument("--memory", action="store_true", help="with --once: count octets")
    options = parser.parse_args()
    shape = options.links, options.deliveries, options.connections
    if options.once:
        print(json.dumps(run(*shape, memory=options.memory)))
    else:
        print(measure(options.rounds, *shape))


if __name__ == "__main__":
    main()
