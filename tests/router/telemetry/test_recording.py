"""Records of deliveries, links and the graph: one for each, the same on both paths, and no waiting."""

from __future__ import annotations

import pytest

from amqpmesh.router.address_syntax import without_secret
from amqpmesh.router.amqp.codec.composite import decode_composite, encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.link import Sender
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, LinkCondition, ReceiverSettleMode
from amqpmesh.router.amqp.standard.messaging import Rejected, Source
from amqpmesh.router.config.file import AddressConfig, RedirectConfig
from amqpmesh.router.delivery import arrival as arriving
from amqpmesh.router.model.lane import EXTRA_HOPS
from amqpmesh.router.telemetry import recording
from amqpmesh.router.telemetry.schema import COUNTS, EDGE, EVENT, LINK, Flag, Kind, Outcome
from tests.support.data.recordings import EPOCH, Records
from tests.support.worlds.meshes import World
from tests.support.worlds.network import OUTCOMES, Client, Network, message

#: As much of a record as a delivery is, wherever and whenever it is relayed.
TOLD = ("counter", "outcome", "flags", "incoming", "outgoing", "attempt", "size", "priority", "delivery_count")


@pytest.fixture(params=["fast path", "decided"])
def relays(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the kernel relay on the fast path, or let the router decide every delivery."""
    if request.param != "fast path":
        monkeypatch.setattr(arriving, "open_input", lambda core, incoming: None)
    return str(request.param)


def pair() -> tuple[Network, Records, Client, Client, Sender]:
    """Return a router that records, its records, a sending client, a receiving client, and the sender to `orders`."""
    network = Network()
    records = Records(network.core)
    client, consumer = network.client(), network.client()
    consumer.receiver("orders")
    return network, records, client, consumer, client.sender("orders")


def settle(client: Client, outcome: str = "accepted") -> None:
    for arrival in client.take():
        arrival.dispose(OUTCOMES[outcome], settled=True)
    client.network.run()


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.usefixtures("relays")
def test_each_delivery_is_recorded_once_with_its_outcome(outcome: str) -> None:
    network = Network()
    records = Records(network.core)
    client, consumer = network.client(), network.client()
    receiver = consumer.receiver("orders", name="in")
    sender = client.sender("orders", name="out")
    for number in range(3):
        client.send(sender, message("x" * number, priority=number))
        network.now += 0.25
        settle(consumer, outcome)
    assert receiver.is_attached
    assert [{name: each[name] for name in TOLD} for each in records.hops] == [
        {
            "counter": number + 1,
            "outcome": Outcome[outcome.upper()],
            "flags": Flag.BEGAN | Flag.TIMED | Flag.ANSWERED,
            "incoming": records.number("out"),
            "outgoing": records.number("in"),
            "attempt": 1,
            "size": len(message("x" * number, priority=number)),
            "priority": number,
            "delivery_count": 0,
        }
        for number in range(3)
    ]
    assert [each["outcome_after"] for each in records.hops] == [250_000_000] * 3
    assert records.conditions() == (["test:bad"] * 3 if outcome == "rejected" else [None] * 3)
    assert {(each["epoch"], each["hops_left"], each["in_router"], each["address"]) for each in records.hops} == {
        (EPOCH, 0, 0, 0)
    }
    assert [each["time"] for each in records.hops] == [100_000_000_000 + number * 250_000_000 for number in range(3)]


@pytest.mark.usefixtures("relays")
def test_what_comes_settled_has_no_outcome() -> None:
    _network, records, client, _consumer, sender = pair()
    for _ in range(3):
        client.send(sender, settled=True)
    assert [(each["outcome"], each["flags"]) for each in records.hops] == [
        (Outcome.NONE, Flag.SETTLED | Flag.BEGAN | Flag.TIMED)
    ] * 3


@pytest.mark.usefixtures("relays")
def test_deliveries_of_several_frames_are_recorded_once_with_all_of_their_octets() -> None:
    network, records, client, consumer, sender = pair()
    for _ in range(2):
        sent = client.send(sender, message(b"x" * 3000), more=True)
        network.now += 1.0
        client.resume(sent, b"y" * 5000)
        settle(consumer)
    size = len(message(b"x" * 3000)) + 5000
    assert [(each["size"], each["outcome"], each["in_router"]) for each in records.hops] == [
        (size, Outcome.ACCEPTED, 1_000_000_000)
    ] * 2


@pytest.mark.usefixtures("relays")
def test_mode_second_is_recorded_when_it_is_over_with_the_time_at_which_its_outcome_passed() -> None:
    network = Network()
    records = Records(network.core)
    client, consumer = network.client(), network.client()
    consumer.receiver("orders", rcv=ReceiverSettleMode.SECOND)
    sender = client.sender("orders", rcv=ReceiverSettleMode.SECOND)
    for number in range(2):
        sent = client.send(sender)
        (arrival,) = consumer.take()
        network.now += 0.25
        arrival.dispose(OUTCOMES["accepted"], settled=False)
        network.run()
        assert len(records.hops) == number
        network.now += 3.0
        sent.dispose(None, settled=True)
        network.run()
        assert [(each["outcome"], each["outcome_after"]) for each in records.hops] == [
            (Outcome.ACCEPTED, 250_000_000)
        ] * (number + 1)
    assert network.relays == 0


@pytest.mark.usefixtures("relays")
@pytest.mark.parametrize("gone", ["sender", "receiver"])
def test_what_is_in_flight_when_a_side_is_gone_is_recorded_once(gone: str) -> None:
    network, records, client, consumer, sender = pair()
    for _ in range(3):
        client.send(sender)
    consumer.take(3)[0].accept()
    network.run()
    (client if gone == "sender" else consumer).lose()
    if gone == "sender":
        assert [each["outcome"] for each in records.hops] == [Outcome.ACCEPTED]
        consumer.lose()
    assert sorted(each["outcome"] for each in records.hops) == [Outcome.ACCEPTED, Outcome.MODIFIED, Outcome.MODIFIED]
    assert sorted(each["counter"] for each in records.hops) == [1, 2, 3]


@pytest.mark.usefixtures("relays")
def test_what_waited_before_its_first_frame_left_was_here_all_that_time() -> None:
    network = Network()
    records = Records(network.core)
    client, consumer = network.client(), network.client()
    receiver = consumer.receiver("orders", credit=1)
    sender = client.sender("orders")
    client.send(sender)
    sent = client.send(sender, message(ttl=60_000), more=True)
    network.now += 1.0
    settle(consumer)
    receiver.flow(5)
    network.run()
    network.now += 2.0
    client.resume(sent, b"the rest")
    network.now += 0.5
    settle(consumer)
    last = records.hops[-1]
    assert (last["time"], last["in_router"], last["outcome_after"]) == (100_000_000_000, 3_000_000_000, 3_500_000_000)


@pytest.mark.usefixtures("relays")
@pytest.mark.parametrize("settled", [(True, False, False), (False, True, False), (False, False, True)])
def test_what_is_settled_by_any_of_its_frames_was_settled_by_its_sender(settled: tuple[bool, bool, bool]) -> None:
    _network, records, client, consumer, sender = pair()
    client.send(sender)
    sent = client.send(sender, settled=settled[0], more=True)
    client.resume(sent, b"more", more=True, settled=settled[1])
    client.resume(sent, b"the rest", settled=settled[2])
    settle(consumer)
    (flags,) = [each["flags"] for each in records.hops if each["size"] > len(message())]
    assert flags & Flag.SETTLED


@pytest.mark.usefixtures("relays")
@pytest.mark.parametrize("anonymous", [False, True], ids=["by a link to it", "by one to anywhere"])
def test_records_do_not_tell_the_secret_of_a_dynamic_node(anonymous: bool) -> None:
    network = Network()
    records = Records(network.core)
    client, consumer = network.client(), network.client()
    replies = consumer.receiver(None, source=Source(dynamic=True))
    assert replies.remote is not None
    assert isinstance(replies.remote.source, Source)
    address = str(replies.remote.source.address)
    sender = client.sender(None if anonymous else address)
    client.send(sender, message("reply", to=address))
    settle(consumer)
    assert [each["outcome"] for each in records.hops] == [Outcome.ACCEPTED]
    recorded = {each["address"] for kind in (Kind.LINK, Kind.EVENT) for each in records.taken[kind]}
    assert without_secret(address.partition("@")[0]) in recorded
    assert not [each for each in recorded if each and address.partition("@")[0] in each]


def test_what_came_by_a_link_that_is_gone_is_recorded_with_what_its_number_means() -> None:
    _network, records, client, consumer, sender = pair()
    for _ in range(3):
        client.send(sender)
    client.lose()
    before = len(records.taken[Kind.LINK])
    assert records.hops == []
    settle(consumer)
    (again,) = records.taken[Kind.LINK][before:]
    assert again in records.taken[Kind.LINK][:before]
    assert [each["incoming"] for each in records.hops] == [again["number"]] * 3
    assert records.gone_numbers.count(again["number"]) == 2


def test_the_history_of_a_delivery_that_is_tried_again() -> None:
    network = Network(AddressConfig(pattern="orders", redeliver=True))
    records = Records(network.core)
    client, consumer = network.client(), network.client()
    consumer.receiver("orders")
    client.send(client.sender("orders"))
    settle(consumer, "modified")
    settle(consumer, "released")
    settle(consumer)
    assert [
        (each["counter"], each["first"], each["attempt"], Outcome(each["outcome"]).name) for each in records.hops
    ] == [(1, 0, 1, "MODIFIED"), (2, 1, 2, "RELEASED"), (3, 1, 3, "ACCEPTED")]


def test_a_copy_that_was_done_before_a_delivery_is_tried_again_is_recorded() -> None:
    network = Network(AddressConfig(pattern="orders", redeliver=True))
    records = Records(network.core)
    client, consumer, browser = network.client(), network.client(), network.client()
    consumer.receiver("orders", name="in")
    browser.receiver("orders", name="browser", copy=True)
    client.send(client.sender("orders"))
    settle(browser)
    settle(consumer, "released")
    settle(consumer)
    assert sorted((each["counter"], each["attempt"], each["outgoing"]) for each in records.hops) == sorted(
        [(1, 1, records.number("in")), (1, 1, records.number("browser")), (2, 2, records.number("in"))]
    )


def test_each_receiver_of_a_multicast_has_a_record_of_its_own_under_one_key() -> None:
    network = Network(AddressConfig(pattern="news", distribution="multicast"))
    records = Records(network.core)
    client, one, two, browser = (network.client() for _ in range(4))
    one.receiver("news", name="one")
    two.receiver("news", name="two")
    browser.receiver("news", name="browser", copy=True)
    client.send(client.sender("news"))
    settle(one)
    settle(two, "rejected")
    settle(browser, "released")
    assert {(each["counter"], each["outgoing"], Outcome(each["outcome"]).name) for each in records.hops} == {
        (1, records.number("one"), "ACCEPTED"),
        (1, records.number("two"), "REJECTED"),
        (1, records.number("browser"), "RELEASED"),
    }
    assert [each["outgoing"] for each in records.hops if each["flags"] & Flag.COPY] == [records.number("browser")]


@pytest.mark.parametrize("mode", [ReceiverSettleMode.FIRST, ReceiverSettleMode.SECOND])
@pytest.mark.usefixtures("relays")
def test_the_records_of_a_multicast_name_links_that_have_ended_and_say_what_they_were(mode: ReceiverSettleMode) -> None:
    network = Network(AddressConfig(pattern="news", distribution="multicast"))
    records = Records(network.core)
    client, one, two = (network.client() for _ in range(3))
    one.receiver("news", name="one")
    two.receiver("news", name="two")
    sender = client.sender("news", rcv=mode)
    client.send(sender, settled=True)
    numbers = records.number("one"), records.number("two")
    one.take()
    two.take()
    sent = client.send(sender)
    network.now += 0.5
    settle(one)
    one.lose()
    network.advance(0.1)
    network.now += 0.5
    settle(two, "rejected")
    if mode is ReceiverSettleMode.SECOND:
        sent.dispose(None, settled=True)
        network.run()
    assert {
        (each["counter"], each["outgoing"], each["outcome"], each["outcome_after"] // 100_000_000)
        for each in records.hops
    } == {
        *((1, number, Outcome.NONE, 0) for number in numbers),
        (2, numbers[0], Outcome.ACCEPTED, 5),
        (2, numbers[1], Outcome.REJECTED, 11),
    }
    assert [each["number"] for each in records.taken[Kind.LINK]].count(numbers[0]) == 2, "it is explained again"


def test_what_goes_to_nobody_is_recorded_with_the_reason() -> None:
    network = Network()
    records = Records(network.core)
    client = network.client()
    anonymous = client.sender(None)
    client.send(anonymous, message(to="nobody"))
    consumer = network.client()
    consumer.receiver("orders", credit=1)
    sender = client.sender("orders")
    for _ in range(2):
        client.send(sender)  # the first has credit; the second comes within the window, which is still open
    sent = client.send(anonymous, message("late", ttl=1000, to="orders"))
    network.advance(2.0)
    assert sent.outcome is not None
    found = {(Outcome(each["outcome"]).name, each["outgoing"]) for each in records.hops}
    assert ("UNDELIVERED", 0) in found
    assert not any(each["flags"] & Flag.TIMED for each in records.hops if not each["outgoing"])


def test_what_a_router_rejects_itself_is_recorded_with_the_condition() -> None:
    network = Network()
    records = Records(network.core)
    client = network.client()
    client.send(client.sender(None), message("to nobody at all"))
    assert [Outcome(each["outcome"]) for each in records.hops] == [Outcome.UNDELIVERED]
    assert records.conditions() == [AmqpCondition.PRECONDITION_FAILED]


def test_each_condition_is_explained_once_however_many_a_peer_makes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "NUMBERED", 3)
    _network, records, client, consumer, sender = pair()
    for name in ("a", "b", "a", "c", "d", "a", "x" * 1000):
        client.send(sender)
        consumer.take()[0].dispose(Rejected(error=Error(condition=Symbol(name))), settled=True)
        consumer.network.run()
    assert records.conditions() == ["a", "b", "a", "c", "d", "a", "x" * recording.LONGEST_CONDITION]
    told = [each["number"] for each in records.taken[Kind.LINK] if each["direction"] == "condition"]
    assert len(told) == 6
    assert records.gone_numbers == told[:3]


@pytest.mark.parametrize(
    "state",
    [
        encode_composite(Rejected()),
        encode_composite(Rejected(), full=True),
        encode_composite(Rejected(error=Error(condition=Symbol("c"), info={Symbol("n"): 7}))),
        encode_composite(Rejected(error=Error(condition=Symbol("c"))), full=True),
        bytes.fromhex("005325 c00100"),  # an empty list in its long form
        bytes.fromhex("005325 d0 00000014 00000001 00 80 000000000000001d c0 04 01 a3 01 63"),
        bytes.fromhex("005325 d0 00000016 00000001 00 53 1d d0 0000000a 00000001 b3 00000001 63"),
    ],
)
def test_a_condition_is_found_in_any_encoding(state: bytes) -> None:
    value = decode_composite(Rejected, state)[0]
    assert recording.condition_of(state) == (b"c" if value.error is not None else None)


def test_an_aborted_delivery_is_recorded_as_such() -> None:
    _network, records, client, _consumer, sender = pair()
    sent = client.send(sender, message("begin"), more=True)
    client.resume(sent, aborted=True)
    assert [(each["outcome"], each["outgoing"]) for each in records.hops] == [(Outcome.ABORTED, records.number("r0"))]


def test_an_anonymous_senders_deliveries_say_where_each_of_them_goes() -> None:
    network = Network()
    records = Records(network.core)
    client, consumer = network.client(), network.client()
    for name in ("a", "b"):
        consumer.receiver(name)
    sender = client.sender(None)
    for name in ("a", "b", "a"):
        client.send(sender, message(to=name))
    settle(consumer)
    places = {each["number"]: each["address"] for each in records.taken[Kind.LINK] if each["direction"] == "address"}
    assert sorted(places[each["address"]] for each in records.hops) == ["a", "a", "b"]
    assert len(places) == 2


@pytest.mark.usefixtures("relays")
def test_the_header_of_a_redelivered_message_is_told() -> None:
    _network, records, client, _consumer, sender = pair()
    fields = b"\x41\x50\x09\x40\x42"
    compact = b"\x00\x53\x70\xc0\x08\x05" + fields + b"\x52\x02"
    wide = b"\x00\x53\x70\xd0\x00\x00\x00\x0e\x00\x00\x00\x05" + fields + b"\x70\x00\x01\x11\x70"
    for header in (compact, wide):
        for _ in range(2):
            client.send(sender, header + message(header=False), settled=True)
    assert [(each["priority"], each["delivery_count"]) for each in records.hops] == [(9, 2)] * 2 + [(9, 0xFFFF)] * 2


@pytest.mark.usefixtures("relays")
def test_a_message_without_header_has_the_defaults_in_its_record_whatever_came_before_it() -> None:
    _network, records, client, _consumer, sender = pair()
    header = b"\x00\x53\x70\xc0\x08\x05\x41\x50\x09\x40\x42\x52\x02"
    for each in (header, header, b"", header, b"\x00\x53\x70\x45"):
        client.send(sender, each + message(header=False), settled=True)
    told = [(each["priority"], each["delivery_count"]) for each in records.hops]
    assert told == [(9, 2), (9, 2), (4, 0), (9, 2), (4, 0)]


def line(**settings: object) -> tuple[World, dict[str, Records]]:
    world = World("ABC", ["AB", "BC"])
    return world, {each: Records(world[each].core, **settings) for each in "ABC"}


@pytest.mark.usefixtures("relays")
@pytest.mark.parametrize("settled", [False, True])
def test_a_delivery_has_the_same_key_at_every_hop_and_one_hop_less_left(settled: bool) -> None:
    world, records = line()
    sender, receiver = world["A"].client(), world["C"].client()
    receiver.receiver("orders")
    world.advance(1.0)
    link = sender.sender("orders")
    world.advance(1.0)
    for _ in range(3):
        sender.send(link, settled=settled)
        settle(receiver)
    keys = [[(each["ingress"], each["epoch"], each["counter"]) for each in records[name].hops] for name in "ABC"]
    assert keys[0] == keys[1] == keys[2]
    assert len(set(keys[0])) == 3
    hops = [{each["hops_left"] for each in records[name].hops} for name in "ABC"]
    assert hops == [{2 + EXTRA_HOPS}, {2 + EXTRA_HOPS}, {1 + EXTRA_HOPS}]
    began = [{each["flags"] & Flag.BEGAN for each in records[name].hops} for name in "ABC"]
    assert began == [{Flag.BEGAN}, {0}, {0}]


def in_transit(monkeypatch: pytest.MonkeyPatch, *, decided: bool) -> dict[str, list[dict[str, object]]]:
    """Return the records of three messages of an anonymous sender, whose receiver is two hops away."""
    with monkeypatch.context() as patched:
        if decided:
            patched.setattr(arriving, "open_input", lambda core, incoming: None)
            patched.setattr(arriving, "open_route", lambda *_, **_options: None)
        world, records = line()
        sender, receiver = world["A"].client(), world["C"].client()
        receiver.receiver("orders")
        world.advance(1.0)
        link = sender.sender(None)
        world.advance(1.0)
        for number in range(3):
            sender.send(link, message("x" * number, to="orders", priority=number))
            settle(receiver)
    left = (*TOLD, "ingress", "epoch", "hops_left", "address")
    return {name: [{key: hop[key] for key in left} for hop in records[name].hops] for name in "ABC"}


def test_records_of_messages_in_transit_are_the_same_on_both_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    told = in_transit(monkeypatch, decided=False)
    assert told == in_transit(monkeypatch, decided=True)
    assert [len(each) for each in told.values()] == [3, 3, 3]


@pytest.mark.usefixtures("relays")
def test_a_delivery_of_the_sample_is_recorded_at_every_hop() -> None:
    world, records = line(sample=0.3)
    sender, receiver = world["A"].client(), world["C"].client()
    receiver.receiver("orders", credit=200)
    world.advance(1.0)
    link = sender.sender("orders")
    world.advance(1.0)
    for number in range(100):
        sender.send(link, settled=number % 2 == 0)
    settle(receiver)
    keys = [sorted(each["counter"] for each in records[name].hops) for name in "ABC"]
    assert keys[0] == keys[1] == keys[2]
    assert 20 <= len(keys[0]) <= 40


def test_counts_are_of_all_deliveries_whatever_the_sample() -> None:
    network = Network()
    records = Records(network.core, sample=0.0)
    client, consumer = network.client(), network.client()
    consumer.receiver("orders", name="in")
    sender = client.sender("orders", name="out")
    for number in range(5):
        client.send(sender, settled=number < 2)
    settle(consumer)
    assert records.hops == []

    def counts() -> list[tuple[str, int, int, int, int, int | None]]:
        for each in network.core.context.connections:
            records.recording.counts(each)
        taken, records.taken[Kind.COUNTS] = records.taken[Kind.COUNTS], []
        return [
            (*(each[name] for name in ("link", "deliveries", "octets", "presettled", "accepted")), each["since"])
            for each in taken
        ]

    told = [("out", 5, 5 * len(message()), 2, 3, None), ("in", 5, 5 * len(message()), 2, 3, None)]
    assert counts() == told
    network.advance(10.0)
    assert counts() == []
    looked = records.recorder.base + round(network.now * 1e9)
    network.advance(10.0)
    client.send(sender, settled=True)
    client.lose()
    assert [(*each[:2], each[-1]) for each in counts()] == [("out", 6, looked), ("in", 6, looked)]


def test_nothing_is_remembered_of_a_link_that_is_gone() -> None:
    network, records, client, consumer, _sender = pair()
    for each in network.core.context.connections:
        records.recording.counts(each)
    client.lose()
    consumer.lose()
    assert records.taken[Kind.COUNTS] == []
    assert records.recording._counted == {}


def test_what_happens_to_links() -> None:
    network = Network(AddressConfig(pattern="there", redirect=RedirectConfig(hostname="b.example", port=5672)))
    records = Records(network.core)
    client, thief = network.client("c"), network.client("c")
    sender = client.sender("orders", name="out")
    assert sender.is_attached
    network.advance(3.0)
    consumer = network.client()
    consumer.receiver("orders", name="in")
    client.stopped = True
    thief.sender("orders", name="out")
    network.advance(0.3)
    consumer.sender("there", name="elsewhere")
    consumer.sender("$management/x", name="forbidden")
    consumer.lose()
    found = records.happened()
    assert [each for each in found if each[1] == "out"] == [
        ("up", "out"),
        ("credit", "out"),
        ("up", "out"),
        ("stolen", "out"),
        ("down", "out"),
    ]
    assert [each for each in found if each[1] == "in"] == [("up", "in"), ("down", "in")]
    assert ("redirected", "elsewhere") in found
    credit = next(each for each in records.taken[Kind.EVENT] if each["happening"] == "credit")
    assert (credit["waited"], credit["peer"], credit["address"]) == (3_000_000_000, "c", "orders")
    redirected = next(each for each in records.taken[Kind.EVENT] if each["happening"] == "redirected")
    assert redirected["error"] == LinkCondition.REDIRECT.value
    assert records.number("in") in records.gone_numbers


def test_the_graph_is_recorded_as_it_changes_and_whole() -> None:
    world, records = line()
    edges = records["A"].taken[Kind.EDGE]
    records["A"].recording.whole_graph()
    whole = {(each["origin"], each["neighbour"], each["cost"]) for each in edges if each["whole"]}
    assert whole == {
        *((each, None, None) for each in "ABC"),
        ("A", "B", 1),
        ("B", "A", 1),
        ("B", "C", 1),
        ("C", "B", 1),
    }
    edges.clear()
    world.cut(*world.between("B", "C"))
    world.advance(1.0)
    gone = {(each["origin"], each["neighbour"], each["cost"], each["whole"]) for each in edges}
    assert gone == {("B", "C", None, False), ("C", "B", None, False)}


def test_where_there_is_no_room_records_are_lost_and_counted_and_messages_go_on() -> None:
    network = Network()
    records = Records(network.core, records=4, rooms=2)
    client, consumer = network.client(), network.client()
    consumer.receiver("orders", credit=100)
    sender = client.sender("orders")
    for _ in range(20):
        client.send(sender, settled=True)
    assert len(consumer.take()) == 20
    assert [each["counter"] for each in records.hops] == list(range(1, 9))
    assert (records.recorder.stored, records.recorder.lost) == (20, 12)


def test_maps_have_the_fields_that_are_declared() -> None:
    world, records = line()
    client = world["A"].client()
    client.receiver("orders")
    link = client.sender("orders")
    client.send(link, settled=True)
    for each in world["A"].core.context.connections:
        records["A"].recording.counts(each)
    records["A"].recording.whole_graph()
    for kind, fields in ((Kind.LINK, LINK), (Kind.EVENT, EVENT), (Kind.COUNTS, COUNTS), (Kind.EDGE, EDGE)):
        declared = {each.name: each for each in fields if each.name != "router"}
        assert records["A"].taken[kind]
        for record in records["A"].taken[kind]:
            assert record.keys() == declared.keys()
            assert all(declared[name].optional for name, value in record.items() if value is None)
