"""Addresses that take only links which can be resumed."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.amqp.link import Link, Sender
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Rejected
from amqpmesh.router.amqp.standard.messaging import DistributionMode, Source, Target, TerminusExpiryPolicy
from amqpmesh.router.attach.explanation import explain
from amqpmesh.router.config.address import AddressConfig, Resumption
from amqpmesh.router.config.file import parse
from amqpmesh.router.config.resumption import ResumptionConfig
from amqpmesh.router.management.changed_config import put_in_force
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Client, Network, message
from tests.support.worlds.tenants import Tenants

FIRST, SECOND = ReceiverSettleMode
REQUIRED = AddressConfig(pattern="q/#", resumption=Resumption.REQUIRED)
ONLY = "the address takes only links that can be resumed: "
NEVER = TerminusExpiryPolicy.NEVER


def refusal(client: Client, link: Link) -> tuple[str, str | None] | None:
    """Return the condition and the description of a refusal; None: the link is attached."""
    error = client.detached.get(link)
    if error is None:
        assert link.is_attached
        return None
    return str(error.condition), error.description


def sender(client: Client, address: str | None = "q/1", timeout: int = 30, **terms: object) -> Sender:
    """Attach a sender that asks for what is required, but for `terms`."""
    target = Target(address=address, timeout=timeout)
    return client.sender(None, **{"target": target, "rcv": SECOND, **terms})  # type: ignore[arg-type]  # by name


def source(address: str = "q/1", timeout: int = 30, **fields: object) -> Source:
    return Source(address=address, timeout=timeout, **fields)  # type: ignore[arg-type]  # by name


def require(network: Network) -> None:
    """Put a configuration in force that requires resumption."""
    put_in_force(network.core, replace(network.core.context.config, addresses=(REQUIRED,)), network.now)
    network.run()


@pytest.mark.parametrize(
    ("terms", "lack"),
    [
        ({}, None),
        ({"rcv": FIRST}, "the rcv-settle-mode is not second"),
        ({"timeout": 0}, "the target has no timeout"),
        ({"snd": SenderSettleMode.SETTLED}, "the snd-settle-mode is settled"),
        ({"rcv": FIRST, "timeout": 0}, "the rcv-settle-mode is not second, and the target has no timeout"),
        ({"target": Target(address="q/1", expiry_policy=NEVER)}, "the target has no timeout"),
        ({"address": "other", "rcv": FIRST, "timeout": 0}, None),
    ],
)
def test_a_sender_that_does_not_ask_for_it_is_refused_and_told_why(terms: dict[str, object], lack: str | None) -> None:
    network = Network(REQUIRED)
    client = network.client()
    found = refusal(client, sender(client, **terms))  # type: ignore[arg-type]  # by name
    assert found == (None if lack is None else ("amqp:precondition-failed", f"{ONLY}{lack}"))
    client.close()
    network.advance(31)
    network.leave()


@pytest.mark.parametrize(
    ("rcv", "asked", "lack"),
    [
        (SECOND, source(), None),
        (FIRST, source(), "the rcv-settle-mode is not second"),
        (SECOND, source(timeout=0), "the source has no timeout"),
        (FIRST, source(timeout=0, distribution_mode=DistributionMode.COPY), None),
        (FIRST, source("other", timeout=0), None),
    ],
    ids=["resumable", "first", "no time", "copy", "another address"],
)
def test_a_receiver_that_does_not_ask_for_it_is_refused(
    rcv: ReceiverSettleMode, asked: Source, lack: str | None
) -> None:
    network = Network(REQUIRED)
    client = network.client()
    found = refusal(client, client.receiver(None, source=asked, rcv=rcv))
    assert found == (None if lack is None else ("amqp:precondition-failed", f"{ONLY}{lack}"))
    client.close()
    network.advance(31)
    network.leave()


def test_a_sender_that_cannot_be_granted_any_time_is_refused() -> None:
    network = Network(REQUIRED, resumption=ResumptionConfig(links=1))
    client = network.client()
    assert refusal(client, sender(client)) is None
    second = refusal(client, sender(client))
    assert second is not None
    assert second[0] == "amqp:resource-limit-exceeded"
    assert refusal(client, sender(client, "other")) is None, "it has no time, and needs none"
    assert network.core.context.termini.granted == 1


@pytest.mark.parametrize("anonymous", [False, True])
@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1"])
def test_a_peer_of_another_host_without_a_user_is_refused_unless_that_is_permitted(host: str, anonymous: bool) -> None:
    network = Network(REQUIRED, resumption=ResumptionConfig(anonymous=anonymous))
    client = network.client(host=host)
    found = refusal(client, sender(client)), refusal(client, client.receiver(None, source=source(), rcv=SECOND))
    is_granted = anonymous or host == "127.0.0.1"
    assert [each is None for each in found] == [is_granted] * 2


def test_a_receiver_that_cannot_be_granted_any_time_is_refused() -> None:
    network = Network(REQUIRED, resumption=ResumptionConfig(links=1))
    client = network.client()
    links = [client.receiver(None, source=source(), rcv=SECOND) for _ in range(2)]
    assert refusal(client, links[0]) is None
    second = refusal(client, links[1])
    assert second is not None
    assert second[0] == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize("named", ["q/1", "q/1@A", "q/1@B", "q/1@C"])
@pytest.mark.parametrize("mode", ReceiverSettleMode)
def test_it_holds_for_an_address_at_one_router_and_at_no_other_container(named: str, mode: ReceiverSettleMode) -> None:
    mesh = World("AB", [("A", "B")], REQUIRED)
    mesh.advance(1)
    client = mesh["A"].client()
    found = refusal(client, sender(client, named, rcv=mode))
    taken = refusal(client, client.receiver(None, source=source(named), rcv=mode))
    refused = named == "q/1@C" or mode is FIRST
    assert [each and each[0] for each in (found, taken)] == ["amqp:precondition-failed" if refused else None] * 2


def test_an_alias_leads_to_what_its_target_requires() -> None:
    network = Network(REQUIRED, AddressConfig(pattern="old", alias="q/1"))
    client = network.client()
    assert refusal(client, client.sender("old")) is not None
    assert refusal(client, sender(client, "old")) is None


@pytest.mark.parametrize("place", ["AA", "AB"])
def test_an_importer_is_held_to_what_the_exporter_requires(place: str) -> None:
    exports = 'exports = [{ pattern = "q/#", to = "shop", as = "bank/#", may = ["send", "receive"] }]'
    tenants = Tenants(
        "AB",
        [("A", "B")],
        REQUIRED,
        bank=exports,
        shop='imports = [{ from = "bank", pattern = "bank/#" }]',
    )
    client = tenants.client("shop", place[1])
    tenants.rest()
    refused = refusal(client, client.sender("bank/1"))
    assert refused is not None
    assert "q/1" not in str(refused)
    assert refusal(client, client.receiver("bank/1")) is not None
    assert refusal(client, sender(client, "bank/1")) is None
    core = client.network.core
    asked = explain(core.context, core.lookup, "shop", "bank/1", sends=True, for_operator=False)
    assert asked["resumption"] == "required"


@pytest.mark.parametrize("resumable", [True, False])
def test_each_message_of_an_anonymous_sender_is_judged_by_its_link(resumable: bool) -> None:
    network = Network(REQUIRED)
    client, consumer = network.client(), network.client()
    consumer.receiver(None, source=source(), rcv=SECOND)
    consumer.receiver("other")
    link = sender(client, None) if resumable else client.sender(None)
    for _ in range(3):  # the kernel relays the later ones alone, if it may
        there = client.send(link, message(to="q/1"))
        free = client.send(link, message(to="other"))
        for each in consumer.take():
            each.accept()
        network.run()
        assert free.outcome == Accepted()
        if resumable:
            assert there.outcome == Accepted()
        else:
            assert isinstance(there.outcome, Rejected)
            assert there.outcome.error is not None
            assert there.outcome.error.condition == "amqp:precondition-failed"
            assert "cannot be resumed" in (there.outcome.error.description or "")


def test_an_anonymous_sender_that_has_sent_already_is_held_to_a_changed_configuration() -> None:
    network = Network(replace(REQUIRED, resumption=Resumption.ON))
    client, consumer = network.client(), network.client()
    consumer.receiver("q/1")
    link = client.sender(None)
    for _ in range(2):
        sent = client.send(link, message(to="q/1"))
        consumer.take(1)[0].accept()
        network.run()
        assert sent.outcome == Accepted()
    before = client.sender("q/1")
    require(network)
    assert isinstance(client.send(link, message(to="q/1")).outcome, Rejected)
    assert before.is_attached, "it counts for new links"
    assert refusal(client, client.sender("q/1")) is not None


def test_programs_in_the_process_have_no_connection_to_lose() -> None:
    network = Network(REQUIRED)
    client = network.client()
    client.record.inside = True
    link = client.sender("q/1")
    client.receiver("q/1")
    sent = client.send(link)
    client.take(1)[0].accept()
    network.run()
    assert sent.outcome == Accepted()


NO_CONTAINER = """[[connector]]
url = "amqp://b.example"
name = "b"
role = "container"
[[link]]
connector = "b"
source = "s"
address = "q/1"
"""


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ('alias = "b"', "address[0].resumption"),
        ('redirect = { hostname = "b.example" }', "address[0].resumption"),
        ("[resumption]\ntimeout = 0.5", "address[0].resumption"),
        ("[resumption]\nlinks_per_user = 0", "address[0].resumption"),
        (NO_CONTAINER, "link[0].address"),
    ],
    ids=["alias", "redirect", "no time", "no links", "container"],
)
def test_what_cannot_be_kept_is_an_error_of_the_configuration(more: str, key: str) -> None:
    text = f'[[address]]\npattern = "q/#"\nresumption = "required"\n{more}'
    with pytest.raises(ConfigError) as wrong:
        parse(tomllib.loads(text), Path("a.toml"))
    assert wrong.value.key == key
