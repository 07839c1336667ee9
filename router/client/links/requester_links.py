"""The two links of a requester, and the calls that wait for replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from amqpmesh.router.amqp.codec.composite import declaration
from amqpmesh.router.amqp.codec.value_limits import MAX_VALUES, refuse_values
from amqpmesh.router.amqp.errors import AmqpMeshError, InDoubtError, ProtocolError
from amqpmesh.router.amqp.standard.messaging import DeliveryAnnotations, Header, MessageAnnotations, Properties
from amqpmesh.router.amqp.standard.sections import decode_sections
from amqpmesh.router.client.links.attach_options import BUFFER, ReceiverOptions
from amqpmesh.router.client.links.outgoing import Outgoing
from amqpmesh.router.client.links.receiver_link import ReceiverLink
from amqpmesh.router.client.links.sender_link import SenderLink
from amqpmesh.router.kernel import ACCEPTED_STATE, Incomplete, Violation, descriptor_code, skip
from amqpmesh.router.message.content import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.amqp.codec.types import Symbol, Value
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.client.links.incoming import Incoming
    from amqpmesh.router.client.links.link_manager import LinkManager

_PROPERTIES: Final = declaration(Properties).code

_BEFORE: Final = frozenset(declaration(kind).code for kind in (Header, DeliveryAnnotations, MessageAnnotations))
"""Sections that may come before the properties. They are skipped unread."""

Key = Any
"""A message-id: a str, bytes, a UUID, or an int."""


class Call:
    """A request that waits for its reply."""

    __slots__ = ("answer", "done", "error", "request")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: Message | None = None
        self.error: AmqpMeshError | None = None
        self.request: Outgoing | None = None

    def fail(self, error: AmqpMeshError) -> None:
        """Fail the call: no reply will come."""
        self.error = error
        self.done.set()


class ReplyLink(ReceiverLink):
    """The link for replies. It hands each reply to the call that waits for it."""

    def __init__(
        self,
        manager: LinkManager,
        name: str,
        *,
        credit: int,
        max_message_size: int,
        max_values: int,
        properties: Mapping[Symbol, Value] | None = None,
    ) -> None:
        super().__init__(
            manager,
            name,
            None,
            ReceiverOptions(max_message_size=max_message_size, properties=properties),
            credit=credit,
            buffer=BUFFER,
            max_values=max_values,
        )
        self.calls: dict[Key, Call] = {}
        #: The number of replies whose call had ended.
        self.late = 0
        self.requests: SenderLink | None = None

    def _enqueue(self, delivery: Incoming) -> None:
        super()._enqueue(delivery)
        answered = self._take()
        error = answered.decode()
        if error is not None:
            self._reject(answered, error)
            return
        answer = answered.message
        self.decide(answered, ACCEPTED_STATE)
        call = self.calls.pop(answer.correlation_id, None)
        if call is None:
            self.late += 1
            return
        call.answer = answer
        call.done.set()

    def _reject(self, delivery: Incoming, error: ProtocolError) -> None:
        """Reject an invalid reply, and fail its call if the reply's properties can be read."""
        super()._reject(delivery, error)
        call = self.calls.pop(correlation_of(delivery.payload), None)
        if call is not None:
            call.fail(ProtocolError(error.scope, error.condition, f"the reply was rejected: {error.description}"))

    def _begin_use(self, attach: Attach) -> None:
        super()._begin_use(attach)
        if self.requests is not None:
            self.requests.resume_sending()

    def _follow(self, error: AmqpMeshError) -> None:
        # A node for replies is of use only at the peer that the requests go to.
        self._fail(error)

    def _endpoint_lost(self, error: AmqpMeshError, *, final: bool) -> None:
        super()._endpoint_lost(error, final=final)
        for call in self.calls.values():
            if call.request is not None and call.request.done.is_set() and not call.done.is_set():
                call.fail(InDoubtError("the way back for the answer was lost", getattr(error, "error", None)))
        if self.requests is not None:
            # The requests that wait name an address that is gone.
            if final:
                self.requests.fail_waiting(error)
            else:
                self.requests.restart_delivery()


class RequestLink(SenderLink):
    """The link for requests. It sends none while there is no address for the reply."""

    def __init__(
        self,
        manager: LinkManager,
        name: str,
        address: str | None,
        replies: ReplyLink,
        properties: Mapping[Symbol, Value] | None = None,
    ) -> None:
        super().__init__(manager, name, address, properties=properties)
        self._replies = replies
        replies.requests = self
        # The node for replies must be at the peer that the requests go to.
        self._companion, replies._companion = replies, self

    def _may_send(self) -> bool:
        # A request that is half sent is finished or aborted in any case.
        return super()._may_send() and (self._replies.is_attached or self._partly_sent() is not None)


def correlation_of(payload: bytes) -> Any:
    """Return the correlation-id of a payload, which may be no valid message (§3.2.4); None: none can be read."""
    at, size = 0, len(payload)
    try:
        while at < size:
            code, begin = descriptor_code(payload, at, size)
            end = skip(payload, begin, size)
            if code == _PROPERTIES:
                refuse_values(payload[at:end], MAX_VALUES)
                (properties,) = decode_sections(payload[at:end])
                return properties.correlation_id if isinstance(properties, Properties) else None
            if code not in _BEFORE:
                break
            at = end
    except (Incomplete, Violation, ProtocolError):
        pass
    return None
