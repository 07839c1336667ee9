"""Each part of `make bench`, with few messages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import processes
from benchmarks.parts import PARTS
from benchmarks.processes import ROOT

pytestmark = pytest.mark.slow

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def bench(tmp_path: Path) -> Run:
    """Return a function that runs `python -m benchmarks.run --quick`, and returns its results."""

    def run(*arguments: str) -> dict[str, Any]:
        output = tmp_path / "bench.json"
        command = [sys.executable, "-m", "benchmarks.run", "--quick", "--output", str(output), *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(output.read_text())["results"]
        return found

    return run


@pytest.mark.parametrize("part", PARTS)
def test_each_part_has_figures(bench: Run, part: str) -> None:
    found = bench("--only", part)
    assert set(found) == {part}
    for case in found[part].values():
        if part == "generator":
            assert case["direct"]["messages_per_second"] > 0
            continue
        routers = [figures for name, figures in case.items() if name.startswith("router")]
        assert routers or part == "latency"  # a router that cannot do a rate has no latency at it
        for figures in routers:
            # Memory may be less than before: the system takes back what was not used for a while.
            assert any(figures.get(name) for name in ("cpu_us", "kib", "octets", "seconds", "times", "p50_us"))


def test_a_router_that_runs_already_is_measured_as_well(bench: Run) -> None:
    with processes.router() as (url, pid):
        there = ("--url", url, "--pid", str(pid), "--sasl")
        # Memory first: after much traffic a router has memory to spare, and connections need no more of it.
        memory = bench("--only", "memory", *there)["memory"]
        throughput = bench("--only", "throughput", *there)["throughput"]
    assert memory["idle connection"]["router"]["kib"] > 0
    assert throughput["100 B unsettled"]["router"]["cpu_us"] > 0
