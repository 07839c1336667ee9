"""Little credit over several routers: each of them divides it in the kernel, and needs no turn."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from unittest.mock import patch

import pytest

from amqpmesh.router import core
from amqpmesh.router.batch import finish_batch
from amqpmesh.router.context import Context
from tests.support.worlds.meshes import World
from tests.support.worlds.network import message
from tests.support.worlds.side_by_side import relaying


@pytest.mark.parametrize(("senders", "credit"), [(1, 1), (1, 2), (1, 10), (3, 10)])
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("routers", ["AB", "ABC"])
def test_a_round_over_lanes_takes_no_turn_of_any_router(credit: int, settled: bool, routers: str, senders: int) -> None:
    mesh = World(routers, [(one, two) for one, two in pairwise(routers)])
    consumer = mesh[routers[-1]].client()
    receiver = consumer.receiver("q", credit=credit)
    mesh.advance(0.5)
    producers = [mesh["A"].client() for _ in range(senders)]
    links = [each.sender("q") for each in producers]
    turns: Counter[str] = Counter()

    def counted(context: Context) -> None:
        turns[context.id] += 1
        finish_batch(context)

    arrived = sent = 0
    with relaying(alone=True), patch.object(core, "finish_batch", counted):
        for number in range(50):
            if number == 25:
                turns.clear()
            for producer, link in zip(producers, links, strict=True):
                while link.credit:
                    producer.send(link, message(), settled=settled)
                    sent += 1
            mesh.run()
            for arrival in consumer.take():
                arrived += 1
                if not settled:
                    arrival.accept()
            receiver.flow(credit)
            mesh.run()
    assert sum(turns.values()) <= 2
    assert arrived == 50 * credit
    assert sent >= arrived
    for arrival in consumer.take():
        arrival.accept()
    mesh.run()
    mesh.leave()
