"""All benchmarks: the router beside byte forwarders and beside a direct connection of the clients: `make bench`.

    python -m benchmarks.run                             # the most telling cases: half an hour
    python -m benchmarks.run --quick                     # within three minutes, one round of few cases
    python -m benchmarks.run --full                      # all sizes x modes x connections: hours
    python -m benchmarks.run --only latency --only tls   # some parts
    python -m benchmarks.run --only patterns --compare   # fails if a pattern costs 10 % more than committed
    python -m benchmarks.run --url amqp://127.0.0.1:5672 --pid 4711      # any other AMQP 1.0 router

Machines are noisy: compare columns of one run, and CPU rather than wall clock. Rounds take turns, and the output has
medians. CPU is that of the routers or forwarders, as the system accounts it. Latency counts from the time at which a
message was due.

To measure a running router, give its URL, the URL for receivers if that is another, all its pids, and the number of
hops of a message. A URL that begins with `amqps` measures TLS in all parts. The part `patterns` measures the router
beside ours, and takes the URLs of several routers in a line, with commas.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import figures, goals
from benchmarks.bench import Bench
from benchmarks.generator import program
from benchmarks.parts import PARTS
from benchmarks.patterns import PART as PATTERNS
from benchmarks.processes import ROOT, Failed
from benchmarks.targets import Target

OUTPUT = ROOT / "build" / "bench.json"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="one short round of few cases")
    extent.add_argument("--full", action="store_true", help="all cases")
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; may be given several times")
    parser.add_argument("--rounds", type=int, help="of which medians are taken; default 5")
    parser.add_argument("--seconds", type=float, help="that a run at full speed takes; default 1")
    parser.add_argument(
        "--url",
        help="of a router that runs already; without it, ours are started",
    )
    parser.add_argument("--receive-url", help="where receivers connect to, if it is another")
    parser.add_argument("--pid", type=int, action="append", help="of that router, for CPU and memory; of each")
    parser.add_argument("--hops", type=int, default=1, help="from --url to --receive-url")
    parser.add_argument("--sasl", action="store_true", help="say ANONYMOUS to it")
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"JSON; default {OUTPUT.relative_to(ROOT)}")
    parser.add_argument("--commit-figures", action="store_true", help=f"write {figures.FILE.relative_to(ROOT)}")
    parser.add_argument("--compare", action="store_true", help="fail if a figure is worse than committed by 10 %%")
    options = parser.parse_args()
    if options.url and not options.pid:
        parser.error("--url needs --pid: wall clock alone says little")
    if options.url and (options.commit_figures or options.compare) and options.only != [PATTERNS]:
        parser.error("figures of another router are not ours to commit")
    return options


def bench_of(options: argparse.Namespace) -> Bench:
    """As the options say."""
    extent = 0 if options.quick else 2 if options.full else 1
    measured = None
    if options.url:
        urls = tuple(options.url.split(","))
        to = options.receive_url or urls[-1]
        measured = Target(
            "router", urls[0], to, tuple(options.pid), options.hops, lossy=True, sasl=options.sasl, urls=urls
        )
    rounds, seconds = (1, 0.15) if options.quick else (5, 1.0)
    return Bench(options.rounds or rounds, options.seconds or seconds, extent, measured)


def machine() -> dict[str, Any]:
    """Return a description of the machine and the version that the figures are of."""
    asked = [sys.executable, "-m", "amqpmesh", "--version"]
    said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "version": said.stdout.strip(),
    }


def draw(bench: Bench, folder: Path) -> None:
    """Draw pictures, if matplotlib is installed."""
    try:
        from benchmarks import plots
    except ModuleNotFoundError as error:
        print(f"no pictures: {error}; pip install 'amqpmesh[bench]'")
        return
    for file in plots.draw(bench.results, folder):
        print(f"drawn: {file}")


def main() -> int:
    """Run the benchmarks. Returns: 1 if a part failed, else 0."""
    options = parsed()
    try:
        program()
    except Failed as error:
        sys.exit(str(error))
    bench = bench_of(options)
    begun = time.monotonic()
    said = machine()
    if bench.router is None:
        print(said["version"], flush=True)  # whether its kernel is compiled decides what follows
    for name in options.only or PARTS:
        try:
            PARTS[name](bench)
        except Failed as error:  # the others are worth having
            bench.failed.append(f"{name}: {error}")
    said |= {"seconds": round(time.monotonic() - begun), "rounds": bench.rounds, "load": os.getloadavg()}
    is_ours = bench.router is None or options.only == [PATTERNS]
    if is_ours:
        goals.show(bench.results)
        figures.show_changes(bench.results, figures.committed())
    if options.compare:
        bench.failed += figures.worse(bench.results, figures.committed()["results"])
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"machine": said, "results": bench.results}, indent=1) + "\n")
    draw(bench, options.output.with_suffix(""))
    if options.commit_figures:
        figures.commit(bench.results, said, some_cases=bench.router is not None)
    for each in bench.failed:
        print(f"\nFAILED: {each}")
    print(f"\nwritten to {options.output} after {said['seconds']} s")
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
