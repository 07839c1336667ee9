"""The part `patterns`: router CPU for each message that leaves, in the patterns that people use.

Each row has a fresh router, and its clients stay from round to round: no round finds garbage or credit of clients that
have left. The CPU that the clients take themselves is in the table, since slow clients make small batches.

Beside ours goes the byte forwarder, with pairs of clients that exchange alike, and another router, if its URL is given:
of one router, or of as many as the row has, in a line, with commas.

    python -m benchmarks.patterns       # the table of the committed figures, as the page on performance has it
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from amqpmesh.router.config.users import Users
from benchmarks.bench import ENOUGH, MOST, Bench, Results, progress
from benchmarks.exchanges import EXCHANGES, exchanges
from benchmarks.figures import committed
from benchmarks.generator import clients
from benchmarks.meshes import Port
from benchmarks.pattern_rows import ROWS, SETTINGS, USER, Row
from benchmarks.processes import Failed, Load, cpu_seconds, server
from benchmarks.tables import Figures, table
from benchmarks.targets import Target, both, forwarders, leave, router, routers, under

PART = "patterns"
SHARE = 0.4  # of the seconds of a run in other parts: there are many rows
FIRST = 200  # messages of a first look
FIRST_BESIDE = 2_000  # ... of pairs at the forwarder, which may be as many as 200
SPREAD = 2.0  # seconds in which all routers learn of the receivers: a multicast would miss some
WHOLE = 9.95  # us, from which a table has no fractions
ROUNDED = 0.01  # a share of the CPU that is none
LONGER = 4  # times that a run at a rate takes longer


@dataclass
class Running:
    """The clients of a row at one target, while they run."""

    row: Row
    target: Target
    sender: Load
    receiver: Load | None
    _count: int = 0

    def round(self, count: int) -> Figures:
        """Send so many messages. Raises: Failed: a client failed, or not all outcomes are those that must be."""
        row, is_beside = self.row, self.target.name == "forwarder"
        if self.receiver is not None:
            self.receiver.go(str(count if is_beside else count * row.received))
            self.receiver.line()  # it knows, before anything comes
        before = [cpu_seconds(pid) for pid in self.target.pids]
        self.sender.go(str(count))
        try:
            if self.receiver is None:
                sent = received = self.sender.line()
            else:
                sent, received = both(self.sender, self.receiver)
        except Failed as error:
            raise Failed(f"{self.target.name}: {error}") from error
        busy = [cpu_seconds(pid) - then for pid, then in zip(self.target.pids, before, strict=True)]
        outcome = "accepted" if is_beside else row.outcome
        if sent["outcomes"] not in ({}, {outcome: count}):
            raise Failed(f"{self.target.name}, {row.name}: not all {outcome}: {sent['outcomes']}")
        left = count * (1 if is_beside else row.copies)
        if row.lossy and not is_beside:
            left = received["count"]
        return {
            "cpu_us": sum(busy) / left * 1e6,
            "ingress_us": busy[0] / left * 1e6,
            "messages_per_second": left / max(sent["seconds"], received["seconds"]),
            "client_us": (sent["cpu"] + (received["cpu"] if received is not sent else 0)) / left * 1e6,
        }

    def count(self, seconds: float) -> int:
        """Return the messages of a round that takes so long. A first look decides."""
        if self.row.rate:
            return int(self.row.rate * LONGER * seconds)
        if self.row.first and self.target.name != "forwarder":
            return self.row.first
        if not self._count:
            count = least = FIRST_BESIDE if self.target.name == "forwarder" else FIRST
            while True:
                speed = self.round(count)["messages_per_second"] / (
                    self.row.copies if self.target.name != "forwarder" else 1
                )
                if count / speed > min(ENOUGH, seconds) or count >= MOST:
                    break
                count *= 4
            if self.row.least and self.target.name != "forwarder":
                least = self.row.least
                self.round(least)
            self._count = min(MOST, max(int(speed * seconds), least))
        return self._count


def urls(target: Target) -> tuple[str, ...]:
    """Return the URLs of all routers of a target."""
    return target.urls or (target.send_url,)


def arguments(said: str, places: dict[str, str], more: str) -> str:
    """Return a row's clients as `clients` wants them: with places for routers' ids, and more options of each."""
    found = []
    for each in said.split(" + "):
        kind, place, *options = each.split()
        found.append(" ".join([kind, places[place], *options]) + more)
    return " + ".join(found)


@contextmanager
def running(row: Row, target: Target, port: int) -> Iterator[Running]:
    """Run the clients of a row, attached. Args: port: where a receiver listens, if it does."""
    if target.name == "forwarder":
        sending = f"send url={target.send_url} {row.beside}"
        receiving = f"receive listen=1 port={target.port} {row.beside}"
    else:
        places = {name: f"url={url}" for name, url in zip(row.routers, urls(target), strict=True)}
        places["listen"] = f"listen=1 port={port}"
        more = " sasl=1" if target.sasl else ""
        sending = arguments(row.send, places, more)
        more += " lossy=1" if row.lossy and target.lossy else ""
        receiving = arguments(row.receive, places, more) if row.receive else ""
    with ExitStack() as stack:
        receiver = stack.enter_context(clients(receiving)) if receiving else None
        if receiver is not None:
            receiver.line()
            if len(row.routers) > 1 and target.name != "forwarder":
                time.sleep(SPREAD)
        sender = stack.enter_context(clients(sending))
        sender.line()
        yield Running(row, target, sender, receiver)
        leave(*(load for load in (sender, receiver) if load is not None))


@contextmanager
def ours(row: Row, port: int) -> Iterator[Target]:
    """Start a router, or several, as a row needs them."""
    settings = SETTINGS + row.settings.format(port=port)
    if row.program:
        with server("benchmarks.in_process", row.program, stream="stdout") as (url, pid):
            yield Target("router", url, url, (pid,))
    elif len(row.routers) == 1:
        users = Users({}).add(USER, USER) if row.policy else None
        with router(
            sample=row.sample, users=users, settings=settings, policy=row.policy, workers=row.workers
        ) as target:
            yield target
    else:
        with routers(len(row.routers), settings) as target:
            yield target


def measure(bench: Bench, row: Row, others: list[Target]) -> dict[str, Figures]:
    """Measure a row: our routers and the others in turns."""
    seconds = SHARE * bench.seconds
    with ExitStack() as stack:
        port = Port()
        stack.callback(port.close)
        measured = [stack.enter_context(ours(row, port.number)), *others]
        if row.first:
            return bench.take_turns(measured, lambda target: first_round(row, target, port.number, seconds))
        runs = [stack.enter_context(running(row, target, port.number)) for target in measured]
        by_name = {run.target.name: run for run in runs}
        counts = {name: run.count(seconds) for name, run in by_name.items()}
        return bench.take_turns(measured, lambda target: by_name[target.name].round(counts[target.name]))


def first_round(row: Row, target: Target, port: int, seconds: float) -> Figures:
    """Measure the first messages of new clients at a target."""
    with running(row, target, port) as run:
        time.sleep(SPREAD)  # the credit of all receivers has come
        return run.round(run.count(seconds))


def keep(bench: Bench, name: str, found: dict[str, Figures]) -> list[str]:
    """Keep the figures of a row. Returns: its cells of the table."""
    if "other" in found:
        found["other"]["forwarder_us"] = found["forwarder"]["cpu_us"]
    else:
        earlier = committed()["results"].get(PART, {}).get(name, {}).get("other")
        if earlier is not None:
            found["other"] = earlier
    kept = bench.keep(PART, name, found)
    mine, beside = kept["router"], kept["forwarder"]["cpu_us"]
    cells = [
        f"{mine['cpu_us']:,.2f}",
        f"{mine['ingress_us']:,.2f}",
        f"{beside:,.2f}",
        f"{mine['cpu_us'] / beside:,.1f}",
    ]
    if "other" not in kept:
        return [*cells, "", "", f"{mine['client_us']:,.2f}"]
    other = kept["other"]["cpu_us"] * beside / kept["other"]["forwarder_us"]
    return [*cells, f"{other:,.2f}", f"{mine['cpu_us'] / other:,.2f}", f"{mine['client_us']:,.2f}"]


COLUMNS = [
    "us", "at A", "forwarder", "times its", "another router", "times its", "clients' own",
]  # fmt: skip


def patterns(bench: Bench) -> None:
    """Measure the CPU of routers for each message that leaves, in all patterns of clients."""
    rows = []
    other = under(bench.router, "other") if bench.router is not None else None
    count = len(urls(other)) if other is not None else 0
    with ExitStack() as stack:
        copies: dict[int, Target] = {}
        for row in ROWS:
            if other is not None and (row.is_ours or len(row.routers) != count):
                continue
            if bench.extent == 0 and not row.is_telling:
                continue
            progress(f"{PART}: {row.name}")
            if row.hops not in copies:
                copies[row.hops] = stack.enter_context(forwarders(row.hops))
            others = [copies[row.hops]]
            if other is not None:
                others.append(other)
            try:
                rows.append((row.name, keep(bench, row.name, measure(bench, row, others))))
            except Failed as error:  # the others are worth having
                bench.failed.append(f"{PART}, {row.name}: {error}")
        if count < 2:
            rows += [(name, keep(bench, name, found)) for name, found in exchanges(bench, other)]
    if not rows:
        raise Failed("nothing was measured")
    table("CPU of a message that leaves", COLUMNS, rows)


def names() -> list[str]:
    """Return the names of all rows."""
    return [*(row.name for row in ROWS), *(exchange.name for exchange in EXCHANGES)]


def page(results: Results) -> str:
    """Return the table of the page on performance, from committed figures."""
    lines = [
        "| Pattern | amqpmesh | of it, at A | Forwarder | skrouterd | Ratio | Clients |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names():
        found = results[PART][name]
        mine, beside = found["router"], found["forwarder"]["cpu_us"]
        several = mine["cpu_us"] - mine["ingress_us"] > ROUNDED * mine["cpu_us"]
        cells = [
            said(mine["cpu_us"]),
            said(mine["ingress_us"]) if several else "",
            said(beside),
            "",
            "",
            said(mine["client_us"]),
        ]
        if "other" in found:
            other = found["other"]["cpu_us"] * beside / found["other"]["forwarder_us"]
            cells[3:5] = said(other), f"{mine['cpu_us'] / other:.2f}"
        lines.append("".join(f"| {cell} " if cell else "| " for cell in [name, *cells]) + "|")
    return "\n".join(lines)


def said(us: float) -> str:
    """Return a figure with two digits, or as an integer."""
    return f"{us:,.0f}" if us >= WHOLE else f"{us:.2g}"


if __name__ == "__main__":
    print(page(committed()["results"]))
