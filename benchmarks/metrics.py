"""The parts `metrics` and `page`: what a scrape a second, or a reader of the page, costs a router with many addresses.

The router has a receiver at each address, and carries nothing. Its CPU is taken with requests and without, in turns.
The first ones count too: they make the series, and the order of the lists.

    python -m benchmarks.metrics [--page] [--addresses 10000] [--rounds 3] [--seconds 20]
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

SCRAPE = 1.0, ("/metrics",)
READER = 2.0, ("/view/mesh?known=0", "/api/address?count=50&sort=-rate", "/api/connection?count=50&sort=-rate")
"""Seconds between two rounds of requests, and what they ask for. A reader of the page sees one of these views at once:
here it is all of them.
"""


def asked(target: Target, urls: list[str], every: float, seconds: float) -> Figures:
    """Make requests. Return the part of a core that the router takes, and the longest wait for an answer."""
    (pid,) = target.pids
    longest, size = 0.0, 0
    before, began = cpu_seconds(pid), time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        for url in urls:
            begin = time.monotonic()
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                size = max(size, len(answer.read()))
            longest = max(longest, time.monotonic() - begin)
        time.sleep(max(0.0, now + every - time.monotonic()))
    part = (cpu_seconds(pid) - before) / (time.monotonic() - began)
    return {"percent": 100 * part, "longest_ms": 1000 * longest, "kib": size / 1024}


def measure(
    rounds: int, addresses: int, seconds: float, client: tuple[float, tuple[str, ...]] = SCRAPE
) -> tuple[Figures, Figures]:
    """Return the figures with requests, and without."""
    every, paths = client
    port = Port()
    port.close()
    settings = f'[[listener]]\nurl = "http://127.0.0.1:{port.number}"\nrole = "http"\n'
    with router(settings=settings) as target, attached(target, addresses // LINKS, LINKS):
        found: list[Figures] = []
        without: list[Figures] = []
        for _ in range(rounds):
            progress(f"{paths[0]}: {addresses:,} addresses")
            without.append(asked(target, [], every, seconds))
            found.append(asked(target, [f"http://127.0.0.1:{port.number}{each}" for each in paths], every, seconds))
    return median(found), median(without)


def metrics(bench: Bench) -> None:
    """Measure what scrapes cost."""
    _part(bench, "metrics", "a scrape a second", SCRAPE)


def page(bench: Bench) -> None:
    """Measure what a reader of the page costs."""
    _part(bench, "page", "a reader of the page", READER)


def _part(bench: Bench, name: str, says: str, client: tuple[float, tuple[str, ...]]) -> None:
    if bench.router is not None:
        return
    seconds = SECONDS * bench.seconds if bench.extent else 5.0
    found, without = measure(max(1, bench.rounds // 2), ADDRESSES, seconds, client)
    part = found["percent"] - without["percent"]
    case = f"{ADDRESSES:,} addresses, {says}"
    kept = bench.keep(name, case, {"router": {**found, "percent": part}})["router"]
    row = [f"{kept['percent']:.2f} %", f"{kept['longest_ms']:,.0f} ms", f"{kept['kib']:,.0f} KiB"]
    table(name, ["of a core", "longest wait", "an answer"], [(case, row)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--addresses", type=int, default=ADDRESSES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--page", action="store_true", help="a reader of the page, in place of scrapes")
    options = parser.parse_args()
    client = READER if options.page else SCRAPE
    for name, each in zip(
        ("requests", "none"), measure(options.rounds, options.addresses, options.seconds, client), strict=True
    ):
        print(name, each)


if __name__ == "__main__":
    main()
