"""Send or receive numbered messages over connections that proton makes again, and report what became of each.

It goes on from router to router until SIGTERM. Then a sender waits for its outcomes, and reports the longest time in
which it could not send.
"""

from __future__ import annotations

import argparse
import signal
import time
from typing import Any

from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import Container
from proton_peer import say


class Roaming(MessagingHandler):
    """A client that proton connects again."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(prefetch=10)
        self.options = options
        self.is_ending = False
        self.is_open = False
        self.number = 0
        self.unsettled: dict[str, int] = {}
        self.longest = 0.0
        self.sent_at: float | None = None
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self.is_ending = True

    def on_start(self, event: Any) -> None:
        self.container = event.container
        self.connection = event.container.connect(urls=self.options.urls)
        self.link: Any
        if self.options.receive:
            self.link = event.container.create_receiver(self.connection, self.options.address)
        else:
            self.link = event.container.create_sender(self.connection, self.options.address)
        event.container.schedule(0.01, self)

    def on_connection_opened(self, event: Any) -> None:
        self.is_open = True
        say("opened", container=event.connection.remote_container)

    def on_timer_task(self, event: Any) -> None:
        if self.is_ending and not self.unsettled:
            say("ended", longest=self.longest)
            self.connection.close()
            return
        self.container.schedule(0.01, self)
        if self.is_open and not (self.options.receive or self.is_ending or self.unsettled) and self.link.credit:
            now = time.monotonic()
            if self.sent_at is not None:
                self.longest = max(self.longest, now - self.sent_at)
            self.sent_at = now
            tag = f"{self.number}"
            self.unsettled[tag] = self.number
            say("sent", index=self.number)
            self.link.send(Message(f"{self.options.address} {self.number}"), tag=tag)
            self.number += 1

    def _told(self, event: Any, outcome: str) -> None:
        index = self.unsettled.pop(event.delivery.tag, None)
        if index is not None:
            say("outcome", index=index, outcome=outcome)

    def on_accepted(self, event: Any) -> None:
        self._told(event, "accepted")

    def on_rejected(self, event: Any) -> None:
        self._told(event, "rejected")

    def on_released(self, event: Any) -> None:
        # proton calls this for `modified`, too.
        self._told(event, "modified" if event.delivery.remote_state == event.delivery.MODIFIED else "released")

    def on_connection_remote_close(self, event: Any) -> None:
        # proton goes on as if nothing had been said, and notices the end of the stream many seconds later.
        self.on_disconnected(event)

    def on_disconnected(self, event: Any) -> None:
        self.is_open = False
        for index in self.unsettled.values():
            say("outcome", index=index, outcome="unknown")
        self.unsettled.clear()

    def on_message(self, event: Any) -> None:
        say("message", body=event.message.body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="unused: the first of the routers")
    parser.add_argument("--urls", nargs="+")
    parser.add_argument("--address")
    parser.add_argument("--receive", action="store_true")
    Container(Roaming(parser.parse_args())).run()


if __name__ == "__main__":
    main()
