"""Snapshots of a running router, taken in turns with other tasks, and shared by all that answer from them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import trio

from amqpmesh.router.io.environment import environment, stopwatch_seconds, work_seconds
from amqpmesh.router.management.runtime_marks import with_settings
from amqpmesh.router.management.snapshot import take_snapshot
from amqpmesh.router.management.user_list import listed_users
from amqpmesh.router.management.views import Numbers, TenantViews
from amqpmesh.router.runtime.connector_ends import explained

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from amqpmesh.router.core import Core
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.management.runtime_marks import Marks
    from amqpmesh.router.runtime.connectors import Connector
    from amqpmesh.router.runtime.listeners import Listener
    from amqpmesh.router.statistics.configured import PolicyStatistics
    from amqpmesh.router.statistics.router_statistics import Statistics

T = TypeVar("T")

SNAPSHOT_TIME: Final = 0.2
"""Seconds for which one snapshot of the router answers all requests."""

PAGES_TIME: Final = 30.0
"""Seconds for which a snapshot answers requests for further pages: all pages show one moment, and cost one snapshot."""

TURN_TIME: Final = 0.002
"""Seconds of work before other tasks get a turn. A delivery needs several turns to pass the router, and before each of
them it may wait as long as this.
"""

PAUSE: Final = 3.0
"""Seconds without work for each second of work: endless requests get a quarter of the thread's time at most."""


def survey(
    core: Core,
    listeners: Sequence[Listener],
    connectors: Sequence[Connector],
    policies: tuple[PolicyStatistics, ...],
    marks: Marks,
) -> Steps[Statistics]:
    """Take a snapshot of a router with its listeners, its connectors, and the settings in force, in steps."""
    told = yield from take_snapshot(core)
    opening = tuple(each.statistics(core.cost_of(each.config)) for each in connectors)
    whole = replace(
        told,
        listeners=tuple(each.statistics(core.cost_of(each.config)) for each in listeners),
        connectors=opening,
        policies=policies,
        users=listed_users(core.context.config.listeners, core.context.users_of),
        container_links=tuple(explained(each, opening) for each in told.container_links),
    )
    return (yield from with_settings(whole, core.context.config, marks, core.cost_of))


class Snapshot(NamedTuple):
    """The state of a router at one moment."""

    at: float
    """Trio's time."""
    statistics: Statistics
    parts: TenantViews
    work: float
    """Seconds of work that it has taken."""


class Work:
    """The processor time that steps take, without the pauses in between."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, steps: Steps[T]) -> Steps[T]:
        """Do the same steps, and add their time."""
        while True:
            began = work_seconds()
            try:
                next(steps)
            except StopIteration as end:
                self.seconds += work_seconds() - began
                result: T = end.value
                return result
            self.seconds += work_seconds() - began
            yield


class Snapshots:
    """The latest snapshot of a router, and the turns in which it is taken and read."""

    def __init__(self, survey: Callable[[], Steps[Statistics]]) -> None:
        """Args: survey: takes a snapshot of the router."""
        self._survey = survey
        self._latest: Snapshot | None = None
        self._taking = trio.Lock()
        self._worked = 0.0
        self._start: Callable[[Callable[[], Awaitable[None]]], object] | None = None
        self._ended = False
        #: Cancels the task that drops an old snapshot; at the end the router would wait for that task.
        self._forget_scope: trio.CancelScope | None = None

    def begin(self, start: Callable[[Callable[[], Awaitable[None]]], object]) -> None:
        """Note that the router has started. Args: start: runs a task that ends with the router."""
        self._start = start
        self._numbers = Numbers(bytes.fromhex(environment().token(16)))

    def end(self) -> None:
        """Stop; the router is about to end."""
        self._ended = True
        if self._forget_scope is not None:
            self._forget_scope.cancel()

    def drop(self) -> None:
        """Forget the latest snapshot: the router has changed."""
        self._latest = None

    async def take(self, age: float = SNAPSHOT_TIME) -> Snapshot:
        """Return the latest snapshot if it is less than `age` seconds old, else a new one."""
        async with self._taking:
            if self._latest is not None and trio.current_time() - self._latest.at < age:
                return self._latest
            work = Work()
            found = await self.in_turns(work.timed(self._survey()))
            if self._forget_scope is None and not self._ended:
                assert self._start is not None
                self._forget_scope = trio.CancelScope()
                self._start(self._forget)
            self._latest = Snapshot(trio.current_time(), found, TenantViews(found, self._numbers), work.seconds)
            return self._latest

    async def in_turns(self, steps: Steps[T]) -> T:
        """Do all steps and return the result, with pauses for other tasks in between and before the next work."""
        began = stopwatch_seconds() - self._worked
        while True:
            try:
                next(steps)
            except StopIteration as end:
                self._worked = stopwatch_seconds() - began
                result: T = end.value
                return result
            worked = stopwatch_seconds() - began
            if worked > TURN_TIME:
                await trio.sleep(worked * PAUSE)
                began = stopwatch_seconds()

    async def _forget(self) -> None:
        """Drop the snapshot once no answer needs it: it holds names of links that are gone."""
        assert self._forget_scope is not None
        with self._forget_scope:
            while self._latest is not None:
                until = self._latest.at + PAGES_TIME
                if trio.current_time() < until:
                    await trio.sleep_until(until)
                else:
                    self._latest = None
        self._forget_scope = None
