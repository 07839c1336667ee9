"""A sender and a receiver that show the outcome of each message.

    amqpmesh run
    python examples/client.py [URL]

The receiver decides on each order, and the sender gets the outcome: accepted, rejected with a reason, released, or
modified.
"""

import sys

import trio

from amqpmesh import Connection, Delivery, Message, OutcomeError, connect

URL = sys.argv[1] if len(sys.argv) > 1 else "amqp://127.0.0.1:5672"

ORDERS = [
    Message({"what": "tea", "pieces": 3}, subject="order", durable=True),
    Message({"what": "tea", "pieces": 0}, subject="order"),
    Message({"what": "elephants", "pieces": 1}, subject="order"),
    Message({"what": "fragile cups", "pieces": 6}, subject="order"),
]


def pack(what: str) -> None:
    """Pack the goods, which may fail."""
    if "fragile" in what:
        raise ValueError(f"{what} broke")


def handle(delivery: Delivery) -> None:
    """Decide on an order. Raises: ValueError: it could not be packed."""
    order = delivery.message.body
    if order["pieces"] < 1:
        delivery.reject("amqp:invalid-field", "an order needs at least one piece")
    elif order["what"] == "elephants":
        delivery.release()  # this receiver does not sell elephants: another one may
    else:
        pack(order["what"])


async def receive(connection: Connection, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Take orders until cancelled."""
    async with connection.receiver("orders") as incoming:
        task_status.started()
        async for delivery in incoming:
            try:
                # Without a decision, the end of the block accepts the delivery, and an exception makes it `modified`.
                async with delivery as message:
                    print(f"receiver  {message.body['pieces']} {message.body['what']}")
                    handle(delivery)
            except ValueError as error:
                print(f"receiver  {error}")


async def main() -> None:
    """Run both sides, over one connection."""
    async with connect(URL) as connection, trio.open_nursery() as nursery:
        await nursery.start(receive, connection)
        async with connection.sender("orders") as orders:
            for order in ORDERS:
                try:
                    await orders.send(order)
                    print("sender    accepted")
                except OutcomeError as error:
                    print(f"sender    {error}")
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
