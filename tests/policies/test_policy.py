"""Policies: tenants, groups, and the rights of a peer; judged a second time by a simple judge."""

from __future__ import annotations

import gc
import ipaddress
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.policies import managing
from amqpmesh.policies.access import Peer
from amqpmesh.policies.findings import findings
from amqpmesh.policies.groups import Group, May, pattern_fault
from amqpmesh.policies.managing import KINDS, Manage, managed
from amqpmesh.policies.names import NamePattern
from amqpmesh.policies.policy import Policy
from amqpmesh.policies.rights import Rights
from amqpmesh.policies.tenants import Match, Tenant, fault
from amqpmesh.policies.variables import filled
from amqpmesh.router.config.policy_file import parse_policy

TEXTS = st.text("ab*./", max_size=8)


@given(pattern=TEXTS, name=TEXTS)
def test_a_star_in_the_pattern_of_a_name_stands_for_any_characters(pattern: str, name: str) -> None:
    simple = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None
    assert NamePattern(pattern).matches(name) is simple


@pytest.mark.parametrize(
    ("pattern", "user", "expected"),
    [
        ("replies/${user}/#", "alice", "replies/alice/#"),
        ("replies/${user}/#", "alice.smith", "replies/alice.smith/#"),
        ("replies/${user}/#", "alice@example.org", "replies/alice@example.org/#"),
        ("replies.${user}.#", "alice.smith", None),  # else alice could have what alice.smith may
        ("replies/${user}/#", "alice/boss", None),
        ("replies/${user}/#", "#", None),
        ("replies/${user}/#", "*", None),
        ("replies/${user}/#", "a.#", None),
        ("replies/${user}/#", "", None),
        ("replies/${user}/#", "a\0b", None),
        ("replies/${user}/#", "x" * 256, None),
        ("${user}", "${tenant}", "${tenant}"),
        ("${user}/#", "alice", "alice/#"),
        ("a/${user}#", "boss/", None),  # else the value makes a wildcard of the `#` next to it
        ("a/*${user}", ".boss", None),
    ],
)
def test_a_value_in_a_pattern_stands_for_itself(pattern: str, user: str, expected: str | None) -> None:
    assert filled(pattern, {"user": user, "tenant": "t"}) == expected


def test_a_peer_without_a_user_has_no_pattern_with_a_user() -> None:
    assert rights(Group(name="g", key="group[0]", send=("to/${user}", "all"))).send("to/") is None


@pytest.mark.parametrize("pattern", ["${user}/#", "${tenant}.q", "amqp${user}", "a${user}"])
def test_a_pattern_may_begin_with_a_variable(pattern: str) -> None:
    assert pattern_fault(pattern) is None


@pytest.mark.parametrize(
    "pattern", ["", "$management", "$${user}", "amqp$x", "amqp$${user}", "a/${user", "a/${host}", "a/${}"]
)
def test_such_a_pattern_is_refused(pattern: str) -> None:
    assert pattern_fault(pattern) is not None


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a*", "a\0", "ünïcode", "x" * 65, "a@b", "#"])
def test_such_a_name_of_a_tenant_is_refused(name: str) -> None:
    assert fault(name) is not None


def rights(*groups: Group, **shown: str) -> Rights:
    admitted = Policy([], groups).admit(Peer(container_id="c", **shown))
    assert admitted is not None
    return admitted.rights


def test_rights_of_all_groups_of_a_peer_add_up() -> None:
    one = Group(name="one", key="group[0]", users=(NamePattern("a*"),), send=("x/#",), may=frozenset({May.COPY}))
    two = Group(
        name="two", key="group[1]", users=(NamePattern("*e"),), receive=("y",), manage=frozenset({managed("write")})
    )
    alice = rights(one, two, user="alice")
    assert alice.groups == ("one", "two")
    assert str(alice.send("x/1")) == 'group[0].send[0] of group "one": x/#'
    assert alice.send("y") is None
    assert alice.receive("y") is not None
    assert alice.may(May.COPY) is not None
    assert alice.may(May.DYNAMIC) is None
    assert alice.manage(Manage.READ) is not None, "the right to write includes that to read"
    assert rights(one, two, user="anna").manage(Manage.READ) is None
    assert rights(one, two).groups == ()


