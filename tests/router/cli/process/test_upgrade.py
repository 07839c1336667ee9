"""A router that is upgraded in place: its process starts another one, whichever of them dies."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from amqpmesh.router.amqp.standard.conditions import ConnectionCondition
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.performatives import Disposition, Transfer
from amqpmesh.router.cli.process.in_place_upgrade import STANDS_IN, named, unnamed
from amqpmesh.router.config.file import RouterConfig
from amqpmesh.router.config.observability import AuditConfig
from tests.router.cli.process.test_drained_workers import is_moved, settled
from tests.support.peers.scripted_stream import Peer, credit
from tests.support.processes.daemon import PATIENCE, Daemon, StartDaemon

CONFIG = """
[router]
id = "A"
drain = 0.1
drain_timeout = 30.0
idle_time_out = 0.0 # clients of these tests send nothing while a new process starts
[mesh]
insecure = true
[[listener]]
url = "amqp://127.0.0.1:0"
manage = true
open_time_out = 300.0 # a connection is to be closed only once it is open, after a new process has started
[audit]
file = "audit.jsonl"
[telemetry]
directory = "records"
"""

HTTP = """
[[listener]]
url = "http://127.0.0.1:0"
role = "http"
"""
LONG = 300.0  # seconds for all processes of a test, which start one after the other, on a busy machine

CREDENTIALS = struct.Struct("3i")  # process, user and group (unix(7))


class Site:
    """A router that is upgraded."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.port = daemon.port()

    def pid(self) -> int:
        """Return the process id of the next successor, once it accepts connections."""
        return int(self.daemon.said(r" INFO successor ready pid=(\d+)$").group(1))

    async def client(self) -> tuple[Peer, str]:
        """Return a new client, and the router that has accepted it."""
        peer = Peer(await trio.open_tcp_stream("127.0.0.1", self.port))
        return peer, (await peer.open()).container_id

    async def id(self) -> str:
        """Return the router that accepts connections."""
        peer, router = await self.client()
        await peer.close()
        return router

    async def holding(self, address: str = "held") -> tuple[Peer, Peer, Transfer]:
        """Connect a sender and a receiver. Returns: them, and a delivery about which the receiver decides."""
        receiver, sender = [Peer(await trio.open_tcp_stream("127.0.0.1", self.port)) for _ in range(2)]
        await receiver.attach(Role.RECEIVER, address)
        await receiver.write(credit(1))
        await sender.attach(Role.SENDER, address)
        await sender.send(0, b"hi")
        return sender, receiver, await receiver.expect(Transfer)


@pytest.fixture(name="daemon")
def upgraded(daemon: StartDaemon) -> Iterator[StartDaemon]:
    """Start routers as the fixture of that name does, and end those processes, too, that take them over."""
    routers: list[Daemon] = []

    def start(*arguments: str, **environment: str) -> Daemon:
        routers.append(daemon(*arguments, patience=LONG, **environment))
        return routers[-1]

    yield start
    lines = "\n".join(line for each in routers for line in each.lines)
    for pid in re.findall(r"(?:upgrade started|successor ready) pid=(\d+)", lines):
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


@pytest.fixture
def site(daemon: StartDaemon, tmp_path: Path) -> Site:
    (tmp_path / "run").mkdir()
    (tmp_path / "a.toml").write_text(CONFIG)
    return Site(daemon("a.toml", TMPDIR=str(tmp_path / "run")))


@pytest.fixture
def workers(daemon: StartDaemon, tmp_path: Path) -> Site:
    """Return a router with two workers."""
    (tmp_path / "a.toml").write_text(CONFIG)
    return Site(daemon("a.toml", "--workers", "2"))


async def ends(site: Site, pid: int, tmp_path: Path) -> None:
    """End the router by its last process, and assert that nothing is left."""
    os.kill(pid, signal.SIGTERM)
    assert site.daemon.ended() == 0  # and all its processes: they have the same standard error
    assert list((tmp_path / "run").iterdir()) == []
    assert not any("Traceback" in line for line in site.daemon.lines)


