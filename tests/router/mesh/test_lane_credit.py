"""Little credit over several routers: each of them divides it in the kernel, and needs no turn."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from unittest.mock import patch

import pytest

from amqpmesh.router import core
from amqpmesh.router.batch import finish_batch
from amqpmesh.router.context import Context
from amqpmesh.router.model.links import IncomingLink
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


def test_what_waits_at_an_exit_leaves_before_what_its_ingress_has_queued() -> None:
    mesh = World("AB", [("A", "B")])
    consumer = mesh["B"].client()
    receiver = consumer.receiver("q", credit=10)
    mesh.advance(0.5)
    producer = mesh["A"].client()
    link = producer.sender("q")
    context = mesh["A"].core.context
    got: list[int] = []
    sent = 0
    for number in range(30):
        while link.credit > 0:
            producer.send(link, message(f"number {sent}."))
            sent += 1
        mesh.run()
        if number == 20:
            held = [each for pool in context.kernel.held_back for each in pool.held or ()]
            assert {each.at_exit for each in held} == {False, True}
            incoming = held[0].link.record
            assert isinstance(incoming, IncomingLink)
            assert incoming.node is not None
            context.touch(incoming.node)  # the exit stays as it is
            finish_batch(context)
        for arrival in consumer.take():
            found = re.search(rb"number (\d+)", bytes(arrival.payload))
            assert found is not None
            got.append(int(found[1]))
            arrival.accept()
        receiver.flow(10)
        mesh.run()
    assert got == list(range(len(got)))
    assert len(got) > 250
    mesh.leave()
