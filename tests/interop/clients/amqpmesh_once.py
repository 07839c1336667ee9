"""Send or receive numbered messages exactly once, over connections that our client makes again until SIGTERM.

A sender has several messages on their way at a time; some are of several frames. It says each before it is sent, and
what it heard of it. A receiver says each as it accepts it.
"""

from __future__ import annotations

import argparse
import itertools
import signal

import trio
from proton_peer import say

from amqpmesh import Backoff, InDoubtError, Message, OutcomeError, connect

WIDTH = 8
LARGE = 40_000  # octets: three frames
PAUSE = 0.01  # seconds between two messages of a task, so that a test can follow


async def work(given: argparse.Namespace) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        connecting = connect(
            given.url,
            id=given.id,
            hostname=given.hostname,
            idle_time_out=given.idle,
            reconnect=Backoff(longest=0.2),
        )
        async with connecting as connection, trio.open_nursery() as nursery:
            say("opened")
            ending = trio.Event()
            nursery.start_soon(receive if given.receive else send, connection, given, ending)
            async for _ in signals:
                ending.set()
                if given.receive:
                    nursery.cancel_scope.cancel()
                break


async def send(connection, given, ending):
    numbers = itertools.count(given.first)
    async with connection.sender(given.address, name="link", exactly_once=True) as sender:
        say("attached")
        async with trio.open_nursery() as nursery:
            for _ in range(WIDTH):
                nursery.start_soon(send_some, sender, numbers, ending)
    say("ended", reconnections=connection.reconnections)


async def send_some(sender, numbers, ending):
    while not ending.is_set():
        number = next(numbers)
        say("sent", index=number)
        body = str(number) + (" " * LARGE if number % 7 == 0 else "")
        try:
            await sender.send(Message(body))
            outcome = "accepted"
        except InDoubtError:
            outcome = "unknown"
        except OutcomeError as error:
            outcome = type(error.outcome).__name__.lower()
        say("outcome", index=number, outcome=outcome)
        await trio.sleep(PAUSE)


async def receive(connection, given, _ending):
    async with connection.receiver(given.address, name="link", credit=10, exactly_once=True) as receiver:
        say("attached")
        async for delivery in receiver:
            say("message", index=int(delivery.message.body))
            delivery.accept()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--id")
    parser.add_argument("--hostname")
    parser.add_argument("--address", default="q")
    parser.add_argument("--receive", action="store_true")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--idle", type=float, default=2.0)
    trio.run(work, parser.parse_args())


if __name__ == "__main__":
    main()