async def has_ended(pid: int) -> None:
    """Wait until a process, which need not be a child, has ended."""
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            with trio.fail_after(LONG):
                await trio.lowlevel.wait_readable(process)
        finally:
            os.close(process)


async def readiness(port: int) -> bytes:
    """Return the begin of the answer at `/readyz`."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(f"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        return bytes(await stream.receive_some(12))


class Manager:
    """A service manager, which believes what its main process says alone (`NotifyAccess=main`)."""

    def __init__(self) -> None:
        self.name = f"amqpmesh-{os.getpid()}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.socket.bind(f"\0{self.name}")

    def follow(self, main: int) -> tuple[int, list[str]]:
        """Return the main process after all that was said, and what main processes have said."""
        heard = []
        self.socket.setblocking(False)
        with self.socket, suppress(BlockingIOError):
            while True:
                said, ancillary, _, _ = self.socket.recvmsg(100, socket.CMSG_SPACE(CREDENTIALS.size))
                ((_, _, data),) = ancillary
                if CREDENTIALS.unpack(data)[0] == main:
                    heard.append(said.decode())
                    if heard[-1].startswith("MAINPID="):
                        main = int(heard[-1].removeprefix("MAINPID="))
        return main, heard


async def test_clients_move_to_a_stand_in_and_from_there_to_the_new_process(
    daemon: StartDaemon, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    manager = Manager()
    (tmp_path / "a.toml").write_text(CONFIG + HTTP)
    site = Site(daemon("a.toml", TMPDIR=str(tmp_path / "run"), NOTIFY_SOCKET=f"@{manager.name}"))
    http = int(site.daemon.said(r" INFO listening url=http://127\.0\.0\.1:(\d+) ").group(1))
    first = site.daemon.process.pid
    sender, receiver, transfer = await site.holding()
    site.daemon.send(signal.SIGUSR2)
    site.pid()
    assert await site.id() == "A.old"
    site.daemon.send(signal.SIGUSR2)
    site.daemon.said(r" WARNING upgrade refused reason=.*one is under way")
    assert {await readiness(http) for _ in range(20)} == {b"HTTP/1.1 200"}, "the new process answers"
    await settled(sender, receiver, transfer)
    again, router = await site.client()
    assert router == "A.old"
    pid = site.pid()
    assert await site.id() == "A"
    await is_moved(again)
    site.daemon.said(" INFO router taken over$")
    await ends(site, pid, tmp_path)
    last, heard = manager.follow(first)
    assert last == pid
    assert [each.partition("=")[0] for each in heard] == ["READY", "MAINPID", "MAINPID", "STOPPING"]
    for name, router in (("audit", "A"), ("audit.old", "A.old")):
        lines = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        assert {line["router"] for line in lines} == {router}


async def run(site: Site, *arguments: str) -> tuple[int, str]:
    """Run the command. Returns: its exit status, and what it prints."""

    def work() -> tuple[int, str]:
        command = [sys.executable, "-m", "amqpmesh", "upgrade", "--url", f"amqp://127.0.0.1:{site.port}", *arguments]
        root = Path(__file__).parents[4]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=root)
        return done.returncode, done.stdout

    return await trio.to_thread.run_sync(work)


async def test_the_command_waits_for_the_end_and_a_wrong_configuration_changes_nothing(
    site: Site, tmp_path: Path
) -> None:
    (tmp_path / "a.toml").write_text(CONFIG.replace("drain = 0.1", "drain = -1"))
    status, told = await run(site)
    assert (status, told.splitlines()[-1]) == (5, "not upgraded: the new process has ended with status 2")
    site.daemon.said(r" ERROR upgrade failed reason=.*the new process has ended with status 2")
    peer, router = await site.client()
    assert router == "A"
    (tmp_path / "a.toml").write_text(CONFIG)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(is_moved, peer)
        status, told = await run(site)
    pids = [site.pid(), site.pid()]
    assert (status, told.splitlines()[-1]) == (0, f"A is upgraded, process {pids[1]}")
    assert await site.id() == "A"
    await ends(site, pids[1], tmp_path)


async def test_a_connection_that_is_not_open_yet_is_closed_only_once_it_is(site: Site, tmp_path: Path) -> None:
    peer = Peer(await trio.open_tcp_stream("127.0.0.1", site.port))
    assert await site.id() == "A"  # it is accepted, too
    site.daemon.send(signal.SIGUSR2)
    site.daemon.said(" INFO draining ")
    assert (await peer.open()).container_id == "A"
    close = await peer.answer_close()
    assert close.error is not None
    assert close.error.condition == ConnectionCondition.CONNECTION_FORCED
    await ends(site, site.pid(), tmp_path)


async def test_a_stand_in_that_is_killed_leaves_the_router_as_it_was(site: Site, tmp_path: Path) -> None:
    sender, receiver, transfer = await site.holding()
    site.daemon.send(signal.SIGUSR2)
    os.kill(site.pid(), signal.SIGKILL)
    site.daemon.said(r" ERROR upgrade failed reason=.*the new process has ended with status -9")
    assert await site.id() == "A"
    assert str(tmp_path / "run") not in Path("/proc/net/unix").read_text()  # nobody can join any more
    await receiver.accept(transfer)  # the move of one or both of them had begun
    assert (await sender.expect(Disposition)).state == Accepted()
    another, other, transfer = await site.holding()
    await other.accept(transfer)
    assert (await another.expect(Disposition)).state == Accepted()
    for peer in (sender, receiver, another, other):
        await peer.stream.aclose()
    await ends(site, site.daemon.process.pid, tmp_path)


async def test_a_router_that_is_killed_while_its_clients_move_is_upgraded(site: Site, tmp_path: Path) -> None:
    sender, receiver, _ = await site.holding()
    site.daemon.send(signal.SIGUSR2)
    site.pid()
    site.daemon.send(signal.SIGKILL)
    for peer in (sender, receiver):
        with pytest.raises(AssertionError, match="ended"):
            await peer.expect(Transfer)
    pid = site.pid()
    assert await site.id() == "A"
    site.daemon.said(" INFO router taken over$")
    os.kill(pid, signal.SIGTERM)
    assert site.daemon.ended() == -signal.SIGKILL


class Held:
    """A configuration that programs wait for: none that is started meanwhile gets ready."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        os.mkfifo(folder / "pipe")
        (folder / "pipe").rename(folder / "a.toml")

    async def give(self) -> None:
        """Give the configuration to the program that waits for it, and to those that are started later."""
        with trio.fail_after(LONG):
            while True:
                with suppress(OSError):  # it does not read yet
                    pipe = os.open(self._folder / "a.toml", os.O_WRONLY | os.O_NONBLOCK)
                    break
                await trio.sleep(0.01)
        (self._folder / "file").write_text(CONFIG)
        (self._folder / "file").rename(self._folder / "a.toml")
        with open(pipe, "w") as reader:
            reader.write(CONFIG)


