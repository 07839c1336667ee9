"""Deliveries on their way out: they wait for credit, are sent in frames, then wait for their outcomes (§2.6.12)."""

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
    """A delivery that a program sends, and its outcome."""

    #: Whether `payload` is the whole message, or its last piece.
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
        "resumed",
        "settled",
        "tag",
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
        """Make a delivery that is not sent yet.

        Args: prepare: makes the payload when its first frame can be sent, for a payload that depends on the connection.
            watch: called once the outcome is known, or will never be known.
        """
        self.payload: bytes | memoryview = payload
        self.settled = settled
        self.prepare = prepare
        self.watch = watch
        #: Its delivery-tag, if the link is to be resumed. `resumed`: the state that resumes it, encoded: it was sent
        #: over a former link endpoint, and the peer has it; None: it is to be sent, or was sent over this one.
        self.tag = b""
        self.resumed: bytes | None = None
        #: The engine's delivery, once part of it is sent.
        self.delivery: kernel.Delivery | None = None
        #: Octets of the payload that are in frames already.
        self.at = 0
        #: Part of it was sent, and it is to be aborted.
        self.aborting = False
        #: Part of it was sent; it is to be aborted and sent again with a new payload.
        self.outdated = False
        #: Set when its last frame is written, or when `failure` tells why it never will be.
        self.done = trio.Event()
        self.failure: AmqpMeshError | None = None
        #: Set when the outcome is known, or when `doubt` tells why it never will be.
        self.decided = trio.Event()
        self.outcome: Outcome | None = None
        self.doubt: AmqpMeshError | None = None

    @property
    def error(self) -> AmqpMeshError | None:
        """The error that `send` raises: the delivery was not accepted, or is in doubt.

        None: it was accepted, or its outcome is not known yet.
        """
        if self.doubt is not None:
            return without_traceback(self.doubt)
        if self.outcome is None or isinstance(self.outcome, Accepted):
            return None
        return outcome_error(self.outcome)

    @property
    def length(self) -> int:
        """Octets of the whole payload, or the least that it will have."""
        return len(self.payload)

    def sent(self) -> None:
        """Free the octets: the last frame is written."""
        self.payload, self.prepare = b"", None
        self.done.set()

    def fail(self, error: AmqpMeshError) -> None:
        """Fail the delivery: it will not be sent."""
        self.failure = error
        self.done.set()

    def decide(self, outcome: Outcome | None, doubt: AmqpMeshError | None = None) -> None:
        """Set the outcome, or the error for which there is none."""
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
    """A delivery whose payload comes in pieces. One piece is here at a time, and earlier ones cannot be had again.

    Attributes: `reading`: the cancel scope of the task that produces the pieces. `piece_taken`: set when the
        present piece is in frames, or never will be.
    """

    __slots__ = ("_announced", "_fed", "is_last", "piece_taken", "reading")

    def __init__(self, first: bytes, announced: int | None, *, settled: bool) -> None:
        """Args: first: the first piece. announced: octets of the whole payload; None: unknown."""
        super().__init__(first, settled=settled)
        self.reading = trio.CancelScope()
        self.piece_taken = trio.Event()
        self.is_last = False
        self._announced = announced
        self._fed = len(first)

    @property
    def length(self) -> int:
        """Octets of the whole payload if that is known, else of the pieces so far."""
        return max(self._announced or 0, self._fed)

    def feed(self, piece: bytes | memoryview, *, is_last: bool) -> None:
        """Set the next piece, once the one before is taken."""
        self.payload, self.at, self.is_last = piece, 0, is_last
        self._fed += len(piece)
        self.piece_taken = trio.Event()

    def sent(self) -> None:
        """Stop the stream: its last frame is written."""
        super().sent()
        self._stop()

    def fail(self, error: AmqpMeshError) -> None:
        """Stop the stream: it will not be sent, or not to its end."""
        super().fail(error)
        self._stop()

    def decide(self, outcome: Outcome | None, doubt: AmqpMeshError | None = None) -> None:
        """Set the outcome, maybe before the last frame, and stop the stream."""
        super().decide(outcome, doubt)
        self._stop()

    def _stop(self) -> None:
        self.piece_taken.set()
        self.reading.cancel()
