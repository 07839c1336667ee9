"""Attaches and detaches that come in one read: in several turns, so that other connections do not wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.core import WORK_LIMIT
from tests.support.worlds.network import Network, message

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.model.connections import ConnectionRecord

MANY = 250


def turns(network: Network, record: ConnectionRecord, data: bytes, count: Callable[[], int]) -> list[int]:
    """Give a router some octets at once. Returns: how much each turn changes a count."""
    changes, before = list[int](), count()
    is_done = False
    while not is_done:
        is_done = network.core.receive(record, data, network.now)
        data = b""
        changes.append(count() - before)
        before = count()
    return changes


@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_many_attaches_and_detaches_in_one_read_take_several_turns(role: str) -> None:
    network = Network()
    client, other = network.client(), network.client()

    def links() -> int:
        return len(client.record.incoming) + len(client.record.outgoing)

    with patch.object(network, "run"):  # the router gets all of them at once
        made = [getattr(client, role)(f"q{number}") for number in range(MANY)]
    steps = turns(network, client.record, bytes(client.engine.data_to_send(network.now)), links)
    assert sum(steps) == MANY
    assert max(steps) <= WORK_LIMIT / 10
    network.run()
    with patch.object(network, "run"):
        for link in made:
            link.detach()
    steps = turns(network, client.record, bytes(client.engine.data_to_send(network.now)), links)
    assert sum(steps) == -MANY
    assert min(steps) >= -WORK_LIMIT / 5
    network.run()
    consumer, producer = other.receiver("x", credit=1), client.sender("x")
    sent = client.send(producer, message("hello"))
    (arrival,) = other.take()
    arrival.accept()
    network.run()
    assert sent.said == [(Accepted(), True)]
    consumer.detach()
    network.leave()
