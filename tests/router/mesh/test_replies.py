"""Messages to receivers without a link from the sender, as replies are: credit comes from those receivers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router.amqp.link import Receiver, Sender
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Received, Released
from amqpmesh.router.amqp.standard.messaging import Source
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.config.limits import UINT_MAX
from amqpmesh.router.config.mesh import MeshConfig
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Arrival, Client, Sent, message

UNREAD = 100_000
"""A client's session window that never closes."""


@dataclass
class Mailbox:
    """A receiver of a dynamic node, which grants credit again for each message that it has taken."""

    client: Client
    link: Receiver
    credit: int
    dead: bool = False
    came: list[Arrival] = field(default_factory=list)

    @property
    def address(self) -> str:
        """The `to` of replies to it."""
        assert self.link.remote is not None
        assert isinstance(self.link.remote.source, Source)
        assert self.link.remote.source.address is not None
        return self.link.remote.source.address

    def take(self) -> int:
        """Accept the received messages. Returns: their number."""
        if self.dead:
            return 0
        arrivals = self.client.take()
        self.came += arrivals
        for arrival in arrivals:
            arrival.accept()
        if arrivals:
            self.link.flow(self.credit)
        return len(arrivals)

    @property
    def payloads(self) -> list[bytes]:
        """The messages, in the order of their arrival."""
        return [bytes(each.payload) for each in self.came]


class Traffic:
    """A sender at A, and mailboxes at the last router of a line."""

    def __init__(
        self,
        routers: str,
        credits: Sequence[int],
        *,
        window: int = 64,
        latency: float = 0.0,
        dead: Collection[int] = (),
        config: AddressConfig | None = None,
    ) -> None:
        """Args: dead: the mailboxes that give no credit."""
        #: Frames with content, between routers.
        self.frames = 0
        addresses = () if config is None else (config,)
        mesh = MeshConfig(insecure=True, transit_window=window)
        self.mesh = World(routers, pairwise(routers), *addresses, latency=lambda: latency, tap=self._count, mesh=mesh)
        for node in self.mesh.nodes.values():
            node.listener = replace(node.listener, anonymous_window=window)
        self.far = self.mesh[routers[-1]]
        self.mailboxes = []
        for number, credit in enumerate(credits):
            client = self.far.client(window=UNREAD)
            is_dead = number in dead
            link = client.receiver(None, source=Source(dynamic=True), credit=0 if is_dead else credit)
            self.mailboxes.append(Mailbox(client, link, credit, is_dead))
        self.client = self.mesh["A"].client()
        self.mesh.advance(0.2)

    def sender(self, address: str | None) -> Sender:
        link = self.client.sender(address)
        self.mesh.advance(0.2)
        return link

    def _count(self, sender: str, receiver: str, data: bytes) -> None:
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            self.frames += size > 8
            at += size

    def flood(self, link: Sender, to: Sequence[int], *, settled: bool = False, patience: float = 0.1) -> list[Sent]:
        """Send a message to each mailbox of `to`, in bursts as large as the credit, while receivers take them.

        Args: patience: seconds without progress before it ends.
        """
        sents: list[Sent] = []
        self.turns = 0
        idle = 0.0
        while idle < patience:
            moved = 0
            while len(sents) < len(to) and link.credit and link.session.flow_state.remote_incoming_window:
                delivery = link.delivery(b"%d" % len(sents), settled=settled)
                sent = self.client.sent[delivery] = Sent(link, delivery)
                moved += link.transfer(delivery, message(len(sents), to=self.mailboxes[to[len(sents)]].address))
                sents.append(sent)
            self.mesh.run()
            moved += sum(each.take() for each in self.mailboxes)
            self.mesh.run()
            self.turns += moved > 0
            idle = 0.0 if moved else idle + 0.001
            if not moved:
                self.mesh.advance(0.001)
        return sents

    def flood_all(self, count: int) -> None:
        """Send a number of messages to each mailbox in turn; those that are not dead accept all of them."""
        to = list(range(len(self.mailboxes))) * count
        sents = self.flood(self.sender(None), to)
        of_living = [sent for number, sent in zip(to, sents, strict=True) if not self.mailboxes[number].dead]
        assert said(of_living) == {ACCEPTED: count * sum(not each.dead for each in self.mailboxes)}

    def leave(self) -> None:
        self.mesh.advance(2.0)
        self.mesh.leave()


