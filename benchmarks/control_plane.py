"""The control plane alone: a mesh of up to some thousand routers in one process and in virtual time, without AMQP.

    python -m benchmarks.control_plane [--routers 1000] [--links 3000] [--output build/control-plane.json]

Routers lie at random in a square and are linked to those nearest; a link's delay is 1 ms and up to 9 more with its
length. All start within one second, and a link comes up with
the later of its two routers. Measured is what it takes from there until all hold the same database and reach
each other, and then until each of a few single changes is known everywhere. CPU is that of all routers together,
events included; nothing is signed, and each body is decoded once for all.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import platform
import random
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from pathlib import Path
from statistics import median

from amqpmesh.topology.messages import MAX_MESSAGE
from amqpmesh.topology.protocol import Advert, Settings, Step, Topology
from amqpmesh.topology.records import read_record
from amqpmesh.topology.signing import Unsigned

PATIENCE = 120.0
ADDRESS = "benchmark"


@dataclass(eq=False, slots=True)
class Line:
    """A link between two routers."""

    a: int
    b: int
    delay: float
    is_open: bool = True


def lines_between(routers: int, links: int, seed: int) -> list[Line]:
    """A random geometric graph with that many links; a spanning tree of the shortest is among them."""
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


class Mesh:
    """Routers, lines, and one queue of what is to come."""

    def __init__(self, lines: list[Line], routers: int, settings: Settings) -> None:
        believing = Unsigned()
        reader = lru_cache(maxsize=65_536)(read_record)
        self.now = 0.0
        self.routers = [
            Topology(f"R{number:04}", settings, believing, believing, 1, 0.0, reader=reader)
            for number in range(routers)
        ]
        self.lines = lines
        self.messages = self.octets = self.longest = 0
        self._turn = 0
        self._coming: list[tuple[float, int, int, Line | None, bytes]] = []
        self._armed = [math.inf] * routers

    def do(self, number: int, step: Step) -> None:
        """Carry what a router says, and remember when it is to be called."""
        for line, data in step.messages:
            assert isinstance(line, Line)
            self.messages += 1
            self.octets += len(data)
            self.longest = max(self.longest, len(data))
            self._push(self.now + line.delay, line.b if number == line.a else line.a, line, data)
        at = self.routers[number].next_timer()
        if at is not None and at < self._armed[number]:
            self._armed[number] = at
            self._push(at, number, None, b"")

    def _push(self, at: float, number: int, line: Line | None, data: bytes) -> None:
        self._turn += 1
        heappush(self._coming, (at, self._turn, number, line, data))

    def at(self, when: float) -> None:
        """Run until then."""
        coming, routers = self._coming, self.routers
        while coming and coming[0][0] <= when:
            self.now, _, number, line, data = heappop(coming)
            if line is None:
                if self._armed[number] <= self.now:
                    self._armed[number] = math.inf
                    self.do(number, routers[number].handle_timer(self.now))
            elif line.is_open:
                self.do(number, routers[number].received(line, data, self.now))
        self.now = when

    def until(self, holds: Callable[[], bool], step: float) -> float:
        """Run until something holds; the time that took, to the next multiple of `step`."""
        began = self.now
        while not holds():
            if self.now - began > PATIENCE:
                raise SystemExit(f"no agreement within {PATIENCE} s")
            self.at(self.now + step)
        return self.now - began

    def connect(self, line: Line, offset: float) -> None:
        self.now = offset
        self.do(line.a, self.routers[line.a].connected(line, 1, offset))
        self.do(line.b, self.routers[line.b].connected(line, 1, offset))

    def cut(self, line: Line) -> None:
        line.is_open = False
        self.do(line.a, self.routers[line.a].disconnected(line, self.now))
        self.do(line.b, self.routers[line.b].disconnected(line, self.now))

    def pairs(self, router: Topology) -> dict[str, tuple[int, int]]:
        return {name: (*origin.pair,) for name, origin in router.database.origins.items()}

    def agrees(self) -> bool:
        """Whether all reach all, and all hold the same."""
        count = len(self.routers)
        if any(len(router.paths.reachable()) != count for router in self.routers):
            return False
        first = self.pairs(self.routers[0])
        return all(self.pairs(router) == first for router in self.routers)

    def said(self) -> Counter[str]:
        return sum((Counter(router.sent) for router in self.routers), Counter())


@dataclass
class Phase:
    """What something took."""

    name: str
    virtual_s: float
    cpu_s: float
    messages: int
    octets: int
    by_type: dict[str, int]

    def row(self) -> str:
        kinds = ", ".join(f"{name} {count:,}" for name, count in sorted(self.by_type.items()))
        octets = f"{self.octets / 2**20:,.2f} MiB"
        return f"{self.name:28} {self.virtual_s:8.3f} s {self.cpu_s:9.3f} s {self.messages:>11,} {octets:>14}  {kinds}"


def measured(mesh: Mesh, name: str, work: Callable[[], float]) -> Phase:
    """A phase of the mesh's life; `work` says how much virtual time it took."""
    messages, octets, said = mesh.messages, mesh.octets, mesh.said()
    began = time.process_time()
    virtual = work()
    cpu = time.process_time() - began
    return Phase(name, virtual, cpu, mesh.messages - messages, mesh.octets - octets, dict(mesh.said() - said))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--routers", type=int, default=1000)
    parser.add_argument("--links", type=int, default=3000)
    parser.add_argument("--changes", type=int, default=5, help="single changes of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()

    lines = lines_between(arguments.routers, arguments.links, arguments.seed)
    mesh = Mesh(lines, arguments.routers, Settings())
    chance = random.Random(arguments.seed)
    phases: list[Phase] = []
    print(f"{arguments.routers:,} routers, {len(lines):,} links, Python {platform.python_version()}")
    print(f"{'':28} {'virtual':>10} {'CPU':>11} {'messages':>11} {'octets':>14}")

    def report(phase: Phase) -> Phase:
        phases.append(phase)
        print(phase.row(), flush=True)
        return phase

    def cold() -> float:
        starts = [chance.random() for _ in mesh.routers]
        for line in sorted(lines, key=lambda line: max(starts[line.a], starts[line.b])):
            offset = max(starts[line.a], starts[line.b])
            mesh.at(offset)
            mesh.connect(line, offset)
        mesh.until(mesh.agrees, 0.05)
        return mesh.now

    gc.disable()  # as long as it is measured: a million live objects would be looked at again and again
    report(measured(mesh, "from cold", cold))
    mesh.at(mesh.now + 2)  # what is still on its way
    quiet = report(measured(mesh, "10 s of nothing", lambda: mesh.at(mesh.now + 10) or 10.0))

    singles: list[float] = []
    for number in range(arguments.changes):
        line = chance.choice([line for line in lines if line.is_open])
        done = measured(
            mesh, f"link lost, {number + 1}", lambda line=line: (mesh.cut(line), mesh.until(mesh.agrees, 0.005))[1]
        )
        hellos = done.by_type.pop("Hello", 0)
        done.messages -= hellos
        report(done)
        mesh.at(mesh.now + 1)
    for number in range(arguments.changes):
        origin = chance.randrange(len(mesh.routers))
        name = f"{ADDRESS} {number}"

        def advertise(origin: int = origin, name: str = name) -> float:
            router = mesh.routers[origin]
            mesh.do(origin, router.advertise("", name, Advert("balanced", 1, 0), mesh.now))
            return mesh.until(lambda: all(each.lookup("", name) for each in mesh.routers), 0.005)

        singles.append(report(measured(mesh, f"address told, {number + 1}", advertise)).virtual_s)
        mesh.at(mesh.now + 1)

    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    per_router = quiet.cpu_s / len(mesh.routers) / 10
    print(f"longest message {mesh.longest:,} of {MAX_MESSAGE:,} octets; memory {resident / 2**20:,.0f} MiB in all")
    lost = [phase.cpu_s for phase in phases if phase.name.startswith("link lost")]
    if lost:
        print(f"CPU per router and lost link {median(lost) / len(mesh.routers) * 1e3:,.2f} ms, flooding included")
    print(f"CPU per idle router {per_router * 1e6:,.0f} us/s")
    if singles:
        print(f"an address is known everywhere after {median(singles):.3f} s")
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps([phase.__dict__ for phase in phases], indent=2))


if __name__ == "__main__":
    main()
