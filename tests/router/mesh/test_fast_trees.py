"""Multicasts over routers on the fast path: each router relays them to receivers and lanes without a decision."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol, Timestamp
from amqpmesh.router.amqp.events import DispositionReceived, TransferReceived
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Modified, Received, Released
from amqpmesh.router.amqp.standard.messaging import DeliveryAnnotations, Properties
from amqpmesh.router.config.file import AddressConfig, Overflow
from amqpmesh.router.kernel import FastLeg, FastMulticast
from tests.router.delivery.test_fast_routes import Events, decided, events, send
from tests.router.delivery.test_fast_routes_alike import Bench, MulticastDice, check, played
from tests.support.worlds.correspondence import Kind
from tests.support.worlds.histories import play
from tests.support.worlds.meshes import World
from tests.support.worlds.network import OUTCOMES, Arrival, Sent, message
from tests.support.worlds.side_by_side import relaying

__all__ = ["events"]

FIRST, SECOND = ReceiverSettleMode.FIRST, ReceiverSettleMode.SECOND
NEWS: Final = AddressConfig(
    pattern="news", distribution=Distribution.MULTICAST, overflow=Overflow.DROP, overflow_time=0.5
)
#: The outcomes by strength: the sender learns the strongest one.
STRENGTH: Final = (Released(), OUTCOMES["modified"], Accepted(), OUTCOMES["rejected"])


class Tree:
    """A sender at the first router of a line, and receivers; each router has decided about a first message."""

    def __init__(
        self,
        places: str = "ABC",
        *,
        edges: tuple[str, ...] = ("AB", "BC"),
        mode: ReceiverSettleMode = FIRST,
        credit: int = 100,
        own: dict[str, AddressConfig] | None = None,
    ) -> None:
        """Args: places: the routers of the receivers."""
        routers = sorted(set("".join(edges)))
        self.mesh = World(routers, [(one, two) for one, two in edges], NEWS, own=own)
        self.consumers = [self.mesh[router].client(window=1000) for router in places]
        self.links = [each.receiver("news", name=f"in-{at}", credit=credit) for at, each in enumerate(self.consumers)]
        self.mesh.advance(0.3)
        self.producer = self.mesh["A"].client(window=1000)
        self.link = self.producer.sender("news", rcv=mode)
        self.mesh.advance(0.3)
        self.send(settled=True)
        self.take()
        self.mesh.advance(0.1)

    def send(self, count: int = 1, *, settled: bool = False) -> list[Sent]:
        """Send messages."""
        payloads = [message(str(number)) for number in range(count)]
        return send(self.producer, self.link, *payloads, settled=settled)

    def take(self) -> list[list[Arrival]]:
        """Return what has arrived at each receiver."""
        return [each.take() for each in self.consumers]

    def payloads(self) -> list[list[bytes]]:
        """Return the messages that have arrived at each receiver."""
        return [[bytes(each.payload) for each in arrived] for arrived in self.take()]

    def are_fast(self, *routers: str) -> bool:
        """Tell whether routers have unsettled deliveries, and the kernel relays all of them alone."""
        kinds = {
            type(entry)
            for router in routers
            for record in self.mesh[router].core.context.connections
            for session in record.engine.channels.sessions
            for ledger in (session.flow_state.incoming, session.flow_state.outgoing)
            for entry in ledger.deliveries.values()
        }
        return kinds == {FastMulticast, FastLeg}


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("places", ["A", "B", "AC", "ABC", "BBCC", "AABBCC"])
def test_each_router_decides_once_and_relays_the_rest(events: Events, places: str, settled: bool) -> None:
    tree = Tree(places)
    sent: list[Sent] = []
    assert decided(events, lambda: sent.extend(tree.send(20, settled=settled))) == 0
    arrived = tree.take()
    expected = [message(str(number)) for number in range(20)]
    assert [[bytes(each.payload) for each in those] for those in arrived] == [expected] * len(places)

    def accept() -> None:
        for each in (each for those in arrived for each in those):
            each.accept()
        tree.mesh.run()

    if not settled:
        assert decided(events, accept, DispositionReceived) == 0
        assert [each.said for each in sent] == [[(Accepted(), True)]] * 20
    tree.mesh.leave()


@pytest.mark.parametrize("settles", [(True, True), (False, False), (False, True)])
@pytest.mark.parametrize("mode", [FIRST, SECOND])
@pytest.mark.parametrize("places", ["AB", "BC", "AC"])
@pytest.mark.parametrize(
    "states", list(product(STRENGTH, repeat=2)), ids=lambda states: "-".join(type(each).__name__ for each in states)
)
def test_the_sender_learns_the_strongest_outcome_of_all_routers(
    states: tuple[DeliveryState, DeliveryState], places: str, mode: ReceiverSettleMode, settles: tuple[bool, bool]
) -> None:
    tree = Tree(places, mode=mode)
    with relaying(alone=True) as events:
        (sent,) = tree.send()
    assert not events[TransferReceived]
    assert tree.are_fast("A", "B")
    arrivals = [arrival for (arrival,) in tree.take()]
    for arrival, state, settled in zip(arrivals, states, settles, strict=True):
        assert sent.said == []
        arrival.dispose(state, settled=settled)
        tree.mesh.run()
    strongest = max(states, key=STRENGTH.index)
    assert sent.said == [(strongest, mode is FIRST)]
    if mode is SECOND:
        assert all(arrival.said == [] for arrival in arrivals), "the receivers wait for the sender"
        sent.dispose(Accepted(), settled=True)
        tree.mesh.run()
    assert [[settled for _, settled in arrival.said] for arrival in arrivals] == [
        [] if settled else [True] for settled in settles
    ]
    tree.mesh.leave()


@pytest.mark.parametrize("place", "ABC")
def test_a_receiver_without_credit_holds_all_and_then_the_kernel_goes_on(events: Events, place: str) -> None:
    tree = Tree("ABC", credit=11)
    for router, link in zip("ABC", tree.links, strict=True):
        if router != place:
            link.flow(100)
    tree.mesh.run()
    tree.send(12, settled=True)
    got = [len(those) for those in tree.take()]
    assert got["ABC".index(place)] == 10
    tree.links["ABC".index(place)].flow(100)
    tree.mesh.run()
    assert [had + len(those) for had, those in zip(got, tree.take(), strict=True)] == [12, 12, 12]
    tree.send(settled=True)
    assert decided(events, lambda: tree.send(10, settled=True)) == 0
    assert {len(those) for those in tree.take()} == {11}
    tree.mesh.leave()


@pytest.mark.parametrize("place", "ABC")
def test_a_receiver_that_stalls_is_left_out_until_it_gives_credit_again(events: Events, place: str) -> None:
    tree = Tree(f"ABC{place}", credit=4)
    for link in tree.links[:3]:
        link.flow(100)
    tree.mesh.run()
    tree.send(4, settled=True)
    tree.mesh.advance(5.0)
    tree.take()
    tree.send(settled=True)
    assert [len(those) for those in tree.take()] == [1, 1, 1, 0]
    assert decided(events, lambda: tree.send(10, settled=True)) == 0
    assert [len(those) for those in tree.take()] == [10, 10, 10, 0]
    tree.links[3].flow(50)
    tree.mesh.run()
    tree.send(settled=True)
    assert decided(events, lambda: tree.send(5, settled=True)) == 0
    assert [len(those) for those in tree.take()] == [6] * 4
    tree.mesh.leave()


def test_several_trees_share_the_credit_of_the_receivers(events: Events) -> None:
    tree = Tree("BB", credit=300)
    others = [tree.mesh[router].client(window=1000) for router in "BC"]
    links = [each.sender("news") for each in others]
    tree.mesh.advance(0.3)
    for other, link in zip(others, links, strict=True):
        other.send(link, settled=True)
    tree.mesh.advance(0.3)
    tree.take()
    senders = list(zip([tree.producer, *others], [tree.link, *links], strict=True))

    def all_send() -> None:
        for number in range(10):
            for producer, link in senders:
                producer.send(link, message(f"{number}"), settled=True)
            tree.mesh.advance(0.2)

    assert decided(events, all_send) == 0
    assert [len(those) for those in tree.take()] == [30, 30]
    tree.mesh.leave()


@pytest.mark.parametrize("annotation", ["x-opt-mine", "x-opt-mesh-to"])
def test_annotations_pass_as_if_the_message_had_been_decided(annotation: str) -> None:
    payload = encode_composite(DeliveryAnnotations(value={Symbol(annotation): "yes"})) + message(header=False)
    arrived = []
    for alone in (True, False):
        with relaying(alone=alone):
            tree = Tree()
            tree.producer.send(tree.link, payload, settled=True)
            arrived.append(tree.payloads())
            tree.mesh.leave()
    assert arrived[0] == arrived[1]


def test_large_messages_are_decided_and_stay_in_order(events: Events) -> None:
    tree = Tree()
    large = message("x" * 200_000)
    payloads = [message("1"), large, message("2")]

    def send_all() -> None:
        send(tree.producer, tree.link, *payloads, settled=True)

    assert decided(events, send_all) > 0
    tree.mesh.advance(0.5)
    assert tree.payloads() == [payloads] * 3
    assert decided(events, lambda: tree.send(3)) == 0
    tree.mesh.leave()


def test_what_one_router_tells_another_of_a_receiver_reaches_no_sender(events: Events) -> None:
    tree = Tree("AB")
    secret = Modified(delivery_failed=True, message_annotations={Symbol("x-opt-mesh-by"): "B/1/2", Symbol("mine"): 1})
    (sent,) = tree.send()
    (here,), (there,) = tree.take()
    here.dispose(Released(), settled=True)
    there.dispose(secret, settled=True)
    tree.mesh.run()
    assert sent.said == [(Modified(delivery_failed=True, message_annotations={Symbol("mine"): 1}), True)]
    tree.mesh.leave()


@pytest.mark.parametrize("place", "AC")
def test_a_state_that_is_no_outcome_has_the_router_decide_about_the_rest(place: str) -> None:
    tree = Tree("ABC")
    (sent,) = tree.send()
    arrivals = [arrival for (arrival,) in tree.take()]
    arrivals["ABC".index(place)].dispose(Received(section_number=0, section_offset=1), settled=False)
    tree.mesh.run()
    assert not tree.are_fast(place)
    for arrival in arrivals:
        arrival.accept()
    tree.mesh.run()
    assert sent.said[-1] == (Accepted(), True)
    tree.mesh.leave()


@pytest.mark.parametrize("mode", [FIRST, SECOND])
@pytest.mark.parametrize("lost", ["AB", "BC"])
def test_of_what_was_sent_beyond_a_cut_the_sender_learns_that_it_may_have_failed(
    lost: str, mode: ReceiverSettleMode
) -> None:
    tree = Tree("ABC", mode=mode)
    sent = tree.send(5)
    arrived = tree.take()
    tree.mesh.cut(*tree.mesh.between(*lost))
    tree.mesh.advance(0.1)
    assert all(each.said == [] for each in sent)
    for arrival in (arrival for those in arrived for arrival in those):
        arrival.dispose(Released(), settled=True)
    tree.mesh.run()
    assert [each.outcome for each in sent] == [Modified(delivery_failed=True)] * 5
    tree.mesh.leave()


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_receivers_of_a_lost_sender_are_settled_and_nothing_is_left(lost: int) -> None:
    tree = Tree("ABC")
    tree.send(5)
    arrived = tree.take()
    for those in arrived[:lost]:
        for arrival in those:
            arrival.dispose(Accepted(), settled=False)
    tree.mesh.run()
    tree.producer.lose()
    tree.mesh.advance(0.1)
    for those in arrived[lost:]:
        for arrival in those:
            arrival.dispose(Accepted(), settled=False)
    tree.mesh.run()
    assert all([settled for _, settled in arrival.said] == [True] for those in arrived for arrival in those)
    tree.mesh.leave()


# ------------------------------------------------------------------------------------------------------ changing trees


def test_a_new_parent_sends_nothing_twice_and_the_kernel_goes_on_behind_it(events: Events) -> None:
    tree = Tree("ABC", edges=("AB", "BC", "AC"))
    assert tree.mesh["B"].mesh.topology.parent("A") == "A"
    assert decided(events, lambda: tree.send(5, settled=True)) == 0
    (wire,) = tree.mesh.between("A", "C")
    wire.frozen = True
    tree.send(3, settled=True)  # these are on their way to C when the connection is lost
    tree.mesh.cut(wire)
    tree.mesh.advance(1.0)
    tree.take()
    tree.send(settled=True)
    assert decided(events, lambda: tree.send(5, settled=True)) == 0
    assert tree.payloads() == [[message("0"), *(message(str(number)) for number in range(5))]] * 3
    tree.mesh.join("A", "C")
    tree.mesh.advance(2.0)
    tree.send(settled=True)
    assert decided(events, lambda: tree.send(5, settled=True)) == 0
    assert [len(those) for those in tree.take()] == [6, 6, 6]
    tree.mesh.leave()


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("rejoined", [False, True])
def test_while_trees_change_nobody_gets_a_message_twice(settled: bool, rejoined: bool) -> None:
    tree = Tree("ABCD", edges=("AB", "AC", "BD", "CD"))
    parent = tree.mesh["D"].mesh.topology.parent("A")
    assert parent is not None
    took: list[list[bytes]] = [[], [], [], []]
    for number in range(40):
        if number == 10:
            (wire,) = tree.mesh.between(parent, "D")
            wire.frozen = True
        if number == 20:
            tree.mesh.cut(wire)
        if number == 30 and rejoined:
            tree.mesh.join(parent, "D")
        send(tree.producer, tree.link, message(f"{number}"), settled=settled)
        tree.mesh.advance(0.02)
        for those, arrived in zip(took, tree.take(), strict=True):
            those += [bytes(each.payload) for each in arrived]
            for each in arrived:
                each.accept()
    tree.mesh.advance(2.0)
    for those, arrived in zip(took, tree.take(), strict=True):
        those += [bytes(each.payload) for each in arrived]
        assert len(set(those)) == len(those)
        order = [message(f"{number}") for number in range(40)]
        assert those == [each for each in order if each in those]
        assert len(those) >= 20
    tree.mesh.leave()


def test_a_message_that_was_not_decided_about_when_its_parent_was_lost_comes_by_the_next_parent() -> None:
    expiring = AddressConfig(pattern="news", distribution=Distribution.MULTICAST, absolute_expiry=True)
    mesh = World(
        "ABCD", [("A", "B"), ("A", "C"), ("B", "D"), ("C", "D")], own={**dict.fromkeys("ABC", NEWS), "D": expiring}
    )
    parent = mesh["D"].mesh.topology.parent("A")
    assert parent is not None
    (other,) = {"B", "C"} - {parent}
    consumer, slow, producer = mesh["D"].client(), mesh[other].client(), mesh["A"].client()
    consumer.receiver("news", credit=10)
    waiting = slow.receiver("news", credit=1)
    mesh.advance(0.3)
    link = producer.sender("news")
    mesh.advance(0.3)
    producer.send(link, settled=True)
    payload = encode_composite(Properties(subject="x" * 500, absolute_expiry_time=Timestamp(2**42))) + message(
        header=False
    )
    sent = producer.send(link, payload[:200], more=True)
    mesh.advance(0.1)
    mesh.cut(*mesh.between(parent, "D"))
    mesh.advance(0.2)
    waiting.flow(10)
    producer.resume(sent, payload[200:])
    mesh.advance(0.2)
    assert [bytes(each.payload) for each in slow.take()] == [message(), payload]
    assert [bytes(each.payload) for each in consumer.take()] == [message(), payload]
    mesh.leave()


def test_a_router_where_the_address_is_no_multicast_decides_and_the_others_do_not(events: Events) -> None:
    own = {"B": AddressConfig(pattern="news", distribution=Distribution.BALANCED)}
    mesh = World("ABC", pairwise("ABC"), own={**own, "A": NEWS}, settle=1.0)
    consumers = [mesh[router].client(window=100) for router in "AB"]
    for each in consumers:
        each.receiver("news", credit=100)
    mesh.advance(0.3)
    producer = mesh["A"].client(window=100)
    link = producer.sender("news")
    mesh.advance(0.3)
    producer.send(link, settled=True)
    assert decided(events, lambda: send(producer, link, *[message()] * 5, settled=True)) == 5
    assert [len(each.take()) for each in consumers] == [6, 6]
    mesh.leave()


# ----------------------------------------------------------------------------------------------------- random histories


SEEDS = st.integers(0, 2**32 - 1)
ODD = st.sampled_from([0.02, 0.1, 0.3])
PLACES = st.sampled_from(["AACC", "AABB", "AABC", "AAAC", "BAAB", "ACBC", "AACB"])


class TreeBench(Bench):
    """A bench that does not compare what routers tell each other: of credit, and of receivers that come and go.

    Between the pool of a tree and that of the receivers here, the time of an update decides in which steps credit goes
    on, though not how much.
    """

    def note(self, name: str) -> None:
        """Note what each peer has got in a step."""
        super().note(name)
        for each in self.log[-1][2]:
            del each["mesh"]["messages_sent"]
            for lane in each["lanes"]:
                lane.pop("credit", None)  # left out already where shares are told later
                del lane["zero_credit_since"]


class TreeDice(MulticastDice):
    """The random choices of a history of multicasts over routers, without two receivers of one address at one peer.

    The order in which the two got credit decides which one is written to first.
    """

    consumers: Final = {2: (4, 7), 3: (6, 7)}

    def world(self, *, at_once: bool) -> dict[str, Any]:
        """Return the settings of routers and links. Args: at_once: see `Wired`."""
        world = super().world(at_once=at_once)
        consumers = [(number, handle) for number, handles in self.consumers.items() for handle in handles]
        return {**world, "consumers": consumers[: self.usually(4, 3, 2)]}

    def _attach(self) -> tuple[Any, ...]:
        name, number, handle = super()._attach()
        return name, number, handle if number < 2 else self.random.choice(self.consumers[number])


def world_of(dice: TreeDice, places: str, *, star: bool) -> dict[str, Any]:
    """Return the settings of a mesh. Args: places: the routers of both producers and both consumers."""
    return {**dice.world(at_once=False), "places": places, "star": star}


@settings(max_examples=40)
@given(SEEDS, st.integers(0, 40), ODD, PLACES, st.booleans())
def test_several_routers_relay_what_they_would_have_decided(
    seed: int, count: int, odd: float, places: str, star: bool
) -> None:
    dice = TreeDice(seed, odd)
    check(world_of(dice, places, star=star), dice.steps(count, at_once=False), mesh=True, bench=TreeBench)


def test_in_these_histories_most_is_relayed() -> None:
    counts = {True: 0, False: 0}
    for seed, places in enumerate(("AABC", "AACC", "ACBC")):
        dice = TreeDice(seed, 0.02)
        world, steps = world_of(dice, places, star=False), dice.steps(40, at_once=False)
        for alone in counts:
            counts[alone] += played(world, steps, mesh=True, alone=alone)[1]
    assert counts[False] > 100
    assert counts[True] < 0.6 * counts[False]


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
@settings(max_examples=6)
@given(seed=SEEDS, steps=st.integers(1, 120))
def test_at_the_end_what_senders_of_multicasts_heard_is_what_receivers_did(kind: Kind, seed: int, steps: int) -> None:
    play(seed, steps, kind, addresses=("news",))


def test_in_random_meshes_multicasts_are_relayed() -> None:
    counts = {True: 0, False: 0}
    for alone in counts:
        with relaying(alone=alone) as events:
            for seed in range(3):
                play(seed, 150, next(iter(Kind)), addresses=("news",))
        counts[alone] = events[TransferReceived]
    assert counts[True] < 0.9 * counts[False], counts
