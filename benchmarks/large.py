"""One large message after another, in fixed bytes: its sender, and a receiver that takes as much as comes.

python -m benchmarks.large receive --url amqp://127.0.0.1:5672 --address q --count 1
python -m benchmarks.large receive --listen 5674 --count 1        (a peer of its own: sender straight to receiver)
python -m benchmarks.large send --url amqp://127.0.0.1:5673 --address q --size 1073741824 --count 1
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import struct
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from benchmarks import wire

FRAME = 32 * 1024 - 64  # octets of content in a frame: the routers take 32 KiB at most
PACED = 8  # frames, 256 KiB: what is sent at once where there is a rate


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def transfer(number: int, *, first: bool, more: bool, content: bytes) -> bytes:
    flag = wire.TRUE if more else wire.FALSE
    begin = [wire.uint(number), b"\xa0\x04" + struct.pack(">I", number), b"\x43", wire.FALSE]
    fields = begin if first else [wire.NULL] * 4
    return wire.frame(wire.described(wire.TRANSFER, b"\x43", *fields, flag) + content)


class Client:
    """A connection and a link."""

    def __init__(self, options: argparse.Namespace) -> None:
        receiver = options.role == "receive"
        if options.listen:
            with socket.create_server(("127.0.0.1", options.listen)) as listener:
                say(ready=True)
                connected, _ = listener.accept()
        else:
            url = urlsplit(options.url)
            connected = socket.create_connection((url.hostname, url.port))
        self.stream = wire.Stream(connected)
        self.stream.socket.sendall(
            wire.opening(f"large-{os.getpid()}")
            + wire.attach("large", options.address, receiver=receiver, settled=False)
            + (wire.flow(0, 0, 0, options.count) if receiver else b"")
        )


def send(options: argparse.Namespace) -> dict[str, Any]:
    stream = Client(options).stream
    credit = window = frames = settled = 0
    begin = due = 0.0

    def stop(*_: object) -> None:
        say(octets=frames * FRAME, seconds=time.monotonic() - begin)
        sys.exit()

    signal.signal(signal.SIGTERM, stop)

    def take() -> None:
        nonlocal credit, window, settled
        for code, buffer, start, _ in stream.read():
            found = wire.fields(buffer, start)
            if code == wire.BEGIN:
                window = found[2]
            elif code == wire.FLOW:
                window = (found[0] or 0) + found[1]
                if len(found) > 6 and found[4] is not None:
                    credit = (found[5] or 0) + found[6]
            elif code == wire.DISPOSITION:
                assert found[4][0] == 0x24, found
                settled += 1

    def write(frame: bytes) -> None:
        nonlocal frames, due
        while frames >= window:
            take()
        stream.socket.sendall(frame)
        frames += 1
        if options.rate and not frames % PACED:
            # What it was late by is not caught up with: it never sends faster.
            now = time.monotonic()
            due = max(due + PACED * FRAME / (options.rate * 1e6), now)
            time.sleep(due - now)

    content = bytes(FRAME)
    middle = transfer(0, first=False, more=True, content=content)
    for number in range(options.count):
        while credit <= number:
            take()
        begin = begin or time.monotonic()
        head = b"\x00\x53\x75\xb0" + struct.pack(">I", options.size)
        left = options.size - FRAME
        write(transfer(number, first=True, more=True, content=head + content))
        while left > FRAME:
            write(middle)
            left -= FRAME
        write(transfer(number, first=False, more=False, content=content[:left]))
        while settled <= number:
            take()
    return {"begin": begin, "end": time.monotonic()}


def receive(options: argparse.Namespace) -> dict[str, Any]:
    stream = Client(options).stream
    count = octets = 0
    number = None
    while count < options.count:
        for code, buffer, start, end in stream.read():
            if code == wire.ATTACH and not options.listen:
                say(ready=True)
            elif code == wire.TRANSFER:
                found = wire.fields(buffer, start) + [None] * 6
                number = found[1] if found[1] is not None else number
                octets += end - start
                if not found[5]:
                    assert number is not None
                    stream.socket.sendall(wire.accept(number, number))
                    count += 1
    return {"octets": octets, "end": time.monotonic()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=["send", "receive"])
    parser.add_argument("--url", help="of the peer")
    parser.add_argument("--listen", type=int, default=0, help="a port, to receive from a sender that connects there")
    parser.add_argument("--address", default="large")
    parser.add_argument("--size", type=int, default=1 << 30, help="octets of content, more than a frame's")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0, help="MB a second that are sent at most; 0: as fast as can be")
    options = parser.parse_args()
    try:
        say(**(send(options) if options.role == "send" else receive(options)))
    except OSError as error:
        say(failed=f"{options.role}: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
