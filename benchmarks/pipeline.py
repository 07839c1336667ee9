"""The time and memory of jobs: known traffic as segments passes `ingest` and `deliveries` in `local[2]`.

    python -m benchmarks.pipeline [--deliveries 1_000_000 ...] [--memory 1g] [--keep DIR]

Prints for each number of deliveries: the seconds of both jobs, the peak memory of Java and of all processes, and
whether all deliveries were found and are complete.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.data.segments import ACCEPTED, ANSWERED, BEGAN, BEGUN, TIMED, Recorder, at, words

ROUTERS = 5  # in a line; each delivery crosses three of them
HOPS = 3
CLIENTS = 40  # of each router, senders and receivers alike
ADDRESSES = 50
SEGMENT = 500_000  # hop records
BLOCK = 50_000
RATE = 10_000  # deliveries in a second
GOALS = {"seconds": 60.0, "gigabytes": 3.0, "growth": 12.0}


class Line:
    """Routers in a line, and their segments."""

    def __init__(self, directory: Path) -> None:
        self.recorders = [Recorder(directory / name, name) for name in (f"R{each}" for each in range(ROUTERS))]
        self._filled = [0] * ROUTERS
        self._began, self._first, self._pace = at(0), 0, 1_000_000_000 // RATE
        for place, recorder in enumerate(self.recorders):
            for neighbour in (place - 1, place + 1):
                for direction in ("incoming", "outgoing"):
                    name = f"lane/{recorder.router}/R{neighbour}/{direction}/1/0"
                    recorder.link(name, direction, f"R{neighbour}", lane=True, address=None, tenant=None)
            for each in range(ADDRESSES):
                recorder.link("", "address", None, address=f"address-{each}")
            for each in range(CLIENTS):
                for direction in ("incoming", "outgoing"):
                    peer = f"client-{recorder.router}-{each}"
                    recorder.link(f"{peer}-{direction}", direction, peer, address=f"address-{each % ADDRESSES}")

    def write(self, begin: int, count: int) -> None:
        """Write further deliveries. Args: begin: the number of deliveries before them."""
        number = np.arange(begin, begin + count)
        # A cheap shuffle: senders and receivers do not follow the order.
        mixed = (number * 2_654_435_761) & 0xFFFF_FFFF
        step = np.where(mixed & 1, 1, -1)
        ingress = np.where(step > 0, mixed % (ROUTERS - HOPS + 1), ROUTERS - 1 - mixed % (ROUTERS - HOPS + 1))
        sender, receiver, sent = (
            mixed % CLIENTS,
            mixed // 64 % CLIENTS,
            self._began + (number - self._first) * self._pace,
        )
        for hop in range(HOPS):
            here = ingress + hop * step
            lane_in, lane_out = np.where(step > 0, 1, 3), np.where(step > 0, 4, 2)
            first_client = 4 + ADDRESSES + 1
            columns = {
                "time": sent + hop * 400_000 + mixed % 50_000,
                "ingress": ingress + 1,
                "epoch": BEGAN,
                "counter": number,
                "hops_left": HOPS + 16 - max(0, hop - 1),
                "priority": 4,
                "outcome": ACCEPTED,
                "flags": TIMED | ANSWERED | (BEGUN if hop == 0 else 0),
                "incoming": first_client + 2 * sender if hop == 0 else lane_in,
                "outgoing": first_client + 2 * receiver + 1 if hop == HOPS - 1 else lane_out,
                "address": 5 + receiver % ADDRESSES,
                "attempt": 1 if hop == 0 else 0,
                "size": 100 + mixed % 400,
                "in_router": 60_000 + mixed % 30_000,
                "outcome_after": 1_500_000 + mixed % 200_000 - hop * 400_000,
            }
            for place in range(ROUTERS):
                chosen = here == place
                some = {name: np.broadcast_to(value, count)[chosen] for name, value in columns.items()}
                self._append(place, words(some, int(chosen.sum())))

    def _append(self, place: int, records: np.ndarray[Any, Any]) -> None:
        if not len(records):
            return
        self.recorders[place].hops(records)
        self._filled[place] += len(records)
        if self._filled[place] >= SEGMENT:
            self._filled[place] = 0
            self.recorders[place].close()

    def spread(self, began: int, first: int, seconds: float, count: int) -> None:
        """Spread the next deliveries over a time. Args: began: in ns since 1970. first: the number of the first one."""
        self._began, self._first, self._pace = began, first, int(seconds * 1e9) // max(count, 1)

    def close(self, begins: int | None = None) -> None:
        """Close all segments. Args: begins: when the next ones begin, in ns since 1970."""
        for recorder in self.recorders:
            recorder.close(begins=begins)


def write(directory: Path, deliveries: int) -> None:
    line = Line(directory)
    for begin in range(0, deliveries, BLOCK):
        line.write(begin, min(BLOCK, deliveries - begin))
    line.close()


def measure(deliveries: int, memory: str, keep: Path | None) -> dict[str, Any]:
    """One number of deliveries, in a process of its own: peaks are of the whole life of one."""
    folder = keep or Path(tempfile.mkdtemp(prefix="amqpmesh-bench-"))
    try:
        events = folder / f"events-{deliveries}"
        if not events.exists():
            write(events, deliveries)
        command = [sys.executable, "-m", "benchmarks.pipeline", "--run", str(events), str(folder / "out"), memory]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            peak = Peak(process.pid)
            watcher = threading.Thread(target=peak.watch, daemon=True)
            watcher.start()
            output, _ = process.communicate()
        if process.returncode:
            raise SystemExit(process.returncode)
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        shutil.rmtree(folder / "out")
        return {**found, "wanted": deliveries, "java": peak.java / 1e9, "all": peak.all / 1e9}
    finally:
        if keep is None:
            shutil.rmtree(folder)


class Peak:
    """The most memory that a process and those below it have at a time, and of those the Java most; and their CPU."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.all = self.java = 0
        self._ticks: dict[int, int] = {}

    @property
    def cpu(self) -> float:
        """Return the seconds of CPU that all of them have taken, but for the last moment of each."""
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def watch(self) -> None:
        while os.path.exists(f"/proc/{self._pid}"):
            family = self._family()
            self._ticks.update((each, ticks) for each in family if (ticks := _ticks(each)))
            self.all = max(self.all, sum(_resident(each) for each in family))
            self.java = max(self.java, *(_high(each) for each in family if _name(each) == "java"), 0, 0)
            time.sleep(0.2)

    def _family(self) -> set[int]:
        parents = {}
        for each in Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(each.parent.name)] = int(each.read_text().rsplit(") ", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
        family, grown = {self._pid}, 0
        while grown != len(family):
            grown = len(family)
            family |= {each for each, parent in parents.items() if parent in family}
        return family


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return dict(line.split(":", 1) for line in lines)


def _resident(pid: int) -> int:
    # What a forked worker shares with its parent is that one's.
    told = _status(pid)
    return 1024 * sum(int(told.get(name, "0 kB").split()[0]) for name in ("RssAnon", "RssFile", "RssShmem"))


def _high(pid: int) -> int:
    return 1024 * int(_status(pid).get("VmHWM", "0 kB").split()[0])


def _ticks(pid: int) -> int:
    try:
        told = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except (OSError, IndexError):
        return 0
    return int(told[11]) + int(told[12])


def _name(pid: int) -> str:
    return _status(pid).get("Name", "").strip()


def run(events: str, out: str, memory: str) -> None:
    """Both jobs over a directory; the last line printed says how it went."""
    from amqpmesh.pipeline import deliveries, ingest
    from amqpmesh.pipeline.session import session
    from amqpmesh.pipeline.work import Work

    spark = session("benchmark", "local[2]", {"spark.driver.memory": memory})
    work = Work(spark, (events,), out)
    began = time.monotonic()
    ingested = ingest.job(work)
    between = time.monotonic()
    done = deliveries.job(work)
    ended = time.monotonic()
    problems = ingested.figures["quarantined"] + done.figures["incomplete"] + done.figures["contradictions"]
    told = {"hops": ingested.figures["hops"], "deliveries": done.rows, "problems": problems}
    print(json.dumps({**told, "ingest": between - began, "join": ended - between}))
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deliveries", type=int, nargs="+", default=[333_333, 3_333_333])
    parser.add_argument("--memory", default="1g", help="of Java's heap")
    parser.add_argument("--keep", type=Path, help="where segments are kept for the next time")
    parser.add_argument("--run", nargs=3, metavar=("EVENTS", "OUT", "MEMORY"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run(*given.run)
        return
    print("| events | deliveries | ingest | deliveries | both | Java, peak | all processes |")
    print("|---|---|---|---|---|---|---|")
    rows = []
    for each in given.deliveries:
        row = measure(each, given.memory, given.keep)
        rows.append(row)
        both = row["ingest"] + row["join"]
        print(
            f"| {row['hops']:,} | {row['deliveries']:,} | {row['ingest']:.1f} s | {row['join']:.1f} s | {both:.1f} s "
            f"| {row['java']:.2f} GB | {row['all']:.2f} GB |",
            flush=True,
        )
        assert (row["deliveries"], row["hops"], row["problems"]) == (each, HOPS * each, 0), row
    last, first = rows[-1], rows[0]
    both = last["ingest"] + last["join"]
    growth = both / (first["ingest"] + first["join"])
    times = last["hops"] / first["hops"]
    print(f"\n{both:.1f} s (at most {GOALS['seconds']:.0f})")
    print(f"{last['java']:.2f} GB of Java, {last['all']:.2f} GB in all (at most {GOALS['gigabytes']:.0f})")
    print(f"{times:.0f} times the events take {growth:.1f} times the time (at most {GOALS['growth']:.0f})")


if __name__ == "__main__":
    main()
