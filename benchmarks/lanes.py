"""Ten thousand lanes between two routers: what they take, and how soon they are back when the connection is cut.

    python -m benchmarks.lanes [--lanes 10000] [--quick] [--output build/lanes.json] [memory] [cut] [dynamic] [churn]

Two routers, A and B, are a process each, and so are the clients of a stream; all other clients are in this process.
Producers are at A, consumers at B, one of either for each address, so that each address has a lane.

memory: what a router holds for an idle lane that is attached, its address included: all that it has with a client's
    link on each of so many addresses, less what it has with as many links on one address, over the number of lanes.
cut: from the moment in which the connection is cut until every lane and every producer has credit again.
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
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from benchmarks import wire
from benchmarks.generator import generate
from benchmarks.processes import ROOT, RUN_TIME, Failed, cpu_seconds
from benchmarks.tables import KIB, table

SAMPLE = 2_000  # lanes whose live objects are traced: that costs more than half of the speed
CUTS = 3
LATEST = 30.0  # seconds for anything to come about
ROUNDS = 3
BUSY = 50  # requests that are not answered yet: of answers that are sent settled no more may wait for a way than 64
RATE = 1_000  # messages a second of the stream whose latency is looked at
STREAM_TIME = 5.0  # seconds
STREAM_COUNT = 40_000  # messages of the stream whose throughput is looked at
CHURN = 100  # receivers a second that come, and as many that go
STAY = 50  # of them there at a time


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
def routers(*arguments: str, trace: bool = False) -> Iterator[tuple[Host, Host]]:
    """Start the routers A and B, which are neighbours. Args: arguments: further ones of both."""
    with ExitStack() as stack:
        both = [*arguments, *(["--trace"] if trace else [])]
        b = Host("--id", "B", *both)
        stack.callback(b.end)
        a = Host("--id", "A", "--neighbour", b.neighbours, *both)
        stack.callback(a.end)
        yield a, b


class Client:
    """A connection with links by the thousand, in one session. It answers what a peer must be answered."""

    def __init__(self, url: str, name: str) -> None:
        place = urlsplit(url)
        connected = socket.create_connection((place.hostname, place.port))
        self.stream = wire.Stream(connected, (wire.END, wire.CLOSE))
        self.stream.socket.sendall(wire.opening(name))
        self.attached: dict[int, bytes] = {}
        self.credit: dict[int, int] = {}
        #: Links without credit, and until when there were some.
        self.starving: set[int] = set()
        self.fed_at = 0.0
        self.frames_in = self.frames_out = self.window_limit = 0
        self.counts: dict[int, int] = {}
        self.on_transfer: Callable[[bytes, int, int], None] = lambda *_: None

    def send(self, data: bytes) -> None:
        self.stream.socket.sendall(data)

    def attach(self, handles: range, address: Callable[[int], str | None], *, receiver: bool, credit: int = 10) -> None:
        """Attach links, a few hundred on their way at a time, and wait for the answers."""
        for start in range(handles.start, handles.stop, 500):
            batch = range(start, min(start + 500, handles.stop))
            frames = [
                wire.attach(f"l{each}", address(each), receiver=receiver, settled=not receiver, handle=each)
                for each in batch
            ]
            if receiver:
                frames += [wire.flow(self.frames_in, self.frames_out, 0, credit, each) for each in batch]
            self.send(b"".join(frames))
            self.until(partial(self._has_attached, batch[-1]))
        if not receiver:
            self.starving.update(each for each in handles if not self.credit.get(each))

    def _has_attached(self, handle: int) -> bool:
        return handle in self.attached

    def until(self, condition: Callable[[], bool], *others: Client, patience: float = LATEST) -> None:
        """Take what comes, here and on other connections, until a condition holds. Raises: Failed: it does not."""
        deadline = time.monotonic() + max(patience, LATEST)
        clients = {each.stream.socket: each for each in (self, *others)}
        while not condition():
            if time.monotonic() > deadline:
                raise Failed("it did not come about in time")
            for ready in select.select(list(clients), [], [], min(patience, 0.1))[0]:
                clients[ready].take()
            for each in clients.values():
                each.stream.beat()

    def take(self) -> None:
        """Read once."""
        answers = []
        for code, buffer, start, end in self.stream.read():
            if code == wire.BEGIN:
                self.window_limit = wire.fields(buffer, start)[2]
            elif code == wire.FLOW:
                flow = wire.fields(buffer, start)
                self.window_limit = (flow[0] or 0) + flow[1]
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
        if len(flow) > 8 and flow[8]:  # drain: there is nothing to send
            self.counts[handle], self.credit[handle] = count + credit, 0
            self.starving.add(handle)
        elif not (len(flow) > 9 and flow[9]):
            return b""
        return wire.flow(self.frames_in, self.frames_out, self.counts.get(handle, 0), self.credit[handle], handle)

    def transfer(self, handle: int, message: bytes) -> bool:
        """Send a message, settled; False: there is no credit, or no room in the session, for it now."""
        if not self.credit.get(handle) or self.window_limit <= self.frames_out:
            return False
        head = wire.described(
            wire.TRANSFER,
            wire.uint(handle),
            wire.uint(self.frames_out),
            b"\xa0\x04" + bytes(4),
            wire.uint(0),
            wire.TRUE,
        )
        self.send(wire.frame(head + message))
        self.credit[handle] -= 1
        self.counts[handle] = self.counts.get(handle, 0) + 1
        self.frames_out += 1
        return True

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
    """Return the figures of each of several cuts."""
    with routers() as (a, b), lanes(a, b, count, lambda each: f"address-{each}") as (producers, consumers):
        return [cut(a, b, producers, consumers, count) for _ in range(CUTS)]


def cut(a: Host, b: Host, producers: Client, consumers: Client, count: int) -> dict[str, float]:
    """Return the seconds from a cut until all lanes and producers have credit again, and the CPU of the routers."""
    quiet(producers, consumers)
    before = [cpu_seconds(each.pid) for each in (a, b)]
    producers.fed_at = 0.0
    cut_at = a.ask("cut")["at"]
    back: list[float] = []
    waiting = threading.Thread(target=lambda: back.append(a.ask(f"back {count}")["at"]))
    waiting.start()
    producers.until(lambda: not waiting.is_alive() and not producers.starving, consumers)
    busy = [cpu_seconds(each.pid) - was for each, was in zip((a, b), before, strict=True)]
    seen = a.ask("state")
    if seen["lanes"] != count:
        raise Failed(f"{seen}, where {count} lanes should be")
    return {"seconds": max(*back, producers.fed_at) - cut_at, "cpu_a": busy[0], "cpu_b": busy[1]}


def request(number: int, reply_to: str) -> bytes:
    """Encode a message with its number as the body, and a place for the answer."""
    properties = wire.described(0x73, wire.NULL, wire.NULL, wire.NULL, wire.NULL, wire.text(reply_to))
    return properties + b"\x00\x53\x75\xa0\x04" + struct.pack(">I", number)


def answer(number: bytes, to: bytes) -> bytes:
    """Encode the answer to a message, from the octets of its number and of its `reply-to`."""
    properties = wire.described(0x73, wire.NULL, wire.NULL, b"\xa1" + bytes([len(to)]) + to)
    return properties + b"\x00\x53\x75\xa0\x04" + number


def node_of(attach: bytes) -> str:
    """Return the address in the source of an attach: the first field of a list of less than 256 octets."""
    source: bytes = wire.fields(attach, 0)[5][1]
    return source[3 : 3 + source[2]].decode()


def reply_to_of(message: bytes) -> bytes:
    """Return the `reply-to` of a message that begins with its properties, after strings and nulls."""
    position = 5 if message[3] == 0xC0 else 12
    position = message.index(b"$dynamic", position)
    return message[position : position + message[position - 1]]


def dynamic(count: int, *, trace: bool = False) -> dict[str, float]:
    """Octets of a requester at its router, its link included; lanes; and seconds for all to be answered."""
    kind = "traced" if trace else "resident"
    with routers(trace=trace) as (a, b):
        service, requesters = Client(b.clients, "service"), Client(a.clients, "requesters")
        service.attach(range(1), lambda _: "service", receiver=True, credit=2**20)
        service.send(wire.attach("answers", None, receiver=False, settled=True, handle=1))
        sender = 0
        requesters.attach(range(1), lambda _: "service", receiver=False)
        requesters.until(lambda: bool(requesters.credit.get(sender)), service)
        before = a.ask("memory")[kind]
        requesters.attach(range(1, count + 1), lambda _: None, receiver=True)
        quiet(requesters, service)
        taken = a.ask("memory")[kind] - before
        nodes = {handle: node_of(attach) for handle, attach in requesters.attached.items() if handle}
        waiting: list[bytes] = []
        answered: set[int] = set()

        def serve(buffer: bytes, start: int, end: int) -> None:
            message = wire.payload(buffer, start, end)
            waiting.append(answer(buffer[end - 4 : end], reply_to_of(message)))

        def take(buffer: bytes, start: int, end: int) -> None:
            number = int.from_bytes(buffer[end - 4 : end])
            if wire.fields(buffer, start)[0] != number:
                raise Failed("an answer came to somebody else")
            answered.add(number)

        service.on_transfer, requesters.on_transfer = serve, take
        began = time.monotonic()
        asked = 0

        def all_answered() -> bool:
            nonlocal asked
            while asked < min(count, len(answered) + BUSY) and requesters.transfer(
                sender, request(asked + 1, nodes[asked + 1])
            ):
                asked += 1
            while waiting and service.transfer(1, waiting[0]):
                waiting.pop(0)
            return len(answered) == count

        requesters.until(all_answered, service)
        took = time.monotonic() - began
        seen = a.ask("state")
        if seen["links"] != count + 1 or seen["lanes"] > 2:
            raise Failed(f"{seen}, where requests should have a lane and answers another")
        return {"octets": taken / count, "seconds": took, "lanes": seen["lanes"]}


def passed(due: float) -> bool:
    return time.monotonic() >= due


class Churn:
    """Receivers that come and go at a steady rate, until the block is left."""

    def __init__(self, url: str, address: Callable[[int], str]) -> None:
        self._client = Client(url, "churn")
        self._address = address
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.came = 0

    def _run(self) -> None:
        client, began = self._client, time.monotonic()
        while not self._over.is_set():
            due = began + self.came / CHURN
            client.until(partial(passed, due), patience=0.002)
            handle = self.came % (2 * STAY)
            frames = wire.attach(f"c{self.came}", self._address(self.came), receiver=True, settled=False, handle=handle)
            frames += wire.flow(client.frames_in, 0, 0, 1, handle)
            if self.came >= STAY:
                frames += wire.detach((self.came - STAY) % (2 * STAY))
            client.send(frames)
            self.came += 1

    def __enter__(self) -> Churn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._client.close()


def stream(a: Host, b: Host, count: int, rate: float) -> dict[str, Any]:
    """Send a stream from A to B. Returns: the receiver's result."""
    common = ["--size", "100", "--count", str(count), "--address", f"stream-{time.monotonic_ns()}"]
    with (
        generate("receive", "--url", b.clients, *common) as receiver,
        generate("send", "--url", a.clients, *common, "--rate", str(rate)) as sender,
    ):
        for each in (receiver, sender):
            each.line()
        sender.result()
        return receiver.result()


