"""The README's programs, run as they stand there but for the port."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

PATIENCE = 40.0  # seconds; nothing here takes one
ROOT = Path(__file__).parents[2]
RECEIVER, SENDER, EMBEDDED = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)


class Program:
    """A process whose output is read; it ends with the test, or when it takes too long."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        self._alarm = threading.Timer(PATIENCE, self.process.kill)
        self._alarm.start()

    def found(self, pattern: str, stream: IO[str] | None) -> str:
        assert stream is not None
        for line in stream:
            if found := re.search(pattern, line):
                return found.group()
        raise AssertionError(f"ended without {pattern!r}")

    def output(self) -> str:
        output, errors = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, errors
        return output

    def close(self) -> None:
        self._alarm.cancel()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.close()


@pytest.mark.interop
def test_the_two_clients_print_what_they_say(programs: list[Program]) -> None:
    router = Program("-m", "amqpmesh", "run", "--listen", "amqp://127.0.0.1:0")
    programs.append(router)
    url = router.found(r"amqp://127\.0\.0\.1:\d+", router.process.stderr)
    for text in (RECEIVER, SENDER):
        assert "amqp://127.0.0.1:5672" in text
        programs.append(Program("-c", text.replace("amqp://127.0.0.1:5672", url)))
    _, receiver, sender = programs
    assert receiver.output() == "hi\n"
    assert sender.output() == "accepted by the receiver: True\n"


def test_the_embedded_router_says_where_it_listens(programs: list[Program]) -> None:
    embedded = Program("-c", EMBEDDED)
    programs.append(embedded)
    assert embedded.found(r"^amqp://127\.0\.0\.1:[1-9]\d*$", embedded.process.stdout)
