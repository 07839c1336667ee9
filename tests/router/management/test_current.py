"""Entities that are read alone, compared with those of a snapshot at the same moment."""

from __future__ import annotations

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.core import Core
from amqpmesh.router.incremental import run_to_end
from amqpmesh.router.management.current import CURRENT, current
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.statistics.router_statistics import Statistics
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Network, message


def of_kind(told: Statistics, kind: str) -> list[object]:
    return list({"address": told.addresses, "connection": told.connections, "link": told.links}[kind])


def check(core: Core) -> Statistics:
    """Compare all entities of a router with those that are read alone."""
    told = snapshot(core)
    for kind in CURRENT:
        whole = of_kind(told, kind)
        assert run_to_end(current(core, kind, whole)) == whole
        assert run_to_end(current(core, kind, whole[::-2])) == whole[::-2]
    return told


@pytest.mark.parametrize("distribution", [Distribution.BALANCED, Distribution.MULTICAST])
def test_links_connections_and_addresses_are_those_of_the_snapshot(distribution: Distribution) -> None:
    network = Network(AddressConfig(pattern="q", distribution=distribution, redeliver=True))
    consumers, producer = [network.client() for _ in range(3)], network.client()
    for each in consumers[:2]:
        each.receiver("q")
    consumers[2].receiver("q", copy=True)
    out = producer.sender("q")
    network.client().sender("alone")
    for number in range(6):
        producer.send(out, message())
        network.advance(0.5)
        if number == 3:
            for arrival in consumers[0].take():
                arrival.accept()
            network.run()
        check(network.core)
    told = check(network.core)
    assert told.addresses[0].oldest_unsettled is not None
    network.leave()


def test_the_counts_of_links_that_end_are_not_missing() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    link = consumer.receiver("q", credit=100)
    out = producer.sender("q")
    for _ in range(50):
        producer.send(out, message())
    check(network.core)
    link.detach(closed=False)  # with unsettled deliveries
    network.run()
    assert check(network.core).addresses[0].deliveries_out == 50
    producer.lose()
    check(network.core)
    consumer.lose()
    check(network.core)
    network.advance(1.0)
    check(network.core)
    network.leave()


def test_what_is_gone_is_left_out() -> None:
    network = Network()
    staying, leaving = network.client(), network.client()
    for name, client in (("a", staying), ("b", leaving)):
        client.receiver(name)
    before = snapshot(network.core)
    leaving.close()
    network.advance(1.0)
    for kind in CURRENT:
        assert len(of_kind(before, kind)) == 2
        assert run_to_end(current(network.core, kind, of_kind(before, kind))) == of_kind(snapshot(network.core), kind)
    network.leave()


@pytest.mark.parametrize("distribution", [Distribution.BALANCED, Distribution.CLOSEST, Distribution.MULTICAST])
def test_lanes_of_a_mesh_count_as_in_the_snapshot(distribution: Distribution) -> None:
    mesh = World("ABC", [("A", "B"), ("B", "C")], AddressConfig(pattern="q", distribution=distribution))
    there, between, producer = mesh["C"].client(), mesh["B"].client(), mesh["A"].client()
    there.receiver("q", credit=5)
    between.receiver("q", credit=5)
    out, anonymous = producer.sender("q"), producer.sender(None)
    for _ in range(3):
        producer.send(out)
        producer.send(anonymous, message(to="q"))
        mesh.run()
        for router in "ABC":
            check(mesh[router].core)
    for client in (there, between):
        for arrival in client.take():
            arrival.accept()
    mesh.run()
    transits = [
        sum(each.transit_in + each.transit_out for each in check(mesh[router].core).addresses) for router in "ABC"
    ]
    assert any(transits)
    mesh.cut(*mesh.between("B", "C"))
    mesh.advance(1.0)
    for router in "ABC":
        check(mesh[router].core)
    mesh.leave()


def test_no_step_looks_at_all_links_of_an_address() -> None:
    network = Network()
    client = network.client()
    for number in range(1000):
        client.receiver("q", name=f"r{number}", credit=0)
    assert sum(1 for _ in current(network.core, "address", check(network.core).addresses)) >= 5
    network.leave()
