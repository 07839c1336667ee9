"""The control plane alone: meshes of up to a thousand routers, each mesh in one process, in virtual time, without AMQP.

    python -m benchmarks.control_plane [--quick] [--routers 10 30 100 300 1000] [--output build/control-plane.json]

Routers are at random places in a square. Each has three links to the nearest others; the delay of a link is 1 ms, and
up to 9 ms more with its length. All routers start within one second, each with an address of its own. A link comes up
with the later of its two routers. The benchmark measures the time until all routers have the same database and reach
each other, and then the time until all know of a lost link and of a new address.

CPU time is that of the routers, events and encoding included, in one process for each size. Records are not signed, and
routers share decoded records, as those in one process can.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import multiprocessing
import platform
import random
import resource
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from pathlib import Path
from statistics import median

import networkx

from amqpmesh.topology.linkstate import Advert, Settings, Step, Topology
from amqpmesh.topology.records import open_record
from amqpmesh.topology.signing import Unsigned

SIZES = (10, 30, 100, 300, 1000)
QUICK = (10, 30, 100)
LINKS = 3
"""Links for each router; each has two ends."""
CHANGES = 5
"""Single changes of each kind, for the median."""
PATIENCE = 120.0


@dataclass(eq=False, slots=True)
class Line:
    """A link between two routers."""

    a: int
    b: int
    delay: float
    is_open: bool = True


def lines_between(routers: int, links: int, seed: int) -> list[Line]:
    """Return a random geometric graph with that many links; it includes a spanning tree of the shortest ones."""
    chance = random.Random(seed)
    places = [(chance.random(), chance.random()) for _ in range(routers)]
    reach = 3 * math.sqrt(links / (routers * routers)) if routers > 50 else 2.0
    near = sorted(
        (math.dist(places[a], places[b]), a, b)
        for a in range(routers)
        for b in range(a + 1, routers)
        if abs(places[a][0] - places[b][0]) < reach
    )
    parts = list(range(routers))

    def part(router: int) -> int:
        while parts[router] != router:
            parts[router] = parts[parts[router]]
            router = parts[router]
        return router

    tree, others = [], []
    for length, a, b in near:
        if part(a) != part(b):
            parts[part(a)] = part(b)
            tree.append((length, a, b))
        else:
            others.append((length, a, b))
    taken = tree + others[: max(0, links - len(tree))]
    return [Line(a, b, 0.001 + 0.009 * length) for length, a, b in taken]


def spare(lines: list[Line]) -> list[Line]:
    """Return the links that can be lost without a split of the mesh."""
    graph = networkx.Graph((line.a, line.b) for line in lines if line.is_open)
    needed = {frozenset(edge) for edge in networkx.bridges(graph)}
    return [line for line in lines if line.is_open and {line.a, line.b} not in needed]


class Mesh:
    """Routers, lines, and one queue of events."""

    def __init__(self, lines: list[Line], routers: int) -> None:
        self._believing = Unsigned()
        self._reader = lru_cache(maxsize=8 * routers)(open_record)
        self.now = 0.0
        self.cpu = 0.0
        """CPU seconds of the routers."""
        self.lines = lines
        self.messages = self.octets = 0
        self._turn = 0
        self._coming: list[tuple[float, int, int, Line | None, bytes]] = []
        self._armed = [math.inf] * routers
        self.routers = [self.made(f"R{number:04}") for number in range(routers)]

    def made(self, name: str, *, alone: bool = False) -> Topology:
        """Make a router. Args: alone: it shares no records with others."""
        reader = open_record if alone else self._reader
        return Topology(name, Settings(), self._believing, self._believing, 1, 0.0, reader=reader)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        began = time.process_time()
        yield
        self.cpu += time.process_time() - began

    def call(self, number: int, call: Callable[[Topology], Step]) -> None:
        """Call a router."""
        with self._counted():
            self._do(number, call(self.routers[number]))

    def _do(self, number: int, step: Step) -> None:
        """Put a router's messages on their lines, and note its next timer."""
        for line, data in step.messages:
            assert isinstance(line, Line)
            self.messages += 1
            self.octets += len(data)
            self._push(self.now + line.delay, line.b if number == line.a else line.a, line, data)
        at = self.routers[number].next_timer()
        if at is not None and at < self._armed[number]:
            self._armed[number] = at
            self._push(at, number, None, b"")

    def _push(self, at: float, number: int, line: Line | None, data: bytes) -> None:
        self._turn += 1
        heappush(self._coming, (at, self._turn, number, line, data))

    def run(self, when: float) -> None:
        """Run until a time."""
        coming, routers = self._coming, self.routers
        with self._counted():
            while coming and coming[0][0] <= when:
                self.now, _, number, line, data = heappop(coming)
                if line is None:
                    if self._armed[number] <= self.now:
                        self._armed[number] = math.inf
                        self._do(number, routers[number].handle_timer(self.now))
                elif line.is_open:
                    self._do(number, routers[number].received(line, data, self.now))
        self.now = when

    def until(self, holds: Callable[[], bool], step: float) -> float:
        """Run until a condition holds. Returns: the time that it took, rounded up to a multiple of `step`."""
        began = self.now
        while not holds():
            if self.now - began > PATIENCE:
                raise SystemExit(f"no agreement within {PATIENCE} s")
            self.run(self.now + step)
        return self.now - began

    def start(self, chance: random.Random) -> None:
        """Start all routers within a second."""
        starts = [chance.random() for _ in self.routers]
        coming = sorted((max(starts[line.a], starts[line.b]), number) for number, line in enumerate(self.lines))
        for number in range(len(self.routers)):
            self.advertise(number, f"address {number}")
        for at, turn in coming:
            self.run(at)
            line = self.lines[turn]
            self.connect(line)

    def connect(self, line: Line) -> None:
        """Bring a link up."""
        for end in (line.a, line.b):
            self.call(end, lambda router: router.connected(line, 1, self.now))

    def cut(self, line: Line) -> None:
        """Lose a link; both ends notice it."""
        line.is_open = False
        for end in (line.a, line.b):
            self.call(end, lambda router: router.disconnected(line, self.now))

    def advertise(self, number: int, name: str) -> None:
        """Add a consumer of an address to a router."""
        self.call(number, lambda router: router.advertise("", name, Advert("balanced", 1, 0), self.now))

    def agrees(self) -> bool:
        """Tell whether all routers reach all others, and have their present records."""
        count = len(self.routers)
        if any(len(router.paths.reachable()) != count for router in self.routers):
            return False
        said = [router.database.origins[router.router] for router in self.routers]
        expected = {
            router.router: (*own.pair, own.log.sequence) for router, own in zip(self.routers, said, strict=True)
        }
        return all(
            expected[name] == (*origin.pair, origin.log.sequence)
            for router in self.routers
            for name, origin in router.database.origins.items()
        )

    def said(self) -> Counter[str]:
        """Return the numbers of messages by type."""
        return sum((Counter(router.sent) for router in self.routers), Counter())

    def weight_of_one(self) -> int:
        """Return the octets of memory of a router that knows the whole mesh, and shares nothing."""
        line = Line(0, len(self.routers), 0.001)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        new = self.made("new", alone=True)
        to_new, to_old = [], self.routers[0].connected(line, 1, self.now).messages
        answers = new.connected(line, 1, self.now).messages
        to_new, to_old = to_old, answers
        while len(new.paths.reachable()) <= len(self.routers) or to_new or to_old:
            self.now += 0.05
            heard = [self.routers[0].received(line, data, self.now) for at, data in to_old if at is line]
            told = [new.received(line, data, self.now) for _, data in to_new]
            heard.append(self.routers[0].handle_timer(self.now))
            told.append(new.handle_timer(self.now))
            to_new = [message for step in heard for message in step.messages if message[0] is line]
            to_old = [message for step in told for message in step.messages]
        del to_new, to_old, heard, told, answers
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        return taken


