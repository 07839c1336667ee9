"""Random meshes of credit pools in virtual time: every message arrives, and few ever wait.

Each hop is a pool as a router has it; a source of one is a sink of the next. What runs between them are transfers
and flows with latency, nothing else.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.kernel import CreditSink, Pool

SERIAL = 2**32 - 1


def serial_difference(a: int, b: int) -> int:
    return ((a - b + 2**31) & SERIAL) - 2**31


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, when: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, event))

    def run(self, until: Callable[[], bool], limit: float) -> None:
        while self._events and not until():
            self.now, _, event = heapq.heappop(self._events)
            assert self.now < limit, "it takes for ever"
            event()


@dataclass
class Wire:
    """One direction of a link: what is sent arrives later, in order."""

    clock: Clock
    latency: Callable[[], float]
    last: float = 0.0

    def send(self, event: Callable[[], None]) -> None:
        self.last = max(self.last, self.clock.now + self.latency())
        self.clock.at(self.last, event)


class Sender:
    """The sending end of a link to a hop."""

    def __init__(self, hop: Hop, latency: Callable[[], float], delivery_count: int, answers: bool = True) -> None:
        self.hop = hop
        self.delivery_count = delivery_count
        self.limit = delivery_count
        self.drain = False
        self.answers = answers
        self.out = Wire(hop.clock, latency)
        self.back = Wire(hop.clock, latency)
        self.sink = hop.pool.add_sink(delivery_count, self)
        if hop.network.tenants:
            tenant = hop.network.rng.choice(sorted(hop.network.tenants))
            hop.pool.join(self.sink, tenant, hop.network.tenants[tenant])
        hop.changed()

    @property
    def credit(self) -> int:
        return max(0, serial_difference(self.limit, self.delivery_count))

    def transfer(self, message: Message) -> None:
        self.delivery_count = (self.delivery_count + 1) & SERIAL
        self.out.send(lambda: self.hop.transfer_received(self.sink, message))

    def flow(self) -> None:
        if self.answers:
            count, credit = self.delivery_count, self.credit
            self.out.send(lambda: self.hop.flow_received(self.sink, count, credit))

    def give_back(self) -> None:
        self.delivery_count = (self.delivery_count + self.credit) & SERIAL
        self.drain = False
        self.flow()

    def flow_received(self, delivery_count: int, credit: int, drain: bool, echo: bool) -> None:
        self.limit = (delivery_count + credit) & SERIAL
        self.drain = drain
        self.credit_changed()
        if echo:
            self.flow()

    def credit_changed(self) -> None:
        raise AssertionError("for subclasses")


@dataclass
class Message:
    producer: Producer
    number: int


class Producer(Sender):
    """Sends what it has as soon as it may."""

    def __init__(self, hop: Hop, latency: Callable[[], float], delivery_count: int, answers: bool) -> None:
        super().__init__(hop, latency, delivery_count, answers)
        self.backlog: deque[Message] = deque()

    def produce(self, message: Message) -> None:
        self.backlog.append(message)
        self.credit_changed()

    def credit_changed(self) -> None:
        while self.backlog and self.credit:
            self.transfer(self.backlog.popleft())
        if self.drain and self.credit and self.answers:
            self.give_back()


class Lane(Sender):
    """A source of one hop that is a sink of the next."""

    def __init__(self, above: Hop, below: Hop, latency: Callable[[], float], delivery_count: int) -> None:
        self.above = above
        self.known_limit = delivery_count
        super().__init__(below, latency, delivery_count)
        self.source = above.pool.add_source(owner=self)
        above.sources.append(self)

    def take(self, message: Message) -> None:
        self.transfer(message)
        self.tell()

    def tell(self, withdrawn: bool = False) -> None:
        self.above.pool.set_usable(self.source, self.credit, self.above.clock.now, withdrawn=withdrawn)

    def credit_changed(self) -> None:
        lowered = serial_difference(self.limit, self.known_limit) < 0
        if lowered:
            self.above.outdated()
        self.known_limit = self.limit
        self.tell(withdrawn=lowered and not self.credit)
        if self.drain:
            self.above.pool.drain(self.above.clock.now)
        self.above.changed()

    def drained(self) -> None:
        self.above.outdated()
        self.give_back()
        self.tell()


class Consumer:
    """Takes messages, one at a time, and renews its credit after each or when half is used."""

    def __init__(self, hop: Hop, latency: Callable[[], float], prefetch: int, work: float, batch: int) -> None:
        self.hop = hop
        self.clock = hop.clock
        self.prefetch, self.work, self.batch = prefetch, work, batch
        self.wire = Wire(hop.clock, latency)
        self.back = Wire(hop.clock, latency)
        self.usable = 0  # as the hop sees it
        self.granted = 0  # since it came, as the consumer counts
        self.taken = 0
        self.sent = 0
        self.free_at = 0.0
        self.paused = False
        self.here = True
        self.drain = False
        self.source = hop.pool.add_source(owner=self)
        hop.sources.append(self)
        self.renew()

    @property
    def credit(self) -> int:
        return self.usable

    def renew(self) -> None:
        if not self.paused and self.taken + self.prefetch - self.granted >= min(self.batch, self.prefetch):
            self.set_limit(self.taken + self.prefetch)

    def set_limit(self, limit: int) -> None:
        self.granted = limit
        self.back.send(lambda: self.limit_seen(limit))

    def limit_seen(self, limit: int) -> None:
        if not self.here:
            return
        usable = max(0, limit - self.sent)
        lowered = usable < self.usable
        if lowered:
            self.hop.outdated()
        self.usable = usable
        self.hop.pool.set_usable(self.source, usable, self.clock.now, withdrawn=lowered and not usable)
        self.hop.changed()

    def take(self, message: Message) -> None:
        self.usable -= 1
        self.sent += 1
        self.hop.pool.set_usable(self.source, self.usable, self.clock.now)
        self.wire.send(lambda: self.arrived(message))

    def arrived(self, message: Message) -> None:
        self.hop.network.arrived(message)
        self.free_at = max(self.free_at, self.clock.now) + self.work
        self.clock.at(self.free_at, self.done)

    def done(self) -> None:
        self.taken += 1
        self.renew()

    def pause(self) -> None:
        self.paused = True
        self.set_limit(self.taken)

    def resume(self) -> None:
        self.paused = False
        self.set_limit(self.taken + self.prefetch)

    def leave(self) -> None:
        self.here = False
        self.hop.outdated()
        self.hop.sources.remove(self)
        self.hop.pool.remove_source(self.source, self.clock.now)
        self.hop.changed()


class Hop:
    """A router, as far as one pool of it goes."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.clock = network.clock
        self.pool = Pool(Distribution.BALANCED)
        self.queue: deque[tuple[CreditSink, Message]] = deque()
        self.sources: list[Lane | Consumer] = []
        self.excess = 0
        self.troubled = False
        self.alarm: float | None = None

    def outdated(self) -> None:
        """Credit is about to be taken away from below: what was promised for its sake is not our doing."""
        self.troubled = True
        self.excess = 10**9

    def transfer_received(self, i: CreditSink, message: Message) -> None:
        if not self.network.silence:
            assert i.granted > 0, "it sends what we never promised"
        self.pool.received(i, self.clock.now)
        self.queue.append((i, message))
        self.changed()

    def flow_received(self, i: CreditSink, delivery_count: int, credit: int) -> None:
        self.pool.flow_received(i, delivery_count, credit, None, self.clock.now)
        self.changed()

    def changed(self) -> None:
        pool, now = self.pool, self.clock.now
        while self.queue and (ready := [b for b in self.sources if b.credit > 0]):
            i, message = self.queue.popleft()
            max(ready, key=lambda b: b.credit).take(message)
            pool.forwarded(i, now)
        while self.queue and not self.sources:
            i, message = self.queue.popleft()
            pool.forwarded(i, now)
            self.network.released(message)
        before = pool.granted
        grants = pool.grants(now)
        if pool.granted > before:
            assert pool.granted + pool.waiting <= pool.demand + pool.overcommit, "credit is promised twice"
        if pool.drained(now):
            for b in self.sources:
                if b.drain and isinstance(b, Lane):
                    b.drained()
        self.network.flows += len(grants)
        for grant in grants:
            sender = grant.sink.owner
            assert isinstance(sender, Sender)
            assert grant.credit >= 0
            self.send_flow(sender, grant.sink.delivery_count, grant.credit, grant.drain, grant.echo)
        excess = pool.granted + pool.waiting - pool.demand - pool.overcommit
        assert excess <= max(0, self.excess), "the promises outgrew the demand"
        self.excess = excess
        if not self.troubled:
            assert pool.waiting <= len(self.network.inputs_of(self)), "more waits than one for each"
        self.set_alarm()

    @staticmethod
    def send_flow(sender: Sender, delivery_count: int, credit: int, drain: bool, echo: bool) -> None:
        sender.back.send(lambda: sender.flow_received(delivery_count, credit, drain, echo))

    def set_alarm(self) -> None:
        due = self.pool.next_timer()
        if due is not None and (self.alarm is None or due < self.alarm):
            self.alarm = max(due, self.clock.now)
            self.clock.at(self.alarm, self.ring)

    def ring(self) -> None:
        self.alarm = None
        due = self.pool.next_timer()
        if due is not None and due <= self.clock.now:
            self.pool.handle_timer(self.clock.now)
            again = self.pool.next_timer()
            assert again is None or again > self.clock.now, "a timer that never ends"
            self.changed()
        else:
            self.set_alarm()


