"""Memory of a router: for an idle connection and its link, for an unsettled message, and for many connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.bench import Bench, progress
from benchmarks.generator import generate
from benchmarks.processes import Load, resident_bytes, wait_until
from benchmarks.tables import KIB, Figures, median, table
from benchmarks.targets import Target, Traffic, leave, pair, router, run

CONNECTIONS = 1_000
HELD = 10_000
HOLDING = Traffic(links=10)  # a router may limit the unsettled deliveries of one link
FREED = 4.0  # seconds until memory must be freed; memory that is not freed then counts as kept
WARM = 2_000  # messages before the measurement: objects that are made once exist then


@contextmanager
def measured(bench: Bench) -> Iterator[Target]:
    """Start a router, or use the one that runs already."""
    if bench.router is not None:
        yield bench.router
        return
    with router() as target:
        yield target


def resident(target: Target) -> int:
    return sum(map(resident_bytes, target.pids))


def back_to(target: Target, before: int) -> int:
    """Octets that are more than before, once what comes back has."""
    wait_until(lambda: resident(target) <= before, FREED)
    return resident(target) - before


@contextmanager
def attached(target: Target, connections: int, links: int) -> Iterator[tuple[Load, float]]:
    """(receivers, seconds that it took until all of them were attached)."""
    sasl = ["--sasl"] if target.sasl else []
    many = ["--connections", str(connections), "--links", str(links), "--count", "0", "--wait", *sasl]
    address = ["--address", f"idle-{time.monotonic_ns()}-%"]
    with generate("receive", "--url", target.receive_url, *many, *address) as load:
        ready = load.line()
        load.line()  # it has received all of no messages
        yield load, ready["seconds"]
        leave(load)


def idle(target: Target, connections: int, links: int) -> Figures:
    """KiB of each connection with so many links."""
    before = resident(target)
    with attached(target, connections, links):
        taken = resident(target) - before
    kept = back_to(target, before)
    return {"kib": taken / connections / KIB, "kept_kib": kept / connections / KIB}


def unsettled(target: Target, count: int) -> Figures:
    """Octets of each message whose receiver has it and has said nothing of it."""
    with pair(target, HOLDING, count, "--hold", "--credit", str(count)) as (receiver, sender):
        before = resident(target)
        sender.go()
        held = receiver.line()["held"]
        taken = resident(target) - before
        receiver.go()
        for each in (receiver, sender):
            each.line()
        kept = back_to(target, before)
        leave(receiver, sender)
    return {"octets": taken / held, "kept_octets": kept / held}


def fresh(bench: Bench, what: Callable[[Target], Figures]) -> Figures:
    """Measure twice on a newly started router. Returns: the medians, with the kept memory of the second time."""

    def once() -> Figures:
        with measured(bench) as target:
            run(target, Traffic(), WARM)
            found = what(target)
            again = {f"again_{name}": value for name, value in what(target).items() if name.startswith("kept_")}
            return found | again

    return median([once() for _ in range(bench.rounds)])


def memory(bench: Bench) -> None:
    """Measure the resident memory of connections, links and messages, and the memory that is kept after their end."""
    connections = CONNECTIONS if bench.extent else CONNECTIONS // 5
    held = HELD if bench.extent else HELD // 5
    rows = []
    for links, name in ((0, "idle connection"), (1, "idle connection with a link")):
        progress(f"memory: {name}")
        found = fresh(bench, partial(idle, connections=connections, links=links))
        bench.keep("memory", name, {"router": found})
        row = [f"{found[each]:,.1f} KiB" for each in ("kib", "kept_kib", "again_kept_kib")]
        rows.append((f"{name}, of {connections:,}", row))
    progress("memory: unsettled")
    found = fresh(bench, partial(unsettled, count=held))
    bench.keep("memory", "unsettled message", {"router": found})
    row = [f"{found[each]:,.0f} B" for each in ("octets", "kept_octets", "again_kept_octets")]
    rows.append((f"unsettled message of 100 B, of {held:,}", row))
    table("memory, resident", ["each", "of it stays", "more stays the second time"], rows)


def storm(bench: Bench) -> None:
    """Measure the time until connections that come at once, each with a link, are all served."""
    connections = CONNECTIONS if bench.extent else CONNECTIONS // 5
    progress("storm")
    with measured(bench) as target:

        def once(target: Target) -> Figures:
            with attached(target, connections, 1) as (_, seconds):
                return {"seconds": seconds}

        found = bench.keep("storm", f"{connections:,} at once", bench.take_turns([target], once))["router"]
    table("connections at once", ["all served within"], [(f"{connections:,}", [f"{found['seconds']:.2f} s"])])
