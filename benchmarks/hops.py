"""Throughput, latency and CPU over one, two and three routers in a row, beside as many byte forwarders in the same run.

    python -m benchmarks.hops [--quick] [--output build/hops.json]

Routers are processes on loopback, unsigned; a forwarder is a Trio program of a few lines that copies bytes between two
sockets. Rounds are interleaved; medians are shown. CPU is that of all processes in the middle, divided by messages and
by hops.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.meshes import mesh
from benchmarks.processes import Load, cpu_seconds, load, server
from benchmarks.run import median, table

HOPS = (1, 2, 3)
COUNT = 30_000
SIZE = 100
RATE = 1_000
PART = 0.8  # of what the routers carry at most
SECONDS = 3.0
ROUNDS = 3


@dataclass(frozen=True)
class Chain:
    """What is between a sender and a receiver: routers, or nothing yet, which stands for forwarders."""

    hops: int
    urls: tuple[str, str] | None = None
    pids: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return "forwarders" if self.urls is None else "routers"


@contextmanager
def clients(chain: Chain, count: int, *options: str) -> Iterator[tuple[Load, Load, tuple[int, ...]]]:
    """(receiver, sender, processes between them), both at work. Args: options: of the sender."""
    common = ["--size", str(SIZE), "--count", str(count), "--address", f"hops-{time.monotonic_ns()}"]
    stamped = ["--stamped"] if "--rate" in options else []
    with ExitStack() as stack:
        if chain.urls is not None:
            first, last = chain.urls
            pids = chain.pids
            receiver = stack.enter_context(load("benchmarks.load", "receive", "--url", last, *common, *stamped))
            receiver.line()
        else:
            receiver = stack.enter_context(load("benchmarks.load", "receive", "--listen", *common, *stamped))
            first = receiver.line()["url"]
            pids = ()
            for _ in range(chain.hops):
                to = first.removeprefix("amqp://")
                first, pid = stack.enter_context(server("benchmarks.forwarder", "--to", to, stream="stdout"))
                pids += (pid,)
        sender = stack.enter_context(load("benchmarks.load", "send", "--url", first, *common, *options))
        yield receiver, sender, pids


def run(chain: Chain, count: int, *options: str) -> dict[str, float]:
    """What a number of messages takes, unsettled, 100 octets each."""
    with clients(chain, count, *options) as (receiver, sender, pids):
        before = sum(map(cpu_seconds, pids))
        sent, received = sender.result(), receiver.result()
        busy = sum(map(cpu_seconds, pids)) - before
    if sent["outcomes"] != {"0x24": count}:
        raise AssertionError(f"{chain}: not all accepted: {sent['outcomes']}")
    return {
        "messages_per_second": received["rate"],
        "rate_reached": count / sent["seconds"],
        "cpu_us_per_message_and_hop": busy / count / chain.hops * 1e6,
        **{f"{name}_us": value for name, value in received.get("latency_us", {}).items()},
    }


def compare(chains: list[Chain], rounds: int, count: int, *options: str) -> dict[str, dict[str, float]]:
    """The medians of each chain, the rounds taking turns."""
    found: dict[str, list[dict[str, float]]] = {chain.name: [] for chain in chains}
    for _ in range(rounds):
        for chain in chains:
            found[chain.name].append(run(chain, count, *options))
    return {name: median(each) for name, each in found.items()}


@contextmanager
def both(hops: int) -> Iterator[list[Chain]]:
    """So many routers in a line, which know each other, and as many forwarders."""
    ids = "ABC"[:hops]
    with mesh() as routers:
        routers.line(ids)
        routers.start()
        routers.settled()
        urls = routers[ids[0]].url, routers[ids[-1]].url
        yield [Chain(hops, urls, tuple(each.pid for each in routers.routers.values())), Chain(hops)]


def measure(quick: bool) -> dict[str, Any]:
    """All of it, printed."""
    rounds, count, seconds = (1, COUNT // 3, 1.0) if quick else (ROUNDS, COUNT, SECONDS)
    results: dict[str, Any] = {}
    throughput, latency = [], []
    for hops in HOPS:
        with both(hops) as chains:
            most = compare(chains, rounds, count)
            rate = PART * most["routers"]["messages_per_second"]
            found: dict[str, Any] = {"throughput": most}
            for each in (RATE, rate):
                found[f"{each:.0f}"] = compare(chains, rounds, int(each * seconds), "--rate", str(each))
        results[str(hops)] = found
        cells = []
        for figures in most.values():
            cells += [f"{figures['messages_per_second']:,.0f}/s", f"{figures['cpu_us_per_message_and_hop']:.1f} us"]
        throughput.append((f"{hops}", cells))
        for each in (RATE, rate):
            cells = []
            for figures in found[f"{each:.0f}"].values():
                cells += [
                    f"{figures['p50_us']:,.0f} / {figures['p99_us']:,.0f} us",
                    f"{figures['cpu_us_per_message_and_hop']:.1f} us",
                ]
            latency.append((f"{hops}, {each:,.0f}/s", cells))
    columns = ["routers", "CPU/message/hop", "forwarders", "CPU/message/hop"]
    table("hops, 100 B unsettled", columns, throughput)
    table("p50 / p99", columns, latency)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a third of the messages, one round")
    parser.add_argument("--output", type=Path, default=Path("build/hops.json"))
    options = parser.parse_args()
    results = measure(options.quick)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
