"""Links that lose their right by a changed policy: all of them stop first, and are detached afterwards."""

from __future__ import annotations

import tomllib
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.access.change import LINKS_A_STEP
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.config.policy_file import parse_policy
from tests.support.worlds.network import Network, message

if TYPE_CHECKING:
    from amqpmesh.policies.policy import Policy
    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.connections import ConnectionRecord
    from tests.support.worlds.network import Arrival, Client

WIDE = 'send = ["#"]\nreceive = ["#"]\nmay = ["anonymous", "copy", "dynamic"]'
DENIED = "amqp:unauthorized-access"


def policy(ann: str, others: str = WIDE) -> Policy:
    """Return a policy for the user `ann`, and another user."""
    text = f'[[group]]\nname = "a"\nusers = ["ann"]\n{ann}\n[[group]]\nname = "o"\nusers = ["bob"]\n{others}\n'
    return parse_policy(tomllib.loads(text), Path("policy.toml"))


class Changing(Network):
    """A router whose policy takes all rights from `ann`, and none from `bob`."""

    def __init__(self, *addresses: AddressConfig) -> None:
        #: What judges and detaches links waits, and all else goes on.
        self.waits = False
        super().__init__(*addresses)
        self.core.set_policy(policy(WIDE), self.now)
        self.ann = self.client(user="ann")
        self.bob = self.client(user="bob")

    def run(self) -> None:
        chores = self.core.context.chores
        later: deque[Steps[None]] = deque()
        if self.waits:
            later, chores.left = chores.left, later
        super().run()
        chores.left.extendleft(reversed(later))

    @property
    def stopped(self) -> set[tuple[ConnectionRecord, str]]:
        """The links that have stopped: their connections and names."""
        return {(each.connection, each.endpoint.name) for each in self.core.context.ended_links.stopped}

    def stop(self, links: int) -> None:
        """Change the policy until so many links have stopped, and do no more of this for now."""
        self.waits = True
        self.core.set_policy(policy(""), self.now)
        while len(self.stopped) < links:
            self.step()
        self.run()
        assert len(self.stopped) == links
        assert not self.ann.detached

    def step(self) -> None:
        """Do one step of what waits."""
        if self.core.context.chores:
            self.core.context.chores.step()
        self.core.change(lambda: None, self.now)

    def go_on(self) -> None:
        """Detach what has stopped."""
        self.waits = False
        self.run()
        assert not self.stopped


def condition(client: Client, link: Link) -> str | None:
    error = client.detached.get(link)
    return None if error is None else str(error.condition)


def test_all_links_stop_in_small_steps_before_the_first_is_detached() -> None:
    world = Network()
    world.core.set_policy(policy(WIDE), world.now)
    clients = [world.client(user="ann") for _ in range(4)]
    count = 4 * 100
    for number in range(count):
        client = clients[number % 4]
        (client.sender if number % 8 < 4 else client.receiver)(f"q{number % 150}")
    context = world.core.context
    world.core.set_policy(policy(""), world.now)
    steps, seen = 0, 0
    while seen < count:
        context.chores.step()
        now = len(context.ended_links.stopped)
        assert now - seen <= LINKS_A_STEP
        seen, steps = now, steps + 1
        assert sum(len(each.record.incoming) + len(each.record.outgoing) for each in clients) == count
    assert steps <= count / LINKS_A_STEP + 2 * len(clients)
    while context.chores:
        before = context.denied
        context.chores.step()
        assert context.denied <= before + 1, "each step detaches one"
    world.run()
    assert context.denied == count
    assert all(len(each.detached) == 100 for each in clients)
    world.leave()


def test_what_a_stopped_sender_sends_is_dropped_and_what_it_has_sent_before_gets_its_outcome() -> None:
    world = Changing()
    receiver = world.bob.receiver("q", credit=20)
    link = world.ann.sender("q")
    before = world.ann.send(link)
    (arrived,) = world.bob.take()
    world.stop(1)
    unsettled, _ = world.ann.send(link), world.ann.send(link, settled=True)
    other = world.bob.sender("q")
    passed = world.bob.send(other)
    (own,) = world.bob.take()
    own.accept()
    arrived.accept()
    world.run()
    assert passed.outcome == Accepted()
    assert before.outcome == Accepted()
    assert condition(world.ann, link) is None
    world.go_on()
    assert condition(world.ann, link) == DENIED
    assert unsettled.said == [], "it is in doubt, as what crosses a detach"
    assert world.bob.take() == []
    assert receiver.is_attached
    world.leave()


def test_no_credit_of_a_receiver_goes_to_a_stopped_sender() -> None:
    world = Changing()
    link = world.ann.sender("q")
    other = world.bob.sender("q")
    world.stop(1)
    receiver = world.bob.receiver("q", credit=10)
    assert link.credit == 0
    assert other.credit > 0
    receiver.flow(20)
    world.go_on()
    world.leave()


