"""Summaries of sent and received messages."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.cli.output.summary import Latencies, Summary, duration

seconds = st.floats(1e-9, 1e6)


@given(st.lists(seconds, min_size=1), st.integers(1, 100))
def test_a_percentile_is_told_to_one_percent(values: list[float], percent: int) -> None:
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    exact = sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]
    assert latencies.percentile(percent) == pytest.approx(exact, rel=0.01)
    assert len(latencies) == len(values)


def test_clocks_that_disagree_are_no_error() -> None:
    latencies = Latencies()
    latencies.add(-5.0)
    assert 0 < latencies.percentile(50) < 1e-8


def test_without_latencies_there_is_no_percentile() -> None:
    with pytest.raises(ValueError, match="nothing was added"):
        Latencies().percentile(50)


@given(st.lists(st.sampled_from(["accepted", "rejected", "released", "modified", "settled", "in doubt"]), max_size=20))
def test_counts_are_shown_in_text_and_in_json(outcomes: list[str]) -> None:
    summary = Summary("sent")
    for outcome in outcomes:
        summary.begin()
        summary.count += 1
        summary.end(outcome)
    told = json.loads(summary.json())
    for outcome in set(outcomes):
        assert f"{outcome} {outcomes.count(outcome)}" in summary.text()
        assert told[outcome.replace(" ", "_")] == outcomes.count(outcome)
    assert told["sent"] == len(outcomes)
    assert told["latency"] == {"p50": None, "p99": None}
    assert summary.undecided == 0
    assert summary.all_accepted == (set(outcomes) <= {"accepted", "settled"})


def test_one_message_has_no_rate() -> None:
    summary = Summary("sent")
    assert (summary.rate, summary.seconds, summary.text()) == (None, 0.0, "sent 0")
    summary.begin()
    summary.count += 1
    summary.end("accepted")
    assert summary.rate is None
    assert "/s" not in summary.text()


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.0004, "0.4 ms"), (0.0996, "99.6 ms"), (0.999, "999.0 ms"), (1.0, "1.00 s"), (75.0, "75.00 s")],
)
def test_a_time_is_told_in_the_unit_that_suits_it(value: float, told: str) -> None:
    assert duration(value) == told
