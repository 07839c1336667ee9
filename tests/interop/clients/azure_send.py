"""Send the messages given on stdin, one by one: `{"data": hex}` or `{"value": ...}`, `properties`, `application`."""

from __future__ import annotations

import json
import sys
from typing import Any

from azure.eventhub._pyamqp.constants import ReceiverSettleMode
from azure.eventhub._pyamqp.error import MessageException
from azure.eventhub._pyamqp.message import Header, Message, Properties
from azure_peer import SendClient, arguments, say, settings


def message_of(document: dict[str, Any]) -> Message:
    body: dict[str, Any] = (
        {"data": [bytes.fromhex(document["data"])]} if "data" in document else {"value": document["value"]}
    )
    return Message(
        header=Header(durable=True, priority=7),
        properties=Properties(**document.get("properties", {})),
        application_properties=document.get("application"),
        **body,
    )


def main() -> None:
    options = arguments(__doc__).parse_args()
    client = SendClient(
        target=options.address,
        # The stack's default is second, but it never settles: its own service does that for it. So set mode first.
        receive_settle_mode=ReceiverSettleMode.First,
        **settings(options),
    )
    client.open()
    say("opened")
    for index, line in enumerate(sys.stdin):
        try:
            client.send_message(message_of(json.loads(line)), timeout=options.timeout)
        except MessageException as error:
            condition = error.condition
            say("outcome", index=index, outcome="error", condition=(getattr(condition, "value", condition)).decode())
        else:
            say("outcome", index=index, outcome="accepted")
    client.close()
    say("done")


if __name__ == "__main__":
    main()
