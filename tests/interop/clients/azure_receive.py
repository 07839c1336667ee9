"""Receive messages, and settle each with the requested outcome, as the clients of Azure's services do."""

from __future__ import annotations

from typing import Any

from azure.eventhub._pyamqp.constants import ReceiverSettleMode
from azure.eventhub._pyamqp.message import Message
from azure_peer import ReceiveClient, arguments, say, settings


def plain(value: Any) -> Any:
    """Return text and numbers as they are, and octets in hexadecimal; strings and binary are both octets here."""
    match value:
        case bytes():
            return value.hex()
        case dict():
            return {plain(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    return value


def report(message: Message) -> dict[str, Any]:
    return {
        "header": plain(message.header),
        "properties": plain(message.properties),
        "application": plain(message.application_properties),
        "data": plain(list(message.data)) if message.data else None,
        "value": plain(message.value),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--credit", type=int, default=10)
    parser.add_argument("--outcomes", default="accepted", help="separated by commas; taken in turn")
    options = parser.parse_args()
    outcomes = options.outcomes.split(",")
    client = ReceiveClient(
        source=options.address,
        link_credit=options.credit,
        receive_settle_mode=ReceiverSettleMode.First,
        on_attach=lambda _: say("attached"),
        **settings(options),
    )
    client.open()
    for index in range(options.count):
        # Public methods drop the delivery-id; Azure's own messaging library reads this queue, too.
        while client._received_messages.empty():
            client.do_work(batch=1)
        frame, message = client._received_messages.get()
        say("message", index=index, settled=bool(frame[4]), **report(message))
        if not frame[4]:
            outcome = outcomes[index % len(outcomes)]
            details = {"delivery_failed": True, "undeliverable_here": False} if outcome == "modified" else {}
            client.settle_messages(frame[1], frame[2], outcome, **details)
    client.close()
    say("done")


if __name__ == "__main__":
    main()
