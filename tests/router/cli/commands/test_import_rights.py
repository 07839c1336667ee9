"""`amqpmesh import`: nobody gets rights that he did not have, and no password is told."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from amqpmesh.policies.access import Peer
from amqpmesh.router.cli.main import main
from amqpmesh.router.config.policy_file import load_policy

IN_FORCE = "policy {\n    enableVhostPolicy: true\n}\n"


@dataclass(frozen=True, slots=True)
class Made:
    """The files of an import, read, and its account."""

    directory: Path
    config: dict[str, Any]
    policy: dict[str, Any]
    fates: dict[str, str]


def imported(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Made:
    (folder / "qdrouterd.conf").write_text(text)
    main(["import", str(folder / "qdrouterd.conf"), "--directory", str(folder / "made"), "--json"])
    lines = json.loads(capsys.readouterr().out)["lines"]
    config, policy = folder / "made" / "amqpmesh.toml", folder / "made" / "policy.toml"
    policies = tomllib.loads(policy.read_text()) if policy.exists() else {}
    fates = {str(each["key"]): str(each["fate"]) for each in lines}
    return Made(folder / "made", tomllib.loads(config.read_text()), policies, fates)


def test_a_policy_in_force_without_virtual_hosts_permits_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = imported(
        "policy {\n    enableVhostPolicy: true\n    policyDir: /etc/policies\n}\nlistener {\n    host: 127.0.0.1\n}\n",
        tmp_path,
        capsys,
    )
    assert made.config["policy"] == {"file": "policy.toml"}
    peer = Peer(container_id="", listener="amqp", user="ada")
    admitted = load_policy(made.directory / "policy.toml").admit(peer)
    assert admitted is not None
    assert not admitted.rights.groups


@pytest.mark.parametrize(
    ("group", "rights"),
    [
        ("users: anonymous\nremoteHosts: *\nsources: *\n", None),  # here a group without users is for all
        ('users: ada\nremoteHosts: *\nsources: "orders/#"\ntargets: "a.#.b, c#"\n', {"send": ["c#"]}),  # no pattern
    ],
)
def test_no_group_is_for_more_users_or_addresses_than_it_was(
    group: str, rights: dict[str, Any] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = imported(
        f"{IN_FORCE}vhost {{\n    hostname: $default\n    groups: {{\n        g: {{\n{group}        }}\n    }}\n}}\n",
        tmp_path,
        capsys,
    )
    groups = made.policy.get("group", [])
    expected = [] if rights is None else [{"name": "g", "users": ["ada"], **rights, "user_id": "match"}]
    assert groups == expected
    assert "missing" in made.fates.values()


def test_clients_of_a_listener_with_a_virtual_host_choose_no_other_by_their_hostname(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = imported(
        f"{IN_FORCE}listener {{\n    policyVhost: b\n}}\nlistener {{\n    port: 5673\n}}\n"
        "vhost {\n    hostname: a\n}\nvhost {\n    hostname: b\n}\n",
        tmp_path,
        capsys,
    )
    policy = load_policy(made.directory / "policy.toml")
    first, second = (str(each["name"]) for each in made.config["listener"])
    for listener, hostname, tenant in (
        (first, "a", "b"),
        (first, "b", "b"),
        (second, "a", "a"),
        (second, "b", "b"),
        (second, "c", None),
    ):
        admitted = policy.admit(Peer(container_id="", listener=listener, hostname=hostname))
        assert (None if admitted is None else admitted.peer.tenant) == tenant


@pytest.mark.parametrize("mechanisms", ["GSSAPI", "ANONYMOUS", "EXTERNAL"])
def test_a_listener_that_demands_a_login_always_does(
    mechanisms: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = imported(
        f"listener {{\n    host: 127.0.0.1\n    authenticatePeer: yes\n    saslMechanisms: {mechanisms}\n}}\n",
        tmp_path,
        capsys,
    )
    assert made.config["listener"][0]["sasl"] == ["SCRAM-SHA-256"]
    assert made.config["listener"][0]["users"] == "users.toml"
    assert made.fates["listener.saslMechanisms"] == "changed"


@pytest.mark.parametrize("text", ["connector {\n    saslPassword hidden word\n}\n", "saslPassword: hidden\n"])
def test_no_error_quotes_a_line_that_may_have_a_password(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "qdrouterd.conf").write_text(text)
    assert main(["import", str(tmp_path / "qdrouterd.conf"), "--directory", str(tmp_path)]) == 2
    assert "hidden" not in capsys.readouterr().err


def test_a_hostname_with_a_line_break_adds_no_line_to_the_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f.json").write_text(
        '[["policy", {"enableVhostPolicy": true}], ["vhost", {"hostname": "a\\n[[group]]", "maxConnections": 3}]]'
    )
    main(["import", str(tmp_path / "f.json"), "--directory", str(tmp_path)])
    capsys.readouterr()
    assert "group" not in tomllib.loads((tmp_path / "policy.toml").read_text())
