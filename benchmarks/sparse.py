"""Sparse traffic on many connections: one message of 100 octets outstanding on each of some pairs, unsettled.

    python -m benchmarks.sparse [--pairs 20] [--count 50000] [--rounds 3] [--json]
    python -m benchmarks.sparse --url amqp://127.0.0.1:5672 --pid 4711      # any AMQP 1.0 router without SASL

Here the wake-ups cost, not the messages. The byte forwarder is measured in the same run: compare CPU with its, and
within a run only. `make bench` has the same with 20 pairs among its parts.
"""

from __future__ import annotations

import argparse
import json
import statistics
from contextlib import ExitStack

from benchmarks.targets import Target, Traffic, forwarders, router, run

SHOWN = ("cpu_us", "messages_per_second", "p50_us", "p99_us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--count", type=int, default=50_000, help="messages, of all pairs together")
    parser.add_argument("--rounds", type=int, default=3, help="which take turns; medians are shown")
    parser.add_argument("--url", help="of a router that runs already; without it, one is started")
    parser.add_argument("--pid", type=int, help="of that router")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if (options.url is None) != (options.pid is None):
        parser.error("--url needs --pid, for CPU, and --pid its --url")
    traffic = Traffic(connections=options.pairs, outstanding=1)
    with ExitStack() as stack:
        if options.url:
            measured = Target("router", options.url, options.url, (options.pid,))
        else:
            measured = stack.enter_context(router())
        targets = [measured, stack.enter_context(forwarders())]
        rounds = [[run(target, traffic, options.count) for target in targets] for _ in range(options.rounds)]
    found = {
        target.name: {name: statistics.median(each[at][name] for each in rounds) for name in SHOWN}
        for at, target in enumerate(targets)
    }
    if options.json:
        print(json.dumps({"pairs": options.pairs, **found}))
        return
    print(f"{options.pairs} pairs, one message outstanding on each")
    for name, figures in found.items():
        print(
            f"{name:10} CPU {figures['cpu_us']:6.1f} us per message, {figures['messages_per_second']:8,.0f}/s, "
            f"p50 / p99 {figures['p50_us']:,.0f} / {figures['p99_us']:,.0f} us"
        )


if __name__ == "__main__":
    main()
