"""The cost of the routing graph in a router: computed from nothing, and updated for each change of a link.

    python -m benchmarks.topology [--routers 1000] [--links 3000] [--changes 500] [--seed 1]

It measures the CPU time of this process, without signatures and network: medians, 99th percentiles and the worst of
each kind of change. A change is the link states of both ends, and all that follows from them in the router: the changed
distances and next hops, and the addresses of routers that appeared or disappeared.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from amqpmesh.topology.graph import Graph
from amqpmesh.topology.paths import Paths

Links = dict[str, dict[str, int]]
MAX_COST = 10


def random_mesh(chance: random.Random, routers: int, links: int) -> Links:
    """Return a connected mesh: a random tree, and random further links; the costs of both directions differ."""
    names = [f"router-{number:05}" for number in range(routers)]
    mesh: Links = {name: {} for name in names}
    for number in range(1, routers):
        join(chance, mesh, names[number], names[chance.randrange(number)])
    more = max(0, min(links, routers * (routers - 1) // 2) - (routers - 1))
    while more:
        one, other = chance.sample(names, 2)
        if other not in mesh[one]:
            join(chance, mesh, one, other)
            more -= 1
    return mesh


def join(chance: random.Random, mesh: Links, one: str, other: str) -> None:
    mesh[one][other], mesh[other][one] = chance.randint(1, MAX_COST), chance.randint(1, MAX_COST)


@contextmanager
def measured(times: list[float]) -> Iterator[None]:
    """Append the milliseconds of CPU time that the body takes."""
    before = time.process_time()
    yield
    times.append(1000 * (time.process_time() - before))


class Bench:
    """One router's view of a mesh, and the times of its updates."""

    def __init__(self, chance: random.Random, mesh: Links) -> None:
        self.chance = chance
        self.mesh = mesh
        self.names = list(mesh)
        self.router = self.names[len(mesh) // 2]
        self.ingress = self.names[0]
        self.graph = Graph()
        for name in self.names:
            self.graph.update(name, dict(mesh[name]))
        self.paths = Paths(self.graph, self.router)
        self.paths.parent(self.ingress)

    def cold(self) -> float:
        """Compute all paths, as a router does that has just read the whole graph. Returns: milliseconds of CPU time."""
        times: list[float] = []
        with measured(times):
            Paths(self.graph, self.router)
        return times[0]

    def absorb(self, change: Callable[[], tuple[str, str]]) -> tuple[float, float, int]:
        """Make a change. Returns: its CPU time, that of another router's tree after it, and the routers with a changed
        route."""
        ends = change()
        times: list[float] = []
        with measured(times):
            for end in ends:
                self.graph.update(end, dict(self.mesh[end]))
            changed = self.paths.refresh()
        with measured(times):
            self.paths.parent(self.ingress)
        return times[0], times[1], len(changed)

    # The changes: each concerns both ends of a link, and returns them. A removed link comes back with the next change
    # of its kind, so that the mesh keeps its size.

    def cost(self) -> tuple[str, str]:
        one, other = self._link(self.chance.choice(self.names))
        self.mesh[one][other] = self.chance.randint(1, MAX_COST)
        return one, other

    def come_and_go(self) -> Callable[[], tuple[str, str]]:
        return self._toggle(lambda: self._link(self.chance.choice(self.names)))

    def own_come_and_go(self) -> Callable[[], tuple[str, str]]:
        return self._toggle(lambda: self._link(self.router))

    def _link(self, one: str) -> tuple[str, str]:
        return one, self.chance.choice(list(self.mesh[one]))

    def _toggle(self, choose: Callable[[], tuple[str, str]]) -> Callable[[], tuple[str, str]]:
        gone: list[tuple[str, str]] = []

        def change() -> tuple[str, str]:
            if gone:
                join(self.chance, self.mesh, *gone[0])
                return gone.pop()
            one, other = choose()
            del self.mesh[one][other], self.mesh[other][one]
            gone.append((one, other))
            return one, other

        return change


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routers", type=int, default=1000)
    parser.add_argument("--links", type=int, default=3000)
    parser.add_argument("--changes", type=int, default=500, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    bench = Bench(chance, random_mesh(chance, args.routers, args.links))
    print(f"{args.routers} routers, {args.links} links; ms of CPU; median, 99th percentile, worst")
    cold = statistics.median(bench.cold() for _ in range(9))
    print(f"{'from nothing':24} {cold:8.2f}")
    kinds = {
        "a cost changes": bench.cost,
        "a link comes or goes": bench.come_and_go(),
        "... of this router": bench.own_come_and_go(),
    }
    print(f"{'':24} {'routes and next hops':^26}  {'one tree of another':^26}  routes changed (mean)")
    for kind, change in kinds.items():
        ways, trees, changed = zip(*(bench.absorb(change) for _ in range(args.changes)), strict=True)
        columns = [
            f"{statistics.median(times):8.3f} {percentile(times, 0.99):8.3f} {max(times):8.3f}"
            for times in (list(ways), list(trees))
        ]
        print(f"{kind:24} {columns[0]}  {columns[1]}  {statistics.mean(changed):8.1f}")


if __name__ == "__main__":
    main()
