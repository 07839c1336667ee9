"""Routers whose patterns for an address differ: the ingress router's counts, and both are named."""

from __future__ import annotations

import logging
from dataclasses import replace
from random import Random

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.cli.output.listing import lines
from amqpmesh.router.config.file import AddressConfig, ConnectorConfig, RedirectConfig
from amqpmesh.router.logs.event_log import event_of, fields_of
from amqpmesh.router.management.entities import PREFIX, TYPES
from amqpmesh.router.management.snapshot import snapshot
from tests.support.peers.broker import Broker
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Client, Sent

FORK = [("A", "B"), ("B", "C"), ("B", "D")]
NEWS = AddressConfig(pattern="news/#", distribution=Distribution.MULTICAST)
BALANCED = AddressConfig(pattern="news/#")
CLOSEST = AddressConfig(pattern="news/#", distribution=Distribution.CLOSEST)
BARRED = AddressConfig(pattern="news/#", distribution=Distribution.UNAVAILABLE)
AWAY = AddressConfig(pattern="news/#", redirect=RedirectConfig(hostname="b.example", network_host="10.0.0.2"))


def receiver(mesh: World, router: str, credit: int = 100) -> Client:
    client = mesh[router].client()
    client.receiver("news/x", credit=credit)
    return client


def publish(mesh: World, count: int, *receivers: Client) -> list[int]:
    """Send from A, and accept all messages. Returns: the number for each receiver."""
    producer = mesh["A"].client()
    link = producer.sender("news/x")
    mesh.advance(0.5)
    sents = []
    took = [0] * len(receivers)
    for _ in range(count):
        sents.append(producer.send(link))
        for number, client in enumerate(receivers):
            for arrival in client.take():
                arrival.accept()
                took[number] += 1
        mesh.run()
    assert [sent.said for sent in sents] == [[(Accepted(), True)]] * count
    return took


def told(mesh: World, router: str) -> list[tuple[str, str, str, str, str]]:
    """Return the mismatches in the statistics of a router."""
    found = snapshot(mesh[router].core).disagreements
    return sorted((each.address, each.here, each.ours, each.router, each.theirs) for each in found)


@pytest.mark.parametrize("between", [None, CLOSEST, BARRED, AWAY])
def test_a_multicast_has_all_its_branches_whatever_a_router_on_the_way_calls_the_address(
    between: AddressConfig | None,
) -> None:
    own = {"A": NEWS, "C": NEWS, "D": NEWS} | ({} if between is None else {"B": between})
    mesh = World("ABCD", FORK, own=own)
    there = [receiver(mesh, router) for router in ("ACD" if between in (BARRED, AWAY) else "ABCD")]
    mesh.advance(0.5)
    assert publish(mesh, 60, *there) == [60] * len(there)
    mesh.leave()


@pytest.mark.parametrize("between", [NEWS, BARRED, AWAY])
def test_what_is_for_one_passes_a_router_that_calls_the_address_something_else(between: AddressConfig) -> None:
    mesh = World("ABC", FORK[:2], own={"B": between})
    there = receiver(mesh, "C")
    mesh.advance(0.5)
    assert publish(mesh, 10, there) == [10]
    mesh.leave()


def test_all_receivers_of_a_router_that_shares_an_address_out_have_a_multicast() -> None:
    mesh = World("AB", FORK[:1], own={"A": NEWS})
    there = [receiver(mesh, "B"), receiver(mesh, "B"), receiver(mesh, "A")]
    mesh.advance(0.5)
    there.append(receiver(mesh, "B"))
    assert publish(mesh, 10, *there) == [10] * 4
    producer = mesh["B"].client()
    link = producer.sender("news/x")
    mesh.advance(0.5)
    sents = [producer.send(link) for _ in range(8)]
    took = []
    for client in there:
        arrivals = client.take()
        took.append(len(arrivals))
        for arrival in arrivals:
            arrival.accept()
    mesh.run()
    assert sum(took) == 8, "what comes in there is for one"
    assert [sent.said for sent in sents] == [[(Accepted(), True)]] * 8
    mesh.leave()


def test_the_slowest_receiver_sets_the_pace_of_a_multicast_where_the_address_is_shared_out() -> None:
    mesh = World("AB", FORK[:1], own={"A": NEWS})
    slow, fast = mesh["B"].client(), receiver(mesh, "B", credit=100)
    link = slow.receiver("news/x", credit=2)
    producer = mesh["A"].client()
    out = producer.sender("news/x")
    mesh.advance(0.5)
    assert 2 <= out.credit <= 4, "and one for each router on the way"
    while out.credit:
        producer.send(out)
    assert (len(slow.take()), len(fast.take())) == (2, 2)
    link.flow(20)
    mesh.run()
    assert len(slow.take()) == len(fast.take()) > 0
    assert out.credit > 0
    mesh.leave()


