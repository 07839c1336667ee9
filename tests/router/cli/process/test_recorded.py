"""Segments of a daemon: readable after any end, and one set for each worker."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from amqpmesh import connect
from amqpmesh.router.telemetry.schema import Flag, Outcome
from amqpmesh.router.telemetry.segments import Damage, Name, read
from tests.support.data.recordings import blocks, hops_in
from tests.support.processes.daemon import PATIENCE, Daemon

CONFIG = """
[router]
id = "A"
drain = 1.0
[telemetry]
directory = "events" # beside this file
flush = 0.05
[[listener]]
url = "amqp://127.0.0.1:0"
"""

Start = Callable[..., tuple[Daemon, str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a daemon with that configuration. Returns: it, and its URL."""
    (tmp_path / "config").mkdir()
    config = tmp_path / "config" / "a.toml"
    config.write_text(CONFIG)
    with ExitStack() as stack:

        def started(*arguments: str) -> tuple[Daemon, str]:
            daemon = Daemon(str(config), *arguments, cwd=tmp_path)
            stack.callback(daemon.close)
            return daemon, f"amqp://127.0.0.1:{daemon.port()}"

        yield started


@pytest.fixture
def events(tmp_path: Path) -> Path:
    return tmp_path / "config" / "events"


async def exchange(url: str, count: int) -> None:
    """So many messages, each of which is accepted."""
    async with (
        connect(url) as connection,
        connection.receiver("orders", credit=100) as receiver,
        connection.sender("orders") as sender,
        trio.open_nursery() as nursery,
    ):

        async def take() -> None:
            for _ in range(count):
                (await anext(aiter(receiver))).accept()

        nursery.start_soon(take)
        for number in range(count):
            await sender.send(f"message {number}")


def hops_of(file: Path) -> list[dict[str, int]]:
    return hops_in(read(file.read_bytes(), Damage()))


def test_a_daemon_that_is_killed_leaves_what_it_has_recorded_and_its_next_life_closes_it(
    start: Start, events: Path
) -> None:
    daemon, url = start()
    trio.run(exchange, url, 20)
    deadline = time.monotonic() + PATIENCE
    while len([hop for file in events.glob("*.open") for hop in hops_of(file)]) < 20:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    daemon.send(signal.SIGKILL)
    daemon.process.wait(PATIENCE)
    (left,) = events.iterdir()
    assert left.suffix == ".open"
    again, url = start()
    assert list(events.iterdir()) == [left.with_suffix(".events")]
    assert [Outcome(each["outcome"]) for each in hops_of(left.with_suffix(".events"))] == [Outcome.ACCEPTED] * 20
    trio.run(exchange, url, 3)
    again.send(signal.SIGTERM)
    assert again.ended() == 0
    assert len(hops_in(blocks(events))) == 23


def test_each_worker_records_its_own_part_and_keys_are_told_apart(start: Start, events: Path) -> None:
    daemon, url = start("--workers", "2")
    daemon.said("neighbour up")
    trio.run(exchange, url, 20)
    daemon.send(signal.SIGTERM)
    assert daemon.ended() == 0
    names = [Name.of(each.name) for each in events.iterdir()]
    assert all(each is not None and each.router in ("A.1", "A.2") for each in names)
    began = [each for each in hops_in(blocks(events)) if each["flags"] & Flag.BEGAN]
    assert len({(each["ingress"], each["epoch"], each["counter"]) for each in began}) == len(began) == 20


def test_a_recording_comes_and_goes_in_all_workers_while_they_run(start: Start, events: Path) -> None:
    config = events.parent / "a.toml"
    without = CONFIG.replace('[telemetry]\ndirectory = "events" # beside this file\nflush = 0.05\n', "")
    config.write_text(without)
    daemon, url = start("--workers", "2")
    daemon.said("neighbour up")

    def apply(text: str, *keys: str) -> None:
        config.write_text(text)
        daemon.send(signal.SIGHUP)
        pattern = r"(configuration changed|restart required) worker=(A\.\d) key=(\S+)"
        said = {daemon.said(pattern).groups() for _ in range(2 * len(keys))}
        assert said == {("configuration changed", worker, key) for worker in ("A.1", "A.2") for key in keys}

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    apply(f"{CONFIG}[metrics]\nseries = 700\n[tracing]\ntraces = 7\n", "telemetry", "metrics.series", "tracing.traces")
    wait(lambda: {Name.of(each.name).router for each in events.glob("*.open")} >= {"A.1", "A.2"})
    for _ in range(2):
        trio.run(exchange, url, 20)
    apply(without, "telemetry", "metrics.series", "tracing.traces")
    wait(lambda: not list(events.glob("*.open")))
    began = [each for each in hops_in(blocks(events)) if each["flags"] & Flag.BEGAN]
    assert 20 <= len(began) <= 40
    daemon.send(signal.SIGTERM)
    assert daemon.ended() == 0
