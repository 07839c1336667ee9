"""The load of python-qpid-proton: slower than `loadgen` by far, but a client that people have.

    python -m benchmarks.proton_load receive --url amqp://127.0.0.1:5672 --count 1000000
    python -m benchmarks.proton_load send    --url amqp://127.0.0.1:5672 --count 1000000

Messages of one size, unsettled; the receiver checks that each comes once, and in order. It drives proton's engine
itself: the reactor and its handlers take as long again as all the rest.
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

from proton import Collector, Connection, Delivery, Event, Message, Transport

NUMBER = struct.Struct(">Q")
PATIENCE = 60.0  # seconds without any byte, after which a client gives up


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


class Client:
    """One connection and one link; `done` once there is nothing left to do."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.done = False
        self.begun = 0.0
        self.connection = Connection()
        self.collector = Collector()
        self.connection.collect(self.collector)
        self.connection.container = f"{options.role}-{os.getpid()}"

    def open(self) -> Any:
        """Open the connection and its session."""
        self.connection.open()
        session = self.connection.session()
        session.open()
        return session

    def on_event(self, event: Event) -> None:
        raise NotImplementedError

    def run(self, sock: socket.socket, mode: int) -> None:
        """Until done.

        Raises: ConnectionError: the peer closed link, session or connection, or is silent.
        """
        transport = Transport(mode)
        transport.bind(self.connection)
        failures = {Event.LINK_REMOTE_CLOSE, Event.SESSION_REMOTE_CLOSE, Event.TRANSPORT_ERROR}
        if mode == Transport.CLIENT:
            failures.add(Event.CONNECTION_REMOTE_CLOSE)
        while True:
            while (event := self.collector.peek()) is not None:
                if event.type in failures and not self.done:
                    raise ConnectionError(f"{event.type}: {event.context}")
                self.on_event(event)
                self.collector.pop()
            if self.done:
                self.connection.close()
            while (pending := transport.pending()) > 0:
                transport.pop(sock.send(transport.peek(pending) or b""))
            if self.done:
                return
            if not select.select([sock], [], [], PATIENCE)[0]:
                raise ConnectionError(f"nothing came for {PATIENCE} s")
            data = sock.recv(min(transport.capacity(), 1 << 16))
            if not data:
                raise ConnectionError("the peer ended the stream")
            transport.push(data)


class Sender(Client):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        encoded = Message(bytes(options.size), inferred=True).encode()
        self.head = encoded[: len(encoded) - options.size]
        self.filling = bytes(options.size - NUMBER.size)
        self.sent = self.settled = 0
        self.outcomes: Counter[str] = Counter()
        self.link = self.open().sender("load")
        self.link.target.address = options.address
        self.link.open()

    def on_event(self, event: Event) -> None:
        if event.type == Event.DELIVERY:
            delivery = event.delivery
            assert delivery is not None
            if delivery.settled:
                state = delivery.remote_state
                self.outcomes["accepted" if state == Delivery.ACCEPTED else str(int(state))] += 1
                delivery.settle()
                self.settled += 1
                self.done = self.settled == self.options.count
        elif event.type == Event.LINK_FLOW:
            self.send()

    def send(self) -> None:
        self.begun = self.begun or time.monotonic()
        link = self.link
        for number in range(self.sent, min(self.sent + link.credit, self.options.count)):
            link.delivery(str(number))
            link.stream(self.head + NUMBER.pack(number) + self.filling)
            link.advance()
            self.sent += 1

    def result(self) -> dict[str, Any]:
        return {"role": "sender", "count": self.settled, "outcomes": dict(self.outcomes)}


class Receiver(Client):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.count = self.faults = 0
        if options.role == "receive":
            link = self.open().receiver("load")
            link.source.address = options.address
            link.open()
            link.flow(options.credit)

    def on_event(self, event: Event) -> None:
        if event.type == Event.DELIVERY:
            delivery = event.delivery
            assert delivery is not None
            if delivery.readable and not delivery.partial:
                self.take(delivery)
        elif event.type == Event.LINK_REMOTE_OPEN:
            say(ready=True)
        if self.options.role == "listen":
            self.answer(event)

    def answer(self, event: Event) -> None:
        """Open what a sender opens: without a router, it connects here."""
        if event.type == Event.CONNECTION_REMOTE_OPEN:
            self.connection.open()
        elif event.type == Event.SESSION_REMOTE_OPEN:
            assert event.session is not None
            event.session.open()
        elif event.type == Event.LINK_REMOTE_OPEN:
            assert event.link is not None
            event.link.open()
            event.link.flow(self.options.credit)

    def take(self, delivery: Delivery) -> None:
        self.begun = self.begun or time.monotonic()
        link = delivery.link
        encoded = link.recv(delivery.pending) or b""
        link.advance()
        if NUMBER.unpack_from(encoded, len(encoded) - self.options.size)[0] != self.count:
            self.faults += 1
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()
        self.count += 1
        self.done = self.count == self.options.count
        if link.credit <= self.options.credit // 2:
            link.flow(self.options.credit - link.credit)

    def result(self) -> dict[str, Any]:
        return {"role": "receiver", "count": self.count, "faults": self.faults}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=["send", "receive", "listen"])
    parser.add_argument("--url", help="listen has none, and says its own")
    parser.add_argument("--address", default="bench")
    parser.add_argument("--size", type=int, default=100, help="octets of content, at least 8")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--credit", type=int, default=500)
    options = parser.parse_args()
    client = Sender(options) if options.role == "send" else Receiver(options)
    try:
        if options.role == "listen":
            listener = socket.create_server(("127.0.0.1", 0))
            say(url=f"amqp://127.0.0.1:{listener.getsockname()[1]}")
            client.run(listener.accept()[0], Transport.SERVER)
        else:
            url = urlsplit(options.url)
            client.run(socket.create_connection((url.hostname, url.port)), Transport.CLIENT)
    except OSError as error:
        say(failed=str(error), **client.result())
        sys.exit(1)
    took = time.monotonic() - client.begun
    say(**client.result(), seconds=took, rate=options.count / took, cpu=sum(os.times()[:2]))


if __name__ == "__main__":
    main()
