"""A program that embeds a router, and receives or replies within the process.

    python -m benchmarks.in_process receive|take|reply

It says where it listens, and serves the address `here` until it is ended. With `take` it takes all deliveries that are
there at a time.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import trio

from amqpmesh import Router

ADDRESS = "here"
CREDIT = 500


async def main(work: str) -> None:
    async with (
        Router(id="A", listeners=["amqp://127.0.0.1:0"]) as router,
        router.receiver(ADDRESS, credit=CREDIT) as receiver,
    ):
        print(f"listening url={router.listeners[0].url}", flush=True)
        async for delivery in receiver:
            if work == "reply":
                async with delivery as message:
                    await delivery.reply(message)
            else:
                delivery.accept()
                if work == "take":
                    with suppress(trio.WouldBlock):
                        while True:
                            receiver.receive_nowait().accept()


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
