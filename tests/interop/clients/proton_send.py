"""Send the messages given on stdin, one JSON document per line, and report every outcome.

A line is `{"sections": [[code, typed value], ...]}` (see values.py), or `{"size": octets, "seed": "..."}` for a data
section of pseudo-random content. Each message passes through proton's `Message`, as those of any user do. After SIGTERM
it sends nothing more, and ends when every sent message has its outcome.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import sys
from collections import deque
from typing import Any

import values
from proton import Delivery, Handler, Link, Message
from proton.reactor import LinkOption
from proton_peer import Peer, arguments, say

PROPERTIES = (
    "id", "user_id", "address", "subject", "reply_to", "correlation_id", "content_type", "content_encoding",
    "expiry_time", "creation_time", "group_id", "group_sequence", "reply_to_group_id",
)  # fmt: skip


def message_of(document: dict[str, Any]) -> Message:
    """Return the user's message for a line of input."""
    if "size" in document:
        content = hashlib.shake_128(document["seed"].encode()).digest(document["size"])
        return Message(content, inferred=True, address=document.get("to"))
    message = Message()
    bodies = []
    for code, typed in document["sections"]:
        value = values.from_json(typed)
        if code == 0x70:
            durable, priority, ttl, first_acquirer, delivery_count = value + [None] * (5 - len(value))
            message.durable = bool(durable)
            message.priority = 4 if priority is None else priority
            message.ttl = (ttl or 0) / 1000
            message.first_acquirer = bool(first_acquirer)
            message.delivery_count = delivery_count or 0
        elif code == 0x71:
            message.instructions = value
        elif code == 0x72:
            message.annotations = value
        elif code == 0x73:
            for name, field in zip(PROPERTIES, value, strict=False):
                if field is not None:
                    setattr(message, name, field / 1000 if name.endswith("_time") else field)
        elif code == 0x74:
            message.properties = value
        else:
            bodies.append((code, value))
    if len(bodies) > 1:
        raise ValueError("proton's Message writes one body section")
    for code, value in bodies:
        message.inferred = code != 0x77
        message.body = value
    return message


def outcome_of(delivery: Delivery) -> dict[str, Any]:
    """Return the peer's state of a delivery, with all its fields."""
    remote = delivery.remote
    names: dict[int, str] = {
        Delivery.ACCEPTED: "accepted",
        Delivery.REJECTED: "rejected",
        Delivery.RELEASED: "released",
        Delivery.MODIFIED: "modified",
        Delivery.RECEIVED: "received",
    }
    state = names.get(delivery.remote_state)
    fields: dict[str, Any] = {"outcome": state}
    if state == "rejected" and remote.condition is not None:
        fields |= {"condition": str(remote.condition.name), "description": remote.condition.description}
        if remote.condition.info is not None:
            fields["info"] = values.to_json(remote.condition.info)
    if state == "modified":
        fields |= {"failed": remote.failed, "undeliverable": remote.undeliverable}
        if remote.annotations:
            fields["annotations"] = values.to_json(remote.annotations)
    if state == "received":
        fields |= {"section": remote.section_number, "offset": remote.section_offset}
    return fields


class Modes(LinkOption):
    """The requested settle modes."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def apply(self, link: Link) -> None:
        if self.options.settled:
            link.snd_settle_mode = Link.SND_SETTLED
        if self.options.second:
            link.rcv_settle_mode = Link.RCV_SECOND


class Sending(Peer):
    """A client that sends as credit allows. It ends when all messages are settled."""

    def __init__(self, options: argparse.Namespace, documents: list[dict[str, Any]]) -> None:
        super().__init__(options)
        self.waiting = deque(enumerate(documents))
        self.unsettled: dict[str, int] = {}
        self.held = bool(options.hold)
        self.is_over = False
        signal.signal(signal.SIGTERM, lambda *_: self.waiting.clear())

    def begin(self, event: Any) -> None:
        self.container = event.container
        self.sender = event.container.create_sender(
            self.connection, self.options.address, options=[Modes(self.options)]
        )
        if self.held:
            event.container.schedule(self.options.hold, Release(self))

    def on_link_opened(self, event: Any) -> None:
        link = event.link
        say(
            "attached",
            address=link.remote_target.address,
            receiver_settle_mode=int(link.remote_rcv_settle_mode),
            max_message_size=link.remote_max_message_size,
        )

    def on_sendable(self, event: Any) -> None:
        self.send()

    def send(self) -> None:
        while self.waiting and self.sender.credit and not self.held:  # as in proton's own examples
            index, document = self.waiting.popleft()
            encoded = message_of(document).encode()
            delivery = self.sender.delivery(f"tag-{index}")
            if self.options.partial:
                # The last octet is never sent: the test kills this process here.
                self.sender.stream(encoded[: self.options.partial])
                say("partial", octets=self.options.partial)
                return
            self.sender.stream(encoded)
            report: dict[str, Any] = {"sha256": hashlib.sha256(encoded).hexdigest()}
            if len(encoded) < 65536:
                report["sections"] = values.sections(encoded)
            say("sent", index=index, **report)
            if self.options.settled:
                delivery.settle()
            self.sender.advance()
            if not self.options.settled:
                self.unsettled[delivery.tag] = index
            if self.options.pace:
                self.held = True
                self.container.schedule(self.options.pace, Release(self))
        if not self.waiting and not self.unsettled:
            self.is_over = True
            self.done()

    def on_delivery(self, event: Any) -> None:
        delivery = event.delivery
        if not (delivery.updated and delivery.tag in self.unsettled):
            return
        index = self.unsettled[delivery.tag]
        fields = outcome_of(delivery)
        say("outcome", index=index, settled=delivery.settled, **fields)
        if delivery.settled or fields["outcome"] not in (None, "received"):
            delivery.settle()
            del self.unsettled[delivery.tag]
            self.send()


class Release(Handler):
    """A timer's handler: the sender starts to send, or sends its next message."""

    def __init__(self, sending: Sending) -> None:
        self.sending = sending

    def on_timer_task(self, event: Any) -> None:
        self.sending.held = False
        if not self.sending.is_over:
            self.sending.send()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--settled", action="store_true", help="send pre-settled")
    parser.add_argument("--second", action="store_true", help="ask for rcv-settle-mode second")
    parser.add_argument("--hold", type=float, default=0.0, help="seconds of silence before the first message")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds from each message to the next")
    parser.add_argument("--partial", type=int, help="send only so many octets of the first message, and wait")
    options = parser.parse_args()
    Sending(options, [json.loads(line) for line in sys.stdin if line.strip()]).run()


if __name__ == "__main__":
    main()
