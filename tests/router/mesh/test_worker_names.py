"""Names of a router with workers: `name@A` is at all of `A.1`, `A.2`, ..."""

from __future__ import annotations

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.link import Link
from amqpmesh.router.amqp.standard.definitions import Error
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Released
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.statistics.common import Direction, Reason
from tests.support.worlds.meshes import World, deliver, records, with_receivers
from tests.support.worlds.network import Client, message

ROUTERS = ("A.1", "A.2", "B")
#: Links where B is a neighbour of one of the two workers.
EDGES = [("A.1", "A.2"), ("A.1", "B")]


def site(*addresses: AddressConfig) -> tuple[World, dict[str, Client]]:
    """Return a router of two workers, and another one, each with a client that receives from q."""
    return with_receivers(ROUTERS, EDGES, *addresses)


@pytest.mark.parametrize("at", ROUTERS)
@pytest.mark.parametrize("by", ["link", "to", "container"])
def test_what_is_sent_to_a_name_of_theirs_reaches_the_receivers_of_each_and_no_others(at: str, by: str) -> None:
    mesh, receivers = site()
    producer = mesh[at].client()
    link = producer.sender({"link": "q@A", "to": None, "container": "@A"}[by])
    sends = []
    for _ in range(8):
        mesh.advance_until(lambda: link.credit > 0, 1.0)
        sends.append(producer.send(link, message(to="q@A")))
        mesh.advance(0.05)
    assert deliver(mesh, receivers, sends) == {"A.1", "A.2"}
    mesh.leave()


@pytest.mark.parametrize("at", ROUTERS)
def test_one_of_them_is_a_router_like_any_other(at: str) -> None:
    mesh, receivers = site()
    producer = mesh[at].client()
    link = producer.sender("q@A.2")
    mesh.advance_until(lambda: link.credit > 0, 1.0)
    assert deliver(mesh, receivers, [producer.send(link) for _ in range(4)]) == {"A.2"}
    mesh.leave()


@pytest.mark.parametrize("at", ROUTERS)
def test_a_sender_has_the_credit_of_their_receivers_as_they_come_and_go(at: str) -> None:
    mesh = World(ROUTERS, EDGES)
    producer = mesh[at].client()
    link = producer.sender("q@A")
    mesh.advance(1.0)
    assert link.is_attached
    assert link.credit == 0
    for router in ("A.1", "A.2", "A.1"):
        consumer = mesh[router].client()
        receiver = consumer.receiver("q", credit=10)
        mesh.advance_until(lambda: link.credit > 0, 2.0)
        sent = producer.send(link)
        mesh.run()
        (arrival,) = consumer.take(1)
        arrival.accept()
        mesh.run()
        assert sent.outcome == Accepted()
        receiver.detach()
        mesh.advance_until(lambda: link.credit == 0, 5.0)
        assert link.credit == 0
    mesh.leave()


@pytest.mark.parametrize("at", ROUTERS)
@pytest.mark.parametrize("form", ["q", "q@A"])
@pytest.mark.parametrize("from_", ["A.1", "A.2"])
def test_a_receiver_of_a_name_of_theirs_has_what_comes_to_any_of_them(at: str, form: str, from_: str) -> None:
    mesh = World(ROUTERS, EDGES)
    consumer, producer = mesh[at].client(), mesh[from_].client()
    consumer.receiver("q@A", credit=10)
    mesh.advance(0.5)
    link = producer.sender(form)
    mesh.advance_until(lambda: link.credit > 0, 1.0)
    sends = [producer.send(link) for _ in range(3)]
    mesh.advance(0.1)
    for arrival in consumer.take(3):
        arrival.accept()
    mesh.run()
    assert [sent.outcome for sent in sends] == [Accepted()] * 3
    mesh.leave()


def test_a_neighbour_that_ends_the_sessions_of_two_workers_lanes_is_given_both_again() -> None:
    mesh = World(ROUTERS, EDGES)
    consumer = mesh["B"].client()
    consumer.receiver("q@A", credit=10)
    mesh.advance(0.5)
    (here,) = (record for record in records(mesh, "A.1") if record.peer.container_id == "B")
    (there,) = records(mesh, "B")
    lanes = list(here.outgoing)
    assert len({each.lane for each in lanes}) == 1, "A.2 has the way to B by A.1"
    assert len(lanes) == 2
    for lane in lanes:
        there.engine.channels.incoming[lane.endpoint.session.flow_state.channel].end()
    there.engine.flow_state.on_wake()
    mesh.run()
    assert not here.outgoing
    mesh.advance(0.5)
    for router in ("A.1", "A.2"):
        producer = mesh[router].client()
        link = producer.sender(f"q@{router}")
        mesh.advance_until(lambda link=link: link.credit > 0, 2.0)  # type: ignore[misc]  # of this turn
        assert deliver(mesh, {"B": consumer}, [producer.send(link)]) == {"B"}


def test_a_receiver_elsewhere_shares_with_theirs() -> None:
    mesh = World(ROUTERS, EDGES)
    receivers = {router: mesh[router].client() for router in ROUTERS}
    for router, client in receivers.items():
        client.receiver("q" if router != "B" else "q@A", credit=10)
    mesh.advance(0.5)
    producer = mesh["A.2"].client()
    link = producer.sender("q@A")
    sends = []
    for _ in range(12):
        mesh.advance_until(lambda: link.credit > 0, 1.0)
        sends.append(producer.send(link))
        mesh.advance(0.05)
    assert deliver(mesh, receivers, sends) == set(ROUTERS)
    mesh.leave()


