"""Messages on transit lanes by the fast path: the final address is put in, looked up, and taken off by the kernel."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.router import kernel
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.events import DispositionReceived
from amqpmesh.router.amqp.link import Sender
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Modified, Received, Released
from amqpmesh.router.amqp.standard.messaging import DeliveryAnnotations, Header, MessageAnnotations, Source
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.credit.anonymous_window import SharedWindow
from amqpmesh.router.model.links import IncomingLink
from tests.router.delivery.test_fast_routes import Events, decided, events, send
from tests.router.delivery.test_fast_routes_alike import LINKS, Bench, check, played
from tests.router.delivery.test_fast_routes_anonymous import AnonymousDice
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Client, Sent, message

__all__ = ["events"]

FIRST, SECOND = ReceiverSettleMode.FIRST, ReceiverSettleMode.SECOND


class Line:
    """A sender at the first router of a line, and a receiver at the last; each router has decided about a message."""

    def __init__(self, routers: str, address: str | None = "q", *configs: AddressConfig, credit: int = 100) -> None:
        """Args: address: of the receiver; None: a dynamic node."""
        self.mesh = World(routers, pairwise(routers), *configs)
        self.consumer = self.mesh[routers[-1]].client(window=1000)
        dynamic = Source(dynamic=True) if address is None else None
        options = {} if dynamic is None else {"source": dynamic}
        self.receiver = self.consumer.receiver(address, credit=credit, **options)  # type: ignore[arg-type]
        self.mesh.advance(0.2)
        remote = self.receiver.remote
        assert remote is not None
        assert isinstance(remote.source, Source)
        self.to = str(remote.source.address) if address is None else address
        self.producer = self.mesh[routers[0]].client(window=1000)

    def sender(self, target: str | None = None, *, rcv: ReceiverSettleMode = FIRST) -> Sender:
        """Attach a sender, and send a message."""
        link = self.producer.sender(target, rcv=rcv)
        self.mesh.advance(0.2)
        self.send(link, 1)
        for each in self.consumer.take():
            each.accept()
        self.mesh.advance(0.2)
        return link

    def send(self, link: Sender, count: int, *, settled: bool = False) -> list[Sent]:
        """Send messages to the receiver."""
        payloads = [message(str(number), to=self.to) for number in range(count)]
        return send(self.producer, link, *payloads, settled=settled)

    def incoming(self) -> IncomingLink:
        """Return the sender's link at its router."""
        context = self.mesh["A"].core.context
        (found,) = [each for record in context.connections for each in record.incoming if each.lane is None]
        return found


@pytest.fixture(params=["AB", "ABC", "ABCD"])
def routers(request: pytest.FixtureRequest) -> str:
    """Return the routers of a line."""
    return str(request.param)


def test_the_first_message_to_each_of_many_addresses_is_relayed_at_each_router(events: Events, routers: str) -> None:
    line = Line(routers)
    addresses = [f"a{number}" for number in range(20)]
    for each in addresses:
        line.consumer.receiver(each, credit=5)
    line.mesh.advance(0.2)
    link = line.sender()
    bodies = [message("first", to=each) for each in addresses]
    sent: list[Sent] = []
    assert decided(events, lambda: sent.extend(send(line.producer, link, *bodies))) == 0
    arrived = line.consumer.take(20)
    assert [bytes(each.payload) for each in arrived] == bodies
    for each in arrived:
        each.accept()
    line.mesh.advance(0.2)
    assert [each.outcome for each in sent] == [Accepted()] * 20
    line.mesh.leave()


