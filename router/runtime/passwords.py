"""Password checks: one at a time for each user and host, and delayed after wrong passwords."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import trio

from amqpmesh.policies.guesses import Guesses, TenantGuesses, network_of
from amqpmesh.router.access.rights import key_of, tenant_of_login
from amqpmesh.router.amqp.sasl.mechanisms import Computation, Question
from amqpmesh.router.io.threads import LIGHT, do

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Hashable, Iterator

    from amqpmesh.policies.access import Peer
    from amqpmesh.router.amqp.sasl.mechanisms import Work
    from amqpmesh.router.config.file import RouterConfig
    from amqpmesh.router.context import Context
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


class _Place(NamedTuple):
    """The place of a check among others."""

    listener: str
    """The name of the listener that the client has connected to."""
    host: str
    user: str
    tenant: str | None
    """Of the user, as far as the login shows it; None: there are no tenants."""
    home: str | None
    """The same, whatever hostname the client names: by another hostname, it guesses at the same password."""

    @property
    def pair(self) -> tuple[str, str]:
        return self.host, self.user

    @property
    def password(self) -> tuple[str, str, str | None]:
        return self.host, self.user, self.home


class Passwords:
    """The password checks of a router's clients.

    Attributes: `delayed`: connections that wait because of earlier wrong passwords, by the name of their listener. They
        do not count towards a listener's `connections` meanwhile.
    """

    def __init__(self, context: Context) -> None:
        config = context.config
        self._context = context
        self._guesses = Guesses(free=config.login_failures, longest=config.login_wait, most=config.login_memory)
        self._of_tenants = TenantGuesses(
            free=config.login_tenant_failures, longest=config.login_wait, most=config.login_memory
        )
        self._most_delayed = config.login_queue
        self.delayed: Counter[str] = Counter()
        self._delayed_of: Counter[str | None] = Counter()
        # One check at a time for each host and user: simultaneous ones would all count as the first guess. And one for
        # each host: a host with many checks would keep other hosts from the threads. Where there are tenants, one for
        # each of them waits for its host's turn: many checks of one tenant delay those of another by one.
        self._by_user: _Turns[tuple[str, str, str | None]] = _Turns()
        self._by_tenant: _Turns[tuple[str, str | None]] = _Turns()
        self._by_host: _Turns[str] = _Turns()
        # Delayed checks: one at a time for each host and user waits for its delay to pass; and for each network and
        # tenant, if the guesses at the tenant's users are the reason.
        self._late: _Turns[tuple[str, str, str | None]] = _Turns()
        self._late_of_tenant: _Turns[tuple[str, str | None]] = _Turns()
        # Checks by the program: some at a time, of them a quarter for one host, and half for one tenant.
        places = config.login_checks
        self._questions_by_host: _Turns[str] = _Turns(max(1, places // 4))
        self._questions_by_tenant: _Turns[str | None] = _Turns(max(1, places // 2))
        self._questions: _Turns[None] = _Turns(places)
        # Of functions that block. One whose check took too long has its thread until it returns.
        self._threads = trio.CapacityLimiter(places)
        #: The time from which a hash may be computed at once, seconds.
        self._hashes_from = 0.0

    def renew(self, config: RouterConfig) -> None:
        """Follow changed limits. What is remembered stays; checks that have begun end as they began."""
        for guesses, free in ((self._guesses, config.login_failures), (self._of_tenants, config.login_tenant_failures)):
            guesses.renew(free=free, longest=config.login_wait, most=config.login_memory)
        self._most_delayed = config.login_queue
        places = config.login_checks
        self._threads.total_tokens = places
        self._questions_by_host.renew(max(1, places // 4))
        self._questions_by_tenant.renew(max(1, places // 2))
        self._questions.renew(places)

    async def do(self, record: ConnectionRecord, work: Work) -> None:
        """Do the password work of a connection's SASL exchange in its turn. Raises: nothing."""
        if work.user is None:
            assert isinstance(work, Computation), "a question is about a user"
            await do(work)
            return
        await self._do_in_turn(work, self._place(record, work.user))

    async def check(self, peer: Peer, work: Work) -> None:
        """Check the password of a peer without a connection of AMQP, in its turn. Raises: nothing.

        Args: peer: as far as it is known before its login.
        """
        assert work.user is not None, "a client shows its user with its password"
        policy, tenant, home = self._context.policy, None, None
        if policy is not None and policy.tenants:
            named = replace(peer, user=work.user)
            tenant, home = (key_of(policy.tenant_of(each)) for each in (named, replace(named, hostname=None)))
        await self._do_in_turn(work, _Place(peer.listener, peer.host, work.user, tenant, home))

    async def _do_in_turn(self, work: Work, place: _Place) -> None:
        try:
            await self._check(work, place)
        except _TooManyError:
            work.refuse("too many wait for an answer")

    def do_now(self, record: ConnectionRecord, work: Work) -> bool:
        """Do short work at once, if it need not wait for others. Raises: nothing.

        Returns: False: it was not done, and `do` must be called.
        """
        now = trio.current_time()
        if not isinstance(work, Computation) or work.iterations > LIGHT:
            return False
        if work.iterations and now < self._hashes_from:
            return False
        place: _Place | None = None
        if work.user is not None:
            place = self._place(record, work.user)
            is_free = self._by_user.is_free(place.password) and self._by_host.is_free(record.host)
            if not is_free or self._wait(place, now) or self._wait_of_tenant(place, now):
                return False
        work.do()
        if work.iterations:
            self._hashes_from = trio.current_time() + REST
        if place is not None:
            self._note(place, work)
        return True

    def _place(self, record: ConnectionRecord, user: str) -> _Place:
        tenant = tenant_of_login(self._context, record, user)
        home = None if tenant is None else tenant_of_login(self._context, record, user, named=False)
        return _Place(record.peer.listener, record.host, user, tenant, home)

    async def _check(self, work: Work, place: _Place) -> None:
        """Check a password. Raises: _TooManyError: too many checks wait; this one was not done."""
        async with self._by_user.of(place.password):
            if not self._wait(place, trio.current_time()) and await self._judge(place, work):
                return
        with self._delay(place):
            async with self._late.of(place.password), self._turn_of_tenant(place):
                now = trio.current_time()
                await trio.sleep(max(self._wait(place, now), self._wait_of_tenant(place, now)))
                async with self._by_user.of(place.password):
                    await self._judge(place, work, is_late=True)

    async def _judge(self, place: _Place, work: Work, *, is_late: bool = False) -> bool:
        """Check a password in its turn. Returns: False: it was not checked: wrong ones before make it wait."""
        async with self._turn(place, work):
            if not is_late and self._wait_of_tenant(place, trio.current_time()):
                return False
            if isinstance(work, Question):
                await self._ask(work)
            elif isinstance(work, Computation):
                await do(work)
        self._note(place, work)
        return True

    @asynccontextmanager
    async def _turn(self, place: _Place, work: Work) -> AsyncIterator[None]:
        if isinstance(work, Question):
            by_tenant = nullcontext() if place.tenant is None else self._questions_by_tenant.of(place.tenant)
            async with self._questions_by_host.of(place.host), by_tenant, self._questions.of(None):
                yield
        else:
            async with self._by_tenant.of((place.host, place.tenant)), self._by_host.of(place.host):
                yield

    async def _ask(self, question: Question) -> None:
        """Ask the program, for a limited time."""
        with trio.move_on_after(self._context.config.login_check_time) as patience:
            await question.ask(self._threads)
        if patience.cancelled_caught:
            question.refuse("the check of the password took too long")

    def _wait(self, place: _Place, now: float) -> float:
        return self._guesses.wait(*place.pair, now, place.home)

    def _wait_of_tenant(self, place: _Place, now: float) -> float:
        return 0.0 if place.tenant is None else self._of_tenants.wait(*place.pair, now, place.tenant)

    def _turn_of_tenant(self, place: _Place) -> AbstractAsyncContextManager[None]:
        if not self._wait_of_tenant(place, trio.current_time()):
            return nullcontext()
        return self._late_of_tenant.of((network_of(place.host), place.tenant))

    def _note(self, place: _Place, work: Work) -> None:
        """Note whether a guess was right."""
        now = trio.current_time()
        if isinstance(work, Question) and not work.is_answered:
            return  # no guess was wrong
        if work.succeeded:
            self._guesses.succeeded(*place.pair, place.home)
            if place.tenant is not None:
                self._of_tenants.succeeded(*place.pair, place.tenant)
        else:
            self._guesses.failed(*place.pair, now, place.home)
            if place.tenant is not None:
                self._of_tenants.failed(place.host, now, place.tenant)

    @contextmanager
    def _delay(self, place: _Place) -> Iterator[None]:
        """Count a delayed connection.

        Raises: _TooManyError: as many of its tenant are delayed already as this may have.
        """
        policy, most = self._context.policy, self._most_delayed
        if self._delayed_of[place.tenant] >= (most if policy is None else policy.part(most)):
            raise _TooManyError
        name = place.listener
        self.delayed[name] += 1
        self._delayed_of[place.tenant] += 1
        try:
            yield
        finally:
            self.delayed[name] -= 1
            self._delayed_of[place.tenant] -= 1
            if not self._delayed_of[place.tenant]:
                del self._delayed_of[place.tenant]


