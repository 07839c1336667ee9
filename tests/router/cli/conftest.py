"""A router beside the command line, and the command line."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from amqpmesh.router.cli.main import main
from tests.support.processes.daemon import Daemon, StartDaemon
from tests.support.processes.router_thread import PATIENCE, Command, Said, Serve, Served
from tests.support.processes.terminal import Terminal


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(**settings)`: a router, ended with the test."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Served:
            served = Served(**settings)
            stack.callback(served.end)
            return served

        yield start


@pytest.fixture
def served(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Start a router whose URL the commands find in the environment."""
    served = serve()
    monkeypatch.setenv("AMQPMESH_URL", served.url)
    return served


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[StartDaemon]:
    """`daemon(*arguments, **environment)`: a router as a process in the test's folder, ended with the test."""
    with ExitStack() as stack:

        def start(*arguments: str, patience: float = 40.0, **environment: str) -> Daemon:
            started = Daemon(*arguments, cwd=tmp_path, patience=patience, **environment)
            stack.callback(started.close)
            return started

        yield start


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """`command("send", "hello")`: the command line, in this thread; one that does not end is interrupted."""
    main_thread = threading.main_thread().ident
    assert main_thread is not None

    def run(*arguments: str) -> Said:
        capfd.readouterr()
        alarm = threading.Timer(PATIENCE, signal.pthread_kill, (main_thread, signal.SIGINT))
        alarm.start()
        try:
            status = main(arguments)
        except SystemExit as ended:  # argparse's
            status = int(str(ended.code))
        finally:
            alarm.cancel()
        return Said(status, *capfd.readouterr())

    return run


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()
