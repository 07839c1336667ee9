"""Policy files: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from amqpmesh.policies.access import Peer
from amqpmesh.policies.claims import Claims
from amqpmesh.policies.exports import MOST
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.file import lines, load
from amqpmesh.router.config.policy_file import LARGEST, load_policy

#: Two tenants, of which one exports to the other.
OFFER = (
    '[[tenant]]\nname = "a"\ndefault = true\nexports = [{{ pattern = "q/#", {} }}]\n'
    '[[tenant]]\nname = "b"\nmatch = [{{ user = "b" }}]\nimports = [{}]'
)
TWICE = "tenant[1].imports[1].pattern"
AGAIN = 'to = "b", may = ["send"] }, { pattern = "x/#", as = "q/#", to = "b", may = ["receive", "send"]'
TOO_MANY = [f'{{ pattern = "x{each}", from = "a" }}' for each in range(MOST + 1)]
TENANT = '[[tenant]]\nname = "a"\nmatch = [{ user = "*" }]\n'


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[[tenants]]", "tenants"),
        ("tenant = 1", "tenant"),
        ("[[tenant]]", "tenant[0].name"),
        ('[[tenant]]\nname = "a/b"\ndefault = true', "tenant[0].name"),
        ('[[tenant]]\nname = "a"', "tenant[0].match"),
        ('[[tenant]]\nname = "a"\nmatch = [{}]', "tenant[0].match[0].listener"),
        ('[[tenant]]\nname = "a"\nmatch = [{ claim = "x" }]', "tenant[0].match[0].value"),
        ('[[tenant]]\nname = "a"\nmatch = [{ value = "x" }]', "tenant[0].match[0].claim"),
        ('[[group]]\nname = "g"\nclaims = { a = "" }', "group[0].claims"),
        ('[[group]]\nname = "g"\nclaims = { a = [] }', "group[0].claims"),
        ('[[group]]\nname = "g"\nclaims = { a = [1] }', "group[0].claims.a[0]"),
        ('[[group]]\nname = "g"\nclaims = ["a"]', "group[0].claims"),
        ('[[group]]\nname = "g"\ngroups = [""]', "group[0].groups"),
        ('[[group]]\nname = "g"\nsend = ["a/${claim.}"]', "group[0].send"),
        (TENANT + TENANT, "tenant[1].name"),
        (TENANT + 'default = true\n[[tenant]]\nname = "b"\ndefault = true', "tenant[1].default"),
        (TENANT + '[[group]]\nname = "g"', "group[0].tenant"),
        (TENANT + '[[group]]\nname = "g"\ntenant = "b"', "group[0].tenant"),
        ('[[group]]\nname = "g"\ntenant = "operator"', "group[0].tenant"),
        ('[[group]]\nname = "g"\n[[group]]\nname = "g"', "group[1].name"),
        ('[[group]]\nname = "g"\nsend = ["$management"]', "group[0].send"),
        ('[[group]]\nname = "g"\nreceive = ["a/${host}"]', "group[0].receive"),
        ('[[group]]\nname = "g"\nnetworks = ["10.0.0.1/8"]', "group[0].networks"),
        ('[[group]]\nname = "g"\nmay = ["all"]', "group[0].may[0]"),
        ('[[group]]\nname = "g"\nmanage = "write"', "group[0].manage"),
        ('[[group]]\nname = "g', "file"),
        *(
            (f'[[group]]\nname = "g"\n{key} = ["ok", "{"x" * 1025}"]', f"group[0].{key}")
            for key in ("users", "certificates", "groups", "send", "receive")
        ),
        (f'[[group]]\nname = "{"x" * 1025}"', "group[0].name"),
        (f'[[group]]\nname = "g"\nclaims = {{ a = "{"x" * 1025}" }}', "group[0].claims"),
        (f'[[tenant]]\nname = "t"\nmatch = [{{ user = "{"x" * 1025}" }}]', "tenant[0].match[0].user"),
        (TENANT + f"weight = {2**63}", "file"),
        (TENANT + f"weight = {-(2**63)}", "tenant[0].weight"),
        (TENANT + f"limits = {{ messages = '{'9' * 400}/s' }}", "tenant[0].limits.messages"),
        (TENANT + f"limits = {{ octets = '{2**63} B/s' }}", "tenant[0].limits.octets"),
        (OFFER.format('to = "b"', ""), "tenant[0].exports[0].may"),
        (OFFER.format('to = "b", may = []', ""), "tenant[0].exports[0].may"),
        (OFFER.format('to = "b", may = ["copy"]', ""), "tenant[0].exports[0].may[0]"),
        (OFFER.format('to = "c", may = ["send"]', ""), "tenant[0].exports[0].to"),
        (OFFER.format('to = "a", may = ["send"]', ""), "tenant[0].exports[0].to"),
        (OFFER.format('to = "b", may = ["send"], as = "x/*"', ""), "tenant[0].exports[0].as"),
        (OFFER.format('to = "b", may = ["send"], as = "$x/#"', ""), "tenant[0].exports[0].as"),
        (OFFER.format('to = "b", may = ["send"]', '{ pattern = "x/#", from = "c" }'), "tenant[1].imports[0].from"),
        (OFFER.format('to = "b", may = ["send"]', '{ pattern = "x@B", from = "a" }'), "tenant[1].imports[0].pattern"),
        (OFFER.format('to = "b", may = ["send"]', '{ pattern = "x/#" }'), "tenant[1].imports[0].from"),
        (OFFER.format('to = "b", may = ["send"]', ", ".join(['{ pattern = "x", from = "a" }'] * 2)), TWICE),
        (OFFER.format(AGAIN, ""), "tenant[0].exports[1].as"),
        (OFFER.format('to = "b", may = ["send"]', ", ".join(TOO_MANY)), "tenant[1].imports"),
    ],
)
def test_a_fault_names_the_file_and_the_key(tmp_path: Path, text: str, key: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_policy(file)
    assert error.value.file == str(file)
    assert error.value.key == key


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    with file.open("wb") as written:
        written.truncate(LARGEST + 1)
    with pytest.raises(ConfigError, match="larger than"):
        load_policy(file)


def test_a_configuration_names_its_policy_and_checks_it(tmp_path: Path) -> None:
    config, policy = tmp_path / "router.toml", tmp_path / "policy.toml"
    config.write_text('[policy]\nfile = "policy.toml"\n')
    with pytest.raises(ConfigError, match="No such file"):
        load(config)
    policy.write_text(TENANT + '[[group]]\nname = "g"\ntenant = "a"\nsend = ["q"]')
    found = load(config)
    assert 'file = "' + str(policy) + '"' in lines(found)
    admitted = load_policy(policy).admit(Peer(container_id="c", user="u"))
    assert admitted is not None
    assert admitted.peer.tenant == "a"
    assert admitted.rights.send("q") is not None
    policy.write_text("[")
    with pytest.raises(ConfigError):
        load(config)


def test_a_policy_may_ask_for_claims_and_groups_of_a_token(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(
        '[[tenant]]\nname = "a"\nmatch = [{ claim = "team", value = "a*" }]\n'
        '[[group]]\nname = "g"\ntenant = "a"\ngroups = ["ops"]\nclaims = { role = ["x", "y"], team = "a1" }\n'
        'send = ["${claim.team}/#"]\n'
    )
    policy = load_policy(file)
    claims = Claims({"team": ("a1",), "role": ("y",)})
    admitted = policy.admit(Peer(container_id="c", claims=claims, groups=("ops",)))
    assert admitted is not None
    assert admitted.peer.tenant == "a"
    assert admitted.rights.send("a1/b") is not None
    assert policy.admit(Peer(container_id="c")) is None
