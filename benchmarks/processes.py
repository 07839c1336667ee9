"""Processes that a benchmark starts, and what the kernel says of those that it measures."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
START_TIME = 30.0  # seconds for a process to say that it listens
RUN_TIME = 1200.0  # seconds for one measurement


def cpu_seconds(pid: int, *, main_only: bool = False) -> float:
    """User and system time of a process and its threads: to the nanosecond where the kernel says so, else in ticks.

    Args: main_only: without the other threads, if the kernel says so much.
    """
    with suppress(OSError):  # a kernel without it, or a thread that has just ended
        which = f"{pid if main_only else '*'}/schedstat"
        threads = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob(which)]
        if threads:
            return sum(int(spent) for spent, *_ in threads) / 1e9
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def children(pid: int) -> tuple[int, ...]:
    """Return the children of a process."""
    found = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return tuple(int(child) for each in found for child in each)


def seconds_waited(pid: int) -> float:
    """Return the seconds that the first thread of a process was ready and waited for a core: a router's work is done
    there. 0.0: the kernel does not say.
    """
    with suppress(OSError):  # a kernel without it
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def resident_bytes(pid: int, *, peak: bool = False) -> int:
    """Return the resident memory of a process, or its peak."""
    name = "VmHWM" if peak else "VmRSS"
    found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def reset_peak(pid: int) -> None:
    """Reset the peak of the resident memory."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


class Failed(Exception):  # noqa: N818 - it reads as a sentence: the load failed
    """A process of the benchmark did not do its work."""


class Load:
    """A load client: JSON lines on stdout, the last one its result."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self._timer = threading.Timer(RUN_TIME, self.process.kill)
        self._timer.daemon = True
        self._timer.start()

    def line(self) -> dict[str, Any]:
        """Read the next line of the client. Raises: Failed: the client failed, or ended without a result."""
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        if not said:
            raise Failed(f"{self.process.args!r} ended without a result")
        fields: dict[str, Any] = json.loads(said)
        if "failed" in fields:
            raise Failed(fields["failed"])
        return fields

    def go(self, line: str = "") -> None:
        """Tell one that waits to go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """Its last words."""
        fields = self.line()
        self.process.wait(START_TIME)
        return fields

    def leave(self) -> None:
        """Let one that waits at its end close what it has."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def finish(self) -> dict[str, Any]:
        """Tell one that goes on until it is told to end; its last words."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.result()

    def end(self) -> None:
        self._timer.cancel()
        self.process.kill()
        self.process.wait()


@contextmanager
def load(module: str, *arguments: str) -> Iterator[Load]:
    """Run a module as a load client until the block ends."""
    client = Load([sys.executable, "-m", module, *arguments])
    try:
        yield client
    finally:
        client.end()


def _keep_reading(stream: IO[str], lines: list[str]) -> None:
    lines.extend(iter(stream.readline, ""))


@contextmanager
def server(*arguments: str, stream: str = "stderr", tree: Path = ROOT, **environment: str) -> Iterator[tuple[str, int]]:
    """(URL, process id) of a process that says `listening url=...` on that stream; it is ended by SIGTERM.

    Args: tree: of the program; another one than this has its own environment in `.venv`.
    """
    python = sys.executable if tree == ROOT else str(tree / ".venv/bin/python")
    process = subprocess.Popen(
        [python, "-m", *arguments],
        cwd=tree,
        text=True,
        env=os.environ | environment,
        stdout=subprocess.PIPE if stream == "stdout" else None,
        stderr=subprocess.PIPE if stream == "stderr" else None,
    )
    pipe: IO[str] = getattr(process, stream)
    guard = threading.Timer(START_TIME, process.kill)
    guard.start()
    seen: list[str] = []
    try:
        url = None
        while url is None:
            line = pipe.readline()
            if not line:
                raise Failed("".join(seen) or f"{arguments} said nothing")
            seen.append(line)
            found = re.search(r"listening url=(\S+)", line)
            url = found[1] if found else None
        guard.cancel()
        # A pipe that nobody reads would stop it one day.
        threading.Thread(target=_keep_reading, args=(pipe, seen), daemon=True).start()
        yield url, process.pid
    finally:
        guard.cancel()
        process.terminate()
        try:
            process.wait(START_TIME)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def router(*listeners: str) -> Any:
    """`amqpmesh run` on loopback."""
    urls = listeners or ("amqp://127.0.0.1:0",)
    return server("amqpmesh", "run", *(argument for url in urls for argument in ("--listen", url)))


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait for a condition, and check it often: the kernel announces no change. Returns: False: the time has passed."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
