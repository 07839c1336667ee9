"""Throughput, latency and CPU over one, two and three routers in a row, beside as many byte forwarders in the same run.

    python -m benchmarks.hops [--quick] [--output build/hops.json]

Routers are processes on loopback, unsigned; a forwarder is a Trio program of a few lines that copies bytes between two
sockets. Rounds are interleaved; medians are shown. CPU is that of all processes in the middle, divided by messages and
by hops.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, progress
from benchmarks.tables import Figures, table
from benchmarks.targets import Target, Traffic, forwarders, routers

HOPS = (1, 2, 3)
RATE = 1_000
PART = 0.8  # of what the routers carry at most
ROUNDS = 3


def cost(target: Target, figures: Figures) -> str:
    """CPU of a message and hop."""
    return f"{figures['cpu_us'] / target.hops:.1f} us"


def measure(quick: bool) -> dict[str, Any]:
    """All of it, printed."""
    bench = Bench(1, 0.3) if quick else Bench(ROUNDS)
    throughput, latency = [], []
    for hops in HOPS:
        with routers(hops) as line, forwarders(hops) as copies:
            targets = [line, copies]
            progress(f"{hops} hops")
            most = bench.compare(str(hops), targets, Traffic(), "throughput")
            cells = []
            for target in targets:
                figures = most[target.name]
                cells += [f"{figures['messages_per_second']:,.0f}/s", cost(target, figures)]
            throughput.append((f"{hops}", cells))
            for rate in (RATE, PART * most["router"]["messages_per_second"]):
                found = bench.compare(str(hops), targets, Traffic(rate=rate), f"{rate:.0f}")
                cells = []
                for target in targets:
                    figures = found[target.name]
                    cells += [f"{figures['p50_us']:,.0f} / {figures['p99_us']:,.0f} us", cost(target, figures)]
                latency.append((f"{hops}, {rate:,.0f}/s", cells))
    columns = ["routers", "CPU/message/hop", "forwarders", "CPU/message/hop"]
    table("hops, 100 B unsettled", columns, throughput)
    table("p50 / p99", columns, latency)
    return bench.results


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
