"""Session windows of large deliveries, while small ones pass the same router (§2.5.6)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from amqpmesh.router.amqp.session import Session
from tests.support.worlds.network import Network, message

WIDE = 32
NARROW = 4
PART = message("x" * 5000)
LONGER = 0.2  # seconds: a small message so long ago is not beside


class Scene:
    """A producer in the middle of a large message, its consumer, and another producer and consumer beside them."""

    def __init__(self, narrow: int = NARROW) -> None:
        self.network = network = Network()
        network.listener = replace(network.listener, session_window=WIDE, max_frame_size=8192)
        self.consumer = network.client(max_frame_size=8192, window=10_000)
        self.arriving = self.consumer.receiver("large", credit=100_000)
        self.consumer.receiver("small", credit=100_000)
        self.producer, self.beside = network.client(max_frame_size=8192), network.client()
        self.large, self.small = self.producer.sender("large"), self.beside.sender("small")
        for each in network.core.context.connections:
            each.engine.flow_state.narrow = narrow
        self.delivery = self.producer.send(self.large, PART, more=True)
        network.run()

    def part(self) -> int:
        """One more frame. Returns: how many the router lets follow."""
        self.producer.resume(self.delivery, PART, more=True)
        self.network.run()
        return window(self.large.session)

    def pass_small(self) -> None:
        self.beside.send(self.small, message(), settled=True)
        self.network.run()


def window(session: Session) -> int:
    """Return how many transfers the client may send now."""
    return session.flow_state.remote_incoming_window


def test_alone_what_is_large_has_all_of_it() -> None:
    scene = Scene()
    assert min(scene.part() for _ in range(5 * WIDE)) >= WIDE // 2


def test_beside_small_messages_it_is_narrow_and_wide_again_after_them() -> None:
    scene = Scene()
    told = []
    for _ in range(5 * WIDE):
        scene.pass_small()
        told.append(scene.part())
    assert told[0] >= WIDE // 2, "what was told before holds"
    assert all(after >= before - 1 for before, after in pairwise(told)), "it never falls"
    assert max(told[WIDE:]) == NARROW
    scene.network.advance(LONGER)
    assert max(scene.part() for _ in range(NARROW + 1)) >= WIDE // 2


def test_it_is_not_narrowed_where_more_than_it_is_under_way() -> None:
    scene = Scene(narrow=WIDE)
    told = []
    for _ in range(5 * WIDE):
        scene.pass_small()
        told.append(scene.part())
    assert min(told) >= WIDE // 2


@pytest.mark.parametrize("narrow", [1, 2, 3])
def test_however_narrow_it_is_a_large_message_comes_whole(narrow: int) -> None:
    scene = Scene(narrow)
    for _ in range(3 * WIDE):
        scene.pass_small()
        assert scene.part() >= 1
    scene.producer.resume(scene.delivery, PART, more=False)
    scene.network.run()
    (large,) = (each for each in scene.consumer.take() if each.link is scene.arriving)
    assert large.payload == PART * (1 + 3 * WIDE + 1)


def test_what_is_small_keeps_all_of_it_though_something_large_came_before() -> None:
    scene = Scene()
    scene.producer.resume(scene.delivery, PART, more=False)
    own = scene.producer.sender("small", session=scene.large.session)
    for _ in range(5 * WIDE):
        scene.producer.send(own, message(), settled=True)
        scene.network.run()
        assert window(own.session) >= WIDE // 2


@pytest.mark.parametrize("narrow", [1, NARROW])
def test_deliveries_that_wait_for_one_receiver_do_not_stop_those_of_others(narrow: int) -> None:
    """As far as there is room in the wide window, also for what comes after the last small message."""
    scene = Scene(narrow)
    network, producer = scene.network, scene.producer
    scene.producer.resume(scene.delivery, PART, more=False)
    network.run()
    stalled = network.client(max_frame_size=8192, window=1)
    stalled.receiver("stalled", credit=5)
    stalled.stopped = True
    stopped = producer.sender("stalled", session=scene.large.session)
    held = producer.send(stopped, PART, more=True)
    for _ in range(2 * NARROW):
        scene.pass_small()
        producer.resume(held, PART, more=True)
        network.run()
    scene.consumer.take()
    for _ in range(5 * WIDE):
        scene.pass_small()
        assert window(scene.large.session) > 0
        another = producer.send(scene.large, PART, settled=True, more=True)
        producer.resume(another, PART, more=False)
        network.run()
        network.advance(0.01)
    network.advance(LONGER)
    assert window(scene.large.session) > 0
    assert len(scene.consumer.take()) == 2 * 5 * WIDE


def test_a_small_message_in_small_frames_is_one_beside() -> None:
    scene = Scene()
    slow = scene.network.client(max_frame_size=512)
    slow.receiver("in parts", credit=100_000)
    small = scene.beside.sender("in parts")
    told = []
    for _ in range(5 * WIDE):
        scene.beside.send(small, message("x" * 1500), settled=True)
        scene.network.run()
        scene.network.advance(LONGER / 4)
        told.append(scene.part())
    assert max(told[WIDE:]) == NARROW
