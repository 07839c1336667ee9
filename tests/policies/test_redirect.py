"""Redirects: fields that stay unchanged, and redirects in circles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.policies.redirect import Redirect, comes_back

HERE = Redirect(network_host="here")
THERE = Redirect(network_host="there")


def is_here(redirect: Redirect) -> bool:
    return redirect.network_host == "here"


def to(address: str, host: str = "here") -> Redirect:
    return Redirect(network_host=host, address=address)


def test_the_address_that_was_asked_for_stays_unless_another_is_said() -> None:
    assert THERE.for_address("a") == to("a", "there")
    assert to("b", "there").for_address("a") == to("b", "there")


@pytest.mark.parametrize(
    ("first", "rules", "comes"),
    [
        (THERE, {}, False),
        (HERE, {}, True),  # the same address at the same router, which redirects it
        (to("a"), {}, False),
        (to("a"), {"a": to("b")}, False),
        (to("a"), {"a": to("a")}, True),
        (to("a"), {"a": HERE}, True),
        (to("a"), {"a": THERE}, False),
        (to("a"), {"a": to("b"), "b": to("a")}, True),
        (to("a"), {"a": to("b"), "b": to("a", "there")}, False),
        (to("a", "there"), {"a": to("a")}, False),
    ],
)
def test_a_peer_that_follows_redirects_comes_back_or_arrives(
    first: Redirect, rules: dict[str, Redirect], comes: bool
) -> None:
    assert comes_back(first, rules.get, is_here) is comes


names = st.sampled_from("abcd")
redirects = st.builds(
    Redirect, network_host=st.sampled_from(["here", "here", "there"]), address=st.one_of(st.none(), names)
)


@given(names, st.dictionaries(names, redirects))
def test_what_does_not_come_back_is_followed_to_its_end_in_no_more_steps_than_there_are_rules(
    start: str, rules: dict[str, Redirect]
) -> None:
    at, steps = start, 0
    while at in rules and is_here(rules[at]) and steps <= len(rules):
        at = rules[at].for_address(at).address or ""
        steps += 1
    first = rules.get(start)
    assert (first is not None and comes_back(first, rules.get, is_here)) == (steps > len(rules))
