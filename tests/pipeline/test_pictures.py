"""The contents of pictures, read from the figures before they are drawn."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import combinations, pairwise
from typing import Any

import networkx as nx
import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.dates import date2num
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle, StepPatch
from matplotlib.text import Text

from amqpmesh.pipeline import mesh_picture, pictures
from amqpmesh.pipeline.drawing import png
from amqpmesh.pipeline.mesh_picture import Carried
from amqpmesh.pipeline.pictures import ALL_OTHERS, Clock, Failed, Moved, Percentiles, Strange

Point = np.ndarray[Any, np.dtype[np.float64]]
MS = 1e6
BEGAN = datetime(2026, 5, 1, 1, 46, tzinfo=UTC).timestamp()
MINUTES = [BEGAN + 60 * each for each in range(5)]
HOSTILE = (
    "<script>alert(1)</script>",
    "$x^2$",
    r"$\frac{",
    "two\nlines",
    "n" * 300,
    "a\x00\x1b[31mb",
    "注文",
    "",
    "_%&#{}\\",
)


def texts(figure: Figure) -> list[str]:
    """All that is written in it, once it is drawn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of glyphs that are missing, and of what finds no room
        png(figure)
    found = [each for each in figure.findobj(Text) if isinstance(each, Text) and each.get_visible() and each.get_text()]
    for each in found:
        assert not each.get_parse_math()
        assert not each.get_usetex()
    return [each.get_text() for each in found]


def lengths(figure: Figure, axes: int = 0) -> list[float]:
    """Of its bars, from the first to the last."""
    bars = figure.axes[axes].containers
    return [patch.get_width() for container in bars for patch in container if isinstance(patch, Rectangle)]


# ---------------------------------------------------------------------------------------------------------------- names


def strange(title: str) -> Strange:
    return Strange(title, "messages", BEGAN, BEGAN + 60, MINUTES, [1.0] * 5, [2.0] * 5, [1.0] * 5, [3.0] * 5)


DRAWN_WITH_NAMES: dict[str, Callable[[tuple[str, ...]], Figure]] = {
    "mesh": lambda names: mesh_picture.mesh(names, [Carried(names[0], each, 5.0) for each in names[1:]]),
    "matrix": lambda names: pictures.matrix({(each, each): 5.0 for each in names}),
    "over_time": lambda names: pictures.over_time(MINUTES, {each: [1.0] * 4 for each in names}),
    "percentiles": lambda names: pictures.percentiles([Percentiles(each, MS, MS, MS, MS, None) for each in names]),
    "shares": lambda names: pictures.shares({each: {"router": 1.0} for each in names}),
    "clocks": lambda names: pictures.clocks([Clock(each, each, MINUTES, [MS] * 5, [MS] * 5) for each in names]),
    "losses": lambda names: pictures.losses(dict.fromkeys(names, (1, 1))),
    "anomalies": lambda names: pictures.anomalies([strange(each) for each in names]),
    "contingency": lambda names: pictures.contingency([Failed(each, 1, 1.0, 1.0) for each in names]),
    "plan": lambda names: pictures.plan([Moved(each, each, 0.5, 0.4) for each in names]),
}


@pytest.mark.parametrize("kind", DRAWN_WITH_NAMES)
def test_a_name_is_text_on_one_line_whatever_it_is(kind: str) -> None:
    found = texts(DRAWN_WITH_NAMES[kind](HOSTILE))
    for name in (
        "$x^2$",
        r"$\frac{",
        "two\\u000alines",
        "a\\u0000\\u001b[31mb",
        "\\u6ce8\\u6587",
        "(empty)",
        "_%&#{}\\",
    ):
        assert any(name in text for text in found), name
    assert any(re.search(r"<scr.*ript>", text) for text in found)
    assert any("nnn…nnn" in text for text in found)
    assert max(map(len, found)) <= 120


