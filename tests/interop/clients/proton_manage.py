"""Query a management node through proton's own `SyncRequestResponse`, as tools for other routers do.

Each line of standard input is a request: {"properties": {...}, "body": {...}}.
"""

from __future__ import annotations

import json
import sys

from proton import Message
from proton.utils import BlockingConnection, SyncRequestResponse
from proton_peer import arguments, say


def main() -> None:
    options = arguments(__doc__).parse_args()
    connection = BlockingConnection(options.url, timeout=options.timeout)
    client = SyncRequestResponse(connection, options.address)
    say("attached", address=client.reply_to)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = client.call(Message(properties=asked["properties"], body=asked.get("body", {})))
        say("answer", properties=answer.properties, body=answer.body)
    connection.close()
    say("done")


if __name__ == "__main__":
    main()
