"""Processes whose lines a test waits for, and which end with the test."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from tests.docs.pages import ROOT

PATIENCE = 120.0  # seconds; nothing that uses it takes ten


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which `amqpmesh` runs this checkout, by a script in `folder`."""
    folder.mkdir(exist_ok=True)
    script = folder / "amqpmesh"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m amqpmesh "$@"\n')
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "LC_ALL": "C"}


class Daemon:
    """A program that runs until it gets SIGTERM. Tests read its standard error."""

    def __init__(self, *command: str, cwd: Path, env: dict[str, str], before: Callable[[], None] | None = None) -> None:
        self.process = subprocess.Popen(
            command, cwd=cwd, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, preexec_fn=before
        )
        self._alarm = threading.Timer(PATIENCE, self.process.kill)
        self._alarm.start()

    @property
    def child(self) -> int:
        """Return the process id of the program that it has started."""
        number = self.process.pid
        return int(Path(f"/proc/{number}/task/{number}/children").read_text(encoding="ascii").split()[0])

    def line(self) -> str:
        """Read the next line."""
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert line, "it ended, and should have said something"
        return line.rstrip("\n")

    def said(self, words: str) -> str:
        """Read lines until one has these words. Returns: that line."""
        while words not in (line := self.line()):
            pass
        return line

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def end(self) -> tuple[int, list[str]]:
        """Send SIGTERM. Returns: the exit status, and the lines not read yet."""
        self.process.terminate()
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors.splitlines()

    def close(self) -> None:
        """Kill the program, if it still runs."""
        self._alarm.cancel()
        self.process.kill()
        self.process.communicate()