def started(site: Site) -> int:
    """Return the process id of the next successor, which may not accept connections yet."""
    return int(site.daemon.said(r" INFO upgrade started pid=(\d+)$").group(1))


async def test_a_router_that_is_killed_before_its_successor_is_ready_is_upgraded(site: Site, tmp_path: Path) -> None:
    held = Held(tmp_path)
    site.daemon.send(signal.SIGUSR2)
    started(site)
    site.daemon.send(signal.SIGKILL)
    site.daemon.process.wait(PATIENCE)
    waiting = Peer(await trio.open_tcp_stream("127.0.0.1", site.port))
    await held.give()
    assert "successor ready" not in site.daemon.said(" INFO router taken over$").string
    assert (await waiting.open()).container_id == "A.old", "it waited in the socket, which is not lost"
    pid = site.pid()
    assert await site.id() == "A"
    await is_moved(waiting)
    site.daemon.said(" INFO router taken over$")
    os.kill(pid, signal.SIGTERM)
    assert site.daemon.ended() == -signal.SIGKILL
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["alone", "workers"])
async def test_a_successor_that_is_killed_before_it_is_ready_changes_nothing(
    daemon: StartDaemon, tmp_path: Path, workers: tuple[str, ...]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "a.toml").write_text(CONFIG)
    site = Site(daemon("a.toml", *workers, TMPDIR=str(tmp_path / "run")))
    before = set(Path(tmp_path / "run").iterdir())
    sender, receiver, transfer = await site.holding()
    Held(tmp_path)
    site.daemon.send(signal.SIGUSR2)
    os.kill(started(site), signal.SIGKILL)
    site.daemon.said(r" ERROR upgrade failed reason=.*the new process has ended")
    await receiver.accept(transfer)
    assert (await sender.expect(Disposition)).state == Accepted()
    another, other, transfer = await site.holding("after")
    await other.accept(transfer)
    assert (await another.expect(Disposition)).state == Accepted()
    assert set(Path(tmp_path / "run").iterdir()) == before
    for peer in (sender, receiver, another, other):
        await peer.stream.aclose()
    await ends(site, site.daemon.process.pid, tmp_path)
    assert "moving clients" not in "\n".join(site.daemon.lines)


