"""The window of a connection's first session: wide while frames leave at once, up to 4 MiB of them (§2.5.6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amqpmesh.router.amqp.link import Sender
from amqpmesh.router.amqp.session import Session
from tests.support.worlds.network import Client, Network, message

LARGE = message("x" * 5000)


def _scene(**limits: int) -> tuple[Network, Client, Client, Sender]:
    """Return a producer, a consumer of "q" that takes everything, and the producer's link."""
    network = Network()
    network.listener = replace(network.listener, session_window=8, max_frame_size=2**20, **limits)
    consumer, producer = network.client(max_frame_size=2**20, window=10_000), network.client(max_frame_size=2**20)
    consumer.receiver("q", credit=100_000)
    return network, producer, consumer, producer.sender("q")


def _pass(network: Network, consumer: Client, producer: Client, link: Sender, count: int, payload: bytes) -> None:
    for _ in range(count):
        producer.send(link, payload, settled=True)
        network.run()
    consumer.take(count)


def _window(session: Session) -> int:
    """Return how many transfers the client may send now."""
    return session.flow_state.remote_incoming_window


def test_it_grows_in_steps_while_small_messages_pass_and_not_beyond_its_limit() -> None:
    network, producer, consumer, link = _scene(small_window=50)
    widest = 0
    for _ in range(400):
        _pass(network, consumer, producer, link, 1, message())
        widest = max(widest, _window(link.session))
    assert 25 <= widest <= 50
    assert _window(link.session) >= 20


@pytest.mark.parametrize("limits", [{"small_window": 1}, {"small_window": 8}])
def test_a_limit_that_is_no_more_changes_nothing(limits: dict[str, int]) -> None:
    network, producer, consumer, link = _scene(**limits)
    for _ in range(100):
        _pass(network, consumer, producer, link, 1, message())
        assert _window(link.session) <= 8


def test_frames_of_which_it_holds_4_mib_do_not_widen_it() -> None:
    network, producer, consumer, link = _scene()
    large = message("x" * 500_000)  # eight of them have nearly 4 MiB
    for _ in range(40):
        _pass(network, consumer, producer, link, 1, large)
        assert _window(link.session) <= 8
    # Nor do small ones with large ones between them.
    for _ in range(30):
        _pass(network, consumer, producer, link, 7, message())
        _pass(network, consumer, producer, link, 1, large)
        assert _window(link.session) <= 8


def test_it_is_no_wider_than_4_mib_of_its_frames() -> None:
    network, producer, consumer, link = _scene(small_window=10_000)
    for _ in range(400):
        _pass(network, consumer, producer, link, 1, message("x" * 50_000))
        assert _window(link.session) * 50_000 <= 4 * 2**20
    assert _window(link.session) > 8


def test_only_the_first_session_of_a_connection_has_it() -> None:
    network, producer, consumer, _ = _scene()
    session = producer.engine.begin()
    network.run()
    link = producer.sender("q", session=session)
    for _ in range(100):
        _pass(network, consumer, producer, link, 1, message())
        assert _window(session) <= 8


def test_while_something_is_held_it_does_not_grow() -> None:
    network, producer, consumer, link = _scene()
    slow = network.client(window=1)
    slow.receiver("slow", credit=5)
    slow.stopped = True
    stopped = producer.sender("slow")
    held = producer.send(stopped, LARGE, more=True)
    producer.resume(held, LARGE, more=True)
    network.run()
    for _ in range(200):
        _pass(network, consumer, producer, link, 1, message())
        assert _window(link.session) <= 8
