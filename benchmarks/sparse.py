"""Sparse traffic on many connections: one message of 100 octets outstanding on each of some pairs, unsettled.

    python -m benchmarks.sparse [--pairs 20] [--count 50000] [--json]
    python -m benchmarks.sparse --url amqp://127.0.0.1:5672 --pid 4711      # any AMQP 1.0 router without SASL

Here the wake-ups cost, not the messages. The byte forwarder is measured in the same run: compare CPU with its, and
within a run only.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import struct
import time
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

from benchmarks import wire
from benchmarks.processes import cpu_seconds, router, server
from benchmarks.wire import ID_AT, TAG_AT

SIZE = 100
CREDIT = 1000
WARM_UP = 5  # the first of so many parts of the messages is not counted


class End:
    """One end of a pair: a socket, and what came by it, cut into frames."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connected
        self._rest = b""
        self._greeted = False

    def frames(self) -> list[tuple[int, bytes, int]]:
        """(performative code, buffer, begin of the frame) of each that one read has completed."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the peer ended the stream")
        buffer = self._rest + data
        at = 0
        if not self._greeted:
            if len(buffer) < len(wire.HEADER):
                self._rest = buffer
                return []
            at, self._greeted = len(wire.HEADER), True
        found = []
        while len(buffer) - at >= 8:
            size = int.from_bytes(buffer[at : at + 4])
            if len(buffer) - at < size:
                break
            if size > 8:
                found.append((buffer[at + 10], buffer, at))
            at += size
        self._rest = buffer[at:]
        return found


class Pair:
    """A sender that sends its next message once it has heard what became of the one before, and its receiver."""

    def __init__(self, name: str, sender: End, receiver: End, *, through_router: bool) -> None:
        self.sender, self.receiver = sender, receiver
        self.limit = self.sent = self.outstanding = 0
        self.received = self.granted = 0
        self.next_id: int | None = None
        self.began_at = 0
        self.times: list[int] = []
        self.message = wire.message(SIZE)
        attaches = [wire.attach(name, name, receiver=is_receiver, settled=False) for is_receiver in (True, False)]
        self.receiver.socket.sendall(wire.opening(f"{name}-receiver") + attaches[0])
        self.sender.socket.sendall(wire.opening(f"{name}-sender") + attaches[1])
        if not through_router:
            self._grant()

    def read_sender(self) -> None:
        for code, buffer, at in self.sender.frames():
            if code == wire.FLOW:
                flow = wire.fields(buffer, at)
                if len(flow) > 6 and flow[4] is not None:
                    self.limit = (flow[5] or 0) + flow[6]
            elif code == wire.DISPOSITION:
                self.times.append(time.monotonic_ns() - self.began_at)
                self.outstanding = 0
        self.send()

    def send(self) -> None:
        """The next message, if there is none and credit for one."""
        if self.outstanding or self.sent >= self.limit:
            return
        self.message[ID_AT : ID_AT + 4] = self.message[TAG_AT : TAG_AT + 4] = struct.pack(">I", self.sent)
        self.outstanding = 1
        self.sent += 1
        self.began_at = time.monotonic_ns()
        self.sender.socket.sendall(self.message)

    def read_receiver(self) -> None:
        for code, buffer, at in self.receiver.frames():
            if code == wire.ATTACH:
                self._grant()
            elif code == wire.TRANSFER:
                if self.next_id is None:
                    self.next_id = wire.fields(buffer, at)[1]
                    assert self.next_id is not None
                self.receiver.socket.sendall(wire.accept(self.next_id, self.next_id))
                self.next_id += 1
                self.received += 1
                if self.granted - self.received <= CREDIT // 2:
                    self._grant()

    def _grant(self) -> None:
        self.granted = self.received + CREDIT
        self.receiver.socket.sendall(wire.flow(self.received, 0, self.received, CREDIT))


def connected(url: str) -> End:
    at = urlsplit(url)
    return End(socket.create_connection((at.hostname, at.port)))


def run(pairs: list[Pair], pid: int, count: int) -> dict[str, float]:
    """Microseconds of a message: of the CPU of the process between, and from its sending until its outcome is back."""
    poll = select.epoll()
    readers = {}
    for pair in pairs:
        for end, read in ((pair.sender, pair.read_sender), (pair.receiver, pair.read_receiver)):
            poll.register(end.socket.fileno(), select.EPOLLIN)
            readers[end.socket.fileno()] = read
    first = count // WARM_UP
    busy = began = 0.0
    counted_from = 0
    while (done := sum(pair.received for pair in pairs)) < first + count:
        if not began and done >= first:
            busy, began, counted_from = cpu_seconds(pid), time.monotonic(), done
            for pair in pairs:
                pair.times.clear()
        ready = poll.poll(wire.PATIENCE)
        if not ready:
            raise TimeoutError(f"nothing came for {wire.PATIENCE:g} s")
        for descriptor, _ in ready:
            readers[descriptor]()
    busy, took = cpu_seconds(pid) - busy, time.monotonic() - began
    messages = done - counted_from
    times = sorted(each for pair in pairs for each in pair.times)
    return {
        "cpu_us_per_message": busy / messages * 1e6,
        "messages_per_second": messages / took,
        "p50_us": times[len(times) // 2] / 1000,
        "p99_us": times[len(times) * 99 // 100] / 1000,
    }


def through_router(url: str, pid: int, pairs: int, count: int) -> dict[str, float]:
    made = [
        Pair(f"sparse-{time.monotonic_ns()}-{number}", connected(url), connected(url), through_router=True)
        for number in range(pairs)
    ]
    try:
        return run(made, pid, count)
    finally:
        close(made)


def through_forwarder(pairs: int, count: int) -> dict[str, float]:
    """The same clients with nothing but bytes copied between them; the sender's peer is its receiver."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        to = f"127.0.0.1:{listener.getsockname()[1]}"
        with server("benchmarks.forwarder", "--to", to, stream="stdout") as (url, pid):
            made = []
            for number in range(pairs):
                sender = connected(url)
                made.append(Pair(f"sparse-{number}", sender, End(listener.accept()[0]), through_router=False))
            try:
                return run(made, pid, count)
            finally:
                close(made)


