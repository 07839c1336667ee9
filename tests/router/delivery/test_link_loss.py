"""Loss of links with many deliveries, and of thousands of links, in slices."""

from __future__ import annotations

from time import thread_time

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.link import Terminus
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Released
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.amqp.standard.performatives import Disposition, decode_performative
from amqpmesh.router.config.file import AddressConfig, ListenerConfig
from amqpmesh.router.delivery.link_loss import fail_link
from amqpmesh.router.kernel import FrameReader
from amqpmesh.router.management.snapshot import snapshot
from tests.support.worlds.network import Client, Network, Sent, message

FAILED = Modified(delivery_failed=True)


class Crowd:
    """A router, a bystander's two links, and a client with many receivers, or one with many deliveries."""

    def __init__(self, distribution: Distribution = Distribution.BALANCED) -> None:
        self.network = Network(
            AddressConfig(pattern="q", distribution=distribution, max_credit=10_000, max_unsettled=10_000)
        )
        self.core = self.network.core
        self.expanded = 0
        expanded = self.core.context.kernel.on_expand
        assert expanded is not None

        def count(relay: object) -> None:
            self.expanded += 1
            expanded(relay)  # type: ignore[arg-type]  # as it was given

        self.core.context.kernel.on_expand = count
        self.producer = self.network.client("producer")
        self.consumer = self.network.client("consumer", window=10_000)
        self.sent: list[Sent] = []

    def receivers(self, number: int) -> None:
        """Attach this many receivers of one client, with credit."""
        session = self.consumer.session
        links = []
        for each in range(number):
            if each % 500 == 499:
                session = self.consumer.engine.begin()
                self.network.run()
            terminus = Terminus(f"r{each}", Role.RECEIVER)
            links.append(session.attach(terminus, source=Source(address="q"), target=Target()))
        self.network.run()
        for link in links:
            link.flow(10)  # type: ignore[attr-defined]  # it is a receiver
        self.network.run()

    def relay(self, number: int, mode: ReceiverSettleMode = ReceiverSettleMode.FIRST) -> None:
        """Relay this many deliveries to one receiver."""
        self.receiver = self.consumer.receiver("q", credit=number, name="r")
        self.sender = self.producer.sender("q", rcv=mode)
        self.sent = [self.producer.send(self.sender, message(str(each))) for each in range(number)]
        assert self.core.context.in_flight == number
        self.expanded = 0

    def give(self, client: Client) -> None:
        """Pass a client's output to the router. Work beyond one turn is left for `step`."""
        data = client.engine.data_to_send(self.network.now)
        while not self.core.receive(client.record, data, self.network.now):
            data = bytearray()

    def lose(self, client: Client) -> None:
        """Cut a client's connection. Work beyond one turn is left for `step`."""
        client.is_lost = True
        self.core.receive_eof(client.record, self.network.now)

    def step(self) -> None:
        """Do a step of the remaining work."""
        steps = iter((False, True))
        self.core.work(self.network.now, lambda: next(steps))


def _parts(crowd: Crowd) -> None:
    crowd.receiver.detach()
    crowd.give(crowd.consumer)


def _ends(crowd: Crowd) -> None:
    crowd.consumer.session.end()
    crowd.give(crowd.consumer)


def _closes(crowd: Crowd) -> None:
    crowd.consumer.engine.close()
    crowd.give(crowd.consumer)


def _is_cut(crowd: Crowd) -> None:
    crowd.lose(crowd.consumer)


@pytest.mark.parametrize("parting", [_parts, _ends, _closes, _is_cut])
def test_a_receiver_with_thousands_unsettled_goes_in_steps_and_others_are_served_between(parting) -> None:  # type: ignore[no-untyped-def]
    crowd = Crowd()
    crowd.relay(2_000)
    reader = crowd.network.client("reader")
    parting(crowd)
    assert crowd.core.context.chores
    left = crowd.core.context.in_flight
    assert 0 < left < 2_000
    assert not crowd.core.is_quiet, "a router that drains waits for them"
    steps = 0
    other = reader.engine.begin()
    crowd.give(reader)
    while crowd.core.context.chores:
        crowd.step()
        steps += 1
        assert left - crowd.core.context.in_flight <= 50, "a step is a part of a slice"
        left = crowd.core.context.in_flight
        told = snapshot(crowd.core)
        assert (told.router.relays, told.router.deliveries_out) == (left, 2_000)
        (address,) = [each for each in told.addresses if each.name == "q"]
        assert (address.consumers, address.deliveries_out) == (0, 2_000)
        assert address.modified == 2_000 - left
    assert steps >= 15
    assert crowd.expanded == 0, "none takes more memory than it had"
    assert other.remote is None  # the router's answer has not reached the client yet
    crowd.network.run()
    assert [each.said for each in crowd.sent] == [[(FAILED, True)]] * 2_000
    crowd.network.leave()


