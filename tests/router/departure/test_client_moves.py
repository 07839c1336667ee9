"""Clients that are moved to another router: what they have in flight is settled first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.policies.redirect import Redirect
from amqpmesh.router.amqp.events import ConnectionClosed
from amqpmesh.router.amqp.standard.conditions import ConnectionCondition
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.attach.resolve import limit_windows
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.departure.client_moves import ARRIVAL_TIME, DEPARTED, HEARING_TIME, LINKS_A_STEP, QUIET_TIME
from amqpmesh.router.departure.departure import LEAST, STEP
from amqpmesh.router.endpoint_setup import REDIRECT
from tests.support.worlds.network import Client, Network, Sent, message

STEPS = 0.05
"""Seconds in which some steps are done."""


def depart(network: Network, pace: float = 1.0, places: Sequence[Redirect] = ()) -> None:
    """Begin the departure of all clients."""
    network.core.change(lambda: network.core.departure.begin(pace, places), network.now)
    network.run()


@contextmanager
def staying_here(network: Network, *clients: Client) -> Iterator[None]:
    """Let no departure that begins meanwhile concern these clients."""
    connections = network.core.context.connections
    for each in clients:
        connections.pop(each.record)
    network.core.departure.turns_away = lambda *_: False  # type: ignore[method-assign]  # they are not new, either
    yield
    connections.update(dict.fromkeys([each.record for each in clients]))


def end_of(client: Client) -> ConnectionClosed | None:
    """Return how the router has closed a client's connection; None: it has not."""
    return next((each for each in client.events if isinstance(each, ConnectionClosed)), None)


def is_forced(client: Client) -> bool:
    end = end_of(client)
    return (
        end is not None
        and end.error is not None
        and (end.error.condition, end.error.description) == (ConnectionCondition.CONNECTION_FORCED, DEPARTED)
    )


def test_an_idle_client_is_told_to_connect_elsewhere() -> None:
    network = Network()
    client = network.client()
    depart(network)
    network.advance(STEPS + QUIET_TIME)
    assert is_forced(client)
    assert network.core.departure.left == 0
    network.leave()


@pytest.mark.parametrize("settles", [True, False])
def test_a_receiver_decides_about_what_it_has_and_gets_nothing_more(settles: bool) -> None:
    network = Network()
    producer, consumer = network.client("producer"), network.client("consumer")
    consumer.receiver("q", credit=10)
    sender = producer.sender("q")
    sent = [producer.send(sender) for _ in range(3)]
    arrivals = consumer.take(3)
    depart(network)
    network.advance(STEPS)
    assert sender.credit == 0
    network.advance(1.0)
    assert end_of(consumer) is None
    assert end_of(producer) is None
    for each in arrivals if settles else arrivals[:1]:
        each.accept()
    network.run()
    network.advance(1.0)
    assert [type(each.outcome) for each in sent] == ([Accepted] * 3 if settles else [Accepted, type(None), type(None)])
    assert is_forced(consumer) is settles
    assert is_forced(producer) is settles
    assert network.core.departure.left == (0 if settles else 2)
    network.leave()


def test_another_receiver_gets_the_messages_that_wait_and_those_to_come() -> None:
    network = Network(AddressConfig(pattern="q", distribution=Distribution.BALANCED))
    leaving, staying, producer = (network.client(name) for name in ("leaving", "staying", "producer"))
    leaving.receiver("q", credit=1)
    other = staying.receiver("q", credit=0)
    sender = producer.sender("q")
    sent = [producer.send(sender) for _ in range(2)]
    (held,) = leaving.take(1)
    with staying_here(network, staying, producer):
        depart(network)
    network.advance(STEPS)
    other.flow(5)
    network.run()
    sent += [producer.send(sender) for _ in range(3)]
    for each in (*staying.take(4), held):
        each.accept()
    network.run()
    network.advance(STEPS)
    assert all(isinstance(each.outcome, Accepted) for each in sent)
    assert is_forced(leaving)
    network.leave()


@pytest.mark.parametrize("anonymous", [False, True])
def test_a_sender_returns_its_credit_and_gets_all_outcomes(anonymous: bool) -> None:
    network = Network()
    producer = network.client("producer")
    consumer = network.client("consumer")
    receiver = consumer.receiver("q", credit=20)
    sender = producer.sender(None if anonymous else "q")
    sent = [producer.send(sender, message(to="q")) for _ in range(5)]
    assert sender.credit > 0
    with staying_here(network, consumer):
        depart(network)
    network.advance(STEPS)
    assert sender.credit == 0
    assert end_of(producer) is None
    assert network.core.departure.left == 1
    for each in consumer.take(5):
        each.accept()
    network.run()
    network.advance(STEPS)
    assert all(isinstance(each.outcome, Accepted) for each in sent)
    assert is_forced(producer)
    assert receiver.is_attached
    network.leave()


