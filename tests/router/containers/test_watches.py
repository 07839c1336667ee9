"""Watches of nodes that accept messages though they do not exist."""

from __future__ import annotations

import logging

import pytest

from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified
from amqpmesh.router.config.file import LinkConfig, Watch
from amqpmesh.router.containers.container_links import LONGEST_PAUSE, WATCHING
from amqpmesh.router.containers.watches import drops_in_silence
from amqpmesh.router.logs.event_log import event_of, fields_of
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.statistics.configured import ContainerLinkState, ContainerLinkStatistics
from tests.support.peers.broker import CONNECTOR, PRODUCT, Broker
from tests.support.worlds.network import Client, Network

QUEUE = "/amq/queue/orders"
RABBIT = ("RabbitMQ", "3.10.8")
NOT_FOUND = Error(condition=AmqpCondition.NOT_FOUND, description="no queue 'orders'")
DELETED = Error(condition=AmqpCondition.RESOURCE_DELETED, description="the queue is gone")
FORBIDDEN = Error(condition=AmqpCondition.UNAUTHORIZED_ACCESS, description="no right to read")

S = ContainerLinkState


def network(node: str = QUEUE, watch: Watch = Watch.AUTO) -> Network:
    fed = LinkConfig(connector="broker", name="fed", target=node, address="outgoing", watch=watch)
    return Network(connectors=(CONNECTOR,), container_links=(fed,))


def told(router: Network) -> ContainerLinkStatistics:
    (link,) = snapshot(router.core).container_links
    return link


def delivers(router: Network, broker: Broker, producer: Client) -> bool:
    """Send a message. Returns: whether it reaches the node and its sender gets the outcome."""
    link = producer.sender("outgoing")
    if not link.credit:
        return False
    sent = producer.send(link)
    broker.take(1)[0].accept()
    router.run()
    return sent.said == [(Accepted(), True)]


@pytest.mark.parametrize("ends_sessions", [True, False])
def test_nothing_is_sent_to_a_node_that_is_not_there_until_it_is(ends_sessions: bool) -> None:
    router = network()
    broker = Broker(router, product=RABBIT, ends_sessions=ends_sessions)
    broker.hides[QUEUE] = NOT_FOUND
    broker.links["fed"].session.end(NOT_FOUND)
    router.run()
    router.advance(1.0)
    producer = router.client()
    link = producer.sender("outgoing")
    assert link.credit == 0
    assert told(router).state is S.WAITING
    reason = told(router).reason
    assert reason is not None
    assert "the node is not there (amqp:not-found): no queue 'orders'" in reason
    router.advance(3 * LONGEST_PAUSE)
    assert {attach.name for attach in broker.asked[2:]} == {"fed/watch"}, "no sender is attached meanwhile"
    broker.hides.clear()
    router.advance(LONGEST_PAUSE)
    assert told(router).state is S.ATTACHED
    assert (told(router).reason, told(router).unwatched) == (None, None)
    assert delivers(router, broker, producer)
    router.leave()


@pytest.mark.parametrize("error", [DELETED, NOT_FOUND])
def test_the_link_goes_with_the_node_and_what_has_no_outcome_is_modified(error: Error) -> None:
    router = network()
    broker, producer = Broker(router, product=RABBIT), router.client()
    link = producer.sender("outgoing")
    sent = producer.send(link)
    broker.take(1)
    broker.hides[QUEUE] = NOT_FOUND
    broker.sending("fed/watch").detach(error=error)
    router.run()
    assert sent.said == [(Modified(delivery_failed=True), True)]
    assert told(router).state is S.WAITING
    router.advance(1.0)
    assert told(router).state is S.WAITING
    broker.hides.clear()
    router.advance(LONGEST_PAUSE)
    assert delivers(router, broker, producer)
    router.leave()


def test_a_watch_is_given_no_credit() -> None:
    router = network()
    broker = Broker(router, product=RABBIT)
    consumer = router.client()
    consumer.receiver("outgoing", credit=100)
    router.advance(10.0)
    assert broker.sending("fed/watch").credit == 0
    router.leave()