@pytest.mark.parametrize(
    "figure",
    [
        mesh_picture.mesh([], []), pictures.matrix({}), pictures.matrix({("A", "B"): 0.0}), pictures.over_time([], {}),
        pictures.percentiles([]), pictures.shares({}), pictures.clocks([]), pictures.losses({}),
        pictures.anomalies([]), pictures.contingency([]), pictures.plan([]),
    ],
)  # fmt: skip
def test_where_there_is_nothing_a_sentence_says_so(figure: Figure) -> None:
    (sentence,) = texts(figure)
    assert sentence.startswith("nothing ")
    assert figure.axes == []


# --------------------------------------------------------------------------------------------------------- the pictures


def test_the_mesh_has_its_routers_and_what_the_busiest_links_carry_both_ways() -> None:
    figure = mesh_picture.mesh("ABCD", [Carried("A", "B", 3e6), Carried("B", "A", 1e6), Carried("C", "B", 0.0)])
    found = texts(figure)
    assert {"A", "B", "C", "D", "4 MB"} <= {*found}
    wide, narrow = sorted((line.get_linewidth() for line in figure.axes[0].lines), reverse=True)
    assert wide > 5 * narrow
    (nodes,) = (each for each in figure.axes[0].collections if isinstance(each, PathCollection))
    assert len(np.asarray(nodes.get_offsets())) == 4


def test_a_router_alone_is_a_mesh() -> None:
    assert "A" in texts(mesh_picture.mesh(["A"], []))


@pytest.mark.parametrize(
    "links",
    [
        [("A", "C"), ("C", "B"), ("B", "D"), ("D", "A")],  # a ring, whose order is not that of its names
        [(str(at * 7 % 24), str((at + 1) * 7 % 24)) for at in range(24)],
        [("A", "B"), ("B", "C"), ("C", "D"), ("D", "A"), ("C", "E")],
        [(str(one), str(other)) for one, other in nx.wheel_graph(9).edges],
        [(str(one), str(other)) for one, other in nx.grid_2d_graph(4, 5).edges],
        [*pairwise("abcda"), *pairwise("12341")],  # two, which are not connected
    ],
)
def test_what_can_be_drawn_without_crossing_links_is(links: list[tuple[str, str]]) -> None:
    names = sorted({each for link in links for each in link}, key=lambda each: each[::-1])
    figure = mesh_picture.mesh(names, [Carried(one, other, 1.0) for one, other in links])
    lines = [np.asarray(line.get_xydata(), float) for line in figure.axes[0].lines]
    assert len(lines) == len(links)
    for (a, b), (c, d) in combinations(lines, 2):
        ends = {tuple(np.round(each, 9)) for each in (a, b, c, d)}
        assert len(ends) < 4 or not crosses(a, b, c, d)


def crosses(a: Point, b: Point, c: Point, d: Point) -> bool:
    """Return True if the line from a to b crosses the line from c to d."""
    try:
        along = np.linalg.solve(np.column_stack((b - a, c - d)), c - a)
    except np.linalg.LinAlgError:  # they are parallel
        return False
    return bool(((along > 0) & (along < 1)).all())


def test_of_many_routers_only_those_at_the_busiest_links_are_named() -> None:
    names = [f"R{each}" for each in range(200)]
    links = [Carried(one, other, 10.0 + at) for at, (one, other) in enumerate(pairwise(names))]
    found = {each for each in texts(mesh_picture.mesh(names, links)) if each.startswith("R")}
    assert set() < found <= {f"R{each}" for each in range(192, 200)}


def test_a_mesh_is_drawn_the_same_each_time() -> None:
    for size in (5, 70):
        names = [f"R{each}" for each in range(size)]
        links = [Carried(one, other, 5.0) for one, other in pairwise(names)]
        assert png(mesh_picture.mesh(names, links)) == png(mesh_picture.mesh(names[::-1], links[::-1]))


def test_how_many_routers_are_left_out_of_a_large_mesh_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_picture, "DRAWN", 3)
    figure = mesh_picture.mesh("ABCDE", [Carried("A", "B", 5.0), Carried("B", "C", 5.0), Carried("D", "E", 1.0)])
    assert "2 routers that carry less are not drawn" in texts(figure)
    assert len(figure.axes[0].lines) == 2