async def test_either_process_of_the_second_step_may_die_before_the_new_one_is_ready(
    site: Site, tmp_path: Path
) -> None:
    sender, receiver, transfer = await site.holding()
    site.daemon.send(signal.SIGUSR2)
    stand_in = site.pid()
    held = Held(tmp_path)  # for the second step: the stand-in has read it
    await settled(sender, receiver, transfer)
    os.kill(started(site), signal.SIGKILL)
    site.daemon.said(r" ERROR upgrade failed ")
    assert await site.id() == "A.old"
    tried = started(site)  # the stand-in tries again
    os.kill(stand_in, signal.SIGKILL)
    await held.give()
    site.daemon.said(" INFO router taken over$")
    peer, router = await site.client()
    assert router == "A"
    await peer.close()
    os.kill(tried, signal.SIGTERM)
    assert site.daemon.ended() == 0
    assert list((tmp_path / "run").iterdir()) == []


async def test_either_process_of_the_second_step_may_die(site: Site, tmp_path: Path) -> None:
    site.daemon.send(signal.SIGUSR2)
    stand_in = site.pid()
    sender, receiver, transfer = await site.holding()
    first = site.pid()
    os.kill(first, signal.SIGKILL)
    site.daemon.said(r" ERROR upgrade failed ")
    second = site.pid()  # the stand-in tries again
    assert second != first
    assert await site.id() == "A"
    os.kill(stand_in, signal.SIGKILL)
    site.daemon.said(" INFO router taken over$")
    assert await site.id() == "A"
    del sender, receiver, transfer
    os.kill(second, signal.SIGTERM)
    assert site.daemon.ended() == 0


def moving(site: Site) -> set[str]:
    """Return the two workers that say next that they move their clients."""
    return {site.daemon.said(r" INFO moving clients worker=(\S+) ").group(1) for _ in range(2)}


async def test_all_workers_are_upgraded_together(daemon: StartDaemon, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "a.toml").write_text(CONFIG)
    site = Site(daemon("a.toml", "--workers", "2", TMPDIR=str(tmp_path / "run")))
    sender, receiver, transfer = await site.holding()
    ended: list[tuple[int, str]] = []

    async def upgrade() -> None:
        ended.append(await run(site))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(upgrade)
        await trio.to_thread.run_sync(site.pid)
        assert moving(site) == {"A.1", "A.2"}
        assert {await site.id() for _ in range(10)} <= {"A.old.1", "A.old.2"}
        assert await run(site) == (5, "not upgraded: one is under way\n")
        await settled(sender, receiver, transfer)
    pid = site.pid()
    assert moving(site) == {"A.old.1", "A.old.2"}
    assert {await site.id() for _ in range(10)} <= {"A.1", "A.2"}
    site.daemon.said(" INFO router taken over$")
    ((status, told),) = ended
    assert (status, told.splitlines()[-1]) == (0, f"A is upgraded, process {pid}")
    await ends(site, pid, tmp_path)
    log = "\n".join(site.daemon.lines)
    assert "no sockets inherited" not in log
    assert " ERROR " not in log


