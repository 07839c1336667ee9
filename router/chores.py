"""Work that is too much for one turn: done in steps, others in between."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqpmesh.router.incremental import Steps

#: Steps of a turn that are done at once: most partings need fewer. A step is a link, or some ten deliveries.
AT_ONCE: Final = 20

#: Legs of deliveries that several receivers get, which are looked at in a turn before others have theirs.
LEGS: Final = 1000


class Chores:
    """Pieces of such work, in turn: none waits until another is done."""

    def __init__(self) -> None:
        self._left: deque[Steps[None]] = deque()
        self._at_once = AT_ONCE

    def __bool__(self) -> bool:
        """Whether something is left to be done."""
        return bool(self._left)

    def begin_turn(self) -> None:
        """Something else is to be done, and as many steps at once."""
        self._at_once = AT_ONCE

    def do(self, steps: Steps[None]) -> None:
        """Do a piece of work: at once as far as this turn has steps for it, the rest of it with `step`."""
        while self._at_once > 0:
            self._at_once -= 1
            if _is_done(steps):
                return
        self._left.append(steps)

    def put_off(self, steps: Steps[None]) -> None:
        """Do a piece of work with `step`, nothing of it now."""
        self._left.append(steps)

    def step(self) -> None:
        """Do a step of what has waited longest. After a fault in it, which is raised, no more of that is done."""
        steps = self._left.popleft()
        if not _is_done(steps):
            self._left.append(steps)


def _is_done(steps: Steps[None]) -> bool:
    try:
        next(steps)
    except StopIteration:
        return True
    return False
