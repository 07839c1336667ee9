"""Pictures of the pipeline's results, except that of the mesh. They take plain data and return a figure.

Each function takes a bounded number of rows, as `summaries` reads them, and shows only what the tables have. Without
rows the picture says so. Times are UTC.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from amqpmesh.pipeline.drawing import (
    BLUES,
    COLORS,
    FAINT,
    INK,
    OTHERS,
    WIDTH,
    count,
    entries,
    legend_below,
    name,
    nothing,
    octets,
    percent,
    picture,
    quiet,
    seconds,
    sheet,
)

CELLS: Final = 12
"""Rows and columns up to which a heat map has numbers in its cells."""

FASTEST: Final = 1_000
"""Nanoseconds: shorter times, also negative ones by the clocks, are drawn as this long."""

POINTS: Final = 40
"""Estimates of a clock that are drawn as points; more are a line in a band."""

PARTS: Final = {
    "router": ("in routers", COLORS[0]),
    "link": ("on links", COLORS[4]),
    "receiver": ("waiting for the receiver's outcome", COLORS[1]),
    "return": ("the outcome's way back", COLORS[2]),
    "lost": ("until a router said how it ended", COLORS[3]),
}
"""The parts of a delivery's time, by their names in the table `latency/shares`."""


class Percentiles(NamedTuple):
    """The latency of an address, in ns. `error`: the largest error of these figures; None: unknown."""

    address: str
    p50: float
    p90: float
    p99: float
    max: float
    error: float | None


@dataclass(frozen=True)
class Clock:
    """The offset of a router's clock from another's. Args: times: seconds since 1970. offsets, errors: in ns."""

    router: str
    against: str
    times: Sequence[float]
    offsets: Sequence[float]
    errors: Sequence[float]


class Failed(NamedTuple):
    """A failure and its effect. Args: use: of the busiest link then, relative to the busiest link now."""

    failure: str
    cut_off: int
    lost: float
    use: float


class Moved(NamedTuple):
    """The use of a direction of a link, before and after the plan."""

    router: str
    peer: str
    before: float
    after: float


@dataclass(frozen=True)
class Strange:
    """A series around an episode.

    Args: title: its name. measure: as in `anomalies/series`. times: seconds since 1970, of windows.
        values, usual, low, high: of each; nan: unknown. begin, end: of the episode, seconds since 1970.
    """

    title: str
    measure: str
    begin: float
    end: float
    times: Sequence[float] = field(default_factory=tuple)
    values: Sequence[float] = field(default_factory=tuple)
    usual: Sequence[float] = field(default_factory=tuple)
    low: Sequence[float] = field(default_factory=tuple)
    high: Sequence[float] = field(default_factory=tuple)


# -------------------------------------------------------------------------------------------------------------- traffic


@picture
def matrix(flows: Mapping[tuple[str, str], float]) -> Figure:
    """Draw the traffic matrix. Args: flows: octets, from an ingress router to an egress router."""
    amounts = {pair: amount for pair, amount in flows.items() if amount > 0}
    if not amounts:
        return nothing()
    rows, columns = (_by_size(amounts, side) for side in (0, 1))
    cells = np.full((len(rows), len(columns)), np.nan)
    for (row, column), amount in amounts.items():
        cells[rows.index(row), columns.index(column)] = amount
    figure = sheet(1.7 + 0.32 * len(rows), min(WIDTH, 4.0 + 0.55 * len(columns)))
    axes = figure.subplots()
    low, high = float(np.nanmin(cells)), float(np.nanmax(cells))
    scale = LogNorm(low, high) if high > 20 * low else Normalize(0, high)
    image = axes.imshow(cells, cmap=BLUES, norm=scale, aspect="auto")
    axes.set_xticks(range(len(columns)), [name(each, 18) for each in columns])
    if len(columns) > 3:
        axes.tick_params(axis="x", labelrotation=45)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), [name(each, 24) for each in rows])
    axes.tick_params(length=0)
    axes.set_xlabel("left the mesh at")
    axes.set_ylabel("entered the mesh at")
    if len(rows) <= CELLS and len(columns) <= CELLS:
        for (row, column), amount in np.ndenumerate(cells):
            if not math.isnan(amount):
                color = "white" if scale(amount) > 0.38 else INK
                axes.text(column, row, octets(amount), ha="center", va="center", fontsize=7, color=color)
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=25)
    bar.set_label("payload")
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: octets(value)))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, which="both")
    return figure


