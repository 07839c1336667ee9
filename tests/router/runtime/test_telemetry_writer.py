"""The telemetry writer: segments that others read, and messages that never wait for it."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from amqpmesh import Receiver, Sender, connect
from amqpmesh.router.config.file import ListenerConfig, TelemetryConfig
from amqpmesh.router.logs.event_log import event_of, fields_of
from amqpmesh.router.runtime import telemetry_writer
from amqpmesh.router.runtime.router import Router
from amqpmesh.router.runtime.segment_files import SegmentFiles
from amqpmesh.router.runtime.telemetry_publisher import TelemetryPublisher
from amqpmesh.router.telemetry.schema import Kind, Outcome
from amqpmesh.router.telemetry.segments import Damage, Name, read
from tests.support.data.recordings import blocks, hops_in

LOOPBACK = "amqp://127.0.0.1:0"
NOW = 1_700_000_000 * 10**9


async def exchange(router: Router, count: int) -> None:
    """So many messages through the router, which are accepted."""
    async with (
        connect(router.listeners[0].url) as connection,
        connection.receiver("orders", credit=100) as receiver,
        connection.sender("orders") as sender,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(take, receiver, count)
        for number in range(count):
            await sender.send(f"message {number}")


async def one(receiver: Receiver, sender: Sender) -> None:
    """One message, which is accepted."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, receiver, 1)
        await sender.send("one")


async def take(receiver: Receiver, count: int) -> None:
    async for delivery in receiver:
        delivery.accept()
        count -= 1
        if not count:
            return


