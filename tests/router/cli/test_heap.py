"""What connections had is given back when most of them have left."""

from __future__ import annotations

import platform
from weakref import ref

import pytest
import trio
from trio.testing import MockClock

from amqpmesh.router.cli import heap


class EnoughError(Exception):
    """All counts have been asked for."""


class Knot:
    """Something that only a search for garbage finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize(
    ("counts", "given_back"),
    [
        ([(0, 0), (300, 0), (300, 0), (300, 0)], []),
        ([(0, 0), (300, 0), (10, 290), (10, 290), (10, 290)], [3.0]),
        ([(0, 0), (300, 0), (200, 100), (10, 290), (10, 290)], [4.0]),  # not while they still leave
        ([(0, 0), (300, 0), (190, 110), (190, 110)], []),  # more are there than have left
        ([(0, 0), (90, 0), (0, 90), (0, 90)], []),  # too few
        ([(0, 0), (0, 300), (0, 300), (0, 300), (0, 310), (0, 310), (0, 500), (0, 500)], [2.0, 7.0]),
        ([(0, 400), (0, 400), (0, 400)], []),  # they had left before
    ],
)
async def test_it_is_looked_for_when_more_have_left_than_are_there(
    counts: list[tuple[int, int]],
    given_back: list[float],
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done, began = list[float](), trio.current_time()
    monkeypatch.setattr(heap, "trim", lambda: done.append(trio.current_time() - began))
    left = iter(counts)

    def connections() -> tuple[int, int]:
        for count in left:
            return count
        raise EnoughError

    knot = Knot()
    gone = ref(knot)
    del knot
    with pytest.raises(EnoughError):
        await heap.give_back(connections)
    assert done == [pytest.approx(each) for each in given_back]
    assert (gone() is None) >= bool(given_back)


def test_the_library_of_this_system_is_told() -> None:
    assert heap.trim() == (platform.libc_ver()[0] == "glibc")