@pytest.mark.parametrize("mode", [FIRST, SECOND])
@pytest.mark.parametrize("outcome", [Accepted(), Released(), Modified(delivery_failed=True)])
@pytest.mark.parametrize("address", ["q", None])
def test_each_router_decides_once_about_an_address_and_the_rest_is_relayed_with_its_outcomes(
    events: Events, routers: str, mode: ReceiverSettleMode, outcome: DeliveryState, address: str | None
) -> None:
    line = Line(routers, address)
    link = line.sender(rcv=mode)
    sent: list[Sent] = []
    assert decided(events, lambda: sent.extend(line.send(link, 6))) == 0
    arrived = line.consumer.take(6)
    assert [bytes(each.payload) for each in arrived] == [message(str(number), to=line.to) for number in range(6)]

    def decide() -> None:
        for each in arrived:
            each.dispose(outcome, settled=mode is FIRST)
        line.mesh.run()
        for each in sent:
            if mode is SECOND:
                each.dispose(outcome, settled=True)
        line.mesh.run()

    assert decided(events, decide, DispositionReceived) == 0
    assert [each.outcome for each in sent] == [outcome] * 6
    line.mesh.leave()


def test_a_sender_with_the_reply_address_in_its_target_is_relayed_in_the_same_way(events: Events, routers: str) -> None:
    line = Line(routers, None)
    link = line.sender(line.to)
    assert decided(events, lambda: send(line.producer, link, *[message()] * 5)) == 0
    assert [bytes(each.payload) for each in line.consumer.take()] == [message()] * 5
    line.mesh.leave()


HEADS = {
    "nothing": b"",
    "header": encode_composite(Header(priority=7, ttl=60_000)),
    "message annotations": encode_composite(MessageAnnotations(value={Symbol("x-opt-a"): "b"})),
    "both": encode_composite(Header()) + encode_composite(MessageAnnotations(value={Symbol("x-opt-a"): "b" * 300})),
}


@pytest.mark.parametrize("head", HEADS)
def test_the_message_arrives_as_it_was_sent_whatever_its_head(events: Events, routers: str, head: str) -> None:
    line = Line(routers)
    link = line.sender()
    payload = HEADS[head] + message("body", to="q", header=False)
    assert decided(events, lambda: send(line.producer, link, payload)) == 0
    assert [bytes(each.payload) for each in line.consumer.take()] == [payload]
    line.mesh.leave()


def test_a_message_with_delivery_annotations_is_decided_and_arrives_too(events: Events, routers: str) -> None:
    line = Line(routers)
    link = line.sender()
    own = encode_composite(DeliveryAnnotations(value={Symbol("x-opt-mine"): 1}))
    payload = own + message("body", to="q", header=False)
    counts = [
        decided(events, lambda: send(line.producer, link, payload)),
        decided(events, lambda: line.send(link, 1)),
    ]
    assert counts == [2, 0], "not in between"
    assert len(line.consumer.take()) == 2
    line.mesh.leave()


@pytest.mark.parametrize("mode", [FIRST, SECOND])
def test_settled_messages_are_relayed_too_and_leave_nothing_behind(
    events: Events, routers: str, mode: ReceiverSettleMode
) -> None:
    line = Line(routers)
    link = line.sender(rcv=mode)
    assert decided(events, lambda: line.send(link, 20, settled=True)) == 0
    arrived = line.consumer.take(20)
    assert [bytes(each.payload) for each in arrived] == [message(str(number), to="q") for number in range(20)]
    assert all(each.delivery.remote_settled for each in arrived)
    line.mesh.leave()


def test_settled_messages_that_wait_at_the_last_router_hold_their_sender_and_arrive_in_order(routers: str) -> None:
    line = Line(routers, credit=3)
    link = line.sender()
    before = link.credit
    line.send(link, 6, settled=True)
    line.mesh.advance(0.2)
    pool = line.incoming().pool
    assert isinstance(pool, SharedWindow)
    assert pool.has_portion("q")
    assert link.credit < before
    arrived = line.consumer.take()
    line.receiver.flow(20)
    line.mesh.advance(0.2)
    arrived += line.consumer.take()
    assert [bytes(each.payload) for each in arrived] == [message(str(number), to="q") for number in range(6)]
    line.mesh.advance(0.2)
    assert not pool.has_portion("q")
    line.mesh.leave()


