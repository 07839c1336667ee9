"""Calls from the thread that serves HTTP into the router's loop."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from amqpmesh.router.http.requests import UNAVAILABLE, HttpError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

PATIENCE: Final = 1.5
"""Seconds without a sign of life of the router's loop until it stands still."""

STANDS_STILL: Final = "the router's loop stands still"

BURST: Final = 0.1
"""Seconds of processor time that the thread may use at once after a rest."""

LEAST_REST: Final = 0.001
"""Seconds of a rest at least: one that is shorter than the clock can tell would be repeated."""


class RouterCalls:
    """Calls from another Trio run, in another thread, into that of a router."""

    def __init__(
        self, start: Callable[[Callable[[], Awaitable[None]]], object], state: Callable[[], str | None]
    ) -> None:
        """Args: start: runs a task in the router's loop, which ends with the router. state: returns the reason why the
        router takes no clients, or None; called in its loop.
        """
        self._start = start
        self._state = state
        self._router = trio.lowlevel.current_trio_token()
        self._thread: trio.lowlevel.TrioToken | None = None
        #: The question to the router's loop that has no answer yet.
        self._asked: trio.Event | None = None
        self._reason: str | None = None
        self._ended = False

    def begin(self) -> None:
        """Note the Trio run that calls: this one."""
        self._thread = trio.lowlevel.current_trio_token()

    def end(self) -> None:
        """Refuse calls from now on: the router is about to end."""
        self._ended = True

    def soon(self, work: Callable[..., object], *arguments: object) -> None:
        """Have the router's loop do something, without waiting for it."""
        with suppress(trio.RunFinishedError):
            self._router.run_sync_soon(work, *arguments)

    async def do(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do work in the router's loop, and return its result. If the caller is cancelled, so is the work.

        Raises: its error. HttpError: 503: the router has ended, or is about to.
        """
        call = _Call(self, work)
        self.soon(call.begin)
        try:
            await call.done.wait()
        except trio.Cancelled:
            self.soon(call.scope.cancel)
            raise
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[no-any-return]  # of the work

    async def is_alive(self) -> bool:
        """Tell whether the router's loop goes round: it answers within `PATIENCE` seconds.

        One question at a time is under way, however many ask: a loop that stands still gathers none.
        """
        if self._asked is None:
            self._asked = trio.Event()
            self.soon(self._hear)
        with trio.move_on_after(PATIENCE):
            await self._asked.wait()
            return True
        return False

    async def why_not_ready(self) -> str | None:
        """Return the reason why the router takes no clients; None: it does."""
        return self._reason if await self.is_alive() else STANDS_STILL

    def _hear(self) -> None:
        self._reason = self._state()
        self.back(self._note)

    def _note(self) -> None:
        if self._asked is not None:
            self._asked.set()
            self._asked = None

    def run(self, task: Callable[[], Awaitable[None]]) -> bool:
        """Start a task in the router's loop. Returns: False: the router has ended, or is about to."""
        if self._ended:
            return False
        try:
            self._start(task)
        except RuntimeError:  # its nursery is closed
            return False
        return True

    def back(self, work: Callable[[], object]) -> None:
        """Have the calling thread do something, from the router's loop."""
        assert self._thread is not None
        with suppress(trio.RunFinishedError):
            self._thread.run_sync_soon(work)


class _Call:
    """One call. Its attributes are for the calling thread once `done` is set."""

    def __init__(self, calls: RouterCalls, work: Callable[[], Awaitable[Any]]) -> None:
        self._calls = calls
        self._work = work
        self.done = trio.Event()
        self.scope = trio.CancelScope()
        self.result: Any = None
        self.error: Exception | None = None

    def begin(self) -> None:
        """Start the work, in the router's loop."""
        if not self._calls.run(self._run):
            self._end_early()

    async def _run(self) -> None:
        is_done = False
        try:
            with self.scope:
                try:
                    self.result = await self._work()
                except Exception as error:
                    self.error = error
                is_done = True
        finally:
            if is_done:
                self._calls.back(self.done.set)
            else:
                self._end_early()

    def _end_early(self) -> None:
        self.error = HttpError(UNAVAILABLE, "the router is about to end")
        self._calls.back(self.done.set)


class Share:
    """A part of a core's time for the thread, whatever its clients do: it must leave the rest to the router.

    If the part is used up, networks take turns: a flood from one of them delays the others by one step each.
    """

    def __init__(self, part: float, used: Callable[[], float] = time.thread_time) -> None:
        """Args: part: of each second. used: returns the seconds of processor time so far."""
        self._part = part
        self._used = used
        self._seen = used()
        self._at = trio.current_time()
        self._left = BURST
        #: Those that wait, by their networks; both in the order of their turns.
        self._waiting: dict[str, dict[trio.Event, None]] = {}
        self._is_serving = False

    async def turn(self, network: str = "") -> None:
        """Wait until the thread has used no more than its part. Args: network: of the client."""
        if not self._is_serving and self._rest() <= 0:
            return
        own = trio.Event()
        self._waiting.setdefault(network, {})[own] = None
        if not self._is_serving:
            self._is_serving = True
            trio.lowlevel.spawn_system_task(self._serve)
        try:
            await own.wait()
        finally:
            others = self._waiting.get(network, {})
            others.pop(own, None)
            if not others:
                self._waiting.pop(network, None)

    def _rest(self) -> float:
        """Return the seconds until the thread may go on."""
        used, now = self._used(), trio.current_time()
        self._left = min(BURST, self._left + (now - self._at) * self._part) - (used - self._seen)
        self._seen, self._at = used, now
        return 0.0 if self._left >= 0 else max(LEAST_REST, -self._left / self._part)

    async def _serve(self) -> None:
        """Let those go on that wait, one after the other, until none is left."""
        while self._waiting:
            rest = self._rest()
            if rest > 0:
                await trio.sleep(rest)
                continue
            network, waiting = next(iter(self._waiting.items()))
            del self._waiting[network]
            first = next(iter(waiting))
            del waiting[first]
            if waiting:
                self._waiting[network] = waiting  # behind the others
            first.set()
            # Its step counts before the next one: it is made in the next round of the loop.
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
        self._is_serving = False
