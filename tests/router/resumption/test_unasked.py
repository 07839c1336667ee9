"""Peers that ask for no resumption: each octet that they get is that of a router which keeps nothing."""

from __future__ import annotations

import pytest

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.messaging import Source, Target, TerminusDurability, TerminusExpiryPolicy
from amqpmesh.router.amqp.standard.performatives import Detach, Disposition
from amqpmesh.router.config.resumption import ResumptionConfig
from tests.support.peers.bystanders import Intruder
from tests.support.peers.scripted import Script, attached, flow, frame, transferred
from tests.support.worlds.network import Network, message

FIRST, SECOND = ReceiverSettleMode
DURABLE = {"expiry_policy": TerminusExpiryPolicy.NEVER, "durable": TerminusDurability.UNSETTLED_STATE}

#: The termini and fields of attaches, as some clients write them.
STYLES: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "proton": ({}, {"snd_settle_mode": SenderSettleMode.MIXED}),
    "rhea": ({"expiry_policy": TerminusExpiryPolicy.SESSION_END}, {}),
    "go-amqp": ({"expiry_policy": TerminusExpiryPolicy.SESSION_END}, {"snd_settle_mode": SenderSettleMode.MIXED}),
    "qpid-jms, durable": (DURABLE, {}),
    "mode second": ({}, {"rcv_settle_mode": SECOND}),
}


class Peer:
    """A client with a sender and a receiver, and all octets that its connections have got."""

    def __init__(self, network: Network, style: str) -> None:
        self.network = network
        self.terminus, self.fields = STYLES[style]
        self.octets: list[bytes] = []
        self.connect()

    def connect(self) -> None:
        self.end = Intruder(self.network)
        self.peer = Script(self.end.give, self.take)
        self.peer.open()
        self.peer.begin()

    def take(self) -> bytes:
        octets = bytes(self.end.take())
        self.octets.append(octets)
        return octets

    def attach(self) -> None:
        """Attach both links, and give credit for two messages."""
        target = Target(address="q", **self.terminus)  # type: ignore[arg-type]
        sends = attached(Role.SENDER, "q", name="out", target=target, **self.fields)
        source = Source(address="q", **self.terminus)  # type: ignore[arg-type]
        takes = attached(Role.RECEIVER, "q", name="in", handle=1, source=source, **self.fields)
        self.peer.write(sends, takes, flow(handle=1, link_credit=2, delivery_count=0))
        self.peer.hear()

    def send(self, first: int) -> None:
        """Send two messages, and decide the first of them."""
        for number in (first, first + 1):
            self.peer.write(frame(transferred(number), message(number)))
        self.peer.hear()
        self.peer.write(Disposition(role=Role.RECEIVER, first=first, settled=True, state=Accepted()))
        self.peer.hear()


def told(style: str, limits: ResumptionConfig) -> list[bytes]:
    """Tell the story of a client that is detached, lost, and there again. Returns: the octets that it has got."""
    network = Network(resumption=limits)
    client = Peer(network, style)
    client.attach()
    client.send(0)
    client.peer.write(Detach(handle=1), Detach(handle=0))
    client.peer.hear()
    client.attach()
    client.end.leave()
    client.connect()
    client.attach()
    client.send(0)
    client.end.leave()
    assert network.core.context.termini.granted == network.core.context.termini.suspended_number == 0
    network.advance(61.0)
    network.leave()
    return client.octets


@pytest.mark.parametrize("style", STYLES)
def test_who_asks_for_nothing_gets_the_octets_of_a_router_that_keeps_nothing(style: str) -> None:
    octets = told(style, ResumptionConfig())
    assert sum(map(len, octets)) > 400
    assert octets == told(style, ResumptionConfig(timeout=0.0, links=0, links_per_user=0, keep=0))