def test_a_link_that_comes_back_meanwhile_does_not_meet_what_the_old_one_left() -> None:
    crowd = Crowd()
    crowd.relay(2_000)
    last = crowd.consumer.take(2_000)[-1].delivery.delivery_id
    crowd.receiver.detach()
    again = crowd.consumer.session.attach(Terminus("r", Role.RECEIVER), source=Source(address="q"), target=Target())
    crowd.give(crowd.consumer)
    assert crowd.core.context.chores
    assert crowd.core.context.stolen == 0
    # The peer sends a disposition for deliveries of the old link. They have ended, and it is ignored.
    session = next(iter(crowd.consumer.record.engine.channels.incoming.values())).flow_state
    live = len(session.outgoing)
    crowd.consumer.session.flow_state.dispose(True, last, True, b"\x00\x53\x24\x45")
    crowd.consumer.session.wake()
    crowd.give(crowd.consumer)
    assert len(session.outgoing) == live
    crowd.network.run()
    again.flow(5)  # type: ignore[attr-defined]  # it is a receiver
    crowd.network.run()
    sent = crowd.producer.send(crowd.sender, message("new"))
    (arrival,) = [each for each in crowd.consumer.take() if each.link is again]
    arrival.accept()
    crowd.network.run()
    assert sent.said == [(Accepted(), True)]
    assert all(each.said == [(FAILED, True)] for each in crowd.sent)
    crowd.network.leave()


@pytest.mark.parametrize("mode", [ReceiverSettleMode.FIRST, ReceiverSettleMode.SECOND])
@pytest.mark.parametrize("settled", [True, False])
def test_deliveries_of_a_sender_that_is_gone_stay_in_the_kernel_until_their_receivers_settle(
    mode: ReceiverSettleMode, settled: bool
) -> None:
    crowd = Crowd()
    crowd.relay(1_500, mode)
    arrivals = crowd.consumer.take(1_500)
    for arrival in arrivals[:100]:  # the sender has their outcomes, and will not settle them any more
        arrival.dispose(Accepted(), settled=settled)
    crowd.network.run()
    crowd.lose(crowd.producer)
    assert crowd.core.context.chores
    for arrival in arrivals[100:200]:  # while its links are being ended
        arrival.dispose(Accepted(), settled=settled)
    crowd.network.run()
    for arrival in arrivals[200:]:
        arrival.dispose(Accepted(), settled=settled)
    crowd.network.run()
    assert crowd.expanded == 0
    assert crowd.core.context.in_flight == 0
    if not settled:
        assert all(arrival.said[-1][1] for arrival in arrivals), "each is settled"
    crowd.network.leave()


def test_a_queued_delivery_of_a_sender_that_is_gone_goes_to_no_receiver() -> None:
    crowd = Crowd()
    crowd.relay(1_500)
    crowd.network.advance(0.5)  # one more delivery than there is credit for
    crowd.producer.send(crowd.sender, message("waits"))
    assert len(crowd.consumer.take()) == 1_500
    crowd.lose(crowd.producer)
    assert crowd.core.context.chores
    crowd.receiver.flow(10)
    crowd.give(crowd.consumer)
    assert crowd.core.context.chores
    crowd.network.run()
    assert not crowd.consumer.take()
    crowd.network.leave()


def test_links_of_many_connections_that_are_cut_at_once_are_over_before_they_are_let_go_of() -> None:
    crowd = Crowd()
    clients = [crowd.network.client() for _ in range(60)]
    for client in clients:
        client.receiver("q", name="r")
    now = crowd.network.now
    for client in clients:
        client.is_lost = True
    crowd.core.context.chores.begin_turn = lambda: None  # type: ignore[method-assign]  # as if it were one turn
    for client in clients:
        crowd.core.receive_eof(client.record, now)
    assert crowd.core.context.chores
    (address,) = [each for each in snapshot(crowd.core).addresses if each.name == "q"]
    assert address.consumers == 0
    assert not any(each.is_ready for each in crowd.core.context.nodes.find("", "q").outgoing)  # type: ignore[union-attr]
    again = crowd.network.client(clients[-1].engine.settings.container_id)
    again.receiver("q", name="r")
    assert crowd.core.context.stolen == 0
    del crowd.core.context.chores.begin_turn
    crowd.network.leave()


