"""Asking and being answered: a link for requests, a dynamic node for the replies that all calls share (§3.5.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import trio

from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError, InDoubtError, ProtocolError
from amqpmesh.router.io.client.correlation import correlation_of
from amqpmesh.router.io.client.link import again
from amqpmesh.router.io.client.receiver import BUFFER, Receiver
from amqpmesh.router.io.client.sender import Sender
from amqpmesh.router.io.client.sent import Pending, Sent
from amqpmesh.router.message import Message

if TYPE_CHECKING:
    from types import TracebackType

    from amqpmesh.router.amqp.performatives import Attach
    from amqpmesh.router.amqp.types import Value
    from amqpmesh.router.io.client.attacher import Attacher
    from amqpmesh.router.io.client.delivery import Delivery

Key = Any
"""A message-id: a str, bytes, a UUID, or an int."""


class _Call:
    """A request that waits for its answer."""

    __slots__ = ("answer", "done", "error", "pending")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: Message | None = None
        self.error: AmqpMeshError | None = None
        self.pending: Pending | None = None

    def fail(self, error: AmqpMeshError) -> None:
        """There will be no answer."""
        self.error = error
        self.done.set()


class _Replies(Receiver):
    """Gives each answer to the call that waits for it, as it comes."""

    def __init__(self, home: Attacher, name: str, *, credit: int, max_message_size: int, max_values: int) -> None:
        super().__init__(
            home, name, None, credit=credit, buffer=BUFFER, max_message_size=max_message_size, max_values=max_values
        )
        self.calls: dict[Key, _Call] = {}
        #: Answers that nobody waited for any more.
        self.late = 0
        self.requests: Sender | None = None

    def _hand(self, delivery: Delivery) -> None:
        super()._hand(delivery)
        answered = self._take()
        error = answered.decode()
        if error is not None:
            self._refuse(answered, error)
            return
        answer = answered.message
        answered.accept()
        call = self.calls.pop(answer.correlation_id, None)
        if call is None:
            self.late += 1
            return
        call.answer = answer
        call.done.set()

    def _refuse(self, delivery: Delivery, error: ProtocolError) -> None:
        """No call waits for ever for what has come and cannot be read, if it says at least whose it is."""
        super()._refuse(delivery, error)
        call = self.calls.pop(correlation_of(delivery.payload), None)
        if call is not None:
            call.fail(ProtocolError(error.scope, error.condition, f"the reply was rejected: {error.description}"))

    def _begin_use(self, attach: Attach) -> None:
        super()._begin_use(attach)
        if self.requests is not None:
            self.requests.can_go_on()

    def _lost(self, error: AmqpMeshError, *, final: bool) -> None:
        super()._lost(error, final=final)
        for call in self.calls.values():
            if call.pending is not None and call.pending.done.is_set():
                call.fail(InDoubtError("the way back for the answer was lost", getattr(error, "error", None)))
        if self.requests is not None:
            # They name the address that is no more.
            if final:
                self.requests.give_up(error)
            else:
                self.requests.begin_anew()


class _Requests(Sender):
    """Sends nothing while there is no address for the answer."""

    def __init__(self, home: Attacher, name: str, address: str | None, replies: _Replies) -> None:
        super().__init__(home, name, address)
        self._replies = replies
        replies.requests = self

    def _may_send(self) -> bool:
        # What is half sent is finished or aborted in any case.
        return super()._may_send() and (self._replies.is_attached or self._in_delivery() is not None)


class Requester:
    """Asks, and waits for the answers. Several tasks may share it: each gets its own."""

    def __init__(self, home: Attacher, name: str, address: str | None, replies: tuple[str, int, int, int]) -> None:
        """Args: replies: name, credit, largest message and most values of one, of the link that answers come by."""
        reply_name, credit, max_message_size, max_values = replies
        self._replies = _Replies(
            home, reply_name, credit=credit, max_message_size=max_message_size, max_values=max_values
        )
        self._requests = _Requests(home, name, address, self._replies)

    @property
    def reply_to(self) -> str | None:
        """Where answers are sent to; None: it is not attached."""
        return self._replies.address if self._replies.is_attached else None

    @property
    def late_replies(self) -> int:
        """Answers that came when nobody waited for them any more; they were accepted, and dropped."""
        return self._replies.late

    async def __aenter__(self) -> Self:
        """Attach both links. Raises: as `Sender`: the peer may have no dynamic nodes."""
        await self._replies.__aenter__()
        try:
            await self._requests.__aenter__()
        except BaseException as error:
            await self._replies.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Detach both."""
        try:
            await self._requests.__aexit__(kind, error, traceback)
        finally:
            await self._replies.__aexit__(kind, error, traceback)

    async def request(self, message: Message | Value) -> Message:
        """Send a request, and wait for the answer to it.

        The answer is known by its correlation-id: the request's own, or its message-id, which is made where it is
        missing. Cancelled, the call is forgotten, and a late answer is accepted and dropped.

        Raises: RejectedError, ReleasedError, ModifiedError: nobody took the request. InDoubtError: a link was lost
            before the answer came. ProtocolError: the answer is no message, or has too many values: it was rejected.
            LinkDetachedError, ConnectionClosedError: it was not sent. CommandError: another call waits for an answer by
            the same id.
        """
        request = replace(message) if isinstance(message, Message) else Message(message)
        if request.message_id is None:
            request.message_id = uuid4()
        payload = request.encode()  # whether it can be is to be known before it waits
        key = request.message_id if request.correlation_id is None else request.correlation_id
        await trio.lowlevel.checkpoint_if_cancelled()
        self._replies.check()
        calls = self._replies.calls
        if key in calls:
            raise CommandError("a call with that correlation-id waits for its answer already")
        call = calls[key] = _Call()

        def prepare() -> bytes:
            request.reply_to = self._replies.address
            return request.encode()

        def watch(sent: Sent) -> None:
            error = sent.error
            if error is not None and not call.done.is_set():
                call.fail(error)

        try:
            call.pending = self._requests.submit(payload, prepare=prepare, watch=watch)
            await self._requests.until_sent(call.pending)
            await call.done.wait()
        finally:
            # The answer takes it out; then another call may have its place.
            if calls.get(key) is call:
                del calls[key]
            if call.pending is not None:
                self._requests.disown(call.pending.sent)
        if call.error is not None:
            raise again(call.error)
        assert call.answer is not None
        return call.answer
