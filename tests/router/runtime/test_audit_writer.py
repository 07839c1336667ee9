"""The audit log of a running router: its file, a disk that fails, and the changes that operators make."""

from __future__ import annotations

import logging
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from amqpmesh import ConfigError, ConnectionClosedError, ListenerConfig, Router, SaslError, connect
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import Close, Open
from amqpmesh.router.config.file import AuditConfig, MeshConfig, PolicyConfig, RouterConfig, WorkerConfig
from amqpmesh.router.config.users import add_user, group_user, remove_user, switch_user
from amqpmesh.router.logs.event_log import event_of, fields_of
from amqpmesh.router.management.policy_upload import pieces
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.message.content import Message
from amqpmesh.router.runtime import audit_writer
from amqpmesh.router.runtime.audit_file import AuditFile, file_of
from amqpmesh.router.runtime.audit_writer import AuditWriter
from tests.support.peers import scripted_stream
from tests.support.peers.scripted_stream import AMQP, attached, begun
from tests.support.tasks.until import until
from tests.support.worlds.audited import strictly_read

LOOPBACK = "amqp://127.0.0.1:0"


def lines(file: Path, *events: str) -> list[dict[str, Any]]:
    found = strictly_read(file.read_bytes())
    return [each for each in found if not events or each["event"] in events]


# ----------------------------------------------------------------------------------------------------------- the file


def test_a_file_is_made_for_its_owner_alone_and_appended_to(tmp_path: Path) -> None:
    for _ in range(2):
        file = AuditFile(tmp_path / "audit.jsonl", 0, 3)
        file.append(b"{}\n")
        file.close()
    assert (tmp_path / "audit.jsonl").read_bytes() == b"{}\n{}\n"
    assert stat.S_IMODE((tmp_path / "audit.jsonl").stat().st_mode) == 0o600


@pytest.mark.parametrize(("keep", "left"), [(0, [5]), (1, [5, 4]), (3, [5, 4, 3, 2])])
def test_a_full_file_is_rotated_and_the_oldest_one_removed(tmp_path: Path, keep: int, left: list[int]) -> None:
    file = AuditFile(tmp_path / "audit.jsonl", 10, keep)
    for number in range(6):
        file.append(b"%d234567\n" % number)
    names = ["audit.jsonl", *(f"audit.jsonl.{number}" for number in range(1, keep + 1))]
    assert sorted(each.name for each in tmp_path.iterdir()) == names
    assert [int((tmp_path / name).read_bytes()[:1]) for name in names] == left


def test_a_file_that_was_renamed_is_made_again_after_it_was_closed(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path, 0, 0)
    file.append(b"1\n")
    path.rename(tmp_path / "old")
    file.append(b"2\n")
    file.close()
    file.append(b"3\n")
    assert (tmp_path / "old").read_bytes() == b"1\n2\n"
    assert path.read_bytes() == b"3\n"


def test_a_line_that_a_crash_has_torn_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"time":"20')
    AuditFile(path, 0, 0).append(b"{}\n")
    assert path.read_bytes() == b'{"time":"20\n{}\n'


def test_a_disk_that_takes_a_part_of_a_line_keeps_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path, 0, 0)
    file.append(b"1\n")
    write, room = os.write, [3, 0]

    def full(descriptor: int, data: bytes) -> int:
        part = room.pop(0)
        if not part:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:part])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            file.append(b"234567\n")
    assert path.read_bytes() == b"1\n"
    file.append(b"8\n")
    assert path.read_bytes() == b"1\n8\n"


def test_what_is_no_file_or_is_another_routers_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "none" / "audit.jsonl"):
        with pytest.raises(OSError, match=path.name):
            AuditFile(path, 0, 0).open()
    first = AuditFile(tmp_path / "audit.jsonl", 0, 0)
    first.open()
    with pytest.raises(OSError, match="another process"):
        AuditFile(tmp_path / "audit.jsonl", 0, 0).open()


