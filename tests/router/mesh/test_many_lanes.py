"""Hundreds of lanes, attached again in parts."""

from itertools import pairwise

from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.mesh.routes import BATCH, PAUSE
from tests.support.worlds.meshes import World
from tests.support.worlds.network import message

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
