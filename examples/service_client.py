"""A client of the service: three requests at once, each with its own reply, and five seconds for all of them.

    amqpmesh run
    python examples/service.py [URL]
    python examples/service_client.py [URL]

If you start it before the service, it waits: without a receiver there is no credit.
"""

import sys

import trio

from amqpmesh import RejectedError, Requester, connect

URL = sys.argv[1] if len(sys.argv) > 1 else "amqp://127.0.0.1:5672"


async def ask(quotes: Requester, pair: str) -> None:
    """Ask for a price, and print it."""
    try:
        reply = await quotes.request(pair)
        print(f"{pair}: {reply.body}")
    except RejectedError as error:
        print(f"{pair}: {error.error.description if error.error else error}")


async def main() -> None:
    """Send the requests. All calls share one link for requests and one for replies."""
    with trio.move_on_after(5) as patience:
        async with (
            connect(URL) as connection,
            connection.requester("quotes") as quotes,
            trio.open_nursery() as nursery,
        ):
            for pair in ("EUR/CHF", "GBP/CHF", "EUR/XAU"):
                nursery.start_soon(ask, quotes, pair)
    if patience.cancelled_caught:
        sys.exit("nobody answers: is examples/service.py running?")


if __name__ == "__main__":
    trio.run(main)