@pytest.mark.parametrize("by", ["link", "to"])
def test_a_name_with_an_at_is_theirs_too(by: str) -> None:
    mesh = World(ROUTERS, EDGES)
    consumer, producer = mesh["A.2"].client(), mesh["B"].client()
    link = producer.sender("joe@example.com@A" if by == "link" else None)
    mesh.advance(0.5)
    consumer.receiver("joe@example.com@A", credit=5)
    mesh.advance(0.5)
    assert link.credit > 0
    sent = producer.send(link, message(to="joe@example.com@A"))
    mesh.run()
    (arrival,) = consumer.take(1)
    arrival.accept()
    mesh.run()
    assert sent.outcome == Accepted()
    mesh.leave()


@pytest.mark.parametrize("at", ROUTERS)
def test_nothing_is_sent_to_a_name_of_theirs_that_nobody_receives_from(at: str) -> None:
    mesh = World(ROUTERS, EDGES)
    mesh["B"].client().receiver("q", credit=10)
    producer = mesh[at].client()
    sent = producer.send(producer.sender(None), message(to="q@A"))
    mesh.advance(3.0)
    assert sent.outcome == Released()
    mesh.leave()


def condition(client: Client, link: Link) -> str | None:
    error = client.detached.get(link)
    assert error is None or isinstance(error, Error)
    return None if error is None else str(error.condition)


@pytest.mark.parametrize(("address", "expected"), [("q@C", "amqp:not-found"), ("q@A.3", "amqp:not-found")])
def test_what_is_no_router_and_no_name_of_some_is_not_found(address: str, expected: str) -> None:
    mesh = World(ROUTERS, EDGES)
    producer = mesh["B"].client()
    link = producer.sender(address)
    mesh.advance(0.2)
    assert condition(producer, link) == expected
    mesh.leave()


def test_a_router_that_has_the_very_id_is_meant_before_others_that_share_it() -> None:
    mesh = World(("B.1", "B", "C"), [("B.1", "C"), ("B", "C")])
    consumers = {router: mesh[router].client() for router in ("B.1", "B")}
    for client in consumers.values():
        client.receiver("q", credit=10)
    producer = mesh["C"].client()
    link = producer.sender("q@B")
    mesh.advance_until(lambda: link.credit > 0, 1.0)
    assert deliver(mesh, consumers, [producer.send(link) for _ in range(4)]) == {"B"}
    mesh.leave()


def test_when_one_of_them_dies_the_other_has_what_is_sent_to_the_name() -> None:
    mesh, receivers = site()
    producer = mesh["B"].client()
    link = producer.sender("q@A")
    mesh.advance_until(lambda: link.credit > 0, 1.0)
    mesh.kill("A.2")
    mesh.advance(6.0)
    del receivers["A.2"]
    assert deliver(mesh, receivers, [producer.send(link) for _ in range(4)]) == {"A.1"}
    mesh.leave()


def test_a_sender_is_told_whether_any_of_them_has_receivers() -> None:
    mesh = World(ROUTERS, EDGES)
    producer = mesh["B"].client()
    producer.sender("q@A")
    mesh.advance(0.5)

    def reason() -> Reason | None:
        (told,) = [each for each in snapshot(mesh["B"].core).links if each.direction is Direction.INCOMING]
        return told.reason

    assert reason() is Reason.NO_RECEIVER
    consumer = mesh["A.2"].client()
    receiver = consumer.receiver("q", credit=0)
    mesh.advance(0.5)
    assert reason() is Reason.FAR_NO_CREDIT
    receiver.flow(5)
    mesh.advance(0.5)
    assert reason() is None
    mesh.leave()


def test_an_alias_of_theirs_is_followed_by_each() -> None:
    mesh = World(ROUTERS, EDGES, AddressConfig(pattern="old", alias="q"))
    consumer, producer = mesh["A.2"].client(), mesh["A.1"].client()
    consumer.receiver("q", credit=5)
    link = producer.sender("old@A")
    mesh.advance_until(lambda: link.credit > 0, 1.0)
    assert deliver(mesh, {"A.2": consumer}, [producer.send(link)]) == {"A.2"}
    mesh.leave()


def test_a_multicast_to_a_name_of_theirs_reaches_all_receivers_at_one_of_them() -> None:
    mesh = World(ROUTERS, EDGES, AddressConfig(pattern="news", distribution=Distribution.MULTICAST))
    receivers = {name: mesh[name[:3]].client() for name in ("A.1 one", "A.1 two", "A.2 one", "A.2 two")}
    for client in receivers.values():
        client.receiver("news", credit=10)
    producer = mesh["B"].client()
    for address, expected in (("news", set(receivers)), ("news@A.2", {"A.2 one", "A.2 two"})):
        link = producer.sender(address)
        mesh.advance_until(lambda link=link: link.credit > 0, 2.0)  # type: ignore[misc]  # of this turn
        assert deliver(mesh, receivers, [producer.send(link)]) == expected
    link = producer.sender("news@A")
    mesh.advance_until(lambda: link.credit > 0, 2.0)
    got = deliver(mesh, receivers, [producer.send(link)])
    assert got in ({"A.1 one", "A.1 two"}, {"A.2 one", "A.2 two"})
    mesh.leave()