@dataclass
class Phase:
    """The cost of a phase for the whole mesh."""

    virtual_s: float
    cpu_s: float
    messages: int
    octets: int
    by_type: dict[str, int]


@dataclass
class Report:
    """The results for one size of mesh."""

    routers: int
    links: int
    cold: Phase
    quiet: Phase
    lost: list[Phase] = field(default_factory=list)
    told: list[Phase] = field(default_factory=list)
    peak_octets: int = 0
    one_octets: int = 0

    def lines(self) -> Iterator[str]:
        """Return the results for people, with the cost for each router."""
        each = self.routers
        yield (
            f"{each:>6,} {self.links:>6,}  from cold {self.cold.virtual_s:8.3f} s"
            f" {self.cold.cpu_s / each * 1e3:9.2f} ms {self.cold.messages / each:9,.1f}"
            f" {self.cold.octets / each / 1024:9,.2f} KiB"
            f"   {self.peak_octets / 2**20:,.0f} MiB in all, {self.one_octets / 2**20:.2f} MiB a router alone"
        )
        for name, phases in (("link lost", self.lost), ("address", self.told)):
            yield (
                f"{'':13}  {name:9} {median(phase.virtual_s for phase in phases):8.3f} s"
                f" {median(phase.cpu_s for phase in phases) / each * 1e3:9.2f} ms"
                f" {median(phase.messages for phase in phases) / each:9,.1f}"
                f" {median(phase.octets for phase in phases) / each / 1024:9,.2f} KiB"
            )
        yield (
            f"{'':13}  idle, 1 s {'':10} {self.quiet.cpu_s / 10 / each * 1e3:9.2f} ms"
            f" {self.quiet.messages / 10 / each:9,.1f} {self.quiet.octets / 10 / each / 1024:9,.2f} KiB"
        )


