"""Random histories of an address that drops duplicates, beside a model: message-ids, their outcomes, and time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Rejected, Released
from amqpmesh.router.management.snapshot import snapshot
from tests.router.delivery.test_duplicates import DROPS, message
from tests.support.worlds.network import Network

if TYPE_CHECKING:
    from amqpmesh.router.amqp.link import Sender
    from tests.support.worlds.network import Arrival, Client, Sent

LOST = Modified(delivery_failed=True)
OUTCOMES = Accepted(), Rejected(), Released(), LOST
TIME = 60.0

STEPS = st.lists(
    st.tuples(st.just("send"), st.integers(0, 4), st.integers(0, 1), st.sampled_from([False, False, False, True]))
    | st.tuples(st.just("decide"), st.integers(0, 4), st.sampled_from(OUTCOMES))
    | st.tuples(st.just("cut"), st.integers(0, 1))
    | st.tuples(st.just("lose"))
    | st.tuples(st.just("wait"), st.sampled_from([1.0, 30.0, 61.0])),
    max_size=40,
)


@dataclass
class Known:
    """A message-id in the model."""

    settled: bool
    """The first message came settled."""
    arrival: Arrival | None
    """Its delivery, which has no outcome yet."""
    at: float
    outcome: object = None
    heard_by: list[Sent] = field(default_factory=list)
    """Deliveries that wait for the outcome."""


class History:
    """A router, and the model of the window of its address."""

    def __init__(self) -> None:
        self.network = Network(DROPS)
        self.consumer = self.receiver()
        self.senders: dict[int, tuple[Client, Sender]] = {}
        self.known: dict[int, Known] = {}
        self.duplicates = 0

    def receiver(self) -> Client:
        client = self.network.client()
        client.receiver("q/a", credit=5000)
        return client

    def send(self, number: int, by: int, settled: bool) -> None:
        if by not in self.senders:
            client = self.network.client()
            self.senders[by] = client, client.sender("q/a")
        client, link = self.senders[by]
        known = self.known.get(number)
        if known is not None and known.arrival is None and known.at + TIME <= self.network.now:
            known = None
        if known is not None and not settled and known.settled:
            known = None
        sent = client.send(link, message(str(number)), settled=settled)
        if known is None:
            (arrival,) = self.consumer.take(1)
            self.known[number] = known = Known(settled, None if settled else arrival, self.network.now)
        else:
            assert self.consumer.take() == []
            self.duplicates += 1
        if settled:
            return
        if known.arrival is None:
            assert sent.said == [(known.outcome, True)]
        else:
            assert sent.said == []
            known.heard_by.append(sent)

    def decide(self, number: int, outcome: object) -> None:
        known = self.known.get(number)
        if known is None or known.arrival is None:
            return
        known.arrival.dispose(outcome, settled=True)  # type: ignore[arg-type]  # one of `OUTCOMES`
        self.network.run()
        self.decided(number, outcome)

    def decided(self, number: int, outcome: object) -> None:
        known = self.known[number]
        assert [sent.said for sent in known.heard_by] == [[(outcome, True)]] * len(known.heard_by)
        known.arrival, known.outcome, known.at = None, outcome, self.network.now
        if outcome in (Released(), LOST):
            del self.known[number]

    def cut(self, by: int) -> None:
        if by in self.senders:
            client, _ = self.senders.pop(by)
            client.lose()
            for known in self.known.values():
                known.heard_by = [sent for sent in known.heard_by if sent.link.session is not client.session]

    def lose(self) -> None:
        before, self.consumer = self.consumer, self.receiver()
        before.lose()
        for number in [number for number, known in self.known.items() if known.arrival is not None]:
            self.decided(number, LOST)

    def wait(self, seconds: float) -> None:
        self.network.advance(seconds)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_each_message_is_handed_on_and_answered_as_the_model_says(steps: list[tuple[object, ...]]) -> None:
    history = History()
    for name, *arguments in steps:
        getattr(history, str(name))(*arguments)
    router = snapshot(history.network.core).router
    assert router.duplicates == history.duplicates
    history.lose()
    history.network.leave()
    history.network.advance(130.0)
    assert not history.network.core.context.kernel.noted
    assert history.network.core.context.budget.used == 0
