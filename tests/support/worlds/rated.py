"""Senders at full speed to a router with a policy, in virtual time."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from amqpmesh.router.config.policy_file import parse_policy
from tests.support.worlds.network import Client, Network, message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpmesh.router.amqp.link import Receiver, Sender
    from amqpmesh.router.config.file import AddressConfig
    from amqpmesh.router.model.links import IncomingLink


def limits(tenant: str = "", user: str = "", **of_users: str) -> str:
    """Return a policy with one tenant, whose clients may do everything within limits.

    Args: user: of each client. of_users: of users by name, beside those.
    """
    groups = "".join(
        f'[[group]]\nname = "{name}"\ntenant = "t"\nusers = ["{name}"]\nlimits = {{ {text} }}\n'
        for name, text in of_users.items()
    )
    return (
        f'[[tenant]]\nname = "t"\ndefault = true\nlimits = {{ {tenant} }}\n'
        '[[group]]\nname = "g"\ntenant = "t"\nsend = ["#"]\nreceive = ["#"]\nmay = ["anonymous"]\n'
        f"limits = {{ {user} }}\n{groups}"
    )


class Rated(Network):
    """A router whose senders send as much as they get credit for, and whose receivers accept all."""

    def __init__(self, policy: str, *addresses: AddressConfig, **settings: object) -> None:
        super().__init__(*addresses, **settings)  # type: ignore[arg-type]  # as of `Network`
        self.load(policy)
        #: Messages that each sender has sent.
        self.sent: dict[Sender, int] = {}
        self._bodies: dict[Sender, tuple[Client, bytes, bool]] = {}
        self._receivers: list[tuple[Client, Receiver, int]] = []

    def load(self, policy: str) -> None:
        """Put a policy in force."""
        self.core.set_policy(parse_policy(tomllib.loads(policy), Path("policy.toml")), self.now)
        self.run()

    def sender(
        self, address: str | None, payload: bytes | None = None, *, settled: bool = False, client: Client | None = None
    ) -> Sender:
        """Attach a sender on a connection of its own."""
        client = client or self.client()
        link = client.sender(address)
        self.sent[link] = 0
        self._bodies[link] = client, message() if payload is None else payload, settled
        return link

    def receiver(self, address: str, credit: int = 500) -> Receiver:
        """Attach a receiver that has so much credit again after each turn."""
        client = self.client()
        link = client.receiver(address, credit=credit)
        self._receivers.append((client, link, credit))
        return link

    def incoming(self, link: Sender) -> IncomingLink:
        """Return the router's side of a sender."""
        return next(each for each in self._bodies[link][0].record.incoming if each.endpoint.name == link.name)

    def send_one(self, link: Sender) -> None:
        """Send one message, within the credit of its sender."""
        client, payload, settled = self._bodies[link]
        client.send(link, payload, settled=settled)
        self.sent[link] += 1
        self.run()
        self._accept()

    def go(self, seconds: float, only: Sequence[Sender] = ()) -> None:
        """Let the senders, or only some of them, send for a while."""
        end = self.now + seconds
        self.run()
        while True:
            while self._step(only):
                pass
            due = self.core.next_timer()
            if due is None or due > end + 1e-9:  # times are sums of fractions
                break
            self.advance(max(0.0, due - self.now))
        self.advance(max(0.0, end - self.now))
        while self._step(only):
            pass

    def _step(self, only: Sequence[Sender]) -> bool:
        moved = False
        for link, (client, payload, settled) in self._bodies.items():
            while link.credit and link.is_attached and (not only or link in only):
                client.send(link, payload, settled=settled)
                self.sent[link] += 1
                moved = True
        return self._accept() or moved

    def _accept(self) -> bool:
        moved = False
        for client, receiver, credit in self._receivers:
            came = client.take()
            moved = moved or bool(came)
            for each in came:
                if not each.delivery.remote_settled:
                    each.accept()
            if came and receiver.is_attached:
                receiver.flow(credit)
        self.run()
        return moved
