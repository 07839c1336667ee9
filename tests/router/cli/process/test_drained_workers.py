"""A router of several processes that is drained: its workers move their clients together, and end together."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
import trio

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.performatives import Disposition, Transfer
from tests.router.cli.process.test_workers import CONFIG, Site, is_there, run, site, until
from tests.support.peers.scripted_stream import Peer
from tests.support.processes.daemon import StartDaemon

MANAGED = CONFIG.replace("[[address]]", "manage = true\n[[address]]")
ELSEWHERE = MANAGED.replace("drain = 100", 'drain = 100\ndrain_timeout = 30\ndrain_to = ["amqp://127.0.0.1:9"]')
DEPARTED = "the router is about to stop: connect to another one"


async def command(router: Site, *arguments: str) -> tuple[int, str]:
    """Run a command beside the clients. Returns: its exit status, and what it prints."""
    return await trio.to_thread.run_sync(run, router, *arguments)


async def is_moved(peer: Peer) -> None:
    """Assert that a client is told to go elsewhere, and answer."""
    close = await peer.answer_close()
    assert close.error is not None
    assert close.error.description == DEPARTED


async def settled(sender: Peer, receiver: Peer, transfer: Transfer) -> None:
    """Accept the delivery, after which both clients are moved."""
    await receiver.accept(transfer)
    assert (await sender.expect(Disposition)).state == Accepted()
    for peer in (sender, receiver):
        await is_moved(peer)


async def holding(router: Site, worker: str) -> tuple[Peer, Peer, Transfer]:
    """Connect a sender and a receiver at a worker. Returns: them, and a delivery about which the receiver decides."""
    receiver = await router.attached(worker, Role.RECEIVER, "held")
    sender = await router.attached(worker, Role.SENDER, "held")
    await sender.send(0, b"hi")
    return sender, receiver, await receiver.expect(Transfer)


async def test_a_request_to_one_worker_moves_the_clients_of_all_and_ends_the_router(
    daemon: StartDaemon, tmp_path: Path
) -> None:
    router = site(daemon, tmp_path, MANAGED)
    clients = [await router.attached(worker, Role.RECEIVER, "q") for worker in ("A.1", "A.2")]
    async with trio.open_nursery() as nursery:
        for each in clients:
            nursery.start_soon(is_moved, each)
        status, told = await command(router, "drain", "--pace", "1", "--timeout", "600")
    assert status == 0, told
    assert re.match(r"draining: [012] connections to move in at most 600 s\n", told), "they may have moved already"
    assert told.splitlines()[-1] == "the router has ended"
    assert router.daemon.ended() == 0
    log = "\n".join(router.daemon.lines)
    assert log.count("clients moved") == 2
    assert "worker exited" not in log
    assert "stopped drained=true" in router.daemon.lines[-1]


async def test_a_drain_that_is_cancelled_lets_all_workers_run(daemon: StartDaemon, tmp_path: Path) -> None:
    router = site(daemon, tmp_path, MANAGED)
    sender, receiver, transfer = await holding(router, "A.2")
    status, told = await command(router, "drain", "--no-wait", "--json", "--timeout", "600")
    answer = json.loads(told)
    assert (status, answer["draining"], answer["left"]) == (0, True, 2), "whichever worker answers"
    told = (await command(router, "status"))[1]
    assert "draining, connections left to move: 2" in told.splitlines()[0]
    late = await router.client("A.1")
    assert (await command(router, "drain", "--cancel"))[0] == 0
    assert {router.daemon.said(r"clients stay worker=(A\.\d) ").group(1) for _ in range(2)} == {"A.1", "A.2"}
    await late.close()
    await settled(sender, receiver, transfer)  # their move had begun
    new = await router.attached("A.1", Role.RECEIVER, "q")
    assert await command(router, "drain", "--cancel") == (5, "not drained: the router does not drain\n")
    router.daemon.send(signal.SIGTERM)
    close = await new.answer_close()
    assert close.error is not None
    assert close.error.description == "the router is shut down"
    assert router.daemon.ended() == 0


async def test_after_a_signal_no_worker_ends_before_the_others_have_moved_their_clients(
    daemon: StartDaemon, tmp_path: Path
) -> None:
    router = site(daemon, tmp_path, ELSEWHERE)
    sender, receiver, transfer = await holding(router, "A.2")
    operator = await router.attached("A.1", Role.SENDER, "$management")
    router.daemon.send(signal.SIGTERM)
    router.daemon.said(r"clients moved worker=A\.1 connections=0")
    late = await router.client("A.1")  # it still accepts, and turns clients away
    await late.close()
    await settled(sender, receiver, transfer)
    close = await operator.answer_close()
    assert close.error is not None
    assert close.error.description == "the router is shut down"
    assert router.daemon.ended() == 0
    assert "stopped drained=true" in router.daemon.lines[-1]


async def test_a_worker_that_is_started_again_amid_a_drain_follows_it(daemon: StartDaemon, tmp_path: Path) -> None:
    router = site(daemon, tmp_path, MANAGED)
    sender, receiver, transfer = await holding(router, "A.2")
    assert (await command(router, "drain", "--no-wait", "--timeout", "600"))[0] == 0
    os.kill(router.pids["A.1"], signal.SIGKILL)
    assert router.begun()[0] == "A.1"
    router.daemon.said(r"clients moved worker=A\.1 connections=0")
    await settled(sender, receiver, transfer)
    assert router.daemon.ended() == 0
    assert "stopped drained=true" in router.daemon.lines[-1]


async def test_the_time_for_all_workers_is_that_of_the_request(daemon: StartDaemon, tmp_path: Path) -> None:
    router = site(daemon, tmp_path, MANAGED.replace("drain = 100", "drain = 0.1"))
    sender, receiver, _ = await holding(router, "A.2")
    assert (await command(router, "drain", "--no-wait", "--timeout", "0.5"))[0] == 0
    async with sender.stream, receiver.stream:
        await until(lambda: router.daemon.process.poll() is not None)
    assert router.daemon.ended() == 0
    assert "stopped drained=false" in router.daemon.lines[-1]


async def test_workers_do_not_wait_for_each_other_once_their_supervisor_is_dead(
    daemon: StartDaemon, tmp_path: Path
) -> None:
    router = site(daemon, tmp_path, ELSEWHERE)
    sender, receiver, transfer = await holding(router, "A.2")
    router.daemon.send(signal.SIGTERM)
    router.daemon.said(r"clients moved worker=A\.1 connections=0")
    router.daemon.send(signal.SIGKILL)
    await until(lambda: not is_there(router.pids["A.1"]))
    await settled(sender, receiver, transfer)
    await until(lambda: not is_there(router.pids["A.2"]))


@pytest.mark.parametrize("content", ["", "{}", "[1]", "[1, true, null, 3.0, 4, 5]"])
def test_an_order_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    from amqpmesh.router.runtime.shared_drain import ORDER, read_order

    assert read_order(tmp_path) is None
    (tmp_path / ORDER).write_text(content)
    assert read_order(tmp_path) is None
