"""A wait for sockets beside Trio's own, which ends as soon as Trio has something to do.

It needs some things that Trio shows nowhere: the tasks that can go on, those of them that are to run in this pass, the
next deadline, and the descriptor by which Trio waits for the system. (Trio's statistics tell some of it, at half the
cost of a pass through Trio.) If a version of Trio keeps them elsewhere, there is no such wait.
"""

from __future__ import annotations

import math
import select
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds of a wait at most, as of Trio's own.
LONGEST: Final = 24 * 60 * 60.0

#: Of more tasks, none is looked at: that would take longer than a pass through Trio.
MOST_TASKS: Final = 500


class WaitBesideTrio:
    """Waits for one descriptor, in a run of Trio in which nothing else may need the thread."""

    def __init__(self, descriptor: int) -> None:
        """Args: descriptor: is readable when a wait is to end.

        Raises: AttributeError, TypeError: this version of Trio keeps them elsewhere.
        """
        runner: Any = trio._core._run.GLOBAL_RUN_CONTEXT.runner
        runnable = runner.runq
        if not isinstance(runnable, deque):
            raise TypeError("Trio's queue of tasks is another one")
        self._runnable = runnable
        self._tasks: set[Any] = runner.tasks
        self._goes_on(trio.lowlevel.current_task())
        self._next_deadline: Callable[[], float] = runner.deadlines.next_deadline
        self._seconds_until: Callable[[float], float] = runner.clock.deadline_to_sleep_time
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._poll.register(runner.io_manager._epoll.fileno(), select.POLLIN)

    @property
    def is_alone(self) -> bool:
        """True if no other task is to run in this pass of Trio: then none is until this one waits by Trio again.

        Trio takes all tasks that can go on out of its queue at once, and then runs one after the other.
        """
        return len(self._tasks) <= MOST_TASKS and not any(map(self._goes_on, self._tasks))

    @staticmethod
    def _goes_on(task: Any) -> bool:
        return task._next_send_fn is not None  # what it is to be gone on with

    def wait(self) -> bool:
        """Wait until the descriptor is readable, or Trio has something to do. It must be alone.

        Returns: False: Trio has something to do, or will have soon.
        """
        if self._runnable:
            return False
        seconds = min(self._seconds_until(self._next_deadline()), LONGEST)
        if seconds <= 0:
            return False
        ready = self._poll.poll(math.ceil(seconds * 1000))
        return len(ready) == 1 and ready[0][0] == self._descriptor


def wait_beside_trio(descriptor: int) -> WaitBesideTrio | None:
    """Return such a wait; None: this version of Trio permits none. Args: as of the class."""
    try:
        return WaitBesideTrio(descriptor)
    except (AttributeError, TypeError):
        return None
