"""`amqpmesh pipeline alert`: to a file and to a webhook, each episode once; and what is wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.test_result_rows import write
from tests.pipeline.test_webhook import OK, Endpoint, endpoint
from tests.support.processes.router_thread import Command

__all__ = ["endpoint"]  # a fixture

NOW = time.time_ns()
HOUR = 3600 * 10**9


@pytest.fixture
def out(tmp_path: Path) -> Path:
    common = {"finding": 1, "tenant": "", "sentence": "it was lost", "of": 9, "router": "A", "found": 2}
    write(
        tmp_path / "out",
        "losses/findings",
        {**common, "kind": "broken", "address": "orders", "first_time": NOW - 3 * HOUR, "last_time": NOW - 2 * HOUR},
        {**common, "kind": "storm", "address": "tea", "first_time": NOW, "last_time": NOW + HOUR},
        {**common, "kind": "slow", "address": "tea", "first_time": NOW, "last_time": NOW},
        {**common, "kind": "loop", "address": "tea", "first_time": NOW - 90 * HOUR, "last_time": NOW - 80 * HOUR},
    )
    return tmp_path / "out"


def states(told: Any) -> list[tuple[str, str]]:
    return [(each["state"], each["kind"]) for each in told]


NEW = [("ended", "broken"), ("began", "storm")]


def test_a_file_and_a_webhook_are_told_of_each_episode_once(
    out: Path, command: Command, endpoint: Callable[..., Endpoint], tmp_path: Path
) -> None:
    there = endpoint(b"HTTP/1.1 404 No\r\n\r\n", OK)
    (tmp_path / "hook.toml").write_text(f'url = "http://127.0.0.1:{there.port}/hidden"\ntoken = "s3cret"')
    arguments = (
        "pipeline",
        "alert",
        "--out",
        str(out),
        "--file",
        f"{tmp_path}/alerts.jsonl",
        "--webhook",
        f"{tmp_path}/hook.toml",
    )
    ended = command(*arguments)
    assert (ended.status, ended.out) == (3, "file: told of 1 that began, and of 1 that ended\n")
    assert ended.lines[-1] == "amqpmesh: webhook 127.0.0.1: it answered with 404"
    # The file has had them; the webhook has not.
    ended = command(*arguments, "--json")
    assert (ended.status, ended.err) == (0, "")
    told = json.loads(ended.out)
    assert (told["file"], states(told["webhook"])) == ([], NEW)
    assert states(map(json.loads, (tmp_path / "alerts.jsonl").read_text().splitlines())) == NEW
    assert states(json.loads(there.requests[-1].partition(b"\r\n\r\n")[2])["alerts"]) == NEW
    assert json.loads(command(*arguments, "--json").out) == {"file": [], "webhook": []}
    assert len(there.requests) == 2


def test_each_file_and_each_webhook_is_told_and_one_that_fails_keeps_no_other_from_it(
    out: Path, command: Command, endpoint: Callable[..., Endpoint], tmp_path: Path
) -> None:
    there = endpoint(OK)
    for name in ("one", "other"):
        (tmp_path / f"{name}.toml").write_text(f'url = "http://127.0.0.1:{there.port}/{name}"')
    arguments = ("pipeline", "alert", "--out", str(out), "--webhook")
    # The directory of the file is not there.
    ended = command(*arguments, f"{tmp_path}/one.toml", "--file", f"{tmp_path}/none/alerts.jsonl")
    assert (ended.status, ended.out) == (1, "webhook: told of 1 that began, and of 1 that ended\n")
    assert "none/alerts.jsonl" in ended.lines[-1]
    assert states(json.loads(command(*arguments, f"{tmp_path}/other.toml", "--json").out)["webhook"]) == NEW
    assert json.loads(command(*arguments, f"{tmp_path}/one.toml", "--json").out) == {"webhook": []}
    assert [each.split()[1] for each in there.requests] == [b"/one", b"/other"]


def test_how_bad_and_how_old_can_be_said(out: Path, command: Command, tmp_path: Path) -> None:
    arguments = ("pipeline", "alert", "--out", str(out), "--json", "--file", f"{tmp_path}/alerts.jsonl")
    told = json.loads(command(*arguments, "--severity", "serious", "--quiet", "4h").out)["file"]
    assert states(told) == [("began", "broken")]
    told = json.loads(command(*arguments, "--severity", "notice", "--since", "-4d").out)["file"]
    assert sorted(states(told)) == [("began", "slow"), ("began", "storm"), ("ended", "broken"), ("ended", "loop")]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "--webhook or --file: where to?"),
        (["--webhook", "nothing"], "nothing: No such file"),
        (["--file", "/dev/null"], "/dev/null: no file"),
        (["--file", "a", "--out", "hdfs://there/out"], "hdfs://there/out"),
        (["--file", "a", "--out", "empty"], "no results of losses in "),
        (["--file", "a", "--quiet", "-1h"], "--quiet: must be a duration"),
    ],
)
def test_what_is_wrong_ends_with_2(
    more: list[str], said: str, out: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(out)
    (out / "empty").mkdir()
    ended = command("pipeline", "alert", *(["--out", str(out)] if "--out" not in more else []), *more)
    assert (ended.status, ended.out) == (2, "")
    assert said in ended.lines[-1]
