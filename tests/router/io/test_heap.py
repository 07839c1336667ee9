"""What connections had is given back when most of them have left."""

from __future__ import annotations

import platform
from weakref import ref

import pytest
import trio
from trio.testing import MockClock

from amqpmesh.router.config import ListenerConfig
from amqpmesh.router.io import heap
from amqpmesh.router.io.listeners import Listener


class Knot:
    """Something that only a search for garbage finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize(
    ("counts", "given_back"),
    [
        ([300, 300, 300, 300], []),
        ([300, 10, 10, 10], [3]),
        ([300, 200, 10, 10, 10], [4]),  # not while they still leave
        ([300, 190, 110, 110], [3]),  # while few leave
        ([300, 160, 160, 160], []),  # more are there than have left
        ([90, 0, 0, 0], []),  # too few
        ([300, 0, 0, 500, 0, 0, 0], [3, 6]),
        ([300, 150, 149, 148, 147], [3]),  # some always leave
        ([10, 9, 10, 9, 10, 9] * 100, []),  # and come
    ],
)
async def test_it_is_looked_for_when_more_have_left_than_are_there(
    counts: list[int], given_back: list[int], autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = list[int]()
    monkeypatch.setattr(heap, "trim", lambda: done.append(round(trio.current_time() - began)))
    listener = Listener(ListenerConfig(url="amqp+unix:///nowhere"), [])
    knot = Knot()
    gone = ref(knot)
    del knot
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heap.give_back, [listener])
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        for count in counts:
            listener.connections = count
            listener.most = max(listener.most, count)
            await trio.sleep(1.0)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert done == given_back
    if given_back:
        assert gone() is None


def test_the_library_of_this_system_is_told() -> None:
    assert heap.trim() == (platform.libc_ver()[0] == "glibc")