def _by_size(amounts: Mapping[tuple[str, str], float], side: int) -> list[str]:
    total: dict[str, float] = {}
    for pair, amount in amounts.items():
        total[pair[side]] = total.get(pair[side], 0.0) + amount
    # The sum of all others comes last, however large it is.
    return sorted(total, key=lambda each: (each == ALL_OTHERS, -total[each], each))


ALL_OTHERS: Final = "(all others)"
"""The name of the sum of all others."""


@picture
def over_time(edges: Sequence[float], rates: Mapping[str, Sequence[float]]) -> Figure:
    """Draw messages per second, stacked by address, the largest at the bottom.

    Args: edges: the begins and ends of windows in seconds since 1970, one more than windows. rates: of each address, in
        each window.
    """
    if len(edges) < 2 or not rates:
        return nothing()
    order = sorted(rates, key=lambda each: (each == ALL_OTHERS, -sum(rates[each]), each))
    figure = sheet(3.6 + 0.2 * math.ceil(len(order) / 3))
    axes = figure.subplots()
    at = _dates(edges)
    named: dict[str, Artist] = {}
    below = np.zeros(len(edges) - 1)
    for place, address in enumerate(order):
        above = below + np.asarray(rates[address], float)
        color = OTHERS if address == ALL_OTHERS else COLORS[place % len(COLORS)]
        named[name(address)] = axes.stairs(
            above, at, baseline=below, fill=True, facecolor=color, edgecolor="white", linewidth=0.3
        )
        below = above
    axes.set_ylim(0, (float(below.max()) or 1.0) * 1.05)
    axes.set_ylabel("messages in a second")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    _set_time_axis(axes, edges[0], edges[-1])
    quiet(axes, "y")
    legend_below(figure, named, 3)
    return figure


# -------------------------------------------------------------------------------------------------------------- latency


@picture
def percentiles(rows: Sequence[Percentiles]) -> Figure:
    """Draw percentiles of latency, the slowest address at the top, with the error of the clocks."""
    if not rows:
        return nothing()
    figure = sheet(1.3 + 0.36 * len(rows))
    axes = figure.subplots()
    marks = (("p50", "o", COLORS[0]), ("p90", "s", COLORS[4]), ("p99", "D", COLORS[1]), ("max", ">", COLORS[5]))
    for place, row in enumerate(rows):
        axes.plot([_drawn(row.p50), _drawn(row.max)], [place, place], color="#D5D5D5", linewidth=2, zorder=1)
        if row.error is None or row.error <= 0.05 * abs(row.p50):
            continue
        ends = [_drawn(row.p50 - row.error), _drawn(row.p50 + row.error)]
        axes.plot(ends, [place, place], color=INK, linewidth=1, marker="|", markersize=7, alpha=0.6, zorder=2,
                  label="p50, as far as clocks leave it open")  # fmt: skip
    for what, marker, color in marks:
        values = [_drawn(getattr(row, what)) for row in rows]
        axes.scatter(values, range(len(rows)), marker=marker, color=color, s=34, zorder=3, label=what)
    axes.set_yticks(range(len(rows)), [name(row.address) + ("" if row.error is not None else " *") for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xscale("log")
    # The uncertainty of clocks may reach from nothing to far beyond all values: it may leave the picture.
    seen = [_drawn(each) for row in rows for each in (row.p50, row.max)]
    _log_times(axes, max(FASTEST, min(seen) / 4), 2 * max(seen))
    axes.set_xlabel("from the first frame coming to the last one leaving the mesh")
    quiet(axes)
    axes.grid(axis="x", which="minor", alpha=0.25)
    if any(row.error is None for row in rows):
        axes.set_title("* some clocks could not be compared: taken as they are", fontsize=8)
    named = entries(axes)
    legend_below(figure, dict(sorted(named.items(), key=lambda each: each[0].startswith("p50, "))), 5)
    return figure


def _drawn(ns: float) -> float:
    return max(float(ns), FASTEST)


def _log_times(axes: Axes, low: float, high: float) -> None:
    # Less than a decade would have one label on its axis, or none.
    between = (1.0, 2.0, 5.0) if high < 200 * low else (1.0,)
    axes.set_xlim(low / 1.4, max(1.4 * high, 4 * low))
    axes.xaxis.set_major_locator(LogLocator(10, between))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


@picture
def shares(rows: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw the parts of each address's time. Args: rows: by address, of each of `PARTS`, its share, 0 to 1."""
    if not rows:
        return nothing()
    figure = sheet(1.2 + 0.34 * len(rows))
    axes = figure.subplots()
    places = range(len(rows))
    left = np.zeros(len(rows))
    together = [_together(each) for each in rows.values()]
    for part, (label, color) in PARTS.items():
        wide = np.array([max(0.0, each.get(part, 0.0)) for each in together])
        if not wide.any():
            continue
        bars = axes.barh(places, wide, 0.72, left=left, color=color, edgecolor="white", linewidth=0.6, label=label)
        told = [percent(each) if each >= 0.06 else "" for each in wide]
        axes.bar_label(bars, told, label_type="center", fontsize=7.5, color="white" if part == "router" else INK)
        left += wide
    marks = ["" if each is row else " *" for each, row in zip(together, rows.values(), strict=True)]
    axes.set_yticks(places, [name(each) + mark for each, mark in zip(rows, marks, strict=True)])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, max(1.0, float(left.max())))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: percent(value)))
    axes.set_xlabel("of the time of all deliveries to the address")
    if any(marks):
        axes.set_title("* on links both ways: clocks do not tell them apart", fontsize=8)
    quiet(axes)
    legend_below(figure, entries(axes))
    return figure


