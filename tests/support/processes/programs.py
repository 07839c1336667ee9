"""Programs run as processes, whose output a test reads meanwhile."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PATIENCE: Final = 120.0  # seconds; nothing that uses it takes ten
ROOT: Final = Path(__file__).parents[3]
ENVIRONMENT: Final[Mapping[str, str]] = {
    **{
        name: value
        for name, value in os.environ.items()
        if name == "AMQPMESH_KERNEL" or not name.startswith("AMQPMESH")
    },
    "PYTHONPATH": str(ROOT),
    "PYTHONUNBUFFERED": "1",
    "LC_ALL": "C.UTF-8",
}


class Program:
    """A process. It is killed when the test ends, or takes too long."""

    def __init__(
        self, *command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] = ENVIRONMENT, terminal: bool = False
    ) -> None:
        """Args: terminal: it believes that a person sits there."""
        self.name = " ".join(map(str, command))
        read, write = pty.openpty() if terminal else os.pipe()
        self.process = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=write, stderr=subprocess.STDOUT
        )
        os.close(write)
        self._output = os.fdopen(read, encoding="utf-8")
        self._alarm = threading.Timer(PATIENCE, self.process.kill)
        self._alarm.start()

    def lines(self) -> Iterator[str]:
        """Yield its next lines of standard output and standard error."""
        while True:
            try:
                line = self._output.readline()
            except OSError:  # the other end of a terminal is gone
                return
            if not line:
                return
            yield line.rstrip("\n")

    def line(self) -> str:
        """Return the next line."""
        for line in self.lines():
            return line
        raise AssertionError(f"{self.name}: ended, and should have said something")

    def found(self, pattern: str) -> str:
        """Return the match in the next line that has one."""
        said = []
        for line in self.lines():
            if found := re.search(pattern, line):
                return found.group()
            said.append(line)
        raise AssertionError(f"{self.name}: ended without {pattern!r}: {said}")

    def end(self, number: signal.Signals | None = None) -> list[str]:
        """Wait until it ends, of itself or by a signal. Returns: the lines not read yet. It must end with status 0."""
        if number is not None:
            self.process.send_signal(number)
        rest = list(self.lines())
        assert self.process.wait(PATIENCE) == 0, (self.name, rest)
        return rest

    def close(self) -> None:
        """Kill it, if it still runs."""
        self._alarm.cancel()
        self.process.kill()
        self.process.wait()
        self._output.close()


class Programs:
    """Programs of a test. Those that are left are killed."""

    def __init__(self) -> None:
        self.started: list[Program] = []

    def __call__(
        self, *command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] = ENVIRONMENT, terminal: bool = False
    ) -> Program:
        """Start a program."""
        program = Program(*command, cwd=cwd, env=env, terminal=terminal)
        self.started.append(program)
        return program

    def python(self, *command: str | Path) -> Program:
        """Start a program in Python."""
        return self(sys.executable, *command)

    def router(self, *configuration: str | Path, scheme: str = "amqp") -> str:
        """Start a router, at a free port. Args: configuration: a file. Returns: the URL of its listener of `scheme`."""
        command = ("-m", "amqpmesh", "run", *(configuration or ("--listen", "amqp://127.0.0.1:0")))
        return self.python(*command).found(rf"{scheme}://127\.0\.0\.1:\d+")


@contextmanager
def programs() -> Iterator[Programs]:
    """Yield `Programs`, and kill at the end what still runs."""
    all_of_them = Programs()
    try:
        yield all_of_them
    finally:
        for program in all_of_them.started:
            program.close()