def test_a_settled_message_whose_sender_has_left_arrives(events: Events, routers: str) -> None:
    line = Line(routers, credit=3)
    link = line.sender()
    assert decided(events, lambda: line.send(link, 1, settled=True)) == 0
    line.send(link, 3, settled=True)
    link.detach()
    line.mesh.advance(0.2)
    line.receiver.flow(20)
    line.mesh.advance(0.2)
    assert len(line.consumer.take()) == 4
    line.mesh.leave()


def test_a_large_message_is_decided_where_the_address_is_put_in_and_where_it_is_taken_off(
    events: Events, routers: str
) -> None:
    line = Line(routers)
    link = line.sender()
    payload = message("x" * 100_000, to="q")
    send(line.producer, link, payload)
    line.mesh.advance(0.2)
    assert [bytes(each.payload) for each in line.consumer.take()] == [payload]
    assert decided(events, lambda: line.send(link, 3)) == 0
    line.mesh.leave()


def test_what_waits_at_the_far_router_holds_its_sender_as_if_it_had_been_decided(events: Events, routers: str) -> None:
    line = Line(routers, credit=4)
    link = line.sender()
    window = line.incoming().pool
    assert isinstance(window, SharedWindow)
    sent = line.send(link, 6)  # credit is left for three
    line.mesh.run()
    assert window.has_portion("q")
    assert window.portions["q"].waiting == 3
    assert decided(events, lambda: line.send(link, 1)) == 2, "it does not overtake those"
    line.receiver.flow(20)
    line.mesh.run()
    assert not window.has_portion("q")
    arrived = line.consumer.take(7)
    assert [bytes(each.payload) for each in arrived[:6]] == [message(str(number), to="q") for number in range(6)]
    for each in arrived:
        each.accept()
    line.mesh.run()
    assert all(each.outcome == Accepted() for each in sent)
    assert decided(events, lambda: line.send(link, 1)) == 0
    line.mesh.leave()


def test_of_a_rewritten_message_a_sender_learns_no_more_than_that_it_has_begun_to_arrive(routers: str) -> None:
    line = Line(routers)
    link = line.sender()
    (sent,) = line.send(link, 1)
    (arrival,) = line.consumer.take(1)
    arrival.dispose(Received(section_number=3, section_offset=2), settled=False)
    line.mesh.run()
    assert sent.said == [(Received(section_number=0, section_offset=0), False)]
    arrival.accept()
    line.mesh.run()
    assert sent.outcome == Accepted()
    line.mesh.leave()


def test_a_cut_between_two_routers_ends_what_was_sent_as_modified(routers: str) -> None:
    line = Line(routers)
    link = line.sender()
    sent = line.send(link, 5)
    line.mesh.cut(*line.mesh.between(*routers[-2:]))
    line.mesh.advance(0.1)
    assert [each.outcome for each in sent] == [Modified(delivery_failed=True)] * 5
    line.mesh.leave()


# ----------------------------------------------------------------------------------------------------- ends of routes


def served(mesh: World, router: str) -> Client:
    """Attach one more receiver of the address."""
    client = mesh[router].client()
    client.receiver("q", credit=100)
    mesh.advance(0.2)
    return client


@pytest.mark.parametrize("router", ["A", "B"])
def test_once_one_more_router_has_receivers_they_get_some(events: Events, router: str) -> None:
    line = Line("ABC")
    link = line.sender()
    other = served(line.mesh, router)
    assert decided(events, lambda: line.send(link, 20)) >= 20
    line.mesh.advance(0.2)
    assert len(other.take()) >= 5
    line.mesh.leave()


def test_once_the_only_receiver_is_gone_messages_come_back() -> None:
    line = Line("ABC")
    link = line.sender()
    line.receiver.detach()
    line.mesh.advance(0.2)
    (sent,) = line.send(link, 1)
    assert sent.outcome == Released()
    line.mesh.leave()


def test_an_address_that_redelivers_has_no_route(events: Events) -> None:
    line = Line("AB", "q@B", AddressConfig(pattern="q", redeliver=True))
    link = line.sender()
    assert decided(events, lambda: line.send(link, 2)) >= 2
    line.mesh.leave()