def churn(rounds: int) -> dict[str, dict[str, float]]:
    """Latency and throughput of a stream while no receivers come and go, those of many addresses, of one."""
    found: dict[str, list[dict[str, float]]] = {}
    with routers() as (a, b):
        producers = Client(a.clients, "producers")
        producers.attach(range(CHURN), lambda each: f"churn-{each}", receiver=False)
        addresses: dict[str, Callable[[int], str] | None] = {
            "none": None, "many addresses": lambda each: f"churn-{each % CHURN}", "one address": lambda _: "churn-0"
        }  # fmt: skip
        keeping = threading.Event()
        keeper = threading.Thread(target=lambda: producers.until(keeping.is_set, patience=RUN_TIME))
        keeper.start()
        try:
            for _ in range(rounds):
                for name, address in addresses.items():
                    with ExitStack() as stack:
                        if address is not None:
                            stack.enter_context(Churn(b.clients, address))
                        ages = stream(a, b, int(RATE * STREAM_TIME), RATE)["latency_us"]
                        speed = stream(a, b, STREAM_COUNT, 0.0)["rate"]
                    found.setdefault(name, []).append({"p50": ages["p50"], "p99": ages["p99"], "rate": speed})
        finally:
            keeping.set()
            keeper.join()
    return {name: {key: median(each[key] for each in some) for key in some[0]} for name, some in found.items()}


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


def show_dynamic(count: int) -> dict[str, Any]:
    found = {"traced": dynamic(min(count, SAMPLE), trace=True), "resident": dynamic(count)}
    octets = [f"{found[kind]['octets'] / KIB:,.2f} KiB" for kind in ("traced", "resident")]
    whole = found["resident"]
    rows = [(f"{count:,} requesters", [*octets, f"{whole['lanes']:,}", f"{whole['seconds']:.1f} s"])]
    table("dynamic reply addresses", ["objects", "resident", "lanes", "all answered in"], rows)
    return found


def show_churn(_count: int) -> dict[str, Any]:
    found = churn(ROUNDS)
    still = found["none"]
    rows = [
        (name, [f"{each['p50']:,.0f} / {each['p99']:,.0f} us", f"{each['p99'] / still['p99']:.2f}",
                f"{each['rate']:,.0f}/s", f"{each['rate'] / still['rate']:.2f}"])
        for name, each in found.items()
    ]  # fmt: skip
    table(f"{CHURN} receivers a second come and go", ["p50 / p99", "ratio", "throughput", "ratio"], rows)
    return found


MEASUREMENTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "memory": show_memory,
    "cut": show_cuts,
    "dynamic": show_dynamic,
    "churn": show_churn,
}


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
