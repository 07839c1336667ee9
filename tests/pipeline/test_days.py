"""The last day beside the day before and last week: exact sums, and only of days that were recorded as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from amqpmesh.pipeline.days import ALL, SHOWN, Compared, compared, table
from amqpmesh.router.amqp.errors import CommandError
from tests.pipeline.test_result_rows import at, write

LAST = 24 * 10 - 1 / 60
"""The hour at which the last window begins."""


def row(hour: float, address: str, messages: float, **more: Any) -> dict[str, Any]:
    return {
        "window_start": at(hour),
        "address": address,
        "messages": messages,
        "basis": "recorded",
        "tenant": "",
        **more,
    }


def test_the_last_day_is_compared_with_the_day_before_and_with_last_week(tmp_path: Path) -> None:
    write(
        tmp_path,
        "traffic/matrix",
        row(0, "tea", 1),
        row(24 * 2, "orders", 8),
        row(24 * 3, "orders", 500),  # in neither of the days
        row(24 * 8, "orders", 20),
        row(24 * 9 - 1 / 60, "orders", 20),
        row(24 * 9, "orders", 25),
        row(LAST, "orders", 5, egress=None),
        row(LAST, "tea", 7, tenant="shop"),
        row(LAST, "$management", 99),
        row(LAST, None, 99),  # type: ignore[arg-type]
    )
    end, rows = compared(str(tmp_path))
    assert end == at(240)
    assert rows == [
        Compared(ALL, 37, 40, 8),
        Compared("orders", 30, 40, 8),
        Compared("shop: tea", 7, 0, 0),
    ]
    told = table(str(tmp_path))
    assert told is not None
    assert "before 2026-05-11 00:00 UTC" in told.title
    assert told.rows == (
        (ALL, 37, 40, "-7%", 8, "+362%"),
        ("orders", 30, 40, "-25%", 8, "+275%"),
        ("shop: tea", 7, 0, "new", 0, "new"),
    )


def test_a_day_that_was_not_recorded_as_a_whole_is_not_compared(tmp_path: Path) -> None:
    write(tmp_path, "traffic/matrix", row(24 * 3, "orders", 4), row(LAST, "orders", 5))
    assert compared(str(tmp_path))[1][0] == Compared(ALL, 5, 0, None)
    write(tmp_path, "traffic/matrix", row(24 * 8 + 1, "orders", 4), row(LAST, "orders", 5))
    assert compared(str(tmp_path)) == (None, [])
    assert table(str(tmp_path)) is None
    write(tmp_path, "traffic/matrix")
    assert table(str(tmp_path)) is None


def test_those_that_changed_most_are_shown(tmp_path: Path) -> None:
    rows = [row(24 * 8, "a", 1), *(row(LAST, f"a{number:02}", number) for number in range(1, 20))]
    write(tmp_path, "traffic/matrix", *rows)
    told = table(str(tmp_path))
    assert told is not None
    assert [each[0] for each in told.rows] == [ALL, *(f"a{19 - number:02}" for number in range(SHOWN))]


def test_without_traffic_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="^no results of traffic in "):
        compared(str(tmp_path))
    assert table(str(tmp_path)) is None
