"""Connect again and again, each time with one link, until SIGTERM; then report all that was accepted.

A sender attaches a random address of those given, and sends a few messages. A receiver stays at one address as long as
its connection lasts.
"""

from __future__ import annotations

import argparse
import random
import signal
import time
from contextlib import suppress
from typing import Any

from proton import ConnectionException, Message, ProtonException, Timeout
from proton.utils import BlockingConnection, LinkDetached, SendException
from proton_peer import say

FAULTS = (ConnectionException, LinkDetached, ProtonException, Timeout, OSError)
TIMEOUT = 1.0  # seconds


class Storm:
    """The client, and its counts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.chance = random.Random(options.seed)
        self.connections = 0
        self.ids: list[str] = []
        self.is_over = False
        signal.signal(signal.SIGTERM, self.end)

    def end(self, *_: Any) -> None:
        self.is_over = True

    def run(self) -> None:
        work = self.receive if self.options.receive else self.send
        while not self.is_over:
            try:
                connection = BlockingConnection(
                    self.options.url,
                    timeout=TIMEOUT,
                    user=self.options.user,
                    password=self.options.password,
                    allowed_mechs="PLAIN",
                    allow_insecure_mechs=True,
                )
            except FAULTS:
                time.sleep(0.05)
                continue
            self.connections += 1
            with suppress(*FAULTS):
                work(connection)
            with suppress(*FAULTS):
                connection.close()
        say("done", connections=self.connections, ids=self.ids)

    def send(self, connection: BlockingConnection) -> None:
        sender = connection.create_sender(self.chance.choice(self.options.addresses))
        for number in range(self.chance.randint(0, 5)):
            name = f"{self.options.seed}/{self.connections}/{number}"
            try:
                sender.send(Message(body=name), timeout=TIMEOUT)
            except SendException:  # released or modified
                continue
            self.ids.append(name)

    def receive(self, connection: BlockingConnection) -> None:
        receiver = connection.create_receiver(self.chance.choice(self.options.addresses), credit=10)
        say("attached")
        while not self.is_over:
            try:
                message = receiver.receive(timeout=0.2)
            except Timeout:
                continue
            self.ids.append(message.body)
            receiver.accept()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--user", required=True)
    parser.add_argument("--password", required=True)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--receive", action="store_true")
    parser.add_argument("addresses", nargs="+")
    Storm(parser.parse_args()).run()


if __name__ == "__main__":
    main()
