"""`amqpmesh pipeline maintenance`: the tables, JSON, and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pipeline.test_maintenance import publish
from tests.support.processes.router_thread import Command


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return publish(tmp_path)


def test_the_command_prints_it_and_ends_with_5_if_an_address_is_cut_off(out: Path, command: Command) -> None:
    ended = command("pipeline", "maintenance", "--out", str(out), "--without", "B")
    assert (ended.status, ended.err) == (5, "")
    lines = ended.out.splitlines()
    assert lines[0] == "without B: 4 messages lost, 2 sent there, 0 on longer paths"
    assert lines[3].startswith("1. attach receivers of orders to routers")
    ended = command(
        "pipeline", "maintenance", "--out", str(out), "--without-link", "A", "B", "--since", "2026-05-01", "--json"
    )
    told = json.loads(ended.out)
    assert (ended.status, [each["address"] for each in told["cut_off"]]) == (5, ["orders", "tea"])
    ended = command("pipeline", "maintenance", "--out", str(out), "--without", "C", "--until", "2026-04-30")
    assert (ended.status, ended.out.splitlines()[3]) == (0, "1. nothing has to be changed first")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "--without or --without-link: which?"),
        (["--without", "X"], "no router 'X' in the recorded graph"),
        (["--without", "A", "--out", "nothing"], "no results of plan in "),
    ],
)
def test_what_is_wrong_ends_with_2(more: list[str], said: str, out: Path, command: Command) -> None:
    ended = command("pipeline", "maintenance", "--out", str(out), *more)
    assert (ended.status, ended.out) == (2, "")
    assert said in ended.lines[-1]
