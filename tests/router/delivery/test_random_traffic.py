"""Random clients, links, messages, outcomes and departures at one router: both sides' accounts agree.

A seed is one history. Nothing is random but that, so a history that fails can be run again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from random import Random

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.link import Receiver, Sender
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.config.file import AddressConfig, ListenerConfig
from tests.support.worlds.network import OUTCOMES, Arrival, Client, Network, Sent, message

ADDRESSES = ("q", "again", "news", "limited")
MODES = tuple(ReceiverSettleMode)


class History:
    """One router, up to six clients, and what they know of each other."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.network = Network(
            AddressConfig(pattern="again", redeliver=True, attempts=2),
            AddressConfig(pattern="news", distribution=Distribution.MULTICAST),
            AddressConfig(pattern="limited", max_unsettled=2, max_credit=3),
        )
        self.network.listener = ListenerConfig(
            url="amqp://127.0.0.1:0",
            session_window=random.choice([1, 3, 64]),
            max_frame_size=random.choice([512, 4096]),
            idle_time_out=0.0,
        )
        self.clients: list[Client] = []
        self.senders: dict[Sender, Client] = {}
        self.receivers: dict[Receiver, Client] = {}
        self.open: dict[Arrival, None] = {}
        self.partial: dict[Sender, Sent] = {}
        #: Sent unsettled, and not settled by their sender.
        self.sent: dict[Sent, None] = {}
        self.outcomes = 0
        self.serial = 0
        for _ in range(4):
            self.connect()
        for _ in range(5):
            self.attach_receiver()
            self.attach_sender()

    def run(self, steps: int) -> None:
        """Take random steps."""
        actions = [
            (3, self.connect),
            (6, self.attach_sender),
            (6, self.attach_receiver),
            (30, self.send),
            (15, self.finish),
            (25, self.dispose),
            (4, self.settle),
            (12, self.flow),
            (3, self.wait),
            (3, self.detach),
            (1, self.leave),
            (1, self.end_session),
        ]
        weights = [weight for weight, _ in actions]
        for _ in range(steps):
            self.random.choices([action for _, action in actions], weights)[0]()
            for client in self.clients:
                for arrival in client.take():
                    if not arrival.delivery.remote_settled:
                        self.open[arrival] = None

    def connect(self) -> None:
        """One more client."""
        if len(self.clients) < 6:
            self.serial += 1
            client = self.network.client(
                f"client-{self.serial}",
                max_frame_size=self.random.choice([512, 2048]),
                window=self.random.choice([1, 2, 100]),
            )
            self.clients.append(client)

    def attach_sender(self) -> None:
        """Attach a producer, with or without an address."""
        if self.clients and len(self.senders) < 8:
            client = self.random.choice(self.clients)
            address = self.random.choice([*ADDRESSES, None])
            self.senders[client.sender(address, rcv=self.random.choice(MODES))] = client

    def attach_receiver(self) -> None:
        """Attach a consumer, or a browser."""
        if self.clients and len(self.receivers) < 8:
            client = self.random.choice(self.clients)
            receiver = client.receiver(
                self.random.choice(ADDRESSES),
                rcv=self.random.choice(MODES),
                credit=self.random.randrange(6),
                copy=self.random.random() < 0.2,
            )
            self.receivers[receiver] = client

    def send(self) -> None:
        """Send a whole message, or its first part."""
        able = [each for each in self.senders if each.credit and each not in self.partial]
        if not able:
            return
        link = self.random.choice(able)
        client = self.senders[link]
        self.serial += 1
        size = self.random.choice([0, 10, 600, 5000])
        payload = message(f"{self.serial} " + "x" * size, to=self.random.choice(ADDRESSES))
        if self._room(client) < len(payload):
            return
        settled = self.random.random() < 0.3
        more = self.random.random() < 0.3
        sent = client.send(link, payload, settled=settled, more=more)
        if more:
            self.partial[link] = sent
        if not settled:
            self.sent[sent] = None

    @staticmethod
    def _room(client: Client) -> int:
        """Octets that the session's window takes for certain."""
        return (client.session.flow_state.remote_incoming_window - 1) * (client.engine.remote_max_frame_size - 64)

    def finish(self) -> None:
        """Send the rest of a message, or end it."""
        able = [each for each in self.partial if self._room(self.senders[each]) > 1000]
        if able:
            link = self.random.choice(able)
            sent = self.partial.pop(link)
            choice = self.random.random()
            if choice < 0.3:
                self.sent.pop(sent, None)
                self.senders[link].resume(sent, aborted=True)
            elif choice < 0.5:
                self.sent.pop(sent, None)
                self.senders[link].resume(sent, b"rest", settled=True)
            else:
                self.senders[link].resume(sent, b"rest")

    def dispose(self) -> None:
        """Let a receiver decide a delivery."""
        if self.open:
            arrival = self.random.choice(list(self.open))
            outcome = self.random.choice([*OUTCOMES, "none", "later"])
            if outcome == "later":
                return
            del self.open[arrival]
            self.outcomes += 1
            if outcome == "none":
                arrival.dispose(None, settled=True)
            else:
                arrival.dispose(OUTCOMES[outcome], settled=self.random.random() < 0.6)
            self.network.run()

    def settle(self) -> None:
        """Let a sender settle, with or without an outcome."""
        able = [each for each in self.sent if each.delivery.complete and not each.delivery.settled]
        if able:
            sent = self.random.choice(able)
            del self.sent[sent]
            sent.dispose(sent.outcome, settled=True)
            self.network.run()

    def flow(self) -> None:
        """Let a receiver change its credit."""
        if self.receivers:
            receiver = self.random.choice(list(self.receivers))
            receiver.flow(self.random.randrange(8), drain=self.random.random() < 0.3)
            self.network.run()

    def wait(self) -> None:
        """Time passes."""
        self.network.advance(self.random.choice([0.01, 0.3, 2.0]))

    def detach(self) -> None:
        """Detach a link."""
        links = [*self.senders, *self.receivers]
        if links:
            link = self.random.choice(links)
            link.detach(closed=self.random.random() < 0.7)
            self.network.run()
            self._forget(link)

    def end_session(self) -> None:
        """End a session, and begin another one."""
        if self.clients:
            client = self.random.choice(self.clients)
            client.session.end()
            self._forget_all(client)
            client.session = client.engine.begin()
            self.network.run()

    def leave(self) -> None:
        """Close a client's connection, or cut it."""
        if self.clients:
            client = self.random.choice(self.clients)
            self.clients.remove(client)
            if self.random.random() < 0.5:
                client.close()
            else:
                client.lose()
            self._forget_all(client)

    def _forget_all(self, client: Client) -> None:
        everything: dict[Sender | Receiver, Client] = {**self.senders, **self.receivers}
        for link, owner in everything.items():
            if owner is client:
                self._forget(link)
        self.sent = {each: None for each in self.sent if each.link.session is not client.session}
        self.open = {each: None for each in self.open if each.link.session is not client.session}

    def _forget(self, link: Sender | Receiver) -> None:
        # Deliveries of a link that was detached without being closed live on, unless their frames were not all sent.
        if isinstance(link, Sender):
            self.senders.pop(link, None)
            partial = self.partial.pop(link, None)
            self.sent = {
                each: None for each in self.sent if each.link is not link or (not _closed(link) and each is not partial)
            }
        else:
            self.receivers.pop(link, None)
            self.open = {each: None for each in self.open if each.link is not link or not _closed(link)}

    def end(self) -> None:
        """All messages are ended and decided; then every sender has heard an outcome, and nothing is left."""
        for link, sent in list(self.partial.items()):
            self.sent.pop(sent, None)
            if link not in self.senders:
                continue
            if self._room(self.senders[link]) > 0 and link.is_attached:
                self.senders[link].resume(sent, aborted=True)
            else:
                client = self.senders[link]
                client.lose()
                self.clients.remove(client)
                self._forget_all(client)
        for receiver in list(self.receivers):
            receiver.flow(0)
        self.network.advance(3.0)
        for client in self.clients:
            for arrival in client.take():
                self.open[arrival] = None
        for arrival in list(self.open):
            arrival.dispose(Accepted(), settled=True)
        self.network.run()
        for receiver in list(self.receivers):
            receiver.detach()
        self.network.run()
        unheard = [each for each in self.sent if each.outcome is None]
        assert not unheard, f"{len(unheard)} senders never heard"
        self.network.leave()


def freed(network: Network) -> bool:
    """Tell whether all connections and links of a router without clients are freed, without the garbage collector."""
    for client in network.clients:
        del client.record
    return network.core.count_garbage_and_present() == (0, 0)


def _closed(link: Sender | Receiver) -> bool:
    """Its deliveries can no longer be spoken of."""
    return all(each.delivery_id == -1 for each in link.terminus.unsettled.values())


@pytest.fixture
def _no_garbage_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_garbage_collection")
@pytest.mark.parametrize("block", range(10))
def test_whatever_happens_every_sender_hears_and_nothing_is_left(block: int) -> None:
    outcomes = 0
    for seed in range(block * 20, block * 20 + 20):
        history = History(Random(seed))
        try:
            history.run(200)
            history.end()
            history.network.advance(100.0)  # until no timer is left
            assert freed(history.network), "the rest waits for the garbage collector"
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        outcomes += history.outcomes
    assert outcomes > 100, "these histories were of little use"