def test_a_container_that_refuses_the_watch_for_another_reason_goes_on_and_the_router_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    router = network(watch=Watch.ALWAYS)
    broker, producer = Broker(router, ends_sessions=True), router.client()
    broker.hides[QUEUE] = FORBIDDEN
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            broker.links["fed"].detach()
            router.run()
            router.advance(2 * LONGEST_PAUSE)
    assert told(router).state is S.ATTACHED
    reason = "the peer ended the session (amqp:unauthorized-access): no right to read"
    assert told(router).unwatched == reason
    logged = [fields_of(record) for record in caplog.records if event_of(record) == "link watch failed"]
    assert logged == [{"connector": "broker", "link": "fed", "node": QUEUE, "address": "outgoing", "reason": reason}], (
        "once"
    )
    assert delivers(router, broker, producer)
    router.leave()


def test_a_watch_that_ends_for_another_reason_does_not_end_the_link() -> None:
    router = network()
    broker, producer = Broker(router, product=RABBIT), router.client()
    broker.sending("fed/watch").detach(error=Error(condition=AmqpCondition.RESOURCE_LIMIT_EXCEEDED))
    router.run()
    assert told(router).state is S.ATTACHED
    assert told(router).unwatched == "the peer detached the watch (amqp:resource-limit-exceeded)"
    assert delivers(router, broker, producer)
    router.leave()


def test_a_container_that_does_not_answer_the_watch_is_not_waited_for_for_long() -> None:
    router = network(watch=Watch.ALWAYS)
    broker, producer = Broker(router), router.client()
    broker.ignores.add(QUEUE)
    broker.links["fed"].detach()
    router.run()
    router.advance(2.0)
    assert told(router).state is S.ATTACHING
    router.advance(WATCHING)
    assert told(router).state is S.ATTACHED
    assert told(router).unwatched == "the peer did not answer the watch in 10 s"
    assert delivers(router, broker, producer)
    router.leave()


@pytest.mark.parametrize(
    ("node", "watch", "product", "is_watched"),
    [
        (QUEUE, Watch.AUTO, RABBIT, True),
        ("/queue/orders", Watch.AUTO, RABBIT, True),
        ("orders", Watch.AUTO, RABBIT, True),
        ("/exchange/orders/new", Watch.AUTO, RABBIT, False),
        ("/topic/new", Watch.AUTO, RABBIT, False),
        (QUEUE, Watch.NEVER, RABBIT, False),
        (QUEUE, Watch.AUTO, ("RabbitMQ", "4.0.5"), False),
        (QUEUE, Watch.AUTO, None, False),
        ("orders", Watch.ALWAYS, None, True),
    ],
)
def test_it_is_watched_where_a_queue_is_in_doubt_or_the_configuration_says_so(
    node: str, watch: Watch, product: tuple[str, str] | None, is_watched: bool
) -> None:
    router = network(node, watch)
    broker, producer = Broker(router, product=product), router.client()
    assert [attach.name for attach in broker.asked] == (["fed/watch", "fed"] if is_watched else ["fed"])
    assert delivers(router, broker, producer)
    router.leave()


def test_what_feeds_an_address_is_not_watched() -> None:
    link = LinkConfig(connector="broker", name="feeds", source=QUEUE, address="incoming")
    router = Network(connectors=(CONNECTOR,), container_links=(link,))
    broker = Broker(router, product=RABBIT)
    assert list(broker.links) == ["feeds"]
    router.leave()


def test_a_connection_that_is_lost_takes_the_watch_along_and_both_come_back() -> None:
    router = network()
    broker, producer = Broker(router, product=RABBIT), router.client()
    broker.lose()
    assert told(router).state is S.DISCONNECTED
    broker = Broker(router, product=RABBIT)
    assert list(broker.links) == ["fed/watch", "fed"]
    assert delivers(router, broker, producer)
    router.leave()


@pytest.mark.parametrize("properties", [None, {}, {PRODUCT[0]: "RabbitMQ"}, {PRODUCT[0]: "RabbitMQ", PRODUCT[1]: 3}])
def test_a_container_that_does_not_say_what_it_is_is_believed(properties: dict[object, object] | None) -> None:
    assert not drops_in_silence(properties)  # type: ignore[arg-type]  # as peers may write them
