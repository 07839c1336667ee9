"""Limits of a user whose connections have different ones, and of thousands of tenants."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from amqpmesh.policies.policy import Policy
from amqpmesh.router.access import caps
from amqpmesh.router.config.policy_file import parse_policy
from amqpmesh.router.model.usage import Kind, Owner
from tests.support.worlds.network import Client, Network

OFFICE, HOME, ELSEWHERE = "10.0.0.1", "10.1.0.1", "10.2.0.1"
RIGHTS = 'send = ["#"]\nreceive = ["#"]\n'


def policy(office: str, home: str) -> Policy:
    """Return a policy in which a user has other limits at the office than at home, and none elsewhere."""
    text = '[[tenant]]\nname = "t"\ndefault = true\n'
    for name, host, limits in (("office", OFFICE, office), ("home", HOME, home), ("elsewhere", ELSEWHERE, "")):
        text += f'[[group]]\ntenant = "t"\nname = "{name}"\nnetworks = ["{host}"]\nlimits = {{ {limits} }}\n{RIGHTS}'
    return parse_policy(tomllib.loads(text), Path("policy.toml"))


def network(office: str, home: str) -> Network:
    world = Network()
    world.core.set_policy(policy(office, home), world.now)
    return world


def is_open(client: Client) -> bool:
    return not client.record.lost and client.engine.can_send


@pytest.mark.parametrize("order", [(OFFICE, HOME), (HOME, OFFICE)])
def test_the_tightest_limit_of_a_users_connections_holds_whichever_came_last(order: tuple[str, str]) -> None:
    world = network("connections = 2", "connections = 5")
    first, second = (world.client(user="u", host=each) for each in order)
    assert is_open(first)
    assert is_open(second)
    for host in (OFFICE, HOME, ELSEWHERE):
        assert not is_open(world.client(user="u", host=host)), "a refused connection changes no limit"
    assert is_open(world.client(user="v", host=HOME))
    usage = world.core.context.usages.find(Owner("t", "u"))
    assert usage is not None
    assert usage.caps[Kind.CONNECTIONS] == 2


def test_a_limit_goes_with_the_last_connection_that_has_it() -> None:
    world = network("connections = 2, links = 1", "connections = 5")
    office, home = (world.client(user="u", host=each) for each in (OFFICE, HOME))
    assert not is_open(world.client(user="u", host=HOME))
    office.lose()
    world.run()
    others = [world.client(user="u", host=HOME) for _ in range(5)]
    assert [is_open(each) for each in others] == [True] * 4 + [False]
    usage = world.core.context.usages.find(Owner("t", "u"))
    assert usage is not None
    assert usage.caps[Kind.LINKS] is None
    assert is_open(home)


def test_a_changed_policy_gives_each_connection_its_own_limit() -> None:
    world = network("connections = 2", "connections = 5")
    for each in (OFFICE, HOME):
        world.client(user="u", host=each)
    world.core.set_policy(policy("connections = 4", "connections = 3"), world.now)
    world.run()
    usage = world.core.context.usages.find(Owner("t", "u"))
    assert usage is not None
    assert usage.caps[Kind.CONNECTIONS] == 3
    assert usage.given.total() == 2
    world.core.set_policy(policy("", ""), world.now)
    world.run()
    assert usage.caps[Kind.CONNECTIONS] is None
    assert not usage.given


def of_many(number: int, connections: int) -> Policy:
    limits = f"limits = {{ connections = {connections} }}"
    tenants = "".join(
        f'[[tenant]]\nname = "t{each}"\nmatch = [{{ hostname = "{each}" }}]\n{limits}\n' for each in range(number)
    )
    return parse_policy(tomllib.loads(tenants), Path("policy.toml"))


def test_limits_of_thousands_of_tenants_come_into_force_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caps, "TENANTS_AT_ONCE", 10)
    world = Network()
    usages = world.core.context.usages
    for connections in (7, 3):  # the second one replaces the first before that has come to its end
        world.core.set_policy(of_many(100, connections), world.now)
        limited = [each for each in usages if each.caps[Kind.CONNECTIONS] == connections]
        assert len(limited) <= 10
    assert world.core.context.chores
    world.run()
    assert [each.caps[Kind.CONNECTIONS] for each in usages] == [3] * 100


def test_a_client_of_a_tenant_whose_turn_has_not_come_has_the_new_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caps, "TENANTS_AT_ONCE", 10)
    world = Network()
    world.core.set_policy(of_many(100, 1), world.now)
    clients = [world.client(hostname="99") for _ in range(2)]
    assert [is_open(each) for each in clients] == [True, False]
