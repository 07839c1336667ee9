"""Three routers as processes, half a minute of load, and the jobs on their records."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from amqpmesh.pipeline.jobs import JOBS
from benchmarks.generator import generate
from benchmarks.meshes import await_that, mesh
from benchmarks.processes import ROOT
from benchmarks.targets import both, leave

pytestmark = pytest.mark.slow

DURATION = 30
"""Seconds of load."""

OUTAGE = 1.5
"""Seconds in the middle for which a router does nothing."""


@dataclass(frozen=True)
class Flow:
    """Messages from a client of one router to a client of another router."""

    address: str
    way: str
    rate: int
    options: tuple[str, ...] = ()

    @property
    def ingress(self) -> str:
        return self.way[0]

    @property
    def egress(self) -> str:
        return self.way[-1]

    @property
    def count(self) -> int:
        return self.rate * DURATION


FLOWS = (
    Flow("orders", "ABC", 1500, ("--size", "200")),
    Flow("invoices", "BA", 400, ("--rich", "--second")),
    Flow("ticks", "CB", 2500, ("--settled",)),
    Flow("notes", "B", 200),
)


def record(events: Path) -> dict[str, dict[str, Any]]:
    """Load a triangle of routers for half a minute; the path from A to C leads over B.

    Returns: the observations of the receivers, by address.
    """
    with mesh() as triangle, ExitStack() as stack:
        telemetry = [f'[telemetry]\ndirectory = "{events / each}"\nsegment_time = 10.0\n' for each in "ABC"]
        c = triangle.add("C", settings=telemetry[2])
        b = triangle.add("B", (c.mesh_url, 1), settings=telemetry[1])
        triangle.add("A", (b.mesh_url, 1), (c.mesh_url, 5), settings=telemetry[0])
        triangle.start()
        triangle.settled()
        pairs = []
        for flow in FLOWS:
            common = (*flow.options, "--address", flow.address, "--count", str(flow.count), "--wait")
            receiver = stack.enter_context(generate("receive", *common, "--url", triangle[flow.egress].url))
            receiver.line()
            sender = stack.enter_context(
                generate("send", *common, "--url", triangle[flow.ingress].url, "--rate", str(flow.rate))
            )
            sender.line()
            pairs.append((sender, receiver))
        for sender, _ in pairs:
            sender.go()
        half = FLOWS[0].count // 2
        await_that(lambda: triangle["A"].relayed() > half, "half of the messages are not sent", patience=DURATION)
        c.freeze()
        time.sleep(OUTAGE)
        c.thaw()
        seen = {flow.address: both(*pair)[1] for flow, pair in zip(FLOWS, pairs, strict=True)}
        leave(*(each for pair in pairs for each in pair))
    return seen


@dataclass(frozen=True)
class Minute:
    """The records of the minute, the observations of the receivers, and the output of the jobs."""

    out: Path
    seen: dict[str, dict[str, Any]]
    said: dict[str, Any]

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_parquet(self.out / name)

    def figures(self, job: str) -> dict[str, float]:
        (found,) = (each["figures"] for each in self.said["jobs"] if each["job"] == job)
        return dict(found)


@pytest.fixture(scope="module")
def minute(tmp_path_factory: pytest.TempPathFactory) -> Minute:
    folder = tmp_path_factory.mktemp("minute")
    seen = record(folder / "events")
    command = [sys.executable, "-m", "amqpmesh", "pipeline", "run", "--json"]
    places = ["--events", str(folder / "events"), "--out", str(folder / "out")]
    done = subprocess.run([*command, *places], cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return Minute(folder / "out", seen, json.loads(done.stdout))


def test_every_delivery_is_found_with_its_way_and_its_outcome(minute: Minute) -> None:
    assert [each["job"] for each in minute.said["jobs"]] == list(JOBS)
    assert minute.figures("ingest")["quarantined"] == 0
    assert minute.figures("deliveries")["incomplete"] == minute.figures("deliveries")["contradictions"] == 0
    attempts = minute.table("deliveries/attempts")
    for flow in FLOWS:
        assert minute.seen[flow.address]["count"] == flow.count
        mine = attempts[attempts.address == flow.address]
        outcome = "none" if "--settled" in flow.options else "accepted"
        assert (len(mine), set(mine.outcome)) == (flow.count, {outcome})
        assert {"".join(path) for path in mine.path} == {flow.way}


def test_the_matrix_is_what_was_sent(minute: Minute) -> None:
    matrix = minute.table("traffic/matrix")
    assert set(matrix.basis) == {"recorded"}
    sent = matrix.groupby(["address", "ingress", "egress"]).messages.sum()
    for flow in FLOWS:
        assert sent[flow.address, flow.ingress, flow.egress] == flow.count


def test_one_clock_is_found_to_be_one_within_the_error_that_is_told(minute: Minute) -> None:
    found = minute.figures("latency")
    assert found["without clocks"] == found["inconsistent"] == found["negative"] == 0
    clocks = minute.table("latency/clocks")
    assert {*clocks.router} == {"A", "B", "C"}
    assert (clocks.offset_ns.abs() <= clocks.error_ns).all()


def test_routers_see_no_more_latency_than_clients_do_and_all_of_an_outage(minute: Minute) -> None:
    addresses = minute.table("latency/addresses").set_index("address")
    for flow in FLOWS:
        told, seen = addresses.loc[flow.address], minute.seen[flow.address]["latency_us"]
        assert told.p50_ns > 0
        assert told.p50_ns - told.error_ns <= seen["p50"] * 1000
        assert told.max_ns - told.error_ns <= seen["max"] * 1000
    # Messages on the way to the stopped router had to wait until it continued.
    assert addresses.loc["orders"].max_ns >= 0.9 * OUTAGE * 1e9


def test_nothing_is_said_to_be_lost_and_what_would_fail_is_known(minute: Minute) -> None:
    assert not {*minute.table("losses/findings").kind} - {"no credit", "slow"}
    failures = minute.table("contingency").set_index("failure")
    assert failures.loc["A - B"].moved_messages >= FLOWS[0].count
    assert failures.loc["A - C"].lost_messages == 0


def test_the_report_tells_of_it_and_its_pictures_are_there(minute: Minute) -> None:
    page = Path(minute.said["report"]).read_text(encoding="utf-8")
    assert all(flow.address in page for flow in FLOWS)
    assert len(list((minute.out / "pictures").glob("*.png"))) >= page.count("<img") > 5
