"""Deliveries on their way in: their frames, their messages, and their state at the receiver (§2.6.12)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError, ProtocolError, Scope
from amqpmesh.router.amqp.standard.definitions import LinkCondition
from amqpmesh.router.amqp.standard.delivery_states import Modified
from amqpmesh.router.amqp.standard.messaging import MESSAGE_FORMAT, Data
from amqpmesh.router.client.links.link import without_traceback
from amqpmesh.router.kernel import SMALL, serial_distance
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.reader import Parts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.kernel import Delivery as KernelDelivery

SECTION_MAX: Final = 64 * 2**10
"""The most octets of a section before or after the body of a message that streams."""

WHOLE_MAX: Final = 16 * 2**20
"""The most octets of a message that streams and whose body is no data, so that it must be held whole."""

FAILED: Final = encode_composite(Modified(delivery_failed=True))


class DeliveryAbortedError(AmqpMeshError):
    """The sender aborted the delivery before its last frame (§2.6.14). There is nothing to decide."""


class WindowShare:
    """The part of its session's incoming window that a link holds, in frames (§2.5.6).

    A session may outlive its links, so each returns its own part.

    Args: widest: transfer frames. The window doubles up to this size, each time that as many small frames as it has
        came in a row: eight of them take no more memory than a full frame. After a frame that is not small, it becomes
        as narrow as before, as fast as the peer uses it up. 0: it never widens.
    """

    __slots__ = ("_frames", "_session", "_small", "_widest")

    def __init__(self, session: Session, widest: int = 0) -> None:
        self._session = session
        self._frames = 0
        self._widest = widest
        self._small = 0  # small frames that came in a row

    def take(self, frames: int = 1) -> None:
        """Count frames that have arrived."""
        self._frames += frames

    def note(self, octets: int) -> None:
        """Widen the window, if frames are small. Args: octets: of the payload of the frame that has just come."""
        if not self._widest:
            return
        self._small = self._small + 1 if octets < SMALL else 0
        window = self._session.window
        if self._small >= window and window < self._widest:
            self._set_window(min(2 * window, self._widest), released=0)

    def release(self, frames: int) -> None:
        """Return frames to the window: their octets are freed."""
        if self._frames:  # else the link was over before, and `close` has returned all
            self._frames -= frames
            session = self._session
            if self._widest and self._small < session.part < session.window:
                self._set_window(session.part, released=frames)
            else:
                session.release(frames)

    def close(self) -> None:
        """Return all frames: the link is over."""
        self.release(self._frames)

    def _set_window(self, frames: int, *, released: int) -> None:
        """Change the window. It keeps room for all frames that are held, or that the peer may send by what it knows.

        Args: released: held frames that are returned.
        """
        flow_state = self._session.flow_state
        announced = serial_distance(flow_state.next_incoming_id, flow_state.incoming_limit)
        flow_state.window_size = max(frames, flow_state.held - released + announced)
        self._session.release(released)


class Incoming:
    """A delivery as far as it has arrived, and its state at the receiver."""

    __slots__ = (
        "_came",
        "_change",
        "_failure",
        "_max_values",
        "_message",
        "_parts",
        "_pieces",
        "_settlement",
        "_streaming",
        "_unstreamed",
        "_window_share",
        "frames",
        "is_away",
        "is_decided",
        "is_lost",
        "is_over",
        "is_queued",
        "is_taken",
        "kernel",
        "uses_credit",
    )

    def __init__(self, kernel: KernelDelivery, share: WindowShare, *, streaming: bool, max_values: int) -> None:
        #: The engine's delivery.
        self.kernel = kernel
        self._window_share = share
        self._streaming = streaming
        self._max_values = max_values
        self._parts = Parts(SECTION_MAX, max_values) if streaming and kernel.message_format == MESSAGE_FORMAT else None
        #: Of a delivery that streams: body octets that the program has not taken, one entry a frame.
        self._came: deque[bytes] = deque()
        self._pieces: list[bytes] = []
        self._message: Message | None = None
        #: Events are made when a task waits: few deliveries have one that does.
        self._change: trio.Event | None = None
        self._settlement: trio.Event | None = None
        self._failure: AmqpMeshError | None = None
        #: Frames of the session's window that the delivery holds. `_unstreamed`: those of them that no program reads as
        #: a stream.
        self.frames = 0
        self._unstreamed = 0
        #: True if the delivery is, or was, in the queue that programs take deliveries from.
        self.is_queued = False
        #: True if a program has taken the delivery.
        self.is_taken = False
        #: True if the delivery counts against the receiver's credit.
        self.uses_credit = True
        #: True if the delivery is decided.
        self.is_decided = False
        #: Whether its link is gone, and the peer may resume it over another.
        self.is_away = False
        #: Whether its link is gone, so that the sender cannot be told a decision.
        self.is_lost = False
        #: True if the sender has settled it, or its link is gone.
        self.is_over = kernel.remote_settled

    def described(self) -> str:
        """Return its tag, state and size, for people; nothing of its content."""
        kernel = self.kernel
        state = "decided" if self.is_decided else "settled" if self.is_settled else "undecided"
        return f"{kernel.tag.hex()} {state}, {kernel.size} octets{'' if kernel.complete else ' so far'}"

    @property
    def is_settled(self) -> bool:
        """True if the sender has settled the delivery, perhaps when it sent it, and so waits for no decision."""
        return self.kernel.remote_settled

    @property
    def payload(self) -> bytes:
        """All octets, as `Delivery.payload`."""
        if self._parts is not None:
            raise CommandError("a delivery that streams is read by `async for`, or by `read()`")
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    @property
    def message(self) -> Message:
        """The message, as `Delivery.message`."""
        if self._message is None:
            if self.kernel.message_format != MESSAGE_FORMAT:
                raise CommandError(f"message-format {self.kernel.message_format} is not known here: there is `payload`")
            if self._parts is not None:
                assert self._parts.head is not None, "it is handed out once its head is there"
                return self._parts.head
            self._message = Message.decode(self.payload, max_values=self._max_values)
        return self._message

    async def octets(self) -> AsyncIterator[bytes]:
        """Iterate over the octets of the body, as a `Delivery` does."""
        if self._parts is None:
            await trio.lowlevel.checkpoint()
            for part in _data(self.message.body):
                yield part
            return
        if not self._parts.is_data:
            raise CommandError("the body is no data: use `read()`")
        while True:
            await trio.lowlevel.checkpoint()
            while not self._came:
                if self._failure is not None:
                    raise without_traceback(self._failure)
                if self.kernel.complete:
                    return
                await self._changes()
            part = self._came.popleft()
            self._release(1)
            yield part

    async def read(self) -> Message:
        """Return the whole message, as `Delivery.read` does."""
        await trio.lowlevel.checkpoint()
        if self._parts is None or self._message is not None:
            return self.message
        message = self.message
        if self._parts.is_data:
            octets = b"".join([part async for part in self.octets()])
            message.body = octets if self._parts.has_body else None
        else:
            while not self.kernel.complete and self._failure is None:
                await self._changes()
            if self._failure is not None:
                raise without_traceback(self._failure)
            message = self._parts.whole()
        self._message = message
        return message

    async def until_settled(self) -> bool:
        """Wait until the sender has settled it, as `Delivery.settled` does."""
        await trio.lowlevel.checkpoint()
        if not self.is_over:
            if self._settlement is None:
                self._settlement = trio.Event()
            await self._settlement.wait()
        return not self.is_lost

    # ------------------------------------------------------------------------------------------------ for the receiver

    @property
    def is_ready(self) -> bool:
        """True if the program can take the delivery.

        It can when the delivery is complete, or when it streams and the sections before its body have arrived.
        """
        return self.kernel.complete if self._parts is None else self._parts.head is not None

    def add(self, payload: bytes) -> None:
        """Add a frame. Raises: ProtocolError: it is no valid message, or too large to be held."""
        self.frames += 1
        parts = self._parts
        if parts is None:
            self._pieces.append(payload)
            self._unstreamed += 1
        else:
            octets = b"".join(parts.feed(payload))
            if self.kernel.complete:
                parts.finish()
            if octets:
                self._came.append(octets)
            else:
                self._unstreamed += 1
            self._changed()
        if self.is_taken and self._streaming:
            self.release_unstreamed()
        if self._streaming and (parts is None or not parts.is_data) and self.kernel.size > WHOLE_MAX:
            raise ProtocolError(
                Scope.LINK,
                LinkCondition.MESSAGE_SIZE_EXCEEDED,
                f"more than {WHOLE_MAX} octets of a message that streams and whose body is no data",
            )

    def end(self, failure: AmqpMeshError) -> None:
        """End the delivery with an error, and free its octets: the rest will not arrive, or is not wanted."""
        self._failure = failure
        self._came.clear()
        self.release_frames()
        self._changed()

    def lose(self, failure: AmqpMeshError) -> None:
        """Mark it as lost with its link."""
        self.is_lost, self.is_away = True, False
        self.settled()
        if not self.kernel.complete:
            self.end(failure)

    def decode(self) -> ProtocolError | None:
        """Decode the message, before a program takes it. Returns: the error if it is no valid message."""
        if self.kernel.message_format == MESSAGE_FORMAT and self._parts is None:
            try:
                self._message = Message.decode(self.payload, max_values=self._max_values)
            except ProtocolError as error:
                return error
        return None

    def settled(self) -> None:
        """Note that the sender has settled it, or that its link is gone."""
        self.is_over = True
        if self._settlement is not None:
            self._settlement.set()

    def decided(self) -> None:
        """Mark it as decided, and free what the program has not taken."""
        self.is_decided = True
        if self._parts is not None and self._failure is None and (self._came or not self.kernel.complete):
            self.end(CommandError("the delivery was decided before all of it was taken"))
        self.release_frames()

    def release_frames(self) -> None:
        """Return all frames that it holds to the session's window."""
        self._unstreamed = 0
        if self.frames:
            self._release(self.frames)

    def release_unstreamed(self) -> None:
        """Return the frames that the program does not take one by one, so that the rest can arrive."""
        beside, self._unstreamed = self._unstreamed, 0
        if beside:
            self._release(beside)

    def _release(self, frames: int) -> None:
        self.frames -= frames
        self._window_share.release(frames)

    async def _changes(self) -> None:
        if self._change is None:
            self._change = trio.Event()
        await self._change.wait()

    def _changed(self) -> None:
        change, self._change = self._change, None
        if change is not None:
            change.set()


def _data(body: object) -> list[bytes]:
    """Return the octets of a body of data sections. Raises: CommandError: the body is no data."""
    if isinstance(body, bytes):
        return [body]
    if isinstance(body, tuple) and isinstance(body[0], Data):
        return [part.value for part in body]
    raise CommandError("the body is no data: it is in `message`")
