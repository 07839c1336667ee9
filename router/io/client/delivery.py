"""A delivery as a program has it: what came, and the decision about it (§2.6.12, §3.4)."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router.amqp.composite import encode_composite
from amqpmesh.router.amqp.definitions import AmqpCondition, Error, LinkCondition
from amqpmesh.router.amqp.delivery_states import Modified, Rejected
from amqpmesh.router.amqp.errors import (
    AmqpMeshError,
    CommandError,
    LinkDetachedError,
    ProtocolError,
    Scope,
    SessionEndedError,
    shown,
)
from amqpmesh.router.amqp.messaging import MESSAGE_FORMAT, Data
from amqpmesh.router.io.client.link import again
from amqpmesh.router.io.client.symbols import by_symbol, symbol
from amqpmesh.router.kernel.relay import ACCEPTED_STATE, RELEASED_STATE
from amqpmesh.router.message import Message
from amqpmesh.router.parts import Parts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from types import TracebackType

    from amqpmesh.router.amqp.types import Value
    from amqpmesh.router.io.client.receiver import Receiver
    from amqpmesh.router.io.client.sent import Sent
    from amqpmesh.router.io.client.share import Share
    from amqpmesh.router.kernel.relay import Delivery as KernelDelivery

SECTION_MAX: Final = 64 * 2**10
"""Octets of each section before and behind the body of a message that streams."""

WHOLE_MAX: Final = 16 * 2**20
"""Octets of a message that streams and whose body is no data, so that it has to be there whole."""

WHY_MAX: Final = 200
"""Characters of a description: part of it may be a peer's, and it has to go into a frame."""

FAILED: Final = encode_composite(Modified(delivery_failed=True))


class DeliveryAbortedError(AmqpMeshError):
    """The sender dropped the delivery in the middle of it (§2.6.14); nothing is left to decide."""


