"""One task that waits for all sockets of a router, and serves those that are ready.

A wake-up of a task costs more than a small message does. Where traffic is sparse, each message would cost one on each
connection that it goes through; here all that are ready at once share one.
"""

from __future__ import annotations

import os
import select
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from amqpmesh.router.io.environment import environment, stopwatch_seconds
from amqpmesh.router.io.streams import BATCH_TIME

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from amqpmesh.router.runtime.driver import Driver

#: Of Linux; None where the system has none, and each connection has tasks of its own.
EPOLL: Any = getattr(select, "epoll", None)

READABLE: Final[int] = getattr(select, "EPOLLIN", 0)
WRITABLE: Final[int] = getattr(select, "EPOLLOUT", 0)

ROUNDS: Final = 4
"""How often in a row the system is asked who is ready, before the other tasks have their turn."""

HEAVY_PART: Final = 3
"""How many times as long as all others of a turn those may take together that have much to be read or written. Whom
there was no time for comes first in the next, after those that have become ready with little."""

TOGETHER: Final = 0.0001
"""Seconds of work after which its results leave. Until then those of several small batches share their writes, which
cost more than the batches."""


class Polled(Protocol):
    """Whom the poller serves."""

    @property
    def is_heavy(self) -> bool:
        """Whether serving it lately took long, and may do so again: there was much to be read, or to be written."""

    def serve(self, until: float) -> bool:
        """Read and write what can be without waiting. Never raises.

        Args: until: by the stopwatch, when others should have their turn.
        Returns: whether there is more to do that needs no waiting.
        """


class Poller:
    """The task; it begins with the first that is to be served."""

    def __init__(self, driver: Driver, start: Callable[[Callable[[], Awaitable[None]]], object]) -> None:
        """Args: start: runs a task that ends with the router."""
        self._driver = driver
        self._start = start
        self._epoll: Any = None
        #: Cancelled from outside, the router itself ends its connections, once it has told their peers.
        self._scope = trio.CancelScope(shield=True)
        self._polled: dict[int, Polled] = {}
        #: Those with something to do that the system need not know of, who waits longest first: there is more to do
        #: about what was read, or they are heavy and have not had their turn.
        self._busy: dict[int, None] = {}
        #: Written to, it ends the wait for the system.
        self._wake_up = -1
        self._sleeps = False

    def add(self, descriptor: int, polled: Polled, events: int) -> None:
        """Serve this whenever it is ready, until `remove`. Args: events: READABLE, WRITABLE, both or neither."""
        if self._epoll is None:
            self._begin()
        self._epoll.register(descriptor, events)
        self._polled[descriptor] = polled

    def _begin(self) -> None:
        """Raises: OSError: the system has nothing left for that; the next one tries it again."""
        with ExitStack() as undoing:
            epoll = EPOLL()
            undoing.callback(epoll.close)
            bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            undoing.callback(os.close, bell)
            epoll.register(bell, READABLE)
            undoing.pop_all()
        self._epoll, self._wake_up = epoll, bell
        self._start(self._run)

    def change(self, descriptor: int, events: int) -> None:
        """From now on it is ready when one of these events is."""
        self._epoll.modify(descriptor, events)

    def serve_soon(self, descriptor: int) -> None:
        """It has something to do that the system need not know of."""
        self._busy[descriptor] = None
        if self._sleeps:
            self._sleeps = False
            os.eventfd_write(self._wake_up, 1)

    def remove(self, descriptor: int) -> None:
        """Serve it no more; before it is closed."""
        del self._polled[descriptor]
        self._busy.pop(descriptor, None)
        if not self._epoll.closed:
            self._epoll.unregister(descriptor)

    def end(self) -> None:
        """Nobody is served any more."""
        self._scope.cancel()

    async def _run(self) -> None:
        stopwatch = environment().stopwatch
        settle = self._driver.settle
        polled, busy = self._polled, self._busy
        #: Something is left to be let out.
        left = False
        with self._scope, self._epoll as epoll, self._closing_wake_up():
            while True:
                each = None  # whoever was served last is not kept while all are waited for
                if busy or left:
                    await trio.lowlevel.checkpoint()
                else:
                    self._sleeps = True
                    await trio.lowlevel.wait_readable(epoll)
                    self._sleeps = False
                until = stopwatch() + BATCH_TIME
                for _ in range(ROUNDS):
                    began = settled = stopwatch()
                    ready = epoll.poll(0)
                    if not (ready or busy or left):
                        break
                    for descriptor, _ in ready:
                        each = polled.get(descriptor)
                        if each is None:  # it has left since, or there is something to do for one of `busy`
                            if descriptor == self._wake_up:
                                os.eventfd_read(self._wake_up)
                            continue
                        if each.is_heavy:
                            busy[descriptor] = None
                            continue
                        if stopwatch() - settled > TOGETHER:
                            settle(TOGETHER)
                            settled = stopwatch()
                            if settled > until:
                                await trio.lowlevel.checkpoint()
                                settled = stopwatch()
                                until = settled + BATCH_TIME
                        self._serve(descriptor, until)
                    left = settle(TOGETHER)
                    if busy:
                        now = stopwatch()
                        if now > until:
                            await trio.lowlevel.checkpoint()
                            until = stopwatch() + BATCH_TIME
                        left = self._serve_heavy(now - began, until)
                    if stopwatch() > until:
                        break

    @contextmanager
    def _closing_wake_up(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._sleeps = False
            os.close(self._wake_up)

    def _serve_heavy(self, seconds: float, until: float) -> bool:
        """Serve those that wait longest, of those that are busy. Args: seconds: that the others took.

        Returns: whether something is left to be let out.
        """
        settled = stopwatch_seconds()
        enough = settled + min(max(TOGETHER, HEAVY_PART * seconds), BATCH_TIME)
        for descriptor in tuple(self._busy):
            if descriptor not in self._busy:  # another has made it leave
                continue
            del self._busy[descriptor]
            self._serve(descriptor, until)
            now = stopwatch_seconds()
            if now > enough:
                break
            if now - settled > TOGETHER:
                self._driver.settle(TOGETHER)
                settled = stopwatch_seconds()
        return self._driver.settle(TOGETHER)

    def _serve(self, descriptor: int, until: float) -> None:
        # It may have left since, and its number may be another's, who finds nothing to do.
        polled = self._polled.get(descriptor)
        if polled is not None and polled.serve(until) and descriptor in self._polled:
            self._busy[descriptor] = None