@pytest.mark.parametrize("messages", [1, 5])
def test_a_cut_of_many_receivers_of_a_multicast_does_not_keep_its_message_from_others(messages: int) -> None:
    crowd = Crowd(Distribution.MULTICAST)
    crowd.receivers(400)
    reader = crowd.network.client("reader")
    reader.receiver("q")
    link = crowd.producer.sender("q")
    sents = [crowd.producer.send(link) for _ in range(messages)]
    for arrival in reader.take(messages):
        arrival.accept()
    crowd.network.run()
    crowd.lose(crowd.consumer)
    assert crowd.core.context.chores
    crowd.network.clients.remove(crowd.consumer)
    # Not all links have ended yet. But no delivery waits for them, and they get no delivery.
    taken = link.transfer(link.delivery(b"now"), message("now"))
    crowd.give(crowd.producer)
    assert taken
    assert crowd.core.context.chores
    reader.read(crowd.core.data_to_send(reader.record, crowd.network.now))
    (arrival,) = reader.take(1)
    arrival.accept()
    crowd.network.run()
    assert all(sent.said == [(Accepted(), True)] for sent in sents)
    crowd.network.leave()


def _accepted(receivers: int) -> float:
    """Return the seconds of work until a message that many receivers accept has its outcome."""
    crowd = Crowd(Distribution.MULTICAST)
    crowd.receivers(receivers)
    crowd.producer.send(crowd.producer.sender("q"))
    for arrival in crowd.consumer.take(receivers):
        arrival.accept()
    data = crowd.consumer.engine.data_to_send(crowd.network.now)
    began = thread_time()
    while not crowd.core.receive(crowd.consumer.record, data, crowd.network.now):
        data = bytearray()
    taken = thread_time() - began
    assert crowd.core.context.in_flight == 0
    return taken


def _cut(receivers: int) -> float:
    """Return the seconds of work after the loss of many receivers of one message."""
    crowd = Crowd(Distribution.MULTICAST)
    crowd.receivers(receivers)
    crowd.producer.send(crowd.producer.sender("q"))
    began = thread_time()
    crowd.lose(crowd.consumer)
    while crowd.core.context.chores:
        crowd.core.work(crowd.network.now, lambda: False)
    taken = thread_time() - began
    assert crowd.core.context.in_flight == 0
    return taken


def _waited_for(receivers: int) -> float:
    """Return the seconds of work of a multicast that waits for many receivers, which give credit one after another."""
    crowd = Crowd(Distribution.MULTICAST)
    crowd.receivers(receivers)
    link = crowd.producer.sender("q")
    for _ in range(11):
        crowd.producer.send(link)
    assert len({each for each in crowd.core.context.nodes.values() if each.waiting.size == 1}) == 1
    flows = []
    for each in crowd.consumer.engine.channels.sessions:
        for receiver in each.links.values():
            receiver.flow(10)  # type: ignore[attr-defined]  # it is one
            flows.append(crowd.consumer.engine.data_to_send(crowd.network.now))
    began = thread_time()
    for data in flows:
        while not crowd.core.receive(crowd.consumer.record, data, crowd.network.now):
            data = bytearray()
    taken = thread_time() - began
    assert not any(each.waiting.size for each in crowd.core.context.nodes.values())
    return taken


@pytest.mark.parametrize("work", [_accepted, _cut, _waited_for])
def test_four_times_as_many_receivers_cost_four_times_as_much(work) -> None:  # type: ignore[no-untyped-def]
    few = min(work(300) for _ in range(2))  # more than the kernel holds a multicast back for
    many = min(work(1200) for _ in range(2))
    assert many < 9 * few, "squares would be 16 times as much"


@pytest.mark.parametrize("parting", ["detaches", "closes", "ends", "is lost"])
def test_a_multicast_that_waits_for_a_receiver_goes_on_without_it_once_that_has_left(parting: str) -> None:
    network = Network(AddressConfig(pattern="q", distribution=Distribution.MULTICAST))
    other, awaited, producer = network.client(), network.client(), network.client()
    other.receiver("q", credit=5)
    receiver = awaited.receiver("q", credit=1)
    sender = producer.sender("q")
    sent = [producer.send(sender) for _ in range(2)]
    for client in (other, awaited):
        client.take(1)[0].accept()
    network.run()
    other.take(0)
    if parting == "is lost":
        awaited.lose()
    elif parting == "ends":
        awaited.session.end()
    else:
        receiver.detach(closed=parting == "closes")
    network.run()
    other.take(1)[0].accept()
    network.run()
    assert [each.outcome for each in sent] == [Accepted(), Accepted()]
    network.leave()


