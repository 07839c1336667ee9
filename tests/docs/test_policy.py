"""The pages on policies: their policies, their commands, and the answers."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

import pytest

from amqpmesh.router.cli.main import main
from amqpmesh.router.config.file import load
from amqpmesh.router.config.policy_file import PolicyConfig, load_policy
from amqpmesh.router.config.tables import read
from tests.docs.pages import blocks, commands
from tests.support.data.tokens import key, key_set

PAGE = "operate/policy.md"
EXPORTS = "operate/exports.md"


def test_the_page_on_exports_answers_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (policy,) = blocks(EXPORTS, "toml")
    (tmp_path / "policy.toml").write_text(policy.text)
    run_commands(EXPORTS, capsys)


def test_each_command_answers_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    policy, config = blocks(PAGE, "toml")
    (tmp_path / "policy.toml").write_text(policy.text)
    (tmp_path / "router.toml").write_text(config.text)
    found = load(tmp_path / "router.toml")
    assert found.policy is not None
    assert found.policy.file == tmp_path / "policy.toml"
    run_commands(PAGE, capsys)


def run_commands(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(page, "console"):
        for command in commands(block):
            program, *given = shlex.split(command.line)
            assert program == "amqpmesh"
            status = main(given)
            assert capsys.readouterr().out.splitlines() == command.output
            assert status == (5 if any(": no:" in each or "refused" in each for each in command.output) else 0)


def test_the_page_on_pushing_shows_a_configuration_and_a_version(tmp_path: Path) -> None:
    config, version = blocks("operate/policy-push.md", "toml")
    (tmp_path / "policy.toml").write_text(version.text)
    assert load_policy(tmp_path / "policy.toml").groups == ()
    table = read(PolicyConfig, tomllib.loads(config.text)["policy"], file=tmp_path / "router.toml", where="policy")
    assert table.push
    assert table.signed


def test_the_limits_of_the_page_are_right(tmp_path: Path) -> None:
    (block,) = blocks("operate/tenant-limits.md", "toml")
    (tmp_path / "policy.toml").write_text(block.text)
    assert main(["policy", "check", "--file", str(tmp_path / "policy.toml")]) == 0


def test_the_configuration_of_the_page_on_tokens_is_right(tmp_path: Path) -> None:
    (config,) = blocks("operate/tokens.md", "toml")
    (tmp_path / "router.toml").write_text(config.text)
    (tmp_path / "keys.json").write_bytes(key_set(key("one")))
    assert main(["check", str(tmp_path / "router.toml")]) == 0
