"""Hundreds of lanes, attached again in parts."""

from __future__ import annotations

import gc
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.mesh.routes import BATCH, PAUSE
from tests.support.worlds.frayed_wires import LATE, RESUME
from tests.support.worlds.meshes import World
from tests.support.worlds.network import message

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

COUNT = 2 * BATCH + BATCH // 2


def credited(mesh: World) -> int:
    """Return the number of lanes of A that can be used."""
    return sum(lane.credit > 0 for lane in snapshot(mesh["A"].core).lanes)


def test_lanes_come_back_a_part_at_a_time_and_those_that_something_waits_for_first() -> None:
    mesh = World("AB", [("A", "B")])
    consumer, producer = mesh["B"].client(), mesh["A"].client()
    for number in range(COUNT):
        consumer.receiver(f"q{number}", credit=1)
    links = [producer.sender(f"q{number}") for number in range(COUNT)]
    mesh.advance(0.5)
    assert credited(mesh) == COUNT
    mesh.cut(*mesh.between("A", "B"))
    mesh.advance(0.1)
    sent = producer.send(links[-1], message("x"))
    assert credited(mesh) == 0
    mesh.join("A", "B")
    mesh.advance_until(lambda: credited(mesh) > 0, limit=1.0)
    seen = [0, credited(mesh)]
    (arrival,) = consumer.take(1)
    arrival.accept()
    while seen[-1] < COUNT:
        mesh.advance(PAUSE)
        seen.append(credited(mesh))
    steps = [later - earlier for earlier, later in pairwise(seen)]
    assert max(steps) <= BATCH + 1, "no part is larger than that, but for the one that something waits for"
    mesh.advance(0.1)
    assert sent.outcome == Accepted()
    assert all(link.credit for link in links[:-1])
    mesh.leave()


def test_an_address_whose_last_sender_is_gone_is_not_led_again_when_its_turn_comes() -> None:
    mesh = World("AB", [("A", "B")])
    consumer, producer = mesh["B"].client(), mesh["A"].client()
    for number in range(COUNT):
        consumer.receiver(f"q{number}", credit=1)
        producer.sender(f"q{number}")
    mesh.advance(0.5)
    mesh.cut(*mesh.between("A", "B"))
    mesh.join("A", "B")
    mesh.advance_until(lambda: credited(mesh) > 0, limit=1.0)
    led = len(snapshot(mesh["A"].core).lanes)
    assert 0 < led < COUNT
    producer.close()
    mesh.advance(10 * PAUSE)
    assert len(snapshot(mesh["A"].core).lanes) <= led
    mesh.leave()


def calls_of(act: Callable[[], object]) -> int:
    """Return how many functions of Python are called."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    gc.collect()
    gc.disable()  # it would call the finalizers of other tests' objects
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def test_a_connection_that_is_lost_again_and_again_costs_as_much_each_time() -> None:
    mesh = World("AB", [("A", "B")], mesh=RESUME)
    consumer, producer = mesh["B"].client(), mesh["A"].client()
    number = 100
    for each in range(number):
        consumer.receiver(f"q{each}", credit=10)
    links = [producer.sender(f"q{each}") for each in range(number)]
    mesh.advance(1.0)
    sent = [producer.send(each) for each in links]
    mesh.advance(0.1)

    def lose_and_return() -> None:
        mesh.cut(*mesh.between("A", "B"))
        mesh.join("A", "B")
        mesh.advance(1.0)

    # The router that receives keeps the lanes that carried nothing, and gives their time anew with each connection.
    calls = [calls_of(lose_and_return) for _ in range(4)]
    for arrival in consumer.take(number):
        arrival.accept()
    mesh.advance(0.1)
    assert all(each.outcome == Accepted() for each in sent)
    assert max(calls) < 1.5 * calls[0]
    mesh.advance(LATE)
    mesh.leave()
