"""The parts of `make bench`: what each measures, and the tables that it prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from benchmarks.bench import Bench, progress
from benchmarks.directions import directions
from benchmarks.hostile import hostile
from benchmarks.memory import memory, storm
from benchmarks.metrics import metrics, page
from benchmarks.patterns import patterns
from benchmarks.processes import Failed
from benchmarks.resumed_lanes import resumed_lanes
from benchmarks.resumption import granted, resumption
from benchmarks.suspended import suspended
from benchmarks.tables import Figures, table
from benchmarks.targets import MODES, SHAPES, Target, Traffic, certificate, direct, forwarders, router, routers, under
from benchmarks.tenants import tenants

RATES = (1_000, 5_000, 50_000)
PART_OF_MOST = 0.8
SPREADS = ((1, 1), (20, 1), (500, 1), (1, 20), (20, 20))
SAME_RATE = 0.4  # of what one connection can do: the total of 1 and of 500 connections
SPARSE = Traffic(connections=20, outstanding=1)


@contextmanager
def beside(bench: Bench, hops: int = 1, *, tls: bool = False) -> Iterator[list[Target]]:
    """(router, forwarder, direct), at work."""
    with ExitStack() as stack:
        tls = tls or (bench.router is not None and bench.router.send_url.startswith("amqps:"))
        files = stack.enter_context(certificate()) if tls else None
        if bench.router is not None:
            measured, hops = bench.router, bench.router.hops
        elif hops == 1:
            measured = stack.enter_context(router(files))
        else:
            measured = stack.enter_context(routers(hops))
        yield [measured, stack.enter_context(forwarders(hops, files)), direct(files)]


def speed(figures: Figures, traffic: Traffic) -> str:
    """For people: large messages by their octets."""
    if traffic.shape in ("64 KiB", "1 MiB", "mixed"):
        return f"{figures['megabytes_per_second']:,.0f} MB/s"
    return f"{figures['messages_per_second']:,.0f}/s"


COLUMNS = [
    "router",
    "its CPU/million",
    "its memory",
    "forwarder",
    "its CPU/million",
    "direct",
    "generator's CPU/million",
]


def cells(found: dict[str, Figures], traffic: Traffic) -> list[str]:
    """Return a row below COLUMNS."""
    row = []
    for name in ("router", "forwarder"):
        row += [speed(found[name], traffic), f"{found[name]['cpu_us']:,.2f} s"]
    row.insert(2, f"{found['router']['resident_mib']:,.0f} MiB")
    generator = found["router"]["sender_cpu_us"], found["router"]["receiver_cpu_us"]
    return [*row, speed(found["direct"], traffic), "{:,.2f} + {:,.2f} s".format(*generator)]


def full_speed(bench: Bench, part: str, title: str, targets: list[Target], all_traffic: list[Traffic]) -> None:
    """Kinds of traffic, one after the other, and their table."""
    rows = []
    for traffic in all_traffic:
        progress(f"{part}: {traffic.name}")
        try:
            found = bench.compare(part, targets, traffic)
        except Failed as error:  # the others are worth having
            bench.failed.append(f"{part}, {traffic.name}: {error}")
            continue
        lost = found["router"]["lost"]
        note = [f"{lost:,.0f} dropped" if lost else ""] if bench.router is not None else []
        rows.append((traffic.name, cells(found, traffic) + note))
    if not rows:
        raise Failed("nothing was measured")
    table(title, COLUMNS + ([""] if bench.router is not None else []), rows)


def generator(bench: Bench) -> None:
    """Measure the load generator alone, with the sender connected to the receiver: its speed and its CPU."""
    modes = tuple(MODES) if bench.extent else ("unsettled",)
    rows = []
    for traffic in [Traffic(shape, mode) for shape in SHAPES for mode in modes]:
        progress(f"generator: {traffic.name}")
        figures = bench.compare("generator", [direct()], traffic)["direct"]
        took = [f"{figures[name]:,.2f} s" for name in ("sender_cpu_us", "receiver_cpu_us")]
        rate = f"{figures['messages_per_second']:,.0f}/s", f"{figures['megabytes_per_second']:,.0f} MB/s"
        rows.append((traffic.name, [*rate, *took]))
    table("the load generator", ["at most", "", "sender's CPU/million", "receiver's"], rows)


def throughput(bench: Bench) -> None:
    """Each shape of message in each mode, one pair, one hop."""
    some = [Traffic(mode="settled"), Traffic(), Traffic("400 B"), Traffic("64 KiB")]
    every = [Traffic(shape, mode) for shape in SHAPES for mode in MODES]
    with beside(bench) as targets:
        full_speed(bench, "throughput", "one pair, one hop", targets, every if bench.extent else some)


def spread(bench: Bench) -> None:
    """Many connections, and many links on each."""
    spreads = SPREADS if bench.extent > 1 else SPREADS[1:] if bench.extent else ((20, 1),)
    shapes = ("100 B", "1 KiB") if bench.extent > 1 else ("100 B",)
    modes = tuple(MODES) if bench.extent > 1 else ("unsettled",)
    every = [Traffic(shape, mode, *each) for shape in shapes for mode in modes for each in spreads]
    with beside(bench) as targets:
        full_speed(bench, "spread", "connections x links", targets, every)


def secure(bench: Bench) -> None:
    """Measure traffic over TLS."""
    if bench.router is not None and bench.router.send_url.startswith("amqp:"):
        progress("tls: left out, for the URL has none")
        return
    shapes = list(SHAPES) if bench.extent > 1 else ["100 B", "64 KiB", "1 MiB"] if bench.extent else ["64 KiB"]
    modes = tuple(MODES) if bench.extent > 1 else ("settled", "unsettled") if bench.extent else ("unsettled",)
    with beside(bench, tls=True) as targets:
        full_speed(bench, "tls", "over TLS", targets, [Traffic(shape, mode) for shape in shapes for mode in modes])


def hops(bench: Bench) -> None:
    """One router and three in a line, all on the same cores: CPU of each of them."""
    if bench.router is not None:
        progress("hops: left out, for the routers run already: give the URLs of the two ends and all pids instead")
        return
    shapes = list(SHAPES) if bench.extent > 1 else ["100 B", "1 KiB", "64 KiB"] if bench.extent else ["100 B"]
    modes = tuple(MODES) if bench.extent > 1 else ("unsettled",)
    with ExitStack() as stack:
        targets = []
        for count in (1, 3):
            found = stack.enter_context(beside(bench, count))[:2]
            targets += [under(target, f"{target.name} {count}") for target in found]
        rows = []
        for traffic in [Traffic(shape, mode) for shape in shapes for mode in modes]:
            progress(f"hops: {traffic.name}")
            each = bench.compare("hops", targets, traffic)
            row = []
            for target in targets:
                row += [speed(each[target.name], traffic), f"{each[target.name]['cpu_us'] / target.hops:,.2f} s"]
            growth = each["router 3"]["cpu_us"] / 3 / each["router 1"]["cpu_us"] - 1
            rows.append((traffic.name, [*row, f"{growth:+.0%}"]))
    columns = [column for target in targets for column in (target.name, "CPU/million, hop")]
    table("hops", [*columns, "router's growth"], rows)


def latency(bench: Bench) -> None:
    """At fixed rates, and at most of what the router can do; from when each message was due."""
    with beside(bench) as targets:
        most = bench.speed(targets[0], Traffic()) * PART_OF_MOST
        rates = [*(RATES if bench.extent else RATES[:2]), most]
        rows = []
        for rate in rates:
            traffic = Traffic(rate=rate)
            name = f"{rate:,.0f}/s" if rate in RATES else "80 %"
            progress(f"latency: {name}")
            able = [target for target in targets if bench.keeps_up(target, traffic)]
            found = bench.compare("latency", able, traffic, name)
            row = []
            for target in targets:
                if target in able:
                    figures = found[target.name]
                    row.append(" / ".join(f"{figures[f'{part}_us']:,.0f}" for part in ("p50", "p99", "p99.9")))
                else:
                    row.append(f"reaches {bench.speed(target, traffic):,.0f}/s")
            row += [f"{found[target.name]['cpu_us']:.1f} us" if target in able else "" for target in targets[:2]]
            rows.append((name if rate in RATES else f"80 %: {rate:,.0f}/s", row))
    columns = ["router p50 / p99 / p99.9 us", "forwarder", "direct", "router's CPU/message", "forwarder's"]
    table("100 B unsettled at a rate", columns, rows)


def sparse(bench: Bench) -> None:
    """One message outstanding on each of 20 pairs: what wake-ups cost."""
    with beside(bench) as targets:
        progress("sparse")
        found = bench.compare("sparse", targets, SPARSE)
    row = [f"{found[target.name]['messages_per_second']:,.0f}/s" for target in targets]
    row += [f"{found[target.name]['cpu_us']:,.1f} us" for target in targets[:2]]
    columns = ["router", "forwarder", "direct", "router's CPU/message", "forwarder's"]
    table("sparse", columns, [("20 pairs, one message outstanding on each", row)])


def scaling(bench: Bench) -> None:
    """Measure one total rate over one connection and over 500."""
    with beside(bench) as (measured, *_):
        one = Traffic(rate=SAME_RATE * bench.speed(measured, Traffic()))
        many = replace(one, connections=500 if bench.extent else 100)
        rows = []
        for traffic in (one, many):
            progress(f"scaling: {traffic.name}")
            # By the number alone, for what is compared with earlier figures.
            name = f"{traffic.connections} connections" if traffic is many else "1 connection"
            figures = bench.compare("scaling", [measured], traffic, name)["router"]
            rows.append((name, [f"{figures['cpu_us']:.1f} us", f"{figures['rate_reached']:,.0f}/s"]))
    table(f"100 B unsettled, {one.rate:,.0f}/s in all", ["router's CPU/message", "reached"], rows)


def uncompiled(bench: Bench) -> None:
    """Measure the uncompiled kernel, which runs where there is no compiler."""
    if bench.router is not None:
        return
    with router(AMQPMESH_KERNEL="pure") as target:
        progress("uncompiled")
        figures = bench.compare("uncompiled", [target], Traffic())["router"]
    row = [f"{figures['messages_per_second']:,.0f}/s", f"{figures['cpu_us']:,.1f} s"]
    table("uncompiled", ["router", "its CPU/million"], [("100 B unsettled", row)])


def recorded(bench: Bench) -> None:
    """Measure the cost of recording each delivery, or one of a hundred."""
    if bench.router is not None:
        return
    rows = []
    with ExitStack() as stack:
        targets = [
            under(stack.enter_context(router(sample=sample)), name)
            for name, sample in (("router", None), ("router, 1 of 100", 0.01), ("router, all", 1.0))
        ]
        for mode in MODES if bench.extent else ("unsettled",):
            traffic = Traffic(mode=mode)
            progress(f"recorded: {traffic.name}")
            found = bench.compare("recorded", targets, traffic)
            row = []
            for name, each in found.items():
                row += [f"{each['messages_per_second']:,.0f}/s", f"{each['cpu_us']:.2f} s"]
                if name != "router":
                    row[-1] += f" ({each['cpu_us'] / found['router']['cpu_us'] - 1:+.0%})"
            rows.append((traffic.name, row))
    columns = [cell for name in found for cell in (name, "CPU/million")]
    table("recorded", columns, rows)


PARTS: dict[str, Callable[[Bench], None]] = {
    "generator": generator,
    "patterns": patterns,
    "throughput": throughput,
    "latency": latency,
    "sparse": sparse,
    "spread": spread,
    "scaling": scaling,
    "tls": secure,
    "hops": hops,
    "memory": memory,
    "storm": storm,
    "directions": directions,
    "tenants": tenants,
    "metrics": metrics,
    "page": page,
    "resumption": resumption,
    "granted": granted,
    "suspended": suspended,
    "resumed lanes": resumed_lanes,
    "hostile": hostile,
    "recorded": recorded,
    "uncompiled": uncompiled,
}
