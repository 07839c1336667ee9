"""A wait for sockets beside Trio's own: it ends as soon as Trio has something to do."""

from __future__ import annotations

import os
import select
from contextlib import contextmanager
from threading import Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from amqpmesh.router.io.trio_run import WaitBesideTrio, wait_beside_trio

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="this system has no epoll")


@contextmanager
def bell(*, rung: bool) -> Iterator[int]:
    """Yield a descriptor that is readable if it has rung."""
    descriptor = os.eventfd(int(rung), os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def test_a_wait_ends_when_the_descriptor_is_readable() -> None:
    with bell(rung=True) as descriptor:
        assert WaitBesideTrio(descriptor).wait()


async def test_there_is_no_wait_while_a_task_can_go_on() -> None:
    goes_on = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(goes_on.wait)
        await trio.testing.wait_all_tasks_blocked()
        with bell(rung=True) as descriptor:
            waiting = WaitBesideTrio(descriptor)
            assert waiting.wait()
            goes_on.set()
            assert not waiting.wait()


async def test_a_task_is_not_alone_while_another_is_to_run_in_the_same_pass() -> None:
    found = []

    async def look(waiting: WaitBesideTrio) -> None:
        found.append(waiting.is_alone)

    with bell(rung=False) as descriptor:
        waiting = WaitBesideTrio(descriptor)
        assert waiting.is_alone
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(look, waiting)
        assert found == [False, False, True]


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.01], ids=["past", "now", "soon"])
async def test_a_wait_ends_at_the_next_deadline_of_a_task(seconds: float) -> None:
    with bell(rung=False) as descriptor, trio.CancelScope() as scope:
        waiting = WaitBesideTrio(descriptor)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.testing.wait_all_tasks_blocked()
            scope.deadline = trio.current_time() + seconds
            assert not waiting.wait()
    assert scope.cancelled_caught


async def test_a_wait_ends_when_a_thread_calls_trio() -> None:
    token, called = trio.lowlevel.current_trio_token(), trio.Event()
    with bell(rung=False) as descriptor:
        waiting = WaitBesideTrio(descriptor)
        thread = Thread(target=token.run_sync_soon, args=(called.set,))
        thread.start()
        assert not waiting.wait()
        thread.join()
    with trio.fail_after(60):
        await called.wait()


async def test_a_wait_ends_when_a_descriptor_that_a_task_waits_for_is_readable() -> None:
    with bell(rung=False) as descriptor, bell(rung=False) as other:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.wait_readable, other)
            await trio.testing.wait_all_tasks_blocked()
            os.eventfd_write(other, 1)
            assert not WaitBesideTrio(descriptor).wait()


async def test_a_trio_with_other_internals_permits_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with bell(rung=True) as descriptor, monkeypatch.context() as patch:
        patch.setattr("trio._core._run.GLOBAL_RUN_CONTEXT", SimpleNamespace(runner=SimpleNamespace(runq=[])))
        assert wait_beside_trio(descriptor) is None
    with bell(rung=True) as descriptor:
        assert wait_beside_trio(descriptor) is not None