def _together(row: Mapping[str, float]) -> Mapping[str, float]:
    """Merge both directions of links if one of them is negative by the clocks: their sum is right."""
    there, back = row.get("link", 0.0), row.get("return", 0.0)
    return row if min(there, back) >= 0 else {**row, "link": there + back, "return": 0.0}


@picture
def clocks(rows: Sequence[Clock]) -> Figure:
    """Draw the offset of each clock with its error: a small picture for each, with a scale of its own."""
    if not rows:
        return nothing()
    columns = 1 if len(rows) == 1 else 2
    high = math.ceil(len(rows) / columns)
    figure = sheet(0.9 + 1.5 * high)
    grid = list(figure.subplots(high, columns, squeeze=False).flat)
    known = [each.times for each in rows if len(each.times)]
    first, last = min(min(each) for each in known), max(max(each) for each in known)
    for axes, row in zip(grid, rows, strict=False):
        at, offset, error = _dates(row.times), np.array(row.offsets) / 1e6, np.array(row.errors) / 1e6
        if len(at) <= POINTS:
            axes.errorbar(at, offset, error, fmt="o", color=COLORS[0], ecolor=COLORS[4], capsize=2, markersize=3)
        else:
            axes.fill_between(at, offset - error, offset + error, color=COLORS[4], alpha=0.4, linewidth=0)
            axes.plot(at, offset, color=COLORS[0], linewidth=1)
        axes.set_title(f"{name(row.router, 22)} against {name(row.against, 22)}")
        axes.set_ylabel("ms ahead")
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.ticklabel_format(axis="y", useOffset=False, style="plain")
        _set_time_axis(axes, first, last, space=0.02)
        quiet(axes, "y")
    for axes in grid[len(rows) :]:
        axes.set_axis_off()
    return figure


# ------------------------------------------------------------------------------------------------------ what went wrong


