"""The time to try every single failure of a large mesh: `amqpmesh pipeline contingency` without the reading.

    python -m benchmarks.contingency                      # 1,000 routers, 3,000 links, 5,000 flows
    python -m benchmarks.contingency --routers 100 --links 300 --flows 500

The output has the seconds through Spark in `local[2]`, and those on one core without Spark: the difference is the cost
of Spark.
"""

from __future__ import annotations

import argparse
import random
import time
from tempfile import TemporaryDirectory

from amqpmesh.pipeline.contingency import Case, Flow, contingency
from amqpmesh.pipeline.graphs import Graph
from amqpmesh.pipeline.session import session

ALONE = 400  # failures that one core tries: enough to know what one takes
SEED = 1


def mesh(chance: random.Random, routers: int, links: int) -> Graph:
    """Make a connected mesh with costs from 1 to 10, most of them 1."""
    ids = [f"R{number:04d}" for number in range(routers)]
    pairs = {(ids[number], ids[chance.randrange(number)]) for number in range(1, routers)}
    while len(pairs) < links:
        one, other = sorted(chance.sample(ids, 2), reverse=True)
        pairs.add((one, other))
    edges = {}
    for one, other in sorted(pairs):
        edges[one, other] = edges[other, one] = chance.choice([1, 1, 1, 2, 5, 10])
    return Graph(edges, set(ids))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routers", type=int, default=1000)
    parser.add_argument("--links", type=int, default=3000)
    parser.add_argument("--flows", type=int, default=5000)
    options = parser.parse_args()
    chance = random.Random(SEED)
    graph = mesh(chance, options.routers, options.links)
    ids = sorted(graph.routers)
    flows = [Flow("", f"a{number % 300}", *chance.sample(ids, 2), 10.0, 1000.0) for number in range(options.flows)]
    began = time.perf_counter()
    case = Case.of(graph, flows)
    failures = case.failures(loaded=0, pairs=0)
    print(f"prepared                  {time.perf_counter() - began:6.1f} s")
    some = failures[:: max(1, len(failures) // ALONE)]
    began = time.perf_counter()
    for failure in some:
        case.without(failure)
    alone = (time.perf_counter() - began) / len(some) * len(failures)
    print(f"{len(failures):,} failures, one core  {alone:6.1f} s, from {len(some)} of them")
    began = time.perf_counter()
    spark = session("benchmark", "local[2]")
    like = spark.range(1)
    like.count()
    print(f"a session of Spark        {time.perf_counter() - began:6.1f} s")
    with TemporaryDirectory(prefix="amqpmesh-") as out:
        for turn in ("first", "again"):
            began = time.perf_counter()
            contingency(case, failures, like).write.mode("overwrite").parquet(f"{out}/contingency")
            print(f"all, through Spark, {turn} {time.perf_counter() - began:6.1f} s")
        worst = spark.read.parquet(f"{out}/contingency").where("rank = 1").collect()[0]
        print(f"worst: {worst['kind']} {worst['failure']} cuts off {worst['addresses_cut_off']} addresses")


if __name__ == "__main__":
    main()
