"""Password checks: one at a time for each user and host, and delayed after wrong passwords."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import trio

from amqpmesh.policies.guesses import Guesses
from amqpmesh.router.io.threads import LIGHT, do

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Hashable, Iterator

    from amqpmesh.router.amqp.sasl.mechanisms import Work
    from amqpmesh.router.config.file import RouterConfig
    from amqpmesh.router.model.connections import ConnectionRecord

PATIENCE: Final = 30.0
"""Seconds that a check waits for other checks of the same user and host, or of the same host. Nothing is read from the
peer meanwhile, so a lost peer goes unnoticed.
"""

REST: Final = 0.05
"""Seconds after a hash that was computed at once, in which further ones are left to tasks: between those, other
connections have their turns. Thousands of clients may log in at once.
"""

K = TypeVar("K", bound="Hashable")


class Passwords:
    """The password checks of a router's clients.

    Attributes: `delayed`: connections that wait because of earlier wrong passwords, by the name of their listener. They
        do not count towards a listener's `connections` meanwhile.
    """

    def __init__(self, config: RouterConfig) -> None:
        self._guesses = Guesses(free=config.login_failures, longest=config.login_wait, most=config.login_memory)
        self._most_delayed = config.login_queue
        self.delayed: Counter[str] = Counter()
        # One check at a time for each host and user: simultaneous ones would all count as the first guess. And one for
        # each host: a host with many checks would keep other hosts from the threads.
        self._by_user: _Turns[tuple[str, str]] = _Turns()
        # Delayed checks: one at a time for each host and user waits for its delay to pass.
        self._late: _Turns[tuple[str, str]] = _Turns()
        self._by_host: _Turns[str] = _Turns()
        #: The time from which a hash may be computed at once, seconds.
        self._hashes_from = 0.0

    async def do(self, record: ConnectionRecord, work: Work) -> None:
        """Do the password work of a connection's SASL exchange in its turn. Raises: nothing."""
        if work.user is None:
            await do(work)
            return
        try:
            await self._check(record, work, work.user)
        except _TooManyError:
            work.refuse("too many wait for an answer")

    def do_now(self, record: ConnectionRecord, work: Work) -> bool:
        """Do short work at once, if it need not wait for others. Raises: nothing.

        Returns: False: it was not done, and `do` must be called.
        """
        now = trio.current_time()
        if work.iterations > LIGHT or (work.iterations and now < self._hashes_from):
            return False
        place = None if work.user is None else (record.host, work.user)
        if place is not None:
            is_free = self._by_user.is_free(place) and self._by_host.is_free(record.host)
            if not is_free or self._guesses.wait(*place, now):
                return False
        work.do()
        if work.iterations:
            self._hashes_from = trio.current_time() + REST
        if place is not None:
            self._note(place, work)
        return True

    async def _check(self, record: ConnectionRecord, work: Work, user: str) -> None:
        """Check a password. Raises: _TooManyError: too many checks wait; this one was not done."""
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
        self._note(place, work)

    def _note(self, place: tuple[str, str], work: Work) -> None:
        """Note whether a guess was right."""
        if work.succeeded:
            self._guesses.succeeded(*place)
        else:
            self._guesses.failed(*place, trio.current_time())

    @contextmanager
    def _delay(self, record: ConnectionRecord) -> Iterator[None]:
        """Count a delayed connection. Raises: _TooManyError: the maximum is delayed already."""
        if self.delayed.total() >= self._most_delayed:
            raise _TooManyError
        name = record.peer.listener
        self.delayed[name] += 1
        try:
            yield
        finally:
            self.delayed[name] -= 1


class _TooManyError(Exception):
    """Too many checks wait."""


class _Turns(Generic[K]):
    """Turns for each key, one at a time, first come first served."""

    def __init__(self) -> None:
        self._locks: dict[K, trio.Lock] = {}

    def is_free(self, key: K) -> bool:
        """Return whether nobody holds a turn of this key, or waits for one."""
        return key not in self._locks

    @asynccontextmanager
    async def of(self, key: K) -> AsyncIterator[None]:
        """Wait for a turn of this key, and hold it within the block.

        Raises: _TooManyError: the wait exceeded `PATIENCE`.
        """
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
