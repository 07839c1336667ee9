"""Ten thousand lanes between two routers: what they take, and how soon they are back when the connection is cut.

    python -m benchmarks.lanes [--lanes 10000] [--quick] [--output build/lanes.json] [memory] [cut] [dynamic] [churn]

Two routers, A and B, are a process each, and so are the clients of a stream; all other clients are in this process.
Producers are at A, consumers at B, one of either for each address, so that each address has a lane.

memory: what a router holds for an idle lane that is attached, its address included: all that it has with a client's
    link on each of so many addresses, less what it has with as many links on one address, over the number of lanes.
cut: from the moment in which the connection is cut until every producer has credit again.
dynamic: requesters at A, each with a dynamic node to be answered at; their service is at B.
churn: a stream from A to B, while receivers come and go at B, beside the same stream without them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import wire
from benchmarks.processes import ROOT, RUN_TIME, Failed, cpu_seconds, load
from benchmarks.run import KIB, table

SAMPLE = 2_000  # lanes whose live objects are traced: that costs more than half of the speed
CUTS = 3
LATEST = 30.0  # seconds for anything to come about
TRANSFER_HEAD = b"\x00\x53\x14\xc0"


class Host:
    """A router of `benchmarks.lane_host`."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "benchmarks.lane_host", *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
        )
        self._guard = threading.Timer(RUN_TIME, self._process.kill)
        self._guard.daemon = True
        self._guard.start()
        self.clients, self.neighbours = self._answer()["urls"]
        self.pid = self._process.pid

    def ask(self, what: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(what, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Failed("a router has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        self._guard.cancel()
        self._process.kill()
        self._process.wait()


@contextmanager
def routers(*, trace: bool = False) -> Iterator[tuple[Host, Host]]:
    """A and B, which know each other."""
    with ExitStack() as stack:
        tracing = ["--trace"] if trace else []
        b = Host("--id", "B", *tracing)
        stack.callback(b.end)
        a = Host("--id", "A", "--neighbour", b.neighbours, *tracing)
        stack.callback(a.end)
        yield a, b


class Client:
    """A connection with links by the thousand, in one session. It answers what a peer must be answered."""

    def __init__(self, url: str, name: str) -> None:
        place = urlsplit(url)
        self.stream = wire.Stream(socket.create_connection((place.hostname, place.port)))
        self.stream.socket.sendall(wire.opening(name))
        self.attached: dict[int, bytes] = {}
        self.credit: dict[int, int] = {}
        #: Links without credit, and until when there were some.
        self.starving: set[int] = set()
        self.fed_at = 0.0
        self.frames_in = self.frames_out = 0
        self.counts: dict[int, int] = {}
        self.on_transfer: Callable[[bytes, int, int], None] = lambda *_: None

    def send(self, data: bytes) -> None:
        self.stream.socket.sendall(data)

    def attach(self, handles: range, address: Callable[[int], str], *, receiver: bool, credit: int = 10) -> None:
        """Attach links, a few hundred on their way at a time, and wait for the answers."""
        for start in range(handles.start, handles.stop, 500):
            batch = range(start, min(start + 500, handles.stop))
            frames = [wire.attach(f"l{each}", address(each), receiver=receiver, settled=False, handle=each) for each in batch]
            if receiver:
                frames += [wire.flow(self.frames_in, self.frames_out, 0, credit, each) for each in batch]
            self.send(b"".join(frames))
            self.until(lambda batch=batch: batch[-1] in self.attached)
        if not receiver:
            self.starving.update(each for each in handles if not self.credit.get(each))

    def until(self, condition: Callable[[], bool], *others: Client) -> None:
        """Take what comes, here and on other connections, until a condition holds."""
        deadline = time.monotonic() + LATEST
        clients = {each.stream.socket: each for each in (self, *others)}
        while not condition():
            if time.monotonic() > deadline:
                raise Failed(f"not within {LATEST} s")
            for ready in select.select(list(clients), [], [], 0.5)[0]:
                clients[ready].take()
            for each in clients.values():
                each.stream.beat()

    def take(self) -> None:
        """Read once."""
        answers = []
        for code, buffer, start, end in self.stream.read():
            if code == wire.FLOW:
                flow = wire.fields(buffer, start)
                if len(flow) > 6 and flow[4] is not None:
                    answers.append(self._granted(flow))
            elif code == wire.TRANSFER:
                self.frames_in += 1
                self.on_transfer(buffer, start, end)
            elif code == wire.ATTACH:
                self.attached[wire.fields(buffer, start)[1]] = buffer[start:end]
        if answers:
            self.send(b"".join(answers))

    def _granted(self, flow: list[Any]) -> bytes:
        handle, count = flow[4], self.counts.get(flow[4], 0)
        credit = self.credit[handle] = max(0, (flow[5] or 0) + flow[6] - count)
        if not credit:
            self.starving.add(handle)
        elif handle in self.starving:
            self.starving.discard(handle)
            if not self.starving:
                self.fed_at = time.monotonic()
        echo = len(flow) > 9 and flow[9]
        return wire.flow(self.frames_in, self.frames_out, count, credit, handle) if echo else b""

    def close(self) -> None:
        self.stream.socket.close()


@contextmanager
def lanes(a: Host, b: Host, count: int, address: Callable[[int], str]) -> Iterator[tuple[Client, Client]]:
    """Consumers at B and producers at A; all producers have credit."""
    consumers, producers = Client(b.clients, "consumers"), Client(a.clients, "producers")
    consumers.attach(range(count), address, receiver=True)
    producers.attach(range(count), address, receiver=False)
    producers.until(lambda: not producers.starving, consumers)
    yield producers, consumers
    producers.close()
    consumers.close()


def memory(count: int, *, trace: bool) -> dict[str, dict[str, float]]:
    """Octets of a lane and its address, and of a client's link, by router."""
    kind = "traced" if trace else "resident"
    taken: list[dict[str, int]] = []
    for address in (lambda _: "one", lambda each: f"address-{each}"):
        with routers(trace=trace) as (a, b):
            before = a.ask("memory")[kind], b.ask("memory")[kind]
            with lanes(a, b, count, address) as (producers, consumers):
                quiet(producers, consumers)
                after = a.ask("memory")[kind], b.ask("memory")[kind]
                expected = 1 if not taken else count
                seen = a.ask("state")
                if seen["lanes"] != expected or seen["idle_lanes"]:
                    raise Failed(f"{seen}, where {expected} lanes should be")
            taken.append(dict(zip("AB", (after[0] - before[0], after[1] - before[1]), strict=True)))
    links, both = taken
    return {
        router: {"lane": (both[router] - links[router]) / (count - 1), "link": links[router] / count} for router in "AB"
    }


def quiet(*clients: Client, seconds: float = 2.0) -> None:
    """Let what timers do be done."""
    end = time.monotonic() + seconds
    clients[0].until(lambda: time.monotonic() > end, *clients[1:])


def cuts(count: int) -> list[dict[str, float]]:
    """Seconds from the cut until every producer has credit again, and of CPU that the routers took for it."""
    found = []
    with routers() as (a, b), lanes(a, b, count, lambda each: f"address-{each}") as (producers, consumers):
        for _ in range(CUTS):
            quiet(producers, consumers)
            before = [cpu_seconds(each.pid) for each in (a, b)]
            cut_at = a.ask("cut")["at"]
            producers.until(lambda: len(producers.starving) == count, consumers)
            producers.until(lambda: not producers.starving, consumers)
            busy = [cpu_seconds(each.pid) - was for each, was in zip((a, b), before, strict=True)]
            found.append({"seconds": producers.fed_at - cut_at, "cpu_a": busy[0], "cpu_b": busy[1]})
            seen = a.ask("state")
            if seen["lanes"] != count:
                raise Failed(f"{seen}, where {count} lanes should be")
    return found


def show_memory(count: int) -> dict[str, Any]:
    sample = min(count, SAMPLE)
    traced, resident = memory(sample, trace=True), memory(count, trace=False)
    rows = [
        (f"{what} at {router}", [f"{each[router][key] / KIB:,.2f}" for each in (traced, resident)])
        for key, what in (("lane", "a lane and its address"), ("link", "a client's link"))
        for router in "AB"
    ]
    table("memory, KiB each", [f"objects ({sample:,})", f"resident ({count:,})"], rows)
    return {"traced": traced, "resident": resident}


def show_cuts(count: int) -> dict[str, Any]:
    found = cuts(count)
    rows = [
        (f"{count:,} lanes are back", [f"{each[key]:.2f} s" for key in ("seconds", "cpu_a", "cpu_b")]) for each in found
    ]
    table("after a cut", ["time", "CPU of A", "CPU of B"], rows)
    return {"cuts": found}


MEASUREMENTS: dict[str, Callable[[int], dict[str, Any]]] = {"memory": show_memory, "cut": show_cuts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[[], *MEASUREMENTS], help="all, if none is named")
    parser.add_argument("--lanes", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="a fifth of the lanes")
    parser.add_argument("--output", type=Path, default=Path("build/lanes.json"))
    options = parser.parse_args()
    count = options.lanes // (5 if options.quick else 1)
    results: dict[str, Any] = {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    }
    for name in options.what or MEASUREMENTS:
        results[name] = MEASUREMENTS[name](count)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
