"""The latency of small messages, without and with a large message that passes through the same two routers.

    python -m benchmarks.large_beside_small [--quick] [--rate 1000] [--output build/large-beside-small.json]

The two routers are processes on loopback, without certificates. Both streams use the one connection between them. In
the same run, in turns, two forwarders copy bytes between sockets; there each stream has its own connections. The large
message arrives as by networks of 1, 2 and 4 Gbit/s, and as fast as its sender can send.

Routers and clients are six processes. With fewer cores they wait for a core; the output shows the waits of the routers
or forwarders. If the user has the right (root), a second measurement gives priorities: first the small clients, then
the routers or forwarders, then all other processes. These processes then wait only for each other.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.meshes import Port
from benchmarks.processes import load, seconds_waited, server
from benchmarks.tables import Figures, median, table
from benchmarks.targets import Target, Traffic, both, leave, pair, routers

GIB = 1 << 30
RATE = 1_000
SECONDS = 2.5
ROUNDS = 5
PACES = (125.0, 250.0, 500.0, 0.0)  # MB/s of the large one: 1, 2 and 4 Gbit/s, and all it can
WARM = 0.3  # seconds of a large message before small ones are sent


@dataclass(frozen=True)
class Line:
    """Two processes in a row that small and large messages pass through."""

    small: Target
    large_url: str
    large_to: str
    """The place that the receiver of large messages connects to; empty: the receiver listens."""
    large_port: int = 0


@contextmanager
def two_routers() -> Iterator[Line]:
    with routers(2) as target:
        yield Line(target, target.send_url, target.receive_url)


@contextmanager
def two_forwarders() -> Iterator[Line]:
    """Start forwarders with a port for each stream."""
    with ExitStack() as stack:
        ports = [Port(), Port()]
        for port in ports:
            stack.callback(port.close)
        to, pids = ",".join(f"127.0.0.1:{port.number}" for port in ports), []
        for _ in range(2):
            url, pid = stack.enter_context(server("benchmarks.forwarder", "--to", to, stream="stdout"))
            to = url.partition("://")[2]
            pids.append(pid)
        small, large = (f"amqp://{each}" for each in to.split(","))
        yield Line(Target("forwarders", small, "", tuple(pids), 2, ports[0].number), large, "", ports[1].number)


@contextmanager
def first(middle: Iterable[int], clients: Iterable[int]) -> Iterator[None]:
    """Give the loaded processes priority over all others, and clients over these. Raises: PermissionError."""
    changed: list[int] = []
    try:
        for pids, priority in ((middle, 10), (clients, 20)):
            for pid in pids:
                for thread in map(int, os.listdir(f"/proc/{pid}/task")):
                    with suppress(ProcessLookupError):  # it has just ended
                        os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(priority))
                        changed.append(thread)
        yield
    finally:
        for thread in changed:
            with suppress(ProcessLookupError):
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def may_come_first() -> bool:
    """Return whether this process may give others such a priority."""
    try:
        with first([os.getpid()], []):
            return True
    except PermissionError:
        return False


def small(target: Target, rate: float, seconds: float, *, comes_first: bool = False) -> Figures:
    """Microseconds from sender to receiver of messages of 100 octets at a rate, and what was waited for cores."""
    count = int(rate * seconds)
    with pair(target, Traffic(rate=rate), count) as (receiver, sender), ExitStack() as stack:
        if comes_first:
            stack.enter_context(first(target.pids, [receiver.process.pid, sender.process.pid]))
        before, began = [seconds_waited(pid) for pid in target.pids], time.monotonic()
        sender.go()
        sent, received = both(sender, receiver)
        took = time.monotonic() - began
        waited = [seconds_waited(pid) - then for pid, then in zip(target.pids, before, strict=True)]
        stack.close()
        leave(receiver, sender)
    assert sent["outcomes"] == {"accepted": count}, "all are accepted"
    times = {f"{name}_us": received["latency_us"][name] for name in ("p50", "p99")}
    return times | {f"waited_{number}": each / took for number, each in enumerate(waited, 1)}


@contextmanager
def large(line: Line, size: int, turn: str, *, pace: float = 0) -> Iterator[list[float]]:
    """Large messages pass, one after the other, as long as the block lasts: `pace` MB/s at most; 0: all they can.

    Yields: what will hold the MB/s that it were, when the block is over.
    """
    reached: list[float] = []
    common = ["--address", f"large-{turn}", "--size", str(size), "--count", "1000"]
    where = ["--url", line.large_to] if line.large_to else ["--listen", str(line.large_port)]
    with load("benchmarks.large", "receive", *where, *common) as receiver:
        receiver.line()
        with load("benchmarks.large", "send", "--url", line.large_url, "--rate", str(pace), *common) as sender:
            time.sleep(WARM)
            yield reached
            sender.process.terminate()
            said = sender.line()
            reached.append(said["octets"] / said["seconds"] / 1e6)


def named(name: str, pace: float, comes_first: bool) -> str:
    return f"{name}, {f'{pace / 125:.0f} Gbit/s' if pace else 'all it can'}{', first' if comes_first else ''}"


def measure(quick: bool, rate: float = RATE) -> dict[str, Any]:
    """Measure in rounds that take turns, and print the results."""
    rounds, seconds = (1, 1.0) if quick else (ROUNDS, SECONDS)
    cases = [(pace, False) for pace in PACES] + ([(0.0, True)] if may_come_first() else [])
    found: dict[str, dict[str, list[Figures]]] = {}
    with two_routers() as line, two_forwarders() as copies:
        middles = {"routers": line, "forwarders": copies}
        for each in middles.values():
            small(each.small, rate, 0.3)
        for turn, (pace, comes_first), (name, each) in product(range(rounds), cases, middles.items()):
            of_case = found.setdefault(named(name, pace, comes_first), {"without": [], "with": []})
            of_case["without"].append(small(each.small, rate, seconds, comes_first=comes_first))
            with large(each, GIB, f"{turn}-{pace:.0f}-{comes_first}", pace=pace) as reached:
                beside = small(each.small, rate, seconds, comes_first=comes_first)
            of_case["with"].append(beside | {"large_mb": reached[0]})
    results = {name: {beside: median(each) for beside, each in case.items()} for name, case in found.items()}
    rows = []
    for name, case in results.items():
        without, beside = case["without"], case["with"]
        cells = [f"{each['p50_us']:,.0f} / {each['p99_us']:,.0f} us" for each in (without, beside)]
        waited = " ".join(f"{beside[f'waited_{number}']:.0%}" for number in (1, 2))
        rows.append(
            (name, [f"{beside['large_mb']:,.0f} MB/s", *cells, f"{beside['p99_us'] / without['p99_us']:.1f}", waited])
        )
    columns = ["of the large one", "p50 / p99 without", "with", "p99 with / without", "waited for a core, with"]
    table(f"100 B at {rate:,.0f}/s by two", columns, rows)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--rate", type=float, default=RATE, help="small messages a second")
    parser.add_argument("--output", type=Path, default=Path("build/large-beside-small.json"))
    options = parser.parse_args()
    results = measure(options.quick, options.rate)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
