"""Limits of a policy: how those of several groups add up, and which of them can never bind."""

from __future__ import annotations

from pathlib import Path

import pytest

from amqpmesh.policies.access import Peer
from amqpmesh.policies.findings import findings
from amqpmesh.policies.limits import CAPS, RATES, UNLIMITED, Allowance, Part, tightest, widest
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.policy_file import load_policy, parse_policy

ALL = """
[[tenant]]
name = "t"
default = true
weight = 2
limits = { connections = 500, connections_per_host = 50, sessions = 600, links = 20_000, senders = 1000, \
receivers = 1001, dynamic = 10, unsettled = 9, message = "1 MiB", frame = 65536, session_window = 512, \
waiting = "32 MiB", memory = "25 %", messages = "20_000/s", octets = "50 MiB/s", new_connections = "600/min", \
attaches = 0.5, messages_per_link = 10, octets_per_link = "1.5 kB/s", messages_per_address = "36/h", \
octets_per_address = 7, burst = 2.0 }
[[group]]
tenant = "t"
name = "g"
send = ["q"]
limits = { connections = 20, message = "1 MiB", messages = "1_000/s" }
"""


def policy_file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    return file


def test_each_key_of_limits_is_read(tmp_path: Path) -> None:
    policy = load_policy(policy_file(tmp_path, ALL))
    (tenant,), (group,) = policy.tenants, policy.groups
    assert tenant.weight == 2.0
    limits = tenant.limits
    assert all(getattr(limits, name) is not None for name in (*CAPS, *RATES))
    assert (limits.message, limits.waiting, limits.octets) == (2**20, 32 * 2**20, 50 * 2**20)
    assert (limits.new_connections, limits.attaches, limits.messages_per_address) == (10.0, 0.5, 0.01)
    assert (limits.octets_per_link, limits.octets_per_address, limits.burst) == (1500.0, 7.0, 2.0)
    assert limits.memory is not None
    assert limits.memory.of(2**20) == 2**18
    assert group.limits == Allowance(connections=20, message=2**20, messages=1000.0)
    admitted = policy.admit(Peer(container_id="c"))
    assert admitted is not None
    assert admitted.rights.limits == group.limits
    assert admitted.rights.tenant == tenant


@pytest.mark.parametrize(
    ("limits", "key", "reason"),
    [
        ("connections = 0", "connections", "at least 1"),
        ("connections = true", "connections", "whole number"),
        ("frame = 511", "frame", "at least 512"),
        ('frame = "8 GiB"', "frame", "at most"),
        ('waiting = "32 mib"', "waiting", "unknown unit"),
        ('waiting = "-1 B"', "waiting", "number of octets"),
        ('waiting = "99999999999 GiB"', "waiting", "at most"),
        ("waiting = 1.5", "waiting", "number of octets"),
        ('messages = "20/fortnight"', "messages", "unknown time"),
        ('messages = "20 MiB/s"', "messages", "number in a second"),
        ("messages = 0", "messages", "more than 0"),
        ('octets = "0 MiB/s"', "octets", "more than 0"),
        ("octets = nan", "octets", "octets in a second"),
        ('memory = "101 %"', "memory", "at most 100 %"),
        ('memory = "half"', "memory", '"25 %"'),
        ("burst = 0", "burst", "at least"),
        ("speed = 1", "speed", "unknown key"),
        ("links = 1, links_ = 2", "links_", "unknown key"),
    ],
)
def test_a_fault_of_a_limit_names_the_key(tmp_path: Path, limits: str, key: str, reason: str) -> None:
    text = f'[[tenant]]\nname = "t"\ndefault = true\nlimits = {{ {limits} }}'
    with pytest.raises(ConfigError) as error:
        load_policy(policy_file(tmp_path, text))
    assert error.value.key == f"tenant[0].limits.{key}"
    assert reason in error.value.reason


