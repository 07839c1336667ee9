"""What small messages notice of a large one that passes by the same two routers: their latency without it, and with it.

    python -m benchmarks.large_beside_small [--quick] [--rate 1000] [--output build/large-beside-small.json]

Two routers in a line, processes on loopback, unsigned; both streams go over the one connection between them. Rounds
without and with are interleaved. Routers and clients are six processes: where there are fewer cores, waiting for one is
measured, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.meshes import Mesh, mesh
from benchmarks.processes import cpu_seconds, load

GIB = 1 << 30
RATE = 1_000
SECONDS = 3.0
ROUNDS = 7


def small(routers: Mesh, rate: float, seconds: float, turn: str) -> dict[str, float]:
    """Microseconds from sender to receiver of messages of 100 octets at a rate."""
    common = ["--address", f"small-{turn}", "--rate", str(rate), "--seconds", str(seconds)]
    with load("benchmarks.steady", "receive", "--url", routers["B"].url, *common) as receiver:
        receiver.line()
        with load("benchmarks.steady", "send", "--url", routers["A"].url, *common) as sender:
            sent = sender.result()
            received = receiver.finish()
    assert set(sent["outcomes"]) == {"a"}, "all are accepted"
    return {**received["latency_us"], "rate": sent["sent"] / seconds}


@contextmanager
def large(routers: Mesh, size: int, turn: str) -> Iterator[None]:
    """Large messages pass, one after the other, as long as the block lasts."""
    common = ["--address", f"large-{turn}", "--size", str(size), "--count", "1000"]
    with ExitStack() as stack:
        receiver = stack.enter_context(load("benchmarks.large", "receive", "--url", routers["B"].url, *common))
        receiver.line()
        stack.enter_context(load("benchmarks.large", "send", "--url", routers["A"].url, *common))
        yield


def measure(quick: bool, rate: float = RATE) -> dict[str, Any]:
    """Interleaved rounds, printed."""
    rounds, seconds = (1, 2.0) if quick else (ROUNDS, SECONDS)
    found: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    with mesh() as routers:
        routers.line("AB")
        routers.start()
        routers.settled()
        small(routers, rate, 0.5, "warm")
        for turn in range(rounds):
            found["without"].append(small(routers, rate, seconds, f"{turn}-without"))
            before = [cpu_seconds(each.pid) for each in routers.routers.values()]
            with large(routers, GIB, str(turn)):
                found["with"].append(small(routers, rate, seconds, f"{turn}-with"))
            busy = [cpu_seconds(each.pid) - then for each, then in zip(routers.routers.values(), before, strict=True)]
            print(f"round {turn}: CPU of the routers {busy[0]:.1f} s, {busy[1]:.1f} s", flush=True)
    results = {
        name: {key: statistics.median(each[key] for each in rounds_of) for key in rounds_of[0]}
        for name, rounds_of in found.items()
    }
    for name, figures in results.items():
        print(f"100 B at {figures['rate']:,.0f}/s {name:8} p50 {figures['p50']:,.0f} p99 {figures['p99']:,.0f} us")
    print(f"p99 with / without: {results['with']['p99'] / results['without']['p99']:.1f}")
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