def test_each_cell_of_the_matrix_is_what_was_sent_and_what_is_summed_up_comes_last() -> None:
    figure = pictures.matrix({("A", "B"): 5e3, (ALL_OTHERS, "A"): 9e6, ("C", ALL_OTHERS): 7e3, ("C", "B"): 1.0})
    axes = figure.axes[0]
    assert [each.get_text() for each in axes.get_yticklabels()] == ["C", "A", ALL_OTHERS]
    assert [each.get_text() for each in axes.get_xticklabels()] == ["A", "B", ALL_OTHERS]
    cells = np.asarray(axes.images[0].get_array(), float)
    assert (cells[0, 1], cells[0, 2], cells[1, 1], cells[2, 0]) == (1.0, 7e3, 5e3, 9e6)
    assert np.isnan(cells).sum() == 5
    assert {"9 MB", "5 kB", "7 kB", "1 B"} <= {*texts(figure)}


def test_traffic_is_stacked_the_most_at_the_bottom_and_all_others_at_the_top() -> None:
    rates = {"few": [1.0, 1.0, 1.0, 1.0], ALL_OTHERS: [9.0, 9.0, 9.0, 9.0], "many": [5.0, 0.0, 5.0, 5.0]}
    figure = pictures.over_time(MINUTES, rates)
    steps = [each.get_data() for each in figure.axes[0].patches if isinstance(each, StepPatch)]
    assert [list(each.values) for each in steps] == [[5, 0, 5, 5], [6, 1, 6, 6], [15, 10, 15, 15]]
    for (_, edges, below), under in zip(steps, ([0] * 4, [5, 0, 5, 5], [6, 1, 6, 6]), strict=True):
        assert list(np.asarray(below)) == under
        assert list(edges) == list(date2num([datetime.fromtimestamp(each, UTC) for each in MINUTES]))
    found = texts(figure)
    assert [each for each in found if each in rates] == ["many", "few", ALL_OTHERS]
    assert "messages in a second" in found
    assert any(each.startswith("01:4") for each in found)  # UTC, wherever this runs


def test_percentiles_stand_where_they_are_and_what_clocks_leave_open_is_drawn_where_it_matters() -> None:
    rows = [
        Percentiles("open", 2 * MS, 3 * MS, 5 * MS, 9 * MS, 1 * MS),
        Percentiles("sure", 2 * MS, 3 * MS, 5 * MS, 9 * MS, 1.0),
        Percentiles("backwards", -5.0, 3 * MS, 5 * MS, 9 * MS, None),
    ]
    figure = pictures.percentiles(rows)
    axes = figure.axes[0]
    marks = [each for each in axes.collections if isinstance(each, PathCollection)]
    found = [[float(x) for x, _ in np.asarray(each.get_offsets())] for each in marks]
    assert found == [[2 * MS, 2 * MS, pictures.FASTEST], [3 * MS] * 3, [5 * MS] * 3, [9 * MS] * 3]
    spread = [list(np.asarray(line.get_xdata(), float)) for line in axes.lines if line.get_marker() == "|"]
    assert spread == [[1 * MS, 3 * MS]]
    written = texts(figure)
    assert {"open", "sure", "backwards *", "p50", "p99", "1 ms"} <= {*written}
    assert axes.get_xscale() == "log"


def test_the_shares_of_an_address_are_one_bar() -> None:
    figure = pictures.shares(
        {"a": {"router": 0.25, "link": 0.5, "receiver": 0.2, "return": 0.05}, "b": {"router": 1.1, "link": -0.1}}
    )
    assert lengths(figure) == pytest.approx([0.25, 1.1, 0.5, 0.0, 0.2, 0.0, 0.05, 0.0])
    found = texts(figure)
    assert "50%" in found
    assert "5%" not in found  # there is no room for it
    labels = [label for label, _ in pictures.PARTS.values()]
    assert [each for each in labels if each in found] == labels[:4]  # of what takes no time nothing is said


