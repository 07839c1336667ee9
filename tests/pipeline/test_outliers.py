"""Outliers, and the chance that is not taken for one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from amqpmesh.pipeline.outliers import (
    FALSE_ALARMS,
    HISTORY,
    LEAST_HISTORY,
    MEASURES,
    Episode,
    Numbers,
    bar,
    episodes,
    judge,
)

DAY = 1440
Series = tuple[str, Numbers, Numbers]


def found(name: str, values: Numbers, weights: Numbers | None = None, tests: int = 100_000) -> list[Episode]:
    weights = np.ones(len(values)) if weights is None else weights
    return sorted(episodes(judge(values, weights, MEASURES[name], tests, DAY)), key=lambda each: each.first)


def clean(seed: int, days: int) -> Iterator[Series]:
    """Series in which nothing happens: by chance, by time of day, in bursts, sparse."""
    chance = np.random.default_rng(seed)
    size = days * DAY
    daily = 1 + 0.6 * np.sin(2 * np.pi * np.arange(size) / DAY)
    ones = np.ones(size)
    for rate in (0.02, 0.3, 3.0, 50.0, 2000.0):
        slow = np.zeros(size)  # wanders
        for at in range(1, size):
            slow[at] = 0.9 * slow[at - 1] + chance.normal(0, 0.1)
        for expected in (rate * ones, rate * daily, chance.gamma(4, rate / 4, size), rate * np.exp(slow)):
            yield "messages", chance.poisson(expected).astype(float), ones
        count = chance.poisson(rate * daily).astype(float)
        yield "octets", count * chance.lognormal(0, 0.3, size), ones
        if rate >= 50:
            for name, share in (("p50", 0.5), ("p95", 0.95)):
                yield name, _percentile(chance, count, share), count
            for share in (0.001, 0.05):
                failed = chance.binomial(count.astype(int), share) / np.maximum(count, 1)
                yield "failures", np.where(count >= 20, failed, np.nan), count
    for often, long in ((0.01, 3e8), (0.2, 2e9)):
        yield "waits", np.where(chance.random(size) < often, chance.exponential(long, size), 0.0), ones


def _percentile(chance: np.random.Generator, count: Numbers, share: float) -> Numbers:
    """Of so many latencies with a long tail."""
    return np.array(
        [np.quantile(chance.lognormal(15, 1, int(min(each, 300))), share) if each >= 20 else np.nan for each in count]
    )


@pytest.mark.parametrize("days", [1, 4])
def test_chance_is_seldom_taken_for_an_anomaly(days: int) -> None:
    series = list(clean(days, days))
    tests = len(series) * days * DAY
    alarms = [(name, each) for name, values, weights in series for each in found(name, values, weights, tests)]
    assert len(alarms) <= 1, alarms  # expected: FALSE_ALARMS = 0.5
    assert FALSE_ALARMS <= 1


INJECTED = {
    "fell silent": ("messages", 200.0, 0.0),
    "doubled": ("messages", 500.0, 2.0),
    "four times as slow": ("p50", 500.0, 4.0),
    "eight times as slow in the tail": ("p95", 500.0, 8.0),
    "a fifth failed": ("failures", 500.0, None),
    "four times the octets": ("octets", 200.0, 4.0),
}


@pytest.mark.parametrize("name", INJECTED)
@pytest.mark.parametrize("days", [1, 5])
def test_what_is_injected_is_found_and_nothing_else(name: str, days: int) -> None:
    measure, rate, factor = INJECTED[name]
    chance = np.random.default_rng(7)
    size = days * DAY
    count = chance.poisson(rate * (1 + 0.5 * np.sin(2 * np.pi * np.arange(size) / DAY))).astype(float)
    values = count.copy()
    if measure in ("p50", "p95"):
        values = _percentile(chance, count, 0.5 if measure == "p50" else 0.95)
    elif measure == "failures":
        values = chance.binomial(count.astype(int), 0.01) / count
    where = slice(size - 400, size - 390)
    values[where] = 0.2 if factor is None else values[where] * factor
    (episode,) = found(measure, values, count, tests=1_000_000)
    assert (episode.first, episode.last) == (where.start, where.stop - 1)
    assert (episode.score < 0) == (factor == 0.0)


def test_a_change_that_lasts_is_one_episode_until_it_is_usual() -> None:
    chance = np.random.default_rng(3)
    values = chance.poisson(np.where(np.arange(DAY) < 600, 100.0, 300.0)).astype(float)
    (episode,) = found("messages", values)
    assert episode.first == 600
    assert episode.last < 600 + HISTORY


def test_what_comes_every_day_is_usual_once_it_has_come_often_enough() -> None:
    chance = np.random.default_rng(4)
    size = 6 * DAY
    nightly = (np.arange(size) % DAY >= 120) & (np.arange(size) % DAY < 130)
    values = chance.poisson(np.where(nightly, 2_000.0, 100.0)).astype(float)
    assert {each.first // DAY for each in found("messages", values)} == {0, 1, 2}


def test_of_a_short_history_nothing_is_said() -> None:
    values = np.full(2 * LEAST_HISTORY, 100.0)
    values[-1] = 10_000.0
    judged = judge(values, np.ones(len(values)), MEASURES["messages"], 100, DAY)
    assert judged.windows == 0
    longer = np.append(values, 100.0)
    assert judge(longer, np.ones(len(longer)), MEASURES["messages"], 100, DAY).windows == 1


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("values", [[], [5.0], [np.nan] * 300, [0.0] * 300, [1.0] * 300, [np.nan, 0.5] * 150])
def test_nothing_is_found_in_what_does_not_change(name: str, values: list[float]) -> None:
    assert found(name, np.array(values, float)) == []


def test_a_small_change_of_what_never_varied_does_not_matter() -> None:
    values = np.full(300, 1e9)
    values[200] = 1.2e9
    assert found("p50", values, np.full(300, 100.0)) == []
    values[200] = 2e9
    assert [each.first for each in found("p50", values, np.full(300, 100.0))] == [200]


def test_two_windows_with_few_between_them_are_one_episode() -> None:
    values = np.full(400, 100.0)
    values[[300, 302, 310]] = 1_000.0
    values[304] = 0.0
    assert [(each.first, each.last) for each in found("messages", values)] == [(300, 302), (304, 304), (310, 310)]


def test_the_more_is_looked_at_the_higher_the_bar() -> None:
    heights = [bar(tests) for tests in (0, 1, 1_000, 1_000_000, 1_000_000_000)]
    assert heights == sorted(heights)
    assert heights[3] > heights[2] + 2
