"""Indexes of rules by what a peer shows: they find each rule that has the peer, and ask few others."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.policies.access import Peer
from amqpmesh.policies.groups import Group
from amqpmesh.policies.names import NamePattern
from amqpmesh.policies.peer_index import PeerIndex
from amqpmesh.policies.policy import Policy
from amqpmesh.policies.tenants import Match, Tenant

PATTERNS = st.lists(st.text("ab*", min_size=1, max_size=4).map(NamePattern), max_size=2).map(tuple)
NETWORKS = st.lists(
    st.sampled_from(["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "::/0", "fd00::/8", "fd00::1/128"]).map(
        ipaddress.ip_network
    ),
    max_size=2,
).map(tuple)
GROUPS = st.builds(Group, name=st.just("g"), key=st.just(""), users=PATTERNS, certificates=PATTERNS, networks=NETWORKS)
SHOWN = st.none() | st.text("ab*", max_size=4)
HOSTS = st.sampled_from(["", "stream", "10.1.2.3", "::ffff:10.1.2.3", "10.9.9.9", "192.0.2.1", "fd00::1", "fe80::1"])
PEERS = st.builds(Peer, container_id=st.just("c"), user=SHOWN, certificate_subject=SHOWN, host=HOSTS)


@given(groups=st.lists(GROUPS, max_size=8), peer=PEERS)
def test_an_index_finds_each_group_that_has_the_peer_in_order(groups: list[Group], peer: Peer) -> None:
    index = PeerIndex((number, each.conditions) for number, each in enumerate(groups))
    found = index.candidates(peer)
    assert found == sorted(found)
    assert {number for number, each in enumerate(groups) if each.has(peer)} <= set(found)


def pattern(text: str) -> tuple[NamePattern, ...]:
    return (NamePattern(text),)


@pytest.mark.parametrize("users", ["user-{}", "user-{}-*", "*-of-{}", "same", "*"])
def test_a_peer_asks_few_of_two_thousand_groups(users: str, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [
        Group(
            name=f"g{number}",
            key=f"group[{number}]",
            users=pattern(users.format(number)),
            networks=(ipaddress.ip_network(f"10.{number // 200}.{number % 200}.0/24"),),
        )
        for number in range(2_000)
    ]
    policy = Policy([], groups)
    asked = []
    has = Group.has
    monkeypatch.setattr(Group, "has", lambda self, peer: asked.append(self) or has(self, peer))
    user = {"user-{}": "user-7", "user-{}-*": "user-7-x", "*-of-{}": "x-of-7"}.get(users, "same")
    admitted = policy.admit(Peer(container_id="c", user=user, host="10.0.7.1"))
    assert admitted is not None
    assert admitted.rights.groups == ("g7",)
    assert len(asked) <= 2


def test_a_peer_asks_few_of_two_thousand_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    tenants = [Tenant(name=f"t{n}", match=(Match(user=NamePattern(f"t{n}-*")),)) for n in range(2_000)]
    policy = Policy([*tenants, Tenant(name="rest", default=True)], [])
    asked = []
    fits = Match.fits
    monkeypatch.setattr(Match, "fits", lambda self, peer: asked.append(self) or fits(self, peer))
    for user, tenant in (("t7-x", "t7"), ("x", "rest"), (None, "rest")):
        admitted = policy.admit(Peer(container_id="c", user=user))
        assert admitted is not None
        assert admitted.peer.tenant == tenant
    assert len(asked) == 1
