"""`amqpmesh run` as a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

PATIENCE = 120.0
"""Seconds; nothing here takes one."""


class Daemon:
    """The process, and the lines of its standard error."""

    def __init__(self, *arguments: str, cwd: Path, patience: float = PATIENCE, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "amqpmesh", "run", *arguments],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), **environment},
        )
        # A daemon that says nothing more must fail the test, not stop it.
        self._alarm = threading.Timer(patience, self.process.kill)
        self._alarm.start()
        self.lines: list[str] = []

    def said(self, pattern: str) -> re.Match[str]:
        """Return the next match of the pattern in a line, and read the lines before it."""
        for line in self._errors:
            self.lines.append(line.rstrip("\n"))
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"never said {pattern!r}, but\n" + "\n".join(self.lines))

    @property
    def _errors(self) -> IO[str]:
        assert self.process.stderr is not None
        return self.process.stderr

    def port(self) -> int:
        return int(self.said(r" INFO listening url=amqps?://\S+:(\d+) name=").group(1))

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        try:
            output, errors = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired as late:
            told = late.stderr or b""
            text = told.decode() if isinstance(told, bytes) else told
            raise AssertionError("did not end, or a child of it did not:\n" + "\n".join([*self.lines, text])) from None
        self.lines.extend(errors.splitlines())
        assert output == ""
        return self.process.returncode

    def close(self) -> None:
        self._alarm.cancel()
        self.process.kill()
        self.process.wait(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


StartDaemon = Callable[..., Daemon]
