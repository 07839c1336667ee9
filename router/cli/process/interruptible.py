"""Work that ends when it is done, by a signal, or by a time-out without progress."""

import math
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import trio

from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.cli.exit_status import StoppedError, TimedOutError

T = TypeVar("T")


class PeerTimeout:
    """A time limit for the peer's next action: each action restarts it, and it stops while it is our turn."""

    def __init__(self, seconds: float | None) -> None:
        """Args: seconds: None: no limit."""
        self._seconds = math.inf if seconds is None else seconds
        self._what = "the peer"
        self.scope = trio.CancelScope()

    def wait(self, what: str) -> None:
        """Start the time limit, unless it runs. Args: what: the event that we wait for."""
        self._what = what
        if self.scope.deadline == math.inf:
            self.scope.deadline = trio.current_time() + self._seconds

    def progress(self) -> None:
        """Restart the time limit after an action of the peer."""
        if self.scope.deadline != math.inf:
            self.scope.deadline = trio.current_time() + self._seconds

    def rest(self) -> None:
        """Stop the time limit."""
        self.scope.deadline = math.inf

    @property
    def error(self) -> TimedOutError:
        """The error when the time has passed."""
        return TimedOutError(f"timed out: waited {self._seconds:g} s for {self._what}")


async def run_interruptible(work: Callable[[], Awaitable[None]], patience: PeerTimeout) -> None:
    """Do some work. Raises: StoppedError: SIGINT or SIGTERM came first. TimedOutError. The errors of `work`."""
    failure: AmqpMeshError | OSError | None = None
    stopping = trio.CancelScope()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop, signals, stopping)
            with stopping, patience.scope:
                try:
                    await work()
                except (AmqpMeshError, OSError) as error:
                    failure = error  # raised outside: the nursery would wrap it
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if stopping.cancelled_caught:
        raise StoppedError("stopped")
    if patience.scope.cancelled_caught:
        raise patience.error


async def run_with_companion(work: Callable[[], Awaitable[T]], companion: Callable[[], Awaitable[None]]) -> T:
    """Do some work, and a companion's until that is done; then cancel the companion. Raises: the errors of `work`,
    unwrapped.
    """
    result: list[T] = []
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(companion)
        try:
            result.append(await work())
        except Exception as error:
            failure = error  # raised outside, as above
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return result[0]


async def _stop(signals: AsyncIterator[int], stopping: trio.CancelScope) -> None:
    async for _ in signals:
        stopping.cancel()
