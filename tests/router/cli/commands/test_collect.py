"""`amqpmesh collect`: segments that routers publish, as files for the analysis."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import trio

from amqpmesh.router.cli.commands import collect
from amqpmesh.router.config.file import TelemetryConfig
from amqpmesh.router.telemetry.schema import VERSION, Kind
from amqpmesh.router.telemetry.segments import Name, block, maps
from tests.support.data.recordings import blocks, hops_in
from tests.support.processes.router_thread import Command, Serve, Served


@pytest.fixture
def recorded(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Start a router that publishes what it records of messages to an address, which pass until the test ends."""
    served = serve(telemetry=TelemetryConfig(directory=tmp_path / "of router", publish=True, flush=0.02))
    monkeypatch.setenv("AMQPMESH_URL", served.url)
    served.receive("q")

    async def send(*, task_status: trio.TaskStatus[None]) -> None:
        async with served.router.sender("q") as sender:
            task_status.started()
            while True:
                await sender.send(b"a message")
                await trio.sleep(0.005)

    served.begin(send)
    return served


def test_segments_become_files_that_the_analysis_reads(recorded: Served, tmp_path: Path, command: Command) -> None:
    here = tmp_path / "a" / "b"
    said = command("collect", str(here), "--count", "2", "--json")
    found = json.loads(said.out)
    assert (said.status, found["segments"], found["routers"]) == (0, 2, ["A"])
    files = sorted(here.iterdir())
    assert sum(file.stat().st_size for file in files) == found["octets"]
    assert [Name.of(file.name) is not None and file.suffix for file in files] == [".events"] * 2
    assert hops_in(blocks(here))


def test_what_is_too_old_is_removed_and_what_is_not_a_segment_stays(
    recorded: Served, tmp_path: Path, command: Command
) -> None:
    old, note = tmp_path / Name("B", 10**12, 1).file(), tmp_path / "note.txt"
    for each in (old, note):
        each.write_text("old")
        os.utime(each, (0, 0))
    assert command("collect", str(tmp_path), "--count", "1", "--keep", "1h").status == 0
    assert not old.exists()
    assert note.exists()


def test_a_segment_that_is_there_is_not_replaced(recorded: Served, tmp_path: Path, command: Command) -> None:
    there = tmp_path / "there"
    assert command("collect", str(there), "--count", "1").status == 0
    (name,) = [Name.of(file.name) for file in there.iterdir()]
    assert name is not None
    for number in range(name.segment, name.segment + 1_000):  # what comes next is among these
        (there / Name(name.router, name.epoch, number).file()).write_text("of a router")
    said = command("collect", str(there), "--count", "1")
    assert said.status != 0
    assert "needs its own directory" in said.err
    assert {file.read_text() for file in there.iterdir()} == {"of a router"}


def segment(**told: object) -> bytes:
    record = {"version": VERSION, "router": "B", "epoch": 10**12, "segment": 1, "time": 0, "sample": 0, **told}
    body = maps([record])
    return block(Kind.SEGMENT, 0, 1, body) + body


@pytest.mark.parametrize(
    "body",
    [b"", b"x" * 100, "text", segment(router=7), segment(router=""), segment(epoch=-1), segment(segment="1"), maps([])],
    ids=["empty", "noise", "text", "number", "no router", "epoch", "segment", "no block"],
)
def test_what_is_no_segment_has_no_name(body: object) -> None:
    assert collect._name_of(body) is None


def test_the_name_of_a_file_stays_in_the_directory() -> None:
    name = collect._name_of(segment(router="../../etc/passwd"))
    assert name is not None
    assert "/" not in name.file()