def measured(mesh: Mesh, work: Callable[[], float]) -> Phase:
    """Measure a phase of a mesh; `work` returns the virtual time that it took. HELLOs do not count."""
    messages, octets, said, cpu = mesh.messages, mesh.octets, mesh.said(), mesh.cpu
    virtual = work()
    return Phase(virtual, mesh.cpu - cpu, mesh.messages - messages, mesh.octets - octets, dict(mesh.said() - said))


def report(routers: int, links: int, seed: int) -> Report:
    """Run a mesh through all phases."""
    gc.disable()  # the collector would visit a million live objects again and again
    lines = lines_between(routers, min(links, routers * (routers - 1) // 2), seed)
    mesh = Mesh(lines, routers)
    chance = random.Random(seed)

    def cold() -> float:
        mesh.start(chance)
        mesh.until(mesh.agrees, 0.05)
        return mesh.now

    def wait(seconds: float) -> float:
        mesh.run(mesh.now + seconds)
        return seconds

    done = Report(routers, len(lines), measured(mesh, cold), measured(mesh, lambda: wait(0)))
    wait(2)  # for messages that are still on their way
    done.quiet = measured(mesh, lambda: wait(10))
    for _ in range(CHANGES):
        line = chance.choice(spare(lines))

        def lose(line: Line = line) -> float:
            mesh.cut(line)
            return mesh.until(mesh.agrees, 0.005)

        done.lost.append(measured(mesh, lose))
        wait(2)
    for number in range(CHANGES):
        name = f"another {number}"

        def tell(name: str = name) -> float:
            mesh.advertise(chance.randrange(routers), name)
            return mesh.until(lambda: all(router.lookup("", name) for router in mesh.routers), 0.005)

        done.told.append(measured(mesh, tell))
        wait(2)
    done.peak_octets = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    done.one_octets = mesh.weight_of_one()
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routers", type=int, nargs="+", help=f"how many; {SIZES} if not given")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} routers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="a JSON file")
    arguments = parser.parse_args()

    print(f"Python {platform.python_version()}; CPU, messages and octets of a router, HELLOs included")
    reports = []
    # Run a process for each size, so that its peak of memory is that of the size.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for size in arguments.routers or (QUICK if arguments.quick else SIZES):
            done = pool.submit(report, size, LINKS * size, arguments.seed).result()
            reports.append(done)
            print(*done.lines(), sep="\n", flush=True)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps([asdict(each) for each in reports], indent=2))


if __name__ == "__main__":
    main()
