"""Changed policies, and links that exist: each link that loses its right ends, whatever happens in between, and what a
change does not concern costs nothing.
"""

from __future__ import annotations

import gc
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.policies.policy import Policy
from amqpmesh.policies.user_ids import ALL
from amqpmesh.router.amqp.link import Terminus
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.messaging import DistributionMode, Source, Target
from amqpmesh.router.config.policy_file import parse_policy
from tests.support.worlds.network import Client, Network

if TYPE_CHECKING:
    from types import FrameType

    from amqpmesh.router.amqp.link import Link

WIDE = 'send = ["user/${user}/#", "shared/*"]\nreceive = ["user/${user}/#", "shared/*"]'


def policy(*groups: str, tenants: str = "") -> Policy:
    text = "".join(f'[[group]]\nname = "g{number}"\n{each}\n' for number, each in enumerate(groups))
    return parse_policy(tomllib.loads(tenants + text), Path("policy.toml"))


def calls_of_change(world: Network, changed: Policy) -> int:
    """Return how many calls it takes to put a policy in force."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.collect()
    gc.disable()  # it would call the finalizers of other tests' objects
    sys.setprofile(count)
    try:
        world.core.set_policy(changed, world.now)
        while world.core.context.chores:
            world.core.work(world.now, lambda: False)
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def calls_a_link(before: Policy, after: Policy) -> float:
    """Return the calls that each further link of a connection costs at a change."""
    totals, worlds = [], []
    for count in (20, 20, 120):  # the first fills caches, and has the rights made that all use
        world = Network()
        worlds.append(world)
        world.core.set_policy(before, world.now)
        client = world.client(user="ann")
        for number in range(count):
            address = f"user/ann/{number}" if number % 2 else f"shared/{number}"
            (client.sender if number % 4 < 2 else client.receiver)(address)
        totals.append(calls_of_change(world, after))
        assert not client.detached
    return (totals[2] - totals[1]) / 100


@pytest.mark.parametrize(
    "after",
    [
        (WIDE,),
        ('send = ["new"]\nmay = ["copy"]', WIDE.replace("receive", 'manage = ["read"]\nreceive')),
        (WIDE, 'send = ["new"]\nlimits = { connections = 9 }\nusers = ["bob"]'),
    ],
    ids=["the same", "more rights in another order", "another user's"],
)
def test_links_that_a_change_does_not_concern_cost_nothing(after: tuple[str, ...]) -> None:
    assert calls_a_link(policy(WIDE), policy(*after)) < 0.5


@pytest.mark.parametrize(
    ("before", "after", "most"),
    [
        ([WIDE, 'send = ["gone/#"]\nreceive = ["gone"]'], [WIDE], 12),
        ([WIDE, 'may = ["copy", "dynamic"]\nmanage = ["read"]'], [WIDE], 12),
        ([WIDE], [WIDE.replace("#", "*")], 50),
        ([WIDE], [WIDE + '\nuser_id = "match"'], 8),
    ],
    ids=["others of its lines are gone", "other rights are gone", "its lines are others", "user-ids"],
)
def test_links_of_a_peer_that_loses_something_cost_little(before: list[str], after: list[str], most: int) -> None:
    assert 0 < calls_a_link(policy(*before), policy(*after)) <= most


def test_links_that_lose_a_right_stop_before_the_rates_of_others_are_looked_at() -> None:
    world = Network()
    world.core.set_policy(policy('send = ["q"]', 'users = ["bob"]\nsend = ["b"]'), world.now)
    ann, bob = world.client(user="ann"), world.client(user="bob")
    for _ in range(50):
        ann.sender("q")
    bob.sender("b")
    world.core.set_policy(policy('send = ["q"]\nlimits = { messages = 1000 }'), world.now)
    (lost,), context = bob.record.incoming, world.core.context
    while lost not in context.ended_links.stopped:
        context.chores.step()
    assert not any(each.credit_sink.meter for each in ann.record.incoming)
    world.run()
    assert all(each.credit_sink.meter for each in ann.record.incoming)


SHARED = """
[[tenant]]
name = "a"
default = true
imports = [{ from = "b", pattern = "shared/1" }]

