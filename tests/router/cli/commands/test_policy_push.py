"""`amqpmesh policy push` and `policy sign`, beside routers of a mesh."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amqpmesh import ConnectorConfig, ListenerConfig, MeshConfig
from amqpmesh.policies.policy_version import with_number
from amqpmesh.router.config.policy_file import PolicyConfig
from amqpmesh.topology.signed_policies import authorities_in, fault
from tests.support.processes.router_thread import Command, Serve, Served

POLICY = 'version = {}\n[[group]]\nname = "all"\nmay = ["dynamic", "container"]\nmanage = ["read"]\nsend = ["{}"]\n'
MESH = MeshConfig(insecure=True, hold=60.0)


class Line:
    """The routers A and B. Clients of A may make changes."""

    def __init__(self, serve: Serve, folder: Path, **of_b: object) -> None:
        self.files = {each: folder / f"{each}.toml" for each in "AB"}
        for each in self.files.values():
            each.write_text(POLICY.format(1, "one"))
        self.b = serve(
            id="B",
            mesh=MESH,
            policy=PolicyConfig(file=self.files["B"], **{"push": True, **of_b}),
            listeners=[ListenerConfig(url="amqp://127.0.0.1:0", role="mesh")],
        )
        self.a = serve(
            id="A",
            mesh=MESH,
            policy=PolicyConfig(file=self.files["A"], push=True),
            listeners=[ListenerConfig(url="amqp://127.0.0.1:0", name="in", manage=True)],
            connectors=[ConnectorConfig(url=self.b.url)],
        )
        self.a.until(lambda: [each.router for each in self.a.router.statistics().routes if each.distance] == ["B"])

    @staticmethod
    def version(served: Served) -> int:
        return served.router.statistics().policies[0].version


@pytest.fixture
def new(tmp_path: Path) -> Path:
    file = tmp_path / "policy.toml"
    file.write_text(POLICY.format(2, "two"))
    return file


def test_all_routers_have_it_and_say_so(serve: Serve, command: Command, new: Path, tmp_path: Path) -> None:
    line = Line(serve, tmp_path)
    said = command("policy", "push", str(new), "--url", line.a.url)
    assert (said.status, said.err) == (0, "")
    assert [each.split() for each in said.out.splitlines()[1:]] == [
        ["ROUTER", "IN", "FORCE", "REASON"],
        ["A", "yes"],
        ["B", "yes"],
    ]
    assert line.files["B"].read_bytes() == new.read_bytes()
    status = command("status", "--url", line.a.url)
    assert "policy version 2, " in status.out
    told = json.loads(command("status", "B", "--json", "--url", line.a.url).out)["policy"]
    assert (told["version"], told["push"], told["refused_reason"]) == (2, True, None)


def test_next_gives_it_the_number_after_the_highest(serve: Serve, command: Command, new: Path, tmp_path: Path) -> None:
    line = Line(serve, tmp_path)
    new.write_text(POLICY.format(0, "two").replace("version = 0\n", ""))
    assert command("policy", "push", str(new), "--url", line.a.url).status == 2
    for number in (2, 3):
        said = command("policy", "push", "--next", "--json", str(new), "--url", line.a.url)
        assert said.status == 0
        assert json.loads(said.out)["version"] == number
    assert line.version(line.b) == 3
    assert "version" not in new.read_text()


def test_the_status_is_5_if_a_router_says_no(serve: Serve, command: Command, new: Path, tmp_path: Path) -> None:
    line = Line(serve, tmp_path, push=False)
    said = command("policy", "push", str(new), "--json", "--url", line.a.url)
    assert said.status == 5
    a, b = json.loads(said.out)["routers"]
    assert (a["router"], a["accepted"]) == ("A", True)
    assert (b["router"], b["accepted"]) == ("B", False)
    assert "push = true" in b["reason"]
    said = command("policy", "push", str(new), "--url", line.a.url)
    assert said.status == 5, "A has it already"
    new.write_text(POLICY.format(1, "three"))
    said = command("policy", "push", str(new), "--url", line.a.url)
    assert said.status == 5
    assert "version 2 is in force, and this is version 1" in said.out


def test_a_client_that_may_change_nothing_is_refused(serve: Serve, command: Command, new: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(POLICY.format(1, "one"))
    served = serve(policy=PolicyConfig(file=file, push=True))
    said = command("policy", "push", str(new), "--url", served.url)
    assert said.status == 3
    assert "Forbidden: not permitted" in said.err


def test_a_policy_that_is_not_valid_is_pushed_to_nobody(command: Command, new: Path) -> None:
    new.write_text("version = 2\n[[group]\n")
    assert command("policy", "push", str(new), "--url", "amqp://127.0.0.1:1").status == 2


def test_a_file_is_signed_in_place_and_again(command: Command, new: Path, tmp_path: Path) -> None:
    assert command("ca", "init", "--directory", str(tmp_path)).status == 0
    authorities = authorities_in((tmp_path / "mesh-ca.pem").read_bytes())
    assert fault(new.read_bytes(), authorities) is not None
    for arguments in ((), (), ("--number", "7")):
        said = command("policy", "sign", str(new), "--directory", str(tmp_path), *arguments)
        assert (said.status, said.err) == (0, "")
        assert fault(new.read_bytes(), authorities) is None
        assert new.read_bytes().count(b"# signature: ") == 1
    assert said.out.startswith(f"{new}: version 7, ")
    assert command("policy", "check", "--file", str(new)).status == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "version = 5\n"),
        ("version = 1\n", "version = 5\n"),
        ('# head\n"version" = 1 # old\n[[group]]\n', "# head\nversion = 5\n[[group]]\n"),
        ("[[group]]\nversion = 1\n", "version = 5\n[[group]]\nversion = 1\n"),
    ],
)
def test_another_number_changes_nothing_else(text: str, expected: str) -> None:
    assert with_number(text.encode(), 5).decode() == expected


@pytest.mark.parametrize(
    "text",
    [
        '"vers\\u0069on" = 1\n',
        "group = [\n[]]\nversion = 3\n",
        'tenant = [{ name = "a", match = [{ user = """\nversion = 7""" }] }]\n',
    ],
)
def test_a_version_at_an_unusual_place_is_named_and_nothing_else_is_changed(text: str) -> None:
    with pytest.raises(ValueError, match="unusual place"):
        with_number(text.encode(), 5)


def test_a_file_with_a_version_at_an_unusual_place_is_not_signed(command: Command, new: Path, tmp_path: Path) -> None:
    assert command("ca", "init", "--directory", str(tmp_path)).status == 0
    text = '"vers\\u0069on" = 1\n[[group]]\nname = "g"\n'
    new.write_text(text)
    said = command("policy", "sign", str(new), "--directory", str(tmp_path))
    assert said.status == 2
    assert "unusual place" in said.err
    assert new.read_text() == text
