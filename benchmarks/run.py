"""Throughput, latency, CPU and memory of a router, beside a byte forwarder and a direct connection in the same run.

    python -m benchmarks.run [--quick] [--output build/bench.json]
    python -m benchmarks.run --url amqp://127.0.0.1:5672 --pid 4711      # any AMQP 1.0 router without SASL

The machine is noisy: compare columns of one run, and CPU rather than wall clock. Rounds are interleaved; medians are
shown.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import wire
from benchmarks.processes import Load, cpu_seconds, load, resident_bytes, router, server, wait_until

KIB, MIB = 1 << 10, 1 << 20
SIZES = {"100 B": 100, "1 KiB": KIB, "64 KiB": 64 * KIB, "1 MiB": MIB}
COUNTS = {100: 200_000, KIB: 200_000, 64 * KIB: 10_000, MIB: 600}
QUICK = 10  # --quick sends so many times less
RATES = (1_000, 5_000, 50_000)
RATE_SECONDS = 5.0
TARGETS = ("router", "forwarder", "direct")


@dataclass(frozen=True)
class Route:
    """Where the load goes: a router, a forwarder, or straight to its receiver."""

    name: str
    url: str | None = None
    pid: int | None = None


@contextmanager
def clients(
    path: Route, size: int, count: int, *, settled: bool, rate: float
) -> Iterator[tuple[Load, Load, int | None]]:
    """(receiver, sender, process id between them), both at work."""
    common = ["--size", str(size), "--count", str(count), *(["--settled"] if settled else [])]
    address = ["--address", f"bench-{size}-{count}-{time.monotonic_ns()}"]
    stamped = ["--stamped"] if rate else []
    with ExitStack() as stack:
        pid = path.pid
        if path.name == "router":
            assert path.url is not None
            receiver = stack.enter_context(
                load("benchmarks.load", "receive", "--url", path.url, *common, *address, *stamped)
            )
            receiver.line()
            url = path.url
        else:
            receiver = stack.enter_context(load("benchmarks.load", "receive", "--listen", *common, *stamped))
            url = receiver.line()["url"]
            if path.name == "forwarder":
                to = url.removeprefix("amqp://")
                url, pid = stack.enter_context(server("benchmarks.forwarder", "--to", to, stream="stdout"))
        how = ["--rate", str(rate)] if rate else []
        sender = stack.enter_context(load("benchmarks.load", "send", "--url", url, *common, *address, *how))
        yield receiver, sender, pid


def throughput(path: Route, size: int, count: int, *, settled: bool) -> dict[str, float]:
    """Messages and megabytes a second, and CPU seconds of what is between for a million messages."""
    with clients(path, size, count, settled=settled, rate=0) as (receiver, sender, pid):
        before = cpu_seconds(pid) if pid else 0.0
        sent, received = sender.result(), receiver.result()
        busy = cpu_seconds(pid) - before if pid else 0.0
    if not settled and sent["outcomes"] != {"0x24": count}:
        raise AssertionError(f"{path.name}: not all accepted: {sent['outcomes']}")
    return {
        "messages_per_second": received["rate"],
        "megabytes_per_second": received["rate"] * size / 1e6,
        "cpu_seconds_per_million": busy / count * 1e6,
    }


def latency(path: Route, rate: float, seconds: float) -> dict[str, float]:
    """Microseconds from one client to the other at a fixed rate, unsettled, 100 octets."""
    count = int(rate * seconds)
    with clients(path, 100, count, settled=False, rate=rate) as (receiver, sender, pid):
        before = cpu_seconds(pid) if pid else 0.0
        sent, received = sender.result(), receiver.result()
        busy = cpu_seconds(pid) - before if pid else 0.0
    return {
        **{f"{name}_us": value for name, value in received["latency_us"].items()},
        "cpu_us_per_message": busy / count * 1e6,
        "rate_reached": count / sent["seconds"],
    }


def memory(path: Route, count: int) -> dict[str, float]:
    """Bytes of resident memory for an idle connection, a link of it, and what stays when they have left."""
    assert path.url is not None
    assert path.pid is not None
    pid = path.pid
    url = urlsplit(path.url)
    at_first = resident_bytes(pid)
    streams = [wire.Stream(socket.create_connection((url.hostname, url.port))) for _ in range(count)]

    def all_say(performative: int) -> None:
        for stream in streams:
            while performative not in [code for code, *_ in stream.read()]:
                pass

    for number, stream in enumerate(streams):
        stream.socket.sendall(wire.opening(f"idle-{number}"))
    all_say(wire.BEGIN)
    connected = resident_bytes(pid)
    for number, stream in enumerate(streams):
        stream.socket.sendall(
            wire.attach("idle", f"idle-{number}", receiver=True, settled=False) + wire.flow(0, 0, 0, 10)
        )
    all_say(wire.ATTACH)
    attached = resident_bytes(pid)
    for stream in streams:
        stream.end()
    # What is freed is freed by the next batch; memory that does not come back within the second is not coming back.
    wait_until(lambda: resident_bytes(pid) <= at_first, 1.0)
    return {
        "connections": count,
        "bytes_per_connection": (connected - at_first) / count,
        "bytes_per_link": (attached - connected) / count,
        "bytes_kept_per_connection": (resident_bytes(pid) - at_first) / count,
    }


def proton(url: str, count: int) -> dict[str, float]:
    """Messages a second between two clients of python-qpid-proton, unsettled, 100 octets."""
    common = ["--url", url, "--count", str(count), "--address", "bench-proton"]
    with load("benchmarks.proton_load", "receive", *common) as receiver:
        receiver.line()
        with load("benchmarks.proton_load", "send", *common) as sender:
            sender.result()
            received = receiver.result()
    return {"messages_per_second": received["rate"], "out_of_order": received["faults"]}


def median(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}


def interleaved(paths: list[Route], rounds: int, once: Callable[[Route], dict[str, float]]) -> dict[str, Any]:
    """The medians of `once` for each path, the rounds taking turns."""
    found: dict[str, list[dict[str, float]]] = {path.name: [] for path in paths}
    for _ in range(rounds):
        for path in paths:
            found[path.name].append(once(path))
    return {name: median(each) for name, each in found.items()}


def table(title: str, columns: list[str], rows: list[tuple[str, list[str]]]) -> None:
    widths = [max(len(title), *(len(name) for name, _ in rows))]
    widths += [max(len(column), *(len(cells[i]) for _, cells in rows)) for i, column in enumerate(columns)]
    print()
    for name, cells in [(title, columns), *rows]:
        print(
            "  ".join(
                [name.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))]
            )
        )
    sys.stdout.flush()


def throughput_cells(result: dict[str, Any], size: int) -> list[str]:
    cells = []
    for name in TARGETS:
        figures = result[name]
        if size >= 64 * KIB:
            cells.append(f"{figures['megabytes_per_second']:,.0f} MB/s")
        else:
            cells.append(f"{figures['messages_per_second']:,.0f}/s")
        if name != "direct":
            cells.append(f"{figures['cpu_seconds_per_million']:,.2f} s")
    return cells


def measure(measured: Route, quick: bool) -> dict[str, Any]:
    paths = [measured, Route("forwarder"), Route("direct")]
    rounds = 1 if quick else 3
    results: dict[str, Any] = {"throughput": {}, "latency": {}}
    rows = []
    for label, size in SIZES.items():
        count = COUNTS[size] // (QUICK if quick else 1)
        for settled in (True, False):
            name = f"{label} {'settled' if settled else 'unsettled'}"
            result = interleaved(paths, rounds, partial(throughput, size=size, count=count, settled=settled))
            results["throughput"][name] = result
            rows.append((name, throughput_cells(result, size)))
    columns = ["router", "CPU/million", "forwarder", "CPU/million", "direct"]
    table("throughput", columns, rows)
    rows = []
    for rate in RATES:
        seconds = 1.0 if quick else RATE_SECONDS
        result = interleaved(paths, rounds, partial(latency, rate=rate, seconds=seconds))
        results["latency"][str(rate)] = result
        rows.append(
            (
                f"{rate:,}/s",
                [f"{result[name]['p50_us']:,.0f} / {result[name]['p99_us']:,.0f} us" for name in TARGETS]
                + [f"{result[name]['cpu_us_per_message']:.1f} us" for name in TARGETS[:2]]
                + [f"{result['router']['rate_reached']:,.0f}/s"],
            )
        )
    table("latency p50 / p99", [*TARGETS, "router CPU", "forwarder CPU", "router reached"], rows)
    if measured.pid is not None:
        results["memory"] = figures = memory(measured, 100 if quick else 500)
        table(
            "memory",
            ["KiB each"],
            [
                (key.removeprefix("bytes_").replace("_", " "), [f"{value / KIB:,.1f}"])
                for key, value in figures.items()
                if key.startswith("bytes")
            ],
        )
    assert measured.url is not None
    results["proton"] = figures = proton(measured.url, 2_000 if quick else 50_000)
    table(
        "python-qpid-proton",
        ["through the router"],
        [("100 B unsettled", [f"{figures['messages_per_second']:,.0f}/s"])],
    )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages, one round")
    parser.add_argument("--url", help="of a router that runs already; without it, one is started")
    parser.add_argument("--pid", type=int, help="of that router, for CPU and memory")
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    options = parser.parse_args()
    begun = time.monotonic()
    if options.url:
        results = measure(Route("router", options.url, options.pid), options.quick)
    else:
        with router() as (url, pid):
            results = measure(Route("router", url, pid), options.quick)
    results["machine"] = {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    results["seconds"] = time.monotonic() - begun
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\nwritten to {options.output} after {results['seconds']:.0f} s")


if __name__ == "__main__":
    main()
