"""The departure of all clients of a router: its pace, new clients, operators, and its cancellation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from amqpmesh.router.amqp.link import Terminus
from amqpmesh.router.amqp.standard.conditions import ConnectionCondition
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.config.mesh import WorkerConfig
from amqpmesh.router.departure import departure
from amqpmesh.router.departure.client_moves import QUIET_TIME
from amqpmesh.router.departure.departure import LEAST, STEP
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.runtime.shared_drain import SharedDrain
from tests.router.departure.test_client_moves import depart, end_of, is_forced
from tests.support.worlds.network import Client, Network


def operator(network: Network) -> Client:
    """Connect a client that asks `$management`."""
    client = network.client()
    client.receiver(None, source=Source(dynamic=True))
    client.sender(ADDRESS)
    return client


def managed() -> Network:
    """Return a router with a management node."""
    network = Network()
    network.core.context.nodes.make_own(ADDRESS)
    return network


def test_a_share_of_the_clients_is_moved_each_second() -> None:
    network = Network()
    clients = [network.client() for _ in range(400)]
    depart(network, pace=0.1)
    for second in range(1, 10):
        network.advance(1.0)
        gone = sum(end_of(each) is not None for each in clients)
        assert abs(gone - 40 * second) <= 3
        assert snapshot(network.core).router.moving == 400 - gone
    network.advance(1.5)
    assert all(map(is_forced, clients))
    network.leave()


def test_a_few_clients_are_moved_faster_than_their_share() -> None:
    network = Network()
    clients = [network.client() for _ in range(5)]
    depart(network, pace=0.1)
    network.advance(5 / LEAST + 2 * STEP)
    assert all(map(is_forced, clients))
    network.leave()


def test_the_rest_is_moved_at_a_new_pace() -> None:
    network = Network()
    clients = [network.client() for _ in range(400)]
    depart(network, pace=0.1)
    network.advance(1.0)
    depart(network, pace=1.0)
    network.advance(1.1)
    assert all(map(is_forced, clients))
    assert network.core.departure.moved == 400
    network.leave()


def test_many_connections_are_looked_at_in_steps_and_none_of_them_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departure, "FOUND", 2)
    network = managed()
    clients = [network.client() for _ in range(5)]
    watching = operator(network)
    depart(network, pace=1.0)
    assert network.core.departure.left == len(clients) + 1, "the operator is not looked at yet"
    last = clients[-1].receiver("q")
    network.run()
    assert end_of(clients[-1]) is None
    assert last.remote is not None
    late = network.client()
    late.session.attach(Terminus("l", Role.RECEIVER), source=Source(address="q"), target=Target())
    network.run()
    assert is_forced(late)
    network.advance(2.0)
    assert all(map(is_forced, clients))
    assert end_of(watching) is None
    network.leave()


@pytest.mark.parametrize("sends", [True, False])
def test_a_new_client_is_turned_away_when_it_attaches_a_link(sends: bool) -> None:
    network = Network()
    depart(network)
    client = network.client()
    assert end_of(client) is None
    role = Role.SENDER if sends else Role.RECEIVER
    client.session.attach(Terminus("l", role), source=Source(address="q"), target=Target(address="q"))
    network.run()
    assert is_forced(client)
    assert network.core.departure.left == 0
    network.leave()


def test_an_anonymous_sender_is_turned_away() -> None:
    network = Network()
    depart(network)
    client = network.client()
    client.session.attach(Terminus("l", Role.SENDER), source=Source(), target=Target())
    network.run()
    assert is_forced(client)
    network.leave()


def test_operators_stay_old_ones_and_new_ones() -> None:
    network = managed()
    before = operator(network)
    client = network.client()
    depart(network)
    after = operator(network)
    network.advance(2.0)
    assert is_forced(client)
    assert [end_of(each) for each in (before, after)] == [None, None]
    after.session.attach(Terminus("l", Role.SENDER), source=Source(), target=Target(address="q"))
    network.run()
    assert is_forced(after)
    network.leave()


def test_a_client_with_further_links_is_no_operator() -> None:
    network = managed()
    client = operator(network)
    client.receiver("q")
    depart(network)
    network.advance(1.0 + QUIET_TIME)
    assert is_forced(client)
    network.leave()


def test_clients_that_are_not_moved_yet_attach_links_as_before() -> None:
    network = Network()
    clients = [network.client() for _ in range(20)]
    depart(network, pace=0.1)
    network.advance(1.0)
    last, other = clients[-1], clients[-2]
    last.receiver("q", credit=1)
    other.send(other.sender("q"))
    last.take(1)[0].accept()
    network.advance(2.0)
    assert all(map(is_forced, clients))
    network.leave()


def test_a_cancelled_departure_lets_the_rest_stay_and_new_clients_in() -> None:
    network = Network()
    clients = [network.client() for _ in range(20)]
    depart(network, pace=0.1)
    network.advance(0.45)
    network.core.change(network.core.departure.cancel, network.now)
    network.advance(10.0)
    gone = sum(end_of(each) is not None for each in clients)
    assert 3 <= gone <= 6
    assert network.core.departure.left == 0
    assert not snapshot(network.core).router.draining
    new = network.client()
    new.receiver("q", credit=1)
    clients[-1].send(clients[-1].sender("q"))
    new.take(1)[0].accept()
    network.run()
    depart(network)
    network.advance(5.0)
    assert all(map(is_forced, (*clients, new)))
    network.leave()


def test_a_connection_that_opens_meanwhile_gets_its_open_first() -> None:
    network = Network()
    depart(network)
    client = network.client()
    assert client.engine.remote is not None
    client.receiver("q", credit=0)
    end = end_of(client)
    assert end is not None
    assert end.error is not None
    assert end.error.condition == ConnectionCondition.CONNECTION_FORCED
    network.leave()


def test_a_client_that_has_not_opened_its_connection_is_new() -> None:
    network = Network()
    listener = network.listener
    record = network.core.accept(listener, "127.0.0.1", network.now, secured=False)
    depart(network)
    network.advance(1.0)
    assert network.core.departure.left == 0
    assert not record.lost
    network.core.receive_eof(record, network.now)
    network.leave()


def test_the_pace_of_a_router_with_workers_is_that_of_all_of_them_together(tmp_path: Path) -> None:
    network = Network()
    network.core.context.config = replace(
        network.core.context.config, worker=WorkerConfig(name="A", number=1, count=4, folder=tmp_path)
    )
    clients = [network.client() for _ in range(5)]
    depart(network, pace=0.1)
    network.advance(1.0)
    gone = sum(end_of(each) is not None for each in clients)
    assert gone == 1 + int(LEAST / 4)
    network.advance(5.0)
    assert all(map(is_forced, clients))
    network.leave()


def test_the_counts_of_all_workers_are_told(tmp_path: Path) -> None:
    network = Network()
    one, other = (SharedDrain(WorkerConfig(name="A", number=n, count=2, folder=tmp_path)) for n in (1, 2))
    network.core.departure.shared = one
    clients = [network.client() for _ in range(20)]
    other.note(1, 30, 4)
    network.core.departure.order = 2
    depart(network, pace=0.1)
    assert snapshot(network.core).router.moving == 30 + network.core.departure.left
    assert not network.core.departure.others_follow(2)
    other.note(2, 3, 5)
    assert network.core.departure.others_follow(2)
    network.advance(5.0)
    assert all(map(is_forced, clients))
    assert (network.core.departure.left_in_all, network.core.departure.moved_in_all) == (3, 25)
    assert other.others() == [(2, 0, 20)]
    one.close()
    other.close()
    network.leave()
