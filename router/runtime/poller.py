"""One task that waits for all sockets of a router, and serves those that are ready.

Waking a task costs more than a small message. With a task for each connection, sparse traffic would wake one on each
connection of a message's path; here all sockets that are ready at once share one wake-up.
"""

from __future__ import annotations

import os
import select
from collections import deque
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from amqpmesh.router.io.environment import IS_ALONE, environment, stopwatch_seconds
from amqpmesh.router.io.secured_stream import LINGER
from amqpmesh.router.io.streams import BATCH_TIME
from amqpmesh.router.io.trio_run import wait_beside_trio
from amqpmesh.router.logs import event_log
from amqpmesh.router.runtime.driver import TURNS
from amqpmesh.router.runtime.shares import SLICE, Share, Shares

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from amqpmesh.policies.tenants import Tenant
    from amqpmesh.router.runtime.driver import Driver

log = event_log.EventLog("amqpmesh.io")

#: Linux only. None on other systems: each connection has its own tasks there.
EPOLL: Any = getattr(select, "epoll", None)

READABLE: Final[int] = getattr(select, "EPOLLIN", 0)
WRITABLE: Final[int] = getattr(select, "EPOLLOUT", 0)

OVER: Final[int] = getattr(select, "EPOLLET", 0)
"""Only the end of both directions of a stream, once. The system reports it with all other events, too, and again and
again.
"""

ROUNDS: Final = 4
"""Times in a row that the system is asked for ready sockets before other tasks have their turn."""

SPARSE: Final = 0.00025
"""Seconds of the mean wait from which the poller waits itself, beside Trio, for the next ready socket: a pass through
all tasks costs more than a message. If the waits are shorter, more messages share a turn after the pass. Peers that
connect or attach are waited for in any case, since they wait for each answer.
"""

MEAN_OF: Final = 8
"""The waits over which the mean goes, approximately. A wait counts as no longer than so many times `SPARSE`: some short
ones then outweigh any long one.
"""

HEAVY_PART: Final = 3
"""The time that heavy sockets, with much to read or write, may take in a turn, as a multiple of that of all others.
Heavy sockets that got no time come first in the next turn, after new ones that are not heavy.
"""

SHARES: Final = 16
"""Turns of tenants in a row before connections that end have theirs."""

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


