"""Messages that a receiver returned as undeliverable there: other receivers at its router get them (§3.4.5)."""

from __future__ import annotations

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.composite import decode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Released
from amqpmesh.router.amqp.standard.messaging import AmqpValue, Header
from amqpmesh.router.config.file import AddressConfig
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Arrival, Client, Network, Sent, message

LINE = [("A", "B"), ("B", "C")]
FIRST, SECOND = ReceiverSettleMode.FIRST, ReceiverSettleMode.SECOND
AGAIN = AddressConfig(pattern="q", redeliver=True, attempts=9)
NOT_HERE = Modified(undeliverable_here=True, message_annotations={Symbol("x-opt-why"): "ill"})


def receivers(
    mesh: World, *where: str, address: str = "q", credit: int = 100, rcv: ReceiverSettleMode = FIRST
) -> list[Client]:
    """Attach a client with a receiver to each of these routers."""
    clients = [mesh[router].client() for router in where]
    for client in clients:
        client.receiver(address, credit=credit, rcv=rcv)
    mesh.advance(0.5)
    return clients


def send(mesh: World, address: str = "q", rcv: ReceiverSettleMode = FIRST) -> Sent:
    """Send a message at A."""
    client = mesh["A"].client()
    link = client.sender(address, rcv=rcv)
    mesh.advance(0.5)
    sent = client.send(link, message("hello", header=False))
    mesh.run()
    return sent


def only(clients: list[Client]) -> tuple[Client, Arrival]:
    """Return the only message that has come to these clients, and its client."""
    ((client, arrival),) = [(client, arrival) for client in clients for arrival in client.take()]
    return client, arrival


def give_back(mesh: World, clients: list[Client], state: Modified = NOT_HERE) -> list[Client]:
    """Let the client that has the message return it. Returns: the other clients."""
    client, arrival = only(clients)
    arrival.dispose(state, settled=True)
    mesh.advance(0.1)
    return [each for each in clients if each is not client]


@pytest.mark.parametrize("rcv", [FIRST, SECOND])
@pytest.mark.parametrize("where", ["A", "B", "C"])
def test_each_receiver_at_a_router_gives_it_back_and_the_last_of_them_may_have_it(
    where: str, rcv: ReceiverSettleMode
) -> None:
    mesh = World("ABC", LINE, AGAIN)
    left = receivers(mesh, *(where * 4), rcv=rcv)
    sent = send(mesh, rcv=rcv)
    for _ in range(3):
        left = give_back(mesh, left)
        assert sent.said == []
    _, arrival = only(left)
    header, at = decode_composite(Header, bytes(arrival.payload))
    assert header == Header(first_acquirer=False)
    assert b"x-opt-mesh-" not in bytes(arrival.payload)
    assert (
        decode_composite(AmqpValue, bytes(arrival.payload)[-len(message("hello", header=False)) :])[0].value == "hello"
    )
    assert at > 0
    arrival.accept()
    mesh.run()
    assert sent.outcome == Accepted()
    mesh.leave()


def test_once_all_receivers_of_a_router_have_given_it_back_others_have_it_and_then_its_sender() -> None:
    mesh = World("ABC", LINE, AGAIN)
    left = receivers(mesh, "C", "C", "B")
    sent = send(mesh)
    for _ in range(2):
        left = give_back(mesh, left)
        assert sent.said == []
    assert give_back(mesh, left) == []
    assert sent.said == [(NOT_HERE, True)], "and nothing of what routers say among themselves"
    mesh.leave()


@pytest.mark.parametrize("routers", ["A", "ABC"])
def test_it_waits_for_the_credit_of_another_receiver_there_and_goes_on_if_that_one_leaves(routers: str) -> None:
    """Only the ingress router needs `redeliver`."""
    mesh = World("ABC", LINE, own=dict.fromkeys(routers, AGAIN))
    (first,) = receivers(mesh, "C")
    (other,) = receivers(mesh, "C", credit=0)
    sent = send(mesh)
    give_back(mesh, [first])
    assert sent.said == []
    assert first.take() == other.take() == []
    (late,) = receivers(mesh, "B")
    assert late.take() == [], "it waits at C"
    other.close()
    mesh.advance(0.5)
    assert first.take() == []
    late.take(1)[0].accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


def test_that_nobody_there_may_have_it_is_no_try() -> None:
    mesh = World("ABC", LINE, AddressConfig(pattern="q", redeliver=True, attempts=3))
    first, second = receivers(mesh, "C", "C")
    sent = send(mesh)
    (other,) = give_back(mesh, [first, second])
    (arrival,) = other.take(1)
    (late,) = receivers(mesh, "B")
    other.lose()
    mesh.advance(0.5)
    assert first.take() == []
    late.take(1)[0].accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)], "the third try; that C has only the first receiver was none"
    assert arrival.said == []
    mesh.leave()


def test_receivers_of_a_name_that_are_attached_elsewhere_are_told_apart() -> None:
    mesh = World("ABC", LINE, AddressConfig(pattern="q", redeliver=True, attempts=9))
    left = receivers(mesh, "C", "C", address="q@B")
    sent = send(mesh, "q@B")
    left = give_back(mesh, left)
    assert sent.said == []
    left[0].take(1)[0].accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