def test_each_worker_has_a_file_of_its_own() -> None:
    config = AuditConfig(file=Path("/var/log/audit.jsonl"))
    assert [str(file_of(config, worker)) for worker in (None, 1, 12)] == [
        "/var/log/audit.jsonl",
        "/var/log/audit.1.jsonl",
        "/var/log/audit.12.jsonl",
    ]


# ---------------------------------------------------------------------------------------------------------- the router


async def test_who_came_is_in_the_file_when_the_router_has_ended(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with (
        Router(id="A", audit=AuditConfig(file=file), listeners=[LOOPBACK]) as router,
        connect(router.listeners[0].url, id="shop") as client,
        client.receiver("q"),
    ):
        pass
    opened, closed = (each for each in lines(file) if each.get("container") == "shop")
    assert (opened["event"], closed["event"]) == ("connection opened", "connection closed")
    assert (opened["router"], opened["peer"], opened["listener"]) == ("A", "127.0.0.1", "amqp")


async def test_peers_that_are_refused_before_they_have_a_name_are_noted_by_their_host(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    narrow = ListenerConfig(url=LOOPBACK, name="narrow", connections=1)
    mesh = ListenerConfig(url=LOOPBACK, name="mesh", role="mesh")
    async with Router(
        id="A", audit=AuditConfig(file=file), mesh=MeshConfig(insecure=True), listeners=[narrow, mesh]
    ) as router:
        first = await scripted_stream.connect(router, 0)
        await first.open()
        await (await scripted_stream.connect(router, 0)).expect_end()
        await first.close()
        client = await scripted_stream.connect(router, 1)
        await client.write(AMQP, Open(container_id="client"), begun(), attached(Role.SENDER, "q"))
        assert await client.expect_header() == AMQP
        while not isinstance((await client.next_frame() or (None,))[0], Close):
            pass
        await client.write(Close())
        await client.stream.aclose()
    (refused,) = lines(file, "connection refused")
    assert (refused["peer"], refused["listener"]) == ("127.0.0.1", "narrow")
    (refused,) = lines(file, "neighbour refused")
    assert (refused["container"], refused["listener"]) == ("client", "mesh")


async def test_a_router_does_not_start_without_its_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"audit\.file"):
        async with Router(id="A", audit=AuditConfig(file=tmp_path / "none" / "audit.jsonl")):
            raise AssertionError("it has started")


async def test_a_worker_says_which_one_it_is(tmp_path: Path) -> None:
    worker = WorkerConfig(name="A", number=2, count=1, folder=tmp_path)
    config = RouterConfig(
        id="A.2",
        mesh=MeshConfig(insecure=True),
        worker=worker,
        audit=AuditConfig(file=tmp_path / "audit.jsonl"),
        policy=PolicyConfig(file=tmp_path / "policy.toml"),
    )
    (tmp_path / "policy.toml").write_text("")
    async with Router(config):
        pass
    (line,) = lines(tmp_path / "audit.2.jsonl", "policy changed")
    assert (line["router"], line["worker"], line["source"]) == ("A", 2, "file")


async def test_users_that_come_and_go_are_noted_and_logins_that_end(tmp_path: Path) -> None:
    users, file = tmp_path / "users.toml", tmp_path / "audit.jsonl"
    for name in ("alice", "bob", "cid"):
        add_user(users, name, "s3cret-Word", 4096)
    listener = ListenerConfig(url=LOOPBACK, sasl=("SCRAM-SHA-256",), users=users)
    async with Router(id="A", audit=AuditConfig(file=file), listeners=[listener]) as router:
        url = router.listeners[0].url
        with pytest.raises(SaslError):
            async with connect(url, user="alice", password="wr0ng-Word"), trio.open_nursery():
                pass
        with pytest.raises(ConnectionClosedError):
            async with (
                connect(url, user="alice", password="s3cret-Word") as client,
                client.receiver("q") as receiver,
            ):
                switch_user(users, "alice", disabled=True)
                remove_user(users, "bob")
                add_user(users, "dan", "s3cret-Word", 4096)
                router.reload()
                await receiver.receive()
        switch_user(users, "alice", disabled=False)
        group_user(users, "cid", ["readers"])
        router.reload()
    told = [(each["event"], each.get("user")) for each in lines(file)]
    assert ("authentication failed", "alice") in told
    assert ("logged in", "alice") in told
    assert [each for each in told if each[0].startswith("user ")] == [
        ("user added", "dan"),
        ("user removed", "bob"),
        ("user disabled", "alice"),
        ("user enabled", "alice"),
        ("user groups changed", "cid"),
    ]
    (ended,) = lines(file, "peer refused")
    assert ended["reason"] == "the user may not log in any more"
    assert b"-Word" not in file.read_bytes()


async def test_a_reload_opens_the_file_again(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with Router(id="A", audit=AuditConfig(file=file), listeners=[LOOPBACK]) as router:
        async with connect(router.listeners[0].url, id="one") as client, client.receiver("q"):
            pass
        with trio.fail_after(30.0):
            while b'"one"' not in file.read_bytes():  # a thread writes it
                await trio.sleep(0.001)
            file.rename(tmp_path / "old")
            router.reload()
            while not file.exists():
                await trio.sleep(0.001)
        async with connect(router.listeners[0].url, id="two") as client, client.receiver("q"):
            pass
    assert {each["container"] for each in lines(file) if "container" in each} >= {"two"}
    assert b'"one"' in (tmp_path / "old").read_bytes()


async def test_changes_by_management_and_refused_ones_are_noted_with_their_senders(tmp_path: Path) -> None:
    file, policy = tmp_path / "audit.jsonl", tmp_path / "policy.toml"
    old = b'version = 1\n[[group]]\nname = "g"\nsend = ["#"]\nreceive = ["#"]\nmay = ["dynamic"]\nmanage = ["read"]\n'
    policy.write_bytes(old)
    door = ListenerConfig(url=LOOPBACK, name="door", role="mesh", cost=4)
    near = ListenerConfig(url=LOOPBACK, name="in", manage=True)
    other = ListenerConfig(url=LOOPBACK, name="other")
    async with Router(
        id="A",
        audit=AuditConfig(file=file),
        mesh=MeshConfig(insecure=True),
        policy=PolicyConfig(file=policy, push=True),
        listeners=[door, near, other],
    ) as router:
        change = Message({"cost": 9}, application_properties={"operation": "UPDATE", "identity": "listener/door"})
        async with connect(router.listeners[1].url, id="root") as client, client.requester(ADDRESS) as management:
            assert (await management.request(change)).application_properties["statusCode"] == 200
            for data in (old.replace(b"version = 1", b"version = 2"), b"version = 3\n[[group"):
                for piece in pieces(data):
                    await management.request(piece)
        async with connect(router.listeners[2].url, id="eve") as client, client.requester(ADDRESS) as management:
            assert (await management.request(change)).application_properties["statusCode"] == 403
            for piece in pieces(old):
                assert (await management.request(piece)).application_properties["statusCode"] == 403
    (cost,) = lines(file, "cost changed")
    told = {name: cost[name] for name in ("of", "from", "to", "source", "container", "listener", "peer")}
    assert told == {
        "of": "listener/door",
        "from": 4,
        "to": 9,
        "source": "management",
        "container": "root",
        "listener": "in",
        "peer": "127.0.0.1",
    }
    first, second = lines(file, "policy changed")
    assert (first["source"], first["version"]) == ("file", 1)
    assert (second["source"], second["container"], second["from"], second["version"]) == ("management", "root", 1, 2)
    assert second["digest"] != second["from_digest"] == first["digest"]
    (refused,) = lines(file, "policy refused")
    assert (refused["source"], refused["container"]) == ("management", "root")
    requests = lines(file, "request refused")
    assert {(each["operation"], each["container"]) for each in requests} == {("UPDATE", "eve"), ("PUSH", "eve")}


# ------------------------------------------------------------------------------------------------- a disk that fails


async def test_a_full_disk_costs_lines_and_no_message_and_both_logs_say_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "audit.jsonl"
    is_full, append = True, AuditFile.append

    def full(self: AuditFile, data: bytes) -> None:
        if is_full:
            raise OSError(28, "No space left on device")
        append(self, data)

    monkeypatch.setattr(AuditFile, "append", full)
    monkeypatch.setattr(audit_writer, "LOOK", 0.01)
    with caplog.at_level(logging.WARNING, "amqpmesh"):
        async with Router(id="A", audit=AuditConfig(file=file, memory=2**16)) as router:
            audit = router._driver.core.context.audit
            assert audit is not None
            for number in range(2_000):
                audit.change("cost changed", of=f"connector/{number}", to=number)
            async with (
                router.receiver("q", credit=1) as receiver,
                router.sender("q") as sender,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(sender.send, "hello")
                (await receiver.receive()).accept()
            await until(lambda: "audit lost" in [event_of(each) for each in caplog.records])
            lost = audit.lost
            is_full = False
            router.reload()  # the thread tries again at once
            with trio.fail_after(30.0):
                while not file.read_bytes():
                    await trio.sleep(0.001)
            audit.change("cost changed", of="connector/last", to=1)
    written = lines(file, "cost changed")
    assert len(written) + sum(each.get("lost", 0) for each in lines(file)) >= 2_001
    assert next(each["lost"] for each in lines(file) if "lost" in each) == lost
    (told, *_) = (fields_of(each) for each in caplog.records if event_of(each) == "audit lost")
    assert "No space left on device" in str(told["reason"])


async def test_a_disk_that_is_full_at_the_start_does_not_keep_the_router_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full, begin = [True], AuditFile.open

    def full(self: AuditFile) -> None:
        if is_full:
            is_full.clear()
            raise OSError(28, "No space left on device")
        begin(self)

    monkeypatch.setattr(AuditFile, "open", full)
    file = tmp_path / "audit.jsonl"
    async with Router(id="A", audit=AuditConfig(file=file), listeners=[LOOPBACK]) as router:
        assert not file.exists()
        async with connect(router.listeners[0].url, id="shop") as client, client.receiver("q"):
            pass
    assert "shop" in [each.get("container") for each in lines(file)]


async def test_a_disk_that_hangs_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, write = threading.Event(), os.write

    def hang(descriptor: int, data: bytes) -> int:
        if threading.current_thread().name.startswith("audit log"):
            assert goes_on.wait(60.0)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", hang)
    file = tmp_path / "audit.jsonl"
    async with Router(id="A", audit=AuditConfig(file=file), listeners=[LOOPBACK]) as router:
        async with connect(router.listeners[0].url, id="shop") as client, client.receiver("q"):
            pass
        assert file.read_bytes() == b""
        goes_on.set()
    assert [each["event"] for each in lines(file) if each.get("container") == "shop"] == [
        "connection opened",
        "connection closed",
    ]


async def test_a_disk_that_hangs_for_good_does_not_keep_the_router_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(AuditFile, "append", lambda self, data: goes_on.wait(60.0))
    monkeypatch.setattr(audit_writer, "END_TIME", 0.01)
    with caplog.at_level(logging.WARNING, "amqpmesh"):
        async with Router(id="A", audit=AuditConfig(file=tmp_path / "audit.jsonl")) as router:
            audit = router._driver.core.context.audit
            assert audit is not None
            audit.change("cost changed", of="connector/x")
    (told,) = (fields_of(each) for each in caplog.records if event_of(each) == "audit lost")
    assert told["reason"] == "the disk takes too long"
    goes_on.set()


def test_a_line_larger_than_the_memory_is_refused_and_a_smaller_one_is_not(tmp_path: Path) -> None:
    writer = AuditWriter(RouterConfig(id="A", audit=AuditConfig(file=tmp_path / "a", memory=2**16)))
    assert not writer.offer(bytes(2**16 + 1))
    assert writer.offer(bytes(2**16))
    assert not writer.offer(b"x")
