"""A delivery that waits to be sent, and one that was (§2.6.12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from amqpmesh.router.amqp.delivery_states import Accepted
from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError
from amqpmesh.router.io.client.link import again
from amqpmesh.router.outcomes import Outcome, outcome_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.kernel import relay as kernel


class Sent:
    """A delivery that was sent: its outcome comes later."""

    __slots__ = ("_error", "_event", "_outcome", "settled", "watch")

    def __init__(self, *, settled: bool) -> None:
        #: It was sent settled: at most once, and nobody tells what became of it.
        self.settled = settled
        #: Called when the outcome, or the error in its place, is known.
        self.watch: Callable[[Sent], None] | None = None
        self._event = trio.Event()
        self._outcome: Outcome | None = None
        self._error: AmqpMeshError | None = None

    @property
    def is_decided(self) -> bool:
        """Whether the outcome is known, or that it will not be."""
        return self._event.is_set()

    async def outcome(self) -> Outcome:
        """Wait for the outcome. What was not accepted is no error here: look at what comes back.

        Cancelled, the delivery is settled all the same when the outcome comes.
        Raises: InDoubtError: the link was lost before: it may or may not have been delivered. CommandError: it was sent
            settled.
        """
        if self.settled:
            raise CommandError("it was sent settled: there is no outcome")
        if self._event.is_set():
            await trio.lowlevel.checkpoint()
        else:
            await self._event.wait()
        if self._error is not None:
            raise again(self._error)
        assert self._outcome is not None
        return self._outcome

    @property
    def error(self) -> AmqpMeshError | None:
        """What `send` raises: it was not accepted, or is in doubt; None: it was accepted, or nothing is known yet."""
        if self._error is not None:
            return again(self._error)
        if self._outcome is None or isinstance(self._outcome, Accepted):
            return None
        return outcome_error(self._outcome)

    def decide(self, outcome: Outcome | None, error: AmqpMeshError | None = None) -> None:
        """The outcome is known, or why there is none."""
        self._outcome, self._error = outcome, error
        self._event.set()
        if self.watch is not None:
            self.watch(self)


class Pending:
    """A delivery that waits for credit, or is in the middle of its frames."""

    __slots__ = ("aborting", "at", "delivery", "done", "error", "outdated", "payload", "prepare", "sent")

    def __init__(self, payload: bytes, sent: Sent, prepare: Callable[[], bytes] | None) -> None:
        self.payload = payload
        #: Makes the payload when its first frame can be sent, where it depends on the connection.
        self.prepare = prepare
        self.sent = sent
        self.delivery: kernel.Delivery | None = None
        #: Octets of the payload that are in frames.
        self.at = 0
        #: Nobody wants it any more, and part of it was sent.
        self.aborting = False
        #: Part of it was sent, and the payload is to be made anew.
        self.outdated = False
        #: Set when its last frame is written, or `error` says why it never will.
        self.done = trio.Event()
        self.error: AmqpMeshError | None = None
