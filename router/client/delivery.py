"""`Delivery`: what came, as a program has it, and the decision about it (§3.4)."""

from __future__ import annotations

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
    from types import TracebackType

    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.client.links.incoming import Incoming
    from amqpmesh.router.client.links.receiver_link import ReceiverLink

WHY_MAX: Final = 200
"""Characters of a description: part of it may be a peer's, and it has to go into a frame."""


_OF_MESSAGES: Final = frozenset(item.name for item in fields(Message))


class Delivery:
    """One delivery: read `message`, then accept, reject, release or modify it, once.

    Deciding never waits. `async with delivery as message` decides by how its body links: accepted; modified
    (delivery-failed) if it raised; released if it was cancelled; as it is, if it was decided inside.
    """

    __slots__ = ("__weakref__", "_incoming", "_receiver")

    def __init__(self, receiver: ReceiverLink, incoming: Incoming) -> None:
        self._receiver = receiver
        self._incoming = incoming

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Tell those who look for a field of the message where it is."""
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
        """0 for messages as part 3 defines them (§3.2.16); for others there is `payload`, and no `message`."""
        return self._incoming.kernel.message_format

    @property
    def is_settled(self) -> bool:
        """The sender has settled it, maybe before it was sent: nobody waits for a decision."""
        return self._incoming.is_settled

    @property
    def is_decided(self) -> bool:
        """Whether it was decided, by whatever means."""
        return self._incoming.is_decided

    @property
    def payload(self) -> bytes:
        """All octets of it. Raises: CommandError: it streams."""
        return self._incoming.payload

    @property
    def message(self) -> Message:
        """The message; of one that streams, without its body.

        Raises: CommandError: it is of another message-format than 0.
        """
        return self._incoming.message

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The body's octets as they come, once. What is not taken stops the sender.

        Raises: CommandError: the body is no data: use `read`. DeliveryAbortedError, LinkDetachedError,
            ConnectionClosedError: the rest will not come.
        """
        return self._incoming.octets()

    async def read(self) -> Message:
        """The whole message, once all of it has come; the octets of several data sections are joined.

        Raises: as iterating; ProtocolError: it is none.
        """
        return await self._incoming.read()

    # ------------------------------------------------------------------------------------------------------ deciding

    def accept(self) -> bool:
        """It was processed (§3.4.2).

        Returns: whether the sender is told: not, if it settled the delivery itself, or if the link is gone.
        Raises: CommandError: it was decided already.
        """
        return self._receiver.decide(self._incoming, ACCEPTED_STATE)

    def reject(
        self, condition: str | None = None, description: str | None = None, info: Mapping[str, Value] | None = None
    ) -> bool:
        """The message is invalid (§3.4.3). Args: an error that says why. Returns, Raises: as `accept`."""
        error = None
        if condition is not None:
            error = Error(condition=symbol(condition), description=description, info=by_symbol(info))
        elif description is not None or info is not None:
            raise CommandError("an error has a condition")
        return self._receiver.decide(self._incoming, encode_composite(Rejected(error=error)))

    def release(self) -> bool:
        """It was not processed, and somebody else may (§3.4.4). Returns, Raises: as `accept`."""
        return self._receiver.decide(self._incoming, RELEASED_STATE)

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
        return self._receiver.decide(self._incoming, encode_composite(state))

    async def settled(self) -> bool:
        """Wait until the sender has settled it, too: with rcv-settle-mode second, from there on it is exactly once.

        Returns: whether it has; False: the link is gone.
        """
        return await self._incoming.until_settled()

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
            self._receiver.reject_unanswerable(
                self._incoming, AmqpCondition.INVALID_FIELD, "the message has no reply-to"
            )
            return None
        try:
            return Sent(await self._receiver.reply(asked.reply_to, payload, settled=settled))
        except (LinkDetachedError, SessionEndedError) as refusal:
            why = f"no reply can be sent to {shown(asked.reply_to)}: {refusal}"
            self._receiver.reject_unanswerable(self._incoming, AmqpCondition.PRECONDITION_FAILED, why[:WHY_MAX])
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
            self._receiver.fail(self._incoming)
        else:
            # Cancelled, or the program ends: it was nobody's fault.
            self.release()


def _is_failure(error: BaseException) -> bool:
    """Whether something went wrong: not, if it was cancelled, and nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_failure, error.exceptions))
    return isinstance(error, Exception)