def said(sents: Sequence[Sent]) -> Counter[str]:
    """Return the number of messages for each outcome."""
    return Counter(repr(each.said) for each in sents)


ACCEPTED = repr([(Accepted(), True)])
WAYS = ["by a link to it", "by `to`"]


@pytest.mark.parametrize("settled", [False, True], ids=["unsettled", "pre-settled"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("routers", ["A", "AB", "ABC"])
def test_replies_are_released_to_nobody_whose_credit_is_renewed_at_once(routers: str, way: str, settled: bool) -> None:
    traffic = Traffic(routers, [10])
    (mailbox,) = traffic.mailboxes
    link = traffic.sender(mailbox.address if way == WAYS[0] else None)
    sents = traffic.flood(link, [0] * 300, settled=settled)
    assert said(sents) == ({"[]": 300} if settled else {ACCEPTED: 300}), "and nothing of what routers tell each other"
    assert mailbox.payloads == [message(number, to=mailbox.address) for number in range(300)], "in order"
    assert {each.delivery.remote_settled for each in mailbox.came} == {settled}
    traffic.leave()


@settings(max_examples=40, deadline=None)
@given(
    routers=st.sampled_from(["A", "AB", "ABC"]),
    window=st.integers(1, 8) | st.integers(1, 5_000),
    credits=st.lists(st.integers(1, 3) | st.integers(1, 100), min_size=1, max_size=4),
    latency=st.sampled_from([0.0, 0.0, 0.003]),
    settled=st.booleans(),
    data=st.data(),
)
def test_with_any_window_and_any_credit_the_sender_waits_and_everything_arrives(
    routers: str, window: int, credits: list[int], latency: float, settled: bool, data: st.DataObject
) -> None:
    traffic = Traffic(routers, credits, window=window, latency=latency)
    to = data.draw(st.lists(st.sampled_from(range(len(credits))), min_size=1, max_size=80))
    sents = traffic.flood(traffic.sender(None), to * 2, settled=settled)
    assert said(sents) == {"[]" if settled else ACCEPTED: 2 * len(to)}
    for number, mailbox in enumerate(traffic.mailboxes):
        mine = [message(at, to=mailbox.address) for at, each in enumerate(to * 2) if each == number]
        assert mailbox.payloads == mine
    traffic.leave()


@pytest.mark.parametrize(("routers", "window"), [("A", 1), ("A", 64), ("ABC", 3), ("ABC", 64), ("ABC", 500)])
def test_one_dead_reply_address_among_twenty_slows_no_other(routers: str, window: int) -> None:
    counted = []
    for dead in ((), (7,)):
        traffic = Traffic(routers, [10] * 20, window=window, dead=dead)
        before = traffic.frames
        traffic.flood_all(25)
        counted.append((traffic.turns, traffic.frames - before))
        traffic.leave()
    (turns, frames), (turns_beside, frames_beside) = counted
    assert turns_beside <= turns
    assert frames_beside <= 1.05 * frames, "what waits costs a few frames in the place of outcomes"


def test_ten_dead_reply_addresses_among_twenty_take_no_time_from_the_others() -> None:
    times = []
    for dead in ((), range(10)):
        traffic = Traffic("AB", [50] * 20, dead=dead, latency=0.001)
        began = traffic.mesh.now
        traffic.flood_all(50)
        times.append(traffic.mesh.now - began)
        traffic.leave()
    assert times[1] <= times[0] + 0.001


def test_a_dead_reply_address_holds_no_more_than_its_window_of_messages_and_stops_no_other_sender() -> None:
    traffic = Traffic("ABC", [10, 10], dead=[0])
    link = traffic.sender(None)
    traffic.flood(link, [0, 1] * 700)
    assert len(traffic.mailboxes[1].came) == 700
    assert 500 <= traffic.far.core.context.in_flight < 500 + 64, "and what was on its way"
    beside = [traffic.client, traffic.mesh["B"].client()]
    for traffic.client in beside:
        sents = traffic.flood(traffic.sender(None), [1] * 100)
        assert said(sents) == {ACCEPTED: 100}, "they share the lane"
    traffic.leave()


@pytest.mark.parametrize("routers", ["A", "AB"])
def test_a_slow_reply_address_holds_no_more_than_its_window_either_once_its_sender_has_no_others(routers: str) -> None:
    traffic = Traffic(routers, [1, 100])
    slow, fast = traffic.mailboxes
    link = traffic.sender(None)
    for _ in range(40):
        traffic.client.send(link, message(to=slow.address))
        traffic.client.send(link, message(to=fast.address))
        fast.take()
        traffic.mesh.run()
    for _ in range(4):
        for _ in range(300):
            if link.credit:
                traffic.client.send(link, message(to=slow.address))
        assert traffic.far.core.context.in_flight < 500 + 64
        assert slow.take() == 1
        traffic.mesh.advance(0.05)
    assert not link.credit, "its sender waits for it again"
    traffic.leave()


def test_receivers_with_credit_cost_no_frame_more() -> None:
    traffic = Traffic("ABC", [1000] * 20)
    link = traffic.sender(None)
    before = traffic.frames
    sents = traffic.flood(link, list(range(20)) * 16)
    # Two hops, each with a transfer and an outcome for each message, and a flow for half a window.
    assert traffic.frames - before <= 2 * (320 + 320 + 320 // 32)
    assert said(sents) == {ACCEPTED: 320}
    traffic.leave()


def test_a_waiting_message_costs_few_frames_more() -> None:
    traffic = Traffic("AB", [10])
    link = traffic.sender(None)
    before = traffic.frames
    sents = traffic.flood(link, [0] * 300)
    # A transfer for each; for each ten that the receiver takes, an outcome, a flow, and the two notices of waiting.
    assert traffic.frames - before <= 300 + 5 * 30
    assert said(sents) == {ACCEPTED: 300}
    traffic.leave()


def test_a_message_waits_as_long_as_others_leave_before_it_and_once_none_does_for_its_time() -> None:
    traffic = Traffic("AB", [1])
    (mailbox,) = traffic.mailboxes
    link = traffic.sender(None)
    sents = [traffic.client.send(link, message(to=mailbox.address)) for _ in range(10)]
    for _ in range(5):
        traffic.mesh.advance(0.9)
        assert mailbox.take() == 1
        traffic.mesh.run()
    traffic.mesh.advance(0.9)
    assert said(sents) == {ACCEPTED: 5, "[]": 5}
    traffic.mesh.advance(0.2)
    assert said(sents) == {ACCEPTED: 5, "[]": 1, repr([(Released(), True)]): 4}
    assert mailbox.take() == 1
    traffic.leave()


def test_a_presettled_message_that_is_not_taken_in_time_is_dropped() -> None:
    traffic = Traffic("ABC", [1])
    (mailbox,) = traffic.mailboxes
    link = traffic.sender(mailbox.address)
    for _ in range(5):
        traffic.client.send(link, message(), settled=True)
    assert traffic.mesh["A"].core.context.in_flight == 5 - 1
    traffic.mesh.advance(1.1)
    assert mailbox.take() == 1
    assert [node.core.context.in_flight for node in traffic.mesh.nodes.values()] == [0, 0, 0]
    assert len(exhaust(traffic, link)) >= 64
    traffic.leave()


def exhaust(traffic: Traffic, link: Sender) -> list[Sent]:
    """Send until the only receiver, which takes one message, makes the sender wait."""
    sents = []
    while link.credit:
        sents.append(traffic.client.send(link, message(to=traffic.mailboxes[0].address)))
    assert 64 <= len(sents) < 64 + 5, "the window, and what was on its way to those routers"
    return sents


@pytest.mark.parametrize("second", [False, True])
def test_a_sender_may_settle_a_waiting_message_in_mode_second_too(second: bool) -> None:
    traffic = Traffic("ABC", [1])
    (mailbox,) = traffic.mailboxes
    mode = ReceiverSettleMode.SECOND if second else ReceiverSettleMode.FIRST
    link = traffic.client.sender(None, rcv=mode)
    traffic.mesh.advance(0.2)
    sents = exhaust(traffic, link)
    sents[1].dispose(None, settled=True)
    sents[2].dispose(None, settled=True)
    sents[3].dispose(None, settled=True)
    traffic.mesh.run()
    assert link.credit, "nobody can say any more whether they wait"
    while mailbox.take():
        traffic.mesh.run()
    assert len(mailbox.came) == len(sents)
    for sent in sents:
        sent.dispose(None, settled=True)
    traffic.leave()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("routers", ["AB", "ABC"])
def test_what_waits_and_is_settled_with_its_last_frame_gives_its_sender_credit_again(routers: str, way: str) -> None:
    traffic = Traffic(routers, [1])
    (mailbox,) = traffic.mailboxes
    link = traffic.sender(mailbox.address if way == WAYS[0] else None)
    for number in range(40):
        payload = message(number, to=mailbox.address)
        sent = traffic.client.send(link, payload[:-1], more=True)
        traffic.client.resume(sent, payload[-1:], settled=True)
    while mailbox.take():
        traffic.mesh.run()
    assert len(mailbox.came) == 40
    exhaust(traffic, link)
    traffic.leave()


def test_a_message_that_waits_at_a_lost_router_gives_its_sender_credit_again() -> None:
    traffic = Traffic("ABC", [1])
    (mailbox,) = traffic.mailboxes
    link = traffic.sender(None)
    sents = exhaust(traffic, link)
    traffic.mesh.cut(*traffic.mesh.between("B", "C"))
    assert said(sents) == {repr([(Modified(delivery_failed=True), True)]): len(sents)}
    traffic.mesh.run()
    assert link.credit == 64
    mailbox.take()
    traffic.leave()


def test_a_sender_that_is_gone_leaves_nothing_of_what_waits_for_it() -> None:
    traffic = Traffic("ABC", [1])
    (mailbox,) = traffic.mailboxes
    link = traffic.sender(None)
    for number in range(40):
        traffic.client.send(link, message(to=mailbox.address), settled=number % 2 == 0)
    traffic.client.close()
    traffic.mesh.run()
    mailbox.take()
    traffic.leave()


def test_two_services_that_flood_each_other_both_go_on() -> None:
    mesh = World("AB", [("A", "B")])
    names, boxes, links = [], [], []
    for router in "AB":
        client = mesh[router].client(window=UNREAD)
        receiver = client.receiver(None, source=Source(dynamic=True), credit=1)
        boxes.append(Mailbox(client, receiver, 1))
        names.append(boxes[-1].address)
    mesh.advance(0.2)
    links = [box.client.sender(None) for box in boxes]
    sent = [0, 0]
    for _ in range(200):
        for at, (box, link) in enumerate(zip(boxes, links, strict=True)):
            while link.credit and sent[at] < 200:
                box.client.send(link, message(sent[at], to=names[1 - at]))
                sent[at] += 1
        mesh.run()
        for box in boxes:
            box.take()
        mesh.run()
    assert [len(box.came) for box in boxes] == [200, 200]
    assert all(said(list(box.client.sent.values())) == {ACCEPTED: 200} for box in boxes)
    mesh.advance(2.0)
    mesh.leave()


def test_a_receiver_that_says_what_routers_tell_each_other_is_not_believed() -> None:
    traffic = Traffic("AB", [64])
    (mailbox,) = traffic.mailboxes
    link = traffic.sender(None)
    sents = [traffic.client.send(link, message(to=mailbox.address)) for _ in range(64)]
    arrivals = mailbox.client.take(64)
    for arrival in arrivals:
        arrival.dispose(Received(section_number=UINT_MAX, section_offset=1), settled=False)
    traffic.mesh.run()
    assert link.credit == 64
    assert said(sents) == {"[]": 64}
    for arrival in arrivals:
        arrival.accept()
    traffic.leave()


def test_a_large_message_that_waits_at_another_router_and_what_is_behind_it_arrive_in_order() -> None:
    traffic = Traffic("ABC", [1], window=5)
    (mailbox,) = traffic.mailboxes
    link = traffic.sender(mailbox.address)
    bodies = [f"{number}" + "x" * (100_000 if number % 3 == 0 else 0) for number in range(12)]
    sents = []
    for body in bodies:
        while not link.credit:
            assert mailbox.take()
            traffic.mesh.run()
        sents.append(traffic.client.send(link, message(body)))
    while mailbox.take():
        traffic.mesh.run()
    assert mailbox.payloads == [message(body) for body in bodies]
    assert said(sents) == {ACCEPTED: 12}
    traffic.leave()