async def test_every_delivery_stands_in_a_closed_segment_when_the_router_has_ended(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    async with Router(id="A", listeners=[LOOPBACK], telemetry=TelemetryConfig(directory=directory)) as router:
        await exchange(router, 50)
        assert not list(directory.glob("*.events"))
        assert [Name.of(each.name).router for each in directory.glob("*.open")] in ([], ["A"])  # type: ignore[union-attr]
    found = blocks(directory)
    assert [Outcome(each["outcome"]) for each in hops_in(found)] == [Outcome.ACCEPTED] * 50
    assert (found[0].kind, found[-1].kind) == (Kind.SEGMENT, Kind.END)
    assert found[-1].records()[0]["hops"] == 50
    (file,) = directory.iterdir()
    assert Name.of(file.name).router == "A"  # type: ignore[union-attr]
    assert router.statistics().is_empty


async def test_the_share_that_is_recorded_changes_while_the_router_runs_in_segments_of_its_own(tmp_path: Path) -> None:
    config = TelemetryConfig(directory=tmp_path / "here")
    async with Router(id="A", listeners=[LOOPBACK], telemetry=config) as router:
        await exchange(router, 20)
        for share, count in ((0.0, 30), (1.0, 10)):
            applied = await router.apply(replace(router.config, telemetry=replace(config, sample=share, flush=0.5)))
            assert "telemetry.sample" in [each.key for each in applied.differences]
            assert not applied.waiting
            await exchange(router, count)
    found = blocks(tmp_path / "here")
    assert [each.records()[0]["sample"] for each in found if each.kind == Kind.SEGMENT] == [2**32, 0, 2**32]
    assert len(hops_in(found)) == 30


async def test_a_recording_comes_moves_and_goes_while_messages_pass(tmp_path: Path) -> None:
    async with (
        Router(id="A", listeners=[LOOPBACK]) as router,
        connect(router.listeners[0].url) as client,
        client.receiver("q", credit=10) as receiver,
        client.sender("q") as sender,
    ):

        async def record(config: TelemetryConfig | None, count: int) -> None:
            """Apply, and pass messages on links that are older than the recording."""
            before = router._observers.telemetry
            applied = await router.apply(replace(router.config, telemetry=config))
            assert applied.differences
            assert not applied.waiting
            with trio.fail_after(10.0):
                while router._observers.telemetry is before or router._observers._following.locked():
                    await trio.sleep(0.01)
            for _ in range(count):
                await one(receiver, sender)

        await one(receiver, sender)
        await record(TelemetryConfig(directory=tmp_path / "a", flush=0.02), 20)
        await record(TelemetryConfig(directory=tmp_path / "b"), 5)
        await record(None, 7)
        assert router._core.context.kernel.recorder is None  # type: ignore[union-attr]
        await record(TelemetryConfig(directory=tmp_path / "b", memory=2**20), 3)
    for directory, count in (("a", 20), ("b", 5 + 3)):
        found = blocks(tmp_path / directory)
        told = {record["number"]: record for each in found if each.kind == Kind.LINK for record in each.records()}
        hops = hops_in(found)
        assert len(hops) == count
        assert {told[hop["incoming"]]["address"] for hop in hops} == {"q"}
        assert {told[hop["outgoing"]]["direction"] for hop in hops} == {"outgoing"}
        assert all(Outcome(hop["outcome"]) is Outcome.ACCEPTED for hop in hops)
        assert not list((tmp_path / directory).glob("*.open"))


async def test_segments_are_closed_in_time_and_each_explains_its_links_and_the_graph(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    config = TelemetryConfig(directory=tmp_path, segment_time=20.0, counts=5.0)
    async with (
        Router(id="A", telemetry=config) as router,
        router.receiver("orders", credit=10) as receiver,
        router.sender("orders") as sender,
    ):
        for _ in range(3):
            await one(receiver, sender)
            await trio.sleep(60.0)
    names = sorted(tmp_path.iterdir())
    assert len(names) >= 3
    assert all(each.suffix == ".events" for each in names)
    with_hops = 0
    for each in names:
        found = list(read(each.read_bytes(), Damage()))
        numbers = {record["number"] for block in found if block.kind == Kind.LINK for record in block.records()}
        hops = hops_in(found)
        assert {hop["incoming"] for hop in hops} <= numbers
        assert {hop["outgoing"] for hop in hops} <= numbers
        with_hops += len(hops)
    assert with_hops == 3


async def test_a_router_that_records_nothing_new_writes_nothing(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with Router(id="A", telemetry=TelemetryConfig(directory=tmp_path, segment_time=1.0)):
        await trio.sleep(10.0)
        while not (before := list(tmp_path.glob("*.events"))):
            await trio.lowlevel.checkpoint()
        await trio.sleep(3600.0)
        assert list(tmp_path.iterdir()) == before


async def until(condition: Callable[[], object]) -> None:
    """Until it is so; the thread that writes is none of Trio's, and comes to it when it comes to it."""
    while not condition():
        await trio.sleep(0.1)
        time.sleep(0)  # its turn


@pytest.mark.parametrize("way", ["never there", "taken away"])
async def test_without_its_directory_a_router_relays_and_records_again_once_there_is_one(
    way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    parent = tmp_path / "parent"
    config = TelemetryConfig(directory=parent / "events", segment_time=5.0)

    def told() -> list[object]:
        return [fields_of(each)["reason"] for each in caplog.records if event_of(each) == "telemetry lost"]

    def hops() -> list[dict[str, int]]:
        files = sorted(config.directory.glob("*.events"))
        return [hop for each in files for hop in hops_in(list(read(each.read_bytes(), Damage())))]

    if way == "never there":
        parent.write_text("")
    async with (
        Router(id="A", telemetry=config) as router,
        router.receiver("orders", credit=10) as receiver,
        router.sender("orders") as sender,
    ):
        if way == "taken away":
            # A late thread opens a segment and closes it in one go.
            await until(lambda: config.directory.exists() and list(config.directory.iterdir()))
            shutil.rmtree(parent)
            parent.write_text("")
        # The thread counts what is lost before it says why.
        while not any(str(parent) in str(reason) for reason in told()):
            await one(receiver, sender)
            await trio.sleep(1.0)
        parent.unlink()
        while not hops():
            await one(receiver, sender)
            await trio.sleep(1.0)


async def test_a_disk_that_fails_is_told_and_messages_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, autojump_clock: object
) -> None:
    def full(file: int, parts: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with caplog.at_level(logging.WARNING):
        async with Router(id="A", telemetry=TelemetryConfig(directory=tmp_path)) as router:
            async with router.receiver("orders", credit=10) as receiver, router.sender("orders") as sender:
                for _ in range(5):
                    await one(receiver, sender)
            await trio.sleep(1.5)
            # The thread that writes is none of Trio's: it comes to it when it comes to it.
            while not router._observers.telemetry._failure:  # type: ignore[union-attr]
                await trio.lowlevel.checkpoint()
            await trio.sleep(telemetry_writer.TOLD + 2.0)
    assert "telemetry lost" in [event_of(record) for record in caplog.records]
    assert list(tmp_path.iterdir()) == []


async def test_a_disk_that_hangs_costs_records_and_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    writev = os.writev

    def hang(file: int, parts: list[bytes]) -> int:
        assert goes_on.wait(60.0)
        return writev(file, parts)

    monkeypatch.setattr(os, "writev", hang)
    monkeypatch.setattr(telemetry_writer, "BLOCK", 1024)  # two of them fill the memory
    count = 5 * telemetry_writer.BLOCK
    config = TelemetryConfig(directory=tmp_path, memory=2**16, flush=0.01)
    async with Router(id="A", telemetry=config) as router:
        async with (
            router.receiver("orders", credit=1000) as receiver,
            router.sender("orders") as sender,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(take, receiver, count)
            for _ in range(count):
                await sender.transfer("one")
        goes_on.set()
    found = blocks(tmp_path)
    hops = hops_in(found)
    lost = found[-1].records()[0]["dropped"]
    assert len(hops) + lost == count
    assert lost >= telemetry_writer.BLOCK
    firsts = [block.first for block in found if block.kind == Kind.HOP]
    assert firsts == sorted(firsts)


async def test_behind_its_end_nothing_more_is_recorded(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with Router(id="A", telemetry=TelemetryConfig(directory=tmp_path)) as router:
        recorded = router._observers.telemetry
        assert recorded is not None
        await recorded.end()
        with trio.fail_after(60.0):
            await recorded.run()
    assert not list(tmp_path.glob("*.open"))


async def test_records_that_find_no_room_leave_a_gap_in_the_numbers_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_writer, "RECORDS", 5)
    publisher = TelemetryPublisher(ListenerConfig(url="amqp://127.0.0.1:0"), "A")
    recorded = telemetry_writer.TelemetryWriter(TelemetryConfig(directory=tmp_path), "A", lambda: NOW / 1e9, publisher)
    async with Router(id="A") as router:
        recorded.begin(router._core)  # type: ignore[arg-type]  # it runs
        recorded.take(Kind.EDGE, [{"time": 1}] * 3)
        recorded.take(Kind.EDGE, [{"time": 2}] * 4)
        recorded._hand_over()
        recorded._filled.set()
        while recorded._written_records < 3:
            await trio.lowlevel.checkpoint()
        recorded.take(Kind.EDGE, [{"time": 3}] * 2)
        await recorded.end()
    found = [(block.first, block.count) for block in blocks(tmp_path) if block.kind == Kind.EDGE]
    assert found == [(0, 3), (7, 2)]


class Files:
    """The segments of one router, without a router."""

    def __init__(self, directory: Path, *, epoch: int = 1_700_000_000_000, **settings: object) -> None:
        config = TelemetryConfig(directory=directory, **settings)  # type: ignore[arg-type]
        self.files = SegmentFiles(config, "A", epoch, 2**32)
        self.files.begin(NOW)

    def write(self, records: int, at: int = NOW) -> None:
        """One segment of so many events, closed."""
        self.files.take(Kind.EVENT, [{"time": at, "happening": "up", "link": "x" * 1000}] * records, at)
        self.files.close(at)


def test_a_restarted_router_closes_the_segments_of_its_former_life(tmp_path: Path) -> None:
    first = Files(tmp_path)
    first.files.take(Kind.EVENT, [{"time": NOW}], NOW)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes() + b"\xa5mq\ntorn")
    other = tmp_path / Name("B", 1_600_000_000_000, 1).file(".open")
    other.write_bytes(b"")
    Files(tmp_path, epoch=1_700_000_000_001)
    assert sorted(each.suffix for each in tmp_path.iterdir()) == [".events", ".open"]
    damage = Damage()
    found = list(read(file.with_suffix(".events").read_bytes(), damage))
    assert [each.kind for each in found] == [Kind.SEGMENT, Kind.EVENT]
    assert (damage.torn, damage.octets) == (True, 8)


def test_the_oldest_segments_are_removed_when_there_is_too_much(tmp_path: Path) -> None:
    files = Files(tmp_path, segment_size=2**16, retain_size=2**17)
    foreign = [tmp_path / "notes.txt", tmp_path / Name("B", 1_600_000_000_000, 1).file()]
    for each in foreign:
        each.write_bytes(b"x" * 2**20)
    for _ in range(10):
        files.write(50)
    kept = sorted(Name.of(each.name).segment for each in tmp_path.glob("A.*"))  # type: ignore[union-attr]
    assert kept == [9, 10]
    assert all(each.exists() for each in foreign)


def test_old_segments_are_removed(tmp_path: Path) -> None:
    files = Files(tmp_path, retain_time=60.0)
    for number in range(3):
        files.write(1, NOW + number * 100 * 10**9)
        for each in tmp_path.iterdir():
            segment = Name.of(each.name).segment  # type: ignore[union-attr]
            os.utime(each, (0, 1_700_000_000 + (segment - 1) * 100))
    files.write(1, NOW + 240 * 10**9)
    assert sorted(Name.of(each.name).segment for each in tmp_path.iterdir()) == [3, 4]  # type: ignore[union-attr]


def test_a_block_that_a_full_disk_cut_off_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(tmp_path).files
    files.take(Kind.EVENT, [{"time": 1}], NOW)
    writev = os.writev

    def part(file: int, parts: list[bytes]) -> int:
        return writev(file, [parts[0][:10]])

    def full(file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as while_full:
        while_full.setattr(os, "writev", part)
        while_full.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            files.take(Kind.EVENT, [{"time": 2}], NOW)
    files.take(Kind.EVENT, [{"time": 3}], NOW)
    files.close(NOW)
    found = [(block.first, block.records()) for block in blocks(tmp_path) if block.kind == Kind.EVENT]
    assert found == [(0, [{"time": 1}]), (2, [{"time": 3}])], "of what is lost a gap tells"


def test_hop_records_that_the_disk_does_not_take_are_counted_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path).files
    files.take(Kind.EVENT, [{"time": 1}], NOW)

    def full(file: int, parts: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as while_full:
        while_full.setattr(os, "writev", full)
        with pytest.raises(OSError, match="No space"):
            files.take_hops(memoryview(bytes(64)), 0, 100, NOW)
    files.close(NOW)
    (end,) = [block.records()[0] for block in blocks(tmp_path) if block.kind == Kind.END]
    assert (end["hops"], end["dropped"]) == (0, 100)


def test_numbers_of_links_that_are_gone_are_explained_no_longer_than_something_can_refer_to_them(
    tmp_path: Path,
) -> None:
    files = Files(tmp_path).files
    files.take(Kind.LINK, [{"number": 1}, {"number": 2}], NOW)
    files.forget([1])
    explained = []
    for _ in range(3):
        files.take(Kind.EVENT, [{"time": NOW}], NOW)
        files.close(NOW)
    for file in sorted(tmp_path.iterdir()):
        found = read(file.read_bytes(), Damage())
        explained.append([each["number"] for block in found if block.kind == Kind.LINK for each in block.records()])
    assert explained == [[1, 2], [1, 2], [2]]


def test_the_number_of_a_link_that_is_told_of_again_is_explained_as_long_again(tmp_path: Path) -> None:
    files = Files(tmp_path).files
    for _ in range(2):
        files.take(Kind.LINK, [{"number": 1}], NOW)
        files.forget([1])
        files.close(NOW)
    for _ in range(2):
        files.take(Kind.EVENT, [{"time": NOW}], NOW)
        files.close(NOW)
    explained = [
        [each["number"] for block in read(file.read_bytes(), Damage()) if block.kind == Kind.LINK
         for each in block.records()]
        for file in sorted(tmp_path.iterdir())
    ]  # fmt: skip
    assert explained == [[1], [1], [1], []]


def test_links_that_come_and_go_while_the_disk_fails_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path).files

    def full(file: int, parts: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as while_full:
        while_full.setattr(os, "writev", full)
        for number in range(1, 100):
            with pytest.raises(OSError, match="No space"):
                files.take(Kind.LINK, [{"number": number}], NOW)
            files.forget([number])
        files.forget([])
    files.take(Kind.LINK, [{"number": 100}], NOW)
    files.close(NOW)
    (explained,) = (block.records() for block in blocks(tmp_path) if block.kind == Kind.LINK)
    assert [each["number"] for each in explained] == [98, 99, 100]


def test_names_as_long_as_peers_like_make_no_block_that_nobody_reads(tmp_path: Path) -> None:
    files = Files(tmp_path, segment_size=2**16).files
    names = [{"number": number, "name": str(number) * 5_000} for number in range(1, 1_200)]
    files.take(Kind.LINK, names[:900], NOW)
    files.take(Kind.LINK, names[900:], NOW)
    files.close(NOW)
    assert [record for block in blocks(tmp_path) if block.kind == Kind.LINK for record in block.records()] == names


def test_what_a_segment_begins_with_does_not_fill_it(tmp_path: Path) -> None:
    files = Files(tmp_path, segment_size=2**16).files
    files.take(Kind.LINK, [{"number": number, "name": "x" * 100} for number in range(1, 2_000)], NOW)
    assert not files.is_due
    files.take(Kind.EVENT, [{"time": NOW, "link": "x" * 100}] * 700, NOW)
    assert files.is_due


async def test_times_are_those_of_the_wall_clock_even_if_the_process_had_to_wait_between_two_looks_at_clocks(
    tmp_path: Path, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = iter([0.25, 0.0] * 3)

    def wall_clock(_: Router) -> float:
        shown = NOW / 1e9 + trio.current_time()
        mock_clock.jump(next(waits, 0.0))
        return shown

    monkeypatch.setattr(Router, "_wall", wall_clock)
    async with (
        Router(id="A", telemetry=TelemetryConfig(directory=tmp_path)) as router,
        router.receiver("orders", credit=10) as receiver,
        router.sender("orders") as sender,
    ):
        await one(receiver, sender)
        now = NOW + round(trio.current_time() * 1e9)
    (hop,) = hops_in(blocks(tmp_path))
    assert abs(hop["time"] - now) < 1000
