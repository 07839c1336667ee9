"""Claims, groups and scopes of tokens in policies."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.policies.access import Peer
from amqpmesh.policies.claims import ClaimMatch, Claims
from amqpmesh.policies.findings import findings
from amqpmesh.policies.groups import Group, May, pattern_fault
from amqpmesh.policies.managing import Manage
from amqpmesh.policies.names import NamePattern
from amqpmesh.policies.policy import Admitted, Policy
from amqpmesh.policies.scopes import ScopeRights, scope_of
from amqpmesh.policies.tenants import Match, Tenant
from amqpmesh.policies.variables import MOST, expanded


def peer(*, groups: tuple[str, ...] = (), token_tenant: str | None = None, **claims: tuple[str, ...]) -> Peer:
    return Peer(container_id="c", claims=Claims(claims), groups=groups, token_tenant=token_tenant)


def admitted(policy: Policy, shown: Peer) -> Admitted:
    found = policy.admit(shown)
    assert found is not None
    return found


def condition(name: str, *patterns: str) -> ClaimMatch:
    return ClaimMatch(name, tuple(map(NamePattern, patterns)))


def test_a_claim_chooses_the_tenant() -> None:
    policy = Policy([Tenant(name="billing", match=(Match(claim=condition("team", "billing")),))], [])
    assert admitted(policy, peer(team=("shop", "billing"))).peer.tenant == "billing"
    assert policy.admit(peer(team=("shop",))) is None
    assert policy.admit(peer()) is None


def test_a_claim_that_is_not_there_matches_no_pattern() -> None:
    assert not Match(claim=condition("team", "*")).fits(peer(other=("x",)))
    assert not Match(claim=condition("team", "*")).fits(peer(team=()))


def test_the_tenant_that_a_token_names_is_the_peers_or_none_is() -> None:
    policy = Policy([Tenant(name="a", match=(Match(user=NamePattern("*")),)), Tenant(name="b", default=True)], [])
    assert admitted(policy, peer(token_tenant="a")).peer.tenant == "a"
    for named in ("c", "", "a/b", "a\0", "A"):
        assert policy.admit(peer(token_tenant=named)) is None


def test_a_group_may_ask_for_claims_and_for_groups_of_a_token() -> None:
    group = Group(
        name="g",
        key="group[0]",
        groups=(NamePattern("svc-*"),),
        claims=(condition("team", "a", "b"), condition("role", "admin")),
        send=("q",),
    )
    policy = Policy([], [group])

    def may(shown: Peer) -> bool:
        return admitted(policy, shown).rights.send("q") is not None

    assert may(peer(groups=("x", "svc-1"), team=("b",), role=("user", "admin")))
    assert not may(peer(groups=("x",), team=("b",), role=("admin",)))
    assert not may(peer(groups=("svc-1",), team=("b",)))
    assert not may(peer(groups=("svc-1",), team=("c",), role=("admin",)))
    assert not may(peer())


def test_a_pattern_with_a_claim_stands_for_each_of_its_values() -> None:
    policy = Policy([], [Group(name="g", key="group[0]", send=("teams/${claim.team}/#",))])
    rights = admitted(policy, peer(team=("a", "b"))).rights
    assert str(rights.send("teams/a/1")) == 'group[0].send[0] of group "g": teams/${claim.team}/#'
    assert rights.send("teams/b/1") is not None
    assert rights.send("teams/c/1") is None
    assert admitted(policy, peer()).rights.send("teams//1") is None
    assert admitted(policy, peer(team=("a", "b"))).rights is rights, "peers with the same values share their rights"


@given(values=st.lists(st.text("ab*#/.\0${}", max_size=4), max_size=4), address=st.text("tab*#/.", max_size=8))
def test_a_value_of_a_claim_never_reaches_beyond_its_place(values: list[str], address: str) -> None:
    given_texts = {"claim.c": tuple(values)}
    for found in expanded("t/${claim.c}/#", given_texts):
        assert re.fullmatch(r"t/[^/\0]+/#", found), "the value is one token between the separators of the pattern"
        assert found[2:-2] not in ("*", "#")
        assert found[2:-2] in values


def test_claims_with_too_many_values_give_nothing() -> None:
    many = tuple(map(str, range(MOST)))
    assert len(list(expanded("${claim.a}", {"claim.a": many}))) == MOST
    assert not list(expanded("${claim.a}", {"claim.a": (*many, "x")}))
    assert not list(expanded("${claim.a}/${claim.b}", {"claim.a": many, "claim.b": ("1", "2")}))


@pytest.mark.parametrize("pattern", ["a/${claim.}", "a/${claim}", "a/${claims.x}"])
def test_a_variable_without_the_name_of_a_claim_is_refused(pattern: str) -> None:
    assert pattern_fault(pattern) is not None


def test_a_variable_may_have_the_name_of_any_claim() -> None:
    assert pattern_fault("a/${claim.https://example.org/team}/#") is None


def test_a_line_with_more_conditions_adds_nothing_to_one_with_fewer() -> None:
    policy = Policy(
        [],
        [
            Group(name="wide", key="group[0]", claims=(condition("team", "a"),), send=("x",)),
            Group(
                name="narrow", key="group[1]", claims=(condition("team", "a"),), groups=(NamePattern("g"),), send=("x",)
            ),
            Group(name="other", key="group[2]", claims=(condition("team", "b"),), send=("x",)),
        ],
    )
    assert list(findings(policy)) == [
        'group[1].send[0] adds nothing: group[0] "wide" permits it to the same peers',
    ]


@pytest.mark.parametrize(
    ("scope", "tenant", "address", "expected"),
    [
        ("write:*/*", "a", "x/y", True),
        ("write:a/x*", "a", "x/y", True),
        ("write:a/x*", "b", "x/y", False),
        ("write:a/x", "a", "x/y", False),
        ("write:a/x%2Fy", "a", "x/y", True),
        ("write:a/%2A", "a", "x", False),  # a literal star, and no wildcard
        ("write:a/%2A", "a", "*", False),
        ("write:operator/x", "", "x", True),
        ("write:a/*", "a", "$management", False),
        ("write:a/#", "a", "x", False),
        ("write:a", "a", "x", False),
        ("write:a/", "a", "", False),
        ("write:/x", "", "x", False),
        ("WRITE:*/*", "a", "x", False),
        ("read:*/*", "a", "x", False),
        ("amqpmesh.write:*/*", "a", "x", False),
        ("write:a/%FF", "a", "x", False),
        ("openid", "a", "x", False),
    ],
)
def test_a_scope_lets_a_peer_send(scope: str, tenant: str, address: str, expected: bool) -> None:
    rights = ScopeRights((scope,), tenant)
    assert (rights.send(address) is not None) is expected
    assert rights.receive(address) is None or scope.startswith("read:")


def test_scopes_add_to_the_rights_of_groups_and_are_named_in_answers() -> None:
    policy = Policy([], [Group(name="g", key="group[0]", send=("q",))])
    shown = Peer(container_id="c", scopes=("read:operator/news*", "configure:*/*", "tag:monitoring", "tag:x"))
    rights = admitted(policy, shown).rights
    assert rights.groups == ("g", "token")
    assert rights.send("q") is not None
    assert str(rights.receive("news/1")) == 'scope of group "token": read:operator/news*'
    assert rights.may(May.DYNAMIC) is not None
    assert rights.may(May.ANONYMOUS) is None
    assert rights.manage(Manage.READ) is not None
    assert rights.manage(Manage.WRITE) is None
    assert admitted(policy, Peer(container_id="c")).rights.receive("news/1") is None


def test_a_peer_that_may_write_may_be_an_anonymous_sender_and_configure_covers_dynamic_nodes() -> None:
    rights = ScopeRights(("write:a/x", "configure:a/x*"), "a")
    assert rights.group.may == {May.ANONYMOUS}
    assert ScopeRights(("configure:a/$dyn*",), "a").group.may == {May.DYNAMIC}
    assert ScopeRights(("configure:a/*",), "b").group.may == frozenset()


def test_claims_are_hashable_and_show_no_values() -> None:
    one, two = (Claims({"a": ("secret",), "b": ()}) for _ in range(2))
    assert hash(one) == hash(two)
    assert one == two
    assert dict(one) == {"a": ("secret",)}
    assert "secret" not in repr(Peer(container_id="c", claims=one))
    assert one.size == len("a") + len("secret")


def test_a_scope_that_is_none_of_an_address_is_none() -> None:
    assert scope_of("tag:monitoring") is None