def test_a_lane_that_the_kernel_alone_uses_is_not_idle(events: Events) -> None:
    line = Line("ABC")
    link = line.sender()
    (node,) = line.mesh["A"].mesh.routes.nodes()
    for _ in range(30):
        line.mesh.advance(1.0)
        assert decided(events, lambda: line.send(link, 1)) == 0
        for each in line.consumer.take():
            each.accept()
    assert line.mesh["A"].mesh.routes.nodes() == [node]
    line.mesh.advance(60.0)
    assert line.mesh["A"].mesh.routes.nodes() == []
    line.mesh.leave()


def test_octets_of_addresses_at_other_routers_are_counted_with_what_is_put_in() -> None:
    table, route = kernel.AnonymousRoutes(), kernel.FastRoute()
    long, short = (kernel.TransitRoute(route, "x" * n, b"x" * (n + 50), b"x" * (n + 70)) for n in (200, 1))
    for value in (route, long, short, route, long):
        table.put(b"to", value)
        assert table.octets == table.octets_for(b"to", value)
    for number in range(3 * kernel.MOST_OCTETS // 700):
        table.put(b"%d" % number, long)
    held = {**table.older, **table.recent}
    assert table.octets == sum(table.octets_for(to, each) for to, each in held.items())
    assert kernel.MOST_OCTETS // 2 < table.octets <= 2 * kernel.MOST_OCTETS


# ---------------------------------------------------------------------------------------------------- random histories


class TransitBench(Bench):
    """A bench whose first producer has two anonymous links, too."""

    links = (*LINKS, (8, None, 0), (9, None, 1))
    rest = 60.0

    def note(self, name: str) -> None:
        """Note what each peer has got in a step.

        Without octets of tables, which only the fast path has; and without the credit that a lane holds: a pool learns
        of credit that an anonymous sender has used only with the next change there.
        """
        super().note(name)
        for statistics in self.log[-1][2]:
            del statistics["router"]["buffered"], statistics["router"]["now"]
            for lane in statistics["lanes"]:
                lane.pop("credit", None)  # left out already where shares are told later
                del lane["zero_credit_since"]
            for address in statistics["addresses"]:
                address.pop("granted", None)


class TransitDice(AnonymousDice):
    """The random choices of a history, most of whose messages come from anonymous senders of a mesh."""

    usual = ("q", "q", "few", "near", "q@C", "few@B", "near@C")

    def world(self, *, at_once: bool) -> dict[str, Any]:
        """Return the settings of routers and links, without narrow sessions.

        In those the order of large deliveries to different addresses depends on the turn in which each was decided.
        """
        return {**super().world(at_once=at_once), "narrow": 1000}

    handles = (8, 8, 9)


SEEDS = st.integers(0, 2**32 - 1)
ODD = st.sampled_from([0.02, 0.1, 0.3])
PLACES = st.sampled_from(["AACC", "AABB", "AACB", "AABC"])


@settings(max_examples=25)
@given(SEEDS, st.integers(0, 40), ODD, PLACES, st.booleans())
def test_several_routers_relay_what_they_would_have_decided(
    seed: int, count: int, odd: float, places: str, star: bool
) -> None:
    dice = TransitDice(seed, odd)
    world, steps = dice.world(at_once=False), dice.steps(count, at_once=False)
    check({**world, "places": places, "star": star}, steps, mesh=True, bench=TransitBench)


def test_in_these_histories_less_is_decided() -> None:
    counts = {True: 0, False: 0}
    for seed in (1, 4):
        dice = TransitDice(seed, 0.0)
        world, steps = dice.world(at_once=False), dice.steps(60, at_once=False)
        for alone in counts:
            world = {**world, "places": "AACC", "consumers": [(2, 2), (3, 3)]}
            counts[alone] += played(world, steps, mesh=True, alone=alone, bench=TransitBench)[1]
    assert counts[True] < 0.7 * counts[False]
