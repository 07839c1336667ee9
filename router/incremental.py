"""Long work in small steps, so that other tasks get turns in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""A piece of work: each `next` does one step, and the return value of the generator is the result."""

#: Steps that one turn does at once; the loss of most links needs fewer. A step is a link, or some ten deliveries.
STEPS_A_TURN: Final = 20

#: Legs of multicast deliveries that one turn looks at before other work has its turn.
LEGS_A_TURN: Final = 1000

#: Deliveries that have waited, and that one turn sends before other work has its turn: some ten milliseconds of work.
SENT_A_TURN: Final = 250


def run_to_end(steps: Steps[T]) -> T:
    """Do all steps without a pause. Returns: the result."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: T = end.value
        return result


class Chores:
    """Pieces of work that take turns: the oldest piece does one step at a time, and no piece waits for the end of
    another.
    """

    def __init__(self) -> None:
        #: The pieces that are left.
        self.left: deque[Steps[None]] = deque()
        self._at_once = STEPS_A_TURN

    def __bool__(self) -> bool:
        """Return True if work is left."""
        return bool(self.left)

    def begin_turn(self) -> None:
        """Allow `STEPS_A_TURN` steps in this turn."""
        self._at_once = STEPS_A_TURN

    def do(self, steps: Steps[None]) -> None:
        """Do the steps that this turn still allows, and leave the rest to `step`."""
        while self._at_once > 0:
            self._at_once -= 1
            if _is_done(steps):
                return
        self.left.append(steps)

    def put_off(self, steps: Steps[None]) -> None:
        """Leave all steps of a piece of work to `step`."""
        self.left.append(steps)

    def step(self) -> None:
        """Do one step of the piece that has waited longest. Raises: the error of that step; the piece is dropped."""
        steps = self.left.popleft()
        if not _is_done(steps):
            self.left.append(steps)


def _is_done(steps: Steps[None]) -> bool:
    try:
        next(steps)
    except StopIteration:
        return True
    return False
