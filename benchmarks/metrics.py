"""The part `metrics`: what a scrape a second costs a router with many addresses.

The router has a receiver at each address, and carries nothing. Its CPU is taken with a scrape each second and without,
in turns. The first scrapes count too: they make the series.

    python -m benchmarks.metrics [--addresses 10000] [--rounds 3] [--seconds 20]
"""

from __future__ import annotations

import argparse
import time
import urllib.request

from benchmarks.bench import Bench, progress
from benchmarks.memory import attached
from benchmarks.meshes import Port
from benchmarks.processes import cpu_seconds
from benchmarks.tables import Figures, median, table
from benchmarks.targets import Target, router

ADDRESSES = 10_000
LINKS = 100  # of a connection
SECONDS = 20.0
PATIENCE = 30.0


def scraped(target: Target, url: str, seconds: float) -> Figures:
    """Scrape once a second. Return the part of a core that the router takes, and the longest wait for an answer."""
    (pid,) = target.pids
    longest, size = 0.0, 0
    before, began = cpu_seconds(pid), time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        if url:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                size = len(answer.read())
            longest = max(longest, time.monotonic() - now)
        time.sleep(max(0.0, now + 1.0 - time.monotonic()))
    part = (cpu_seconds(pid) - before) / (time.monotonic() - began)
    return {"percent": 100 * part, "longest_ms": 1000 * longest, "kib": size / 1024}


def measure(rounds: int, addresses: int, seconds: float) -> tuple[Figures, Figures]:
    """Return the figures with scrapes, and without."""
    port = Port()
    port.close()
    settings = f'[[listener]]\nurl = "http://127.0.0.1:{port.number}"\nrole = "http"\n'
    with router(settings=settings) as target, attached(target, addresses // LINKS, LINKS):
        found: list[Figures] = []
        without: list[Figures] = []
        for _ in range(rounds):
            progress(f"metrics: {addresses:,} addresses")
            without.append(scraped(target, "", seconds))
            found.append(scraped(target, f"http://127.0.0.1:{port.number}/metrics", seconds))
    return median(found), median(without)


def metrics(bench: Bench) -> None:
    """Measure what scrapes cost."""
    if bench.router is not None:
        return
    seconds = SECONDS * bench.seconds if bench.extent else 5.0
    found, without = measure(max(1, bench.rounds // 2), ADDRESSES, seconds)
    part = found["percent"] - without["percent"]
    case = f"{ADDRESSES:,} addresses, a scrape a second"
    kept = bench.keep("metrics", case, {"router": {**found, "percent": part}})["router"]
    row = [f"{kept['percent']:.2f} %", f"{kept['longest_ms']:,.0f} ms", f"{kept['kib']:,.0f} KiB"]
    table("metrics", ["of a core", "longest wait", "an answer"], [(case, row)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--addresses", type=int, default=ADDRESSES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    for name, each in zip(
        ("scrapes", "none"), measure(options.rounds, options.addresses, options.seconds), strict=True
    ):
        print(name, each)


if __name__ == "__main__":
    main()