@pytest.mark.parametrize(
    "limits", ["memory = 1", "connections_per_host = 1", "messages_per_address = 1", "octets_per_address = 1"]
)
def test_what_several_users_share_is_no_limit_of_a_user(tmp_path: Path, limits: str) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        load_policy(policy_file(tmp_path, f'[[group]]\nname = "g"\nlimits = {{ {limits} }}'))


@pytest.mark.parametrize("weight", ["0", "-1", "inf", '"2"'])
def test_a_weight_is_a_positive_number(tmp_path: Path, weight: str) -> None:
    with pytest.raises(ConfigError, match="weight"):
        load_policy(policy_file(tmp_path, f'[[tenant]]\nname = "t"\ndefault = true\nweight = {weight}'))


def test_of_several_groups_the_greatest_limit_holds() -> None:
    one, other = Allowance(connections=20, links=5, burst=1.0), Allowance(connections=200, messages=1.0)
    for both in ([one, other], [other, UNLIMITED, one]):
        assert widest(both) == Allowance(connections=200, links=5, messages=1.0, burst=1.0)
    assert widest([UNLIMITED, UNLIMITED]) is UNLIMITED
    assert widest([UNLIMITED, one]) is one


def test_a_part_of_memory_is_octets_or_a_share() -> None:
    assert Part(octets=5).of(100) == 5
    assert Part(share=0.25).of(100) == 25
    assert Part(octets=500).of(100) == 500


FINDINGS = """
tenant "t": limits.connections_per_host never binds: limits.connections is 500
tenant "t": limits.links never binds: senders and receivers together are 2
tenant "t": limits.waiting never binds: limits.memory is 1_000
tenant "u": limits.burst does nothing: there is no rate
tenant "u": limits.receivers contradicts limits.unsettled: 3 receivers use it up
tenant "u": limits.message contradicts limits.waiting, which is less: 1_000
group[0] "g": limits.senders never binds: limits.links is 1
group[0] "g": limits.messages_per_link never binds: limits.messages is 0.5
group[0].limits.connections "g" never binds: its tenant may have 500
group[1].may "h" permits nothing: limits.dynamic of its tenant is 0
group[1].receive "h" permits nothing: limits.receivers of group[1] is 0
"""


def test_limits_that_never_bind_are_found(tmp_path: Path) -> None:
    policy = parse_policy(
        {
            "tenant": [
                {
                    "name": "t",
                    "default": True,
                    "limits": {
                        "connections": 500,
                        "connections_per_host": 500,
                        "links": 2,
                        "senders": 1,
                        "receivers": 1,
                        "waiting": 1000,
                        "memory": 1000,
                    },
                },
                {
                    "name": "u",
                    "match": [{"user": "u"}],
                    "limits": {
                        "burst": 2.0,
                        "waiting": 1000,
                        "message": 1001,
                        "dynamic": 0,
                        "unsettled": 3,
                        "receivers": 4,
                    },
                },
            ],
            "group": [
                {
                    "name": "g",
                    "tenant": "t",
                    "send": ["q"],
                    "limits": {
                        "connections": 501,
                        "links": 1,
                        "senders": 1,
                        "messages": 0.5,
                        "messages_per_link": 0.5,
                    },
                },
                {
                    "name": "h",
                    "tenant": "u",
                    "receive": ["q"],
                    "may": ["dynamic"],
                    "limits": {"receivers": 0},
                },
            ],
        },
        tmp_path / "policy.toml",
    )
    assert sorted(findings(policy)) == sorted(FINDINGS.strip().splitlines())


def test_the_tightest_of_several_limits_hold_each_by_itself() -> None:
    one = Allowance(connections=2, messages=100.0, memory=Part(share=0.25))
    other = Allowance(connections=3, links=5, messages=20.0, memory=Part(octets=1000))
    for both in ([one, other], [other, UNLIMITED, one]):
        assert tightest(both) == Allowance(connections=2, links=5, messages=20.0, memory=Part(octets=1000))
    assert tightest([]) is UNLIMITED
    assert tightest([UNLIMITED, one]) is one
