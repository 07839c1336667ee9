"""Numbered messages at a steady rate, and the account of them: who got which, when, and what their sender was told.

    python -m benchmarks.steady receive --url amqp://127.0.0.1:5672 --address q
    python -m benchmarks.steady send --url amqp://127.0.0.1:5673 --address q --rate 1000 --seconds 5

The receiver says when it is attached, and ends when its standard input does. Each prints one JSON line at the end. What
was not accepted is not sent again.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import struct
import sys
import time
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

from benchmarks import wire
from benchmarks.wire import ID_AT, SECTIONS, STAMP, TAG_AT

SIZE = 100
CREDIT = 500
PAUSE = 0.005  # seconds between two arrivals that are told of
OUTCOMES = {0x24: "a", 0x25: "x", 0x26: "r", 0x27: "m"}
PATIENCE = 30.0  # seconds for outcomes to come, once all is sent


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def connected(url: str) -> wire.Stream:
    """Connect to a URL. The peer may start to listen some seconds later."""
    place = urlsplit(url)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return wire.Stream(socket.create_connection((place.hostname, place.port)))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.002)


class Sender:
    """Sends as long as there is credit at its rate; `outcomes` has a letter for each message: `-` is none."""

    def __init__(self, url: str, address: str) -> None:
        self.stream = connected(url)
        self.credit_limit = self.window_limit = 0
        self.outcomes = bytearray()
        self.settled = 0
        self.stream.socket.sendall(
            wire.opening(f"steady-sender-{os.getpid()}-{address}")
            + wire.attach("steady", address, receiver=False, settled=False)
        )
        self.frame = wire.message(SIZE)

    def take(self, patience: float) -> None:
        """Read once, if anything comes in time."""
        if not select.select([self.stream.socket], [], [], max(0.0, patience))[0]:
            self.stream.beat()
            return
        for code, buffer, start, end in self.stream.read():
            if code in (wire.DETACH, wire.END, wire.CLOSE):
                raise ConnectionError(f"the router said {buffer[start:end]!r}")
            if code == wire.DISPOSITION:
                found = wire.fields(buffer, start) + [None] * 5
                last = found[1] if found[2] is None else found[2]
                state = found[4]
                for number in range(found[1], last + 1):
                    if state is not None:
                        self.outcomes[number] = ord(OUTCOMES[state[0]])
                    self.settled += bool(found[3])
            elif code == wire.BEGIN:
                self.window_limit = wire.fields(buffer, start)[2]
            elif code == wire.FLOW:
                flow = wire.fields(buffer, start)
                self.window_limit = (flow[0] or 0) + flow[1]
                if len(flow) > 6 and flow[4] is not None:
                    self.credit_limit = (flow[5] or 0) + flow[6]

    @property
    def credit(self) -> int:
        """Messages that may be sent now; each is one frame."""
        return min(self.credit_limit, self.window_limit) - len(self.outcomes)

    def send(self) -> None:
        """One message."""
        number = len(self.outcomes)
        struct.pack_into(">I", self.frame, ID_AT, number)
        struct.pack_into(">I", self.frame, TAG_AT, number)
        STAMP.pack_into(self.frame, len(self.frame) - SIZE, time.monotonic_ns(), number)
        self.stream.socket.sendall(self.frame)
        self.outcomes += b"-"

    def run(self, rate: float, seconds: float) -> dict[str, Any]:
        while self.credit <= 0:
            self.take(1.0)
        begin = time.monotonic()
        turn = 0
        while (now := time.monotonic()) < begin + seconds:
            due = int((now - begin) * rate) + 1
            while turn < due:
                turn += 1
                if self.credit > 0:
                    self.send()
            self.take(begin + turn / rate - time.monotonic())
        deadline = time.monotonic() + PATIENCE
        while self.settled < len(self.outcomes) and time.monotonic() < deadline:
            self.take(0.2)
        return {"role": "sender", "sent": len(self.outcomes), "outcomes": self.outcomes.decode()}


class Receiver:
    """Accepts what comes, and notes what came and when nothing did."""

    def __init__(self, url: str, address: str, credit: int = CREDIT) -> None:
        self.stream = connected(url)
        self.credit = credit
        self.count = 0
        self.received: Counter[int] = Counter()
        self.ages: list[int] = []
        self.last_at: float | None = None
        self.pauses: list[tuple[float, float]] = []
        self.is_attached = False
        self.attached_at = time.monotonic()
        self.stream.socket.sendall(
            wire.opening(f"steady-receiver-{os.getpid()}-{address}")
            + wire.attach("steady", address, receiver=True, settled=False)
            + wire.flow(0, 0, 0, credit)
        )
        self._granted = credit

    def take(self) -> None:
        """Read once, and accept."""
        ids: list[int] = []
        for code, buffer, start, end in self.stream.read():
            if code == wire.ATTACH:
                self.is_attached = True
            elif code == wire.TRANSFER:
                ids.append(wire.fields(buffer, start)[1])
                sent_at, index = STAMP.unpack_from(wire.payload(buffer, start, end), len(SECTIONS) + 4)
                self.ages.append(time.monotonic_ns() - sent_at)
                self.received[index] += 1
        if not ids:
            return
        now = time.monotonic()
        if self.last_at is not None and now - self.last_at > PAUSE:
            self.pauses.append((self.last_at, now))
        self.last_at = now
        self.count += len(ids)
        # They may come by several links of the router's, but to one of ours, and so one after the other.
        out = wire.accept(ids[0], ids[-1])
        if self._granted - self.count <= self.credit // 2:
            self._granted = self.count + self.credit
            out += wire.flow(self.count, 0, self.count, self.credit)
        self.stream.socket.sendall(out)

    def run(self) -> dict[str, Any]:
        told = False
        while True:
            ready, _, _ = select.select([self.stream.socket, sys.stdin], [], [], 1.0)
            if self.stream.socket in ready:
                self.take()
            self.stream.beat()
            if self.is_attached and not told:
                told = True
                say(ready=True)
            if sys.stdin in ready and not sys.stdin.readline():
                break
        ages = sorted(self.ages)
        return {
            "role": "receiver",
            "count": self.count,
            "numbers": sorted(self.received),
            "twice": sum(1 for times in self.received.values() if times > 1),
            "pauses": self.pauses,
            "last_at": self.last_at,
            "latency_us": {f"p{part}": ages[int(len(ages) * part / 100)] / 1000 for part in (50, 99)} if ages else {},
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=["send", "receive"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--address", default="steady")
    parser.add_argument("--rate", type=float, default=1_000.0, help="messages a second")
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    try:
        if options.role == "send":
            say(**Sender(options.url, options.address).run(options.rate, options.seconds))
        else:
            say(**Receiver(options.url, options.address).run())
    except OSError as error:
        say(failed=f"{options.role}: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
