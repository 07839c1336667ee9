"""A delivery on its way out: it waits for credit, goes in frames, then waits for its outcome (§2.6.12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.client.links.link import without_traceback
from amqpmesh.router.message.outcomes import outcome_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router import kernel
    from amqpmesh.router.amqp.errors import AmqpMeshError
    from amqpmesh.router.message.outcomes import Outcome


class Outgoing:
    """What becomes of one delivery that a program sends."""

    #: The payload is whole, or this is its last piece.
    is_last: bool = True

    __slots__ = (
        "aborting",
        "at",
        "decided",
        "delivery",
        "done",
        "doubt",
        "failure",
        "outcome",
        "outdated",
        "payload",
        "prepare",
        "settled",
        "watch",
    )

    def __init__(
        self,
        payload: bytes,
        *,
        settled: bool,
        prepare: Callable[[], bytes] | None = None,
        watch: Callable[[Outgoing], None] | None = None,
    ) -> None:
        """Args: prepare: makes the payload when its first frame can be sent, where it depends on the connection.
        watch: called when the outcome is known, or that it will not be.
        """
        self.payload: bytes | memoryview = payload
        self.settled = settled
        self.prepare = prepare
        self.watch = watch
        #: The engine's, as soon as part of it was sent.
        self.delivery: kernel.Delivery | None = None
        #: Octets of the payload that are in frames.
        self.at = 0
        #: Nobody wants it any more, and part of it was sent.
        self.aborting = False
        #: Part of it was sent, and the payload is to be made anew.
        self.outdated = False
        #: Set when its last frame is written, or `failure` says why it never will.
        self.done = trio.Event()
        self.failure: AmqpMeshError | None = None
        #: Set when the outcome is known, or `doubt` says why it will not be.
        self.decided = trio.Event()
        self.outcome: Outcome | None = None
        self.doubt: AmqpMeshError | None = None

    @property
    def error(self) -> AmqpMeshError | None:
        """What `send` raises: it was not accepted, or is in doubt; None: it was accepted, or nothing is known yet."""
        if self.doubt is not None:
            return without_traceback(self.doubt)
        if self.outcome is None or isinstance(self.outcome, Accepted):
            return None
        return outcome_error(self.outcome)

    @property
    def length(self) -> int:
        """Octets of the whole payload, or as many as it has at least."""
        return len(self.payload)

    def sent(self) -> None:
        """Its last frame is written: the octets are needed no more."""
        self.payload, self.prepare = b"", None
        self.done.set()

    def fail(self, error: AmqpMeshError) -> None:
        """It will not be sent."""
        self.failure = error
        self.done.set()

    def decide(self, outcome: Outcome | None, doubt: AmqpMeshError | None = None) -> None:
        """The outcome is known, or why there is none."""
        self.outcome, self.doubt = outcome, doubt
        self.decided.set()
        watch, self.watch = self.watch, None
        if watch is not None:
            watch(self)

    async def until_decided(self) -> Outcome:
        """Wait for the outcome. Raises: InDoubtError: there is none."""
        if self.decided.is_set():
            await trio.lowlevel.checkpoint()
        else:
            await self.decided.wait()
        if self.doubt is not None:
            raise without_traceback(self.doubt)
        assert self.outcome is not None
        return self.outcome


class OutgoingStream(Outgoing):
    """A delivery whose payload comes in pieces: one is here at a time, and parts of those before cannot be had again.

    Attributes: `reading`: of the task that makes the pieces, cancelled when no more are wanted. `taken`: set when the
    piece that is here is in frames, or will never be.
    """

    __slots__ = ("_announced", "_fed", "is_last", "reading", "taken")

    def __init__(self, first: bytes, announced: int | None, *, settled: bool) -> None:
        """Args: first: piece. announced: octets of the whole payload; None: not known."""
        super().__init__(first, settled=settled)
        self.reading = trio.CancelScope()
        self.taken = trio.Event()
        self.is_last = False
        self._announced = announced
        self._fed = len(first)

    @property
    def length(self) -> int:
        """Octets of the whole payload, or as many as there were so far."""
        return max(self._announced or 0, self._fed)

    def feed(self, piece: bytes | memoryview, *, is_last: bool) -> None:
        """The next piece, once the one before is taken."""
        self.payload, self.at, self.is_last = piece, 0, is_last
        self._fed += len(piece)
        self.taken = trio.Event()

    def sent(self) -> None:
        """Its last frame is written."""
        super().sent()
        self._stop()

    def fail(self, error: AmqpMeshError) -> None:
        """It will not be sent, or not to its end."""
        super().fail(error)
        self._stop()

    def decide(self, outcome: Outcome | None, doubt: AmqpMeshError | None = None) -> None:
        """The outcome is known, maybe before all of it was sent, or why there is none."""
        super().decide(outcome, doubt)
        self._stop()

    def _stop(self) -> None:
        self.taken.set()
        self.reading.cancel()
