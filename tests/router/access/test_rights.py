"""Rights of clients at a router: each way to an address, refused and permitted."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path

import pytest

from amqpmesh.policies.policy import Policy
from amqpmesh.router.access.change import end_logins
from amqpmesh.router.access.rights import check_address, may_change
from amqpmesh.router.amqp.link import Link
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Rejected
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.config.file import AddressConfig, ElsewhereConfig
from amqpmesh.router.config.policy_file import parse_policy
from amqpmesh.router.config.users import Users
from amqpmesh.router.kernel import AnonymousRoutes
from amqpmesh.router.management.service import ADDRESS as MANAGEMENT
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Client, Network, message

UNAUTHORIZED = "amqp:unauthorized-access"


def policy(text: str) -> Policy:
    return parse_policy(tomllib.loads(text), Path("policy.toml"))


def group(text: str) -> Policy:
    return policy(f'[[group]]\nname = "g"\n{text}')


def network(text: str, *addresses: AddressConfig) -> Network:
    made = Network(*addresses)
    made.core.set_policy(group(text), made.now)
    return made


def refusal(client: Client, link: Link) -> str | None:
    """Return the condition with which a link was refused; None: it is attached."""
    error = client.detached.get(link)
    if error is None:
        assert link.is_attached
        return None
    assert error.description == "not permitted", "a refusal says nothing of the policy"
    return str(error.condition)


@pytest.mark.parametrize(
    ("rights", "senders", "receivers", "copies"),
    [
        ('send = ["q"]', None, UNAUTHORIZED, UNAUTHORIZED),
        ('receive = ["q"]', UNAUTHORIZED, None, UNAUTHORIZED),
        ('receive = ["q"]\nmay = ["copy"]', UNAUTHORIZED, None, None),
        ('send = ["#"]\nreceive = ["#"]', None, None, UNAUTHORIZED),
        ('send = ["q/*"]\nreceive = ["Q"]', UNAUTHORIZED, UNAUTHORIZED, UNAUTHORIZED),
        ("", UNAUTHORIZED, UNAUTHORIZED, UNAUTHORIZED),
    ],
)
def test_a_link_to_an_address_needs_a_group_that_permits_it(
    rights: str, senders: str | None, receivers: str | None, copies: str | None
) -> None:
    client = network(rights).client()
    assert refusal(client, client.sender("q")) == senders
    assert refusal(client, client.receiver("q")) == receivers
    assert refusal(client, client.receiver("q", copy=True)) == copies


def test_what_is_refused_makes_no_node_and_is_counted() -> None:
    world = network('send = ["q"]')
    client = world.client()
    for number in range(10):
        client.receiver(f"secret/{number}")
    assert world.core.context.nodes.find("", "secret/0") is None
    assert world.core.context.denied == 10


def test_the_log_names_the_right_that_is_missing_and_the_groups(caplog: pytest.LogCaptureFixture) -> None:
    client = network('send = ["q"]').client()
    with caplog.at_level(logging.INFO, "amqpmesh"):
        client.receiver("orders")
    assert "no group permits receive from orders; its groups: g" in caplog.text


def test_an_alias_leads_to_the_address_that_is_judged() -> None:
    client = network('send = ["real"]', AddressConfig(pattern="alias", alias="real")).client()
    assert refusal(client, client.sender("alias")) is None
    client = network('send = ["alias"]', AddressConfig(pattern="alias", alias="real")).client()
    assert refusal(client, client.sender("alias")) == UNAUTHORIZED


@pytest.mark.parametrize(("rights", "expected"), [("", UNAUTHORIZED), ('may = ["dynamic"]', None)])
def test_dynamic_nodes_are_a_right(rights: str, expected: str | None) -> None:
    client = network(rights).client()
    assert refusal(client, client.receiver(None, source=Source(dynamic=True))) == expected
    assert refusal(client, client.sender(None, target=Target(dynamic=True))) == expected


def test_all_peers_may_send_to_a_dynamic_node_whose_name_they_know() -> None:
    world = network('may = ["dynamic"]')
    maker, other = world.client(), world.client()
    link = maker.receiver(None, source=Source(dynamic=True))
    assert link.remote is not None
    assert isinstance(link.remote.source, Source)
    name = link.remote.source.address
    sender = other.sender(name)
    assert refusal(other, sender) is None
    other.send(sender)
    maker.take(1)
    receiver = other.receiver(name)
    error = other.detached[receiver]
    assert error is not None
    assert error.condition == UNAUTHORIZED, "only its maker may receive from it"


def test_an_address_at_a_container_is_a_right() -> None:
    world = World("AB", [("A", "B")])
    for each in "AB":
        world[each].core.set_policy(group('send = ["q", "@B"]\nreceive = ["q"]'), world[each].now)
    client = world["A"].client()
    assert refusal(client, client.sender("q@B")) == UNAUTHORIZED
    assert refusal(client, client.sender("@B")) == UNAUTHORIZED
    world["A"].core.set_policy(group('send = ["q"]\nmay = ["container"]'), world["A"].now)
    assert refusal(client, client.sender("q@B")) is None
    assert refusal(client, client.sender("other@B")) == UNAUTHORIZED
    assert refusal(client, client.sender("@B")) == UNAUTHORIZED, "its messages name any address"


@pytest.mark.parametrize(
    ("rights", "expected"),
    [("", UNAUTHORIZED), ('send = ["#"]', UNAUTHORIZED), ('manage = ["read"]', None), ('manage = ["write"]', None)],
)
def test_the_management_node_is_a_right(rights: str, expected: str | None) -> None:
    world = network(rights)
    world.core.context.nodes.make_own(MANAGEMENT)
    client = world.client()
    assert refusal(client, client.sender(MANAGEMENT)) == expected


def test_each_address_of_an_anonymous_sender_is_judged() -> None:
    world = network('send = ["open/#"]\nreceive = ["#"]\nmay = ["anonymous"]')
    client = world.client()
    client.receiver("open/1")
    client.receiver("closed")
    sender = client.sender(None)
    for to, kind in (("open/1", Accepted), ("closed", Rejected), ("open/1", Accepted), ("$management", Rejected)):
        sent = client.send(sender, message(to=to))
        for each in client.take():
            each.accept()
        world.run()
        assert isinstance(sent.outcome, kind), to
    assert world.core.context.denied == 2


def test_an_anonymous_sender_needs_the_right() -> None:
    client = network('send = ["#"]').client()
    assert refusal(client, client.sender(None)) == UNAUTHORIZED


def test_a_changed_policy_is_in_force_for_an_address_that_has_a_route() -> None:
    world = network('send = ["q"]\nreceive = ["q"]\nmay = ["anonymous"]')
    client = world.client()
    client.receiver("q", credit=100)
    sender = client.sender(None)
    for _ in range(3):
        client.send(sender, message(to="q"))
    (link,) = client.record.incoming
    assert isinstance(link.endpoint.flow_state.fast_route, AnonymousRoutes)
    assert len(client.take()) == 3
    world.core.set_policy(group('receive = ["q"]\nmay = ["anonymous"]'), world.now)
    sent = client.send(sender, message(to="q"))
    assert isinstance(sent.outcome, Rejected)
    assert not client.take()


def test_links_that_lose_their_right_are_detached_and_others_stay() -> None:
    world = network('send = ["a", "b"]\nreceive = ["a", "b"]\nmay = ["copy", "dynamic", "anonymous"]')
    client, other = world.client(), world.client()
    kept = [client.sender("a"), other.receiver("a")]
    lost = [client.sender("b"), other.receiver("b"), other.receiver("a", copy=True), client.sender(None)]
    lost.append(client.receiver(None, source=Source(dynamic=True)))
    world.core.set_policy(group('send = ["a"]\nreceive = ["a"]'), world.now)
    world.run()
    assert all(each.is_attached for each in kept)
    for each in lost:
        holder = client if each in client.detached else other
        assert refusal(holder, each) == UNAUTHORIZED
    world.core.set_policy(group('send = ["a", "b"]\nreceive = ["a", "b"]'), world.now)
    world.run()
    assert all(each.is_attached for each in kept)
    world.leave()


@pytest.mark.parametrize("way", ["attach", "message"])
def test_a_peer_that_asks_for_something_just_after_a_change_still_loses_its_links(way: str) -> None:
    world = network('send = ["a", "b"]\nreceive = ["b"]\nmay = ["anonymous"]')
    client = world.client()
    lost, anonymous = [client.sender("b"), client.receiver("b")], client.sender(None)
    (judged,) = [each for each in client.record.incoming if each.node is None]
    world.core.set_policy(group('send = ["a"]\nmay = ["anonymous"]'), world.now)
    if way == "attach":
        check_address(world.core.context, client.record, "a", None, sends=True)
    else:
        world.core.context.resolve(judged, "a")
    world.run()
    assert anonymous.is_attached
    assert [refusal(client, each) for each in lost] == [UNAUTHORIZED] * 2


def test_a_right_to_make_changes_is_gone_at_once() -> None:
    world = network('manage = ["write"]')
    client = world.client()
    assert may_change(world.core.context, client.record)
    world.core.set_policy(group('manage = ["read"]'), world.now)
    assert not may_change(world.core.context, client.record)
    world.core.set_policy(policy(TENANTS), world.now)
    assert not may_change(world.core.context, client.record)


def test_a_link_to_a_node_of_another_router_needs_no_right_to_be_anonymous_after_a_change() -> None:
    world = World("AB", [("A", "B")])
    rights = 'may = ["dynamic", "container"]\nmanage = ["read"]'
    for each in "AB":
        world[each].core.set_policy(group(rights), world[each].now)
    world["B"].core.context.nodes.make_own(MANAGEMENT)
    replies = world["B"].client().receiver(None, source=Source(dynamic=True))
    assert replies.remote is not None
    assert isinstance(replies.remote.source, Source)
    client = world["A"].client()
    links = [client.sender(replies.remote.source.address), client.sender(f"{MANAGEMENT}@B")]
    assert [refusal(client, each) for each in links] == [None, None]
    world["A"].core.set_policy(group(rights), world["A"].now)
    world.run()
    assert [refusal(client, each) for each in links] == [None, None]
    world["A"].core.set_policy(group('may = ["dynamic", "container"]'), world["A"].now)
    world.run()
    assert [refusal(client, each) for each in links] == [None, UNAUTHORIZED]


@pytest.mark.parametrize(("rights", "expected"), [('may = ["anonymous"]', 1), ('may = ["container", "anonymous"]', 0)])
def test_an_invented_name_of_a_dynamic_node_reaches_no_container_outside_the_mesh(rights: str, expected: int) -> None:
    world = Network(elsewhere=ElsewhereConfig(domains=("*",)))
    world.core.set_policy(group(rights), world.now)
    client = world.client()
    sender = client.sender("$dynamic/x@10.0.0.1")
    client.send(client.sender(None), message(to="$dynamic/y@10.0.0.1"))
    assert world.core.context.denied == 2 * expected
    assert (world.core.context.nodes.find("", "$dynamic/x@10.0.0.1") is None) == bool(expected)
    assert (refusal(client, sender) == UNAUTHORIZED) == bool(expected)


def test_a_delivery_in_flight_is_not_lost_when_its_sender_loses_the_right() -> None:
    world = network('send = ["q"]\nreceive = ["q"]')
    producer, consumer = world.client(), world.client()
    consumer.receiver("q")
    producer.send(producer.sender("q"), message())
    (arrival,) = consumer.take()
    world.core.set_policy(group('receive = ["q"]'), world.now)
    world.run()
    arrival.accept()
    world.run()
    assert not world.relays
    world.leave()


TENANTS = """
[[tenant]]
name = "a"
match = [{ listener = "test" }]

