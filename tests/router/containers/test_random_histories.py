"""Random histories of remote nodes: each sender gets an outcome, and nothing is left."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.policies.redirect import Redirect
from amqpmesh.router.amqp.link import Link, Sender
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, LinkCondition
from amqpmesh.router.config.file import AddressConfig, ElsewhereConfig, RedirectConfig
from amqpmesh.router.model.redirects import info
from tests.router.containers.test_remote_nodes import Far
from tests.support.peers.broker import Broker
from tests.support.worlds.network import OUTCOMES, Client, Sent, message

NAMES = ("elsewhere/a", "elsewhere/b", "other/c", "orders@b.example")
PLACES = (
    AddressConfig(pattern="elsewhere/#", redirect=RedirectConfig(network_host="10.0.0.2", port=5672, follow="router")),
    AddressConfig(pattern="other/#", redirect=RedirectConfig(network_host="10.0.0.3", port=5672, follow="router")),
)
REFUSALS = (
    Error(condition=AmqpCondition.NOT_FOUND),
    Error(condition=LinkCondition.STOLEN),
    Error(condition=LinkCondition.REDIRECT, info=info(Redirect(port=5673))),
    Error(condition=LinkCondition.REDIRECT, info=info(Redirect(hostname="c.example"))),
)


class History:
    """A router, its clients, and the places that it connects to. `step` lets something happen."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        config = ElsewhereConfig(domains=("b.example",), places=3, nodes=3, idle=2.0)
        self.n = Far(*PLACES, elsewhere=config)
        self.clients = [self.n.client() for _ in range(2)]
        self.links: list[tuple[Client, Link]] = []
        self.brokers: dict[str, Broker] = {}
        self.sent: list[Sent] = []

    def step(self, what: str) -> None:
        getattr(self, what)()
        self.n.run()

    def _link(self) -> tuple[Client, Link] | None:
        attached = [each for each in self.links if each[1].is_attached]
        return self.chance.choice(attached) if attached else None

    def _broker(self) -> Broker | None:
        there = [each for each in self.brokers.values() if not each.is_lost]
        return self.chance.choice(there) if there else None

    def attach(self) -> None:
        client, name = self.chance.choice(self.clients), self.chance.choice(NAMES)
        if self.chance.random() < 0.2:
            self.links.append((client, client.sender(None)))
        elif self.chance.random() < 0.5:
            self.links.append((client, client.sender(name)))
        else:
            self.links.append((client, client.receiver(name)))

    def detach(self) -> None:
        found = self._link()
        if found is not None:
            found[1].detach()
            # The sender cannot learn the outcomes of its messages any more.
            self.sent = [each for each in self.sent if each.link is not found[1]]

    def send(self) -> None:
        found = self._link()
        if found is not None and isinstance(found[1], Sender) and found[1].credit:
            client, link = found
            self.sent.append(client.send(link, message(to=self.chance.choice(NAMES))))

    def decide(self) -> None:
        for peer in (*self.clients, *self.brokers.values()):
            for arrival in peer.take() if not peer.is_lost else ():
                arrival.dispose(OUTCOMES[self.chance.choice(sorted(OUTCOMES))], settled=True)

    def connect(self) -> None:
        for place in list(self.n.wanted):
            if place in self.n.wanted and (place not in self.brokers or self.brokers[place].is_lost):
                refused = self.chance.sample(NAMES, 2)
                refuses = {name.partition("@")[0]: self.chance.choice(REFUSALS) for name in refused}
                self.brokers[place] = self.n.broker(place, refuses=refuses)

    def cut(self) -> None:
        broker = self._broker()
        if broker is not None:
            broker.lose()

    def give(self) -> None:
        broker = self._broker()
        for link in [*broker.links.values()] if broker is not None else ():
            if isinstance(link, Sender) and link.is_attached and link.credit and broker is not None:
                broker.send(link)

    def part(self) -> None:
        broker = self._broker()
        links = [each for each in broker.links.values() if each.is_attached] if broker is not None else []
        if links:
            self.chance.choice(links).detach(error=self.chance.choice((None, *REFUSALS)))

    def wait(self) -> None:
        self.n.advance(self.chance.choice((0.05, 0.3, 2.5, 12.0)))

    def end(self) -> None:
        """Settle all deliveries, end all links and connections, and check that nothing is left."""
        for broker in self.brokers.values():
            broker.refuses.clear()
        for _ in range(3):
            self.connect()
            self.decide()
            self.n.advance(40.0)
        self.decide()
        self.n.run()
        assert all(each.said for each in self.sent)
        self.n.leave()


ACTS = ("attach", "attach", "send", "send", "decide", "connect", "cut", "give", "part", "detach", "wait")


@settings(max_examples=50, deadline=None)
@given(st.randoms(use_true_random=False), st.lists(st.sampled_from(ACTS), min_size=5, max_size=40))
def test_every_sender_hears_an_outcome_and_nothing_is_left(chance: Random, acts: list[str]) -> None:
    history = History(chance)
    for act in acts:
        history.step(act)
    history.end()