class _TooManyError(Exception):
    """Too many checks wait."""


class _Turns(Generic[K]):
    """Turns for each key, one at a time or some, first come first served."""

    def __init__(self, places: int = 1) -> None:
        """Args: places: turns of a key at a time."""
        self._places = places
        #: With the number of places that each has.
        self._semaphores: dict[K, tuple[trio.Semaphore, int]] = {}

    def renew(self, places: int) -> None:
        """Have other places for keys that nobody holds a turn of now."""
        self._places = places

    def is_free(self, key: K) -> bool:
        """Return whether nobody holds a turn of this key, or waits for one."""
        return key not in self._semaphores

    @asynccontextmanager
    async def of(self, key: K) -> AsyncIterator[None]:
        """Wait for a turn of this key, and hold it within the block.

        Raises: _TooManyError: the wait exceeded `PATIENCE`.
        """
        found = self._semaphores.get(key)
        if found is None:
            found = self._semaphores[key] = trio.Semaphore(self._places), self._places
        semaphore, places = found
        try:
            with trio.move_on_after(PATIENCE) as patience:
                await semaphore.acquire()
            if patience.cancelled_caught:
                raise _TooManyError
            try:
                yield
            finally:
                semaphore.release()
        finally:
            if semaphore.value == places and self._semaphores.get(key) is found:
                del self._semaphores[key]