def close(pairs: list[Pair]) -> None:
    ends = [end.socket for pair in pairs for end in (pair.sender, pair.receiver)]
    for each in ends:
        each.sendall(wire.close())
        each.shutdown(socket.SHUT_WR)
    for each in ends:
        each.settimeout(wire.PATIENCE)
        while each.recv(1 << 16):
            pass
        each.close()


def measure(url: str | None, pid: int | None, pairs: int, count: int) -> dict[str, dict[str, float]]:
    """Args: url, pid: of a router that runs already; None: one is started."""
    found = {}
    with ExitStack() as stack:
        if url is None:
            url, pid = stack.enter_context(router())
        if pid is None:
            raise SystemExit("--url needs --pid, for CPU")
        found["router"] = through_router(url, pid, pairs, count)
        found["forwarder"] = through_forwarder(pairs, count)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--count", type=int, default=50_000, help="messages, of all pairs together")
    parser.add_argument("--url", help="of a router that runs already; without it, one is started")
    parser.add_argument("--pid", type=int, help="of that router")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = measure(options.url, options.pid, options.pairs, options.count)
    if options.json:
        print(json.dumps({"pairs": options.pairs, **found}))
        return
    print(f"{options.pairs} pairs, one message outstanding each")
    for name, figures in found.items():
        print(
            f"{name:10} CPU {figures['cpu_us_per_message']:6.1f} us per message, {figures['messages_per_second']:8,.0f}"
            f"/s, p50 / p99 {figures['p50_us']:,.0f} / {figures['p99_us']:,.0f} us"
        )


if __name__ == "__main__":
    main()