@pytest.mark.parametrize(
    ("host", "has"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.1.2.3", False),
        ("::1", False),
        ("stream", False),
        ("", False),
    ],
)
def test_a_group_may_be_of_networks(host: str, has: bool) -> None:
    group = Group(name="g", key="group[0]", networks=(ipaddress.ip_network("10.0.0.0/8"),), send=("q",))
    assert (rights(group, host=host).send("q") is not None) is has


def test_peers_of_the_same_groups_share_their_rights_for_as_long_as_they_live() -> None:
    policy = Policy([], [Group(name="g", key="group[0]", send=("q",))])
    one, two = (policy.admit(Peer(container_id=each, user=each)) for each in ("a", "b"))
    assert one is not None
    assert two is not None
    assert one.rights is two.rights
    del one, two
    gc.collect()
    assert not policy._rights


def test_the_first_tenant_that_matches_is_the_peers_and_else_the_default() -> None:
    policy = Policy(
        [
            Tenant(name="rest", default=True),
            Tenant(name="a", match=(Match(user=NamePattern("a-*"), hostname=NamePattern("a.example")),)),
            Tenant(name="b", match=(Match(user=NamePattern("a-*")), Match(listener=NamePattern("b")))),
            Tenant(name="operator", match=(Match(certificate=NamePattern("CN=ops*")),)),
        ],
        [],
    )

    def tenant(**shown: str) -> str:
        admitted = policy.admit(Peer(container_id="c", tenant="forged", **shown))
        assert admitted is not None
        return admitted.peer.tenant

    assert tenant(user="a-1", hostname="a.example") == "a"
    assert tenant(user="a-1", hostname="b.example") == "b"
    assert tenant(user="x", listener="b") == "b"
    assert tenant(certificate_subject="CN=ops,O=x") == ""
    assert tenant(user="x") == "rest"
    assert tenant() == "rest"


def test_a_peer_that_comes_into_no_tenant_is_not_admitted() -> None:
    policy = Policy([Tenant(name="a", match=(Match(user=NamePattern("*")),))], [])
    assert policy.admit(Peer(container_id="c")) is None, "a peer without a user matches no pattern of users"


NAMES = st.sampled_from(["", "a", "b", "operator", "svc-a", "svc-b"])
PATTERNS = st.sampled_from(["#", "*", "a", "a/#", "a/${user}", "${tenant}/*", "b.*"])
ADDRESSES = st.sampled_from(["a", "b", "a/a", "a/svc-a", "t/x", "b.c", "a/b/c", "operator/x", ""])
GROUPS = st.builds(
    Group,
    name=st.just("g"),
    key=st.uuids().map(str),
    tenant=st.sampled_from(["", "t"]),
    users=st.lists(st.sampled_from(["a", "svc-*", "*"]).map(NamePattern), max_size=2).map(tuple),
    send=st.lists(PATTERNS, max_size=3).map(tuple),
)


def _simple(pattern: str, address: str) -> bool:
    """Return whether an address falls under a pattern, by its definition, for patterns of this test."""
    if pattern == "#":
        return True
    if pattern.endswith("/#"):
        return address == pattern[:-2] or address.startswith(pattern[:-1])
    return re.fullmatch("[^/.]*".join(map(re.escape, pattern.split("*"))), address) is not None


@given(groups=st.lists(GROUPS, max_size=4), user=NAMES, of_t=st.booleans(), address=ADDRESSES)
def test_a_simple_judge_decides_the_same(groups: list[Group], user: str, of_t: bool, address: str) -> None:
    policy = Policy(
        [Tenant(name="t", match=(Match(listener=NamePattern("t")),)), Tenant(name="operator", default=True)], groups
    )
    admitted = policy.admit(Peer(container_id="c", user=user or None, listener="t" if of_t else ""))
    assert admitted is not None
    tenant = "t" if of_t else "operator"
    permitted = any(
        _simple(pattern.replace("${user}", user).replace("${tenant}", tenant), address)
        for group in groups
        for pattern in group.send
        if group.tenant == ("t" if of_t else "")
        and (not group.users or (user and any(each.matches(user) for each in group.users)))
        and (user or "${user}" not in pattern)
    )
    assert (admitted.rights.send(address) is not None) is permitted