def test_an_anonymous_sender_gets_no_credit_again_when_paths_change() -> None:
    network = Network()
    producer, consumer = network.client("producer"), network.client("consumer")
    consumer.receiver("q", credit=20)
    sender = producer.sender(None)
    producer.send(sender, message(to="q"))
    with staying_here(network, consumer):
        depart(network)
    network.advance(STEPS)
    assert sender.credit == 0
    network.core.change(lambda: limit_windows(network.core.context), network.now)
    network.run()
    assert sender.credit == 0
    consumer.take(1)[0].accept()
    network.run()
    network.advance(STEPS)
    assert is_forced(producer)
    network.leave()


def test_a_sender_that_does_not_answer_is_heard_for_a_while() -> None:
    network = Network()
    producer, consumer = network.client("producer"), network.client("consumer")
    consumer.receiver("q", credit=20)
    sender = producer.sender("q")
    producer.drains = False
    with staying_here(network, consumer):
        depart(network)
    network.advance(STEPS)
    sent = producer.send(sender)  # with credit that it has still
    consumer.take(1)[0].accept()
    network.run()
    assert isinstance(sent.outcome, Accepted)
    assert end_of(producer) is None
    network.advance(HEARING_TIME + ARRIVAL_TIME)
    assert is_forced(producer)
    network.leave()


def test_a_message_sent_settled_just_before_a_sender_hears_that_its_credit_is_taken_back_arrives() -> None:
    network = Network()
    producer, consumer = network.client("producer"), network.client("consumer")
    consumer.receiver("q", credit=20)
    sender = producer.sender("q")
    producer.drains = False
    with staying_here(network, consumer):
        depart(network)
    network.advance(STEPS)
    producer.stopped = True  # the flow that takes the credit back is on its way to it
    network.advance(HEARING_TIME + STEP - STEPS)
    assert sender.credit > 0
    producer.send(sender, settled=True)
    consumer.take(1)
    assert end_of(producer) is None
    producer.stopped = False
    network.run()
    assert sender.credit == 0
    network.advance(ARRIVAL_TIME)
    assert is_forced(producer)
    network.leave()


def test_a_sender_that_says_that_it_knows_of_no_credit_is_waited_for_no_longer() -> None:
    network = Network()
    producer, consumer = network.client("producer"), network.client("consumer")
    consumer.receiver("q", credit=20)
    producer.sender("q")
    producer.drains = False
    with staying_here(network, consumer):
        depart(network)
    network.advance(HEARING_TIME)
    assert end_of(producer) is None
    network.advance(3 * STEP)
    assert is_forced(producer)
    network.leave()


def test_a_client_that_receives_and_sends_on_can_do_both_to_the_end() -> None:
    network = Network()
    producer, transformer, consumer = (network.client(name) for name in ("producer", "transformer", "consumer"))
    consumer.receiver("out", credit=10)
    transformer.receiver("in", credit=10)
    passed_on = transformer.sender("out")
    sent = [producer.send(sender) for sender in (producer.sender("in"),) for _ in range(3)]
    received = transformer.take(3)
    with staying_here(network, producer, consumer):
        depart(network)
    network.advance(2.0)
    for each in received:
        assert passed_on.credit > 0
        on: Sent = transformer.send(passed_on)
        consumer.take(1)[0].accept()
        network.run()
        assert isinstance(on.outcome, Accepted)
        each.accept()
        network.run()
    network.advance(STEPS)
    assert all(isinstance(each.outcome, Accepted) for each in sent)
    assert is_forced(transformer)
    network.leave()


def test_a_client_that_has_asked_gets_its_answer() -> None:
    network = Network()
    server, asking = network.client("server"), network.client("asking")
    server.receiver("service", credit=10)
    answers = asking.receiver(None, source=Source(dynamic=True), credit=10)
    assert answers.remote is not None
    assert isinstance(answers.remote.source, Source)
    reply_to = answers.remote.source.address
    asking.send(asking.sender("service"))
    server.take(1)[0].accept()
    network.run()
    with staying_here(network, server):
        depart(network)
    network.advance(QUIET_TIME / 2)
    assert end_of(asking) is None
    replies = server.sender(str(reply_to))
    sent = server.send(replies)
    network.advance(QUIET_TIME)
    assert end_of(asking) is None
    asking.take(1)[0].accept()
    network.run()
    assert isinstance(sent.outcome, Accepted)
    network.advance(QUIET_TIME + STEPS)
    assert is_forced(asking)
    network.leave()


