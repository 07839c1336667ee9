"""The time to search better costs for a large mesh: `amqpmesh pipeline plan` without the reading and the checks.

python -m benchmarks.plan                      # 1,000 routers, 3,000 links, 5,000 flows
python -m benchmarks.plan --routers 20 --links 40 --flows 100
"""

from __future__ import annotations

import argparse
import random
import time

from amqpmesh.pipeline.cost_search import capacities, search
from amqpmesh.pipeline.routing import Network, Traffic
from benchmarks.contingency import SEED, mesh


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routers", type=int, default=1000)
    parser.add_argument("--links", type=int, default=3000)
    parser.add_argument("--flows", type=int, default=5000)
    given = parser.parse_args()
    chance = random.Random(SEED)
    graph = mesh(chance, given.routers, given.links)
    ids = sorted(graph.routers)
    flows = [(*chance.sample(ids, 2), chance.random()) for _ in range(given.flows)]
    traffic = Traffic(Network.of(graph.edges, graph.routers), flows)
    began = time.perf_counter()
    found = search(traffic, capacities(traffic.network, {}, traffic.load))
    print(f"{time.perf_counter() - began:.1f} s, {found.evaluations:,} costs tried")
    print(f"use {found.before:.2f} before, {found.after:.2f} after, {found.least:.2f} at least")
    print(f"{len(found.changes):,} changes")


if __name__ == "__main__":
    main()
