"""Where a series of numbers is not as its own history says: medians and their like, which an anomaly hardly moves.

What a window is expected to show is the median of the same time on days before, or, as long as there are not enough of
them, that of the windows before, and on along their slope. How far off that usually is, is taken from how far off it
was lately. What is further off than chance would have any of all series and windows be, and by enough to matter, is
told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.stats import t as student

Numbers = np.ndarray[Any, np.dtype[np.float64]]

HISTORY: Final = 120
"""Windows that an expectation is made of, and how far it is off."""

LEAST_HISTORY: Final = 30
"""Of fewer windows no expectation is made; so of fewer than twice as many nothing is judged."""

SEASON: Final = 86_400
"""Seconds after which what is usual comes again."""

SEASONS: Final = 7
"""Days before that are looked at."""

LEAST_SEASONS: Final = 3
"""Of fewer days before, none is."""

FALSE_ALARMS: Final = 0.5
"""How many windows chance alone may bring over the bar, in all series together: more of them raise it."""

FREEDOM: Final = 20
"""Degrees of freedom of Student's distribution, by which the bar is found: what is usual is known from few windows, and
its own distribution has long tails.
"""

PASSES: Final = 10
"""How often history is looked at again without the windows that differ. Each time some more of a change that lasts are
found to be one, and after the last it is history, too.
"""

GAP: Final = 2
"""Windows between two that differ in the same direction, and that are one episode all the same."""

_OF_MEDIAN: Final = 1.4826
"""A normal deviation in median ones."""
_OF_TAIL: Final = 1.96
"""A normal one's share of that which 95 % are below."""


@dataclass(frozen=True)
class Measure:
    """What is measured, and what of it matters.

    Args: shape: values to numbers whose chance does not depend on how large they are; the second are the weights.
        weigh: from the same, by how much a number is surer than another.
        least: the least deviation of such a number, weighted, that can be usual.
        least_plain: the same, not weighted.
        share, amount: a deviation matters if it is such a share of what is usual, and such an amount.
        counts: where there is no value there was nothing: 0.
    """

    shape: Callable[[Numbers, Numbers], Numbers]
    back: Callable[[Numbers], Numbers]
    weigh: Callable[[Numbers], Numbers]
    least: float
    least_plain: float
    share: float
    amount: float
    counts: bool = False


def _root(values: Numbers, weights: Numbers) -> Numbers:
    return 2 * np.sqrt(values + 0.375)  # Anscombe's: a count by chance then deviates by 1, whatever is expected


def _unroot(shaped: Numbers) -> Numbers:
    return np.maximum(0.0, np.square(np.maximum(shaped, 0) / 2) - 0.375)


def _arc(values: Numbers, weights: Numbers) -> Numbers:
    return np.arcsin(np.sqrt(np.clip((values * weights + 0.375) / (weights + 0.75), 0, 1)))


def _unarc(shaped: Numbers) -> Numbers:
    return np.square(np.sin(np.clip(shaped, 0, np.pi / 2)))


def _log(values: Numbers, weights: Numbers) -> Numbers:
    return np.log(np.maximum(values, 1.0))


def _one(weights: Numbers) -> Numbers:
    return np.ones_like(weights)


MEASURES: Final[Mapping[str, Measure]] = {
    "messages": Measure(_root, _unroot, _one, 1.0, 1.0, 0.3, 20.0, counts=True),
    "octets": Measure(_root, _unroot, _one, 2.0, 2.0, 0.3, 20.0, counts=True),
    "p50": Measure(_log, np.exp, np.sqrt, 0.05, 0.05, 0.3, 1e6),
    "p95": Measure(_log, np.exp, np.sqrt, 0.05, 0.1, 0.5, 1e6),
    "failures": Measure(_arc, _unarc, lambda n: 2 * np.sqrt(n + 0.5), 1.0, 0.02, 0.3, 0.03),
    "waits": Measure(
        lambda values, _: np.log1p(values / 1e6),
        lambda shaped: np.expm1(shaped) * 1e6,
        _one,
        0.7,
        0.7,
        1.0,
        5e9,
        counts=True,
    ),
}
"""By name; amounts are messages, messages of the usual size, nanoseconds, shares, and nanoseconds."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A series, window by window. Args: usual: what was expected, nan: not judged. score: the deviation in bars, with
    its sign. low, high: what is not beyond these does not differ.
    """

    values: Numbers
    usual: Numbers
    score: Numbers
    low: Numbers
    high: Numbers

    @property
    def windows(self) -> int:
        """How many were judged."""
        return int(np.isfinite(self.score).sum())


@dataclass(frozen=True, slots=True)
class Episode:
    """Windows from `first` to `last`, which differ in the same direction; `peak` is that which differs most."""

    first: int
    last: int
    peak: int
    score: float


def bar(tests: int) -> float:
    """How many usual deviations are too many. Args: tests: windows that are judged, in all series together."""
    return float(student.isf(FALSE_ALARMS / max(tests, 1) / 2, FREEDOM))


