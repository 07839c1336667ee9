"""Messages of anonymous senders to receivers at other routers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product

import pytest

from amqpmesh.router.amqp.codec.composite import decode_composite, encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.link import Sender
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Modified, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import DeliveryAnnotations, Header
from amqpmesh.router.config.file import AddressConfig, MeshConfig
from tests.support.worlds.meshes import World
from tests.support.worlds.network import OUTCOMES, Client, Sent, message

LINE = [("A", "B"), ("B", "C")]
PLACES = ["A", "B", "C"]
"""OnDemandConnections of receivers for a sender at A: the same router, the next one, and the one after that."""

AGAIN = AddressConfig(pattern="q", redeliver=True, attempts=3)
MORTAL = AddressConfig(pattern="q", redeliver=True, attempts=2, dead_letter="dead")
FAILED = Modified(delivery_failed=True)
UNDELIVERABLE = Modified(delivery_failed=True, undeliverable_here=True)
SOON_IDLE = MeshConfig(insecure=True, lane_idle=2.0)
"""Lanes end soon after their last message: at the end of each test a mesh waits for that."""
NOT_ACCEPTED: dict[str, DeliveryState] = {
    **{name: outcome for name, outcome in OUTCOMES.items() if name != "accepted"},
    "modified, not failed": Modified(),
    "undeliverable here": Modified(undeliverable_here=True),
    "failed, and undeliverable here": UNDELIVERABLE,
}
NICK = AddressConfig(pattern="nick", alias="q")
WAYS_TO_SEND = ["null target", "container", "name at a container", "alias"]


@dataclass
class Way:
    """A way to send messages for q from A: the link, and the `to` of its messages."""

    link: Sender
    client: Client
    to: str | None

    def send(self, body: str = "hello", *, ttl: int | None = None) -> Sent:
        """Send a message."""
        return self.client.send(self.link, message(body, to=self.to, ttl=ttl))


def attached(mesh: World, place: str, way: str) -> Way:
    """Return an anonymous sender at A. Args: place: of the receiver. way: one of `WAYS_TO_SEND`."""
    client = mesh["A"].client()
    link = client.sender(f"@{place}" if way == "container" else None)
    return Way(link, client, {"name at a container": f"q@{place}", "alias": "nick"}.get(way, "q"))


def named(place: str, way: str) -> str:
    """Return the address that those messages name."""
    return {"null target": "q", "alias": "nick"}.get(way, f"q@{place}")


def attached_by_name(mesh: World, address: str) -> Way:
    """Return a sender at A that is attached to the address of its messages."""
    client = mesh["A"].client()
    return Way(client.sender(address), client, None)


def mortal(way: str, place: str, keeps: str) -> tuple[World, Client, Client, Way]:
    """Return a mesh with dead letters, a receiver at `place`, one of dead letters at `keeps`, and a sender at A."""
    mesh = World("ABC", LINE, MORTAL, NICK, mesh=SOON_IDLE)
    consumer, keeper = mesh[place].client(), mesh[keeps].client()
    consumer.receiver("q", credit=100)
    keeper.receiver("dead", credit=100)
    mesh.advance(0.2)
    return mesh, consumer, keeper, attached(mesh, place, way)


def header(payload: bytearray) -> Header:
    return decode_composite(Header, bytes(payload))[0]


def tries(config: AddressConfig, place: str, outcome: str, attach: Callable[[World], Way]) -> object:
    """Return the results of a message that is not accepted: at both receivers, for the sender, and the dead letter."""
    mesh = World("ABC", LINE, config, NICK, mesh=SOON_IDLE)
    first, keeper = mesh[place].client(), mesh["B"].client()
    first.receiver("q", credit=100)
    keeper.receiver("dead", credit=100)
    mesh.advance(0.2)
    sender = attach(mesh)
    mesh.advance(0.2)
    sent = sender.send()
    mesh.advance(0.2)
    seen: list[object] = []
    other: Client | None = None
    for _ in range(8):
        came = [(client, arrival) for client in (first, other) if client is not None for arrival in client.take()]
        if not came:
            break
        ((client, arrival),) = came
        about = header(arrival.payload)
        seen.append((client is first, about.delivery_count, about.first_acquirer))
        if other is None:
            other = mesh["B" if place != "B" else "C"].client()
            other.receiver("q", credit=100)
            mesh.advance(0.2)
        arrival.dispose(NOT_ACCEPTED[outcome], settled=True)
        mesh.advance(0.2)
    letters = [(header(each.payload).delivery_count, each.accept()) for each in keeper.take()]
    mesh.run()
    said = sent.said
    mesh.leave()
    return seen, said, letters


@cache
def tries_by_name(config: AddressConfig, place: str, outcome: str, address: str) -> object:
    """Return what `tries` does of a sender to the address; several ways to send name the same."""
    return tries(config, place, outcome, lambda mesh: attached_by_name(mesh, address))


@pytest.mark.parametrize(("config", "way", "place"), list(product((AGAIN, MORTAL), WAYS_TO_SEND, PLACES)))
@pytest.mark.parametrize("outcome", NOT_ACCEPTED)
def test_it_is_tried_again_as_often_and_with_the_same_receivers_as_the_message_of_a_sender_to_the_address(
    outcome: str, config: AddressConfig, way: str, place: str
) -> None:
    tried = tries(config, place, outcome, lambda mesh: attached(mesh, place, way))
    assert tried == tries_by_name(config, place, outcome, named(place, way))


@pytest.mark.parametrize(("way", "place"), list(product(WAYS_TO_SEND, PLACES)))
@pytest.mark.parametrize("outcome", ["released", "modified", "modified, not failed"])
def test_it_is_tried_again_until_it_is_a_dead_letter(outcome: str, way: str, place: str) -> None:
    mesh, consumer, keeper, sender = mortal(way, place, "C")
    sent = sender.send()
    counts = []
    for _ in range(2):
        mesh.advance(0.2)
        assert sent.said == []
        (arrival,) = consumer.take(1)
        counts.append(header(arrival.payload).delivery_count)
        arrival.dispose(NOT_ACCEPTED[outcome], settled=True)
    mesh.advance(0.2)
    failed = outcome == "modified"
    assert counts == [0, int(failed)]
    assert sent.said == [(UNDELIVERABLE, True)]
    (letter,) = keeper.take(1)
    assert header(letter.payload).delivery_count == 2 * failed
    letter.accept()
    mesh.leave()


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize(("way", "place"), list(product(WAYS_TO_SEND, PLACES)))
@pytest.mark.parametrize("outcome", NOT_ACCEPTED)
def test_another_try_may_be_accepted_and_then_nothing_was_wrong(
    outcome: str, way: str, place: str, second: bool
) -> None:
    mesh = World("ABC", LINE, AGAIN, NICK, mesh=SOON_IDLE)
    consumer = mesh[place].client()
    consumer.receiver("q", credit=100, rcv=ReceiverSettleMode.SECOND if second else ReceiverSettleMode.FIRST)
    mesh.advance(0.2)
    sender = attached(mesh, place, way)
    sent = sender.send()
    mesh.advance(0.2)
    consumer.take(1)[0].dispose(NOT_ACCEPTED[outcome], settled=True)
    mesh.advance(0.2)
    was = NOT_ACCEPTED[outcome]
    if isinstance(was, Rejected) or (isinstance(was, Modified) and was.undeliverable_here):
        consumer.take(0)
        assert sent.said == [(was, True)]
    else:
        consumer.take(1)[0].accept()
        mesh.run()
        assert sent.said == [(Accepted(), True)]
    mesh.leave()


@pytest.mark.parametrize("way", WAYS_TO_SEND)
def test_a_receiver_may_take_longer_than_lanes_are_kept_idle(way: str) -> None:
    mesh = World("ABC", LINE, AGAIN, NICK, mesh=SOON_IDLE)
    consumer = mesh["C"].client()
    consumer.receiver("q", credit=100)
    mesh.advance(0.2)
    sender = attached(mesh, "C", way)
    sent = sender.send()
    for _ in range(2):
        mesh.advance(30.0)
        consumer.take(1)[0].dispose(Released(), settled=True)
    mesh.advance(30.0)
    consumer.take(1)[0].dispose(Modified(undeliverable_here=True), settled=True)
    mesh.advance(0.2)
    consumer.take(0)
    assert sent.said == [(Modified(undeliverable_here=True), True)]
    mesh.leave()


def test_a_router_where_it_is_undeliverable_does_not_get_it_again_however_long_that_took_to_say() -> None:
    mesh = World("ABC", LINE, AGAIN, NICK, mesh=SOON_IDLE)
    consumer, late = mesh["C"].client(), mesh["B"].client()
    consumer.receiver("q", credit=100)
    mesh.advance(0.2)
    sent = attached(mesh, "C", "null target").send()
    mesh.advance(30.0)
    (arrival,) = consumer.take(1)
    late.receiver("q", credit=100)
    mesh.advance(30.0)
    arrival.dispose(Modified(undeliverable_here=True), settled=True)
    mesh.advance(0.2)
    consumer.take(0)
    late.take(1)[0].accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


@pytest.mark.parametrize("way", WAYS_TO_SEND)
@pytest.mark.parametrize("back", [True, False])
def test_a_receiver_s_router_that_is_lost_is_waited_for_with_what_is_to_be_tried_again(way: str, back: bool) -> None:
    heard = []
    for by_name in (True, False):
        mesh = World("ABC", LINE, AGAIN, NICK)
        consumer = mesh["C"].client()
        consumer.receiver("q", credit=100)
        mesh.advance(0.2)
        sender = attached_by_name(mesh, named("C", way)) if by_name else attached(mesh, "C", way)
        mesh.advance(0.2)
        sent = sender.send()
        mesh.advance(0.2)
        (_,) = consumer.take(1)
        mesh.cut(*mesh.between("B", "C"))
        mesh.advance(0.1)
        if back:
            mesh.join("B", "C")
            mesh.advance(1.0)
            consumer.take(1)[0].accept()
        mesh.advance(5.0)
        heard.append(sent.said)
        mesh.leave()
    assert heard == [[(Accepted() if back else FAILED, True)]] * 2


@pytest.mark.parametrize(("way", "place"), list(product(WAYS_TO_SEND, PLACES)))
def test_it_ends_with_its_sender_though_an_outcome_is_still_to_come(way: str, place: str) -> None:
    mesh, consumer, keeper, sender = mortal(way, place, "B")
    sender.send()
    mesh.advance(0.2)
    (arrival,) = consumer.take(1)
    sender.link.detach()
    mesh.advance(0.2)
    assert mesh["A"].core.context.budget.used == 0, "nothing is kept of it"
    arrival.dispose(FAILED, settled=True)
    mesh.advance(0.2)
    consumer.take(0)
    keeper.take(0)
    mesh.leave()


@pytest.mark.parametrize(("way", "place"), list(product(WAYS_TO_SEND, PLACES)))
@pytest.mark.parametrize("patience", [0.3, 3.0])
@pytest.mark.parametrize("redeliver", [False, True])
def test_it_waits_for_credit_as_long_as_its_address_says(
    way: str, place: str, patience: float, redeliver: bool
) -> None:
    config = AddressConfig(pattern="q", anonymous_wait=patience, redeliver=redeliver, dead_letter="dead")
    mesh = World("ABC", LINE, config, NICK)
    mesh[place].client().receiver("q", credit=0)
    keeper = mesh["B"].client()
    keeper.receiver("dead", credit=100)
    mesh.advance(0.2)
    sent = attached(mesh, place, way).send()
    mesh.advance(patience - 0.1)
    assert sent.said == []
    mesh.advance(0.2)
    assert sent.said == [(Released(), True)]
    keeper.take(0)
    mesh.leave()


@pytest.mark.parametrize("way", WAYS_TO_SEND)
@pytest.mark.parametrize("patience", [0.3, 1.6])
@pytest.mark.parametrize("redeliver", [False, True])
def test_it_waits_as_long_for_a_neighbour_that_does_not_answer(way: str, patience: float, redeliver: bool) -> None:
    mesh = World("ABC", LINE, AddressConfig(pattern="q", anonymous_wait=patience, redeliver=redeliver), NICK)
    consumer = mesh["C"].client()
    consumer.receiver("q", credit=100)
    mesh.advance(0.2)
    (wire,) = mesh.between("A", "B")
    wire.frozen = True
    sent = attached(mesh, "C", way).send()
    mesh.advance(patience - 0.1)
    assert sent.said == []
    mesh.advance(0.2)
    assert sent.said == [(Released(), True)]
    wire.frozen = False
    mesh.advance(1.0)
    consumer.take(0)
    mesh.leave()


@pytest.mark.parametrize(("way", "place"), list(product(WAYS_TO_SEND, PLACES)))
@pytest.mark.parametrize("redeliver", [False, True])
def test_a_message_that_expires_before_it_has_credit_is_a_dead_letter(way: str, place: str, redeliver: bool) -> None:
    config = AddressConfig(pattern="q", dead_letter="dead", redeliver=redeliver, anonymous_wait=60.0)
    mesh = World("ABC", LINE, config, NICK, mesh=SOON_IDLE)
    mesh[place].client().receiver("q", credit=0)
    keeper = mesh["B"].client()
    keeper.receiver("dead", credit=100)
    mesh.advance(0.2)
    sent = attached(mesh, place, way).send("late", ttl=500)
    mesh.advance(1.0)
    assert sent.said == [(UNDELIVERABLE, True)]
    keeper.take(1)[0].accept()
    mesh.leave()


@pytest.mark.parametrize("frozen", [("A", "B"), ("B", "C")])
@pytest.mark.parametrize("way", WAYS_TO_SEND)
@pytest.mark.parametrize("redeliver", [False, True])
def test_a_message_that_expires_at_a_router_on_its_way_is_a_dead_letter(
    way: str, frozen: tuple[str, str], redeliver: bool
) -> None:
    config = AddressConfig(pattern="q", dead_letter="dead", redeliver=redeliver, anonymous_wait=60.0)
    mesh = World("ABC", LINE, config, NICK, mesh=SOON_IDLE)
    consumer = mesh["C"].client()
    consumer.receiver("q", credit=100)
    keepers = [mesh[router].client() for router in "AB"]
    for keeper in keepers:
        keeper.receiver("dead", credit=100)
    mesh.advance(0.2)
    (wire,) = mesh.between(*frozen)
    wire.frozen = True
    sender = attached(mesh, "C", way)
    sent = sender.send("late", ttl=500)
    mesh.advance(1.0)
    assert sent.said == [(UNDELIVERABLE, True)]
    (letter,) = [letter for keeper in keepers for letter in keeper.take()]
    assert bytes(letter.payload) == message("late", to=sender.to)
    letter.accept()
    wire.frozen = False
    mesh.advance(1.0)
    consumer.take(0)
    mesh.leave()


@pytest.mark.parametrize("outcome", ["gone", "undeliverable here"])
def test_it_is_tried_with_another_worker_of_the_router_that_it_is_for(outcome: str) -> None:
    mesh = World(["A.1", "A.2", "B"], [("A.1", "A.2"), ("A.1", "B"), ("A.2", "B")], AGAIN)
    consumers = [mesh[worker].client() for worker in ("A.1", "A.2")]
    for consumer in consumers:
        consumer.receiver("q", credit=100)
    mesh.advance(0.2)
    client = mesh["B"].client()
    sent = client.send(client.sender("@A"), message(to="q"))
    mesh.advance(0.2)
    ((first, arrival),) = [(consumer, arrival) for consumer in consumers for arrival in consumer.take()]
    if outcome == "gone":
        first.lose()
    else:
        arrival.dispose(NOT_ACCEPTED[outcome], settled=True)
    mesh.advance(0.2)
    (other,) = [consumer for consumer in consumers if consumer is not first]
    other.take(1)[0].accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


@pytest.mark.parametrize("redeliver", [False, True])
def test_a_message_for_a_router_without_a_path_is_released_and_counted(redeliver: bool) -> None:
    mesh = World("ABC", LINE, AddressConfig(pattern="q", redeliver=redeliver))
    mesh["C"].client().receiver("q", credit=20)
    mesh.advance(0.2)
    mesh.cut(*mesh.between("B", "C"))
    mesh.advance(5.0)
    sent = attached(mesh, "C", "name at a container").send()
    mesh.advance(0.2)
    assert sent.said == [(Released(), True)]
    assert mesh["A"].core.context.no_path == 1
    assert mesh["A"].mesh.routes.is_empty
    mesh.leave()


def test_a_draining_receiver_is_answered_at_once_though_a_message_may_return_to_its_ingress() -> None:
    mesh = World("ABC", LINE, AGAIN)
    consumer = mesh["C"].client()
    receiver = consumer.receiver("q", credit=20)
    mesh.advance(0.2)
    sent = attached(mesh, "C", "null target").send()
    mesh.advance(0.2)
    (arrival,) = consumer.take(1)
    receiver.flow(19, drain=True)
    mesh.run()
    assert mesh.advance_until(lambda: receiver.credit == 0, 1.0) < 0.05
    arrival.dispose(Released(), settled=True)
    receiver.flow(1)
    mesh.advance(0.2)
    consumer.take(1)[0].accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


def test_a_message_too_large_to_be_kept_has_its_first_outcome_and_leaves_no_ingress_behind() -> None:
    mesh = World("ABC", LINE, AddressConfig(pattern="q", redeliver=True, redeliver_max=100))
    consumer = mesh["C"].client()
    consumer.receiver("q", credit=20)
    mesh.advance(0.2)
    sent = attached(mesh, "C", "null target").send("x" * 200)
    mesh.advance(0.2)
    assert len(mesh["A"].core.context.nodes) == 0
    consumer.take(1)[0].dispose(Released(), settled=True)
    mesh.advance(0.2)
    consumer.take(0)
    assert sent.said == [(Released(), True)]
    mesh.leave()


@pytest.mark.parametrize("config", [AddressConfig(pattern="many/#"), AddressConfig(pattern="many/#", redeliver=True)])
@pytest.mark.parametrize("served", [False, True])
def test_nothing_is_left_of_many_addresses_that_were_named_once(config: AddressConfig, served: bool) -> None:
    mesh = World("ABC", LINE, config, NICK)
    count = 200 if served else 10_000
    consumer, client = mesh["C"].client(window=1000), mesh["A"].client(window=1000)
    if served:
        for number in range(count):
            consumer.receiver(f"many/{number}", credit=10)
    mesh.advance(1.0)
    link = client.sender(None)
    for number in range(count):
        sent = client.send(link, message(to=f"many/{number}"))
        if served:
            mesh.advance(0.01)
            (arrival,) = consumer.take(1)
            arrival.accept()
            mesh.run()
        assert sent.said == [(Accepted() if served else Released(), True)]
    mesh.advance(1.0)
    assert len(mesh["A"].core.context.nodes) == 0
    assert mesh["A"].mesh.routes.nodes() == [] or served
    mesh.advance(20.0)
    assert mesh["A"].mesh.routes.is_empty
    mesh.advance(20.0)  # the lane beyond is idle since that one has ended
    link.detach()  # its routes by address stay until then
    mesh.run()
    mesh.check_ledgers()
    mesh.leave()


def test_annotations_of_its_sender_leave_room_for_what_routers_add() -> None:
    mesh = World("AB", [("A", "B")])
    receiver, client = mesh["B"].client(), mesh["A"].client()
    receiver.receiver("q", credit=100)
    mesh.advance(0.5)
    link = client.sender(None)
    for values in range(240, 260):
        annotations = DeliveryAnnotations(value={Symbol("x-opt-many"): [None] * values})
        sent = client.send(link, encode_composite(annotations) + message("hello", to="q@B", header=False))
        mesh.advance(0.1)
        receiver.take(1)[0].accept()
        mesh.advance(0.1)
        assert sent.outcome == Accepted()
    mesh.leave()