def test_ways_that_clocks_do_not_tell_apart_are_one() -> None:
    figure = pictures.shares({"a": {"router": 0.5, "link": 0.75, "return": -0.25}, "b": {"router": 1.0}})
    assert lengths(figure) == [0.5, 1.0, 0.5, 0.0]
    assert {"a *", "b", "* on links both ways: clocks do not tell them apart"} <= {*texts(figure)}


@pytest.mark.parametrize("count", [1, 3, pictures.POINTS + 1])
def test_a_clock_is_drawn_with_its_error(count: int) -> None:
    times = [BEGAN + 10 * each for each in range(count)]
    figure = pictures.clocks([Clock("B", "A", times, [3 * MS] * count, [1 * MS] * count)] * 3)
    axes = figure.axes[0]
    assert "B against A" in texts(figure)
    (line,) = (each for each in axes.lines if len(np.asarray(each.get_ydata())) == count and each.get_marker() != "_")
    assert list(np.asarray(line.get_ydata(), float)) == [3.0] * count
    low, high = axes.get_ylim()
    assert low <= 2.0 <= 4.0 <= high
    assert [each.axison for each in figure.axes] == [True, True, True, False]


def test_each_kind_of_finding_is_a_bar_as_long_as_what_shows_it() -> None:
    figure = pictures.losses({"broken": (1, 5), "slow": (2, 40)})
    assert lengths(figure) == [5, 40]
    assert {"broken", "slow", "5 rows in 1 finding", "40 rows in 2 findings"} <= {*texts(figure)}


def test_an_episode_is_shaded_over_what_was_seen_and_what_was_expected() -> None:
    nan = math.nan
    row = Strange(
        "the median latency of a rose", "p50", MINUTES[2], MINUTES[4], MINUTES,
        [MS, nan, 9 * MS, 9 * MS, MS], [nan, MS, MS, MS, MS], [nan, 0, 0, 0, 0], [nan, 2 * MS, 2 * MS, 2 * MS, 2 * MS],
    )  # fmt: skip
    figure = pictures.anomalies([row])
    axes = figure.axes[0]
    expected, seen = (np.asarray(line.get_ydata(), float) for line in axes.lines)
    assert np.array_equal(seen, [1, nan, 9, 9, 1], equal_nan=True)
    assert np.array_equal(expected, [nan, 1, 1, 1, 1], equal_nan=True)
    (shaded,) = (each for each in axes.patches if isinstance(each, Rectangle))
    begin, end = date2num([datetime.fromtimestamp(each, UTC) for each in (MINUTES[2], MINUTES[4])])
    assert (shaded.get_x(), shaded.get_x() + shaded.get_width()) == pytest.approx((begin, end))
    assert {"the median latency of a rose", "ms"} <= {*texts(figure)}


def test_an_episode_without_values_is_no_trouble() -> None:
    nothing = [math.nan] * 5
    texts(pictures.anomalies([Strange("?", "unheard of", BEGAN, BEGAN, MINUTES, *([nothing] * 4))]))
    texts(pictures.anomalies([Strange("?", "waits", BEGAN, BEGAN)]))


def test_a_failure_is_told_by_what_it_cuts_off_what_it_loses_and_what_it_fills() -> None:
    figure = pictures.contingency([Failed("A", 3, 21_974.0, 1.33), Failed("B - C", 0, 0.0, 0.5)])
    assert [lengths(figure, axes) for axes in range(3)] == [[3, 0], [21_974, 0], [1.33, 0.5]]
    assert {"A", "B - C", "3", "22k", "133%", "50%", "0"} <= {*texts(figure)}


def test_the_use_of_a_link_is_drawn_before_and_after() -> None:
    figure = pictures.plan([Moved("A", "B", 0.9, 0.5), Moved("B", "C", 0.1, 0.5)])
    before, after = (np.asarray(each.get_offsets())[:, 0].tolist() for each in figure.axes[0].collections)
    assert (before, after) == ([0.9, 0.1], [0.5, 0.5])
    assert {"A → B", "B → C", "before", "after"} <= {*texts(figure)}
