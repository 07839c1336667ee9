"""Forecasts: chosen on older days, checked on held-back ones, and used only where they beat yesterday's value."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amqpmesh.pipeline import forecasts
from amqpmesh.pipeline.alerts import Known, news
from amqpmesh.pipeline.deliveries import ns
from amqpmesh.pipeline.findings import findings, select
from amqpmesh.pipeline.forecasts import AHEAD, HELD, YESTERDAY, predicted
from amqpmesh.pipeline.severity import Severity
from amqpmesh.pipeline.traffic_limits import Limits, parsed, read
from amqpmesh.pipeline.work import Selection
from amqpmesh.router.amqp.errors import CommandError
from tests.pipeline.test_result_rows import HOUR, write

FIRST = datetime(2026, 3, 2, tzinfo=UTC)
WEEK = [100.0, 110.0, 120.0, 115.0, 105.0, 30.0, 20.0]


def series(kind: str, days: int, seed: int = 1) -> Any:
    chance = np.random.default_rng(seed)
    return {
        "weekly": lambda: np.resize(WEEK, days) * chance.normal(1, 0.03, days),
        "growing": lambda: np.arange(days) * 10 + chance.normal(0, 3, days) + 50,
        "walk": lambda: np.maximum(0, np.cumsum(chance.normal(0, 10, days)) + 1000),
        "noise": lambda: chance.normal(100, 10, days),
        "nothing": lambda: np.zeros(days),
    }[kind]()


@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("kind", ["weekly", "growing", "walk", "noise", "nothing"])
def test_no_forecast_has_a_larger_error_on_the_held_days_than_yesterdays_value(kind: str, ahead: int) -> None:
    rows = np.array([series(kind, 60, seed) for seed in range(20)])
    for row, told in zip(rows, predicted(rows, ahead), strict=True):
        base = np.mean([abs(row[end] - row[end - ahead]) for end in range(60 - HELD, 60)])
        assert told.error_yesterday == pytest.approx(base)
        assert told.checked == HELD
        assert told.error <= told.error_yesterday
        assert (told.method == YESTERDAY) == (told.error == told.error_yesterday)
        assert told.method != YESTERDAY or told.value == row[-1]


def test_a_weekly_pattern_and_a_trend_are_found_and_predict_days_that_nobody_has_seen() -> None:
    rows = np.array([series("weekly", 64, seed) for seed in range(20)])
    for row, told in zip(rows, predicted(rows[:, :63], 1), strict=True):
        assert told.method in ("weekly", "last week")
        assert told.error < told.error_yesterday / 2
        assert told.value == pytest.approx(row[63], rel=0.2)
    (told,) = predicted(series("growing", 40).reshape(1, -1), 7)
    assert (told.method, told.value) == ("trend of two weeks", pytest.approx(50 + 46 * 10, abs=15))


def test_the_held_days_have_no_part_in_the_choice() -> None:
    """A method that the older days favour is dropped where the held days do not; no other takes its place."""
    values = np.concatenate((np.resize(WEEK, 49), np.full(HELD + 7, 60.0)))
    (told,) = predicted(values.reshape(1, -1), 1)
    assert (told.method, told.value) == (YESTERDAY, 60.0)


@pytest.mark.parametrize(("days", "ahead", "there"), [(3, 1, False), (4, 1, True), (9, 7, False), (10, 7, True)])
def test_few_days_have_yesterdays_value_or_no_forecast(days: int, ahead: int, there: bool) -> None:
    told = predicted(np.array([np.arange(days, dtype=float)]), ahead)
    assert [(each.method, each.value, each.error) for each in told] == [(YESTERDAY, days - 1.0, ahead)] * there


@pytest.mark.parametrize(("ahead", "least"), [(1, 17), (7, 29)])
def test_a_method_is_chosen_only_from_what_is_known_before_the_held_days(ahead: int, least: int) -> None:
    up = np.arange(40.0).reshape(1, -1)
    methods = {days: predicted(up[:, :days], ahead)[0].method for days in range(10, 41)}
    assert {days for days, method in methods.items() if method == YESTERDAY} == {*range(10, least)}


def days_of(out: Path, values: dict[tuple[str, str], list[float]], last: int = 24) -> None:
    """Write traffic of links at the first and the last minute of each day. Args: last: the end of the last day."""
    rows = []
    for (router, peer), of in values.items():
        for day, value in enumerate(of):
            end = last if day == len(of) - 1 else 24
            for begin, part in ((0.0, 0.25), (end - 1 / 60, 0.75)):
                start = FIRST + timedelta(days=day, hours=begin)
                octets = {"bytes": value * part * 60, "bytes_per_second": value * part}
                rows.append({"window_start": start, "router": router, "peer": peer, **octets})
    write(out, "traffic/links", *rows)
    write(
        out,
        "traffic/matrix",
        *({"window_start": row["window_start"], "ingress": row["router"], "egress": row["peer"], "address": address,
           "bytes": row["bytes"]} for row in rows for address in ("orders", "$management")),
    )  # fmt: skip


def test_links_and_routers_are_forecast_from_whole_days_of_the_tables(tmp_path: Path) -> None:
    days_of(tmp_path, {("A", "B"): [40.0, 80.0, 80.0, 80.0, 80.0, 1.0], ("B", "A"): [0.0] * 6}, last=20)
    found = [each for each in forecasts.forecasts(str(tmp_path), Limits()) if each.ahead == 1]
    told = {(each.kind, each.router, each.neighbour, each.measure): (each.value, each.last) for each in found}
    assert told == {
        ("link", "A", "B", "octets"): (4800.0, 4800.0),
        ("link", "A", "B", "peak"): (60.0, 60.0),
        ("link", "B", "A", "octets"): (0.0, 0.0),
        ("link", "B", "A", "peak"): (0.0, 0.0),
        ("router", "A", None, "octets"): (4800.0, 4800.0),
        ("router", "B", None, "octets"): (4800.0, 4800.0),
    }
    assert {each.day for each in found} == {date(2026, 3, 7)}


def test_a_forecast_above_a_limit_is_a_finding_and_one_near_it_is_a_notice(tmp_path: Path) -> None:
    up = [100.0 + 10 * day for day in range(30)]
    days_of(tmp_path, {("A", "B"): up, ("A", "C"): up, ("A", "D"): up, ("A", "E"): up})
    write(tmp_path, "losses/findings")
    assert findings(str(tmp_path)) == []
    limits = {"B": 290.0, "C": 340.0, "D": 350.0, "E": 293.0}  # the last day had 292.5, the next ones 300 and 345
    links = (
        f'[[link]]\nrouter = "A"\nneighbour = "{peer}"\nbytes_per_second = {most}' for peer, most in limits.items()
    )
    (tmp_path / "limits.toml").write_text("\n".join(links))
    found = {each.peer: each for each in findings(str(tmp_path))}
    assert {peer: (each.severity, each.kind) for peer, each in found.items()} == {
        "B": ("warning", "above limit"),
        "C": ("warning", "above limit"),
        "E": ("warning", "above limit"),
    }
    assert found["C"].sentence.startswith(
        "A -> C is forecast to carry 345 octets a second in the busiest minute on 2026-"
    )
    assert "; the limit is 340" in found["C"].sentence
    shown = select(str(tmp_path), "forecasts", Selection(limit=2), ())
    assert [(row["neighbour"], row["measure"], row["limit"]) for row in shown.rows] == [
        ("B", "peak", 290.0),
        ("E", "peak", 293.0),
    ]


def test_what_is_forecast_again_each_day_is_one_alert(tmp_path: Path) -> None:
    write(tmp_path, "losses/findings")
    limits = tmp_path / "limits.toml"
    limits.write_text('[[link]]\nrouter = "A"\nneighbour = "B"\nbytes_per_second = 100\n')
    known: Known = {}
    told = []
    for days in range(30, 35):
        days_of(tmp_path, {("A", "B"): [150.0] * days})
        if days == 33:
            limits.unlink()
        now = ns(FIRST + timedelta(days=days, hours=5))
        for later in (0, 22):  # the jobs of the next day have not run yet
            some, known, _ = news(
                findings(str(tmp_path)), known, now + later * HOUR, HOUR, least=Severity.NOTICE, since=0
            )
            told += [(days, later, each.state, each.kind) for each in some]
    assert told == [(30, 0, "began", "above limit"), (33, 22, "ended", "above limit")]


def test_a_damaged_table_is_told(tmp_path: Path) -> None:
    days_of(tmp_path, {("A", "B"): [1.0] * 5})
    (tmp_path / "traffic" / "links" / "part-0.parquet").write_bytes(b"torn")
    with pytest.raises(CommandError, match="traffic cannot be read"):
        select(str(tmp_path), "forecasts", Selection(), ())


def test_near_is_what_the_error_reaches() -> None:
    place = ("link", "A", "B", "peak", date(2026, 3, 2), 1)
    for limit, kind in (
        (None, None),
        (99.0, "above limit"),
        (100.0, "near limit"),
        (109.0, "near limit"),
        (110.0, None),
    ):
        each = forecasts.Forecast(*place, 100.0, YESTERDAY, 10.0, 10.0, 7, 90.0, limit)
        assert each.kind_of_finding == kind


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("link = 3", r"link: is a table of its own, \[\[link\]\]"),
        ("[[lonk]]", "the file: has no key 'lonk'"),
        ('[[link]]\nrouter = "A"\nneighbour = ""', "neighbour: is a name"),
        ('[[link]]\nrouter = "A"\nneighbour = "B"\nbytes_per_second = 0', "is a number above 0, not 0"),
        ('[[link]]\nrouter = "A"\nneighbour = "B"\nbytes_per_second = inf', "is a number above 0"),
        ('[[link]]\nrouter = "A"\nneighbour = "B"\nbytes_per_second = 1' + "0" * 400, "is a number above 0, not 1000"),
        ('[[tenant]]\nname = "blue"\nshare = 1.5', "share: is a number above 0, and at most 1"),
        ('[[tenant]]\nname = "blue"\nshare = true', "share: is a number"),
        ('[[tenant]]\nname = "a"\nshare = 1\n[[tenant]]\nname = "a"\nshare = 1', "'a': is there twice"),
    ],
)
def test_limits_that_are_not_valid_are_named(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=why):
        parsed(text)
    (tmp_path / "limits.toml").write_text(text)
    with pytest.raises(CommandError, match=r"limits\.toml: "):
        read(str(tmp_path))


def test_limits_that_are_nested_without_end_are_refused(tmp_path: Path) -> None:
    (tmp_path / "limits.toml").write_text("link = " + "[" * 100_000)
    with pytest.raises(CommandError, match=r"limits\.toml: its values are nested too deeply"):
        read(str(tmp_path))
