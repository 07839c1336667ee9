"""Send or receive numbered messages over connections that our client makes again, as `proton_roam.py`."""

from __future__ import annotations

import argparse
import signal

import trio
from proton_peer import say

from amqpmesh import InDoubtError, connect


async def work(given: argparse.Namespace) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with connect(given.urls, reconnect=True) as connection, trio.open_nursery() as nursery:
            say("opened", container=connection.peer.container_id)
            ending = trio.Event()
            nursery.start_soon(receive if given.receive else send, connection, given.address, ending)
            async for _ in signals:
                ending.set()
                if given.receive:
                    nursery.cancel_scope.cancel()
                break


async def send(connection, address, ending):
    longest, sent_at, number = 0.0, None, 0
    async with connection.sender(address) as sender:
        while not ending.is_set():
            with trio.move_on_after(5.0):
                sent = await sender.transfer(f"{address} {number}")
                now = trio.current_time()
                longest, sent_at = max(longest, now - (now if sent_at is None else sent_at)), now
                say("sent", index=number)
                try:
                    outcome = type(await sent.outcome()).__name__.lower()
                except InDoubtError:
                    outcome = "unknown"
                say("outcome", index=number, outcome=outcome)
                number += 1
            await trio.sleep(0.01)
    say("ended", longest=longest)


async def receive(connection, address, _ending):
    async with connection.receiver(address, credit=10) as receiver:
        async for delivery in receiver:
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
