"""The part `directions`: two peers that send to each other through a router, and read slowly.

Each reads so many octets a second at most, and sends as fast as credit and windows let it. Octets on the way to a peer
delay the flows that let the peer send more. So one direction starves if a router lets many octets be on the way.

    python -m benchmarks.directions [--url amqp://127.0.0.1:5672] [--size 5000] [--speed 2] [--seconds 8]
"""

from __future__ import annotations

import argparse
import socket
import time
from contextlib import nullcontext, suppress
from functools import partial
from urllib.parse import urlsplit

from benchmarks import wire
from benchmarks.bench import Bench, progress
from benchmarks.tables import Figures, table
from benchmarks.targets import Target, router

SIZES = (5_000, 20_000, 100_000)
SPEED = 2.0  # MB/s that a peer reads at most
SECONDS = 8.0
WARM = 3.0  # seconds until buffers are as full as they get
CREDIT = 2_000
READ = 1 << 14  # octets that a peer reads at once
FRAME = 32 * 1024 - 64  # octets of content in a frame: the routers take 32 KiB at most
PENDING = 1 << 16  # octets that a peer gathers before the system takes them
HERE, THERE = 0, 1  # the handles of what a peer sends and of what it gets


class Peer:
    """A connection that sends to an address, and gets what is sent to another one."""

    def __init__(self, url: str, to: str, source: str, size: int, speed: float) -> None:
        place = urlsplit(url)
        self.stream = wire.Stream(socket.create_connection((place.hostname, place.port)))
        self.size = size
        self.speed = speed * 1e6
        self.came = self.frames_in = 0
        self._out = bytearray()
        self._limit = self._window = self._frames = self._sent = 0
        self._left = 0
        self._octets, self._began = 0, time.monotonic()
        self._out += wire.opening(to)
        self._out += wire.attach("to", to, receiver=False, settled=True, handle=HERE)
        self._out += wire.attach("from", source, receiver=True, settled=False, handle=THERE)
        self._flow()

    def step(self) -> float:
        """Read if it is time to, and send as much as can be sent. Returns: seconds until the next read."""
        due = self._began + self._octets / self.speed - time.monotonic()
        if due <= 0:
            self._began = max(self._began, self._began - due - 0.1)  # the past is not caught up with
            self._read()
        self._write()
        return max(0.0, due)

    def _read(self) -> None:
        try:
            for code, buffer, start, end in self.stream.read(READ, patience=0.0):
                self._octets += end - start
                if code == wire.BEGIN:
                    self._window = wire.fields(buffer, start)[2]
                elif code == wire.FLOW:
                    found = wire.fields(buffer, start)
                    self._window = (found[0] or 0) + found[1]
                    if len(found) > 6 and found[4] == HERE:
                        self._limit = (found[5] or 0) + found[6]
                elif code == wire.TRANSFER:
                    self.frames_in += 1
                    found = wire.fields(buffer, start)
                    if len(found) < 6 or not found[5]:
                        self.came += 1
                        if self.came % (CREDIT // 4) == 0:
                            self._flow()
        except TimeoutError:
            pass

    def _flow(self) -> None:
        self._out += wire.flow(self.frames_in, self._frames, self.came, CREDIT, THERE)

    def _write(self) -> None:
        while len(self._out) < PENDING and self._frames < self._window and (self._left or self._sent < self._limit):
            self._frame()
        if self._out:
            with suppress(BlockingIOError):
                del self._out[: self.stream.socket.send(self._out, socket.MSG_DONTWAIT)]

    def _frame(self) -> None:
        first = not self._left
        part = min(self._left or self.size, FRAME)
        self._left = (self._left or self.size) - part
        number = [wire.uint(self._sent), b"\xa0\x04" + self._sent.to_bytes(4), b"\x43", wire.TRUE]
        more = wire.TRUE if self._left else wire.FALSE
        head = b"\x00\x53\x75\xb0" + self.size.to_bytes(4) if first else b""
        fields = number if first else [wire.NULL] * 4
        self._out += wire.frame(wire.described(wire.TRANSFER, b"\x43", *fields, more) + head + bytes(part))
        self._frames += 1
        if not self._left:
            self._sent += 1


def exchange(target: Target, size: int, speed: float, seconds: float) -> Figures:
    """Return the messages a second of the slower direction and of the faster one."""
    url = target.send_url
    names = [f"directions-{time.monotonic_ns()}-{each}" for each in "xy"]
    peers = [Peer(url, to, source, size, speed) for to, source in (names, names[::-1])]
    counts: list[list[int]] = []
    for until in (WARM, seconds):
        end = time.monotonic() + until
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.005, *(each.step() for each in peers)))
        counts.append([each.came for each in peers])
    for each in peers:
        each.stream.socket.close()
    slow, fast = sorted((now - then) / seconds for then, now in zip(*counts, strict=True))
    return {"slower_per_second": slow, "faster_per_second": fast, "times": fast / max(slow, 1 / seconds)}


def directions(bench: Bench) -> None:
    """Measure what two peers get that send to each other and read slowly."""
    rows = []
    for size in SIZES if bench.extent else SIZES[:1]:
        with router() as started:
            target = started if bench.router is None else bench.router
            progress(f"directions: {size:,} octets")
            once = partial(exchange, size=size, speed=SPEED, seconds=SECONDS * bench.seconds)
            found = bench.take_turns([target], once)
        kept = bench.keep("directions", f"{size:,} octets", found)[target.name]
        speeds = [f"{kept[f'{name}_per_second']:,.0f}/s" for name in ("slower", "faster")]
        rows.append((f"{size:,} octets", [*speeds, f"{kept['times']:.1f}"]))
    table(f"two peers that send to each other, and read {SPEED:g} MB/s", ["slower", "faster", "times"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a router; by default one is started")
    parser.add_argument("--size", type=int, default=SIZES[0], help="octets of a message")
    parser.add_argument("--speed", type=float, default=SPEED, help="MB/s that a peer reads")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    with nullcontext(Target("router", options.url)) if options.url else router() as target:
        print(exchange(target, options.size, options.speed, options.seconds))


if __name__ == "__main__":
    main()
