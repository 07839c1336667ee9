"""The pages on the pipeline: settings, compared with those of the session; its commands and programs, run."""

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from amqpmesh.pipeline.advice import ANOMALIES, FORECASTS, LOSSES
from amqpmesh.pipeline.losses import Loss
from amqpmesh.pipeline.session import EVERYWHERE, LOCAL, PARTITIONS
from amqpmesh.pipeline.severity import SEVERITIES, Severity
from amqpmesh.pipeline.traffic_limits import Limits, parsed
from tests.docs.pages import ROOT, blocks
from tests.docs.processes import environment
from tests.support.data.known_traffic import Known
from tests.support.spark.session import SETTINGS

PAGE = "analyse/pipeline.md"
JOBS = "analyse/jobs.md"
PATIENCE = 300.0  # seconds; a session takes some
TEXT = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")


def test_the_settings_are_those_that_are_made() -> None:
    rows = re.findall(r"^\| `(spark[\w.]+)` \| (.+?) \| (.+?) \|", TEXT, re.MULTILINE)
    told = {key: (value.strip("`"), on) for key, value, on in rows}
    expected = {key: (value, "any master") for key, value in EVERYWHERE.items()}
    expected |= {key: (value, "`local`") for key, value in LOCAL.items()}
    expected["spark.sql.shuffle.partitions"] = (f"{PARTITIONS} for each core", "`local`")
    assert told == expected


def test_each_kind_of_findings_has_the_severity_that_the_page_says() -> None:
    rows = re.findall(rf"^\| `({'|'.join(Severity)})` \| (.+) \|$", TEXT, re.MULTILINE)
    told = {kind: severity for severity, cell in rows for kind in re.findall(r"`([^`]+)`", cell)}
    kinds = {kind: severity for each in SEVERITIES.values() for kind, severity in each.items()}
    assert told == kinds
    assert {*SEVERITIES["losses"]} == {*Loss}


def test_each_kind_of_findings_has_the_advice_that_the_page_says() -> None:
    page = (ROOT / "docs/analyse/answers.md").read_text(encoding="utf-8")
    page = page.partition("### What to do")[2].partition("\n## ")[0]
    told = dict(re.findall(r"^\| (`[\w ]+`(?: rose| fell)?) \| (\w.+) \|$", page, re.MULTILINE))
    changes = {f"`{measure}` {'rose' if rose else 'fell'}": text for (measure, rose), text in ANOMALIES.items()}
    assert told == {f"`{kind}`": text for kind, text in {**LOSSES, **FORECASTS}.items()} | changes


def test_the_limits_on_the_page_are_read() -> None:
    (block,) = blocks("analyse/answers.md", "toml")
    assert parsed(block.text) == Limits({("A", "B"): 50_000_000.0}, {"blue": 0.5})


def run(text: str, folder: Path, env: Mapping[str, str]) -> str:
    """Run a block of a terminal in a folder. Returns: its output."""
    done = subprocess.run(
        ["bash", "-euc", text], cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_other_programs_are_given_the_same_java(tmp_path: Path) -> None:
    java, env = commands("Java"), {**environment(tmp_path / "bin"), "PYTHONPATH": str(ROOT)}
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert "jdk.incubator" not in run(f'{java}"$JAVA_HOME/bin/java" --version', tmp_path, env)


@pytest.mark.slow
def test_its_command_and_its_programs_run(tmp_path: Path) -> None:
    known = Known(tmp_path / "events", "ABC")
    for way in ("AB", "ABC", "B"):
        known.deliver(way)
    known.close()
    told = "".join(f" --conf {key}={shlex.quote(value)}" for key, value in SETTINGS.items() if "memory" not in key)
    env = {**environment(tmp_path / "bin"), "PYSPARK_SUBMIT_ARGS": f"{told} pyspark-shell"}
    assert "traffic" in run(commands("On a laptop"), tmp_path, env)
    assert run(commands("Looking at results"), tmp_path, env).startswith("WINDOW_START")
    assert run(commands("Removing what is old"), tmp_path, env).startswith("removed 0 segments")
    programs = [block.text for page in (JOBS, PAGE) for block in blocks(page, "python")]
    for number, text in enumerate(programs):
        (tmp_path / f"{number}.py").write_text(text, encoding="utf-8")
    # One after the other, in one session, which takes some seconds and a gigabyte.
    each = "; ".join(f"runpy.run_path('{number}.py')" for number in range(len(programs)))
    printed = run(f"{shlex.quote(sys.executable)} -c {shlex.quote(f'import runpy; {each}')}", tmp_path, env)
    assert len(programs) == 3
    assert printed.count("window_start") == 2
    assert "recorded" in printed


def commands(heading: str) -> str:
    """Return the block of a terminal below a heading."""
    (found,) = (block.text for block in blocks(PAGE, "sh") if block.heading == heading)
    return found