def test_lines_without_effect_are_found() -> None:
    match = Match(user=NamePattern("a"))
    policy = Policy(
        [Tenant(name="a", match=(match,)), Tenant(name="b", match=(match,))],
        [
            Group(name="all", key="group[0]", tenant="a", send=("x",)),
            Group(name="some", key="group[1]", tenant="a", users=(NamePattern("u"),), send=("x", "y")),
            Group(name="other", key="group[2]", tenant="b", send=("x",), manage=frozenset({managed("write")})),
            Group(name="none", key="group[3]", tenant="b"),
        ],
    )
    assert list(findings(policy)) == [
        'tenant "b": match[0] never applies: match[0] of tenant "a" covers it',
        'group[1] "some" has no peers: no way into tenant "a" admits them, unless their token names the tenant',
        'group[1].send[0] adds nothing: group[0] "all" permits it to the same peers',
        'group[2].manage gives no more than read: all that can be changed is of the tenant "operator"',
        'group[3] "none" permits nothing',
    ]
    assert not list(findings(Policy([], [Group(name="g", key="group[0]", send=("x",))])))


@pytest.mark.parametrize("tenant", ["", "billing"])
@pytest.mark.parametrize(
    ("line", "read", "read_links", "change", "change_listeners"),
    [
        ("read", True, True, False, False),
        ("write", True, True, True, True),
        ("link", False, True, False, False),
        ("read:link", False, True, False, False),
        ("read:address", False, False, False, False),
        ("write:listener", False, False, False, True),
    ],
)
def test_a_right_at_the_management_node_is_for_all_types_or_for_one(
    line: str, read: bool, read_links: bool, change: bool, change_listeners: bool, tenant: str
) -> None:
    group = Group(name="g", key="group[0]", tenant=tenant, manage=frozenset({managed(line)}))
    rights = Rights(Policy([], [group]), (group,), {})
    found = (
        rights.manage(Manage.READ),
        rights.manage(Manage.READ, "link"),
        rights.manage(Manage.WRITE),
        rights.manage(Manage.WRITE, "listener"),
    )
    assert [each is not None for each in found] == [read, read_links, change, change_listeners]
    assert rights.management is not None


@pytest.mark.parametrize("line", ["", "reed", "read:", "read:links", "link:read", ":link", "write:read", "read:read"])
def test_a_right_that_no_type_of_entities_has_is_refused(line: str) -> None:
    assert managing.fault(line) is not None


def test_each_type_of_entities_can_be_named() -> None:
    for kind in KINDS:
        assert [managing.fault(f"{right}{kind}") for right in ("", "read:", "write:")] == [None] * 3


def test_the_first_group_that_has_a_line_is_named_and_each_group_is_compared_with_few() -> None:
    def group(number: int, *users: str) -> Group:
        return Group(name=f"g{number}", key=f"group[{number}]", users=tuple(map(NamePattern, users)), send=("x",))

    compared = 0

    class Counting(NamePattern):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

        __hash__ = NamePattern.__hash__

    few = [group(0, "u"), group(1), group(2, "u")]
    assert [each.split(":")[1].split('"')[0].strip() for each in findings(Policy([], few))] == ["group[0]"]
    many = [Group(name=str(each), key="k", users=(Counting(str(each)),), send=("x",)) for each in range(300)]
    assert not list(findings(Policy([], many)))
    assert compared < 3000, "each group is not compared with each other"


def test_the_original_a_host_is_read_once_for_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    network = (ipaddress.ip_network("10.0.0.0/8"),)
    policy = Policy([], [Group(name=str(each), key=str(each), networks=network) for each in range(100)])
    read = []
    original = ipaddress.ip_address
    monkeypatch.setattr(ipaddress, "ip_address", lambda host: read.append(host) or original(host))
    admitted = policy.admit(Peer(container_id="c", host="10.77.66.55"))
    assert admitted is not None
    assert len(admitted.rights.groups) == 100
    assert len(read) <= 1


@pytest.mark.parametrize("shown", ["listener", "hostname", "user", "certificate"])
def test_what_a_peer_does_not_show_matches_no_value(shown: str) -> None:
    match = Match(**{shown: NamePattern("*")})
    assert not match.fits(Peer(container_id="c"))


