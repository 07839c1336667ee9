"""Receive messages, answer each with the requested outcome, and report each."""

from __future__ import annotations

import argparse
import hashlib
import json
from typing import Any

import values
from proton import Condition, Delivery, Link, Message, Terminus
from proton.reactor import LinkOption
from proton_peer import Peer, arguments, say, symbol_keys


class Modes(LinkOption):
    """The requested settle mode and distribution mode."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def apply(self, link: Link) -> None:
        if self.options.second:
            link.rcv_settle_mode = Link.RCV_SECOND
        if self.options.copy:
            link.source.distribution_mode = Terminus.DIST_MODE_COPY


class Receiving(Peer):
    """A client that receives `--count` messages. It ends when each is settled, unless its outcome is `hold`."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options, prefetch=0 if options.drain or options.credit == 0 else options.credit)
        self.outcomes: list[dict[str, Any]] = json.loads(options.outcomes)
        self.count = 0
        self.open_deliveries: dict[str, int] = {}
        self.parts: list[bytes] = []

    def begin(self, event: Any) -> None:
        self.receiver = event.container.create_receiver(
            self.connection, self.options.address, dynamic=self.options.dynamic, options=[Modes(self.options)]
        )

    def on_link_opened(self, event: Any) -> None:
        source = event.link.remote_source
        say("attached", address=source.address, distribution_mode=int(source.distribution_mode))
        if self.options.drain:
            event.link.drain(self.options.drain)

    def on_link_flow(self, event: Any) -> None:
        if self.options.drain and not event.link.draining():
            say("drained", credit=event.link.credit, count=self.count)
            self.done()

    def on_aborted(self, event: Any) -> None:
        self.parts.clear()
        say("aborted")

    def on_delivery(self, event: Any) -> None:
        delivery = event.delivery
        if delivery.tag in self.open_deliveries and delivery.updated and delivery.settled:
            index = self.open_deliveries.pop(delivery.tag)
            say("settled", index=index, state=int(delivery.remote_state))
            delivery.settle()
            self.end_if_complete()
        elif delivery.aborted:
            pass  # MessagingHandler settles it and calls on_aborted
        elif delivery.readable:
            if delivery.pending:
                first = not self.parts
                self.parts.append(delivery.link.recv(delivery.pending))
                if first and delivery.partial:
                    say("partial")
            if not delivery.partial:
                encoded = b"".join(self.parts)
                self.parts.clear()
                delivery.link.advance()
                self.on_whole_message(delivery, encoded)

    def on_whole_message(self, delivery: Delivery, encoded: bytes) -> None:
        index = self.count
        self.count += 1
        message = Message()
        message.decode(encoded)
        report: dict[str, Any] = {"size": len(encoded), "sha256": hashlib.sha256(encoded).hexdigest()}
        if len(encoded) < 65536:
            report["sections"] = values.sections(encoded)
        say("message", index=index, settled=delivery.settled, **report)
        wanted = self.outcomes[index % len(self.outcomes)]
        if not delivery.settled:
            self.answer(delivery, wanted)
            if wanted["outcome"] == "hold" or self.options.second:
                self.open_deliveries[delivery.tag] = index
            else:
                delivery.settle()
        else:
            delivery.settle()
        self.end_if_complete()

    def answer(self, delivery: Delivery, wanted: dict[str, Any]) -> None:
        local = delivery.local
        match wanted["outcome"]:
            case "accepted":
                delivery.update(Delivery.ACCEPTED)
            case "released":
                delivery.update(Delivery.RELEASED)
            case "rejected":
                info = values.from_json(wanted["info"]) if "info" in wanted else None
                if "condition" in wanted:
                    local.condition = Condition(wanted["condition"], wanted.get("description"), info)
                delivery.update(Delivery.REJECTED)
            case "modified":
                local.failed = wanted.get("failed", False)
                local.undeliverable = wanted.get("undeliverable", False)
                if "annotations" in wanted:
                    local.annotations = symbol_keys(values.from_json(wanted["annotations"]))
                delivery.update(Delivery.MODIFIED)
            case "none" | "hold":
                pass  # settled without a state, or left alone
            case other:
                raise ValueError(other)

    def end_if_complete(self) -> None:
        if not self.options.drain and self.count == self.options.count and not self.open_deliveries:
            self.done()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--count", type=int, default=1, help="messages to receive; 0: until ended")
    parser.add_argument("--credit", type=int, default=10)
    parser.add_argument("--outcomes", default='[{"outcome": "accepted"}]', help="JSON; taken in turn")
    parser.add_argument("--second", action="store_true", help="ask for rcv-settle-mode second")
    parser.add_argument("--dynamic", action="store_true", help="ask for a node of our own")
    parser.add_argument("--copy", action="store_true", help="ask for distribution-mode copy")
    parser.add_argument("--drain", type=int, default=0, help="give so much credit once, drain, and end")
    Receiving(parser.parse_args()).run()


if __name__ == "__main__":
    main()
