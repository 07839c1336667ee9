"""`Delivery`: a message that a program has received, and its decision about it (§3.4)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

import trio

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.errors import CommandError, LinkDetachedError, SessionEndedError, shown
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.amqp.standard.delivery_states import Modified, Rejected
from amqpmesh.router.client.links.arguments import by_symbol, symbol
from amqpmesh.router.client.sent import Sent
from amqpmesh.router.kernel import ACCEPTED_STATE, RELEASED_STATE
from amqpmesh.router.message.content import Message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.client.links.incoming import Incoming
    from amqpmesh.router.client.links.receiver_link import ReceiverLink

WHY_MAX: Final = 200
"""The most characters of a description. It may quote the peer, and has to fit into a frame."""


_OF_MESSAGES: Final = frozenset(item.name for item in fields(Message))


class Delivery:
    """One delivery: read `message`, then accept, reject, release or modify it, once.

    No decision waits. `async with delivery as message` decides at the end of its body: accepted if the body returned,
    modified (delivery-failed) if it raised, released if it was cancelled. A decision inside the body stands.
    """

    __slots__ = ("__weakref__", "_incoming", "_receiver", "_span")

    def __init__(self, receiver: ReceiverLink, incoming: Incoming) -> None:
        self._receiver = receiver
        self._incoming = incoming
        self._span: AbstractContextManager[None] | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an error that tells where a field of the message is found."""
            said = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _OF_MESSAGES:
                said += f": the message has it, delivery.message.{name}"
            raise AttributeError(said, name=name, obj=self)

    def __repr__(self) -> str:
        return f"<Delivery {self._incoming.described()} from {shown(self._receiver.address)}>"

    # ------------------------------------------------------------------------------------------------------ what came

    @property
    def tag(self) -> bytes:
        """The delivery-tag (§2.8.7)."""
        return self._incoming.kernel.tag

    @property
    def message_format(self) -> int:
        """The message-format (§3.2.16): 0 for messages of part 3. Others have a `payload` and no `message`."""
        return self._incoming.kernel.message_format

    @property
    def is_settled(self) -> bool:
        """True if the sender has settled the delivery, perhaps when it sent it, and so waits for no decision."""
        return self._incoming.is_settled

    @property
    def is_decided(self) -> bool:
        """True if the delivery is decided, by this program or by the library."""
        return self._incoming.is_decided

    @property
    def payload(self) -> bytes:
        """All octets of the message as they were received. Raises: CommandError: the delivery streams."""
        return self._incoming.payload

    @property
    def message(self) -> Message:
        """The message. Of a delivery that streams, the message without its body.

        Raises: CommandError: the message-format is not 0.
        """
        return self._incoming.message

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Iterate over the octets of the body as they arrive, once. Octets that are not taken stop the sender.

        Raises: CommandError: the body is not data: use `read`. DeliveryAbortedError, LinkDetachedError,
            ConnectionClosedError: the rest will not arrive.
        """
        return self._incoming.octets()

    async def read(self) -> Message:
        """Return the whole message once it has arrived, with the octets of several data sections joined.

        Raises: as the iteration. ProtocolError: it is no valid message.
        """
        return await self._incoming.read()

    # ------------------------------------------------------------------------------------------------------ deciding

    def accept(self) -> bool:
        """Accept the delivery: it was processed (§3.4.2).

        Returns: whether the sender is told. False if the sender has settled the delivery itself, or if the link is
            gone.
        Raises: CommandError: it is decided already.
        """
        return self._receiver.decide(self._incoming, ACCEPTED_STATE)

    def reject(
        self, condition: str | None = None, description: str | None = None, info: Mapping[str, Value] | None = None
    ) -> bool:
        """Reject the delivery: the message is invalid (§3.4.3).

        Args: condition, description, info: an error with the reason. Returns, Raises: as `accept`.
        """
        error = None
        if condition is not None:
            error = Error(condition=symbol(condition), description=description, info=by_symbol(info))
        elif description is not None or info is not None:
            raise CommandError("an error has a condition")
        return self._receiver.decide(self._incoming, encode_composite(Rejected(error=error)))

    def release(self) -> bool:
        """Release the delivery: it was not processed, and another receiver may get it (§3.4.4).

        Returns, Raises: as `accept`.
        """
        return self._receiver.decide(self._incoming, RELEASED_STATE)

    def modify(
        self,
        *,
        delivery_failed: bool = False,
        undeliverable_here: bool = False,
        message_annotations: Mapping[str, Value] | None = None,
    ) -> bool:
        """Return the delivery unprocessed, with changes for the next receiver (§3.4.5).

        Args: delivery_failed: count this attempt. undeliverable_here: do not send it to this receiver again.
            message_annotations: annotations to merge into the message's.
        Returns: as `accept`. Raises: CommandError: as `accept`, and if the source does not support this outcome.
        """
        if not self._receiver.takes_modified:
            raise CommandError("modified is not among the outcomes of the source: release the delivery, or reject it")
        state = Modified(
            delivery_failed=delivery_failed or None,
            undeliverable_here=undeliverable_here or None,
            message_annotations=by_symbol(message_annotations),
        )
        return self._receiver.decide(self._incoming, encode_composite(state))

    async def settled(self) -> bool:
        """Wait until the sender has settled the delivery, too.

        With rcv-settle-mode second, the delivery is exactly once from then on.
        Returns: whether the sender has settled it; False: the link is gone.
        """
        return await self._incoming.until_settled()

    async def reply(self, message: Message | Value, *, settled: bool = True) -> Sent | None:
        """Reply to the message: to its reply-to, with its correlation-id, or else its message-id.

        Args: settled: send the reply at most once, so that a client that asks and then takes no reply cannot stop
            replies to others. Otherwise the returned `Sent` has the outcome.
        Returns: None if no reply is possible: the message has no reply-to, the peer refuses that address, or the reply
            or the address is too large for the peer. Then the delivery is rejected, unless it is decided, and the first
            such failure of each receiver is logged.
        Raises: CommandError: the reply is no valid message, or the program has left the router or connection.
            ConnectionClosedError: the connection is over.
        """
        asked = self.message
        answer = replace(message) if isinstance(message, Message) else Message(message)
        answer.to = asked.reply_to
        if answer.correlation_id is None:
            answer.correlation_id = asked.message_id if asked.correlation_id is None else asked.correlation_id
        if not asked.reply_to:
            answer.encode()  # an invalid one is an error of the caller all the same
            await trio.lowlevel.checkpoint()
            self._receiver.reject_unanswerable(
                self._incoming, AmqpCondition.INVALID_FIELD, "the message has no reply-to"
            )
            return None
        spans = self._receiver.spans
        try:
            with nullcontext(answer) if spans is None else spans.sending(answer, asked.reply_to) as carrying:
                return Sent(await self._receiver.reply(asked.reply_to, carrying.encode(), settled=settled))
        except (LinkDetachedError, SessionEndedError) as refusal:
            why = f"no reply can be sent to {shown(asked.reply_to)}: {refusal}"
            self._receiver.reject_unanswerable(self._incoming, AmqpCondition.PRECONDITION_FAILED, why[:WHY_MAX])
            return None

    async def __aenter__(self) -> Message:
        """Return the message. If this is cancelled, the delivery is released, as it would be inside the body."""
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            await self.__aexit__(type(cancelled), cancelled, None)
            raise
        message, spans = self.message, self._receiver.spans
        if spans is not None:
            self._span = spans.processing(message, self._receiver.address)
            self._span.__enter__()
        return message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Decide the delivery, unless the body has done so."""
        span, self._span = self._span, None
        if span is not None:
            span.__exit__(kind, error, traceback)
        if self.is_decided:
            return
        if error is None:
            self.accept()
        elif _is_failure(error):
            self._receiver.fail(self._incoming)
        else:
            # Cancelled, or the program ends: the delivery did not fail.
            self.release()


def _is_failure(error: BaseException) -> bool:
    """Return whether something went wrong: false for a cancellation and nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_failure, error.exceptions))
    return isinstance(error, Exception)
