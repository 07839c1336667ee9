"""Redirects that may be followed, and redirects that may not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.policies.redirect import (
    MAX_REDIRECTS,
    NotFollowedError,
    PeerAddress,
    Redirect,
    RedirectChain,
    RedirectPolicy,
    pattern_refusal,
)

HERE = PeerAddress.named("a.example", 5671, secure=True)
START = RedirectChain(HERE, "orders")
ANY = RedirectPolicy(allowed=("*",))


@pytest.mark.parametrize(
    ("redirect", "place", "address"),
    [
        (
            Redirect(hostname="b.example", network_host="127.0.0.1", port=5672, address="there"),
            PeerAddress(network_host="127.0.0.1", port=5672, secure=True, hostname="b.example", certified="b.example"),
            "there",
        ),
        (Redirect(hostname="b.example"), PeerAddress.named("b.example", 5671, secure=True), "orders"),
        (
            Redirect(network_host="b.example"),
            PeerAddress(network_host="b.example", port=5671, secure=True, hostname="a.example", certified="a.example"),
            "orders",
        ),
        (Redirect(port=5672), PeerAddress.named("a.example", 5672, secure=True), "orders"),
        (Redirect(address="there"), HERE, "there"),
    ],
    ids=["all", "hostname", "network-host", "port", "address"],
)
def test_a_field_that_a_redirect_does_not_set_stays(redirect: Redirect, place: PeerAddress, address: str) -> None:
    found = ANY.follow(START, redirect)
    assert (found.place, found.address) == (place, address)
    assert found.is_redirected
    assert not START.is_redirected


def test_the_host_that_is_wanted_may_be_another_than_the_one_to_connect_to() -> None:
    place = PeerAddress.named("a.example", 5671, secure=True, hostname="tenant")
    assert (place.hostname, place.certified) == ("tenant", "a.example")
    moved = place.moved(Redirect(network_host="b.example"))
    assert (moved.hostname, moved.certified) == ("tenant", "a.example")
    assert (str(moved), moved.described) == ("amqps://b.example:5671", "amqps://b.example:5671 as tenant")
    assert PeerAddress.named("::1", 5672, secure=False).described == "amqp://[::1]:5672"


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("a.example", True),
        ("A.Example.", True),
        ("b.example", False),
        ("deep.in.c.example", True),
        ("d.c.example", True),
        ("c.example", False),
        ("xc.example", False),
        ("127.0.0.1", False),
        ("::1", True),
        ("0:0:0:0:0:0:0:1", True),
        ("::2", False),
        ("a.example ", False),
        ("a.example/x", False),
        ("evil/.c.example", False),
        ("evil@d.c.example", False),
        ("evil#.c.example", False),
        ("evil:5672", False),
        ("*.c.example", False),
        ("", False),
        (".", False),
    ],
)
def test_only_hosts_that_the_user_named_are_allowed(host: str, allowed: bool) -> None:
    redirect_policy = RedirectPolicy(own=("a.example",), allowed=("*.c.example", "::1"))
    assert redirect_policy.allows(host) is allowed
    for redirect in (Redirect(hostname=host, port=1), Redirect(network_host=host, port=1)):
        if allowed:
            assert redirect_policy.follow(START, redirect).place.port == 1
        else:
            with pytest.raises(NotFollowedError, match="is not allowed"):
                redirect_policy.follow(START, redirect)


def test_both_hosts_of_a_redirect_have_to_be_allowed() -> None:
    redirect_policy = RedirectPolicy(allowed=("b.example",))
    for one, other in (("b.example", "evil.example"), ("evil.example", "b.example")):
        with pytest.raises(NotFollowedError, match="'evil.example' is not allowed"):
            redirect_policy.follow(START, Redirect(hostname=one, network_host=other))


def test_a_place_that_was_met_before_in_a_row_is_not_gone_to_again() -> None:
    b = ANY.follow(START, Redirect(hostname="b.example"))
    c = ANY.follow(b, Redirect(hostname="c.example"))
    for chain, redirect in (
        (START, Redirect(hostname="A.example")),
        (b, Redirect(hostname="a.example")),
        (c, Redirect(hostname="a.example")),
        (c, Redirect(hostname="b.example", network_host="b.example.")),
    ):
        with pytest.raises(NotFollowedError, match="circle"):
            ANY.follow(chain, redirect)
    with pytest.raises(NotFollowedError, match="names no place"):
        ANY.follow(START, Redirect())
    # The same container with another address is another place.
    assert ANY.follow(c, Redirect(hostname="a.example", address="there")).address == "there"
    # A row that starts there does not know earlier ones.
    assert ANY.follow(RedirectChain(c.place, "orders"), Redirect(hostname="a.example")).place == HERE


def test_no_more_redirects_in_a_row_are_followed_than_the_limit_says() -> None:
    for redirect_policy, limit in ((ANY, MAX_REDIRECTS), (RedirectPolicy(allowed=("*",), limit=1), 1)):
        chain = START
        for number in range(limit):
            chain = redirect_policy.follow(chain, Redirect(port=number + 1))
        with pytest.raises(NotFollowedError, match=f"more than the {limit} in a row"):
            redirect_policy.follow(chain, Redirect(port=limit + 1))


def test_a_host_of_any_length_is_told_in_a_few_words() -> None:
    with pytest.raises(NotFollowedError) as refused:
        RedirectPolicy().follow(START, Redirect(hostname="x" * 10_000))
    assert len(str(refused.value)) < 120


@pytest.mark.parametrize("pattern", ["b.example", "*.example", "*", "127.0.0.1", "::1", "localhost"])
def test_patterns_are_hosts(pattern: str) -> None:
    assert pattern_refusal([pattern]) is None


@pytest.mark.parametrize(
    "pattern", ["", "*.", "b.*", "**", "*.*.example", "amqp://b.example", "b.example:5672", "[::1]", "b c"]
)
def test_an_invalid_pattern_of_hosts_is_refused(pattern: str) -> None:
    refusal = pattern_refusal(["b.example", pattern])
    assert refusal is not None
    assert repr(pattern) in refusal


hosts = st.sampled_from(["a.example", "b.example", "c.example", "x.c.example", "127.0.0.1", "::1"])
redirects = st.builds(
    Redirect,
    hostname=st.none() | hosts,
    network_host=st.none() | hosts,
    port=st.none() | st.integers(1, 3),
    address=st.none() | st.sampled_from("xyz"),
)
followings = st.builds(
    RedirectPolicy,
    own=st.lists(hosts).map(tuple),
    allowed=st.lists(hosts | st.just("*.c.example")).map(tuple),
    limit=st.integers(0, 8),
)


@given(followings, st.booleans(), st.lists(redirects, max_size=20))
def test_a_client_that_follows_redirects_ends_in_few_steps_at_a_permitted_place_and_keeps_tls(
    redirect_policy: RedirectPolicy, secure: bool, row: list[Redirect]
) -> None:
    start = chain = RedirectChain(PeerAddress.named("a.example", 5672, secure=secure))
    met = [(start.place, start.address)]
    for redirect in row:
        try:
            chain = redirect_policy.follow(chain, redirect)
        except NotFollowedError:
            break
        assert chain.place.secure is secure
        for host in (chain.place.network_host, chain.place.hostname, chain.place.certified):
            assert redirect_policy.allows(host) or host == "a.example"
        assert (chain.place, chain.address) not in met
        met.append((chain.place, chain.address))
    assert len(met) - 1 <= redirect_policy.limit
