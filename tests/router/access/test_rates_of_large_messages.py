"""Rates of octets within a message of several frames: its session's window opens as fast as the rate allows."""

from __future__ import annotations

import pytest

from amqpmesh.router.amqp.link import Sender
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from tests.support.worlds.network import Client, Sent, message
from tests.support.worlds.rated import Rated, limits

PIECE = 10_000
"""Octets of a frame."""

WINDOW = 8
"""Frames of a session's window."""


class Streaming:
    """A sender of a large message, which sends as much of it as its session's window lets through."""

    def __init__(self, rate: str, address: str = "q", world: Rated | None = None) -> None:
        self.world = world or Rated(limits(rate, f"session_window = {WINDOW}"))
        self.world.receiver(address, credit=10)
        self.client: Client = self.world.client()
        self.link: Sender = self.client.sender(address)
        self.sent: Sent | None = None
        self.octets = 0

    def begin(self) -> None:
        self.sent = self.client.send(self.link, message(), more=True)

    def go(self, seconds: float) -> int:
        """Send for a while. Returns: octets."""
        assert self.sent is not None
        before, end = self.octets, self.world.now + seconds
        while True:
            while taken := self.link.transfer(self.sent.delivery, bytes(PIECE), more=True):
                self.octets += taken
                self.world.run()
            if self.world.now >= end - 1e-9:
                return self.octets - before
            self.world.advance(0.01)

    def flow(self, pieces: int) -> None:
        """Send so many pieces at once, none of which has to wait."""
        assert self.sent is not None
        for _ in range(pieces):
            assert self.link.transfer(self.sent.delivery, bytes(PIECE), more=True) == PIECE
            self.world.run()

    def end(self) -> None:
        assert self.sent is not None
        while not self.sent.delivery.complete:
            self.link.transfer(self.sent.delivery, b"", more=False)
            self.world.advance(0.01)


@pytest.mark.parametrize("rate", [50_000, 1_000_000])
def test_a_large_message_comes_at_its_rate(rate: int) -> None:
    stream = Streaming(f'octets = "{rate}/s", burst = 0.5')
    stream.begin()
    assert stream.go(0.0) <= rate / 2 + (WINDOW + 1) * PIECE
    total = stream.octets + stream.go(10.0)
    assert total <= 10.5 * rate + (WINDOW + 1) * PIECE
    assert stream.octets >= 10 * rate - (WINDOW + 1) * PIECE
    stream.end()
    stream.world.go(5.0)
    assert stream.sent is not None
    assert stream.sent.outcome == Accepted()


def test_without_a_rate_nothing_is_withheld() -> None:
    stream = Streaming("")
    stream.begin()
    stream.flow(1000)


def test_other_links_of_the_session_wait_and_go_on() -> None:
    stream = Streaming('octets_per_link = "50 kB/s", burst = 0.5')
    stream.begin()
    stream.go(1.0)
    other = stream.client.sender("q")
    assert other.session is stream.link.session
    stream.go(5.0)
    assert other.credit
    assert not stream.link.transfer(stream.sent.delivery, bytes(PIECE), more=True)  # type: ignore[union-attr]
    late = other.delivery(b"late", message_format=0, settled=False)
    waited = 0.0
    while not other.transfer(late, message(), more=False):
        stream.world.advance(0.1)
        waited += 0.1
    assert waited <= (WINDOW + 1) * PIECE / 50_000 + 0.1


@pytest.mark.parametrize("how", ["the link", "the session", "the connection", "the rate"])
def test_what_is_withheld_is_given_back_when_its_cause_ends(how: str) -> None:
    stream = Streaming('octets = "10 kB/s", burst = 0.1')
    world, client = stream.world, stream.client
    stream.begin()
    stream.go(1.0)
    (incoming,) = client.record.incoming
    meter, session = incoming.credit_sink.meter, incoming.endpoint.session
    assert meter is not None
    assert meter.withheld
    if how == "the rate":
        world.load(limits("", f"session_window = {WINDOW}"))
        stream.flow(100)
    elif how == "the link":
        stream.link.detach(closed=True)
        world.run()
        assert session.flow_state.held == 0
        assert client.sender("q").is_attached
    elif how == "the session":
        stream.link.session.end()
        world.run()
    else:
        client.lose()
    assert not meter.withheld
    world.advance(60.0)
    assert not world.core.context.rates.debtors.take(world.now)


def test_a_second_large_message_has_its_part() -> None:
    first = Streaming('octets = "100 kB/s", burst = 0.2')
    first.begin()
    first.go(1.0)
    second = Streaming("", "other", first.world)
    while not second.link.credit:
        first.go(0.1)
        assert first.octets < 1_000_000, "one large message keeps all others out"
    second.begin()
    before = first.octets
    for _ in range(100):
        first.go(0.05)
        second.go(0.05)
    total = first.octets - before + second.octets
    assert total == pytest.approx(10 * 100_000, rel=0.25)
    assert second.octets > total / 4
    assert first.octets - before > total / 4
