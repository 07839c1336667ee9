"""Identities that are made to be taken for another one: each gets its own tenant and its own addresses, or none."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.policies.access import Peer
from amqpmesh.policies.claims import NO_CLAIMS, Claims
from amqpmesh.router.amqp.link import Terminus
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.config.policy_file import parse_policy
from amqpmesh.router.endpoint_setup import TENANT
from tests.support.worlds.network import Network

if TYPE_CHECKING:
    from tests.support.worlds.network import Client

POLICY = parse_policy(
    tomllib.loads("""
        [[tenant]]
        name = "billing"
        match = [{ user = "billing-*" }, { hostname = "billing.example" }, { claim = "team", value = "billing" }]
        [[tenant]]
        name = "Billing"
        match = [{ user = "Billing-*" }]
        [[group]]
        tenant = "billing"
        name = "everyone"
        send = ["to/${user}/#", "of/${claim.team}"]
        receive = ["to/${user}/#"]
        [[group]]
        tenant = "Billing"
        name = "everyone"
        send = ["to/billing-ann/#", "to/${user}/#"]
        receive = ["to/billing-ann/#"]
    """),
    Path("policy.toml"),
)

CONFUSABLE = [
    *("", "*", "#", "billing", "Billing", "billing_ann", "\0billing-ann", " billing-ann", "../billing-ann"),
    *("\uff42illing-ann", "bill\u0456ng-ann", "bil\u200bling-ann", "\u202ebilling-ann", "BILLING-ANN"),
]


def peer(user: str | None = None, claims: Claims = NO_CLAIMS) -> Peer:
    return Peer(container_id="c", user=user, claims=claims)


def network() -> Network:
    made = Network()
    made.core.set_policy(POLICY, made.now)
    return made


def is_refused(client: Client) -> bool:
    return client.engine.remote is not None and client.record.lost


@pytest.mark.parametrize("user", CONFUSABLE)
def test_a_user_that_looks_like_one_of_a_tenant_is_in_none(user: str) -> None:
    assert POLICY.admit(peer(user=user)) is None
    if user:
        assert is_refused(network().client(user=user))


@pytest.mark.parametrize(
    "hostname", ["", "*", "BILLING.EXAMPLE", "billing.example.", "billing.example\0", "a.billing.example"]
)
def test_a_hostname_that_looks_like_that_of_a_tenant_chooses_none(hostname: str) -> None:
    assert is_refused(network().client(hostname=hostname))


def test_a_user_with_a_pattern_or_a_separator_gets_no_address_of_another() -> None:
    world = network()
    for user in (
        "billing-*",
        "billing-#",
        "billing-ann/#",
        "billing-x/../billing-ann",
        "billing-ann\0",
        "billing-${user}",
    ):
        client = world.client(user=user)
        assert client.record.peer.tenant == "billing"
        for address in ("to/billing-ann", "to/billing-ann/1", f"to/{user}/../billing-ann/1"):
            assert not client.receiver(address).is_attached or address.startswith(f"to/{user}/"), (user, address)
    world.leave()


def test_tenants_whose_names_differ_in_case_alone_are_two() -> None:
    world = network()
    ann, other = world.client(user="billing-ann"), world.client(user="Billing-bob")
    assert (ann.record.peer.tenant, other.record.peer.tenant) == ("billing", "Billing")
    receiver, sender = ann.receiver("to/billing-ann/1"), other.sender("to/billing-ann/1")
    assert receiver.is_attached
    assert sender.is_attached
    assert not sender.credit, "the address of the same name is another one"
    world.leave()


def test_the_tenant_that_a_client_names_in_an_attach_counts_for_nothing() -> None:
    world = network()
    ann, other = world.client(user="billing-ann"), world.client(user="Billing-bob")
    ann.receiver("to/billing-ann/1")
    for said in ("billing", "", "operator"):
        sender = other.session.attach(
            Terminus(said, Role.SENDER),
            source=Source(),
            target=Target(address="to/billing-ann/1"),
            properties={TENANT: said},
            initial_delivery_count=0,
        )
        world.run()
        assert sender.is_attached
        assert not sender.credit, "it is an address of its own tenant"
    world.leave()


def test_a_claim_that_is_no_text_or_a_pattern_matches_nothing_of_a_tenant() -> None:
    for value in ("*", "billing\0", "billing ", "Billing", "billing/#", "bill*"):
        assert POLICY.admit(peer(claims=Claims({"team": (value,)}))) is None
    admitted = POLICY.admit(peer(claims=Claims({"team": ("x", "billing", "a/#", "*")})))
    assert admitted is not None
    sends = [each for each in ("of/billing", "of/x", "of/a/1", "of/y") if admitted.rights.send(each) is not None]
    assert sends == ["of/billing", "of/x"]


@given(st.text(max_size=20))
def test_any_user_is_in_the_tenant_that_its_first_letters_say_or_in_none(user: str) -> None:
    admitted = POLICY.admit(peer(user=user))
    expected = next((each for each in ("billing", "Billing") if user.startswith(f"{each}-")), None)
    assert (None if admitted is None else admitted.peer.tenant) == expected
