"""A delivery on its way out: it waits for credit, goes in frames, then waits for its outcome (§2.6.12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from amqpmesh.router.amqp.delivery_states import Accepted
from amqpmesh.router.io.client.link import again
from amqpmesh.router.outcomes import outcome_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.amqp.errors import AmqpMeshError
    from amqpmesh.router.kernel import relay as kernel
    from amqpmesh.router.outcomes import Outcome


class Outgoing:
    """What becomes of one delivery that a program sends."""

    __slots__ = (
        "aborting",
        "at",
        "decided",
        "delivery",
        "done",
        "doubt",
        "ended",
        "failure",
        "length",
        "outcome",
        "outdated",
        "payload",
        "prepare",
        "reading",
        "settled",
        "size",
        "taken",
        "watch",
    )

    def __init__(
        self,
        payload: bytes,
        *,
        settled: bool,
        prepare: Callable[[], bytes] | None = None,
        watch: Callable[[Outgoing], None] | None = None,
        reading: trio.CancelScope | None = None,
        length: int | None = None,
    ) -> None:
        """Args: prepare: makes the payload when its first frame can be sent, where it depends on the connection.
        watch: called when the outcome is known, or that it will not be. reading: the payload is the first piece of one
        that streams: `feed` adds the others; cancelled when no more are wanted. length: octets of the whole payload
        that streams; None: not known.
        """
        #: All of it, or the piece that is being sent.
        self.payload: bytes | memoryview = payload
        self.reading = reading
        self.length = length
        #: Octets of all pieces so far.
        self.size = len(payload)
        #: There is no other piece.
        self.ended = reading is None
        #: Set when the piece is in frames, or will never be.
        self.taken = trio.Event()
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
            return again(self.doubt)
        if self.outcome is None or isinstance(self.outcome, Accepted):
            return None
        return outcome_error(self.outcome)

    @property
    def streams(self) -> bool:
        """Whether the payload comes in pieces."""
        return self.reading is not None

    @property
    def is_hungry(self) -> bool:
        """Whether nothing can be sent before the next piece comes."""
        return self.taken.is_set() and not self.ended

    def feed(self, piece: bytes | memoryview, *, ended: bool) -> None:
        """The next piece of a payload that streams, once the one before is taken. Args: ended: it is the last."""
        self.payload, self.at, self.ended = piece, 0, ended
        self.size += len(piece)
        self.taken = trio.Event()

    def sent(self) -> None:
        """Its last frame is written: the octets are needed no more."""
        self.payload, self.prepare = b"", None
        self._over()

    def fail(self, error: AmqpMeshError) -> None:
        """It will not be sent."""
        self.failure = error
        self._over()

    def decide(self, outcome: Outcome | None, doubt: AmqpMeshError | None = None) -> None:
        """The outcome is known, or why there is none."""
        self.outcome, self.doubt = outcome, doubt
        self.decided.set()
        self._stop_reading()
        watch, self.watch = self.watch, None
        if watch is not None:
            watch(self)

    def _over(self) -> None:
        self.taken.set()
        self.done.set()
        self._stop_reading()

    def _stop_reading(self) -> None:
        if self.reading is not None:
            self.reading.cancel()

    async def until_decided(self) -> Outcome:
        """Wait for the outcome. Raises: InDoubtError: there is none."""
        if self.decided.is_set():
            await trio.lowlevel.checkpoint()
        else:
            await self.decided.wait()
        if self.doubt is not None:
            raise again(self.doubt)
        assert self.outcome is not None
        return self.outcome
