"""The choice between fast path and decision, seen by the events of each delivery."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from amqpmesh.policies.annotations import DeliveryAnnotationsRule
from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.events import DispositionReceived, Event, TransferReceived
from amqpmesh.router.amqp.link import Sender, Terminus
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Modified, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import AmqpValue, DeliveryAnnotations, MessageAnnotations, Source, Target
from amqpmesh.router.config.file import AddressConfig, ListenerConfig
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.mesh import mesh_routes
from amqpmesh.router.model.connections import ConnectionRecord
from tests.support.worlds.meshes import World, records
from tests.support.worlds.network import OUTCOMES, Client, Network, Sent, message
from tests.support.worlds.side_by_side import disposition, relaying

FIRST, SECOND = ReceiverSettleMode.FIRST, ReceiverSettleMode.SECOND
LINE = [("A", "B"), ("B", "C"), ("C", "D")]
BODY = encode_composite(AmqpValue(value="body"))
#: A head that is read only where it is decided what becomes of it.
ODD = b"\x00\xa3\x10amqp:header:list\x45" + BODY

Events = Counter[type[Event]]


@pytest.fixture
def events() -> Iterator[Events]:
    """Count the events that routers handle."""
    with relaying(alone=True) as counts:
        yield counts


def send(client: Client, link: Sender, *payloads: bytes, settled: bool = False) -> list[Sent]:
    """Send messages."""
    return [client.send(link, payload, settled=settled) for payload in payloads]


def decided(events: Events, act: Callable[[], object], kind: type[Event] = TransferReceived) -> int:
    """Return the number of events of a kind that an action causes."""
    before = events[kind]
    act()
    return events[kind] - before


def pair(network: Network, address: str = "q", *, credit: int = 50, **source: object) -> tuple[Client, Client, Sender]:
    """Attach a consumer, and a producer that has sent one message: after it there is a fast route for the next ones."""
    consumer, producer = network.client(), network.client()
    consumer.receiver(address, credit=credit)
    link = producer.sender(address, **source)  # type: ignore[arg-type]  # names are the tests'
    assert producer.send(link).delivery.complete
    for arrival in consumer.take(1):
        arrival.accept()
    network.run()
    return consumer, producer, link


# ------------------------------------------------------------------------------------------------ what is relayed alone


@pytest.mark.parametrize("octets", [1, 7, 100])
def test_a_delivery_in_parts_of_frames_is_relayed_without_a_decision(
    events: Events, octets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network()
    consumer, producer, link = pair(network)
    receive = network.core.receive

    def in_parts(record: ConnectionRecord, data: bytes, now: float) -> bool:
        return all(receive(record, data[at : at + octets], now) for at in range(0, len(data), octets))

    monkeypatch.setattr(network.core, "receive", in_parts)
    assert decided(events, lambda: send(producer, link, *[BODY] * 20)) == 0
    arrivals = consumer.take(20)

    def settle() -> None:
        for arrival in arrivals:
            arrival.accept()
        network.run()

    assert decided(events, settle, DispositionReceived) == 0
    assert snapshot(network.core).router.relays == 0


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("mode", [FIRST, SECOND])
@pytest.mark.parametrize("outcome", [Accepted(), Released(), Modified(delivery_failed=True)])
def test_the_usual_is_relayed_without_a_decision_and_so_is_its_outcome(
    events: Events, settled: bool, mode: ReceiverSettleMode, outcome: DeliveryState
) -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=50)
    link = producer.sender("q", rcv=mode)
    producer.send(link, settled=True)
    payloads = [message(str(number)) for number in range(5)]
    sent: list[Sent] = []
    assert decided(events, lambda: sent.extend(send(producer, link, *payloads, settled=settled))) == 0
    arrived = consumer.take(6)[1:]
    assert [bytes(each.payload) for each in arrived] == payloads

    def decide() -> None:
        for each in arrived:
            each.dispose(outcome, settled=mode is FIRST)
        network.run()
        for each in sent:
            if mode is SECOND:
                each.dispose(outcome, settled=True)
        network.run()

    assert decided(events, decide, DispositionReceived) == 0
    assert [each.outcome for each in sent] == [None if settled else outcome] * 5
    assert all(each.delivery.settled for each in arrived)
    assert network.relays == 0
    network.leave()


def test_what_is_said_of_a_decided_delivery_keeps_the_next_frames_from_nothing(events: Events) -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=50)
    link = producer.sender("q")
    sent = send(producer, link, *[message()] * 5)
    decided_first, *alone = consumer.take(5)

    def say() -> None:
        decided_first.accept()
        for each in alone:
            each.dispose(Released(), settled=True)  # another frame
        network.run()

    assert decided(events, say, DispositionReceived) == 1
    assert [each.outcome for each in sent] == [Accepted(), *[Released()] * 4]
    assert network.relays == 0
    network.leave()


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("mode", [FIRST, SECOND])
def test_over_three_hops_no_router_decides_anything(events: Events, settled: bool, mode: ReceiverSettleMode) -> None:
    mesh = World("ABCD", LINE)
    consumer, producer = mesh["D"].client(), mesh["A"].client()
    consumer.receiver("q", credit=50)
    link = producer.sender("q", rcv=mode)
    mesh.advance(0.2)
    producer.send(link, settled=True)
    sent: list[Sent] = []
    assert decided(events, lambda: sent.extend(send(producer, link, *[message()] * 5, settled=settled))) == 0
    arrived = consumer.take(6)[1:]

    def decide() -> None:
        for each in arrived:
            each.dispose(Accepted(), settled=mode is FIRST)
        mesh.run()
        for each in sent:
            if mode is SECOND:
                each.dispose(Accepted(), settled=True)
        mesh.run()

    assert decided(events, decide, DispositionReceived) == 0
    assert [each.outcome for each in sent] == [None if settled else Accepted()] * 5
    assert all(node.core.context.in_flight == 0 for node in mesh.nodes.values())
    mesh.leave()


def test_consumers_of_one_address_get_equal_shares_without_a_decision(events: Events) -> None:
    network = Network()
    _, producer, link = pair(network)
    more = [network.client(), network.client()]
    for client in more:
        client.receiver("q", credit=50)
    producer.send(link, settled=True)
    network.clients[0].take(), [client.take() for client in more]
    assert decided(events, lambda: send(producer, link, *[message()] * 12)) == 0
    shares = [client.take() for client in (network.clients[0], *more)]
    assert [len(share) for share in shares] == [4, 4, 4]
    for arrival in shares[1]:
        arrival.accept()
    network.run()
    assert decided(events, lambda: send(producer, link, *[message()] * 4)) == 0
    assert len(more[0].take()) == 4, "it has the least unsettled"
    network.leave()


@pytest.mark.parametrize("consumers", [2, 3])
@pytest.mark.parametrize("pattern", ["-", "o", "-o", "oo-"])
@pytest.mark.parametrize("distribution", [Distribution.CLOSEST, Distribution.BALANCED])
def test_consumers_take_turns_whether_it_is_decided_or_not(
    distribution: Distribution, pattern: str, consumers: int
) -> None:
    network = Network(AddressConfig(pattern="q", distribution=distribution))
    clients = [network.client() for _ in range(consumers)]
    for client in clients:
        client.receiver("q", credit=50)
    producer = network.client()
    link = producer.sender("q")
    for number in range(12):
        odd = pattern[number % len(pattern)] == "o"
        send(producer, link, ODD if odd else message(), settled=True)
    assert [len(client.take()) for client in clients] == [12 // consumers] * consumers
    network.leave()


@pytest.mark.parametrize("decisions", [0, 1, 2, 3])
def test_a_sender_is_never_left_without_credit_whatever_of_it_was_decided(decisions: int) -> None:
    for most in (2, 3, 5, 16):
        network = Network(AddressConfig(pattern="q", max_credit=most))
        consumer, producer = network.client(), network.client()
        consumer.receiver("q", credit=1000)
        link = producer.sender("q")
        for number in range(40):
            assert link.credit, (most, number)
            odd = number % 4 < decisions
            producer.send(link, ODD if odd else message(), settled=True)
        assert len(consumer.take()) == 40
        network.leave()


@pytest.mark.parametrize("message_format", [0, 1, 7])
def test_messages_of_any_format_are_relayed_as_such(events: Events, message_format: int) -> None:
    network = Network()
    consumer, producer, link = pair(network)
    payload = b"anything" if message_format else message()
    assert decided(events, lambda: producer.send(link, payload, message_format=message_format)) == 0
    (arrival,) = consumer.take(1)
    assert (arrival.delivery.message_format, bytes(arrival.payload)) == (message_format, payload)
    network.leave()


def test_after_the_mesh_has_changed_it_is_decided_anew_how_deliveries_leave(events: Events) -> None:
    mesh = World("ABC", [("A", "B"), ("B", "C"), ("A", "C", 5)])
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    consumer.receiver("q", credit=50)
    link = producer.sender("q")
    mesh.advance(0.2)
    producer.send(link, settled=True)
    assert decided(events, lambda: send(producer, link, *[message()] * 3, settled=True)) == 0
    mesh.cut(*mesh.between("A", "B"))
    mesh.advance(5.0)
    for _ in range(2):
        producer.send(link, settled=True)
        mesh.advance(1.0)
    assert decided(events, lambda: send(producer, link, *[message()] * 3, settled=True)) == 0
    assert len(consumer.take()) == 9
    mesh.leave()


# --------------------------------------------------------------------------------------------------- what is decided


def test_while_somebody_browses_each_delivery_is_decided(events: Events) -> None:
    network = Network()
    consumer, producer, link = pair(network)
    browser = network.client()
    browsing = browser.receiver("q", credit=50, copy=True)
    assert decided(events, lambda: send(producer, link, *[message()] * 3)) == 3
    assert (len(consumer.take()), len(browser.take())) == (3, 3)
    browsing.detach()
    network.run()
    assert decided(events, lambda: send(producer, link, *[message()] * 3)) == 0
    network.leave()


def test_a_delivery_does_not_pass_a_queued_one_and_later_ones_are_decided(events: Events) -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", credit=3)
    links = [producer.sender("q") for _ in range(3)]
    receiver.flow(1)
    network.run()
    payloads = [message(str(number)) for number in range(3)]
    assert decided(events, lambda: [send(producer, *each) for each in zip(links, payloads, strict=True)]) == 3
    receiver.flow(50)
    network.run()
    assert [bytes(each.payload) for each in consumer.take()] == payloads
    assert decided(events, lambda: send(producer, links[0], *[message()] * 3)) == 0
    network.leave()


def _annotated(section: type[DeliveryAnnotations | MessageAnnotations], key: str) -> bytes:
    return encode_composite(section(value={Symbol(key): "yes"})) + BODY


@pytest.mark.parametrize(
    "payload",
    [
        ODD,
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x70\x45" + BODY,
        b"\x00\x53\x70\xc0\x03\x02\x56\x01\x40" + BODY,
        b"\x00\x53\x70\x45\x00\x53\x70\x45" + BODY,
        b"\x00\x53\x72\x45\x00\x53\x70\x45" + BODY,
        b"\x00\x53\x70\xc0\x01\x03" + BODY,
        b"\x00\x53\x72\xc1\xff\x00" + BODY,
        b"\x00\x53",
        b"anything",
        _annotated(DeliveryAnnotations, "x-opt-mesh-to"),
    ],
    ids=repr,
)
def test_a_message_out_of_the_ordinary_is_decided_and_the_next_is_not(events: Events, payload: bytes) -> None:
    network = Network()
    network.listener = ListenerConfig(url="amqp://127.0.0.1:0", idle_time_out=0.0, max_frame_size=100_000)
    consumer, producer, link = pair(network)
    assert decided(events, lambda: producer.send(link, payload[:200])) == 1 or len(payload) > 200
    if len(payload) > 200:
        assert decided(events, lambda: producer.send(link, payload)) >= 1
    assert decided(events, lambda: producer.send(link, settled=True)) == 0
    assert consumer.take()
    network.leave()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        BODY,
        b"\x00\x53\x70\x45" + BODY,
        message(ttl=5000, priority=9),
        message(ttl=0),
        b"\x00\x53\x70\xd0\x00\x00\x00\x06\x00\x00\x00\x02\x41\x40" + BODY,
        _annotated(DeliveryAnnotations, "x-opt-other"),
        _annotated(MessageAnnotations, "x-opt-mesh-to"),
    ],
    ids=repr,
)
def test_an_ordinary_message_leaves_as_it_came(events: Events, payload: bytes) -> None:
    network = Network()
    consumer, producer, link = pair(network)
    assert decided(events, lambda: producer.send(link, payload)) == 0
    assert bytes(consumer.take(1)[0].payload) == payload
    network.leave()


def test_delivery_annotations_are_dropped_where_they_are_to_be(events: Events) -> None:
    network = Network(AddressConfig(pattern="q", delivery_annotations=DeliveryAnnotationsRule.DROP))
    consumer, producer, link = pair(network)
    assert decided(events, lambda: producer.send(link, _annotated(DeliveryAnnotations, "x-opt-other"))) == 1
    assert decided(events, lambda: producer.send(link, _annotated(MessageAnnotations, "x-opt-other"))) == 0
    assert decided(events, lambda: producer.send(link, message())) == 0
    assert bytes(consumer.take(3)[0].payload) == BODY
    network.leave()


def test_annotations_that_are_read_strictly_are_read_each_time(events: Events) -> None:
    network = Network()
    network.listener = ListenerConfig(url="amqp://127.0.0.1:0", idle_time_out=0.0, strict_annotations=True)
    _, producer, link = pair(network)
    assert decided(events, lambda: send(producer, link, *[message()] * 3)) == 3
    producer.send(link, _annotated(MessageAnnotations, "strange"))
    assert producer.detached[link] is not None
    network.leave()


def test_an_outcome_that_a_source_does_not_permit_is_decided(events: Events) -> None:
    network = Network()
    source = Source(outcomes=(Symbol("amqp:accepted:list"), Symbol("amqp:rejected:list")))
    consumer, producer, link = pair(network, source=source)
    sent = send(producer, link, *[message()] * 2)
    one, other = consumer.take(2)

    def say(state: DeliveryState, number: int) -> None:
        (one, other)[number].dispose(state, settled=True)
        network.run()

    assert decided(events, lambda: say(Accepted(), 0), DispositionReceived) == 0
    assert decided(events, lambda: say(Released(), 1), DispositionReceived) == 1
    assert sent[0].outcome == Accepted()
    assert sent[1].outcome not in (None, Released())
    network.leave()


@pytest.mark.parametrize(
    ("state", "number"), [(OUTCOMES["rejected"], 0), (OUTCOMES["modified"], 0), (None, 1)], ids=repr
)
def test_settled_without_an_outcome_it_is_decided_and_with_any_other_one_it_is_not(
    events: Events, state: DeliveryState | None, number: int
) -> None:
    network = Network()
    consumer, producer, link = pair(network)
    (sent,) = send(producer, link, message())
    (arrival,) = consumer.take(1)

    def say() -> None:
        arrival.dispose(state, settled=True)
        network.run()

    assert decided(events, say, DispositionReceived) == number
    assert sent.outcome == (state or Modified(delivery_failed=True))
    assert network.relays == 0
    network.leave()


def test_to_say_nothing_of_a_delivery_decides_nothing(events: Events) -> None:
    network = Network()
    consumer, producer, link = pair(network)
    (sent,) = send(producer, link, message())
    (arrival,) = consumer.take(1)

    def say() -> None:
        arrival.link.session.flow_state.dispose(True, arrival.delivery.delivery_id, False, None)
        network.run()

    assert decided(events, say, DispositionReceived) == 0
    assert sent.outcome is None
    arrival.dispose(Accepted(), settled=True)
    network.run()
    assert sent.outcome == Accepted()
    network.leave()


def test_a_sender_that_owes_too_much_is_detached(events: Events) -> None:
    network = Network()
    network.listener = ListenerConfig(url="amqp://127.0.0.1:0", idle_time_out=0.0, max_owed=2)
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=50)
    link = producer.sender("q", rcv=SECOND)
    send(producer, link, *[message()] * 3)
    for arrival in consumer.take(3):
        arrival.dispose(Accepted(), settled=False)
        network.run()
    error = producer.detached[link]
    assert error is not None
    assert error.condition == "amqp:resource-limit-exceeded"
    assert events[DispositionReceived] >= 1
    assert network.relays == 0
    network.leave()


def test_a_message_larger_than_the_consumer_takes_is_rejected() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=50, max_message_size=50)
    link = producer.sender("q")
    producer.send(link, message("x"))
    (small, large) = send(producer, link, message("x" * 10), message("x" * 50))
    assert small.outcome is None
    assert large.outcome is not None
    assert len(consumer.take()) == 2
    network.leave()


def test_while_a_consumer_that_was_detached_may_still_decide_each_delivery_is_decided(events: Events) -> None:
    network = Network()
    consumer, producer, link = pair(network)
    receiver = consumer.receiver("q", credit=50)
    send(producer, link, *[message()] * 4)
    arrived = consumer.take(4)
    receiver.detach(closed=False)
    network.run()
    assert decided(events, lambda: send(producer, link, *[message()] * 2)) == 2
    for arrival in [*arrived, *consumer.take(2)]:
        arrival.accept()
    network.run()
    assert network.relays == 0
    network.leave()


def test_without_credit_one_is_held_back_and_without_room_in_the_output_it_is_decided_and_waits(events: Events) -> None:
    for case in ("credit", "unsettled", "output"):
        network = Network(AddressConfig(pattern="few", max_unsettled=2))
        network.listener = ListenerConfig(url="amqp://127.0.0.1:0", idle_time_out=0.0, output_backlog=100)
        address = "few" if case == "unsettled" else "q"
        consumer, producer = network.client(), network.client()
        receiver = consumer.receiver(address, credit=2 if case == "credit" else 50)
        link = producer.sender(address)
        consumer.stopped = case == "output"
        # The first delivery is decided, as every first one. There is room for the second, and none for the third.
        assert decided(events, lambda: send(producer, link, *[message("x" * 40)] * 2)) == 1, case  # noqa: B023
        third = decided(events, lambda: producer.send(link, message()))  # noqa: B023 - called at once
        assert third == (0 if case == "credit" else 1), case
        consumer.stopped = False
        network.run()
        arrived = consumer.take()
        for arrival in arrived:
            arrival.accept()
        receiver.flow(50)
        network.run()
        assert len(arrived) + len(consumer.take()) == 3, case
        network.leave()


@pytest.mark.parametrize("drains", ["router", "consumer"])
def test_while_something_drains_what_comes_is_delivered(drains: str) -> None:
    network = Network()
    consumer, producer, link = pair(network)
    producer.drains = False
    receiver = next(iter(consumer.session.links.values()))
    if drains == "router":
        network.core.start_drain(network.now)
    else:
        receiver.flow(20, drain=True)
        network.run()
    send(producer, link, *[message()] * 3)
    assert len(consumer.take()) == 3
    network.leave()


# ----------------------------------------------------------------------------------------------------------- the mesh


@pytest.mark.parametrize("places", ["BC", "AB", "ABC"])
@pytest.mark.parametrize("distribution", [Distribution.CLOSEST, Distribution.BALANCED])
def test_consumers_at_several_routers_get_their_shares_without_a_decision(
    events: Events, distribution: Distribution, places: str
) -> None:
    mesh = World("ABC", [("A", "B"), ("A", "C")], AddressConfig(pattern="q", distribution=distribution))
    producer = mesh["A"].client()
    consumers = [mesh[router].client() for router in places]
    for consumer in consumers:
        consumer.receiver("q", credit=50)
    mesh.advance(0.2)
    link = producer.sender("q")
    mesh.advance(0.2)
    near = 1 if distribution is Distribution.CLOSEST and "A" in places else len(places)
    sent = send(producer, link, *[message()] * near)  # the first one on each link is decided
    assert decided(events, lambda: sent.extend(send(producer, link, *[message()] * 5 * near))) == 0
    taken = [consumer.take() for consumer in consumers]
    assert [len(arrivals) for arrivals in taken] == [6] * near + [0] * (len(places) - near)

    for arrival in itertools.chain(*taken):
        arrival.accept()
    mesh.run()
    assert [each.outcome for each in sent] == [Accepted()] * 6 * near
    mesh.leave()


def test_a_slow_consumer_costs_those_at_other_routers_no_decision(events: Events) -> None:
    mesh = World("ABC", [("A", "B"), ("A", "C")])
    producer = mesh["A"].client()
    slow, *fast = consumers = [mesh[router].client() for router in "ABC"]
    for consumer in consumers:
        consumer.receiver("q", credit=2 if consumer is slow else 50)
    mesh.advance(0.2)
    link = producer.sender("q")
    mesh.advance(0.2)
    send(producer, link, *[message()] * 6)
    assert decided(events, lambda: send(producer, link, *[message()] * 20)) == 0
    assert [len(consumer.take()) for consumer in (slow, *fast)] == [2, 12, 12]
    mesh.leave()


def test_the_router_decides_where_the_closest_consumers_have_no_credit_left(events: Events) -> None:
    mesh = World("AB", LINE[:1], AddressConfig(pattern="q", distribution=Distribution.CLOSEST))
    producer = mesh["A"].client()
    near, far = mesh["A"].client(), mesh["B"].client()
    receiver = near.receiver("q", credit=3)
    far.receiver("q", credit=50)
    mesh.advance(0.2)
    link = producer.sender("q")
    mesh.advance(0.2)
    send(producer, link, message())
    assert decided(events, lambda: send(producer, link, *[message()] * 2)) == 0
    assert link.credit == 1
    assert decided(events, lambda: producer.send(link)) == 1
    assert (len(near.take()), len(far.take())) == (3, 0)
    receiver.flow(10)
    mesh.run()
    assert (len(near.take()), len(far.take())) == (1, 0)
    mesh.leave()


@pytest.mark.parametrize("loss", ["detach", "credit", "drain", "client", "router"])
def test_what_a_lost_share_cannot_take_goes_to_the_others(events: Events, loss: str) -> None:
    mesh = World("ABC", [("A", "B"), ("A", "C")])
    producer = mesh["A"].client()
    consumers = {router: mesh[router].client() for router in "BC"}
    receivers = {router: consumer.receiver("q", credit=50) for router, consumer in consumers.items()}
    mesh.advance(0.2)
    link = producer.sender("q")
    mesh.advance(0.2)
    sent = send(producer, link, *[message()] * 10)
    if loss == "detach":
        receivers["B"].detach()
    elif loss == "client":
        consumers["B"].lose()
    elif loss == "router":
        mesh.kill("B")
    else:
        receivers["B"].flow(0 if loss == "credit" else 40, drain=loss == "drain")
    mesh.run()
    for _ in range(20):
        mesh.advance_until(lambda: link.credit > 0, 2.0)
        sent += send(producer, link, message())
    mesh.advance(2.0)
    if loss in ("client", "router"):
        del consumers["B"]
    elif loss != "detach":
        receivers["B"].flow(40)  # one may wait there
    mesh.advance(1.0)
    arrived = {router: consumer.take() for router, consumer in consumers.items()}
    for arrival in itertools.chain(*arrived.values()):
        arrival.accept()
    mesh.run()
    assert len(arrived["C"]) >= 20
    assert all(each.said for each in sent)
    mesh.leave()


def test_the_router_decides_about_messages_for_remote_receivers_of_its_name(events: Events) -> None:
    mesh = World("AB", LINE[:1])
    producer, consumer = mesh["A"].client(), mesh["B"].client()
    consumer.receiver("q@A", credit=50)
    mesh.advance(0.2)
    link = producer.sender("q")
    mesh.advance(0.2)
    assert decided(events, lambda: send(producer, link, *[message()] * 3)) >= 3
    assert len(consumer.take()) == 3
    mesh.leave()


def test_by_a_tree_the_first_delivery_alone_is_decided(events: Events) -> None:
    mesh = World("AB", LINE[:1], AddressConfig(pattern="news", distribution=Distribution.MULTICAST))
    producer, consumer = mesh["A"].client(), mesh["B"].client()
    consumer.receiver("news", credit=50)
    mesh.advance(0.2)
    link = producer.sender("news")
    mesh.advance(0.2)
    assert decided(events, lambda: send(producer, link, *[message()] * 3)) == 2
    assert len(consumer.take()) == 3
    mesh.leave()


def test_behind_something_large_each_delivery_is_decided_until_it_is_gone(events: Events) -> None:
    mesh = World("AB", LINE[:1])
    producer, consumer = mesh["A"].client(), mesh["B"].client(window=2)
    consumer.receiver("q", credit=50)
    link = producer.sender("q")
    mesh.advance(0.2)
    payloads = [message("first"), message("x" * 60_000), message("behind")]
    send(producer, link, *payloads)
    mesh.advance(0.5)
    assert [bytes(each.payload) for each in consumer.take()] == payloads
    for arrival in mesh["B"].arrived:
        arrival.accept()
    mesh.advance(1.0)
    send(producer, link, message())
    assert decided(events, lambda: send(producer, link, *[message()] * 3)) == 0
    assert len(consumer.take()) == 4
    mesh.leave()


def test_large_ones_follow_each_other_through_the_mesh_without_a_decision(events: Events) -> None:
    mesh = World("ABC", LINE[:2])
    producer, consumer = mesh["A"].client(), mesh["C"].client()
    consumer.receiver("q", credit=50)
    link = producer.sender("q")
    mesh.advance(0.2)
    payloads = [*(message(letter * 60_000) for letter in "abc"), message("small")]

    def take() -> None:
        arrived = consumer.take()
        assert [bytes(each.payload) for each in arrived] == payloads
        for arrival in arrived:
            if not arrival.delivery.settled:
                arrival.accept()
        mesh.advance(0.5)

    for _ in range(3):  # until the bulk links have credit for more than one delivery
        send(producer, link, *payloads)
        mesh.advance(0.5)
        take()
    for settled in (False, True):
        assert decided(events, lambda: send(producer, link, *payloads, settled=settled)) == 0  # noqa: B023 - called at once
        take()
    assert all(mesh[router].core.context.in_flight == 0 for router in "ABC")
    mesh.leave()


def test_the_router_decides_about_a_delivery_that_would_turn_back(events: Events) -> None:
    mesh = World("ABC", LINE[:2])
    producer, consumer = mesh["A"].client(), mesh["C"].client()
    consumer.receiver("q", credit=50)
    link = producer.sender("q")
    mesh.advance(0.2)
    producer.send(link, settled=True)
    to: ConnectionRecord = next(
        each for each in records(mesh, "B") if each.engine.remote is not None and each.peer.container_id == "C"
    )
    to.engine.flow_state.container = "A"
    assert decided(events, lambda: send(producer, link, *[message()] * 2)) == 2, "each at B alone"
    assert len(consumer.take()) == 3
    mesh.leave()


@pytest.mark.parametrize("alone", [True, False])
def test_a_delivery_without_hops_left_goes_back(monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    monkeypatch.setattr(mesh_routes, "EXTRA_HOPS", -1)
    with relaying(alone=alone):
        mesh = World("ABCD", LINE)
        producer, consumer = mesh["A"].client(), mesh["D"].client()
        consumer.receiver("q", credit=50)
        link = producer.sender("q")
        mesh.advance(0.2)
        sent = send(producer, link, *[message()] * 4)
        mesh.advance(0.2)
        assert consumer.take() == []
        assert [each.outcome for each in sent] == [Released()] * 4
        assert sum(node.core.context.no_hops for node in mesh.nodes.values()) == 4
        mesh.leave()


def test_links_of_either_settle_mode_are_relayed(events: Events) -> None:
    for mode in SenderSettleMode:
        network = Network()
        consumer, producer = network.client(), network.client()
        consumer.receiver("q", credit=50, snd=mode)
        link = producer.sender("q", snd=mode)
        settled = mode is SenderSettleMode.SETTLED
        producer.send(link, settled=settled)
        assert decided(events, lambda: send(producer, link, *[message()] * 3, settled=settled)) == 0  # noqa: B023
        assert len(consumer.take()) == 4
        network.leave()


def test_a_session_that_ended_before_anybody_was_told_takes_nothing() -> None:
    network = Network()
    consumer, producer = network.client(max_frame_size=512), network.client()
    consumer.receiver("q", credit=50)
    link = producer.sender("q")
    for _ in range(2):
        producer.send(link)
        consumer.take(1)[0].accept()
        network.run()
    # The most work of one turn, then an attach whose answer does not fit into the peer's frames.
    for _ in range(999):
        consumer.engine.out.extend(disposition(9000, 9000, None))
    consumer.session.attach(Terminus("L" * 470, Role.RECEIVER), source=Source(address="q2"), target=Target())
    assert not network.core.receive(consumer.record, consumer.engine.data_to_send(network.now), network.now)
    sent = producer.send(link)
    network.run()
    assert not producer.is_lost
    assert sent.said == [(Released(), True)]


@pytest.mark.parametrize("to", ["q", None])
def test_a_receiver_is_sent_no_more_than_it_takes_in_several_frames(to: str | None) -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", max_message_size=5000)
    link = producer.sender(to)
    payload = message("x" * 20_000, to="q")
    sent = producer.send(link, payload[:2000], more=True)
    for at in range(2000, len(payload), 2000):
        if not sent.said:
            producer.resume(sent, payload[at : at + 2000], more=at + 2000 < len(payload))
    (state, settled) = sent.said[-1]
    assert isinstance(state, Rejected)
    assert settled
    assert receiver.is_attached