@pytest.mark.parametrize("follows", [True, False])
def test_a_client_that_follows_redirects_is_sent_to_the_next_place(follows: bool) -> None:
    network = Network()
    clients = [network.client() for _ in range(3)]
    for each in clients:
        remote = each.record.engine.remote
        assert remote is not None
        if follows:
            object.__setattr__(remote, "desired_capabilities", (REDIRECT,))
    places = [Redirect(hostname="b", network_host="b", port=5672), Redirect(hostname="c", network_host="c", port=5673)]
    depart(network, places=places)
    network.advance(1.0)
    for each, host in zip(clients, ["b", "c", "b"], strict=True):
        end = end_of(each)
        assert end is not None
        assert end.error is not None
        if follows:
            assert end.error.condition == ConnectionCondition.REDIRECT
            assert end.error.info is not None
            assert end.error.info["network-host"] == host  # type: ignore[index]  # a symbol is a string
        else:
            assert is_forced(each)
    network.leave()


def test_links_that_are_attached_during_the_move_get_nothing() -> None:
    network = Network()
    producer, consumer, other = (network.client(name) for name in ("producer", "consumer", "other"))
    consumer.receiver("q", credit=10)
    producer.send(producer.sender("q"))
    with staying_here(network, other):
        depart(network)
    network.advance(2 / LEAST)
    late = consumer.receiver("p", credit=10)
    network.advance(STEPS)
    sender = other.sender("p")
    assert late.is_attached
    assert sender.credit == 0
    for each in consumer.take(1):
        each.accept()
    network.run()
    network.advance(1.0)
    assert is_forced(consumer)
    network.leave()


def test_a_client_with_many_links_is_moved_in_steps() -> None:
    network = Network()
    client = network.client(window=10_000)
    for each in range(2 * LINKS_A_STEP + 1):
        client.receiver(f"r/{each}")
    retired = set()
    depart(network)
    while end_of(client) is None:
        retired.add(sum(each.retired for each in client.record.outgoing))
        network.advance(0.001)
    assert retired == {0, LINKS_A_STEP, 2 * LINKS_A_STEP}  # the last one in the step that closes the connection
    assert is_forced(client)
    network.leave()


def test_a_client_that_leaves_by_itself_is_moved() -> None:
    network = Network()
    producer, consumer = network.client("producer"), network.client("consumer")
    consumer.receiver("q", credit=10)
    producer.send(producer.sender("q", target=Target(address="q")))
    depart(network)
    network.advance(STEPS)
    assert network.core.departure.left == 2
    consumer.lose()
    network.advance(1.0)
    assert network.core.departure.left == 0
    assert is_forced(producer)
    network.leave()


def test_a_receiver_of_copies_that_has_no_credit_for_more_is_moved_without_them() -> None:
    network = Network()
    producer, consumer, watcher = (network.client(name) for name in ("producer", "consumer", "watcher"))
    consumer.receiver("q", credit=10)
    watcher.receiver("q", credit=1, copy=True)
    sender = producer.sender("q")
    for _ in range(3):
        producer.send(sender)
    for each in (*consumer.take(3), *watcher.take(1)):
        each.accept()
    network.run()
    depart(network)
    network.advance(1.0)
    assert all(map(is_forced, (producer, consumer, watcher)))
    network.leave()


@pytest.mark.parametrize("settled", [True, False])
def test_the_receivers_of_a_multicast_that_stay_get_all_of_it(settled: bool) -> None:
    network = Network(AddressConfig(pattern="q", distribution=Distribution.MULTICAST))
    producer, leaving, staying = (network.client(name) for name in ("producer", "leaving", "staying"))
    for each in (leaving, staying):
        each.receiver("q", credit=10)
    sender = producer.sender("q")
    sent = [producer.send(sender, settled=settled) for _ in range(2)]
    with staying_here(network, producer, staying):
        depart(network)
    network.advance(STEPS)
    sent += [producer.send(sender, settled=settled) for _ in range(2)]
    for each in (*staying.take(4), *leaving.take(2)):
        if not settled:
            each.accept()
    network.run()
    network.advance(STEPS)
    assert settled or all(isinstance(each.outcome, Accepted) for each in sent)
    assert is_forced(leaving)
    network.leave()


@pytest.mark.parametrize("leaves", ["sender", "receiver"])
def test_a_large_message_that_is_on_its_way_comes_whole(leaves: str) -> None:
    network = Network()
    producer, consumer = network.client("producer"), network.client("consumer")
    consumer.receiver("q", credit=1)
    sent = producer.send(producer.sender("q"), message("x" * 10_000), more=True)
    with staying_here(network, consumer if leaves == "sender" else producer):
        depart(network)
    network.advance(1.0)
    moved = producer if leaves == "sender" else consumer
    assert end_of(moved) is None
    producer.resume(sent, b"y" * 10_000)
    (arrival,) = consumer.take(1)
    assert arrival.payload.endswith(b"y" * 10_000)
    arrival.accept()
    network.run()
    network.advance(1.0)
    assert isinstance(sent.outcome, Accepted)
    assert is_forced(moved)
    network.leave()