class Concluding(Protocol):
    """An object that the poller concludes: a connection that ends."""

    def conclude(self) -> None:
        """End the connection as far as that needs no waiting. Never raise."""

    def cancel(self) -> None:
        """End the connection soon, whatever it waits for."""


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
        #: The connections and links that had come or gone at the last look.
        self._endpoints = 0
        #: The mean of the last waits for the system, seconds.
        self._mean_wait = 0.0
        #: The rounds so far. Those without a wait between them have consecutive numbers.
        self.rounds = 0
        #: Sockets with work that the system does not report, longest wait first: input is left to process, or they are
        #: heavy and have not had their turn.
        self._busy: dict[int, None] = {}
        self._shares = Shares(self._busy)
        #: Connections that end, in order; and those that are to end at a time, in the order of these times. One timer
        #: serves them all.
        self._ending: deque[Concluding] = deque()
        self._in_time: dict[Concluding, float] = {}
        self._is_scheduled = False
        #: A write to it ends the wait for the system.
        self._wake_up = -1
        self._sleeps = False

    def add(
        self, descriptor: int, polled: Polled, events: int, tenant: Tenant | None = None, *, between: bool = False
    ) -> None:
        """Serve an object whenever its socket is ready, until `remove`. Args: events: READABLE, WRITABLE, both or
        neither; or OVER. tenant: whose time it takes, if several contend for that. between: as of `Shares.enter`.
        """
        if self._epoll is None:
            self._begin()
        if tenant is None or not self._shares.enter(descriptor, tenant, events, self._epoll, between=between):
            self._epoll.register(descriptor, events)
        self._polled[descriptor] = polled

    def share(self, descriptor: int, tenant: Tenant, events: int, *, between: bool = False) -> None:
        """Count the time of a socket as its tenant's from now on, with its weight of now. Args: as of `add`."""
        was_in_share = self._shares.of(descriptor) is not self._shares.own
        if self._shares.enter(descriptor, tenant, events, self._epoll, between=between) and not was_in_share:
            self._epoll.unregister(descriptor)
            if self._busy.pop(descriptor, self) is None:
                self._put_off(descriptor)

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
        (self._shares.of(descriptor).epoll or self._epoll).modify(descriptor, events)

    def serve_soon(self, descriptor: int) -> None:
        """Serve a socket soon, for work that the system does not report."""
        self._put_off(descriptor)
        self.wake()

    def _put_off(self, descriptor: int) -> None:
        """Note that a socket has work that the system does not report."""
        share = self._shares.of(descriptor)
        share.busy[descriptor] = None
        if share is not self._shares.own:
            self._shares.wait(share)

    def wake(self) -> None:
        """End the wait for the system, if the poller waits."""
        if self._sleeps:
            self._sleeps = False
            os.eventfd_write(self._wake_up, 1)

    def rest(self, descriptor: int, seconds: float) -> None:
        """Do not serve a socket for some seconds, although it is readable."""
        self.change(descriptor, 0)
        self._start(partial(self._end_rest, descriptor, self._polled[descriptor], seconds))

    async def _end_rest(self, descriptor: int, polled: Polled, seconds: float) -> None:
        await trio.sleep(seconds)
        if self._polled.get(descriptor) is polled:
            self.change(descriptor, READABLE)

    def conclude_soon(self, connection: Concluding) -> None:
        """Conclude a connection in its turn: thousands may end at once."""
        self._ending.append(connection)
        self.wake()

    def conclude_in_time(self, connection: Concluding) -> None:
        """Cancel a connection in `LINGER` seconds, unless it has ended before."""
        self._in_time.setdefault(connection, trio.current_time() + LINGER)
        self._schedule()

    def forget(self, connection: Concluding) -> None:
        """Note that a connection has ended."""
        self._in_time.pop(connection, None)

    def _schedule(self) -> None:
        if self._in_time and not self._is_scheduled:
            self._is_scheduled = True
            self._driver.core.context.schedule(next(iter(self._in_time.values())), self._cancel_overdue)

    def _cancel_overdue(self) -> None:
        self._is_scheduled = False
        now = trio.current_time()
        for connection, at in tuple(self._in_time.items()):
            if at > now:
                break
            del self._in_time[connection]
            connection.cancel()
        self._schedule()

    def remove(self, descriptor: int) -> None:
        """Serve a socket no more; to be called before it is closed."""
        del self._polled[descriptor]
        self._busy.pop(descriptor, None)
        if not (self._epoll.closed or self._shares.leave(descriptor)):
            self._epoll.unregister(descriptor)

    def end(self) -> None:
        """Stop serving."""
        self._scope.cancel()

    async def _run(self) -> None:
        stopwatch = environment().stopwatch
        settle = self._driver.settle
        polled, busy, ending, shares = self._polled, self._busy, self._ending, self._shares
        waiting = shares.waiting
        #: Output is left to write.
        left = False
        beside = wait_beside_trio(self._epoll.fileno()) if IS_ALONE.get() else None
        with self._scope, self._epoll as epoll, self._closing_wake_up():
            while True:
                each = None  # keep no reference to the last served object while waiting
                if busy or left or ending or waiting:
                    await trio.lowlevel.checkpoint()
                else:
                    slept_at = stopwatch()
                    self._sleeps = True
                    await trio.lowlevel.wait_readable(epoll)
                    self._sleeps = False
                    self.rounds += 1
                    self._count_wait(stopwatch() - slept_at)
                until = stopwatch() + BATCH_TIME
                rounds = 0
                has_waited = False
                while rounds < ROUNDS:
                    rounds += 1
                    ready = epoll.poll(0)
                    if not (ready or busy or left or ending or waiting):
                        if beside is None or not self._is_sparse() or not (has_waited or beside.is_alone):
                            break
                        has_waited = True
                        each = None
                        slept_at = stopwatch()
                        if not beside.wait():
                            break
                        woken_at = stopwatch()
                        self._count_wait(woken_at - slept_at)
                        until = woken_at + BATCH_TIME
                        self.rounds += 1
                        rounds = 0
                        ready = epoll.poll(0)
                    self.rounds += 1
                    if shares:
                        left = self._serve_shares(ready, until)
                        if ending:
                            self._conclude()
                            left = settle(TOGETHER)
                        if stopwatch() > until:
                            break
                        continue
                    began = settled = stopwatch()
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
                    if ending:
                        self._conclude()
                        left = settle(TOGETHER)
                    if busy:
                        now = stopwatch()
                        if now > until:
                            await trio.lowlevel.checkpoint()
                            until, has_waited = stopwatch() + BATCH_TIME, False
                        left = self._serve_heavy(now - began, until, busy)
                    if stopwatch() > until:
                        break

    def _count_wait(self, seconds: float) -> None:
        self._mean_wait += (min(seconds, MEAN_OF * SPARSE) - self._mean_wait) / MEAN_OF

    def _is_sparse(self) -> bool:
        """Tell whether to wait beside Trio: see `SPARSE`."""
        before, self._endpoints = self._endpoints, self._driver.endpoints
        return self._mean_wait >= SPARSE or self._endpoints != before

    @contextmanager
    def _closing_wake_up(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._sleeps = False
            self._shares.close()
            os.close(self._wake_up)

    def _serve_shares(self, ready: list[tuple[int, int]], until: float) -> bool:
        """Serve shares for some time, each in its turn. Args: ready: as the system reports them.

        Returns: True if output is left to write.
        """
        shares, stopwatch = self._shares, environment().stopwatch
        own, left = shares.own, False
        self._sort_all(ready)
        began = asked = now = stopwatch()
        for _ in range(SHARES):
            if not shares.waiting or now - began >= SLICE or self._ending:
                break
            if now - asked >= TOGETHER:  # what has come during the last turns may be next
                self._sort_all(self._epoll.poll(0))
                asked = now
            share = shares.next()
            for descriptor in shares.ready(share):
                self._sort(descriptor, share)
            if not (share.queue or share.busy):
                continue
            left = self._serve_share(share, min(until, now + SLICE))
            ended = stopwatch()
            shares.spend(share, ended - now)
            now = ended
            if share is own:
                break  # the system has to be asked for more of it
        return left

    def _sort_all(self, ready: list[tuple[int, int]]) -> None:
        """Note which shares have work. Args: ready: as the system reports them."""
        shares = self._shares
        own = shares.own
        for descriptor, _ in ready:
            share = shares.with_epoll(descriptor)
            if share is not None:
                shares.wait(share)
            else:
                self._sort(descriptor, own)
        if own.queue or own.busy:
            shares.wait(own)

    def _sort(self, descriptor: int, share: Share) -> None:
        """Note that a socket is ready."""
        polled = self._polled.get(descriptor)
        if polled is not None:
            (share.busy if polled.is_heavy else share.queue)[descriptor] = None
        elif descriptor == self._wake_up:
            os.eventfd_read(self._wake_up)

    def _serve_share(self, share: Share, until: float) -> bool:
        """Serve the sockets of a share, those that are not heavy first. Returns: True if output is left to write."""
        began = stopwatch_seconds()
        if share.is_heavy_next and share.busy:
            share.is_heavy_next = False
            return self._serve_heavy(SLICE, until, share.busy)
        while share.queue:
            descriptor = next(iter(share.queue))
            del share.queue[descriptor]
            self._serve(descriptor, until)
            if stopwatch_seconds() > until:
                share.is_heavy_next = True
                return self._driver.settle(TOGETHER)
        if share.busy:
            return self._serve_heavy(stopwatch_seconds() - began, until, share.busy)
        return self._driver.settle(TOGETHER)

    def _serve_heavy(self, seconds: float, until: float, busy: dict[int, None]) -> bool:
        """Serve the busy sockets that have waited longest. Args: seconds: the time that the others took.

        Returns: True if output is left to write.
        """
        settled = stopwatch_seconds()
        enough = min(until, settled + min(max(TOGETHER, HEAVY_PART * seconds), BATCH_TIME))
        for descriptor in tuple(busy):
            if descriptor not in busy:  # removed while another was served
                continue
            del busy[descriptor]
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
        try:
            if polled is not None and polled.serve(until) and descriptor in self._polled:
                self._put_off(descriptor)
        except Exception as error:
            # If this task ended, the router would serve nobody any more.
            log.error("internal error", exception=error)
            if self._polled.get(descriptor) is polled:
                self.change(descriptor, OVER)

    def _conclude(self) -> None:
        """Conclude some of the connections that end."""
        for _ in range(min(TURNS, len(self._ending))):
            try:
                self._ending.popleft().conclude()
            except Exception as error:  # as in `_serve`
                log.error("internal error", exception=error)
