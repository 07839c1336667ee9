"""Requests through proton's own `SyncRequestResponse`: a dynamic node for replies, an anonymous or a named sender."""

from __future__ import annotations

import json
import sys

from proton import Message
from proton.utils import BlockingConnection, SyncRequestResponse
from proton_peer import arguments, say


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--to", help="address of every request, for an anonymous sender")
    options = parser.parse_args()
    connection = BlockingConnection(options.url, timeout=options.timeout)
    client = SyncRequestResponse(connection, options.address)
    say("attached", address=client.reply_to)
    for line in sys.stdin:
        response = client.call(Message(body=json.loads(line), address=options.to))
        say("response", body=response.body, correlation=response.correlation_id is not None)
    connection.close()
    say("done")


if __name__ == "__main__":
    main()
