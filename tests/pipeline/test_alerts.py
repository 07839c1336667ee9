"""Alerts: each episode is told once, and its end; whatever ends the command in between; and bounded files."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amqpmesh.pipeline import alerts
from amqpmesh.pipeline.alerts import Alert, Known, append, document, memory, news, remember
from amqpmesh.pipeline.findings import Finding
from amqpmesh.pipeline.severity import Severity
from amqpmesh.router.amqp.errors import CommandError
from tests.pipeline.test_result_rows import ns

QUIET = ns(1) - ns(0)


def finding(begin: float, end: float, **more: Any) -> Finding:
    """Return a finding between two hours."""
    told: dict[str, Any] = {
        "severity": "warning",
        "job": "losses",
        "kind": "storm",
        "place": ("storm", "orders"),
        "finding": 1,
        "address": "orders",
        "tenant": None,
        "router": "A",
        "peer": None,
        "found": 3,
        "sentence": "it was lost",
        "evidence": "3 rows",
        "advice": "Look.",
    }
    return Finding(**{**told, "begin_time": ns(begin), "end_time": ns(end), **more})


class Target:
    """A target that is told what is new, again and again."""

    def __init__(self, least: Severity = Severity.NOTICE, since: float = 0) -> None:
        self.known: Known = {}
        self._least, self._since = least, ns(since)
        self.ids: list[str] = []

    def told(self, now: float, *found: Finding) -> list[tuple[str, str, str]]:
        some, self.known, _ = news(found, self.known, ns(now), QUIET, least=self._least, since=self._since)
        self.ids = [each.id for each in some]
        return [(each.state, each.begin[11:16], each.end[11:16]) for each in some]


def test_an_episode_is_told_when_it_begins_and_when_it_is_over_and_not_in_between() -> None:
    target = Target()
    assert target.told(2, finding(1, 1.9)) == [("began", "01:00", "01:54")]
    first = target.ids
    assert target.told(2.2, finding(1, 1.9)) == []
    assert target.told(3, finding(1, 2.5)) == []
    assert target.told(4, finding(1, 2.5)) == [("ended", "01:00", "02:30")]
    assert target.ids == first
    assert target.told(5, finding(1, 2.5)) == []
    assert target.told(6) == []


def test_one_that_is_over_when_it_is_found_is_told_once() -> None:
    target = Target()
    assert target.told(9, finding(1, 2)) == [("ended", "01:00", "02:00")]
    assert target.told(10, finding(1, 2)) == []


def test_what_comes_after_its_end_is_another_episode() -> None:
    target = Target()
    target.told(2, finding(1, 1.9))
    target.told(4, finding(1, 1.9))
    before = target.ids
    # The row of a loss has its first time ever.
    assert target.told(9, finding(1, 8.5)) == [("began", "01:54", "08:30")]
    assert target.ids != before
    assert target.told(11, finding(1, 8.5)) == [("ended", "01:54", "08:30")]


def test_one_that_is_gone_from_the_tables_ends_too() -> None:
    target = Target()
    target.told(2, finding(1, 1.9))
    assert target.told(2.5) == []
    assert target.told(4) == [("ended", "01:00", "01:54")]


def test_episodes_of_a_series_near_each_other_are_one() -> None:
    target = Target()
    parts = [finding(begin, begin + 0.2, finding=number) for number, begin in enumerate((4.0, 1.0, 1.5, 4.1))]
    assert target.told(4.5, *parts) == [("ended", "01:00", "01:42"), ("began", "04:00", "04:18")]
    assert target.told(4.6, *reversed(parts)) == []


def test_other_places_are_other_episodes_and_the_worst_come_first() -> None:
    target = Target(least=Severity.WARNING)
    found = [
        finding(1, 2, place=("a",)),
        finding(1, 2, place=("b",), severity="serious"),
        finding(1, 2, place=("c",), severity="notice"),
        finding(0.5, 2, place=("a",), job="anomalies"),
    ]
    assert target.told(2, *found) == [
        ("began", "01:00", "02:00"),
        ("began", "00:30", "02:00"),
        ("began", "01:00", "02:00"),
    ]
    assert len({*target.ids}) == 3


def test_what_was_over_long_ago_is_not_told_but_what_goes_on_is() -> None:
    target = Target(since=5)
    assert target.told(9, finding(1, 4), finding(1, 8.5, place=("b",))) == [("began", "01:00", "08:30")]
    assert target.told(9.1, finding(1, 4), finding(1, 8.5, place=("b",))) == []


@pytest.mark.parametrize("seed", range(20))
def test_however_often_it_is_asked_each_episode_begins_at_most_once_and_ends_once(seed: int) -> None:
    chance = random.Random(seed)
    target = Target()
    spans = sorted(
        (begin := chance.uniform(0, 20), begin + chance.uniform(0, 2), chance.choice("abc")) for _ in range(12)
    )
    states: dict[str, list[str]] = {}
    now = 0.0
    while now < 30:
        now += chance.choice((0.1, 0.5, 3.0))
        seen = [finding(b, min(e, now), place=(place,)) for b, e, place in spans if b <= now]
        some, target.known, _ = news(seen, target.known, ns(now), QUIET, least=Severity.NOTICE, since=0)
        for each in some:
            states.setdefault(each.id, []).append(each.state)
    assert states
    assert {tuple(each) for each in states.values()} <= {("began", "ended"), ("ended",)}
    assert all(each.is_over for each in target.known.values())


def test_no_more_is_remembered_or_told_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "MOST_KNOWN", 5)
    monkeypatch.setattr(alerts, "MOST_TOLD", 3)
    found = [finding(number, number + 0.1, place=(str(number),), sentence="x" * 5000) for number in range(8)]
    some, known, untold = news(found, {}, ns(7.5), QUIET, least=Severity.NOTICE, since=0)
    assert sorted(each.end for each in known.values()) == [ns(number + 0.1) for number in range(3, 8)]
    told = json.loads(document(some, ns(9)))
    assert (len(some), len(told["alerts"]), told["left_out"], told["sent"]) == (5, 3, 2, "2026-05-01T09:00:00Z")
    assert untold == 3
    assert {len(each["sentence"]) for each in told["alerts"]} == {alerts.LONGEST_TEXT}


def test_more_than_can_be_remembered_are_told_once_and_the_rest_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alerts, "MOST_KNOWN", 5)

    def run(now: float, number: int, *others: Finding) -> tuple[list[tuple[str, str | None]], int]:
        nonlocal known
        found = [finding(1, now, place=(str(each),), address=str(each)) for each in range(number)]
        some, known, untold = news([*found, *others], known, ns(now), QUIET, least=Severity.NOTICE, since=ns(now - 24))
        return sorted((each.state, each.address) for each in some), untold

    known: Known = {}
    first, untold = run(2, 8)
    assert ([state for state, _ in first], untold) == (["began"] * 5, 3)
    assert run(2.5, 8) == ([], 3)
    # A worse one is told; one of the others is forgotten for it, and not told again.
    serious = finding(1, 3, place=("serious",), address="serious", severity="serious")
    assert run(3, 8, serious) == ([("began", "serious")], 3)
    assert run(3.5, 8, serious) == ([], 4)
    # All end but two: those that were told of, and what was forgotten has room now.
    ended, untold = run(9, 2)
    assert {state for state, _ in ended} <= {"began", "ended"}
    assert ("ended", "serious") in ended
    assert untold == 0
    assert {each.alert["address"] for each in known.values() if not each.is_over} == {"0", "1"}


# --------------------------------------------------------------------------------------------------------- the files


def some_alerts(number: int) -> list[Alert]:
    return news(
        [finding(1, 2, place=(str(each),)) for each in range(number)], {}, ns(2), QUIET, least=Severity.NOTICE, since=0
    )[0]


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def test_a_file_has_a_line_for_each_and_a_torn_one_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "alerts.jsonl"
    append(path, some_alerts(2))
    assert [each["state"] for each in lines(path)] == ["began", "began"]
    with path.open("a") as stream:
        stream.write('{"id": "tor')
    append(path, some_alerts(1))
    *_, torn, last = path.read_text().splitlines()
    assert (torn, json.loads(last)["address"]) == ('{"id": "tor', "orders")


def test_a_file_that_is_large_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "LARGEST_FILE", 1000)
    path = tmp_path / "alerts.jsonl"
    for _ in range(7):
        append(path, some_alerts(2))
    assert {each.name for each in tmp_path.iterdir()} <= {"alerts.jsonl", "alerts.jsonl.1"}
    assert len(lines(tmp_path / "alerts.jsonl.1")) <= 4


def test_what_is_no_file_is_refused_and_does_not_hold_the_command(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for each in (tmp_path / "fifo", Path("/dev/null")):
        with pytest.raises(CommandError, match="no file"):
            append(each, some_alerts(1))


def test_what_was_told_is_remembered(tmp_path: Path) -> None:
    _, known, _ = news([finding(1, 2)], {}, ns(2), QUIET, least=Severity.NOTICE, since=0)
    with memory(tmp_path) as before:
        assert before == {}
        remember(tmp_path, {"file": known})
    with memory(tmp_path) as after:
        assert after == {"file": known}
    assert news([finding(1, 2)], after["file"], ns(2.5), QUIET, least=Severity.NOTICE, since=0)[0] == []


@pytest.mark.parametrize(
    "change",
    [
        lambda told: "{",
        lambda told: "[" * 100_000,
        lambda told: told.replace('"format": 1', '"format": 2'),
        lambda told: told.replace('"is_over": false', '"is_over": 0'),
        lambda told: told.replace('"severity": "warning"', '"severity": "bad"'),
        lambda told: told.replace('"sentence": "it was lost"', '"sentence": {}'),
        lambda told: told.replace(f'"end": {ns(2)}', '"end": 1e99'),
        lambda told: told.replace(f'"end": {ns(2)}', f'"end": {10**40}'),
        lambda told: told.replace('"evidence"', '"evidense"'),
    ],
)
def test_a_damaged_memory_is_told(change: Any, tmp_path: Path) -> None:
    _, known, _ = news([finding(1, 2)], {}, ns(2), QUIET, least=Severity.NOTICE, since=0)
    remember(tmp_path, {"file": known})
    path = tmp_path / alerts.FILE
    before = path.read_text()
    path.write_text(change(before))
    assert path.read_text() != before
    with pytest.raises(CommandError), memory(tmp_path):
        pass


def test_findings_without_times_go_on_as_long_as_they_are_found() -> None:
    target = Target()
    timeless = replace(finding(0, 0), begin_time=None, end_time=None)
    assert [state for state, _, _ in target.told(1, timeless)] == ["began"]
    assert target.told(1.5, timeless) == []
    assert [state for state, _, _ in target.told(4)] == ["ended"]
