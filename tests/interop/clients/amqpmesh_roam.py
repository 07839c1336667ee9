"""Send or receive numbered messages over connections that our client makes again, as `proton_roam.py`."""

from __future__ import annotations

import argparse
import signal
from contextlib import suppress

import trio
from proton_peer import say

from amqpmesh import ConnectionClosedError, InDoubtError, connect


async def work(given: argparse.Namespace) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with connect(given.urls, reconnect=True) as connection, trio.open_nursery() as nursery:
            ending = trio.Event()
            nursery.start_soon(receive if given.receive else send, connection, given.address, ending)
            async for _ in signals:
                ending.set()
                if given.receive:
                    nursery.cancel_scope.cancel()
                break


class Home:
    """Tells at which routers a client has been served."""

    def __init__(self, connection):
        self._connection = connection
        self._told = -1

    def tell(self):
        reconnections = self._connection.reconnections
        if reconnections > self._told:
            with suppress(ConnectionClosedError):  # it has ended just now, and comes back
                say("opened", container=self._connection.peer.container_id)
                self._told = reconnections


async def send(connection, address, ending):
    longest, sent_at, number = 0.0, None, 0
    home = Home(connection)
    async with connection.sender(address) as sender:
        while not ending.is_set():
            with trio.move_on_after(5.0) as waiting:  # for credit: it may be the end meanwhile
                sent = await sender.transfer(f"{address} {number}")
            if not waiting.cancelled_caught:
                now = trio.current_time()
                longest, sent_at = max(longest, now - (now if sent_at is None else sent_at)), now
                say("sent", index=number)
                try:
                    outcome = type(await sent.outcome()).__name__.lower()
                except InDoubtError:
                    outcome = "unknown"
                say("outcome", index=number, outcome=outcome)
                number += 1
                home.tell()
            await trio.sleep(0.01)
    say("ended", longest=longest)


async def receive(connection, address, _ending):
    home = Home(connection)
    async with connection.receiver(address, credit=10) as receiver:
        async for delivery in receiver:
            home.tell()
            say("message", body=delivery.message.body)
            delivery.accept()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="unused: the first of the routers")
    parser.add_argument("--urls", nargs="+")
    parser.add_argument("--address")
    parser.add_argument("--receive", action="store_true")
    trio.run(work, parser.parse_args())


if __name__ == "__main__":
    main()
