"""`amqpmesh drain`, and SIGTERM with `drain_timeout`: a router that moves its clients, and ends."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from amqpmesh import connect
from tests.support.processes.daemon import PATIENCE, Daemon, StartDaemon

CONFIG = """
[router]
id = "A"
drain_timeout = 20.0
[mesh]
insecure = true
[[listener]]
url = "amqp://127.0.0.1:0"
manage = true
[[listener]]
url = "amqp://127.0.0.1:0"
name = "guests"
"""


@pytest.fixture
def router(daemon: StartDaemon, tmp_path: Path) -> tuple[Daemon, str, str]:
    """Start a router. Returns: it, and the URLs of its two listeners."""
    (tmp_path / "a.toml").write_text(CONFIG)
    started = daemon("a.toml")
    url, guests = (started.said(r"listening url=(\S+) ").group(1) for _ in range(2))
    return started, url, guests


def amqpmesh(*arguments: str) -> tuple[int, str]:
    """Run a command. Returns: its exit status, and what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "amqpmesh", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={"PYTHONPATH": str(Path(__file__).parents[4])},
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@contextlib.contextmanager
def receiving(url: str) -> Iterator[subprocess.Popen[str]]:
    """Receive in a process of its own, which does not connect again."""
    process = subprocess.Popen(
        [sys.executable, "-m", "amqpmesh", "receive", "q", "--url", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[4])},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


def test_the_command_moves_the_clients_and_waits_for_the_end(router: tuple[Daemon, str, str]) -> None:
    process, url, guests = router
    with receiving(guests) as client:
        process.said(r"connection opened .* container=amqpmesh-receive")
        status, told = amqpmesh("drain", "--url", url, "--pace", "1", "--timeout", "30")
        assert (status, told.splitlines()[-1]) == (0, "the router has ended")
        assert told.startswith("draining: 1 connections to move in at most 30 s\n")
        assert "amqp:connection:forced: the router is about to stop" in client.communicate(timeout=PATIENCE)[1]
    assert process.ended() == 0
    log = "\n".join(process.lines)
    assert "drain requested source=management" in log
    assert "clients moved connections=1" in log
    assert "stopped drained=true" in log


async def test_a_drain_that_is_cancelled_lets_the_router_run(router: tuple[Daemon, str, str]) -> None:
    process, url, guests = router

    async def run(*arguments: str) -> tuple[int, str]:
        return await trio.to_thread.run_sync(amqpmesh, *arguments, "--url", url)

    async with connect(guests) as client, client.receiver("q", credit=1) as receiver, client.sender("q") as sender:
        await sender.transfer("x")
        delivery = await receiver.receive()
        status, told = await run("drain", "--no-wait", "--json")
        assert status == 0
        answer = json.loads(told)
        assert (answer["draining"], answer["left"], 19 < answer["seconds"] <= 20) == (True, 1, True)
        status, told = await run("status")
        assert "draining, connections left to move: 1" in told.splitlines()[0]
        assert (await run("drain", "--cancel"))[0] == 0
        delivery.accept()
    status, told = await run("status")
    assert "draining" not in told.splitlines()[0]
    assert await run("drain", "--cancel") == (5, "not drained: the router does not drain\n")
    process.send(signal.SIGTERM)
    assert process.ended() == 0


@pytest.mark.parametrize("argument", ["--pace=0", "--pace=2", "--timeout=-1", "--timeout=nan"])
def test_wrong_numbers_are_refused(argument: str) -> None:
    assert amqpmesh("drain", argument)[0] == 2


def test_it_needs_the_right_to_change_the_router(router: tuple[Daemon, str, str]) -> None:
    process, _, guests = router
    assert amqpmesh("drain", "--url", guests) == (5, "not drained: not permitted\n")
    process.send(signal.SIGTERM)
    assert process.ended() == 0


def test_a_signal_moves_the_clients_if_the_configuration_has_a_time_for_it(daemon: StartDaemon, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(CONFIG.replace("[mesh]", 'drain_to = ["amqp://127.0.0.1:9"]\n[mesh]'))
    process = daemon("a.toml")
    url = process.said(r"listening url=(\S+) ").group(1)
    with receiving(url) as client:
        process.said(r"connection opened .* container=amqpmesh-receive")
        process.send(signal.SIGTERM)
        assert "about to stop" in client.communicate(timeout=PATIENCE)[1]
    assert process.ended() == 0
    assert any("clients moved connections=1" in line for line in process.lines)
