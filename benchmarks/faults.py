"""The times of a mesh: to route around a killed router, to serve a new address, and to reach a distant one.

    python -m benchmarks.faults [--quick] [--output build/faults.json]

Routers are processes on loopback, without certificates. Each kill and each start has a mesh of its own. A message that
is not accepted is counted, and not sent again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.meshes import Mesh, await_that, mesh
from benchmarks.processes import cpu_seconds, load
from benchmarks.steady import OUTCOMES, Receiver, Sender

RATE = 2_000  # messages a second while a router is killed
ROUNDS = {"kill": 12, "freeze": 3, "start": 12, "reach": 40}
QUICK = {"kill": 3, "freeze": 1, "start": 3, "reach": 10}
BEFORE, AFTER = 1.0, 2.0  # seconds of traffic before and after a fault
HOLD = 3.0  # seconds, as configured by default


@dataclass
class Account:
    """The fates of the messages around one fault."""

    pause: float
    outcomes: Counter[str]
    lost: int
    twice: int
    dishonest: int


def account(sent: dict[str, Any], received: dict[str, Any], at: float) -> Account:
    """Account for the messages. Args: sent, received: the results of the two clients. at: the time of the fault."""
    outcomes, came = sent["outcomes"], set(received["numbers"])
    told = {kind: [number for number, each in enumerate(outcomes) if each == kind] for kind in set(outcomes)}
    names = {"a": "accepted", "r": "released", "m": "modified", "x": "rejected", "-": "none"}
    return Account(
        pause=max((end - begin for begin, end in received["pauses"] if end > at), default=0.0),
        outcomes=Counter({names[kind]: len(numbers) for kind, numbers in told.items()}),
        lost=sum(number not in came for number in told.get("a", ())),
        twice=received["twice"],
        dishonest=sum(number in came for number in told.get("r", ())) + len(told.get("-", ())),
    )


def hit(strike: Callable[[Mesh], None], rate: float, after: float) -> Account:
    """Run a triangle with traffic from A to C over B, and a fault. Returns: the account of the messages."""
    with mesh() as routers:
        routers.triangle()
        routers.start()
        routers.settled()
        common = ["--address", "faults", "--rate", str(rate), "--seconds", str(BEFORE + after)]
        with load("benchmarks.steady", "receive", "--url", routers["C"].url, *common) as receiver:
            receiver.line()
            with load("benchmarks.steady", "send", "--url", routers["A"].url, *common) as sender:
                await_that(lambda: routers["B"].relayed() > 0, "nothing goes by B")
                time.sleep(BEFORE / 2)  # of steady traffic
                at = time.monotonic()
                strike(routers)
                sent = sender.result()
                received = receiver.finish()
    return account(sent, received, at)


def kill(routers: Mesh) -> None:
    routers["B"].kill()


def freeze(routers: Mesh) -> None:
    routers["B"].freeze()


def start() -> dict[str, float]:
    """Three routers in a line, started together: seconds until a message has crossed them and is accepted.

    And of CPU, which others on the machine do not add to as much.
    """
    with mesh() as routers:
        routers.line("ABC")
        for each in routers.routers.values():
            each.start()
        last = time.monotonic()
        receiver, sender = Receiver(routers["C"].url, "start"), Sender(routers["A"].url, "start")
        listening = time.monotonic()
        cross(sender, receiver)
        done = time.monotonic()
        spent = [cpu_seconds(each.pid) for each in routers.routers.values()]
        for each in routers.routers.values():
            each.wait()
    return {
        "from the last start": done - last,
        "from when all listen": done - listening,
        "CPU of a router": sum(spent) / len(spent),
    }


def cross(sender: Sender, receiver: Receiver) -> None:
    """One message, until its sender knows that it is accepted."""
    while sender.credit <= 0:
        sender.take(0.001)
        if not sender.credit_limit:
            continue
    number = len(sender.outcomes)
    sender.send()
    before = receiver.count
    while receiver.count == before:
        receiver.take()
    while chr(sender.outcomes[number]) not in OUTCOMES.values():
        sender.take(1.0)


def reach(routers: Mesh, ids: str, turn: int) -> float:
    """Seconds from the attach of a consumer at one end of a line until a message from the other end has come."""
    address = f"reach-{turn}"
    sender = Sender(routers[ids[0]].url, address)
    sender.take(0.2)
    receiver = Receiver(routers[ids[-1]].url, address)
    began = receiver.attached_at
    while sender.credit <= 0:
        sender.take(1.0)
    sender.send()
    while not receiver.count:
        receiver.take()
    took = time.monotonic() - began
    for each in (sender, receiver):
        with suppress(OSError):
            each.stream.end()
    return took


def summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "median": statistics.median(ordered),
        "p90": ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))],
        "worst": ordered[-1],
        "rounds": len(ordered),
    }


def row(name: str, found: dict[str, float], more: str = "") -> None:
    figures = " / ".join(f"{found[key] * 1000:,.0f}" for key in ("median", "p90", "worst"))
    print(f"{name:64} {figures:>22} ms  {found['rounds']:>3.0f} rounds  {more}", flush=True)


def accounts(found: list[Account]) -> str:
    total: Counter[str] = sum((each.outcomes for each in found), Counter())
    hits = ", ".join(
        f"{name} {min(each.outcomes[name] for each in found)}-{max(each.outcomes[name] for each in found)}"
        for name in ("released", "modified")
    )
    return (
        f"{hits} a round; of {total.total():,} lost {sum(each.lost for each in found)}, "
        f"twice {sum(each.twice for each in found)}, dishonest {sum(each.dishonest for each in found)}"
    )


def measure(quick: bool) -> dict[str, Any]:
    """All of it, printed as it comes."""
    rounds = QUICK if quick else ROUNDS
    results: dict[str, Any] = {}
    print(f"\n{'faults':64} {'median / p90 / worst':>25}", flush=True)

    def faults(key: str, name: str, strike: Callable[[Mesh], None], rate: float, after: float) -> None:
        found = [hit(strike, rate, after) for _ in range(rounds[key])]
        results[key] = {**summary([each.pause for each in found]), "account": accounts(found)}
        row(name, results[key], accounts(found))

    faults("kill", f"triangle, the router on the path killed, {RATE:,}/s: pause", kill, RATE, AFTER)
    faults("freeze", f"... stopped (hold time {HOLD:g} s): pause", freeze, RATE / 4, AFTER + HOLD)
    start()  # the first writes the bytecode of what has changed
    starts = [start() for _ in range(rounds["start"])]
    for name in starts[0]:
        results[name] = summary([each[name] for each in starts])
        row(f"three routers started together, accepted end to end: {name}", results[name])
    with mesh() as routers:
        ids = "ABCDEFGHIJ"
        routers.line(ids)
        routers.start()
        routers.settled(ids[0], ids[-1])
        results["reach"] = summary([reach(routers, ids, turn) for turn in range(rounds["reach"])])
    row("line of ten routers, from a consumer's attach to its first message", results["reach"])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--output", type=Path, default=Path("build/faults.json"))
    options = parser.parse_args()
    results = measure(options.quick)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
