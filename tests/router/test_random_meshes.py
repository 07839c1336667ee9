"""Random meshes, clients, messages, outcomes and faults: what senders heard and what receivers did agree.

A seed is one history. Nothing is random but that, so a history that fails can be run again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.delivery_states import Accepted, DeliveryState, Modified, Released
from amqpmesh.router.amqp.link import Receiver, Sender
from amqpmesh.router.amqp.messaging import Source
from amqpmesh.router.config import AddressConfig, ListenerConfig
from tests.support.meshes import Wire, World
from tests.support.network import OUTCOMES, Arrival, Client, Sent, message

MODES = tuple(ReceiverSettleMode)
CONFIGS = (
    AddressConfig(pattern="near", distribution=Distribution.CLOSEST),
    AddressConfig(pattern="news", distribution=Distribution.MULTICAST),
)
ADDRESSES = ("q", "near", "news")


@dataclass(eq=False)
class Letter:
    """One message, and what became of it."""

    number: int
    to: str
    sender: Sender
    client: Client
    sent: Sent
    settled: bool
    #: Sent to the end, not aborted.
    whole: bool = True
    aborted: bool = False
    #: The sender settled it before it heard.
    forgotten: bool = False
    arrivals: list[tuple[Receiver, Arrival, DeliveryState | str | None]] = field(default_factory=list)


class History:
    """A mesh, its clients, and what they know of each other."""

    def __init__(self, random: Random, *, faults: bool) -> None:
        self.random = random
        self.faults = faults
        count = random.randint(2, 8)
        self.names = [f"R{number}" for number in range(count)]
        edges = [
            (self.names[number], self.names[random.randrange(number)], random.randint(1, 4))
            for number in range(1, count)
        ]
        for _ in range(random.randint(0, count)):
            one, two = random.sample(self.names, 2)
            edges.append((one, two, random.randint(1, 4)))
        self.edges = edges
        self.mesh = World(self.names, edges, *CONFIGS)
        self.gone: list[str] = []
        self.clients: dict[Client, str] = {}
        self.senders: dict[Sender, tuple[Client, str | None]] = {}
        self.receivers: dict[Receiver, tuple[Client, str]] = {}
        self.dynamic: list[str] = []
        self.letters: dict[int, Letter] = {}
        self.partial: dict[Sender, Letter] = {}
        self.open: dict[Arrival, Letter] = {}
        self.owing: dict[Sent, Letter] = {}
        self.frozen: list[Wire] = []
        self.serial = 0
        for _ in range(random.randint(3, 7)):
            self.connect()
        for _ in range(6):
            self.attach_receiver()
        for _ in range(6):
            self.attach_sender()
        self.mesh.advance(1.0)

    def run(self, steps: int) -> None:
        """Take random steps."""
        actions = [
            (2, self.connect),
            (5, self.attach_sender),
            (5, self.attach_receiver),
            (40, self.send),
            (15, self.finish),
            (30, self.dispose),
            (4, self.settle),
            (10, self.flow),
            (8, self.wait),
            (2, self.detach),
        ]
        if self.faults:
            actions += [
                (1, self.leave),
                (3, self.cut),
                (3, self.join),
                (2, self.kill),
                (2, self.restart),
                (2, self.freeze),
                (2, self.cost),
                (1, self.partition),
            ]
        for _ in range(steps):
            self.random.choices([action for _, action in actions], [weight for weight, _ in actions])[0]()
            self.collect()

    # ------------------------------------------------------------------------------------------------ what clients do

    def connect(self) -> None:
        """One more client."""
        if len(self.clients) < 9 and self.mesh.nodes:
            self.serial += 1
            router = self.random.choice(list(self.mesh.nodes))
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
        """A producer, an anonymous one, or one to a dynamic node."""
        if self.clients and len(self.senders) < 10:
            client = self.random.choice(list(self.clients))
            address = self.random.choice([*ADDRESSES, None, *self.dynamic[-2:]])
            link = client.sender(address, rcv=self.random.choice(MODES))
            if link.is_attached:
                self.senders[link] = client, address

    def attach_receiver(self) -> None:
        """A consumer, or one of a node of its own."""
        if self.clients and len(self.receivers) < 10:
            client = self.random.choice(list(self.clients))
            rcv, credit = self.random.choice(MODES), self.random.randrange(1, 8)
            if self.random.random() < 0.2:
                link = client.receiver(None, rcv=rcv, credit=credit, source=Source(dynamic=True))
                assert link.remote is not None
                assert isinstance(link.remote.source, Source)
                address = link.remote.source.address
                assert address is not None
                self.dynamic.append(address)
            else:
                address = self.random.choice(ADDRESSES)
                link = client.receiver(address, rcv=rcv, credit=credit)
            self.receivers[link] = client, address

    def send(self) -> None:
        """A whole message, or its first part."""
        able = [each for each in self.senders if each.is_attached and each.credit and each not in self.partial]
        if not able:
            return
        link = self.random.choice(able)
        client, address = self.senders[link]
        to = address or self.random.choice([*ADDRESSES, *self.dynamic])
        self.serial += 1
        size = self.random.choice([0, 10, 600, 5000, 50_000, 100_000])
        payload = message(f"{self.serial} " + "x" * size, to=to)
        if self._room(client) < len(payload):
            return
        settled, more = self.random.random() < 0.3, self.random.random() < 0.25
        sent = client.send(link, payload, settled=settled, more=more)
        letter = self.letters[self.serial] = Letter(self.serial, to, link, client, sent, settled, whole=not more)
        if more:
            self.partial[link] = letter

    @staticmethod
    def _room(client: Client) -> int:
        """Octets that the session's window takes for certain."""
        return (client.session.flow_state.remote_incoming_window - 1) * (client.engine.remote_max_frame_size - 64)

    def finish(self) -> None:
        """The rest of a message, or its end."""
        able = [each for each in self.partial if each.is_attached and self._room(self.senders[each][0]) > 1000]
        if able:
            link = self.random.choice(able)
            letter = self.partial.pop(link)
            client, choice = letter.client, self.random.random()
            if choice < 0.3:
                letter.aborted = True
                client.go_on(letter.sent, aborted=True)
            else:
                letter.whole = True
                letter.settled = letter.settled or choice < 0.5
                client.go_on(letter.sent, b"rest", settled=choice < 0.5)

    def collect(self) -> None:
        """What has arrived at clients."""
        for client in list(self.clients):
            for arrival in client.take():
                letter = self.letters[_number(bytes(arrival.payload))]
                letter.arrivals.append((arrival.link, arrival, None))
                if not arrival.delivery.remote_settled:
                    self.open[arrival] = letter

    def dispose(self) -> None:
        """A receiver decides."""
        if self.open:
            arrival = self.random.choice(list(self.open))
            letter = self.open.pop(arrival)
            if self.receivers_client(arrival) is None:
                return
            outcome = self.random.choice([*OUTCOMES, "accepted", "accepted"])
            self._note(letter, arrival, OUTCOMES[outcome])
            arrival.dispose(OUTCOMES[outcome], settled=self.random.random() < 0.6)
            self.mesh.run()

    def receivers_client(self, arrival: Arrival) -> Client | None:
        """Whose arrival it is, if that is still connected."""
        client, _ = self.receivers.get(arrival.link, (None, ""))
        return client

    @staticmethod
    def _note(letter: Letter, arrival: Arrival, state: DeliveryState) -> None:
        letter.arrivals = [(link, each, state if each is arrival else said) for link, each, said in letter.arrivals]

    def settle(self) -> None:
        """A sender settles, with or without having heard."""
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
        """A receiver changes its credit."""
        if self.receivers:
            receiver = self.random.choice(list(self.receivers))
            if receiver.is_attached:
                receiver.flow(self.random.randrange(1, 8), drain=self.random.random() < 0.2)
                self.mesh.run()

    def wait(self) -> None:
        """Time passes."""
        self.mesh.advance(self.random.choice([0.01, 0.05, 0.3, 2.0, 5.0] if not self.frozen else [0.01, 0.3, 4.0]))

    def detach(self) -> None:
        """A sender is detached, or a receiver."""
        links: list[Sender | Receiver] = [*self.senders]
        if self.faults:
            links += self.receivers
        if links:
            link = self.random.choice(links)
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
        """A client goes, or its cable is pulled."""
        if self.clients:
            client = self.random.choice(list(self.clients))
            self.collect()
            del self.clients[client]
            if self.random.random() < 0.5:
                client.close()
            else:
                client.lose()
            self._forget_all(client)

    def _forget_all(self, client: Client) -> None:
        for link in [each for each, (owner, _) in self.senders.items() if owner is client]:
            self._forget(link)
        for receiver in [each for each, (owner, _) in self.receivers.items() if owner is client]:
            self._forget(receiver)

    # ------------------------------------------------------------------------------------------------------ what breaks

    def cut(self) -> None:
        """A connection is lost."""
        if self.mesh.wires:
            wire = self.random.choice(self.mesh.wires)
            self.frozen = [each for each in self.frozen if each is not wire]
            self.mesh.cut(wire)

    def join(self) -> None:
        """There is one more."""
        if len(self.mesh.nodes) > 1 and len(self.mesh.wires) < 2 * len(self.names):
            one, two = self.random.sample(list(self.mesh.nodes), 2)
            self.mesh.join(one, two, self.random.randint(1, 4))

    def kill(self) -> None:
        """A router dies."""
        if len(self.mesh.nodes) > 2:
            router = self.random.choice(list(self.mesh.nodes))
            self.collect()
            for client in [each for each, where in self.clients.items() if where == router]:
                del self.clients[client]
                client.is_lost = True
                self._forget_all(client)
            self.mesh.kill(router)
            self.frozen = [each for each in self.frozen if each in self.mesh.wires]
            self.gone.append(router)

    def restart(self) -> None:
        """One that died is back."""
        if self.gone:
            router = self.gone.pop(self.random.randrange(len(self.gone)))
            self.mesh.start(router)
            other = self.random.choice([each for each in self.mesh.nodes if each != router])
            self.mesh.join(router, other, self.random.randint(1, 4))

    def freeze(self) -> None:
        """A connection carries nothing, or does so again."""
        if self.frozen:
            self.frozen.pop().frozen = False
            self.mesh.run()
        elif self.mesh.wires:
            wire = self.random.choice(self.mesh.wires)
            wire.frozen = True
            self.frozen.append(wire)

    def cost(self) -> None:
        """A cost is changed."""
        if self.mesh.wires:
            core, record = self.random.choice(self.random.choice(self.mesh.wires).ends)
            assert core.mesh is not None
            neighbour = core.mesh.neighbours.get(record)
            if neighbour is not None:
                core.mesh.set_cost(neighbour, self.random.randint(1, 6))
                self.mesh.run()

    def partition(self) -> None:
        """All connections of some routers are lost."""
        some = {each for each in self.mesh.nodes if self.random.random() < 0.5}
        self.mesh.cut(*[each for each in self.mesh.wires if len(each.routers & some) == 1])
        self.frozen = [each for each in self.frozen if each in self.mesh.wires]

    # ---------------------------------------------------------------------------------------------------------- the end

    def heal(self) -> None:
        """Nothing is broken any more."""
        for wire in self.frozen:
            wire.frozen = False
        self.mesh.run()
        while self.gone:
            self.restart()
        if self.faults:
            for one, two in pairwise(self.mesh.nodes):
                if not self.mesh.between(one, two):
                    self.mesh.join(one, two)
        self.mesh.advance(60.0)

    def end(self) -> None:
        """All is ended and decided; then all accounts agree."""
        self.heal()
        self.collect()
        for link, letter in list(self.partial.items()):
            letter.aborted = True
            if link.is_attached and self._room(letter.client) > 0:
                letter.client.go_on(letter.sent, aborted=True)
            else:
                self.clients.pop(letter.client)
                letter.client.lose()
                self._forget_all(letter.client)
        self.partial.clear()
        # What waits is taken, and decided.
        for _ in range(30):
            for receiver in list(self.receivers):
                if receiver.is_attached:
                    receiver.flow(50)
            self.mesh.advance(1.0)
            self.collect()
            for arrival, letter in list(self.open.items()):
                self._note(letter, arrival, Accepted())
                arrival.accept()
            self.open.clear()
            self.mesh.advance(0.2)
        self.check_letters()
        for letter in self.letters.values():
            if letter.sender in self.senders and not letter.sent.delivery.settled:
                letter.sent.dispose(letter.sent.outcome, settled=True)
        self.mesh.run()
        self.mesh.leave()

    def check_letters(self) -> None:
        """What senders heard is what receivers did, or what is true where a router says it."""
        for letter in self.letters.values():
            where = (letter.number, letter.to, letter.sent.said, letter.arrivals)
            multicast = letter.to == "news"
            links = [link for link, _, _ in letter.arrivals]
            assert len(set(links)) == len(links), ("twice", where)
            assert multicast or len(links) <= 1, ("twice", where)
            assert not letter.aborted or not links, ("aborted", where)
            heard = letter.sent.outcome
            decided = [state for _, _, state in letter.arrivals]
            if letter.settled or letter.aborted:
                continue
            # A link that ends with the node at its other end takes with it what is in doubt.
            if letter.sender in self.senders and letter.sender.is_attached and not letter.forgotten:
                assert heard is not None, ("never heard", where)
            if heard is None:
                continue
            if heard == Accepted():
                assert Accepted() in decided, ("invented", where)
            elif heard in (OUTCOMES["rejected"], OUTCOMES["modified"]):
                assert heard in decided, ("invented", where)
            elif heard == Released():
                assert not links or Released() in decided, ("released, though it was sent", where)
            elif heard == Modified(delivery_failed=True):
                assert self.faults, ("failed without a fault", where)
            else:
                raise AssertionError(("strange", where))
            if not self.faults and not multicast and decided and decided[0] is not None:
                assert heard == decided[0], ("changed", where)


def _number(payload: bytes) -> int:
    """The number that a message begins with."""
    at = payload.index(b"\x00\x53\x77") + 3
    at += 2 if payload[at] == 0xA1 else 5
    return int(payload[at : payload.index(b" ", at)])


def play(seed: int, steps: int, *, faults: bool) -> History:
    """One history."""
    history = History(Random(seed), faults=faults)
    try:
        history.run(steps)
        history.end()
    except BaseException as error:
        error.add_note(f"seed {seed}, faults {faults}")
        raise
    return history


@pytest.mark.parametrize("faults", [False, True], ids=["whole", "breaking"])
@pytest.mark.parametrize("block", range(2))
def test_at_the_end_what_senders_heard_is_what_receivers_did(block: int, faults: bool) -> None:
    letters = sum(len(play(seed, 120, faults=faults).letters) for seed in range(block * 4, block * 4 + 4))
    assert letters > 80, "these histories were of little use"