@dataclass
class Network:
    clock: Clock = field(default_factory=Clock)
    hops: list[Hop] = field(default_factory=list)
    producers: list[Producer] = field(default_factory=list)
    senders: list[Sender] = field(default_factory=list)
    missing: set[tuple[int, int]] = field(default_factory=set)
    flows: int = 0
    silence: bool = False
    troubled: bool = False
    rng: random.Random = field(default_factory=random.Random)
    #: The weights of tenants, by name.
    tenants: dict[str, float] = field(default_factory=dict)

    def inputs_of(self, hop: Hop) -> list[Sender]:
        return [sender for sender in self.senders if sender.hop is hop]

    def arrived(self, message: Message) -> None:
        key = (id(message.producer), message.number)
        assert key in self.missing, "a message came twice"
        self.missing.remove(key)

    def released(self, message: Message) -> None:
        self.clock.at(self.clock.now + 0.01, lambda: message.producer.produce(message))


def random_network(rng: random.Random, *, troubled: bool, silence: bool, tenants: int = 0) -> Network:
    weights = {f"tenant {number}": rng.choice([0.01, 1.0, 1.0, 3.7, 10_000.0]) for number in range(tenants)}
    network = Network(silence=silence, troubled=troubled, rng=rng, tenants=weights)
    clock = network.clock
    slow = rng.choice([0.0, 0.0005, 0.02])

    def latency() -> float:
        return rng.random() * slow

    def count() -> int:
        return rng.choice([0, SERIAL, (SERIAL - rng.randrange(50)), rng.randrange(2**32)])

    network.hops = [Hop(network) for _ in range(rng.randint(1, 5))]
    last = len(network.hops) - 1
    for n, hop in enumerate(network.hops):
        below = list(range(n + 1, last + 1))
        for target in rng.sample(below, min(len(below), rng.randint(1, 2))):
            network.senders.append(Lane(hop, network.hops[target], latency, count()))
    for hop in [network.hops[last], *rng.choices(network.hops, k=rng.randint(0, 2))]:
        add_consumer(rng, network, hop, latency)
    for _ in range(rng.randint(1, 12)):
        producer = Producer(rng.choice(network.hops), latency, count(), not (silence and rng.random() < 0.5))
        network.producers.append(producer)
        network.senders.append(producer)
        start, pace = rng.random() * 0.5, rng.choice([0.0, 0.0001, 0.01, 0.15])
        for number in range(rng.choice([1, 3, 20, 60])):
            network.missing.add((id(producer), number))
            start += pace * rng.random()
            clock.at(start, partial(producer.produce, Message(producer, number)))
    return network