[[group]]
tenant = "a"
name = "all"
send = ["#"]
receive = ["#"]
"""


def test_a_peer_in_no_tenant_is_refused_and_one_whose_tenant_changes_is_disconnected() -> None:
    world = Network()
    client = world.client()
    world.core.set_policy(policy(TENANTS.replace('"test"', '"other"')), world.now)
    world.run()
    assert client.engine.finished, "it was in the tenant of no policy"
    late = world.client()
    assert late.engine.finished
    world.core.set_policy(policy(TENANTS), world.now)
    assert not world.client().engine.finished
    assert world.core.context.denied == 2


def test_tenants_do_not_reach_each_others_addresses() -> None:
    world = Network()
    world.core.set_policy(policy(TENANTS), world.now)
    inside = world.client()
    receiver = inside.receiver("q")
    assert receiver.is_attached
    world.core.set_policy(
        policy(TENANTS.replace('name = "a"', 'name = "b"').replace('tenant = "a"', 'tenant = "b"')), world.now
    )
    world.run()
    assert inside.engine.finished
    other = world.client()
    sender = other.sender("q")
    assert sender.is_attached
    assert sender.credit == 0, "the receiver of the other tenant is none of its address"
    assert refusal(other, other.sender(MANAGEMENT)) is not None


@pytest.mark.parametrize("mine", [True, False])
def test_a_link_of_another_tenant_is_not_stolen(mine: bool) -> None:
    world = Network(theft_wait=0.0)
    world.core.set_policy(policy(TENANTS), world.now)
    one = world.client("same")
    link = one.receiver("q", name="link")
    if not mine:
        text = TENANTS.replace('name = "a"', 'name = "b"').replace('tenant = "a"', 'tenant = "b"')
        world.core.context.policy = policy(text)  # as if the first were still to be judged again
    world.client("same").receiver("q", name="link")
    assert link.is_attached is not mine


def test_the_log_names_the_right_that_a_message_of_an_anonymous_sender_lacks(caplog: pytest.LogCaptureFixture) -> None:
    client = network('send = ["open"]\nmay = ["anonymous"]').client()
    with caplog.at_level(logging.INFO, "amqpmesh"):
        client.send(client.sender(None), message(to="closed"))
    (line,) = [each for each in caplog.messages if each.startswith("message refused")]
    assert "address=closed condition=amqp:unauthorized-access" in line
    assert "no group permits send to closed; its groups: g" in line


def test_the_groups_of_a_file_of_users_are_those_of_the_policy_and_a_change_holds_at_once() -> None:
    world = network('groups = ["readers"]\nreceive = ["q"]')
    users = Users({}).add("ann", "x", 4096)
    world.core.context.users_of = lambda _: users.group("ann", groups)
    groups = ["others", "readers"]
    client = world.client(user="ann")
    link = client.receiver("q")
    assert refusal(client, link) is None
    groups = ["others"]
    end_logins(world.core.context)
    world.run()
    assert refusal(client, link) == UNAUTHORIZED
    assert refusal(client, client.receiver("q")) == UNAUTHORIZED
    groups = ["readers"]
    end_logins(world.core.context)
    world.run()
    assert refusal(client, client.receiver("q")) is None
