"""Connections between routers that are lost at a chosen octet, and accounts of senders and receivers at both ends."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.composite import decode_composite
from amqpmesh.router.amqp.link import Sender
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Released
from amqpmesh.router.amqp.standard.messaging import AmqpValue
from amqpmesh.router.config.file import AddressConfig, MeshConfig
from tests.support.worlds.meshes import Wire, World
from tests.support.worlds.network import Arrival, Client, Sent, message

NEWS = AddressConfig(pattern="news/#", distribution=Distribution.MULTICAST)
RESUME = MeshConfig(insecure=True, resume=10)
FIRST, SECOND = ReceiverSettleMode
LATE = 30.0
"""Seconds after which all that was kept has come back, or has ended."""


class FrayedWire(Wire):
    """A connection whose octets get lost from some octet on, in one direction or both."""

    def __init__(self, world: World, one: str, two: str, octets: dict[str, int]) -> None:
        """Args: octets: how many of those from a router arrive; of a router that is not named, all do."""
        self._left = dict(octets)
        self.is_torn = False
        cores = world[one].core, world[two].core
        super().__init__(world, *cores, 1, idle_time_out=5.0, max_frame_size=world.max_frame_size)

    def carry(self, now: float) -> bool:
        """Carry what still arrives. Returns: whether any octets have left."""
        moved = False
        for (sender, out), (receiver, into) in (self.ends, self.ends[::-1]):
            data = bytes(sender.data_to_send(out, now))
            if not data:
                continue
            moved = True
            sender.sent(out, now)
            left = self._left.get(sender.context.id)
            if left is not None:
                self.is_torn = self.is_torn or len(data) > left
                self._left[sender.context.id] = max(0, left - len(data))
                data = data[:left]
            while data and not receiver.receive(into, data, now):
                data = b""
        return moved


class Accounts:
    """Senders and receivers at two routers, and what each message has come to."""

    def __init__(
        self,
        routers: str,
        edges: list[tuple[str, str]],
        seed: int,
        mode: ReceiverSettleMode,
        *,
        prefix: str = "to",
        anonymous: bool = False,
        credit: int = 50,
        **world: int,
    ) -> None:
        """Args: prefix: of the addresses; `news/` is multicast. anonymous: messages name their own addresses. credit:
        of each receiver. world: as of `World`.
        """
        self.random = Random(seed)
        self.world = World(routers, edges, NEWS, mesh=RESUME, **world)
        self._mode = mode
        self._receivers: list[Client] = []
        self._senders: list[tuple[Client, Sender, str | None]] = []
        self._waiting: list[Arrival] = []
        self._came: Counter[str] = Counter()
        self.sent: dict[str, Sent] = {}
        ends = routers[0], routers[-1]
        for here, there in (ends, ends[::-1]):
            receiver = self.world[there].client()
            receiver.receiver(f"{prefix}{there}", credit=credit, rcv=mode)
            self._receivers.append(receiver)
            self.world.advance(0.2)
            sender = self.world[here].client()
            link = sender.sender(None if anonymous else f"{prefix}{there}", rcv=mode)
            self._senders.append((sender, link, f"{prefix}{there}@{there}" if anonymous else None))
        self.world.advance(0.2)

    def send(self, number: int) -> None:
        """Send messages from each end, as far as there is credit."""
        for client, link, to in self._senders:
            for _ in range(min(number, link.credit)):
                body = f"message {len(self.sent)}"
                self.sent[body] = client.send(link, message(body, to=to))

    def decide(self, *, all_of_them: bool = False) -> None:
        """Take what has come, accept some of it, and settle what was heard."""
        for client in self._receivers:
            for each in client.take():
                self._came[_body(each)] += 1
                self._waiting.append(each)
        self.random.shuffle(self._waiting)
        keep = 0 if all_of_them else self.random.randrange(len(self._waiting) + 1)
        while len(self._waiting) > keep:
            self._waiting.pop().dispose(Accepted(), settled=self._mode is FIRST)
        self.world.run()
        for sent in self.sent.values():
            if sent.outcome is not None and not sent.delivery.settled and (all_of_them or self.random.random() < 0.5):
                sent.dispose(None, settled=True)
        self.world.run()

    def finish(self) -> None:
        """Decide all, until nothing is under way."""
        for _ in range(4):
            self.decide(all_of_them=True)
            self.world.advance(1.0)
        self.world.advance(LATE)
        self.decide(all_of_them=True)

    def check(self) -> set[type[DeliveryState]]:
        """Assert that each message had an outcome that is true of it. Returns: the kinds of outcomes."""
        for body, sent in self.sent.items():
            outcome = sent.outcome
            assert outcome is not None, body
            assert self._came[body] <= 1, body
            if isinstance(outcome, Accepted):
                assert self._came[body] == 1, body
            if isinstance(outcome, Released):
                assert not self._came[body], body
        return {type(sent.outcome) for sent in self.sent.values() if sent.outcome is not None}


def _body(arrival: Arrival) -> str:
    section, _ = decode_composite(AmqpValue, bytes(arrival.payload)[_header(arrival) :])
    assert isinstance(section.value, str)
    return section.value


def _header(arrival: Arrival) -> int:
    return bytes(arrival.payload).index(b"\x00\x53\x77")


def tell(
    seed: int, mode: ReceiverSettleMode, *, routers: str = "AB", how: str = "anycast", most: int = 2, **world_of: int
) -> set[type[DeliveryState]]:
    """Have messages pass while connections are lost at random octets.

    Args: how: anycast, tree or transit. most: messages that an end sends at once. world_of: as of `Accounts`.
    Returns: the kinds of outcomes heard.
    """
    edges = list(pairwise(routers))
    prefix = "news/" if how == "tree" else "to"
    accounts = Accounts(routers, edges, seed, mode, prefix=prefix, anonymous=how == "transit", **world_of)
    random, world = accounts.random, accounts.world
    for _ in range(3):
        one, two = random.choice(edges)
        world.cut(*world.between(one, two))
        kind = random.choice(["both", "one", "silent"])
        octets = {each: random.randrange(250, 2500) for each in (one, two)}
        if kind != "both":
            del octets[random.choice((one, two))]
        wire = FrayedWire(world, one, two, octets)
        world.add(wire)
        for _ in range(20):
            accounts.send(random.randrange(most + 1))
            world.advance(random.choice((0.01, 0.1)))
            accounts.decide()
            if wire.is_torn:
                break
        if kind == "silent":
            world.advance(random.choice((2.0, 8.0)))  # the hold time is three seconds
        if wire in world.wires and random.random() < 0.8:
            world.cut(wire)
        world.advance(random.choice((0.0, 0.3)))
        if random.random() < 0.5:
            accounts.decide()
        world.join(one, two)
        world.advance(random.choice((0.05, 2.0)))
    world.cut(*[each for each in world.wires if isinstance(each, FrayedWire)])
    accounts.finish()
    kinds = accounts.check()
    world.leave()
    return kinds
