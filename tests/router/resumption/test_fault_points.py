"""Faults at each frame of a story, and in the middle of it: nothing is processed twice, nothing is lost unheard."""

from __future__ import annotations

from itertools import product

import pytest

from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from tests.support.worlds.faulty_stories import Story
from tests.support.worlds.raw_lines import Back, Fault, Kind

#: Of all fault points with one router, and with two, each n-th is tried at once, and by `make slow`: of 5,248 with one
#: router all, and of the 7,216 with two each 17th.
ONE_ROUTER = 17, 1
TWO_ROUTERS = 199, 17


def try_all(rcv: ReceiverSettleMode, routers: int, step: int, *, lasting: bool) -> None:
    """Try each `step`-th fault point. How the sender resumes differs from frame to frame, within the standard."""
    frames = []
    for late in (False, True):
        whole = Story(rcv, routers=routers, lasting=lasting, late=late)
        whole.tell()
        whole.check(None)
        frames.append(whole.quiet_at)
    for late, fault in _points(frames, routers)[::step]:
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


@pytest.mark.parametrize("rcv", ReceiverSettleMode)
@pytest.mark.parametrize(("routers", "step"), [(1, ONE_ROUTER[0]), (2, TWO_ROUTERS[0])])
@pytest.mark.parametrize("lasting", [False, True], ids=["the receiver starts anew", "the receiver resumes"])
def test_a_fault_loses_and_doubles_nothing(rcv: ReceiverSettleMode, routers: int, step: int, lasting: bool) -> None:
    try_all(rcv, routers, step, lasting=lasting)


@pytest.mark.slow
@pytest.mark.parametrize("rcv", ReceiverSettleMode)
@pytest.mark.parametrize(("routers", "step"), [(1, ONE_ROUTER[1]), (2, TWO_ROUTERS[1])])
@pytest.mark.parametrize("lasting", [False, True], ids=["the receiver starts anew", "the receiver resumes"])
def test_faults_anywhere_lose_and_double_nothing(
    rcv: ReceiverSettleMode, routers: int, step: int, lasting: bool
) -> None:
    try_all(rcv, routers, step, lasting=lasting)