async def test_a_worker_that_dies_beside_a_successor_is_not_started_again(workers: Site) -> None:
    site = workers
    holding = [await site.holding(name) for name in "abcd"]  # at both workers, likely
    site.daemon.send(signal.SIGUSR2)
    site.pid()
    assert moving(site) == {"A.1", "A.2"}
    (pid,) = re.findall(r"worker started worker=A\.1 pid=(\d+)", "\n".join(site.daemon.lines))
    os.kill(int(pid), signal.SIGKILL)
    site.daemon.said(r" WARNING worker exited worker=A\.1 ")
    assert {await site.id() for _ in range(50)} <= {"A.old.1", "A.old.2"}
    for sender, receiver, _ in holding:
        await sender.stream.aclose()
        await receiver.stream.aclose()
    site.daemon.said(" INFO router taken over$")
    last = site.pid()
    site.daemon.said(" INFO router taken over$")
    os.kill(last, signal.SIGTERM)
    assert site.daemon.ended() == 0
    assert "\n".join(site.daemon.lines).count("worker started worker=A.1 ") == 2


async def test_workers_that_die_before_the_successor_is_ready_are_started_again_and_upgraded(
    workers: Site, tmp_path: Path
) -> None:
    site = workers
    held = Held(tmp_path)
    site.daemon.send(signal.SIGUSR2)
    started(site)
    (pid,) = re.findall(r"worker started worker=A\.1 pid=(\d+)", "\n".join(site.daemon.lines))
    os.kill(int(pid), signal.SIGKILL)
    site.daemon.said(r" INFO worker started worker=A\.1 ")
    assert await site.id() in {"A.1", "A.2"}
    await held.give()
    site.daemon.said(" INFO router taken over$")
    last = site.pid()
    site.daemon.said(" INFO router taken over$")
    assert await site.id() in {"A.1", "A.2"}
    os.kill(last, signal.SIGTERM)
    assert site.daemon.ended() == 0


async def test_a_supervisor_that_is_killed_before_its_successor_is_ready_is_upgraded(
    workers: Site, tmp_path: Path
) -> None:
    site = workers
    held = Held(tmp_path)
    site.daemon.send(signal.SIGUSR2)
    started(site)
    site.daemon.send(signal.SIGKILL)
    await held.give()
    site.daemon.said(" INFO router taken over$")
    last = site.pid()
    site.daemon.said(" INFO router taken over$")
    assert await site.id() in {"A.1", "A.2"}
    os.kill(last, signal.SIGTERM)
    assert site.daemon.ended() == -signal.SIGKILL


async def test_a_new_supervisor_that_is_killed_leaves_the_workers_as_they_were(workers: Site) -> None:
    site = workers
    sender, receiver, transfer = await site.holding()
    site.daemon.send(signal.SIGUSR2)
    pid = site.pid()
    assert moving(site) == {"A.1", "A.2"}
    new = re.findall(r" INFO worker started worker=A\.old\.\d pid=(\d+)$", "\n".join(site.daemon.lines), re.MULTILINE)
    assert len(new) == 2
    os.kill(pid, signal.SIGKILL)
    for worker in new:  # until then they take new connections
        await has_ended(int(worker))
    site.daemon.said(r" ERROR upgrade failed ")
    for _ in range(2):
        site.daemon.said(r" INFO clients stay worker=A\.\d ")
    await receiver.accept(transfer)
    assert (await sender.expect(Disposition)).state == Accepted()
    another, other, transfer = await site.holding()
    await other.accept(transfer)
    assert (await another.expect(Disposition)).state == Accepted()
    for peer in (sender, receiver, another, other):
        await peer.stream.aclose()
    site.daemon.send(signal.SIGTERM)
    assert site.daemon.ended() == 0


@pytest.mark.parametrize("file", ["audit.jsonl", "audit", "audit.old"])
def test_a_process_that_stands_in_knows_the_files_of_its_router(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RouterConfig(id="A", audit=AuditConfig(file=Path(file)))
    assert unnamed(named(config)) == named(config) == config
    monkeypatch.setenv(STANDS_IN, "1")
    there = named(config)
    assert there.audit is not None
    assert (there.id, there.audit.file) != (config.id, Path(file))
    assert unnamed(there) == config
    assert unnamed(replace(there, id="A.old.2")).id == "A"
