"""Addresses that anonymous senders alone use: their receivers' credit, and the look-up of a node in use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, LinkCondition
from amqpmesh.router.amqp.standard.delivery_states import Rejected
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.config.redirect import RedirectConfig
from amqpmesh.router.management.changed_config import put_in_force
from tests.router.delivery.test_fast_routes import send
from tests.support.worlds.network import Network, message


def test_the_kernel_counts_the_credit_of_an_address_that_anonymous_senders_alone_use() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", credit=5)
    link = producer.sender(None)
    send(producer, link, *[message(to="q")] * 3)
    node = network.core.context.nodes.find("", "q")
    assert node is not None

    def state() -> list[int]:
        """Return what has arrived, what can be taken, and what waits."""
        network.core.context.catch_up()
        assert node.pool.is_open or node.waiting.size, "no turn of the router is needed"
        return [len(consumer.take()), node.demand, node.waiting.size]

    assert state() == [3, 2, 0]
    send(producer, link, *[message(to="q")] * 3)
    assert state() == [2, 0, 1]
    receiver.flow(4)
    network.run()
    assert state() == [1, 3, 0]
    later = producer.sender("q")
    assert later.credit == node.granted
    assert 3 <= later.credit <= 4, "a link that comes gets what is left, and one delivery that may wait"
    send(producer, link, message(to="q"))
    assert state() == [1, 2, 0]
    network.leave()


@pytest.mark.parametrize(
    ("changed", "condition"),
    [
        (AddressConfig(pattern="q", distribution=Distribution.UNAVAILABLE), AmqpCondition.NOT_FOUND),
        (AddressConfig(pattern="q", redirect=RedirectConfig(network_host="there.example")), LinkCondition.REDIRECT),
    ],
)
def test_an_address_in_use_that_a_pattern_forbids_or_redirects_takes_no_messages(
    changed: AddressConfig, condition: AmqpCondition | LinkCondition
) -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=5)
    link = producer.sender(None)
    put_in_force(network.core, replace(network.core.context.config, addresses=(changed,)), network.now)
    refused = send(producer, link, message(to="q"))[0].outcome
    assert isinstance(refused, Rejected)
    assert refused.error is not None
    assert refused.error.condition == condition
    assert not consumer.take()
    network.leave()