class Delivery:
    """One delivery: read `message`, then accept, reject, release or modify it, once.

    Deciding never waits. `async with delivery as message` decides by how its body ends: accepted; modified
    (delivery-failed) if it raised; released if it was cancelled; as it is, if it was decided inside.
    """

    def __init__(
        self, receiver: Receiver, kernel: KernelDelivery, share: Share, *, streaming: bool, max_values: int
    ) -> None:
        self._receiver = receiver
        self._kernel = kernel
        self._share = share
        self._streaming = streaming
        self._max_values = max_values
        self._parts = Parts(SECTION_MAX, max_values) if streaming and kernel.message_format == MESSAGE_FORMAT else None
        #: Of a delivery that streams: body octets that came and were not taken, a frame each.
        self._came: deque[bytes] = deque()
        self._pieces: list[bytes] = []
        self._message: Message | None = None
        self._change = trio.Event()
        self._failure: AmqpMeshError | None = None
        #: Frames of the session's window that it holds; those among them without anything that is taken by itself.
        self.frames = 0
        self._beside = 0
        #: It was put where programs take deliveries from.
        self.is_handed_out = False
        #: A program has it.
        self.is_out = False
        #: It counts against the receiver's credit.
        self.counts = True
        #: It was decided.
        self.is_decided = False
        #: Its link is gone: nobody can be told.
        self.is_lost = False
        #: The sender has settled it.
        self.settlement = trio.Event()
        if kernel.remote_settled:
            self.settlement.set()

    def __repr__(self) -> str:
        return f"<Delivery {self._kernel.tag.hex()} of {self._receiver.name!r}>"

    # ------------------------------------------------------------------------------------------------------ what came

    @property
    def tag(self) -> bytes:
        """The delivery-tag (§2.8.7)."""
        return self._kernel.tag

    @property
    def message_format(self) -> int:
        """0 for messages as part 3 defines them (§3.2.16); for others there is `payload`, and no `message`."""
        return self._kernel.message_format

    @property
    def is_settled(self) -> bool:
        """The sender has settled it, maybe before it was sent: nobody waits for a decision."""
        return self._kernel.remote_settled

    @property
    def payload(self) -> bytes:
        """All octets of it. Raises: CommandError: it streams."""
        if self._parts is not None:
            raise CommandError("a delivery that streams is read by `async for`, or by `read()`")
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    @property
    def message(self) -> Message:
        """The message; of one that streams, without its body.

        Raises: CommandError: it is of another message-format than 0.
        """
        if self._message is None:
            if self.message_format != MESSAGE_FORMAT:
                raise CommandError(f"message-format {self.message_format} is not known here: there is `payload`")
            if self._parts is not None:
                assert self._parts.head is not None, "it is handed out once its head is there"
                return self._parts.head
            self._message = Message.decode(self.payload, max_values=self._max_values)
        return self._message

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The body's octets as they come, once. What is not taken stops the sender.

        Raises: CommandError: the body is no data: use `read`. DeliveryAbortedError, LinkDetachedError,
            ConnectionClosedError: the rest will not come.
        """
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
                    raise again(self._failure)
                if self._kernel.complete:
                    return
                await self._change.wait()
            part = self._came.popleft()
            self._release(1)
            yield part

    async def read(self) -> Message:
        """The whole message, once all of it has come; the octets of several data sections are joined.

        Raises: as iterating; ProtocolError: it is none.
        """
        await trio.lowlevel.checkpoint()
        if self._parts is None or self._message is not None:
            return self.message
        message = self.message
        if self._parts.is_data:
            octets = b"".join([part async for part in self])
            message.body = octets if self._parts.has_body else None
        else:
            while not self._kernel.complete and self._failure is None:
                await self._change.wait()
            if self._failure is not None:
                raise again(self._failure)
            message = self._parts.whole()
        self._message = message
        return message

    # ------------------------------------------------------------------------------------------------------ deciding

    def accept(self) -> bool:
        """It was processed (§3.4.2).

        Returns: whether the sender is told: not, if it settled the delivery itself, or if the link is gone.
        Raises: CommandError: it was decided already.
        """
        return self._receiver.decide(self, ACCEPTED_STATE)

    def reject(
        self, condition: str | None = None, description: str | None = None, info: Mapping[str, Value] | None = None
    ) -> bool:
        """The message is invalid (§3.4.3). Args: an error that says why. Returns, Raises: as `accept`."""
        error = None
        if condition is not None:
            error = Error(condition=symbol(condition), description=description, info=by_symbol(info))
        elif description is not None or info is not None:
            raise CommandError("an error has a condition")
        return self._receiver.decide(self, encode_composite(Rejected(error=error)))

    def release(self) -> bool:
        """It was not processed, and somebody else may (§3.4.4). Returns, Raises: as `accept`."""
        return self._receiver.decide(self, RELEASED_STATE)

    def modify(
        self,
        *,
        delivery_failed: bool = False,
        undeliverable_here: bool = False,
        message_annotations: Mapping[str, Value] | None = None,
    ) -> bool:
        """It was not processed, and is to be changed before it goes to somebody else (§3.4.5).

        Args: delivery_failed: count the attempt. undeliverable_here: not to this receiver again.
            message_annotations: to be merged into the message's.
        Returns: as `accept`. Raises: CommandError: as `accept`, and where the source does not have that outcome.
        """
        if not self._receiver.takes_modified:
            raise CommandError("modified is not among the outcomes of the source: release the delivery, or reject it")
        state = Modified(
            delivery_failed=delivery_failed or None,
            undeliverable_here=undeliverable_here or None,
            message_annotations=by_symbol(message_annotations),
        )
        return self._receiver.decide(self, encode_composite(state))

    async def settled(self) -> bool:
        """Wait until the sender has settled it, too: with rcv-settle-mode second, from there on it is exactly once.

        Returns: whether it has; False: the link is gone.
        """
        await trio.lowlevel.checkpoint()
        await self.settlement.wait()
        return not self.is_lost

    async def reply(self, message: Message | Value, *, settled: bool = True) -> Sent | None:
        """Answer: to the message's reply-to, with its correlation-id, else its message-id.

        Args: settled: at most once, so that nobody who asks and then takes no answer can stop those who come after.
            Else ask what is returned for the outcome.
        Returns: None: it cannot be answered: there is no reply-to, or the peer refuses it, or one of the two is too
            large for the peer. Then the delivery is rejected, unless it is decided, and the log says so once for each
            receiver.
        Raises: CommandError: the answer is no message; or router or connection were left. ConnectionClosedError: the
            connection is over.
        """
        asked = self.message
        answer = replace(message) if isinstance(message, Message) else Message(message)
        answer.to = asked.reply_to
        if answer.correlation_id is None:
            answer.correlation_id = asked.message_id if asked.correlation_id is None else asked.correlation_id
        payload = answer.encode()
        if not asked.reply_to:
            await trio.lowlevel.checkpoint()
            self._receiver.unanswerable(self, AmqpCondition.INVALID_FIELD, "the message has no reply-to")
            return None
        try:
            return await self._receiver.reply(asked.reply_to, payload, settled=settled)
        except (LinkDetachedError, SessionEndedError) as refusal:
            why = f"no reply can be sent to {shown(asked.reply_to)}: {refusal}"
            self._receiver.unanswerable(self, AmqpCondition.PRECONDITION_FAILED, why[:WHY_MAX])
            return None

    async def __aenter__(self) -> Message:
        """The message. Cancelled here, the delivery is released as it would be inside."""
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            await self.__aexit__(type(cancelled), cancelled, None)
            raise
        return self.message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Decide, if that was not done."""
        if self.is_decided:
            return
        if error is None:
            self.accept()
        elif _is_failure(error):
            self._receiver.fail(self)
        else:
            # Cancelled, or the program ends: it was nobody's fault.
            self.release()

    # ------------------------------------------------------------------------------------------------ for the receiver

    @property
    def kernel(self) -> KernelDelivery:
        """The engine's."""
        return self._kernel

    @property
    def can_be_handed_out(self) -> bool:
        """All of it is there, or of one that streams as much as is read before its body."""
        return self._kernel.complete if self._parts is None else self._parts.head is not None

    def add(self, payload: bytes) -> None:
        """A frame came. Raises: ProtocolError: it is no message, or too large to be kept."""
        self.frames += 1
        parts = self._parts
        if parts is None:
            self._pieces.append(payload)
            self._beside += 1
        else:
            octets = b"".join(parts.feed(payload))
            if self._kernel.complete:
                parts.finish()
            if octets:
                self._came.append(octets)
            else:
                self._beside += 1
            self._changed()
        if self.is_out and self._streaming:
            self.release_beside()
        if self._streaming and (parts is None or not parts.is_data) and self._kernel.size > WHOLE_MAX:
            raise ProtocolError(
                Scope.LINK,
                LinkCondition.MESSAGE_SIZE_EXCEEDED,
                f"more than {WHOLE_MAX} octets of a message that streams and whose body is no data",
            )

    def end(self, failure: AmqpMeshError) -> None:
        """Nothing more of it is to be had."""
        self._failure = failure
        self._came.clear()
        self.release_frames()
        self._changed()

    def lose(self, failure: AmqpMeshError) -> None:
        """Its link is gone."""
        self.is_lost = True
        self.settlement.set()
        if not self._kernel.complete:
            self.end(failure)

    def decode(self) -> ProtocolError | None:
        """Look whether it is a message, before somebody has it. Returns: why not."""
        if self.message_format == MESSAGE_FORMAT and self._parts is None:
            try:
                self._message = Message.decode(self.payload, max_values=self._max_values)
            except ProtocolError as error:
                return error
        return None

    def decided(self) -> None:
        """What is left of it is for nobody."""
        self.is_decided = True
        if self._parts is not None and self._failure is None and (self._came or not self._kernel.complete):
            self.end(CommandError("the delivery was decided before all of it was taken"))
        self.release_frames()

    def release_frames(self) -> None:
        """It holds nothing of the session's window any more."""
        self._beside = 0
        if self.frames:
            self._release(self.frames)

    def release_beside(self) -> None:
        """What the program does not take part by part, and has to be there before it can go on."""
        beside, self._beside = self._beside, 0
        if beside:
            self._release(beside)

    def _release(self, frames: int) -> None:
        self.frames -= frames
        self._share.release(frames)

    def _changed(self) -> None:
        change, self._change = self._change, trio.Event()
        change.set()


def _is_failure(error: BaseException) -> bool:
    """Whether something went wrong: not, if it was cancelled, and nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_failure, error.exceptions))
    return isinstance(error, Exception)


def _data(body: object) -> list[bytes]:
    if isinstance(body, bytes):
        return [body]
    if isinstance(body, tuple) and isinstance(body[0], Data):
        return [part.value for part in body]
    raise CommandError("the body is no data: it is in `message`")