def add_consumer(rng: random.Random, network: Network, hop: Hop, latency: Callable[[], float]) -> None:
    clock = network.clock
    prefetch = rng.choice([1, 1, 2, 5, 30, 300])
    options: tuple[int, float, int]
    options = (prefetch, rng.choice([0.0, 0.0001, 0.005]), rng.choice([1, 1, max(1, prefetch // 2)]))
    consumer = Consumer(hop, latency, *options)
    if not network.troubled:
        return
    at = 0.0
    for _ in range(rng.randint(0, 3)):
        at += rng.random() * 0.5
        clock.at(at, consumer.pause)
        at += rng.random() * 0.5
        clock.at(at, consumer.resume)
    if rng.random() < 0.3:
        clock.at(at, consumer.leave)
        clock.at(at + rng.random(), partial(add_one, hop, latency, *options))


def add_one(hop: Hop, latency: Callable[[], float], prefetch: int, work: float, batch: int) -> None:
    Consumer(hop, latency, prefetch, work, batch)


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), silence=st.booleans(), troubled=st.booleans(), tenants=st.sampled_from([0, 0, 2, 5]))
def test_every_message_arrives_whatever_consumers_do(seed: int, silence: bool, troubled: bool, tenants: int) -> None:
    network = random_network(random.Random(seed), troubled=troubled, silence=silence, tenants=tenants)
    network.clock.run(lambda: not network.missing, limit=120.0)
    assert not network.missing, "a producer starves for ever"
