"""Work in steps, so that long work leaves turns to others."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""A piece of work: each `next` does one step, and the return value of the generator is the result."""

#: Steps that one turn does at once: most departures need fewer. A step is a link, or some ten deliveries.
AT_ONCE: Final = 20

#: Legs of deliveries with several receivers that one turn looks at before other work has its turn.
LEGS: Final = 1000


def at_once(steps: Steps[T]) -> T:
    """Do all steps without a pause. Returns: the result."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: T = end.value
        return result


class Chores:
    """Pieces of work that take turns: none waits until another is done."""

    def __init__(self) -> None:
        self._left: deque[Steps[None]] = deque()
        self._at_once = AT_ONCE

    def __bool__(self) -> bool:
        """Tell whether work is left."""
        return bool(self._left)

    def begin_turn(self) -> None:
        """Allow `AT_ONCE` steps to this turn."""
        self._at_once = AT_ONCE

    def do(self, steps: Steps[None]) -> None:
        """Do the steps that this turn still allows at once, and leave the rest to `step`."""
        while self._at_once > 0:
            self._at_once -= 1
            if _is_done(steps):
                return
        self._left.append(steps)

    def put_off(self, steps: Steps[None]) -> None:
        """Leave a whole piece of work to `step`."""
        self._left.append(steps)

    def step(self) -> None:
        """Do one step of the piece that has waited longest. Raises: the error of that step; the piece is dropped."""
        steps = self._left.popleft()
        if not _is_done(steps):
            self._left.append(steps)


def _is_done(steps: Steps[None]) -> bool:
    try:
        next(steps)
    except StopIteration:
        return True
    return False
