"""`amqpmesh trace --next` at a router of several processes: whichever of them the next message comes to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from amqpmesh.router.amqp.standard.definitions import Role
from tests.router.cli.process.test_workers import daemon, delivers, site
from tests.support.peers.scripted_stream import credit
from tests.support.processes.daemon import PATIENCE, StartDaemon

__all__ = ["daemon"]  # a fixture

MOST = 200
"""Messages that are sent at most until the command follows one."""


@pytest.mark.parametrize("worker", ["A.1", "A.2"])
async def test_the_next_message_is_followed_whichever_worker_it_comes_to(
    daemon: StartDaemon,
    tmp_path: Path,
    worker: str,
) -> None:
    router = site(daemon, tmp_path)
    receiver = await router.attached(worker, Role.RECEIVER, "hello")
    await receiver.write(credit(MOST))
    sender = await router.attached(worker, Role.SENDER, "hello")
    command = [sys.executable, "-m", "amqpmesh", "trace", "hello", "--next", "--json", "--url"]
    with (
        subprocess.Popen([*command, f"amqp://127.0.0.1:{router.port}"], stdout=subprocess.PIPE, text=True) as following,
        trio.fail_after(PATIENCE),
    ):
        number = 0
        while following.poll() is None:
            assert number < MOST
            await delivers(sender, receiver, number)
            number += 1
            await trio.sleep(0.1)  # the command is another process, and tells nobody when the workers await a message
        assert following.stdout is not None
        told = json.loads(following.stdout.read())
    assert following.returncode == 0
    assert told["router"] == worker
    assert [each["router"] for each in told["routers"]] == [worker]
    for peer in (sender, receiver):
        await peer.close()
