"""Outliers of a series against its own history, by medians and similar statistics, which an anomaly hardly moves.

The expectation of a window is the median of the same time on the days before or, without enough of those, that of the
windows before, continued along their slope. The usual deviation is that of recent windows. A window is an outlier if it
deviates more than chance would make any window of all series deviate, and by enough to matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.stats import t as student

Numbers = np.ndarray[Any, np.dtype[np.float64]]

HISTORY: Final = 120
"""Windows that an expectation and its usual deviation are made from."""

LEAST_HISTORY: Final = 30
"""Windows at least for an expectation; a judgement needs twice as many."""

SEASON: Final = 86_400
"""Seconds after which usual patterns repeat."""

SEASONS: Final = 7
"""Days before that are used."""

LEAST_SEASONS: Final = 3
"""Days before at least; with fewer, none is used."""

FALSE_ALARMS: Final = 0.5
"""Outliers that chance alone may cause in all series together: more windows raise the bar."""

FREEDOM: Final = 20
"""Degrees of freedom of Student's distribution for the bar: the usual deviation is known from few windows, and its own
distribution has long tails.
"""

PASSES: Final = 10
"""Repetitions without the outliers found so far. Each finds more of a lasting change; after the last one the rest of it
counts as history.
"""

GAP: Final = 2
"""Windows between two outliers in the same direction that still are one episode."""

_OF_MEDIAN: Final = 1.4826
"""The standard deviation of normally distributed values, divided by the median of their absolute deviations."""
_OF_TAIL: Final = 1.96
"""The 95 % quantile of absolute normal deviations."""


@dataclass(frozen=True)
class Measure:
    """A measure of a series, and the deviations of it that matter.

    Args: shape: converts values to numbers whose random deviation does not depend on their size; its second argument
        is the weights. weigh: computes the relative accuracy of a number from the weights. least: the least usual
        deviation of such a number, weighted. least_plain: the same, not weighted.
        share, amount: a deviation matters if it is this share of the usual value, and this amount.
        counts: a missing value means 0.
    """

    shape: Callable[[Numbers, Numbers], Numbers]
    back: Callable[[Numbers], Numbers]
    weigh: Callable[[Numbers], Numbers]
    least: float
    least_plain: float
    share: float
    amount: float
    counts: bool = False


def _root_scale(values: Numbers, weights: Numbers) -> Numbers:
    return 2 * np.sqrt(values + 0.375)  # Anscombe's: a random count then deviates by 1, whatever its expectation


def _unroot(shaped: Numbers) -> Numbers:
    return np.maximum(0.0, np.square(np.maximum(shaped, 0) / 2) - 0.375)


def _arcsine_scale(values: Numbers, weights: Numbers) -> Numbers:
    return np.arcsin(np.sqrt(np.clip((values * weights + 0.375) / (weights + 0.75), 0, 1)))


def _unarc(shaped: Numbers) -> Numbers:
    return np.square(np.sin(np.clip(shaped, 0, np.pi / 2)))


def _log(values: Numbers, weights: Numbers) -> Numbers:
    return np.log(np.maximum(values, 1.0))


def _one(weights: Numbers) -> Numbers:
    return np.ones_like(weights)


MEASURES: Final[Mapping[str, Measure]] = {
    "messages": Measure(_root_scale, _unroot, _one, 1.0, 1.0, 0.3, 20.0, counts=True),
    "octets": Measure(_root_scale, _unroot, _one, 2.0, 2.0, 0.3, 20.0, counts=True),
    "p50": Measure(_log, np.exp, np.sqrt, 0.05, 0.05, 0.3, 1e6),
    "p95": Measure(_log, np.exp, np.sqrt, 0.05, 0.1, 0.5, 1e6),
    "failures": Measure(_arcsine_scale, _unarc, lambda n: 2 * np.sqrt(n + 0.5), 1.0, 0.02, 0.3, 0.03),
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
"""The measures by name; amounts are messages, messages of the usual size, nanoseconds, shares, and nanoseconds."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A judged series.

    Args: usual: the expectation of each window; nan: not judged. score: the deviation from it, with its sign, divided
        by the least deviation of an outlier. low, high: the range of values that are no outliers.
    """

    values: Numbers
    usual: Numbers
    score: Numbers
    low: Numbers
    high: Numbers

    @property
    def windows(self) -> int:
        """The number of judged windows."""
        return int(np.isfinite(self.score).sum())


@dataclass(frozen=True, slots=True)
class Episode:
    """The windows from `first` to `last`, outliers in the same direction; `peak` deviates most."""

    first: int
    last: int
    peak: int
    score: float


def bar(tests: int) -> float:
    """Return the number of usual deviations that is too much. Args: tests: judged windows of all series together."""
    return float(student.isf(FALSE_ALARMS / max(tests, 1) / 2, FREEDOM))


def judge(values: Numbers, weights: Numbers, measure: Measure, tests: int, season: int) -> Judged:
    """Judge a series. Args: values: one for each window, nan: none. weights: numbers of messages. season: windows of a
    day.
    """
    if measure.counts:
        values = np.nan_to_num(values, nan=0.0)
    shaped = measure.shape(values, weights)
    weight = measure.weigh(np.maximum(np.nan_to_num(weights), 1.0))
    seasonal = _seasonal(shaped, season)
    differs = np.zeros(len(values), bool)
    for _ in range(PASSES):
        expected = _expected(shaped, seasonal, differs)
        off = shaped - expected
        # Deviations may be random for each message, or for all of them together: an outlier exceeds both.
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
    """Yield the episodes of outliers in a series."""
    for sign in (1.0, -1.0):
        over = np.flatnonzero(np.nan_to_num(judged.score) * sign >= 1)
        if not len(over):
            continue
        for run in np.split(over, np.flatnonzero(np.diff(over) > gap + 1) + 1):
            peak = int(run[np.argmax(judged.score[run] * sign)])
            yield Episode(int(run[0]), int(run[-1]), peak, float(judged.score[peak]))


def _windows_before(values: Numbers) -> Numbers:
    """Return the windows before each window: a row of `HISTORY`, nan where there is none."""
    padded = np.concatenate([np.full(HISTORY, np.nan), values])
    rows: Numbers = np.lib.stride_tricks.sliding_window_view(padded, HISTORY)[: len(values)]
    return rows


def _rank(rows: Numbers, share: float, least: int) -> Numbers:
    """Return for each row the value below which this share of it lies (0.5: the median); nan if it has fewer than
    `least`.
    """
    ordered = np.sort(rows, axis=1)  # nan are sorted last
    count = np.isfinite(rows).sum(axis=1)
    at = np.maximum(count - 1, 0) * share
    line = np.arange(len(rows))
    low = ordered[line, np.floor(at).astype(np.intp)]
    high = ordered[line, np.ceil(at).astype(np.intp)]
    return np.where(count >= least, low + (high - low) * (at % 1), np.nan)


def _median(rows: Numbers, least: int) -> Numbers:
    return _rank(rows, 0.5, least)


def _seasonal(shaped: Numbers, season: int) -> Numbers:
    """Return the median of the same time on the days before; nan: there are not enough."""
    size = len(shaped)
    days = np.full((SEASONS, size), np.nan)
    for day in range(1, SEASONS + 1):
        if day * season < size:
            days[day - 1, day * season :] = shaped[: size - day * season]
    return _median(days.T, LEAST_SEASONS)


def _expected(shaped: Numbers, seasonal: Numbers, differs: Numbers) -> Numbers:
    """Return the expectation of each window, from windows before it that are no outliers."""
    of_late = np.nan_to_num(_median(_windows_before(np.where(differs, np.nan, shaped - seasonal)), LEAST_HISTORY))
    rows = _windows_before(np.where(differs, np.nan, shaped))
    third = HISTORY // 3
    early, late = _median(rows[:, :third], LEAST_HISTORY // 3), _median(rows[:, -third:], LEAST_HISTORY // 3)
    slope = np.nan_to_num((late - early) / (2 * third))
    # Continued along the slope from the middle of all windows; with too few windows, constant.
    ahead = np.where(np.isfinite(early), slope * (HISTORY + 1) / 2, 0.0)
    return np.where(np.isfinite(seasonal), seasonal + of_late, _median(rows, LEAST_HISTORY) + ahead)


def _usual_deviation(off: Numbers, least: float, differs: Numbers) -> Numbers:
    """Return the deviation from expectations before each window, without outliers; nan: unknown."""
    rows = _windows_before(np.where(differs, np.nan, np.abs(off)))
    median = _rank(rows, 0.5, LEAST_HISTORY)
    # A few larger deviations now and then are usual, too.
    tail = _rank(rows, 0.95, LEAST_HISTORY)
    return np.maximum(least, np.maximum(_OF_MEDIAN * median, tail / _OF_TAIL))
