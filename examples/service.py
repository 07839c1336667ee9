"""A service that answers up to twenty requests at a time, until Ctrl-C stops it.

    amqpmesh run
    python examples/service.py [URL]
    python examples/service_client.py [URL]

If you start it twice, the router shares the requests between both. If you restart the router, both reconnect.
"""

import sys

import trio

from amqpmesh import Delivery, Message, connect

URL = sys.argv[1] if len(sys.argv) > 1 else "amqp://127.0.0.1:5672"

PRICES = {"EUR/CHF": 0.9312, "EUR/USD": 1.0841, "GBP/CHF": 1.1107}


async def answer(delivery: Delivery) -> None:
    """Answer one request: a pair of currencies, as text or as bytes, with the price in the same form."""
    async with delivery as message:
        # Anybody may ask anything: no request ends the service.
        pair = message.body.decode(errors="replace") if isinstance(message.body, bytes) else str(message.body)
        if pair not in PRICES:
            delivery.reject("amqp:not-found", f"no price for {pair[:40]}")
            return
        price = str(PRICES[pair])
        await trio.sleep(0.01)  # stands for the work
        # Where to, and to which request, the message says itself: its reply-to, and its message-id.
        await delivery.reply(Message(price.encode() if isinstance(message.body, bytes) else price))
        print(f"{pair} {price}", flush=True)


async def main() -> None:
    """Serve. The credit limits the requests in work: the router sends more only after some are settled."""
    async with connect(URL, reconnect=True) as connection, connection.receiver("quotes", credit=20) as requests:
        print("serving quotes", flush=True)
        async with trio.open_nursery() as nursery:
            async for delivery in requests:
                nursery.start_soon(answer, delivery)


if __name__ == "__main__":
    try:
        trio.run(main)
    except* KeyboardInterrupt:
        print("stopped")
