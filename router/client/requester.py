"""`Requester`: sends requests and returns their replies, by a link for each direction (§3.5.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self
from uuid import UUID

import trio

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.client.links.link import without_traceback
from amqpmesh.router.client.links.requester_links import Call, ReplyLink, RequestLink
from amqpmesh.router.io.environment import environment
from amqpmesh.router.message.content import Message

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from amqpmesh.router.amqp.codec.types import Symbol, Value
    from amqpmesh.router.client.links.link_manager import LinkManager
    from amqpmesh.router.client.links.outgoing import Outgoing


class Requester:
    """A sender of requests that waits for their replies. Several tasks may share it; each gets its own reply."""

    __slots__ = ("__weakref__", "_replies", "_requests")

    def __init__(
        self,
        manager: LinkManager,
        name: str,
        address: str | None,
        replies: tuple[str, int, int, int],
        properties: Mapping[Symbol, Value] | None = None,
    ) -> None:
        """Args: replies: name, credit, max-message-size and most values of a message, of the link for replies.
        properties: of both links.
        """
        reply_name, credit, max_message_size, max_values = replies
        self._replies = ReplyLink(
            manager,
            reply_name,
            credit=credit,
            max_message_size=max_message_size,
            max_values=max_values,
            properties=properties,
        )
        self._requests = RequestLink(manager, name, address, self._replies, properties)

    def __repr__(self) -> str:
        return f"<Requester {self._requests.described()}, {len(self._replies.calls)} calls>"

    @property
    def reply_to(self) -> str | None:
        """The address of the dynamic node that replies are sent to; None: it is not attached."""
        return self._replies.address if self._replies.is_attached else None

    @property
    def late_replies(self) -> int:
        """The number of replies that came after their call had ended. They were accepted and dropped."""
        return self._replies.late

    async def __aenter__(self) -> Self:
        """Attach both links. Raises: as `Sender`; LinkDetachedError also if the peer refuses dynamic nodes."""
        await self._replies.enter()
        try:
            await self._requests.enter()
        except BaseException:
            await self._replies.leave(clean=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Detach both links."""
        try:
            await self._requests.leave(clean=error is None)
        finally:
            await self._replies.leave(clean=error is None)

    async def request(self, message: Message | Value) -> Message:
        """Send a request, and wait for its reply.

        A reply belongs to the request whose correlation-id it carries, or whose message-id if the request has no
        correlation-id. A missing message-id is generated. If this call is cancelled, a late reply is accepted and
        dropped.

        Raises: RejectedError, ReleasedError, ModifiedError: the request was not accepted. InDoubtError: a link was lost
            before the reply came. ProtocolError: the reply is no valid message, or has too many values; it was
            rejected. LinkDetachedError, ConnectionClosedError: the request was not sent. CommandError: another call
            with the same id waits for its reply.
        """
        spans = self._requests.spans
        if spans is None:
            return await self._request(message)
        with spans.sending(message, self._requests.address) as carrying:
            return await self._request(carrying)

    async def _request(self, message: Message | Value) -> Message:
        request = replace(message) if isinstance(message, Message) else Message(message)
        if request.message_id is None:
            request.message_id = UUID(hex=environment().token(16), version=4)
        payload = request.encode()  # fails now, and not only when there is credit
        key = request.message_id if request.correlation_id is None else request.correlation_id
        await trio.lowlevel.checkpoint_if_cancelled()
        self._replies.check()
        calls = self._replies.calls
        if key in calls:
            raise CommandError("a call with that correlation-id waits for its answer already")
        call = calls[key] = Call()

        def prepare() -> bytes:
            request.reply_to = self._replies.address
            return request.encode()

        def watch(outgoing: Outgoing) -> None:
            error = outgoing.error
            if error is not None and not call.done.is_set():
                call.fail(error)

        try:
            call.request = self._requests.submit(payload, prepare=prepare, watch=watch)
            await self._requests.until_sent(call.request)
            await call.done.wait()
        finally:
            # The reply has removed the call; another call may use the id by now.
            if calls.get(key) is call:
                del calls[key]
            if call.request is not None:
                self._requests.forget(call.request)
        if call.error is not None:
            raise without_traceback(call.error)
        assert call.answer is not None
        return call.answer
