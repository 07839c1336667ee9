"""A signed policy that is pushed to one router of a mesh, seen by a client at another one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

from amqpmesh.router.cli.main import main

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parent.parent.parent
ALICE = ("--mechanism", "SCRAM-SHA-256", "--user", "alice", "--password", "correct horse")
POLICY = """
version = {version}

[[group]]
name = "alice"
users = ["alice"]
receive = [{receive}]
may = ["dynamic", "container"]
manage = ["write"]
"""


def amqpmesh(*arguments, expected=0):
    command = [sys.executable, "-m", "amqpmesh", *arguments]
    done = subprocess.run(command, cwd=ROOT, timeout=120, capture_output=True, text=True, check=False)
    assert done.returncode == expected, (done.stdout, done.stderr)
    return done.stdout


@pytest.fixture
def folder(tmp_path):
    assert main(["ca", "init", "--mesh", "trial", "--directory", str(tmp_path)]) == 0
    for router in "AB":
        assert main(["ca", "issue", router, "--directory", str(tmp_path)]) == 0
        sign(tmp_path, tmp_path / f"{router}.toml", 1, '"open"')
    return tmp_path


def sign(folder, file, version, receive):
    file.write_text(POLICY.format(version=version, receive=receive))
    assert main(["policy", "sign", str(file), "--directory", str(folder)]) == 0


@pytest.fixture
def line(start_router, folder, users):
    def start(router, vouch, *connectors):
        return start_router(
            f"""
[router]
id = "{router}"
drain = 0.2
[mesh]
certificate = "{folder / router}.pem"
key = "{folder / router}.key"
trust = "{folder / "mesh-ca.pem"}"
[policy]
file = "{folder / router}.toml"
push = true
signed = true
vouch = {vouch}
[[listener]]
url = "amqp://127.0.0.1:0"
sasl = ["SCRAM-SHA-256"]
users = "{users}"
[[listener]]
url = "amqps://127.0.0.1:0"
role = "mesh"
"""
            + "".join(f'[[connector]]\nurl = "{url}"\n' for url in connectors)
        )

    far = start("B", '["A"]')
    near = start("A", "[]", far.urls[1])
    return near, far


@pytest.fixture
def login(tmp_path):
    """Return the arguments by which a command logs in."""
    password = tmp_path / "password"
    password.write_text("correct horse\n")
    return ("--user", "alice", "--password-file", str(password))


def test_a_signed_policy_is_pushed_and_holds_at_each_router(line, client, folder, login):
    near, far = line
    give_up_at = monotonic() + 120
    while json.loads(amqpmesh("status", "--json", "--url", near.url, *login))["mesh"]["reachable"] < 2:
        assert monotonic() < give_up_at, "the routers do not find each other"
    lost = client("rhea_receive", far.url, "--address", "open", *ALICE)
    lost.expect("attached")
    new = folder / "new.toml"
    sign(folder, new, 2, '"other"')
    said = amqpmesh("policy", "push", str(new), "--json", "--url", near.url, *login)
    assert [(each["router"], each["accepted"]) for each in json.loads(said)["routers"]] == [("A", True), ("B", True)]
    lost.finish(status=1)
    assert (folder / "B.toml").read_bytes() == new.read_bytes()
    new.write_text(POLICY.format(version=3, receive='"#"'))
    said = amqpmesh("policy", "push", str(new), "--url", near.url, *login, expected=5)
    assert "is not signed" in said
    sign(folder, new, 3, '"third"')
    amqpmesh("policy", "push", str(new), "--router", "B", "--url", near.url, *login)
    told = json.loads(amqpmesh("status", "--json", "--url", near.url, *login))
    assert told["policy"]["version"] == 3


def test_a_router_is_drained_through_one_that_it_believes(line, folder, login):
    near, far = line
    give_up_at = monotonic() + 120
    while json.loads(amqpmesh("status", "--json", "--url", near.url, *login))["mesh"]["reachable"] < 2:
        assert monotonic() < give_up_at, "the routers do not find each other"
    assert amqpmesh("drain", "A", "--url", far.url, *login, expected=5) == "not drained: not permitted\n"
    said = amqpmesh("drain", "B", "--url", near.url, *login)
    assert said.splitlines() == ["draining: 0 connections to move in at most 60 s", "B has ended"]
    assert far.process.wait(20) == 0