@pytest.mark.parametrize("answers", [True, False])
def test_a_stopped_receiver_gets_nothing_more_and_its_outcome_counts(answers: bool) -> None:
    world = Changing()
    lost = world.ann.receiver("q", credit=10)
    sender = world.bob.sender("q")
    sent = world.bob.send(sender)
    (arrived,) = world.ann.take()
    other = world.bob.receiver("q", credit=10)
    world.stop(1)
    later = [world.bob.send(sender) for _ in range(5)]
    for each in world.bob.take(5):
        each.accept()
    lost.flow(20)
    world.run()
    assert world.ann.take() == []
    if answers:
        arrived.accept()
    world.run()
    world.go_on()
    assert condition(world.ann, lost) == DENIED
    assert [each.outcome for each in later] == [Accepted()] * 5
    assert sent.outcome == (Accepted() if answers else Modified(delivery_failed=True))
    assert other.is_attached
    world.leave()


def test_a_multicast_does_not_wait_for_a_stopped_receiver() -> None:
    world = Changing(AddressConfig(pattern="news", distribution=Distribution.MULTICAST))
    world.ann.receiver("news", credit=1)
    world.bob.receiver("news", credit=10)
    sender = world.bob.sender("news")
    world.bob.send(sender, settled=True)
    world.ann.take(1)
    world.stop(1)
    for _ in range(3):
        world.bob.send(sender, settled=True)
    world.bob.take(4)
    world.go_on()
    world.leave()


def test_messages_for_the_last_receiver_wait_for_others_once_it_has_stopped() -> None:
    world = Changing()
    lost = world.ann.receiver("q", credit=1)
    sender = world.bob.sender("q")
    world.bob.send(sender)
    waiting = world.bob.send(sender)
    (arrived,) = world.ann.take()
    world.stop(1)
    arrived.accept()
    lost.flow(5)
    world.run()
    assert world.ann.take() == []
    assert waiting.said, "nobody is there to take it"
    world.go_on()
    world.leave()


def test_a_link_in_the_middle_of_a_message_is_detached_at_once() -> None:
    world = Changing()
    world.bob.receiver("q", credit=10)
    link = world.ann.sender("q")
    world.ann.send(link, message(), more=True)
    world.core.set_policy(policy(""), world.now)
    context = world.core.context
    while context.chores:
        world.step()
        assert not world.stopped
    world.run()
    assert condition(world.ann, link) == DENIED
    (arrived,) = world.bob.arrivals
    assert arrived.delivery.aborted
    world.leave()


def test_a_link_that_has_stopped_is_detached_though_its_peer_has_the_right_again() -> None:
    world = Changing()
    world.bob.receiver("q")
    link = world.ann.sender("q")
    world.stop(1)
    sent = world.ann.send(link)
    world.core.set_policy(policy(WIDE), world.now)
    world.go_on()
    assert condition(world.ann, link) == DENIED
    assert sent.said == []
    again = world.ann.sender("q")
    assert world.ann.send(again).link.is_attached
    world.bob.take(1)[0].accept()
    world.run()
    world.leave()


@pytest.mark.parametrize("end", ["detached", "closed", "lost", "stolen"])
def test_a_stopped_link_may_end_otherwise(end: str) -> None:
    world = Changing()
    world.bob.receiver("q")
    links = [world.ann.sender("q", name="one"), world.ann.receiver("q", name="two")]
    world.ann.sender(None)
    world.ann.receiver("q", copy=True)
    world.stop(4)
    if end == "lost":
        world.ann.lose()
    elif end == "stolen":
        world.core.set_policy(policy(WIDE), world.now)
        thief = world.client(world.ann.engine.settings.container_id, user="ann")
        thief.sender("q", name="one")
        thief.receiver("q", name="two")
    else:
        for each in links:
            each.detach(closed=end == "closed")
        world.run()
    world.go_on()
    assert not world.ann.record.incoming
    assert not world.ann.record.outgoing
    world.leave()


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["send", "send", "accept", "step", "attach", "policy"]), st.integers(0, 7)),
    min_size=8,
    max_size=50,
)


@settings(max_examples=60, deadline=None)
@given(ACTIONS)
def test_whatever_happens_a_stopped_link_takes_and_gives_nothing(actions: list[tuple[str, int]]) -> None:
    world = Changing()
    world.waits = True
    clients = [world.ann, world.bob]
    senders = [(each, each.sender("q")) for each in clients]
    for each in clients:
        each.receiver("q", credit=3)
        each.receiver("q", credit=3, copy=True)
    dropped: set[bytes] = set()
    came: list[Arrival] = []
    for number, (action, choice) in enumerate(actions):
        before = world.stopped
        client = clients[choice % 2]
        if action == "send":
            client, link = senders[choice % len(senders)]
            payload = message(f"{number}")
            if link.is_attached and link.credit:
                if (client.record, link.name) in before:
                    dropped.add(payload)
                client.send(link, payload, settled=choice % 3 == 0)
        elif action == "accept" and came:
            came.pop(choice % len(came)).accept()
        elif action == "step":
            world.step()
        elif action == "attach" and choice < 4:
            senders.append((client, client.sender("q")))
        elif action == "attach":
            client.receiver("q", credit=3)
        elif action == "policy":
            world.core.set_policy(policy(WIDE if choice % 2 else ""), world.now)
        world.run()
        for each in clients:
            for arrival in each.take():
                assert (each.record, arrival.link.name) not in before
                assert bytes(arrival.payload) not in dropped
                if not arrival.delivery.remote_settled:
                    came.append(arrival)
    world.go_on()
    for arrival in [arrival for each in clients for arrival in each.take()] + came:
        assert bytes(arrival.payload) not in dropped
        if arrival.link.is_attached:
            arrival.accept()
    world.run()
    world.leave()
