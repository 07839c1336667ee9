"""The poller's own waits, in a process that has no other purpose than its router."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import pytest
import trio
import trio.testing

from amqpmesh.router.io.environment import IS_ALONE
from amqpmesh.router.io.trio_run import WaitBesideTrio
from amqpmesh.router.runtime import poller
from amqpmesh.router.runtime.poller import MEAN_OF, READABLE, ROUNDS, SPARSE
from tests.support.tasks.stopwatches import measure

if TYPE_CHECKING:
    from amqpmesh.router.runtime.driver import Driver

pytestmark = pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")

SOCKET = 1_000_000
"""The number of a socket that nothing asks the system about."""


class Script:
    """An epoll that reports what a test says. Its descriptor is readable as long as it has something to report."""

    closed = False

    def __init__(self, *reports: bool) -> None:
        """Args: reports: of each look, whether the socket is ready then."""
        self._reports = list(reports)
        self._bell = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.is_done = trio.Event()

    def fileno(self) -> int:
        return self._bell

    def register(self, descriptor: int, events: int) -> None:
        pass

    def poll(self, seconds: float) -> list[tuple[int, int]]:
        assert seconds == 0
        if not self._reports:
            return []
        is_ready = self._reports.pop(0)
        if not self._reports:
            os.eventfd_read(self._bell)
            self.is_done.set()
        return [(SOCKET, READABLE)] if is_ready else []

    def close(self) -> None:
        os.close(self._bell)

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Quiet:
    """A driver that has no output."""

    endpoints = 0

    def settle(self, within: float) -> bool:
        assert within > 0
        return False


class Served:
    """An object that counts how often it is served. Each time a link comes, or only deliveries do."""

    is_heavy = False

    def __init__(self, *, links: int = 1) -> None:
        self.times = 0
        self.links = links
        self.driver = Quiet()

    def serve(self, until: float) -> bool:
        assert until > 0
        self.times += 1
        self.driver.endpoints += self.links
        return False


class Watched:
    """A wait beside Trio that counts how often it was ready."""

    def __init__(self, descriptor: int) -> None:
        self._real = WaitBesideTrio(descriptor)
        self.ready = 0

    @property
    def is_alone(self) -> bool:
        return self._real.is_alone

    def wait(self) -> bool:
        is_ready = self._real.wait()
        self.ready += is_ready
        return is_ready


async def own_waits(script: Script, monkeypatch: pytest.MonkeyPatch, served: Served | None = None) -> int:
    """Let a poller use a script to its end. Returns: its own waits that ended with a ready socket."""
    made: list[Watched] = []

    def watched(descriptor: int) -> Watched:
        made.append(Watched(descriptor))
        return made[-1]

    monkeypatch.setattr(poller, "EPOLL", lambda: script)
    monkeypatch.setattr(poller, "wait_beside_trio", watched)
    async with trio.open_nursery() as nursery:
        served = served or Served()
        polling = poller.Poller(cast("Driver", served.driver), nursery.start_soon)
        polling.add(SOCKET, served, READABLE)
        with trio.fail_after(60):
            await script.is_done.wait()
        polling.end()
    return sum(each.ready for each in made)


def begin(*, alone: bool = True) -> list[float]:
    """Say whether the router is alone in this run, and stop its stopwatch. Returns: the stopwatch's time, to be set."""
    IS_ALONE.set(alone)
    now = [1.0]
    measure(lambda: now[0])
    return now


async def test_it_waits_itself_while_links_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    begin()
    served = Served()
    assert await own_waits(Script(True, False, True, False, True), monkeypatch, served) == 2
    assert served.times == 3


async def test_it_waits_in_trio_while_deliveries_come_often(monkeypatch: pytest.MonkeyPatch) -> None:
    begin()
    assert await own_waits(Script(True, False, True, False, True), monkeypatch, Served(links=0)) == 0


async def test_it_waits_itself_while_deliveries_come_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = begin()
    wait_readable = trio.lowlevel.wait_readable

    async def longer(descriptor: object) -> None:
        ticks[0] += 2 * MEAN_OF * SPARSE  # of the first wait alone: those that follow have no length
        await wait_readable(descriptor)  # type: ignore[arg-type]  # the script, as an epoll

    monkeypatch.setattr(trio.lowlevel, "wait_readable", longer)
    # The mean is large enough after the first wait, and no longer after the second.
    assert await own_waits(Script(True, False, True, False), monkeypatch, Served(links=0)) == 1


async def test_it_waits_in_trio_in_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    begin(alone=False)
    assert await own_waits(Script(True, False, True, False, True), monkeypatch) == 0


async def test_it_waits_in_trio_while_another_task_can_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    begin()
    wakes = trio.Event()

    class Waking(Served):
        def serve(self, until: float) -> bool:
            wakes.set()
            return super().serve(until)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wakes.wait)
        await trio.testing.wait_all_tasks_blocked()
        assert await own_waits(Script(True, False, True), monkeypatch, Waking()) == 0


async def test_other_tasks_have_a_turn_after_some_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    begin()
    turns = 0

    class Turns(trio.abc.Instrument):
        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            nonlocal turns
            turns += "Poller" in task.name

    trio.lowlevel.add_instrument(Turns())
    await own_waits(Script(*[True] * 3 * ROUNDS), monkeypatch)
    assert 3 <= turns <= 3 + ROUNDS
