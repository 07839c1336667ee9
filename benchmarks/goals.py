"""The goals of the router's figures, and a check of the results against them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from amqpmesh.router.amqp.standard.definitions import Role
from benchmarks import resumed_processes
from benchmarks.bench import Results
from benchmarks.resumption import case_of
from benchmarks.suspended import case_of as lone_case
from benchmarks.tables import table

Take = Callable[[Results], float]


@dataclass(frozen=True)
class Goal:
    """A figure, and its limit."""

    what: str
    limit: float
    unit: str
    take: Take
    """Takes the figure from the results. Raises: KeyError: its part has not run."""
    at_least: bool = False

    def verdict(self, results: Results) -> tuple[float, bool, float]:
        """Return the figure, whether it is within its limit, and the figure divided by the limit.

        Raises: KeyError: the figure was not measured.
        """
        value = self.take(results)
        return value, value >= self.limit if self.at_least else value <= self.limit, value / self.limit


def figure(part: str, case: str, name: str, target: str = "router") -> Take:
    return lambda results: results[part][case][target][name]


def against(part: str, case: str, name: str) -> Take:
    """Return a function that divides the router's figure by the forwarder's."""
    return lambda results: results[part][case]["router"][name] / results[part][case]["forwarder"][name]


def beyond(part: str, case: str, name: str) -> Take:
    """Return a function that subtracts the forwarder's figure from the router's."""
    return lambda results: results[part][case]["router"][name] - results[part][case]["forwarder"][name]


def growth_over_hops(results: Results) -> float:
    """Divide the CPU of a message and hop over three routers by that over one."""
    found = results["hops"]["100 B unsettled"]
    return found["router 3"]["cpu_us"] / 3 / found["router 1"]["cpu_us"]


def growth_over_connections(results: Results) -> float:
    """Divide the CPU of a message with many connections by that with one, at the same total rate."""
    found = results["scaling"]
    return found["500 connections"]["router"]["cpu_us"] / found["1 connection"]["router"]["cpu_us"]


def beside_off(case: str) -> Take:
    """Return a function that divides the CPU of a message on links that would be kept by that on others."""
    return lambda results: (
        results["granted"][case]["router"]["cpu_us"] / results["granted"][case]["router off"]["cpu_us"]
    )


def kept(case: str, name: str) -> Take:
    """Return a function for the share of the memory in use that is not freed afterwards."""
    return lambda results: results["memory"][case]["router"][f"kept_{name}"] / results["memory"][case]["router"][name]


def most(part: str, name: str) -> Take:
    """Return a function for the largest figure of the router in all cases of a part."""
    return lambda results: max(case["router"][name] for case in results[part].values())


def duplicates_cost(results: Results) -> float:
    """Return the CPU that a message takes more at an address that drops duplicates, which its sender may send again."""
    found = results["patterns"]
    with_ids, without = found["one pair, duplicates by message-id"], found["one pair, credit 500"]
    return with_ids["router"]["cpu_us"] - without["router"]["cpu_us"]


def _all() -> Iterator[Goal]:
    for shape, limits in (("100 B", (1.0, 1.5, 2.5)), ("400 B", (1.2, 1.8, 3.0))):
        for mode, limit in zip(("settled", "unsettled", "second"), limits, strict=True):
            case = f"{shape} {mode}"
            yield Goal(f"CPU per million, {case}", limit, "s", figure("throughput", case, "cpu_us"))
    for mode, limit in (("settled", 600_000), ("unsettled", 450_000)):
        take = figure("throughput", f"100 B {mode}", "messages_per_second")
        yield Goal(f"one pair, 100 B {mode}", limit, "/s", take, at_least=True)
    yield Goal("CPU at 5,000/s, of the forwarder's", 1.0, "", against("latency", "5,000/s", "cpu_us"))
    yield Goal("CPU, one message on each of 20 pairs", 25, "us", figure("sparse", "100 B unsettled 20x1", "cpu_us"))
    for name, limit in (("p50", 15), ("p99", 60)):
        take = beyond("latency", "5,000/s", f"{name}_us")
        yield Goal(f"{name} at 5,000/s, beyond the forwarder's", limit, "us", take)
    yield Goal(
        "CPU, receiver with credit 1, of the forwarder's", 1.5, "", against("patterns", "one pair, credit 1", "cpu_us")
    )
    for shape in ("64 KiB", "1 MiB"):
        for mode in ("settled", "unsettled"):
            case = f"{shape} {mode}"
            rate, cpu = "megabytes_per_second", "cpu_us"
            yield Goal(f"{case}, of the forwarder's MB/s", 0.85, "", against("throughput", case, rate), at_least=True)
            yield Goal(f"{case}, of the forwarder's CPU", 1.5, "", against("throughput", case, cpu))
            yield Goal(f"{case}, TLS, of its MB/s", 0.85, "", against("tls", case, rate), at_least=True)
    yield Goal("CPU of a message and hop, three hops, of one's", 1.15, "", growth_over_hops)
    yield Goal("idle connection with a link", 24, "KiB", figure("memory", "idle connection with a link", "kib"))
    yield Goal("... what stays of it when it leaves", 0.1, "", kept("idle connection with a link", "kib"))
    yield Goal("unsettled message of 100 B", 400, "B", figure("memory", "unsettled message", "octets"))
    yield Goal("... what stays of it when it is settled", 0.1, "", kept("unsettled message", "octets"))
    yield Goal("1,000 connections at once", 3.0, "s", figure("storm", "1,000 at once", "seconds"))
    yield Goal("wait of a bystander of hostile peers", 0.1, "s", most("hostile", "seconds"))
    yield Goal("resident memory more for hostile peers", 65_536, "KiB", most("hostile", "kib"))
    yield Goal("the faster of two directions with slow readers, of the slower", 3.0, "", most("directions", "times"))
    for mode in ("settled", "unsettled", "second"):
        yield Goal(f"CPU, 100 B {mode}, resumption granted, of off's", 1.03, "", beside_off(f"100 B {mode}"))
    case = case_of(10)
    yield Goal(f"{case}: kept in", 1.0, "s", figure("resumption", case, "seconds"))
    yield Goal("... longest time without a pause for others", 20, "ms", figure("resumption", case, "park_ms"))
    yield Goal("... resumed in", 5.0, "s", figure("resumption", case, "resume_seconds"))
    yield Goal("... memory of a link", 2_048, "B", figure("resumption", case, "octets"))
    yield Goal("... memory of a delivery", 350, "B", figure("resumption", case, "delivery_octets"))
    for role in Role:
        case = lone_case(role)
        yield Goal(f"{case}: memory of a link", 2_048, "B", figure("suspended", case, "octets"))
        yield Goal("... memory of a delivery", 350, "B", figure("suspended", case, "delivery_octets"))
    case = resumed_processes.case_of(1_000, 100)
    yield Goal(f"{case}: back in", 2.0, "s", figure("resumed lanes", case, "seconds"))
    yield Goal("CPU of a message, duplicates by message-id, beyond that of others", 10, "us", duplicates_cost)
    for part, of in (("metrics", "a scrape a second"), ("page", "a reader of the page")):
        yield Goal(f"CPU of a core, 10,000 addresses, {of}", 1.0, "%", most(part, "percent"))
    yield Goal("CPU of a message, 500 connections, of one's", 2.0, "", growth_over_connections)
    take = figure("uncompiled", "100 B unsettled", "messages_per_second")
    yield Goal("uncompiled, one pair, 100 B unsettled", 50_000, "/s", take, at_least=True)


GOALS = tuple(_all())


def show(results: Results) -> None:
    """Print the table of the measured goals."""
    rows = []
    for goal in GOALS:
        with suppress(KeyError):
            value, reached, factor = goal.verdict(results)
            digits = 0 if goal.limit >= 100 else 2
            limit = f"{'>=' if goal.at_least else '<='} {goal.limit:,.{digits}f} {goal.unit}".rstrip()
            found = f"{value:,.{digits}f} {goal.unit}".rstrip()
            rows.append((goal.what, [limit, found, "reached" if reached else "NOT REACHED", f"{factor:.2f}"]))
    if rows:
        table("to reach", ["limit", "measured", "", "times the limit"], rows)