@picture
def losses(rows: Mapping[str, tuple[int, int]]) -> Figure:
    """Draw the findings. Args: rows: by kind, how many findings, and how many rows show them."""
    if not rows:
        return nothing("nothing was found that went wrong")
    figure = sheet(1.0 + 0.36 * len(rows))
    axes = figure.subplots()
    shown = [found for _, found in rows.values()]
    bars = axes.barh(range(len(rows)), shown, 0.7, color=COLORS[5])
    told = [f"{_plural(found, 'row')} in {_plural(number, 'finding')}" for number, found in rows.values()]
    axes.bar_label(bars, told, padding=4, fontsize=8)
    axes.set_yticks(range(len(rows)), [name(each) for each in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    if max(shown) > 50 * min(shown):
        axes.set_xscale("symlog", linthresh=1)
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(0, axes.get_xlim()[1])
    axes.margins(x=0.25)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    axes.set_xlabel("deliveries, or tellings of links, that show it")
    quiet(axes)
    return figure


def _plural(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


_MEASURED: Final = {
    "messages": ("messages", 1.0),
    "octets": ("octets", 1.0),
    "p50": ("ms", 1e-6),
    "p95": ("ms", 1e-6),
    "failures": ("%", 100.0),
    "waits": ("s", 1e-9),
}
"""The unit of each measure in a picture, and the factor of the conversion."""


@picture
def anomalies(rows: Sequence[Strange]) -> Figure:
    """Draw the worst episodes: the values seen, the values expected, and the time when they differed."""
    if not rows:
        return nothing("nothing differed from what is usual, as far as there is history enough")
    figure = sheet(0.7 + 1.75 * len(rows))
    grid = figure.subplots(len(rows), 1, squeeze=False)[:, 0]
    for axes, row in zip(grid, rows, strict=True):
        unit, factor = _MEASURED.get(row.measure, ("", 1.0))
        at = _dates(row.times)
        values, usual, low, high = (
            np.array(each, float) * factor for each in (row.values, row.usual, row.low, row.high)
        )
        axes.axvspan(*_dates([row.begin, row.end]), color=COLORS[5], alpha=0.16, linewidth=0, label="the episode")
        axes.fill_between(
            at, low, high, step="post", color=COLORS[4], alpha=0.35, linewidth=0, label="what may be by chance"
        )
        axes.step(at, usual, where="post", color=COLORS[0], linewidth=0.9, linestyle="--", label="what was expected")
        axes.step(at, values, where="post", color=INK, linewidth=1.1, label="what was seen")
        axes.set_title(name(row.title, 120))
        axes.set_ylabel(unit)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        # The band may be far wider than all values.
        seen = np.concatenate([values, usual])
        top = float(np.nanmax(seen)) if np.isfinite(seen).any() else 1.0
        axes.set_ylim(0, 1.25 * top or 1.0)
        _set_time_axis(axes, min([row.begin, *row.times]), max([row.end, *row.times]))
        quiet(axes, "y")
    legend_below(figure, entries(grid[0]))
    return figure


@picture
def contingency(rows: Sequence[Failed]) -> Figure:
    """Draw the worst failures, the very worst at the top."""
    if not rows:
        return nothing()
    figure = sheet(1.1 + 0.36 * len(rows))
    panels = figure.subplots(1, 3, sharey=True)
    places = range(len(rows))
    columns = (
        ("addresses cut off", [float(row.cut_off) for row in rows], COLORS[5], count),
        ("messages lost", [row.lost for row in rows], COLORS[1], count),
        (
            "most loaded link then,\nof the most before",
            [row.use for row in rows],
            COLORS[0],
            percent,
        ),
    )
    for axes, (title, values, color, shown) in zip(panels, columns, strict=True):
        bars = axes.barh(places, values, 0.7, color=color)
        axes.bar_label(bars, [shown(value) for value in values], padding=3, fontsize=7.5)
        axes.set_title(title, fontsize=8)
        axes.set_xlim(0, max(*values, 1e-9) * 1.3)
        axes.set_xticks([])
        quiet(axes)
        axes.spines["bottom"].set_visible(False)
    if any(row.use > 1 for row in rows):
        panels[2].axvline(1.0, color=INK, linewidth=0.8, linestyle=":")
    panels[0].set_yticks(places, [name(row.failure, 44) for row in rows])
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    return figure


@picture
def plan(rows: Sequence[Moved]) -> Figure:
    """Draw the use of links before and after the plan."""
    if not rows:
        return nothing("nothing would be better with other costs")
    figure = sheet(1.2 + 0.34 * len(rows))
    axes = figure.subplots()
    for place, row in enumerate(rows):
        axes.plot([row.before, row.after], [place, place], color="#D5D5D5", linewidth=2.5, zorder=1)
    axes.scatter([row.before for row in rows], range(len(rows)), color=FAINT, s=36, zorder=2, label="before")
    axes.scatter([row.after for row in rows], range(len(rows)), color=COLORS[0], s=36, zorder=3, label="after")
    axes.set_yticks(range(len(rows)), [f"{name(row.router, 18)} → {name(row.peer, 18)}" for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, max(*(max(row.before, row.after) for row in rows), 1e-9) * 1.08)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: percent(value)))
    axes.set_xlabel("use")
    quiet(axes)
    legend_below(figure, entries(axes))
    return figure


# ----------------------------------------------------------------------------------------------------------------- time


def _dates(times: Sequence[float]) -> Any:
    """Convert times for matplotlib. Args: times: seconds since 1970."""
    return date2num([datetime.fromtimestamp(each, UTC) for each in times])  # type: ignore[no-untyped-call]


def _set_time_axis(axes: Axes, first: float, last: float, space: float = 0.0) -> None:
    """Set the axis of times, UTC. Args: first, last: seconds since 1970. space: on both sides, a share of the time."""
    beside = max(1.0, (last - first) * space) if space or first == last else 0.0
    axes.set_xlim(*_dates([first - beside, last + beside]))
    locator = AutoDateLocator(tz=UTC, minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
