"""The part `tenants`: a tenant at a steady load beside a tenant that floods, over one router and three.

The polite tenant sends by some pairs, as much as takes a fifth of a router's time. The other one sends as fast as its
credit lets it: by one pair, or by many. Both have the same weight. The same load runs through routers without tenants;
and the polite part of it alone, through both. Rounds take turns. What a flood adds to p99 is the difference to the run
without a flood in the same round; of these differences the table has the median, and what that is for each router.

    python -m benchmarks.tenants                         # over one router and three: four minutes
    python -m benchmarks.tenants --hops 2 --rounds 9 --flood "300 pairs" --seconds 2

Routers and clients are five processes to seven. If the user has the right (root), the routers and the polite clients
come first, at real-time priorities: else what is measured is how the system divides its cores among the processes.
Where there are fewer cores than routers, a router waits for the others all the same, as long as both of them are busy:
the table says for which part of the time the routers waited for a core.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench import Bench, progress
from benchmarks.generator import generate
from benchmarks.large_beside_small import first, may_come_first
from benchmarks.processes import Failed, cpu_seconds, seconds_waited
from benchmarks.tables import Figures, median, table
from benchmarks.targets import PATIENCE, Target, Traffic, both, leave, routers, run, under

TENANTS = ("polite", "flood")
POLICY = """
[[tenant]]
name = "operator"
default = true
[[group]]
name = "status"
tenant = "operator"
may = ["dynamic"]
manage = ["read"]
""" + "".join(
    f"""
