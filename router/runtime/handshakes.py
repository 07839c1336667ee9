"""Handshakes with the clients of listeners, of TLS and of WebSockets: the poller does them, without a task for each."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

import trio

from amqpmesh.router.io.handshake import reason_of, took_too_long
from amqpmesh.router.io.secured_stream import LINGER, close_gracefully
from amqpmesh.router.logs import event_log
from amqpmesh.router.runtime.driver import TURNS
from amqpmesh.router.runtime.poller import READABLE, WRITABLE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from amqpmesh.router.core import Core
    from amqpmesh.router.io.streams import DirectStream
    from amqpmesh.router.runtime.poller import Poller

log = event_log.EventLog("amqpmesh.io")

PAUSE: Final = 0.001
"""Seconds until more overdue handshakes are failed: thousands may be overdue at once."""


class Opening(Protocol):
    """A layer over a socket whose handshake needs no waiting."""

    @property
    def transport_stream(self) -> DirectStream:
        """The stream below it."""

    @property
    def descriptor(self) -> int:
        """The socket's file descriptor."""

    @property
    def pending(self) -> bool:
        """True if there may be octets to read that the system does not know of."""

    @property
    def is_blocked(self) -> bool:
        """True if the system has not accepted all that was written."""

    def handshake_nowait(self) -> bool:
        """Go on as far as that needs no waiting. Returns: True if it is done.

        Raises: trio.BrokenResourceError: it has failed; the cause has the reason.
        """

    def close(self) -> None:
        """Close the socket."""


class Handshake:
    """A handshake as the server; the poller serves its socket until it is done.

    It counts as heavy: it takes longer than hundreds of small messages. So other connections keep their turns while
    thousands of clients come at once.
    """

    is_heavy = True

    def __init__(
        self,
        handshakes: Handshakes,
        opening: Opening,
        host: str,
        failed: Callable[[str, str], None],
        on_end: Callable[[Handshake, bool], None],
        *,
        mesh: bool,
    ) -> None:
        """Args: as of `Handshakes.begin`."""
        self._handshakes = handshakes
        self._opening = opening
        self._host = host
        self._failed = failed
        self._on_end = on_end
        self._mesh = mesh
        self._descriptor = opening.descriptor
        #: The events that it is polled for; None: it is not polled.
        self._events: int | None = None
        #: The scope of the task that waits for the peer after a failure; None: there is no such task.
        self._farewell: trio.CancelScope | None = None

    def begin(self) -> None:
        """Have the poller serve it. Raises: OSError: the system has no resources."""
        self._handshakes.poller.add(self._descriptor, self, READABLE)
        self._events = READABLE
        if self._opening.pending:
            self._handshakes.poller.serve_soon(self._descriptor)

    def serve(self, until: float) -> bool:  # noqa: ARG002 - one step is the least that it can do
        """See `Polled`."""
        try:
            if self._opening.handshake_nowait():
                self._end(is_done=True)
            else:
                self._update_events()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.fail(reason_of(error, mesh=self._mesh))
        except Exception as error:
            log.error("internal error", exception=error, peer=self._host)
            self.cancel()
        return False

    def fail(self, reason: str) -> None:
        """Log a failure, and end the stream once the peer has read the reason: a TLS alert, or an answer of HTTP."""
        self._stop()
        self._failed(self._host, reason)
        self._farewell = trio.CancelScope(shield=True)
        self._handshakes.start(self._say_farewell)

    def cancel(self) -> None:
        """End it without waiting for its peer."""
        if self._farewell is None:
            self._end(is_done=False)
        else:
            self._farewell.cancel()

    async def _say_farewell(self) -> None:
        assert self._farewell is not None
        with self._farewell:
            self._farewell.deadline = trio.current_time() + LINGER
            await close_gracefully(self._opening.transport_stream)
        self._end(is_done=False)

    def _update_events(self) -> None:
        events = WRITABLE if self._opening.is_blocked else READABLE
        if events != self._events:
            self._handshakes.poller.change(self._descriptor, events)
            self._events = events

    def _stop(self) -> None:
        self._handshakes.forget(self)
        if self._events is not None:
            self._events = None
            self._handshakes.poller.remove(self._descriptor)

    def _end(self, *, is_done: bool) -> None:
        self._stop()
        if not is_done:
            self._opening.close()
        self._on_end(self, is_done)


class Handshakes:
    """The handshakes of a router that are under way, and have the same limit of time."""

    def __init__(
        self, core: Core, poller: Poller, start: Callable[[Callable[[], Awaitable[None]]], object], seconds: float
    ) -> None:
        """Args: start: runs a task that ends with the router. seconds: for each handshake."""
        self._seconds = seconds
        self.core = core
        self.poller = poller
        self.start = start
        #: The time at which each is to be done, in the order of these times. One timer serves them all.
        self._until: dict[Handshake, float] = {}
        self._is_scheduled = False

    def begin(
        self,
        opening: Opening,
        host: str,
        failed: Callable[[str, str], None],
        on_end: Callable[[Handshake, bool], None],
        *,
        mesh: bool = False,
    ) -> Handshake:
        """Start a handshake, as the server.

        Args: opening: belongs to the handshake from now on. host: the client's address. failed: logs a failure, with
            the client's address and the reason. on_end: is told whether the handshake is done; if not, the socket is
            closed. mesh: the peer must be a router of the mesh.
        Raises: OSError: the system has no resources; the stream is still the caller's.
        """
        made = Handshake(self, opening, host, failed, on_end, mesh=mesh)
        made.begin()
        self._until[made] = trio.current_time() + self._seconds
        self._schedule()
        return made

    def forget(self, handshake: Handshake) -> None:
        """Note that a handshake is over."""
        self._until.pop(handshake, None)

    def _schedule(self, earliest: float = 0.0) -> None:
        if self._until and not self._is_scheduled:
            self._is_scheduled = True
            self.core.context.schedule(max(earliest, next(iter(self._until.values()))), self._fail_overdue)

    def _fail_overdue(self) -> None:
        self._is_scheduled = False
        now = trio.current_time()
        for handshake, at in tuple(islice(self._until.items(), TURNS)):
            if at > now:
                break
            handshake.fail(took_too_long(self._seconds))
        self._schedule(now + PAUSE)
