"""`amqpmesh demo` as a process: a whole run, and runs that are interrupted. No process or file is left."""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from amqpmesh.router.cli.commands import demo
from amqpmesh.router.cli.commands.demo import conclude
from amqpmesh.router.cli.exit_status import Exit
from amqpmesh.router.cli.output.demo_screen import DemoScreen
from amqpmesh.router.cli.traffic import Traffic
from tests.support.processes.demo_story import SUMMARY, check
from tests.support.processes.router_thread import Command

ROOT = Path(__file__).parents[4]
PATIENCE = 120.0  # seconds; it takes a tenth of that, most of which routers take to start
COUNT = 600
MODULE = ("-m", "amqpmesh")
# The command, which is killed when its first router exists, but not for the system to kill that one with it.
KILLED_BETWEEN = """
import ctypes, os, signal, sys
from amqpmesh.router.cli.main import main

class Late:
    prctl = ctypes.CDLL(None).prctl

    def __init__(self, name):
        pass

    def __getattribute__(self, name):
        def late(*arguments):
            command = os.getppid()
            os.kill(command, signal.SIGKILL)
            while os.getppid() == command:
                pass
            return Late.prctl(*arguments)

        return late

ctypes.CDLL = Late
main(sys.argv[1:])
"""


class Run:
    """The command, whose routers keep what they write in a folder of the test, by which they are known."""

    def __init__(self, folder: Path, *, terminal: bool, program: Sequence[str] = MODULE) -> None:
        self.folder = folder
        read, write = os.openpty() if terminal else os.pipe()
        self.terminal = read
        self.process = subprocess.Popen(
            [sys.executable, *program, "demo", "--count", str(COUNT)],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(folder), "TERM": "xterm", "LC_ALL": "C.UTF-8"},
            stdin=write if terminal else subprocess.DEVNULL,
            stdout=write,
            stderr=write,
            start_new_session=True,
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if terminal else None,
        )
        os.close(write)
        self._alarm = threading.Timer(PATIENCE, self.process.kill)
        self._alarm.start()
        self.shown = ""

    def until(self, words: str) -> None:
        """Read what it shows, until that stands there."""
        while words not in self.shown:
            assert self._read(), (words, self.shown)

    def rest(self) -> None:
        """Read what it shows, until it ends."""
        while self._read():
            pass
        self.process.wait()

    def _read(self) -> bool:
        try:
            chunk = os.read(self.terminal, 65536)
        except OSError:  # nobody has the other end any more
            return False
        self.shown += chunk.decode()
        return bool(chunk)

    def routers(self) -> list[int]:
        """Return the present processes."""
        found = []
        for process in Path("/proc").iterdir():
            try:
                arguments = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if str(self.folder).encode() in arguments:
                found.append(int(process.name))
        return found

    def until_no_router_is_left(self, deadline: float) -> None:
        while self.routers():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def close(self) -> None:
        self._alarm.cancel()
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run the demo to its end, without a terminal."""
    run = Run(tmp_path_factory.mktemp("complete"), terminal=False)
    run.rest()
    yield run
    run.close()


def test_a_router_is_killed_and_nothing_is_lost(complete: Run) -> None:
    assert complete.process.returncode == Exit.DONE, complete.shown
    assert re.search(f"^sent {COUNT} accepted {COUNT} lost 0 ", complete.shown, re.MULTILINE)


def test_without_a_terminal_it_tells_in_plain_lines_what_happens(complete: Run) -> None:
    assert "\x1b" not in complete.shown
    check(complete.shown.splitlines())


def test_only_what_was_in_doubt_came_twice_and_was_dropped(complete: Run) -> None:
    assert re.search(SUMMARY, complete.shown)
    in_doubt = re.search(r"(\d+) in doubt were sent again; (\d+) arrived twice", complete.shown)
    assert in_doubt is None or int(in_doubt[1]) >= int(in_doubt[2])


def test_nothing_is_left_of_it(complete: Run) -> None:
    assert complete.routers() == []
    assert list(complete.folder.iterdir()) == []


def test_ctrl_c_on_the_terminal_ends_all_of_it(tmp_path: Path) -> None:
    run = Run(tmp_path, terminal=True)
    try:
        run.until(" is killed")
        assert len(run.routers()) == 4
        os.write(run.terminal, b"\x03")
        run.rest()
        assert run.process.returncode == Exit.FAILED
        assert run.routers() == []
        assert list(tmp_path.iterdir()) == []
        shown = run.shown
    finally:
        run.close()
    # Until then a picture has moved below the lines; it was taken away.
    assert "sender ─ A ─┤       ├─ D ─ E ─ receiver" in shown
    assert re.search(r"accepted: +\d+%\|", shown)
    assert shown.rpartition("\x1b[J")[2] == "amqpmesh: stopped\r\n"


def test_routers_die_with_a_command_that_is_killed(tmp_path: Path) -> None:
    run = Run(tmp_path, terminal=False)
    try:
        run.until("five routers start")
        deadline = time.monotonic() + PATIENCE
        while not run.routers():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        run.process.send_signal(signal.SIGKILL)
        run.rest()
        run.until_no_router_is_left(deadline)
    finally:
        run.close()


def test_a_router_dies_with_a_command_that_is_killed_while_it_begins(tmp_path: Path) -> None:
    run = Run(tmp_path, terminal=False, program=("-c", KILLED_BETWEEN))
    try:
        run.rest()
        assert run.process.returncode == -signal.SIGKILL, run.shown
        assert list(tmp_path.rglob("*.log"))
        run.until_no_router_is_left(time.monotonic() + PATIENCE)
    finally:
        run.close()


def test_it_ends_if_all_has_arrived_before_a_router_tells_what_it_relays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "PERIOD", 1.0)
    status = demo.demo(argparse.Namespace(count=200, timeout=15.0))
    shown = capsys.readouterr().out
    assert status == Exit.DONE, shown
    check(shown.splitlines())


def test_too_few_messages_are_refused(command: Command) -> None:
    said = command("demo", "--count", "99")
    assert said.status == Exit.USAGE
    assert said.err.startswith("amqpmesh: --count: must be at least 100")


def told(traffic: Traffic) -> tuple[int, list[str]]:
    """Return the exit status and the lines."""
    stream = io.StringIO()
    status = conclude(traffic, DemoScreen(stream))
    return status, [line.partition(" s  ")[2] or line for line in stream.getvalue().splitlines()]


def test_the_end_tells_what_became_of_all() -> None:
    traffic = Traffic(2)
    assert told(traffic) == (Exit.FAILED, ["sent 0 accepted 0 lost 2 twice 0 longest pause 0.0 ms"])
    traffic.again.update({"in doubt": 1_234, "not accepted": 5})
    traffic.dropped, traffic.irregular, traffic.rejected, traffic.longest_pause = 1_000, 6, 7, 0.0634
    assert told(traffic) == (
        Exit.FAILED,
        [
            "1,234 in doubt were sent again; 1,000 arrived twice, dropped by message-id",
            "5 were not accepted, and were sent again",
            "7 were rejected",
            "6 arrived twice without being in doubt",
            "sent 0 accepted 0 lost 2 twice 0 longest pause 63.4 ms",
        ],
    )


@pytest.mark.parametrize(("irregular", "status"), [(0, Exit.DONE), (1, Exit.FAILED)])
def test_a_message_that_comes_twice_without_being_in_doubt_is_a_failure(irregular: int, status: Exit) -> None:
    traffic = Traffic(0)
    traffic.irregular = irregular
    assert told(traffic)[0] == status
