"""Reply to requests: each body in capitals, to its reply-to, over an anonymous sender on the same connection."""

from __future__ import annotations

import argparse
from typing import Any

from proton import Delivery, Message
from proton_peer import Peer, arguments, say


class Responding(Peer):
    """A service that accepts a request when its reply is sent. It ends when `--count` replies are settled."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options, prefetch=10)
        self.answered = 0

    def begin(self, event: Any) -> None:
        self.receiver = event.container.create_receiver(self.connection, self.options.address)
        self.sender = event.container.create_sender(self.connection, None)

    def on_link_opened(self, event: Any) -> None:
        if event.link.is_receiver:
            say("attached", address=event.link.remote_source.address)

    def on_message(self, event: Any) -> None:
        request = event.message
        say("request", body=request.body, reply_to=request.reply_to)
        self.sender.send(
            Message(body=request.body.upper(), address=request.reply_to, correlation_id=request.correlation_id)
        )
        self.accept(event.delivery)

    def on_settled(self, event: Any) -> None:
        if not event.link.is_sender:
            return
        if event.delivery.remote_state != Delivery.ACCEPTED:
            self.fail(f"the answer was not accepted: {event.delivery.remote_state}")
        event.delivery.settle()
        self.answered += 1
        if self.answered == self.options.count:
            self.done()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--count", type=int, default=1)
    Responding(parser.parse_args()).run()


if __name__ == "__main__":
    main()