def checked(text: str) -> list[str]:
    return list(findings(parse_policy(tomllib.loads(text), Path("policy.toml"))))


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ('{ user = "*" }', '{ user = "b-*" }', True),
        ('{ user = "b*" }', '{ user = "b-*", hostname = "h" }', True),
        ('{ user = "b-*x" }', '{ user = "b-*" }', False),
        ('{ user = "b-*", hostname = "h" }', '{ user = "b-*" }', False),
        ('{ user = "b-*", listener = "*" }', '{ listener = "l", user = "b-1" }', True),
        ('{ claim = "team", value = "*" }', '{ claim = "team", value = "b" }', True),
        ('{ claim = "team", value = "*" }', '{ claim = "role", value = "b" }', False),
        ('{ certificate = "*,O=B" }', '{ certificate = "CN=*,O=B", user = "b" }', True),
    ],
)
def test_a_way_that_an_earlier_one_covers_is_found(first: str, second: str, found: bool) -> None:
    group = '[[group]]\ntenant = "{0}"\nname = "{0}"\nsend = ["q"]\n'
    text = f'[[tenant]]\nname = "a"\nmatch = [{first}]\n[[tenant]]\nname = "b"\nmatch = [{second}]\n'
    expected = ['tenant "b": match[0] never applies: match[0] of tenant "a" covers it'] if found else []
    assert checked(text + group.format("a") + group.format("b")) == expected


@pytest.mark.parametrize(
    ("way", "conditions", "found"),
    [
        ('{ user = "b-*" }', 'users = ["a-*"]', True),
        ('{ user = "b-*" }', 'users = ["a-*", "b*-x"]', False),
        ('{ user = "b-*" }', 'users = ["*-x"]', False),
        ('{ user = "b" }', 'users = ["b?"]', True),
        ('{ user = "b-*" }, { hostname = "h" }', 'users = ["a-*"]', False),
        ('{ certificate = "*,O=B" }', 'certificates = ["*,O=A"]', True),
        ('{ claim = "team", value = "b" }', 'claims = { team = "a" }', False),
    ],
)
def test_a_group_that_no_peer_of_its_tenant_can_be_in_is_found(way: str, conditions: str, found: bool) -> None:
    text = f'[[tenant]]\nname = "b"\nmatch = [{way}]\n[[group]]\ntenant = "b"\nname = "g"\nsend = ["q"]\n{conditions}\n'
    expected = 'group[0] "g" has no peers: no way into tenant "b" admits them, unless their token names the tenant'
    assert checked(text) == ([expected] if found else [])
    assert not checked(text.replace("match =", "default = true\nmatch =")), "others come in without a way"


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ('send = ["#", "a/b"]', "", "group[0].send[1] adds nothing: group[0].send[0]"),
        ('send = ["a/b/c", "a/#"]', "", "group[0].send[0] adds nothing: group[0].send[1]"),
        ('send = ["${user}/x", "#"]', "", "group[0].send[0] adds nothing: group[0].send[1]"),
        ('send = ["${user}/x", "*/x"]', "", None),
        ('send = ["a/*", "a.b"]', "", None),
        ('send = ["a/*"]', 'send = ["a/b"]\nusers = ["u"]', "group[1].send[0] adds nothing: group[0].send[0]"),
        ('send = ["a/*"]\nusers = ["u"]', 'send = ["a/b"]', None),
        ('send = ["a/*"]', 'receive = ["a/b"]', None),
    ],
)
def test_a_line_that_a_wider_pattern_covers_is_found(one: str, other: str, found: str | None) -> None:
    second = f'[[group]]\nname = "h"\n{other}\n' if other else ""
    told = checked(f'[[group]]\nname = "g"\n{one}\n{second}')
    assert [each.partition(" of ")[0] for each in told] == ([] if found is None else [found])


@given(TEXTS, TEXTS, st.text("ab./", max_size=6))
def test_patterns_of_names_cover_and_overlap_as_their_names_do(one: str, other: str, name: str) -> None:
    left, right = NamePattern(one), NamePattern(other)
    if left.covers(right) and right.matches(name):
        assert left.matches(name)
    if left.matches(name) and right.matches(name):
        assert left.overlaps(right)
        assert right.overlaps(left)
    if left.overlaps(right) and not (left.is_name or right.is_name):
        begin, end = (max(pair, key=len) for pair in ((left.prefix, right.prefix), (left.suffix, right.suffix)))
        both = f"{begin}{one.replace('*', '')}{other.replace('*', '')}{end}"
        assert left.matches(both)
        assert right.matches(both)