[[tenant]]
name = "{each}"
match = [{{ hostname = "{each}" }}]
[[group]]
name = "all"
tenant = "{each}"
send = ["#"]
receive = ["#"]
"""
    for each in TENANTS
)

HOPS = (1, 3)
PART = 0.2  # of a router's time
PAIRS = 20  # of the polite tenant
FLOODS = {"one pair": ("--connections", "1"), "300 pairs": ("--connections", "300", "--credit", "100")}
ALONE = "none"
SECONDS = 1.0
WARM = 4.0  # seconds of the flood before the polite tenant sends
PROBE = 2_000.0  # messages a second that say what one costs
ENDLESS = str(2**32 - 1)


def load(target: Target) -> float:
    """Return the messages a second that take `PART` of the time of each router."""
    found = run(target, Traffic(connections=PAIRS, rate=PROBE), int(PROBE))
    return PART * target.hops / found["cpu_us"] * 1e6


def polite(target: Target, rate: float, seconds: float) -> Figures:
    """Return the messages a second that arrive of the polite tenant, their latency, and the parts of the time for which
    the routers were busy, and waited for a core, from 0 to 1.
    """
    count = int(rate * seconds)
    common = ["--hostname", TENANTS[0], "--connections", str(PAIRS), "--count", str(count), "--wait"]
    common += ["--address", f"polite-{time.monotonic_ns()}-%", "--patience", str(PATIENCE)]
    with (
        generate("receive", *common, "--skip", str(count // 10), "--url", target.receive_url) as receiver,
        generate("send", *common, "--rate", str(rate), "--url", target.send_url) as sender,
    ):
        receiver.line()
        sender.line()
        with comes_first(target.pids, [receiver.process.pid, sender.process.pid]):
            used, waited = sum(map(cpu_seconds, target.pids)), sum(map(seconds_waited, target.pids))
            began = time.monotonic()
            sender.go()
            sent, received = both(sender, receiver)
            took = (time.monotonic() - began) * target.hops
            busy = (sum(map(cpu_seconds, target.pids)) - used) / took
            waits = (sum(map(seconds_waited, target.pids)) - waited) / took
        leave(receiver, sender)
    if sent["outcomes"] != {"accepted": count}:
        raise Failed(f"{target.name}: not all accepted: {sent['outcomes']}")
    latency = received["latency_us"]
    return {
        "messages_per_second": received["rate"],
        "p50_us": latency["p50"],
        "p99_us": latency["p99"],
        "busy": busy,
        "waits": waits,
    }


def comes_first(middle: Sequence[int], clients: Sequence[int]) -> AbstractContextManager[None]:
    """Have routers and polite clients come before all other processes, where the user has the right."""
    return first(middle, clients) if may_come_first() else nullcontext()


@contextmanager
def flood(target: Target, name: str) -> Iterator[None]:
    """Have a tenant send as fast as it can, as long as the block lasts."""
    if name == ALONE:
        yield
        return
    common = [
        *FLOODS[name],
        "--hostname",
        TENANTS[1],
        "--count",
        ENDLESS,
        "--address",
        f"flood-{time.monotonic_ns()}-%",
    ]
    with generate("receive", *common, "--url", target.receive_url) as receiver:
        receiver.line()
        with generate("send", *common, "--url", target.send_url) as sender:
            sender.line()
            time.sleep(WARM)
            yield


def added(found: dict[str, dict[str, list[Figures]]], name: str, target: str) -> float:
    """Return by how much p99 of a target is higher beside a flood than without one, us: the median of the rounds."""
    pairs = zip(found[name][target], found[ALONE][target], strict=True)
    return statistics.median(beside["p99_us"] - alone["p99_us"] for beside, alone in pairs)


def measure(bench: Bench, hops: Sequence[int], seconds: float, floods: Sequence[str] = tuple(FLOODS)) -> None:
    """Measure the polite tenant with and without the other one, with and without a policy."""
    rows = []
    with TemporaryDirectory(prefix="amqpmesh-") as folder:
        policy = Path(folder, "policy.toml")
        policy.write_text(POLICY)
        for number in hops:
            with routers(number, f'[policy]\nfile = "{policy}"\n') as ruled, routers(number) as plain:
                rate = load(plain)
                targets = [ruled, under(plain, "without tenants")]
                found: dict[str, dict[str, list[Figures]]] = {}
                for _ in range(bench.rounds):
                    for name in (ALONE, *floods):
                        for target in targets:
                            progress(f"tenants: {number} hops, {name}, {target.name}")
                            with flood(target, name):
                                each = polite(target, rate, seconds)
                            found.setdefault(name, {}).setdefault(target.name, []).append(each)
            for name, by_target in found.items():
                case = f"{number} hops, flood: {name}"
                medians = {target: median(each) for target, each in by_target.items()}
                for target, figures in medians.items():
                    figures["added_p99_us"] = added(found, name, target)
                kept = bench.keep("tenants", case, medians)
                cells = []
                for target in targets:
                    each = kept[target.name]
                    cells += [f"{each['messages_per_second'] / rate:.0%}"]
                    cells += [f"{each['p50_us'] / 1000:,.2f} / {each['p99_us'] / 1000:,.2f} ms"]
                    cells += [f"{each['added_p99_us'] / 1000 / number:+,.2f} ms"]
                    cells += [f"{each['busy']:.0%} / {each['waits']:.1%}"]
                rows.append((f"{case}, {rate:,.0f}/s", cells))
    columns = ["p50 / p99", "p99 for each router", "routers busy / wait for cores"]
    table("a polite tenant beside another one", ["arrive", *columns, "without tenants", *columns], rows)


def tenants(bench: Bench) -> None:
    """Measure what a tenant gets while another one floods."""
    if bench.router is None:
        measure(bench, HOPS if bench.extent else HOPS[:1], SECONDS * bench.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hops", type=int, action="append", help="routers in a line; default 1 and 3")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that the polite tenant sends in a run")
    parser.add_argument("--flood", action="append", choices=FLOODS, help="one of them; default all")
    options = parser.parse_args()
    measure(Bench(options.rounds), options.hops or HOPS, options.seconds, options.flood or tuple(FLOODS))


if __name__ == "__main__":
    main()