@pytest.mark.parametrize("seed", range(8))
def test_every_receiver_has_every_message_in_a_mesh_whose_routers_have_patterns_at_random(seed: int) -> None:
    chance = Random(seed)
    names = "ABCDEFG"[: chance.randint(3, 7)]
    edges = [(names[chance.randrange(number)], names[number]) for number in range(1, len(names))]
    own = {name: chance.choice([NEWS, BALANCED, CLOSEST]) for name in names} | {"A": NEWS}
    mesh = World(names, edges, own=own)
    there = [receiver(mesh, chance.choice(names), credit=chance.choice([1, 3, 100])) for _ in range(4)]
    producer = mesh["A"].client()
    link = producer.sender("news/x")
    took, sents = [0] * len(there), list[Sent]()
    for _ in range(500):
        if len(sents) < 30 and link.credit:
            sents.append(producer.send(link))
        for number, client in enumerate(there):
            for arrival in client.take():
                took[number] += 1
                arrival.accept()
                arrival.link.flow(chance.choice([1, 2, 5]))
        mesh.advance(0.01)
        if took == [30] * len(there):
            break
    assert took == [30] * len(there)
    assert all(sent.outcome == Accepted() for sent in sents)
    mesh.leave()


def test_a_multicast_goes_to_the_place_that_a_redirect_leads_a_router_to() -> None:
    there = RedirectConfig(hostname="b.example", network_host="10.0.0.2", port=5672, address="there", follow="router")
    mesh = World("AB", FORK[:1], own={"A": NEWS, "B": AddressConfig(pattern="news/x", redirect=there)})
    made: list[ConnectorConfig] = []
    mesh["B"].core.on_demand.on_connect = lambda config, _: made.append(replace(config, idle_time_out=0.0))
    here, producer = receiver(mesh, "A"), mesh["A"].client()
    link = producer.sender("news/x")
    mesh.advance(0.5)
    assert link.credit == 0, "the place is not reached yet"
    broker = Broker(mesh["B"], connector=made[0])
    mesh.advance(0.5)
    assert publish(mesh, 5, here, broker) == [5, 5]
    mesh.close_clients()
    mesh.advance(100.0)
    assert broker.is_lost
    mesh.leave()


# --------------------------------------------------------------------------------------------------------- reporting


def test_both_sides_tell_of_a_disagreement_and_so_does_a_router_on_the_way() -> None:
    mesh = World("ABC", FORK[:2], own={"A": NEWS})
    receiver(mesh, "C")
    mesh["A"].client().sender("news/x")
    mesh.advance(0.5)
    assert told(mesh, "A") == [("news/x", "A", "multicast", "C", "balanced")]
    assert told(mesh, "B") == [("news/x", "B", "balanced", "A", "multicast")]
    assert told(mesh, "C") == [("news/x", "C", "balanced", "A", "multicast")]
    mesh.close_clients()
    mesh.advance(60.0)
    assert [told(mesh, router) for router in "ABC"] == [[], [], []]
    mesh.leave()


def test_the_table_of_disagreements_names_both_sides() -> None:
    mesh = World("AB", FORK[:1], own={"A": NEWS})
    receiver(mesh, "B")
    mesh["A"].client().sender("news/x")
    mesh.advance(0.5)
    statistics = snapshot(mesh["A"].core)
    entities = {
        kind.name.removeprefix(PREFIX): [
            dict(zip(kind.attributes, kind.reader(kind.attributes)(each), strict=True))
            for each in kind.entities(statistics)
        ]
        for kind in TYPES.values()
    }
    said = list(lines(entities, 200, None))
    at = said.index("DISAGREEMENTS")
    assert [line.split() for line in said[at + 2 : at + 4]] == [["news/x", "A", "multicast", "B", "balanced"], []]
    mesh.leave()


def test_a_sender_to_a_name_at_one_router_shows_how_that_one_distributes_it() -> None:
    mesh = World("AB", FORK[:1], own={"B": NEWS})
    receiver(mesh, "B")
    mesh["A"].client().sender("news/x@B")
    mesh.advance(0.5)
    assert told(mesh, "A") == [("news/x@B", "A", "balanced", "B", "multicast")]
    mesh.leave()


@pytest.mark.parametrize("own", [{"A": NEWS, "B": NEWS, "C": NEWS}, {"A": NEWS, "B": BARRED, "C": NEWS}])
def test_routers_that_agree_or_do_not_serve_the_address_tell_of_none(own: dict[str, AddressConfig]) -> None:
    mesh = World("ABC", FORK[:2], own=own)
    receiver(mesh, "C")
    mesh["A"].client().sender("news/x")
    mesh.advance(0.5)
    assert [told(mesh, router) for router in "ABC"] == [[], [], []]
    mesh.leave()


def test_a_disagreement_is_logged_once_for_each_address_and_router(caplog: pytest.LogCaptureFixture) -> None:
    mesh = World("AB", FORK[:1], own={"A": NEWS})
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            consumer, producer = receiver(mesh, "B"), mesh["A"].client()
            producer.sender("news/x")
            mesh.advance(0.5)
            consumer.close()
            producer.close()
            mesh.advance(60.0)
    logged = [fields_of(record) for record in caplog.records if event_of(record) == "distributions differ"]
    assert sorted(logged, key=str) == [
        {"address": "news/x", "here": "A", "ours": "multicast", "router": "B", "theirs": "balanced"},
        {"address": "news/x", "here": "B", "ours": "balanced", "router": "A", "theirs": "multicast"},
    ]
    mesh.leave()