def judge(values: Numbers, weights: Numbers, measure: Measure, tests: int, season: int) -> Judged:
    """Args: values: one for each window, nan: none. weights: of how many messages. season: windows of a day."""
    if measure.counts:
        values = np.nan_to_num(values, nan=0.0)
    shaped = measure.shape(values, weights)
    weight = measure.weigh(np.maximum(np.nan_to_num(weights), 1.0))
    seasonal = _seasonal(shaped, season)
    differs = np.zeros(len(values), bool)
    for _ in range(PASSES):
        expected = _expected(shaped, seasonal, differs)
        off = shaped - expected
        # Chance may be that of each message, or of all of them together: both have to be exceeded.
        reach = bar(tests) * np.maximum(
            _usual_deviation(off, measure.least_plain, differs),
            _usual_deviation(off * weight, measure.least, differs) / weight,
        )
        score = off / reach
        usual = np.where(np.isfinite(score), measure.back(expected), np.nan)
        matter = np.maximum(measure.amount, measure.share * np.maximum(usual, 0))
        matters = np.abs(values - usual) >= matter
        score = np.where(matters | ~np.isfinite(score), score, np.clip(score, -0.99, 0.99))
        over = differs | (np.abs(np.nan_to_num(score)) >= 1)
        if (over == differs).all():
            break
        differs = over
    low = np.minimum(measure.back(expected - reach), usual - matter)
    high = np.maximum(measure.back(expected + reach), usual + matter)
    return Judged(values, usual, score, np.maximum(low, 0.0), high)


def episodes(judged: Judged, gap: int = GAP) -> Iterator[Episode]:
    """Where a series differs."""
    for sign in (1.0, -1.0):
        over = np.flatnonzero(np.nan_to_num(judged.score) * sign >= 1)
        if not len(over):
            continue
        for run in np.split(over, np.flatnonzero(np.diff(over) > gap + 1) + 1):
            peak = int(run[np.argmax(judged.score[run] * sign)])
            yield Episode(int(run[0]), int(run[-1]), peak, float(judged.score[peak]))


def _before(values: Numbers) -> Numbers:
    """Of each window, those before it: a row of `HISTORY`, nan where there is none."""
    padded = np.concatenate([np.full(HISTORY, np.nan), values])
    rows: Numbers = np.lib.stride_tricks.sliding_window_view(padded, HISTORY)[: len(values)]
    return rows


def _rank(rows: Numbers, share: float, least: int) -> Numbers:
    """Of each row the value below which such a share of it is (0.5: its median); nan if it has fewer than `least`."""
    ordered = np.sort(rows, axis=1)  # nan stand behind all others
    count = np.isfinite(rows).sum(axis=1)
    at = np.maximum(count - 1, 0) * share
    line = np.arange(len(rows))
    low = ordered[line, np.floor(at).astype(np.intp)]
    high = ordered[line, np.ceil(at).astype(np.intp)]
    return np.where(count >= least, low + (high - low) * (at % 1), np.nan)


def _median(rows: Numbers, least: int) -> Numbers:
    return _rank(rows, 0.5, least)


def _seasonal(shaped: Numbers, season: int) -> Numbers:
    """The median of the same time on the days before; nan: there are not enough."""
    size = len(shaped)
    days = np.full((SEASONS, size), np.nan)
    for day in range(1, SEASONS + 1):
        if day * season < size:
            days[day - 1, day * season :] = shaped[: size - day * season]
    return _median(days.T, LEAST_SEASONS)


def _expected(shaped: Numbers, seasonal: Numbers, differs: Numbers) -> Numbers:
    """What each window is expected to show, from those before it that do not differ."""
    of_late = np.nan_to_num(_median(_before(np.where(differs, np.nan, shaped - seasonal)), LEAST_HISTORY))
    rows = _before(np.where(differs, np.nan, shaped))
    third = HISTORY // 3
    early, late = _median(rows[:, :third], LEAST_HISTORY // 3), _median(rows[:, -third:], LEAST_HISTORY // 3)
    slope = np.nan_to_num((late - early) / (2 * third))
    # Along the slope from the middle of them all; without so many, as it was.
    ahead = np.where(np.isfinite(early), slope * (HISTORY + 1) / 2, 0.0)
    return np.where(np.isfinite(seasonal), seasonal + of_late, _median(rows, LEAST_HISTORY) + ahead)


def _usual_deviation(off: Numbers, least: float, differs: Numbers) -> Numbers:
    """How far off expectations were before each window, but in those that differ; nan: not known."""
    rows = _before(np.where(differs, np.nan, np.abs(off)))
    median = _rank(rows, 0.5, LEAST_HISTORY)
    # Some are further off than chance would have them, now and then: that is usual, too.
    tail = _rank(rows, 0.95, LEAST_HISTORY)
    return np.maximum(least, np.maximum(_OF_MEDIAN * median, tail / _OF_TAIL))
