"""The time and memory of a run with an hour's records on top of a month's, and of one with nothing new.

    python -m benchmarks.increments [--scale 0.01] [--hour 1] [--days 30] [--hours 3] [--job traffic] [--keep DIR]

At scale 1 the month has 300 million hop records, in a segment of each of five routers for each hour, and each hour on
top of it one million; `--hour` is the scale of these, if it is another one. The month is written and analysed once.
Prints medians over the hours on top of it. On a busy machine seconds of CPU tell more than those of the clock.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.pipeline import BLOCK, HOPS, Line, Peak
from tests.support.data.segments import at

DAY = 10_000_000  # records of a day of the month
HOUR = 1_000_000  # records of an hour on top
GOALS = {"hour": 60.0, "nothing": 10.0, "gigabytes": 3.0}


class Hours:
    """Traffic that goes on: each hour is a segment of each router."""

    def __init__(self, directory: Path) -> None:
        self._line = Line(directory)
        self._hour = self._number = 0

    def write(self, records: int) -> None:
        """Write the segments of the next hour."""
        count = records // HOPS
        self._line.spread(at(3600 * self._hour), self._number, 3600, count)
        for begin in range(0, count, BLOCK):
            self._line.write(self._number + begin, min(BLOCK, count - begin))
        self._line.close(begins=at(3600 * (self._hour + 1)))
        self._number += count
        self._hour += 1


def run(job: str, events: Path, out: Path, memory: str) -> dict[str, Any]:
    """Run a job and those that it needs. Returns: seconds, the peak of memory in GB, and what they told."""
    command = [sys.executable, "-m", "amqpmesh", "pipeline", job, "--events", str(events), "--out", str(out), "--json"]
    began = time.monotonic()
    with subprocess.Popen([*command, "--conf", f"spark.driver.memory={memory}"], stdout=subprocess.PIPE) as process:
        peak = Peak(process.pid)
        threading.Thread(target=peak.watch, daemon=True).start()
        output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(process.returncode)
    jobs = {each["job"]: each for each in json.loads(output)["jobs"]}
    return {"seconds": time.monotonic() - began, "cpu": peak.cpu, "all": peak.all / 1e9, "jobs": jobs}


def measure(folder: Path, scale: float, hour: float, days: int, hours: int, job: str, memory: str) -> None:
    """Make the month, then the hours on top of it, and print how long each took."""
    events, out = folder / "events", folder / "out"
    traffic = Hours(events)
    for _ in range(24 * days):
        traffic.write(int(DAY * scale) // 24)
    first = run(job, events, out, memory)
    records = first["jobs"]["ingest"]["figures"]["hops"]
    print("| run | seconds | of CPU | all processes |\n|---|---|---|---|")
    print(row(f"{days} days, {records:,} records", [first]), flush=True)
    added, nothing = [], []
    for _ in range(hours):
        traffic.write(int(HOUR * hour))
        added.append(run(job, events, out, memory))
        nothing.append(run(job, events, out, memory))
    print(row(f"an hour on top, {int(HOUR * hour):,} records", added))
    print(row("nothing new", nothing))
    for name, told in added[-1]["jobs"].items():
        read = {key: value for key, value in told["figures"].items() if key.endswith((" read", " written"))}
        print(f"{name}: {told['seconds']:.1f} s, {read}")
    print(f"asked at scale 1: {GOALS['hour']:.0f} s, {GOALS['nothing']:.0f} s, {GOALS['gigabytes']:.0f} GB")
    assert all(each["unchanged"] for told in nothing for each in told["jobs"].values())


def row(what: str, runs: list[dict[str, Any]]) -> str:
    """Return a row of the table: medians, and the peak of memory."""
    seconds, cpu = (median(each[name] for each in runs) for name in ("seconds", "cpu"))
    return f"| {what} | {seconds:.1f} | {cpu:.1f} | {max(each['all'] for each in runs):.2f} GB |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.01, help="of the records; 1 is 300 million")
    parser.add_argument("--hour", type=float, help="scale of the hours on top; by default that of the month")
    parser.add_argument("--days", type=int, default=30, help="of the month")
    parser.add_argument("--hours", type=int, default=3, help="on top of the month, one after the other")
    parser.add_argument("--job", default="traffic", help="with those that it needs")
    parser.add_argument("--memory", default="1g", help="of Java's heap")
    parser.add_argument("--keep", type=Path, help="an empty directory, in which all stays")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="amqpmesh-bench-"))
    try:
        hour = given.scale if given.hour is None else given.hour
        measure(folder, given.scale, hour, given.days, given.hours, given.job, given.memory)
    finally:
        if given.keep is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
