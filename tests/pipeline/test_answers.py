"""All jobs, each on the tables of those before it, from segments to answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from amqpmesh.pipeline.jobs import JOBS
from amqpmesh.pipeline.work import Work
from amqpmesh.router.telemetry.schema import Outcome
from tests.support.data.known_traffic import CROSSING, STAY, Known

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BACK = 1_000_000 - STAY - CROSSING
"""The time of an outcome over a link there. It passes each router a millisecond after the router behind."""


@pytest.mark.slow  # all jobs one after the other
def test_what_was_recorded_is_answered_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    known = Known(tmp_path / "events", "ABC")
    for number in range(200):
        known.deliver("ABC", seconds=number * 3, size=100)
    known.deliver("ABC", seconds=300, unrecorded="B")  # B lacks nothing else
    known.deliver("AB", seconds=300, address="gone", outcome=Outcome.NONE)
    known.deliver("ABAB", seconds=301, address="round")
    known.close()
    work = Work(spark, (str(tmp_path / "events"),), str(tmp_path / "out"))
    done = {name: JOBS[name].load()(work) for name in ("ingest", "deliveries", "latency", "losses", "anomalies")}

    (row,) = work.read("latency/addresses").where("address = 'orders'").collect()
    assert (row["deliveries"], row["unknown"], row["negative"]) == (201, 0, 0)
    assert abs(row["p50_ns"] - (3 * STAY + 2 * CROSSING)) <= row["error_ns"]
    assert row["outcome_p50_ns"] == 3_000_000
    for lane in work.read("latency/links").where("to_router is not null and deliveries > 1").collect():
        assert abs(lane["p50_ns"] - CROSSING) <= lane["error_ns"]
        assert lane["round_trip_p50_ns"] == CROSSING + BACK

    found = {
        (row["kind"], row["address"], row["router"], row["found"]) for row in work.read("losses/findings").collect()
    }
    assert found == {("broken", None, "A", 1), ("unanswered", "gone", "A", 1), ("loop", "round", "A", 1)}
    assert done["losses"].figures["not to be judged"] == 0
    assert done["anomalies"].figures["episodes"] == 0
    assert done["anomalies"].figures["too short"] > 0
