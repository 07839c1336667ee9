"""One task that waits for all sockets of a router, and serves those that are ready.

Waking a task costs more than a small message. With a task for each connection, sparse traffic would wake one on each
connection of a message's path; here all sockets that are ready at once share one wake-up.
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

#: Linux only. None on other systems: each connection has its own tasks there.
EPOLL: Any = getattr(select, "epoll", None)

READABLE: Final[int] = getattr(select, "EPOLLIN", 0)
WRITABLE: Final[int] = getattr(select, "EPOLLOUT", 0)

ROUNDS: Final = 4
"""Times in a row that the system is asked for ready sockets before other tasks have their turn."""

HEAVY_PART: Final = 3
"""The time that heavy sockets, with much to read or write, may take in a turn, as a multiple of that of all others.
Heavy sockets that got no time come first in the next turn, after new ones that are not heavy.
"""

TOGETHER: Final = 0.0001
"""Seconds of work before its output is written. Until then several small batches share their writes, which cost more
than the batches.
"""


class Polled(Protocol):
    """An object that the poller serves."""

    @property
    def is_heavy(self) -> bool:
        """True if serving it took long lately, and may do so again: it had much to read or write."""

    def serve(self, until: float) -> bool:
        """Read and write what is possible without waiting. Never raise.

        Args: until: the stopwatch's time when others should have their turn.
        Returns: True if more can be done without waiting.
        """


class Poller:
    """The polling task; it starts with the first socket."""

    def __init__(self, driver: Driver, start: Callable[[Callable[[], Awaitable[None]]], object]) -> None:
        """Args: start: runs a task that ends with the router."""
        self._driver = driver
        self._start = start
        self._epoll: Any = None
        #: Shielded: after a cancellation from outside the router ends its connections itself, after a `close` to their
        #: peers.
        self._scope = trio.CancelScope(shield=True)
        self._polled: dict[int, Polled] = {}
        #: Sockets with work that the system does not report, longest wait first: input is left to process, or they are
        #: heavy and have not had their turn.
        self._busy: dict[int, None] = {}
        #: A write to it ends the wait for the system.
        self._wake_up = -1
        self._sleeps = False

    def add(self, descriptor: int, polled: Polled, events: int) -> None:
        """Serve an object whenever its socket is ready, until `remove`. Args: events: READABLE, WRITABLE, both or
        neither.
        """
        if self._epoll is None:
            self._begin()
        self._epoll.register(descriptor, events)
        self._polled[descriptor] = polled

    def _begin(self) -> None:
        """Start polling. Raises: OSError: the system has no resources; the next `add` tries again."""
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
        """Change the events of a socket."""
        self._epoll.modify(descriptor, events)

    def serve_soon(self, descriptor: int) -> None:
        """Serve a socket soon, for work that the system does not report."""
        self._busy[descriptor] = None
        if self._sleeps:
            self._sleeps = False
            os.eventfd_write(self._wake_up, 1)

    def remove(self, descriptor: int) -> None:
        """Serve a socket no more; to be called before it is closed."""
        del self._polled[descriptor]
        self._busy.pop(descriptor, None)
        if not self._epoll.closed:
            self._epoll.unregister(descriptor)

    def end(self) -> None:
        """Stop serving."""
        self._scope.cancel()

    async def _run(self) -> None:
        stopwatch = environment().stopwatch
        settle = self._driver.settle
        polled, busy = self._polled, self._busy
        #: Output is left to write.
        left = False
        with self._scope, self._epoll as epoll, self._closing_wake_up():
            while True:
                each = None  # keep no reference to the last served object while waiting
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
                        if each is None:  # it was removed since, or the wake-up event is for `busy`
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
        """Serve the busy sockets that have waited longest. Args: seconds: the time that the others took.

        Returns: True if output is left to write.
        """
        settled = stopwatch_seconds()
        enough = settled + min(max(TOGETHER, HEAVY_PART * seconds), BATCH_TIME)
        for descriptor in tuple(self._busy):
            if descriptor not in self._busy:  # removed while another was served
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
        # It may have been removed since, and its number reused: then the new one finds nothing to do.
        polled = self._polled.get(descriptor)
        if polled is not None and polled.serve(until) and descriptor in self._polled:
            self._busy[descriptor] = None
