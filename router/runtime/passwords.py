"""Password checks of a router: one at a time for each user and host, and later after wrong passwords."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import trio

from amqpmesh.policies.guesses import Guesses
from amqpmesh.router.io.password_threads import do

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Hashable, Iterator

    from amqpmesh.router.amqp.sasl.mechanisms import Work
    from amqpmesh.router.config.file import RouterConfig
    from amqpmesh.router.model.connections import ConnectionRecord

PATIENCE: Final = 30.0
"""Seconds that an answer waits for others to the same user and host, or host: nothing is read from its peer meanwhile,
so nobody sees that it has gone."""

K = TypeVar("K", bound="Hashable")


class Passwords:
    """Checks the passwords of a router's clients.

    Attributes: `delayed`: connections whose answer waits for wrong passwords before it, by the name of their listener.
    They count for no listener's `connections` meanwhile.
    """

    def __init__(self, config: RouterConfig) -> None:
        self._guesses = Guesses(free=config.login_failures, longest=config.login_wait, most=config.login_memory)
        self._most_delayed = config.login_queue
        self.delayed: Counter[str] = Counter()
        # One at a time of each host and user: many at once would all count as the first guess. And one of each host:
        # a host that asks again and again would keep others from the threads.
        self._by_user: _Turns[tuple[str, str]] = _Turns()
        # Of those that wait for wrong passwords before them, one at a time waits for its own.
        self._late: _Turns[tuple[str, str]] = _Turns()
        self._by_host: _Turns[str] = _Turns()

    async def do(self, record: ConnectionRecord, work: Work) -> None:
        """Do what the SASL exchange of a connection asks for, when it is its turn. Raises: nothing."""
        if work.user is None:
            await do(work)
            return
        try:
            await self._check(record, work, work.user)
        except _TooManyError:
            work.refuse("too many wait for an answer")

    async def _check(self, record: ConnectionRecord, work: Work, user: str) -> None:
        """Raises: _TooManyError: nothing was checked."""
        place = record.host, user
        async with self._by_user.of(place):
            if not self._guesses.wait(*place, trio.current_time()):
                await self._judge(place, work)
                return
        with self._delay(record):
            async with self._late.of(place):
                await trio.sleep(self._guesses.wait(*place, trio.current_time()))
                async with self._by_user.of(place):
                    await self._judge(place, work)

    async def _judge(self, place: tuple[str, str], work: Work) -> None:
        host, _ = place
        async with self._by_host.of(host):
            await do(work)
        if work.succeeded:
            self._guesses.succeeded(*place)
        else:
            self._guesses.failed(*place, trio.current_time())

    @contextmanager
    def _delay(self, record: ConnectionRecord) -> Iterator[None]:
        """Raises: _TooManyError: as many wait as may."""
        if self.delayed.total() >= self._most_delayed:
            raise _TooManyError
        name = record.peer.listener
        self.delayed[name] += 1
        try:
            yield
        finally:
            self.delayed[name] -= 1


class _TooManyError(Exception):
    """Too many wait for an answer."""


class _Turns(Generic[K]):
    """One at a time for each key, in the order of their coming."""

    def __init__(self) -> None:
        self._locks: dict[K, trio.Lock] = {}

    @asynccontextmanager
    async def of(self, key: K) -> AsyncIterator[None]:
        """Wait for the turn of this key, and have it. Raises: _TooManyError: it has not come within `PATIENCE`."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = trio.Lock()
        try:
            with trio.move_on_after(PATIENCE) as patience:
                await lock.acquire()
            if patience.cancelled_caught:
                raise _TooManyError
            try:
                yield
            finally:
                lock.release()
        finally:
            if not lock.locked() and self._locks.get(key) is lock:
                del self._locks[key]
