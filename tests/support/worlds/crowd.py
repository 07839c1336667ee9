"""A router with few links to keep, whose clients go on while other peers want too much of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.config.resumption import ResumptionConfig
from tests.support.peers.bystanders import Intruder
from tests.support.worlds.network import Network

if TYPE_CHECKING:
    from tests.support.worlds.network import Client

LIMITS: Final = ResumptionConfig(links=50, links_per_user=20, unsettled=30)


class Crowd:
    """A router with clients that do nothing wrong, and peers that want links kept."""

    def __init__(self) -> None:
        self.network = Network(resumption=LIMITS)
        self.producer, self.consumer = self.network.client("producer"), self.network.client("consumer")
        self.consumer.receiver("news", credit=1000)
        self.sender = self.producer.sender("news")
        self.taker: Client = self.network.client("taker")
        self.taker.receiver("a", credit=1000)

    def exchange(self) -> None:
        """Send a message from the producer to the consumer."""
        sent = self.producer.send(self.sender)
        self.consumer.take(1)[0].accept()
        self.network.run()
        assert sent.outcome == Accepted()

    def connect(self, **fields: int) -> Intruder:
        """Return a peer with a session, of the container that all of them are."""
        end = Intruder(self.network)
        end.peer.open(**fields)
        end.peer.begin()
        return end

    def check(self) -> None:
        """Assert that limits hold, and that others are served."""
        termini = self.network.core.context.termini
        assert termini.granted <= LIMITS.links_per_user
        assert termini.suspended_number <= termini.granted
        self.exchange()

    def finish(self, *ends: Intruder) -> None:
        """Lose these peers, and assert that nothing is left once the time is over."""
        for end in ends:
            end.leave()
        for arrival in self.taker.take():
            arrival.accept()
        self.network.advance(LIMITS.timeout + 1)
        assert self.network.core.context.termini.granted == 0
        assert self.network.relays == 0
        self.network.leave()