def test_more_receivers_than_a_message_lists_cost_it_their_router() -> None:
    mesh = World("AB", LINE[:1], AddressConfig(pattern="q", redeliver=True, attempts=99))
    left = receivers(mesh, *("B" * 20))
    sent = send(mesh)
    had = 0
    while not sent.said:
        left = give_back(mesh, left)
        had += 1
    assert had == 17
    assert sent.outcome == NOT_HERE
    mesh.leave()


@pytest.mark.parametrize("rcv", [FIRST, SECOND])
@pytest.mark.parametrize("distribution", [Distribution.BALANCED, Distribution.MULTICAST])
def test_without_redelivery_the_outcome_reaches_the_sender_as_it_was_said(
    distribution: Distribution, rcv: ReceiverSettleMode
) -> None:
    mesh = World("ABC", LINE, AddressConfig(pattern="q", distribution=distribution))
    one, two = receivers(mesh, "C", "C", rcv=rcv)
    sent = send(mesh, rcv=rcv)
    arrivals = [*one.take(), *two.take()]
    for arrival in arrivals:
        arrival.dispose(NOT_HERE, settled=rcv is FIRST)
    mesh.run()
    assert sent.said == [(NOT_HERE, rcv is FIRST)]
    sent.dispose(NOT_HERE, settled=True)
    mesh.run()
    assert [arrival.said for arrival in arrivals] == [[] if rcv is FIRST else [(NOT_HERE, True)]] * len(arrivals)
    mesh.leave()


@pytest.mark.parametrize("payload", [b"no AMQP at all", message(ttl=5000)], ids=["no AMQP", "like AMQP"])
def test_a_message_of_another_format_is_sent_again_as_it_came_to_others_and_at_last_to_another_router(
    payload: bytes,
) -> None:
    mesh = World("AB", LINE[:1], AGAIN)
    left = receivers(mesh, "A", "A", "B", "B")
    client = mesh["A"].client()
    link = client.sender("q")
    mesh.advance(0.5)
    sent = client.send(link, payload, message_format=7)
    had = 0
    while not sent.said:
        client, arrival = only(left)
        assert (bytes(arrival.payload), arrival.delivery.message_format) == (payload, 7)
        left.remove(client)
        had += 1
        mesh.advance(0.1)
        arrival.dispose(NOT_HERE, settled=True)
        mesh.advance(0.1)
    assert had == 3, "it cannot list which receivers of B it is not for"
    assert sent.said == [(NOT_HERE, True)]
    mesh.leave()


def test_a_receiver_excludes_no_other_by_annotations_of_the_mesh() -> None:
    mesh = World("ABC", LINE, AGAIN)
    first, second = receivers(mesh, "C", "C")
    sent = send(mesh)
    forged = Modified(undeliverable_here=True, message_annotations={Symbol("x-opt-mesh-by"): "C"})
    (other,) = give_back(mesh, [first, second], forged)
    assert sent.said == []
    other.take(1)[0].accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


@pytest.mark.parametrize("routers", ["AA", "CC", "AC"])
def test_each_receiver_of_a_multicast_in_mode_second_is_settled_with_what_it_said(routers: str) -> None:
    mesh = World("ABC", LINE, AddressConfig(pattern="q", distribution=Distribution.MULTICAST))
    clients = receivers(mesh, *routers, rcv=SECOND)
    sent = send(mesh, rcv=SECOND)
    (one,), (two,) = (client.take(1) for client in clients)
    one.dispose(Released(), settled=False)
    two.dispose(Accepted(), settled=False)
    mesh.run()
    assert sent.said == [(Accepted(), False)]
    sent.dispose(Accepted(), settled=True)
    mesh.run()
    assert (one.said, two.said) == ([(Released(), True)], [(Accepted(), True)])
    mesh.leave()


def test_an_outcome_with_as_many_values_as_may_be_ends_no_session_between_routers() -> None:
    mesh = World("AB", [("A", "B")], AGAIN)
    clients = receivers(mesh, "B", "B")
    sessions = [each for record in mesh["A"].core.context.connections for each in record.engine.channels.sessions]
    for values in range(232, 256):  # the router adds the name of the receiver that returned it
        sent = send(mesh)
        many = Modified(undeliverable_here=True, message_annotations={Symbol("x-opt-many"): [None] * values})
        only(give_back(mesh, clients, many))[1].accept()
        mesh.advance(0.1)
        assert sent.outcome == Accepted()
    assert all(each.can_send for each in sessions if each.connection.context.role == "mesh")
    mesh.leave()


def test_an_excluded_consumer_is_not_blocked_by_what_it_may_not_have() -> None:
    network = Network(AddressConfig(pattern="q", redeliver=True, attempts=9))
    a, b, producer = network.client(), network.client(), network.client()
    a.receiver("q", credit=10)
    link = producer.sender("q")
    producer.send(link)
    b.receiver("q", credit=0)
    a.take(1)[0].dispose(Modified(undeliverable_here=True), settled=True)
    network.run()
    producer.send(link)
    network.advance(5)
    assert len(a.take()) == 1, "head-of-line: a has credit, the second message may go to it"