[[tenant]]
name = "b"
match = [{ user = "b" }]
exports = [{ to = "a", pattern = "shared/1", may = ["send"] }]
"""
POLICIES = [
    policy(*groups, tenants=tenants)
    for groups, tenants in (
        ([WIDE], ""),
        ([WIDE, 'may = ["copy", "dynamic", "anonymous"]'], ""),
        (['send = ["shared/*"]\nreceive = ["user/${user}/1"]\nmay = ["dynamic"]\nuser_id = "match"'], ""),
        (['receive = ["#"]\nmay = ["copy"]\nlimits = { messages = 1000 }'], ""),
        (['send = ["shared/#"]', 'users = ["ann"]\nsend = ["user/#"]\nreceive = ["shared/1"]'], ""),
        ([], ""),
        (['tenant = "a"\n' + WIDE], '[[tenant]]\nname = "a"\ndefault = true\nlimits = { messages = 2000 }\n'),
        (['tenant = "a"\nsend = ["#"]'], '[[tenant]]\nname = "a"\ndefault = true\n'),
        (
            ['tenant = "a"\n' + WIDE],
            SHARED,
        ),
    )
]
ADDRESSES = ["shared/1", "shared/2", "user/ann/1", "user/bob/2", "user/ann/1/x", None]


def attach(client: Client, name: str, address: str | None, way: str) -> Link:
    """Have a client attach a link, without any other work of the router."""
    sends = way == "send"
    made = client.session.attach(
        Terminus(name, Role.SENDER if sends else Role.RECEIVER),
        source=Source()
        if sends
        else Source(
            address=address, dynamic=address is None, distribution_mode=DistributionMode.COPY if way == "copy" else None
        ),
        target=Target(address=address) if sends else Target(),
    )
    world = client.network
    world.core.receive(client.record, client.engine.data_to_send(world.now), world.now)
    return made


ACTIONS = st.one_of(
    st.tuples(st.just("policy"), st.integers(0, len(POLICIES) - 1)),
    st.tuples(
        st.just("attach"), st.integers(0, 2), st.sampled_from(ADDRESSES), st.sampled_from(["send", "receive", "copy"])
    ),
    st.tuples(st.just("steps"), st.integers(1, 6)),
    st.tuples(st.just("all")),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTIONS, min_size=4, max_size=25), st.integers(0, len(POLICIES) - 1))
def test_after_any_history_exactly_what_the_policy_permits_is_attached(history: list[Any], first: int) -> None:
    world = Network()
    world.core.set_policy(POLICIES[first], world.now)
    clients = [world.client(user=user) for user in ("ann", "bob", "ann")]
    context = world.core.context
    for number, (action, *arguments) in enumerate(history):
        if action == "policy":
            world.core.set_policy(POLICIES[arguments[0]], world.now)
        elif action == "attach":
            client = clients[arguments[0]]
            if not (client.is_lost or client.record.lost):
                attach(client, f"l{number}", *arguments[1:])
        elif action == "steps":
            left = arguments[0]
            while context.chores and left:
                context.chores.step()
                left -= 1
            world.core.change(lambda: None, world.now)
        else:
            world.run()
    world.run()
    assert not context.ended_links.stopped
    now = context.policy
    assert now is not None
    for record in context.connections:
        admitted = now.admit(record.peer)
        assert admitted is not None
        assert admitted.peer.tenant == record.peer.tenant
        rights = admitted.rights
        limited = rights.limits.messages is not None or rights.tenant_limits.messages is not None
        for incoming in record.incoming:
            assert (incoming.credit_sink.meter is not None) == limited
            assert (incoming.endpoint.flow_state.user_ids is not None) == (rights.user_ids != ALL)
            if incoming.node is None:
                assert rights.may("anonymous")
            else:
                assert rights.send(incoming.node.name)
                is_theirs = now.exports.imported(record.peer.tenant, incoming.node.name) is not None
                assert (incoming.foreign is not None) == is_theirs
        for outgoing in record.outgoing:
            assert outgoing.node is not None
            dynamic = outgoing.node.name.startswith("$dynamic")
            assert rights.may("dynamic") if dynamic else rights.receive(outgoing.node.name)
            assert dynamic or now.exports.imported(record.peer.tenant, outgoing.node.name) is None
            assert not outgoing.copy or rights.may("copy")
