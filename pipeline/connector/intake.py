"""The AMQP side of a reader: a thread with a connection, a link, and deliveries that are not accepted yet.

Spark calls a reader from the only thread of its process, sometimes not for seconds, while a connection needs constant
service. The connection therefore runs in a thread of its own, and each call goes to that thread and back.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import trio

from amqpmesh.pipeline.connector import peer
from amqpmesh.router.amqp.errors import CommandError, ConnectionClosedError
from amqpmesh.router.client.batch_receiver import batch_receiver
from amqpmesh.router.client.links.attach_options import ReceiverOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqpmesh.pipeline.connector.options import Options
    from amqpmesh.router.amqp.standard.messaging import Source
    from amqpmesh.router.client.batch_receiver import BatchReceiver
    from amqpmesh.router.client.links.batch_link import Batch

T = TypeVar("T")

LEAVE_TIME = 5.0
"""Seconds to end a link and a connection; each step has a shorter limit."""

POLL = 0.02
"""Seconds between two checks for waiting deliveries."""

NOTE: Final = 0.1
"""Seconds between two notes of how many deliveries have come."""


class State(NamedTuple):
    """A link at one moment, in deliveries that have come and are not accepted."""

    waiting: int
    """Those that can be taken."""
    unsettled: int
    """All of them: those that were taken, too."""
    oldest: float
    """Seconds since the first of them has come, to `NOTE`."""
    received: int
    """All that ever came, accepted or not."""
    is_full: bool
    """True if no more can arrive before some are accepted."""
    is_attached: bool
    """False while a lost link is not back."""


class Intake:
    """Deliveries of one address, received in a thread from `start` to `stop`; any thread may call, one at a time."""

    def __init__(
        self,
        options: Options,
        *,
        task: str,
        credit: int,
        memory: int,
        most: int | None = None,
        source: Source | None = None,
    ) -> None:
        """Args: task: part of the container-id. memory: octets that may be here and not accepted. most: deliveries
        wanted in all. source: replaces the default source with the address.
        """
        self._options = options
        self._task = task
        self._credit = credit
        self._memory = memory
        self._most = most
        self._source = source
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope: trio.CancelScope | None = None
        self._receiver: BatchReceiver | None = None
        self._failure: BaseException | None = None
        #: Times, and the number of deliveries that had come until then: of those that are not accepted.
        self._notes: deque[tuple[float, int]] = deque()
        #: The time of the link's loss; None: there is a link.
        self._lost_at: float | None = None

    # ---------------------------------------------------------------------------------------------- for other threads

    def start(self) -> None:
        """Connect, attach and receive.

        Raises: AmqpMeshError: the peer refuses our login or the link; or there is no link within `connectTimeout`.
        """
        self._thread = threading.Thread(target=self._run, name=f"amqp {self._task}", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Release deliveries that are not accepted, detach and close. A thread that does not end in time is abandoned.

        A second call meanwhile, by a signal's handler, waits as well.
        """
        thread = self._thread
        if thread is None:
            return
        if self._token is not None and self._scope is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._scope.cancel)
        thread.join(LEAVE_TIME)
        self._thread = None

    def state(self) -> State:
        """Return the state of the link now. Raises: as `take`."""

        def state(receiver: BatchReceiver) -> State:
            self._note(receiver)
            oldest = time.monotonic() - self._notes[0][0] if self._notes else 0.0
            now = receiver.waiting, receiver.undecided, oldest, receiver.received
            return State(*now, receiver.is_full, receiver.is_attached)

        return self._call(state)

    def take(self, count: int, octets: int) -> Batch:
        """Return up to `count` deliveries of up to `octets` in all; at least one if there is any, whatever its size.

        Raises: AmqpMeshError: the link has ended for good, or has been lost for `reconnectTimeout`.
        """
        return self._call(lambda receiver: receiver.take(count, octets))

    def accept(self, taken: Batch) -> bool:
        """Accept processed deliveries. Returns: whether the peer is told; False if their link is gone. Raises: as
        `take`.
        """
        return self._call(lambda receiver: receiver.accept(taken))

    # ------------------------------------------------------------------------------------------------- between threads

    def _call(self, function: Callable[[BatchReceiver], T]) -> T:
        """Call a function in the thread of the connection."""
        token, receiver = self._token, self._receiver
        if token is None or receiver is None:
            raise CommandError("the intake was not started")

        def call() -> T:
            self._check(receiver)
            return function(receiver)

        try:
            return trio.from_thread.run_sync(call, trio_token=token)
        except trio.RunFinishedError:
            raise self._failure or CommandError("the intake was stopped") from None

    def _check(self, receiver: BatchReceiver) -> None:
        receiver.check()
        if receiver.is_attached:
            self._lost_at = None
            return
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at = now
        limit: float = self._options["reconnectTimeout"]
        if now - self._lost_at > limit:
            raise ConnectionClosedError(f"{self._described}: no connection came about again within {limit:g} s")

    # ------------------------------------------------------------------------------------------------- in the thread

    @property
    def _described(self) -> str:
        return f"{self._options['address']!r} at {', '.join(self._options['url'])}"

    def _run(self) -> None:
        try:
            trio.run(self._receive)
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _receive(self) -> None:
        """Serve the link until `stop`. Raises: AmqpMeshError: the first connection failed."""
        self._token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as self._scope:
            connection = peer.connection(self._options, self._task)
            receiver = batch_receiver(
                connection,
                self._options["address"],
                credit=self._credit,
                memory=self._memory,
                most=self._most,
                options=self._terms(),
            )
            limit: float = self._options["connectTimeout"]
            with trio.move_on_after(limit) as patience:
                async with connection, receiver:
                    patience.deadline = float("inf")
                    self._receiver = receiver
                    self._ready.set()
                    while True:
                        self._note(receiver)
                        await trio.sleep(NOTE)
            raise ConnectionClosedError(f"{self._described}: no connection and no link came about within {limit:g} s")

    def _note(self, receiver: BatchReceiver) -> None:
        """Note how many deliveries have come, and forget the notes of those that were accepted since."""
        notes, received = self._notes, receiver.received
        while notes and notes[0][1] <= received - receiver.undecided:
            notes.popleft()
        if receiver.undecided and (not notes or notes[-1][1] < received):
            notes.append((time.monotonic(), received))

    def _terms(self) -> ReceiverOptions:
        return ReceiverOptions(max_message_size=self._options["maxMessageSize"], source=self._source)


def wait_for(states: Callable[[], Sequence[State]], quiet: float, deadline: float, *, enough: int) -> int:
    """Wait until `enough` deliveries can be taken, none has arrived for `quiet` seconds, or no more can arrive.

    The wait ends at `deadline` (`time.monotonic`) in any case.
    Args: states: of all links of one reader.
    Returns: how many can be taken.
    """
    received, last = sum(each.received for each in states()), time.monotonic()
    while True:
        links = states()
        waiting = sum(each.waiting for each in links)
        if waiting >= enough or (waiting and all(each.is_full for each in links)):
            return waiting
        now, came = time.monotonic(), sum(each.received for each in links)
        if came != received or not all(each.is_attached for each in links):
            received, last = came, now
        if now - last >= quiet or now >= deadline:
            return waiting
        time.sleep(min(POLL, quiet))
