"""Load clients: a sender and a receiver of messages of one size, each a process.

    python -m benchmarks.load receive --url amqp://127.0.0.1:5672 --size 100 --count 1000000
    python -m benchmarks.load send    --url amqp://127.0.0.1:5672 --size 100 --count 1000000

Each prints one JSON line when ready (`receive`) and one with its result. `receive --listen` is a peer of its own, for
measuring without a router; its URL is in the line that says it is ready.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import select
import socket
import struct
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from benchmarks import wire

STAMP = struct.Struct(">QQ")  # monotonic nanoseconds, index of the message
SECTIONS = b"\x00\x53\x70\x45\x00\x53\x75\xb0"  # an empty header, as proton writes it; data


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def message_frames(size: int, *, settled: bool, max_frame_size: int) -> list[bytearray]:
    """One message as frames; the first has its delivery-id and tag where `patch` puts them."""
    payload = SECTIONS + struct.pack(">I", size) + bytes(size)
    first = b"\x43\x70" + bytes(4) + b"\xa0\x04" + bytes(4) + b"\x43" + (wire.TRUE if settled else wire.FALSE)
    later = b"\x43\x40\x40\x40\x40"
    frames: list[bytearray] = []
    while payload or not frames:
        room = max_frame_size - 32
        part, payload = payload[:room], payload[room:]
        head = (later if frames else first) + (wire.TRUE if payload else b"")
        count = 5 + bool(payload)
        performative = b"\x00\x53\x14\xc0" + bytes([len(head) + 1, count]) + head
        frames.append(bytearray(wire.frame(performative + part)))
    return frames


ID_AT = 8 + 6 + 2  # frame header, performative's head, handle and the constructor of the id
TAG_AT = ID_AT + 4 + 2


class Sender:
    """Sends as credit and window allow, at full speed or at a rate; counts outcomes."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.sent = self.settled = 0
        self.outcomes: dict[str, int] = {}
        self.credit_limit = self.window_limit = 0
        self.frames_sent = 0
        url = urlsplit(options.url)
        self.stream = wire.Stream(socket.create_connection((url.hostname, url.port)))
        self.max_frame_size = 512
        self.attached = False

    def run(self) -> None:
        options = self.options
        stream = self.stream
        stream.socket.sendall(
            wire.opening(f"load-sender-{os.getpid()}")
            + wire.attach("load-sender", options.address, receiver=False, settled=options.settled)
        )
        while not (self.attached and self.credit_limit):
            self.take()
        frames = message_frames(options.size, settled=options.settled, max_frame_size=self.max_frame_size)
        begin, busy = time.monotonic(), cpu_seconds()
        if len(frames) > 1:
            self.send_large(frames)
        elif options.rate:
            self.send_at_rate(frames[0])
        else:
            self.send_batches(frames[0])
        while not options.settled and self.settled < options.count:
            self.take()
        took, busy = time.monotonic() - begin, cpu_seconds() - busy
        stream.end()
        say(role="sender", count=self.sent, outcomes=self.outcomes, seconds=took, cpu=busy)

    def take(self) -> None:
        """Read once; flows raise the limits, dispositions count."""
        for code, buffer, start, _ in self.stream.read():
            if code == wire.DISPOSITION:
                self.on_disposition(buffer, start)
            elif code == wire.FLOW:
                self.on_flow(wire.fields(buffer, start))
            elif code == wire.OPEN:
                self.max_frame_size = min(65536, (wire.fields(buffer, start) + [None] * 3)[2] or 2**32 - 1)
            elif code == wire.BEGIN:
                self.window_limit = wire.fields(buffer, start)[2]
            elif code == wire.ATTACH:
                self.attached = True

    def on_flow(self, flow: list[Any]) -> None:
        self.window_limit = (flow[0] or 0) + flow[1]
        if len(flow) > 6 and flow[4] is not None:
            self.credit_limit = (flow[5] or 0) + flow[6]

    def on_disposition(self, buffer: bytes, start: int) -> None:
        found = wire.fields(buffer, start)
        first = found[1]
        last = found[2] if len(found) > 2 and found[2] is not None else first
        outcome = hex(found[4][0]) if len(found) > 4 and found[4] else "none"
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + last - first + 1
        if len(found) > 3 and found[3]:
            self.settled += last - first + 1

    def room(self) -> int:
        """Messages of one frame that may be sent now."""
        left: int = self.options.count - self.sent
        return min(self.credit_limit - self.sent, self.window_limit - self.frames_sent, left)

    def has_input(self, timeout: float) -> bool:
        return bool(select.select([self.stream.socket], [], [], timeout)[0])

    def send_batches(self, frame: bytearray) -> None:
        length = len(frame)
        most = max(1, min(500, (1 << 17) // length))
        template = frame * most
        while self.sent < self.options.count:
            room = min(self.room(), most)
            if room <= 0:
                self.take()
                continue
            numbers = struct.pack(f">{room}I", *range(self.sent, self.sent + room))
            batch = template[: room * length]
            for octet in range(4):
                # One slice assignment writes an octet of every message: a template costs next to nothing to fill in.
                batch[ID_AT + octet :: length] = batch[TAG_AT + octet :: length] = numbers[octet::4]
            self.stream.socket.sendall(batch)
            self.sent += room
            self.frames_sent += room
            if self.has_input(0):
                self.take()

    def send_at_rate(self, frame: bytearray) -> None:
        rate, count = self.options.rate, self.options.count
        stamp_at = len(frame) - self.options.size
        begin = time.monotonic()
        while self.sent < count:
            due = min(count, int((time.monotonic() - begin) * rate) + 1)
            burst = bytearray()
            for index in range(self.sent, self.sent + min(due - self.sent, self.room())):
                struct.pack_into(">I", frame, ID_AT, index)
                struct.pack_into(">I", frame, TAG_AT, index)
                STAMP.pack_into(frame, stamp_at, time.monotonic_ns(), index)
                burst += frame
            if burst:
                self.stream.socket.sendall(burst)
                self.sent += len(burst) // len(frame)
                self.frames_sent = self.sent
            wait = 1.0 if self.room() <= 0 else begin + self.sent / rate - time.monotonic()
            if self.has_input(max(0.0, wait)):
                self.take()

    def send_large(self, frames: list[bytearray]) -> None:
        for index in range(self.options.count):
            while self.credit_limit <= index:
                self.take()
            struct.pack_into(">I", frames[0], ID_AT, index)
            struct.pack_into(">I", frames[0], TAG_AT, index)
            for frame in frames:
                while self.window_limit <= self.frames_sent:
                    self.take()
                self.stream.socket.sendall(frame)
                self.frames_sent += 1
            self.sent += 1
            while self.has_input(0):
                self.take()


class Receiver:
    """Takes messages as they come, accepts them by ranges, measures their rate and their age."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.count = self.frames = 0
        self.granted = 0
        self.first_id: int | None = None
        self.ages: list[int] = []
        self.whole = True  # whether each delivery comes in one frame
        self.stream: wire.Stream

    def run(self) -> None:
        options = self.options
        container = f"load-receiver-{os.getpid()}"
        opening = wire.opening(container)
        attach = wire.attach("load-receiver", options.address, receiver=True, settled=options.settled)
        if options.listen:
            listener = socket.create_server(("127.0.0.1", 0))
            say(ready=True, url=f"amqp://127.0.0.1:{listener.getsockname()[1]}")
            self.stream = wire.Stream(listener.accept()[0])
            self.stream.socket.sendall(opening)
        else:
            url = urlsplit(options.url)
            self.stream = wire.Stream(socket.create_connection((url.hostname, url.port)))
            self.stream.socket.sendall(opening + attach)
        self.loop(attach if options.listen else b"")

    def loop(self, answer: bytes) -> None:
        options = self.options
        first_at = 0.0
        busy = cpu_seconds()
        while self.count < options.count:
            before = self.count
            for code, buffer, start, end in self.stream.read():
                if code == wire.TRANSFER:
                    self.on_transfer(buffer, start, end)
                elif code == wire.ATTACH:
                    self.stream.socket.sendall(answer)
                    self.grant()
                    if not answer:
                        say(ready=True)
            now = time.monotonic()
            if self.count > before:
                if not before:
                    first_at, busy, self.begun = now, cpu_seconds(), self.count
                out = b""
                if not options.settled and self.first_id is not None:
                    out = wire.accept(self.first_id + before, self.first_id + self.count - 1)
                if self.granted - self.count <= options.credit // 2:
                    out += self.flow()
                if out:
                    self.stream.socket.sendall(out)
        took, busy = time.monotonic() - first_at, cpu_seconds() - busy
        self.stream.end()
        result: dict[str, Any] = {"role": "receiver", "count": self.count, "seconds": took, "cpu": busy}
        result["rate"] = (self.count - self.begun) / took if took else math.nan
        if self.ages:
            ages = sorted(self.ages)
            result["latency_us"] = {
                f"p{percent:g}": ages[min(len(ages) - 1, int(len(ages) * percent / 100))] / 1000
                for percent in (50, 90, 99, 99.9)
            }
        say(**result)

    def flow(self) -> bytes:
        self.granted = self.count + self.options.credit
        return wire.flow(self.frames, 0, self.count, self.options.credit)

    def grant(self) -> None:
        self.stream.socket.sendall(self.flow())

    def on_transfer(self, buffer: bytes, start: int, end: int) -> None:
        self.frames += 1
        options = self.options
        if self.first_id is None:
            found = wire.fields(buffer, start)
            self.first_id = found[1]
            self.whole = not (len(found) > 5 and found[5])
        if self.whole:
            self.count += 1
            if options.stamped:
                sent_at, index = STAMP.unpack_from(buffer, end - options.size)
                if index != self.count - 1:
                    raise ValueError(f"message {index} came in the place of {self.count - 1}")
                self.ages.append(time.monotonic_ns() - sent_at)
        else:
            found = wire.fields(buffer, start)
            self.count += not (len(found) > 5 and found[5])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=["send", "receive"])
    parser.add_argument("--url")
    parser.add_argument("--listen", action="store_true", help="receive: be the peer of a sender")
    parser.add_argument("--address", default="bench")
    parser.add_argument("--size", type=int, default=100, help="octets of content, at least 16 with --rate or --stamped")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--settled", action="store_true")
    parser.add_argument("--credit", type=int, default=500)
    parser.add_argument("--rate", type=float, default=0.0, help="send: messages a second; 0: as fast as it goes")
    parser.add_argument("--stamped", action="store_true", help="receive: messages carry their time, as with --rate")
    options = parser.parse_args()
    try:
        Sender(options).run() if options.role == "send" else Receiver(options).run()
    except OSError as error:
        say(failed=f"{options.role}: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