def test_a_foreign_format_message_begun_empty_survives_its_consumers_death() -> None:
    network = Network()
    a, b, producer = network.client(), network.client(), network.client()
    a.receiver("q")
    link = producer.sender("q")
    sent = producer.send(link, b"", more=True, message_format=7)  # goes to a, which has got no frame of it
    b.receiver("q")
    a.lose()  # IndexError: deque index out of range
    producer.resume(sent, b"rest")
    (arrival,) = b.take(1)
    assert bytes(arrival.payload) == b"rest"


def test_a_delivery_that_waits_for_a_receiver_that_left_gets_an_outcome() -> None:
    network = Network(AddressConfig(pattern="q", redeliver=True, attempts=9))
    a, b, producer = network.client(), network.client(), network.client()
    a.receiver("q", credit=10)
    link = producer.sender("q")
    s1 = producer.send(link)
    other = b.receiver("q", credit=0)
    a.take(1)[0].dispose(Modified(undeliverable_here=True), settled=True)
    network.run()
    other.detach()
    network.advance(60)
    assert s1.outcome is not None


def test_a_closed_link_leaves_nothing_in_the_ledger() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=1000)
    for _i in range(50):
        link = producer.sender("q")
        producer.send(link)
        link.detach()
        network.run()
    session = next(iter(producer.record.engine.channels.incoming.values()))
    assert len(session.flow_state.incoming) == 0, f"{len(session.flow_state.incoming)} left in the ledger"


@pytest.mark.parametrize("side", ["consumer", "producer"])
def test_a_link_detached_without_closing_is_forgotten_when_its_deliveries_are_settled(side: str) -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    for _i in range(20):
        receiver = consumer.receiver("q")
        link = producer.sender("q")
        producer.send(link)
        network.run()
        (arrival,) = consumer.take(1)
        (receiver if side == "consumer" else link).detach(closed=False)
        network.run()
        arrival.accept()
        network.run()
        (link if side == "consumer" else receiver).detach()
        network.run()
    assert network.core.context.in_flight == 0
    record = consumer.record if side == "consumer" else producer.record
    assert not record.detached_unsettled, f"{len(record.detached_unsettled)} links linger without a delivery"


def test_nothing_is_said_of_the_deliveries_of_a_link_that_its_peer_closed_with_an_error() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q")
    producer.send(producer.sender("q"))
    consumer.take(1)
    receiver.detach(error=Error(condition=AmqpCondition.INTERNAL_ERROR))
    network.core.receive(consumer.record, consumer.engine.data_to_send(network.now), network.now)
    reader = FrameReader(2**20)
    reader.feed(network.core.data_to_send(consumer.record, network.now))
    got = []
    while f := reader.next_frame():
        got.append(decode_performative(f.body)[0])
    assert not [frame for frame in got if isinstance(frame, Disposition)], [type(frame).__name__ for frame in got]


def test_a_consumer_that_vanishes_before_its_frame_of_a_multicast_counts_as_released() -> None:
    network = Network(AddressConfig(pattern="q", distribution=Distribution.MULTICAST))
    network.listener = ListenerConfig(url="amqp://127.0.0.1:0", name="t", idle_time_out=0.0, output_backlog=1)
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    consumer.receiver("q")
    link = producer.sender("q")
    consumer.stopped = True
    producer.send(link)
    outs = list(consumer.record.outgoing)
    late = [o for o in outs if o.current is not None and not o.current.started]
    assert late, "no leg is unsent"
    leg = late[0].current
    fail_link(network.core.context, late[0], Error(condition=Symbol("x:y")))
    assert leg.outcome == b"\x00\x53\x26\x45", leg.outcome


def test_the_default_outcome_of_a_receiver_that_vanished_stands_for_what_it_did_not_say() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", source=Source(address="q", default_outcome=Released()))
    sent = producer.send(producer.sender("q"))
    consumer.take(1)
    consumer.lose()
    assert sent.outcome == Released()
    network.leave()


def test_receivers_that_left_with_credit_are_forgotten_while_others_stay() -> None:
    network = Network()
    steady, passing = network.client(), network.client()
    steady.receiver("q")
    for _ in range(5):
        passing.receiver("q").detach()
        network.run()
    node = network.core.context.nodes.find("", "q")
    assert node is not None
    assert len(node.creditors) == 1
    network.leave()
