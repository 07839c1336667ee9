"""Metrics of routers: the same figures as their statistics, within their size, and for the rights of a scraper."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any

import pytest

from amqpmesh.router.amqp.standard.messaging import Source
from amqpmesh.router.http import families
from amqpmesh.router.http.metrics import Metrics, Scope, Selection
from amqpmesh.router.incremental import run_to_end
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.statistics.common import Outcomes
from tests.support.worlds.meshes import World
from tests.support.worlds.network import OUTCOMES, Network
from tests.support.worlds.tenants import Tenants

parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="NOT TESTED, missing: prometheus-client")

ALL = frozenset({"address", "router", "neighbour", "listener"})
OPERATOR = Scope("", ALL)
Found = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(text: bytes) -> Found:
    return {
        (sample.name.removeprefix("amqpmesh_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in parser.text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def told(metrics: Metrics, scope: Scope = OPERATOR) -> Found:
    run_to_end(metrics.refresh())
    return read(run_to_end(metrics.document(scope, is_open=True)))


def of(found: Found, name: str, **labels: str) -> float:
    """Return the sum of the series of a metric with these labels."""
    return sum(
        value for (each, shown), value in found.items() if each == name and labels.items() <= dict(shown).items()
    )


def of_router(network: Any, most: int = 2000) -> Metrics:
    return Metrics(network.core, lambda: (), lambda: most)


@pytest.mark.parametrize("outcome", [item.name for item in fields(Outcomes) if item.name != "presettled"])
def test_an_address_counts_as_its_statistics_say(outcome: str) -> None:
    network = Network()
    consumer, producer = network.client("consumer"), network.client("producer")
    consumer.receiver("q", name="in", credit=2)
    out = producer.sender("q", name="out")
    metrics = of_router(network)
    for number in range(3):
        producer.send(out, b"\x00\x53\x77\xa1\x01x")
        network.run()
        for arrival in consumer.take():
            arrival.dispose(OUTCOMES[outcome] if number else OUTCOMES["accepted"], settled=True)
        network.advance(1.0)
        (address,) = snapshot(network.core).addresses
        found = told(metrics)
        assert of(found, "deliveries_total", address="q", direction="in") == address.deliveries_in
        for each in fields(Outcomes):
            expected = getattr(address, each.name)
            assert of(found, "deliveries_total", address="q", outcome=each.name) == expected
        assert of(found, "deliveries_sent_total", address="q") == address.deliveries_out
        assert of(found, "message_bytes_total", address="q", direction="in") == address.octets_in
        assert of(found, "message_bytes_total", address="q", direction="out") == address.octets_out
        assert of(found, "decided_total", address="q") == address.decided
        assert of(found, "undelivered_total", address="q") == address.undelivered
        assert of(found, "waiting_deliveries", address="q") == address.waiting
        for direction, seconds in (("in", address.zero_credit_in), ("out", address.zero_credit_out)):
            shown = of(found, "link_credit_zero_seconds_total", address="q", direction=direction)
            assert shown == pytest.approx(seconds, abs=0.001)
        assert of(found, "senders", address="q") == address.producers == 1
        assert of(found, "receivers", address="q") == address.consumers == 1
    assert of(found, "link_credit_zero_seconds_total", direction="out") >= 1.0
    network.leave()


def test_latencies_and_delays_are_those_of_the_outcomes() -> None:
    network = Network()
    consumer, producer = network.client("consumer"), network.client("producer")
    consumer.receiver("q", credit=400)
    out = producer.sender("q")
    metrics = of_router(network)
    for number, seconds in enumerate((0.0, 0.2, 2.0, 11.0), 1):
        for _ in range(64):
            producer.send(out, b"\x00\x53\x77\xa1\x01x")
        network.run()
        network.advance(seconds)
        assert of(told(metrics), "oldest_unsettled_seconds", address="q") == pytest.approx(seconds)
        for arrival in consumer.take():
            arrival.accept()
        network.run()
        (address,) = snapshot(network.core).addresses
        found = told(metrics)
        assert address.oldest_unsettled is None
        assert of(found, "latency_samples_total", address="q") == sum(address.latency.values()) == number
        assert of(found, "latency_seconds_count", tenant="") == number
        assert of(found, "latency_seconds_bucket", tenant="", le="+Inf") == number
    assert address.latency == {**dict.fromkeys(address.latency, 0), "0.001": 1, "0.5": 1, "10": 1, "inf": 1}
    assert (address.delayed_1s, address.delayed_10s) == (128, 64)
    assert of(found, "delayed_deliveries_total", seconds="1") == 128
    assert of(found, "delayed_deliveries_total", seconds="10") == 64
    assert of(found, "latency_seconds_sum") == pytest.approx(13.2)
    assert address.latency_seconds == pytest.approx(13.2)
    for bound, count in (("0.1", 1), ("0.5", 2), ("1.0", 2), ("10.0", 3)):
        assert of(found, "latency_seconds_bucket", tenant="", le=bound) == count
    states = [link.endpoint.flow_state for each in network.core.context.connections for link in each.outgoing]
    (counted,) = (each.latency for each in states if each.latency is not None)
    # Beside the array there are three counts of 4 octets, and the array, a sum and three times of 8.
    assert sys.getsizeof(counted) + 3 * 4 + 5 * 8 <= 200, "octets of a link, however many deliveries were counted"
    # A link that ends leaves its counts.
    consumer.close()
    assert of(told(metrics), "latency_seconds_count", tenant="") == 4
    network.leave()


def test_the_router_counts_as_its_statistics_say() -> None:
    network = Network()
    client = network.client()
    client.receiver("q")
    found, router = told(of_router(network)), snapshot(network.core).router
    assert of(found, "connection_bytes_total", direction="in") == router.octets_in
    assert of(found, "connections") == router.connections == 1
    assert of(found, "links") == router.links == 1
    assert of(found, "addresses") == router.addresses == 1
    assert of(found, "memory_limit_bytes") == router.memory
    network.leave()


def test_over_a_mesh_deliveries_of_other_routers_are_transit_and_neighbours_have_names() -> None:
    mesh = World("AB", [("A", "B")])
    consumer, producer = mesh["B"].client(), mesh["A"].client()
    consumer.receiver("q", credit=10)
    mesh.advance(1.0)
    out = producer.sender("q")
    mesh.advance(1.0)
    producer.send(out, b"\x00\x53\x77\xa1\x01x")
    mesh.run()
    for arrival in consumer.take():
        arrival.accept()
    mesh.run()
    metrics = {router: of_router(mesh[router]) for router in "AB"}
    a, b = told(metrics["A"]), told(metrics["B"])
    assert of(a, "transit_deliveries_total", address="q", direction="out") == 1
    assert of(b, "transit_deliveries_total", address="q", direction="in") == 1
    assert of(a, "transit_deliveries_total", direction="in") == 0
    assert of(a, "neighbour_up", neighbour="B") == of(b, "neighbour_up", neighbour="A") == 1
    assert of(a, "neighbour_bytes_total", neighbour="B", direction="out") > 0
    assert of(a, "mesh_reachable_routers") == 2
    # Octets of a neighbour go on over a new connection.
    before = of(a, "neighbour_bytes_total", neighbour="B", direction="in")
    mesh.cut(*mesh.between("A", "B"))
    told(metrics["A"])
    mesh.join("A", "B")
    mesh.advance(2.0)
    assert of(told(metrics["A"]), "neighbour_bytes_total", neighbour="B", direction="in") > before
    mesh.leave()


def test_beyond_its_size_addresses_share_one_row_and_can_be_asked_for() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    for number in range(60):
        consumer.receiver(f"q/{number}", credit=10)
        out = producer.sender(f"q/{number}")
        producer.send(out, b"\x00\x53\x77\xa1\x01x", settled=True)
    network.run()
    metrics = of_router(network, 600)
    found = told(metrics)
    assert len(found) <= 600
    named = {dict(labels)["address"] for _, labels in found if "address" in dict(labels)}
    assert "other" in named
    assert 10 < len(named) < 40
    assert of(found, "deliveries_total", direction="in") == 60
    assert of(found, "deliveries_total", direction="in", address="other") == 60 - (len(named) - 1)
    most = 600 // families.series(families.ADDRESS)
    for pattern, expected in (("q/59", 1), ("q/5*", 0), ("q/*", most), ("none", 0)):
        text = run_to_end(metrics.selected(OPERATOR, Selection(None, pattern), is_open=True))
        asked = read(text)
        count = len({dict(labels)["address"] for _, labels in asked if labels})
        assert count == expected, pattern
        assert of(asked, "addresses_left_out") == (60 - most if pattern == "q/*" else 0)
    network.leave()


def test_dynamic_nodes_are_counted_without_their_names() -> None:
    network = Network()
    client = network.client()
    client.receiver(None, source=Source(dynamic=True), credit=1)
    (name,) = [each.name for each in snapshot(network.core).addresses]
    metrics = of_router(network)
    run_to_end(metrics.refresh())
    for text in (
        run_to_end(metrics.document(OPERATOR, is_open=True)),
        run_to_end(metrics.selected(OPERATOR, Selection(None, "#"), is_open=True)),
    ):
        assert name not in text.decode()
    assert of(told(metrics), "receivers", address="other") == 1
    network.leave()


@pytest.mark.parametrize("name", ["a\0b", "a\r# EOF", "a\nb", "\x1b[2J", "a\u2028b"])
def test_an_address_that_would_break_the_format_is_counted_without_its_name(name: str) -> None:
    network = Network()
    client = network.client()
    client.receiver(name, credit=1)
    client.receiver('a"\\{,}ä', credit=1)
    metrics = of_router(network)
    found = told(metrics)
    assert of(found, "receivers", address="other") == 1
    assert of(found, "receivers", address='a"\\{,}ä') == 1
    text = run_to_end(metrics.document(OPERATOR, is_open=True)).decode()
    asked = run_to_end(metrics.selected(OPERATOR, Selection(None, "#"), is_open=True)).decode()
    assert all(each.isprintable() for document in (text, asked) for each in document.split("\n"))
    network.leave()


def test_a_tenant_sees_its_own_series_and_its_own_rest() -> None:
    tenants = Tenants(azure="", violet="")
    for tenant, count in (("azure", 40), ("violet", 3)):
        client = tenants.client(tenant)
        for number in range(count):
            client.receiver(f"{tenant}/{number}", credit=1)
    tenants.rest()
    metrics = of_router(tenants.mesh["A"], 600)
    whole = told(metrics)
    assert {dict(labels).get("tenant") for _, labels in whole} >= {"azure", "violet"}
    for tenant, other, count in (("azure", "violet", 40), ("violet", "azure", 3)):
        text = run_to_end(metrics.document(Scope(tenant, ALL), is_open=True))
        assert other not in text.decode()
        found = read(text)
        assert of(found, "receivers", tenant=tenant) == count
        assert ("connections", ()) not in found
        assert not any(name.startswith(("neighbour", "listener", "mesh")) for name, _ in found)
        for selection in (Selection(None, "#"), Selection(other, "#"), Selection(None, f"{other}/#")):
            text = run_to_end(metrics.selected(Scope(tenant, ALL), selection, is_open=True))
            assert other not in text.decode()
    assert (
        read(run_to_end(metrics.document(Scope("", frozenset({"router"})), is_open=True)))
        .keys()
        .isdisjoint(read(run_to_end(metrics.document(Scope("", frozenset({"address"})), is_open=True))))
    )
    tenants.mesh.leave()


def test_each_family_has_a_name_of_its_own_and_counters_come_first() -> None:
    every = (
        families.ADDRESS,
        families.TENANT,
        families.LATENCY,
        families.NEIGHBOUR,
        families.LISTENER,
        families.ROUTER,
        families.LEFT_OUT,
    )
    names = [each.name for kind in every for each in kind]
    assert len(names) == len(set(names))
    for kind in every:
        kinds = [each.kind for each in kind]
        assert kinds == sorted(kinds, key=lambda each: each == families.GAUGE)
        assert not any(each.name.endswith("total") for each in kind)


def test_the_most_series_change_while_the_router_runs() -> None:
    network = Network()
    client = network.client("c")
    most = 500
    metrics = Metrics(network.core, lambda: (), lambda: most)

    def addresses() -> set[str]:
        return {dict(labels)["address"] for name, labels in told(metrics) if name == "senders"}

    for number in range(60):
        client.sender(f"q{number}", name=f"s{number}")
    network.run()
    few = addresses()
    assert "other" in few
    most = 5_000
    assert addresses() >= {f"q{number}" for number in range(60)}
    most = 500
    assert addresses() >= {f"q{number}" for number in range(60)}, "what is shown stays while it is used"
    client.sender("late", name="late")
    network.run()
    assert "late" not in addresses()
