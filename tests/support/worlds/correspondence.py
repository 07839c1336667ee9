"""Clients of a mesh that send messages to each other at random, and what they know of these.

Nothing is random but what a `Random` says, so what they do can be done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from random import Random
from typing import Final

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.address_syntax import split
from amqpmesh.router.amqp.link import Receiver, Sender
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, SenderSettleMode
from amqpmesh.router.amqp.standard.messaging import Source
from amqpmesh.router.config.file import AddressConfig, ListenerConfig
from tests.support.worlds.letters import Letter, Receipt, Rules
from tests.support.worlds.meshes import Wire, World
from tests.support.worlds.network import OUTCOMES, Arrival, Client, message
from tests.support.worlds.trails import Trails

MODES: Final = tuple(ReceiverSettleMode)
ATTEMPTS: Final = 2
CONFIGS: Final = (
    AddressConfig(pattern="near", distribution=Distribution.CLOSEST),
    AddressConfig(pattern="news", distribution=Distribution.MULTICAST),
    AddressConfig(pattern="again", redeliver=True, attempts=ATTEMPTS),
    AddressConfig(pattern="few", max_unsettled=2, max_credit=3),
)
ADDRESSES: Final = ("q", "near", "news", "again", "few")
MAX_LINKS: Final = 10


class Kind(Enum):
    """The events of a history, besides messages."""

    CALM = "calm"
    """Receivers stay, and take no credit back."""
    RESTLESS = "restless"
    """They do neither; the mesh stays as it is."""
    BREAKING = "breaking"
    """Connections and routers are lost, too."""


class Correspondence:
    """A mesh, its clients, and what they know of each other."""

    def __init__(self, random: Random, kind: Kind, *, most: int = 8, addresses: Sequence[str] = ADDRESSES) -> None:
        """Args: most: routers. addresses: what senders and receivers name."""
        self.random = random
        self.addresses = addresses
        self.kind = kind
        self.rules = Rules(
            faults=kind is Kind.BREAKING,
            departures=kind is not Kind.CALM,
            multicast=frozenset({"news"}),
            attempts={each: ATTEMPTS for each in addresses if split(each)[0] == "again"},
        )
        count = random.randint(2, most)
        self.names = [f"R{number}" for number in range(count)]
        edges = [
            (self.names[number], self.names[random.randrange(number)], random.randint(1, 4))
            for number in range(1, count)
        ]
        for _ in range(random.randint(0, count)):
            one, two = random.sample(self.names, 2)
            edges.append((one, two, random.randint(1, 4)))
        self.trails = Trails()
        self.memory = random.choice([256, 256, 2]) * 2**20 if self.rules.faults else 256 * 2**20
        latencies = random.choice([[0.0], [0.001], [0.0, 0.003, 0.02]])
        self.mesh = World(
            self.names,
            edges,
            *CONFIGS,
            latency=lambda: random.choice(latencies),
            tap=self.trails.hear,
            memory=self.memory,
        )
        self.gone: list[str] = []
        self.draining: list[str] = []
        self.clients: dict[Client, str] = {}
        self.senders: dict[Sender, tuple[Client, str | None]] = {}
        self.receivers: dict[Receiver, tuple[Client, str]] = {}
        self.dynamic: list[str] = []
        self.letters: dict[int, Letter] = {}
        self.partial: dict[Sender, Letter] = {}
        self.open: dict[Arrival, Letter] = {}
        self.of: dict[Arrival, Letter] = {}
        self.frozen: list[Wire] = []
        self.serial = 0
        #: A receiver has drained: the credit that it gave up may have been granted to producers already.
        self.has_drained = False
        for _ in range(random.randint(3, 7)):
            self.connect()
        for _ in range(6):
            self.attach_receiver()
        for _ in range(6):
            self.attach_sender()
        self.mesh.advance(1.0)

    # ------------------------------------------------------------------------------------------------ what clients do

    def connect(self) -> None:
        """Connect one more client."""
        routers = [each for each in self.mesh.nodes if each not in self.draining]
        if len(self.clients) < 9 and routers:
            self.serial += 1
            router = self.random.choice(routers)
            node = self.mesh[router]
            node.listener = ListenerConfig(
                url="amqp://127.0.0.1:0", max_frame_size=self.random.choice([512, 4096, 40_000]), idle_time_out=0.0
            )
            client = node.client(
                f"client-{self.serial}",
                max_frame_size=self.random.choice([512, 4096]),
                window=self.random.choice([2, 100]),
            )
            self.clients[client] = router

    def attach_sender(self) -> None:
        """Attach a producer, an anonymous one, or one to a dynamic node."""
        if self.clients and len(self.senders) < MAX_LINKS:
            client = self.random.choice(list(self.clients))
            address = self.random.choice([*self.addresses, None, *self.dynamic[-2:]])
            link = client.sender(address, snd=self.random.choice(list(SenderSettleMode)), rcv=self.random.choice(MODES))
            if link.is_attached:
                self.senders[link] = client, address

    def attach_receiver(self) -> None:
        """Attach a consumer, or one of a node of its own."""
        if self.clients and len(self.receivers) < MAX_LINKS:
            client = self.random.choice(list(self.clients))
            if client.stopped:
                return
            rcv, snd = self.random.choice(MODES), self.random.choice(list(SenderSettleMode))
            credit = self.random.randrange(1, 8)
            if self.random.random() < 0.2:
                link = client.receiver(None, rcv=rcv, snd=snd, credit=credit, source=Source(dynamic=True))
                assert link.remote is not None
                assert isinstance(link.remote.source, Source)
                address = link.remote.source.address
                assert address is not None
                self.dynamic.append(address)
            else:
                address = self.random.choice(self.addresses)
                link = client.receiver(address, rcv=rcv, snd=snd, credit=credit)
            self.receivers[link] = client, address

    def send(self) -> None:
        """Send a whole message, or its first part."""
        able = [each for each in self.senders if each.is_attached and each.credit and each not in self.partial]
        if able:
            link = self.random.choice(able)
            _, address = self.senders[link]
            self._send(link, address or self.random.choice([*self.addresses, *self.dynamic]))

    def _send(self, link: Sender, to: str) -> None:
        random = self.random
        client, address = self.senders[link]
        size = random.choice([0, 10, 600, 5000, 50_000, 100_000])
        ttl = random.randint(1, 2000) if random.random() < 0.1 else None
        priority = random.choice([0, 4, 4, 9])
        body = f"{self.serial + 1} " + "x" * size
        payload = message(body, to=to, ttl=ttl, priority=priority)
        if self._room(client) < len(payload):
            return
        self.serial += 1
        settled = self._settles(link)
        more = random.random() < 0.25
        sent = client.send(link, payload, settled=settled, more=more)
        letter = self.letters[self.serial] = Letter(
            self.serial, to, link, client, sent, settled, priority, ttl, anonymous=address is None, whole=not more
        )
        if self.dynamic and random.random() < 0.3:
            letter.reply_to = random.choice(self.dynamic)
        if more:
            self.partial[link] = letter

    def _settles(self, link: Sender) -> bool:
        """Return whether the next message is sent settled."""
        mode = self._mode(link)
        return mode is SenderSettleMode.SETTLED or (mode is SenderSettleMode.MIXED and self.random.random() < 0.3)

    @staticmethod
    def _mode(link: Sender) -> SenderSettleMode:
        """Return the mode that was agreed on."""
        assert link.remote is not None
        return link.remote.snd_settle_mode

    @staticmethod
    def _room(client: Client) -> int:
        """Return the octets that the session's window certainly takes."""
        return (client.session.flow_state.remote_incoming_window - 1) * (client.engine.remote_max_frame_size - 64)

    def finish(self) -> None:
        """Send the rest of a message, or end it."""
        able = [each for each in self.partial if each.is_attached and self._room(self.senders[each][0]) > 1000]
        if able:
            link = self.random.choice(able)
            letter = self.partial.pop(link)
            client, choice = letter.client, self.random.random()
            if choice < 0.3:
                letter.aborted = True
                client.resume(letter.sent, aborted=True)
            else:
                letter.whole = True
                settles = choice < 0.5 and self._mode(link) is not SenderSettleMode.UNSETTLED
                letter.forgotten = letter.forgotten or settles
                client.resume(letter.sent, b"rest", settled=settles)

    def answer(self) -> None:
        """Answer the messages that ask for it, by an anonymous sender."""
        asked = [arrival for arrival, letter in self.open.items() if letter.reply_to is not None]
        if asked:
            arrival = self.random.choice(asked)
            client, _ = self.receivers.get(arrival.link, (None, ""))
            links = [link for link, (owner, address) in self.senders.items() if owner is client and address is None]
            reply_to = self.open[arrival].reply_to
            if links and links[0].is_attached and links[0].credit and links[0] not in self.partial and reply_to:
                self._send(links[0], reply_to)

    def collect(self) -> None:
        """Take what has arrived at clients."""
        for client in list(self.clients):
            for arrival in client.arrivals:
                if arrival not in self.of and (number := _number(bytes(arrival.payload))) is not None:
                    letter = self.of[arrival] = self.letters[number]
                    letter.receipts.append(Receipt(arrival))
            for arrival in client.take():
                if not arrival.delivery.remote_settled and arrival.link in self.receivers:
                    self.open[arrival] = self.of[arrival]

    def dispose(self) -> None:
        """Let a receiver decide deliveries."""
        if self.open:
            arrival = self.random.choice(list(self.open))
            letter = self.open.pop(arrival)
            outcome = self.random.choice([*OUTCOMES, "accepted", "accepted"])
            letter.receipt(arrival).state = OUTCOMES[outcome]
            arrival.dispose(OUTCOMES[outcome], settled=self.random.random() < 0.6)
            self.mesh.run()

    def settle(self) -> None:
        """Let a sender settle, with or without an outcome."""
        able = [
            each
            for each in self.letters.values()
            if each.whole and not each.sent.delivery.settled and each.sender in self.senders
        ]
        if able:
            letter = self.random.choice(able)
            letter.forgotten = letter.sent.outcome is None
            letter.sent.dispose(letter.sent.outcome, settled=True)
            self.mesh.run()

    def flow(self) -> None:
        """Let a receiver give more credit, or drain."""
        if self.receivers:
            receiver = self.random.choice(list(self.receivers))
            if receiver.is_attached:
                credit = max(receiver.credit, self.random.randrange(1, 8))
                drain = self.random.random() < 0.2
                self.has_drained = self.has_drained or drain
                receiver.flow(credit, drain=drain)
                self.mesh.run()

    def lower(self) -> None:
        """Let a receiver take credit back."""
        if self.receivers:
            receiver = self.random.choice(list(self.receivers))
            if receiver.is_attached and receiver.credit:
                receiver.flow(self.random.randrange(receiver.credit))
                self.mesh.run()

    def wait(self) -> None:
        """Let time pass."""
        self.mesh.advance(self.random.choice([0.01, 0.05, 0.3, 2.0, 5.0] if not self.frozen else [0.01, 0.3, 4.0]))

    def stop_reading(self) -> None:
        """Stop a client's reading, or start it again."""
        if self.clients:
            client = self.random.choice(list(self.clients))
            client.stopped = not client.stopped
            self.mesh.run()

    def detach_sender(self) -> None:
        """Detach a sender."""
        if self.senders:
            self._detach(self.random.choice(list(self.senders)))

    def detach_receiver(self) -> None:
        """Detach a receiver, with what it has not decided."""
        if self.receivers:
            self._detach(self.random.choice(list(self.receivers)))

    def _detach(self, link: Sender | Receiver) -> None:
        if link.is_attached:
            link.detach()
            self.mesh.run()
        self._forget(link)

    def _forget(self, link: Sender | Receiver) -> None:
        if isinstance(link, Sender):
            self.senders.pop(link, None)
            partial = self.partial.pop(link, None)
            if partial is not None:
                partial.aborted = True
        else:
            self.receivers.pop(link, None)
            for arrival in [each for each in self.open if each.link is link]:
                del self.open[arrival]

    def leave(self) -> None:
        """Close a client's connection, or cut it."""
        if self.clients:
            client = self.random.choice(list(self.clients))
            self.collect()
            del self.clients[client]
            if self.random.random() < 0.5 and not client.stopped:
                client.close()
            else:
                client.lose()
            self._forget_all(client)

    def _forget_all(self, client: Client) -> None:
        for link in [each for each, (owner, _) in self.senders.items() if owner is client]:
            self._forget(link)
        for receiver in [each for each, (owner, _) in self.receivers.items() if owner is client]:
            self._forget(receiver)


def _number(payload: bytes) -> int | None:
    """Return the number that a message begins with; None: too little of it has arrived."""
    at = payload.find(b"\x00\x53\x77")
    if at < 0:
        return None
    at += 3
    at += 2 if payload[at] == 0xA1 else 5
    number, space, _ = payload[at:].partition(b" ")
    return int(number) if space else None
