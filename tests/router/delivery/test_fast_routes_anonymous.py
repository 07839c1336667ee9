"""Anonymous senders on the fast path: the kernel asks once for the route of each `to`, and relays all by it."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router import kernel
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.events import DispositionReceived
from amqpmesh.router.amqp.link import Sender
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Modified, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import AmqpValue, Properties, Source
from amqpmesh.router.config.file import AddressConfig, ListenerConfig
from amqpmesh.router.core import Core
from amqpmesh.router.model.links import IncomingLink
from amqpmesh.router.model.node import Node
from tests.router.delivery.test_fast_routes import Events, decided, events, send
from tests.router.delivery.test_fast_routes_alike import LINKS, Bench, Dice, check, played
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Client, Network, Sent, message

__all__ = ["events"]

FIRST, SECOND = ReceiverSettleMode.FIRST, ReceiverSettleMode.SECOND


def table(core: Core) -> kernel.AnonymousRoutes:
    """Return the routes of the one anonymous sender of a router."""
    links = [link for record in core.context.connections for link in record.incoming if link.node is None]
    routes = links[0].endpoint.flow_state.fast_route
    assert isinstance(routes, kernel.AnonymousRoutes)
    return routes


def served(network: Network, *addresses: str, credit: int = 50) -> tuple[Client, Client]:
    """Attach a consumer of each address, and return the consumer and another client."""
    consumer = network.client()
    for address in addresses:
        consumer.receiver(address, credit=credit)
    return consumer, network.client()


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("mode", [FIRST, SECOND])
@pytest.mark.parametrize("outcome", [Accepted(), Released(), Modified(delivery_failed=True)])
def test_the_first_delivery_of_a_link_is_decided_and_the_rest_is_relayed_with_its_outcomes(
    events: Events, settled: bool, mode: ReceiverSettleMode, outcome: DeliveryState
) -> None:
    network = Network()
    consumer, producer = served(network, "q", "r")
    link = producer.sender(None, rcv=mode)
    assert decided(events, lambda: send(producer, link, message(to="q"), message(to="r"))) == 1
    payloads = [message(str(number), to="qr"[number % 2]) for number in range(6)]
    sent: list[Sent] = []
    assert decided(events, lambda: sent.extend(send(producer, link, *payloads, settled=settled))) == 0
    arrived = consumer.take(8)[2:]
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
    assert [each.outcome for each in sent] == [None if settled else outcome] * 6
    network.leave()


def test_a_reply_goes_to_a_dynamic_node_by_its_route_until_the_node_is_gone(events: Events) -> None:
    network = Network()
    requester, responder = network.client(), network.client()
    replies = requester.receiver(None, credit=50, source=Source(dynamic=True))
    assert replies.remote is not None
    assert isinstance(replies.remote.source, Source)
    address = replies.remote.source.address
    link = responder.sender(None)
    assert decided(events, lambda: send(responder, link, *[message(to=address)] * 4)) == 1
    assert len(requester.take()) == 4
    replies.detach()
    network.run()
    late = send(responder, link, message(to=address))
    assert isinstance(late[0].outcome, Rejected)
    network.leave()


def test_a_large_message_is_relayed_by_its_route_too(events: Events) -> None:
    network = Network()
    consumer, producer = served(network, "q")
    link = producer.sender(None)
    send(producer, link, message(to="q"))
    payload = message("x" * 50_000, to="q")
    assert decided(events, lambda: send(producer, link, payload, payload)) == 0
    assert [len(each.payload) for each in consumer.take()] == [len(message(to="q")), len(payload), len(payload)]
    network.leave()


@pytest.mark.parametrize(
    "payload",
    [
        b"\x00\x53\x70\x45" + encode_composite(AmqpValue(value="no properties")),
        encode_composite(Properties(subject="no to")) + encode_composite(AmqpValue(value="x")),
        message("no such", to="nowhere"),
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x73\xc0\x06\x03\x40\x40\xa1\x01q",
        b"\x00\x53\x73\xc0\x05\x03\x40\x40\xa3\x01q",
        b"\x00\x53\x73\xc0\x02\x03\x40",
        b"\x00\x53\x73\xc0",
        b"",
    ],
)
def test_what_names_no_address_of_the_table_is_decided_and_the_next_is_not(events: Events, payload: bytes) -> None:
    network = Network()
    consumer, producer = served(network, "q", "r")
    link = producer.sender(None)
    send(producer, link, message(to="q"))
    assert decided(events, lambda: send(producer, link, payload)) == 1
    assert decided(events, lambda: send(producer, link, message(to="q"))) == 0
    assert len(consumer.take()) >= 2


def test_the_first_message_to_each_of_many_addresses_is_relayed_in_its_turn(events: Events) -> None:
    network = Network()
    addresses = [f"a{number}" for number in range(200)]
    consumer, producer = served(network, *addresses)
    link = producer.sender(None)
    send(producer, link, message(to="a0"))
    bodies = [message(str(number), to=each) for number, each in enumerate(addresses)]
    sent: list[Sent] = []
    assert decided(events, lambda: sent.extend(send(producer, link, *bodies))) == 0
    arrived = consumer.take(201)[1:]
    assert [bytes(each.payload) for each in arrived] == bodies
    for each in arrived:
        each.accept()
    network.run()
    assert [each.outcome for each in sent] == [Accepted()] * 200
    network.leave()


@pytest.mark.parametrize("to", ["q", "nowhere", "away", "not/served"])
def test_an_address_is_looked_up_once_for_a_message_that_the_kernel_asks_for_in_vain(to: str) -> None:
    network = Network(AddressConfig(pattern="away", distribution=Distribution.UNAVAILABLE))
    _, producer = served(network, "here")
    context, asked = network.core.context, list[str]()
    if to == "q":
        network.client().receiver("q", credit=0)  # there is a receiver, and the message waits for its credit
    resolve = context.resolve

    def counted(incoming: IncomingLink, to: str) -> tuple[Node | None, str]:
        asked.append(to)
        return resolve(incoming, to)

    context.resolve = counted
    link = producer.sender(None)
    send(producer, link, message(to="here"))
    sent = send(producer, link, message(to=to), message(to=to))
    assert asked.count(to) == len(sent)
    assert [type(each.outcome) for each in sent] == [{"q": type(None), "away": Rejected}.get(to, Released)] * 2


def test_a_slow_receiver_of_one_address_stops_no_other_and_its_messages_stay_in_order(events: Events) -> None:
    network = Network()
    slow, fast, producer = network.client(), network.client(), network.client()
    waiting = slow.receiver("slow", credit=2)
    fast.receiver("fast", credit=1000)
    link = producer.sender(None)
    bodies = []
    for number in range(400):
        to = "slow" if number < 12 else "fast"
        bodies.append(message(str(number), to=to))
        assert link.credit > 0, number
        producer.send(link, bodies[-1])
        for each in fast.take():
            each.accept()
    assert decided(events, lambda: send(producer, link, message("last", to="fast"))) == 0
    arrived = slow.take(2)
    for _ in range(10):
        waiting.flow(1)
        network.run()
        arrived += slow.take(1)
    # The rest was released: no one took it in time.
    assert [bytes(each.payload) for each in arrived] == bodies[: len(arrived)]
    assert len(arrived) == 12
    network.leave()


def test_while_a_message_waits_for_an_address_none_overtakes_it_by_the_route(events: Events) -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", credit=2)
    link = producer.sender(None)
    bodies = [message(str(number), to="q") for number in range(6)]
    send(producer, link, *bodies[:4])
    receiver.flow(10)
    send(producer, link, *bodies[4:])
    assert [bytes(each.payload) for each in consumer.take()] == bodies
    assert decided(events, lambda: send(producer, link, message("next", to="q"))) == 0
    network.leave()


def test_an_alias_leads_where_it_points(events: Events) -> None:
    network = Network(AddressConfig(pattern="old", alias="q"))
    consumer, producer = served(network, "q")
    link = producer.sender(None)
    send(producer, link, message(to="old"))
    assert decided(events, lambda: send(producer, link, *[message(to="old")] * 3)) == 0
    assert len(consumer.take()) == 4
    network.leave()


def test_after_a_change_of_the_router_each_address_is_decided_again(events: Events) -> None:
    network = Network()
    _, producer = served(network, "q")
    link = producer.sender(None)
    send(producer, link, *[message(to="q")] * 2)
    network.core.context.kernel.epoch += 1
    assert decided(events, lambda: send(producer, link, message(to="q"))) == 1
    assert decided(events, lambda: send(producer, link, message(to="q"))) == 0
    network.leave()


def test_strict_annotations_are_checked_in_each_message(events: Events) -> None:
    network = Network()
    network.listener = ListenerConfig(url="amqp://127.0.0.1:0", idle_time_out=0.0, strict_annotations=True)
    consumer, producer = served(network, "q")
    link = producer.sender(None)
    assert decided(events, lambda: send(producer, link, *[message(to="q")] * 3)) == 3
    assert len(consumer.take()) == 3
    network.leave()


# -------------------------------------------------------------------------------------------------------------- meshes


def in_mesh() -> tuple[World, Client, Sender]:
    """Return a mesh, and an anonymous sender at A whose messages to q go to a receiver at A by their route."""
    mesh = World("AB", [("A", "B")])
    consumer, producer = mesh["A"].client(), mesh["A"].client()
    consumer.receiver("q", credit=100)
    mesh.advance(0.2)
    link = producer.sender(None)
    send(producer, link, *[message(to="q")] * 2)
    return mesh, producer, link


def test_in_a_mesh_an_address_with_receivers_here_alone_has_a_route(events: Events) -> None:
    mesh, producer, link = in_mesh()
    assert decided(events, lambda: send(producer, link, *[message(to="q")] * 3)) == 0
    requester = mesh["A"].client()
    replies = requester.receiver(None, credit=50, source=Source(dynamic=True))
    assert replies.remote is not None
    assert isinstance(replies.remote.source, Source)
    reply = message(to=replies.remote.source.address)
    assert decided(events, lambda: send(producer, link, *[reply] * 3)) == 0
    assert len(requester.take()) == 3
    mesh.leave()


def test_once_another_router_has_receivers_each_message_is_decided_and_they_get_some(events: Events) -> None:
    mesh, producer, link = in_mesh()
    other = mesh["B"].client()
    other.receiver("q", credit=100)
    mesh.advance(0.2)
    assert decided(events, lambda: send(producer, link, *[message(to="q")] * 20)) >= 20
    mesh.advance(0.2)
    assert len(other.take()) >= 5
    mesh.leave()


def test_an_address_that_each_message_makes_an_ingress_of_ends_no_routes_of_other_addresses(events: Events) -> None:
    mesh = World("AB", [("A", "B")])
    for router in "AB":
        mesh[router].client(window=1000).receiver("shared", credit=1000)
    mesh["A"].client().receiver("q", credit=100)
    mesh.advance(0.2)
    producer, other = mesh["A"].client(window=1000), mesh["A"].client(window=1000)
    link, of_shared = producer.sender(None), other.sender(None)
    send(producer, link, *[message(to="q")] * 2)
    for _ in range(5):
        send(other, of_shared, *[message(to="shared")] * 3)
        assert decided(events, lambda: send(producer, link, message(to="q"))) == 0
    mesh.leave()


@pytest.mark.parametrize("router", ["A", "B"])
def test_receivers_of_an_address_that_come_and_go_end_no_routes_of_other_addresses(events: Events, router: str) -> None:
    mesh, producer, link = in_mesh()
    client = mesh[router].client()
    for number in range(5):
        receiver = client.receiver("other", credit=10, name=f"r{number}")
        mesh.advance(0.2)
        assert decided(events, lambda: send(producer, link, message(to="q"))) == 0
        receiver.detach()
        mesh.advance(0.2)
        assert decided(events, lambda: send(producer, link, message(to="q"))) == 0
    mesh.leave()


def test_an_address_whose_node_outlives_its_receivers_is_decided_again(events: Events) -> None:
    mesh = World("AB", [("A", "B")])
    here, there, producer = mesh["A"].client(), mesh["B"].client(window=1000), mesh["A"].client(window=1000)
    receiver = here.receiver("q", credit=100)
    mesh.advance(0.2)
    of_other = there.sender("q")
    mesh.advance(0.2)
    send(there, of_other, message("held"))
    link = producer.sender(None)
    send(producer, link, *[message(to="q")] * 2)
    node = mesh["A"].core.context.nodes.find("", "q")
    assert node is not None
    receiver.detach(closed=False)  # the delivery from B stays
    there.receiver("q", credit=100)
    mesh.advance(0.2)
    here.receiver("q", credit=100, name="again")
    mesh.advance(0.2)
    assert mesh["A"].core.context.nodes.find("", "q") is node
    assert decided(events, lambda: send(producer, link, *[message(to="q")] * 20)) >= 20
    mesh.advance(0.2)
    assert len(there.take()) >= 5
    mesh.leave()


def test_once_a_sender_has_the_address_messages_that_name_it_go_the_same_way(events: Events) -> None:
    mesh, producer, link = in_mesh()
    producer.sender("q")
    assert decided(events, lambda: send(producer, link, message(to="q"))) == 1
    mesh.leave()


# -------------------------------------------------------------------------------------------------------------- bounds


def test_a_table_drops_what_was_used_least_recently() -> None:
    routes = kernel.AnonymousRoutes()
    route = kernel.FastRoute()
    routes.put(b"used", route)
    for number in range(3 * kernel.MOST_ROUTES):
        routes.put(b"%d" % number, route)
        assert routes.find(b"used") is route
        assert len(routes.recent) <= kernel.MOST_ROUTES
        assert len(routes.older) <= kernel.MOST_ROUTES
    assert routes.find(b"0") is None
    assert routes.find(b"%d" % (3 * kernel.MOST_ROUTES - 1)) is route


def test_a_table_takes_no_more_octets_than_it_may() -> None:
    routes = kernel.AnonymousRoutes()
    route = kernel.FastRoute()
    for number in range(3 * kernel.MOST_OCTETS // 2000):
        to = b"%d" % number + b"x" * 1000
        routes.put(to, route)
        assert routes.octets == sum(routes.octets_for(to, route) for to in (*routes.recent, *routes.older))
    assert kernel.MOST_OCTETS // 2 < routes.octets <= 2 * kernel.MOST_OCTETS
    routes.clear()
    assert routes.octets == 0


def test_what_a_table_takes_counts_on_the_account_of_its_sender_and_is_given_back() -> None:
    network = Network()
    addresses = [f"a{number}" for number in range(30)]
    _, producer = served(network, *addresses)
    link = producer.sender(None)
    record = next(each for each in network.core.context.connections if each.incoming)
    before = record.account.used
    send(producer, link, *[message(to=each) for each in addresses])
    assert record.account.used - before == table(network.core).octets > 30 * 100
    link.detach()
    network.run()
    assert record.account.used == before
    network.leave()


def test_what_the_kernel_drops_from_a_table_counts_no_more() -> None:
    network = Network()
    _, producer = served(network, "used", "new")
    link = producer.sender(None)
    record = next(each for each in network.core.context.connections if each.incoming)
    before = record.account.used
    send(producer, link, message(to="used"))
    routes, route = table(network.core), kernel.FastRoute()
    number = 0
    while b"used" not in routes.older or routes.recent_octets + routes.octets_for(b"used", route) <= kernel.MOST_OCTETS:
        routes.put(b"%d" % number, route)
        number += 1
    held = routes.octets
    send(producer, link, message(to="used"))  # found, so it moves: the older part is dropped
    assert routes.octets < held - kernel.MOST_OCTETS // 2
    send(producer, link, message(to="new"))
    assert record.account.used - before == routes.octets
    network.leave()


def test_a_sender_that_holds_too_much_memory_gets_no_more_routes(
    events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network()
    consumer, producer = served(network, "q")
    link = producer.sender(None)
    with monkeypatch.context() as full:
        full.setattr("amqpmesh.router.delivery.anonymous_routes.is_too_much", lambda *_: True)
        assert decided(events, lambda: send(producer, link, *[message(to="q")] * 3)) == 3
    assert decided(events, lambda: send(producer, link, *[message(to="q")] * 3)) == 0
    assert len(consumer.take()) == 6
    network.leave()


# ----------------------------------------------------------------------------------------------------- random histories

TOS: Final = ("q", "q", "few", "near", "news", "again", "nobody", None)


def _to(to: str | None, text: str) -> bytes:
    return message(text, to=to) if to is not None else message(text)


class AnonymousBench(Bench):
    """A bench whose first producer has two anonymous links, too."""

    links = (*LINKS, (6, None, 0), (7, None, 1))

    def note(self, name: str) -> None:
        """Note what each peer has got in a step, but no octets of tables, which only the fast path has."""
        super().note(name)
        for statistics in self.log[-1][2]:
            del statistics["router"]["buffered"]


class AnonymousDice(Dice):
    """The random choices of a history, most of whose messages come from anonymous senders."""

    #: The usual addresses, all addresses, and the links.
    usual: tuple[str | None, ...] = TOS[:5]
    tos: tuple[str | None, ...] = TOS
    handles = (6, 6, 7)

    def delivery(self) -> dict[str, Any]:
        """Return a delivery to send."""
        delivery = super().delivery()
        if self.random.random() < 0.85:
            delivery["handle"] = self.random.choice(self.handles)
            to = self.random.choice(self.usual if self.random.random() > self.odd else self.tos)
            text = self.usually("x", "x" * 300, "x" * 2000)
            delivery["payload"] = self.usually(_to(to, text), delivery["payload"])
        return delivery


SEEDS: Final = st.integers(0, 2**32 - 1)
ODD: Final = st.sampled_from([0.02, 0.1, 0.3])


@pytest.mark.parametrize("at_once", [False, True])
@settings(max_examples=40)
@given(SEEDS, st.integers(0, 40), ODD)
def test_one_router_relays_what_it_would_have_decided(at_once: bool, seed: int, count: int, odd: float) -> None:
    dice = AnonymousDice(seed, odd)
    world, steps = dice.world(at_once=at_once), dice.steps(count, at_once=at_once)
    check(world, steps, mesh=False, bench=AnonymousBench)


def test_in_these_histories_less_is_decided() -> None:
    counts = {True: 0, False: 0}
    for seed in (1, 4):
        dice = AnonymousDice(seed, 0.0)
        world, steps = dice.world(at_once=True), dice.steps(60, at_once=True)
        world["consumers"] = [(2, 2), (3, 3)]
        for alone in counts:
            counts[alone] += played(world, steps, mesh=False, alone=alone, bench=AnonymousBench)[1]
    # Some messages wait, and many come in several frames: these are decided in any case.
    assert counts[True] < 0.85 * counts[False]
