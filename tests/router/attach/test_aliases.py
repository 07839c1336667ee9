"""Aliases of addresses."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.config.file import AddressConfig, RedirectConfig, RouterConfig, parse
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Client, Network, message

LINE = [("A", "B"), ("B", "C")]


def alias(pattern: str, stands_for: str) -> AddressConfig:
    """Return the configuration of an alias."""
    return AddressConfig(pattern=pattern, alias=stands_for)


def mesh_with(*aliases: AddressConfig) -> World:
    """Return a mesh of A, which has the aliases, B, and C."""
    mesh = World("BC", [("B", "C")])
    mesh.start("A", *aliases)
    mesh.join("A", "B")
    mesh.advance(1.0)
    return mesh


def reaches(mesh: World, producer: Client, sender: str | None, to: str | None, consumer: Client) -> None:
    """Check that a message of the producer reaches the consumer unchanged, and that its outcome comes back."""
    link = producer.sender(sender)
    mesh.advance_until(lambda: link.credit > 0, 1.0)
    sent = producer.send(link, message(to=to))
    mesh.advance(0.1)
    (arrival,) = consumer.take(1)
    assert bytes(arrival.payload) == message(to=to), "an alias is followed, and not written"
    arrival.accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]


@pytest.mark.parametrize("stands_for", ["invoices@C", "invoices@A", "invoices", "second"])
@pytest.mark.parametrize("named", ["billing", "billing@A"])
@pytest.mark.parametrize("by", ["link", "to"])
def test_a_sender_to_an_alias_sends_to_the_address_behind_it(stands_for: str, named: str, by: str) -> None:
    mesh = mesh_with(alias("billing", stands_for), alias("second", "invoices@C"))
    consumer = mesh["A" if stands_for == "invoices@A" else "C"].client()
    consumer.receiver("invoices", credit=10)
    decoy = mesh["C"].client()
    decoy.receiver("billing", credit=10)
    mesh.advance(0.2)
    sender, to = (named, "something/else") if by == "link" else (None, named)
    reaches(mesh, mesh["A"].client(), sender, to, consumer)
    decoy.take(0)
    mesh.leave()


@pytest.mark.parametrize("stands_for", ["invoices@C", "invoices@A", "invoices"])
def test_a_receiver_from_an_alias_receives_from_the_address_behind_it(stands_for: str) -> None:
    mesh = mesh_with(alias("billing", stands_for))
    consumer = mesh["A"].client()
    receiver = consumer.receiver("billing", credit=10)
    assert receiver.remote is not None
    assert isinstance(receiver.remote.source, Source)
    assert receiver.remote.source.address == "billing"
    mesh.advance(0.2)
    reaches(mesh, mesh["B"].client(), stands_for, None, consumer)
    mesh.leave()


def test_an_alias_of_a_whole_container_is_sent_to_by_to_and_not_received_from() -> None:
    mesh = mesh_with(alias("partner", "@C"))
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    consumer.receiver("q", credit=10)
    mesh.advance(0.2)
    reaches(mesh, producer, "partner", "q", consumer)
    refused = producer.receiver("partner")
    assert producer.detached[refused].condition == "amqp:not-implemented"  # type: ignore[union-attr]  # has an error
    sent = producer.send(producer.sender(None), message(to="partner"))
    assert isinstance(sent.outcome, Rejected), "no address in it is named"
    mesh.leave()


def test_a_pattern_may_have_an_alias_for_all_that_falls_under_it() -> None:
    network = Network(alias("old/#", "new"))
    consumer, producer = network.client(), network.client()
    consumer.receiver("new", credit=10)
    for name in ("old", "old/a", "old/b/c@A"):
        producer.send(producer.sender(name), settled=True)
        network.run()
        consumer.take(1)
    network.leave()


def test_an_alias_is_followed_for_clients_and_not_for_what_came_from_other_routers() -> None:
    mesh = mesh_with(alias("billing", "invoices@C"))
    consumer, producer = mesh["C"].client(), mesh["B"].client()
    consumer.receiver("invoices", credit=10)
    mesh.advance(0.2)
    assert producer.sender("billing@A").credit == 0
    assert producer.send(producer.sender(None), message(to="billing@A")).outcome == Released()
    consumer.take(0)
    mesh.leave()


def test_aliases_of_two_routers_that_stand_for_each_other_send_nothing_in_circles() -> None:
    mesh = World("A", [], alias("ping", "pong@B"))
    mesh.start("B", alias("pong", "ping@A"))
    mesh.join("A", "B")
    mesh.advance(1.0)
    for router, name in (("A", "ping"), ("B", "pong")):
        client = mesh[router].client()
        assert client.sender(name).credit == 0
        assert client.send(client.sender(None), message(to=name)).outcome == Released()
        assert client.receiver(name).is_attached
    mesh.advance(2.0)
    assert [node.core.context.in_flight for node in mesh.nodes.values()] == [0, 0]
    mesh.leave()


@pytest.mark.parametrize("named", ["mine", "mine@A"])
def test_an_alias_gives_no_right_that_its_address_does_not(named: str) -> None:
    mesh = mesh_with(
        alias("mine", "$management"),
        alias("far", "$management@B"),
        alias("shut", "secret@B"),
        AddressConfig(pattern="secret", distribution=Distribution.UNAVAILABLE),
    )
    mesh["A"].core.context.nodes.make_own("$management")
    client = mesh["A"].client()
    conditions = []
    for name in (named, "far", "shut"):
        receiver = client.receiver(name)
        conditions.append(str(client.detached[receiver].condition))  # type: ignore[union-attr]  # has an error
    assert conditions == ["amqp:unauthorized-access", "amqp:unauthorized-access", "amqp:not-found"]
    mesh.close_clients()
    mesh.check_ledgers()


def test_an_alias_of_an_address_that_is_elsewhere_leads_to_the_redirect() -> None:
    network = Network(
        alias("billing", "moved"), AddressConfig(pattern="moved", redirect=RedirectConfig(hostname="b.example"))
    )
    client = network.client()
    refused = client.sender("billing")
    error = client.detached[refused]
    assert error is not None
    assert (str(error.condition), error.info and error.info["address"]) == ("amqp:link:redirect", "moved")  # type: ignore[index]  # a symbol
    network.leave()


def test_the_answer_to_an_attach_names_the_alias_that_was_asked_for() -> None:
    network = Network(alias("billing", "invoices"))
    link = network.client().sender("billing")
    assert link.remote is not None
    assert isinstance(link.remote.target, Target)
    assert link.remote.target.address == "billing"
    network.leave()


def test_a_dead_letter_goes_to_what_an_alias_stands_for_wherever_that_is() -> None:
    mesh = World("B", [])
    mesh.start("A", AddressConfig(pattern="q", redeliver=True, attempts=1, dead_letter="lost"), alias("lost", "dead@B"))
    mesh.join("A", "B")
    mesh.advance(1.0)
    undertaker, consumer, producer = mesh["B"].client(), mesh["A"].client(), mesh["A"].client()
    undertaker.receiver("dead", credit=10)
    consumer.receiver("q", credit=10)
    link = producer.sender("q")
    mesh.advance(0.2)
    producer.send(link)
    consumer.take(1)[0].dispose(Released(), settled=True)
    mesh.advance(0.2)
    undertaker.take(1)[0].accept()
    mesh.run()
    mesh.leave()


# Aliases that the configuration refuses.


def configured(**pattern_to_alias: str) -> RouterConfig:
    """Return the configuration of a router A with these aliases."""
    return RouterConfig(id="A", addresses=tuple(alias(*each) for each in pattern_to_alias.items()))


@pytest.mark.parametrize(
    "aliases",
    [
        {"a": "a"},
        {"a": "a@A"},
        {"a": "b", "b": "a"},
        {"a": "b@A", "b": "c", "c": "a@A"},
        {"#": "x"},
        {"x": "a", "a": "b", "b": "a"},
    ],
)
def test_an_alias_that_stands_for_itself_in_the_end_is_an_error(aliases: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="leads in a circle, back to itself") as raised:
        configured(**aliases)
    assert raised.value.key.endswith(".alias")


@pytest.mark.parametrize(
    "aliases", [{"a": "b", "b": "c"}, {"a": "a@B"}, {"a": "@A"}, {"#": "x@B"}, {"a": "$management"}, {"a": "x@y@B"}]
)
def test_an_alias_that_stands_for_another_address_in_the_end_is_accepted(aliases: dict[str, str]) -> None:
    assert {each.pattern: each.alias for each in configured(**aliases).addresses} == aliases


@pytest.mark.parametrize(
    ("line", "key", "reason"),
    [
        ("alias = ''", "address[0].alias", "must not be empty"),
        ("alias = 'x@'", "address[0].alias", "must name a container behind its @"),
        ("alias = 1", "address[0].alias", "must be a text"),
        ("alias = 'x'\ndistribution = 'multicast'", "address[0].alias", "excludes"),
        ("alias = 'x'\nredirect = { hostname = 'b.example' }", "address[0].alias", "excludes"),
        ("dead_letter = '@B'", "address[0].dead_letter", "not a whole container"),
        ("dead_letter = 'x@'", "address[0].dead_letter", "must name a container behind its @"),
    ],
)
def test_what_cannot_be_is_told_with_its_key(line: str, key: str, reason: str) -> None:
    raw = f"[[address]]\npattern = 'a'\n{line}\n"
    with pytest.raises(ConfigError) as raised:
        parse(tomllib.loads(raw), Path("a.toml"))
    assert raised.value.key == key
    assert reason in str(raised.value)


def test_a_link_of_a_container_is_not_bound_to_an_alias() -> None:
    raw = """
[[connector]]
name = "broker"
url = "amqp://127.0.0.1:5699"
role = "container"
[[link]]
connector = "broker"
source = "orders"
address = "billing"
[[address]]
pattern = "billing"
alias = "invoices@B"
"""
    with pytest.raises(ConfigError, match="stands for invoices@B") as raised:
        parse(tomllib.loads(raw), Path("a.toml"))
    assert raised.value.key == "link[0].address"
