"""A container that accepts connections, as users of proton write one, and reports its peer's actions.

The address of a link, or the body of a message, selects what it does:

- a link from the peer to any address: it receives messages with `--credit`, reports each, and applies `--outcomes` in
  turn;
- a link to the peer from any address: it sends the messages given on stdin, as `proton_send.py`, and reports every
  outcome;
- `missing`: it refuses the link with not-found; a dynamic source gets an address;
- a message whose reply-to is such an address gets a reply: its body in capitals, with its correlation-id;
- a message `detach`, `end` or `close`: it does that, with an error;
- with `--elsewhere INFO`, in JSON, it redirects links to and from `elsewhere`; with `--moved INFO`, every connection.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import deque
from typing import Any

import values
from proton import Condition, Delivery, Link, Message, int32, symbol
from proton.handlers import MessagingHandler
from proton.reactor import Container
from proton_peer import say
from proton_receive import Receiving
from proton_send import message_of, outcome_of


class Listening(MessagingHandler):
    """A container that serves every connection, until it is killed."""

    def __init__(self, options: argparse.Namespace, documents: list[dict[str, Any]]) -> None:
        super().__init__(prefetch=0, auto_accept=False, auto_settle=False)
        self.options = options
        self.documents = documents
        self.outcomes: list[dict[str, Any]] = json.loads(options.outcomes)
        self.count = 0
        self.parts: dict[Link, list[bytes]] = {}
        #: The messages that each link to the peer has still to send, and the number of outcomes that it waits for.
        self.waiting: dict[Link, deque[tuple[int, dict[str, Any]]]] = {}
        self.unsettled: dict[tuple[str, str], int] = {}
        self.replies: dict[str, Link] = {}

    def on_start(self, event: Any) -> None:
        acceptor = event.container.listen("127.0.0.1:0")
        # proton has no public way to the socket, and so to the port that was chosen.
        port = acceptor._selectable._delegate.getsockname()[1]
        say("listening", url=f"amqp://127.0.0.1:{port}")

    def on_connection_opened(self, event: Any) -> None:
        say("opened", container=event.connection.remote_container, hostname=event.connection.remote_hostname)
        if self.options.moved:
            event.connection.condition = Condition("amqp:connection:redirect", "it moved", info(self.options.moved))
            event.connection.close()

    def on_connection_closed(self, event: Any) -> None:
        say("closed")

    def on_link_opening(self, event: Any) -> None:
        link = event.link
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        address = (link.remote_source if link.is_sender else link.remote_target).address
        if address == "missing":
            return
        if self.options.elsewhere and address == "elsewhere":
            return
        if link.is_sender and link.remote_source.dynamic:
            address = link.source.address = f"reply-{len(self.replies)}"
            self.replies[address] = link
        elif link.is_sender:
            self.waiting[link] = deque(enumerate(self.documents))
        else:
            link.flow(self.options.credit)
        say("attached", address=address, role="sender" if link.is_sender else "receiver")

    def on_link_local_open(self, event: Any) -> None:
        link = event.link
        if "missing" in (link.remote_source.address, link.remote_target.address):
            link.condition = Condition("amqp:not-found", "there is no such node")
            link.close()
        elif self.options.elsewhere and "elsewhere" in (link.remote_source.address, link.remote_target.address):
            link.source.address = link.target.address = None
            link.condition = Condition("amqp:link:redirect", "it moved", info(self.options.elsewhere))
            link.close()

    def on_link_closed(self, event: Any) -> None:
        say("detached", name=event.link.name)

    # ------------------------------------------------------------------------------------------------- sending

    def on_sendable(self, event: Any) -> None:
        link = event.link
        waiting = self.waiting.get(link)
        while waiting and link.credit:
            index, document = waiting.popleft()
            encoded = message_of(document).encode()
            delivery = link.delivery(f"tag-{index}")
            link.stream(encoded)
            say("sent", index=index, sha256=hashlib.sha256(encoded).hexdigest())
            link.advance()
            self.unsettled[link.name, delivery.tag] = index
        if waiting is not None and not waiting:
            link.drained()

    # ----------------------------------------------------------------------------------------------- deliveries

    def on_delivery(self, event: Any) -> None:
        delivery = event.delivery
        if delivery.link.is_sender:
            self.on_outcome(delivery)
        elif delivery.aborted:
            self.parts.pop(delivery.link, None)
            say("aborted")
            delivery.settle()
        elif delivery.readable:
            parts = self.parts.setdefault(delivery.link, [])
            if delivery.pending:
                parts.append(delivery.link.recv(delivery.pending))
            if delivery.partial and len(parts) == 1:
                say("partial")
            if not delivery.partial:
                del self.parts[delivery.link]
                delivery.link.advance()
                self.on_whole_message(delivery, b"".join(parts))
        elif delivery.updated and delivery.settled:
            say("settled", tag=delivery.tag)
            delivery.settle()

    def on_outcome(self, delivery: Delivery) -> None:
        key = delivery.link.name, delivery.tag
        if not (delivery.updated and key in self.unsettled):
            return
        fields = outcome_of(delivery)
        if delivery.settled or fields["outcome"] not in (None, "received"):
            say("outcome", index=self.unsettled.pop(key), settled=delivery.settled, **fields)
            delivery.settle()

    def on_whole_message(self, delivery: Delivery, encoded: bytes) -> None:
        link = delivery.link
        message = Message()
        message.decode(encoded)
        report: dict[str, Any] = {"size": len(encoded), "sha256": hashlib.sha256(encoded).hexdigest()}
        if len(encoded) < 65536:
            report["sections"] = values.sections(encoded)
        say("message", index=self.count, settled=delivery.settled, **report)
        wanted = self.outcomes[self.count % len(self.outcomes)]
        self.count += 1
        link.flow(1)
        if message.body in ("detach", "end", "close"):
            self.refuse(link, message.body)
            return
        if message.reply_to in self.replies:
            answer = Message(message.body.upper(), correlation_id=message.correlation_id or message.id)
            self.replies[message.reply_to].send(answer).settle()
        Receiving.answer(self, delivery, wanted)  # type: ignore[arg-type]  # it looks at nothing of its own
        if wanted["outcome"] != "hold" and link.rcv_settle_mode != Link.RCV_SECOND:
            delivery.settle()

    def refuse(self, link: Link, what: str) -> None:
        endpoint = {"detach": link, "end": link.session, "close": link.connection}[what]
        endpoint.condition = Condition("amqp:not-allowed", f"{what} as asked")
        endpoint.close()


def info(text: str) -> dict[symbol, Any]:
    """Return the info of an error, from JSON."""
    told = {symbol(key): value for key, value in json.loads(text).items()}
    return {key: int32(value) if isinstance(value, int) else value for key, value in told.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--credit", type=int, default=10)
    parser.add_argument("--outcomes", default='[{"outcome": "accepted"}]', help="JSON; taken in turn")
    parser.add_argument("--elsewhere", help="JSON: the info of a link's redirect")
    parser.add_argument("--moved", help="JSON: the info of a connection's redirect")
    options = parser.parse_args()
    Container(Listening(options, [json.loads(line) for line in sys.stdin if line.strip()])).run()


if __name__ == "__main__":
    main()
