"""Evaluation of benchmark figures: medians, changes, and goals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import figures, goals
from benchmarks.bench import Bench, Results
from benchmarks.processes import cpu_seconds
from benchmarks.tables import Figures
from benchmarks.targets import Target, direct


def results(router: float, forwarder: float) -> Results:
    return {"throughput": {"100 B unsettled": {"router": {"cpu_us": router}, "forwarder": {"cpu_us": forwarder}}}}


def test_rounds_take_turns_and_their_medians_count() -> None:
    asked = []
    answers = iter([1.0, 10.0, 3.0, 30.0, 2.0, 20.0])

    def once(target: Target) -> Figures:
        asked.append(target.name)
        return {"cpu_us": next(answers)}

    found = Bench(rounds=3).take_turns([Target("router"), direct()], once)
    assert asked == ["router", "direct"] * 3
    assert found == {"router": {"cpu_us": 2.0}, "direct": {"cpu_us": 20.0}}


def test_a_machine_that_is_slower_today_is_no_change_of_the_router(capsys: pytest.CaptureFixture[str]) -> None:
    figures.show_changes(results(3.0, 1.5), {"results": results(2.0, 1.0)})
    assert "1 of 1 figures are within 10%" in capsys.readouterr().out


def test_a_router_that_costs_more_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    figures.show_changes(results(3.0, 1.0), {"results": results(2.0, 1.0)})
    said = capsys.readouterr().out
    assert "throughput, 100 B unsettled, router: cpu_us" in said
    assert "+50%" in said


def test_committing_a_part_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    idle, busy = {"load": 0.1}, {"load": 20.0}
    figures.commit(results(2.00004, 1.0), idle, file)
    figures.commit({"storm": {"1,000 at once": {"router": {"seconds": 1.0}}}}, busy, file)
    found = figures.committed(file)
    assert found["machines"] == dict.fromkeys(results(2.0, 1.0), idle) | {"storm": busy}
    assert found["results"] == results(2.0, 1.0) | {"storm": {"1,000 at once": {"router": {"seconds": 1.0}}}}


def test_a_figure_that_was_not_measured_is_neither_reached_nor_missed(capsys: pytest.CaptureFixture[str]) -> None:
    goals.show(results(3.0, 1.0))
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 2  # the head, and the one that was
    assert "NOT REACHED" in lines[1]
    assert lines[1].endswith("2.00")  # times the limit of 1.5 s


@pytest.mark.parametrize(("value", "is_reached"), [(0.84, False), (0.85, True), (2.0, True)])
def test_a_goal_may_be_a_least(value: float, is_reached: bool) -> None:
    goal = goals.Goal("of the forwarder's MB/s", 0.85, "", lambda _: value, at_least=True)
    assert goal.verdict({})[1] == is_reached


class Everything(dict[str, Any]):
    """Results with every case and target: only the names of figures can be wrong."""

    def __missing__(self, name: str) -> Any:
        return 2.0 if name in FIGURES else Everything()

    def values(self) -> Any:
        return [Everything()]


FIGURES = {
    *("cpu_us", "messages_per_second", "megabytes_per_second", "p50_us", "p99_us"),
    *("kib", "kept_kib", "octets", "kept_octets", "seconds", "times"),
    *("park_ms", "resume_seconds", "delivery_octets", "percent"),
}


def test_each_goal_takes_figures_that_there_are() -> None:
    assert all(goal.take(Everything()) >= 0 for goal in goals.GOALS)


def test_cpu_is_counted_finer_than_in_ticks() -> None:
    before = cpu_seconds(os.getpid())
    while (spent := cpu_seconds(os.getpid()) - before) == 0:
        sum(range(1000))
    assert 0 < spent < 0.01
