"""A router of several processes, which is one router to its clients, whichever process dies."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Released
from amqpmesh.router.amqp.standard.messaging import Target
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Close, Disposition, Open, Transfer
from amqpmesh.router.cli.main import main
from amqpmesh.router.config.observability import AuditConfig
from amqpmesh.router.config.users import add_user
from amqpmesh.router.runtime.audit_file import file_of
from tests.support.peers.scripted_stream import AMQP, Peer, attached, begun, credit
from tests.support.processes.daemon import PATIENCE, Daemon, StartDaemon

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CONFIG = """
[router]
id = "A"
drain = 100
[[listener]]
url = "amqp://127.0.0.1:0"
[[address]]
pattern = "#"
worker = 0
"""

ATTEMPTS = 200  # to come to a certain one of two workers; the system chooses by the client's port


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[StartDaemon]:
    folder = tmp_path / "run"
    folder.mkdir()
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> Daemon:
            started = Daemon(*arguments, cwd=tmp_path, TMPDIR=str(folder))
            stack.callback(started.close)
            return started

        yield start


class Site:
    """A router of two workers."""

    def __init__(self, daemon: Daemon, *, mesh: bool = False) -> None:
        self.daemon = daemon
        self.pids = dict(self.begun() for _ in range(2))
        daemon.said(r" INFO started kernel=\w+ (reason=.* )?workers=2$")
        self.port = daemon.port()
        self.mesh_port = daemon.port() if mesh else 0
        up = r" INFO neighbour up worker=A\.\d router=A\.\d "
        # They may have found each other before the ports are told.
        for _ in range(2 - sum(re.search(up, line) is not None for line in daemon.lines)):
            daemon.said(up)

    def begun(self) -> tuple[str, int]:
        found = self.daemon.said(r" INFO worker started worker=(A\.\d) pid=(\d+)$")
        return found.group(1), int(found.group(2))

    async def client(self, worker: str) -> Peer:
        """Return a peer that is connected to a certain worker."""
        for _ in range(ATTEMPTS):
            peer = Peer(await trio.open_tcp_stream("127.0.0.1", self.port))
            if (await peer.open()).container_id == worker:
                return peer
            await peer.stream.aclose()
        raise AssertionError(f"{worker} was never met")

    async def attached(self, worker: str, role: Role, address: str) -> Peer:
        """One that has a link."""
        peer = await self.client(worker)
        await peer.write(begun(), attached(role, address))
        await peer.expect(Begin)
        await peer.expect(Attach)
        if role is Role.RECEIVER:
            await peer.write(credit(1))
        return peer


def site(daemon: StartDaemon, tmp_path: Path, config: str = CONFIG) -> Site:
    (tmp_path / "a.toml").write_text(config)
    return Site(daemon("a.toml", "--workers", "2"), mesh="role" in config)


async def delivers(sender: Peer, receiver: Peer, number: int = 0) -> None:
    await sender.send(number, b"hi")
    transfer = await receiver.expect(Transfer)
    await receiver.accept(transfer)
    assert (await sender.expect(Disposition)).state == Accepted()


async def gets_through(sender: Peer, receiver: Peer, number: int) -> int:
    """One delivery, at the first try or a later one: the credit for it may still be that of receivers who have gone.

    Returns: the next delivery's number.
    """

    async def accept() -> None:
        await receiver.accept(await receiver.expect(Transfer))

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            state = None
            while state != Accepted():
                await sender.send(number, b"hi")
                number += 1
                state = (await sender.expect(Disposition)).state
                assert isinstance(state, Accepted | Released)
    return number


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.sleep(0.02)  # of another process nothing tells us


@pytest.mark.parametrize(("sending", "receiving"), [("A.1", "A.2"), ("A.2", "A.1"), ("A.1", "A.1")])
async def test_clients_of_either_worker_reach_each_other(
    daemon: StartDaemon, tmp_path: Path, sending: str, receiving: str
) -> None:
    router = site(daemon, tmp_path)
    receiver = await router.attached(receiving, Role.RECEIVER, "hello")
    sender = await router.attached(sending, Role.SENDER, "hello")
    await delivers(sender, receiver)
    for peer in (sender, receiver):
        await peer.close()
    router.daemon.send(signal.SIGTERM)
    assert router.daemon.ended() == 0
    assert "stopped drained=true" in router.daemon.lines[-1]


async def test_a_worker_that_dies_comes_back_and_the_other_one_goes_on(daemon: StartDaemon, tmp_path: Path) -> None:
    router = site(daemon, tmp_path)
    receiver = await router.attached("A.2", Role.RECEIVER, "hello")
    sender = await router.attached("A.2", Role.SENDER, "hello")
    lost = await router.client("A.1")
    os.kill(router.pids["A.1"], signal.SIGKILL)
    await delivers(sender, receiver)
    router.daemon.said(rf" WARNING worker exited worker=A\.1 pid={router.pids['A.1']} signal=SIGKILL seconds=0\.")
    assert not await lost.stream.receive_some()
    worker, pid = router.begun()
    assert worker == "A.1"
    assert pid != router.pids["A.1"]
    router.daemon.said(r" INFO neighbour up worker=A\.\d router=A\.\d ")
    await receiver.write(credit(2))
    other = await router.attached("A.1", Role.SENDER, "hello")
    await delivers(other, receiver)
    router.daemon.send(signal.SIGTERM)
    for peer in (receiver, sender, other):
        await peer.answer_close()
    assert router.daemon.ended() == 0


def test_a_signal_without_a_name_ends_one_worker_and_not_the_router(daemon: StartDaemon, tmp_path: Path) -> None:
    router = site(daemon, tmp_path)
    os.kill(router.pids["A.1"], signal.SIGRTMIN + 1)
    router.daemon.said(
        rf" WARNING worker exited worker=A\.1 pid={router.pids['A.1']} signal={signal.SIGRTMIN + 1} seconds=0\."
    )
    assert router.begun()[0] == "A.1"
    router.daemon.send(signal.SIGTERM)
    assert router.daemon.ended() == 0


def test_a_worker_is_told_to_end_even_before_it_can_listen(daemon: StartDaemon, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(CONFIG)
    started = daemon("a.toml", "--workers", "2")
    started.said(r" INFO worker started worker=A\.1 ")
    started.send(signal.SIGTERM)
    assert started.ended() == 0


async def test_a_worker_that_is_told_to_end_by_itself_drains_and_comes_back(
    daemon: StartDaemon, tmp_path: Path
) -> None:
    router = site(daemon, tmp_path)
    os.kill(router.pids["A.2"], signal.SIGTERM)
    router.daemon.said(r" INFO stopped worker=A\.2 drained=true")
    router.daemon.said(r" WARNING worker exited worker=A\.2 pid=\d+ status=0 seconds=0\.")
    assert router.begun()[0] == "A.2"
    router.daemon.send(signal.SIGTERM)
    assert router.daemon.ended() == 0


@asynccontextmanager
async def on_its_way(router: Site) -> AsyncIterator[tuple[Peer, Peer, Transfer]]:
    """End the router while a receiver at the other worker has an unsettled delivery."""
    receiver = await router.attached("A.2", Role.RECEIVER, "hello")
    sender = await router.attached("A.1", Role.SENDER, "hello")
    await sender.send(0, b"hi")
    transfer = await receiver.expect(Transfer)
    for pid in router.pids.values():  # a service manager tells all processes, and the supervisor tells them again
        os.kill(pid, signal.SIGTERM)
    router.daemon.send(signal.SIGTERM)
    router.daemon.said(r" INFO draining signal=SIGTERM seconds=100\.0")
    async with sender.stream, receiver.stream:
        yield sender, receiver, transfer


async def test_what_is_unsettled_between_workers_is_waited_for(daemon: StartDaemon, tmp_path: Path) -> None:
    router = site(daemon, tmp_path)
    async with on_its_way(router) as (sender, receiver, transfer):
        await receiver.accept(transfer)
        assert (await sender.expect(Disposition)).state == Accepted()
        assert router.daemon.ended() == 0  # and not at the end of the 100 s, or the alarm would have ended it
    assert "stopped drained=true" in router.daemon.lines[-1]


async def test_a_second_signal_ends_all_at_once(daemon: StartDaemon, tmp_path: Path) -> None:
    router = site(daemon, tmp_path)
    async with on_its_way(router):
        router.daemon.send(signal.SIGTERM)
        assert router.daemon.ended() == 1
    assert "stopped drained=false" in router.daemon.lines[-1]
    assert not any("Traceback" in line for line in router.daemon.lines)


async def test_workers_do_not_outlive_their_supervisor(daemon: StartDaemon, tmp_path: Path) -> None:
    router = site(daemon, tmp_path)
    assert len(list((tmp_path / "run").iterdir())) == 1
    router.daemon.send(signal.SIGKILL)
    await until(lambda: not any(map(is_there, router.pids.values())))
    assert not list((tmp_path / "run").iterdir())


async def test_the_sockets_are_where_nobody_else_looks_and_gone_in_the_end(daemon: StartDaemon, tmp_path: Path) -> None:
    router = site(daemon, tmp_path)
    (folder,) = (tmp_path / "run").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(each.name for each in folder.iterdir()) == ["1", "2", "give-1", "give-2", "take-1", "take-2"]
    router.daemon.send(signal.SIGTERM)
    assert router.daemon.ended() == 0
    assert not folder.exists()


async def test_a_peer_that_is_no_worker_is_no_neighbour_by_the_sockets_of_workers(
    daemon: StartDaemon, tmp_path: Path
) -> None:
    router = site(daemon, tmp_path)
    (folder,) = (tmp_path / "run").iterdir()
    peer = Peer(await trio.open_unix_socket(folder / "1"))
    await peer.write(AMQP, Open(container_id="B.2"))
    assert await peer.expect_header() == AMQP
    await peer.expect(Open)
    closed = await peer.expect(Close)
    assert closed.error is not None
    assert closed.error.description == "it is no worker of this router"
    router.daemon.said(r" WARNING neighbour refused worker=A\.1 connection=\d+ peer=worker router=B\.2 ")
    await peer.stream.aclose()


CERTIFIED = """
[mesh]
certificate = "{id}.pem"
key = "{id}.key"
trust = "mesh-ca.pem"
"""

NEIGHBOURS = """
[[listener]]
url = "amqps://127.0.0.1:0"
role = "mesh"
"""


async def test_the_certificate_of_the_router_is_that_of_its_workers(daemon: StartDaemon, tmp_path: Path) -> None:
    for arguments in (["init"], ["issue", "A"], ["issue", "B"]):
        assert main(["ca", *arguments, "--directory", str(tmp_path)]) == 0
    router = site(daemon, tmp_path, CONFIG + CERTIFIED.format(id="A") + NEIGHBOURS)
    mesh = f'[[connector]]\nurl = "amqps://127.0.0.1:{router.mesh_port}"\n'
    (tmp_path / "b.toml").write_text(CONFIG.replace('"A"', '"B"') + CERTIFIED.format(id="B") + mesh)
    other = daemon("b.toml")
    port = other.port()
    other.said(r" INFO neighbour up router=A\.\d ")
    await until(lambda: "routers 3, reachable 3" in status(port))
    sender = Peer(await trio.open_tcp_stream("127.0.0.1", port))
    attach = await sender.attach(Role.SENDER, "hello@A")  # both are known, whichever of them is the neighbour
    assert isinstance(attach.target, Target)
    number = 0
    for worker in ("A.1", "A.2"):
        receiver = await router.attached(worker, Role.RECEIVER, "hello")
        number = await gets_through(sender, receiver, number)
        await receiver.close()
    shown = [status(port, *asked) for asked in ([], ["A.1"], ["A.2"], ["A"])]
    assert [each.split(",")[0] for each in shown[:3]] == ["router B", "router A.1", "router A.2"]
    assert shown[3].split(",")[0] in ("router A.1", "router A.2")
    assert "advertisements dropped" not in "".join(shown)


def status(port: int, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "amqpmesh", "status", *arguments, "--url", f"amqp://127.0.0.1:{port}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
        cwd=Path(__file__).parents[4],
    ).stdout


def test_sighup_is_passed_on(daemon: StartDaemon, tmp_path: Path) -> None:
    router = site(daemon, tmp_path)
    more = "[[address]]\npattern = 'a'\n[[listener]]\nurl = 'amqp://127.0.0.1:0'\nname = 'more'\n"
    (tmp_path / "a.toml").write_text(f"{CONFIG}{more}")
    router.daemon.send(signal.SIGHUP)
    # The lines of the two come in any order.
    pattern = r"(restart required|configuration changed) worker=(A\.\d) key=([a-z]+)\["
    said = {router.daemon.said(pattern).groups() for _ in range(4)}
    assert said == {
        (event, worker, key)
        for event, key in (("restart required", "listener"), ("configuration changed", "address"))
        for worker in ("A.1", "A.2")
    }
    router.daemon.send(signal.SIGINT)
    assert router.daemon.ended() == 0
    restarts = [line for line in router.daemon.lines if "restart required" in line]
    assert len(restarts) == 2  # and not the port, which the system has chosen


def run(router: Site, *arguments: str) -> tuple[int, str]:
    """Run a command. Returns: its exit status, and what it prints."""
    command = [sys.executable, "-m", "amqpmesh", *arguments, "--url", f"amqp://127.0.0.1:{router.port}"]
    root = Path(__file__).parents[4]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=root)
    return done.returncode, done.stdout + done.stderr


def test_a_worker_that_could_not_follow_a_change_follows_it_as_soon_as_it_can(
    daemon: StartDaemon, tmp_path: Path
) -> None:
    router = site(daemon, tmp_path)
    audit = AuditConfig(file=tmp_path / "audit.jsonl")
    changed = f"{CONFIG}[[address]]\npattern = 'b'\n[audit]\nfile = 'audit.jsonl'\n"
    (tmp_path / "a.toml").write_text(changed)
    with file_of(audit, 2).open("w") as another:
        fcntl.flock(another, fcntl.LOCK_EX)
        router.daemon.send(signal.SIGHUP)
        pattern = r" INFO configuration changed worker=(A\.\d) key=address\[b\] "
        assert router.daemon.said(pattern).group(1) == "A.1"
        for _ in range(2):  # at once, and again after a second
            router.daemon.said(r" ERROR reload failed worker=A\.2 .*another process writes it")
    assert router.daemon.said(pattern).group(1) == "A.2"
    router.daemon.send(signal.SIGTERM)
    assert router.daemon.ended() == 0


def changed(router: Site, key: str) -> set[str]:
    """Return the two workers of which each logs next that a key has changed."""
    pattern = rf"configuration changed worker=(A\.\d) key={re.escape(key)} "
    return {router.daemon.said(pattern).group(1) for _ in range(2)}


def test_a_change_reaches_all_workers_also_one_that_is_started_again(daemon: StartDaemon, tmp_path: Path) -> None:
    managed = CONFIG.replace("[[address]]", "manage = true\n[[address]]")
    router = site(daemon, tmp_path, managed)
    file = tmp_path / "a.toml"
    file.write_text(f"{managed}[[address]]\npattern = 'b'\n")
    router.daemon.send(signal.SIGHUP)
    assert changed(router, "address[b]") == {"A.1", "A.2"}
    status, told = run(router, "set", "address", "a", "max_credit=7", "--create")
    assert (status, told) == (0, 'address[a] to { pattern = "a", max_credit = 7 } (at once)\n')
    assert changed(router, "address[a]") == {"A.1", "A.2"}
    # All workers listen at ports that were bound before they started.
    status, told = run(router, "set", "listener", "more", "url=amqp://127.0.0.1:0", "--create")
    assert (status, "listener[more] needs a restart" in told) == (5, True)
    # One that is started again has it, and nothing of a file that was not applied; each of them may answer.
    file.write_text(f"{managed}[[address]]\npattern = 'c'\n")
    for worker in ("A.1", "A.2"):
        os.kill(router.pids[worker], signal.SIGKILL)
        assert router.begun()[0] == worker
        router.daemon.said(r" INFO neighbour up worker=A\.\d router=A\.\d ")
    told = run(router, "status", "--json")[1]
    patterns = {each["name"]: each["runtime"] for each in json.loads(told)["address_patterns"]}
    assert {name: patterns.get(name) for name in "abc"} == {"a": True, "b": False, "c": None}
    shown = run(router, "config", "show")[1]
    assert shown.startswith('# changed by management: "address[a]"\n[router]\nid = "A"\n')
    # The file takes it back everywhere.
    status, told = run(router, "apply")
    assert (status, told.splitlines()) == (
        0,
        [
            'address[c] to { pattern = "c" } (at once)',
            'address[b] from { pattern = "b" } (at once)',
            'address[a] from { pattern = "a", max_credit = 7 } (at once)',
            "applied",
        ],
    )
    assert changed(router, "address[a]") == {"A.1", "A.2"}
    assert "changed by management" not in run(router, "config", "show")[1]
    router.daemon.send(signal.SIGINT)
    assert router.daemon.ended() == 0


def test_a_user_that_management_creates_is_one_of_all_workers(daemon: StartDaemon, tmp_path: Path) -> None:
    add_user(tmp_path / "users.toml", "eve", "secret", 4096)
    (tmp_path / "password").write_text("correct horse")
    door = '[[listener]]\nurl = "amqp://127.0.0.1:0"\nname = "door"\nsasl = ["SCRAM-SHA-256"]\nusers = "users.toml"\n'
    router = site(daemon, tmp_path, CONFIG.replace("[[address]]", f"manage = true\n{door}[[address]]"))
    new = f"password-file={tmp_path / 'password'}"
    assert run(router, "set", "user", "ada", new, "--create") == (0, "user ada is enabled, in no group\n")
    said = [router.daemon.said(r"user added worker=(A\.\d) user=ada listener=door").group(1) for _ in range(2)]
    assert set(said) == {"A.1", "A.2"}
    # What both workers change counts for both.
    assert run(router, "set", "user", "ada", "--delete")[0] == 0
    said = [router.daemon.said(r"user removed worker=(A\.\d) user=ada listener=door").group(1) for _ in range(2)]
    assert set(said) == {"A.1", "A.2"}
    router.daemon.send(signal.SIGINT)
    assert router.daemon.ended() == 0


def test_what_one_worker_is_asked_to_apply_all_of_them_apply(daemon: StartDaemon, tmp_path: Path) -> None:
    managed = CONFIG.replace("[[address]]", "manage = true\n[[address]]")
    router = site(daemon, tmp_path, managed)
    (tmp_path / "a.toml").write_text(f"{managed}[[address]]\npattern = 'a'\n")
    command = [sys.executable, "-m", "amqpmesh", "apply", "--url", f"amqp://127.0.0.1:{router.port}"]
    root = Path(__file__).parents[4]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE, cwd=root)
    assert done.stdout.endswith("applied\n")
    both = {router.daemon.said(r"configuration changed worker=(A\.\d) key=address\[a\] ").group(1) for _ in range(2)}
    assert both == {"A.1", "A.2"}
    router.daemon.send(signal.SIGINT)
    assert router.daemon.ended() == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--listen", "amqp://0.0.0.0:0"), "loopback only"),
        (("--id", "A" * 255, "--listen", "amqp://127.0.0.1:0"), "must be at most 255 characters"),
        (("missing.toml",), "missing.toml: file: No such file"),
    ],
)
def test_with_a_wrong_configuration_no_worker_begins(
    daemon: StartDaemon, arguments: tuple[str, ...], reason: str
) -> None:
    router = daemon(*arguments, "--workers", "2")
    assert router.ended() == 2
    assert len(router.lines) == 1
    assert reason in router.lines[0]


def test_a_folder_whose_name_leaves_no_room_for_sockets_is_told_before_a_worker_begins(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    started = Daemon("--listen", "amqp://127.0.0.1:0", "--workers", "2", cwd=tmp_path, TMPDIR=str(folder))
    with contextlib.closing(started) as router:
        assert router.ended() == 1
    assert len(router.lines) == 1
    assert "File name too long" in router.lines[0]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("number", ["0", "65", "-1", "x", ""])
def test_the_number_of_workers_has_bounds(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", f"--workers={number}"])
    assert "argument --workers: must be a number from 1 to 64" in capsys.readouterr().err


def test_a_port_in_use_ends_with_1_before_a_worker_begins(daemon: StartDaemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        router = daemon("--workers", "2", "--listen", f"amqp://127.0.0.1:{other.getsockname()[1]}")
        assert router.ended() == 1
    assert len(router.lines) == 1
    assert "in use" in router.lines[0]


def test_a_port_is_shared_with_no_other_router(daemon: StartDaemon, tmp_path: Path) -> None:
    router = site(daemon, tmp_path)
    other = daemon("--workers", "2", "--listen", f"amqp://127.0.0.1:{router.port}")
    assert other.ended() == 1
    assert "in use" in other.lines[-1]


async def test_a_port_of_the_configuration_can_be_used_again_at_once(daemon: StartDaemon, tmp_path: Path) -> None:
    router = site(daemon, tmp_path)
    client = await router.client("A.1")
    router.daemon.send(signal.SIGTERM)
    await client.answer_close()
    assert router.daemon.ended() == 0
    again = Site(daemon("--id", "A", "--workers", "2", "--listen", f"amqp://127.0.0.1:{router.port}"))
    assert again.port == router.port
    await (await again.client("A.2")).close()
