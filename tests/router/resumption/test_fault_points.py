"""Faults at each frame of a story, and in the middle of it: nothing is processed twice, nothing is lost unheard."""

from __future__ import annotations

import os
from itertools import product

import pytest

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from tests.support.worlds.faulty_stories import Story
from tests.support.worlds.raw_lines import Back, Fault, Kind

#: Of the 5,248 fault points with one router, and the 7,216 with two, each n-th is tried at once. `make slow` tries all
#: with one router, and half of those with two: see `_is_of_half`.
ONE_ROUTER = 17
TWO_ROUTERS = 199

#: The half that `make slow` tries, "0" or "1"; both together are all.
HALF = int(os.environ.get("AMQPMESH_FAULTS_HALF", "0"))


def try_all(rcv: ReceiverSettleMode, routers: int, *, step: int = 1, half: int | None = None, lasting: bool) -> None:
    """Try each `step`-th fault point. How the sender resumes differs from frame to frame, within the standard.

    Args: half: try those of this half alone, 0 or 1.
    """
    frames = []
    for late in (False, True):
        whole = Story(rcv, routers=routers, lasting=lasting, late=late)
        whole.tell()
        whole.check(None)
        frames.append(whole.quiet_at)
    points = [each for each in _points(frames, routers) if half is None or _is_of_half(half, *each)]
    for late, fault in points[::step]:
        story = Story(
            rcv,
            routers=routers,
            lasting=lasting,
            late=late,
            sends_octets=bool(fault.at & 1),
            settles_later=bool(fault.at & 2),
        )
        assert story.tell(fault), fault
        try:
            story.check(fault)
        except AssertionError as error:
            raise AssertionError(f"{fault}, mode {rcv.name}, late: {late}: {error}") from error


def _points(frames: list[int], routers: int) -> list[tuple[bool, Fault]]:
    """Return all fault points.

    Args: frames: of the story whose receiver decides at once, and of that where it is late.
    """
    return [
        (late, Fault(*point))
        for late in (False, True)
        for point in product(range(frames[late] + 1), Kind, (False, True), Back)
        # Where all routers are killed, or there is one, no other one knows more.
        if point[3] is not Back.ELSEWHERE or (routers > 1 and point[1] is not Kind.ROUTER)
    ]


def _is_of_half(half: int, late: bool, fault: Fault) -> bool:
    """Tell whether a fault point is of one of two halves of all.

    Each half has every frame with every kind of fault and every return. Only whether half of the frame arrives, or
    nothing of it, alternates: from frame to frame, from kind to kind, from return to return.
    """
    turn = fault.at + list(Kind).index(fault.kind) + list(Back).index(fault.back) + late
    return (turn + fault.in_the_middle) % 2 == half


RCV = pytest.mark.parametrize("rcv", ReceiverSettleMode)
LASTING = pytest.mark.parametrize("lasting", [False, True], ids=["the receiver starts anew", "the receiver resumes"])


@RCV
@pytest.mark.parametrize(("routers", "step"), [(1, ONE_ROUTER), (2, TWO_ROUTERS)])
@LASTING
def test_a_fault_loses_and_doubles_nothing(rcv: ReceiverSettleMode, routers: int, step: int, lasting: bool) -> None:
    try_all(rcv, routers, step=step, lasting=lasting)


@pytest.mark.slow
@RCV
@pytest.mark.parametrize(("routers", "half"), [(1, None), (2, HALF)])
@LASTING
def test_faults_anywhere_lose_and_double_nothing(
    rcv: ReceiverSettleMode, routers: int, half: int | None, lasting: bool
) -> None:
    try_all(rcv, routers, half=half, lasting=lasting)


def test_both_halves_are_all_and_each_has_every_frame_kind_and_return() -> None:
    points = _points([5, 7], 2)
    halves = [[each for each in points if _is_of_half(half, *each)] for half in (0, 1)]
    assert sorted(map(repr, halves[0] + halves[1])) == sorted(map(repr, points))
    for half in halves:
        assert {(late, fault.at, fault.kind, fault.back) for late, fault in half} == {
            (late, fault.at, fault.kind, fault.back) for late, fault in points
        }
